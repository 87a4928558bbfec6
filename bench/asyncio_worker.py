"""asyncio_worker.py COUNT PARALLEL PROGRAM: the plain asyncio worker, as people write it.

A bounded queue between a reader task and a writer task for each process, a timeout round wait(), a session of its own.
Jobs come from a list in memory: no broker, nothing durable.
"""
import asyncio
import json
import os
import sys
import time

QUEUE_MAX = 32
CHUNK = 65536
TIMEOUT = 30.0


async def read(stream, queue):
    while chunk := await stream.read(CHUNK):
        await queue.put(chunk)
    await queue.put(None)


async def write(queue, sink):
    while (chunk := await queue.get()) is not None:
        await sink(chunk)


async def execute(command, sink):
    """One job: start it, carry its output, wait; returns its exit code."""
    queue = asyncio.Queue(maxsize=QUEUE_MAX)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, preexec_fn=os.setsid)
    tasks = [asyncio.create_task(read(process.stdout, queue)), asyncio.create_task(write(queue, sink))]
    await asyncio.wait_for(process.wait(), timeout=TIMEOUT)
    await asyncio.gather(*tasks)
    return process.returncode


async def main(count, parallel, program):
    slots = asyncio.Semaphore(parallel)
    ok = 0

    async def sink(chunk):
        pass

    async def one():
        nonlocal ok
        async with slots:
            code = await execute([program], sink)
            ok += code == 0

    start = time.monotonic()
    await asyncio.gather(*[one() for _ in range(count)])
    print(json.dumps({"seconds": time.monotonic() - start, "ok": ok}))


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
