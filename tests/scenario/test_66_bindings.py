"""Queues that say what their jobs run, and queues with a broker of their own."""
import json

from harness import wait_for


def configure(mandor, **text):
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps(text))
    mandor.env["MANDOR_CONFIG"] = str(path)


def test_a_command_template_is_filled_from_the_data_and_no_shell_sees_it(mandor):
    configure(mandor, queues={"render": {"command": ["printf", "--", "%s|", "{data.url}", "{data.size.w}x{data.size.h}", "{id}"]}})
    data = {"url": "a b; $(touch /tmp/x) 'q'", "size": {"w": 4, "h": 3}}
    job = mandor.ok("add", "--queue", "render", "--data", json.dumps(data)).text.strip()
    short = mandor.ok("add", "--queue", "render", "--data", '{"url": "x"}').text.strip()
    mandor.drain()
    assert mandor.logs_of(job, "--stdout") == f"{data['url']}|4x3|{job}|".encode()
    record = mandor.show(short)
    assert (record["state"], record["attempts_used"]) == ("failed", 1)
    assert "size.w" in record["error"]


def test_a_template_that_cannot_hold_is_refused_with_its_place(mandor):
    configure(mandor, queues={"q": {"command": ["x", "{dat.url}"]}})
    done = mandor.run("work", "--check")
    assert done.code == 2
    assert "queues.q" in done.complaint and "{dat.url}" in done.complaint


def test_data_alone_needs_somebody_who_says_what_to_run(mandor):
    done = mandor.run("add", "--data", "1")
    assert done.code == 2 and "bound" in done.complaint


def test_one_worker_serves_queues_of_two_brokers_with_the_same_ids(mandor):
    one, two = f"sqlite:{mandor.tmp}/one.db", f"sqlite:{mandor.tmp}/two.db"
    configure(mandor, concurrency=2, queues={"a": {"broker": one}, "b": {"broker": two}})
    add = [mandor.ok("add", "--broker", url, "--queue", queue, "--from", "-",
                     input="".join(json.dumps({"exec": ["sh", "-c", f"echo {queue}$MANDOR_JOB_ID"]}) + "\n" for _ in range(20)).encode())
           for url, queue in ((one, "a"), (two, "b"))]
    assert add[0].lines == add[1].lines
    mandor.drain()
    for url, queue in ((one, "a"), (two, "b")):
        for job in add[0].lines:
            assert mandor.ok("logs", job, "--broker", url).text == f"{queue}{job}\n"
        stats = mandor.ok("stats", "--json", "--broker", url).json()
        assert stats["queues"][queue]["completed"] == 20
        assert stats["workers"] == []
    check = mandor.ok("work", "--check").text
    assert "one.db" in check and "two.db" in check


def test_slots_are_shared_between_brokers_and_neither_starves(mandor):
    one, two = f"sqlite:{mandor.tmp}/one.db", f"sqlite:{mandor.tmp}/two.db"
    configure(mandor, concurrency=1, queues={"a": {"broker": one}, "b": {"broker": two}})
    order, gate = mandor.tmp / "order", mandor.tmp / "gate"
    for url, queue in ((one, "a"), (two, "b")):
        lines = [json.dumps({"exec": ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; echo {queue} >>{order}"]}) for _ in range(30)]
        mandor.ok("add", "--broker", url, "--queue", queue, "--from", "-", input="\n".join(lines).encode())
    with mandor.worker("--drain") as worker:
        for url in (one, two):  # either may be slow to come
            wait_for(lambda: mandor.ok("stats", "--json", "--broker", url).json()["workers"], 20, "the worker to be known there")
        wait_for(lambda: any(mandor.ok("stats", "--json", "--broker", url).json()["queues"][queue]["active"] for url, queue in ((one, "a"), (two, "b"))), 20, "the first job")
        gate.touch()
        assert worker.wait(60) == 0
    ran = order.read_text().split()
    assert len(ran) == 60
    assert 5 <= ran[:30].count("a") <= 25, ran


def test_the_kill_of_a_worker_of_two_brokers_loses_nothing(mandor):
    one, two = f"sqlite:{mandor.tmp}/one.db", f"sqlite:{mandor.tmp}/two.db"
    configure(mandor, concurrency=4, queues={"a": {"broker": one}, "b": {"broker": two}})
    ids = {}
    for url, queue in ((one, "a"), (two, "b")):
        job = json.dumps({"exec": ["sh", "-c", "test $MANDOR_ATTEMPT = 2 || sleep 600"], "attempts": 2,
                          "backoff": {"type": "fixed", "delay": "10ms", "jitter": 0}})
        ids[url] = mandor.ok("add", "--broker", url, "--queue", queue, "--from", "-", input=job.encode()).text.strip()
    def running():
        return all(mandor.ok("show", job, "--json", "--broker", url).json()["phase"] == "running" for url, job in ids.items())
    with mandor.worker() as worker:
        wait_for(running, 20, "both jobs")
        worker.kill()
    mandor.drain()
    for url, job in ids.items():
        record = mandor.ok("show", job, "--json", "--broker", url).json()
        assert (record["state"], record["attempt"]) == ("completed", 2), record


def test_long_outputs_and_followers_of_the_same_id_are_kept_apart(mandor):
    one, two = f"sqlite:{mandor.tmp}/one.db", f"sqlite:{mandor.tmp}/two.db"
    configure(mandor, concurrency=2, queues={"a": {"broker": one}, "b": {"broker": two}})
    for url, queue in ((one, "a"), (two, "b")):
        script = (f"echo {queue * 4}; until test -e {mandor.tmp}/go; do echo {queue * 4}; sleep 0.05; done; head -c 200000 /dev/zero | tr '\\0' {queue}; "
                  "echo; echo end")
        mandor.ok("add", "--broker", url, "--queue", queue, "--", "sh", "-c", script)
    with mandor.worker():
        with mandor.background("logs", "-f", "1", "--broker", two) as follower:
            wait_for(lambda: "bbbb" in follower.stderr, 20, "the follower to see its job")
            (mandor.tmp / "go").touch()
            follower.wait()
            assert "aaaa" not in follower.stderr and follower.stderr.rstrip().endswith("end")
        for url, queue in ((one, "a"), (two, "b")):
            mandor.ok("wait", "1", "--broker", url)
            lines = mandor.ok("logs", "1", "--broker", url).lines
            assert set(lines[:-2]) == {queue * 4} and lines[-2:] == [queue * 200000, "end"]
