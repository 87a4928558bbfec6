"""Disks that are full, closed, torn or slow: R81 R82 R83 R84, and clocks that jump."""
import json
import os
import pathlib
import re
import sqlite3
import subprocess
import time

import pytest

from harness import NOBODY, Gate, have, is_sanitized, nobodys_directory, sh, wait_for

FAST = {"type": "fixed", "delay": "10ms"}


@pytest.fixture
def small_disk(mandor):
    """An 8 MiB tmpfs."""
    path = mandor.tmp / "small"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs may be mounted: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=False)


def fill(path):
    with open(path / "ballast", "wb") as file:
        try:
            while True:
                file.write(b"x" * 65536)
                file.flush()
        except OSError:
            pass
        try:
            while True:
                os.write(file.fileno(), b"x")
        except OSError:
            pass


def test_a_full_disk_under_the_database_loses_and_doubles_nothing_R82(mandor, small_disk):
    mandor.env["MANDOR_BROKER"] = f"sqlite:{small_disk}/q.db"
    ran = mandor.tmp / "ran"
    mandor.add_many([{"exec": sh(f'echo "$MANDOR_JOB_ID" >> {ran}; sleep 0.05'), "attempts": 3, "backoff": FAST}] * 100)
    with mandor.worker("--concurrency", "2") as worker:
        wait_for(lambda: ran.exists() and len(ran.read_text().split()) > 5, 30)
        fill(small_disk)
        refused = mandor.run("add", "--from", "-", input=json.dumps({"exec": ["echo", *["x" * 100_000] * 90]}))  # more than there is of it
        assert refused.code != 0 and refused.complaint.strip(), "an add on a full disk must not be acknowledged"
        size = len(worker.stderr)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert worker.running(), worker.stderr[-2000:]
            time.sleep(0.05)
        assert len(worker.stderr) - size < 100_000, "a flood of errors"
        (small_disk / "ballast").unlink()
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 100, 90, "everything to heal")
    names = ran.read_text().split()
    assert len(set(names)) == 100
    assert len(names) == 100, f"{len(names) - 100} jobs ran twice although nothing crashed"


def test_a_full_disk_under_a_file_sink_fails_the_attempt_as_sink(mandor, small_disk):
    job = mandor.add("head", "-c", "20000000", "/dev/zero", stdout=f"file:{small_disk}/out", attempts=1)
    other = mandor.add("head", "-c", "20000000", "/dev/zero", stdout=f"file:{mandor.tmp}/out")
    mandor.drain("--concurrency", "2")
    record = mandor.show(job)
    assert (record["state"], record["cause"]) == ("failed", "sink"), record
    assert "space" in record["error"].lower() or "ENOSPC" in record["error"], record
    assert list(small_disk.iterdir()) == []
    assert mandor.show(other)["state"] == "completed"


def test_a_read_only_directory_is_named(mandor):
    if os.getuid() == 0:
        target = mandor.tmp / "ro"
        target.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", target], capture_output=True).returncode:
            pytest.skip("nothing may be mounted")
    else:
        target = mandor.tmp / "ro"
        target.mkdir(mode=0o500)
    done = mandor.run("add", "--", "true", env={"MANDOR_BROKER": f"sqlite:{target}/q.db"})
    assert done.code == 125 and str(target) in done.complaint, done
    job = mandor.add("echo", "x", stdout=f"file:{target}/out")
    mandor.drain()
    record = mandor.show(job)
    assert record["cause"] == "sink" and str(target) in record["error"], record


@pytest.mark.parametrize("kind", ["text", "empty directory", "torn"])
def test_what_is_no_database_is_refused_and_left_alone(mandor, kind):
    if kind == "text":
        mandor.db.write_text("these are the accounts of last year\n" * 200)
    elif kind == "empty directory":
        mandor.db.mkdir()
    else:
        mandor.add("true")
        sqlite3.connect(mandor.db).execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        data = bytearray(mandor.db.read_bytes())
        for at in range(4096, len(data), 97):
            data[at] ^= 0x5a
        mandor.db.write_bytes(data)
    before = mandor.db.read_bytes() if mandor.db.is_file() else None
    for command in (("add", "--", "true"), ("ls",), ("work", "--drain")):
        done = mandor.run(*command, timeout=30)
        if kind == "torn" and done.code == 0:
            continue  # may live on pages that are whole
        assert done.code == 125 and "q.db" in done.complaint, done
    if kind == "text":
        assert mandor.db.read_bytes() == before


def test_a_database_of_another_program_is_refused(mandor):
    db = sqlite3.connect(mandor.db)
    db.execute("CREATE TABLE accounts (id)")
    db.commit()
    db.close()
    done = mandor.run("add", "--", "true")
    assert done.code in (2, 125) and "q.db" in done.complaint, done
    tables = {r[0] for r in sqlite3.connect(mandor.db).execute("SELECT name FROM sqlite_master WHERE type='table'")}
    assert tables == {"accounts"}


def test_a_database_that_may_not_be_read_is_named(mandor):
    if os.getuid() != 0:
        pytest.skip("needs root to become someone else")
    with nobodys_directory() as (home, env):
        mandor.ok("add", "--", "true", env={"MANDOR_BROKER": env["MANDOR_BROKER"]})
        done = mandor.run("ls", prefix=NOBODY, env=env, cwd="/")
    assert done.code == 125 and "q.db" in done.complaint, done


def strace(mandor, calls, *args, follow=True, input=None, timeout=60):
    out = mandor.tmp / "trace"
    prefix = ["strace", *(["-f"] if follow else []), "-y", "-s", "300", "-o", str(out), "-e", f"trace={calls}"]
    done = mandor.run(*args, prefix=prefix, input=input, timeout=timeout, env={"ASAN_OPTIONS": "detect_leaks=0"})
    return done, out.read_text(errors="replace").splitlines()


needs_strace = pytest.mark.skipif(not have("strace"), reason="needs strace")


@needs_strace
def test_add_answers_only_when_the_job_is_on_disk_R84(mandor):
    mandor.add("true")  # the database is there
    done, lines = strace(mandor, "fsync,fdatasync,write,writev,pwrite64", "add", "--", "true")
    assert done.code == 0, done
    job = done.text.strip()
    answer = next(i for i, line in enumerate(lines) if job in line and re.search(r"\bwritev?\(1<", line))
    wal = [i for i, line in enumerate(lines[:answer]) if "q.db-wal" in line and "pwrite64" in line]
    syncs = [i for i, line in enumerate(lines[:answer]) if re.search(r"f(data)?sync\(", line) and "q.db" in line]
    assert wal and syncs and max(syncs) > max(wal), lines


@needs_strace
def test_a_published_file_is_synced_before_its_rename_and_settled_after_it_R84(mandor):
    job = mandor.add("echo", "x", stdout=f"file:{mandor.tmp}/d/out")
    done, lines = strace(mandor, "fsync,fdatasync,rename,renameat,renameat2", "work", "--drain")
    assert done.code == 0, done
    assert mandor.show(job)["state"] == "completed"
    renamed = next(i for i, line in enumerate(lines) if "rename" in line and "/d/out" in line or "rename" in line and '"out"' in line)
    assert any(re.search(r"f(data)?sync\(.*/d/\.mandor", line) for line in lines[:renamed]), lines
    after = lines[renamed:]
    assert any(re.search(r"fsync\(\d+<[^>]*/d>", line) for line in after), "the directory is not synced after the rename"
    assert any("q.db" in line and "sync(" in line for line in after), "the settle is not synced"


def test_a_long_reader_does_not_swell_the_wal_for_good_R81(mandor):
    reader = sqlite3.connect(mandor.db)
    mandor.add("true")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    wal = pathlib.Path(f"{mandor.db}-wal")
    with mandor.worker("--concurrency", "4"):
        for _ in range(3):
            mandor.add_many([{"exec": ["true", "x" * 2000]}] * 400)
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 1201, 80, every=0.2)
        swollen = wal.stat().st_size
        reader.rollback()
        reader.close()
        assert swollen > 1 << 20, "the reader held nothing up: the test proves nothing"
        wait_for(lambda: wal.stat().st_size < 8 << 20, 30, f"the WAL to shrink from {swollen}", every=0.1)
        mandor.wait_state(mandor.add("true"), "completed")


def test_a_second_writer_does_not_starve_the_worker(mandor):
    """Someone else's sqlite3 holds the write lock for two seconds."""
    job = mandor.add("true")
    other = sqlite3.connect(mandor.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with mandor.worker() as worker:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert worker.running(), worker.stderr
            time.sleep(0.02)
        other.execute("COMMIT")
        mandor.wait_state(job, "completed", deadline=30)
    other.close()


@pytest.mark.slow
def test_a_store_blocked_past_the_lease_never_doubles_a_job_R58(mandor):
    (mandor.tmp / "m.yaml").write_text("lease: 10s\n")
    lock = mandor.tmp / "lock"
    job = mandor.add(*sh(f'exec 9>{lock}; flock -n 9 || echo x >> {mandor.tmp}/overlap; until [ -e {mandor.tmp}/go ]; do sleep 0.05; done'), attempts=9, backoff=FAST)
    with mandor.worker("--config", mandor.tmp / "m.yaml") as worker:
        mandor.wait_phase(job, "running")
        other = sqlite3.connect(mandor.db, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        (mandor.tmp / "go").touch()  # it ends meanwhile
        until = time.monotonic() + 12
        while time.monotonic() < until:
            time.sleep(0.05)
            assert worker.running(), worker.stderr
        other.execute("COMMIT")
        other.close()
        mandor.wait_state(job, "completed", deadline=60)
    assert not (mandor.tmp / "overlap").exists()


@pytest.mark.slow
def test_a_commit_that_outlasts_its_lease_publishes_nothing_and_the_job_runs_again(mandor):
    """The disk's sync takes longer than the lease, and all the while the store is held up, so that the lease of 10 s cannot be renewed."""
    (mandor.tmp / "m.yaml").write_text("lease: 10s\n")
    out = mandor.tmp / "out"
    job = mandor.add("sh", "-c", "echo $MANDOR_ATTEMPT", stdout=f"file:{out}")
    other = sqlite3.connect(mandor.db, isolation_level=None)

    def outlasts():
        with gate.held() as call:
            if call is None or "/.mandor." not in call:
                return False
            other.execute("BEGIN IMMEDIATE")
            worker.says("the lease ended before its output was published")
            return True
    with Gate(mandor.tmp / "gate", "fsync") as gate, mandor.worker("--config", mandor.tmp / "m.yaml", env=gate.env) as worker:
        wait_for(outlasts, 20, "the commit's sync")
        gate.open()
        wait_for(lambda: not list(mandor.tmp.glob(".mandor.*")), 30, "the end of the sync", every=0.1)
        assert not out.exists()
        other.execute("COMMIT")
        other.close()
        record = mandor.wait_state(job, "completed", deadline=60)
    assert (record["attempt"], record["attempts_used"]) == (2, 1), record
    assert out.read_text() == "2\n"


def faketime_works():
    return have("faketime")


def clock_may_be_set():
    return os.getuid() == 0 and os.environ.get("MANDOR_TEST_CLOCK") == "1"


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_a_job_R36(mandor, step):
    if not clock_may_be_set():
        pytest.skip("sets the machine's clock: only with MANDOR_TEST_CLOCK=1 as root")
    with mandor.worker():
        jobs = [mandor.add("sleep", "600", timeout="2s"), mandor.add("sleep", "3", timeout="60s"), mandor.add("true", delay="2s")]
        mandor.wait_phase(jobs[1], "running")
        time.clock_settime(time.CLOCK_REALTIME, time.time() + step)
        try:
            start = time.monotonic()
            assert mandor.wait_state(jobs[0], "failed", deadline=10)["cause"] == "timeout"
            assert mandor.wait_state(jobs[1], "completed", deadline=10)
            assert mandor.wait_state(jobs[2], "completed", deadline=10)
            assert time.monotonic() - start < 10
        finally:
            time.clock_settime(time.CLOCK_REALTIME, time.time() - step)


def test_a_wall_clock_that_lies_does_not_change_deadlines_R36(mandor):
    if not faketime_works() or is_sanitized():
        pytest.skip("needs faketime and a binary without sanitizers")
    mandor.add("sleep", "600", timeout="500ms")
    done = mandor.run("work", "--drain", prefix=("faketime", "-f", "-1d"), timeout=30)
    assert done.code == 0, done
