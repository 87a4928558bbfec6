"""Queues of BullMQ: stock producers, listeners and workers of both major versions beside `mandor work` on a real Redis.

The numbers in brackets are those of the list of checks in doc/bullmq.md."""
import contextlib
import datetime
import json
import os
import re
import signal
import time
import uuid

import pytest

import bullmq
import snakes
from bullmq import client_name, say, sh
from harness import ROOT, wait_for

pytestmark = pytest.mark.skipif(bool(bullmq.missing()), reason=bullmq.missing() or "-")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    it = bullmq.Server(tmp_path_factory.mktemp("redis"))
    yield it
    it.stop()


@pytest.fixture(scope="module")
def stocks(server):
    found = {}
    yield lambda major: found.setdefault(major, None) or found.update({major: bullmq.Stock(major, server.port)}) or found[major]
    for stock in found.values():
        stock.stop()


def make_bench(mandor, server, stocks, major):
    return bullmq.Bench(mandor, server, stocks(major), f"q-{uuid.uuid4().hex[:8]}")


@pytest.fixture(params=(5, 6), ids=("v5", "v6"))
def bench(request, mandor, server, stocks):
    """A queue of the test's own, with the stock package of each version in turn."""
    it = make_bench(mandor, server, stocks, request.param)
    yield it
    it.stock.reset()


@pytest.fixture
def bench6(mandor, server, stocks):
    it = make_bench(mandor, server, stocks, 6)
    yield it
    it.stock.reset()


# ---- basics -----------------------------------------------------------------------------------------------------------------


def test_a_job_completes_with_its_result(bench):
    """[1, 2, 3, 31] Every field, every event, nothing left over."""
    with bench.worker(name="wk1"):
        job = bench.add(say(result={"ok": True}))
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert row["returnvalue"] == '{"ok":true}' and row["atm"] == row["ats"] == "1" and row["pb"] == "wk1"
        assert int(row["timestamp"]) <= int(row["processedOn"]) <= int(row["finishedOn"])
        active, wait, done, lock = bench.keys("active", "wait", "completed", f"{job}:lock")
        assert not active and not wait and lock is None
        assert done == [job, row["finishedOn"]]
        wait_for(lambda: bench.events("drained"), 5)
        assert bench.events() == [
            ("added", {"jobId": job, "name": "job"}), ("waiting", {"jobId": job}), ("active", {"jobId": job, "prev": "waiting"}),
            ("completed", {"jobId": job, "returnvalue": '{"ok":true}', "prev": "active"}), ("drained", {})]


@pytest.mark.parametrize("name", ("wk1", None))
def test_workers_are_listed(bench, name):
    """[2] Exactly one entry for each worker."""
    with bench.worker(**({"name": name} if name else {})):
        wanted = client_name("bull", bench.name, name)
        rows = wait_for(lambda: bench.js("return (await q.getWorkers()).map(w => w.rawname);"), 5)
        assert rows == [wanted]
        queues = bench.mandor.ok("stats", "--json").json()["workers"]
        assert [w["queues"] for w in queues if w["queues"] == [bench.name]]


def test_a_job_that_says_nothing_returns_null(bench):
    """[4, 5] waitUntilFinished before, and again afterwards."""
    with bench.worker():
        assert bench.js("""const e = await events(NAME);
            const job = await q.add('n', data);
            const first = await job.waitUntilFinished(e, 10000), again = await job.waitUntilFinished(e, 10000);
            return [first, again, await r.hget(K(job.id), 'returnvalue')];""", data=sh("true")) == [None, None, "null"]


def test_a_failing_job_rejects_who_waits(bench):
    """[5, 19] failedReason is the exit's cause, the stack trace ends with what the job wrote to stderr."""
    with bench.worker():
        reasons = bench.js("""const e = await events(NAME);
            const job = await q.add('n', data);
            const reason = () => job.waitUntilFinished(e, 10000).then(() => 'resolved', (error) => error.message);
            return [await reason(), await reason(), job.id];""", data=sh("echo boom >&2; exit 3"))
        assert reasons[:2] == ["exit code 3"] * 2
        row = bench.hash(reasons[2])
        assert json.loads(row["stacktrace"]) == ["exit code 3\nboom\n"] and row["failedReason"] == "exit code 3" and row["atm"] == "1"
        assert bench.events("failed", "retries-exhausted", "completed") == [
            ("failed", {"jobId": reasons[2], "failedReason": "exit code 3", "prev": "active"}),
            ("retries-exhausted", {"jobId": reasons[2], "attemptsMade": "1"})]


def test_listeners_survive_every_result(bench):
    """[6] Unicode, nesting, a megabyte, what is no JSON: QueueEvents parses all of it."""
    scripts = [say(result=f"ü☃ {i}") if i % 4 == 0 else say(result={"a": [{"b": [None, i, "\u2028"]}]}) if i % 4 == 1
               else "echo not json >&3" if i % 4 == 2 else "echo '{\"result\": NaN}' >&3" for i in range(40)]
    scripts.append("printf '{\"result\":\"' >&3; head -c 1000000 /dev/zero | tr '\\0' x >&3; printf '\"}\\n' >&3")
    with bench.worker(concurrency=4):
        seen = bench.js("""const e = await events(NAME), seen = [];
            e.on('completed', ({ returnvalue }) => seen.push(returnvalue));
            await q.addBulk(scripts.map((data) => ({ name: 'n', data })));
            await until(() => seen.length === scripts.length);
            return [seen.map((value) => typeof value === 'string' && value.length > 1000 ? value.length : value), kept.errors ?? []];""",
            scripts=[sh(script) for script in scripts])
        assert seen[1] == [] and len(seen[0]) == 41 and 1000000 in seen[0] and "ü☃ 0" in seen[0]


def test_ids_of_every_kind(bench):
    """[8] Custom ids, ids with colons, UUIDs."""
    ids = ["my-id", "a:b:c", str(uuid.uuid4()), "ü☃"]
    with bench.worker():
        states = bench.js("""for (const jobId of ids) await q.add('n', data, { jobId });
            for (const id of ids) await until(async () => await q.getJobState(id) === 'completed');
            return await Promise.all(ids.map(async (id) => (await q.getJob(id)).returnvalue));""", ids=ids, data=sh(say(result=1)))
        assert states == [1, 1, 1, 1]
        for job in ids:
            assert bench.mandor.ok("show", f"{bench.name}:{job}", "--json").json()["state"] == "completed"


def test_the_order_is_that_of_the_stock_worker(bench):
    """[9] lifo, then first come, then by priority, first come within one."""
    ids = bench.js("""const ids = {};
        const add = async (name, opts) => { ids[(await q.add(name, data, opts)).id] = name; };
        await add('w1', {}); await add('w2', {}); await add('p5a', { priority: 5 }); await add('p1', { priority: 1 });
        await add('p5b', { priority: 5 }); await add('lifo', { lifo: true });
        return ids;""", data=sh("true"))
    with bench.worker():
        wait_for(lambda: len(bench.events("completed")) == 6, 20, "all jobs")
        assert [ids[f["jobId"]] for _, f in bench.events("active")] == ["lifo", "w1", "w2", "p1", "p5a", "p5b"]
        wait_for(lambda: bench.keys("pc") == [None], 5, "no counter left")


def test_an_idle_worker_waits_at_the_marker(bench):
    """[10] One blocking connection, few fetches, and no wait for the next look when a job comes."""
    with bench.worker():
        wait_for(lambda: bench.js("return (await r.client('LIST')).includes('cmd=bzpopmin');"), 5)
        bench.add("true")
        wait_for(lambda: bench.events("completed"), 5)
        wait_for(lambda: bench.js("return (await r.client('LIST')).includes('cmd=bzpopmin');"), 5)
        # a producer's job is taken because of the marker, not of the next look: its delay says which
        delays = bench.js("""const delays = [];
            for (let i = 0; i < 5; i++) {
                const job = await q.add('n', data);
                await until(async () => await job.isCompleted());
                const row = await r.hgetall(K(job.id));
                delays.push(row.processedOn - row.timestamp);
                await until(async () => (await r.client('LIST')).includes('cmd=bzpopmin'));
            }
            return delays;""", data=sh("true"))
        assert sorted(delays)[2] < 1000, delays
        calls = "return Number(/cmdstat_evalsha:calls=(\\d+)/.exec(await r.info('commandstats'))[1]);"
        before, start = bench.js(calls), time.monotonic()
        time.sleep(2)
        assert bench.js(calls) - before <= 4 + (time.monotonic() - start)  # looks, and the check for stalled jobs


def test_many_jobs_shared_with_a_stock_worker(bench):
    """[11] Every job exactly once, and both had a part."""
    data = sh("true")
    with bench.worker(concurrency=8):
        found = bench.js("""let mine = 0;
            const other = worker(NAME, async () => { mine++; await sleep(2); }, { concurrency: 4 });
            for (let i = 0; i < 400; i += 100)
                await q.addBulk(Array.from({ length: 100 }, () => ({ name: 'n', data })));
            await until(async () => await r.zcard(K('completed')) === 400, 60000);
            const ids = await r.zrange(K('completed'), 0, -1);
            const started = await Promise.all(ids.map((id) => r.hget(K(id), 'ats')));
            return [mine, started.filter((n) => n !== '1').length, await q.getJobCounts('active', 'wait', 'failed')];""", data=data)
        assert 0 < found[0] < 400 and found[1] == 0
        assert found[2]["active"] == found[2]["wait"] == found[2]["failed"] == 0


# ---- delays, pause, limits --------------------------------------------------------------------------------------------------


def test_a_delayed_job_runs_when_it_is_due(bench):
    """[12] Its event carries the absolute time; it is promoted before it becomes active."""
    with bench.worker():
        job = bench.add("true", delay=300)
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        due = int(row["timestamp"]) + 300
        events = bench.events()
        assert ("delayed", {"jobId": job, "delay": str(due)}) in events
        assert int(row["processedOn"]) >= due and row["delay"] == "0"
        order = [name for name, _ in events]
        assert order.index("waiting") < order.index("active")
        assert events[order.index("waiting")][1] == {"jobId": job, "prev": "delayed"}
        assert int(row["processedOn"]) < due + 1500


def test_jobs_of_one_instant_keep_their_order(bench6):
    """[13] Ten delayed jobs of one timestamp."""
    ids = bench6.js("""const at = Date.now();
        return (await q.addBulk(Array.from({ length: 10 }, () => ({ name: 'n', data, opts: { timestamp: at, delay: 400 } })))).map((j) => j.id);""",
        data=sh("true"))
    with bench6.worker():
        wait_for(lambda: len(bench6.events("completed")) == 10, 20)
        assert [f["jobId"] for _, f in bench6.events("active")] == ids


def test_a_paused_queue_rests(bench):
    """[14] Running jobs end, delayed ones are promoted to where they have to wait, resume lets all run."""
    go = bench.mandor.tmp / "go"
    with bench.worker():
        first = bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done")
        bench.wait_state(first, "active")
        bench.js("await q.pause();")
        second, third = bench.add("true"), bench.add("true", delay=100)
        go.touch()
        bench.wait_state(first, "completed")
        list_name = "paused" if bench.major == 5 else "wait"
        wait_for(lambda: sorted(bench.keys(list_name)[0]) == sorted([second, third]), 10, "both to wait")
        assert len(bench.events("active")) == 1
        bench.js("await q.resume();")
        bench.wait_state(second, "completed")
        bench.wait_state(third, "completed")


def test_what_fails_while_the_queue_is_paused_is_not_lost(bench):
    """[15] A retry meanwhile goes where resume finds it, in either version's manner."""
    go = bench.mandor.tmp / "go"
    with bench.worker():
        job = bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done; [ $MANDOR_ATTEMPT = 2 ]", attempts=3)
        other = bench.add("true")
        bench.wait_state(job, "active")
        bench.js("await q.pause();")
        go.touch()
        wait_for(lambda: bench.hash(job).get("atm") == "1", 10)
        bench.js("await q.resume();")
        bench.wait_state(job, "completed")
        bench.wait_state(other, "completed")


def test_mandor_pauses_in_the_versions_manner(bench):
    """[14] `mandor pause` is seen by stock code, and `mandor resume` loses nothing."""
    bench.js("await q.waitUntilReady();")
    jobs = [bench.add("true") for _ in range(3)]
    bench.mandor.ok("pause", bench.name)
    assert bench.js("return await q.isPaused();")
    assert bench.keys("paused" if bench.major == 5 else "wait")[0] == jobs[::-1]
    bench.mandor.ok("resume", bench.name)
    assert not bench.js("return await q.isPaused();")
    with bench.worker():
        for job in jobs:
            bench.wait_state(job, "completed")
        assert [f["jobId"] for _, f in bench.events("active")] == jobs


def test_the_global_concurrency_holds(bench):
    """[16] One at a time, whatever the worker could do."""
    bench.js("await q.setGlobalConcurrency(1);")
    jobs = [bench.add("sleep 0.05") for _ in range(4)]
    with bench.worker(concurrency=5):
        bench.wait_state(jobs[-1], "completed")
        running, most = 0, 0
        for name, _ in bench.events("active", "completed"):
            running += 1 if name == "active" else -1
            most = max(most, running)
        assert most == 1


@pytest.mark.parametrize("where", ("queue", "worker"))
def test_the_rate_limit_holds(bench6, where):
    """[17] Two for each half second."""
    if where == "queue":
        bench6.js("await q.setGlobalRateLimit(2, 500);")
    jobs = [bench6.add("true") for _ in range(6)]
    with bench6.worker(concurrency=5, **({"limiter_max": 2, "limiter_duration": "500ms"} if where == "worker" else {})):
        bench6.wait_state(jobs[-1], "completed")
        started = sorted(int(bench6.hash(job)["processedOn"]) for job in jobs)
        assert all(started[i + 2] - started[i] >= 450 for i in range(4)), started
        assert started[5] - started[0] >= 950


# ---- failure and retry ------------------------------------------------------------------------------------------------------


def test_a_job_is_tried_as_often_as_its_options_say(bench):
    """[20] Two failures, then success: no `failed` event, two returns to the line."""
    with bench.worker():
        job = bench.add("[ $MANDOR_ATTEMPT = 3 ]", attempts=3)
        bench.wait_state(job, "completed", "failed")
        row = bench.hash(job)
        assert row["atm"] == row["ats"] == "3" and len(json.loads(row["stacktrace"])) == 2 and row["failedReason"] == "exit code 1"
        assert not bench.events("failed")
        assert [f for _, f in bench.events("waiting")][1:] == [{"jobId": job, "prev": "active"}] * 2
        shown = bench.mandor.ok("show", f"{bench.name}:{job}", "--json").json()
        assert shown["state"] == "completed" and [h["exit_code"] for h in shown["history"]] == [1, 1]


@pytest.mark.parametrize("backoff, wanted", (
    ({"type": "fixed", "delay": 60}, [(60, 60)] * 2), (60, [(60, 60)] * 2),
    ({"type": "exponential", "delay": 30}, [(30, 30), (60, 60)]), ({"type": "exponential", "delay": 40, "jitter": 0.5}, [(20, 40), (40, 80)])))
def test_backoff_is_as_the_options_say(bench6, backoff, wanted):
    """[21, 22] Each delay, its event, and the end."""
    with bench6.worker():
        job = bench6.add("exit 1", attempts=3, backoff=backoff)
        bench6.wait_state(job, "failed")
        delayed = [int(f["delay"]) for _, f in bench6.events("delayed")]
        ends = [entry["finished_at"] for entry in json.loads(bench6.hash(job)["mandor"])["history"]]
        ends = [datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() * 1000 for at in ends]
        assert len(delayed) == len(ends) == 2
        for due, end, (low, high) in zip(delayed, ends, wanted):
            assert low - 1 <= due - end <= high + 1000, (due, end)  # the end is noted a moment before it is written
        assert bench6.events("failed", "retries-exhausted")[-1] == ("retries-exhausted", {"jobId": job, "attemptsMade": "3"})
        assert bench6.hash(job)["delay"] == "0"


def test_an_unknown_backoff_fails_for_good(bench6):
    with bench6.worker():
        job = bench6.add("exit 1", attempts=3, backoff={"type": "mine"})
        bench6.wait_state(job, "failed")
        assert "does not know backoff 'mine'" in bench6.hash(job)["failedReason"]


def test_some_exit_codes_are_not_tried_again(bench):
    """[23] An unrecoverable failure has attempts left, so they are not exhausted."""
    with bench.worker():
        job = bench.add("exit 100", attempts=5)
        bench.wait_state(job, "failed")
        assert bench.hash(job)["atm"] == "1" and bench.events("failed") and not bench.events("retries-exhausted")


def test_where_a_retried_job_goes(bench6):
    """[24] Behind its equals by priority; a lifo job is next again."""
    names = bench6.js("""const ids = {};
        const add = async (name, data, opts) => { ids[(await q.add(name, data, opts)).id] = name; };
        await add('a', fails, { priority: 3, attempts: 2 }); await add('b', works, { priority: 3 });
        await add('plain', works); await add('lifo', fails, { lifo: true, attempts: 2 });
        return ids;""", fails=sh("[ $MANDOR_ATTEMPT = 2 ]"), works=sh("true"))
    with bench6.worker():
        wait_for(lambda: len(bench6.events("completed")) == 4, 20)
        assert [names[f["jobId"]] for _, f in bench6.events("active")] == ["lifo", "lifo", "plain", "a", "b", "a"]


def test_a_job_is_started_only_so_often(bench6):
    """maxStartedAttempts: the last start is not followed by another, and one more is refused."""
    with bench6.worker(max_started=2):
        job = bench6.add("exit 1", attempts=5)
        bench6.wait_state(job, "failed")
        assert bench6.hash(job)["ats"] == "2" and bench6.hash(job)["failedReason"] == "exit code 1"
        bench6.js("await (await q.getJob(id)).retry('failed');", id=job)
        wait_for(lambda: bench6.hash(job).get("failedReason") == "job started more than allowable limit", 10)


@pytest.mark.parametrize("limit", (0, 1))
def test_the_stack_trace_is_as_long_as_asked(bench6, limit):
    """[25]"""
    with bench6.worker():
        job = bench6.add("echo $MANDOR_ATTEMPT >&2; exit 1", attempts=3, stackTraceLimit=limit)
        bench6.wait_state(job, "failed")
        assert json.loads(bench6.hash(job)["stacktrace"]) == ["exit code 1\n3\n"][:limit]


def test_a_stock_retry_runs_it_again(bench):
    """[26] And so does `mandor retry`."""
    with bench.worker():
        job = bench.add("[ $MANDOR_ATTEMPT -ge 2 ]")
        bench.wait_state(job, "failed")
        bench.js("await (await q.getJob(id)).retry('failed');", id=job)
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert row["ats"] == "2" and row["atm"] == "2" and "failedReason" not in row
        other = bench.add("[ $MANDOR_ATTEMPT -ge 2 ]")
        bench.wait_state(other, "failed")
        bench.mandor.ok("retry", f"{bench.name}:{other}")
        bench.wait_state(other, "completed")


# ---- at its own wish --------------------------------------------------------------------------------------------------------


def test_a_job_may_ask_for_a_delay(bench):
    """[27] Not charged; what it wrote so far is not its output."""
    out = bench.mandor.tmp / "out"
    bench.configure(bench.name, stdout=f"file:{out}")
    with bench.worker():
        job = bench.add(f"echo $MANDOR_ATTEMPT; [ $MANDOR_ATTEMPT = 2 ] || {{ {say(again={'delay': '300ms'})}; }}", attempts=1)
        bench.wait_state(job, "delayed", "completed")
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert row["atm"] == "1" and row["ats"] == "2" and out.read_text() == "2\n"
        assert len(bench.events("delayed")) == 1 and not bench.events("failed")


@pytest.mark.parametrize("priority", (0, 3))
def test_a_job_may_say_that_the_rate_is_reached(bench6, priority):
    """[18] Back at the head of its line; nobody takes a job until the time is over."""
    bench6.js("await q.setGlobalRateLimit(100, 1000);")
    with bench6.worker():
        job = bench6.add(f"[ $MANDOR_ATTEMPT = 2 ] || {say(again={'rate_limit': '400ms'})}", **({"priority": priority} if priority else {}))
        wait_for(lambda: bench6.events("waiting")[-1][1].get("prev") == "active", 10)
        assert "atm" not in bench6.hash(job) and bench6.keys("limiter") == ["9007199254740991"]
        if priority:
            assert bench6.keys("prioritized") == [[job, str(priority << 32)]]
        else:
            assert bench6.keys("wait") == [[job]]
        bench6.wait_state(job, "completed")
        stamps = bench6.js("return (await r.xrange(K('events'), '-', '+')).filter(([, f]) => f[1] === 'active').map(([id]) => parseInt(id));")
        assert stamps[1] - stamps[0] >= 380 and bench6.hash(job)["ats"] == "2"


def test_a_job_may_wait_for_its_children(bench6):
    """[42] It adds one, steps back, and runs again when that has ended."""
    go = bench6.mandor.tmp / "go"
    with bench6.worker():
        job = bench6.add(f"[ $MANDOR_ATTEMPT = 2 ] && exit 0; while [ ! -e {go} ]; do sleep 0.02; done; {say(again='children')}")
        bench6.wait_state(job, "active")
        child = bench6.js("return (await q.add('child', data, { delay: 400, parent: { id, queue: `bull:${NAME}` } })).id;", id=job, data=sh(say(result=5)))
        go.touch()
        bench6.wait_state(job, "waiting-children")
        assert bench6.events("waiting-children") == [("waiting-children", {"jobId": job, "prev": "active"})]
        assert bench6.keys(f"{job}:lock") == [None]
        bench6.wait_state(job, "completed")
        assert bench6.hash(job)["ats"] == "2" and bench6.js("return await (await q.getJob(id)).getChildrenValues();", id=job) == {
            f"bull:{bench6.name}:{child}": 5}


# ---- what is kept -----------------------------------------------------------------------------------------------------------


def test_a_job_may_leave_nothing(bench):
    """[28] The event still carries the result."""
    with bench.worker():
        value = bench.js("""const e = await events(NAME);
            const job = await q.add('n', data, { removeOnComplete: true });
            return [await job.waitUntilFinished(e, 10000), await r.exists(K(job.id)), await r.zcard(K('completed')), job.id];""",
            data=sh("sleep 0.3; " + say(result="gone")))
        assert value[:3] == ["gone", 0, 0]
        assert bench.events("completed")[0][1]["returnvalue"] == '"gone"'


def test_so_many_are_kept(bench):
    """[29] By number and by age, on either side."""
    with bench.worker():
        jobs = [bench.add("true", removeOnComplete=2) for _ in range(5)]
        bench.wait_state(jobs[-1], "completed")
        wait_for(lambda: sorted(bench.js("return await r.zrange(K('completed'), 0, -1);")) == sorted(jobs[-2:]), 5)
        assert [bool(bench.hash(job)) for job in jobs] == [False, False, False, True, True]
        failed = [bench.add("exit 1", removeOnFail={"count": 1}) for _ in range(3)]
        bench.wait_state(failed[-1], "failed")
        wait_for(lambda: bench.js("return await r.zrange(K('failed'), 0, -1);") == failed[-1:], 5)
        bench.js("for (const id of ids) await r.zadd(K('completed'), Date.now() - 5000, id);", ids=jobs[-2:])
        last = bench.add("true", removeOnComplete={"age": 1})
        bench.wait_state(last, "completed")
        assert bench.js("return await r.zrange(K('completed'), 0, -1);") == [last]


def test_the_workers_own_retention_yields_to_the_jobs(bench6):
    """[30]"""
    with bench6.worker(remove_on_complete=1):
        jobs = [bench6.add("true") for _ in range(3)]
        kept = bench6.add("true", removeOnComplete=False)
        bench6.wait_state(kept, "completed")
        assert bench6.js("return await r.zrange(K('completed'), 0, -1);") == [jobs[-1], kept]


# ---- locks ------------------------------------------------------------------------------------------------------------------


def test_a_running_job_is_locked_all_the_time(bench6):
    """[31] No stock worker ever takes it over, and the lock is never near its end."""
    with bench6.worker(lock="1s"):
        job = bench6.add("sleep 2.5")
        bench6.wait_state(job, "active")
        found = bench6.js("""let stolen = 0, least = Infinity, value;
            worker(NAME, async () => { stolen++; }, { stalledInterval: 200, lockDuration: 1000 });
            while (await q.getJobState(id) === 'active') {
                const ttl = await r.pttl(K(id + ':lock'));
                if (ttl > 0) least = Math.min(least, ttl);
                await sleep(20);
            }
            return [stolen, least, await q.getJobState(id)];""", id=job)
        assert found[0] == 0 and found[1] > 250 and found[2] == "completed"
        assert not bench6.events("stalled")


def test_a_killed_workers_job_is_recovered_by_a_stock_worker(bench):
    """[32]"""
    with bench.worker(lock="1s", stalled_interval="1s") as worker:
        job = bench.add("sleep 60")
        bench.wait_state(job, "active")
        worker.kill(guard=False)
        bench.js("worker(NAME, async () => 'other', { stalledInterval: 500, lockDuration: 1000 });")
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert row["stc"] == "1" and row["returnvalue"] == '"other"' and bench.events("stalled") == [("stalled", {"jobId": job})]


def test_a_killed_stock_workers_job_is_recovered(bench):
    """[32, 33] The mirror; and one that may not stall is failed without running."""
    jobs = [bench.add(say(result="mine")) for _ in range(2)]
    bench.js("""await r.hset(K(ids[1]), 'stc', '1');
        for (const id of ids) { await r.rpoplpush(K('wait'), K('active')); await r.set(K(id + ':lock'), 'dead:1', 'PX', 300); }""", ids=jobs)
    with bench.worker(stalled_interval="400ms"):
        bench.wait_state(jobs[0], "completed")
        bench.wait_state(jobs[1], "failed")
        row = bench.hash(jobs[1])
        assert row["failedReason"] == "job stalled more than allowable limit" and "defa" not in row and row["stc"] == "2"
        assert bench.hash(jobs[0])["returnvalue"] == '"mine"'


@pytest.mark.parametrize("thief", ("nobody", "another"))
def test_a_lost_lock_ends_the_job(bench6, thief):
    """[34] Nothing is written without it."""
    with bench6.worker(lock="1s") as worker:
        job = bench6.add("sleep 60")
        bench6.wait_state(job, "active")
        if thief == "nobody":
            bench6.js("await r.del(K(id + ':lock'));", id=job)
        else:
            bench6.js("await r.set(K(id + ':lock'), 'other:1');", id=job)
        wait_for(lambda: "could not renew lock" in worker.stderr and not bench6.mandor.cell.groups() or "lease lost" in worker.stderr, 10)
        assert not bench6.events("completed", "failed") and bench6.keys("active") == [[job]]
        if thief == "another":
            assert bench6.keys(f"{job}:lock") == ["other:1"]


def test_a_short_lock_is_long_enough_to_publish_output(bench6):
    """How much of a lock must be left for a commit goes by the lock that there is, not by the lease of other brokers."""
    out = bench6.mandor.tmp / "out"
    bench6.configure(stdout=f"file:{out}")
    with bench6.worker(lock="5s") as worker:
        bench6.wait_state(bench6.add("echo made"), "completed")
        assert out.read_text() == "made\n" and "too little" not in worker.stderr


def test_a_running_job_cannot_be_removed(bench):
    """[35]"""
    go = bench.mandor.tmp / "go"
    with bench.worker():
        job = bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done")
        bench.wait_state(job, "active")
        assert "could not be removed" in bench.js("return (await q.getJob(id)).remove().then(() => 'removed', (e) => e.message);", id=job)
        assert bench.mandor.run("rm", f"{bench.name}:{job}").code == 4
        go.touch()
        bench.wait_state(job, "completed")
        bench.mandor.ok("rm", f"{bench.name}:{job}")
        assert bench.events("removed") == [("removed", {"jobId": job, "prev": "completed"})]
        assert bench.state(job) == "unknown"


def test_a_stop_leaves_the_rest_waiting(bench):
    """[36]"""
    go = bench.mandor.tmp / "go"
    with bench.worker() as worker:
        first = bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done")
        bench.wait_state(first, "active")
        rest = [bench.add("true") for _ in range(5)]
        worker.signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in worker.stderr, 5)
        go.touch()
        assert worker.wait() == 0
    assert bench.state(first) == "completed"
    active, wait, stalled = bench.keys("active", "wait", "stalled")
    assert not active and wait == rest[::-1] and first not in (stalled or [])
    assert not bench.js("return (await r.keys(K('*:lock')));")


def test_a_hard_stop_puts_the_job_back(bench6):
    """[36] To the head of its line, without blame."""
    with bench6.worker() as worker:
        job = bench6.add("sleep 60")
        bench6.wait_state(job, "active")
        worker.signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in worker.stderr, 5)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    row = bench6.hash(job)
    assert bench6.keys("wait") == [[job]] and "atm" not in row and not bench6.js("return await r.exists(K(id + ':lock'));", id=job)


# ---- what a job says --------------------------------------------------------------------------------------------------------


def test_a_job_speaks_while_it_runs(bench):
    """[37] Progress, logs, data."""
    with bench.worker():
        script = "; ".join([say(progress=42), say(progress={"half": True}), say(log="one"), say(log="two"), say(log="three"),
                            say(data={"new": 1})])
        got = bench.js("""const e = await events(NAME), seen = [];
            e.on('progress', ({ data }) => seen.push(data));
            const job = await q.add('n', data, { keepLogs: 2 });
            await job.waitUntilFinished(e, 10000);
            const now = await q.getJob(job.id);
            return [seen, now.progress, now.data, await q.getJobLogs(job.id)];""", data=sh(script))
        assert got == [[42, {"half": True}], {"half": True}, {"new": 1}, {"logs": ["two", "three"], "count": 2}]


# ---- flows ------------------------------------------------------------------------------------------------------------------

FLOW = """const f = flow({ prefix: PREFIX });
    const tree = await f.add(spec);
    const walk = (node, out = {}) => { out[node.job.name] = node.job.id; for (const child of node.children ?? []) walk(child, out); return out; };
    return walk(tree);"""


def node(bench, name, script, *children, queue=None, **opts):
    return {"name": name, "queueName": queue or bench.name, "data": sh(script), "opts": opts, "children": list(children)}


def test_children_run_before_their_parent(bench):
    """[38] Over two queues; the values are there for the parent, and its queue hears first."""
    other = bench.name + "-o"
    bench.configure(bench.name, other)
    with bench.worker(queues=(bench.name, other)):
        ids = bench.js(FLOW, spec=node(bench, "parent", say(result="p"), node(bench, "one", say(result=1)),
                                       node(bench, "two", say(result={"n": 2}), queue=other)))
        bench.wait_state(ids["parent"], "completed")
        values = bench.js("return await (await q.getJob(id)).getChildrenValues();", id=ids["parent"])
        assert values == {f"bull:{bench.name}:{ids['one']}": 1, f"bull:{other}:{ids['two']}": {"n": 2}}
        assert bench.keys(f"{ids['parent']}:dependencies") == [None]
        events = bench.events()
        released = events.index(("waiting", {"jobId": ids["parent"], "prev": "waiting-children"}))
        assert released < max((i for i, (name, f) in enumerate(events) if name == "active"), default=0)


def test_a_failed_child_fails_its_parents(bench):
    """[39] Three levels; only the child ran."""
    with bench.worker():
        ids = bench.js(FLOW, spec=node(bench, "g", "true", node(bench, "p", "true", node(bench, "c", "echo bad >&2; exit 3", failParentOnFailure=True),
                                                                failParentOnFailure=True)))
        bench.wait_state(ids["g"], "failed")
        key = lambda name: f"bull:{bench.name}:{ids[name]}"
        assert bench.hash(ids["c"])["failedReason"] == "exit code 3"
        assert bench.hash(ids["p"])["failedReason"] == f"child {key('c')} failed"
        assert bench.hash(ids["g"])["failedReason"] == f"child {key('p')} failed"
        unsuccessful = bench.keys(f"{ids['p']}:unsuccessful", f"{ids['g']}:unsuccessful")
        assert [u[0] for u in unsuccessful] == [key("c"), key("p")]
        ran = [i for i in ids.values() if "mandor" in bench.hash(i)]
        assert ran == [ids["c"]]


def test_policies_of_failed_children(bench):
    """[40] Ignored, removed, continued; and none: then the parent waits for a retry."""
    with bench.worker():
        ids = bench.js(FLOW, spec=node(bench, "p", "true", node(bench, "c", "exit 3", ignoreDependencyOnFailure=True)))
        bench.wait_state(ids["p"], "completed")
        failures = bench.js("return await (await q.getJob(id)).getIgnoredChildrenFailures();", id=ids["p"])
        assert failures == {f"bull:{bench.name}:{ids['c']}": "exit code 3"}

        ids = bench.js(FLOW, spec=node(bench, "p", "true", node(bench, "c", "exit 3", removeDependencyOnFailure=True)))
        bench.wait_state(ids["p"], "completed")
        assert bench.keys(f"{ids['p']}:failed") == [None]

        ids = bench.js(FLOW, spec=node(bench, "p", "true", node(bench, "c", "exit 3", continueParentOnFailure=True),
                                       node(bench, "late", "true", delay=60000)))
        wait_for(lambda: bench.hash(ids["p"]).get("ats"), 10, "the parent to start")
        assert bench.state(ids["late"]) == "delayed"

        ids = bench.js(FLOW, spec=node(bench, "p", "true", node(bench, "c", "[ $MANDOR_ATTEMPT = 2 ]")))
        bench.wait_state(ids["c"], "failed")
        assert bench.state(ids["p"]) == "waiting-children"
        bench.js("await (await q.getJob(id)).retry('failed');", id=ids["c"])
        bench.wait_state(ids["p"], "completed")


def test_a_parent_keeps_its_delay_and_priority(bench6):
    """[41]"""
    with bench6.worker():
        ids = bench6.js(FLOW, spec=node(bench6, "p", "true", node(bench6, "c", "true"), delay=300))
        bench6.wait_state(ids["p"], "completed")
        assert int(bench6.hash(ids["p"])["processedOn"]) >= int(bench6.hash(ids["c"])["finishedOn"]) + 300
        bench6.js("await q.setGlobalConcurrency(1);")
        ids = bench6.js(FLOW, spec=node(bench6, "p", "true", node(bench6, "c", "sleep 0.3"), priority=7))
        bench6.wait_state(ids["c"], "active")
        plain = bench6.add("true")
        bench6.wait_state(ids["p"], "completed")
        assert [f["jobId"] for _, f in bench6.events("active")][-2:] == [plain, ids["p"]]


def test_a_job_with_pending_children_does_not_complete(bench6):
    """[42] BullMQ's own words."""
    go = bench6.mandor.tmp / "go"
    with bench6.worker():
        job = bench6.add(f"while [ ! -e {go} ]; do sleep 0.02; done")
        bench6.wait_state(job, "active")
        bench6.js("""await q.add('child', {}, { delay: 60000, parent: { id, queue: `bull:${NAME}` } });""", id=job)
        go.touch()
        bench6.wait_state(job, "failed")
        assert bench6.hash(job)["failedReason"] == f"Job {job} has pending dependencies. moveToFinished"


def test_a_removed_child_releases_its_parent(bench6):
    """[29, 38] removeOnFail without a policy, as the contract says."""
    with bench6.worker():
        ids = bench6.js(FLOW, spec=node(bench6, "p", "true", node(bench6, "c", "exit 1", removeOnFail=True)))
        bench6.wait_state(ids["p"], "completed")


# ---- schedulers, deduplication, metrics -------------------------------------------------------------------------------------


def test_a_schedule_goes_on(bench):
    """[43] The next job is made when one is taken; three in all."""
    with bench.worker():
        bench.js("await q.upsertJobScheduler('s', { every: 300, limit: 3 }, { name: 'tick', data });", data=sh("sleep 0.05"))
        wait_for(lambda: len(bench.events("completed")) == 3, 15)
        runs = [f["jobId"] for _, f in bench.events("completed")]
        stamps = [int(job.rsplit(":", 1)[1]) for job in runs]
        assert [b - a for a, b in zip(stamps, stamps[1:])] == [300, 300] and all(job.startswith("repeat:s:") for job in runs)
        started = [int(bench.hash(job)["processedOn"]) for job in runs]
        assert all(at >= due for at, due in zip(started, stamps))
        assert bench.js("return (await q.getJobScheduler('s')).iterationCount;") == 3
        assert bench.keys("delayed")[0] in (None, [])


def test_a_failed_run_makes_no_run_of_its_own(bench6):
    """[43] Two attempts of the first one, and still three jobs."""
    with bench6.worker():
        bench6.js("await q.upsertJobScheduler('s:with:colons', { every: 400, limit: 3 }, { name: 'tick', data, opts: { attempts: 2 } });",
                  data=sh("[ $MANDOR_ATTEMPT = 2 ]"))
        wait_for(lambda: len(bench6.events("completed")) == 3, 20)
        assert len({f["jobId"] for name, f in bench6.events("added")}) == 3
        opts = json.loads(bench6.hash(bench6.events("completed")[1][1]["jobId"])["opts"])
        assert opts["attempts"] == 2 and opts["repeat"]["count"] == 2 and opts["repeatJobKey"] == "s:with:colons"


@pytest.mark.parametrize("pattern, zone", (
    ("*/15 * * * * *", None), ("0 30 9 * * MON-FRI", "Europe/Berlin"), ("0 0 0 L * *", "America/New_York"), ("15 2 29 2 *", "Asia/Tokyo"),
    ("0 12 * * 5#2", "Australia/Lord_Howe")))
def test_the_next_time_of_a_pattern_is_that_of_the_stock_worker(bench6, pattern, zone):
    """[44] And a scheduler that was removed while its job ran is not followed."""
    repeat = {"pattern": pattern, **({"tz": zone} if zone else {})}
    first = bench6.js("return (await q.upsertJobScheduler('s', repeat, { name: 'n', data })).id;", repeat=repeat, data=sh("sleep 0.2"))
    bench6.js("await (await q.getJob(id)).promote();", id=first)
    with bench6.worker():
        bench6.wait_state(first, "active", "completed")
        wait_for(lambda: len(bench6.events("added")) == 2, 5)
        due = int(first.rsplit(":", 1)[1])
        wanted = bench6.js("""const { CronExpressionParser } = here('cron-parser');
            return CronExpressionParser.parse(pattern, { currentDate: new Date(due), ...(zone ? { tz: zone } : {}) }).next().getTime();""",
            pattern=pattern, zone=zone, due=due)
        following = bench6.events("added")[1][1]["jobId"]
        assert following == f"repeat:s:{wanted}"
        row = bench6.hash(following)
        opts = json.loads(row["opts"])
        assert opts["prevMillis"] == wanted and opts["repeat"]["pattern"] == pattern and row["rjk"] == "s"


def test_a_removed_scheduler_is_not_followed(bench6):
    """[44]"""
    first = bench6.js("return (await q.upsertJobScheduler('s', { every: 60000 }, { name: 'n', data })).id;", data=sh("true"))
    bench6.js("await r.zrem(K('repeat'), 's'); await (await q.getJob(id)).promote().catch(() => {});", id=first)
    with bench6.worker():
        bench6.wait_state(first, "completed")
        assert len(bench6.events("added")) == 1


def test_deduplication_ends_with_its_job(bench):
    """[45] With a time to live it goes on."""
    go = bench.mandor.tmp / "go"
    with bench.worker():
        hold = f"while [ ! -e {go} ]; do sleep 0.02; done"
        add = "return (await q.add('n', data, { deduplication })).id;"
        first = bench.js(add, data=sh(hold), deduplication={"id": "d"})
        assert bench.js(add, data=sh(hold), deduplication={"id": "d"}) == first
        go.touch()
        bench.wait_state(first, "completed")
        assert bench.keys("de:d") == [None]
        assert bench.js(add, data=sh("true"), deduplication={"id": "d"}) != first
        timed = bench.js(add, data=sh("true"), deduplication={"id": "t", "ttl": 60000})
        bench.wait_state(timed, "completed")
        assert bench.keys("de:t") == [timed]


@pytest.mark.parametrize("end", ("exit 0", "exit 1"))
def test_what_was_added_last_meanwhile_runs_next(bench6, end):
    """[45] keepLastIfActive."""
    go = bench6.mandor.tmp / "go"
    with bench6.worker():
        add = "return (await q.add('n', data, { deduplication: { id: 'd', keepLastIfActive: true } })).id;"
        first = bench6.js(add, data=sh(f"while [ ! -e {go} ]; do sleep 0.02; done; {end}"))
        bench6.wait_state(first, "active")
        for word in ("old", "new"):
            bench6.js(add, data=sh(say(result=word)))
        go.touch()
        bench6.wait_state(first, "completed" if end == "exit 0" else "failed")
        wait_for(lambda: [f["returnvalue"] for _, f in bench6.events("completed") if f["jobId"] != first] == ['"new"'], 10)
        assert bench6.keys("dn:d") == [None] and len(bench6.events("added")) == 2


def test_metrics_are_counted(bench6):
    """[46] Minutes in which nothing ended are zeros."""
    with bench6.worker(metrics=10):
        for _ in range(3):
            bench6.wait_state(bench6.add("true"), "completed")
        assert bench6.js("return (await q.getMetrics('completed')).meta.count;") == 3
        bench6.js("const prev = Number(await r.hget(K('metrics:completed'), 'prevTS')); await r.hset(K('metrics:completed'), 'prevTS', prev - 180000);")
        bench6.wait_state(bench6.add("true"), "completed")
        assert bench6.keys("metrics:completed:data")[0] == ["0", "0", "3"]


def test_the_stream_of_events_stays_short(bench6):
    """[47]"""
    bench6.js("""await q.waitUntilReady(); await q.close();
        kept.q = queue(NAME, { streams: { events: { maxLen: 100 } } });
        await until(async () => await r.hget(K('meta'), 'opts.maxLenEvents') === '100');""")
    with bench6.worker(concurrency=8):
        bench6.js("await q.addBulk(Array.from({ length: 300 }, () => ({ name: 'n', data, opts: { removeOnComplete: true } })));", data=sh("true"))
        wait_for(lambda: bench6.keys("id") == ["300"] and not bench6.js("return await q.getJobCountByTypes('wait', 'active');"), 30)
        assert bench6.js("return await r.xlen(K('events'));") <= 300


# ---- the producer, and the place --------------------------------------------------------------------------------------------


def test_what_mandor_adds_a_stock_worker_runs(bench):
    """[48] Every kind; the options are those that a stock producer's job shows."""
    bench.js("await q.waitUntilReady();")
    flags = {"plain": [], "late": ["--delay", "200ms"], "first": ["--priority", "3"],
             "again": ["--attempts", "3", "--backoff", "fixed", "--backoff-delay", "50ms"], "once": ["--unique", "u"]}
    ids = {name: bench.mandor.ok("add", "--queue", bench.name, *args, "--", "/bin/echo", name).lines[0].split(":", 1)[1]
           for name, args in flags.items()}
    assert bench.mandor.ok("add", "--queue", bench.name, "--unique", "u", "--", "true", "--json").lines
    assert bench.keys("id") == ["6"]
    stock = {"plain": {}, "late": {"delay": 200}, "first": {"priority": 3}, "again": {"attempts": 3, "backoff": {"type": "fixed", "delay": 50}},
             "once": {"deduplication": {"id": "u"}}}
    same = bench.js("""const out = {}, other = queue(NAME + '-stock');
        for (const [name, opts] of Object.entries(stock)) {
            const mine = (await q.getJob(ids[name])).opts, theirs = (await other.getJob((await other.add('echo', {}, opts)).id)).opts;
            out[name] = [mine, theirs];
        }
        return out;""", ids=ids, stock=stock)
    for name, (mine, theirs) in same.items():
        mine.setdefault("attempts", 1)
        theirs["attempts"] = max(theirs.get("attempts", 1), 1)
        assert mine == theirs, name
    bench.js("""const seen = [];
        worker(NAME, async (job) => { if (job.name === 'echo' && job.opts.attempts === 3 && job.attemptsMade < 2) throw new Error('no'); return job.data.exec; });
        await until(async () => await r.zcard(K('completed')) === 5);""")
    rows = [bench.hash(job) for job in ids.values()]
    assert [json.loads(row["returnvalue"])[1] for row in rows] == list(ids) and [row["name"] for row in rows] == ["echo"] * 5


def test_prefix_and_odd_names(bench):
    """[49] Keys are the stock ones."""
    bench.prefix, bench.name = "{app}", "ü name"
    bench.stock.js("await r.del(...(await r.keys('{app}:*')), 'x');")
    bench.configure(bench.name)
    bench.mandor.env["MANDOR_BROKER"] = bench.server.url(prefix="%7Bapp%7D")
    with bench.mandor.worker("--broker", bench.server.url(prefix="%7Bapp%7D", name="w"), "--queue", bench.name):
        job = bench.add(say(result=1))
        bench.wait_state(job, "completed")
        assert bench.js("return (await q.getWorkers()).length;") == 1
        assert bench.mandor.ok("show", f"{bench.name}:{job}", "--json").json()["result"] == 1
        assert [row["id"] for row in map(json.loads, bench.mandor.ok("ls", "--json").lines)] == [f"{bench.name}:{job}"]
        assert set(bench.stock.js("return await r.keys('{app}:*');")) == {
            f"{{app}}:ü name:{suffix}" for suffix in ("meta", "id", "events", "completed", job, "stalled-check")}


def test_bytes_of_the_producer_reach_the_job(bench6):
    """[7] Unicode, escaped slashes, odd numbers: the data are handed on as they were written."""
    text = '{"u":"\\u00fc \\u2028 \\/","n":[1e300,5e-324,0.1,12345678901234567],"q":"a b\\"c"}'
    bench6.configure(bench6.name, command=["/bin/sh", "-c", "printf %s \"$1\"", "x", "{data}"], stdout=f"file:{bench6.mandor.tmp}/{{id}}.out")
    job = bench6.js("const job = await q.add('n', {}); await r.hset(K(job.id), 'data', text); return job.id;", text=text)
    with bench6.worker():
        bench6.wait_state(job, "completed")
        got = json.loads((bench6.mandor.tmp / f"{job}.out").read_bytes())
        assert got == json.loads(text)


def test_data_fill_a_command(bench):
    """The queue says what runs: any data will do, other keys are no error, and none of it is split."""
    bench.configure(bench.name, allow_exec=False, command=["/bin/sh", "-c", 'printf \'{{"result": "%s"}\\n\' "$1" >&3', "x", "{data.url}"])
    with bench.worker():
        job = bench.js("return (await q.add('n', { url: 'a b; echo $HOME', other: { deep: [1] } })).id;")
        bench.wait_state(job, "completed")
        assert json.loads(bench.hash(job)["returnvalue"]) == "a b; echo $HOME"
        missing = bench.js("return (await q.add('n', { other: 1 }, { attempts: 3 })).id;")
        bench.wait_state(missing, "failed")
        assert "url" in bench.hash(missing)["failedReason"] and bench.hash(missing)["atm"] == "1"


def test_what_bullmq_cannot_hold_is_refused(bench6):
    done = bench6.mandor.run("add", "--queue", bench6.name, "--priority", "2097152", "--", "true")
    assert done.code == 2 and "2097151" in done.complaint, done
    assert bench6.keys("id") == [None]


def test_a_command_from_a_message_needs_leave(bench6):
    bench6.configure(bench6.name, allow_exec=False)
    with bench6.worker():
        job = bench6.add("true")
        bench6.wait_state(job, "failed")
        assert "allow_exec" in bench6.hash(job)["failedReason"]


# ---- the command line -------------------------------------------------------------------------------------------------------


def test_the_command_line_sees_and_changes_jobs(bench):
    """ls, show, logs, cancel, rm of waiting, running and ended jobs."""
    waiting = bench.add("true", delay=60000)
    cancelled = bench.add("true", delay=60000)
    name = lambda job: f"{bench.name}:{job}"
    bench.mandor.ok("cancel", name(cancelled))
    assert bench.mandor.ok("show", name(cancelled), "--json").json()["state"] == "cancelled"
    assert bench.hash(cancelled)["failedReason"] == "cancelled"
    bench.mandor.ok("rm", name(waiting))
    assert bench.state(waiting) == "unknown"
    with bench.worker():
        done = bench.add("echo out; echo err >&2; " + say(result=[1]))
        bench.wait_state(done, "completed")
        assert bench.mandor.ok("logs", name(done), "--stdout").out == b"out\n"
        assert bench.mandor.ok("logs", name(done), "--stderr").out == b"err\n"
        shown = bench.mandor.ok("show", name(done), "--json").json()
        assert shown["result"] == [1] and shown["attempt"] == 1 and shown["exit_code"] == 0 and shown["queue"] == bench.name
        running = bench.add("sleep 60", attempts=3)
        bench.wait_state(running, "active")
        bench.mandor.ok("cancel", "--wait", name(running))
        bench.wait_state(running, "failed")
        assert bench.mandor.ok("show", name(running), "--json").json()["state"] == "cancelled"
        rows = [json.loads(line) for line in bench.mandor.ok("ls", "--queue", bench.name, "--json").lines]
        assert {row["id"]: row["state"] for row in rows} == {name(done): "completed", name(running): "cancelled", name(cancelled): "cancelled"}
        counts = bench.mandor.ok("stats", "--json").json()["queues"][bench.name]
        assert counts["completed"] == 1 and counts["failed"] == 2
        assert bench.mandor.run("show", name("99")).code == 3
        done_code = bench.mandor.run("wait", name(done), name(running))
        assert done_code.code == 1


def test_a_running_job_can_be_followed(bench6):
    """Where it runs is in its record; its output comes while it runs, and the earlier attempts stay."""
    go = bench6.mandor.tmp / "go"
    with bench6.worker():
        job = bench6.add(f"[ $MANDOR_ATTEMPT = 1 ] && exit 3; echo hello; while [ ! -e {go} ]; do sleep 0.02; done; echo over", attempts=2)
        wait_for(lambda: bench6.mandor.ok("show", f"{bench6.name}:{job}", "--json").json()["phase"] == "running", 10)
        shown = bench6.mandor.ok("show", f"{bench6.name}:{job}", "--json").json()
        assert shown["worker"] and [entry["exit_code"] for entry in shown["history"]] == [3]
        with bench6.mandor.background("logs", "-f", f"{bench6.name}:{job}") as follower:
            wait_for(lambda: "hello" in follower.stderr, 10)
            go.touch()
            assert follower.wait() == 0 and "over" in follower.stderr
        assert [entry["exit_code"] for entry in bench6.mandor.ok("show", f"{bench6.name}:{job}", "--json").json()["history"]] == [3]


def test_drain_ends_when_nothing_is_left(bench):
    jobs = [bench.add("true") for _ in range(3)] + [bench.add("[ $MANDOR_ATTEMPT = 2 ]", attempts=2, backoff=200)]
    late = bench.add("true", delay=60000)
    bench.mandor.drain("--queue", bench.name, timeout=30)
    assert [bench.state(job) for job in jobs] == ["completed"] * 4 and bench.state(late) == "delayed"


def test_bull_board_lists_and_retries(bench6):
    """[49] Its own API on top of the stock Queue."""
    with bench6.worker(name="w"):
        good, bad = bench6.add("true"), bench6.add("[ $MANDOR_ATTEMPT -ge 2 ]")
        bench6.wait_state(good, "completed")
        bench6.wait_state(bad, "failed")
        found = bench6.js("""const { createBullBoard } = await import('@bull-board/api');
            const { BullMQAdapter } = await import('@bull-board/api/bullMQAdapter');
            const routes = {};
            const server = new Proxy({}, { get: (_, name) => (arg) => { if (name === 'setApiRoutes') routes.all = arg; if (name === 'setQueues') routes.queues = arg; return server; } });
            createBullBoard({ queues: [new BullMQAdapter(q)], serverAdapter: server });
            const call = async (method, route, params = {}, query = {}) => {
                const found = routes.all.find((it) => [].concat(it.method).includes(method) && [].concat(it.route).includes(route));
                return (await found.handler({ queues: routes.queues, params, query, body: {}, headers: {} }));
            };
            const list = await call('get', '/api/queues', {}, { activeQueue: NAME, status: 'failed', page: '1', jobsPerPage: '10' });
            const mine = list.body.queues.find((it) => it.name === NAME);
            const retry = await call('put', '/api/queues/:queueName/:jobId/retry', { queueName: NAME, jobId: id });
            return [mine.counts.completed, mine.counts.failed, mine.jobs.map((job) => [job.id, job.failedReason]), retry.status ?? 200];""", id=bad)
        assert found[:3] == [1, 1, [[bad, "exit code 1"]]] and found[3] in (200, 204)
        bench6.wait_state(bad, "completed")


# ---- trouble ----------------------------------------------------------------------------------------------------------------


def test_poison_is_put_aside(bench6):
    """[51] An id without a hash, broken options, a key of another type."""
    bench6.js("""await q.waitUntilReady();
        const broken = await q.add('n', {}); await r.hset(K(broken.id), 'opts', '{broken');
        const data = await q.add('n', {}); await r.hset(K(data.id), 'data', 'nonsense');
        await r.rpush(K('wait'), 'ghost'); await r.set(K('odd'), 'text'); await r.rpush(K('wait'), 'odd');""")
    good = bench6.add("true")
    with bench6.worker() as worker:
        bench6.wait_state(good, "completed")
        assert bench6.wait_state("1", "failed") and bench6.wait_state("2", "failed")
        assert "opts are no JSON" in bench6.hash("1")["failedReason"] and "no JSON" in bench6.hash("2")["failedReason"]
        assert "ghost" in worker.stderr and bench6.keys("active", "wait") == [None, None]


def test_cut_connections_and_flushed_scripts(bench6):
    """[50] Nothing is lost or run twice; the worker is listed again."""
    with bench6.worker(concurrency=4, name="w"):
        bench6.js("await q.addBulk(Array.from({ length: 120 }, () => ({ name: 'n', data })));", data=sh("sleep 0.01"))
        for turn in range(6):
            wait_for(lambda: len(bench6.js("return await r.zrange(K('completed'), 0, -1);")) >= 15 * turn, 30)
            bench6.js("""await r.script('FLUSH');
                for (const line of (await r.client('LIST')).split('\\n')) {
                    const name = /name=(\\S*)/.exec(line)?.[1] ?? '', id = /id=(\\d+)/.exec(line)?.[1];
                    if (name === 'mandor' || name.includes(':w:')) await r.client('KILL', 'ID', id);
                }""")
        wait_for(lambda: bench6.js("return await r.zcard(K('completed'));") == 120, 60, "all jobs")
        wait_for(lambda: bench6.js("return (await q.getWorkers()).length;") == 1, 10, "the worker to be listed")
        failed, active = bench6.keys("failed", "active")
        assert not failed and not active
        twice = [f["jobId"] for _, f in bench6.events("completed")]
        assert len(twice) == len(set(twice))


def test_a_full_server_at_the_finish_loses_neither_job_nor_result_R79(mandor, tmp_path):
    """Ends are written when there is room again; locks hold meanwhile, so nothing runs twice."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(6, server.port)
    bench = bullmq.Bench(mandor, server, stock, "q")
    go = mandor.tmp / "go"
    try:
        with bench.worker(concurrency=2, lock="2s") as worker:
            jobs = [bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done; " + say(result=i)) for i in range(2)]
            for job in jobs:
                bench.wait_state(job, "active")
            bench.js("await r.config('SET', 'maxmemory', '1mb');")
            go.touch()
            wait_for(lambda: "trying again" in worker.stderr, 10)
            time.sleep(2.5)
            assert bench.keys("active") == [jobs[::-1]]
            bench.js("await r.config('SET', 'maxmemory', '0');")
            for number, job in enumerate(jobs):
                bench.wait_state(job, "completed")
                row = bench.hash(job)
                assert row["returnvalue"] == str(number) and row["ats"] == "1" and "stc" not in row
    finally:
        stock.stop()
        server.stop()


def test_a_server_that_stops_for_a_while(mandor, tmp_path, stocks):
    """[50] kill -STOP of Redis under load: everything ends, nothing twice."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(6, server.port)
    bench = bullmq.Bench(mandor, server, stock, "q")
    try:
        with bench.worker(concurrency=4, lock="20s"):
            bench.js("await q.addBulk(Array.from({ length: 100 }, () => ({ name: 'n', data })));", data=sh("sleep 0.02"))
            wait_for(lambda: bench.js("return await r.zcard(K('completed'));") > 20, 30)
            server.proc.send_signal(signal.SIGSTOP)
            time.sleep(5)
            server.proc.send_signal(signal.SIGCONT)
            wait_for(lambda: bench.js("return await r.zcard(K('completed'));") == 100, 60)
            done = [f["jobId"] for _, f in bench.events("completed")]
            assert len(done) == len(set(done)) == 100
    finally:
        stock.stop()
        server.stop()


@pytest.mark.limit(150)
@pytest.mark.parametrize("count, kills", (pytest.param(200, 4, id="few"), pytest.param(5000, 60, id="many", marks=pytest.mark.soak)))
def test_a_mixed_fleet_survives_kills(bench, count, kills):
    """Stock workers and ours on one queue, killed at random: every job finishes."""
    script = "sleep 0.05"
    stock_worker = f"""import {{ Worker }} from '{'bullmq' if bench.major == 6 else 'bullmq5'}';
        new Worker({json.dumps(bench.name)}, async () => {{ await new Promise((done) => setTimeout(done, 10)); return 'stock'; }},
            {{ connection: {{ host: '127.0.0.1', port: {bench.server.port}, maxRetriesPerRequest: null }}, concurrency: 4, lockDuration: 1500,
               stalledInterval: 700, maxStalledCount: 100 }});"""
    bench.js("for (let i = 0; i < count; i += 500) await q.addBulk(Array.from({ length: Math.min(500, count - i) }, () => ({ name: 'n', data, opts: { attempts: 5 } })));",
             count=count, data=sh(script))
    finished = lambda: bench.js("return await r.zcard(K('completed'));")
    with contextlib.ExitStack() as stack:
        for turn in range(kills):
            mine = stack.enter_context(bench.worker(concurrency=2, lock="1500ms", stalled_interval="700ms", max_stalled=100))
            other = bench.mandor.spawn(["node", "--input-type=module", "-e", stock_worker], cwd=str(bullmq.HERE))
            target = min(count, (turn + 1) * count // (kills + 1))
            wait_for(lambda: finished() >= target, 120, "progress")
            (other.kill if turn % 2 else lambda: mine.kill(guard=False))()
            if turn % 2:
                mine.end()
            else:
                other.kill()
            other.wait()
        stack.enter_context(bench.worker(concurrency=4, lock="1500ms", stalled_interval="700ms", max_stalled=100))
        wait_for(lambda: finished() == count, 120, "all jobs")
        assert not any(bench.keys("active", "wait", "failed", "delayed"))
        values = bench.js("return (await Promise.all((await r.zrange(K('completed'), 0, -1)).map((id) => r.hget(K(id), 'returnvalue'))));")
        assert {"null", '"stock"'} == set(values)


# ---- what is not a command --------------------------------------------------------------------------------------------------


@pytest.mark.limit(180)
@pytest.mark.skipif(bool(snakes.why_not()), reason=snakes.why_not() or "-")
def test_stock_producers_run_python(bench6):
    """{code, params} from anywhere, in a sandbox: results arrive, a busy loop is stopped alone, and the next job sees nothing of it."""
    bench6.config.write_text(json.dumps({"python": {"runtimes": {"data": {}}},
                                         "queues": {bench6.name: {"executor": "python", "runtime": "data", "timeout": "3s"}}}))
    with bench6.worker(concurrency=2):
        results = bench6.js("""const e = await events(NAME);
            const run = async (code, params, opts) => (await q.add('py', { code, params }, opts)).waitUntilFinished(e, 100000).then((value) => [value], (error) => error.message);
            const first = await run('left = 1\\nsum(params["list"])', { list: [1, 2, 3] });
            const [stuck, fine] = await Promise.all([run('while True: pass', {}), run('"ü" * 2', {})]);
            const bad = await run('1 / 0', {});
            return [first, stuck, fine, bad, await run('"left" in globals()', {})];""", timeout=150)
        assert results[0] == [6] and results[2] == ["üü"] and results[4] == [False]
        assert "timeout" in results[1] and "ZeroDivisionError" in results[3]
        failed = [f["jobId"] for _, f in bench6.events("failed")]
        assert "ZeroDivisionError" in json.loads(bench6.hash(failed[-1])["stacktrace"])[0]


def test_stock_producers_use_a_warm_pool(bench6):
    bench6.config.write_text(json.dumps({"pools": {"p": {"command": ["/usr/bin/python3", str(ROOT / "tests/lib/pool_worker.py")], "size": 2}},
                                         "queues": {bench6.name: {"pool": "p"}}}))
    with bench6.worker(concurrency=2):
        job = bench6.js("return (await q.add('n', { sleep: 0.01, echo: 'hi' })).id;")
        assert bench6.wait_state(job, "completed", "failed") == "completed", bench6.hash(job)
        assert bench6.hash(job)["returnvalue"] != "" and bench6.mandor.ok("show", f"{bench6.name}:{job}", "--json").json()["state"] == "completed"
