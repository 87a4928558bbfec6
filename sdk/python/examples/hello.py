#!/usr/bin/env python3
"""A warm worker: greets, and says how far it is."""
import mandor_worker


@mandor_worker.handler
def hello(ctx):
    name = ctx.data["name"]
    ctx.progress(50)
    ctx.write(f"Hello, {name}!\n".encode())
    return {"greeted": name}


if __name__ == "__main__":
    mandor_worker.run()
