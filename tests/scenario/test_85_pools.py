"""Warm pools from end to end: real `mandor work`, workers that speak the protocol by hand (tests/lib/pool_worker.py)."""
import contextlib
import json
import os
import pathlib
import random
import signal
import time

import pytest

from harness import BINARY, SOAK, alive, children, cmdline, hwm_bytes, is_sanitized, rss_bytes, wait_for

PYTHON = "/usr/bin/python3"
WORKER = str(pathlib.Path(__file__).resolve().parents[1] / "lib" / "pool_worker.py")
FAST = {"type": "fixed", "delay": "10ms", "jitter": 0}


def configure(mandor, pools=None, concurrency=8, **more):
    """Write mandor.yaml (JSON is YAML) with the pool `p`, or the pools given, and make it the one to use."""
    pools = pools or {"p": more}
    for options in pools.values():
        options.setdefault("command", [PYTHON, "-S", WORKER])
    text = {"concurrency": concurrency, "shutdown_timeout": "1s", "pools": pools, "queues": {"default": {"keep_completed": {}}, "bound": {"pool": next(iter(pools))}}}
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps(text))
    mandor.env["MANDOR_CONFIG"] = str(path)
    return path


def add(mandor, data=None, pool="p", **keys):
    return mandor.add_many([{"pool": pool, "data": data, **keys}])[0]


def pool_of(mandor, name="p"):
    for one in mandor.ok("pools", "--json").json():
        for pool in one["pools"]:
            if pool["name"] == name:
                return pool
    return None


def wait_ready(mandor, count, name="p", deadline=20):
    """Wait until so many workers are ready; returns their pids."""
    def ready():
        pool = pool_of(mandor, name)
        pids = [w["pid"] for w in (pool or {"workers": []})["workers"] if w["state"] == "ready"]
        return pids if len(pids) >= count else None
    return wait_for(ready, deadline, f"{count} ready workers", every=0.05)


# ---- the plain story ----


def test_a_job_is_given_to_a_warm_worker_and_its_result_recorded(mandor):
    configure(mandor)
    job = mandor.ok("add", "--pool", "p", "--data", '{"n": [1, "zwei"]}').text.strip()
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["cause"], record["exit_code"]) == ("completed", "exit", 0), record
    task = record["result"]["task"]
    assert task == {"id": job, "queue": "default", "attempt": 1, "data": {"n": [1, "zwei"]}, "timeout_ms": 0, "stdin": False}
    assert record["containment"] in ("cgroup", "pidns", "group")


def test_a_queue_may_be_bound_to_a_pool(mandor):
    configure(mandor)
    job = mandor.ok("add", "--queue", "bound", "--data", '{"result": 5}').text.strip()
    plain = mandor.ok("add", "--queue", "bound", "--", "echo", "hi").text.strip()
    mandor.drain()
    assert mandor.show(job)["result"] == 5
    assert mandor.show(plain)["state"] == "completed" and mandor.logs_of(plain) == b"hi\n"


def test_an_unknown_pool_fails_the_job_at_once_and_names_those_that_are_there(mandor):
    configure(mandor, {"thumbs": {}, "other": {}})
    job = add(mandor, 1, pool="thumb", attempts=5)
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and record["attempts_used"] == 1, record
    assert "'thumb'" in record["error"] and "'thumbs'" in record["error"] and "'other'" in record["error"]


def test_one_worker_takes_many_jobs_and_an_error_is_one_jobs_affair(mandor):
    configure(mandor)
    jobs = mandor.add_many([{"pool": "p", "data": {"fail": {"message": "no", "code": 7}} if i == 5 else None} for i in range(20)])
    final = add(mandor, {"fail": {"message": "never", "retry": False}}, attempts=3)
    mandor.drain()
    records = [mandor.show(job) for job in jobs]
    pids = {r["result"]["pid"] for r in records if r["state"] == "completed"}
    assert len(pids) == 1, pids
    assert (records[5]["state"], records[5]["cause"], records[5]["exit_code"], records[5]["error"]) == ("failed", "exit", 7, "no")
    record = mandor.show(final)
    assert (record["state"], record["exit_code"], record["attempts_used"]) == ("failed", 100, 1), record


def test_the_traceback_of_an_error_is_on_the_jobs_stderr(mandor):
    configure(mandor)
    whole = add(mandor, {"fail": {"message": "no", "traceback": "at line 7\n" * 30_000}})
    line = add(mandor, {"fail": {"message": "no", "traceback": "at line 8"}})
    mandor.drain()
    assert mandor.ok("logs", whole, "--stderr").text == "at line 7\n" * 30_000
    assert mandor.ok("logs", line, "--stderr").text == "at line 8\n"
    assert mandor.show(line)["error"] == "no"


def test_output_arrives_exactly_and_stdin_too(mandor):
    configure(mandor)
    size = 3_000_001
    source = mandor.tmp / "in.bin"
    source.write_bytes(os.urandom(size))
    out = mandor.tmp / "out.bin"
    written = add(mandor, {"write": size, "text": "0123456789"}, stdout=f"file:{out}")
    to_err = add(mandor, {"write": 5, "text": "hello", "stream": 2})
    echoed = add(mandor, {"echo": True}, stdin=f"file:{source}", stdout=f"file:{mandor.tmp}/echo.bin")
    counted = add(mandor, {"count": True}, stdin="inline:twelve bytes")
    missing = add(mandor, {"count": True}, stdin=f"file:{mandor.tmp}/none")
    mandor.drain()
    assert mandor.show(written)["streams"]["stdout"]["bytes"] == size
    assert out.read_bytes() == (b"0123456789" * (size // 10 + 1))[:size]
    assert mandor.show(to_err)["streams"]["stderr"]["tail"] == "hello"
    assert (mandor.tmp / "echo.bin").read_bytes() == source.read_bytes()
    assert mandor.show(counted)["result"] == 12
    record = mandor.show(missing)
    assert (record["state"], record["cause"]) == ("failed", "sink"), record


def test_progress_and_log_frames_arrive(mandor):
    configure(mandor)
    with mandor.worker() as worker:
        job = add(mandor, {"progress": {"at": 50}, "log": "half way", "sleep": 0.1})
        record = mandor.wait_state(job, "completed")
        assert record["progress"] == {"at": 50}
        worker.says("half way", f"job={job}")


def test_one_slow_sink_does_not_hold_up_the_other_jobs_of_its_worker(mandor):
    configure(mandor, {"p": {"size": 1, "concurrency": 4}})
    with mandor.worker():
        slow = add(mandor, {"write": 12_000_000, "text": "slow"}, stdout=f"file:{mandor.tmp}/slow.bin")
        fast = [add(mandor, {"write": 1_000_000, "text": "fast"}) for _ in range(6)]
        for job in fast:
            assert mandor.wait_state(job, "completed")["streams"]["stdout"]["bytes"] == 1_000_000
        assert mandor.wait_state(slow, "completed")["streams"]["stdout"]["bytes"] == 12_000_000


# ---- prints (R54), frames (R55) ----


def test_prints_go_to_the_log_with_the_jobs_id_and_never_into_a_frame_R54(mandor):
    configure(mandor)
    with mandor.worker() as worker:
        job = add(mandor, {"print": "Error: boom\n", "result": "fine"})
        assert mandor.wait_state(job, "completed")["result"] == "fine"
        wait_for(lambda: worker.stderr.count("Error: boom") == 2, 10, "both prints in the log")
        lines = [line for line in worker.stderr.splitlines() if "Error: boom" in line]
        assert all("stdout: " in line or "stderr: " in line for line in lines), lines
        assert add(mandor, {"result": 2})


def test_a_flood_on_descriptor_1_blocks_nobody_and_is_left_out_of_the_log(mandor):
    configure(mandor)
    with mandor.worker() as worker:
        job = add(mandor, {"flood": 100_000, "result": 1})
        after = add(mandor, {"print": "after\n"})
        mandor.wait_state(job, "completed")
        mandor.wait_state(after, "completed")
        assert worker.stderr.count("stdout: xxx") < 2000
        assert os.path.getsize(worker.log) < 2_000_000


BAD = {
    "text instead of a frame": "54726163656261636b20286d6f737420726563656e742063616c6c206c617374293a0a",
    "a giant length": "ffffffff0400010001000000000000003130",
    "an unknown type": "02000000630001000100000000000000" + "3130",
    "another version": "02000000040009000100000000000000" + "3130",
    "a job that it does not have": "020000000400010063000000000000003130",
    "a result that is not JSON": "02000000040001004a4f424e554d4252" + "7b7b",
    "a result of no job": "02000000040001000000000000000000" + "3130",
    "a chunk beyond its credit": "00000800" + "03020100" + "4a4f424e554d4252" + "41" * 0x80000,
    "a second HELLO": "3e0000000100010000000000000000007b2276657273696f6e73223a5b315d2c226e616d65223a22726573697a65222c2273646b223a22707974686f6e2f302e31222c22637265646974223a387d",
    "a PONG that nobody asked for": "070000000b00010000000000000000007b226e223a397d",
    "a JOB": "020000000200010001000000000000007b7d",
}


@pytest.mark.parametrize("what", BAD)
def test_a_worker_that_breaks_the_protocol_ends_alone(mandor, what):
    configure(mandor, {"p": {"size": 1}, "q": {"size": 1}})
    with mandor.worker() as worker:
        bad = add(mandor, {"raw": BAD[what]})
        other = add(mandor, {"sleep": 0.3, "result": "untouched"}, pool="q")
        record = mandor.wait_state(bad, "failed")
        assert record["cause"] == "protocol" and record["error"], record
        assert mandor.wait_state(other, "completed")["result"] == "untouched"
        after = add(mandor, {"result": "alive"})
        assert mandor.wait_state(after, "completed")["result"] == "alive"
        worker.says("protocol error")


def test_half_a_frame_and_the_end_is_a_protocol_error(mandor):
    configure(mandor)
    with mandor.worker():
        job = add(mandor, {"raw": "080000000400010001000000", "then": "exit"})
        record = mandor.wait_state(job, "failed")
        assert record["cause"] == "protocol" and "16 bytes" in record["error"], record


# ---- deaths ----


def test_a_killed_worker_ends_its_job_as_killed_and_is_replaced_R21(mandor):
    configure(mandor)
    with mandor.worker():
        job = add(mandor, {"die": 9})
        record = mandor.wait_state(job, "failed")
        assert record["cause"] == "worker_died" and "signal 9" in record["error"], record
        after = add(mandor, {"result": 1})
        mandor.wait_state(after, "completed")


def test_only_the_jobs_of_the_dead_worker_are_tried_again(mandor):
    configure(mandor, {"p": {"size": 2, "concurrency": 2}})
    mark, gate = mandor.tmp / "starts", mandor.tmp / "gate"
    with mandor.worker():
        pids = wait_ready(mandor, 2)
        jobs = mandor.add_many([{"pool": "p", "data": {"mark": str(mark), "gate": str(gate), "result": i}, "attempts": 3, "backoff": FAST} for i in range(4)])
        wait_for(lambda: mark.exists() and len(mark.read_text().splitlines()) == 4, 20, "all four to run")
        os.kill(pids[0], signal.SIGKILL)
        wait_for(lambda: len(mark.read_text().splitlines()) == 6, 20, "two of them to run again")
        gate.touch()
        records = [mandor.wait_state(job, "completed") for job in jobs]
        assert [r["result"] for r in records] == [0, 1, 2, 3]
        assert sorted(r["attempt"] for r in records) == [1, 1, 2, 2]


def test_a_death_while_idle_charges_nobody_R68(mandor):
    configure(mandor)
    with mandor.worker():
        for i in range(10):
            pid = wait_ready(mandor, 1)[0]
            os.kill(pid, signal.SIGSTOP)  # it cannot read what is given to it now
            job = add(mandor, {"result": i})
            wait_for(lambda: pool_of(mandor)["busy"] == 1, 10, "the job to be given")
            os.kill(pid, signal.SIGKILL)
            record = mandor.wait_state(job, "completed")
            assert (record["result"], record["attempt"]) == (i, 1), record


@pytest.mark.limit(900)
def test_a_result_just_before_the_exit_is_never_lost_R62(mandor):
    count = 150 if not SOAK else 5000
    configure(mandor, size=4, max_jobs=1)
    jobs = mandor.add_many([{"pool": "p", "data": {"result_and_exit": True}}] * count)
    mandor.drain(timeout=600 if not SOAK else 800)
    records = mandor.list()
    assert [r["state"] for r in records if r["state"] != "completed"] == []
    assert all(r["attempt"] == 1 for r in records)
    assert len({(r["result"]["pid"], r["result"]["born"]) for r in records}) == len(jobs)  # a worker each


@pytest.mark.quiet
def test_recycling_is_staggered_R63(mandor):
    """Steady load, every worker replaced several times: at no time is less than half of the pool at work.  A worker's last four
    jobs are its successor's time to start, so jobs are as long as starts are slow here."""
    configure(mandor, size=8, max_jobs=40)
    seen = []
    with mandor.worker():
        began = time.monotonic()
        wait_ready(mandor, 8)
        nap = min(max(0.03, (time.monotonic() - began) / 8), 1)
        count = int(max(900 * 0.03 / nap, 640))
        mandor.add_many([{"pool": "p", "data": {"sleep": nap}}] * count)

        def look():
            pool = pool_of(mandor)
            if pool is None or pool["jobs"] >= count:
                return pool
            seen.append(sum(w["state"] == "ready" or bool(w["held"]) for w in pool["workers"]))
            return None
        pool = wait_for(look, 250, "all jobs")
        assert pool["recycles"] >= count // 50 and pool["deaths"] == 0, pool
        assert min(seen) >= 4, seen


def test_workers_that_die_at_once_are_started_ever_more_slowly_until_it_is_mended_R69(mandor):
    flag = mandor.tmp / "mended"
    command = ["sh", "-c", f"[ -e {flag} ] || exit 3; exec {PYTHON} -S {WORKER}"]
    configure(mandor, size=4, command=command)
    with mandor.worker() as worker:
        job = add(mandor, {"result": 1})
        pool = wait_for(lambda: (p := pool_of(mandor)) and p["failed_starts"] >= 3 and p, 20, "three failed starts")
        assert pool["state"] == "failing" and "exit code 3" in pool["last_error"], pool
        assert mandor.show(job)["phase"] == "starting"
        began, starts = time.monotonic(), pool["started"]
        wait_for(lambda: time.monotonic() - began > 2, 5, "two seconds")
        starts = pool_of(mandor)["started"] - starts
        assert starts <= 3 * (time.monotonic() - began), starts
        flag.touch()
        mandor.wait_state(job, "completed", deadline=60)
        assert pool_of(mandor)["state"] == "ready"
        worker.says("exit code 3")


def test_a_job_that_waits_for_a_failing_pool_can_be_cancelled(mandor):
    configure(mandor, command=["false"])
    with mandor.worker():
        job = add(mandor, 1)
        mandor.wait_phase(job, "starting")
        mandor.ok("cancel", "--wait", job)
        assert mandor.show(job)["state"] == "cancelled"
        other = add(mandor, 1)
        mandor.wait_phase(other, "starting")
    record = mandor.show(other)
    assert record["state"] in ("waiting", "delayed") and record["attempts_used"] == 0, record


def test_a_pool_that_lost_all_its_workers_refills_by_itself_R70(mandor):
    configure(mandor, size=8)
    with mandor.worker():
        pids = wait_ready(mandor, 8)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(alive(pid) for pid in pids), 10, "all to be dead")
        fresh = wait_ready(mandor, 8)
        assert not set(fresh) & set(pids)
        mandor.wait_state(add(mandor, {"result": 1}), "completed")


def test_a_worker_without_hello_never_gets_a_job(mandor):
    configure(mandor, command=["sleep", "100"], hello_timeout="300ms", kill_after="100ms")
    with mandor.worker():
        job = add(mandor, 1)
        pool = wait_for(lambda: (p := pool_of(mandor)) and p["failed_starts"] >= 1 and p, 20, "a failed start")
        assert "HELLO" in pool["last_error"] and mandor.show(job)["phase"] == "starting"
        assert pool["busy"] == 0 and pool["waiting"] == 1, pool


def test_an_idle_worker_that_answers_no_ping_is_replaced(mandor):
    configure(mandor, ping_interval="1s", env={"MUTE": "1"})
    with mandor.worker() as worker:
        pid = wait_ready(mandor, 1)[0]
        wait_for(lambda: not alive(pid), 20, "the mute worker to be ended")
        worker.says("PING")


# ---- timeouts, cancel ----


@pytest.mark.parametrize("deaf", [False, True])
def test_a_timeout_cancels_and_then_kills(mandor, deaf):
    configure(mandor)
    with mandor.worker():
        pid = wait_ready(mandor, 1)[0]
        job = add(mandor, {"sleep": 100, "deaf": deaf}, timeout="300ms", kill_after="300ms" if deaf else "20s")
        record = mandor.wait_state(job, "failed")
        assert record["cause"] == "timeout" and "timeout of 300ms" in record["error"], record
        assert alive(pid) is not deaf
        assert ("killed" in record["error"]) is deaf


def test_other_jobs_of_a_worker_that_is_killed_are_put_back_uncharged(mandor):
    configure(mandor, {"p": {"concurrency": 4}})
    with mandor.worker():
        gate = mandor.tmp / "gate"
        deaf, other = mandor.add_many([{"pool": "p", "data": {"sleep": 100, "deaf": True}, "timeout": "1s", "kill_after": "100ms"},
                                       {"pool": "p", "data": {"gate": str(gate), "result": "ok"}}])
        assert mandor.wait_state(deaf, "failed")["cause"] == "timeout"
        gate.touch()
        record = mandor.wait_state(other, "completed")
        assert record["result"] == "ok" and record["attempt"] == 2 and record["attempts_used"] <= 1, record


def test_cancel_reaches_the_worker_and_leaves_it_alive(mandor):
    configure(mandor)
    with mandor.worker():
        pid = wait_ready(mandor, 1)[0]
        job = add(mandor, {"sleep": 100})
        mandor.wait_phase(job, "running")
        mandor.ok("cancel", "--wait", job)
        assert mandor.show(job)["state"] == "cancelled" and alive(pid)


def test_idle_timeout_and_output_max_hold_for_pool_jobs(mandor):
    configure(mandor)
    idle = add(mandor, {"sleep": 100}, idle_timeout="200ms", kill_after="1s")
    much = add(mandor, {"write": 300_000}, output_max="100K", kill_after="1s")
    mandor.drain()
    assert mandor.show(idle)["cause"] == "idle_timeout"
    assert mandor.show(much)["cause"] == "limit"


# ---- recycling, growing, changing ----


def test_max_age_max_memory_and_contamination_replace_a_worker(mandor):
    configure(mandor, {"age": {"max_age": "1s"}, "fat": {"max_memory": "200M"}, "dirty": {"contamination": "recycle"}})
    with mandor.worker() as worker:
        before = {name: wait_ready(mandor, 1, name)[0] for name in ("age", "fat", "dirty")}
        mandor.wait_state(add(mandor, {"eat": 256}, pool="fat"), "completed")
        mandor.wait_state(add(mandor, {"open": 3}, pool="dirty"), "completed")
        for pid in before.values():
            wait_for(lambda: not alive(pid), 30, f"worker {pid} to be replaced")
        worker.says("descriptors")


@pytest.mark.parametrize("data, word", [({"open": 2}, "descriptors"), ({"chdir": "/"}, "directory"), ({"fork": 1}, "processes")])
def test_what_a_job_leaves_behind_is_reported(mandor, data, word):
    configure(mandor)
    with mandor.worker() as worker:
        pid = wait_ready(mandor, 1)[0]
        wait_for(lambda: pool_of(mandor)["workers"][0]["memory"] > 0, 10, "the first look")
        mandor.wait_state(add(mandor, data), "completed")
        wait_for(lambda: "not as it was" in worker.stderr, 20, "the report")
        assert word in worker.stderr and alive(pid)


def test_a_pool_grows_under_load_and_shrinks_when_idle(mandor):
    configure(mandor, size={"min": 1, "max": 4}, shrink_after="1s")
    with mandor.worker():
        assert len(wait_ready(mandor, 1)) == 1
        gate = mandor.tmp / "gate"
        jobs = mandor.add_many([{"pool": "p", "data": {"gate": str(gate)}}] * 4)
        wait_ready(mandor, 4)
        gate.touch()
        for job in jobs:
            mandor.wait_state(job, "completed")
        wait_for(lambda: len(pool_of(mandor)["workers"]) == 1, 20, "the pool to shrink")


def test_sighup_brings_changes_and_takes_pools_away(mandor):
    path = configure(mandor, {"p": {"size": 2}, "old": {}})
    with mandor.worker() as worker:
        before = wait_ready(mandor, 2)
        wait_ready(mandor, 1, "old")
        gate = mandor.tmp / "gate"
        running = add(mandor, {"gate": str(gate), "result": "kept"}, pool="old")
        mandor.wait_phase(running, "running")
        configure(mandor, {"p": {"size": 2, "env": {"CHANGED": "1"}}, "new": {}})
        assert path.exists()
        os.kill(worker.pid, signal.SIGHUP)
        wait_ready(mandor, 1, "new")
        wait_for(lambda: not any(alive(pid) for pid in before), 20, "the workers to be replaced")
        wait_ready(mandor, 2)
        gate.touch()
        assert mandor.wait_state(running, "completed")["result"] == "kept"
        wait_for(lambda: pool_of(mandor, "old") is None, 20, "the old pool to end")
        assert mandor.wait_state(add(mandor, 1, pool="old"), "failed")["error"].startswith("no pool 'old'")


def test_doctor_says_what_would_keep_a_pool_from_starting(mandor):
    configure(mandor, {"good": {}, "lost": {"command": ["no-such-program"]}})
    ended = mandor.run("doctor", "--json")
    checks = {one["check"]: one for one in ended.json()["checks"]}
    assert checks["pool good"]["health"] == "ok" and PYTHON in checks["pool good"]["text"]
    assert checks["pool lost"]["health"] == "broken" and "no-such-program" in checks["pool lost"]["text"]
    assert ended.code == 1


def test_stats_shows_pools_where_there_are_some(mandor):
    configure(mandor, {"thumbs": {}})
    with mandor.worker():
        wait_ready(mandor, 1, "thumbs")
        text = mandor.ok("stats").text
        assert "POOL" in text and [line for line in text.splitlines() if line.startswith("thumbs")][0].split()[1] == "ready"
    assert "POOL" not in mandor.ok("stats").text


def test_a_worker_may_ask_for_fewer_jobs_at_once(mandor):
    configure(mandor, {"p": {"concurrency": 8, "env": {"ONLY": "1"}}})
    with mandor.worker():
        gate = mandor.tmp / "gate"
        jobs = mandor.add_many([{"pool": "p", "data": {"gate": str(gate)}}] * 3)
        wait_for(lambda: (p := pool_of(mandor)) and p["busy"] == 1 and p["waiting"] == 2, 10, "one held, two waiting")
        gate.touch()
        for job in jobs:
            mandor.wait_state(job, "completed")


# ---- nothing is left ----


def test_nothing_of_a_pool_is_left_after_sigkill_of_mandor(mandor):
    configure(mandor, size=3)
    with mandor.worker() as worker:
        pids = wait_ready(mandor, 3)
        mandor.wait_state(add(mandor, {"fork": 1}), "completed")
        worker.kill(guard=False)
        wait_for(lambda: not mandor.left(), 5, "everything to be gone")
        assert not any(alive(pid) for pid in pids)
    mandor.drain()


def test_shutdown_ends_the_workers_even_those_that_ignore_bye(mandor):
    configure(mandor, {"p": {"size": 2}, "deaf": {"command": ["sh", "-c", f"trap '' TERM; {PYTHON} -S {WORKER}; sleep 100"], "kill_after": "200ms"}})
    with mandor.worker() as worker:
        wait_ready(mandor, 2)
        wait_ready(mandor, 1, "deaf")
        worker.signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_memory_stays_bounded_whatever_a_worker_floods(mandor):
    """300 MiB of PROGRESS and LOG frames, and a job whose output nobody takes."""
    configure(mandor)
    frame = "10000000" + "06000100" + "4a4f424e554d4252" + b'"0123456789abcd"'.hex()
    with mandor.worker() as worker:
        wait_ready(mandor, 1)
        before = rss_bytes(worker.pid)
        job = add(mandor, {"raw": frame * 3000, "then": "exit"}, attempts=1)
        mandor.wait_state(job, "failed")
        many = [add(mandor, {"write": 8_000_000}, stdout="null:") for _ in range(3)]
        for job in many:
            mandor.wait_state(job, "completed")
        if not is_sanitized():
            assert hwm_bytes(worker.pid) - before < 64 << 20


QUICK = pathlib.Path(BINARY).resolve().parent / "tests" / "pool_quick"


def kill_one_every(mandor, worker, seconds, over):
    """SIGKILL for a warm worker chosen at random, every so many seconds until over(); returns how many there were."""
    chance, killed, due = random.Random(85), 0, time.monotonic()
    while not over():
        warm = [pid for pid in children(worker.pid) if QUICK.name in cmdline(pid)]
        if len(warm) >= 4:  # starts may be slower than that here: then jobs would never get anywhere
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(warm), signal.SIGKILL)
                killed += 1
        due = max(due + seconds, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
    return killed


@pytest.mark.limit(900)
def test_jobs_survive_workers_that_are_killed_at_random(mandor):
    """8 workers, one of them killed every 50 ms: every job ends completed, with the result of its own input."""
    if not QUICK.exists():
        pytest.skip("built without tests")
    count, jobs, killed = 100_000 if SOAK else 3000, 0, 0
    configure(mandor, {"p": {"size": 8, "concurrency": 2, "command": [str(QUICK)]}}, concurrency=16)
    began = asked = time.monotonic()

    def over():
        nonlocal asked
        now = time.monotonic()
        if now - asked < 0.5:
            return False
        asked = now
        assert now - began < 800, "not all jobs ended in time"
        queue = mandor.stats()["queues"].get("default", {})
        return queue.get("completed", 0) + queue.get("failed", 0) >= jobs

    while killed <= 10:  # once, unless the jobs are much quicker than the killer gets its turns
        mandor.add_many([{"pool": "p", "data": {"sleep_ms": 2, "n": jobs + i}, "attempts": 1000, "backoff": FAST} for i in range(count)])
        jobs += count
        with mandor.worker() as worker:
            killed += kill_one_every(mandor, worker, 0.05, over)
            pool = pool_of(mandor)
            assert worker.running()
    print(f"{jobs} jobs, {killed} kills, {time.monotonic() - began:.0f} s; {pool}")
    records = mandor.list()
    assert len(records) == jobs
    assert {r["state"] for r in records} == {"completed"}, [r for r in records if r["state"] != "completed"][:3]
    assert sorted(r["result"]["n"] for r in records) == list(range(jobs))
    assert all(r["result"]["n"] == r["spec"]["data"]["n"] for r in records)


# ---- a program without the protocol ----

SHIM = pathlib.Path(BINARY).resolve().parent / "sdk" / "shim" / "mandor-shim"
PLAIN = """
import json, os, sys, time
for line in sys.stdin:
    data = json.loads(line)["data"]
    if data == "die":
        sys.exit(4)
    if data == "sleep":
        time.sleep(100)
    if data == "garbage":
        print("not json", flush=True)
    elif data == "bad":
        print(json.dumps({"error": {"message": "no good", "retry": False}}), flush=True)
    elif data == "mumble":
        print(json.dumps({"got": data}), flush=True)
        time.sleep(0.1)
        print('{"got": "of nobody"}', flush=True)
        open("said", "w").close()
    elif data == "mute":
        sys.stdout.close()
        os.close(1)
        time.sleep(100)
    else:
        print(json.dumps({"got": data}), flush=True)
"""


@pytest.mark.skipif(not SHIM.exists(), reason="mandor-shim is not beside the binary")
def test_a_plain_program_serves_through_mandor_shim(mandor):
    configure(mandor, command=[str(SHIM), "--", PYTHON, "-S", "-c", PLAIN])
    with mandor.worker():
        asked = [{"deep": [1, "zw\u00f6lf\n"]}, "bad", "die", 5, "garbage", "sleep", None]
        jobs = [add(mandor, data, attempts=1, timeout="10s" if data == "sleep" else "5m") for data in asked]
        records = [mandor.wait_state(job, "completed", "failed") for job in jobs]
    assert [r["result"] for r in records] == [{"got": asked[0]}, None, None, {"got": 5}, None, None, {"got": None}]
    assert [r["cause"] for r in records] == ["exit"] * 5 + ["timeout", "exit"]
    assert (records[1]["error"], records[1]["exit_code"]) == ("no good", 100)
    assert "exit code 4" in records[2]["error"] and "JSON" in records[4]["error"]


@pytest.mark.skipif(not SHIM.exists(), reason="mandor-shim is not beside the binary")
def test_what_a_plain_program_says_between_jobs_is_no_answer(mandor):
    configure(mandor, cwd=str(mandor.tmp), command=[str(SHIM), "--", PYTHON, "-S", "-c", PLAIN])
    with mandor.worker() as worker:
        assert mandor.wait_state(add(mandor, "mumble"), "completed")["result"] == {"got": "mumble"}
        wait_for((mandor.tmp / "said").exists, 10, "what it says afterwards")
        assert mandor.wait_state(add(mandor, 7), "completed")["result"] == {"got": 7}
        worker.says("between two jobs")


@pytest.mark.skipif(not SHIM.exists(), reason="mandor-shim is not beside the binary")
def test_a_plain_program_that_closes_its_output_and_stays_fails_its_job_soon(mandor):
    configure(mandor, command=[str(SHIM), "--", PYTHON, "-S", "-c", PLAIN])
    with mandor.worker():
        record = mandor.wait_state(add(mandor, "mute"), "failed")
        assert "signal 9" in record["error"], record
        assert mandor.wait_state(add(mandor, 8), "completed")["result"] == {"got": 8}
