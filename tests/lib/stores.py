"""Redis and memcached for tests: servers of their own on free ports, and a Redis client of a few lines."""
import contextlib
import shutil
import socket
import subprocess
import tempfile
import time

import redis_server
from harness import SLACK
from redis_server import free_port


class RedisError(Exception):
    pass


class Redis:
    def __init__(self, port):
        self.port = port
        self.url = f"redis://127.0.0.1:{port}"
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30 * SLACK)
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]

    def entries(self, key):
        """The entries of a stream as dicts of text, `data` as bytes."""
        found = []
        for _, fields in self("XRANGE", key, "-", "+"):
            entry = {n.decode(): v for n, v in zip(fields[::2], fields[1::2])}
            found.append({n: v if n == "data" else v.decode() for n, v in entry.items()})
        return found

    def close(self):
        self.file.close()
        self.socket.close()


def _connect(port, proc):
    end = time.monotonic() + 60 * SLACK
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError:
            assert proc.poll() is None and time.monotonic() < end, "the server did not start"
            time.sleep(0.02)


@contextlib.contextmanager
def redis(*extra):
    directory = tempfile.mkdtemp(prefix="mandor-redis-")
    port = free_port()
    proc = subprocess.Popen(redis_server.command(port, directory, *extra), stdout=subprocess.DEVNULL)
    try:
        _connect(port, proc).close()
        client = Redis(port)
        client.proc = proc
        yield client
        client.close()
    finally:
        proc.kill()
        proc.wait()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def memcached(*extra):
    """Its port."""
    port = free_port()
    proc = subprocess.Popen(["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", *extra],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _connect(port, proc).close()
        yield port
    finally:
        proc.kill()
        proc.wait()
