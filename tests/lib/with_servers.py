#!/usr/bin/python3
"""with_servers.py PROGRAM [ARGS…]: run the sinks' contract suite against real servers, and look at what it has left in them.

Exits with the program's code; 1 when a server holds something that was aborted or came too late."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import s3  # noqa: E402
import stores  # noqa: E402
import web  # noqa: E402

TOO_LATE = b"too late"


def main():
    with tempfile.TemporaryDirectory() as tmp, s3.server(tmp) as client, web.store() as store, stores.redis() as redis, stores.memcached() as memcached:
        urls = ["s3://media/contract/object", f"http://127.0.0.1:{store.port}/contract", f"{redis.url}?stream=c",
                f"{redis.url}?key=k", f"{redis.url}?hash=h&field=f",
                f"memcached://127.0.0.1:{memcached}/k"]
        env = os.environ | client.env() | {"MANDOR_TEST_SINKS": " ".join(urls)}
        code = subprocess.run(sys.argv[1:], env=env).returncode
        wrong = []
        if client.uploads():
            wrong.append(f"unfinished uploads: {client.uploads()}")
        stages = redis("KEYS", "*stage*")
        if stages:
            wrong.append(f"stages in Redis: {stages}")
        for body in (client.get("contract/object"), *store.objects.values(), redis("GET", "k"), redis("HGET", "h", "f")):
            if body is None or TOO_LATE in body:
                wrong.append("nothing was published, or what was too late")
        if store.broken:
            wrong.append("a small PUT was begun that did not end")
        for line in wrong:
            print(line, file=sys.stderr)
        return code or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
