"""I6: the loop stays awake while jobs flood."""
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
import sys, time
late = []
print('up', flush=True)
while not late or time.monotonic() < end:
    if not late:
        end = time.monotonic() + float(sys.argv[1])
    start = time.monotonic()
    time.sleep(0.005)
    late.append(time.monotonic() - start - 0.005)
late.sort()
print(int(late[len(late) * 99 // 100] * 1e6))
"""


@pytest.mark.quiet
@pytest.mark.slow
def test_64_flooding_children_do_not_starve_the_loop(mandor, plain_binary):
    """Beside it a control that only sleeps says how late this machine wakes anybody up under the same load."""
    jobs = mandor.add_many([{"exec": ["nice", "-n", "19", "yes"], "stdout": "null:", "timeout": "12s", "kill_after": "500ms"}] * 64)
    with mandor.worker("--concurrency", "90"):
        wait_for(lambda: mandor.stats()["queues"]["default"]["active"] == 64, 30)
        control = mandor.spawn(["python3", "-c", CONTROL, "6"], stdout=subprocess.PIPE)
        deadline = mandor.add("sleep", "600", timeout="1s", kill_after="500ms", queue="default")
        more = mandor.add_many([{"exec": ["sleep", "600"], "timeout": f"{1000 + 61 * i}ms", "kill_after": "500ms"} for i in range(20)])
        shown = []
        for _ in range(10):
            start = time.monotonic()
            mandor.show(deadline)
            shown.append(time.monotonic() - start)
        record = mandor.wait_state(deadline, "failed", deadline=20)
        assert record["cause"] == "timeout"
        assert 1000 <= record["usage"]["wall_ms"] <= 1000 + 1000, record["usage"]  # the job itself shares two cores with 64 others
        machine_us = int(control.stdout.read().split()[-1])
        control.stdout.close()
        control.wait()
        for job in more:
            mandor.wait_state(job, "failed", deadline=20)
        figures, late = (histogram(mandor.stats(), name) for name in ("loop_lag_us", "deadline_late_us"))
        print(f"loop lag {figures}, deadlines late {late}, control p99 {machine_us} us")
        # I6: what is due is acted upon within 50 ms, whoever floods.
        assert late["count"] >= 21 and late["p90"] < 50000 + machine_us, late
        assert figures, "no loop lag in stats"
        assert figures["count"] > 10, figures
        assert figures["p99"] < 5000 + machine_us, figures
        assert sorted(shown)[5] < 1.0, shown
        for job in jobs:
            assert mandor.wait_state(job, "failed", deadline=40)["cause"] == "timeout"


@pytest.mark.quiet
def test_a_deadline_is_met_within_50_ms_on_a_quiet_machine(mandor, plain_binary):
    overs = []
    with mandor.worker("--concurrency", "1"):
        for _ in range(5):
            job = mandor.add("sleep", "600", timeout="300ms")
            overs.append(mandor.wait_state(job, "failed")["usage"]["wall_ms"] - 300)
    overs.sort()
    assert overs[0] >= 0 and overs[2] < 50, overs


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
            mandor.wait_state(mandor.add("true"), "completed")
            wait_for(lambda: b"-SETTLED-> DONE" in read[-1] if read else False, 10)
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
        job = mandor.add("python3", "-c", flood, timeout="4s", kill_after="300ms")
        mandor.wait_phase(job, "running")
        for _ in range(5):
            mandor.wait_state(mandor.add("true"), "completed", deadline=10)
        assert mandor.wait_state(job, "failed")["cause"] == "timeout"


def test_json_on_fd_3_that_is_deep_does_no_harm(mandor):
    job = mandor.add("python3", "-c", "import os\nos.write(3, b'{\"result\": ' + b'[' * 100000 + b']' * 100000 + b'}\\n')\nos.write(3, b'{\"progress\": 5}\\n')")
    with mandor.worker() as worker:
        record = mandor.wait_state(job, "completed", "failed")
        assert record["state"] == "completed" and record["progress"] == 5, record
        assert worker.running()
