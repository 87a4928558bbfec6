"""The worker that tests/lib/pool_peer.py asks for, with an asynchronous handler."""
import asyncio
import sys

import mandor_worker
from mandor_worker import JobError


def pattern(start, count):
    return bytes(i * 7 % 251 for i in range(start, start + count))


async def handle(ctx):
    return await OPS[ctx.data["op"]](ctx, ctx.data)


async def echo(ctx, _):
    count = 0
    async for chunk in ctx.input:
        await ctx.write(chunk)
        count += len(chunk)
    return {"bytes": count}


async def emit(ctx, data):
    for start in range(0, data["bytes"], 10040):
        await ctx.write(pattern(start, min(10040, data["bytes"] - start)))
    await ctx.end()
    await ctx.write(b"%d bytes" % data["bytes"], stream="stderr")
    return {"bytes": data["bytes"]}


async def result(_, data):
    return data["value"]


async def error(_, data):
    raise JobError(data["message"], code=data.get("code"), retry=data.get("retry", True))


async def wait(ctx, _):
    ctx.progress("waiting")
    await asyncio.Event().wait()


async def tell(ctx, data):
    ctx.progress(data["progress"])
    ctx.log(data["text"], level="info")
    mandor_worker.log("about the worker")


async def say(_, data):
    for stream in (sys.stdout, sys.stderr):
        stream.write(data["text"])


async def info(ctx, _):
    return {"id": ctx.id, "queue": ctx.queue, "attempt": ctx.attempt, "timeout_ms": int((ctx.timeout or 0) * 1000)}


async def bye(ctx, _):
    ctx.bye("asked for")


async def run_code(ctx, data):
    """For this library's own tests: the code is the body of an async function."""
    names = {"mandor_worker": mandor_worker, "asyncio": asyncio}
    exec("async def body(ctx):\n" + "".join(f"    {line}\n" for line in data["code"].splitlines()), names)
    return await names["body"](ctx)


OPS = {"echo": echo, "emit": emit, "result": result, "error": error, "wait": wait, "tell": tell, "print": say, "info": info,
       "bye": bye, "code": run_code}

if __name__ == "__main__":
    mandor_worker.run(handle, name="conformance", credit=4096)
