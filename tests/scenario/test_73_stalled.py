"""Sinks whose server stands still: whoever stops the job has its slot back at once, and nothing of it appears later."""
import contextlib
import http.server
import signal

import pytest

import s3
import stores
import web
from harness import sh, wait_for
from redis_server import Proxy

FLOOD = "echo first; while [ ! -e go ]; do sleep 0.02; done; exec yes"
PATIENT = {"sink_timeout": "10m"}


class Still:
    """A sink behind a proxy that can be frozen.  begun(): the server has bytes of it; left(): something of it is there."""

    def __init__(self, url, proxy, begun, left, env=()):
        self.url, self.proxy, self.begun, self.left, self.env = url, proxy, begun, left, dict(env)


@contextlib.contextmanager
def redis(kind):
    with stores.redis() as server, Proxy(server.port) as proxy:
        if kind == "stream":
            yield Still(f"redis://127.0.0.1:{proxy.port}?stream=k", proxy, lambda: server("EXISTS", "k"),
                        lambda: any("eof" in e for e in server.entries("k")))
        else:
            yield Still(f"redis://127.0.0.1:{proxy.port}?key=k", proxy, lambda: server("KEYS", "*stage*"), lambda: server("EXISTS", "k"))


@contextlib.contextmanager
def bucket(tmp):
    with s3.server(tmp) as server, Proxy(server.port) as proxy:
        yield Still(f"s3://{s3.BUCKET}/k", proxy, server.uploads, lambda: server.keys() or server.uploads(), server.env(proxy.port))


@contextlib.contextmanager
def put():
    begun, whole = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_PUT(self):
            while size := int(self.rfile.readline().strip() or b"1", 16):
                begun.append(size)
                if len(self.rfile.read(size)) < size or not self.rfile.readline():
                    return
            whole.append(self.path)

    with web._serve(Handler) as server, Proxy(server.server_address[1]) as proxy:
        yield Still(f"http://127.0.0.1:{proxy.port}/k", proxy, lambda: begun, lambda: whole)


@pytest.fixture(params=["stream", "key", "s3", "http"])
def still(request, tmp_path, mandor):
    make = {"s3": lambda: bucket(tmp_path), "http": put}.get(request.param, lambda: redis(request.param))
    with make() as it:
        mandor.env.update(it.env)
        yield it


def nothing_is_left(mandor, still):
    """The slot is free; and once the server answers again, what could not be taken back at once is."""
    mandor.wait_state(mandor.add("true"), "completed")
    still.proxy.heal()
    with mandor.worker():
        wait_for(lambda: not still.left(), 20, "nothing of it to be left")


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancel_ends_a_job_whose_sink_stands_still(mandor, still, begun):
    (mandor.tmp / "go").touch()
    if not begun:
        still.proxy.freeze()
    with mandor.worker("--concurrency", "1"):
        job = mandor.add_many([{"exec": sh(FLOOD), "cwd": str(mandor.tmp), "stdout": still.url, **PATIENT}])[0]
        mandor.wait_phase(job, "running")
        if begun:
            wait_for(still.begun, 20)
            still.proxy.freeze()
        mandor.ok("cancel", job)
        record = mandor.wait_state(job, "cancelled")
        assert record["cause"] == "cancelled" and not record["streams"]["stdout"]["committed"], record
        nothing_is_left(mandor, still)


def test_a_timeout_ends_a_job_whose_sink_stands_still(mandor, still):
    (mandor.tmp / "go").touch()
    still.proxy.freeze()
    with mandor.worker("--concurrency", "1"):
        job = mandor.add_many([{"exec": sh(FLOOD), "cwd": str(mandor.tmp), "stdout": still.url, "timeout": "1s", **PATIENT}])[0]
        record = mandor.wait_state(job, "failed")
        assert record["cause"] == "timeout" and not record["streams"]["stdout"]["committed"], record
        nothing_is_left(mandor, still)


def test_a_cancel_ends_what_is_left_to_do_when_the_processes_have_ended(mandor, still):
    """They ended well, but their output has not been published."""
    with mandor.worker("--concurrency", "1"):
        job = mandor.add_many([{"exec": sh("while [ ! -e go ]; do sleep 0.02; done; head -c 20000000 /dev/zero; touch wrote"),
                                "cwd": str(mandor.tmp), "stdout": [f"spill=64K:{still.url}", "null:"], **PATIENT}])[0]
        mandor.wait_phase(job, "running")
        still.proxy.freeze()
        (mandor.tmp / "go").touch()
        wait_for((mandor.tmp / "wrote").exists, 20)
        mandor.ok("cancel", job)
        record = mandor.wait_state(job, "cancelled")
        assert record["cause"] == "cancelled" and not record["streams"]["stdout"]["committed"], record
        nothing_is_left(mandor, still)


def test_what_is_kept_on_every_outcome_does_not_hold_up_a_cancel_either(mandor, still):
    still.proxy.freeze()
    with mandor.worker("--concurrency", "1"):
        job = mandor.add_many([{"exec": sh("yes >&2 & sleep 1; touch flooded; exec sleep 600"), "cwd": str(mandor.tmp), "stderr": still.url, **PATIENT}])[0]
        wait_for((mandor.tmp / "flooded").exists, 20)
        mandor.ok("cancel", job)
        record = mandor.wait_state(job, "cancelled")
        assert not record["streams"]["stderr"]["committed"], record
        nothing_is_left(mandor, still)


def test_run_ends_at_a_signal(mandor, still):
    (mandor.tmp / "go").touch()
    still.proxy.freeze()
    proc = mandor.popen("run", "--sink-timeout", "10m", "--stdout", still.url, "--", *sh("touch ran; exec yes"))
    wait_for((mandor.tmp / "ran").exists, 20)
    proc.send_signal(signal.SIGINT)
    assert proc.wait(30) == 128 + signal.SIGINT
