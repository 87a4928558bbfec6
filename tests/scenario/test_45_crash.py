"""I3 and I8: kill -9 of any part of mandor, at any moment.  No process is left, no job is lost, no two attempts meet."""
import contextlib
import os
import random
import signal
import time

import pytest

from harness import SOAK, Gate, alive, children, have, let_go, sh, wait_for, wait_soon

ROUNDS = int(os.environ.get("MANDOR_CRASH_ROUNDS", "3000" if SOAK else "300"))
SECOND = 1.5  # "within a second", with slack for a busy machine: for wait_soon()

TREE = ("setsid sh -c 'trap \"\" TERM HUP; touch {tmp}/a; while :; do sleep 1; done' & "
        "(trap '' TERM HUP; touch {tmp}/b; while :; do sleep 1; done) & "
        "trap '' TERM HUP; touch {tmp}/c; while :; do sleep 1; done")


def running_tree(mandor, worker, **keys):
    job = mandor.add(*sh(f'[ "$MANDOR_ATTEMPT" = 1 ] || {{ echo "attempt $MANDOR_ATTEMPT"; exit 0; }}; ' + TREE.format(tmp=mandor.tmp)),
                     attempts=3, backoff={"type": "fixed", "delay": "10ms"}, **keys)
    wait_for(lambda: all((mandor.tmp / name).exists() for name in "abc"), what="the job's tree to be up")
    mandor.wait_phase(job, "running")
    worker.pid  # noqa: B018  (found while it lives)
    return job


@pytest.mark.parametrize("victim", ["worker", "guard"])
def test_nothing_of_a_job_outlives_a_killed_half_by_more_than_a_second_R12(mandor, rung, victim):
    with mandor.worker() as worker:
        job = running_tree(mandor, worker)
        worker.kill(guard=victim == "guard", worker=victim == "worker")
        wait_soon(lambda: not mandor.jobs_left(), SECOND, "an end of all processes")
        worker.wait()
        wait_for(lambda: not mandor.left(), what="the other half to end")
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["attempt"]) == ("completed", 2), record
    assert mandor.logs_of(job, "--stdout") == b"attempt 2\n"


@pytest.mark.parametrize("command, code", [(["work"], 0), (["run", "--", "sleep", "600"], 143)], ids=["work", "run"])
def test_a_start_that_is_told_to_stop_leaves_nothing(mandor, command, code):
    """When it has made its cgroup, of which the guard does not know yet."""
    if mandor.cell.unified is None:
        pytest.skip("no cgroup v2 here that tests may write")
    with Gate(mandor.tmp / "gate", "mkdir", "mkdirat") as gate, mandor.background(*command, env=gate.env) as it:
        told = False
        while it.running():
            with gate.held() as call:
                if call and not told and mandor.cell.groups():
                    it.signal(signal.SIGTERM)
                    told = True
        assert told and it.wait() == code
    assert not mandor.cell.groups() and not list(mandor.tmp.glob("mandor-run-*"))


@pytest.mark.parametrize("command", [["work"], ["run", "--", "true"]], ids=["work", "run"])
def test_an_end_that_is_told_to_stop_again_goes_on_and_leaves_nothing(mandor, command):
    """At each thing that it removes."""
    with Gate(mandor.tmp / "gate", "unlink", "unlinkat", "rmdir") as gate, mandor.background(*command, env=gate.env) as it:
        told, stopping = 0, command[0] == "run"
        while it.running():
            with gate.held() as call:
                if not stopping and "at a time" in it.stderr:
                    it.signal(signal.SIGTERM)
                    it.says("stopping")
                    stopping = True
                elif call and stopping:
                    it.signal(signal.SIGTERM)
                    told += 1
        assert it.wait() == 0 and told > 0
    assert not list(mandor.tmp.glob("mandor-run-*")) and not list(mandor.data.glob("run/*"))


@pytest.mark.skipif(not have("strace"), reason="needs strace")
@pytest.mark.parametrize("moment", ["setsid", "execve"])
def test_a_child_between_clone_and_exec_dies_with_both_halves_and_runs_nothing_R12(mandor, moment):
    """In the group rung, where nothing else would end it.  Held at setsid the signal of its parent's death is not armed yet, and its parent is
    gone when it is; held at execve it is armed."""
    out = mandor.tmp / "ran"
    slow = ("strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={moment}", "-e", f"inject={moment}:delay_enter=120s")
    with mandor.worker(prefix=slow, env={"MANDOR_CONTAINMENT": "group", "ASAN_OPTIONS": "detect_leaks=0"}) as worker:
        wait_for(lambda: "at a time" in worker.stderr, what="the worker")  # strace's own fork is gone then
        pid = worker.pid
        mandor.add("touch", str(out), attempts=2)
        held = wait_for(lambda: children(pid), what="the child that is held before exec")
        worker.kill(guard=True, worker=True)
        let_go(*held)
        wait_for(lambda: not any(alive(p) for p in held), what="its end")
        worker.wait()
        assert not out.exists()
        wait_for(lambda: not mandor.left(), what="all to end")
    mandor.drain()
    assert out.exists()


def test_a_queues_number_of_attempts_holds_for_the_dead_worker_and_on_record(mandor):
    config = mandor.tmp / "queues.yaml"
    config.write_text("queues: {default: {attempts: 3, backoff: {type: fixed, delay: 10ms}}}\n")
    job = mandor.add(*sh('[ "$MANDOR_ATTEMPT" = 2 ] || exec sleep 600'))
    with mandor.worker("--config", config) as worker:
        mandor.wait_phase(job, "running")
        record = mandor.show(job)
        assert (record["attempts_used"], record["attempts"]) == (0, 3), record
        worker.kill(guard=True, worker=True)
        worker.wait()
    mandor.drain("--config", config)
    record = mandor.show(job)
    assert (record["state"], record["attempt"], record["attempts_used"], record["attempts"]) == ("completed", 2, 2, 3), record
    assert record["history"][0]["cause"] == "worker_died", record


def test_a_worker_that_lost_its_guard_exits_125(mandor):
    with mandor.worker() as worker:
        running_tree(mandor, worker)
        pid = worker.pid
        worker.kill(guard=True, worker=False)
        wait_for(lambda: not alive(pid), what="the worker to end")


def test_a_guard_whose_worker_was_killed_says_so_by_its_exit(mandor):
    with mandor.worker() as worker:
        running_tree(mandor, worker)
        worker.kill(guard=False, worker=True)
        assert worker.wait() in (125, 137, -9)


@pytest.mark.parametrize("victim", ["worker", "guard", "both"])
def test_run_killed_by_9_takes_its_tree_along(mandor, rungs_here, victim):
    from conftest import use_rung
    use_rung(mandor, "strict" if victim == "both" else "cgroup", rungs_here)
    with mandor.background("run", "--", *sh(TREE.format(tmp=mandor.tmp))) as run:
        wait_for(lambda: all((mandor.tmp / name).exists() for name in "abc"))
        run.kill(guard=victim != "worker", worker=victim != "guard")
        wait_soon(lambda: not mandor.jobs_left(), SECOND, "an end of the tree")
    mandor.check_left = victim != "both"  # its empty cgroup waits for the next start


def test_both_killed_at_once_nothing_is_alive_a_second_later(mandor, rungs_here):
    from conftest import use_rung
    use_rung(mandor, "strict", rungs_here)
    with mandor.worker() as worker:
        job = running_tree(mandor, worker)
        worker.kill()
        wait_soon(lambda: not mandor.left(), SECOND, "an end of everything")
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["attempt"]) == ("completed", 2), record


def test_both_killed_at_once_the_next_start_sweeps_before_it_runs_anything_R60(mandor, rungs_here):
    from conftest import use_rung
    use_rung(mandor, "cgroup", rungs_here)
    lock = mandor.tmp / "lock"
    script = (f'exec 9>{lock}; flock -n 9 || {{ echo overlap > {mandor.tmp}/overlap; exit 9; }}; [ "$MANDOR_ATTEMPT" = 1 ] || exit 0; '
              + TREE.format(tmp=mandor.tmp))
    with mandor.worker() as worker:
        job = mandor.add(*sh(script), attempts=3, backoff={"type": "fixed", "delay": "10ms"})
        wait_for(lambda: all((mandor.tmp / name).exists() for name in "abc"))
        worker.kill()
    old = set(mandor.jobs_left())
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["attempt"]) == ("completed", 2), record
    assert not (mandor.tmp / "overlap").exists(), "two attempts were alive at once"
    assert not [p for p in old if alive(p)]


def test_a_live_worker_takes_over_from_a_dead_one_R56_R66(mandor):
    """Recovery is periodic: nobody restarts anything here."""
    with mandor.worker("--concurrency", "1") as first:
        job = running_tree(mandor, first)
        with mandor.worker() as second:
            wait_for(lambda: len(mandor.stats()["workers"]) == 2)
            first.kill(guard=False, worker=True)
            record = mandor.wait_state(job, "completed")
            assert record["attempt"] == 2, record
            assert second.running()


def test_a_crash_is_charged_and_ends_a_job_that_crashes_its_worker(mandor):
    """attempts = 1 and the worker dies: the job fails as worker_died instead of running for ever."""
    with mandor.worker() as worker:
        job = mandor.add("sleep", "600", attempts=1)
        mandor.wait_phase(job, "running")
        worker.kill(guard=False, worker=True)
        worker.wait()
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["cause"], record["attempts_used"]) == ("failed", "worker_died", 1), record


@pytest.mark.slow
def test_a_long_job_is_never_run_twice_beside_its_lease_R57(mandor):
    (mandor.tmp / "m.yaml").write_text("lease: 10s\n")
    lock = mandor.tmp / "lock"
    job = mandor.add(*sh(f"flock -n {lock} sleep 14 || echo overlap"), attempts=3)
    with mandor.worker("--config", mandor.tmp / "m.yaml"), mandor.worker("--config", mandor.tmp / "m.yaml"):
        record = mandor.wait_state(job, "completed")
    assert record["attempt"] == 1, record
    assert mandor.logs_of(job, "--stdout") == b""


@pytest.mark.slow
def test_a_stopped_worker_that_comes_back_late_does_not_settle_twice_I7(mandor):
    """SIGSTOP of guard and worker past the lease: nobody takes the job while their lock is held, or the token refuses them."""
    (mandor.tmp / "m.yaml").write_text("lease: 10s\n")
    lock = mandor.tmp / "lock"
    script = f"exec 9>{lock}; flock -n 9 || {{ echo x >> {mandor.tmp}/overlap; exit 9; }}; sleep 1; echo ran >> {mandor.tmp}/ran"
    with mandor.worker("--config", mandor.tmp / "m.yaml") as first:
        job = mandor.add(*sh(script), attempts=5)
        mandor.wait_phase(job, "running")
        for pid in (first.pid, first.guard_pid):
            os.kill(pid, signal.SIGSTOP)
        with mandor.worker("--config", mandor.tmp / "m.yaml"):
            end = time.monotonic() + 13
            wait_for(lambda: time.monotonic() > end or mandor.show(job)["state"] != "active")
            for pid in (first.guard_pid, first.pid):
                os.kill(pid, signal.SIGCONT)
            record = mandor.wait_state(job, "completed", "failed")
    assert not (mandor.tmp / "overlap").exists()
    assert record["state"] == "completed", record


@pytest.mark.parametrize("point", range(6))
def test_a_commit_and_a_crash_never_leave_a_torn_file(mandor, point):
    """Killed while a 20 MiB output is on its way: absent or whole, and whole in the end."""
    out = mandor.tmp / "d" / "out"
    size = 20 << 20
    with mandor.worker() as worker:
        job = mandor.add("head", "-c", str(size), "/dev/zero", stdout=f"file:{out}", attempts=5, backoff={"type": "fixed", "delay": "10ms"})
        mandor.wait_state(job, "active", "completed")
        moment = time.monotonic() + point * 0.01
        while time.monotonic() < moment:
            assert not out.exists() or out.stat().st_size == size
        worker.kill(guard=False, worker=True)
        worker.wait()
        assert not out.exists() or out.stat().st_size == size
    mandor.drain()
    assert mandor.show(job)["state"] == "completed", mandor.show(job)
    assert out.stat().st_size == size
    assert [p.name for p in out.parent.iterdir()] == ["out"], "a temporary file was not swept"


def test_directories_of_a_killed_attempt_are_swept_R110(mandor):
    with mandor.worker() as worker:
        job = mandor.add(*sh(f'[ "$MANDOR_ATTEMPT" = 1 ] || exit 0; head -c 1000000 /dev/zero > "$TMPDIR/magick-x"; echo "$TMPDIR" > {mandor.tmp}/where; sleep 600'),
                         attempts=2, backoff={"type": "fixed", "delay": "10ms"})
        where = wait_for(lambda: (mandor.tmp / "where").exists() and (mandor.tmp / "where").read_text().strip())
        mandor.wait_phase(job, "running")
        worker.kill()
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert not os.path.exists(where)


def test_control_groups_of_dead_workers_are_swept_R38(mandor, rungs_here):
    from conftest import use_rung
    use_rung(mandor, "cgroup", rungs_here)
    for _ in range(3):
        with mandor.worker("--concurrency", "4") as worker:
            jobs = mandor.add_many([{"exec": ["sleep", "600"], "attempts": 9, "backoff": {"type": "fixed", "delay": "10ms"}}] * 4)
            wait_for(lambda: sum(r["phase"] == "running" for r in mandor.list("--state", "active")) >= 4)
            worker.pid  # noqa: B018
            worker.kill()
        mandor.run("cancel", *jobs)
    assert mandor.cell.groups()
    mandor.drain()
    assert not mandor.cell.groups(), mandor.cell.groups()


def test_a_worker_killed_at_once_after_its_start_leaves_nothing(mandor):
    for delay in (0, 0.002, 0.005, 0.01, 0.02, 0.05):
        with mandor.worker() as worker:
            moment = time.monotonic() + delay
            while time.monotonic() < moment:
                pass
            os.kill(worker.guard_pid, signal.SIGKILL)
        wait_for(lambda: not mandor.left(), what="the worker to follow its guard")
    job = mandor.add("true")
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"


@pytest.mark.slow
@pytest.mark.limit(900)
def test_no_job_is_lost_or_overlapped_through_rounds_of_kill_9(mandor):
    """Several workers under load; every round one of them loses its worker, its guard or both at a random moment."""
    seed = int(os.environ.get("MANDOR_CRASH_SEED", str(random.randrange(1 << 30))))
    print(f"MANDOR_CRASH_SEED={seed} MANDOR_CRASH_ROUNDS={ROUNDS}")
    rng = random.Random(seed)
    (mandor.tmp / "out").mkdir()
    (mandor.tmp / "locks").mkdir()
    # The lock is inherited by a child in its own session: it is free only when the whole earlier attempt is dead.
    script = (f'exec 9>{mandor.tmp}/locks/$MANDOR_JOB_ID; flock -n 9 || {{ echo "$MANDOR_JOB_ID $MANDOR_ATTEMPT" >> {mandor.tmp}/overlap; exit 100; }}; '
              'setsid sh -c "trap \'\' TERM HUP; sleep 5" & '
              'i=0; while [ $i -lt 200 ]; do echo "$MANDOR_JOB_ID $i"; i=$((i+1)); done; sleep $0')
    acknowledged = []

    def feed(count):
        jobs = [{"exec": ["sh", "-c", script, f"{rng.random() * 0.3:.3f}"], "attempts": 10000, "stdout": f"file:{mandor.tmp}/out/{{id}}",
                 "backoff": {"type": "fixed", "delay": "10ms"}, "kill_after": "100ms", "output_drain": "100ms"} for _ in range(count)]
        acknowledged.extend(mandor.add_many(jobs))

    workers = 3
    contexts = [mandor.worker("--concurrency", "4") for _ in range(workers)]
    crew = [context.__enter__() for context in contexts]
    try:
        feed(20)
        for number in range(ROUNDS):
            which = rng.randrange(workers)
            victim = rng.choice(["worker", "guard", "both"])
            if number % 3 == 0:
                feed(4)
            moment = time.monotonic() + rng.random() * 0.4
            while time.monotonic() < moment:
                time.sleep(0.005)
            worker = crew[which]
            try:
                worker.pid  # noqa: B018
            except AssertionError:
                pass
            worker.kill(guard=victim != "worker", worker=victim != "guard")
            worker.wait()
            contexts[which].__exit__(None, None, None)
            contexts[which] = mandor.worker("--concurrency", "4")
            crew[which] = contexts[which].__enter__()
            assert not (mandor.tmp / "overlap").exists(), f"round {number}: two attempts alive at once: {(mandor.tmp / 'overlap').read_text()}"
        try:
            wait_for(lambda: all(r["queues"]["default"][s] == 0 for r in [mandor.stats()] for s in ("waiting", "delayed", "active")), 300,
                     "every job to become final", every=0.2)
        except AssertionError:
            print([r for r in mandor.list() if r["state"] not in ("completed",)][:5])
            raise
        wait_for(lambda: not mandor.dead_groups(), what="what the dead left to be removed", every=0.2)
    finally:
        for context in contexts:
            context.__exit__(None, None, None)
    assert not (mandor.tmp / "overlap").exists()
    states = mandor.ok("stats", "--json").json()["queues"]["default"]
    assert states["completed"] == len(acknowledged) and states["failed"] == states["cancelled"] == 0, states
    for job in acknowledged:
        text = (mandor.tmp / "out" / job).read_text()
        assert text == "".join(f"{job} {i}\n" for i in range(200)), f"torn output of {job}"
    assert sorted(p.name for p in (mandor.tmp / "out").iterdir()) == sorted(acknowledged), "a temporary file was left"
