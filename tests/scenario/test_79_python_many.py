"""Many Python jobs, a third of them hostile; much output from one."""
import os

import pytest

from harness import SOAK, fd_count, hwm_bytes, rss_bytes
from snakes import job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

HOSTILE = [
    ("import os\nos.abort()", {}, ("signal",)),
    ("x = []\nfor i in range(200000): x = [x]\nrepr(x)", {}, ("signal",)),
    ("while True: pass", {"timeout": "200ms", "kill_after": "100ms"}, ("timeout",)),
    ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", {"timeout": "200ms", "kill_after": "100ms"}, ("timeout",)),
    ("l = []\nwhile True: l.append(bytearray(1 << 20))", {"limits": {"memory": "16M"}}, ("exit", "oom")),
    ("while True: print('x' * 1000)", {"output_max": "64K", "kill_after": "100ms"}, ("limit",)),
    ("import os\nfor i in range(100):\n    try: os.fork()\n    except OSError: pass\nraise SystemExit(9)", {}, ("exit",)),
    ("import ctypes\nctypes.memset(0xfffffff0, 1, 100)", {}, ("signal",)),
]


@pytest.mark.limit(300)
def test_many_jobs_a_third_of_them_hostile_and_every_honest_one_is_right(tmp_path):
    count = 20000 if SOAK else 600
    with snakes_in(tmp_path, {"default": {"spare": 4}}, concurrency=16) as it:
        worker = it.mandor.stats()["live"][0]["pid"]
        it.run(*["1"] * 32)
        fds, rss = fd_count(worker), rss_bytes(worker)
        jobs, expected = [], []
        for n in range(count):
            if n % 3 == 2:
                code, keys, causes = HOSTILE[n // 3 % len(HOSTILE)]
                jobs.append(job(code, **keys))
                expected.append(causes)
            else:
                jobs.append(job("print(params['n'], end='')\nparams['n'] * 2", params={"n": n}))
                expected.append(n)
        ids = it.mandor.add_many(jobs)
        it.mandor.run("wait", *ids, timeout=280 * (60 if SOAK else 1))
        records = {r["id"]: r for r in it.mandor.list("--limit", str(count + 100))}
        for one, what in zip(ids, expected):
            record = it.mandor.show(one) if one not in records or "result" not in records[one] else records[one]
            if isinstance(what, int):
                assert record["state"] == "completed" and record["result"] == what * 2, record
                assert record["streams"]["stdout"]["bytes"] == len(str(what))
            else:
                assert record["state"] == "failed" and record["cause"] in what, (what, record)
        it.wait_ready()
        assert it.runtimes()["default"]["deaths"] == 0
        assert fd_count(worker) <= fds + 24, "descriptors of the worker have grown"
        assert rss_bytes(worker) <= rss + (24 << 20)


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
        """, stdout=f"file:{out}", timeout="250s", deadline=260)
        assert record["state"] == "completed" and record["streams"]["stdout"]["bytes"] == mib << 20, record
        assert hwm_bytes(worker) - before < 48 << 20
    block = bytes(i % 251 for i in range(1 << 20))
    with open(out, "rb") as file:
        for n in range(mib):
            assert file.read(1 << 20) == n.to_bytes(4, "big") + block[4:], f"MiB {n} is not what was written"
        assert file.read(1) == b""
    os.unlink(out)
