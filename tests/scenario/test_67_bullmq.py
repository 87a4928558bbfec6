"""Queues of BullMQ: stock producers, listeners and workers of both major versions beside `mandor work` on a real Redis.

The numbers in brackets are those of the list of checks in doc/bullmq.md."""
import collections
import contextlib
import json
import random
import signal
import time
import types
import uuid

import pytest

import bullmq
import snakes
from bullmq import client_name, say, sh
from harness import ROOT, SLACK, wait_for
from redis_server import Proxy, Redis

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


@pytest.fixture(params=(5, 6), ids=("v5", "v6"))
def stocks_of(request):
    """Each version in turn, on a server of the test's own."""
    with contextlib.ExitStack() as stack:
        def make(port):
            stock = bullmq.Stock(request.param, port)
            stack.callback(stock.stop)
            return stock
        yield make


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


def test_who_waits_hears_of_the_end(bench):
    """[4, 5] Whether it began to wait before the job ran or asks afterwards; a job that says nothing returns null."""
    waiting = bench.begin("""const e = await events(NAME);
        const jobs = [await q.add('n', works), await q.add('n', silent), await q.add('n', fails)];
        const ends = () => Promise.all(jobs.map((job) => job.waitUntilFinished(e, 30000).catch((error) => 'rejected: ' + error.message)));
        const before = ends();
        kept.waits = true;
        return [await before, await ends(), await Promise.all(jobs.map((job) => r.hget(K(job.id), 'returnvalue')))];""",
        works=sh(say(result={"n": [1, "ü"]})), silent=sh("true"), fails=sh("exit 7"))
    wait_for(lambda: bench.js("return kept.waits && await r.llen(K('wait')) === 3;"), 10, "three that wait")
    assert not bench.events("active")
    with bench.worker():
        ends = [{"n": [1, "ü"]}, None, "rejected: exit code 7"]
        assert bench.end(waiting) == [ends, ends, ['{"n":[1,"ü"]}', "null", None]]
        assert [f["returnvalue"] for _, f in bench.events("completed")] == ['{"n":[1,"ü"]}', "null"]


def test_a_failing_job_rejects_who_waits(bench):
    """[5, 19] failedReason is the exit's cause, the stack trace ends with what the job wrote to stderr."""
    with bench.worker():
        reasons = bench.js("""const e = await events(NAME);
            const job = await q.add('n', data);
            const reason = () => job.waitUntilFinished(e, 30000).then(() => 'resolved', (error) => error.message);
            return [await reason(), await reason(), job.id];""", data=sh("echo boom >&2; exit 3"))
        assert reasons[:2] == ["exit code 3"] * 2
        assert bench.state(reasons[2]) == "failed"
        row = bench.hash(reasons[2])
        assert json.loads(row["stacktrace"]) == ["exit code 3\nboom\n"] and row["failedReason"] == "exit code 3" and row["atm"] == "1"
        assert bench.events("failed", "retries-exhausted", "completed") == [
            ("failed", {"jobId": reasons[2], "failedReason": "exit code 3", "prev": "active"}),
            ("retries-exhausted", {"jobId": reasons[2], "attemptsMade": "1"})]


def test_listeners_survive_every_result(bench):
    """[6] Unicode, nesting, a megabyte, what is no JSON: QueueEvents parses all of it."""
    kinds = (lambda i: (say(result=f"ü☃ {i}"), f"ü☃ {i}"), lambda i: (say(result={"a": [{"b": [None, i, "\u2028"]}]}), {"a": [{"b": [None, i, "\u2028"]}]}),
             lambda i: ("echo not json >&3", None), lambda i: ("echo '{\"result\": NaN}' >&3", None))
    pairs = [kinds[i % 4](i) for i in range(99)]
    pairs.append(("printf '{\"result\":\"' >&3; head -c 1000000 /dev/zero | tr '\\0' x >&3; printf '\"}\\n' >&3", "x 1000000"))
    with bench.worker(concurrency=4):
        seen, errors = bench.js("""const e = await events(NAME), seen = {};
            e.on('completed', ({ jobId, returnvalue }) => { seen[jobId] = returnvalue?.length > 1000 ? `${returnvalue[0]} ${returnvalue.length}` : returnvalue; });
            const jobs = await q.addBulk(scripts.map((data) => ({ name: 'n', data })));
            await until(() => Object.keys(seen).length === scripts.length);
            return [jobs.map((job) => seen[job.id]), kept.errors ?? []];""", scripts=[sh(script) for script, _ in pairs])
        assert errors == [] and seen == [value for _, value in pairs]


def test_ids_of_every_kind(bench):
    """[8] Custom ids, ids with colons, UUIDs."""
    ids = ["my-id", "a:b:c", "ü☃"]
    with bench.worker():
        found = bench.js("""for (const jobId of ids) await q.add('n', data, { jobId });
            const tree = await flow().add({ name: 'n', queueName: NAME, data, children: [{ name: 'n', queueName: NAME, data }] });
            const all = [...ids, tree.job.id, tree.children[0].job.id];
            for (const id of all) await until(async () => await q.getJobState(id) === 'completed');
            return [all, await Promise.all(all.map(async (id) => (await q.getJob(id)).returnvalue))];""", ids=ids, data=sh(say(result=1)))
        assert found[1] == [1] * 5 and all(uuid.UUID(job).version == 4 for job in found[0][3:])
        for job in found[0]:
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
    """[10] One blocking connection, a look each time its wait is over, and none of that waited for when a job comes."""
    blocked = "(await r.client('LIST')).split('\\n').filter((line) => line.includes('cmd=bzpopmin')).length"
    with bench.worker():
        wait_for(lambda: bench.js(f"return {blocked};") == 1, 5)
        # a producer's job is taken because of the marker, not of the next look: its delay says which
        delays = bench.js("""const delays = [];
            for (let i = 0; i < 10; i++) {
                const job = await q.add('n', data);
                await until(async () => await job.isCompleted());
                const row = await r.hgetall(K(job.id));
                delays.push(row.processedOn - row.timestamp);
                await until(async () => BLOCKED === 1);
            }
            return delays;""".replace("BLOCKED", blocked), data=sh("true"))
        assert sorted(delays)[5] < 2500, delays  # its next look comes five seconds after the last
        seen = bench.js("""const monitor = await r.duplicate().monitor(), seen = [];
            monitor.on('monitor', (time, [name], source) => { if (source !== 'lua' && /^(evalsha|bzpopmin)$/i.test(name)) seen.push(name.toLowerCase()); });
            await until(() => seen.filter((name) => name === 'bzpopmin').length === 2);
            monitor.disconnect();
            return seen;""")
        assert seen.count("evalsha") <= 3, seen  # one for each wait; and now and then the check for stalled jobs


def test_many_jobs_shared_with_a_stock_worker(bench):
    """[11] Every job exactly once, both had a part, and nothing is left but a marker."""
    with bench.worker(concurrency=50):
        found = bench.js("""let mine = 0;
            worker(NAME, async () => { mine++; await sleep(2); }, { concurrency: 4 });
            await q.addBulk(Array.from({ length: 1000 }, () => ({ name: 'n', data })));
            await until(async () => await r.zcard(K('completed')) === 1000, 60000);
            const ids = await r.zrange(K('completed'), 0, -1);
            const started = await Promise.all(ids.map((id) => r.hget(K(id), 'ats')));
            return [mine, started.filter((n) => n !== '1').length, await q.getJobCounts('active', 'wait', 'failed', 'delayed', 'prioritized'), await r.keys(K('*:lock'))];""",
            data=sh("true"), timeout=90)
        assert 0 < found[0] < 1000 and found[1] == 0
        assert not any(found[2].values()) and found[3] == []
        assert bench.keys("marker")[0] in (None, ["0", "0"])


# ---- delays, pause, limits --------------------------------------------------------------------------------------------------


def test_a_delayed_job_runs_when_it_is_due(bench):
    """[12] Its event carries the absolute time; it is promoted before it becomes active."""
    with bench.worker():
        job, delay = bench.js("const job = await q.add('n', data, { delay: 300 }); return [job.id, await r.hget(K(job.id), 'delay')];", data=sh("true"))
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert delay == "300"
        due = int(row["timestamp"]) + 300
        events = bench.events()
        assert ("delayed", {"jobId": job, "delay": str(due)}) in events
        assert int(row["processedOn"]) >= due and row["delay"] == "0"
        order = [name for name, _ in events]
        assert order.index("waiting") < order.index("active")
        assert events[order.index("waiting")][1] == {"jobId": job, "prev": "delayed"}
        more = bench.js("return (await q.addBulk(Array.from({ length: 5 }, (_, i) => ({ name: 'n', data, opts: { delay: 200 + 60 * i } })))).map((job) => job.id);",
                        data=sh("true"))
        bench.wait_state(more[-1], "completed")
        rows = [bench.hash(job) for job in more]
        late = sorted([int(row["processedOn"]) - due, *(int(row["processedOn"]) - int(row["timestamp"]) - 200 - 60 * i for i, row in enumerate(rows))])
        assert late[0] >= 0 and late[2] < 2500, late  # its next look comes five seconds after the last


def test_jobs_of_one_instant_keep_their_order(bench6):
    """[13] Ten delayed jobs of one timestamp."""
    ids = bench6.js("""const at = Date.now();
        return (await q.addBulk(Array.from({ length: 10 }, () => ({ name: 'n', data, opts: { timestamp: at, delay: 400 } })))).map((j) => j.id);""",
        data=sh("true"))
    (delayed,) = bench6.keys("delayed")
    first = int(delayed[1])
    assert delayed == [text for i, job in enumerate(ids) for text in (job, str(first + i))] and first % 4096 == 0
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


def test_what_leaves_while_the_queue_is_paused_is_not_lost(bench):
    """[15] A retry, and a job that a stop of its worker puts back, go where resume finds them, in either version's manner."""
    go = bench.mandor.tmp / "go"
    with bench.worker(concurrency=2) as worker:
        job = bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done; [ $MANDOR_ATTEMPT = 2 ]", attempts=3)
        back = bench.add("[ $MANDOR_ATTEMPT = 2 ] || sleep 600")
        other = bench.add("true")
        bench.wait_state(job, "active")
        bench.wait_state(back, "active")
        bench.js("await q.pause();")
        go.touch()
        wait_for(lambda: bench.hash(job).get("atm") == "1", 10)
        worker.signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in worker.stderr, 5)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    line, elsewhere = bench.keys(*(("paused", "wait") if bench.major == 5 else ("wait", "paused")))
    assert line == [job, other, back] and not elsewhere and bench.keys("active") == [None]  # the right end is next
    bench.js("await q.resume();")
    with bench.worker():
        for one in (job, back, other):
            bench.wait_state(one, "completed")


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
        for job in jobs:
            bench.wait_state(job, "completed")
        running, most = 0, 0
        for name, _ in bench.events("active", "completed"):
            running += 1 if name == "active" else -1
            most = max(most, running)
        assert most == 1


@pytest.mark.parametrize("where", ("queue", "worker"))
def test_the_rate_limit_holds(bench6, where):
    """[17] Two for each half second, which begins with the first of them."""
    if where == "queue":
        bench6.js("await q.setGlobalRateLimit(2, 500);")
    jobs = [bench6.add("true") for _ in range(6)]
    watch = bench6.begin("""let most = 0;
        kept.watches = await r.ping();
        await until(async () => { most = Math.max(most, await r.pttl(K('limiter'))); return await r.zcard(K('completed')) === 6; });
        return most;""")
    wait_for(lambda: bench6.js("return kept.watches;"), 10, "somebody to watch")
    with bench6.worker(concurrency=5, **({"limiter_max": 2, "limiter_duration": "500ms"} if where == "worker" else {})):
        bench6.wait_state(jobs[-1], "completed")
        started = [at for at, name, _ in bench6.stamped() if name == "active"]
        spans = []
        for at in started:
            if not spans or at - spans[-1][0] >= 500:
                spans.append([])
            spans[-1].append(at)
        assert len(started) == 6 and max(map(len, spans)) <= 2, started
        assert 0 < bench6.end(watch) <= 500


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
    ({"type": "fixed", "delay": 60000}, [(60000, 60000)] * 2), (60000, [(60000, 60000)] * 2),
    ({"type": "exponential", "delay": 60000}, [(60000, 60000), (120000, 120000), (240000, 240000)]),
    ({"type": "exponential", "delay": 60000, "jitter": 0.5}, [(30000, 60000), (60000, 120000), (120000, 240000)])))
def test_backoff_is_as_the_options_say(bench6, backoff, wanted):
    """[21, 22] Each delay, as it stands in the hash meanwhile; its event, and the end."""
    with bench6.worker():
        delays = bench6.js("""const { id } = await q.add('n', data, opts), delays = [];
            while (delays.length < opts.attempts - 1) {
                await until(async () => await q.getJobState(id) === 'delayed');
                const [delay, atm] = await r.hmget(K(id), 'delay', 'atm');
                delays.push([Number(delay), atm]);
                await (await q.getJob(id)).promote(); // nobody waits for it here
            }
            await until(async () => await r.zscore(K('failed'), id) !== null);
            return delays;""", data=sh("exit 1"), opts={"attempts": len(wanted) + 1, "backoff": backoff})
        assert [atm for _, atm in delays] == [str(i + 1) for i in range(len(wanted))]
        rows = [(int(f["delay"]) - at, f["jobId"]) for at, name, f in bench6.stamped() if name == "delayed"]
        assert len(rows) == len(wanted)
        for (delay, _), (due_in, job), (low, high) in zip(delays, rows, wanted):
            assert low <= delay <= high and delay - 10000 * SLACK <= due_in <= delay + 1, (delays, rows)  # "now" is that of the caller, a moment before
        assert bench6.events("failed", "retries-exhausted") == [
            ("failed", {"jobId": job, "failedReason": "exit code 1", "prev": "active"}),
            ("retries-exhausted", {"jobId": job, "attemptsMade": str(len(wanted) + 1)})]
        assert bench6.hash(job)["delay"] == "0"


def test_a_job_that_waits_for_its_next_attempt(bench6):
    """[21] Its hash says how long, its place in the line until when."""
    with bench6.worker():
        job = bench6.add("exit 1", attempts=2, backoff=60000)
        bench6.wait_state(job, "delayed")
        row, (delayed,) = bench6.hash(job), bench6.keys("delayed")
        due = int(bench6.events("delayed")[0][1]["delay"])
        assert row["delay"] == "60000" and row["atm"] == "1" and row["failedReason"] == "exit code 1"
        assert delayed[0] == job and int(float(delayed[1])) // 4096 == due and not bench6.events("failed")


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
        bench.js("await q.pause(); await (await q.getJob(id)).retry('failed');", id=job)
        assert not {"finishedOn", "processedOn", "failedReason"} & bench.hash(job).keys() and bench.state(job) == "waiting"
        bench.js("await q.resume();")
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
        job = bench6.add(f"[ $MANDOR_ATTEMPT = 2 ] || {say(again={'rate_limit': '10s'})}", **({"priority": priority} if priority else {}))
        wait_for(lambda: bench6.events("waiting")[-1][1].get("prev") == "active", 10)
        other = bench6.add("true")
        assert "atm" not in bench6.hash(job)
        limiter, prioritized, wait = bench6.keys("limiter", "prioritized", "wait")
        assert limiter == "9007199254740991"
        assert [prioritized, wait] == ([[job, str(priority << 32)], [other]] if priority else [None, [other, job]])  # the right end is next
        bench6.wait_state(job, "completed")
        stamps = [at for at, name, _ in bench6.stamped() if name == "active"]
        again = stamps[2 if priority else 1]  # what has no priority goes first
        assert again - stamps[0] >= 10000 and bench6.hash(job)["ats"] == "2"


def test_a_job_may_wait_for_its_children(bench6):
    """[42] It adds one, steps back, and runs again when that has ended."""
    go = bench6.mandor.tmp / "go"
    with bench6.worker():
        job = bench6.add(f"[ $MANDOR_ATTEMPT = 2 ] && exit 0; while [ ! -e {go} ]; do sleep 0.02; done; {say(again='children')}")
        bench6.wait_state(job, "active")
        child = bench6.js("return (await q.add('child', data, { delay: 60000, parent: { id, queue: `bull:${NAME}` } })).id;", id=job, data=sh(say(result=5)))
        go.touch()
        bench6.wait_state(job, "waiting-children")
        assert bench6.events("waiting-children") == [("waiting-children", {"jobId": job, "prev": "active"})]
        assert bench6.keys(f"{job}:lock") == [None]
        bench6.js("await (await q.getJob(id)).promote();", id=child)
        bench6.wait_state(job, "completed")
        assert bench6.hash(job)["ats"] == "2" and bench6.js("return await (await q.getJob(id)).getChildrenValues();", id=job) == {
            f"bull:{bench6.name}:{child}": 5}


# ---- what is kept -----------------------------------------------------------------------------------------------------------


def test_a_job_may_leave_nothing(bench):
    """[28] The event still carries the result."""
    ended = bench.begin("""const e = await events(NAME);
        const job = await q.add('n', data, { removeOnComplete: true });
        const end = job.waitUntilFinished(e, 30000);
        await sleep(1); // its question whether the job has ended is on its way
        kept.waits = await r.ping();
        return [await end, await r.exists(K(job.id)), await r.zcard(K('completed'))];""", data=sh(say(result="gone")))
    wait_for(lambda: bench.js("return kept.waits;"), 10, "it to wait")
    with bench.worker():
        assert bench.end(ended) == ["gone", 0, 0]
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
        fresh, fresh_failed = bench.add("true"), bench.add("exit 1")
        bench.wait_state(fresh_failed, "failed")
        for state, script, old, young in (("completed", "true", jobs[-2:], fresh), ("failed", "exit 1", failed[-1:], fresh_failed)):
            bench.js("for (const id of old) await r.zadd(K(state), Date.now() - 5000, id); await r.zadd(K(state), Date.now() + 600000, young);", state=state, old=old, young=young)
            last = bench.add(script, **{"removeOnComplete" if state == "completed" else "removeOnFail": {"age": 1}})
            bench.wait_state(last, state)
            assert sorted(bench.js("return await r.zrange(K(state), 0, -1);", state=state)) == sorted([young, last])
            assert not any(bench.hash(job) for job in old) and bench.hash(young)


def test_the_workers_own_retention_yields_to_the_jobs(bench6):
    """[30]"""
    with bench6.worker(remove_on_complete=1):
        jobs = [bench6.add("true") for _ in range(3)]
        kept = bench6.add("true", removeOnComplete=False)
        bench6.wait_state(kept, "completed")
        assert bench6.js("return await r.zrange(K('completed'), 0, -1);") == [jobs[-1], kept]
    with bench6.worker(remove_on_complete=0):
        gone, kept = bench6.add("true"), bench6.add("true", removeOnComplete=False)
        bench6.wait_state(kept, "completed")
        assert not bench6.hash(gone) and bench6.hash(kept)


# ---- locks ------------------------------------------------------------------------------------------------------------------


def test_a_running_job_is_locked_all_the_time(bench6):
    """[31] No stock worker ever takes it over, the lock is never near its end, and nobody suspects it for longer than until the next renewal."""
    go = bench6.mandor.tmp / "go"
    with bench6.worker(lock="8s"):
        job = bench6.add(f"while [ ! -e {go} ]; do sleep 0.02; done")
        bench6.wait_state(job, "active")
        stolen, least, suspected, tokens, bare = bench6.js("""let stolen = 0, least = Infinity, last = Infinity, since = 0, suspected = 0, bare = 0;
            const tokens = new Set();
            worker(NAME, async () => { stolen++; }, { stalledInterval: 800, lockDuration: 8000 });
            for (let renewed = 0; renewed < 5 && await q.getJobState(id) === 'active';) {
                const [ttl, token] = await Promise.all([r.pttl(K(id + ':lock')), r.get(K(id + ':lock'))]);
                if (token === null) bare++; else { least = Math.min(least, ttl); tokens.add(token); }
                renewed += ttl > last;
                last = ttl;
                since = await r.sismember(K('stalled'), id) ? since || Date.now() : 0;
                if (since) suspected = Math.max(suspected, Date.now() - since);
                await sleep(20);
            }
            return [stolen, least, suspected, [...tokens], bare];""", id=job)
        go.touch()
        bench6.wait_state(job, "completed")
        assert stolen == 0 and least >= 2000 and bare == 0, (stolen, least, bare)
        assert suspected < 7000 and len(tokens) == 1 and tokens[0].endswith(":1"), (suspected, tokens)  # of ten seconds; it is renewed every two
        assert not bench6.events("stalled")


def test_a_killed_workers_job_is_recovered_by_a_stock_worker(bench):
    """[32] One or two intervals after the lock has run out: these are its worker's and the other's, not what is usual."""
    with bench.worker(lock="5s", stalled_interval="2s") as worker:
        job = bench.add("sleep 600")
        bench.wait_state(job, "active")
        bench.js("await worker(NAME, async () => 'other', { stalledInterval: 2000, lockDuration: 5000 }).waitUntilReady();")
        killed = time.time() * 1000
        worker.kill(guard=False)
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert row["stc"] == "1" and row["returnvalue"] == '"other"'
        ((at, fields),) = [(at, fields) for at, name, fields in bench.stamped() if name == "stalled"]
        assert fields == {"jobId": job} and at - killed < 20000  # a lock of the usual length would still be there


def test_a_job_of_a_stock_worker_that_is_killed_is_recovered(bench):
    """[32] The mirror."""
    module = "bullmq" if bench.major == 6 else "bullmq5"
    script = f"""import {{ Worker }} from '{module}';
        new Worker({json.dumps(bench.name)}, () => new Promise(() => {{}}), {{ connection: {{ host: '127.0.0.1', port: {bench.server.port}, maxRetriesPerRequest: null }},
            lockDuration: 5000, stalledInterval: 2000 }});"""
    job = bench.add(say(result="mine"))
    other = bench.mandor.spawn(["node", "--input-type=module", "-e", script], cwd=str(bullmq.HERE))
    bench.wait_state(job, "active")
    with bench.worker(lock="5s", stalled_interval="2s", name="w"):
        wait_for(lambda: bench.js("return (await q.getWorkers()).length;") == 2, 20, "both to be there")
        killed = time.time() * 1000
        other.kill()
        other.wait()
        bench.wait_state(job, "completed")
        row = bench.hash(job)
        assert row["returnvalue"] == '"mine"' and row["stc"] == "1" and row["ats"] == "2"
        ((at, fields),) = [(at, fields) for at, name, fields in bench.stamped() if name == "stalled"]
        assert fields == {"jobId": job} and at - killed < 20000  # a lock of the usual length would still be there


@pytest.mark.parametrize("checker", ("stock", "mandor"))
def test_a_job_that_may_not_stall_is_failed_unrun(bench, checker):
    """[33] Whoever finds it notes the failure, and whoever takes it writes that."""
    with bench.worker(lock="5s", stalled_interval="60s") as worker:
        job = bench.add(f"echo >>{bench.mandor.tmp}/ran; sleep 600")
        bench.wait_state(job, "active")
        wait_for((bench.mandor.tmp / "ran").exists, 10)
        worker.kill(guard=False)
    bench.js("await r.del(K('stalled-check'));")  # its own turn is over
    if checker == "stock":
        bench.js("""const checker = worker(NAME, async () => 'never', { autorun: false, maxStalledCount: 0, stalledInterval: 300, lockDuration: 1000 });
            await checker.waitUntilReady(); await checker.startStalledCheckTimer();
            await until(async () => await r.hget(K(id), 'defa'));
            await checker.close(true);""", id=job)
        assert bench.state(job) == "waiting" and bench.hash(job)["defa"] == "job stalled more than allowable limit"
    with bench.worker(**({"stalled_interval": "300ms", "max_stalled": 0} if checker == "mandor" else {})):
        bench.wait_state(job, "failed")
        row = bench.hash(job)
        assert row["failedReason"] == "job stalled more than allowable limit" and "defa" not in row and row["stc"] == "1"
        assert (bench.mandor.tmp / "ran").read_text() == "\n" and bench.events("stalled") == [("stalled", {"jobId": job})]


def test_jobs_without_a_lock_are_recovered(bench):
    """[32, 33] And one that may not stall is failed without running."""
    jobs = [bench.add(say(result="mine")) for _ in range(2)]
    bench.js("""await r.hset(K(ids[1]), 'stc', '1');
        for (const id of ids) { await r.rpoplpush(K('wait'), K('active')); await r.set(K(id + ':lock'), 'dead:1', 'PX', 300); }""", ids=jobs)
    with bench.worker(stalled_interval="400ms"):
        bench.wait_state(jobs[0], "completed")
        bench.wait_state(jobs[1], "failed")
        row = bench.hash(jobs[1])
        assert row["failedReason"] == "job stalled more than allowable limit" and "defa" not in row and row["stc"] == "2"
        assert bench.hash(jobs[0])["returnvalue"] == '"mine"'


def test_a_check_that_another_worker_has_made_is_not_the_last_for_long(bench6):
    """[32] Who comes too early for the next check comes back when it is due, not an interval later."""
    job = bench6.add(say(result="mine"))
    bench6.js("await r.rpoplpush(K('wait'), K('active')); await r.sadd(K('stalled'), id); await r.set(K('stalled-check'), '1', 'PX', 3000);", id=job)
    with bench6.worker(stalled_interval="10m"):
        bench6.wait_state(job, "completed")
        assert bench6.hash(job)["stc"] == "1" and bench6.js("return await r.pttl(K('stalled-check'));") > 500000


@pytest.mark.parametrize("thief", ("nobody", "another"))
def test_a_lost_lock_ends_the_job(bench6, thief):
    """[34] Nothing is written without it."""
    with bench6.worker(lock="5s") as worker:
        job = bench6.add("[ $MANDOR_ATTEMPT = 2 ] || sleep 600")
        bench6.wait_state(job, "active")
        if thief == "nobody":
            bench6.js("await r.del(K(id + ':lock'));", id=job)
        else:
            bench6.js("await r.set(K(id + ':lock'), 'other:1');", id=job)
        wait_for(lambda: "could not renew lock" in worker.stderr and not bench6.mandor.cell.groups() or "lease lost" in worker.stderr, 10)
        assert not bench6.events("completed", "failed") and bench6.keys("active") == [[job]]
        if thief == "another":
            assert bench6.keys(f"{job}:lock") == ["other:1"]
            bench6.js("await r.del(K(id + ':lock'));", id=job)
        bench6.js("await r.del(K('stalled-check')); worker(NAME, async () => 'other', { stalledInterval: 300 });")
        bench6.wait_state(job, "completed")
        row = bench6.hash(job)  # either has taken it again
        assert row["returnvalue"] in ('"other"', "null") and row["stc"] == "1" and row["ats"] == "2"


def test_a_short_lock_is_long_enough_to_publish_output(bench6):
    """How much of a lock must be left for a commit goes by the lock that there is, not by the lease of other brokers."""
    out = bench6.mandor.tmp / "out"
    bench6.configure(stdout=f"file:{out}")
    with bench6.worker(lock="9s") as worker:
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
        other = bench.add("true")
        bench.wait_state(other, "completed")
        bench.mandor.ok("rm", f"{bench.name}:{job}")
        bench.js("await (await q.getJob(id)).remove();", id=other)
        assert bench.events("removed") == [("removed", {"jobId": it, "prev": "completed"}) for it in (job, other)]
        assert bench.state(job) == bench.state(other) == "unknown"


def test_a_stop_leaves_the_rest_waiting(bench):
    """[36] And ends as soon as its job does, however long that might take."""
    bench.config.write_text(json.dumps({"shutdown_timeout": "10m", "queues": {bench.name: {"allow_exec": True}}}))
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
    bench.js("""await r.del(K('stalled-check'));
        const checker = worker(NAME, async () => {}, { autorun: false, stalledInterval: 100 });
        await checker.waitUntilReady(); await checker.startStalledCheckTimer();
        await sleep(500); await checker.close(true);""")
    assert not bench.events("stalled") and bench.keys("wait") == [rest[::-1]]


def test_a_hard_stop_puts_the_job_back(bench6):
    """[36] To the head of its line, without blame."""
    with bench6.worker() as worker:
        job = bench6.add("sleep 600")
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
            await job.waitUntilFinished(e, 30000);
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
        assert bench.keys(f"{ids['parent']}:dependencies", f"{ids['parent']}:processed") == [
            None, {f"bull:{bench.name}:{ids['one']}": "1", f"bull:{other}:{ids['two']}": '{"n":2}'}]
        finished = [int(bench.js("return await r.hget(key, 'finishedOn');", key=f"bull:{queue}:{ids[name]}")) for queue, name in ((bench.name, "one"), (other, "two"))]
        assert int(bench.hash(ids["parent"])["processedOn"]) >= max(finished)
        stamps = bench.js("""const find = async (key, name, id, prev) => (await r.xrange(key, '-', '+')).find(([, f]) => f[1] === name && f[3] === id && f.at(-1) === prev)[0];
            const o = `${PREFIX}:${other}:events`;
            return [await find(K('events'), 'waiting', ids.parent, 'waiting-children'), await find(K('events'), 'completed', ids.one, 'active'), await find(o, 'completed', ids.two, 'active')];""",
            ids=ids, other=other)
        released, *ended = [int(stamp.split("-")[0]) for stamp in stamps]
        assert released <= max(ended)
    alone = bullmq.Bench(bench.mandor, bench.server, bench.stock, bench.name + "-a")  # in one stream the order says it exactly
    with alone.worker():
        ids = bench.js(FLOW, spec=node(alone, "parent", "true", node(alone, "one", "true"), node(alone, "two", "true")))
        key = f"bull:{alone.name}:events"
        wait_for(lambda: ids["parent"] in bench.js("return await r.zrange(key, 0, -1);", key=f"bull:{alone.name}:completed"), 10)
        rows = [tuple(fields[1::2]) for fields in bench.js("return (await r.xrange(key, '-', '+')).map(([, fields]) => fields);", key=key)]
        last = max(i for i, row in enumerate(rows) if row[0] == "completed" and row[1] != ids["parent"])
        assert rows.index(("waiting", ids["parent"], "waiting-children")) < last


def test_a_failed_child_fails_its_parents(bench):
    """[39] Three levels; only the child ran."""
    with bench.worker():
        run = lambda name: f"echo {name} >>{bench.mandor.tmp}/ran"
        ids = bench.js(FLOW, spec=node(bench, "g", run("g"), node(bench, "p", run("p"), node(bench, "c", run("c") + "; exit 3", failParentOnFailure=True),
                                                                  failParentOnFailure=True)))
        bench.wait_state(ids["g"], "failed")
        key = lambda name: f"bull:{bench.name}:{ids[name]}"
        assert bench.hash(ids["c"])["failedReason"] == "exit code 3"
        assert bench.hash(ids["p"])["failedReason"] == f"child {key('c')} failed"
        assert bench.hash(ids["g"])["failedReason"] == f"child {key('p')} failed"
        unsuccessful = bench.keys(f"{ids['p']}:unsuccessful", f"{ids['g']}:unsuccessful")
        assert [u[0] for u in unsuccessful] == [key("c"), key("p")]
        assert (bench.mandor.tmp / "ran").read_text() == "c\n"


def test_policies_of_failed_children(bench):
    """[40] Ignored, removed, continued; and none: then the parent waits for a retry."""
    with bench.worker():
        ids = bench.js(FLOW, spec=node(bench, "p", "true", node(bench, "c", "exit 3", ignoreDependencyOnFailure=True)))
        bench.wait_state(ids["p"], "completed")
        failures = bench.js("return await (await q.getJob(id)).getIgnoredChildrenFailures();", id=ids["p"])
        assert failures == {f"bull:{bench.name}:{ids['c']}": "exit code 3"}

        ids = bench.js(FLOW, spec=node(bench, "p", "true", node(bench, "c", "exit 3", removeDependencyOnFailure=True)))
        bench.wait_state(ids["p"], "completed")
        assert bench.keys(f"{ids['p']}:failed") == [None] and bench.js("return await (await q.getJob(id)).getIgnoredChildrenFailures();", id=ids["p"]) == {}

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
        due = [int(f["delay"]) for _, f in bench6.events("delayed") if f["jobId"] == ids["p"]]
        assert len(due) == 1 and due[0] >= int(bench6.hash(ids["c"])["finishedOn"]) + 300
        bench6.js("await q.setGlobalConcurrency(1);")
        first, second = (bench6.mandor.tmp / name for name in ("first", "second"))
        ids = bench6.js(FLOW, spec=node(bench6, "p", "true", node(bench6, "c", f"until [ -e {first} ]; do sleep 0.02; done"), priority=7))
        bench6.wait_state(ids["c"], "active")
        plain = bench6.add("true")
        first.touch()
        bench6.wait_state(ids["p"], "completed")
        assert [f["jobId"] for _, f in bench6.events("active")][-2:] == [plain, ids["p"]]
        ids = bench6.js(FLOW, spec=node(bench6, "p", "true", node(bench6, "c", f"until [ -e {second} ]; do sleep 0.02; done"), priority=7))
        bench6.wait_state(ids["c"], "active")
        bench6.js("await q.pause();")
        second.touch()
        wait_for(lambda: bench6.state(ids["p"]) == "prioritized", 10)
        bench6.js("await q.resume();")
        bench6.wait_state(ids["p"], "completed")


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
        bench.js("await q.upsertJobScheduler('s', { every: 3000, limit: 3 }, { name: 'tick', data });", data=sh("sleep 0.05"))
        wait_for(lambda: len(bench.events("completed")) == 3, 15)
        runs = [f["jobId"] for _, f in bench.events("completed")]
        stamps = [int(job.rsplit(":", 1)[1]) for job in runs]
        assert [b - a for a, b in zip(stamps, stamps[1:])] == [3000, 3000] and all(job.startswith("repeat:s:") for job in runs)
        started = [int(bench.hash(job)["processedOn"]) for job in runs]
        # Not before its time, which the first may be by the age of the request that takes it, and long before the wait for jobs is over.
        assert all(at >= due for at, due in zip(started[1:], stamps[1:]))
        assert sorted(at - due for at, due in zip(started, stamps))[1] < 2500, (started, stamps)
        assert len(bench.events("added")) == 3 and bench.keys("delayed", "wait") == [None, None]
        assert bench.js("return (await q.getJobScheduler('s')).iterationCount;") == 3
        go = bench.mandor.tmp / "go"
        first = bench.js("return (await q.upsertJobScheduler('t', { every: 60000 }, { name: 'tick', data })).id;", data=sh(f"while [ ! -e {go} ]; do sleep 0.02; done"))
        bench.js("await (await q.getJob(id)).promote().catch(() => {});", id=first)
        bench.wait_state(first, "active")
        following = wait_for(lambda: next(iter(bench.keys("delayed")[0] or []), None), 5, "the next one")
        due = int(following.rsplit(":", 1)[1])
        assert due > int(first.rsplit(":", 1)[1]) and bench.js("return await r.zscore(K('repeat'), 't');") == str(due)
        assert bench.js("return await q.removeJobScheduler('t');")  # [44] while it runs: no next job
        go.touch()
        bench.wait_state(first, "completed")
        assert bench.keys("delayed", "repeat")[0] is None and "t" not in (bench.keys("repeat")[0] or [])
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
    # just before its time it waits already
    bench6.js("const job = await q.getJob(id); if (await job.isDelayed()) await job.promote();", id=first)
    with bench6.worker():
        bench6.wait_state(first, "active", "completed")
        wait_for(lambda: len(bench6.events("added")) >= 2, 5)
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


@pytest.mark.parametrize("end", ("exit 0", "exit 1"))
def test_deduplication_ends_with_its_job(bench, end):
    """[45] With a time to live it goes on."""
    go = bench.mandor.tmp / "go"
    with bench.worker():
        hold = f"while [ ! -e {go} ]; do sleep 0.02; done; {end}"
        over = "completed" if end == "exit 0" else "failed"
        add = "return (await q.add('n', data, { deduplication })).id;"
        first = bench.js(add, data=sh(hold), deduplication={"id": "d"})
        assert bench.js(add, data=sh(hold), deduplication={"id": "d"}) == first
        go.touch()
        bench.wait_state(first, over)
        assert bench.keys("de:d") == [None]
        assert bench.js(add, data=sh("true"), deduplication={"id": "d"}) != first
        timed = bench.js(add, data=sh(end), deduplication={"id": "t", "ttl": 60000})
        bench.wait_state(timed, over)
        assert bench.keys("de:t") == [timed] and 0 < bench.js("return await r.pttl(K('de:t'));") <= 60000
        assert bench.js(add, data=sh(end), deduplication={"id": "t"}) == timed
        bench.js("await r.pexpire(K('de:t'), 1);")
        wait_for(lambda: bench.keys("de:t") == [None], 5)
        assert bench.js(add, data=sh(end), deduplication={"id": "t"}) != timed


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


def test_the_stream_of_events_stays_short(bench):
    """[47] Approximately as long as its owner says: never a whole node of it more."""
    bench.js("""await q.waitUntilReady(); await q.close();
        kept.q = queue(NAME, { streams: { events: { maxLen: 100 } } });
        await until(async () => await r.hget(K('meta'), 'opts.maxLenEvents') === '100');""")
    with bench.worker(concurrency=8):
        bench.js("await q.addBulk(Array.from({ length: 2000 }, () => ({ name: 'n', data, opts: { removeOnComplete: true } })));", data=sh("true"))
        wait_for(lambda: bench.keys("id") == ["2000"] and not bench.js("return await q.getJobCountByTypes('wait', 'active');"), 60)
        assert 100 <= bench.js("return await r.xlen(K('events'));") < 200


# ---- the producer, and the place --------------------------------------------------------------------------------------------


def test_what_mandor_adds_a_stock_worker_runs(bench):
    """[48] Every kind; the options are those that a stock producer's job shows."""
    bench.js("await q.waitUntilReady();")
    kinds = {"plain": ([], {}), "last": (["--lifo"], {"lifo": True}), "late": (["--delay", "200ms"], {"delay": 200}),
             "first": (["--priority", "3"], {"priority": 3}), "named": (["--id", "my-id"], {"jobId": "my-id"}),
             "again": (["--attempts", "3", "--backoff", "fixed", "--backoff-delay", "50ms"], {"attempts": 3, "backoff": {"type": "fixed", "delay": 50}}),
             "longer": (["--attempts", "3", "--backoff", "exponential", "--backoff-delay", "50ms", "--backoff-jitter", "0.5"],
                        {"attempts": 3, "backoff": {"type": "exponential", "delay": 50, "jitter": 0.5}}),
             "once": (["--unique", "u"], {"deduplication": {"id": "u"}})}
    ids = {}
    for count, (name, (flags, _)) in enumerate(kinds.items(), 1):
        ids[name] = bench.mandor.ok("add", "--queue", bench.name, *flags, "--", "/bin/echo", name).lines[0].split(":", 1)[1]
        assert bench.keys("id") == [str(count)]  # the counter goes on with each, whatever its id
    assert ids["named"] == "my-id"
    assert bench.mandor.ok("add", "--queue", bench.name, "--unique", "u", "--json", "--", "true").json() == {"id": f"{bench.name}:{ids['once']}", "existing": True}
    same = bench.js("""const out = {}, other = queue(NAME + '-stock');
        for (const [name, opts] of Object.entries(stock)) {
            const mine = await q.getJob(ids[name]), theirs = await other.getJob((await other.add('echo', {}, opts)).id);
            out[name] = [mine, theirs].map((job) => ({ opts: job.opts, delay: job.delay, priority: job.priority, deid: job.deduplicationId, attemptsMade: job.attemptsMade }));
        }
        return out;""", ids=ids, stock={name: opts for name, (_, opts) in kinds.items()})
    for name, (mine, theirs) in same.items():
        theirs["opts"]["attempts"] = max(theirs["opts"].get("attempts", 1), 1)  # 0 is one as well
        assert mine == theirs, name
    bench.js("""worker(NAME, async (job) => { if (job.opts.attempts === 3 && job.attemptsMade < 2) throw new Error('no'); return job.data.exec; });
        await until(async () => await r.zcard(K('completed')) === count);""", count=len(kinds))
    rows = [bench.hash(job) for job in ids.values()]
    assert [json.loads(row["returnvalue"])[1] for row in rows] == list(ids) and [row["name"] for row in rows] == ["echo"] * len(ids)
    assert [row["atm"] for row in rows] == ["3" if name in ("again", "longer") else "1" for name in ids]
    late = bench.hash(ids["late"])
    assert int(late["processedOn"]) >= int(late["timestamp"]) + 200


def test_mandor_adds_before_those_that_wait(bench):
    """[48] --lifo: the stock worker takes the newest first, then the others, then by priority, which lifo does not touch."""
    names = {}
    for name, *flags in (("a",), ("b",), ("c", "--lifo"), ("d", "--lifo"), ("p", "--priority", "1", "--lifo"), ("q", "--priority", "1")):
        names[bench.mandor.ok("add", "--queue", bench.name, *flags, "--", "true").lines[0].split(":")[1]] = name
    bench.mandor.ok("add", "--queue", bench.name, "--from", "-", input='{"exec": ["true"], "lifo": true, "id": "e"}\n')
    names["e"] = "e"
    bench.js("worker(NAME, async () => {}); await until(async () => await r.zcard(K('completed')) === 7);")
    assert [names[f["jobId"]] for _, f in bench.events("active")] == list("edcabpq")


def test_mandor_adds_a_job_with_an_id_once(bench):
    """[48] While there is a job with that id, finished or not, a second one is not added: stock listeners hear of it, and so does who adds."""
    add = lambda *more: bench.mandor.ok("add", "--queue", bench.name, "--id", "film-17", "--json", *more, "--", "/bin/echo", "a")
    name = f"{bench.name}:film-17"
    assert add().json() == {"id": name, "existing": False}
    again = add("--delay", "1h")
    assert again.json() == {"id": name, "existing": True} and f"nothing added: job {name} is there already" in again.complaint
    assert bench.events() == [("added", {"jobId": "film-17", "name": "echo"}), ("waiting", {"jobId": "film-17"}), ("duplicated", {"jobId": "film-17"})]
    assert bench.keys("wait", "delayed", "id") == [["film-17"], None, "2"] and bench.hash("film-17")["delay"] == "0"
    heard = bench.js("""const e = await events(NAME), heard = [];
        e.on('duplicated', ({ jobId }) => heard.push(jobId));
        const id = (await q.add('n', {}, { jobId: 'film-17' })).id; // theirs and ours are the same job
        await until(() => heard.length === 2);
        return [id, ...heard];""")
    assert heard == ["film-17"] * 3 and bench.keys("wait", "id") == [["film-17"], "3"]
    bench.js("worker(NAME, async (job) => job.data.exec[1]); await until(async () => await r.zcard(K('completed')) === 1);")
    assert add().json()["existing"] and bench.state("film-17") == "completed"
    bench.mandor.ok("rm", name)
    assert not add().json()["existing"]
    bench.wait_state("film-17", "completed")
    lines = '{"exec": ["true"], "id": "x"}\n{"exec": ["true"], "id": "17"}\n{"exec": ["true"], "id": "x"}\n{"exec": ["true"], "id": "y"}\n'
    done = bench.mandor.run("add", "--queue", bench.name, "--from", "-", input=lines)
    assert done.code == 1 and done.lines == [f"{bench.name}:{job}" for job in ("x", "x", "y")]
    assert "-:2: 'id': '17' is refused" in done.complaint and "1 of 3 jobs were there already" in done.complaint


# What the stock producer says of each is asked below.
IDS = {"1": False, "0": False, "-5": False, "12345": False, "9007199254740991": False, "9223372036854775807": True, "007": True, "1e3": True, "-0": True,
       "+1": True, "1.5": True, "a:b": False, "a:b:c": True, "1:2:3": True, "a:b:c:d": False, ":": False, "::": True, "0:1": False, "0:1:2": False, "a b": True,
       "ü☃": True, "{x}": True, "x" * 64: True}


def test_mandor_takes_the_ids_that_stock_producers_take(bench):
    """[48] Integers are the counter's, and colons are for three parts."""
    stock = bench.js("""const out = {};
        for (const jobId of ids) out[jobId] = await q.add('n', {}, { jobId }).then((job) => job.id === jobId, () => false);
        return out;""", ids=list(IDS))
    assert stock == IDS
    bench.js("await q.obliterate({ force: true });")
    for job, good in IDS.items():
        done = bench.mandor.run("add", "--queue", bench.name, f"--id={job}", "--", "true")
        if good:
            assert done.code == 0 and done.lines == [f"{bench.name}:{job}"], (job, done)
            assert bench.mandor.ok("show", f"{bench.name}:{job}", "--json").json()["state"] == "waiting"
        else:
            assert done.code == 2 and f"'id': '{job}' is refused" in done.complaint, (job, done)
    wanted = [job for job, good in IDS.items() if good]
    assert bench.keys("wait") == [wanted[::-1]] and bench.keys("id") == [str(len(wanted))]
    assert bench.js("""worker(NAME, async () => 'ran'); await until(async () => await r.zcard(K('completed')) === ids.length);
        return (await Promise.all(ids.map((id) => q.getJob(id)))).map((job) => job.returnvalue);""", ids=wanted) == ["ran"] * len(wanted)


def test_bytes_of_the_producer_reach_the_job(bench6):
    """[7] Unicode, escaped slashes, odd numbers, blanks: the data are handed on byte by byte, and read with what they mean."""
    text = '{"u":"\\u00fc ü \\u2028 \\/","n":[1e300,5e-324,1E3,0.1,12345678901234567,100000000000000000000],  "q":"a b\\"c"}'
    bench6.configure(bench6.name, command=["/bin/sh", "-c", "printf '%s\\n' \"$1\" \"$2\" \"$3\"", "x", "{data}", "{data.n}", "{data.u}"], stdout=f"file:{bench6.mandor.tmp}/{{id}}.out")
    job = bench6.js("const job = await q.add('n', {}); await r.hset(K(job.id), 'data', text); return job.id;", text=text)
    theirs = bench6.js("return (await q.add('n', JSON.parse(text))).id;", text=text)
    with bench6.worker():
        bench6.wait_state(job, "completed")
        bench6.wait_state(theirs, "completed")
        assert (bench6.mandor.tmp / f"{theirs}.out").read_text().split("\n")[0] == bench6.hash(theirs)["data"]
        whole, numbers, words = (bench6.mandor.tmp / f"{job}.out").read_text().split("\n")[:3]
        assert whole == text and json.loads(numbers) == [1e300, 5e-324, 1000, 0.1, 12345678901234567, 1e20] and words == json.loads(text)["u"]


def test_half_a_surrogate_pair_is_no_mistake(bench):
    """[7] JavaScript's strings may be cut in the middle of a character. A program's argument gets U+FFFD there, as from a stock worker that
    spawns one; the data stay as they are, and options and ids like that are no obstacle either."""
    out = bench.mandor.tmp / "out"
    bench.configure(bench.name, command=["/bin/sh", "-c", f'printf "%s\\n" "$1" "$2" >>{out}; ' + r"""echo '{{"result": "\ud83d!"}' >&3""",
                                         "x", "{data.title}", "{data}"])
    with bench.worker():
        found = bench.js(r"""const e = await events(NAME), title = 'a \u{1f600}'.slice(0, 3), got = [];
            const add = (opts) => q.add('n', { title, fine: '\u{1f600}' }, opts);
            for (const opts of [{}, { deduplication: { id: title } }]) got.push(await (await add(opts)).waitUntilFinished(e, 30000));
            await add({ jobId: title }); // the stock package itself does not find this one again
            await until(async () => await r.zcard(K('completed')) === 3);
            return [got, await r.keys(K('de:*')), await q.getJobCounts('completed', 'failed'), kept.errors ?? []];""")
        assert found == [["\ufffd!"] * 2, [], {"completed": 3, "failed": 0}, []]
        assert out.read_text() == 'a \ufffd\n{"title":"a \\ud83d","fine":"\U0001f600"}\n' * 3


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
    """Before anything is written; a key of the queue's own is no id either, though stock producers would overwrite it."""
    add = ["add", "--queue", bench6.name]
    for args, word in (((*add, "--priority", "2097152"), "2097151"), ((*add, "--id", "wait"), "own keys"), ((*add, "--id", "x" * 200), "200 bytes"),
                       (("add", "--queue", "a:b"), "':'")):
        done = bench6.mandor.run(*args, "--", "true")
        assert done.code == 2 and word in done.complaint, done
    assert bench6.js("return await r.keys(`${PREFIX}:${NAME}:*`);") == []
    for many in (("--each", "--", "echo", "{}"), ("--from", "-")):
        done = bench6.mandor.run(*add, "--id", "x", *many, input="a\n")
        assert done.code == 2 and "'--id' is one job's" in done.complaint, done


def test_options_that_a_job_of_data_cannot_bring_are_not_lost_in_silence(bench6):
    """Such a job is its data alone; what the worker's configuration says of the queue is the worker's business."""
    bench6.configure(bench6.name, allow_exec=False, command=["true"], timeout="10m")
    add = ("add", "--queue", bench6.name)
    for args, word in ((("--data", "1", "--timeout", "3s"), "'timeout'"), (("--data", "1", "--env", "A=B"), "'env'"), (("--data", "1", "--memory", "1G"), "'limits'"),
                       (("--pool", "p", "--stdout", "null:"), "'stdout'")):
        done = bench6.mandor.run(*add, *args)
        assert done.code == 2 and word in done.complaint and "in the worker's configuration" in done.complaint, done
    done = bench6.mandor.run(*add, "--from", "-", input='{"data": 1, "timout": "3s"}\n{"data": 1, "cwd": "/"}\n{"data": 1, "delay": "1h", "priority": 3}\n')
    assert done.code == 1 and "did you mean 'timeout'?" in done.complaint and "-:2: 'cwd'" in done.complaint and len(done.lines) == 1, done
    assert bench6.mandor.run(*add, "--data", "1", "--attempts", "2", "--unique", "u").code == 0
    assert bench6.mandor.run(*add, "--timeout", "3s", "--", "true").code == 0


def test_workers_are_counted_in_each_queue(bench6):
    """A process that serves two queues has a connection for each, and BullMQ knows no more of it."""
    queues = (bench6.name, bench6.name + "-2")
    bench6.configure(*queues)
    for queue in queues:
        bench6.mandor.ok("add", "--queue", queue, "--delay", "1h", "--", "true")
    with bench6.worker(queues=queues):
        wait_for(lambda: "2 live workers, counted in each queue that they serve" in bench6.mandor.ok("stats").text, 30)


def test_data_that_look_like_options_of_a_queue_are_no_mistake(bench6):
    """When, how often and under which name a job runs is in its options; its data may use these words for what they like."""
    with bench6.worker():
        job = bench6.js("return (await q.add('n', { ...data, id: 7, lifo: 'x', queue: {}, priority: 'high', delay: [], attempts: -1, backoff: 1, unique: 0 })).id;",
                        data=sh(say(result=1)))
        assert bench6.wait_state(job, "completed", "failed") == "completed", bench6.hash(job)


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
        running = bench.add("sleep 600", attempts=3)
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
        show = lambda: bench6.mandor.ok("show", f"{bench6.name}:{job}", "--json").json()
        shown = wait_for(lambda: (it := show())["phase"] == "running" and it["attempt"] == 2 and it, 10, "its second attempt")
        assert shown["worker"] and [entry["exit_code"] for entry in shown["history"]] == [3]
        with bench6.mandor.background("logs", "-f", f"{bench6.name}:{job}") as follower:
            wait_for(lambda: "hello" in follower.stderr, 10)
            go.touch()
            assert follower.wait() == 0 and "over" in follower.stderr
        assert [entry["exit_code"] for entry in bench6.mandor.ok("show", f"{bench6.name}:{job}", "--json").json()["history"]] == [3]


def test_drain_ends_when_nothing_is_left(bench):
    jobs = [bench.add("true") for _ in range(3)] + [bench.add("[ $MANDOR_ATTEMPT = 2 ]", attempts=2, backoff=200)]
    late = bench.add("true", delay=60000)
    bench.mandor.drain("--queue", bench.name)
    assert [bench.state(job) for job in jobs] == ["completed"] * 4 and bench.state(late) == "delayed"


def odd_place(bench):
    """A prefix in braces, a name with a blank and what is no ASCII."""
    bench.prefix, bench.name = "{app}", "ü name"
    bench.stock.js("await r.del(...(await r.keys('{app}:*')), 'x');")
    bench.configure(bench.name)
    bench.mandor.env["MANDOR_BROKER"] = bench.server.url(prefix="%7Bapp%7D")
    return bench.mandor.worker("--broker", bench.server.url(prefix="%7Bapp%7D", name="w"), "--queue", bench.name)


def test_prefix_and_odd_names(bench):
    """[49] Keys are the stock ones."""
    with odd_place(bench):
        job = bench.add(say(result=1))
        bench.wait_state(job, "completed")
        assert bench.js("return (await q.getWorkers()).map((worker) => worker.rawname);") == [client_name("{app}", bench.name, "w")]
        assert bench.mandor.ok("show", f"{bench.name}:{job}", "--json").json()["result"] == 1
        assert [row["id"] for row in map(json.loads, bench.mandor.ok("ls", "--json").lines)] == [f"{bench.name}:{job}"]
        assert set(bench.stock.js("return await r.keys('{app}:*');")) == {
            f"{{app}}:ü name:{suffix}" for suffix in ("meta", "id", "events", "completed", job, "stalled-check")}


def test_bull_board_lists_and_retries(bench):
    """[49] Its own API on top of the stock Queue: counts, jobs, logs, workers."""
    with odd_place(bench):
        good, bad = bench.add(f"{say(log='a row')}; {say(result=[1])}"), bench.add("[ $MANDOR_ATTEMPT -ge 2 ]")
        bench.wait_state(good, "completed")
        bench.wait_state(bad, "failed")
        found = bench.js("""const { createBullBoard } = await import('@bull-board/api');
            const { BullMQAdapter } = await import('@bull-board/api/bullMQAdapter');
            const routes = {};
            const server = new Proxy({}, { get: (_, name) => (arg) => { if (name === 'setApiRoutes') routes.all = arg; if (name === 'setQueues') routes.queues = arg; return server; } });
            createBullBoard({ queues: [new BullMQAdapter(q)], serverAdapter: server });
            const call = async (method, route, params = {}, query = {}) => {
                const found = routes.all.find((it) => [].concat(it.method).includes(method) && [].concat(it.route).includes(route));
                return (await found.handler({ queues: routes.queues, params, query, body: {}, headers: {} }));
            };
            const list = async (status) => (await call('get', '/api/queues', {}, { activeQueue: NAME, status, page: '1', jobsPerPage: '10' })).body.queues.find((it) => it.name === NAME);
            const failed = await list('failed'), completed = await list('completed');
            const logs = await call('get', '/api/queues/:queueName/:jobId/logs', { queueName: NAME, jobId: good });
            const workers = await call('get', '/api/queues/:queueName/workers', { queueName: NAME });
            const retry = await call('put', '/api/queues/:queueName/:jobId/retry', { queueName: NAME, jobId: bad });
            return { counts: [failed.counts.completed, failed.counts.failed], failed: failed.jobs.map((job) => [job.id, job.failedReason]),
                     completed: completed.jobs.map((job) => [job.id, job.returnValue]), logs: logs.body, workers: workers.body.workers ?? workers.body, retry: retry.status ?? 200 };""",
            good=good, bad=bad)
        assert found["counts"] == [1, 1] and found["failed"] == [[bad, "exit code 1"]] and found["completed"] == [[good, [1]]], found
        assert found["logs"] == ["a row"] and len(found["workers"]) == 1 and found["retry"] in (200, 204), found
        bench.wait_state(bad, "completed")


def test_a_cluster(mandor, stocks_of):
    """[49] All keys of a queue lie in one slot: the worker knows another node, and is sent to the one that has it."""
    with contextlib.ExitStack() as stack:
        args = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
        first, second = (stack.enter_context(Redis(mandor.tmp / name, *args)) for name in ("a", "b"))
        second.cli("CLUSTER", "ADDSLOTS", *range(16384))
        first.cli("CLUSTER", "MEET", "127.0.0.1", second.port)
        for node_ in (first, second):
            wait_for(lambda: "cluster_state:ok" in (info := node_.cli("CLUSTER", "INFO")) and "cluster_slots_assigned:16384" in info, 20, "the cluster")
        place = types.SimpleNamespace(port=second.port, url=lambda **_: f"bullmq+cluster://127.0.0.1:{first.port}?prefix=%7Bapp%7D&name=w")
        bench = bullmq.Bench(mandor, place, stocks_of(second.port), "q")
        bench.prefix = "{app}"
        with bench.worker(concurrency=2):
            found = bench.js("""const e = await events(NAME, { prefix: PREFIX });
                const jobs = [await q.add('n', works), await q.add('n', works, { delay: 100, priority: 2 }), await q.add('n', second, { attempts: 2, backoff: 50 })];
                const tree = await flow({ prefix: PREFIX }).add({ name: 'p', queueName: NAME, data: works, children: [{ name: 'c', queueName: NAME, data: works }] });
                return [await Promise.all([...jobs, tree.job].map((job) => job.waitUntilFinished(e, 30000))), (await q.getWorkers()).length, await q.getJobCounts('completed', 'active', 'wait')];""",
                works=sh(say(result=1)), second=sh(f"[ $MANDOR_ATTEMPT = 2 ] && {say(result=2)}"))
            assert found == [[1, 1, 2, 1], 1, {"completed": 5, "active": 0, "wait": 0}]
            assert bench.mandor.ok("show", "q:1", "--json").json()["state"] == "completed"


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
        worker.says("ghost")
        assert bench6.keys("active", "wait") == [None, None]


def test_cut_connections_and_flushed_scripts(bench6):
    """[50] Nothing is lost or run twice; the worker is listed again."""
    ran = bench6.mandor.tmp / "ran"
    with bench6.worker(concurrency=4, name="w"):
        bench6.js("await q.addBulk(Array.from({ length: 120 }, () => ({ name: 'n', data })));", data=sh(f"echo $MANDOR_JOB_ID >>{ran}; sleep 0.01"))
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
        assert len(bench6.events("completed")) == 120 and not bench6.events("stalled")
        assert sorted(ran.read_text().split(), key=int) == [str(i + 1) for i in range(120)]


def test_a_full_server_at_the_finish_loses_neither_job_nor_result_R79(mandor, tmp_path):
    """Ends are written when there is room again; locks hold meanwhile, so nothing runs twice."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(6, server.port)
    bench = bullmq.Bench(mandor, server, stock, "q")
    go = mandor.tmp / "go"
    try:
        with bench.worker(concurrency=2, lock="6s") as worker:
            jobs = [bench.add(f"while [ ! -e {go} ]; do sleep 0.02; done; " + say(result=i)) for i in range(2)]
            for job in jobs:
                bench.wait_state(job, "active")
            bench.js("await r.config('SET', 'maxmemory', '1mb');")
            go.touch()
            wait_for(lambda: "trying again" in worker.stderr, 10)
            time.sleep(7)  # longer than a lock that is not renewed
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
            bench.js("await q.addBulk(Array.from({ length: 100 }, () => ({ name: 'n', data })));", data=sh(f"echo $MANDOR_JOB_ID >>{mandor.tmp}/ran; sleep 0.02"))
            wait_for(lambda: bench.js("return await r.zcard(K('completed'));") > 20, 30)
            server.proc.send_signal(signal.SIGSTOP)
            time.sleep(5)
            server.proc.send_signal(signal.SIGCONT)
            wait_for(lambda: bench.js("return await r.zcard(K('completed'));") == 100, 60)
            done = [f["jobId"] for _, f in bench.events("completed")]
            assert len(done) == len(set(done)) == 100 and not bench.events("stalled")
            assert sorted((mandor.tmp / "ran").read_text().split(), key=int) == [str(i + 1) for i in range(100)]
    finally:
        stock.stop()
        server.stop()


def test_an_end_that_the_server_has_lost_is_written_again(mandor, tmp_path):
    """Killed, or replaced by a replica that was behind, it goes back to an earlier state: the job is active, and nobody has it."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(6, server.port)
    bench = bullmq.Bench(mandor, server, stock, "q")
    go, ran = mandor.tmp / "go", mandor.tmp / "ran"
    script = f"echo $MANDOR_JOB_ID >>{ran}; until [ -e {go} ]; do sleep 0.02; done; "
    try:
        with bench.worker(concurrency=3) as worker:
            jobs = [bench.add(script + say(result=7)), bench.add(script + "exit 1"), bench.add(script, removeOnComplete=True)]
            for job in jobs:
                bench.wait_state(job, "active")
            bench.js("await r.save();")
            go.touch()
            bench.wait_state(jobs[0], "completed")
            bench.wait_state(jobs[1], "failed")
            bench.wait_state(jobs[2], "unknown")
            for _ in range(2):
                server.stop()
                server.start()
                bench.wait_state(jobs[0], "completed")
                bench.wait_state(jobs[1], "failed")
                bench.wait_state(jobs[2], "unknown")
            assert bench.hash(jobs[0])["returnvalue"] == "7" and bench.keys("active", "wait", "stalled") == [None] * 3
            wait_for(lambda: worker.stderr.count("had lost the end of job") == 6, 10, "a word about each")
        assert sorted(ran.read_text().split()) == sorted(jobs)
    finally:
        stock.stop()
        server.stop()


@pytest.mark.parametrize("end", ["removed", "refused"])
def test_an_end_whose_answer_is_lost_is_no_lost_job(bench6, end):
    """What has become of it is looked up; nobody reads that somebody else has it."""
    lost, what = [], {"removed": b"\r\ncompleted\r\n", "refused": b"\r\nfailed\r\n"}[end]

    def lose(request):
        if lost or what not in request:
            return False
        lost.append(request)
        return True
    job = bench6.add("true", removeOnComplete=True)
    if end == "refused":
        bench6.js("await r.hset(K(id), 'opts', '{');", id=job)
    with Proxy(bench6.server.port) as proxy:
        proxy.lose = lose
        with bench6.worker("--broker", f"bullmq://127.0.0.1:{proxy.port}") as worker:
            bench6.wait_state(job, {"removed": "unknown", "refused": "failed"}[end])
            after = bench6.add("true")
            bench6.wait_state(after, "completed")
            wait_for(lambda: lost, 5, "an answer to lose")
            for word in ("was not written", "lease lost", "could not renew", "given"):
                assert word not in worker.stderr, worker.stderr
    assert len(bench6.events("completed" if end == "removed" else "failed")) == {"removed": 2, "refused": 1}[end]


def test_a_stop_does_not_wait_for_ever_for_a_server_that_stands_still(mandor, tmp_path):
    """The result is given up; what the server has not carried out when it goes on is recovered as stalled."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(6, server.port)
    bench = bullmq.Bench(mandor, server, stock, "q")
    bench.config.write_text(json.dumps({"shutdown_timeout": "30m", "queues": {"q": {"allow_exec": True}}}))
    go, over = mandor.tmp / "go", mandor.tmp / "over"
    try:
        with bench.worker() as worker:
            job = bench.add(f"until [ -e {go} ]; do sleep 0.02; done; echo >>{over}")
            wait_for(lambda: mandor.ok("show", f"q:{job}", "--json").json()["phase"] == "running", 10)
            server.proc.send_signal(signal.SIGSTOP)
            go.touch()
            wait_for(over.exists, 10, "the job to end")
            worker.signal(signal.SIGTERM)
            assert worker.wait(timeout=120) == 125
            assert "not settled (exit code 0)" in worker.stderr and "does not answer" in worker.stderr
        server.proc.send_signal(signal.SIGCONT)
        bench.js("await r.del(K('stalled-check'), K(id + ':lock'));", id=job)
        with bench.worker(stalled_interval="300ms"):
            bench.wait_state(job, "completed")
    finally:
        stock.stop()
        server.stop()


def test_a_queue_that_a_reload_brings_is_served_like_the_others(bench):
    """Its worker is listed, and a job does not wait for the next look."""
    other = bench.name + "-o"
    with bench.mandor.worker("--broker", bench.url(name="w"), "--concurrency", "1") as worker:
        bench.wait_state(bench.add("true"), "completed")
        bench.configure(bench.name, other)
        worker.signal(signal.SIGHUP)
        wait_for(lambda: bench.js("return await (kept.o ??= queue(other)).getWorkersCount();", other=other) == 1, 10, "the worker to be listed")
        delays = bench.js("""const delays = [];
            for (let i = 0; i < 3; i++) {
                await until(async () => (await r.client('LIST')).split('\\n').filter((line) => line.includes('cmd=bzpopmin')).length === 2);
                const job = await kept.o.add('n', data);
                await until(async () => await job.isCompleted());
                const row = await r.hgetall(`${PREFIX}:${other}:${job.id}`);
                delays.push(row.processedOn - row.timestamp);
            }
            return delays;""", other=other, data=sh("true"))
        assert sorted(delays)[1] < 2500, delays


@pytest.mark.parametrize("count, kills", (pytest.param(200, 4, id="few"), pytest.param(5000, 60, id="many", marks=pytest.mark.soak)))
def test_a_mixed_fleet_survives_kills(bench, count, kills):
    """Stock workers and ours on one queue, either killed at random: every job is completed once, and none is started anew but after it was found stalled."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    stock_worker = f"""import {{ Worker }} from '{'bullmq' if bench.major == 6 else 'bullmq5'}';
        new Worker({json.dumps(bench.name)}, async () => {{ await new Promise((done) => setTimeout(done, 10)); return 'stock'; }},
            {{ connection: {{ host: '127.0.0.1', port: {bench.server.port}, maxRetriesPerRequest: null }}, concurrency: 4, lockDuration: 6000,
               stalledInterval: 1000, maxStalledCount: 100 }});"""
    bench.js("""await q.waitUntilReady(); await q.close();
        kept.q = queue(NAME, { streams: { events: { maxLen: 1000000 } } });
        await until(async () => await r.hget(K('meta'), 'opts.maxLenEvents') === '1000000');
        await kept.q.pause();
        for (let i = 0; i < count; i += 500) await kept.q.addBulk(Array.from({ length: Math.min(500, count - i) }, () => ({ name: 'n', data, opts: { attempts: 5 } })));""",
        count=count, data=sh("sleep 0.05"))
    finished = lambda: bench.js("return await r.zcard(K('completed'));")
    with contextlib.ExitStack() as stack:
        start = {"mandor": lambda: stack.enter_context(bench.worker(concurrency=2, lock="6s", stalled_interval="1s", max_stalled=100)),
                 "stock": lambda: bench.mandor.spawn(["node", "--input-type=module", "-e", stock_worker], cwd=str(bullmq.HERE))}
        running = {kind: begin() for kind, begin in start.items()}
        wait_for(lambda: bench.js("return (await q.getWorkers()).length;") == 2, 20, "both to be there")
        bench.js("await q.resume();")
        victims = ["mandor", "stock"] + [dice.choice(("mandor", "stock")) for _ in range(kills - 2)]
        for turn, victim in enumerate(victims, 1):
            wait_for(lambda: finished() >= turn * count // (kills + 1), 120, "progress")
            time.sleep(dice.random() / 10)  # at any moment of what it does
            running[victim].kill(**({"guard": False} if victim == "mandor" else {}))
            if victim == "stock":
                running[victim].wait()
            running[victim] = start[victim]()
        wait_for(lambda: finished() == count, 120, "all jobs")
        assert not any(bench.keys("active", "wait", "failed", "delayed"))
        rows = bench.js("return await Promise.all((await r.zrange(K('completed'), 0, -1)).map((id) => r.hmget(K(id), 'returnvalue', 'atm', 'ats', 'stc')));")
        assert {"null", '"stock"'} == {value for value, *_ in rows}
        assert all(made == "1" and int(started) == 1 + int(stalled or 0) for _, made, started, stalled in rows), [row for row in rows if row[1:] != ["1", "1", None]]
        events = collections.Counter((name, f["jobId"]) for _, name, f in bench.stamped() if name in ("completed", "stalled", "failed"))
        stalls = sum(int(stalled or 0) for *_, stalled in rows)
        assert len([1 for name, _ in events if name == "completed"]) == count == sum(n for (name, _), n in events.items() if name == "completed")
        assert sum(n for (name, _), n in events.items() if name == "stalled") == stalls > 0 and not [1 for name, _ in events if name == "failed"]
        print(f"{count} jobs, {victims.count('mandor')} times mandor and {victims.count('stock')} times the stock worker killed, {stalls} jobs stalled")


# ---- what is not a command --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(snakes.why_not()), reason=snakes.why_not() or "-")
def test_stock_producers_run_python(bench6):
    """{code, params} from anywhere, in a sandbox: results arrive, a busy loop is stopped alone, and the next job sees nothing of it."""
    bench6.config.write_text(json.dumps({"python": {"runtimes": {"data": {}}},
                                         "queues": {bench6.name: {"executor": "python", "runtime": "data", "timeout": "15s"}}}))
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
