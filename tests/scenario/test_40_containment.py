"""I3: when an attempt is settled nothing of it is alive, however it forked.  On every rung that this host has."""

import os

import pytest

from harness import NOBODY, alive, cmdline, describe, nobodys_directory, proc_stat, sh, wait_for

DOUBLE_FORK = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir('/')
for fd in range(3): os.close(fd)
time.sleep(600)
"""

REFORKING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + '/up', 'w').close()
end = time.time() + 30
while time.time() < end:      # moves on to a new process and a new session, for ever
    if os.fork(): os._exit(0)
    os.setsid()
"""

STORM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
made = 0
for i in range(300):
    try:
        if os.fork() == 0:
            if i % 2: os.setsid()
            time.sleep(600)
            os._exit(0)
        made += 1
    except OSError:
        break
print(made, flush=True)
"""

# Its leading thread exits and another one lives on: the process shows as a zombie, and cgroup.kill does not reach it.
HEADLESS = """
import ctypes, os, signal, sys, threading, time
if len(sys.argv) > 1 and os.fork(): time.sleep(0.2); os._exit(0)
os.setsid() if len(sys.argv) > 1 else None
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""

STORIES = {
    "a background child": sh("sleep 600 & exit 0"),
    "a child in a session of its own": sh("setsid sleep 600 >/dev/null 2>&1 & exit 0"),
    "a double-forked daemon": ["python3", "-c", DOUBLE_FORK],
    "a daemon without environment": sh("env -i setsid setsid sleep 600 & exit 0"),
    "a child that ignores every polite signal": sh("(trap '' TERM INT HUP QUIT; while :; do sleep 1; done) & exit 0"),
    "a stopped child": sh("sleep 600 & kill -STOP $!; exit 0"),
    "a stopped child in its own session": sh("setsid sh -c 'kill -STOP $$' & sleep 0.2; exit 0"),
    "three hundred children": ["python3", "-c", STORM],
    "a shell below a shell": sh("sh -c 'sh -c \"sleep 600\" & exit 0' ; exit 0"),
    "a daemon without its leading thread": ["python3", "-c", HEADLESS, "daemon"],
    "helpers in groups of their own": sh("set -m; for i in 1 2 3 4 5; do (sleep 600 & sleep 601) & done; exit 0"),
    "a child named to confuse": sh("cp /bin/sleep \"$TMPDIR/a) Z 1 (b\"; \"$TMPDIR/a) Z 1 (b\" 600 & sleep 0.1; exit 0"),
}


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_left_after_a_job_that_left_R20_R25(mandor, rung, story):
    job = mandor.add(*STORIES[story], kill_after="300ms")
    with mandor.worker():
        record = mandor.wait_state(job, "completed", "failed")
        left = mandor.jobs_left()
        assert not left, f"alive at settlement: {describe(left)}"
        assert not [p for p in mandor.zombies() if proc_stat(p)], "zombies at settlement"
        assert record["state"] == "completed", record
        assert record["containment"] == rung, "another rung ran than the one that was asked for"


def test_a_leader_without_its_leading_thread_is_ended_by_its_timeout(mandor, rung):
    job = mandor.add("python3", "-c", HEADLESS, timeout="1s", kill_after="200ms")
    with mandor.worker():
        record = mandor.wait_state(job, "failed")
        assert record["cause"] == "timeout", record
        assert not mandor.jobs_left()


@pytest.mark.parametrize("story", ["a background child", "a double-forked daemon", "a child that ignores every polite signal"])
def test_nothing_is_left_after_run(mandor, rung, story):
    done = mandor.run("run", "--kill-after", "300ms", "--", *STORIES[story])
    assert done.code == 0, done
    left = mandor.left()
    assert not left, describe(left)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_whole_tree_that_ignores_term_dies_R24_R28(mandor, rung, how):
    script = ('trap "" TERM; setsid sh -c \'trap "" TERM; while :; do sleep 1; done\' & '
              'sh -c \'trap "" TERM; sh -c "trap \\"\\" TERM; sleep 600"; sleep 600\' & '
              f'touch {mandor.tmp}/up; while :; do sleep 1; done')
    with mandor.worker():
        for seconds in (2, 8, 30):  # the tree has to be up by then, on a slow machine too
            job = mandor.add(*sh(script), kill_after="300ms", **({"timeout": f"{seconds}s"} if how == "timeout" else {}))
            if how == "cancel":
                wait_for((mandor.tmp / "up").exists)
                mandor.ok("cancel", job, "--wait")
            record = mandor.wait_state(job, "failed", "cancelled")
            assert not mandor.jobs_left(), describe(mandor.jobs_left())
            if (mandor.tmp / "up").exists():
                break
    assert record["cause"] == {"timeout": "timeout", "cancel": "cancelled"}[how], record
    assert "forc" in str(record) or "kill" in (record["error"] or "").lower(), record


def test_processes_that_fork_on_and_on_into_new_sessions_are_caught(mandor, rung):
    job = mandor.add("python3", "-c", REFORKING, str(mandor.tmp), timeout="1s", kill_after="200ms")
    with mandor.worker():
        record = mandor.wait_state(job, "completed", "failed")
        assert not mandor.jobs_left(), describe(mandor.jobs_left())
        assert record["containment"] == rung


@pytest.mark.parametrize("rung", ["cgroup", "pidns", "strict"], indirect=True)  # group has no process limit of its own
def test_a_fork_bomb_is_held_and_neighbours_are_unharmed_R27(mandor, rung):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    with mandor.worker("--concurrency", "6"):
        job = mandor.add("python3", "-c", bomb, limits={"pids": 64}, timeout="2s", kill_after="200ms")
        neighbours = mandor.add_many([{"exec": sh("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done; echo fine")}] * 5)
        record = mandor.wait_state(job, "failed")
        if "pids" in (record["error"] or "") and record["cause"] == "limit" and record["usage"]["wall_ms"] == 0:
            pytest.skip(record["error"])
        assert not [p for p in mandor.jobs_left() if "os.fork" in cmdline(p)]
        assert record["cause"] in ("timeout", "limit"), record
        for neighbour in neighbours:
            assert mandor.wait_state(neighbour, "completed", "failed")["state"] == "completed"


def test_the_grace_belongs_to_the_whole_tree_R29(mandor, rung):
    """The shell dies of TERM at once; the program below it needs 0.7 s to finish and gets them."""
    finaliser = (f"import signal, sys, time\ndef end(*_):\n    time.sleep(0.7)\n    open('{mandor.tmp}/final', 'w').write('clean')\n    sys.exit(0)\n"
                 f"signal.signal(signal.SIGTERM, end)\nopen('{mandor.tmp}/up', 'w').close()\ntime.sleep(600)\n")
    (mandor.tmp / "finaliser.py").write_text(finaliser)
    job = mandor.add(*sh(f"python3 {mandor.tmp}/finaliser.py; true"), kill_after="10m")
    with mandor.worker():
        wait_for((mandor.tmp / "up").exists)
        mandor.ok("cancel", job, "--wait")
        assert (mandor.tmp / "final").read_text() == "clean"
        assert mandor.show(job)["state"] == "cancelled"
        assert not mandor.jobs_left()


def test_each_process_gets_one_sigterm_and_no_more(mandor, rung):
    count = (f"import os, signal, time\nfd = os.open('{mandor.tmp}/terms', os.O_CREAT|os.O_WRONLY|os.O_APPEND)\n"
             "def end(*_):\n    os.write(fd, b'%d\\n' % os.getpid())\n    signal.alarm(1)\n"
             "signal.signal(signal.SIGTERM, end)\n"
             f"os.fork()\nos.write(os.open('{mandor.tmp}/up', os.O_CREAT|os.O_WRONLY|os.O_APPEND), b'x')\n"
             "while True: time.sleep(0.05)\n")
    job = mandor.add("python3", "-c", count, kill_after="10m")
    with mandor.worker():
        wait_for(lambda: (mandor.tmp / "up").exists() and (mandor.tmp / "up").stat().st_size == 2)
        mandor.ok("cancel", job, "--wait")
    terms = (mandor.tmp / "terms").read_text().split()
    assert len(terms) == 2 and len(set(terms)) == 2, terms


@pytest.mark.parametrize("script, cause", [
    ('trap "exit 0" TERM; while :; do sleep 0.05; done', "timeout"),
    ('trap "exit 255" TERM; while :; do sleep 0.05; done', "timeout"),
    ('trap "" TERM; while :; do sleep 0.05; done', "timeout"),
    ('kill -9 $$', "signal"),
], ids=["exits 0 on TERM", "exits 255 on TERM", "ignores TERM", "killed by 9"])
def test_what_mandor_did_decides_first_R35(mandor, script, cause):
    job = mandor.add(*sh(script), timeout="500ms" if cause == "timeout" else "10m", kill_after="300ms", stdout=f"file:{mandor.tmp}/out")
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["cause"]) == ("failed", cause), record
    assert not (mandor.tmp / "out").exists()


def test_a_lock_held_by_a_remnant_is_free_for_the_next_job_R40(mandor, rung):
    lock = mandor.tmp / "lock"
    first = mandor.add(*sh(f"setsid flock {lock} sleep 600 & until ! flock -n {lock} true; do sleep 0.02; done; touch {mandor.tmp}/up; sleep 600"),
                       kill_after="300ms")
    with mandor.worker("--concurrency", "1"):
        wait_for((mandor.tmp / "up").exists)
        second = mandor.add("flock", "-n", str(lock), "echo", "got it")
        mandor.ok("cancel", first)
        record = mandor.wait_state(second, "completed", "failed")
        assert record["state"] == "completed", record


def test_a_frozen_job_is_killed_too_R33(mandor, rungs_here):
    from conftest import use_rung
    use_rung(mandor, "cgroup", rungs_here)
    with mandor.worker("--concurrency", "2") as worker:
        job = mandor.add(*sh(f"echo $$ > {mandor.tmp}/pid; sleep 600"), kill_after="300ms")
        pid = int(wait_for(lambda: (mandor.tmp / "pid").exists() and (mandor.tmp / "pid").read_text().strip()))
        group = next(l.split("::")[1].strip() for l in open(f"/proc/{pid}/cgroup") if l.startswith("0::"))
        base = next(l.split()[1] for l in open("/proc/self/mounts") if l.split()[2] == "cgroup2")
        with open(f"{base}{group}/cgroup.freeze", "w") as file:
            file.write("1")
        other = mandor.add("true")
        mandor.wait_state(other, "completed")
        mandor.ok("cancel", job, "--wait")
        assert mandor.show(job)["state"] == "cancelled"
        assert not alive(pid)
        assert worker.running()


def test_a_stopped_v1_frozen_or_traced_job_does_not_hold_up_its_neighbours(mandor, rung):
    """A job that a tester stopped is not terminal, and its deadline still counts."""
    job = mandor.add(*sh("kill -STOP $$; exit 3"), timeout="700ms", kill_after="200ms")
    with mandor.worker("--concurrency", "2"):
        other = mandor.add("true")
        mandor.wait_state(other, "completed")
        assert mandor.wait_state(job, "failed")["cause"] == "timeout"
        assert not mandor.jobs_left()


def test_orphans_that_end_by_themselves_leave_no_zombies_R16(mandor, rung):
    mandor.add_many([{"exec": sh("(sleep 0.05 &) ; (true &); exit 0")}] * 60)
    with mandor.worker("--concurrency", "8"):
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 60)
        wait_for(lambda: not mandor.zombies(), what="zombies to be reaped")


def test_cancel_at_any_moment_of_a_jobs_life_gives_a_clean_record_R15_R32(mandor, rung):
    import random
    rng = random.Random(15)
    with mandor.worker("--concurrency", "4") as worker:
        jobs = []
        for _ in range(60):
            job = mandor.add("sleep", f"{rng.random() * 0.05:.3f}", kill_after="200ms")
            mandor.run("cancel", job)
            jobs.append(job)
        for job in jobs:
            record = mandor.wait_state(job, "completed", "cancelled")
            assert record["exit_code"] in (None, 0) and record["signal"] in (None, 9, 15, "KILL", "TERM", "SIGKILL", "SIGTERM"), record
        assert worker.running()


def test_memory_over_the_limit_kills_the_whole_job_as_oom_R37(mandor):
    eat = "import os, time\nfor _ in range(2):\n    if os.fork() == 0: time.sleep(600)\nx = bytearray(1 << 30)\ntime.sleep(600)"
    job = mandor.add("python3", "-c", eat, limits={"memory": "64M"}, timeout="10m")
    with mandor.worker() as worker:
        record = mandor.wait_state(job, "failed")
        if record["cause"] == "limit" or "limit" in (record["error"] or "") and record["cause"] != "oom":
            pytest.skip(f"no memory limit here: {record['error']}")
        assert record["cause"] == "oom", record
        assert not mandor.jobs_left()
        assert worker.running()


def test_a_limit_that_cannot_be_enforced_fails_the_job_before_its_start(mandor):
    """Nobody may write no cgroup: nothing there can hold a job's memory."""
    if os.getuid() != 0:
        pytest.skip("needs root to become someone else")
    with nobodys_directory() as (home, env):
        as_nobody = {"prefix": NOBODY, "env": env, "cwd": str(home)}
        strict = mandor.ok("add", "--memory", "64M", "--", "touch", f"{home}/ran", **as_nobody).text.strip()
        best = mandor.ok("add", "--memory", "64M", "--limits-policy", "best_effort", "--", "true", **as_nobody).text.strip()
        mandor.ok("work", "--drain", **as_nobody)
        record = mandor.ok("show", strict, "--json", **as_nobody).json()
        assert record["state"] == "failed" and "memory" in record["error"], record
        assert not (home / "ran").exists()
        record = mandor.ok("show", best, "--json", **as_nobody).json()
        assert record["state"] == "completed" and record["limits_enforced"] == {"memory": False}, record


def test_strict_hides_other_processes_from_the_job(mandor, rungs_here):
    from conftest import use_rung
    use_rung(mandor, "strict", rungs_here)
    out = mandor.ok("run", "--", *sh("ls /proc | grep -c '^[0-9]'; kill -9 -1 2>/dev/null; echo survived")).text.split()
    assert int(out[0]) < 8, out


def test_strict_is_refused_where_it_cannot_be_had(mandor):
    mandor.env["MANDOR_CONTAINMENT"] = "group"
    job = mandor.add("true", containment="strict")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and "strict" in record["error"], record


def test_doctor_tells_what_is_in_force_and_why(mandor, rung):
    done = mandor.run("doctor", "--json")
    assert done.json()
    text = mandor.run("doctor").text
    assert rung in text, text
