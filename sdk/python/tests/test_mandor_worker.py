#!/usr/bin/env python3
"""Tests of mandor_worker: the shared vectors, the conformance list against real workers, and what is this library's own.

    /usr/bin/python3 sdk/python/tests/test_mandor_worker.py
"""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests" / "lib"), str(HERE.parent)]
sys.dont_write_bytecode = True
os.environ["PYTHONPATH"] = str(HERE.parent)
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

import mandor_worker as sdk  # noqa: E402
import pool_peer  # noqa: E402
from pool_peer import CHUNK, JOB, PING, STDIN, Peer, frame  # noqa: E402

SYNC = [sys.executable, str(HERE / "worker_sync.py")]
ASYNC = [sys.executable, str(HERE / "worker_async.py")]
THREADS = ["env", "WORKER_CONCURRENCY=8", *SYNC]
SLOW = ("malformed_frames_of_mandor_end_the_worker", "sessions_that_mandor_breaks_end_the_worker", "bad_json_of_mandor_ends_the_worker")


def vectors(name):
    return json.loads((pool_peer.VECTORS / f"{name}.json").read_text())


class Conformance(unittest.TestCase):
    """Each entry of the list, against each way to run handlers."""


def add_conformance():
    for kind, argv in (("function", SYNC), ("threads", THREADS), ("async", ASYNC)):
        for entry in pool_peer.CONFORMANCE:
            if kind == "threads" and entry.__name__ in SLOW:
                continue  # the reader is the same as that of one function
            setattr(Conformance, f"test_{entry.__name__}_{kind}", lambda self, entry=entry, argv=argv: entry(argv))


add_conformance()


def pieces(data, size):
    return [data] if size == 0 else [data[at:at + size] for at in range(0, len(data), size)]


def decode_all(decoder, data, size):
    frames = []
    for piece in pieces(data, size):
        decoder.feed(piece)
        while (one := decoder.next()) is not None:
            frames.append(one)
    return frames


class Vectors(unittest.TestCase):
    def test_well_formed_frames_mean_what_the_vectors_say(self):
        rows = vectors("frames")
        self.assertGreater(len(rows["frames"]), 40)
        for row in rows["frames"]:
            for size in (0, 1, 7):
                decoder = sdk.Decoder(row["sender"])
                if not row["first"]:
                    decode_all(decoder, bytes.fromhex(rows["hello"][row["sender"]]), 0)
                data = bytes.fromhex(row["hex"])
                one, = decode_all(decoder, data, size)
                self.assertEqual((one.type, one.stream, one.last, one.job),
                                 (row["number"], row["stream"], row["last"], row["job"]), row["name"])
                if "payload_hex" in row:
                    self.assertEqual(one.payload.hex(), row["payload_hex"])
                else:
                    value = sdk.parse_json(one.payload)
                    self.assertEqual(json.dumps(value), json.dumps(row["payload"]))
                self.assertEqual(sdk.encode(one.type, one.payload, one.job, one.stream, one.last), data)
                decoder.end()

    def test_headers_at_the_limits_are_taken(self):
        rows = vectors("frames")
        for row in rows["headers"]:
            decoder = sdk.Decoder(row["sender"])
            decode_all(decoder, bytes.fromhex(rows["hello"][row["sender"]]), 0)
            self.assertEqual(decode_all(decoder, bytes.fromhex(row["hex"]), 5), [])
            self.assertEqual(len(decode_all(decoder, bytes(row["length"]), 1 << 20)), 1, row["name"])

    def test_malformed_connections_end_with_their_class_and_byte(self):
        rows = vectors("malformed")["malformed"]
        self.assertGreater(len(rows), 80)
        for row in rows:
            for size in (0, 1, 7):
                decoder = sdk.Decoder(row["sender"])
                decode_all(decoder, bytes.fromhex(row["prefix"]), size)
                with self.assertRaises(sdk.ProtocolError, msg=row["name"]) as caught:
                    self.assertEqual(decode_all(decoder, bytes.fromhex(row["hex"]), size), [])
                    if row["ends"]:
                        decoder.end()
                self.assertEqual((caught.exception.fault, caught.exception.offset), (row["class"], row["offset"]), row["name"])
                self.assertIn("expected ", str(caught.exception))

    def test_json_payloads_are_good_or_not_as_the_vectors_say(self):
        rows = vectors("payloads")["payloads"]
        self.assertGreater(len(rows), 50)
        for row in rows:
            self.assertEqual(payload_good(row["type"], bytes.fromhex(row["payload_hex"])), row["valid"], row)

    def test_credit_is_counted_as_the_vectors_say(self):
        for row in vectors("credit")["credit"]:
            credit, failed = row["start"], None
            for at, step in enumerate(row["steps"]):
                try:
                    if isinstance(step, list):
                        credit = sdk.credit_grant(credit, step[1])
                    else:
                        credit = sdk.credit_grant(credit, step) if step > 0 else sdk.credit_spend(credit, -step)
                except ValueError:
                    failed = at if failed is None else failed
            self.assertEqual((failed, credit), (row["error"], row["left"]), row["name"])

    def test_whole_sessions_end_as_the_vectors_say_in_every_chunking(self):
        for row in vectors("sessions")["sessions"]:
            for sizes in row["chunkings"]:
                self.assertEqual(Observer().watch(row["steps"], sizes), (row["end"], row["by"]), row["name"])


def payload_good(type, payload):
    try:
        body = sdk.parse_json(payload)
    except ValueError:
        return False
    if type in ("RESULT", "PROGRESS"):
        return True
    if not isinstance(body, dict):
        return False
    if type == "CREDIT":
        return sdk._whole(body.get("bytes"), 1, sdk.CREDIT_MAX)
    return type not in ("PING", "PONG") or sdk._whole(body.get("n"), 0, sdk.NUMBER_MAX)


class Observer:
    """Sees both sides of a session and judges what needs both, with this library's decoder and credit."""

    def __init__(self):
        self.decoders = {side: sdk.Decoder(side) for side in ("mandor", "worker")}
        self.credit, self.concurrency, self.pings = {}, 0, {"mandor": 0, "worker": 0}
        self.jobs, self.open, self.refused = {}, set(), False

    def watch(self, steps, sizes):
        turn = 0
        for at, step in enumerate(steps):
            side, data = step["from"], bytes.fromhex(step["hex"])
            while data:
                size = sizes[turn % len(sizes)] or len(data)
                turn += 1
                part, data = data[:size], data[size:]
                self.decoders[side].feed(part)
                while (one := self.decoders[side].next()) is not None:
                    fault = self.see(side, one)
                    if fault:
                        assert at == len(steps) - 1, f"{fault} in step {at}"
                        return fault, side
        return ("refused" if self.refused else "ok"), None

    def see(self, side, one):
        name = pool_peer.NAMES[one.type]
        if one.type != CHUNK and not payload_good(name, one.payload):
            return "json"
        body = None if one.type == CHUNK else sdk.parse_json(one.payload)
        other = "worker" if side == "mandor" else "mandor"
        if name == "HELLO":
            for stream in (STDIN,) if side == "worker" else (1, 2):
                self.credit[stream] = body["credit"]
            self.concurrency = body["concurrency"] if side == "mandor" else 0
        elif name == "BYE":
            self.refused = self.concurrency == 0
        elif name == "PING":
            self.pings[side] += 1
        elif name == "PONG":
            if self.pings[other] == 0:
                return "order"
            self.pings[other] -= 1
        elif name == "JOB":
            if len(self.open) == self.concurrency:
                return "concurrency"
            self.open.add(one.job)
            self.jobs[one.job] = {"credit": dict(self.credit), "ended": {STDIN} if not body.get("stdin") else set()}
        elif one.job:
            return self.see_of_job(side, one, name, body)
        return None

    def see_of_job(self, side, one, name, body):
        if one.job not in self.jobs:
            return "job"
        if one.job not in self.open:
            return "job" if side == "worker" else None
        job = self.jobs[one.job]
        try:
            if name == "CHUNK":
                if one.stream in job["ended"]:
                    return "ended"
                job["ended"] |= {one.stream} if one.last else set()
                job["credit"][one.stream] = sdk.credit_spend(job["credit"][one.stream], len(one.payload))
            elif name == "CREDIT":
                job["credit"][one.stream] = sdk.credit_grant(job["credit"][one.stream], body["bytes"])
        except ValueError:
            return "credit"
        if name in ("RESULT", "ERROR"):
            self.open.remove(one.job)
        return None


class Json(unittest.TestCase):
    def test_what_has_no_json_is_refused_with_words(self):
        loop = []
        loop.append(loop)
        for value, word in ((float("nan"), "JSON"), (object(), "JSON"), ({1, 2}, "JSON"), ("\ud800", "surrogate"), (loop, "JSON"),
                            ("x" * 100, "at most")):
            with self.assertRaises((ValueError, TypeError)) as caught:
                sdk.dump_json(value, 50, "the result")
            self.assertIn("the result", str(caught.exception))
            self.assertIn(word, str(caught.exception))

    def test_depth_is_bounded_at_1024_both_ways(self):
        deep = value = []
        for _ in range(1023):
            value.append([])
            value = value[0]
        data = sdk.dump_json(deep, 1 << 20, "it")
        self.assertEqual(data, b"[" * 1024 + b"]" * 1024)
        self.assertEqual(sdk.dump_json(sdk.parse_json(data), 1 << 20, "it"), data)
        with self.assertRaises(ValueError):
            sdk.dump_json([deep], 1 << 20, "it")

    def test_whole_numbers_of_any_length_are_read(self):
        self.assertEqual(sdk.parse_json(b"123456789012345678901234567890"), 123456789012345678901234567890)
        self.assertEqual(sdk.parse_json(b"1" * 300), int("1" * 300))
        self.assertEqual(sdk.parse_json(b"9" * 5000), float("inf"))

    def test_text_for_people_can_always_be_sent(self):
        self.assertEqual(sdk._plain("a\ud800b", 10), "a\ufffd\ufffd\ufffdb")
        self.assertEqual(sdk._plain("abcdef", 3), "abc [...]")


class Errors(unittest.TestCase):
    def error(self, argv, code):
        with Peer(argv) as peer:
            error = peer.run({"op": "code", "code": code}).error
            self.assertEqual(peer.run({"op": "result", "value": 1}).result, 1)
        return error

    def test_the_traceback_has_the_frames_of_the_user_alone(self):
        for argv in (SYNC, ASYNC):
            error = self.error(argv, "def inner():\n    raise KeyError('k')\ninner()")
            self.assertEqual(error["message"], "KeyError: 'k'")
            self.assertIn("in inner", error["traceback"])
            self.assertIn("Traceback", error["traceback"])
            self.assertNotIn("mandor_worker/__init__", error["traceback"])
            self.assertNotIn("asyncio", error["traceback"])
            self.assertNotIn("retry", error)

    def test_causes_are_in_the_traceback(self):
        error = self.error(SYNC, "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('outer') from e")
        self.assertIn("ZeroDivisionError", error["traceback"])
        self.assertIn("direct cause", error["traceback"])

    def test_no_retry_says_so(self):
        for argv in (SYNC, ASYNC):
            error = self.error(argv, "raise mandor_worker.NoRetry('hopeless', code=9)")
            self.assertEqual((error["message"], error["retry"], error["code"]), ("hopeless", False, 9))
            self.assertEqual(self.error(argv, "raise mandor_worker.Fatal('hopeless')")["retry"], False)

    def test_exit_in_a_handler_fails_the_job_alone(self):
        for argv in (SYNC, ASYNC):
            self.assertEqual(self.error(argv, "raise SystemExit(3)")["code"], 3)

    def test_results_that_cannot_be_sent_fail_the_job(self):
        for argv, give in ((SYNC, "result = "), (ASYNC, "return ")):
            for value in ("object()", "float('nan')", "'\\ud800'", "'x' * (16 << 20)"):
                self.assertIn("the result", self.error(argv, give + value)["message"])

    def test_a_long_error_is_cut(self):
        error = self.error(SYNC, "raise ValueError('\\x01' * (3 << 20))")
        self.assertTrue(error["message"].startswith("ValueError: \x01") and error["message"].endswith(" [...]"))

    def test_an_error_that_cannot_be_printed_is_one_still(self):
        error = self.error(SYNC, "class Bad(Exception):\n    def __str__(self):\n        raise ValueError\nraise Bad()")
        self.assertIn("Bad", error["message"])

    def test_progress_that_has_no_json_raises_in_the_handler(self):
        self.assertIn("the progress is not JSON", self.error(SYNC, "ctx.progress(object())")["message"])

    def test_writes_of_text_and_to_unknown_streams_are_refused(self):
        self.assertIn("expected bytes, found str", self.error(SYNC, "ctx.write('text')")["message"])
        self.assertIn("'stdout' or 'stderr'", self.error(SYNC, "ctx.write(b'x', stream='out')")["message"])
        self.assertIn("ended", self.error(SYNC, "ctx.end()\nctx.write(b'x')")["message"])


class Descriptors(unittest.TestCase):
    LIST = "import os, subprocess\n{}\n" \
           "out = subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, capture_output=True, text=True).stdout\n" \
           "{} ['socket:' in out, 'MANDOR_FD' in os.environ]"

    def test_no_subprocess_gets_the_socket(self):
        for argv, give in ((SYNC, "result ="), (ASYNC, "return")):
            with Peer(argv) as peer:
                self.assertEqual(peer.run({"op": "code", "code": self.LIST.format("", give)}).result, [False, False])

    def test_no_subprocess_that_is_started_before_the_run_gets_it(self):
        code = ("import os, subprocess, mandor_worker\n"
                "out = subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, capture_output=True, text=True).stdout\n"
                "mandor_worker.run(lambda ctx: 'socket:' in out)")
        with Peer([sys.executable, "-c", code]) as peer:
            self.assertIs(peer.run({}).result, False)

    def test_a_forked_child_does_not_hold_it(self):
        code = ("import os\nread, write = os.pipe()\nif os.fork() == 0:\n"
                "    try:\n        os.fstat(3)\n        os.write(write, b'open')\n"
                "    except OSError:\n        os.write(write, b'closed')\n    os._exit(0)\n"
                "os.wait()\nresult = os.read(read, 10).decode()")
        with Peer(SYNC) as peer:
            self.assertEqual(peer.run({"op": "code", "code": code}).result, "closed")

    def test_prints_are_in_the_log_when_the_job_ends(self):
        for argv in (SYNC, ASYNC):
            with Peer(argv) as peer:
                peer.run({"op": "code", "code": "print('half a line', end='')"})
                self.assertIn(b"half a line", peer.printed())

    def test_a_pipe_in_mandor_fd_is_not_taken(self):
        read, write = os.pipe()
        done = subprocess.run(SYNC, pass_fds=(write,), env={**os.environ, "MANDOR_FD": str(write)}, capture_output=True)
        os.close(read), os.close(write)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"expected a socket's number in MANDOR_FD", done.stderr)


class Many(unittest.TestCase):
    def echo_many(self, argv, concurrency, count):
        data = [os.urandom(1) + bytes(range(256)) * (i % 9) for i in range(count)]
        with Peer(argv, concurrency=concurrency, credit=500) as peer:
            self.assertEqual(peer.concurrency, concurrency)
            started, numbers = 0, {}
            while len(peer.ended) < count:
                while started < count and len(peer.jobs) < concurrency:
                    numbers[peer.start({"op": "echo"}, stdin=data[started], slow=300)] = started
                    started += 1
                ended = len(peer.ended)
                peer._until(lambda: len(peer.ended) > ended, "the end of a job")
            for number, index in numbers.items():
                self.assertEqual(peer.ended[number].stdout, data[index])
                self.assertEqual(peer.ended[number].result, {"bytes": len(data[index])})

    def test_jobs_in_threads_keep_their_own(self):
        self.echo_many(THREADS, 8, 200)

    def test_jobs_in_tasks_keep_their_own(self):
        self.echo_many(ASYNC, 64, 300)

    def test_one_job_that_waits_holds_up_no_other(self):
        for argv in (THREADS, ASYNC):
            with Peer(argv, concurrency=8, credit=100) as peer:
                held = peer.start({"op": "emit", "bytes": 1000}, slow=None)
                for i in range(20):
                    self.assertEqual(peer.run({"op": "emit", "bytes": 300}, slow=100).result, {"bytes": 300})
                peer.cancel(held)
                self.assertEqual(peer.wait(held).error["message"], "cancelled")

    def test_bye_waits_for_all_that_run(self):
        for argv in (THREADS, ASYNC):
            with Peer(argv, concurrency=8) as peer:
                numbers = [peer.start({"op": "echo"}, hold_stdin=True) for _ in range(5)]
                peer.bye()
                peer.ping(1)
                for number in numbers:
                    peer.send(frame(CHUNK, b"end", number, STDIN, True))
                for number in numbers:
                    self.assertEqual(peer.wait(number).stdout, b"end")
                self.assertEqual(peer.wait_closed(), 0)

    def test_a_function_takes_one_job_unless_told_and_a_coroutine_as_many_as_the_pool(self):
        with Peer(SYNC) as peer:
            self.assertEqual(peer.worker["concurrency"], 1)
        with Peer(ASYNC) as peer:
            self.assertNotIn("concurrency", peer.worker)

    def test_one_function_at_a_time_runs_in_the_main_thread(self):
        code = "import threading\nresult = threading.current_thread() is threading.main_thread()"
        with Peer(SYNC) as peer:
            self.assertEqual([peer.run({"op": "code", "code": code}).result for _ in range(5)], [True] * 5)


class Cancel(unittest.TestCase):
    def start(self, peer, code):
        number = peer.start({"op": "code", "code": code}, slow=None)
        peer._until(lambda: peer.jobs[number].end.progress, "progress")
        return number

    def test_finally_runs_and_may_still_write_and_log(self):
        code = ("ctx.progress(1)\ntry:\n    await asyncio.sleep(1000)\nfinally:\n    await ctx.write(b'bye', stream='stderr')\n"
                "    ctx.log(ctx.cancelled.reason)")
        with Peer(ASYNC) as peer:
            number = self.start(peer, code)
            peer.cancel(number, "timeout")
            end = peer.wait(number)
            self.assertEqual((end.error, end.stderr, end.logs[0]["text"]), ({"message": "cancelled"}, b"bye", "timeout"))

    def test_waits_that_time_out_leave_nothing_behind(self):
        code = ("for _ in range(50):\n    try:\n        await asyncio.wait_for(ctx.cancelled.wait(), 0.001)\n"
                "    except asyncio.TimeoutError:\n        pass\nreturn sum(map(len, ctx._link._waiters.values()))")
        with Peer(ASYNC) as peer:
            self.assertEqual(peer.run({"op": "code", "code": code}).result, 0)

    def test_a_wait_for_a_while_ends_with_it(self):
        with Peer(SYNC) as peer:
            self.assertIs(peer.run({"op": "code", "code": "result = ctx.cancelled.wait(0.01)"}).result, False)

    def test_a_function_that_looks_at_the_flag_ends(self):
        with Peer(SYNC) as peer:
            number = self.start(peer, "ctx.progress(1)\nwhile not ctx.cancelled:\n    pass\nresult = ctx.cancelled.reason")
            peer.cancel(number, "shutdown")
            self.assertEqual(peer.wait(number).result, "shutdown")

    def test_a_function_that_reads_is_told(self):
        with Peer(SYNC) as peer:
            number = peer.start({"op": "echo"}, hold_stdin=True)
            peer.cancel(number)
            self.assertEqual(peer.wait(number).error, {"message": "cancelled"})

    def test_a_cancel_behind_its_job_in_one_read_is_seen(self):
        for argv in (SYNC, ASYNC):
            with Peer(argv) as peer:
                number = peer.start({"op": "wait"})
                peer.cancel(number)
                self.assertEqual(peer.wait(number).error, {"message": "cancelled"})
                self.assertEqual(peer.run({"op": "result", "value": 1}).result, 1)

    def test_ping_is_answered_while_a_function_computes(self):
        with Peer(SYNC) as peer:
            number = self.start(peer, "ctx.progress(1)\nwhile not ctx.cancelled:\n    pass")
            peer.ping(7)
            peer.cancel(number)
            peer.wait(number)

    def test_an_end_of_mandor_stops_what_runs_quietly(self):
        for argv, code in ((SYNC, "ctx.progress(1)\nfor _ in ctx.input:\n    pass"), (ASYNC, "ctx.progress(1)\nawait ctx.input.read()")):
            with Peer(argv) as peer:
                number = peer.start({"op": "code", "code": code}, hold_stdin=True)
                peer._until(lambda: peer.jobs[number].end.progress, "progress")
                peer.sock.close()
                self.assertEqual(peer.process.wait(pool_peer.DEADLINE), 1)
                self.assertEqual(peer.printed(), b"")
                peer.eof = True

    def test_a_handler_that_does_not_notice_is_left_behind(self):
        begin = "import time\nmandor_worker._LINGER = 0.1\nctx.progress(1)\n"
        for argv, code in ((SYNC, begin + "time.sleep(1000)"),
                           (ASYNC, begin + "try:\n    await asyncio.sleep(1000)\nfinally:\n    time.sleep(1000)")):
            with Peer(argv) as peer:
                self.start(peer, code)
                peer.sock.close()
                self.assertEqual(peer.process.wait(pool_peer.DEADLINE), 1)
                peer.eof = True


class Bytes(unittest.TestCase):
    def test_a_buffer_may_be_used_again_behind_write(self):
        for argv, code in ((SYNC, "b = bytearray(1 << 20)\nfor i in range(8):\n    b[:] = bytes([i]) * len(b)\n    ctx.write(b)"),
                           (ASYNC, "b = bytearray(1 << 20)\nfor i in range(8):\n    b[:] = bytes([i]) * len(b)\n    await ctx.write(b)")):
            with Peer(argv, credit=16 << 20) as peer:
                end = peer.run({"op": "code", "code": code})
                self.assertEqual(end.stdout, b"".join(bytes([i]) * (1 << 20) for i in range(8)))

    def test_writes_of_several_threads_do_not_mix(self):
        code = ("import threading\n"
                "ts = [threading.Thread(target=ctx.write, args=(bytes([65 + i]) * 5000,)) for i in range(6)]\n"
                "[t.start() for t in ts]\n[t.join() for t in ts]")
        with Peer(SYNC, credit=700) as peer:
            out = peer.run({"op": "code", "code": code}, slow=700).stdout
            self.assertEqual(sorted(out[i:i + 5000] for i in range(0, 30000, 5000)), [bytes([65 + i]) * 5000 for i in range(6)])

    def test_writes_of_several_tasks_do_not_mix(self):
        with Peer(ASYNC, credit=700) as peer:
            out = peer.run({"op": "code", "code": "await asyncio.gather(*(ctx.write(bytes([65 + i]) * 5000) for i in range(6)))"},
                           slow=700).stdout
            self.assertEqual(out, b"".join(bytes([65 + i]) * 5000 for i in range(6)))

    def test_input_can_be_read_in_sizes_of_ones_own(self):
        code = "a = {0}ctx.input.read(3)\nb = {0}ctx.input.read()\nc = {0}ctx.input.read(9)\n{1} [len(a), len(b), len(c)]"
        for argv, words in ((SYNC, ("", "result =")), (ASYNC, ("await ", "return"))):
            with Peer(argv) as peer:
                self.assertEqual(peer.run({"op": "code", "code": code.format(*words)}, stdin=bytes(50000)).result, [3, 49997, 0])

    def test_input_that_is_left_unread_is_no_harm(self):
        for argv in (SYNC, ASYNC):
            with Peer(argv) as peer:
                for i in range(5):
                    number = peer.start({"op": "result", "value": i}, stdin=bytes(100000))
                    self.assertEqual(peer.wait(number).result, i)

    def test_the_longest_job_and_result_pass(self):
        text = "x" * (16 * 1024 * 1024 - 300)
        for argv in (SYNC, ASYNC):
            with Peer(argv) as peer:
                self.assertEqual(peer.run({"op": "result", "value": text}).result, text)

    def test_a_job_nested_to_the_limit_passes(self):
        for argv in (SYNC, ASYNC):
            with Peer(argv) as peer:
                deep = b"[" * 1000 + b"]" * 1000
                peer.number += 1
                job = pool_peer.Job(peer.number, None, 4096, 1000, 0)
                peer.jobs[peer.number] = job
                peer._on_job_frame = lambda job, type, *rest: peer.ended.update({1: rest[3]})
                peer.send(frame(JOB, b'{"id":"a","data":{"op":"result","value":' + deep + b"}}", 1))
                limit = sys.getrecursionlimit()
                sys.setrecursionlimit(10000)
                try:
                    self.assertEqual(peer._until(lambda: peer.ended.get(1), "the result"), deep)
                finally:
                    sys.setrecursionlimit(limit)

    def test_a_flood_of_logs_keeps_order_and_memory(self):
        code = ("import resource\nfor i in range(3000):\n    ctx.log('%05d' % i + 'x' * 5000)\n"
                "{} resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")
        for argv, give in ((SYNC, "result ="), (ASYNC, "return")):
            with Peer(argv) as peer:
                end = peer.run({"op": "code", "code": code.format(give)})
                self.assertEqual([int(log["text"][:5]) for log in end.logs], list(range(3000)))
                self.assertLess(end.result, 60000, "KiB at most, for 15 MB of logs")


class Run(unittest.TestCase):
    def test_the_example_is_short_and_works(self):
        path = HERE.parent / "examples" / "hello.py"
        self.assertLessEqual(len(path.read_text().splitlines()), 16)
        with Peer([sys.executable, str(path)]) as peer:
            end = peer.run({"name": "Ani"})
            self.assertEqual((end.result, end.stdout, end.progress), ({"greeted": "Ani"}, b"Hello, Ani!\n", [50]))
            self.assertEqual(peer.worker["name"], "hello.py")

    def test_the_package_builds_into_a_wheel_with_its_types(self):
        pip = [sys.executable, "-m", "pip"]
        if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
            self.skipTest("pip is not installed")
        if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("wheel") is None:
            self.skipTest("setuptools or wheel is not installed, and nothing is downloaded")
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copytree(HERE.parent, f"{scratch}/source", ignore=shutil.ignore_patterns("__pycache__"))
            done = subprocess.run([*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "-q", "-w",
                                   scratch, f"{scratch}/source"], capture_output=True, text=True, env={**os.environ, "TMPDIR": scratch})
            self.assertEqual(done.returncode, 0, done.stderr)
            wheel, = Path(scratch).glob("*.whl")
            self.assertEqual(wheel.name, f"mandor_worker-{sdk.__version__}-py3-none-any.whl")
            names = zipfile.ZipFile(wheel).namelist()
            self.assertLessEqual({"mandor_worker/__init__.py", "mandor_worker/py.typed"}, set(names))
            self.assertFalse([name for name in names if "test" in name], names)

    def test_wrong_arguments_are_named(self):
        for how, word in (({}, "handler"), ({"handler": print, "concurrency": 0}, "concurrency"), ({"handler": print, "credit": 0}, "credit")):
            with self.assertRaisesRegex(ValueError, word):
                sdk.run(**how)

    def test_a_context_behind_its_job_says_so(self):
        code = "import builtins\nold = getattr(builtins, 'kept', None)\nbuiltins.kept = ctx\nif old:\n    old.{}"
        for call in ("progress(1)", "write(b'x')", "log('x')"):
            with Peer(SYNC) as peer:
                peer.run({"op": "code", "code": code.format(call)})
                self.assertIn("job-1 has ended", peer.run({"op": "code", "code": code.format(call)}).error["message"])

    def test_half_a_frame_and_the_end_are_told(self):
        with Peer(SYNC) as peer:
            peer.send(frame(PING, {"n": 1})[:9])
            peer._until(lambda: not peer.out, "room in the socket")
            peer.sock.close()
            self.assertEqual(peer.process.wait(pool_peer.DEADLINE), 1)
            self.assertIn(b"expected a header of 16 bytes, found the end after 9", peer.printed())
            peer.eof = True

    def test_another_version_is_told(self):
        with Peer(ASYNC) as peer:
            peer.send(frame(PING, {"n": 1}, version=2))
            self.assertEqual(pool_peer.peer_exit(peer), 1)
            self.assertIn(b"expected protocol version 1, found 2", peer.printed())

    def test_a_round_trip_of_a_job_takes_no_longer_than_it_must(self):
        for argv in (SYNC, ASYNC):
            with Peer(argv) as peer:
                def twenty():
                    started = time.monotonic()
                    for i in range(20):
                        peer.run({"op": "result", "value": i})
                    return time.monotonic() - started

                # Once is enough: a machine that has others to run holds up some of them, a clock that is waited for all.
                self.assertTrue(any(twenty() < 0.2 for _ in range(100)), "10 ms a job: something waits for a clock")


if __name__ == "__main__":
    unittest.main()
