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
        wait_for(lambda: open(f"/proc/{pid}/status").read().split("TracerPid:")[1].split()[0] != "0", what="strace to hold it")
        yield
    finally:
        tracer.kill()  # asked to end it waits until its delays are over
        tracer.wait()


def servers(it):
    return it.runtimes()["default"]["servers"]


@pytest.mark.skipif(not have("strace"), reason="needs strace")
@pytest.mark.parametrize("isolation", ["fork", "instance"])
def test_no_room_for_a_process_costs_neither_the_server_nor_the_jobs_that_run(tmp_path, isolation):
    with snakes_in(tmp_path, {"default": {"isolation": isolation, "spare": 2 if isolation == "fork" else 0}}, ready=isolation == "fork") as it:
        long, = it.mandor.add_many([job("import time\ntime.sleep(6)\n'long'", attempts=1)])
        it.mandor.wait_phase(long, "running")
        if isolation == "fork":
            it.wait_ready(spares=2)
            server = servers(it)[0]["pid"]
        else:  # the next one is caught before it makes its copy
            known = [one["pid"] for one in servers(it)]
            ids = it.mandor.add_many([job("1", attempts=1)])
            server = wait_for(lambda: next((one["pid"] for one in servers(it) if one["pid"] not in known and one["state"] == "loading"), None), what="a server", every=0.02)
            wait_for(lambda: rss_bytes(server) > 80 << 20, what="Node's threads to be there and Pyodide to be loading")
            os.kill(server, signal.SIGSTOP)
        began = time.monotonic()
        with no_room(server):
            os.kill(server, signal.SIGCONT)
            if isolation == "fork":
                ids = it.mandor.add_many([job("1", attempts=1)] * 6)
            wait_for(lambda: "Resource temporarily unavailable" in it.worker.stderr, what="a clone to fail")
            time.sleep(2)
        took = time.monotonic() - began
        records = [it.mandor.wait_state(one, "completed", "failed") for one in [*ids, long]]
        assert [record["state"] for record in records] == ["completed"] * len(records), records
        assert it.runtimes()["default"]["deaths"] == 0
        assert it.worker.stderr.count("a copy did not become ready") < 10 + 3 * took
        if isolation == "instance":
            wait_for(lambda: not it.runtimes()["default"]["servers"], what="no server that nobody needs")


@pytest.mark.skipif(not have("strace"), reason="needs strace")
def test_a_copy_that_was_made_for_one_job_is_given_to_no_other(tmp_path):
    """It has the bounds of that job, which was put back meanwhile."""
    with snakes_in(tmp_path, {"default": {"spare": 1}}, concurrency=4) as it:
        it.wait_ready(spares=1)
        server = it.runtimes()["default"]["servers"][0]["pid"]
        before = set(children(it.worker.pid))
        with no_room(server, "-f", "-e", "inject=seccomp:delay_enter=120s", when="2+"):
            bounded, = it.mandor.add_many([job("1", limits={"cpu": 0.5}, limits_policy="best_effort", attempts=1)])
            own, = wait_for(lambda: set(children(it.worker.pid)) - before, what="its copy", every=0.02)
            others = it.mandor.add_many([job("2", attempts=1)] * 3)
            wait_for(lambda: it.mandor.show(bounded)["state"] == "delayed", what="it to be put back")
            it.mandor.run("cancel", *others)  # else one of them may use the copy up
        wait_for(lambda: not alive(own), what="the end of its copy")
        assert it.mandor.wait_state(bounded, "completed", "failed")["state"] == "completed"


def test_a_server_that_is_stuck_is_replaced_and_others_start_meanwhile(tmp_path):
    with snakes_in(tmp_path, {"default": {"spare": 2}}, concurrency=8) as it:
        it.wait_ready(spares=2)
        stuck = it.runtimes()["default"]["servers"][0]["pid"]
        os.kill(stuck, signal.SIGSTOP)
        ids = it.mandor.add_many([job("1", attempts=1)] * 6)
        wait_for(lambda: it.runtimes()["default"]["jobs"] >= 2, what="the spares to be taken")
        other, = it.mandor.add_many([{"exec": ["true"]}])
        other = it.mandor.wait_state(other, "completed")
        records = [it.mandor.wait_state(one, "completed", "failed") for one in ids]
        assert [record["state"] for record in records] == ["completed"] * 6
        assert other["finished_at"] < max(record["finished_at"] for record in records), "it had to wait until another server was there"
        assert it.runtimes()["default"]["deaths"] == 1


def test_copies_for_jobs_that_were_cancelled_meanwhile_go(tmp_path):
    with snakes_in(tmp_path, {"default": {"spare": 1}}, concurrency=16) as it:
        it.wait_ready(spares=1)
        for _ in range(5):
            server = it.runtimes()["default"]["servers"][0]["pid"]
            spare, = it.mandor.add_many([job("import time\ntime.sleep(600)")])
            it.mandor.wait_phase(spare, "running")
            it.wait_ready(spares=1)
            began = time.monotonic()
            os.kill(server, signal.SIGSTOP)
            try:
                ids = it.mandor.add_many([job("import time\ntime.sleep(600)")] * 12)
                wait_for(lambda: it.runtimes()["default"]["waiting"] >= 8 or time.monotonic() - began > 8, what="jobs that wait for copies", every=0.02)
                it.mandor.ok("cancel", *ids)
            finally:
                os.kill(server, signal.SIGCONT)
            took = time.monotonic() - began
            it.mandor.run("cancel", "--wait", *ids, spare)
            if took < 8:  # else too slow: it has 10 s to answer, then another one takes its place
                break
            it.wait_ready(spares=1)
        wait_for(lambda: it.runtimes()["default"]["servers"][0]["copies"] >= 8, what="the copies that they had asked for")
        wait_for(lambda: it.runtimes()["default"]["spares"] in (1, 2), what="no copies that nobody needs", every=0.1)
