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
    records = snakes.run("{'a': [1, {'b': object()}]}", "x = []\nx.append(x)\nx", "['a\\0b']")
    assert [r["state"] for r in records] == ["failed"] * 3, records
    assert "a[1].b is of type 'object'" in records[0]["error"]
    assert "nested deeper than 200 levels" in records[1]["error"]
    assert "[0] is text with a NUL character" in records[2]["error"]


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
        "x = []\nfor i in range(200000): x = [x]\nrepr(x)": ("failed", "signal", -1, signal.SIGABRT),
    }
    records = snakes.run(*ends)
    for record, (code, (state, cause, exit_code, number)) in zip(records, ends.items()):
        assert (record["state"], record["cause"]) == (state, cause), (code, record)
        assert (record["exit_code"] if exit_code >= 0 else -1, record["signal"] or 0) == (exit_code, number), (code, record)
    assert records[4]["streams"]["stderr"]["tail"] == "words\n"
    assert "Maximum call stack size exceeded" in records[-1]["error"]


# ---- streams ----


def test_a_job_speaks_writes_and_reads(snakes):
    record = snakes.one("""
        import mandor, sys
        mandor.progress({"done": 3})
        mandor.log("half", "way")
        print("text", end="")
        mandor.write(b"\\x00\\xff")
        sys.stderr.write("complaint")
        mandor.read().decode()
    """, stdin="inline:from outside")
    assert record["state"] == "completed" and record["result"] == "from outside", record
    assert record["progress"] == {"done": 3}
    assert snakes.mandor.logs_of(record["id"]) == b"text\0\xff"
    assert record["streams"]["stderr"]["tail"] == "complaint"
    assert "job says: half way" in snakes.worker.stderr


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
