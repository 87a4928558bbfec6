"""add → work → show: the queue from end to end."""
import contextlib
import os
import signal
import time

import pytest

from harness import NOBODY, cmdline, nobodys_directory, sh, wait_for

FAST = {"type": "fixed", "delay": "10ms", "jitter": 0}


def gate_job(gate, say=""):
    """A job that runs until the file `gate` exists."""
    return sh(f'until [ -e {gate} ]; do sleep 0.02; done; echo "{say}"')


def session(pid):
    """Of a job: a shell that forks is two processes for a moment.  None: it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)


def rfc3339(text):
    import datetime
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


# ---- the plain story ----


def test_a_job_is_added_worked_and_shown(mandor):
    added = mandor.ok("add", "--", *sh("echo hello; echo oops >&2"))
    job = added.text.strip()
    assert len(added.lines) == 1
    assert mandor.show(job)["state"] == "waiting"
    mandor.drain()
    record = mandor.show(job)
    assert record["id"] == job and record["queue"] == "default" and record["state"] == "completed", record
    assert (record["attempt"], record["attempts_used"], record["attempts"]) == (1, 1, 1) or record["attempts_used"] in (0, 1)
    assert (record["cause"], record["exit_code"], record["signal"], record["phase"]) == ("exit", 0, None, None)
    out, err = record["streams"]["stdout"], record["streams"]["stderr"]
    assert (out["bytes"], out["committed"], out["sink"]) == (6, True, "auto"), out
    assert err["tail"] == "oops\n" and err["bytes"] == 5, err
    assert record["usage"]["wall_ms"] >= 0 and record["usage"]["max_rss"] > 0
    assert record["containment"] in ("cgroup", "pidns", "group")
    assert rfc3339(record["created_at"]) <= rfc3339(record["started_at"]) <= rfc3339(record["finished_at"])
    assert record["created_at"].endswith("Z") and len(record["created_at"]) == len("2024-01-01T00:00:00.000Z")
    assert mandor.logs_of(job, "--stdout") == b"hello\n"
    assert mandor.logs_of(job, "--stderr") == b"oops\n"


def test_add_warns_when_nobody_serves_the_queue(mandor):
    done = mandor.ok("add", "--", "true")
    assert "worker" in done.complaint, done
    with mandor.worker():
        wait_for(lambda: mandor.stats()["workers"], what="the worker to register")
        assert "worker" not in mandor.ok("add", "--", "true").complaint


def test_add_makes_paths_absolute_and_runs_in_the_callers_directory(mandor):
    here = mandor.tmp / "here"
    here.mkdir()
    job = mandor.ok("add", "--stdout", "file:out.txt", "--", "pwd", cwd=str(here)).text.strip()
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert (here / "out.txt").read_text() == f"{here}\n"


def test_an_unknown_key_is_refused_and_named(mandor):
    done = mandor.run("add", "--from", "-", input='{"exec": ["true"], "tiemout": "1s"}\n')
    assert done.code != 0 and "tiemout" in done.complaint and "timeout" in done.complaint, done


def test_a_duplicate_key_is_refused_and_named(mandor):
    done = mandor.run("add", "--from", "-", input='{"exec": ["true"], "timeout": "1s", "timeout": "2s"}\n')
    assert done.code != 0 and "timeout" in done.complaint, done


def test_bad_lines_are_numbered_and_skipped(mandor):
    lines = '{"exec": ["true"]}\n{"exec": \n{"exec": ["false"]}\n'
    done = mandor.run("add", "--from", "-", input=lines)
    assert done.code == 1 and len(done.lines) == 2 and "2" in done.complaint, done


def test_each_makes_a_job_of_every_line_and_never_splits_one(mandor):
    done = mandor.ok("add", "--each", "--", "printf", "%s|", "a{}b", input='one two\n"three"\n\'\n')
    assert len(done.lines) == 3
    mandor.drain()
    outs = [mandor.logs_of(job, "--stdout") for job in done.lines]
    assert outs == [b"aone twob|", b'a"three"b|', b"a'b|"]


def test_each_without_a_place_for_the_value_is_an_error(mandor):
    done = mandor.run("add", "--each", "--", "echo", input="x\n")
    assert done.code == 2 and "{}" in done.complaint, done


def test_what_does_not_exist_is_exit_3(mandor):
    mandor.add("true")
    for command in (("show",), ("logs",), ("cancel",), ("wait",), ("retry",), ("rm",)):
        assert mandor.run(*command, "no-such-id").code == 3, command


# ---- retries ----


def test_a_failing_job_is_retried_until_its_attempts_are_used(mandor):
    job = mandor.add("false", attempts=3, backoff=FAST)
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["attempt"], record["attempts_used"]) == ("failed", 3, 3), record
    assert (record["cause"], record["exit_code"]) == ("exit", 1)
    assert len(record["history"]) >= 2


def test_a_job_that_succeeds_at_the_second_attempt_is_completed(mandor):
    job = mandor.add(*sh('[ "$MANDOR_ATTEMPT" = 2 ] || exit 5; echo ok'), attempts=5, backoff=FAST)
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["attempt"]) == ("completed", 2), record
    assert mandor.logs_of(job, "--stdout") == b"ok\n"


def test_backoff_keeps_the_next_attempt_waiting(mandor):
    log = mandor.tmp / "times"
    job = mandor.add(*sh(f"date +%s.%N >> {log}; exit 1"), attempts=3, backoff={"type": "exponential", "delay": "300ms", "jitter": 0})
    later = mandor.add("false", attempts=2, backoff={"type": "fixed", "delay": "1h"})
    with mandor.worker():
        mandor.wait_state(later, "delayed")
        mandor.wait_state(job, "failed")
        assert mandor.show(later)["state"] == "delayed"
    a, b, c = map(float, log.read_text().split())
    assert b - a >= 0.29 and c - b >= 0.59


def test_some_exit_codes_are_not_worth_a_retry(mandor):
    default = mandor.add(*sh("exit 100"), attempts=5, backoff=FAST)
    own = mandor.add(*sh("exit 7"), attempts=5, backoff=FAST, no_retry_exit_codes=[7, 8])
    again = mandor.add(*sh("exit 100"), attempts=2, backoff=FAST, no_retry_exit_codes=[7])
    mandor.drain()
    assert [mandor.show(j)["attempt"] for j in (default, own, again)] == [1, 1, 2]
    assert {mandor.show(j)["state"] for j in (default, own, again)} == {"failed"}


def test_retry_starts_a_failed_job_again_and_keeps_the_attempt_number(mandor):
    job = mandor.add("false")
    mandor.drain()
    mandor.ok("retry", job)
    record = mandor.show(job)
    assert record["state"] == "waiting" and record["attempts_used"] == 0 and record["attempt"] == 1
    mandor.drain()
    assert mandor.show(job)["attempt"] == 2


def test_retry_of_a_job_that_is_not_final_is_refused(mandor):
    job = mandor.add("true")
    assert mandor.run("retry", job).code == 4


# ---- order ----


def order(mandor, log):
    return log.read_text().split()


def test_lower_priority_numbers_go_first_and_equals_keep_their_order(mandor):
    log = mandor.tmp / "order"
    jobs = [{"exec": sh(f"echo {name} >> {log}"), "priority": priority}
            for name, priority in (("c1", 5), ("a1", 0), ("b1", 1), ("a2", 0), ("c2", 5), ("b2", 1))]
    mandor.add_many(jobs)
    mandor.drain("--concurrency", "1")
    assert order(mandor, log) == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_a_delayed_job_is_not_started_early_and_not_waited_for_by_drain(mandor):
    late = mandor.add("true", delay="1h")
    now = mandor.add("true")
    mandor.drain()
    assert mandor.show(now)["state"] == "completed"
    assert mandor.show(late)["state"] == "delayed"


def test_a_delay_ends(mandor):
    start = time.monotonic()
    job = mandor.add("true", delay="700ms")
    with mandor.worker():
        mandor.wait_state(job, "completed")
    assert time.monotonic() - start >= 0.7


def test_a_unique_key_holds_until_the_job_is_final(mandor):
    first = mandor.ok("add", "--unique", "k", "--", "true").text.strip()
    again = mandor.ok("add", "--unique", "k", "--", "true").text.strip()
    other = mandor.ok("add", "--unique", "k", "--queue", "q2", "--", "true").text.strip()
    assert first == again != other
    told = mandor.ok("add", "--unique", "k", "--json", "--", "true").json()
    assert told["existing"] is True and told["id"] == first
    mandor.drain()
    assert mandor.ok("add", "--unique", "k", "--", "true").text.strip() != first


# ---- pause, queues, weights ----


def test_a_paused_queue_starts_nothing_until_resumed(mandor):
    mandor.ok("pause", "default")
    job = mandor.add("true")
    other = mandor.add("true", queue="other")
    mandor.drain()
    assert mandor.show(other)["state"] == "completed"
    assert mandor.show(job)["state"] == "waiting"
    assert mandor.stats()["queues"]["default"]["paused"] is True
    mandor.ok("resume", "default")
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"


def test_only_the_named_queues_are_served(mandor):
    a, b = mandor.add("true", queue="a"), mandor.add("true", queue="b")
    mandor.drain("--queue", "a")
    assert (mandor.show(a)["state"], mandor.show(b)["state"]) == ("completed", "waiting")


def test_a_queues_own_concurrency_is_kept(mandor):
    (mandor.tmp / "m.yaml").write_text("concurrency: 8\nqueues:\n  narrow: {concurrency: 2}\n  wide: {}\n")
    gate = mandor.tmp / "gate"
    narrow = mandor.add_many([{"exec": gate_job(gate), "queue": "narrow"}] * 6)
    wide = mandor.add_many([{"exec": gate_job(gate), "queue": "wide"}] * 6)
    with mandor.worker("--config", mandor.tmp / "m.yaml"):
        wait_for(lambda: sum(r["phase"] == "running" for r in mandor.list("--queue", "wide")) == 6)
        running = [r for r in mandor.list("--queue", "narrow") if r["phase"] == "running"]
        wait_for(lambda: sum(r["phase"] == "running" for r in mandor.list("--queue", "narrow")) >= 2)
        running = [r for r in mandor.list("--queue", "narrow") if r["phase"] == "running"]
        assert len(running) == 2
        gate.touch()
        mandor.ok("wait", *narrow, *wide)


def test_no_queue_starves_beside_a_full_one(mandor):
    (mandor.tmp / "m.yaml").write_text("concurrency: 1\nqueues:\n  heavy: {weight: 3}\n  light: {weight: 1}\n")
    log = mandor.tmp / "order"
    mandor.add_many([{"exec": sh(f"echo heavy >> {log}"), "queue": "heavy"}] * 60)
    mandor.add_many([{"exec": sh(f"echo light >> {log}"), "queue": "light"}] * 10)
    mandor.drain("--config", mandor.tmp / "m.yaml")
    names = order(mandor, log)
    assert len(names) == 70
    last_light = max(i for i, name in enumerate(names) if name == "light")
    assert last_light < 56, names  # with weights 3:1 about 40
    assert names[:12].count("heavy") >= 6, names


def test_a_full_queue_with_better_priorities_does_not_starve_another_queue(mandor):
    log = mandor.tmp / "order"
    mandor.add_many([{"exec": sh(f"echo a >> {log}"), "queue": "a", "priority": 0}] * 50)
    mandor.add_many([{"exec": sh(f"echo z >> {log}"), "queue": "z", "priority": 9}] * 5)
    mandor.drain("--concurrency", "1", "--queue", "a", "--queue", "z")
    assert order(mandor, log).index("z") < 25


def test_concurrency_is_never_exceeded(mandor):
    gate = mandor.tmp / "gate"
    mandor.add_many([{"exec": gate_job(gate)}] * 10)
    with mandor.worker("--concurrency", "3"):
        wait_for(lambda: sum(r["phase"] == "running" for r in mandor.list()) >= 3)
        assert sum(r["phase"] == "running" for r in mandor.list()) == 3
        assert len({session(p) for p in mandor.jobs_left() if "gate" in cmdline(p)} - {None}) <= 3
        gate.touch()
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 10)


def test_a_waiting_worker_reacts_to_a_new_job_at_once(mandor):
    with mandor.worker():
        first = mandor.add("true")
        mandor.wait_state(first, "completed")

        def quick():  # most of them: a wake-up, not the 1 s poll
            records = [mandor.wait_state(mandor.add("true"), "completed") for _ in range(20)]
            return sum(rfc3339(record["started_at"]) - rfc3339(record["created_at"]) < 0.25 for record in records) >= 15

        assert any(quick() for _ in range(10))  # whatever else the machine has to run meanwhile


# ---- cancel, wait, rm, ls ----


def test_cancel_of_a_waiting_job_is_final_at_once(mandor):
    job = mandor.add("true")
    mandor.ok("cancel", job)
    assert mandor.show(job)["state"] == "cancelled"
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["attempt"]) == ("cancelled", 0)


def test_cancel_wait_returns_when_the_work_is_dead_R34(mandor):
    log = mandor.tmp / "ticks"
    job = mandor.add(*sh(f'trap "" TERM; while :; do echo x >> {log}; sleep 0.02; done'), kill_after="200ms")
    with mandor.worker():
        wait_for(lambda: log.exists() and log.stat().st_size > 4)
        mandor.ok("cancel", job, "--wait")
        size = log.stat().st_size
        record = mandor.show(job)
        assert (record["state"], record["cause"]) == ("cancelled", "cancelled"), record
        assert not mandor.jobs_left()
        assert log.stat().st_size == size


def test_a_job_is_never_final_while_its_work_goes_on_R34(mandor):
    log = mandor.tmp / "ticks"
    job = mandor.add(*sh(f'trap "" TERM; while :; do echo x >> {log}; sleep 0.02; done'), kill_after="500ms")
    with mandor.worker():
        wait_for(lambda: log.exists() and log.stat().st_size > 4)
        mandor.ok("cancel", job)
        while mandor.show(job)["state"] == "active":
            pass
        size = log.stat().st_size
        assert not mandor.jobs_left()
        assert log.stat().st_size == size


def test_wait_says_whether_all_completed(mandor):
    good, bad = mandor.add("true"), mandor.add("false")
    waiting = mandor.add("true", queue="nobody")
    mandor.drain("--queue", "default")
    assert mandor.run("wait", good).code == 0
    assert mandor.run("wait", good, bad).code == 1
    assert mandor.run("wait", waiting, "--timeout", "200ms").code == 124


def test_rm_of_an_active_job_is_refused(mandor):
    gate = mandor.tmp / "gate"
    job = mandor.add(*gate_job(gate))
    with mandor.worker():
        mandor.wait_phase(job, "running")
        assert mandor.run("rm", job).code == 4
        gate.touch()
        mandor.wait_state(job, "completed")
        mandor.ok("rm", job)
        assert mandor.run("show", job).code == 3


def test_ls_json_is_one_record_a_line_and_nothing_else(mandor):
    ids = mandor.add_many([{"exec": ["true"]}] * 5)
    assert {r["id"] for r in mandor.list()} == set(ids)
    assert mandor.list("--state", "completed") == []


# ---- fd 3 ----


def test_a_job_speaks_on_fd_3(mandor):
    script = '''printf '{"progress": 42}\\n{"log": "half way"}\\n' >&3; printf '{"result": {"n": [1, 2]}}\\n' >&3'''
    job = mandor.add(*sh(script))
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed" and record["result"] == {"n": [1, 2]} and record["progress"] == 42, record


def test_progress_is_seen_while_the_job_runs(mandor):
    gate = mandor.tmp / "gate"
    job = mandor.add(*sh(f'''echo '{{"progress": {{"frame": 7}}}}' >&3; until [ -e {gate} ]; do sleep 0.02; done'''))
    with mandor.worker():
        mandor.wait_phase(job, "running")
        gate.touch()
        mandor.wait_state(job, "completed")
    assert mandor.show(job)["progress"] == {"frame": 7}


@pytest.mark.parametrize("line", ["not json", '{"unknown": 1}', "[1]", '{"progress": ', "\\377\\376", ""])
def test_nonsense_on_fd_3_never_hurts_the_job(mandor, line):
    job = mandor.add(*sh(f"printf '{line}\\n' >&3; printf '{{\"result\": 1}}\\n' >&3"))
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed" and record["result"] == 1, record


def test_a_huge_line_on_fd_3_is_bounded_and_what_follows_is_read(mandor):
    script = "import os\nfor i in range(64): os.write(3, b'x' * (1 << 20))\nos.write(3, b'\\n{\"result\": \"fine\"}\\n')"
    job = mandor.add("python3", "-c", script)
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed" and record["result"] == "fine", record


# ---- the worker's own life ----


def test_drain_ends_with_0_whatever_became_of_the_jobs(mandor):
    mandor.add_many([{"exec": ["false"]}, {"exec": ["/no/such"]}, {"exec": ["true"]}])
    mandor.drain()
    assert sorted(mandor.states().values()) == ["completed", "failed", "failed"]


def test_drain_waits_for_retries(mandor):
    job = mandor.add(*sh('[ "$MANDOR_ATTEMPT" = 3 ]'), attempts=3, backoff={"type": "fixed", "delay": "300ms", "jitter": 0})
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"


def test_drain_of_an_empty_broker_ends(mandor):
    mandor.drain()


def test_sigterm_lets_running_jobs_finish(mandor):
    gate = mandor.tmp / "gate"
    job = mandor.add(*gate_job(gate, "done"))
    waiting = mandor.add("true")
    with mandor.worker("--concurrency", "1") as worker:
        mandor.wait_phase(job, "running")
        worker.signal(signal.SIGTERM)
        worker.says("stopping: 1 job may end")
        gate.touch()
        assert worker.wait() == 0
    assert mandor.show(job)["state"] == "completed"
    record = mandor.show(waiting)
    assert (record["state"], record["attempt"], record["worker"]) == ("waiting", 0, None) or record["attempt"] == 0, record


def test_jobs_that_outlast_the_shutdown_timeout_are_put_back_uncharged_R61(mandor):
    (mandor.tmp / "m.yaml").write_text("concurrency: 10\nshutdown_timeout: 300ms\n")
    jobs = mandor.add_many([{"exec": ["sleep", "3600"], "attempts": 2}] * 10)
    with mandor.worker("--config", mandor.tmp / "m.yaml") as worker:
        for job in jobs:
            mandor.wait_phase(job, "running")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert not mandor.left()
    for job in jobs:
        record = mandor.show(job)
        assert record["state"] in ("waiting", "delayed") and record["attempts_used"] == 0, record
        assert record["cause"] == "shutdown", record
        assert record["attempt"] == 1, record


def test_a_second_sigterm_shortens_the_wait_R65(mandor):
    (mandor.tmp / "m.yaml").write_text("shutdown_timeout: 1h\n")
    job = mandor.add(*sh('trap "" TERM; while :; do sleep 0.05; done'), kill_after="500ms")
    with mandor.worker("--config", mandor.tmp / "m.yaml") as worker:
        mandor.wait_phase(job, "running")
        worker.signal(signal.SIGTERM)
        worker.says("stopping: 1 job may end")
        assert worker.running()
        worker.signal(signal.SIGTERM)
        worker.wait()
    record = mandor.show(job)
    assert record["state"] in ("waiting", "delayed") and record["attempts_used"] == 0, record


def test_a_put_back_job_runs_again_with_the_next_worker(mandor):
    (mandor.tmp / "m.yaml").write_text("shutdown_timeout: 10ms\n")
    job = mandor.add(*sh('[ "$MANDOR_ATTEMPT" = 1 ] && sleep 3600; echo "attempt $MANDOR_ATTEMPT"'))
    with mandor.worker("--config", mandor.tmp / "m.yaml") as worker:
        mandor.wait_phase(job, "running")
        worker.signal(signal.SIGTERM)
        worker.wait()
    with mandor.worker():
        mandor.wait_state(job, "completed")
    assert mandor.logs_of(job, "--stdout") == b"attempt 2\n"


def test_sighup_reads_the_configuration_again(mandor):
    path = mandor.tmp / "m.yaml"
    path.write_text("concurrency: 1\n")
    gate = mandor.tmp / "gate"
    jobs = mandor.add_many([{"exec": gate_job(gate)}] * 3)
    with mandor.worker("--config", path) as worker:
        wait_for(lambda: sum(r["phase"] == "running" for r in mandor.list()) == 1)
        path.write_text("concurrency: 3\n")
        worker.signal(signal.SIGHUP)
        wait_for(lambda: sum(r["phase"] == "running" for r in mandor.list()) == 3, what="three jobs at once")
        path.write_text("concurrency: many\n")
        worker.signal(signal.SIGHUP)
        wait_for(lambda: "m.yaml" in worker.stderr and "concurrency" in worker.stderr, what="a complaint about the new file")
        assert worker.running()
        gate.touch()
        mandor.ok("wait", *jobs)


def test_check_reads_the_configuration_and_runs_nothing(mandor):
    job = mandor.add("true")
    path = mandor.tmp / "m.yaml"
    path.write_text("concurrency: 2\n")
    mandor.ok("work", "--check", "--config", path)
    assert mandor.show(job)["state"] == "waiting"
    path.write_text("concurency: 2\n")
    done = mandor.run("work", "--check", "--config", path)
    assert done.code != 0 and "m.yaml" in done.complaint and "concurrency" in done.complaint and "1" in done.complaint, done


def test_two_workers_share_a_queue_and_no_job_runs_twice(mandor):
    log = mandor.tmp / "ran"
    ids = mandor.add_many([{"exec": sh(f'echo "$MANDOR_JOB_ID" >> {log}')}] * 200)
    with mandor.worker("--concurrency", "4"), mandor.worker("--concurrency", "4"):
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 200)
    assert sorted(log.read_text().split()) == sorted(ids)


def test_queue_options_of_the_configuration_are_the_jobs_defaults(mandor):
    (mandor.tmp / "m.yaml").write_text("queues:\n  q:\n    timeout: 200ms\n    kill_after: 100ms\n    attempts: 2\n    backoff: {delay: 10ms}\n")
    job = mandor.add("sleep", "600", queue="q")
    own = mandor.add("sleep", "600", queue="q", attempts=1)
    mandor.drain("--config", mandor.tmp / "m.yaml")
    assert (mandor.show(job)["cause"], mandor.show(job)["attempt"]) == ("timeout", 2)
    assert mandor.show(own)["attempt"] == 1


def test_timeout_and_idle_timeout_are_two_limits_R113(mandor):
    slow = mandor.add(*sh("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done"), idle_timeout="3s", timeout="60s")
    silent = mandor.add(*sh("echo x; sleep 600"), idle_timeout="700ms", timeout="60s")
    total = mandor.add(*sh("while :; do echo x; sleep 0.1; done"), idle_timeout="10s", timeout="700ms")
    mandor.drain("--concurrency", "3")
    assert mandor.show(slow)["state"] == "completed", mandor.show(slow)
    assert mandor.show(silent)["cause"] == "idle_timeout"
    assert mandor.show(total)["cause"] == "timeout"


def test_a_worker_run_as_nobody_works(mandor):
    if os.getuid() != 0:
        pytest.skip("needs root to become someone else")
    with nobodys_directory() as (home, env):
        as_nobody = {"prefix": NOBODY, "env": env, "cwd": str(home)}
        job = mandor.ok("add", "--", *sh("id -u; setsid sleep 600 & exit 0"), **as_nobody).text.strip()
        done = mandor.run("work", "--drain", **as_nobody)
        assert done.code == 0, done
        record = mandor.ok("show", job, "--json", **as_nobody).json()
        assert record["state"] == "completed" and record["descendants_killed"] >= 1, record
        assert mandor.ok("logs", job, "--stdout", **as_nobody).out == b"65534\n"
    assert not mandor.left()


def test_a_stranger_may_not_read_the_queue(mandor):
    mandor.add("true", env={"SECRET": "hush"})
    for path in [mandor.db, *mandor.tmp.glob("q.db-wal")]:
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"
    for path in mandor.data.rglob("*"):
        assert path.stat().st_mode & 0o066 == 0, f"{path} is open to others"


def test_a_job_may_ask_to_be_run_again(mandor):
    """It exits 0 having said so: not charged, its output so far discarded, and run again after that time."""
    out = mandor.tmp / "out"
    job = mandor.add("sh", "-c", "echo $MANDOR_ATTEMPT; [ $MANDOR_ATTEMPT = 2 ] || echo '{\"again\": \"200ms\"}' >&3", stdout=f"file:{out}")
    with mandor.worker():
        mandor.wait_state(job, "completed")
        record = mandor.show(job)
        assert out.read_text() == "2\n" and record["attempt"] == 2 and record["attempts_used"] == 1
        assert [entry["cause"] for entry in record["history"]] == ["again"]
