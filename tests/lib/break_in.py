"""Attempts to break out of a Python job, and a fork server whose copies are already taken over.

tests/escape/*.attempts hold pieces of Python, each below a line `#### what it tries`; tests/escape/prelude.py is put before each.
"""
import pathlib
import shutil
import socket
import tempfile
import threading

from harness import BINARY, ROOT
from snakes import ZYGOTE, job

HERE = ROOT / "tests" / "escape"
ATTACK = pathlib.Path(BINARY).resolve().parent / "tests" / "escape" / "attack.node"


def attempts(name):
    """{what it tries: code}"""
    found = {}
    for part in (HERE / f"{name}.attempts").read_text().split("#### ")[1:]:
        title, _, code = part.partition("\n")
        assert title not in found, title
        found[title] = code
    return found


class Bait:
    """What a job must not reach: a file, a variable of the environment, a port; and a file that it must not make."""

    word = "canary-5f1d7"

    def __init__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="mandor-bait-", dir="/tmp"))
        self.home.chmod(0o777)  # whoever gets out, as whomever, finds it open
        self.secret, self.mark = self.home / "secret", self.home / "mark"
        self.secret.write_text(self.word)
        self.secret.chmod(0o666)
        self.callers = []
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self):
        while True:
            try:
                caller, address = self.server.accept()
            except OSError:
                return
            self.callers.append(address)
            caller.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")
            caller.close()

    def params(self, **more):
        return {"secret": str(self.secret), "mark": str(self.mark), "port": self.server.getsockname()[1], **more}

    def touched(self):
        """What was reached, in words."""
        return [f"{path} was made" for path in self.home.iterdir() if path != self.secret] + \
            ["the secret was changed"] * (self.secret.read_text() != self.word) + [f"a call from {caller}" for caller in self.callers]

    def close(self):
        self.server.close()
        shutil.rmtree(self.home, ignore_errors=True)


def attack(code, bait, more=None, **keys):
    """The job that makes an attempt."""
    keys = {"timeout": "10s", "kill_after": "300ms", "attempts": 1, "output_max": "1M", **keys}
    return job((HERE / "prelude.py").read_text() + "\n" + code, params=bait.params(**(more or {})), **keys)


def replace(path, old, new):
    """One text in a file, by another."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {text.count(old)} of {old!r}"
    path.write_text(text.replace(old, new))


def copied_harness(tmp):
    """A directory for MANDOR_ZYGOTE: the fork server as it is."""
    path = tmp / "zygote"
    path.mkdir()
    (path / "node_modules").symlink_to(ZYGOTE / "node_modules")
    shutil.copytree(ZYGOTE / "python", path / "python")
    for entry in [*ZYGOTE.glob("*.mjs"), *ZYGOTE.glob("*.node"), *ZYGOTE.glob("*.zip")]:
        shutil.copy(entry, path)  # no links: Node looks for the neighbours of what they point to
    return path


def open_harness(tmp):
    """… whose jobs have all of JavaScript, all of Node and any system call as `mandor.native`."""
    path = copied_harness(tmp)
    shutil.copy(ATTACK, path)
    replace(path / "interpreter.mjs", "const forJobs = {", 'const { createRequire } = await import("node:module");\n'
            'const require = createRequire(import.meta.url);\nconst forJobs = {\n  attack: require("./attack.node"), process, require, global: globalThis,')
    replace(path / "python" / "host.py", 'sys.modules["mandor"] = module', 'sys.modules["mandor"] = module\n    module.native = native')
    return path
