"""The worker libraries end to end: real pools of workers in C, Python and Node, which serve the jobs that pool_peer.py describes."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from harness import BINARY, ROOT, absent, wait_for

PYTHON = "/usr/bin/python3"
SDK = ROOT / "sdk"


def node():
    """One that the library is for: Debian 12's own is too old, script/bootstrap brings another."""
    for place in (shutil.which("node"), ROOT / "tests" / "nodes" / "node_modules" / "node20" / "bin" / "node"):
        if place and os.access(place, os.X_OK):
            major = subprocess.run([place, "--version"], capture_output=True, text=True).stdout.lstrip("v").partition(".")[0]
            if major.isdigit() and int(major) >= 20:
                return str(place)
    return None


NODE = node()
C_WORKER = pathlib.Path(BINARY).resolve().parent / "sdk" / "c" / "tests" / "worker_conformance"
LIBRARIES = {
    "c": [str(C_WORKER)],
    "python": ["env", f"PYTHONPATH={SDK}/python", PYTHON, f"{SDK}/python/tests/worker_sync.py"],
    "python-async": ["env", f"PYTHONPATH={SDK}/python", PYTHON, f"{SDK}/python/tests/worker_async.py"],
    "node": [NODE or "node", f"{SDK}/node/tests/worker.js"],
}
MANY_AT_ONCE = ("python-async", "node")


@pytest.fixture(params=LIBRARIES)
def library(request):
    if request.param == "c" and not C_WORKER.exists():
        pytest.skip("built without tests, so without the C worker")
    if request.param == "node" and not NODE:
        pytest.skip(absent("Node 20 or newer is not installed"))
    return request.param


def configure(mandor, library, **pool):
    pool = {"command": LIBRARIES[library], "size": 1, **pool}
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps({"concurrency": 16, "shutdown_timeout": "2s", "pools": {"p": pool}}))
    mandor.env["MANDOR_CONFIG"] = str(path)


def add(mandor, op, job=None, **data):
    return mandor.add_many([{"pool": "p", "data": {"op": op, **data}, **(job or {})}])[0]


def pool_of(mandor):
    for one in mandor.ok("pools", "--json").json():
        for pool in one["pools"]:
            return pool
    return None


def pids(mandor):
    return [worker["pid"] for worker in (pool_of(mandor) or {"workers": []})["workers"] if worker["state"] == "ready"]


def test_results_errors_and_fields_are_recorded(mandor, library):
    configure(mandor, library)
    values = [None, 1.5, "äあ😀", [1, {"a": [True]}]]
    jobs = [add(mandor, "result", value=value) for value in values]
    info = add(mandor, "info", {"timeout": "90s"})
    error = add(mandor, "error", message="no such image", code=7)
    final = add(mandor, "error", {"attempts": 5}, message="hopeless", retry=False)
    wrong = add(mandor, "no such op")
    mandor.drain()
    assert [mandor.show(job).get("result") for job in jobs] == values
    assert mandor.show(info)["result"] == {"id": info, "queue": "default", "attempt": 1, "timeout_ms": 90000}
    record = mandor.show(error)
    assert (record["state"], record["cause"], record["exit_code"], record["error"]) == ("failed", "exit", 7, "no such image"), record
    record = mandor.show(final)
    assert (record["state"], record["exit_code"], record["attempts_used"]) == ("failed", 100, 1), record
    assert mandor.show(wrong)["state"] == "failed" and mandor.show(wrong)["error"]


def test_every_byte_goes_in_and_out_through_files(mandor, library):
    configure(mandor, library)
    source = mandor.tmp / "in.bin"
    source.write_bytes(bytes(range(256)) * 4000 + os.urandom(12345))
    echo = add(mandor, "echo", {"stdin": f"file:{source}", "stdout": f"file:{mandor.tmp}/out.bin"})
    emit = add(mandor, "emit", {"stdout": f"file:{mandor.tmp}/emit.bin"}, bytes=1_000_003)
    mandor.drain()
    assert mandor.show(echo)["result"] == {"bytes": source.stat().st_size}
    assert (mandor.tmp / "out.bin").read_bytes() == source.read_bytes()
    assert (mandor.tmp / "emit.bin").read_bytes() == bytes(i * 7 % 251 for i in range(1_000_003))
    assert mandor.show(emit)["streams"]["stderr"]["tail"] == "1000003 bytes"


def test_progress_logs_and_prints_arrive_with_the_jobs_id(mandor, library):
    configure(mandor, library)
    with mandor.worker() as worker:
        tell = add(mandor, "tell", progress={"at": 50}, text="half way")
        assert mandor.wait_state(tell, "completed")["progress"] == {"at": 50}
        say = add(mandor, "print", text="Error: boom\n")
        mandor.wait_state(say, "completed")
        wait_for(lambda: worker.stderr.count("Error: boom") == 2, 10, "both prints in the log")
        worker.says("half way", "about the worker")
        log = worker.stderr.splitlines()
        assert any("half way" in line and f"job={tell}" in line for line in log), log


def test_a_timeout_and_a_cancel_end_the_job_and_not_the_worker(mandor, library):
    configure(mandor, library)
    with mandor.worker():
        first = wait_for(lambda: pids(mandor), 20, "a ready worker")
        record = mandor.wait_state(add(mandor, "wait", {"timeout": "300ms"}), "failed")
        assert record["cause"] == "timeout", record
        job = add(mandor, "wait")
        mandor.wait_phase(job, "running")
        mandor.ok("cancel", "--wait", job)
        assert mandor.show(job)["state"] == "cancelled"
        assert mandor.wait_state(add(mandor, "result", value=1), "completed")["result"] == 1
        assert pids(mandor) == first


def test_a_worker_that_says_bye_is_replaced_and_nothing_is_lost(mandor, library):
    configure(mandor, library)
    with mandor.worker():
        first = wait_for(lambda: pids(mandor), 20, "a ready worker")
        jobs = mandor.add_many([{"pool": "p", "data": {"op": "result", "value": i} if i != 5 else {"op": "bye"}} for i in range(20)])
        records = [mandor.wait_state(job, "completed") for job in jobs]
        assert [record.get("result") for record in records] == [None if i == 5 else i for i in range(20)]
        assert all(record["attempt"] == 1 for record in records)
        wait_for(lambda: pids(mandor) and not set(pids(mandor)) & set(first), 20, "another worker")


def test_recycling_loses_no_result_and_no_worker_looks_dirty(mandor, library):
    configure(mandor, library, size=2, max_jobs=20)
    with mandor.worker() as worker:
        jobs = mandor.add_many([{"pool": "p", "data": {"op": "echo"}, "stdin": f"inline:job {i}"} for i in range(100)])
        for i, job in enumerate(jobs):
            record = mandor.wait_state(job, "completed")
            assert record["result"] == {"bytes": len(f"job {i}")} and record["attempt"] == 1, record
            assert record["streams"]["stdout"]["bytes"] == len(f"job {i}"), record
        wait_for(lambda: pool_of(mandor)["recycles"] >= 3, 20, "the recycled to be counted")
        assert pool_of(mandor)["deaths"] == 0
        assert "protocol" not in worker.stderr and "left" not in worker.stderr, worker.stderr


@pytest.mark.parametrize("library", MANY_AT_ONCE)
def test_many_jobs_at_once_in_one_worker_keep_their_own(mandor, library):
    if library == "node" and not NODE:
        pytest.skip(absent("Node 20 or newer is not installed"))
    configure(mandor, library, concurrency=8)
    with mandor.worker():
        wait_for(lambda: pids(mandor), 20, "a ready worker")
        waiting = [add(mandor, "wait") for _ in range(7)]
        jobs = [add(mandor, "emit", {"stdout": f"file:{mandor.tmp}/{i}.bin"}, bytes=5000 + i) for i in range(40)]
        for i, job in enumerate(jobs):
            mandor.wait_state(job, "completed")
            assert (mandor.tmp / f"{i}.bin").read_bytes() == bytes(k * 7 % 251 for k in range(5000 + i))
        mandor.ok("cancel", "--wait", *waiting)
        assert {mandor.show(job)["state"] for job in waiting} == {"cancelled"}
