"""A stream with several sinks: each whole, each at its own pace; what a full buffer does is said for each."""
import http.server
import json
import pathlib
import signal
import socket
import subprocess
import threading

import pytest

import s3
import stores
import web
from harness import hwm_bytes, sh, wait_for

MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with stores.redis() as it:
        yield it


@pytest.fixture
def redis(server):
    server("FLUSHALL")
    return server


class Gate:
    """A web server that reads the body of a PUT only when it is told to."""

    def __init__(self):
        self.open = threading.Event()
        self.asked = 0
        self.body = None


@pytest.fixture
def gate():
    it = Gate()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_PUT(self):
            it.asked += 1
            it.open.wait(300)
            data = b""
            if self.headers.get("Transfer-Encoding"):
                while size := int(self.rfile.readline().strip(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                data = self.rfile.read(int(self.headers["Content-Length"]))
            it.body = data
            self.send_response_only(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with web._serve(Handler) as server:
        it.url = f"http://127.0.0.1:{server.server_address[1]}/x"
        yield it
        it.open.set()


def by_sink(record, stream="stdout"):
    return {entry["sink"]: entry for entry in record["streams"][stream]["sinks"]}


def test_every_sink_gets_all_of_the_stream(mandor, redis):
    out = mandor.tmp / "out"
    job = mandor.add_many([{"exec": ["seq", "50000"], "frame": "lines",
                            "stdout": [f"file:{out}/{{id}}", f"{redis.url}?key=k:{{id}}", f"{redis.url}?stream=s", "null:", "auto:"]}])[0]
    mandor.drain()
    want = subprocess.run(["seq", "50000"], capture_output=True).stdout
    assert (out / job).read_bytes() == want
    assert redis("GET", f"k:{job}") == want
    assert mandor.ok("cat", f"{redis.url}?stream=s").out == want
    assert mandor.logs_of(job) == want
    stream = mandor.show(job)["streams"]["stdout"]
    assert stream["sink"] == "fan" and stream["bytes"] == len(want) and stream["committed"]
    assert [s["bytes"] for s in stream["sinks"]] == [len(want)] * 5
    assert all(s["committed"] and s["dropped_bytes"] == 0 for s in stream["sinks"])
    assert mandor.ok("show", job).text.count("to redis") == 2


def test_the_option_may_be_repeated_and_paths_are_the_callers(mandor, redis):
    done = mandor.run("run", "--stdout", "file:a", "--stdout", "spill=1M:file:b", "--stdout", f"{redis.url}?key=k", "--", "echo", "x")
    assert done.code == 0, done
    assert (mandor.tmp / "a").read_text() == (mandor.tmp / "b").read_text() == "x\n" and redis("GET", "k") == b"x\n"
    job = mandor.ok("add", "--stdout", "file:c", "--stdout", "auto:", "--", "echo", "y").text.strip()
    assert mandor.show(job)["spec"]["stdout"] == [f"file:{mandor.tmp}/c", "auto:"]
    mandor.drain()
    assert (mandor.tmp / "c").read_text() == "y\n" and mandor.logs_of(job) == b"y\n"
    config = mandor.tmp / "mandor.yaml"
    config.write_text(f"queues: {{default: {{stdout: ['file:{mandor.tmp}/d', 'drop=64K:null:']}}}}")
    job = mandor.add("echo", "z")
    mandor.drain("--config", str(config))
    assert (mandor.tmp / "d").read_text() == "z\n"


def test_a_failed_attempt_publishes_nowhere_but_keeps_its_log(mandor, redis):
    out = mandor.tmp / "out"
    job = mandor.add_many([{"exec": sh("echo x; exit 1"), "stdout": [f"file:{out}", f"{redis.url}?key=k", "auto:"]}])[0]
    mandor.drain()
    assert not out.exists() and redis("EXISTS", "k") == 0
    assert mandor.logs_of(job) == b"x\n"
    sinks = by_sink(mandor.show(job))
    assert (sinks["file"]["committed"], sinks["redis"]["committed"], sinks["auto"]["committed"]) == (False, False, True)
    assert not list(mandor.data.glob("journal/*/*"))


def test_one_that_cannot_be_opened_or_written_fails_the_attempt_and_nothing_is_published(mandor, redis):
    out = mandor.tmp / "out"
    for bad, word in ((f"file:{mandor.tmp}/dir", "directory"), (f"{redis.url}?stream=k", "WRONGTYPE")):
        (mandor.tmp / "dir").mkdir(exist_ok=True)
        redis("SET", "k", "x")
        job = mandor.add_many([{"exec": sh("echo x"), "stdout": [f"file:{out}", bad]}])[0]
        mandor.drain()
        record = mandor.show(job)
        assert record["state"] == "failed" and record["cause"] == "sink" and word in record["error"], record
        assert not out.exists()


def test_bad_lists_are_refused_by_name(mandor):
    for value, word in ((["file:/a", 7], "[1]"), ([], "0 sinks"), (["file:/a\nb"], "line break"), (["drop=1:null:"], "out of range"),
                        (["drop:"], "no sink"), (["nul:"], "unknown sink"), ("fan:\nnull:", "list"), (["file:a"], "relative"), (["file:/a", "spill:file:/a"], "twice")):
        done = mandor.run("add", "--from", "-", input=json.dumps({"exec": ["true"], "stdout": value}) + "\n")
        assert done.code == 1 and word in done.complaint, (value, done)
    done = mandor.run("add", "--stdout", "file:/x", "--stderr", "null:", "--stderr", "file:/x", "--", "true")
    assert done.code == 2 and "where stdout goes too" in done.complaint, done
    place = ("--stdout", "redis://:secret@127.0.0.1:1?stream=a")
    for args in ((*place, *place), (*place, "--stderr", place[1]), (*place, "--stdout", "null:", "--stderr", place[1])):
        done = mandor.run("run", *args, "--", "true")
        assert done.code == 2 and ":***@" in done.complaint and "secret" not in done.complaint, done


def test_a_slow_sink_that_blocks_holds_the_job_up_and_one_that_does_not_is_paused_alone(mandor, gate, plain_binary):
    """20 MiB; the web server takes nothing at first.  The file has it all when the slow one spills, and not when it blocks."""
    size = 20 * MIB
    for policy, goes_on in (("block=64K", False), ("spill=64K", True)):
        out = mandor.tmp / f"out-{goes_on}"
        gate.open.clear()
        gate.body = None
        with mandor.worker() as worker:
            mandor.wait_state(mandor.add("true"), "completed")
            before = hwm_bytes(worker.pid)
            job = mandor.add_many([{"exec": sh(f"head -c {size} /dev/zero; touch wrote-{goes_on}"), "cwd": str(mandor.tmp),
                                    "stdout": [f"file:{out}", f"{policy}:{gate.url}"], "sink_timeout": 0}])[0]
            if goes_on:
                wait_for(lambda: (mandor.tmp / "wrote-True").exists(), 20)
                wait_for(lambda: sum(p.stat().st_size for p in mandor.tmp.glob(".mandor.*")) == size, 20, "the file to have it all")
            else:
                wait_for(lambda: sum(p.stat().st_size for p in mandor.tmp.glob(".mandor.*")) > MIB, 20)
                assert not (mandor.tmp / "wrote-False").exists()
            grown = hwm_bytes(worker.pid) - before
            gate.open.set()
            record = mandor.wait_state(job, "completed", deadline=40)
        assert gate.body == bytes(size) and out.read_bytes() == gate.body
        assert grown < 16 * MIB, grown  # libcurl itself is five of them
        slow = by_sink(record)["http"]
        assert slow["bytes"] == size and slow["dropped_bytes"] == 0
        assert (slow["spilled_bytes"] > 0) == goes_on
        assert not list(mandor.data.glob("spill*"))


def test_one_that_drops_leaves_out_whole_frames_and_says_how_much(mandor, redis):
    count = 200_000
    redis.proc.send_signal(signal.SIGSTOP)
    with mandor.worker():
        redis.proc.send_signal(signal.SIGCONT)
        job = mandor.add_many([{"exec": sh(f"echo first; while [ ! -e go ]; do sleep 0.02; done; seq {count}; touch wrote"),
                                "cwd": str(mandor.tmp), "frame": "lines",
                                "stdout": [f"file:{mandor.tmp}/all", f"drop=64K:{redis.url}?stream=some&max_pending=100"]}])[0]
        wait_for(lambda: redis("EXISTS", "some"), 20)
        (mandor.tmp / "go").touch()
        wait_for(lambda: (mandor.tmp / "wrote").exists(), 30, "the producer not to be held up")
        got, ended = [], False
        while not ended:
            for entry, fields in wait_for(lambda: redis("XRANGE", "some", "-", "+", "COUNT", "100"), 20):
                values = dict(zip(fields[::2], fields[1::2]))
                ended |= b"eof" in values
                if b"data" in values:
                    got.append(values[b"data"])
                redis("XDEL", "some", entry)
        record = mandor.wait_state(job, "completed", deadline=40)
    want = b"first\n" + subprocess.run(["seq", str(count)], capture_output=True).stdout
    assert (mandor.tmp / "all").read_bytes() == want
    loss = by_sink(record)["redis"]
    assert loss["dropped_frames"] > 0
    assert loss["dropped_frames"] + len(got) == count + 1
    assert loss["dropped_bytes"] + len(b"".join(got)) == len(want)
    lines = iter(want.splitlines(keepends=True))
    assert all(line in lines for line in got), "in their order, each one whole"


def test_binary_frames_go_to_a_file_and_one_by_one_to_redis(mandor, redis):
    frames = [b"x" * n for n in (0, 1, 70000, 5)]
    (mandor.tmp / "in").write_bytes(b"".join(len(f).to_bytes(4, "big") + f for f in frames))
    mandor.add_many([{"exec": ["cat", "in"], "cwd": str(mandor.tmp), "frame": "u32be",
                      "stdout": [f"file:{mandor.tmp}/out", f"drop:{redis.url}?stream=s"]}])
    mandor.drain()
    assert (mandor.tmp / "out").read_bytes() == (mandor.tmp / "in").read_bytes()
    assert [e["data"][4:] for e in redis.entries("s") if "data" in e] == frames


def test_where_the_last_step_of_one_fails_the_others_are_not_published(mandor, redis):
    """The hash is a plain value by the time of the commit: that shows in the script that publishes, and not before."""
    out = mandor.tmp / "out"
    job = mandor.add_many([{"exec": sh("echo x; while [ ! -e go ]; do sleep 0.02; done"), "cwd": str(mandor.tmp),
                            "stdout": [f"file:{out}", f"{redis.url}?hash=k&field=f", "auto:"]}])[0]
    with mandor.worker():
        mandor.wait_phase(job, "running")
        wait_for(lambda: list(mandor.tmp.glob(".mandor.*")), 20)
        redis("SET", "k", "in the way")
        (mandor.tmp / "go").touch()
        record = mandor.wait_state(job, "failed")
    assert record["cause"] == "sink" and "WRONGTYPE" in record["error"], record
    assert not out.exists() and not list(mandor.tmp.glob(".mandor.*"))
    assert [entry["committed"] for entry in record["streams"]["stdout"]["sinks"]] == [False, False, False]


def test_a_commit_goes_on_for_as_long_as_the_lease_is_renewed(mandor, gate):
    """The web server answers when the lease that the commit began with is over."""
    (mandor.tmp / "mandor.yaml").write_text("lease: 10s\n")
    job = mandor.add_many([{"exec": sh("echo x"), "stdout": [f"file:{mandor.tmp}/out", gate.url]}])[0]
    with mandor.worker("--config", "mandor.yaml"):
        wait_for(lambda: gate.asked, 20)
        threading.Event().wait(12)
        assert mandor.show(job)["state"] == "active"
        gate.open.set()
        mandor.wait_state(job, "completed")
    assert gate.body == b"x\n" and (mandor.tmp / "out").read_text() == "x\n"


def test_buffers_count_as_memory_of_the_streams(mandor, gate, plain_binary):
    """Eight slow sinks with 8 MiB each, and 1 MiB for all streams: above it each takes little."""
    (mandor.tmp / "mandor.yaml").write_text("buffer_max: 1M\nconcurrency: 8\n")
    jobs = [{"exec": sh("head -c 6M /dev/zero; touch wrote-$MANDOR_JOB_ID"), "cwd": str(mandor.tmp),
             "stdout": [f"file:{mandor.tmp}/out-{{id}}", f"block=8M:{gate.url}"], "sink_timeout": 0} for _ in range(8)]
    with mandor.worker("--config", "mandor.yaml") as worker:
        mandor.wait_state(mandor.add("true"), "completed")
        before = hwm_bytes(worker.pid)
        ids = mandor.add_many(jobs)
        wait_for(lambda: gate.asked >= 8, 30)
        wait_for(lambda: sum(p.stat().st_size for p in mandor.tmp.glob(".mandor.*")) > 8 * MIB, 30)
        threading.Event().wait(1)
        grown = hwm_bytes(worker.pid) - before
        assert not list(mandor.tmp.glob("wrote-*"))
        gate.open.set()
        for job in ids:
            mandor.wait_state(job, "completed", deadline=60)
    assert grown < 32 * MIB, grown
