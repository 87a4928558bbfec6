"""System calls that fail, made to fail from outside: strace -e inject, prlimit."""
import resource
import sqlite3
import subprocess
import time

import pytest

from harness import have, held, let_go, sh, tree, wait_for
from wheel_lab import wheel

FAST = {"type": "fixed", "delay": "10ms"}
pytestmark = pytest.mark.skipif(not have("strace"), reason="needs strace")
NO_LEAKS = {"ASAN_OPTIONS": "detect_leaks=0"}  # the leak check cannot run under ptrace


def inject(*rules, path=None, follow=True):
    """A strace prefix that lets system calls fail: inject('fsync:error=EIO')."""
    prefix = ["strace", *(["-f"] if follow else []), "-qq", "-o", "/dev/null"]
    names = ",".join(rule.split(":")[0] for rule in rules)
    prefix += ["-e", f"trace={names}"]
    for rule in rules:
        prefix += ["-e", f"inject={rule}"]
    if path:
        prefix += ["-P", str(path)]
    return prefix


def test_an_fsync_that_fails_under_a_file_sink_never_publishes(mandor):
    job = mandor.add("echo", "x", stdout=f"file:{mandor.tmp}/d/out", attempts=1)
    # The database says fdatasync, so that this hits the file alone.
    done = mandor.run("work", "--drain", prefix=inject("fsync:error=EIO"), env=NO_LEAKS)
    record = mandor.show(job)
    assert (record["state"], record["cause"]) == ("failed", "sink"), (record, done)
    assert "I/O" in record["error"] or "EIO" in record["error"] or "Input/output" in record["error"], record
    assert not (mandor.tmp / "d").exists() or list((mandor.tmp / "d").iterdir()) == []


@pytest.mark.parametrize("error", ["EXDEV", "ENOSPC", "EACCES"])
def test_a_rename_that_fails_is_a_sink_failure_and_leaves_nothing(mandor, error):
    job = mandor.add("echo", "x", stdout=f"file:{mandor.tmp}/d/out", attempts=1)
    mandor.run("work", "--drain", prefix=inject(f"rename,renameat,renameat2:error={error}"), env=NO_LEAKS)
    record = mandor.show(job)
    assert (record["state"], record["cause"]) == ("failed", "sink"), record
    assert not (mandor.tmp / "d" / "out").exists()
    assert list((mandor.tmp / "d").iterdir()) == []


def test_a_retry_after_a_passing_fault_completes(mandor):
    # strace counts by thread: the first rename of each thread that makes one fails.
    job = mandor.add("echo", "x", stdout=f"file:{mandor.tmp}/d/out", attempts=9, backoff=FAST)
    mandor.run("work", "--drain", prefix=inject("rename,renameat,renameat2:error=EIO:when=1"), env=NO_LEAKS)
    record = mandor.show(job)
    assert record["state"] == "completed" and record["attempt"] >= 2, record
    assert (mandor.tmp / "d" / "out").read_text() == "x\n"


@pytest.mark.parametrize("error", ["EAGAIN", "ENOMEM"])
def test_a_clone_that_fails_for_a_while_puts_the_job_back_uncharged(mandor, error):
    """Whichever clones it hits, no attempt is charged; the job completes, or mandor says that it could not start itself."""
    job = mandor.add("echo", "ran", attempts=1)
    done = mandor.run("work", "--drain", prefix=inject(f"clone3:error={error}:when=1..3"), env=NO_LEAKS)
    record = mandor.show(job)
    if done.code == 125:
        assert done.cause, done  # could not even start itself: said so
        assert record["state"] == "waiting" and record["attempts_used"] == 0, record
        return
    assert record["state"] == "completed", (record, done)
    assert record["attempts_used"] <= 1


def test_out_of_descriptors_is_put_back_and_heals(mandor):
    """Few descriptors, many jobs: those that cannot start wait, none fails, none is charged."""
    jobs = mandor.add_many([{"exec": sh("sleep 0.1; echo fine"), "attempts": 1}] * 30)
    with mandor.worker("--concurrency", "30", prefix=("prlimit", "--nofile=96:96")) as worker:
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 30, 250, "all to complete", every=0.1)
        assert worker.running()
    for job in jobs:
        assert mandor.logs_of(job, "--stdout") == b"fine\n"
        assert mandor.show(job)["attempts_used"] <= 1


def test_too_few_descriptors_to_start_at_all_says_so(mandor):
    done = mandor.run("run", "--", "true", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)))
    assert done.code in (0, 125), done
    assert done.code == 0 or done.complaint.strip(), done
    assert "assert" not in done.complaint.lower(), done


@pytest.mark.parametrize("call", ["pidfd_open", "epoll_ctl", "close_range", "prctl"])
@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_a_kernel_that_refuses_a_call_is_met_with_a_fallback_or_a_reason(mandor, call, error):
    """Nothing hangs, nothing aborts, nothing claims success that did not happen."""
    done = mandor.run("run", "--", "echo", "ran", prefix=inject(f"{call}:error={error}"), env=NO_LEAKS)
    assert done.code in (0, 125, 126), done
    assert (done.out == b"ran\n") == (done.code == 0), done
    assert done.code == 0 or done.cause, done
    assert not mandor.left()


def test_clone3_missing_from_the_kernel_has_a_way_round(mandor):
    done = mandor.run("run", "--", "echo", "ran", prefix=inject("clone3:error=ENOSYS"), env=NO_LEAKS)
    assert (done.code, done.out) == (0, b"ran\n"), done


@pytest.mark.parametrize("call", ["pwrite64", "fdatasync,fsync"])
def test_a_database_write_that_fails_is_never_acknowledged(mandor, call):
    mandor.add("true")
    done = mandor.run("add", "--", "echo", "marked-job", prefix=inject(f"{call}:error=EIO", path=f"{mandor.db}-wal"), env=NO_LEAKS)
    if done.code == 0:
        assert done.text.strip() in mandor.states(), "acknowledged and not there"
        assert any(True for _ in mandor.states())
        pytest.skip("no write of this kind went to the WAL")
    assert not done.out.strip() and done.complaint.strip(), done
    integrity = sqlite3.connect(mandor.db).execute("PRAGMA integrity_check").fetchall()
    assert integrity == [("ok",)]


def test_a_settle_that_fails_is_repeated_until_it_is_written_R64(mandor):
    """Every write to the WAL fails for a while after the job has run; it is neither lost nor run twice."""
    ran = mandor.tmp / "ran"
    job = mandor.add(*sh(f"echo x >> {ran}; sleep 0.3"), attempts=1)
    done = mandor.run("work", "--drain", prefix=inject("pwrite64:error=ENOSPC:when=6..14", path=f"{mandor.db}-wal"), env=NO_LEAKS)
    assert done.code == 0, done
    record = mandor.show(job)
    assert record["state"] == "completed", (record, done)
    assert ran.read_text() == "x\n"


@pytest.mark.parametrize("call, error", [("read", "EIO"), ("openat", "EMFILE")])
def test_a_stdin_file_that_cannot_be_read_is_told(mandor, call, error):
    source = mandor.tmp / "in"
    source.write_bytes(b"x" * 200000)
    done = mandor.run("run", "--stdin", f"file:{source}", "--", "cat", prefix=inject(f"{call},pread64,preadv,readv:error={error}" if call == "read" else f"{call}:error={error}", path=source),
                      env=NO_LEAKS)
    assert done.code == 125 and "in" in done.complaint, done


def test_a_cgroup_that_cannot_be_made_falls_to_another_rung(mandor):
    if mandor.cell.unified is None:
        pytest.skip("no cgroup v2 here")
    done = mandor.run("run", "--", *sh("setsid sleep 600 & echo ok"), prefix=inject("mkdir,mkdirat:error=EACCES", path=mandor.cell.unified), env=NO_LEAKS)
    assert done.code in (0, 125), done
    assert not mandor.left()


def test_a_sink_that_is_given_up_before_its_job_has_started_ends_both(mandor):
    """The machine stood still for a second between the two."""
    run = mandor.popen("run", "--stdout", "memcached://127.0.0.1:1/k", "--kill-after", "10m", "--", "sleep", "600", env=NO_LEAKS,
                       prefix=[*inject("execve:delay_enter=120s"), "-D"], stderr=subprocess.PIPE)
    child = wait_for(lambda: next((pid for pid in tree(run.pid) if held(pid)), None), what="the child that is held before exec")
    time.sleep(3)  # nobody tells of it: its stream is given up
    let_go(child)
    assert run.wait(60) == 125 and b"127.0.0.1:1': Connection refused" in run.stderr.read()
    run.stderr.close()


def test_verify_does_not_blame_a_store_that_is_changed_meanwhile(mandor):
    """Between the lock file and the wheel that it names, both are replaced."""
    store, old, new = mandor.tmp / "store", wheel(mandor.tmp / "old", "lib", "1.0"), wheel(mandor.tmp / "new", "lib", "2.0")
    mandor.ok("wheels", "import", "--store", store, old)
    place = next(store.rglob("*.whl"))
    slow = mandor.popen("wheels", "verify", "--no-import", "--store", store, prefix=[*inject("openat:delay_enter=120s", path=place), "-D"], env=NO_LEAKS)
    wait_for(lambda: held(slow.pid), what="it to have read the lock file and to open the wheel")
    mandor.ok("wheels", "import", "--store", store, new)
    assert not place.exists()
    let_go(slow.pid)
    assert slow.wait(60) == 0
