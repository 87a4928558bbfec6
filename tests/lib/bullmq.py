"""The stock BullMQ packages as the counterpart of `mandor work`: a Redis of their own, and a Node process that does what tests say."""
import base64
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import queue
import time

import redis_server
from harness import ROOT, SLACK, absent, wait_for

HERE = ROOT / "tests" / "bullmq"


def missing():
    """Why the tests cannot run here, or ''."""
    for program in (redis_server.PROGRAM, "node"):
        if shutil.which(program) is None:
            return absent(f"{program} is not installed")
    if not (HERE / "node_modules" / "bullmq").is_dir():
        return absent("tests/bullmq is not installed: script/bootstrap test")
    return ""


class Server:
    """A redis-server on a free port."""

    def __init__(self, tmp, *args):
        self.tmp, self.args, self.port = pathlib.Path(tmp), args, redis_server.free_port()
        self.start()

    def start(self):
        self.proc = subprocess.Popen(redis_server.command(self.port, self.tmp, *self.args), stdout=subprocess.DEVNULL)
        wait_for(self.answers, 20, "redis-server")

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                s.sendall(b"PING\r\n")
                return s.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

    def stop(self):
        self.proc.send_signal(signal.SIGCONT)
        self.proc.kill()
        self.proc.wait()

    def url(self, **params):
        text = "&".join(f"{key}={value}" for key, value in params.items())
        return f"bullmq://127.0.0.1:{self.port}" + (f"?{text}" if text else "")


class Stock:
    """The Node side of one major version."""

    def __init__(self, major, port):
        self.major = major
        self.proc = subprocess.Popen(["node", "driver.mjs", str(major), str(port)], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True)
        self.answers, self.turn = {}, 0
        self.arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.proc.stdout:
            answer = json.loads(line)
            with self.arrived:
                self.answers[answer["id"]] = answer
                self.arrived.notify_all()

    def _send(self, **message):
        self.turn += 1
        self.proc.stdin.write(json.dumps({"id": self.turn, **message}) + "\n")
        self.proc.stdin.flush()
        return self.turn

    def begin(self, code, **values):
        """Start code; the handle is for end().  values become constants of the code."""
        head = "".join(f"const {key} = {json.dumps(value)};\n" for key, value in values.items())
        return self._send(code=head + code)

    def end(self, handle, timeout=40):
        with self.arrived:
            arrived = self.arrived.wait_for(lambda: handle in self.answers or self.proc.poll() is not None, timeout * SLACK)
            answer = self.answers.pop(handle, None)
        assert arrived and answer, "the stock package gave no answer in time"
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def js(self, code, timeout=40, **values):
        """Run the body of an async function; its value."""
        return self.end(self.begin(code, **values), timeout)

    def reset(self):
        self.end(self._send(close=True))

    def stop(self):
        self.proc.stdin.close()
        try:
            self.proc.wait(5)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


class Bench:
    """One test's queue, between a stock package and mandor."""

    def __init__(self, mandor, server, stock, name):
        self.mandor, self.server, self.stock, self.major = mandor, server, stock, stock.major
        self.prefix, self.name = "bull", name
        mandor.env["MANDOR_BROKER"] = self.url()
        self.config = mandor.tmp / "mandor.yaml"
        mandor.env["MANDOR_CONFIG"] = str(self.config)
        self.configure()

    def url(self, **params):
        if self.prefix != "bull":
            params = {"prefix": self.prefix, **params}
        return self.server.url(**params)

    def configure(self, *queues, lease="30s", **options):
        """The configuration: these queues (the test's own by default) take commands from messages."""
        body = {name: {"allow_exec": True, **options} for name in (queues or (self.name,))}
        self.config.write_text(json.dumps({"lease": lease, "queues": body}))

    def worker(self, *args, queues=None, concurrency=1, **params):
        """`mandor work` on the test's queue; params go into the broker's URL."""
        names = [arg for name in queues or (self.name,) for arg in ("--queue", name)]
        return self.mandor.worker("--broker", self.url(**params), "--concurrency", str(concurrency), *names, *args)

    def js(self, code, timeout=40, **values):
        """With q, a Queue of the test's name, and K(suffix), its keys."""
        head = (f"const NAME = {json.dumps(self.name)}, PREFIX = {json.dumps(self.prefix)};\n"
                "const K = (suffix) => `${PREFIX}:${NAME}:${suffix}`;\n"
                "const q = (kept.q ??= queue(NAME, { prefix: PREFIX }));\n")
        return self.stock.js(head + code, timeout, **values)

    def begin(self, code, **values):
        head = (f"const NAME = {json.dumps(self.name)}, PREFIX = {json.dumps(self.prefix)};\n"
                "const K = (suffix) => `${PREFIX}:${NAME}:${suffix}`;\n"
                "const q = (kept.q ??= queue(NAME, { prefix: PREFIX }));\n")
        return self.stock.begin(head + code, **values)

    def end(self, handle, timeout=40):
        return self.stock.end(handle, timeout)

    def add(self, script, name="job", **opts):
        """A stock producer's job that runs a shell script; its id."""
        return self.js("return (await q.add(NAME2, data, opts)).id;", NAME2=name, data=sh(script), opts=opts)

    def hash(self, job):
        return self.js("return await r.hgetall(K(id));", id=job)

    def state(self, job):
        return self.js("return await q.getJobState(id);", id=job)

    def wait_state(self, job, *states, deadline=20):
        return wait_for(lambda: (state := self.state(job)) in states and state, deadline, f"job {job} to be {'/'.join(states)}", every=0.03)

    def stamped(self):
        """[(ms of the server's clock, event, {field: value})] of the queue's stream, oldest first."""
        found = []
        for stamp, row in self.js("return await r.xrange(K('events'), '-', '+');"):
            fields = dict(zip(row[::2], row[1::2]))
            found.append((int(stamp.split("-")[0]), fields.pop("event"), fields))
        return found

    def events(self, *names):
        """[(event, {field: value})]; only these names when there are some."""
        return [(event, fields) for _, event, fields in self.stamped() if not names or event in names]

    def keys(self, *suffixes):
        """Their types' natural values."""
        return self.js("""const out = [];
            for (const suffix of suffixes) {
                const type = await r.type(K(suffix)), key = K(suffix);
                out.push(type === 'list' ? await r.lrange(key, 0, -1) : type === 'set' ? await r.smembers(key)
                    : type === 'zset' ? await r.zrange(key, 0, -1, 'WITHSCORES') : type === 'hash' ? await r.hgetall(key)
                    : await r.get(key));
            }
            return out;""", suffixes=list(suffixes))


def sh(script):
    """Data of a job that runs it."""
    return {"exec": ["/bin/sh", "-c", script]}


def say(**values):
    """A line of shell that says something on descriptor 3."""
    text = json.dumps(values).replace("'", "'\\''")
    return f"echo '{text}' >&3"


def client_name(prefix, queue_name, name=None):
    text = f"{prefix}:{base64.b64encode(queue_name.encode()).decode()}"
    return text + (f":w:{name}" if name else "")
