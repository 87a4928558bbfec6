"""The queue in Redis, streams://: producers of all kinds, workers that are killed, a server that is stopped, full, or out of reach."""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

import pytest

from harness import alive, wait_for
from redis_server import Proxy, Redis, have_redis

pytestmark = pytest.mark.skipif(not have_redis(), reason="no redis-server")
FAST = {"type": "fixed", "delay": "10ms", "jitter": 0}
P = "{mandor}"


def configure(mandor, queues=None, **more):
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps({"lease": "10s", "concurrency": 4, "queues": queues or {"default": {"allow_exec": True}}, **more}))
    mandor.env["MANDOR_CONFIG"] = str(path)


@pytest.fixture
def redis(mandor):
    with Redis(mandor.tmp / "redis") as server:
        mandor.env["MANDOR_BROKER"] = f"streams://127.0.0.1:{server.port}"
        configure(mandor)
        yield server


def through(mandor, proxy):
    return {"env": {"MANDOR_BROKER": f"streams://127.0.0.1:{proxy.port}"}}


def pending(redis, queue="default"):
    return int(redis.cli("XPENDING", f"{P}:q:{queue}", "mandor").split("\n")[0])


def nothing_is_left_over(redis, queue="default"):
    """No lease, no entry, no pending one: the books are closed."""
    assert pending(redis, queue) == 0
    assert redis.cli("XLEN", f"{P}:q:{queue}") == "0"
    assert redis.cli("ZCARD", f"{P}:leases") == "0"
    assert redis.cli("ZCARD", f"{P}:z:{queue}:waiting") == "0"
    assert redis.cli("ZCARD", f"{P}:z:{queue}:active") == "0"


# ---- the plain story ----


def test_jobs_are_added_run_and_looked_at(mandor, redis):
    good, bad, slow = (mandor.add("sh", "-c", script) for script in ("echo out; echo err >&2", "exit 3", "sleep 600"))
    assert [r["id"] for r in mandor.list()] == [slow, bad, good]
    with mandor.worker() as worker:
        assert mandor.ok("wait", good).code == 0
        assert mandor.run("wait", bad).code == 1
        mandor.wait_phase(slow, "running")
        assert mandor.run("rm", slow).code == 4
        mandor.ok("cancel", "--wait", slow)
        assert mandor.stats()["workers"][0]["alive"] is True
        worker.says("broker streams://")
    assert mandor.show(slow)["state"] == "cancelled"
    assert (mandor.logs_of(good, "--stdout"), mandor.logs_of(good, "--stderr")) == (b"out\n", b"err\n")
    assert mandor.show(bad)["exit_code"] == 3
    mandor.ok("retry", bad)
    assert mandor.show(bad)["state"] == "waiting"
    mandor.ok("rm", good)
    assert mandor.run("show", good).code == 3
    mandor.drain()
    assert mandor.show(bad)["attempt"] == 2
    assert mandor.stats()["workers"] == []
    nothing_is_left_over(redis)


def test_priorities_unique_keys_delays_and_pauses_hold(mandor, redis):
    order = mandor.tmp / "order"

    def say(name, **keys):
        return mandor.add("sh", "-c", f"echo {name} >>{order}", **keys)
    say("c", priority=5)
    say("a")
    say("d", priority=9)
    say("b")
    once = say("u", unique="k", priority=7)
    again = mandor.ok("add", "--unique", "k", "--json", "--", "true").json()
    assert again == {"id": once, "existing": True}
    far = mandor.add("true", delay="1h")
    assert mandor.show(far)["state"] == "delayed"
    mandor.ok("rm", far)
    later = say("e", delay="300ms", priority=20)
    mandor.ok("pause", "default")
    mandor.drain("--concurrency", "1")
    assert not order.exists()
    mandor.ok("resume", "default")
    with mandor.worker("--concurrency", "1"):
        mandor.wait_state(later, "completed")
    assert order.read_text().split() == ["a", "b", "c", "u", "d", "e"]
    nothing_is_left_over(redis)


def test_an_option_that_is_misspelt_in_a_message_is_named(mandor, redis):
    configure(mandor, {"render": {"command": ["echo", "{data}"]}})
    redis.cli("XADD", f"{P}:q:render", "*", "job", '{"data": {"url": "x"}, "prority": 1}')
    with mandor.worker():
        wait_for(lambda: mandor.list("--state", "failed"), 30, "the job to fail")
    assert mandor.show("1")["error"] == "unknown key 'prority' in job, did you mean 'priority'?"


def test_any_producer_may_add_entries_and_they_run_what_the_queue_says(mandor, redis):
    configure(mandor, {"default": {"allow_exec": True}, "render": {"command": ["echo", "{data.url}", "{queue}"]}})
    redis.cli("XADD", f"{P}:q:render", "*", "url", "http://x/y z")                           # fields are the data
    redis.cli("XADD", f"{P}:q:render", "*", "data", '{"url": "from data"}')                   # or one of them is
    redis.cli("XADD", f"{P}:q:render", "*", "job", '{"data": {"url": "first"}, "priority": 1, "attempts": 2, "timeout": "9s"}')
    redis.cli("XADD", f"{P}:q:render", "*", "job", '{"data": {"url": "delayed"}, "delay": "200ms", "unique": "k"}')
    redis.cli("XADD", f"{P}:q:render", "*", "job", '{"data": {"url": "evil"}, "stdout": "file:/etc/passwd"}')
    redis.cli("XADD", f"{P}:q:render", "*", "job", '{"exec": ["id"]}')
    redis.cli("XADD", f"{P}:q:render", "*", "job", "no json")
    redis.cli("XADD", f"{P}:q:default", "*", "job", '{"exec": ["sh", "-c", "echo $0", "own command"]}')
    redis.cli("XADD", f"{P}:q:default", "*", "job", '{"exec": ["true"], "lifo": true}')
    done = mandor.run("add", "--id", "x", "--", "true")
    assert done.code == 2 and "'id': only queues of BullMQ" in done.complaint
    with mandor.worker():
        wait_for(lambda: len(mandor.list()) == 9 and all(r["state"] in ("completed", "failed") for r in mandor.list()), 20, "9 jobs")
    outputs = {mandor.logs_of(r["id"], "--stdout").decode().strip() for r in mandor.list("--state", "completed")}
    assert outputs == {"http://x/y z render", "from data render", "first render", "delayed render", "own command"}
    errors = " ".join(r["error"] for r in mandor.list("--state", "failed"))
    assert "'stdout' cannot come from a shared broker" in errors
    assert "allow_exec" in errors and "JSON" in errors and "'lifo': only queues of BullMQ know it" in errors
    for queue in ("render", "default"):
        nothing_is_left_over(redis, queue)


def test_a_queue_that_is_not_bound_refuses_what_it_gets(mandor, redis):
    configure(mandor, {"default": {}})
    job = mandor.add("true")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and "allow_exec: true" in record["error"]


def test_a_password_is_asked_for_used_and_never_printed(mandor, redis):
    redis.cli("ACL", "SETUSER", "ann", "on", ">geheim", f"~{P}*", "&*", "+@all")
    redis.cli("ACL", "SETUSER", "default", "off")
    url = f"streams://ann:geheim@127.0.0.1:{redis.port}"
    job = mandor.ok("add", "--broker", url, "--", "true").text.strip()
    with mandor.worker(env={"MANDOR_BROKER": url}) as worker:
        wait_for(lambda: mandor.ok("show", job, "--json", "--broker", url).json()["state"] == "completed", 20, "the job")
    assert "geheim" not in worker.stderr and "ann:***@" in worker.stderr
    refused = mandor.run("ls", "--broker", url.replace("geheim", "falsch"))
    assert refused.code == 125 and "WRONGPASS" in refused.complaint and "falsch" not in refused.complaint
    gone = mandor.run("ls", "--broker", "streams://127.0.0.1:1")
    assert gone.code == 125 and "127.0.0.1:1" in gone.complaint


def test_an_evicting_server_is_warned_of_R77(mandor, redis):
    redis.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with mandor.worker() as worker:
        wait_for(lambda: "allkeys-lru" in worker.stderr and "noeviction" in worker.stderr, 10, "the warning")


def test_a_finished_job_is_seen_although_another_read_blocks_R78(mandor, redis):
    def quickly():
        wait_for(lambda: "xread" in redis.cli("CLIENT", "LIST"), 10, "a blocked read")
        job, began = mandor.add("true"), time.monotonic()
        mandor.wait_state(job, "completed")
        return time.monotonic() - began < 1.5
    with mandor.worker():
        wait_for(quickly, 60, "one that does not wait for a block, which is 2 s long")


def test_long_output_is_read_from_its_file_and_goes_with_its_job(mandor, redis):
    job = mandor.add("sh", "-c", "head -c 300000 /dev/zero")
    mandor.drain()
    assert mandor.logs_of(job, "--stdout") == bytes(300000)
    [directory] = (pathlib.Path(mandor.env["XDG_STATE_HOME"]) / "mandor").glob(f"streams-*/output/{job}")
    mandor.ok("rm", job)
    with mandor.worker():
        wait_for(lambda: not directory.exists(), 20, "its file to go")


def test_a_drain_that_finds_nothing_says_so(mandor, redis):
    done = mandor.run("work", "--drain", "--queue", "tpyo", stdin=subprocess.DEVNULL)
    assert done.code == 0 and "there was no job in queue 'tpyo'" in done.err.decode(), done


def test_a_worker_on_a_queue_without_a_job_says_so_once(mandor, redis):
    with mandor.worker("--queue", "tpyo") as worker:
        wait_for(lambda: "no job yet in queue 'tpyo'" in worker.stderr, 10, "a word about it")
        mandor.add("true", queue="other")
    mandor.add("true", queue="full")
    with mandor.worker("--queue", "full", "--queue", "tpyo") as other:
        wait_for(lambda: "failed: " in other.stderr, 10, "the end of the job, which is not bound")
    assert worker.stderr.count("no job yet") == 1 and "no job yet" not in other.stderr


def test_what_has_failed_for_good_is_told_in_a_stream_of_its_own(mandor, redis):
    job = mandor.add("sh", "-c", "exit 7", attempts=2, backoff=FAST)
    mandor.drain()
    rows = redis.cli("XRANGE", f"{P}:dead:default", "-", "+").split("\n")
    assert rows[1:5] == ["id", job, "attempt", "2"] and json.loads(rows[6])["exit_code"] == 7


# ---- workers that end ----


def counted(mandor, name, work="sleep 0.05"):
    """A job that notes each run of it, and fails the test when two of its attempts overlap."""
    return {"exec": ["sh", "-c", f"exec 9>{mandor.tmp}/{name}.lock; flock -n 9 || echo {name} >>{mandor.tmp}/overlap; {work}; echo {name} >>{mandor.tmp}/ran"],
            "attempts": 50, "backoff": FAST}


def ran(mandor):
    path = mandor.tmp / "ran"
    return path.read_text().split() if path.exists() else []


def test_workers_that_are_killed_again_and_again_lose_nothing_R56(mandor, redis):
    jobs = mandor.add_many([counted(mandor, f"j{i}", f"sleep 0.{random.randrange(5, 30):02}") for i in range(60)])
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(mandor.worker()) for _ in range(3)]
        for round in range(8):
            wait_for(lambda: len(ran(mandor)) >= min(60, round * 5), 20, "some jobs")
            victim = random.randrange(3)
            workers[victim].kill(guard=random.random() < 0.5)
            workers[victim].proc.wait(30)
            workers[victim] = stack.enter_context(mandor.worker())
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 60, 40, "all to complete")
        wait_for(lambda: not mandor.dead_groups(), 20, "what the dead left to be removed", every=0.2)
    assert set(ran(mandor)) == {f"j{i}" for i in range(60)}
    assert not (mandor.tmp / "overlap").exists()
    for job in jobs[::6]:
        assert mandor.show(job)["state"] == "completed"
    nothing_is_left_over(redis)


def test_a_terminated_worker_gives_its_jobs_back_uncharged_R61(mandor, redis):
    configure(mandor, shutdown_timeout="0s")
    job = mandor.add("sleep", "600", kill_after="100ms")
    with mandor.worker() as worker:
        mandor.wait_phase(job, "running")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    record = mandor.show(job)
    assert record["state"] in ("delayed", "waiting") and record["attempts_used"] == 0, record
    assert record["history"] is None or record["history"][0]["cause"] == "shutdown"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace")
def test_a_worker_in_a_container_with_our_host_name_is_not_taken_for_dead(mandor, redis):
    state = mandor.env["XDG_STATE_HOME"]
    os.makedirs(state, exist_ok=True)
    elsewhere = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {state}; exec "$@"', "sh"]  # nobody else sees its lock
    job = mandor.add("sh", "-c", f"until test -e {mandor.tmp}/go; do sleep 0.05; done")
    with mandor.worker(prefix=elsewhere):
        mandor.wait_phase(job, "running")
        with mandor.worker() as other:
            wait_for(lambda: "at a time" in other.stderr, 10, "the other worker")
            name = other.stderr.split("worker ")[1].split(":")[0]
            ticks = {redis.cli("ZSCORE", f"{P}:alive", name)}
            wait_for(lambda: len(ticks | {redis.cli("ZSCORE", f"{P}:alive", name)}) > 3 or ticks.add(redis.cli("ZSCORE", f"{P}:alive", name)), 20, "some rounds")
            assert mandor.show(job)["attempt"] == 1
        (mandor.tmp / "go").touch()
        assert mandor.wait_state(job, "completed")["attempt"] == 1


# ---- a server that fails ----


def test_a_restarted_server_finds_everything_as_it_was(mandor, redis):
    done = [mandor.add("true") for _ in range(3)]
    with mandor.worker():
        for job in done:
            mandor.wait_state(job, "completed")
        running = mandor.add("sh", "-c", f"until test -e {mandor.tmp}/go; do sleep 0.05; done; echo end")
        mandor.wait_phase(running, "running")
        redis.restart()
        (mandor.tmp / "go").touch()
        mandor.wait_state(running, "completed")
        redis.cli("SCRIPT", "FLUSH")
        after = mandor.add("true")
        mandor.wait_state(after, "completed")
    assert mandor.show(running)["attempt"] == 1
    nothing_is_left_over(redis)


@pytest.fixture
def forgetful(mandor):
    """A server that goes back to its last SAVE when it is restarted: one that is killed, or replaced by a replica that was behind."""
    with Redis(mandor.tmp / "redis", "--appendonly", "no") as server:
        mandor.env["MANDOR_BROKER"] = f"streams://127.0.0.1:{server.port}"
        configure(mandor)
        yield server


def test_an_end_that_the_server_has_lost_is_written_again(mandor, forgetful):
    job = mandor.add("sh", "-c", f"echo x >>{mandor.tmp}/ran; echo out; until test -e {mandor.tmp}/go; do sleep 0.02; done; echo '{{\"result\": 7}}' >&3")
    with mandor.worker() as worker:
        mandor.wait_phase(job, "running")
        forgetful.cli("SAVE")
        (mandor.tmp / "go").touch()
        before = mandor.wait_state(job, "completed")
        forgetful.restart()
        after = mandor.wait_state(job, "completed")
        wait_for(lambda: "had lost the end of this attempt" in worker.stderr, 10, "a word about it")
        forgetful.restart()  # and once more
        assert mandor.wait_state(job, "completed") == after
    assert after == before and after["result"] == 7
    assert ran(mandor) == ["x"] and mandor.logs_of(job, "--stdout") == b"out\n"
    nothing_is_left_over(forgetful)


def test_a_job_whose_start_and_end_the_server_has_lost_runs_again(mandor, forgetful):
    job = mandor.add("sh", "-c", f"echo x >>{mandor.tmp}/ran")
    forgetful.cli("SAVE")
    with mandor.worker() as worker:
        mandor.wait_state(job, "completed")
        forgetful.restart()
        wait_for(lambda: "has lost that there was this attempt" in worker.stderr, 10, "a word about it")
        assert mandor.wait_state(job, "completed")["attempt"] == 1
    assert ran(mandor) == ["x", "x"]
    nothing_is_left_over(forgetful)


def test_a_running_job_whose_start_the_server_has_lost_is_ended_and_run_again(mandor, forgetful):
    configure(mandor, lease="60s")  # who waits for the next renewal is too late
    begun = mandor.tmp / "begun"
    job = mandor.add(*counted(mandor, "x", f"echo >>{begun}; until test -e {mandor.tmp}/go; do sleep 0.02; done")["exec"])
    forgetful.cli("SAVE")
    with mandor.worker() as worker:
        wait_for(begun.exists, 10, "it to run")
        forgetful.restart()
        worker.says("has lost that this attempt was started")
        wait_for(lambda: begun.read_text() == "\n\n", 10, "it to run again")
        (mandor.tmp / "go").touch()
        mandor.wait_state(job, "completed")
    assert ran(mandor) == ["x"] and not (mandor.tmp / "overlap").exists()
    nothing_is_left_over(forgetful)


def test_a_job_that_is_leased_again_while_its_attempt_has_not_ended_here_runs_once_at_a_time(mandor, redis, forgetful):
    """What the server has forgotten it gives out again at once; the attempt that is here still takes its output back."""
    configure(mandor, lease="60s")
    pids = mandor.tmp / "pids"
    with Proxy(redis.port) as target:
        work = f"head -c 300000 /dev/zero; echo $$ >>{pids}; until test -e {mandor.tmp}/go; do sleep 0.02; done"
        job = mandor.add_many([{**counted(mandor, "x", work), "stdout": f"redis://127.0.0.1:{target.port}?key=v"}])[0]
        forgetful.cli("SAVE")
        with mandor.worker() as worker:
            first = int(wait_for(lambda: pids.exists() and pids.read_text(), 20))
            target.freeze()
            forgetful.restart()
            wait_for(lambda: "while it is here" in worker.stderr, 10, "a word about it")
            wait_for(lambda: not alive(first), 10, "it to be ended")
            target.heal()
            (mandor.tmp / "go").touch()
            mandor.wait_state(job, "completed")
    assert ran(mandor) == ["x"] and not (mandor.tmp / "overlap").exists()
    nothing_is_left_over(forgetful)


def test_a_server_that_is_stopped_for_longer_than_a_lease_stops_the_jobs_and_loses_none_R75(mandor, redis):
    configure(mandor, lease="15s")
    job = mandor.add("sh", "-c", f"echo $$ >>{mandor.tmp}/pids; test $MANDOR_ATTEMPT = 2 || sleep 600", attempts=5, backoff=FAST)
    with mandor.worker() as worker:
        mandor.wait_phase(job, "running")
        pids = mandor.tmp / "pids"
        pid = int(wait_for(lambda: pids.exists() and pids.read_text(), 10, "it to say who it is"))
        stopped = time.monotonic()
        redis.stop()
        try:
            # a lease that cannot be renewed: its processes are gone, five seconds before it ends
            wait_for(lambda: not alive(pid), 20, "the job to be ended")
            assert time.monotonic() - stopped < 15
        finally:
            redis.cont()
        record = mandor.wait_state(job, "completed")
        assert worker.running()
    assert record["attempt"] == 2 and record["attempts_used"] == 1, record
    nothing_is_left_over(redis)


def test_an_end_that_cannot_be_written_holds_up_no_other(mandor, redis):
    """The ends of one turn go to the server in one call."""
    jobs = [mandor.add("sh", "-c", f"until test -e {mandor.tmp}/go; do sleep 0.02; done; echo done") for _ in range(6)]
    with mandor.worker("--concurrency", "6") as worker:
        for job in jobs:
            mandor.wait_phase(job, "running")
        broken = f"{{mandor}}:job:{jobs[2]}"
        redis.cli("RENAME", broken, "{mandor}:away")
        redis.cli("SET", broken, "not what it should be")
        (mandor.tmp / "go").touch()
        for job in jobs[:2] + jobs[3:]:
            assert mandor.wait_state(job, "completed")["attempt"] == 1
        wait_for(lambda: "WRONGTYPE" in worker.stderr and "rename or delete it" in worker.stderr, 10, "a complaint")
        redis.cli("RENAME", "{mandor}:away", broken)
        assert mandor.wait_state(jobs[2], "completed")["attempt"] == 1
    nothing_is_left_over(redis)


def test_a_failure_that_lasts_is_not_said_each_second(mandor, redis):
    """A stream of ours that is something else fails each request for jobs, one a second; when it is put right the jobs run."""
    def failed():
        return sum(int(calls) for calls in re.findall(r"cmdstat_evalsha:.*failed_calls=(\d+)", redis.cli("INFO", "commandstats")))

    redis.cli("SET", f"{P}:q:default", "not a stream")
    with mandor.worker("--queue", "default") as worker:
        wait_for(lambda: "WRONGTYPE" in worker.stderr, 30, "a complaint")
        before = failed()  # scripts that the server did not have yet are among them
        wait_for(lambda: failed() >= before + 6, 60, "more requests")
        assert worker.stderr.count("WRONGTYPE") <= 3, worker.stderr  # once a minute at most
        redis.cli("DEL", f"{P}:q:default")
        mandor.wait_state(mandor.add("true"), "completed")
        said = worker.stderr.count("WRONGTYPE")
        redis.cli("SET", f"{P}:q:default", "not a stream")
        wait_for(lambda: worker.stderr.count("WRONGTYPE") > said, 30, "a complaint about the next time")
        redis.cli("DEL", f"{P}:q:default")


def test_a_full_server_at_the_finish_loses_neither_job_nor_result_R79(mandor, redis):
    job = mandor.add("sh", "-c", f"until test -e {mandor.tmp}/go; do sleep 0.05; done; echo '{{\"result\": 42}}' >&3")
    waiting = None
    with mandor.worker() as worker:
        mandor.wait_phase(job, "running")
        waiting = mandor.add("true")
        redis.cli("CONFIG", "SET", "maxmemory", "1")
        (mandor.tmp / "go").touch()
        wait_for(lambda: "OOM" in worker.stderr, 10, "a refusal")
        refused = mandor.run("add", "--", "true")
        assert refused.code == 125 and "OOM" in refused.complaint
        redis.cli("CONFIG", "SET", "maxmemory", "0")
        record = mandor.wait_state(job, "completed")
        mandor.wait_state(waiting, "completed")
    assert record["result"] == 42 and record["attempt"] == 1
    nothing_is_left_over(redis)


def test_the_connection_is_cut_at_every_finish_and_each_job_is_settled_once_R64(mandor, redis):
    with Proxy(redis.port) as proxy:
        jobs = mandor.add_many([counted(mandor, f"j{i}", "sleep 0.02") for i in range(40)])
        with mandor.worker(**through(mandor, proxy)) as worker:
            for round in range(10):
                wait_for(lambda: len(ran(mandor)) >= min(40, round * 4), 20, "some jobs")
                proxy.cut()
                time.sleep(random.uniform(0.02, 0.3))
                proxy.heal()
            wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 40, 40, f"all to complete: {worker.stderr[-3000:]}")
    assert not (mandor.tmp / "overlap").exists()
    assert sorted(ran(mandor)) == sorted(f"j{i}" for i in range(40)), "none ran twice"
    for job in jobs:
        record = mandor.show(job)
        assert (record["state"], record["attempts_used"]) == ("completed", 1), record
    nothing_is_left_over(redis)


@pytest.mark.parametrize("then", ["goes on", "stops"])
def test_jobs_of_a_lease_whose_answer_is_lost_again_and_again_are_not_lost(mandor, redis, then):
    """The server gave them out and nobody heard of it: that is no start, and costs no attempt."""
    leases = []

    def lose(request):
        if b"\r\ndefault\r\n" not in request or (then == "goes on" and len(leases) == 3):
            return False
        leases.append(request)
        return True
    with Proxy(redis.port) as proxy, mandor.worker("--queue", "default", "--concurrency", "2", **through(mandor, proxy)) as worker:
        wait_for(lambda: "xread" in redis.cli("CLIENT", "LIST"), 10, "an idle worker")
        proxy.lose = lose
        jobs = [mandor.add("sh", "-c", f"echo {n} >>{mandor.tmp}/ran") for n in range(4)]
        if then == "stops":
            wait_for(lambda: len(leases) >= 2, 20, "leases")
            worker.signal(signal.SIGTERM)
            worker.wait()
            mandor.drain()
        for job in jobs:
            assert mandor.wait_state(job, "completed", "failed")["state"] == "completed"
    assert sorted(ran(mandor)) == ["0", "1", "2", "3"]
    assert [mandor.show(job)["attempts_used"] for job in jobs] == [1] * 4
    nothing_is_left_over(redis)


def test_a_half_dead_connection_is_noticed_and_replaced_R75(mandor, redis):
    with Proxy(redis.port) as proxy, mandor.worker(**through(mandor, proxy)) as worker:
        first = mandor.add("true")
        mandor.wait_state(first, "completed")
        proxy.freeze()
        job = mandor.add("true")
        wait_for(lambda: "connection lost" in worker.stderr, 20, "the loss to be noticed")
        proxy.heal()
        mandor.wait_state(job, "completed")


def test_a_cluster_serves_as_well_as_a_single_server(mandor):
    with Redis(mandor.tmp / "redis", "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no") as redis:
        redis.cli("CLUSTER", "ADDSLOTS", *range(16384))
        wait_for(lambda: "cluster_state:ok" in redis.cli("CLUSTER", "INFO"), 10, "the cluster")
        mandor.env["MANDOR_BROKER"] = f"streams+cluster://127.0.0.1:{redis.port}"
        configure(mandor)
        with mandor.worker():
            jobs = mandor.add_many([{"exec": ["sh", "-c", "exit $((MANDOR_ATTEMPT - 2))"], "attempts": 2, "backoff": FAST}] * 5)
            for job in jobs:
                assert mandor.wait_state(job, "completed")["attempt"] == 2
        nothing_is_left_over(redis)


def test_a_broker_that_is_out_of_reach_holds_up_its_own_queues_only(mandor, redis):
    local = f"sqlite:{mandor.tmp}/local.db"
    configure(mandor, {"near": {"broker": local}, "far": {"allow_exec": True}})
    far = mandor.ok("add", "--queue", "far", "--", "true").text.strip()
    redis.kill()
    near = mandor.ok("add", "--broker", local, "--queue", "near", "--", "true").text.strip()
    with mandor.worker() as worker:
        assert mandor.ok("wait", near, "--broker", local).code == 0
        redis.start()
        mandor.wait_state(far, "completed")
        worker.says("its queues are served")
        for _ in range(2):  # and again while it runs
            redis.kill()
            more = mandor.ok("add", "--broker", local, "--queue", "near", "--", "true").text.strip()
            assert mandor.ok("wait", more, "--broker", local).code == 0
            redis.start()
            mandor.wait_state(mandor.add("true", queue="far"), "completed")


def test_a_worker_says_what_it_waits_for_and_begins_when_it_comes(mandor, redis):
    """Nobody has to guess why nothing runs; what waiting does not help is refused."""
    job = mandor.add("true")
    redis.kill()
    with mandor.worker() as worker:
        wait_for(lambda: f"waiting for broker 'streams://127.0.0.1:{redis.port}'" in worker.stderr and "refused" in worker.stderr, 10)
        redis.start()
        mandor.wait_state(job, "completed")
        assert worker.stderr.count("waiting for broker") < 5  # once for each reason: refused, then LOADING maybe
    redis.kill()
    with mandor.worker() as worker:
        wait_for(lambda: "waiting for broker" in worker.stderr, 10)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    redis.start()
    redis.cli("CONFIG", "SET", "requirepass", "geheim")
    refused = mandor.run("work")
    assert refused.code == 125 and "NOAUTH" in refused.complaint


@pytest.mark.parametrize("how", ("gone", "stopped"))
def test_a_stop_does_not_wait_for_ever_for_a_server_that_is_away(mandor, redis, how):
    """The result cannot be written: it is given up long before the jobs' own time is over, and the job is taken over."""
    configure(mandor, shutdown_timeout="30m")
    go = mandor.tmp / "go"
    job = mandor.add("sh", "-c", f"echo $MANDOR_ATTEMPT >>{mandor.tmp}/ran; until [ -e {go} ]; do sleep 0.02; done; echo >>{mandor.tmp}/over", attempts=2, backoff=FAST)
    with mandor.worker() as worker:
        mandor.wait_phase(job, "running")
        redis.kill() if how == "gone" else redis.stop()
        go.touch()
        wait_for((mandor.tmp / "over").exists, 10, "the job to end")
        worker.signal(signal.SIGTERM)
        assert worker.wait(timeout=120) == 125
        assert f"not settled (exit code 0): broker 'streams://127.0.0.1:{redis.port}' does not answer; when the lease is over the job is taken over" in worker.stderr
    redis.start() if how == "gone" else redis.cont()
    with mandor.worker():
        mandor.wait_state(job, "completed")
    ran = (mandor.tmp / "ran").read_text().split()  # a server that was stopped has the request in its socket, and carries it out
    assert ran == ["1", "2"] or how == "stopped" and ran == ["1"]
    assert mandor.show(job)["attempts_used"] == len(ran)
    nothing_is_left_over(redis)


@pytest.mark.parametrize("how", ("gone", "stopped"))
def test_an_idle_worker_leaves_though_its_server_is_away(mandor, redis, how):
    with mandor.worker() as worker:
        wait_for(lambda: "at a time" in worker.stderr, 10, "the start")
        redis.kill() if how == "gone" else redis.stop()
        worker.signal(signal.SIGTERM)
        assert worker.wait(timeout=120) == 0
    redis.start() if how == "gone" else redis.cont()


def test_a_reload_takes_new_queues_and_no_new_brokers(mandor, redis):
    """What is refused is refused whole; queues of the brokers that are there may come."""
    main, local = mandor.env.pop("MANDOR_BROKER"), f"sqlite:{mandor.tmp}/local.db"
    bind = {"command": ["true"]}

    def reload(worker, queues, **more):
        configure(mandor, queues, **{"broker": main, **more})
        before = len(worker.stderr)
        worker.signal(signal.SIGHUP)
        return wait_for(lambda: [line for line in worker.stderr[before:].split("\n") if "configuration" in line], 10)[0]
    configure(mandor, {"one": bind}, broker=main)
    with mandor.worker() as worker:
        wait_for(lambda: "at a time" in worker.stderr, 10, "the start")
        refused = "the configuration stays as it was: the broker of queue 'two' is another broker than at the start, which takes a restart of the worker"
        assert refused in reload(worker, {"one": bind, "two": {"broker": local}})
        refused = "the configuration stays as it was: 'broker' is another broker than at the start, which takes a restart of the worker"
        assert refused in reload(worker, {"one": bind}, broker=local)
        assert "configuration read again" in reload(worker, {"one": bind, "three": bind})
        assert "configuration read again" in reload(worker, {"one": bind, "three": bind})
        for queue in ("one", "three"):
            job = mandor.ok("add", "--broker", main, "--queue", queue, "--data", "{}").text.strip()
            assert mandor.ok("wait", "--broker", main, job).code == 0


# ---- others who write there ----


def test_entries_that_are_trimmed_or_deleted_lose_no_job_R73(mandor, redis):
    running = mandor.add("sh", "-c", f"until test -e {mandor.tmp}/go; do sleep 0.05; done")
    with mandor.worker("--concurrency", "1") as worker:
        mandor.wait_phase(running, "running")
        waiting = [mandor.add("true") for _ in range(5)]
        assert redis.cli("XLEN", f"{P}:q:default") == "6"
        redis.cli("XTRIM", f"{P}:q:default", "MAXLEN", "0")
        wait_for(lambda: "deleted or trimmed" in worker.stderr, 10, "the worker to notice")
        (mandor.tmp / "go").touch()
        for job in (running, *waiting):
            mandor.wait_state(job, "completed")
    nothing_is_left_over(redis)


@pytest.mark.parametrize("how", ["XGROUP DESTROY {mandor}:q:default mandor", "DEL {mandor}:q:default"])
def test_a_group_or_stream_that_is_gone_is_made_anew(mandor, redis, how):
    running = mandor.add("sh", "-c", f"until test -e {mandor.tmp}/go; do sleep 0.05; done")
    with mandor.worker("--concurrency", "2"):
        mandor.wait_phase(running, "running")
        mandor.ok("pause", "default")
        waiting = [mandor.add("true") for _ in range(4)]
        redis.cli(*how.split())
        mandor.ok("resume", "default")
        for job in waiting:
            mandor.wait_state(job, "completed")
        assert mandor.show(running)["state"] == "active"
        (mandor.tmp / "go").touch()
        assert mandor.wait_state(running, "completed")["attempt"] == 1
    nothing_is_left_over(redis)


def test_entries_that_a_foreign_consumer_of_the_group_took_come_back(mandor, redis):
    with mandor.worker():
        mandor.wait_state(mandor.add("true"), "completed")
    job = mandor.add("true")
    redis.cli("XADD", f"{P}:q:default", "*", "job", '{"exec": ["true"]}')
    redis.cli("XREADGROUP", "GROUP", "mandor", "stranger", "COUNT", "9", "STREAMS", f"{P}:q:default", ">")
    assert pending(redis) == 2
    # as if the stranger had had them for longer than a lease
    for line in redis.cli("XPENDING", f"{P}:q:default", "mandor", "-", "+", "9").split("\n"):
        if "-" in line:
            redis.cli("XCLAIM", f"{P}:q:default", "mandor", "stranger", "0", line.strip(), "IDLE", "60000", "JUSTID")
    with mandor.worker():
        mandor.wait_state(job, "completed")
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == 3, 20, "both")
    nothing_is_left_over(redis)


# ---- three hosts ----


class Net:
    """A bridge, and hosts in network and UTS namespaces on it; each can be cut off."""

    def __init__(self):
        self.tag = f"m{random.randrange(1 << 28):07x}"  # links are taken away a while after their namespace: a name is used once
        self.net = f"10.{random.randrange(128, 250)}.{random.randrange(1, 250)}"  # one that nobody else has, other runs of this test among them
        self.address = f"{self.net}.1"
        self.hosts = []

    def ip(self, *args):
        return subprocess.run(["ip", *args], capture_output=True, text=True)

    def must(self, *args):
        done = self.ip(*args)
        assert done.returncode == 0, done

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        self.must("link", "add", f"{self.tag}br", "type", "bridge")
        self.must("addr", "add", f"{self.address}/24", "dev", f"{self.tag}br")
        self.must("link", "set", f"{self.tag}br", "up")
        for i in range(1, 4):
            name = f"{self.tag}h{i}"
            self.hosts.append(name)
            self.must("netns", "add", name)
            self.must("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.must("link", "set", f"{name}v", "master", f"{self.tag}br", "up")
            self.must("-n", name, "addr", "add", f"{self.net}.{i + 1}/24", "dev", "eth0")
            self.must("-n", name, "link", "set", "eth0", "up")

    def prefix(self, i):
        name = self.hosts[i]
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]

    def cut(self, i, on=True):
        self.must("link", "set", f"{self.hosts[i]}v", "down" if on else "up")

    def __exit__(self, *_):
        for name in self.hosts:
            self.ip("netns", "del", name)
        self.ip("link", "del", f"{self.tag}br")


def can_make_networks():
    if os.geteuid() != 0:
        return False
    with contextlib.suppress(Exception):
        with Net():
            return True
    return False


def test_a_host_that_is_cut_off_and_healed_settles_nothing_publishes_nothing_and_runs_nothing_after_its_lease(mandor):
    if not can_make_networks():
        pytest.skip("no network namespaces here")
    with Net() as net, Redis(mandor.tmp / "redis", bind=net.address) as redis:
        mandor.env["MANDOR_BROKER"] = f"streams://{net.address}:{redis.port}"
        configure(mandor, concurrency=2, lease="15s")
        out = mandor.tmp / "out"
        out.mkdir()
        # Each attempt writes its host into its output and says, ten times a second, that it is alive.
        script = (f"hostname; while ! test -e {mandor.tmp}/finish-$(hostname); do date +%s.%N >>{mandor.tmp}/beat-$(hostname)-$MANDOR_JOB_ID; "
                  "sleep 0.1; done; hostname")
        jobs = mandor.add_many([{"exec": ["sh", "-c", script], "stdout": f"file:{out}/{{id}}", "attempts": 9, "backoff": FAST,
                                 "kill_after": "100ms"} for _ in range(3)])
        with contextlib.ExitStack() as stack:
            def worker(i):
                env = {"XDG_STATE_HOME": str(mandor.tmp / f"state{i}")}
                return stack.enter_context(mandor.worker(prefix=net.prefix(i), env=env))
            workers = [worker(i) for i in range(3)]
            for job in jobs:
                mandor.wait_phase(job, "running")
            victim = mandor.show(jobs[0])["worker"]
            host = next(i for i, name in enumerate(net.hosts) if victim.startswith(name))
            mine = [job for job in jobs if mandor.show(job)["worker"] == victim]
            net.cut(host)
            cut_at = time.time()
            for job in mine:
                wait_for(lambda: (r := mandor.show(job))["worker"] != victim and r["phase"] == "running", 60, "another host to take it over")
            taken_at = time.time()
            last_beats = [float((mandor.tmp / f"beat-{net.hosts[host]}-{job}").read_text().split()[-1]) for job in mine]
            assert max(last_beats) < taken_at and max(last_beats) - cut_at < 15, "it ran on after its lease"
            (mandor.tmp / f"finish-{net.hosts[host]}").touch()
            net.cut(host, False)
            wait_for(lambda: "lease lost" in workers[host].stderr or "not held" in workers[host].stderr, 30,
                     f"the cut-off worker to hear of it:\n{workers[host].stderr[-2000:]}")
            assert not any((out / job).exists() for job in mine), "the fenced attempt has published something"
            for name in net.hosts:
                (mandor.tmp / f"finish-{name}").touch()
            for job in jobs:
                record = mandor.wait_state(job, "completed")
                ran_on = next(name for name in net.hosts if record["worker"].startswith(name))
                assert (out / job).read_text().split() == [ran_on, ran_on], "output of one attempt only"
                if job not in mine:  # renewed all the time, longer than a lease
                    assert record["attempt"] == 1
                else:
                    assert record["worker"] != victim
                    assert [h["cause"] for h in record["history"]] == ["worker_died"] * (record["attempt"] - 1), record
        nothing_is_left_over(redis)
        assert redis.cli("HGET", f"{P}:job:{jobs[0]}", "st") == "completed"
