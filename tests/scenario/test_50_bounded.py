"""I5: memory and descriptors stay bounded whatever the jobs write."""
import os
import re
import resource
import subprocess
import threading
import time

import pytest

from harness import SOAK, fd_count, pss_bytes, rss_bytes, sh, wait_for

MIB = 1 << 20


def worker_below(mandor, proc):
    """The process below the guard of a `mandor run`."""
    def find():
        found = [p for p in mandor.left() if p != proc.pid and os.path.realpath(f"/proc/{p}/exe") == os.path.realpath(mandor.binary)]
        return found[0] if found else None
    return wait_for(find)


@pytest.mark.slow
def test_an_endless_writer_against_a_slow_reader_does_not_grow_the_worker(mandor, plain_binary):
    seconds = 3600 if SOAK else 60
    proc = mandor.popen("run", "--", "yes", "a long line of output that never ends", stdout=subprocess.PIPE)
    taken = 0
    try:
        pid = worker_below(mandor, proc)
        start = time.monotonic()
        base = None
        peak = 0
        while (passed := time.monotonic() - start) < seconds:
            if taken < passed * 1_000_000:  # 1 MB/s
                taken += len(os.read(proc.stdout.fileno(), 65536))
            else:
                time.sleep(0.01)
            if base is None and passed > 2:
                base = rss_bytes(pid)
            peak = max(peak, rss_bytes(pid))
        assert base and peak - base < 2 * MIB, f"{base} -> {peak}"
        assert taken > seconds * 500_000
    finally:
        proc.terminate()
        proc.stdout.close()
        proc.wait(60)


def test_an_endless_fast_writer_into_nothing_does_not_grow_the_worker(mandor, plain_binary):
    with mandor.worker() as worker:
        job = mandor.add("yes", stdout="null:")
        mandor.wait_phase(job, "running")
        (writer,) = wait_for(mandor.jobs_left)

        def written():
            return int(re.search(r"^wchar: (\d+)", open(f"/proc/{writer}/io").read(), re.M).group(1))

        wait_for(lambda: written() > 20 * MIB)
        start, base, peak = time.monotonic(), rss_bytes(worker.pid), 0
        while time.monotonic() - start < 5 or written() < 200 * MIB:
            peak = max(peak, rss_bytes(worker.pid))
            time.sleep(0.05)
        assert peak - base < 2 * MIB, f"{base} -> {peak}"
        mandor.ok("cancel", job, "--wait")
        record = mandor.show(job)
        assert record["state"] == "cancelled" and record["streams"]["stdout"]["bytes"] > 190 * MIB, record


@pytest.mark.quiet
@pytest.mark.slow
@pytest.mark.limit(900)
def test_a_thousand_jobs_at_once_fit_in_200_mib(mandor, plain_binary):
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 20000:
        pytest.skip(f"the hard limit of open files is {hard}")
    gate = mandor.tmp / "gate"
    os.mkfifo(gate)

    # Each says a line, then hangs on a FIFO until the test opens it: no polling, no CPU.
    mandor.add_many([{"exec": sh(f"echo started; read x < {gate}; echo ended")} for _ in range(count)])
    with mandor.worker("--concurrency", str(count), preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))) as worker:
        before = fd_count(worker.pid)
        wait_for(lambda: mandor.stats()["queues"]["default"]["active"] == count, 250, every=0.2)
        wait_for(lambda: len(mandor.jobs_left()) >= count, 250, every=0.5)
        memory = pss_bytes(worker.pid) + pss_bytes(worker.guard_pid)
        assert memory < 200 * MIB, memory
        done = threading.Event()

        def open_gate():  # a FIFO wakes its readers when a writer comes and goes
            while not done.is_set():
                try:
                    os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    pass
                done.wait(0.02)

        opener = threading.Thread(target=open_gate)
        opener.start()
        try:
            wait_for(lambda: mandor.stats()["queues"]["default"]["completed"] == count, 250, every=0.2)
        finally:
            done.set()
            opener.join()
        # A bounded number of idle containments may stay, two descriptors each.
        wait_for(lambda: fd_count(worker.pid) <= before + 200, what="descriptors to come back")
        assert not mandor.zombies()


def test_many_slow_streams_at_once_keep_to_their_rings(mandor, plain_binary):
    """Eight jobs write 100 MB each as fast as they can; the worker's memory is rings, not backlog."""
    jobs = mandor.add_many([{"exec": ["head", "-c", "100000000", "/dev/zero"], "stdout": f"file:{mandor.tmp}/o{{id}}"}] * 8)
    with mandor.worker("--concurrency", "8") as worker:
        peak = [0]

        def done():
            peak[0] = max(peak[0], rss_bytes(worker.pid))
            return mandor.stats()["queues"]["default"]["completed"] == len(jobs)

        wait_for(done, 250, every=0.05)
        assert peak[0] < 40 * MIB, peak


def test_the_same_work_again_needs_no_more_memory(mandor, plain_binary):
    """Neither memory nor descriptors grow with the number of jobs done."""
    def round_of(count):
        ids = mandor.add_many([{"exec": sh("echo x; echo y >&2; echo '{\"result\": [1,2,3]}' >&3")}] * count)
        wait_for(lambda: all(mandor.stats()["queues"]["default"][s] == 0 for s in ("waiting", "active", "delayed")), every=0.05)
        return ids

    with mandor.worker("--concurrency", "4") as worker:
        round_of(300)
        memory, descriptors = rss_bytes(worker.pid), fd_count(worker.pid)
        for _ in range(3):
            round_of(300)
        assert rss_bytes(worker.pid) - memory < 3 * MIB
        wait_for(lambda: fd_count(worker.pid) <= descriptors + 2)
