"""Queues of BullMQ: stock producers, listeners and workers of both major versions beside `mandor work` on a real Redis.

The numbers in brackets are those of the list of checks in doc/bullmq.md."""
import contextlib
import json
import os
import re
import signal
import time
import uuid

import pytest

import bullmq
from bullmq import client_name, say, sh
from harness import wait_for

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
        ended = [json.loads(bench6.hash(job)["mandor"])]
        ends = [h["finished_at"] for h in ended[0]["history"]]
        assert len(delayed) == 2 and len(ends) == 2
        scores = bench6.js("return (await r.xrange(K('events'), '-', '+')).filter(([, f]) => f[1] === 'delayed').map(([id]) => parseInt(id));")
        for due, at, (low, high) in zip(delayed, scores, wanted):
            assert low - 40 <= due - at <= high, (due, at)
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


# ---- what is kept -----------------------------------------------------------------------------------------------------------


def test_a_job_may_leave_nothing(bench):
    """[28] The event still carries the result."""
    with bench.worker():
        value = bench.js("""const e = await events(NAME);
            const job = await q.add('n', data, { removeOnComplete: true });
            return [await job.waitUntilFinished(e, 10000), await r.exists(K(job.id)), await r.zcard(K('completed')), job.id];""",
            data=sh(say(result="gone")))
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
