"""The servers beside the distribution's own: the oldest Redis that is supported, and Valkey.  A walk through everything that speaks to one.

MANDOR_TEST_REDIS=PROGRAM runs any of the other scenarios on one of them."""
import json
import re

import pytest

import bullmq
import redis_server
from bullmq import say, sh
from harness import ROOT, absent, wait_for
from redis_server import Redis

SERVERS = {"redis-6.2": r"Redis 6\.2\.\d+", "valkey": r"Valkey \d+\.\d+\.\d+"}


@pytest.fixture(params=SERVERS)
def software(request, monkeypatch):
    program = ROOT / "tests/servers/bin" / request.param
    if not program.exists():
        pytest.skip(absent(f"no {program} here: script/bootstrap test"))
    monkeypatch.setattr(redis_server, "PROGRAM", str(program))
    return SERVERS[request.param]


@pytest.fixture
def redis(mandor, software):
    with Redis(mandor.tmp / "redis") as server:
        yield server


def test_a_queue_and_its_jobs(mandor, redis, software):
    """Retries, delays, priorities, unique keys, foreign producers, a killed worker, a cancelled job."""
    mandor.env["MANDOR_BROKER"] = f"streams://127.0.0.1:{redis.port}"
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps({"lease": "10s", "queues": {"default": {"allow_exec": True}, "render": {"command": ["echo", "{data.url}"]}}}))
    mandor.env["MANDOR_CONFIG"] = str(path)
    fast = {"type": "fixed", "delay": "10ms", "jitter": 0}
    twice = mandor.add("sh", "-c", "[ $MANDOR_ATTEMPT = 2 ]", attempts=2, backoff=fast)
    late = mandor.add("true", delay="300ms", priority=3)
    once = mandor.add("true", unique="k")
    assert mandor.ok("add", "--unique", "k", "--json", "--", "true").json() == {"id": once, "existing": True}
    redis.cli("XADD", "{mandor}:q:render", "*", "url", "http://x/y z")
    with mandor.worker("--concurrency", "2") as worker:
        for job in (twice, late, once):
            mandor.wait_state(job, "completed")
        foreign = wait_for(lambda: next((row["id"] for row in mandor.list("--state", "completed") if row["queue"] == "render"), None), 10)
        assert mandor.logs_of(foreign, "--stdout") == b"http://x/y z\n" and mandor.show(twice)["attempt"] == 2
        stuck = mandor.add("sleep", "600")
        mandor.wait_phase(stuck, "running")
        worker.kill()
    with mandor.worker():
        wait_for(lambda: mandor.show(stuck)["worker"] and mandor.show(stuck)["state"] in ("active", "failed"), 20)
        mandor.run("cancel", "--wait", stuck)
    assert mandor.show(stuck)["state"] in ("cancelled", "failed")
    assert re.search(f"answers: {software}", mandor.run("doctor").out.decode())


@pytest.mark.skipif(bool(bullmq.missing()), reason=bullmq.missing() or "-")
@pytest.mark.parametrize("major", (5, 6))
def test_a_queue_of_bullmq(mandor, software, tmp_path, major):
    """What a stock producer may ask for: attempts, backoff, delay, priority, a flow, a schedule, deduplication, limits, a pause."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(major, server.port)
    bench = bullmq.Bench(mandor, server, stock, "q")
    try:
        with bench.worker(name="w", concurrency=2, metrics=10):
            found = bench.js("""const e = await events(NAME), f = flow();
                const of = (job) => job.waitUntilFinished(e, 30000).then((value) => value, (error) => error.message);
                const again = await q.add('n', second, { attempts: 2, backoff: 50 }), late = await q.add('n', works, { delay: 100, priority: 3 });
                const bad = await q.add('n', fails);
                const tree = await f.add({ name: 'p', queueName: NAME, data: works, children: [{ name: 'c', queueName: NAME, data: works }] });
                await q.upsertJobScheduler('s', { every: 200, limit: 2 }, { name: 'tick', data: works });
                const one = await q.add('n', slow, { deduplication: { id: 'd' } }), same = await q.add('n', slow, { deduplication: { id: 'd' } });
                const ended = await Promise.all([again, late, bad, tree.job, one].map(of));
                await until(async () => (await q.getJobScheduler('s')).iterationCount === 2);
                await q.pause();
                const paused = await q.add('n', works);
                await q.setGlobalConcurrency(1); await q.setGlobalRateLimit(5, 300);
                await q.resume();
                return [ended, one.id === same.id, await of(paused), (await q.getWorkers()).length, await tree.job.getChildrenValues().then((all) => Object.values(all))];""",
                works=sh(say(result=1)), fails=sh("exit 3"), second=sh(f"[ $MANDOR_ATTEMPT = 2 ] && {say(result=2)}"), slow=sh("sleep 0.2; " + say(result=3)))
            assert found == [[2, 1, "exit code 3", 1, 3], True, 1, 1, [1]]
            bench.mandor.ok("pause", "q")
            bench.mandor.ok("resume", "q")
            added = bench.mandor.ok("add", "--queue", "q", "--", "true").lines[0]
            wait_for(lambda: bench.mandor.ok("show", added, "--json").json()["state"] == "completed", 10)
    finally:
        stock.stop()
        server.stop()


def test_output_and_input(mandor, redis):
    """An entry a frame with a bound, a value, a field; read again by `mandor cat` and as standard input."""
    url = f"redis://127.0.0.1:{redis.port}"
    done = mandor.run("run", "--frame", "lines", "--stdout", f"{url}?stream=s", "--stdout", f"{url}?key=k", "--stdout", f"{url}?hash=h&field=f",
                      "--", "seq", "2000")
    wanted = "".join(f"{i}\n" for i in range(1, 2001))
    assert done.code == 0, done
    assert mandor.ok("cat", f"{url}?stream=s").out.decode() == wanted
    assert redis.cli("GET", "k") + "\n" == redis.cli("HGET", "h", "f") + "\n" == wanted
    assert mandor.ok("run", "--stdin", f"{url}?key=k", "--", "wc", "-l").out == b"2000\n"
