"""Many Python jobs, a third of them hostile; much output from one."""
import hashlib
import os

import pytest

from harness import SOAK, children, fd_count, hwm_bytes, rss_bytes, wait_for
from snakes import job, open_ends, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

HOSTILE = [  # what it does, how it is bounded, how it ends
    ("import os\nos.abort()", {}, ("signal",)),
    ("import os\nos._exit(9)", {}, ("exit",)),
    ("raise SystemExit(3)", {}, ("exit",)),
    ("x = []\nfor i in range(200000): x = [x]\nrepr(x)", {}, ("signal",)),
    ("while True: print('x' * 1000)", {"output_max": "64K", "kill_after": "100ms"}, ("limit",)),
    ("import os\nfor i in range(200):\n    try: os.fork()\n    except OSError: pass\nraise SystemExit(9)", {}, ("exit",)),
    ("import ctypes\nctypes.memset(0xfffffff0, 1, 100)", {}, ("signal",)),
    ("import ctypes\nctypes.memset(0, 65, 16 << 20)", {}, ("signal",)),
]
DEAR = [
    ("while True: pass", {"timeout": "200ms", "kill_after": "100ms"}, ("timeout",)),
    ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", {"timeout": "200ms", "kill_after": "100ms"}, ("timeout",)),
    ("l = []\nwhile True: l.append(bytearray(1 << 20))", {"limits": {"memory": "16M"}}, ("exit", "oom")),
]


def hostile(n):
    """The job and its causes: cheap ones often, dear ones now and then."""
    code, keys, causes = DEAR[n // 10 % len(DEAR)] if n % 10 == 0 else HOSTILE[n % len(HOSTILE)]
    return job(code, attempts=1, **keys), causes


def honest(n):
    """The job, its result and how much it prints."""
    code, result, length = [
        ("[params, sum(range(params))]", [n, sum(range(n))], 0),
        ("import hashlib\n[params, hashlib.sha256(str(params).encode()).hexdigest()]", [n, hashlib.sha256(str(n).encode()).hexdigest()], 0),
        ("print('x' * params, end='')\nparams * 2", n * 2, n),
    ][n % 3]
    return job(code, params=n, timeout="10m"), (result, length)


@pytest.mark.limit(7200 if SOAK else 900)
def test_of_many_jobs_a_third_hostile_nothing_is_left_and_the_honest_are_right_R97(tmp_path):
    with snakes_in(tmp_path, {"default": {"spare": 2}}, concurrency=16) as it:
        mandor, worker = it.mandor, it.worker
        it.run(*["1"] * 20, *[hostile(n)[0] for n in range(1, 9)])
        it.wait_ready(spares=2)
        server = it.runtimes()["default"]["servers"][0]["pid"]
        before = {pid: (rss_bytes(pid), open_ends(pid)) for pid in (worker.pid, server)}
        descriptors = fd_count(worker.pid)
        for start in range(0, 20000 if SOAK else 600, 600):
            jobs, due = zip(*(hostile(n // 3) if n % 3 == 2 else honest(n // 3 * 2 + n % 3) for n in range(start, start + 600)))
            ids = mandor.add_many(jobs)
            mandor.run("wait", *ids, "--timeout", "700s", timeout=720)
            records = {record["id"]: record for record in mandor.list("--limit", "600")}
            for one, expected in zip(ids, due):
                record = records[one]
                if record["state"] == "completed":
                    assert (record["result"], record["streams"]["stdout"]["bytes"]) == expected, record
                else:
                    assert record["state"] == "failed" and record["cause"] in expected, (expected, record)
        it.wait_ready(spares=2)
        runtime = it.runtimes()["default"]
        assert [one["pid"] for one in runtime["servers"]] == [server] and runtime["deaths"] == 0, runtime
        wait_for(lambda: len(children(worker.pid)) <= 1 + 2 + 1, 20, "only the server and its spares")
        for pid, (rss, ends) in before.items():
            wait_for(lambda: open_ends(pid) <= ends, 10, f"descriptors as before: {ends}")
            assert rss_bytes(pid) - rss < 24 << 20, f"{rss} -> {rss_bytes(pid)}"
        wait_for(lambda: fd_count(worker.pid) <= descriptors + 24, 20, "descriptors of the worker as before")  # those of idle control groups too
        assert worker.running()


@pytest.mark.limit(900)
def test_much_output_goes_through_in_bounded_memory_to_the_last_byte(tmp_path, plain_binary):
    mib = 1024 if SOAK else 192
    out = tmp_path / "out"
    with snakes_in(tmp_path, {"default": {"spare": 1}}) as it:
        worker = it.mandor.stats()["live"][0]["pid"]
        before = rss_bytes(worker)
        record = it.one(f"""
            import mandor
            block = bytes(i % 251 for i in range(1 << 20))
            for n in range({mib}):
                mandor.write(n.to_bytes(4, "big") + block[4:])
        """, stdout=f"file:{out}", timeout="600s", deadline=610)
        assert record["state"] == "completed" and record["streams"]["stdout"]["bytes"] == mib << 20, record
        assert hwm_bytes(worker) - before < 48 << 20
    block = bytes(i % 251 for i in range(1 << 20))
    with open(out, "rb") as file:
        for n in range(mib):
            assert file.read(1 << 20) == n.to_bytes(4, "big") + block[4:], f"MiB {n} is not what was written"
        assert file.read(1) == b""
    os.unlink(out)
