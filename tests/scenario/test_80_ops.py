"""Running it day by day: an idle worker, followers, the service manager's way to stop."""
import contextlib
import json
import os
import pathlib
import pty
import signal
import socket
import subprocess
import time

import pytest

from harness import ROOT, pss_bytes, read_until, rss_bytes, sh, tree, wait_for


def switches(pid):
    """Voluntary context switches of all its threads: how often it woke up."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        text = pathlib.Path(f"/proc/{pid}/task/{task}/status").read_text()
        total += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return total


@pytest.mark.quiet
def test_an_idle_worker_is_small_and_sleeps(mandor, plain_binary):
    with mandor.worker() as worker:
        job = mandor.add("true")
        mandor.wait_state(job, "completed")
        before = {pid: switches(pid) for pid in (worker.pid, worker.guard_pid)}
        began = time.monotonic()
        while time.monotonic() < began + 5:
            time.sleep(0.2)
        woken = sum(switches(pid) - count for pid, count in before.items()) / (time.monotonic() - began)
        assert woken < 15, f"{woken} wake-ups a second"
        assert rss_bytes(worker.pid) < 14 << 20, rss_bytes(worker.pid)
        assert pss_bytes(worker.pid) + pss_bytes(worker.guard_pid) < 10 << 20


@pytest.mark.quiet
def test_an_idle_worker_uses_no_cpu(mandor, plain_binary):
    def ticks(pid):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    with mandor.worker() as worker:
        mandor.wait_state(mandor.add("true"), "completed")
        before = ticks(worker.pid) + ticks(worker.guard_pid)
        began = time.monotonic()
        while time.monotonic() < began + 4:
            time.sleep(0.2)
        assert ticks(worker.pid) + ticks(worker.guard_pid) - before <= 2 * (time.monotonic() - began)  # 2 % of one core


@pytest.mark.quiet
def test_starting_is_quick(mandor, plain_binary):
    """Beside a program that does nothing, which says what a start takes on this machine."""
    def took(argv):
        start = time.monotonic()
        assert mandor.spawn(argv, stdout=subprocess.DEVNULL).wait() == 0
        return time.monotonic() - start
    times, others = zip(*((took([mandor.binary, "--version"]), took(["true"])) for _ in range(10)))
    assert sorted(times)[5] < 0.1 + 3 * sorted(others)[5], (times, others)


def test_killmode_mixed_lets_the_guard_drain_R39(mandor):
    """systemd's KillMode=mixed: TERM to the main process only; at the end KILL to the whole control group."""
    gate = mandor.tmp / "gate"
    with mandor.worker() as worker:
        job = mandor.add(*sh(f"until [ -e {gate} ]; do sleep 0.02; done"))
        mandor.wait_phase(job, "running")
        os.kill(worker.guard_pid, signal.SIGTERM)
        gate.touch()
        assert worker.wait(30) == 0
    assert mandor.show(job)["state"] == "completed"


def test_killmode_control_group_leaves_no_orphan_and_no_false_failure_R39(mandor):
    """The other setting: TERM to every process of the group at once, jobs included."""
    (mandor.tmp / "m.yaml").write_text("shutdown_timeout: 500ms\n")
    with mandor.worker("--config", mandor.tmp / "m.yaml") as worker:
        job = mandor.add("sleep", "600", attempts=3, backoff={"type": "fixed", "delay": "1h"})
        mandor.wait_phase(job, "running")
        pid = worker.pid
        for target in (worker.guard_pid, pid, *tree(pid)):
            try:
                os.kill(target, signal.SIGTERM)
            except ProcessLookupError:
                pass
        worker.wait(30)
        assert not mandor.left()
    assert mandor.show(job)["state"] in ("waiting", "delayed")


def test_the_unit_file_says_what_the_guard_needs_R39():
    units = list(ROOT.rglob("mandor*.service*"))
    units = [u for u in units if "build" not in u.parts]
    if not units:
        pytest.skip("no unit file in the tree")
    text = "\n".join(u.read_text() for u in units)
    assert "KillMode=mixed" in text and "Delegate=" in text


def test_logs_f_shows_what_is_there_and_then_what_comes(mandor):
    gate = mandor.tmp / "gate"
    job = mandor.add(*sh(f"echo one; until [ -e {gate} ]; do sleep 0.02; done; echo two; until [ -e {gate}2 ]; do sleep 0.02; done; echo three"))
    with mandor.worker():
        mandor.wait_phase(job, "running")
        proc = mandor.popen("logs", "-f", job, stdout=subprocess.PIPE)
        read_until(proc.stdout.fileno(), b"one\n")
        gate.touch()
        read_until(proc.stdout.fileno(), b"two\n")
        pathlib.Path(f"{gate}2").touch()
        read_until(proc.stdout.fileno(), b"three\n")
        assert proc.wait(30) == 0
        proc.stdout.close()


def test_logs_of_an_earlier_attempt_can_be_asked_for(mandor):
    job = mandor.add(*sh('echo "attempt $MANDOR_ATTEMPT" >&2; [ "$MANDOR_ATTEMPT" = 2 ]'), attempts=2, backoff={"type": "fixed", "delay": "10ms"})
    mandor.drain()
    assert mandor.logs_of(job, "--stderr") == b"attempt 2\n"
    assert mandor.logs_of(job, "--stderr", "--attempt", "1") == b"attempt 1\n"


def test_top_shows_the_running_job_on_a_terminal(mandor):
    gate = mandor.tmp / "gate"
    with mandor.worker():
        job = mandor.add(*sh(f"until [ -e {gate} ]; do sleep 0.02; done"))
        mandor.wait_phase(job, "running")
        master, slave = pty.openpty()
        proc = mandor.popen("top", stdin=slave, stdout=slave, stderr=slave, env={"TERM": "xterm"})
        os.close(slave)
        read_until(master, b"running", 15)
        proc.send_signal(signal.SIGINT)
        os.set_blocking(master, False)

        def ended():  # a terminal that nobody reads would stop any program
            with contextlib.suppress(OSError):
                os.read(master, 65536)
            return proc.poll() is not None

        wait_for(ended, 10, "top to end on ^C")
        os.close(master)
        gate.touch()
        mandor.wait_state(job, "completed")


def test_stats_json_is_one_value(mandor):
    mandor.add("true")
    value = mandor.stats()
    assert value["queues"]["default"]["waiting"] == 1


def test_log_lines_carry_job_and_attempt(mandor):
    job = mandor.add("false")
    done = mandor.drain()
    assert any(job in line and "attempt" in line for line in done.complaint.splitlines()), done.complaint


def test_json_log_lines_are_json(mandor):
    (mandor.tmp / "m.yaml").write_text("log_format: json\n")
    mandor.add("false")
    done = mandor.drain("--config", mandor.tmp / "m.yaml")
    for line in done.complaint.splitlines():
        assert isinstance(json.loads(line), dict), line


def test_no_colour_and_no_control_characters_off_a_terminal(mandor):
    job = mandor.add("true")
    mandor.drain(env={"NO_COLOR": None})
    for command in (("ls",), ("show", job), ("stats",), ("doctor",), ("--help",)):
        done = mandor.run(*command, env={"NO_COLOR": None})
        assert b"\x1b" not in done.out, command


def test_control_characters_of_a_job_do_not_reach_the_terminal_by_way_of_show(mandor):
    job = mandor.add(*sh("printf '\\033[31mred\\007' >&2; exit 1"))
    mandor.drain()
    assert b"\x1b" not in mandor.run("show", job).out


def test_sigusr2_switches_debug_lines_on_and_off(mandor):
    with mandor.worker() as worker:
        mandor.wait_state(mandor.add("true"), "completed")
        size = len(worker.stderr)
        worker.signal(signal.SIGUSR2)
        mandor.wait_state(mandor.add("true"), "completed")
        wait_for(lambda: "debug" in worker.stderr[size:].lower(), 10)


def test_a_second_worker_of_the_same_broker_does_not_disturb_the_first(mandor):
    with mandor.worker() as first:
        wait_for(lambda: len(mandor.stats()["workers"]) == 1, 10)
        with mandor.worker():
            wait_for(lambda: len(mandor.stats()["workers"]) == 2, 10)
        wait_for(lambda: len(mandor.stats()["workers"]) == 1, 10)
        assert first.running()
        mandor.wait_state(mandor.add("true"), "completed")


# ---- one grace within the other ----


def test_the_service_manager_is_asked_to_wait_for_the_longest_grace_R31(mandor):
    (mandor.tmp / "m.yaml").write_text("shutdown_timeout: 700ms\n")
    address = str(mandor.tmp / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        with mandor.worker("--concurrency", "2", "--config", mandor.tmp / "m.yaml", env={"NOTIFY_SOCKET": address}) as worker:
            jobs = [mandor.add("sleep", "600", kill_after=grace) for grace in ("2s", "100s")]
            for job in jobs:
                mandor.wait_phase(job, "running")
            assert manager.recv(200) == b"READY=1"
            worker.signal(signal.SIGTERM)
            first = dict(line.split("=") for line in manager.recv(200).decode().splitlines())
            assert first["STOPPING"] == "1" and int(first["EXTEND_TIMEOUT_USEC"]) >= 100_700_000, first
            assert worker.wait(30) == 0
            again = dict(line.split("=") for line in manager.recv(200).decode().splitlines())
            assert int(again["EXTEND_TIMEOUT_USEC"]) >= 100_000_000, again


def test_a_jobs_grace_is_whole_although_the_worker_is_in_a_hurry_R31(mandor):
    """shutdown_timeout says when jobs are told to end, not when they have to be gone."""
    (mandor.tmp / "m.yaml").write_text("shutdown_timeout: 100ms\n")
    script = f"trap 'sleep 1.5; touch {mandor.tmp}/clean; exit 0' TERM; touch {mandor.tmp}/up; sleep 600 & wait"
    job = mandor.add(*sh(script), kill_after="10m", attempts=1)
    with mandor.worker("--config", mandor.tmp / "m.yaml") as worker:
        wait_for((mandor.tmp / "up").exists, 20)
        worker.signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert (mandor.tmp / "clean").exists()
    record = mandor.show(job)
    assert (record["state"] in ("waiting", "delayed"), record["attempts_used"]) == (True, 0), record
