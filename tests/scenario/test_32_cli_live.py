"""The command line beside a live worker: following, watching, waiting, cancelling."""
import json
import os
import resource
import socket
import struct
import subprocess
import time

from harness import read_until, sh, wait_for


def gated(mandor, name="gate", before="", after=""):
    """A job that runs until its gate file is there."""
    gate = mandor.tmp / name
    return gate, sh(f"{before} until [ -e {gate} ]; do sleep 0.02; done; {after}")


def test_logs_f_waits_for_a_job_and_follows_it_through_its_retry(mandor):
    job = mandor.add(*sh('echo "out $MANDOR_ATTEMPT"; echo "err $MANDOR_ATTEMPT" >&2; [ "$MANDOR_ATTEMPT" = 2 ]'),
                     attempts=2, backoff={"type": "fixed", "delay": "50ms", "jitter": 0})
    proc = mandor.popen("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with mandor.worker():
        out, err = proc.communicate(timeout=60)
    assert proc.returncode == 0
    assert out == b"out 1\nout 2\n" and err == b"err 1\nerr 2\n", (out, err)


def test_logs_f_of_an_ended_job_prints_it_and_ends(mandor):
    job = mandor.add(*sh("echo out; echo err >&2; exit 3"))
    mandor.drain()
    done = mandor.ok("logs", "-f", job)
    assert (done.out, done.err) == (b"out\n", b"err\n")
    assert mandor.ok("logs", "-f", job, "--stderr").out == b"err\n"


def test_logs_f_ends_when_the_job_is_cancelled_and_when_it_is_removed(mandor):
    jobs = [mandor.add("true"), mandor.add("true")]
    procs = [mandor.popen("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for job in jobs]
    mandor.ok("cancel", jobs[0])
    assert procs[0].wait(60) == 0
    mandor.ok("rm", jobs[1])
    assert procs[1].wait(60) == 3
    for proc in procs:
        proc.stdout.close()
        proc.stderr.close()


def test_logs_of_a_running_job_says_how_to_follow_it(mandor):
    gate, command = gated(mandor)
    job = mandor.add(*command)
    with mandor.worker():
        mandor.wait_phase(job, "running")
        assert "logs -f" in mandor.ok("logs", job).complaint
        gate.touch()
        mandor.wait_state(job, "completed")


def test_output_that_is_elsewhere_is_named_or_copied(mandor):
    job = mandor.add("echo", "there", stdout=f"file:{mandor.tmp}/x/out.txt")
    mandor.drain()
    assert mandor.ok("logs", job, "--stdout").out == b"there\n"
    big = mandor.add("head", "-c", "300000", "/dev/zero")
    mandor.drain()
    assert mandor.ok("logs", big, "--stdout").out == bytes(300000)


def test_a_reader_of_logs_that_goes_away_ends_it_quietly(mandor):
    job = mandor.add("head", "-c", "5000000", "/dev/zero")
    mandor.drain()
    proc = mandor.popen("logs", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    proc.stdout.read(10)
    proc.stdout.close()
    assert proc.stderr.read() == b"" and proc.wait(60) == 0
    proc.stderr.close()


def test_cancel_wait_returns_when_the_tree_is_dead(mandor):
    job = mandor.add(*sh("trap '' TERM; sleep 600 & sleep 600"), kill_after="200ms")
    with mandor.worker():
        mandor.wait_phase(job, "running")
        value = mandor.ok("cancel", job, "--wait", "--json").json()
        assert value["id"] == job and value["worker"]
        assert mandor.show(job)["state"] == "cancelled"
        assert not [pid for pid in mandor.jobs_left()]


def test_wait_is_0_only_when_all_completed(mandor):
    good, bad = mandor.add("true"), mandor.add("false")
    with mandor.worker():
        assert mandor.run("wait", good).code == 0
        assert mandor.run("wait", good, bad).code == 1
    records = [json.loads(line) for line in mandor.run("wait", "--json", good, bad).lines]
    assert [record["state"] for record in records] == ["completed", "failed"]


def test_top_and_stats_show_what_the_worker_says(mandor):
    gate, command = gated(mandor, before="echo 12345;")
    with mandor.worker("--concurrency", "3"):
        job = mandor.add(*command)
        mandor.wait_phase(job, "running")
        top = wait_for(lambda: (t := mandor.ok("top", "--json").json()) and t["live"] and t["live"][0]["running"] and t)
        (running,) = top["live"][0]["running"]
        assert running["id"] == job and running["pid"] > 1 and running["phase"] == "running", running
        assert top["live"][0]["concurrency"] == 3
        assert job in mandor.ok("top").text
        text = mandor.ok("stats").text
        assert "1 live worker" in text and "SPAWN" in text
        assert "spawn_us" in mandor.stats()["live"][0]["metrics"]
        assert "no live worker" not in mandor.ok("add", "--", "true").complaint
        gate.touch()
        mandor.wait_state(job, "completed")


def test_failed_jobs_are_retried_and_ended_ones_removed(mandor):
    flag = mandor.tmp / "flag"
    jobs = [mandor.add(*sh(f"[ -e {flag} ]")) for _ in range(3)]
    mandor.drain()
    assert mandor.ok("ls", "--state", "failed", "--json").out.count(b"\n") == 3
    flag.touch()
    assert mandor.ok("retry", "--failed").text == "3 jobs retried\n"
    mandor.drain()
    records = [mandor.show(job) for job in jobs]
    assert {(record["state"], record["attempt"], record["attempts_used"]) for record in records} <= {("completed", 2, 0), ("completed", 2, 1)}, records
    assert mandor.ok("rm", "--completed").text == "3 jobs removed\n"
    assert mandor.list() == []


def test_show_tells_people_how_a_job_ended(mandor):
    job = mandor.add(*sh("echo '{\"result\": {\"n\": 1}}' >&3; echo broken >&2; exit 7"), attempts=2, backoff={"type": "fixed", "delay": "10ms"})
    mandor.drain()
    text = mandor.ok("show", job).text
    for words in (f"Job {job} failed", "exit code 7", "2 of 2", "broken", '{"n":1}', "stderr"):
        assert words in text, (words, text)


def test_a_follower_reads_what_comes_in_pieces(mandor):
    gate, command = gated(mandor, before="printf one;", after="printf two >&2")
    job = mandor.add(*command)
    with mandor.worker():
        mandor.wait_phase(job, "running")
        proc = mandor.popen("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        read_until(proc.stdout.fileno(), b"one")
        gate.touch()
        assert proc.stderr.read() == b"two" and proc.wait(60) == 0
        proc.stdout.close()
        proc.stderr.close()


def test_a_connection_that_asks_twice_is_refused_and_does_no_harm(mandor):
    gate, command = gated(mandor, before="echo begun;")
    job = mandor.add(*command)
    with mandor.worker():
        mandor.wait_phase(job, "running")
        [path] = mandor.data.glob("run/*.live")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")
            client.sendall((json.dumps({"follow": job}) + "\n").encode() * 2)
            assert b"one job at a time" in read_until(client.fileno(), b"one job at a time")
        gate.touch()
        mandor.wait_state(job, "completed")


def frame(kind, payload):
    return struct.pack("<BI", kind, len(payload)) + payload


def test_logs_f_asks_again_when_the_attempt_has_not_started_or_is_over(mandor):
    """Between the lease and the start, and between the end and the record, a worker has nothing to follow."""
    gate, command = gated(mandor, before="echo begun; echo apart >&2;", after="echo over")
    job = mandor.add(*command)
    with mandor.worker():
        mandor.wait_phase(job, "running")
        [path] = mandor.data.glob("run/*.live")
        aside = path.rename(path.with_suffix(".aside"))
        directory = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{directory}/{path.name}")
            server.listen()
            server.settimeout(60)
            proc = mandor.popen("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            client = server.accept()[0]
            asked = json.loads(read_until(client.fileno(), b"\n"))
            assert (asked["follow"], asked["attempt"]) == (job, 1)
            aside.rename(path)
            client.sendall(frame(4, json.dumps({"id": job, "attempt": 0}).encode()))
            client.close()
        os.close(directory)
        read_until(proc.stdout.fileno(), b"begun\n")
        gate.touch()
        assert proc.communicate(timeout=60) == (b"over\n", b"apart\n")
        assert proc.returncode == 0


def test_another_attempt_than_the_one_asked_for_is_not_followed(mandor):
    gate, command = gated(mandor, before="echo begun;")
    job = mandor.add(*command)
    with mandor.worker():
        mandor.wait_phase(job, "running")
        client = connect(live_socket(mandor))
        client.sendall(json.dumps({"follow": job, "attempt": 2}).encode() + b"\n")
        answer = json.dumps({"id": job, "attempt": 0}, separators=(",", ":")).encode()
        assert read_until(client.fileno(), answer) == frame(4, answer)
        client.close()
        gate.touch()
        mandor.wait_state(job, "completed")


def live_socket(mandor):
    return wait_for(lambda: next(iter(mandor.tmp.rglob("*.live")), None), what="the live socket")


def connect(path):
    """A connection, wherever the directory is: a path may be longer than a socket's address."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        client.settimeout(60)
        client.connect(f"/proc/self/fd/{directory}/{path.name}")
        return client
    except OSError:
        client.close()
        return None
    finally:
        os.close(directory)


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_two_hundred_idle_clients_take_neither_descriptors_nor_cpu_from_the_jobs_R72(mandor):
    gate, command = gated(mandor, after="echo unharmed")
    running = mandor.add(*command)
    with mandor.worker("--concurrency", "2", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))) as worker:
        mandor.wait_phase(running, "running")
        path = live_socket(mandor)
        clients = [client for client in (connect(path) for _ in range(200)) if client]
        before, start = cpu_seconds(worker.pid), time.monotonic()
        time.sleep(2)
        assert cpu_seconds(worker.pid) - before < 0.2 * (time.monotonic() - start)
        other = mandor.add("echo", "served")
        mandor.wait_state(other, "completed")
        gate.touch()
        assert mandor.wait_state(running, "completed")["streams"]["stdout"]["bytes"] == len("unharmed\n")
        for client in clients:
            client.close()
        assert b"running" in wait_for(lambda: top_once(path), what="a client to be served again")


def top_once(path):
    client = connect(path)
    if client is None:
        return None
    with client:
        client.sendall(b'{"top": true}\n')
        try:
            return client.recv(65536) or None
        except OSError:
            return None


def test_sockets_of_a_killed_worker_are_removed_and_those_of_a_live_one_stay_R71(mandor):
    with mandor.worker() as first:
        live = live_socket(mandor)
        first.kill()
        foreign = live.parent / "notes.txt"
        foreign.write_text("not mandor's")
        with mandor.worker() as second:
            wait_for(lambda: not live.exists(), what="the dead worker's socket to be removed")
            own = live_socket(mandor)
            with mandor.worker():
                mandor.wait_state(mandor.add("true"), "completed")
                assert own.exists() and second.running()
            assert top_once(own) and foreign.read_text() == "not mandor's"
