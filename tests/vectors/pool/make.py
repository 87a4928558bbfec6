#!/usr/bin/env python3
"""Write the vectors of the pool protocol beside this file, and the session in doc/pool-protocol.md; with --check only say
whether they are current.

They are made from the layout in doc/pool-protocol.md with struct.pack, by nothing that is tested with them.
"""
import json
import struct
import sys
from pathlib import Path

HELLO, JOB, CHUNK, RESULT, ERROR, PROGRESS, LOG, CANCEL, CREDIT, PING, PONG, BYE = range(1, 13)
STDIN, STDOUT, STDERR = range(3)
NAMES = " HELLO JOB CHUNK RESULT ERROR PROGRESS LOG CANCEL CREDIT PING PONG BYE".split(" ")
MAX = 16 << 20
TEXT = 1 << 20
CONTROL = 4 << 10
EXACT = 2**53 - 1


def header(type, length, job=0, stream=0, last=False, flags=None, version=1):
    if flags is None:
        flags = stream << 1 | last
    return struct.pack("<IBBHQ", length, type, flags, version, job)


def frame(type, payload=b"", job=0, **how):
    if not isinstance(payload, bytes):
        payload = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    return header(type, len(payload), job, **how) + payload


WORKER_HELLO = {"versions": [1], "name": "resize", "sdk": "python/0.1", "credit": 65536}
MANDOR_HELLO = {"version": 1, "pool": "thumbs", "concurrency": 1, "credit": 262144}
HELLOS = {"worker": frame(HELLO, WORKER_HELLO), "mandor": frame(HELLO, MANDOR_HELLO)}


def a_job(number=1, data=None, **more):
    body = {"id": f"j{number}", "queue": "default", "attempt": 1, "data": data, "timeout_ms": 0, "stdin": False}
    return frame(JOB, {**body, **more}, number)


def frames():
    """Well-formed frames, each behind the HELLO of its sender (the HELLOs and the refusal: as the first)."""
    rows = []

    def row(name, sender, type, payload=b"", job=0, stream=0, last=False, first=False):
        data = frame(type, payload, job, stream=stream, last=last)
        entry = {"name": name, "sender": sender, "first": first, "hex": data.hex(), "type": NAMES[type], "number": type,
                 "stream": stream, "last": last, "job": job}
        if isinstance(payload, bytes):
            entry["payload_hex"] = payload.hex()
        else:
            entry["payload"] = payload
        rows.append(entry)

    row("hello of a worker", "worker", HELLO, WORKER_HELLO, first=True)
    row("hello of a worker that takes one job at once", "worker", HELLO, {**WORKER_HELLO, "concurrency": 1}, first=True)
    row("hello of mandor", "mandor", HELLO, MANDOR_HELLO, first=True)
    row("refusal: no common version", "mandor", BYE, {"reason": "no common version: mandor speaks 1"}, first=True)
    row("job", "mandor", JOB, {"id": "0197c3f2", "queue": "images", "attempt": 2, "data": {"path": "/in/ä.png", "width": 640},
                               "timeout_ms": 30000, "stdin": True}, 1)
    row("job with the highest number", "mandor", JOB, {"id": "x", "queue": "q", "attempt": 1, "data": None}, EXACT)
    row("chunk of stdin", "mandor", CHUNK, b"hello\n", 1, STDIN)
    row("chunk with every byte", "worker", CHUNK, bytes(range(256)), 1, STDOUT)
    row("chunk of stderr", "worker", CHUNK, b"\x00", 1, STDERR)
    row("last chunk with bytes", "worker", CHUNK, b"end", 7, STDOUT, True)
    row("last chunk without bytes", "worker", CHUNK, b"", 7, STDERR, True)
    row("last chunk of stdin without bytes", "mandor", CHUNK, b"", 7, STDIN, True)
    for value in ({"width": 640}, [1, 2, 3], "text", 0, -1.5e3, True, False, None, "", {}, []):
        row(f"result {json.dumps(value)}", "worker", RESULT, value, 1)
    row("result with characters of 2, 3 and 4 bytes", "worker", RESULT, "äあ😀", 1)
    row("error", "worker", ERROR, {"message": "no such image", "traceback": "at line 3\n", "retry": False, "code": 7}, 1)
    row("error, only the message", "worker", ERROR, {"message": "cancelled"}, 1)
    row("progress", "worker", PROGRESS, 42, 1)
    row("progress as an object", "worker", PROGRESS, {"frame": 12, "of": 400}, 1)
    row("log of a job", "worker", LOG, {"text": "half way", "level": "info"}, 1)
    row("log of the worker", "worker", LOG, {"text": "model loaded"}, 0)
    for reason in ("timeout", "cancelled", "shutdown", "lost_lease"):
        row(f"cancel: {reason}", "mandor", CANCEL, {"reason": reason, "grace_ms": 5000}, 1)
    row("credit for stdin", "worker", CREDIT, {"bytes": 32768}, 1, STDIN)
    row("credit for stdout", "mandor", CREDIT, {"bytes": 1}, 1, STDOUT)
    row("credit for stderr", "mandor", CREDIT, {"bytes": 2147483647}, 1, STDERR)
    for sender in ("mandor", "worker"):
        row(f"ping of {sender}", sender, PING, {"n": 1})
        row(f"pong of {sender}", sender, PONG, {"n": EXACT})
        row(f"bye of {sender}", sender, BYE, {"reason": "max_jobs"})
        row(f"bye of {sender} without a reason", sender, BYE, {})
    return {"about": "well-formed frames; each stands behind the HELLO of its sender unless first", "frames": rows,
            "hello": {side: data.hex() for side, data in HELLOS.items()},
            "headers": [
                {"name": f"longest {NAMES[type]}", "sender": sender, "hex": header(type, length, 1).hex(), "length": length}
                for type, sender, length in ((JOB, "mandor", MAX), (CHUNK, "mandor", MAX), (RESULT, "worker", MAX),
                                             (ERROR, "worker", TEXT), (PROGRESS, "worker", TEXT), (LOG, "worker", TEXT),
                                             (CANCEL, "mandor", CONTROL))]}


def malformed():
    """Connections that end in a protocol error: all before `hex` is good, `offset` is the byte that is wrong."""
    rows = []

    def row(name, sender, data, fault, field, prefix=None, end=False):
        prefix = HELLOS[sender] if prefix is None else prefix
        rows.append({"name": name, "sender": sender, "prefix": prefix.hex(), "hex": data.hex(), "ends": end,
                     "class": fault, "offset": len(prefix) + field})

    both = ("worker", "mandor")
    for sender in both:
        row(f"length over 16 MiB, {sender}", sender, header(CHUNK, MAX + 1, 1, stream=STDOUT if sender == "worker" else 0),
            "length", 0)
        row(f"length of 4 GiB, {sender}", sender, header(PING, 2**32 - 1), "length", 0)
        row(f"type 0, {sender}", sender, header(0, 0), "type", 4)
        row(f"type 13, {sender}", sender, header(13, 0), "type", 4)
        row(f"type 255, {sender}", sender, header(255, 2), "type", 4)
        row(f"version 0, {sender}", sender, header(PING, 7, version=0), "version", 6)
        row(f"version 2, {sender}", sender, header(PING, 7, version=2), "version", 6)
        row(f"version big-endian, {sender}", sender, header(PING, 7, version=0x0100), "version", 6)
        row(f"second HELLO, {sender}", sender, HELLOS[sender], "order", 4)
        row(f"second BYE, {sender}", sender, frame(BYE, {}), "order", 4, HELLOS[sender] + frame(BYE, {}))
        row(f"no HELLO first, {sender}", sender, frame(PING, {"n": 1}), "order", 4, b"")
        row(f"PING with a job number, {sender}", sender, frame(PING, {"n": 1}, 1), "job", 8)
        row(f"BYE with a job number, {sender}", sender, frame(BYE, {}, 1), "job", 8)
        row(f"HELLO with a job number, {sender}", sender, header(HELLO, 2, 9), "job", 8, b"")
        row(f"CHUNK without a job number, {sender}", sender, header(CHUNK, 1, 0, stream=STDOUT if sender == "worker" else 0),
            "job", 8)
        row(f"job number 2^53, {sender}", sender, header(CHUNK, 1, EXACT + 1, stream=STDOUT if sender == "worker" else 0),
            "job", 8)
        row(f"reserved flag, {sender}", sender, header(PING, 7, flags=0x08), "flags", 5)
        row(f"reserved flags on CHUNK, {sender}", sender, header(CHUNK, 1, 1, flags=0xf2), "flags", 5)
        row(f"last on PING, {sender}", sender, header(PING, 7, flags=0x01), "flags", 5)
        row(f"last on CREDIT, {sender}", sender, header(CREDIT, 11, 1, flags=0x01), "flags", 5)
        row(f"stream on PONG, {sender}", sender, header(PONG, 7, flags=0x02), "flags", 5)
        row(f"stream 3 on CHUNK, {sender}", sender, header(CHUNK, 1, 1, stream=3), "stream", 5)
        row(f"stream 3 on CREDIT, {sender}", sender, header(CREDIT, 11, 1, stream=3), "stream", 5)
        row(f"HELLO over 4 KiB, {sender}", sender, header(HELLO, CONTROL + 1), "length", 0, b"")
        row(f"PING over 4 KiB, {sender}", sender, header(PING, CONTROL + 1), "length", 0)
        row(f"PING without a payload, {sender}", sender, header(PING, 0), "length", 0)
        row(f"BYE of one byte, {sender}", sender, header(BYE, 1), "length", 0)
        row(f"empty CHUNK that is not the last, {sender}", sender,
            header(CHUNK, 0, 1, stream=STDOUT if sender == "worker" else 0), "length", 0)
        row(f"end inside a header, {sender}", sender, header(PING, 7)[:5], "torn", 5, end=True)
        row(f"end behind a header, {sender}", sender, header(PING, 7), "torn", 16, end=True)
        row(f"end inside a payload, {sender}", sender, frame(PING, {"n": 1})[:-1], "torn", 22, end=True)
    for type in (JOB, CANCEL):
        row(f"{NAMES[type]} from a worker", "worker", header(type, 2, 1), "direction", 4)
    for type in (RESULT, ERROR, PROGRESS, LOG):
        row(f"{NAMES[type]} from mandor", "mandor", header(type, 2, 1), "direction", 4)
    row("stdin from a worker", "worker", header(CHUNK, 1, 1, stream=STDIN), "stream", 5)
    row("stdout from mandor", "mandor", header(CHUNK, 1, 1, stream=STDOUT), "stream", 5)
    row("credit for stdout from a worker", "worker", header(CREDIT, 11, 1, stream=STDOUT), "stream", 5)
    row("credit for stdin from mandor", "mandor", header(CREDIT, 11, 1, stream=STDIN), "stream", 5)
    row("BYE first from a worker", "worker", frame(BYE, {}), "order", 4, b"")
    row("frame behind a refusal", "mandor", HELLOS["mandor"], "order", 4, frame(BYE, {"reason": "no common version"}))
    row("JOB behind BYE", "mandor", a_job(2), "order", 4, HELLOS["mandor"] + a_job(1) + frame(BYE, {}))
    row("JOB with number 0", "mandor", header(JOB, 2, 0), "job", 8)
    row("JOB with the same number", "mandor", a_job(4), "job", 8, HELLOS["mandor"] + a_job(4))
    row("JOB with a smaller number", "mandor", a_job(3), "job", 8, HELLOS["mandor"] + a_job(4))
    row("RESULT without a payload", "worker", header(RESULT, 0, 1), "length", 0)
    row("ERROR over 1 MiB", "worker", header(ERROR, TEXT + 1, 1), "length", 0)
    row("PROGRESS over 1 MiB", "worker", header(PROGRESS, TEXT + 1, 1), "length", 0)
    row("LOG over 1 MiB", "worker", header(LOG, TEXT + 1, 0), "length", 0)
    row("a print instead of a frame", "worker", b"Error: boom in libx\n", "length", 0)
    row("a print as the first bytes", "worker", b"Traceback (most recent call last):\n", "length", 0, b"")
    row("a length in big-endian", "worker", struct.pack(">IBBHQ", 7, PING, 0, 1, 0), "length", 0)
    row("many faults: the length is named", "worker", b"\xff" * 16, "length", 0)
    row("many faults: the type is named before the version", "worker", header(99, 1, 5, flags=0xff, version=9), "type", 4)
    row("many faults: the version before the direction", "worker", header(JOB, 2, 0, flags=0xff, version=9), "version", 6)
    row("many faults: the direction before flags and job", "worker", header(JOB, 2, 0, flags=0xff), "direction", 4)
    row("many faults: the flags before the job", "worker", header(PING, 7, 5, flags=0xf8), "flags", 5)
    row("many faults: the job before the length of its type", "worker", header(PING, 0, 5), "job", 8)
    return {"about": "each ends its connection: `prefix` is good, `hex` is not; `ends`: the connection closes behind it; "
                     "`offset` counts from the first byte of the connection", "classes":
            ["length", "type", "version", "direction", "order", "flags", "stream", "job", "torn"], "malformed": rows}


def payloads():
    """JSON payloads, good and bad (class json)."""
    rows = []

    def row(type, sender, text, good, why):
        rows.append({"type": NAMES[type], "sender": sender, "payload_hex": (text if isinstance(text, bytes) else text.encode()).hex(),
                     "valid": good, "why": why})

    row(CREDIT, "mandor", '{"bytes":1}', True, "least")
    row(CREDIT, "mandor", ' {"bytes" : 2147483647 , "later":[{}]}\n', True, "most; space and unknown keys do not matter")
    row(CREDIT, "mandor", '{"\\u0062ytes":5}', True, "an escaped key is the same key")
    row(CREDIT, "mandor", '{"bytes":0}', False, "nothing granted")
    row(CREDIT, "mandor", '{"bytes":2147483648}', False, "over 2^31-1")
    row(CREDIT, "mandor", '{"bytes":-1}', False, "negative")
    row(CREDIT, "mandor", '{"bytes":1.0}', False, "written with a fraction")
    row(CREDIT, "mandor", '{"bytes":1e3}', False, "written with an exponent")
    row(CREDIT, "mandor", '{"bytes":18446744073709551617}', False, "wraps to 1 in 64 bits")
    row(CREDIT, "mandor", '{"bytes":"1"}', False, "a string")
    row(CREDIT, "mandor", '{}', False, "absent")
    row(CREDIT, "mandor", '[1]', False, "no object")
    row(CREDIT, "mandor", '{"bytes":1}}', False, "something behind the value")
    row(CREDIT, "mandor", '{"bytes":1', False, "cut")
    row(CREDIT, "mandor", '{"bytes":01}', False, "leading zero")
    row(PING, "mandor", '{"n":0}', True, "least")
    row(PING, "worker", '{"n":9007199254740991}', True, "most")
    row(PING, "worker", '{"n":9007199254740992}', False, "over 2^53-1")
    row(PING, "worker", '{"n":null}', False, "no number")
    row(PONG, "mandor", '{"n":7}', True, "any")
    row(PONG, "mandor", 'null', False, "no object")
    for text in ("null", "true", "-0", "1E+2", '"\\ud83d\\ude00"', "[[[]],{}]", '{"":{"a":[1,{"b":null}]}}', '"\x7f"'):
        row(RESULT, "worker", text, True, "any JSON value")
    for text, why in (("nul", "cut"), ("NaN", "not JSON"), ("Infinity", "not JSON"), ("[1,]", "comma before the end"),
                      ('{"a":1,}', "comma before the end"), ("[1 2]", "comma missing"), ('{"a" 1}', "colon missing"),
                      ("{1:2}", "key is no string"), ("'a'", "wrong quotes"), ('"a', "string without end"),
                      ('"\t"', "bare control character"), ('"\\x"', "no such escape"), ('"\\u12g4"', "not hexadecimal"),
                      ('"\\ud800"', "half a surrogate pair"), ('"\\udc00\\ud800"', "surrogates in the wrong order"),
                      (".5", "no digit first"), ("1.", "no digit behind the point"), ("1e", "no exponent"), ("+1", "plus sign"),
                      ("0x10", "hexadecimal"), ("// c\n1", "comment"), ("]", "closes nothing"), ("[}", "closes the other"),
                      (" ", "no value"), ("1 2", "two values"), ("[" * 1025 + "]" * 1025, "deeper than 1024")):
        row(RESULT, "worker", text, False, why)
    row(RESULT, "worker", "[" * 1024 + "]" * 1024, True, "1024 deep")
    for text, why in ((b'"\xff"', "no UTF-8"), (b'"\xc0\x80"', "overlong"), (b'"\xed\xa0\x80"', "a surrogate in UTF-8"),
                      (b'"\xf4\x90\x80\x80"', "over U+10FFFF"), (b'"\xe2\x82"', "cut character"), (b"\x00", "NUL"),
                      (b'\xef\xbb\xbf1', "byte order mark")):
        row(RESULT, "worker", text, False, why)
    return {"about": "payloads of well-formed frames; one that is not valid is a protocol error of class json", "payloads": rows}


def credit():
    """Credit of one stream: grants and spends in turn; the error, where there is one, is at the step of that index."""
    top = 2**31 - 1
    return {"about": "steps: +n grants n bytes, -n sends a CHUNK of n bytes; `error`: the index of the step that is refused",
            "credit": [
                {"name": "to the last byte", "start": 10, "steps": [-4, -6, 5, -5], "left": 0, "error": None},
                {"name": "one byte too many", "start": 10, "steps": [-11], "left": 10, "error": 0},
                {"name": "nothing to begin with", "start": 0, "steps": [1, -1], "left": 0, "error": None},
                {"name": "nothing, and yet sent", "start": 0, "steps": [-1], "left": 0, "error": 0},
                {"name": "an empty last CHUNK costs nothing", "start": 0, "steps": [0], "left": 0, "error": None},
                {"name": "a grant of nothing", "start": 5, "steps": [["grant", 0]], "left": 5, "error": 0},
                {"name": "byte by byte", "start": 3, "steps": [-1, -1, -1, 1, -1, 2, -1, -1], "left": 0, "error": None},
                {"name": "up to the most", "start": top - 1, "steps": [1], "left": top, "error": None},
                {"name": "over the most", "start": top, "steps": [1], "left": top, "error": 0},
                {"name": "over the most in one grant", "start": 0, "steps": [top + 1], "left": 0, "error": 0},
                {"name": "refused in the middle", "start": 8, "steps": [-8, 4, -5], "left": 4, "error": 2},
            ]}


def sessions():
    """Whole sessions; a worker or mandor that is given the other side's frames must agree with `end`."""
    rows = []

    def session(name, steps, end, by=None):
        """steps: (sender, frame, what it is)"""
        rows.append({"name": name, "steps": [{"from": sender, "hex": data.hex(), "what": what} for sender, data, what in steps],
                     "chunkings": [[0], [1], [16, 1], [15, 2], [3, 5, 7, 11, 13], [4096]],
                     "end": end, "by": by})

    small = {**WORKER_HELLO, "credit": 8}
    tiny = {**MANDOR_HELLO, "credit": 8}
    start = [("worker", frame(HELLO, small), "I speak 1; each job may send me 8 bytes of stdin"),
             ("mandor", frame(HELLO, tiny), "then 1; 8 bytes of stdout and 8 of stderr for each job")]
    session("one job", start + [
        ("mandor", a_job(1, {"n": 2}), "job 1"),
        ("worker", frame(RESULT, {"n": 4}, 1), "its result"),
        ("mandor", frame(BYE, {"reason": "shutdown"}), "no more jobs"),
    ], "ok")
    session("echo under small credit", start + [
        ("mandor", a_job(1, None, stdin=True), "job 1, stdin will come"),
        ("mandor", frame(CHUNK, b"12345678", 1, stream=STDIN), "8 bytes: the credit is spent"),
        ("worker", frame(CREDIT, {"bytes": 8}, 1, stream=STDIN), "8 were read"),
        ("worker", frame(CHUNK, b"12345678", 1, stream=STDOUT), "8 bytes: the credit is spent"),
        ("mandor", frame(CHUNK, b"9", 1, stream=STDIN, last=True), "one byte, and stdin has ended"),
        ("mandor", frame(CREDIT, {"bytes": 8}, 1, stream=STDOUT), "the sink took 8"),
        ("worker", frame(CHUNK, b"9", 1, stream=STDOUT), "the ninth"),
        ("worker", frame(CHUNK, b"", 1, stream=STDOUT, last=True), "stdout has ended"),
        ("worker", frame(RESULT, {"bytes": 9}, 1), "the result"),
        ("mandor", frame(BYE, {}), "no more jobs"),
    ], "ok")
    session("progress, log, ping and an error", start + [
        ("mandor", frame(PING, {"n": 1}), "are you there"),
        ("worker", frame(PONG, {"n": 1}), "I am"),
        ("mandor", a_job(1), "job 1"),
        ("worker", frame(LOG, {"text": "model loaded"}), "about the worker itself"),
        ("worker", frame(PROGRESS, 50, 1), "half way"),
        ("worker", frame(LOG, {"text": "odd image", "level": "warn"}, 1), "about job 1"),
        ("worker", frame(ERROR, {"message": "no such image", "retry": False}, 1), "cause exit, code 100"),
        ("mandor", a_job(2), "the worker lives on"),
        ("worker", frame(RESULT, None, 2), "null is a result"),
        ("mandor", frame(BYE, {}), "no more jobs"),
    ], "ok")
    session("cancel that crosses the result", start + [
        ("mandor", a_job(1, None, stdin=True), "job 1"),
        ("worker", frame(RESULT, 1, 1), "done"),
        ("mandor", frame(CHUNK, b"late", 1, stream=STDIN), "sent before the result came: discarded"),
        ("mandor", frame(CANCEL, {"reason": "timeout", "grace_ms": 1000}, 1), "likewise"),
        ("mandor", frame(CREDIT, {"bytes": 5}, 1, stream=STDERR), "likewise"),
        ("mandor", a_job(2), "job 2"),
        ("worker", frame(RESULT, 2, 2), "done"),
        ("mandor", frame(BYE, {}), "no more jobs"),
    ], "ok")
    session("cancelled job", start + [
        ("mandor", a_job(1), "job 1"),
        ("mandor", frame(CANCEL, {"reason": "cancelled", "grace_ms": 5000}, 1), "end it"),
        ("worker", frame(ERROR, {"message": "cancelled"}, 1), "it has ended"),
        ("mandor", frame(BYE, {}), "no more jobs"),
    ], "ok")
    session("the worker says BYE and a job crosses it", start + [
        ("worker", frame(BYE, {"reason": "leaking"}), "give me no more"),
        ("mandor", a_job(1), "sent before the BYE came: it is run"),
        ("mandor", frame(BYE, {}), "and that was the last"),
        ("worker", frame(RESULT, True, 1), "done; the worker closes"),
    ], "ok")
    session("no common version", [
        ("worker", frame(HELLO, {"versions": [7], "name": "x", "sdk": "x/1", "credit": 1}), "I speak 7"),
        ("mandor", frame(BYE, {"reason": "no common version: mandor speaks 1, the worker 7"}), "then no; mandor closes"),
    ], "refused")

    job = start + [("mandor", a_job(1, None, stdin=True), "job 1")]
    for name, frames, end in (
        ("output beyond credit", [("worker", frame(CHUNK, b"123456789", 1, stream=STDOUT), "9 bytes on a credit of 8")], "credit"),
        ("output beyond credit in two frames", [("worker", frame(CHUNK, b"12345", 1, stream=STDERR), "5 of 8"),
                                                ("worker", frame(CHUNK, b"1234", 1, stream=STDERR), "4 on a rest of 3")], "credit"),
        ("credit of one stream is not that of the other", [
            ("worker", frame(CHUNK, b"12345678", 1, stream=STDOUT), "all of it"),
            ("worker", frame(CHUNK, b"12345678", 1, stream=STDERR), "its own"),
            ("worker", frame(CHUNK, b"1", 1, stream=STDOUT), "nothing left")], "credit"),
        ("output behind the last chunk", [("worker", frame(CHUNK, b"", 1, stream=STDOUT, last=True), "ended"),
                                          ("worker", frame(CHUNK, b"x", 1, stream=STDOUT), "and yet")], "ended"),
        ("a second last chunk", [("worker", frame(CHUNK, b"", 1, stream=STDOUT, last=True), "ended"),
                                 ("worker", frame(CHUNK, b"", 1, stream=STDOUT, last=True), "again")], "ended"),
        ("two results", [("worker", frame(RESULT, 1, 1), "done"), ("worker", frame(RESULT, 1, 1), "again")], "job"),
        ("progress behind the result", [("worker", frame(RESULT, 1, 1), "done"), ("worker", frame(PROGRESS, 1, 1), "and yet")], "job"),
        ("log behind the error", [("worker", frame(ERROR, {"message": "m"}, 1), "failed"),
                                  ("worker", frame(LOG, {"text": "t"}, 1), "and yet")], "job"),
        ("result of a job that was never given", [("worker", frame(RESULT, 1, 2), "2?")], "job"),
        ("credit for a job that was never given", [("worker", frame(CREDIT, {"bytes": 1}, 9, stream=STDIN), "9?")], "job"),
        ("credit over the most", [("worker", frame(CREDIT, {"bytes": 2**31 - 1}, 1, stream=STDIN), "8 + 2^31-1")], "credit"),
        ("a pong that nobody asked for", [("worker", frame(PONG, {"n": 4}), "4?")], "order"),
        ("a result that is not JSON", [("worker", frame(RESULT, b"{", 1), "cut")], "json"),
    ):
        session(name, job + frames, end, "worker")
    for name, frames, end in (
        ("stdin beyond credit", [("mandor", frame(CHUNK, b"123456789", 1, stream=STDIN), "9 bytes on a credit of 8")], "credit"),
        ("stdin behind the last chunk", [("mandor", frame(CHUNK, b"x", 1, stream=STDIN, last=True), "ended"),
                                         ("mandor", frame(CHUNK, b"x", 1, stream=STDIN), "and yet")], "ended"),
        ("stdin of a job that was never given", [("mandor", frame(CHUNK, b"x", 2, stream=STDIN), "2?")], "job"),
        ("cancel of a job that was never given", [("mandor", frame(CANCEL, {"reason": "timeout", "grace_ms": 0}, 2), "2?")], "job"),
        ("credit for a job that was never given to it", [("mandor", frame(CREDIT, {"bytes": 1}, 2, stream=STDOUT), "2?")], "job"),
        ("more jobs than agreed", [("mandor", a_job(2), "a second one on concurrency 1")], "concurrency"),
        ("credit that is nothing", [("mandor", frame(CREDIT, {"bytes": 0}, 1, stream=STDOUT), "0")], "json"),
    ):
        session(name, job + frames, end, "mandor")
    session("stdin for a job that has none", start + [("mandor", a_job(1), "job 1, without stdin"),
            ("mandor", frame(CHUNK, b"x", 1, stream=STDIN), "and yet")], "ended", "mandor")
    return {"about": "transcripts in the order in which one observer sees them; `chunkings`: feed each side's bytes in reads of these "
                     "sizes, over and over (0: all at once), and the outcome is the same; `end`: ok, refused, or the class of the "
                     "protocol error that the last frame is, made by `by`", "sessions": rows}


DOC = Path(__file__).parents[3] / "doc" / "pool-protocol.md"


def spaced(data):
    return " ".join(f"{byte:02x}" for byte in data)


def example():
    """The session that the documentation shows: header in hex, payload as text (JSON) or hex."""
    mandor = {**MANDOR_HELLO, "credit": 8}
    worker = {**WORKER_HELLO, "credit": 8}
    steps = [("worker", frame(HELLO, worker)), ("mandor", frame(HELLO, mandor)), ("mandor", frame(PING, {"n": 1})),
             ("worker", frame(PONG, {"n": 1})), ("mandor", a_job(1, {"upper": True}, stdin=True)),
             ("mandor", frame(CHUNK, b"12345678", 1, stream=STDIN)), ("worker", frame(CREDIT, {"bytes": 8}, 1, stream=STDIN)),
             ("worker", frame(PROGRESS, 50, 1)), ("worker", frame(CHUNK, b"12345678", 1, stream=STDOUT)),
             ("mandor", frame(CHUNK, b"\xc3\xa9", 1, stream=STDIN, last=True)),
             ("mandor", frame(CREDIT, {"bytes": 8}, 1, stream=STDOUT)), ("worker", frame(CHUNK, b"\xc3\xa9", 1, stream=STDOUT)),
             ("worker", frame(CHUNK, b"", 1, stream=STDOUT, last=True)), ("worker", frame(LOG, {"text": "done"}, 1)),
             ("worker", frame(RESULT, {"bytes": 10}, 1)), ("mandor", a_job(2)),
             ("mandor", frame(CANCEL, {"reason": "timeout", "grace_ms": 5000}, 2)),
             ("worker", frame(ERROR, {"message": "cancelled"}, 2)), ("mandor", frame(BYE, {"reason": "shutdown"}))]
    lines = []
    for sender, data in steps:
        lines.append(f"{sender}  {spaced(data[:4])}  {data[4]:02x} {data[5]:02x}  {spaced(data[6:8])}  {spaced(data[8:16])}  {NAMES[data[4]]}")
        if len(data) > 16:
            lines.append("        " + (spaced(data[16:]) if data[4] == CHUNK else data[16:].decode()))
    return "\n".join(lines)


def with_example(text):
    head, rest = text.split("<!-- session -->\n", 1)
    tail = rest.split("<!-- end -->\n", 1)[1]
    return f"{head}<!-- session -->\n```\n{example()}\n```\n<!-- end -->\n{tail}"


def main():
    stale = []
    for make in (frames, malformed, payloads, credit, sessions):
        path = Path(__file__).with_name(make.__name__ + ".json")
        text = json.dumps(make(), indent=1, ensure_ascii=False) + "\n"
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    text = DOC.read_text()
    if "--check" not in sys.argv:
        DOC.write_text(with_example(text))
    elif with_example(text) != text:
        stale.append(DOC.name)
    if stale:
        sys.exit("not current, run tests/vectors/pool/make.py: " + ", ".join(stale))


main()
