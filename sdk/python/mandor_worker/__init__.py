"""A warm worker of a mandor pool: one handler, called for one job after the other, or for several at once.

    import mandor_worker

    @mandor_worker.handler
    def hello(ctx):
        return {"hello": ctx.data["name"]}

    if __name__ == "__main__":
        mandor_worker.run()

The handler is a function (it runs in the main thread, with concurrency > 1 in threads) or an `async def` (it runs in one
event loop).  What it returns is the job's result; an exception fails the job.  Prints go to mandor's log: frames travel on
a socket of their own, whose number mandor passes in MANDOR_FD and which no subprocess inherits.

The protocol is described in mandor-pool(7).  Standard library only.
"""
from __future__ import annotations

import asyncio
import collections
import functools
import inspect
import json
import os
import re
import select
import socket
import stat
import struct
import sys
import threading
import time
import traceback
from typing import (Any, AsyncIterator, Awaitable, Callable, Deque, Dict, Iterator, List, NamedTuple, NoReturn, Optional,
                    Sequence, Tuple, TypeVar, Union)

__version__ = "0.1.0"
__all__ = ["AsyncCancelFlag", "AsyncInput", "AsyncJobContext", "CancelFlag", "ConnectionLost", "Fatal", "Input", "JobCancelled",
           "JobContext", "JobError", "NoRetry", "handler", "log", "run"]

Bytes = Union[bytes, bytearray, memoryview]


# ---- what a handler may raise, and what may be raised into it ----------------------------------------------------------------


class JobError(Exception):
    """Fails the job with exactly this message.

    retry: may another attempt help?  code: the exit code in the job's record, 1 to 255.
    """

    def __init__(self, message: str, *, retry: bool = True, code: Optional[int] = None) -> None:
        super().__init__(message)
        if code is not None and not 1 <= code <= 255:
            raise ValueError(f"expected a code from 1 to 255, found {code}")
        self.retry = retry
        self.code = code


class NoRetry(JobError):
    """Fails the job for good: another attempt would fail likewise."""

    def __init__(self, message: str, *, code: Optional[int] = None) -> None:
        super().__init__(message, retry=False, code=code)


Fatal = NoRetry


class JobCancelled(Exception):
    """Raised by ctx.write() and ctx.input in a synchronous handler: mandor has asked for the job's end.

    reason: "timeout", "cancelled", "shutdown", "lost_lease", or a later mandor's word.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ConnectionLost(JobCancelled):
    """mandor has gone; nothing that the job does will be heard."""


# ---- frames ------------------------------------------------------------------------------------------------------------------

VERSION = 1
PAYLOAD_MAX = 16 << 20  # bytes: CHUNK, JOB, RESULT
TEXT_MAX = 1 << 20  # bytes: ERROR, PROGRESS, LOG
CONTROL_MAX = 4 << 10  # bytes: the others
CREDIT_MAX = 2**31 - 1  # bytes that one stream's credit may reach
NUMBER_MAX = 2**53 - 1  # of job numbers and of whole numbers in JSON
DEPTH_MAX = 1024  # arrays and objects within each other

HELLO, JOB, CHUNK, RESULT, ERROR, PROGRESS, LOG, CANCEL, CREDIT, PING, PONG, BYE = range(1, 13)
STDIN, STDOUT, STDERR = range(3)

_HEADER = struct.Struct("<IBBHQ")  # length, type, flags, version, job number
_NONE, _IN, _OUT = (), (STDIN,), (STDOUT, STDERR)
_BOTH = ("mandor", "worker")


class _Message(NamedTuple):
    name: str
    senders: Sequence[str]
    job: str  # "none": 0; "some": 1 and up; "any"
    least: int  # bytes of payload
    most: int
    streams: Dict[str, Sequence[int]]  # by sender: what bits 1 and 2 of the flags may name
    once: bool


_SILENT: Dict[str, Sequence[int]] = {"mandor": _NONE, "worker": _NONE}
_MESSAGES = {
    HELLO: _Message("HELLO", _BOTH, "none", 2, CONTROL_MAX, _SILENT, True),
    JOB: _Message("JOB", ("mandor",), "some", 2, PAYLOAD_MAX, _SILENT, False),
    CHUNK: _Message("CHUNK", _BOTH, "some", 1, PAYLOAD_MAX, {"mandor": _IN, "worker": _OUT}, False),
    RESULT: _Message("RESULT", ("worker",), "some", 1, PAYLOAD_MAX, _SILENT, False),
    ERROR: _Message("ERROR", ("worker",), "some", 2, TEXT_MAX, _SILENT, False),
    PROGRESS: _Message("PROGRESS", ("worker",), "some", 1, TEXT_MAX, _SILENT, False),
    LOG: _Message("LOG", ("worker",), "any", 2, TEXT_MAX, _SILENT, False),
    CANCEL: _Message("CANCEL", ("mandor",), "some", 2, CONTROL_MAX, _SILENT, False),
    CREDIT: _Message("CREDIT", _BOTH, "some", 2, CONTROL_MAX, {"mandor": _OUT, "worker": _IN}, False),
    PING: _Message("PING", _BOTH, "none", 2, CONTROL_MAX, _SILENT, False),
    PONG: _Message("PONG", _BOTH, "none", 2, CONTROL_MAX, _SILENT, False),
    BYE: _Message("BYE", _BOTH, "none", 2, CONTROL_MAX, _SILENT, True),
}


class ProtocolError(Exception):
    """The connection is of no more use.  fault: its class, as in the test vectors; offset: the byte that was wrong."""

    def __init__(self, fault: str, offset: int, text: str) -> None:
        super().__init__(f"byte {offset}: {text}")
        self.fault = fault
        self.offset = offset


class Frame(NamedTuple):
    type: int
    stream: int
    last: bool
    job: int
    payload: bytes


class Decoder:
    """Takes the bytes of one sender, in pieces of any size, and gives frames.

    Checks what one side alone can get wrong; whether a job is running and there was credit is its owner's matter.
    """

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.offset = 0  # bytes of the connection before the frame in work
        self._bytes = bytearray()
        self._header: Optional[Tuple[int, int, int, int, int]] = None
        self._hello = self._bye = False
        self._last_job = 0

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> Optional[Frame]:
        """The next whole frame, or None: more bytes are needed."""
        if self._header is None:
            if len(self._bytes) < _HEADER.size:
                return None
            header = _HEADER.unpack_from(self._bytes)
            self._check(*header)
            self._header = header
        length, type, flags, _, job = self._header
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as view, view[_HEADER.size:end] as part:
            payload = bytes(part)
        del self._bytes[:end]
        self.offset += end
        self._header = None
        self._hello |= type == HELLO
        self._bye |= type == BYE
        if type == JOB:
            self._last_job = job
        return Frame(type, flags >> 1, bool(flags & 1), job, payload)

    def end(self) -> None:
        """The connection has ended; fails inside a frame."""
        came = len(self._bytes)
        if came == 0:
            return
        if self._header is None:
            text = f"expected a header of {_HEADER.size} bytes, found the end after {came}"
        else:
            length, type = self._header[:2]
            text = (f"expected {length} bytes of payload in {_MESSAGES[type].name}, "
                    f"found the end after {came - _HEADER.size}")
        raise self._error("torn", came, text)

    def _error(self, fault: str, field: int, text: str) -> ProtocolError:
        return ProtocolError(fault, self.offset + field, text)

    def _check(self, length: int, type: int, flags: int, version: int, job: int) -> None:
        if length > PAYLOAD_MAX:
            raise self._error("length", 0, self._size_text(length))
        message = _MESSAGES.get(type)
        if message is None:
            raise self._error("type", 4, f"expected a type from 1 to {BYE}, found {type}")
        if version != VERSION:
            raise self._error("version", 6, f"expected protocol version {VERSION}, found {version}")
        if self.sender not in message.senders:
            raise self._error("direction", 4, f"expected no {message.name} from {self.sender}, found one")
        self._check_order(type, message)
        self._check_flags(flags, type, message)
        self._check_job(job, type, message)
        least = 0 if type == CHUNK and flags & 1 else message.least
        if not least <= length <= message.most:
            raise self._error("length", 0, f"expected {least} to {message.most} bytes of payload in {message.name}, "
                                           f"found length {length}")

    def _size_text(self, length: int) -> str:
        head = bytes(self._bytes[:_HEADER.size])
        if re.fullmatch(rb"[\t\n\r -~]+", head):
            text = head.decode("ascii").translate({9: ".", 10: ".", 13: "."})
            return f'expected a frame, found text: "{text}"'
        return f"expected a payload of at most {PAYLOAD_MAX} bytes, found length {length}"

    def _check_order(self, type: int, message: _Message) -> None:
        if self._bye and not self._hello:
            raise self._error("order", 4, f"expected the end after a refusing BYE, found {message.name}")
        if not self._hello and type != HELLO and not (type == BYE and self.sender == "mandor"):
            raise self._error("order", 4, f"expected HELLO as the first frame, found {message.name}")
        if (type == HELLO and self._hello) or (type == BYE and self._bye):
            raise self._error("order", 4, f"expected {message.name} once, found it again")
        if type == JOB and self._bye:
            raise self._error("order", 4, "expected no JOB after BYE, found one")

    def _check_flags(self, flags: int, type: int, message: _Message) -> None:
        stream = flags >> 1 & 3
        streams = message.streams[self.sender]
        if flags & ~7:
            raise self._error("flags", 5, f"expected bits 3-7 of the flags to be 0, found flags {flags:#04x}")
        if flags & 1 and type != CHUNK:
            raise self._error("flags", 5, f"expected bit 0 of the flags on CHUNK alone, found it on {message.name}")
        if not streams and stream:
            raise self._error("flags", 5, f"expected no stream on {message.name}, found stream {stream}")
        if streams and stream not in streams:
            names = "0 (stdin)" if streams == _IN else "1 or 2 (stdout, stderr)"
            raise self._error("stream", 5, f"expected stream {names} on {message.name} from {self.sender}, "
                                           f"found stream {stream}")

    def _check_job(self, job: int, type: int, message: _Message) -> None:
        if job > NUMBER_MAX:
            raise self._error("job", 8, f"expected a job number up to 2^53-1, found {job}")
        if message.job == "none" and job != 0:
            raise self._error("job", 8, f"expected job number 0 on {message.name}, found {job}")
        if message.job == "some" and job == 0:
            raise self._error("job", 8, f"expected a job number on {message.name}, found 0")
        if type == JOB and job <= self._last_job:
            raise self._error("job", 8, f"expected a JOB number above {self._last_job}, found {job}")


def encode(type: int, payload: Bytes = b"", job: int = 0, stream: int = 0, last: bool = False) -> bytes:
    """One whole frame."""
    return _HEADER.pack(len(payload), type, stream << 1 | last, VERSION, job) + bytes(payload)


def credit_grant(credit: int, more: int) -> int:
    """The credit with more bytes; ValueError when they are none, or the sum is too much."""
    if not 1 <= more <= CREDIT_MAX - credit:
        raise ValueError(f"expected a grant of 1 byte or more and a sum up to {CREDIT_MAX}, found {credit} + {more}")
    return credit + more


def credit_spend(credit: int, used: int) -> int:
    """The credit without the bytes that were used; ValueError when there is less."""
    if used > credit:
        raise ValueError(f"expected no more than the {credit} bytes that there was credit for, found {used}")
    return credit - used


# ---- JSON as the protocol wants it: RFC 8259 in UTF-8, no lone surrogates, no NaN, not too deep ------------------------------


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _any_int(text: str) -> Union[int, float]:
    return int(text) if len(text) < 4000 else float(text)


_decoder = json.JSONDecoder(parse_constant=_no_constant)
_patient_decoder = json.JSONDecoder(parse_constant=_no_constant, parse_int=_any_int)  # Python refuses very long integers
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')
_deep_lock = threading.Lock()
_T = TypeVar("_T")


def _deeply(convert: Callable[[Any], _T], value: Any) -> _T:
    """convert(value), with a deeper stack when it is nested deeper than Python's own limit is used to."""
    try:
        return convert(value)
    except RecursionError:
        pass
    with _deep_lock:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 4 * DEPTH_MAX)
        try:
            return convert(value)
        except RecursionError:
            raise ValueError("nested too deep") from None
        finally:
            sys.setrecursionlimit(limit)


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueError(f"nested deeper than {DEPTH_MAX}")
        elif token in "]}":
            depth -= 1


def parse_json(data: bytes) -> Any:
    """The value; ValueError when data is not JSON."""
    text = data.decode("utf-8")
    _check_depth(text)
    try:
        value = _deeply(_decoder.decode, text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        value = _deeply(_patient_decoder.decode, text)
    if "\\u" in text:
        _deeply(_encoder.encode, value).encode("utf-8")  # a lone surrogate does not pass
    return value


def dump_json(value: Any, most: int, what: str) -> bytes:
    """value as JSON; ValueError or TypeError when it has none, or has more than most bytes."""
    try:
        text = _deeply(_encoder.encode, value)
        _check_depth(text)
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not JSON: it has half a surrogate pair") from None
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    except TypeError as error:
        raise TypeError(f"{what} is not JSON: {error}") from None
    if len(data) > most:
        raise ValueError(f"{what} has {len(data)} bytes as JSON, expected at most {most}")
    return data


def _plain(text: str, most: int) -> str:
    """text that can be sent whatever is in it: at most so many characters, no lone surrogates."""
    if len(text) > most:
        text = text[:most] + " [...]"
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _log_line(text: Any, level: Optional[str]) -> bytes:
    """The payload of LOG."""
    body = {"text": _plain(str(text), _LOG_CHARS)}
    if level is not None:
        body["level"] = _plain(level, 64)
    return dump_json(body, TEXT_MAX, "the text")


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


# ---- errors of a job ---------------------------------------------------------------------------------------------------------

_OWN_FILE = os.path.abspath(__file__)
_MESSAGE_CHARS = 16 << 10  # JSON makes at most six bytes of a character: all of it stays below TEXT_MAX
_TRACEBACK_CHARS = 64 << 10
_LOG_CHARS = 128 << 10


def _own_frames(error: BaseException) -> str:
    """The traceback without the frames of this module."""
    summary = traceback.TracebackException(type(error), error, error.__traceback__)
    todo = [summary]
    while todo:
        one = todo.pop()
        one.stack[:] = [frame for frame in one.stack if os.path.abspath(frame.filename) != _OWN_FILE]
        more = (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ()))
        todo.extend(each for each in more if each is not None)
    text = "".join(summary.format())
    return text if len(text) <= _TRACEBACK_CHARS else "[...] " + text[-_TRACEBACK_CHARS:]


def _failure(error: BaseException, cancelled: Optional[str]) -> bytes:
    """The payload of ERROR."""
    body: Dict[str, Any] = {}
    if cancelled is not None and isinstance(error, (JobCancelled, asyncio.CancelledError)):
        return dump_json({"message": "cancelled"}, TEXT_MAX, "the error")
    try:
        if isinstance(error, JobError):
            message = str(error)
        else:
            message = "".join(traceback.format_exception_only(type(error), error)).strip()
        body["message"] = _plain(message, _MESSAGE_CHARS)
        body["traceback"] = _plain(_own_frames(error), 2 * _TRACEBACK_CHARS)
    except Exception:  # an exception whose __str__ fails
        body["message"] = type(error).__name__
    if isinstance(error, JobError):
        if not error.retry:
            body["retry"] = False
        if error.code is not None:
            body["code"] = error.code
    elif isinstance(error, SystemExit) and _whole(error.code, 1, 255):
        body["code"] = error.code
    return dump_json(body, TEXT_MAX, "the error")


# ---- the connection: what both ways to run handlers share --------------------------------------------------------------------

_READ = 256 << 10  # bytes of one recv
_CHUNK = 64 << 10  # bytes of one CHUNK
_OUT_HIGH = 256 << 10  # bytes that wait for the socket; who wants to send more waits
_PONGS_HIGH = 4 << 20  # as above, for what is never waited with: a mandor that asks and does not read is given up
_LINGER = 5.0  # seconds that handlers have once mandor has gone
_STREAMS = {"stdout": STDOUT, "stderr": STDERR}


class _Job:
    """One job, from JOB to RESULT or ERROR."""

    def __init__(self, number: int, body: Dict[str, Any], in_credit: int, out_credit: int) -> None:
        self.number = number
        self.id = str(body.get("id", ""))
        self.queue = str(body.get("queue", ""))
        attempt, timeout_ms = body.get("attempt"), body.get("timeout_ms")
        self.attempt: int = attempt if _whole(attempt, 1, NUMBER_MAX) else 1  # type: ignore[assignment]
        self.timeout: Optional[float] = timeout_ms / 1000 if _whole(timeout_ms, 1, NUMBER_MAX) else None  # type: ignore
        self.data = body.get("data")
        self.window = self.in_credit = in_credit
        self.in_chunks: Deque[bytes] = collections.deque()
        self.in_ended = body.get("stdin") is not True
        self.in_taken = 0  # bytes that were read and not yet granted again
        self.out_credit = {STDOUT: out_credit, STDERR: out_credit}
        self.out_ended = {STDOUT: False, STDERR: False}
        self.cancelled: Optional[str] = None
        self.done = False


class _Link:
    """The state machine of the connection.  Not locked, never waits; the methods at its end are for its two kinds."""

    def __init__(self, sock: socket.socket, name: str, concurrency: Optional[int], credit: int) -> None:
        self.sock = sock
        self.credit = credit
        self.concurrency = concurrency  # then what mandor says
        self.out_credit = 0
        self.hello = self.bye = self.said_bye = False
        self.lost: Optional[str] = None  # why nothing more comes or goes
        self.exit_code = 0
        self.jobs: Dict[int, _Job] = {}
        self.last_job = 0
        self._decoder = Decoder("mandor")
        self._out: Deque[memoryview] = collections.deque()
        self._out_size = 0
        self._deaf = False  # writing has failed: the end of file will come
        hello: Dict[str, Any] = {"versions": [VERSION], "name": _plain(name, 128), "sdk": f"python/{__version__}",
                                 "credit": credit}
        if concurrency is not None:
            hello["concurrency"] = concurrency
        self._hello = hello

    def start(self) -> None:
        self.send(HELLO, dump_json(self._hello, CONTROL_MAX, "HELLO"))

    @property
    def over(self) -> bool:
        """No job will come, and none is here."""
        return not self.jobs and (self.bye or self.lost is not None)

    # -- out

    def send(self, type: int, payload: Bytes = b"", job: int = 0, stream: int = 0, last: bool = False) -> None:
        """Send one frame; what the socket does not take now is copied and waits."""
        if self._deaf or self.lost is not None:
            return
        header = _HEADER.pack(len(payload), type, stream << 1 | last, VERSION, job)
        sent = 0
        if not self._out:
            try:
                sent = self.sock.sendmsg((header, payload), (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._deaf = True
                return
            if sent == len(header) + len(payload):
                return
        rest = memoryview(b"".join((header, payload)))[sent:]
        self._out.append(rest)
        self._out_size += len(rest)
        self._want_write()

    def flush(self) -> None:
        """The socket has room."""
        while self._out:
            part = self._out[0]
            try:
                sent = self.sock.send(part, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._deaf = True
                self._out.clear()
                self._out_size = 0
                break
            self._out_size -= sent
            if sent < len(part):
                self._out[0] = part[sent:]
            else:
                self._out.popleft()
        self._changed_all()

    @property
    def room(self) -> bool:
        return self._out_size < _OUT_HIGH or self._deaf or self.lost is not None

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def finish(self, job: _Job, type: int, payload: bytes) -> None:
        """RESULT or ERROR; what mandor still sends to this job has crossed it."""
        job.done = True
        del self.jobs[job.number]
        self.send(type, payload, job.number)
        self._changed(job)

    def take_input(self, job: _Job) -> Optional[bytes]:
        """The next chunk of stdin; b"" at its end; None when nothing is there now."""
        if not job.in_chunks:
            return b"" if job.in_ended else None
        chunk = job.in_chunks.popleft()
        job.in_taken += len(chunk)
        if not job.in_ended and job.in_taken * 2 >= job.window and not job.done:
            job.in_credit += job.in_taken
            self.send(CREDIT, b'{"bytes":%d}' % job.in_taken, job.number, STDIN)
            job.in_taken = 0
        return chunk

    def put_output(self, job: _Job, stream: int, view: memoryview) -> int:
        """Send a CHUNK from the beginning of view.  Returns its length; 0 while there is no credit or no room."""
        if not job.out_credit[stream] or not self.room:
            return 0
        size = min(len(view), _CHUNK, job.out_credit[stream])
        job.out_credit[stream] = credit_spend(job.out_credit[stream], size)
        self.send(CHUNK, view[:size], job.number, stream)
        return size

    def end_output(self, job: _Job, stream: int) -> None:
        if not job.out_ended[stream]:
            job.out_ended[stream] = True
            self.send(CHUNK, b"", job.number, stream, True)

    def say_bye(self, reason: str) -> None:
        if not self.said_bye:
            self.said_bye = True
            self.send(BYE, dump_json({"reason": _plain(reason, 256)}, CONTROL_MAX, "the reason"))

    # -- in

    def read(self) -> None:
        """The socket has bytes, or its end."""
        try:
            data = self.sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        try:
            if data:
                self._take(data)
            else:
                self._decoder.end()
                self.lose("mandor has closed the connection", 0 if self.over else 1)
        except ProtocolError as error:
            self._complain(str(error))
            self.lose(f"protocol error: {error}", 1)

    def lose(self, why: str, exit_code: int) -> None:
        if self.lost is not None:
            return
        self.lost = why
        self.exit_code = exit_code
        self._out.clear()
        self._out_size = 0
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for job in list(self.jobs.values()):
            if job.cancelled is None:
                job.cancelled = "lost"
                self._cancel(job)
        self._changed_all()

    def leave(self) -> None:
        """All was done and sent.  Nothing is left unread, so that no reset throws away what was sent."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
            while self.sock.recv(_READ):
                pass
        except OSError:
            pass
        self.sock.close()

    @staticmethod
    def _complain(text: str) -> None:
        print(f"mandor-worker: {text}", file=sys.stderr, flush=True)

    def _take(self, data: bytes) -> None:
        self._decoder.feed(data)
        while self.lost is None:
            begin = self._decoder.offset
            frame = self._decoder.next()
            if frame is None:
                return
            try:
                self._on_frame(frame)
            except ValueError as error:
                name = _MESSAGES[frame.type].name
                raise ProtocolError("state", begin, f"{name}, job {frame.job}: {error}") from None
            if self._out_size > _PONGS_HIGH + PAYLOAD_MAX * (len(self.jobs) + 1):
                raise ProtocolError("state", begin, "expected mandor to read the answers to its PINGs")

    def _on_frame(self, frame: Frame) -> None:
        body: Dict[str, Any] = {}
        if frame.type != CHUNK:
            try:
                body = parse_json(frame.payload)
            except ValueError as error:
                raise ValueError(f"expected JSON: {error}") from None
            if not isinstance(body, dict):
                raise ValueError("expected a JSON object")
        if frame.job and frame.type != JOB:
            self._on_job_frame(frame, body)
        elif frame.type == JOB:
            self._on_job(frame, body)
        elif frame.type == PING:
            if not _whole(body.get("n"), 0, NUMBER_MAX):
                raise ValueError('expected {"n": N} with N from 0 to 2^53-1')
            self.send(PONG, b'{"n":%d}' % body["n"])
        elif frame.type == PONG:
            raise ValueError("expected none: this worker sends no PING")
        elif frame.type == HELLO:
            self._on_hello(body)
        elif frame.type == BYE:
            self._on_bye(body)

    def _on_hello(self, body: Dict[str, Any]) -> None:
        if not _whole(body.get("version"), VERSION, VERSION):
            raise ValueError(f'expected "version": {VERSION}, the one that was offered')
        if not _whole(body.get("credit"), 0, CREDIT_MAX):
            raise ValueError('expected "credit": a number of bytes up to 2147483647')
        most = NUMBER_MAX if self.concurrency is None else self.concurrency
        if not _whole(body.get("concurrency"), 1, most):
            raise ValueError(f'expected "concurrency": a number from 1 to {most}')
        self.out_credit = body["credit"]
        self.concurrency = body["concurrency"]
        self.hello = True

    def _on_bye(self, body: Dict[str, Any]) -> None:
        if not self.hello:
            self._complain(f"refused by mandor: {body.get('reason', 'no reason given')}")
            self.lose("refused by mandor", 1)
            return
        self.bye = True
        self._changed_all()

    def _on_job(self, frame: Frame, body: Dict[str, Any]) -> None:
        if len(self.jobs) >= (self.concurrency or 1):
            raise ValueError(f"expected at most {self.concurrency} jobs at once, as agreed")
        job = _Job(frame.job, body, self.credit, self.out_credit)
        self.last_job = frame.job
        self.jobs[frame.job] = job
        self._begin(job)

    def _on_job_frame(self, frame: Frame, body: Dict[str, Any]) -> None:
        if frame.job > self.last_job:
            raise ValueError("expected a job that was given to this worker")
        if frame.type == CREDIT and not _whole(body.get("bytes"), 1, CREDIT_MAX):
            raise ValueError('expected {"bytes": N} with N from 1 to 2147483647')
        job = self.jobs.get(frame.job)
        if job is None:
            return  # it has crossed the job's end
        if frame.type == CREDIT:
            job.out_credit[frame.stream] = credit_grant(job.out_credit[frame.stream], body["bytes"])
        elif frame.type == CHUNK:
            if job.in_ended:
                raise ValueError("expected none: this stdin has ended, or there is none")
            job.in_credit = credit_spend(job.in_credit, len(frame.payload))
            if frame.payload:
                job.in_chunks.append(frame.payload)
            job.in_ended = frame.last
        elif job.cancelled is None:
            reason = body.get("reason")
            job.cancelled = reason if isinstance(reason, str) else "cancelled"
            self._cancel(job)
        self._changed(job)

    # -- for the two kinds

    def _want_write(self) -> None:
        """Something waits for the socket: call flush() when it has room."""
        raise NotImplementedError

    def _begin(self, job: _Job) -> None:
        """Call the handler, soon."""
        raise NotImplementedError

    def _cancel(self, job: _Job) -> None:
        """job.cancelled has been set."""

    def _changed(self, job: _Job) -> None:
        """Wake whoever waits for something of this job."""
        raise NotImplementedError

    def _changed_all(self) -> None:
        """Wake everybody."""
        raise NotImplementedError


# ---- the job as its handler sees it ------------------------------------------------------------------------------------------


class _Context:
    _link: _Link
    _job: _Job

    @property
    def id(self) -> str:
        """The job's id in its queue."""
        return self._job.id

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def attempt(self) -> int:
        """1 and up; only grows, so it can serve as a fencing token."""
        return self._job.attempt

    @property
    def timeout(self) -> Optional[float]:
        """Seconds that the whole attempt may take, or None."""
        return self._job.timeout

    @property
    def data(self) -> Any:
        """What the job was added with (--data)."""
        return self._job.data

    def progress(self, value: Any) -> None:
        """Say how far the job is: any JSON value, such as 42 or {"frame": 12}."""
        self._tell(PROGRESS, dump_json(value, TEXT_MAX, "the progress"))

    def log(self, text: Any, level: Optional[str] = None) -> None:
        """A line for the job's log.  level: "debug", "info", "warn", "error"."""
        self._tell(LOG, _log_line(text, level))

    def _tell(self, type: int, payload: bytes) -> None:
        raise NotImplementedError

    def _check_alive(self) -> None:
        if self._job.done:
            raise RuntimeError(f"job {self._job.id} has ended")

    def _view(self, data: Bytes, stream: str) -> Tuple[int, memoryview]:
        if stream not in _STREAMS:
            raise ValueError(f"expected stream 'stdout' or 'stderr', found {stream!r}")
        if isinstance(data, str):
            raise TypeError("expected bytes, found str: encode it first")
        number = _STREAMS[stream]
        if self._job.out_ended[number]:
            raise ValueError(f"{stream} of job {self._job.id} has been ended")
        return number, memoryview(data).cast("B")


class CancelFlag:
    """Has mandor asked for the job's end?  True in a condition once it has."""

    def __init__(self, link: _Threads, job: _Job) -> None:
        self._link = link
        self._job = job

    @property
    def reason(self) -> Optional[str]:
        """"timeout", "cancelled", "shutdown", "lost_lease"; None when mandor has not asked."""
        return self._job.cancelled

    def is_set(self) -> bool:
        return self._job.cancelled is not None

    __bool__ = is_set

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until it is set, for so many seconds at most, or until the job has ended.  Returns whether it is."""
        with self._link.lock:
            self._link.condition(self._job).wait_for(lambda: self.is_set() or self._job.done, timeout)
        return self.is_set()


class Input:
    """The job's stdin: iterate over it for chunks as they come, or read().  Empty when the job has none."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._rest = b""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk, self._rest = self._rest or self._context._next_input(), b""
        if not chunk:
            raise StopIteration
        return chunk

    def read(self, size: int = -1) -> bytes:
        """size bytes, fewer only at the end; without a size all of it."""
        parts, have = [], 0
        while size < 0 or have < size:
            chunk = next(self, b"")
            if not chunk:
                break
            if 0 <= size < have + len(chunk):
                chunk, self._rest = chunk[:size - have], chunk[size - have:]
            parts.append(chunk)
            have += len(chunk)
        return b"".join(parts)


class JobContext(_Context):
    """A job in a synchronous handler.  Its methods may be called from any thread until the handler returns."""

    _link: _Threads

    def __init__(self, link: _Threads, job: _Job) -> None:
        self._link = link
        self._job = job
        self._locks = {STDOUT: threading.Lock(), STDERR: threading.Lock()}
        self.cancelled = CancelFlag(link, job)
        self.input = Input(self)

    def write(self, data: Bytes, stream: str = "stdout") -> None:
        """Write all of data to an output of the job, in order and exactly; waits while the sink is slow.

        Raises JobCancelled once mandor has asked for the job's end.
        """
        number, view = self._view(data, stream)
        with self._locks[number]:  # a write is never mixed with another one
            while view:
                with self._link.lock:
                    size = self._wait(lambda: self._link.put_output(self._job, number, view))
                view = view[size:]

    def end(self, stream: str = "stdout") -> None:
        """End one output early.  The job's end ends both."""
        number, _ = self._view(b"", stream)
        with self._locks[number], self._link.lock:
            self._check_alive()
            self._link.end_output(self._job, number)

    def bye(self, reason: str = "") -> None:
        """Ask mandor for no further jobs, for example because memory was lost; the jobs that are here go on."""
        with self._link.lock:
            self._link.say_bye(reason)

    def _next_input(self) -> bytes:
        with self._link.lock:
            chunk = self._wait(lambda: self._link.take_input(self._job), falsy=None)
        return chunk or b""

    def _wait(self, attempt: Callable[[], Any], falsy: Any = 0) -> Any:
        """attempt() until it gives something else than falsy.  The lock is held."""
        while True:
            self._check_alive()
            if self._link.lost is not None:
                raise ConnectionLost("lost")
            if self._job.cancelled is not None:
                raise JobCancelled(self._job.cancelled)
            value = attempt()
            if value is not falsy and value != falsy:
                return value
            self._link.condition(self._job).wait()

    def _tell(self, type: int, payload: bytes) -> None:
        with self._link.lock:
            self._link.condition(self._job).wait_for(lambda: self._link.room)
            self._check_alive()
            self._link.send(type, payload, self._job.number)


class AsyncCancelFlag:
    """Has mandor asked for the job's end?  The handler's task is cancelled then, too."""

    def __init__(self, link: _Asyncio, job: _Job) -> None:
        self._link = link
        self._job = job

    @property
    def reason(self) -> Optional[str]:
        """"timeout", "cancelled", "shutdown", "lost_lease"; None when mandor has not asked."""
        return self._job.cancelled

    def is_set(self) -> bool:
        return self._job.cancelled is not None

    __bool__ = is_set

    async def wait(self) -> bool:
        """Wait until it is set, or the job has ended.  Returns whether it is."""
        while not self.is_set() and not self._job.done:
            await self._link.change(self._job)
        return self.is_set()


class AsyncInput:
    """The job's stdin: `async for` over it for chunks as they come, or read().  Empty when the job has none."""

    def __init__(self, context: AsyncJobContext) -> None:
        self._context = context
        self._rest = b""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk, self._rest = self._rest or await self._context._next_input(), b""
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def read(self, size: int = -1) -> bytes:
        """size bytes, fewer only at the end; without a size all of it."""
        parts, have = [], 0
        while size < 0 or have < size:
            chunk, self._rest = self._rest or await self._context._next_input(), b""
            if not chunk:
                break
            if 0 <= size < have + len(chunk):
                chunk, self._rest = chunk[:size - have], chunk[size - have:]
            parts.append(chunk)
            have += len(chunk)
        return b"".join(parts)


class AsyncJobContext(_Context):
    """A job in an `async def` handler.  Belongs to its event loop."""

    _link: _Asyncio

    def __init__(self, link: _Asyncio, job: _Job) -> None:
        self._link = link
        self._job = job
        self._locks = {STDOUT: asyncio.Lock(), STDERR: asyncio.Lock()}
        self.cancelled = AsyncCancelFlag(link, job)
        self.input = AsyncInput(self)

    async def write(self, data: Bytes, stream: str = "stdout") -> None:
        """Write all of data to an output of the job, in order and exactly; waits while the sink is slow."""
        number, view = self._view(data, stream)
        async with self._locks[number]:
            while view:
                self._check_alive()
                if self._link.lost is not None:
                    raise ConnectionLost("lost")
                size = self._link.put_output(self._job, number, view)
                if size == 0:
                    await self._link.change(self._job)
                view = view[size:]

    async def end(self, stream: str = "stdout") -> None:
        """End one output early.  The job's end ends both."""
        number, _ = self._view(b"", stream)
        async with self._locks[number]:
            self._check_alive()
            self._link.end_output(self._job, number)

    def bye(self, reason: str = "") -> None:
        """Ask mandor for no further jobs, for example because memory was lost; the jobs that are here go on."""
        self._link.say_bye(reason)

    async def _next_input(self) -> bytes:
        while True:
            self._check_alive()
            chunk = self._link.take_input(self._job)
            if chunk is not None:
                return chunk
            if self._link.lost is not None:
                raise ConnectionLost("lost")
            await self._link.change(self._job)

    def _tell(self, type: int, payload: bytes) -> None:
        self._check_alive()
        self._link.make_room()
        self._link.send(type, payload, self._job.number)


# ---- synchronous handlers: the main thread and others call them, one more thread looks after the socket ----------------------


class _Threads(_Link):
    """The socket's thread never waits for a handler; handlers send by themselves, and leave to it what has no room."""

    def __init__(self, handler: Callable[[JobContext], Any], sock: socket.socket, name: str, concurrency: int,
                 credit: int) -> None:
        super().__init__(sock, name, concurrency, credit)
        self.lock = threading.Lock()
        self._handler = handler
        self._most_threads = concurrency
        self._threads = 1  # that call handlers; the main thread is one
        self._idle = 0
        self._ready: Deque[_Job] = collections.deque()
        self._work = threading.Condition(self.lock)
        self._conditions: Dict[int, threading.Condition] = {}
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)

    def run(self) -> None:
        with self.lock:
            self.start()
        thread = threading.Thread(target=self._attend, name="mandor-worker", daemon=True)
        thread.start()
        self._serve()
        thread.join()
        self.leave()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def log(self, payload: bytes) -> None:
        with self.lock:
            self._work.wait_for(lambda: self.room)
            self.send(LOG, payload)

    def condition(self, job: _Job) -> threading.Condition:
        return self._conditions.get(job.number) or self._work

    # -- the socket's thread

    def _attend(self) -> None:
        try:
            self._poll()
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    def _poll(self) -> None:
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        poll.register(self.sock, select.POLLIN)
        while True:
            with self.lock:
                if self.lost is not None or (self.over and not self.pending):
                    break
                poll.modify(self.sock, select.POLLIN | (select.POLLOUT if self.pending else 0))
            for fd, events in poll.poll():
                with self.lock:
                    if fd == self._wake_in:
                        self._drain_wakes()
                        continue
                    if events & select.POLLOUT:
                        self.flush()
                    if events & ~select.POLLOUT:
                        self.read()
        with self.lock:
            self._work.notify_all()
            if not self._work.wait_for(lambda: self.over, _LINGER):
                os._exit(self.exit_code)  # a handler that does not notice: nobody will hear of it

    def _drain_wakes(self) -> None:
        try:
            while len(os.read(self._wake_in, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def _want_write(self) -> None:
        try:
            os.write(self._wake_out, b"w")
        except BlockingIOError:
            pass  # it has been woken often enough

    def _begin(self, job: _Job) -> None:
        self._conditions[job.number] = threading.Condition(self.lock)
        self._ready.append(job)
        if self._idle < len(self._ready) and self._threads < self._most_threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"mandor-worker-{self._threads}", daemon=True).start()
        self._work.notify()

    def _changed(self, job: _Job) -> None:
        self.condition(job).notify_all()

    def _changed_all(self) -> None:
        for condition in self._conditions.values():
            condition.notify_all()
        self._work.notify_all()

    # -- threads that call handlers

    def _serve(self) -> None:
        while True:
            with self.lock:
                self._idle += 1
                self._work.wait_for(lambda: self._ready or self.over)
                self._idle -= 1
                if not self._ready:
                    return
                job = self._ready.popleft()
            self._call(job)

    def _call(self, job: _Job) -> None:
        type = RESULT
        try:
            if job.cancelled is not None:
                raise JobCancelled(job.cancelled)
            payload = dump_json(self._handler(JobContext(self, job)), PAYLOAD_MAX, "the result")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            type, payload = ERROR, _failure(error, job.cancelled)
        _flush_prints()
        with self.lock:
            self.finish(job, type, payload)
            del self._conditions[job.number]
            if self.over:
                self._work.notify_all()
                self._want_write()  # the socket's thread ends


# ---- asynchronous handlers: all in one event loop ----------------------------------------------------------------------------


class _Asyncio(_Link):
    def __init__(self, handler: Callable[[AsyncJobContext], Awaitable[Any]], sock: socket.socket, name: str,
                 concurrency: Optional[int], credit: int) -> None:
        super().__init__(sock, name, concurrency, credit)
        self._handler = handler
        self._waiters: Dict[int, List[asyncio.Future[None]]] = {}
        self._tasks: Dict[int, asyncio.Task[None]] = {}

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self.sock, self._on_readable)
        self.start()
        await self._ended
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        self.leave()

    def log(self, payload: bytes) -> None:
        self.make_room()
        self.send(LOG, payload)

    async def change(self, job: _Job) -> None:
        """Wait until something of this job may have changed."""
        waiter = self._loop.create_future()
        waiters = self._waiters.setdefault(job.number, [])
        waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in waiters:  # cancelled; who wakes them takes the whole list away
                waiters.remove(waiter)

    def make_room(self) -> None:
        """Wait, in the middle of a task, until the socket has taken enough; reads on meanwhile."""
        while not self.room:
            readable, writable, _ = select.select([self.sock], [self.sock], [])
            if writable:
                self.flush()
            if readable and self.lost is None:
                self.read()

    def _on_readable(self) -> None:
        self.read()
        self._end_if_over()

    def _on_writable(self) -> None:
        self.flush()
        if not self.pending:
            self._loop.remove_writer(self.sock)
            self._end_if_over()

    def _end_if_over(self) -> None:
        if self.over and not self.pending and not self._ended.done():
            self._ended.set_result(None)

    def _want_write(self) -> None:
        self._loop.add_writer(self.sock, self._on_writable)

    def _begin(self, job: _Job) -> None:
        task = self._tasks[job.number] = self._loop.create_task(self._call(job))
        task.add_done_callback(lambda _: self._on_task_done(job))

    def _on_task_done(self, job: _Job) -> None:
        if not job.done:  # it was cancelled before it began
            self._finish(job, ERROR, _failure(asyncio.CancelledError(), job.cancelled))

    def _cancel(self, job: _Job) -> None:
        self._tasks[job.number].cancel()

    def _changed(self, job: _Job) -> None:
        for waiter in self._waiters.pop(job.number, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _changed_all(self) -> None:
        for job in list(self.jobs.values()):
            self._changed(job)

    def lose(self, why: str, exit_code: int) -> None:
        super().lose(why, exit_code)
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        timer = threading.Timer(_LINGER, os._exit, (self.exit_code,))  # also when a handler blocks the loop
        timer.daemon = True
        timer.start()

    async def _call(self, job: _Job) -> None:
        type = RESULT
        try:
            payload = dump_json(await self._handler(AsyncJobContext(self, job)), PAYLOAD_MAX, "the result")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            type, payload = ERROR, _failure(error, job.cancelled)
        self._finish(job, type, payload)

    def _finish(self, job: _Job, type: int, payload: bytes) -> None:
        _flush_prints()
        self.finish(job, type, payload)
        del self._tasks[job.number]
        self._end_if_over()


# ---- the run -----------------------------------------------------------------------------------------------------------------

_registered: Optional[Callable[[Any], Any]] = None
_running: Union[_Threads, _Asyncio, None] = None
_Handler = TypeVar("_Handler", bound=Callable[[Any], Any])


def handler(function: _Handler) -> _Handler:
    """Decorator: the handler that run() takes when it is given none."""
    global _registered
    if _registered is not None:
        raise ValueError(f"there is a handler already: {_registered!r}")
    _registered = function
    return function


def run(handler: Optional[Callable[[Any], Any]] = None, *, concurrency: Optional[int] = None, name: Optional[str] = None,
        credit: int = 64 << 10) -> None:
    """Serve jobs until mandor says that no more will come; returns when all are done.

    handler: a function or an `async def` that takes the context of a job; without one that of the decorator.
    concurrency: jobs at once at most.  Without one: 1 for functions, what the pool is set to for `async def`.
    name: in mandor's log and in `mandor pools`; the program's name without one.
    credit: bytes of stdin that are held for a job unread.

    Ends the process with exit code 1 and a line on stderr when it was not started by a mandor pool, or what came was no frame.
    """
    global _running
    function = handler if handler is not None else _registered
    if function is None:
        raise ValueError("expected a handler: run(handler), or the decorator before run()")
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"expected a concurrency of 1 or more, found {concurrency}")
    if not 1 <= credit <= CREDIT_MAX:
        raise ValueError(f"expected a credit from 1 to {CREDIT_MAX}, found {credit}")
    if name is None:
        name = os.path.basename(sys.argv[0]) or "python"

    sock = _claim_socket()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            pass  # closed, or replaced by something of the program's own
    if _is_async(function):
        link: Union[_Threads, _Asyncio] = _Asyncio(function, sock, name, concurrency, credit)
    else:
        link = _Threads(function, sock, name, concurrency or 1, credit)
    _running = link
    try:
        link.run()
    finally:
        _running = None
    if link.exit_code:
        sys.exit(link.exit_code)


def log(text: Any, level: Optional[str] = None) -> None:
    """A line about the worker itself, not about a job, for mandor's log; from the thread of the event loop when there is one."""
    if _running is None:
        raise RuntimeError("the worker is not running")
    _running.log(_log_line(text, level))


def _is_async(function: Callable[[Any], Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def _flush_prints() -> None:
    """What a job printed is in the log before its end is."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


def _socket_number() -> Optional[int]:
    """The number in MANDOR_FD, when it is that of a socket."""
    try:
        number = int(os.environ["MANDOR_FD"])
        return number if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode) else None
    except (KeyError, ValueError, OSError):
        return None


def _claim_socket() -> socket.socket:
    number = _socket_number()
    if number is None:
        sys.exit("mandor-worker: expected a socket's number in MANDOR_FD: a mandor pool starts this program")
    os.set_inheritable(number, False)
    del os.environ["MANDOR_FD"]
    sock = socket.socket(fileno=number)
    sock.setblocking(False)
    os.register_at_fork(after_in_child=sock.close)  # a forked child must not speak, nor keep the connection open
    return sock


def _protect_socket() -> None:
    """From the import on: a subprocess that is started before run() does not get the socket either."""
    number = _socket_number()
    if number is not None:
        os.set_inheritable(number, False)


_protect_socket()
