"""A fork server that cannot make copies: the machine has no room for a process, or it is stuck."""
import contextlib
import os
import signal
import subprocess
import time

import pytest

from harness import alive, children, have, rss_bytes, wait_for
from snakes import job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@contextlib.contextmanager
def no_room(pid, *more, when="1+"):
    """Its clones fail, as they do where a limit of processes has been reached."""
    tracer = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-e", "trace=clone3,clone,seccomp", "-e", f"inject=clone3,clone:error=EAGAIN:when={when}", *more, "-p", str(pid)])
    try:
        wait_for(lambda: open(f"/proc/{pid}/status").read().split("TracerPid:")[1].split()[0] != "0", 10, "strace to hold it")
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def servers(it):
    return it.runtimes()["default"]["servers"]


@pytest.mark.skipif(not have("strace"), reason="needs strace")
@pytest.mark.parametrize("isolation", ["fork", "instance"])
def test_no_room_for_a_process_costs_neither_the_server_nor_the_jobs_that_run(tmp_path, isolation):
    with snakes_in(tmp_path, {"default": {"isolation": isolation, "spare": 2 if isolation == "fork" else 0}}, ready=isolation == "fork") as it:
        long, = it.mandor.add_many([job("import time\ntime.sleep(6)\n'long'", attempts=1)])
        it.mandor.wait_phase(long, "running", deadline=60)
        if isolation == "fork":
            it.wait_ready(spares=2)
            server = servers(it)[0]["pid"]
        else:  # the next one is caught before it makes its copy
            known = [one["pid"] for one in servers(it)]
            ids = it.mandor.add_many([job("1", attempts=1)])
            server = wait_for(lambda: next((one["pid"] for one in servers(it) if one["pid"] not in known and one["state"] == "loading"), None), 60, "a server", every=0.02)
            wait_for(lambda: rss_bytes(server) > 80 << 20, 60, "Node's threads to be there and Pyodide to be loading")
            os.kill(server, signal.SIGSTOP)
        with no_room(server):
            os.kill(server, signal.SIGCONT)
            if isolation == "fork":
                ids = it.mandor.add_many([job("1", attempts=1)] * 6)
            wait_for(lambda: "Resource temporarily unavailable" in it.worker.stderr, 60, "a clone to fail")
            time.sleep(2)
        records = [it.mandor.wait_state(one, "completed", "failed", deadline=60) for one in [*ids, long]]
        assert [record["state"] for record in records] == ["completed"] * len(records), records
        assert it.runtimes()["default"]["deaths"] == 0
        assert it.worker.stderr.count("a copy did not become ready") < 10
        if isolation == "instance":
            wait_for(lambda: not it.runtimes()["default"]["servers"], 20, "no server that nobody needs")


@pytest.mark.skipif(not have("strace"), reason="needs strace")
def test_a_copy_that_was_made_for_one_job_is_given_to_no_other(tmp_path):
    """It has the bounds of that job, which was put back meanwhile."""
    with snakes_in(tmp_path, {"default": {"spare": 1}}, concurrency=4) as it:
        it.wait_ready(spares=1)
        server = it.runtimes()["default"]["servers"][0]["pid"]
        before = set(children(it.worker.pid))
        with no_room(server, "-f", "-e", "inject=seccomp:delay_enter=5000000", when="2+"):
            bounded, = it.mandor.add_many([job("1", limits={"cpu": 0.5}, limits_policy="best_effort", attempts=1)])
            own, = wait_for(lambda: set(children(it.worker.pid)) - before, 20, "its copy", every=0.02)
            others = it.mandor.add_many([job("2", attempts=1)] * 3)
            wait_for(lambda: it.mandor.show(bounded)["state"] == "delayed", 20, "it to be put back")
            it.mandor.run("cancel", *others)  # else one of them may use the copy up
        wait_for(lambda: not alive(own), 10, "the end of its copy")
        assert it.mandor.wait_state(bounded, "completed", "failed", deadline=60)["state"] == "completed"


def test_a_server_that_is_stuck_is_replaced_and_others_start_meanwhile(tmp_path):
    with snakes_in(tmp_path, {"default": {"spare": 2}}, concurrency=8) as it:
        it.wait_ready(spares=2)
        stuck = it.runtimes()["default"]["servers"][0]["pid"]
        os.kill(stuck, signal.SIGSTOP)
        ids = it.mandor.add_many([job("1", attempts=1)] * 6)
        wait_for(lambda: it.runtimes()["default"]["jobs"] >= 2, 20, "the spares to be taken")
        began = time.monotonic()
        other, = it.mandor.add_many([{"exec": ["true"]}])
        assert it.mandor.wait_state(other, "completed", deadline=60)
        assert time.monotonic() - began < 9, "three of its silences"
        assert [it.mandor.wait_state(one, "completed", "failed", deadline=60)["state"] for one in ids] == ["completed"] * 6
        assert it.runtimes()["default"]["deaths"] == 1


def test_copies_for_jobs_that_were_cancelled_meanwhile_go(tmp_path):
    with snakes_in(tmp_path, {"default": {"spare": 1}}, concurrency=16) as it:
        it.wait_ready(spares=1)
        server = it.runtimes()["default"]["servers"][0]["pid"]
        spare, = it.mandor.add_many([job("import time\ntime.sleep(60)")])
        it.mandor.wait_phase(spare, "running")
        it.wait_ready(spares=1)
        os.kill(server, signal.SIGSTOP)  # for less than the time that a server has to answer
        try:
            ids = it.mandor.add_many([job("import time\ntime.sleep(60)")] * 12)
            wait_for(lambda: it.runtimes()["default"]["waiting"] >= 8, 4, "jobs that wait for copies", every=0.02)
            it.mandor.ok("cancel", *ids)
        finally:
            os.kill(server, signal.SIGCONT)
        it.mandor.run("cancel", "--wait", *ids, spare)
        wait_for(lambda: it.runtimes()["default"]["servers"][0]["copies"] >= 8, 20, "the copies that they had asked for")
        wait_for(lambda: it.runtimes()["default"]["spares"] in (1, 2), 20, "no copies that nobody needs", every=0.1)
