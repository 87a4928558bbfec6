"""Python jobs for scenarios: one worker whose runtimes are warm, shared by the tests of a file, since each start costs seconds."""
import contextlib
import json
import os
import pathlib
import textwrap

from harness import BINARY, Mandor, absent, wait_for

ZYGOTE = pathlib.Path(os.environ.get("MANDOR_ZYGOTE", pathlib.Path(BINARY).resolve().parent / "zygote"))


def why_not():
    """'' where Python jobs can run, or what is missing."""
    for name in ("mandor_zygote.node", "node_modules/pyodide/pyodide.asm.wasm"):
        if not (ZYGOTE / name).exists():
            return absent(f"no {name} in {ZYGOTE}: script/bootstrap python, then script/build")
    return ""


def job(code, params=None, runtime=None, bind_params=None, packages=None, **keys):
    python = {"code": textwrap.dedent(code)}
    for key, value in (("params", params), ("runtime", runtime), ("bind_params", bind_params), ("packages", packages)):
        if value is not None:
            python[key] = value
    return {"python": python, **keys}


def things_of(pid):
    """{descriptor: what it is}"""
    return {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}


def open_ends(pid):
    """Pipes, sockets and what is anonymous: all that jobs and servers bring.  (Directories of control groups are kept for the next job.)"""
    return sum(thing.startswith(("pipe:", "socket:", "anon_inode:")) for thing in things_of(pid).values())


def configure(mandor, runtimes=None, concurrency=4, **python):
    text = {"concurrency": concurrency, "shutdown_timeout": "1s", "queues": {"default": {"keep_completed": "7d"}}, # of 20,000 jobs too
            "python": {**python, "runtimes": runtimes or {"default": {}}}}
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps(text))
    mandor.env["MANDOR_CONFIG"] = str(path)
    return path


class Snakes:
    """A `mandor work` with its runtimes."""

    def __init__(self, mandor, worker):
        self.mandor, self.worker = mandor, worker

    def run(self, *jobs, deadline=200):
        """Records of the jobs (as job() makes them, or plain code), when all have ended."""
        jobs = [job(one) if isinstance(one, str) else one for one in jobs]
        ids = self.mandor.add_many(jobs)
        self.mandor.run("wait", *ids, "--timeout", f"{deadline}s", timeout=deadline + 10)
        return [self.mandor.show(one) for one in ids]

    def one(self, code, **keys):
        deadline = keys.pop("deadline", 200)
        return self.run(job(code, **keys), deadline=deadline)[0]

    def result(self, code, **keys):
        record = self.one(code, **keys)
        assert record["state"] == "completed", record
        return record["result"]

    def runtimes(self):
        return {one["name"]: one for one in self.mandor.stats()["live"][0]["runtimes"]}

    def wait_ready(self, name="default", spares=1, deadline=120):
        def ready():
            with contextlib.suppress(KeyError, IndexError, AssertionError):
                found = self.runtimes()[name]
                return found if found["state"] == "ready" and found["spares"] >= spares else None
        return wait_for(ready, deadline, f"runtime {name} with {spares} spares", every=0.1)


@contextlib.contextmanager
def snakes_in(tmp, runtimes=None, concurrency=4, ready=True, env=None, **python):
    mandor = Mandor(tmp)
    mandor.env.update(env or {})
    configure(mandor, runtimes, concurrency, **python)
    try:
        with mandor.worker() as worker:
            it = Snakes(mandor, worker)
            if ready:
                it.wait_ready(next(iter(runtimes or {"default": 0})))
            yield it
    finally:
        complaints = mandor.close()
    assert not complaints, "; ".join(complaints)
