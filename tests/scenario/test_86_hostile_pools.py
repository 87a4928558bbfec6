"""Warm pools that are attacked: hostile workers, dead supervisors, pools that would starve others, limits of the kernel."""
import json
import os
import shutil
import signal
import time

import pytest

from harness import NOBODY, alive, fd_count, hwm_bytes, nobodys_directory, rss_bytes, wait_for
from test_85_pools import FAST, PYTHON, WORKER, add, configure, pool_of, wait_ready


def cgroups_hold_memory():
    """Is there a hierarchy that limits memory?"""
    with open("/proc/self/cgroup", encoding="ascii") as lines:
        if any(":memory:" in line for line in lines):
            return True
    try:
        with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as file:
            return "memory" in file.read().split()
    except OSError:
        return False


# ---- hostile workers ----


def test_whatever_bytes_a_worker_sends_it_is_the_only_one_that_ends(mandor):
    """24 workers that turn, cut and repeat frames, beside one that works."""
    configure(mandor, {"bad": {"size": 4}, "good": {"size": 1}})
    with mandor.worker() as worker:
        wait_ready(mandor, 4, "bad")
        pid = wait_ready(mandor, 1, "good")[0]
        before = rss_bytes(worker.pid)
        bad = [add(mandor, {"hostile": "fuzz", "seed": seed}, pool="bad") for seed in range(24)]
        good = [add(mandor, {"sleep": 0.01, "result": i}, pool="good") for i in range(60)]
        ended = [mandor.wait_state(job, "completed", "failed") for job in bad]
        assert {record["cause"] for record in ended} <= {"exit", "protocol", "worker_died"}, ended
        assert sum(record["cause"] == "protocol" for record in ended) > 4
        assert [mandor.wait_state(job, "completed")["result"] for job in good] == list(range(60))
        assert pool_of(mandor, "good")["workers"][0]["pid"] == pid
        assert hwm_bytes(worker.pid) - before < 64 << 20
        assert mandor.wait_state(add(mandor, {"result": "alive"}, pool="bad"), "completed")["result"] == "alive"


def test_a_worker_that_closes_its_socket_and_lives_on_is_ended(mandor):
    configure(mandor, kill_after="300ms")
    with mandor.worker():
        pid = wait_ready(mandor, 1)[0]
        record = mandor.wait_state(add(mandor, {"hostile": "live_on"}), "failed")
        assert record["cause"] == "worker_died" and not alive(pid), record
        mandor.wait_state(add(mandor, {"result": 1}), "completed")


def test_a_child_that_keeps_the_socket_holds_up_nothing(mandor):
    configure(mandor)
    with mandor.worker():
        pid = wait_ready(mandor, 1)[0]
        record = mandor.wait_state(add(mandor, {"hostile": "orphan"}), "failed")
        assert record["cause"] == "worker_died" and not alive(pid), record
        mandor.wait_state(add(mandor, {"result": 1}), "completed")
    assert not mandor.left()


def test_descriptors_that_are_passed_over_the_socket_do_not_stay(mandor):
    configure(mandor)
    with mandor.worker() as worker:
        wait_ready(mandor, 1)
        before = fd_count(worker.pid)
        for _ in range(3):
            record = mandor.wait_state(add(mandor, {"hostile": "pass_descriptors", "count": 20}), "completed")
            assert record["result"] == "passed"
        wait_for(lambda: fd_count(worker.pid) <= before + 4, 20, "descriptors as before")


def test_a_result_that_would_be_large_in_memory_is_refused(mandor):
    configure(mandor)
    with mandor.worker() as worker:
        wait_ready(mandor, 1)
        before = rss_bytes(worker.pid)
        record = mandor.wait_state(add(mandor, {"hostile": "many_values", "count": 5_000_000}), "failed")
        assert record["cause"] == "protocol" and "values" in record["error"], record
        assert hwm_bytes(worker.pid) - before < 64 << 20
        few = mandor.wait_state(add(mandor, {"result": [{}] * 50_000}), "completed")
        assert len(few["result"]) == 50_000


def test_a_worker_that_sends_and_never_reads_is_ended(mandor):
    configure(mandor)
    with mandor.worker() as worker:
        wait_ready(mandor, 1)
        before = rss_bytes(worker.pid)
        record = mandor.wait_state(add(mandor, {"hostile": "never_read"}), "failed")
        assert record["cause"] == "protocol" and "reads nothing" in record["error"], record
        assert hwm_bytes(worker.pid) - before < 32 << 20


def test_a_silent_worker_is_ended_by_its_jobs_timeout(mandor):
    configure(mandor)
    with mandor.worker():
        pid = wait_ready(mandor, 1)[0]
        record = mandor.wait_state(add(mandor, {"hostile": "stay_silent"}, timeout="300ms", kill_after="200ms"), "failed")
        assert record["cause"] == "timeout" and not alive(pid), record


def test_a_cancelled_job_is_not_given_to_the_next_worker_when_its_own_dies_unread(mandor):
    configure(mandor)
    with mandor.worker():
        pid = wait_ready(mandor, 1)[0]
        os.kill(pid, signal.SIGSTOP)  # it reads neither JOB nor CANCEL
        mark = mandor.tmp / "ran"
        job = add(mandor, {"mark": str(mark)}, kill_after="10m")
        mandor.wait_phase(job, "running")
        mandor.ok("cancel", job)
        mandor.wait_phase(job, "stopping")
        os.kill(pid, signal.SIGKILL)
        assert mandor.wait_state(job, "cancelled", "completed")["state"] == "cancelled"
        assert not mark.exists()


# ---- nothing is left ----


def test_both_killed_at_once_the_next_start_sweeps_the_workers_of_pools(mandor):
    configure(mandor, size=3)
    with mandor.worker() as worker:
        pids = wait_ready(mandor, 3)
        mandor.wait_state(add(mandor, {"fork": 1}), "completed")
        job = add(mandor, {"sleep": 100}, attempts=1)
        mandor.wait_phase(job, "running")
        worker.kill()
    mandor.drain()
    assert not any(alive(pid) for pid in pids)
    assert mandor.show(job)["cause"] == "worker_died"
    assert not mandor.jobs_left()


def test_both_killed_at_once_strict_pools_are_gone_at_once(mandor):
    checks = {one["check"]: one["health"] for one in mandor.ok("doctor", "--json").json()["checks"]}
    if checks["containment strict"] != "ok":
        pytest.skip("strict containment cannot be had here")
    configure(mandor, size=2, containment="strict")
    with mandor.worker() as worker:
        wait_ready(mandor, 2)
        pool = pool_of(mandor)
        assert {one["containment"] for one in pool["workers"]} == {"strict"}, pool
        mandor.wait_state(add(mandor, {"fork": 1}), "completed")
        worker.kill()
        wait_for(lambda: not mandor.jobs_left(), 10, "the workers to be gone, though no other start sweeps them")
    mandor.drain()


# ---- nobody starves ----


def test_a_pool_whose_workers_cannot_start_does_not_keep_others_from_running(mandor):
    """As many of its jobs as there are slots wait for a worker that never comes: they go back, uncharged."""
    configure(mandor, {"broken": {"command": ["false"]}, "p": {}}, concurrency=2)
    broken = [add(mandor, 1, pool="broken") for _ in range(4)]
    with mandor.worker():
        wait_for(lambda: (p := pool_of(mandor, "broken")) and p["failed_starts"] >= 2, 20, "failed starts")
        other = add(mandor, {"result": "through"})
        assert mandor.wait_state(other, "completed", deadline=30)["result"] == "through"
        records = [mandor.show(job) for job in broken]
        assert all(record["attempts_used"] == 0 for record in records), records
        record = mandor.wait_state(broken[0], "delayed", deadline=30)
        assert "pool 'broken' has no worker: " in record["error"] and "exit code 1" in record["error"], record
        mandor.ok("cancel", *broken)


def test_jobs_that_wait_for_a_full_pool_leave_slots_to_other_queues(mandor):
    """A queue that is bound to a pool of one takes two slots: one job runs, one is ready to follow."""
    configure(mandor, {"one": {}, "p": {}}, concurrency=4)
    slow = [add(mandor, {"sleep": 600}, pool="one", queue="bound") for _ in range(8)]
    with mandor.worker():
        mandor.wait_phase(slow[0], "running")
        quick = [add(mandor, {"result": i}) for i in range(5)]
        assert [mandor.wait_state(job, "completed")["result"] for job in quick] == list(range(5))
        active = [r for r in mandor.list() if r["queue"] == "bound" and r["state"] == "active"]
        assert len(active) == 2, active


def test_a_pool_that_is_taken_away_still_runs_the_jobs_that_wait_for_it(mandor):
    configure(mandor, {"p": {}, "old": {}})
    with mandor.worker() as worker:
        wait_ready(mandor, 1, "old")
        gate = mandor.tmp / "gate"
        jobs = mandor.add_many([{"pool": "old", "data": {"gate": str(gate), "result": i}} for i in range(4)])
        wait_for(lambda: pool_of(mandor, "old")["waiting"] >= 2, 10, "two or three to wait")
        configure(mandor, {"p": {}})
        os.kill(worker.pid, signal.SIGHUP)
        worker.says("configuration read again")
        gate.touch()
        assert [mandor.wait_state(job, "completed")["result"] for job in jobs] == list(range(4))
        wait_for(lambda: pool_of(mandor, "old") is None, 20, "the old pool to end")
        late = add(mandor, 1, pool="old")
        assert "no pool 'old' here" in mandor.wait_state(late, "failed")["error"]


def test_a_change_and_its_opposite_in_the_middle_of_work_lose_nothing(mandor):
    """SIGHUP with other options, without the pool, and with it again, while jobs run and wait."""
    configure(mandor, {"p": {"size": 2}, "q": {}})
    with mandor.worker() as worker:
        wait_ready(mandor, 2)
        jobs = [add(mandor, {"sleep": 0.05, "result": i}, attempts=3, backoff=FAST) for i in range(60)]
        for pools in ({"p": {"size": 3, "env": {"A": "1"}}, "q": {}}, {"q": {}}, {"p": {"size": 1}, "q": {}}, {"p": {"size": 2}, "q": {}}):
            configure(mandor, pools)
            os.kill(worker.pid, signal.SIGHUP)
            wait_for(lambda: (pool_of(mandor) is not None) or "p" not in pools, 10, "the change")
            time.sleep(0.1)
        records = [mandor.wait_state(job, "completed", "failed") for job in jobs]
        # between the second change and the third there was no such pool: what was started then says so
        assert all(r["state"] == "completed" or "no pool 'p'" in r["error"] for r in records), records
        assert [r["result"] for r in records if r["state"] == "completed"] == [i for i, r in enumerate(records) if r["state"] == "completed"]


# ---- limits of a pool's workers ----


def test_a_worker_over_its_memory_limit_is_ended_and_its_job_says_oom(mandor):
    if not cgroups_hold_memory():
        pytest.skip("no control group limits memory here")
    configure(mandor, limits={"memory": "128M"})
    with mandor.worker():
        wait_ready(mandor, 1)
        pool = pool_of(mandor)
        assert pool["workers"][0]["limits_enforced"] == {"memory": True}, pool
        record = mandor.wait_state(add(mandor, {"eat": 400}), "failed")
        assert record["cause"] == "oom", record
        mandor.wait_state(add(mandor, {"result": 1}), "completed")


def test_open_files_of_a_worker_are_limited(mandor):
    configure(mandor, limits={"open_files": 40})
    with mandor.worker():
        wait_ready(mandor, 1)
        record = mandor.wait_state(add(mandor, {"open": 100}), "failed")
        assert record["cause"] == "worker_died", record
        mandor.wait_state(add(mandor, {"open": 5, "result": 1}), "completed")


def test_a_limit_that_cannot_be_enforced_keeps_the_pool_from_starting_and_is_named(mandor):
    """Nobody may write no cgroup: nothing there can hold a worker's memory."""
    if os.getuid() != 0:
        pytest.skip("needs root to become someone else")
    with nobodys_directory() as (home, env):
        shutil.copy(WORKER, home / "worker.py")
        command = [PYTHON, "-S", str(home / "worker.py")]
        pools = {"strict": {"command": command, "limits": {"memory": "1G"}},
                 "mild": {"command": command, "limits": {"memory": "1G"}, "limits_policy": "best_effort"}}
        (home / "mandor.yaml").write_text(json.dumps({"pools": pools}))
        as_nobody = {"prefix": NOBODY, "env": {**env, "MANDOR_CONFIG": str(home / "mandor.yaml")}, "cwd": str(home)}
        mild = mandor.ok("add", "--pool", "mild", "--data", "1", **as_nobody).text.strip()
        said = mandor.ok("work", "--drain", **as_nobody).complaint
        assert mandor.ok("show", mild, "--json", **as_nobody).json()["state"] == "completed"
        assert "pool strict: a worker failed to start: cannot be started: limit 'memory' cannot be enforced" in said, said
