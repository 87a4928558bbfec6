"""The worker that tests/lib/pool_peer.py asks for, with a synchronous handler; WORKER_CONCURRENCY: in threads."""
import os
import sys

import mandor_worker
from mandor_worker import JobCancelled, JobError


def pattern(start, count):
    return bytes(i * 7 % 251 for i in range(start, start + count))


def handle(ctx):
    return OPS[ctx.data["op"]](ctx, ctx.data)


def echo(ctx, _):
    count = 0
    for chunk in ctx.input:
        ctx.write(chunk)
        count += len(chunk)
    return {"bytes": count}


def emit(ctx, data):
    for start in range(0, data["bytes"], 10040):
        ctx.write(pattern(start, min(10040, data["bytes"] - start)))
    ctx.end()
    ctx.write(b"%d bytes" % data["bytes"], stream="stderr")
    return {"bytes": data["bytes"]}


def error(_, data):
    raise JobError(data["message"], code=data.get("code"), retry=data.get("retry", True))


def wait(ctx, _):
    ctx.progress("waiting")
    ctx.cancelled.wait()
    raise JobCancelled(ctx.cancelled.reason)


def tell(ctx, data):
    ctx.progress(data["progress"])
    ctx.log(data["text"], level="info")
    mandor_worker.log("about the worker")


def say(_, data):
    for stream in (sys.stdout, sys.stderr):
        stream.write(data["text"])


def info(ctx, _):
    return {"id": ctx.id, "queue": ctx.queue, "attempt": ctx.attempt, "timeout_ms": int((ctx.timeout or 0) * 1000)}


def run_code(ctx, data):
    """For this library's own tests: the code's `result`."""
    names = {"ctx": ctx, "mandor_worker": mandor_worker}
    exec(data["code"], names)
    return names.get("result")


OPS = {"echo": echo, "emit": emit, "result": lambda _, data: data["value"], "error": error, "wait": wait, "tell": tell,
       "print": say, "info": info, "bye": lambda ctx, _: ctx.bye("asked for"), "code": run_code}

if __name__ == "__main__":
    mandor_worker.run(handle, name="conformance", credit=4096, concurrency=int(os.environ.get("WORKER_CONCURRENCY", "1")))
