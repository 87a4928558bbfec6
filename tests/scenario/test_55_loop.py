"""I6: the loop stays awake while jobs flood."""
import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import threading
import time

import pytest

from harness import wait_for


def histogram(stats, name):
    """That histogram of the only worker, wherever stats shows it."""
    def search(value):
        if isinstance(value, dict):
            if name in value:
                return value[name]
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                if (found := search(item)) is not None:
                    return found
        return None
    return search(stats)


CONTROL = """
import sys, threading, time
late, over = [], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print('up', flush=True)
while not over.is_set():
    start = time.monotonic()
    time.sleep(0.005)
    late.append(time.monotonic() - start - 0.005)
print(int(max(late) * 1e6))
"""


@contextlib.contextmanager
def control(mandor):
    """A process that only sleeps, beside what the block does.  Its function says, when it is over, how late this machine has waked it up at worst, in us."""
    with mandor.spawn(["python3", "-c", CONTROL], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proc:
        assert proc.stdout.readline() == b"up\n"
        yield lambda: int(proc.communicate()[0])


@pytest.mark.quiet
@pytest.mark.slow
def test_64_flooding_children_do_not_starve_the_loop(mandor, plain_binary):
    """Beside it a control that only sleeps says how late this machine wakes anybody up under the same load."""
    jobs = mandor.add_many([{"exec": ["nice", "-n", "19", "yes"], "stdout": "null:", "timeout": "30s", "kill_after": "500ms"}] * 64)
    with mandor.worker("--concurrency", "90"), control(mandor) as worst_us:
        wait_for(lambda: mandor.stats()["queues"]["default"]["active"] == 64, 30)
        deadline = mandor.add("sleep", "600", timeout="1s", kill_after="500ms", queue="default")
        more = mandor.add_many([{"exec": ["sleep", "600"], "timeout": f"{1000 + 61 * i}ms", "kill_after": "500ms"} for i in range(20)])
        shown, nothing = [], []
        for _ in range(10):
            start = time.monotonic()
            mandor.show(deadline)
            shown.append(time.monotonic() - start)
            start = time.monotonic()
            mandor.ok("--version")
            nothing.append(time.monotonic() - start)
        record = mandor.wait_state(deadline, "failed", deadline=20)
        assert record["cause"] == "timeout"
        assert record["usage"]["wall_ms"] >= 1000, record["usage"]
        for job in more:
            mandor.wait_state(job, "failed", deadline=20)
        machine_us = worst_us()
        figures, late = (histogram(mandor.stats(), name) for name in ("loop_lag_us", "deadline_late_us"))
        print(f"loop lag {figures}, deadlines late {late}, control at worst {machine_us} us")
        # I6: what is due is acted upon within 50 ms, whoever floods.
        assert late["count"] >= 21 and late["p90"] < 50000 + machine_us, late
        assert figures, "no loop lag in stats"
        assert figures["count"] > 10, figures
        assert figures["p99"] < 5000 + machine_us, figures
        assert sorted(shown)[5] < 1.0 + 3 * sorted(nothing)[5], (shown, nothing)
        for job in jobs:
            assert mandor.wait_state(job, "failed", deadline=40)["cause"] == "timeout"


@pytest.mark.quiet
def test_a_deadline_is_met_within_50_ms_on_a_quiet_machine(mandor, plain_binary):
    """And where it is not quiet, as much later as a process is waked up that only sleeps."""
    overs = []
    with mandor.worker("--concurrency", "1"), control(mandor) as worst_us:
        for _ in range(5):
            job = mandor.add("sleep", "600", timeout="300ms")
            overs.append(mandor.wait_state(job, "failed")["usage"]["wall_ms"] - 300)
        machine_ms = worst_us() / 1000
    overs.sort()
    assert overs[0] >= 0 and overs[2] < 50 + machine_ms, (overs, machine_ms)


def read_for_ever(fd, into):
    while chunk := os.read(fd, 65536):
        into.append(chunk)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_standard_error_that_nobody_reads_holds_up_no_job_and_no_end(mandor, kind):
    """A full pipe, or a terminal under ^S.  What did not fit is told of when somebody reads again."""
    if kind == "pipe":
        ours, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        env = {"MANDOR_DEBUG": "all"}
    else:
        ours, theirs = pty.openpty()
        env = {"TERM": "xterm"}
    with mandor.worker("--concurrency", "4", stderr=theirs, env=env) as worker:
        os.close(theirs)
        count = 1200 if kind == "pipe" else 400
        mandor.add_many([{"exec": ["true"]}] * count)
        wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == count, 60, "all jobs", every=0.1)
        read = []
        reader = threading.Thread(target=read_for_ever, args=(ours, read), daemon=True)
        if kind == "pipe":
            reader.start()
            last = mandor.add("true")
            mandor.wait_state(last, "completed")
            wait_for(lambda: f"job {last}: SETTLING -SETTLED-> DONE".encode() in b"".join(read), 10)
            lines = b"".join(read).split(b"\n")
            assert all(line.startswith(b"ts=") for line in lines[:-1]), [line for line in lines if not line.startswith(b"ts=")][:3]
        worker.signal(signal.SIGTERM)
        assert worker.wait(30) == 0  # for the terminal still nobody reads
    os.close(ours)


def test_a_configuration_on_a_dead_disk_does_not_hold_up_the_loop(mandor):
    """SIGHUP while the file, a FIFO here, gives nothing: jobs go on; then it takes effect."""
    config = mandor.tmp / "m.yaml"
    config.write_text("concurrency: 1\n")
    with mandor.worker("--config", config) as worker:
        mandor.wait_state(mandor.add("true"), "completed")
        config.unlink()
        os.mkfifo(config)
        worker.signal(signal.SIGHUP)
        for _ in range(5):
            mandor.wait_state(mandor.add("true"), "completed", deadline=10)
        assert "read again" not in worker.stderr
        with open(config, "w") as fifo:
            fifo.write("concurrency: 3\n")
        wait_for(lambda: "configuration read again" in worker.stderr, 10)


def test_a_flood_of_progress_lines_does_not_starve_the_neighbour(mandor):
    flood = "import os\nline = b'{\"progress\": 1}\\n' * 2000\nwhile True: os.write(3, line)"
    with mandor.worker("--concurrency", "3"):
        job = mandor.add("python3", "-c", flood, kill_after="300ms")
        wait_for(lambda: [1] == [one["progress"] for one in mandor.stats()["live"][0]["running"] if one["id"] == job], 20, "the flood")
        for _ in range(5):
            mandor.wait_state(mandor.add("true"), "completed", deadline=10)
        assert mandor.wait_state(mandor.add("sleep", "600", timeout="300ms"), "failed")["cause"] == "timeout"
        assert mandor.show(job)["phase"] == "running"
        mandor.ok("cancel", job)
        assert mandor.wait_state(job, "cancelled")["cause"] == "cancelled"


def test_json_on_fd_3_that_is_deep_does_no_harm(mandor):
    job = mandor.add("python3", "-c", "import os\nos.write(3, b'{\"result\": ' + b'[' * 100000 + b']' * 100000 + b'}\\n')\nos.write(3, b'{\"progress\": 5}\\n')")
    with mandor.worker() as worker:
        record = mandor.wait_state(job, "completed", "failed")
        assert record["state"] == "completed" and record["progress"] == 5, record
        assert worker.running()
