"""rows_sinks.py - sinks on other servers beside what their own tools reach: rows of rows.py."""
import hashlib
import os
import pathlib
import re
import sys

from measure import Sample, process_cpu, wait_for
from report import compare

FRAME = 65536
TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "lib"
# Frames of 64 KiB behind a u32be length each; in one write, as a program with a buffer does it.
PRODUCER = ("import os, sys; n = int(sys.argv[1]); d = os.urandom(65536 - 4); b = memoryview(len(d).to_bytes(4, 'big') + d)\n"
            "for _ in range(n):\n  at = 0\n  while at < len(b): at += os.write(1, b[at:])")


def redis_sink(bench, count):
    with bench.fresh() as directory, bench.redis(directory, False) as (server, socket):
        before = process_cpu(server.pid)
        ended = bench.run([bench.mandor, "run", "--frame", "u32be", "--stdout", f"redis+unix://{socket}?stream=out", "--",
                           "/usr/bin/python3", "-S", "-c", PRODUCER, str(count)], directory)
        cpu = ended.cpu + process_cpu(server.pid) - before
        length = bench.run(["redis-cli", "-s", socket, "XLEN", "out"], directory).out
        return Sample(count, ended.seconds, cpu, int(length) == count + 1)


def redis_benchmark(bench, count, command):
    """It counts by itself; one connection, as the sink has, with as much under way."""
    with bench.fresh() as directory, bench.redis(directory, False) as (server, socket):
        before = process_cpu(server.pid)
        ended = bench.run(["redis-benchmark", "-s", socket, "-c", "1", "-P", "16", "-n", str(count), "-d", str(FRAME), "--csv", *command],
                          directory)
        rate = float(re.findall(r'^"[^"]*","([0-9.]+)"', ended.out, re.M)[-1])
        return Sample(count, count / rate, ended.cpu + process_cpu(server.pid) - before)


def row_redis_sink(bench):
    """Frames of 64 KiB as entries of a Redis stream."""
    count = 4000 if bench.quick else 12000
    got = bench.alternate({
        "mandor": lambda: redis_sink(bench, count),
        "set": lambda: redis_benchmark(bench, count, ["-t", "set"]),
        "keys": lambda: redis_benchmark(bench, count, ["-t", "set", "-r", "1000000000"]),
        "xadd": lambda: redis_benchmark(bench, count, ["XADD", "out", "MAXLEN", "~", str(count), "*", "job", "1.stdout", "attempt", "1",
                                                       "seq", "1", "off", "65536", "data", "x" * FRAME]),
    })
    return [compare("redis sink, 64 KiB frames", "redis-benchmark SET, -P 16", got["mandor"], got["set"], "frames/s", 0.8),
            compare("redis sink, 64 KiB frames", "redis-benchmark SET, a key each, -P 16", got["mandor"], got["keys"], "frames/s"),
            compare("redis sink, 64 KiB frames", "redis-benchmark XADD, -P 16", got["mandor"], got["xadd"], "frames/s")]


class Swift:
    """The S3 server of the tests."""

    def __init__(self, bench, directory):
        self.directory = directory
        self.log = directory / "background.log"
        self.argv = ["/usr/bin/python3", TESTS / "swift_s3.py", directory / "swift"]

    def port(self):
        wait_for(lambda: self.log.read_bytes().strip().isdigit(), 30, "the S3 server")
        return int(self.log.read_text())


def s3_upload(bench, size, mandor):
    sys.path.insert(0, str(TESTS))
    from s3 import BUCKET, Client
    with bench.fresh() as directory:
        swift = Swift(bench, directory)
        with bench.background(swift.argv, directory):
            client = Client(swift.port())
            client.request("PUT", f"/{BUCKET}")
            data = directory / "data"
            data.write_bytes(os.urandom(1 << 20) * (size >> 20))
            if mandor:
                argv = [bench.mandor, "run", "--stdout", f"s3://{BUCKET}/out", "--", "cat", data]
            else:
                argv = ["curl", "-sSf", "-T", data, client.presigned("PUT", f"/{BUCKET}/out")]
            ended = bench.run(argv, directory, client.env())
            ok = hashlib.md5(client.get("out")).digest() == hashlib.md5(data.read_bytes()).digest()
            return Sample(size, ended.seconds, ended.cpu, ok)


def row_s3_sink(bench):
    """One object, of a length that is not known before, beside curl, which knows it."""
    size = (64 if bench.quick else 256) << 20
    got = bench.alternate({"mandor": lambda: s3_upload(bench, size, True), "curl": lambda: s3_upload(bench, size, False)})
    return [compare("s3 sink", "curl -T, one PUT, body not hashed", got["mandor"], got["curl"], "MB/s", value=lambda s: s.rate / 1e6,
                    cpu_unit=("CPU s/GB", 1e9))]
