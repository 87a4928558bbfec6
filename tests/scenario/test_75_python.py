"""Python jobs: code, parameters, results, tracebacks, ends, time and memory, on copies of one started interpreter."""
import base64
import json
import os
import signal

import pytest

from harness import wait_for
from snakes import configure, job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@pytest.fixture(scope="module")
def snakes(tmp_path_factory):
    with snakes_in(tmp_path_factory.mktemp("snakes")) as it:
        yield it


# ---- code and result ----


def test_the_last_expression_or_the_name_result_is_the_result(snakes):
    records = snakes.run("1 + 1", "result = {'a': [1, None]}", "x = 5", "result = 3\nprint('hi')", job("params['n'] * 2", params={"n": 21}),
                         job("n * 3", params={"n": 2}, bind_params=True), "import asyncio\nawait asyncio.sleep(0.01)\n'slept'",
                         "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return 7\nasyncio.run(main())")
    assert [r["state"] for r in records] == ["completed"] * len(records), records
    assert [r["result"] for r in records] == [2, {"a": [1, None]}, None, 3, 42, 6, "slept", 7]
    assert {r["containment"] for r in records} <= {"cgroup", "group"}
    assert {r["exit_code"] for r in records} == {0}


def test_results_follow_the_rules_of_json(snakes):
    got = snakes.result("""
        import dataclasses, datetime, decimal, enum, pathlib, uuid
        @dataclasses.dataclass
        class Point:
            x: int
            y: float
        class Colour(enum.Enum):
            RED = "red"
        {"bytes": b"\\x00\\xff", "nan": float("nan"), "inf": [float("inf")], "tuple": (1, 2), "set": {3}, "when": datetime.datetime(2026, 1, 2, 3, 4, 5),
         "day": datetime.date(2026, 1, 2), "point": Point(1, 2.5), "big": 2**53 + 1, "huge": 2**70, 5: "five", (1, 2): "pair", "enum": Colour.RED,
         "path": pathlib.PurePosixPath("/a"), "dec": decimal.Decimal("1.10"), "text": "ä\\u2028😀", "bool": True, "none": None}
    """)
    assert got == {"bytes": base64.b64encode(b"\0\xff").decode(), "nan": None, "inf": [None], "tuple": [1, 2], "set": [3], "when": "2026-01-02T03:04:05",
                   "day": "2026-01-02", "point": {"x": 1, "y": 2.5}, "big": 2**53 + 1, "huge": str(2**70), "5": "five", "(1, 2)": "pair", "enum": "red",
                   "path": "/a", "dec": "1.10", "text": "ä\u2028😀", "bool": True, "none": None}


def test_a_result_that_json_cannot_hold_fails_the_job_naming_type_and_path(snakes):
    records = snakes.run("{'a': [1, {'b': object()}]}", "x = []\nx.append(x)\nx", "['a\\0b']", "{'k': 'a\\ud800'}", "{'d': {1: 'a', '1': 'b'}}")
    assert [r["state"] for r in records] == ["failed"] * 5, records
    assert "a[1].b is of type 'object'" in records[0]["error"]
    assert "nested deeper than 200 levels" in records[1]["error"]
    assert "[0] is text with a NUL character" in records[2]["error"]
    assert "k is text with half a character" in records[3]["error"]
    assert records[4]["error"] == "ResultError: d has two keys that are both '1' in JSON"


def test_a_python_error_is_the_jobs_error_with_the_tenants_own_lines_alone(snakes):
    record = snakes.one("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert (record["state"], record["cause"], record["exit_code"]) == ("failed", "exit", 1), record
    assert record["error"].splitlines() == [
        "Traceback (most recent call last):", '  File "job.py", line 4, in <module>', "    f(0)", "    ~^^^", '  File "job.py", line 2, in f',
        "    return 1 / x", "           ~~^~~", "ZeroDivisionError: division by zero"]
    assert record["streams"]["stderr"]["tail"].strip() == record["error"]

    syntax, chained, awaited = snakes.run("x = (1,\n", "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('no') from e",
                                          "import asyncio\nasync def g():\n    await asyncio.sleep(0)\n    raise OSError('late')\nawait asyncio.gather(g())")
    assert syntax["error"].splitlines()[0] == '  File "job.py", line 1' and "SyntaxError" in syntax["error"]
    assert "KeyError: 'k'" in chained["error"] and 'File "job.py", line 4' in chained["error"]
    for record in (syntax, chained, awaited):
        for word in ("mandor", "pyodide", "host.py", ".mjs", "eval("):
            assert word not in record["error"], record["error"]


def test_no_exception_is_lost_whatever_its_words_hold(snakes):
    """Half characters, NUL, a traceback of many lines, streams that the job has taken away."""
    many = "def f(n):\n    g(n)\ndef g(n):\n    f(n)\nf(1)"
    records = snakes.run("raise ValueError('\\ud800 lone')", "raise ValueError('a\\0b')", many, "raise ValueError('é\U0001f600' * 20000 + ' end')", "import sys\ndel sys.stdout, sys.stderr\n1 / 0",
                         "import sys\nsys.stderr = None\n1 / 0", "import sys\ndel sys.stdout\n'well'")
    ends = ["ValueError: \\ud800 lone", "ValueError: a\\x00b", "RecursionError: maximum recursion depth exceeded", "é\U0001f600" * 100 + " end", "division by zero", "division by zero"]
    for end, record in zip(ends, records):
        assert (record["state"], record["exit_code"]) == ("failed", 1) and record["error"].endswith(end), (end, record)
    assert records[2]["error"].startswith("Traceback (most recent call last):\n") and len(records[2]["error"]) < 17000
    assert records[5]["streams"]["stdout"]["bytes"] == 0, "a traceback is no output"
    assert records[6]["result"] == "well", records[6]


def test_code_is_read_as_an_editor_shows_it(snakes):
    """A byte order mark, ends of lines of Windows, and characters that only str.splitlines() takes for an end."""
    text = "x = '''\f\x1c\u2028\x85'''\ndef f():\n    return 1 / len([])  # here\nf()"
    mark, odd = snakes.run("\ufeffx = 1\r\nx + 1\r\n", text)
    assert mark["result"] == 2, mark
    assert 'line 4, in <module>\n    f()\n' in odd["error"] and 'line 3, in f\n    return 1 / len([])  # here\n' in odd["error"], odd


def test_every_way_to_exit_maps_to_its_own_end(snakes):
    ends = {
        "import sys\nsys.exit()": ("completed", "exit", 0, 0),
        "import sys\nsys.exit(0)": ("completed", "exit", 0, 0),
        "import sys\nsys.exit(3)": ("failed", "exit", 3, 0),
        "import os\nos._exit(5)": ("failed", "exit", 5, 0),
        "import sys\nsys.exit('words')": ("failed", "exit", 1, 0),
        "exit(4)": ("failed", "exit", 4, 0),
        "import asyncio, sys\nasync def t():\n    sys.exit(6)\nasyncio.ensure_future(t())\nawait asyncio.sleep(5)": ("failed", "exit", 6, 0),
        "raise KeyboardInterrupt": ("failed", "exit", 1, 0),
        "import os\nos.abort()": ("failed", "signal", -1, signal.SIGABRT),
        "import sys\nsys.exit(2 ** 70)": ("failed", "exit", 255, 0),
        "x = []\nfor i in range(200000): x = [x]\nrepr(x)": ("failed", "signal", -1, signal.SIGABRT),
    }
    records = snakes.run(*ends)
    for record, (code, (state, cause, exit_code, number)) in zip(records, ends.items()):
        assert (record["state"], record["cause"]) == (state, cause), (code, record)
        assert (record["exit_code"] if exit_code >= 0 else -1, record["signal"] or 0) == (exit_code, number), (code, record)
    assert records[4]["streams"]["stderr"]["tail"] == "words\n"
    assert "Maximum call stack size exceeded" in records[-1]["error"]


def test_the_standard_library_is_compiled_already_and_its_source_is_at_hand(snakes):
    compiled, source = snakes.result("""
        import inspect, plistlib
        plistlib.__file__, inspect.getsource(plistlib.loads)
    """)
    assert compiled.endswith("plistlib.pyc") and source.startswith("def loads("), (compiled, source)


# ---- streams ----


def test_a_job_speaks_writes_and_reads(snakes):
    record = snakes.one("""
        import mandor, sys
        mandor.progress({"done": 3})
        mandor.log("half", "way")
        mandor.log("odd \\0 \\ud800")
        print("text", end="")
        mandor.write(b"\\x00\\xff")
        sys.stderr.write("complaint")
        mandor.read().decode()
    """, stdin="inline:from outside")
    assert record["state"] == "completed" and record["result"] == "from outside", record
    assert record["progress"] == {"done": 3}
    assert snakes.mandor.logs_of(record["id"]) == b"text\0\xff"
    assert record["streams"]["stderr"]["tail"] == "complaint"
    snakes.worker.says("job says: half way")
    snakes.worker.says(r"job says: odd \\x00 \\ud800")


def test_without_stdin_reading_is_the_end_of_file(snakes):
    record = snakes.one("input()")
    assert record["state"] == "failed" and record["error"].endswith("EOFError: EOF when reading a line"), record


# ---- the command line ----


def test_add_takes_code_from_a_file_or_stdin(snakes, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("params['x'] + 1\n")
    mandor = snakes.mandor
    one = mandor.ok("add", "--python", str(script), "--params", '{"x": 1}').text.strip()
    two = mandor.ok("add", "--python", "-", input="'from stdin'").text.strip()
    three = mandor.ok("add", "--python", str(script), "--params", '{"x": 1}', "--runtime", "nowhere").text.strip()
    mandor.run("wait", one, two, three)
    assert mandor.show(one)["result"] == 2 and mandor.show(two)["result"] == "from stdin"
    assert "no runtime 'nowhere' here, expected one of 'default'" in mandor.show(three)["error"]
    for args, words in ((["--python", "gone.py"], "gone.py"), (["--python", str(script), "--params", "{"], "--params"),
                        (["--params", "{}"], "--python"), (["--python", str(script), "--", "true"], "--python")):
        done = mandor.run("add", *args)
        assert done.code == 2 and words in done.complaint, done


# ---- time ----

TIDY = """
import asyncio, mandor, time
try:
    mandor.log("began", params)
    {}
finally:
    print("tidied")
"""


def test_what_runs_too_long_is_interrupted_wherever_it_waits_and_may_tidy_up_R93_R94_R109(snakes):
    bodies = ["while True: pass", "time.sleep(600)", "await asyncio.sleep(600)", "await asyncio.Future()", "[x for x in iter(int, 1)]",
              "asyncio.run(asyncio.sleep(600))", "while True: time.sleep(0.01)"]
    mandor = snakes.mandor
    ids = mandor.add_many([job(TIDY.format(body), params=f"{n}.", kill_after="60s", timeout="10m") for n, body in enumerate(bodies)])
    for n, (body, one) in enumerate(zip(bodies, ids)):
        wait_for(lambda: f"began {n}." in snakes.worker.stderr, 100, f"'{body}' to begin")
        mandor.ok("cancel", one, "--wait")
        record = mandor.show(one)
        assert (record["state"], record["cause"]) == ("cancelled", "cancelled"), (body, record)
        assert mandor.logs_of(one, "--stdout") == b"tidied\n", (body, record)


def test_an_interrupt_is_not_lost_between_a_look_at_the_flag_and_its_reset_R93(snakes):
    """Of each hundred one or two were, while Pyodide wrote what it had not read."""
    records = snakes.run(*[job("while True: pass", timeout=f"{30 + n % 50}ms", kill_after="10s") for n in range(150)])
    assert {(r["cause"], r["signal"]) for r in records} == {("timeout", None)}, [r["error"] for r in records]


def test_a_timeout_is_the_jobs_end(snakes):
    record = snakes.one("import time\ntime.sleep(600)", timeout="500ms")
    assert (record["state"], record["cause"], record["error"]) == ("failed", "timeout", "timeout of 500ms"), record


def test_what_will_not_be_interrupted_is_killed_and_the_next_job_is_well_R93(snakes):
    bodies = ["while True:\n    try:\n        while True: pass\n    except BaseException: pass", "sum(iter(int, 1))",
              "import re\nre.match('(a|a)*b', 'a' * 40) if False else sorted(iter(int, 1))"]
    records = snakes.run(*(job(body, timeout="300ms", kill_after="300ms") for body in bodies), "6 * 7")
    for body, record in zip(bodies, records):
        assert (record["state"], record["cause"]) == ("failed", "timeout"), (body, record)
        assert "killed after the grace period" in record["error"] or record["signal"] != 9
    assert records[-1]["result"] == 42


def test_a_flood_into_a_full_pipe_can_be_cancelled_and_nothing_comes_after_R95(snakes):
    mandor = snakes.mandor
    out = mandor.tmp / "flood"
    os.mkfifo(out)
    reader = os.open(out, os.O_RDWR | os.O_NONBLOCK)
    try:
        one = mandor.add_many([job("import mandor\nmandor.progress(1)\nwhile True: print('x' * 1000)", output_max="256K", timeout="200s", kill_after="5s"),
                               job("while True: print('y' * 1000)", timeout="1s", stdout="null:")])
        mandor.run("wait", *one)
        records = [mandor.show(job_id) for job_id in one]
    finally:
        os.close(reader)
    assert (records[0]["state"], records[0]["cause"]) == ("failed", "limit"), records[0]
    assert (records[1]["state"], records[1]["cause"]) == ("failed", "timeout"), records[1]
    assert records[0]["streams"]["stdout"]["bytes"] <= 512 << 10


def test_cancel_ends_a_sleeping_job(snakes):
    mandor = snakes.mandor
    one = mandor.add_many([job("import time\ntime.sleep(600)")])[0]
    mandor.wait_phase(one, "running")
    mandor.ok("cancel", one, "--wait")
    record = mandor.show(one)
    assert (record["state"], record["cause"]) == ("cancelled", "cancelled"), record


# ---- memory and processor time ----


def test_who_takes_too_much_memory_fails_alone_with_pythons_own_error(snakes):
    limits = {"memory": "64M"}
    records = snakes.run(
        job("l = []\ntry:\n    while True: l.append(bytearray(1 << 20))\nexcept MemoryError:\n    n = len(l)\n    l = None\n[n > 30, n < 80, sum(range(10))]", limits=limits),
        job("l = []\nwhile True: l.append(bytearray(1 << 20))", limits=limits), job("len(bytearray(20 << 20))", limits=limits),
        job("from pyodide.ffi import to_js\nl = []\nwhile True: l.append(to_js(bytes(1 << 20)))", limits=limits, timeout="150s"))
    assert records[0]["result"] == [True, True, 45], records[0]
    assert records[1]["state"] == "failed" and records[1]["error"].endswith("MemoryError"), records[1]
    assert records[2]["result"] == 20 << 20
    assert records[3]["state"] == "failed" and (records[3]["cause"] in ("oom", "exit")), records[3]
    assert all(r["limits_enforced"] == {"memory": True} for r in records)


def test_processor_time_is_bounded(snakes):
    record = snakes.one("while True: pass", limits={"cpu_time": "1s"}, timeout="150s")
    assert (record["state"], record["cause"]) == ("failed", "limit") and "cpu_time" in record["error"], record


def test_a_share_of_the_processor_takes_a_copy_of_its_own(snakes):
    record = snakes.one("1", limits={"cpu": 0.5}, limits_policy="best_effort")
    assert record["state"] == "completed" and "cpu" in record["limits_enforced"], record


@pytest.mark.parametrize("call, name", [
    ("os.system('true')", "OSError"), ("os.popen('true')", "OSError"), ("subprocess.run(['true'])", "OSError"), ("os.fork()", "OSError"),
    ("os.execv('/bin/true', ['true'])", "OSError"), ("threading.Thread(target=print).start()", "RuntimeError"),
    ("socket.create_connection(('127.0.0.1', 1))", "OSError")])
def test_what_there_is_not_says_so(snakes, call, name):
    record = snakes.one(f"import os, socket, subprocess, threading\n{call}")
    assert record["state"] == "failed" and record["error"].splitlines()[-1].startswith(name), record


# ---- what copies do not share ----


def test_copies_do_not_share_chance(snakes):
    code = """
        import os, random, secrets, tempfile, uuid
        [random.random(), random.getrandbits(64), str(uuid.uuid1()), str(uuid.uuid4()), next(tempfile._get_candidate_names()), secrets.token_hex(8), os.urandom(8).hex()]
    """
    rows = [r["result"] for r in snakes.run(*[job(code)] * 6)]
    for column in zip(*rows):
        assert len(set(column)) == len(rows), column


def test_a_job_finds_nothing_of_another_R98(snakes):
    plant = """
        import asyncio, builtins, json, os, sys, warnings
        builtins.planted = json.planted = 1
        json.dumps = None
        os.environ["PLANTED"] = "1"
        os.makedirs("/tmp/planted")
        os.chdir("/tmp/planted")
        sys.path.append("/planted")
        sys.modules["planted"] = sys
        asyncio.get_event_loop().call_later(0.05, print, "from the other job")
        print("unflushed", end="")
    """
    look = """
        import asyncio, builtins, json, os, sys
        await asyncio.sleep(0.2)
        [hasattr(builtins, "planted"), hasattr(json, "planted"), json.dumps([1]), "PLANTED" in os.environ, os.path.exists("/tmp/planted"), os.getcwd(),
         "/planted" in sys.path, "planted" in sys.modules]
    """
    records = snakes.run(plant, look, plant, look)
    for record in records[1::2]:
        assert record["result"] == [False, False, "[1]", False, False, "/home/pyodide", False, False], record
        assert record["streams"]["stdout"]["bytes"] == 0
    # on a busy machine the job is still there when its own call comes
    assert records[0]["streams"]["stdout"]["bytes"] in (len("unflushed"), len("unflushed" + "from the other job\n"))


def test_a_result_over_its_bound_is_the_jobs_failure(tmp_path):
    with snakes_in(tmp_path, {"default": {"result_max": "1K", "spare": 1}}) as it:
        over, under = it.run("'x' * 2000", "'x' * 1000")
        assert (over["state"], over["cause"]) == ("failed", "limit") and "2002 bytes" in over["error"], over
        assert under["result"] == "x" * 1000

        # ---- and while we have a worker of our own: its server dies
        server = it.runtimes()["default"]["servers"][0]["pid"]
        ids = it.mandor.add_many([job("import time\ntime.sleep(10)\n'second try' if False else 1", attempts=3, backoff={"type": "fixed", "delay": "10ms"})])
        it.mandor.wait_phase(ids[0], "running")
        os.kill(server, signal.SIGKILL)
        record = it.mandor.wait_state(ids[0], "completed", "failed", deadline=60)
        assert record["state"] == "completed" and record["attempts_used"] == 2, record
        assert "the fork server of runtime 'default' ended" in record["history"][0]["error"], record
        assert it.runtimes()["default"]["deaths"] == 1


# ---- what may be missing ----


def run_without(mandor, deadline=120, **keys):
    """A Python job and another one; returns their records."""
    ids = mandor.add_many([job("1", attempts=2, **keys), {"exec": ["echo", "hi"]}])
    mandor.drain(timeout=deadline)
    return [mandor.show(one) for one in ids]


def test_what_is_missing_is_one_clear_sentence_and_other_jobs_go_on(mandor, tmp_path):
    configure(mandor, node="/nowhere/node")
    python, echo = run_without(mandor)
    assert (python["state"], python["attempts_used"]) == ("failed", 1), python
    assert python["error"] == "Python jobs cannot run: Node is not at '/nowhere/node' (python.node): No such file or directory"
    assert echo["state"] == "completed"

    configure(mandor)
    mandor.env["MANDOR_ZYGOTE"] = str(tmp_path)
    (tmp_path / "main.mjs").write_text("")
    python, echo = run_without(mandor)
    assert python["state"] == "failed" and "built without the add-on" in python["error"], python
    assert echo["state"] == "completed"
    del mandor.env["MANDOR_ZYGOTE"]

    configure(mandor, {"default": {"packages": ["nothing"]}}, store=str(tmp_path / "store"))
    python, echo = run_without(mandor)
    assert python["state"] == "failed" and "store" in python["error"], python
    assert echo["state"] == "completed"

    wrong = tmp_path / "node"
    wrong.write_text("#!/bin/sh\necho 'this is no Node' >&2\nexit 9\n")
    wrong.chmod(0o755)
    configure(mandor, node=str(wrong))
    ids = mandor.add_many([job("1"), {"exec": ["echo", "hi"]}])
    with mandor.worker() as worker:
        assert mandor.wait_state(ids[1], "completed")
        wait_for(lambda: "this is no Node" in worker.stderr, 20, "the reason in the log")

    wrong.write_text("#!/bin/sh\nexit 0\n")
    mandor.add_many([job("1")])
    with mandor.worker() as worker:
        wait_for(lambda: "has ended without a word: is it Node 20, 22 or 24?" in worker.stderr, 20, "the reason in the log")


def test_copies_map_the_servers_memory_privately_from_a_file_that_nobody_can_open(snakes):
    snakes.wait_ready(spares=1)
    server = snakes.runtimes()["default"]["servers"][0]["pid"]
    code = "import time\nlist(range(10))\ntime.sleep(600)"
    one, = snakes.mandor.add_many([job(code)])
    copy = wait_for(lambda: next((r["pid"] for r in snakes.mandor.stats()["live"][0]["running"] if r["id"] == one and r["pid"]), None), 20, "the copy")
    for pid in (server, copy):
        with open(f"/proc/{pid}/maps") as maps:
            modes = [line.split()[1] for line in maps if "memfd:python" in line]
        assert modes and all(mode.endswith("p") for mode in modes), modes
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            own = next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))
        assert own < 24 << 10, "anonymous memory, KiB, that each fork and each end would count"
        assert not [fd for fd in os.listdir(f"/proc/{pid}/fd") if "memfd" in os.readlink(f"/proc/{pid}/fd/{fd}")]
    snakes.mandor.run("cancel", one)
    snakes.mandor.run("wait", one)
