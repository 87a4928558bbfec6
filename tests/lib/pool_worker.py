"""A warm worker that speaks the protocol by hand (doc/pool-protocol.md), so that tests of mandor do not lean on the worker libraries.

It does what a job's data asks for: see `work()`.  One thread; jobs that wait (`{"sleep": s}`, `{"gate": path}`) are kept in a list, so several can be
held at once.
"""
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time

HELLO, JOB, CHUNK, RESULT, ERROR, PROGRESS, LOG, CANCEL, CREDIT, PING, PONG, BYE = range(1, 13)


class Worker:
    def __init__(self):
        self.sock = socket.socket(fileno=int(os.environ["MANDOR_FD"]))
        self.sock.setblocking(False)
        self.born = time.time_ns()
        self.data = b""
        self.out = b""
        self.open = {}      # job number -> dict
        self.leaving = False
        self.held_open = []

    def frame(self, type, payload=b"", job=0, stream=0, last=False):
        if not isinstance(payload, bytes):
            payload = json.dumps(payload).encode()
        return struct.pack("<IBBHQ", len(payload), type, stream << 1 | last, 1, job) + payload

    def send(self, *args, **keys):
        self.out += self.frame(*args, **keys)

    def flush(self):
        while self.out:
            try:
                n = self.sock.send(self.out)
            except BlockingIOError:
                return
            self.out = self.out[n:]

    def flush_all(self):
        while self.out:
            self.flush()
            if self.out:
                select.select([], [self.sock], [])

    def run(self):
        while not (self.leaving and not self.open and not self.out):
            due = min([job["until"] for job in self.open.values() if "until" in job], default=None)
            timeout = None if due is None else max(0, due - time.monotonic())
            if any("gate" in job for job in self.open.values()):
                timeout = 0.02
            self.pump()
            self.flush()
            r, w, _ = select.select([self.sock], [self.sock] if self.out else [], [], timeout)
            if w:
                self.flush()
            if r:
                try:
                    got = self.sock.recv(1 << 20)
                except BlockingIOError:
                    continue
                if not got:
                    return
                self.data += got
                self.parse()
            now = time.monotonic()
            for number, job in list(self.open.items()):
                if job.get("until", now + 1) <= now or "gate" in job and os.path.exists(job["gate"]):
                    self.done(number, job["data"].get("result", job["data"]))

    def parse(self):
        while len(self.data) >= 16:
            length, type, flags, _, number = struct.unpack("<IBBHQ", self.data[:16])
            if len(self.data) < 16 + length:
                return
            payload = self.data[16:16 + length]
            self.data = self.data[16 + length:]
            self.on_frame(type, flags, number, payload)

    def on_frame(self, type, flags, number, payload):
        if type == PING and not os.environ.get("MUTE"):
            self.send(PONG, json.loads(payload))
        elif type == BYE:
            self.leaving = True
        elif type == JOB:
            task = json.loads(payload)
            self.open[number] = {"task": task, "data": task["data"] if isinstance(task["data"], dict) else {}, "credit": [0, CREDIT_OUT, CREDIT_OUT],
                                 "todo": [b"", b""], "stdin": b"", "used": 0}
            self.work(number, self.open[number])
        elif number in self.open:
            job = self.open[number]
            if type == CREDIT:
                job["credit"][flags >> 1 & 3] += json.loads(payload)["bytes"]
            elif type == CHUNK:
                self.on_stdin(number, job, payload, flags & 1)
            elif type == CANCEL and not job["data"].get("deaf"):
                self.send(ERROR, {"message": "cancelled: " + json.loads(payload)["reason"]}, number)
                del self.open[number]

    def on_stdin(self, number, job, payload, last):
        if job["data"].get("count"):
            job["count"] = job.get("count", 0) + len(payload)
        else:
            job["todo"][0] += payload
        if payload and not last:
            self.send(CREDIT, {"bytes": len(payload)}, number)
        if last:
            job["eof"] = True
            if job["data"].get("count"):
                self.done(number, job.get("count", 0))

    def pump(self):
        """Send what credit allows of each job's output."""
        for number, job in list(self.open.items()):
            for stream in (1, 2):
                todo = job["todo"][stream - 1]
                n = min(len(todo), job["credit"][stream], 65536)
                while n > 0 and len(self.out) < 1 << 20:
                    self.send(CHUNK, todo[:n], number, stream)
                    todo = todo[n:]
                    job["credit"][stream] -= n
                    n = min(len(todo), job["credit"][stream], 65536)
                job["todo"][stream - 1] = todo
            echo = job["data"].get("echo")
            if not any(job["todo"]) and (job.get("flush") or (echo and job.get("eof"))):
                self.done(number, job["data"].get("result", job["data"]))

    def done(self, number, result):
        self.send(RESULT, result, number)
        del self.open[number]

    # -- what a hostile worker does with its socket --

    def fuzz(self, number, data):
        """Frames of every kind with bytes turned, cut and repeated, and the end."""
        chance = random.Random(data["seed"])
        good = [self.frame(PROGRESS, 1, number), self.frame(LOG, {"text": "x" * 40}, number), self.frame(CHUNK, b"y" * 500, number, 1),
                self.frame(CHUNK, b"", number, 2, True), self.frame(CREDIT, {"bytes": 7}, number), self.frame(PING, {"n": 1}),
                self.frame(RESULT, [1], number), self.frame(ERROR, {"message": "m"}, number), self.frame(BYE, {"reason": "r"})]
        for _ in range(chance.randint(1, 30)):
            frame = bytearray(chance.choice(good))
            for _ in range(chance.choice((0, 0, 1, 2, 8))):
                frame[chance.randrange(len(frame))] = chance.choice((0, 1, 0x7f, 0x80, 0xff, chance.randrange(256)))
            if chance.random() < 0.1:
                del frame[chance.randrange(len(frame)):]
            try:
                self.sock.sendall(frame)
            except OSError:
                break
        os._exit(chance.choice((0, 0, 7)))

    def live_on(self, number, data):
        """The socket is closed, the process stays."""
        self.sock.close()
        time.sleep(1000)

    def orphan(self, number, data):
        """A child keeps the socket and goes on writing to it; the worker leaves."""
        if os.fork() > 0:
            os._exit(0)
        os.setsid()
        while True:
            self.sock.sendall(self.frame(PROGRESS, 1, number))
            time.sleep(0.01)

    def pass_descriptors(self, number, data):
        """Descriptors come with the frames."""
        here = os.open("/dev/null", os.O_RDONLY)
        for _ in range(data["count"]):
            socket.send_fds(self.sock, [self.frame(PROGRESS, 1, number)], [here] * 100)
        self.sock.sendall(self.frame(RESULT, "passed", number))
        del self.open[number]
        self.sock.setblocking(False)

    def many_values(self, number, data):
        """A small text that is large in memory."""
        self.sock.sendall(self.frame(RESULT, b"[" + b"{}," * data["count"] + b"0]", number))

    def never_read(self, number, data):
        """Questions without end, and no answer is read."""
        ask = self.frame(PING, {"n": 1}) * 1000
        while True:
            self.sock.sendall(ask)

    def stay_silent(self, number, data):
        time.sleep(1000)

    def work(self, number, job):
        data = job["data"]
        if "print" in data:
            os.write(1, data["print"].encode())
            os.write(2, data["print"].encode())
        if "flood" in data:
            for _ in range(data["flood"]):
                os.write(1, b"x" * 79 + b"\n")
        if "progress" in data:
            self.send(PROGRESS, data["progress"], number)
        if "log" in data:
            self.send(LOG, {"text": data["log"]}, number)
        if "mark" in data:
            with open(data["mark"], "a") as file:
                file.write(f"{job['task']['id']} {job['task']['attempt']} {os.getpid()}\n")
        if "open" in data:
            self.held_open += [open("/dev/null") for _ in range(data["open"])]
        if "chdir" in data:
            os.chdir(data["chdir"])
        if "fork" in data:
            subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=subprocess.DEVNULL)
        if "eat" in data:
            self.held_open.append(bytearray(os.urandom(1 << 20) * data["eat"]))
        if "hostile" in data:
            self.flush_all()
            self.sock.setblocking(True)
            getattr(self, data["hostile"])(number, data)
            return
        if "raw" in data:
            self.flush_all()
            self.sock.setblocking(True)
            self.sock.sendall(bytes.fromhex(data["raw"]).replace(b"JOBNUMBR", struct.pack("<Q", number)))
            if data.get("then") == "exit":
                os._exit(0)
            self.sock.setblocking(False)
            return
        if "die" in data:
            os.kill(os.getpid(), data["die"])
            time.sleep(10)
        if "fail" in data:
            self.send(ERROR, data["fail"], number)
            del self.open[number]
        elif "sleep" in data:
            job["until"] = time.monotonic() + data["sleep"]
        elif "gate" in data:  # until there is such a file
            job["gate"] = data["gate"]
        elif "busy" in data:
            time.sleep(data["busy"])
            self.done(number, data.get("result", data))
        elif "write" in data:
            text = data.get("text", "x").encode()
            job["todo"][data.get("stream", 1) - 1] = (text * (data["write"] // len(text) + 1))[:data["write"]]
            job["flush"] = True
        elif data.get("echo") or data.get("count"):
            pass
        elif data.get("result_and_exit"):
            self.done(number, {"pid": os.getpid(), "born": self.born})
            self.flush_all()
            os._exit(0)
        else:
            self.done(number, data.get("result", {"pid": os.getpid(), "task": job["task"]}))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    worker = Worker()
    time.sleep(float(os.environ.get("WARM_UP", "0")))
    if os.environ.get("GREETING"):
        worker.sock.setblocking(True)
        worker.sock.sendall(bytes.fromhex(os.environ["GREETING"]))
        time.sleep(1000)
    hello = {"versions": [1], "name": "by hand", "sdk": "test/1", "credit": 65536}
    if os.environ.get("ONLY"):
        hello["concurrency"] = int(os.environ["ONLY"])
    worker.send(HELLO, hello)
    worker.flush_all()
    header = b""
    worker.sock.setblocking(True)
    while len(header) < 16:
        got = worker.sock.recv(16 - len(header))
        if not got:
            sys.exit(0)
        header += got
    length, type = struct.unpack("<IB", header[:5])
    payload = b""
    while len(payload) < length:
        payload += worker.sock.recv(length - len(payload))
    if type != HELLO:
        sys.exit(3)
    CREDIT_OUT = json.loads(payload)["credit"]
    worker.sock.setblocking(False)
    worker.run()
