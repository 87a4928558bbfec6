#!/usr/bin/env python3
"""pool_peer.py - mandor's side of a warm pool, for tests of worker libraries; and the list of what each must do.

    python3 tests/lib/pool_peer.py [-k WORD] -- WORKER [ARG...]     run the conformance list against a worker

or, in a test of your own:

    with Peer(["./worker"]) as peer:
        end = peer.run({"op": "echo"}, stdin=b"bytes")
        assert end.result == {"bytes": 5} and end.stdout == b"bytes"

Standard library alone.  Each frame of the worker is checked against doc/pool-protocol.md; a wrong one is ProtocolError.

The worker under test serves these jobs, by `op` in the job's data; other jobs fail:

    echo                     stdin to stdout, as it comes; result {"bytes": N}
    emit    bytes            that many bytes i*7%251 on stdout, then the end of stdout, then "N bytes" on stderr;
                             result {"bytes": N}
    result  value            that result
    error   message code retry   fails with them (code and retry may be absent)
    wait                     tells the progress "waiting", then waits until it is cancelled, and ends as cancelled
    tell    progress text    tells that progress, logs text (level info), logs "about the worker" about the worker itself
    print   text             writes text to descriptors 1 and 2; result null
    info                     result {"id", "queue", "attempt", "timeout_ms"} as the library gives them
    bye                      asks for no more jobs; result null

Its HELLO names itself "conformance" and gives a credit of 4096 bytes.
"""
import argparse
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HELLO, JOB, CHUNK, RESULT, ERROR, PROGRESS, LOG, CANCEL, CREDIT, PING, PONG, BYE = range(1, 13)
NAMES = ["?", "HELLO", "JOB", "CHUNK", "RESULT", "ERROR", "PROGRESS", "LOG", "CANCEL", "CREDIT", "PING", "PONG", "BYE"]
STDIN, STDOUT, STDERR = range(3)
PAYLOAD_MAX, TEXT_MAX, CONTROL_MAX = 16 << 20, 1 << 20, 4 << 10
CREDIT_MAX = 2**31 - 1
DEADLINE = float(os.environ.get("POOL_PEER_DEADLINE", "60"))  # seconds that any one wait may take
VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "pool"


class ProtocolError(Exception):
    """The worker sent what it may not send."""


class Gone(Exception):
    """The worker has closed the connection."""


def frame(type, payload=b"", job=0, stream=0, last=False, version=1):
    if not isinstance(payload, bytes):
        payload = json.dumps(payload).encode()
    return struct.pack("<IBBHQ", len(payload), type, stream << 1 | last, version, job) + payload


class End:
    """How a job ended, and what it gave."""

    def __init__(self, number):
        self.number = number
        self.type = None  # RESULT or ERROR
        self.payload = None
        self.output = {STDOUT: bytearray(), STDERR: bytearray()}
        self.progress = []
        self.logs = []

    @property
    def stdout(self):
        return bytes(self.output[STDOUT])

    @property
    def stderr(self):
        return bytes(self.output[STDERR])

    @property
    def result(self):
        if self.type != RESULT:
            raise AssertionError(f"job {self.number} ended with {NAMES[self.type or 0]} {self.payload!r}")
        return self.payload

    @property
    def error(self):
        if self.type != ERROR:
            raise AssertionError(f"job {self.number} ended with {NAMES[self.type or 0]} {self.payload!r}")
        return self.payload


class Job:
    def __init__(self, number, stdin, in_credit, out_credit, slow):
        self.end = End(number)
        self.stdin = stdin  # bytes that wait for credit; None: ended, or there is none
        self.in_credit = in_credit
        self.out_credit = {STDOUT: out_credit, STDERR: out_credit}
        self.out_ended = {STDOUT: False, STDERR: False}
        self.slow = slow  # grant output credit in steps of so many bytes; 0: all that was taken; None: never


class Peer:
    """A worker process, and mandor's end of its socket.

    credit: of each output stream of each job.  slice: bytes a write to the worker (0: all at once).
    hello: False leaves the handshake to the caller.
    """

    def __init__(self, argv, *, credit=262144, concurrency=1, slice=0, hello=True, env=None, cwd=None):
        self.argv, self.credit, self.concurrency, self.slice = argv, credit, concurrency, slice
        self.jobs, self.ended, self.number = {}, {}, 0
        self.worker, self.worker_logs, self.worker_bye, self.bye_sent = None, [], None, False
        self.pings, self.seen = [], bytearray()
        self.out, self.eof = bytearray(), False
        self.log = tempfile.TemporaryFile()
        if argv is None:  # no worker: for self_check()
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock, self.inode = ours, os.fstat(theirs.fileno()).st_ino
        self.sock.setblocking(False)

        def to_three():
            os.dup2(theirs.fileno(), 3, inheritable=True)

        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=cwd, close_fds=False, preexec_fn=to_three,
            start_new_session=True, env={**(os.environ if env is None else env), "MANDOR_FD": "3"})
        theirs.close()
        if hello:
            try:
                self.handshake()
            except BaseException:
                self.kill()
                raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and self.process.poll() is None and not self.eof:
            try:
                self.finish()
            finally:
                self.kill()
        else:
            self.kill()

    def kill(self):
        """End the worker and all of its session, and close."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.sock.close()
        printed = self.printed()
        self.log.close()
        if b"Sanitizer" in printed or b"runtime error" in printed:
            raise AssertionError(printed.decode(errors="replace"))

    def printed(self):
        """What the worker wrote to its descriptors 1 and 2."""
        self.log.seek(0)
        return self.log.read()

    # --- bytes

    def send(self, data):
        """Queue raw bytes for the worker."""
        self.out += data

    def _step(self, deadline):
        """Wait for the socket once; write what it takes and read what it has."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the worker did nothing within {DEADLINE} s; it printed {self.printed()!r}")
        readable, writable, _ = select.select([] if self.eof else [self.sock], [self.sock] if self.out else [], [], left)
        if writable:
            try:
                sent = self.sock.send(self.out[:self.slice or len(self.out)])
                del self.out[:sent]
            except (BrokenPipeError, ConnectionResetError):
                self.out.clear()
        if readable:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                data = b""
            self.eof = not data
            self.seen += data
        self._take()

    def _until(self, done, what):
        deadline = time.monotonic() + DEADLINE
        while True:
            value = done()
            if value:
                return value
            if self.eof:
                raise Gone(f"the worker went before {what}; it printed {self.printed()!r}")
            self._step(deadline)

    def _take(self):
        while len(self.seen) >= 16:
            length, type, flags, version, job = struct.unpack_from("<IBBHQ", self.seen)
            self._check_header(length, type, flags, version, job)
            if len(self.seen) < 16 + length:
                break
            payload = bytes(self.seen[16:16 + length])
            del self.seen[:16 + length]
            self._on_frame(type, flags, version, job, payload)
        if self.eof and self.seen:
            raise ProtocolError(f"torn frame: {bytes(self.seen[:40])!r}")

    # --- frames of the worker

    def _check_header(self, length, type, flags, version, number):
        """What a header shows by itself, before its payload has come."""
        def need(condition, why):
            if not condition:
                raise ProtocolError(f"type {type} flags {flags} version {version} job {number} length {length}: {why}: "
                                    f"{bytes(self.seen[:40])!r}")

        stream, last = flags >> 1, bool(flags & 1)
        need(length <= PAYLOAD_MAX, "too long")
        need(0 < type < 13 and type not in (JOB, CANCEL), "no frame of a worker")
        need(version == 1, "version")
        need(flags < 8, "reserved flags")
        need(not last or type == CHUNK, "last")
        need(stream in ((STDOUT, STDERR) if type == CHUNK else (STDIN,)), "stream")
        need((type == HELLO) == (self.worker is None), "HELLO first, and once")
        need(type != BYE or self.worker_bye is None, "BYE twice")
        need((number == 0) == (type in (HELLO, PING, PONG, BYE)) or type == LOG, "job number")
        need(number < 2**53, "job number")
        need(length <= (PAYLOAD_MAX if type in (CHUNK, RESULT) else TEXT_MAX if type in (ERROR, PROGRESS, LOG) else CONTROL_MAX),
             "too long")
        need(length >= (1 - last if type == CHUNK else 1 if type in (RESULT, PROGRESS) else 2), "too short")

    def _on_frame(self, type, flags, version, number, payload):
        def need(condition, why):
            if not condition:
                raise ProtocolError(f"{NAMES[type]} flags {flags} job {number}: {why}: {payload[:200]!r}")

        stream, last = flags >> 1, bool(flags & 1)
        body = None
        if type != CHUNK:
            def no_constant(name):
                raise ValueError(name)
            try:
                body = json.loads(payload.decode(), parse_constant=no_constant)
                json.dumps(body, ensure_ascii=False).encode()  # lone surrogates
            except ValueError as error:
                need(False, f"no JSON ({error})")
            need(isinstance(body, dict) or type in (RESULT, PROGRESS), "no object")
        if type == HELLO:
            need(isinstance(body.get("versions"), list) and all(isinstance(v, int) for v in body["versions"]), "versions")
            need(isinstance(body.get("name"), str) and isinstance(body.get("sdk"), str), "name, sdk")
            need(type_is_uint(body.get("credit"), 0, CREDIT_MAX), "credit")
            self.worker = body
        elif type == PING:
            self.send(frame(PONG, body))
        elif type == PONG:
            need(self.pings and body == {"n": self.pings.pop(0)}, "no such PING, or out of order")
        elif type == BYE:
            self.worker_bye = body
        elif type == LOG and number == 0:
            need(isinstance(body.get("text"), str), "text")
            self.worker_logs.append(body)
        else:
            need(number in self.jobs, "a job that is not open")
            self._on_job_frame(self.jobs[number], type, stream, last, body, payload, need)

    def _on_job_frame(self, job, type, stream, last, body, payload, need):
        if type == CHUNK:
            need(not job.out_ended[stream], "behind the last")
            need(len(payload) <= job.out_credit[stream], f"credit was {job.out_credit[stream]}")
            job.out_credit[stream] -= len(payload)
            job.out_ended[stream] = last
            job.end.output[stream] += payload
            if job.slow is not None and not last and (job.slow == 0 or job.out_credit[stream] == 0):
                grant = min(job.slow, self.credit) or len(payload)
                job.out_credit[stream] += grant
                self.send(frame(CREDIT, {"bytes": grant}, job.end.number, stream))
        elif type == CREDIT:
            need(type_is_uint(body.get("bytes"), 1, CREDIT_MAX - job.in_credit), "bytes")
            job.in_credit += body["bytes"]
            self._feed(job)
        elif type == PROGRESS:
            job.end.progress.append(body)
        elif type == LOG:
            need(isinstance(body.get("text"), str) and isinstance(body.get("level", ""), str), "text, level")
            job.end.logs.append(body)
        else:
            if type == ERROR:
                need(isinstance(body.get("message"), str) and isinstance(body.get("traceback", ""), str) and
                     isinstance(body.get("retry", True), bool) and type_is_uint(body.get("code", 1), 1, 255), "fields")
            job.end.type, job.end.payload = type, body
            self.ended[job.end.number] = job.end
            del self.jobs[job.end.number]

    def _feed(self, job):
        """Send as much of stdin as there is credit for."""
        while job.stdin is not None:
            part = job.stdin[:min(job.in_credit, 65536)]
            last = len(part) == len(job.stdin)
            if not part and not last:
                return
            job.in_credit -= len(part)
            job.stdin = None if last else job.stdin[len(part):]
            self.send(frame(CHUNK, part, job.end.number, STDIN, last))

    # --- what mandor does

    def handshake(self):
        self._until(lambda: self.worker, "HELLO")
        if 1 not in self.worker["versions"]:
            raise ProtocolError(f"no common version: {self.worker}")
        self.concurrency = min(self.concurrency, self.worker.get("concurrency", self.concurrency))
        self.send(frame(HELLO, {"version": 1, "pool": "test", "concurrency": self.concurrency, "credit": self.credit}))

    def start(self, data, *, stdin=None, slow=0, number=None, hold_stdin=False, **fields):
        """Give a job; returns its number.  stdin: its bytes (None: none).  hold_stdin: it has stdin that never comes."""
        assert len(self.jobs) < self.concurrency, "more jobs than agreed"
        self.number = self.number + 1 if number is None else number
        body = {"id": f"job-{self.number}", "queue": "default", "attempt": 1, "data": data, "timeout_ms": 0,
                "stdin": stdin is not None or hold_stdin, **fields}
        job = Job(self.number, stdin, self.worker["credit"], self.credit, slow)
        self.jobs[self.number] = job
        self.send(frame(JOB, body, self.number))
        self._feed(job)
        return self.number

    def wait(self, number):
        """Wait for the end of a job."""
        return self._until(lambda: self.ended.get(number), f"the end of job {number}")

    def run(self, data, **how):
        return self.wait(self.start(data, **how))

    def cancel(self, number, reason="cancelled", grace_ms=10000):
        self.send(frame(CANCEL, {"reason": reason, "grace_ms": grace_ms}, number))

    def ping(self, n):
        """PING, and wait for its PONG."""
        self.pings.append(n)
        self.send(frame(PING, {"n": n}))
        self._until(lambda: not self.pings, f"PONG {n}")

    def bye(self, reason="shutdown"):
        if not self.bye_sent:
            self.send(frame(BYE, {"reason": reason}))
        self.bye_sent = True

    def wait_closed(self):
        """Wait until the worker has closed and exited; returns its exit code."""
        deadline = time.monotonic() + DEADLINE
        while not self.eof:
            self._step(deadline)
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def finish(self):
        """BYE, and the worker must exit with 0."""
        self.bye()
        code = self.wait_closed()
        assert code == 0, f"exit code {code} after BYE; the worker printed {self.printed()!r}"


def type_is_uint(value, least, most):
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


# --- conformance: each a function of argv; an exception is a failure

CONFORMANCE = []


def conformance(function):
    CONFORMANCE.append(function)
    return function


def pattern(count):
    return bytes(i * 7 % 251 for i in range(count))


@conformance
def hello_names_the_worker_and_its_credit(argv):
    with Peer(argv) as peer:
        assert 1 in peer.worker["versions"] and peer.worker["name"] == "conformance", peer.worker
        assert "/" in peer.worker["sdk"] and peer.worker["credit"] == 4096, peer.worker


@conformance
def a_result_of_every_kind_comes_back_as_it_was(argv):
    with Peer(argv) as peer:
        for value in (None, True, False, 0, -1.5, "", "äあ😀\u0000\n\"\\", [], {}, [1, [2, {"x": None}]], 2**53 - 1, "x" * 200000):
            assert peer.run({"op": "result", "value": value}).result == value, value


@conformance
def the_fields_of_a_job_reach_the_handler(argv):
    with Peer(argv) as peer:
        end = peer.run({"op": "info"}, id="0197-ä", queue="images", attempt=3, timeout_ms=1500, later={"unknown": 1})
        assert end.result == {"id": "0197-ä", "queue": "images", "attempt": 3, "timeout_ms": 1500}, end.result


@conformance
def every_byte_is_echoed(argv):
    with Peer(argv) as peer:
        end = peer.run({"op": "echo"}, stdin=bytes(range(256)))
        assert end.result == {"bytes": 256} and end.stdout == bytes(range(256))


@conformance
def empty_stdin_and_no_stdin_are_an_end_at_once(argv):
    with Peer(argv) as peer:
        assert peer.run({"op": "echo"}, stdin=b"").result == {"bytes": 0}
        assert peer.run({"op": "echo"}).result == {"bytes": 0}


@conformance
def stdin_beyond_the_first_credit_flows_on(argv):
    data = pattern(300000)
    with Peer(argv) as peer:
        assert peer.run({"op": "echo"}, stdin=data).stdout == data


@conformance
def a_mebibyte_comes_through_small_credit_exactly(argv):
    with Peer(argv, credit=1000) as peer:
        end = peer.run({"op": "emit", "bytes": 1 << 20}, slow=1000)
        assert end.stdout == pattern(1 << 20) and end.stderr == b"1048576 bytes" and end.result == {"bytes": 1 << 20}


@conformance
def a_credit_of_one_byte_is_enough(argv):
    with Peer(argv, credit=1) as peer:
        end = peer.run({"op": "emit", "bytes": 300}, slow=1)
        assert end.stdout == pattern(300) and end.stderr == b"300 bytes"


@conformance
def without_credit_nothing_is_sent_until_it_comes(argv):
    with Peer(argv, credit=0) as peer:
        number = peer.start({"op": "emit", "bytes": 10}, slow=None)
        job = peer.jobs[number]
        peer.ping(1)  # a worker that waits for credit reads on
        assert number in peer.jobs and not job.end.stdout
        for stream, grant in ((STDOUT, 4), (STDOUT, 6), (STDERR, 100)):
            job.out_credit[stream] += grant
            peer.send(frame(CREDIT, {"bytes": grant}, number, stream))
        assert peer.wait(number).stdout == pattern(10)


@conformance
def a_hundred_jobs_one_after_the_other_keep_their_own(argv):
    with Peer(argv) as peer:
        for i in range(100):
            end = peer.run({"op": "echo"}, stdin=b"job %d" % i)
            assert end.stdout == b"job %d" % i and end.result == {"bytes": len(b"job %d" % i)}, i


@conformance
def job_numbers_may_have_gaps(argv):
    with Peer(argv) as peer:
        for number in (7, 8, 1000, 2**53 - 1):
            assert peer.run({"op": "result", "value": number}, number=number).result == number


@conformance
def r55_bytes_that_come_one_by_one_are_the_same_frames(argv):
    with Peer(argv, slice=1) as peer:
        assert peer.run({"op": "echo"}, stdin=bytes(range(256))).stdout == bytes(range(256))
        peer.ping(5)


@conformance
def r55_many_frames_in_one_read_are_all_seen(argv):
    with Peer(argv) as peer:
        peer.pings += range(200)
        peer.send(b"".join(frame(PING, {"n": n}) for n in range(200)))
        assert peer.run({"op": "result", "value": 1}).result == 1
        peer._until(lambda: not peer.pings, "200 PONGs")


@conformance
def an_error_carries_message_code_and_retry(argv):
    with Peer(argv) as peer:
        error = peer.run({"op": "error", "message": "no such image", "code": 7}).error
        assert error["message"] == "no such image" and error["code"] == 7 and error.get("retry", True) is True, error
        error = peer.run({"op": "error", "message": "ä\u0001\"", "retry": False}).error
        assert error["message"] == "ä\u0001\"" and error["retry"] is False, error
        assert peer.run({"op": "no such op"}).error["message"]
        assert peer.run({"op": "result", "value": "alive"}).result == "alive"


@conformance
def progress_and_logs_are_told(argv):
    with Peer(argv) as peer:
        end = peer.run({"op": "tell", "progress": {"frame": 12}, "text": "half\nway ä"})
        assert end.progress == [{"frame": 12}], end.progress
        assert [(log["text"], log.get("level")) for log in end.logs] == [("half\nway ä", "info")], end.logs
        assert [log["text"] for log in peer.worker_logs] == ["about the worker"], peer.worker_logs


@conformance
def r54_prints_go_to_the_log_and_never_into_a_frame(argv):
    with Peer(argv) as peer:
        assert peer.run({"op": "print", "text": "Error: boom\n"}).result is None
        assert peer.run({"op": "result", "value": 2}).result == 2
        assert peer.printed().count(b"Error: boom\n") == 2, peer.printed()


@conformance
def a_cancelled_job_ends_and_the_worker_goes_on(argv):
    with Peer(argv) as peer:
        for reason in ("timeout", "cancelled", "shutdown", "lost_lease"):
            number = peer.start({"op": "wait"}, hold_stdin=True)
            peer._until(lambda: peer.jobs[number].end.progress, "progress")
            peer.cancel(number, reason)
            assert peer.wait(number).error["message"] == "cancelled"
        assert peer.run({"op": "result", "value": 1}).result == 1


@conformance
def a_cancel_ends_a_wait_for_credit(argv):
    with Peer(argv, credit=10) as peer:
        number = peer.start({"op": "emit", "bytes": 1000}, slow=None)
        peer._until(lambda: len(peer.jobs[number].end.stdout) == 10, "10 bytes")
        peer.cancel(number)
        assert peer.wait(number).error["message"] == "cancelled"


@conformance
def what_crossed_the_end_of_its_job_is_discarded(argv):
    with Peer(argv) as peer:
        number = peer.start({"op": "result", "value": 1}, hold_stdin=True)
        peer.wait(number)
        peer.send(frame(CHUNK, b"late", number, STDIN) + frame(CREDIT, {"bytes": 5}, number, STDOUT) +
                  frame(CANCEL, {"reason": "timeout", "grace_ms": 0}, number) + frame(CHUNK, b"", number, STDIN, True))
        assert peer.run({"op": "echo"}, stdin=b"mine").stdout == b"mine"


@conformance
def ping_is_answered_when_idle_and_in_a_job_that_waits(argv):
    with Peer(argv) as peer:
        for n in (0, 1, 2**53 - 1):
            peer.ping(n)
        number = peer.start({"op": "echo"}, hold_stdin=True)
        peer.ping(3)
        peer.send(frame(CHUNK, b"x", number, STDIN, True))
        assert peer.wait(number).stdout == b"x"


@conformance
def children_of_the_worker_do_not_inherit_the_socket(argv):
    with Peer(argv) as peer:
        assert peer.run({"op": "result", "value": 1}).result == 1
        found = 0
        for fd in Path(f"/proc/{peer.process.pid}/fd").iterdir():
            if os.readlink(fd) == f"socket:[{peer.inode}]":
                found += 1
                info = Path(f"/proc/{peer.process.pid}/fdinfo/{fd.name}").read_text()
                flags = int(info.split("flags:")[1].split()[0], 8)
                assert flags & os.O_CLOEXEC, f"descriptor {fd.name} is not close-on-exec"
        assert found, "the program under test is no leader: start it with exec"


@conformance
def bye_ends_an_idle_worker_with_exit_0(argv):
    with Peer(argv) as peer:
        peer.finish()


@conformance
def bye_lets_the_job_finish_first(argv):
    with Peer(argv) as peer:
        number = peer.start({"op": "echo"}, hold_stdin=True)
        peer.bye()
        peer.ping(1)
        peer.send(frame(CHUNK, b"last", number, STDIN, True))
        assert peer.wait(number).stdout == b"last"
        assert peer.wait_closed() == 0


@conformance
def a_worker_may_say_bye_and_still_does_what_crossed_it(argv):
    with Peer(argv) as peer:
        assert peer.run({"op": "bye"}).result is None
        peer._until(lambda: peer.worker_bye is not None, "BYE")
        assert peer.run({"op": "result", "value": 3}).result == 3
        peer.finish()


@conformance
def a_closed_connection_ends_the_worker(argv):
    for op in (None, {"op": "wait"}):
        with Peer(argv) as peer:
            if op is not None:
                number = peer.start(op, hold_stdin=True)
                peer._until(lambda: peer.jobs[number].end.progress, "progress")
            peer._until(lambda: not peer.out, "room in the socket")
            peer.sock.shutdown(socket.SHUT_WR)
            assert peer.process.wait(DEADLINE) != 0
            peer.eof = True


@conformance
def malformed_frames_of_mandor_end_the_worker(argv):
    for row in json.loads((VECTORS / "malformed.json").read_text())["malformed"]:
        if row["sender"] != "mandor":
            continue
        with Peer(argv, hello=False) as peer:
            peer._until(lambda: peer.worker, "HELLO")
            peer.send(bytes.fromhex(row["prefix"]) + bytes.fromhex(row["hex"]))
            peer._until(lambda: not peer.out, "room in the socket")
            if row["ends"]:
                peer.sock.shutdown(socket.SHUT_WR)
            code = peer_exit(peer)
            # a good BYE before it may have let the worker go in peace
            peaceful = row["name"].startswith(("second BYE", "JOB behind BYE"))
            assert code != 0 or peaceful, f"{row['name']}: exit code {code}"


@conformance
def sessions_that_mandor_breaks_end_the_worker(argv):
    for row in json.loads((VECTORS / "sessions.json").read_text())["sessions"]:
        if row["by"] != "mandor":
            continue
        with Peer(argv, hello=False) as peer:
            peer._until(lambda: peer.worker, "HELLO")
            # their credit is 8, the worker's own another one: the vectors are told with its number
            excess = peer.worker["credit"] + 1
            for step in row["steps"]:
                if step["from"] != "mandor":
                    continue
                data = bytes.fromhex(step["hex"])
                if row["end"] == "credit" and data[4] == CHUNK:
                    data = frame(CHUNK, bytes(excess), 1, STDIN)
                elif data[4] == JOB:
                    body = json.loads(data[16:])
                    number, = struct.unpack_from("<Q", data, 8)
                    # it must be there when the wrong frame comes
                    data = frame(JOB, {**body, "data": {"op": "emit", "bytes": 1000}}, number)
                peer.send(data)
            peer._on_frame = lambda *_: None  # its answers are of no matter here
            assert peer_exit(peer) != 0, row["name"]


@conformance
def bad_json_of_mandor_ends_the_worker(argv):
    for row in json.loads((VECTORS / "payloads.json").read_text())["payloads"]:
        if row["sender"] != "mandor" or row["valid"]:
            continue
        with Peer(argv) as peer:
            number = peer.start({"op": "wait"}, hold_stdin=True)
            peer._until(lambda: peer.jobs[number].end.progress, "progress")
            type = NAMES.index(row["type"])
            peer.send(frame(type, bytes.fromhex(row["payload_hex"]), number if type == CREDIT else 0,
                            STDOUT if type == CREDIT else 0))
            assert peer_exit(peer) != 0, row


@conformance
def a_refusal_ends_the_worker_and_its_reason_is_logged(argv):
    with Peer(argv, hello=False) as peer:
        peer._until(lambda: peer.worker, "HELLO")
        peer.send(frame(BYE, {"reason": "no common version: mandor speaks 7"}))
        assert peer_exit(peer) != 0
        assert b"mandor speaks 7" in peer.printed(), peer.printed()


@conformance
def without_mandor_the_worker_says_so_and_exits(argv):
    env = {key: value for key, value in os.environ.items() if key != "MANDOR_FD"}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=DEADLINE)
    assert done.returncode != 0 and b"MANDOR_FD" in done.stderr, done


def peer_exit(peer):
    """The exit code of a worker that is to end by itself."""
    code = peer.wait_closed()
    assert code >= 0, f"killed by signal {-code}; it printed {peer.printed()!r}"
    return code


def refused(peer, data):
    """Does the peer refuse these bytes of a worker?"""
    try:
        peer.seen += data
        peer._take()
    except ProtocolError:
        return True
    return False


def self_check():
    """This file judges workers: it must itself be right about the vectors."""
    hello = bytes.fromhex(json.loads((VECTORS / "frames.json").read_text())["hello"]["worker"])
    for row in json.loads((VECTORS / "malformed.json").read_text())["malformed"]:
        if row["sender"] == "worker":
            peer = Peer(None)
            assert not refused(peer, bytes.fromhex(row["prefix"])), row["name"]
            peer.eof = row["ends"]
            assert refused(peer, bytes.fromhex(row["hex"])), row["name"]
    for row in json.loads((VECTORS / "payloads.json").read_text())["payloads"]:
        if row["sender"] == "worker" and "1024" not in row["why"]:  # Python's own depth is another
            peer, type = Peer(None), NAMES.index(row["type"])
            refused(peer, hello)
            peer.jobs[1], peer.pings = Job(1, None, 0, 0, None), [7, 2**53 - 1]
            if type != PING:
                assert refused(peer, frame(type, bytes.fromhex(row["payload_hex"]), 1)) != row["valid"], row
    for row in json.loads((VECTORS / "sessions.json").read_text())["sessions"]:
        peer, wrong = Peer(None, credit=8), False
        for step in row["steps"]:
            data = bytes.fromhex(step["hex"])
            number, = struct.unpack_from("<Q", data, 8)
            assert not wrong, row["name"]
            if step["from"] == "worker":
                wrong = refused(peer, data)
            elif data[4] == JOB:
                peer.jobs[number] = Job(number, None, peer.worker["credit"], 8, None)
            elif data[4] == PING:
                peer.pings.append(json.loads(data[16:])["n"])
            elif data[4] == CREDIT and number in peer.jobs:
                peer.jobs[number].out_credit[data[5] >> 1] += json.loads(data[16:])["bytes"]
        assert wrong == (row["by"] == "worker"), row["name"]


def main():
    parser = argparse.ArgumentParser(description="Run the conformance list of the pool protocol against a worker.")
    parser.add_argument("-k", metavar="WORD", default="", help="only what has WORD in its name")
    parser.add_argument("worker", nargs="+")
    args = parser.parse_args()
    self_check()
    chosen = [function for function in CONFORMANCE if args.k in function.__name__]
    failed = 0
    for function in chosen:
        started = time.monotonic()
        try:
            function(args.worker)
            verdict = "ok    "
        except Exception:
            failed += 1
            verdict = "FAILED"
            traceback.print_exc()
        print(f"{verdict} {function.__name__.replace('_', ' ')} ({time.monotonic() - started:.2f} s)", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
