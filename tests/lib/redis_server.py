"""A Redis server of a test's own, and a TCP proxy in front of it that can be cut."""
import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
import time

from harness import have, wait_for

PROGRAM = os.environ.get("MANDOR_TEST_REDIS") or "redis-server"  # any server that speaks Redis' protocol


kept = []  # the names of free_port()


def free_port():
    """A port on which nothing listens, nor 10000 above, where a node of a cluster does as well.  It stays this process's own while its server
    is away: the kernel gives only higher ones to connections, and other tests find the name taken that is bound for it."""
    while True:
        port = 12000 + secrets.randbelow(10000)
        name = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as server, socket.socket() as bus:
            name.bind(f"\0mandor-test-port-{port}")
            server.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10000))
            kept.append(name)
            return port
        name.close()


def have_redis():
    return have(PROGRAM) and have("redis-cli")


def command(port, directory, *args, bind="127.0.0.1"):
    """The command line of a server whose data are in directory."""
    return [PROGRAM, "--port", str(port), "--bind", bind, "--save", "", "--dir", str(directory), *args]


class Redis:
    """redis-server on a free port of 127.0.0.1 (or of `bind`), every write on disk before it is answered."""

    def __init__(self, directory, *args, bind="127.0.0.1", port=None, prefix=()):
        self.dir, self.args, self.bind, self.prefix = directory, args, bind, list(prefix)
        self.port = port or free_port()
        self.dir.mkdir(exist_ok=True)
        self.proc = None
        self.start()

    def start(self):
        argv = [*self.prefix, *command(self.port, self.dir, "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no", *self.args, bind=self.bind)]
        self.proc = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        wait_for(lambda: self.cli("PING", check=False) == "PONG", 60, "redis-server")

    def cli(self, *args, check=True, input=None):
        done = subprocess.run([*self.prefix, "redis-cli", "-h", self.bind, "-p", str(self.port), *map(str, args)], capture_output=True, text=True, input=input)
        if check:
            assert done.returncode == 0 and "ERR" not in done.stdout[:4], done
        return done.stdout.strip()

    def kill(self):
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGCONT)
            self.proc.kill()
            self.proc.wait()

    def restart(self):
        self.kill()
        self.start()

    def stop(self):
        os.kill(self.proc.pid, signal.SIGSTOP)

    def cont(self):
        os.kill(self.proc.pid, signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Proxy:
    """Forwards to 127.0.0.1:target.  cut(): connections break and new ones are refused.  freeze(): they stay open and nothing comes through.
    lose(bytes) of a request true: the server gets it, and the connection breaks before the answer (or after a second)."""

    def __init__(self, target):
        self.target, self.port = target, free_port()
        self.pairs, self.lock = [], threading.Lock()
        self.frozen, self.over = False, False
        self.lose = lambda request: False
        self.server = None
        self.heal()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def listen(self):
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", self.port))
        server.listen()
        return server

    def heal(self):
        with self.lock:
            self.frozen = False
            if self.server is None:
                self.server = self.listen()

    def cut(self):
        with self.lock:
            if self.server:
                self.server.close()
                self.server = None
            for pair in self.pairs:
                for s in pair:
                    s.close()
            self.pairs.clear()

    def freeze(self):
        self.frozen = True

    def step(self):
        with self.lock:
            if self.frozen or self.over:
                return False
            watched = [s for pair in self.pairs for s in pair] + ([self.server] if self.server else [])
            if not watched:
                return False
            ready = select.select(watched, [], [], 0.01)[0]
            for s in ready:
                if s is self.server:
                    client = s.accept()[0]
                    try:
                        self.pairs.append((client, socket.create_connection(("127.0.0.1", self.target))))
                    except OSError:
                        client.close()
                    continue
                pair = next((p for p in self.pairs if s in p), None)
                if pair is None:
                    continue
                other = pair[1] if s is pair[0] else pair[0]
                try:
                    data = s.recv(65536)
                    lost = s is pair[0] and self.lose(data)
                    if data:
                        other.sendall(data)
                    if lost:
                        other.settimeout(1)
                        other.recv(1)
                    elif data:
                        continue
                except OSError:
                    pass
                self.pairs.remove(pair)
                for end in pair:
                    end.close()
        return bool(ready)

    def run(self):
        while not self.over:
            with contextlib.suppress(OSError, ValueError):
                if not self.step():
                    time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        self.cut()
