"""What somebody tries who wants to see it break: crashes at single system calls, holders of locks that sleep, careless jobs."""
import os
import signal
import subprocess
import time

import pytest

from harness import have, proc_stat, read_until, sh, wait_for

NO_LEAKS = {"ASAN_OPTIONS": "detect_leaks=0"}  # the leak check cannot run under ptrace


def kill_at(call, when):
    """A strace prefix: whichever thread of mandor makes its when-th such call is killed in it."""
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}"]


def traces(mandor):
    """What workers leave below the data directory while they live."""
    return [str(p) for part in ("run", "scratch", "journal") for p in (mandor.data / part).iterdir()]


def test_workers_leave_no_trace_when_they_end(mandor):
    for _ in range(2):
        mandor.add("echo", "x", stdout=f"file:{mandor.tmp}/out", stderr="null:")
        mandor.drain()
    assert not traces(mandor)


@pytest.mark.skipif(not have("strace"), reason="needs strace")
@pytest.mark.parametrize("call,when", [("pwrite64", 1), ("clone3", 1), ("waitid", 1), ("sendto", 1), ("unlink", 3), ("unlinkat", 2)])
def test_a_worker_killed_before_it_is_registered_is_cleaned_up_after(mandor, call, when):
    job = mandor.add("true", attempts=9, backoff={"type": "fixed", "delay": "10ms"})
    mandor.run("work", "--drain", prefix=kill_at(call, when), env=NO_LEAKS)
    for lock in (mandor.data / "run").glob("*.lock"):
        os.utime(lock, (1, 1))  # young ones are left alone: their worker may be just about to lock them
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert not traces(mandor)


def test_a_living_workers_traces_are_left_alone(mandor):
    with mandor.worker() as worker:
        mandor.wait_state(mandor.add("true"), "completed")
        before = traces(mandor)
        for lock in (mandor.data / "run").glob("*.lock"):
            os.utime(lock, (1, 1))
        mandor.add("true")
        mandor.drain()
        assert traces(mandor) == before and before
        assert worker.running()


def test_control_z_never_stops_a_command_that_holds_the_queue(mandor):
    """SIGTSTP at any moment of an add: whoever comes after it is served at once."""
    mandor.add("true")
    lines = "".join('{"exec":["true"]}\n' for _ in range(20000))
    (mandor.tmp / "jobs").write_text(lines)
    for moment in range(12):
        with open(mandor.tmp / "jobs") as jobs:
            adder = mandor.popen("add", "--from", "-", stdin=jobs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.01 * moment)  # any moment will do
        adder.send_signal(signal.SIGTSTP)
        wait_for(lambda: adder.poll() is not None or proc_stat(adder.pid)[0] == "T", 20, "the add to stop")
        mandor.ok("add", "--", "true")  # who is not served gives up
        adder.send_signal(signal.SIGCONT)
        assert adder.wait(200) == 0


def test_a_stopped_holder_of_the_queue_is_named(mandor):
    """Nothing helps against SIGSTOP in the middle of a transaction, but who waits is told, and ends."""
    mandor.add("true")
    holder = mandor.spawn(["flock", str(mandor.db) + ".turn", "sh", "-c", "echo; kill -STOP $$"], stdout=subprocess.PIPE)
    read_until(holder.stdout.fileno(), b"\n")
    done = mandor.run("add", "--", "true")
    assert done.code == 125 and f"process {holder.pid} (flock" in done.cause, done
    mandor.cell.kill()
    holder.wait()
    holder.stdout.close()
    mandor.ok("add", "--", "true")


@pytest.mark.parametrize("what", ["rm -f $f", "rm -f $f; echo evil > $f", "rm -f $f; ln -s /etc/passwd $f", "rm -f $f; mkdir $f"])
def test_a_job_that_tampers_with_its_unfinished_output_publishes_nothing(mandor, what):
    out = mandor.tmp / "d" / "out"
    script = f"echo x; while ! ls {out.parent}/.mandor.*; do :; done >&2; for f in {out.parent}/.mandor.*; do {what}; done"
    job = mandor.add(*sh(script), stdout=f"file:{out}")
    mandor.drain()
    record = mandor.show(job)
    assert (record["state"], record["cause"]) == ("failed", "sink"), record
    assert not out.exists() and not out.is_symlink()
