"""measure.py - start things, time them, end them."""
import contextlib
import json
import os
import pathlib
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


class Failed(Exception):
    """A contestant could not be run; the row says so and the others go on."""


class Sample:
    """One timed run: `work` units in `seconds`, `cpu` seconds of the process and all it waited for."""

    def __init__(self, work, seconds, cpu=None, ok=True, **extra):
        self.work, self.seconds, self.cpu, self.ok, self.extra = work, seconds, cpu, ok, extra

    @property
    def rate(self):
        return self.work / self.seconds


class Ended:
    """What timed() returns."""

    def __init__(self, code, seconds, cpu, out):
        self.code, self.seconds, self.cpu, self.out = code, seconds, cpu, out

    def json(self):
        return json.loads(self.out)


def timed(argv, cwd, env, stdin=None, expect=0, limit=600):
    """Run argv to its end.  Output goes through files, so that nobody here has to read while it runs."""
    argv = [os.fspath(word) for word in argv]
    out_path, err_path = cwd / "stdout", cwd / "stderr"
    with open(stdin or os.devnull, "rb") as source, open(out_path, "wb") as out, open(err_path, "wb") as err:
        start = time.perf_counter()
        process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=source, stdout=out, stderr=err)
        previous = signal.signal(signal.SIGALRM, lambda *_: process.kill())
        signal.alarm(limit)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expect:
        raise Failed(f"{pathlib.Path(argv[0]).name} {' '.join(argv[1:2])} … ended with {process.returncode}: "
                     f"{err_path.read_text(errors='replace').strip()[-300:]}")
    return Ended(process.returncode, seconds, usage.ru_utime + usage.ru_stime, out_path.read_text(errors="replace"))


def process_cpu(pid):
    """User and system seconds of a living process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pid):
    """pid and all below it."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


class Bench:
    """Where a run of script/bench lives: the binaries, a private directory, an environment of its own."""

    def __init__(self, build, directory, quick):
        self.build, self.quick = pathlib.Path(build).resolve(), quick
        self.reps = 3 if quick else 5
        self.dir = pathlib.Path(directory).resolve() / f"bench-{os.getpid()}"
        self.dir.mkdir(parents=True)
        self.memory = pathlib.Path("/dev/shm") / f"mandor-bench-{os.getpid()}"
        self.memory.mkdir()
        self.mandor = self.build / "mandor"
        self.counter = 0
        home = self.dir / "home"
        home.mkdir()
        (self.dir / "mandor.yaml").write_text("concurrency: 4\n")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(self.dir),
                    "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config"),
                    "MANDOR_CONFIG": str(self.dir / "mandor.yaml")}
        for name in ("MANDOR_CONTAINMENT", "MANDOR_DEBUG"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def tool(self, name):
        return self.build / "bench" / name

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    @contextlib.contextmanager
    def fresh(self, memory=False):
        """A directory that is removed with the block."""
        self.counter += 1
        path = (self.memory if memory else self.dir) / str(self.counter)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def run(self, argv, cwd, env=None, **kw):
        return timed(argv, cwd, {**self.env, **(env or {})}, **kw)

    @contextlib.contextmanager
    def background(self, argv, cwd, env=None):
        """A process that is ended with the block (SIGTERM, then SIGKILL)."""
        with open(cwd / "background.log", "wb") as log:
            process = subprocess.Popen([os.fspath(word) for word in argv], cwd=cwd, env={**self.env, **(env or {})},
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextlib.contextmanager
    def redis(self, cwd, durable):
        """A private redis-server on a Unix socket; durable: every write is fsync'ed before it is acknowledged."""
        socket = cwd / "redis.sock"
        argv = ["redis-server", "--port", "0", "--unixsocket", socket, "--dir", cwd, "--save", "",
                "--appendonly", "yes" if durable else "no", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        with self.background(argv, cwd) as server:
            wait_for(socket.exists, 10, "redis-server")
            yield server, socket

    def alternate(self, contestants):
        """Run each contestant once a round, the first of a round changing; {name: [samples]} or {name: Failed}."""
        samples = {name: [] for name in contestants}
        names = list(contestants)
        for turn in range(self.reps):
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                if isinstance(samples[name], Failed):
                    continue
                try:
                    samples[name].append(contestants[name]())
                except (Failed, OSError, ValueError, KeyError) as error:
                    samples[name] = error if isinstance(error, Failed) else Failed(f"{type(error).__name__}: {error}")
        return samples


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what} did not come in {seconds} s")
        time.sleep(0.01)


def median(values):
    return statistics.median(values)


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def peak_of_children_mib():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


# -- the machine --

def first_line(*argv):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        return (done.stdout or done.stderr).strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "absent"


def file_system(path):
    line = subprocess.run(["findmnt", "-n", "-o", "FSTYPE,SOURCE,OPTIONS", "-T", str(path)], capture_output=True, text=True)
    return " ".join(line.stdout.split()) or "unknown"


def machine(bench):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    bullmq = json.loads((HERE / "bullmq" / "package-lock.json").read_text())["packages"]["node_modules/bullmq"]["version"]
    commit = first_line("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    if first_line("git", "-C", str(ROOT), "status", "--porcelain", "-uno") not in ("absent",):
        commit += " with changes"
    doctor = subprocess.run([bench.mandor, "doctor"], env=bench.env, capture_output=True, text=True)
    rung = next((line.strip() for line in doctor.stdout.splitlines() if "containment auto" in line), "unknown")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "kernel": platform.release(),
        "load before": "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg()),
        "file system": file_system(bench.dir),
        "memory file system": file_system(bench.memory),
        "mandor": f"{first_line(str(bench.mandor), '--version')}, commit {commit}, release build",
        "containment": rung,
        "durability": "mandor: SQLite WAL, fdatasync before an add or a settle is answered; raw SQLite: WAL, synchronous=FULL; Redis: as the row says",
        "versions": ", ".join([first_line("python3", "--version"), "Node " + first_line("node", "--version"),
                               "BullMQ " + bullmq, first_line("redis-server", "--version").split(" sha")[0],
                               "SQLite " + first_line("sqlite3", "--version").split(" ")[0],
                               first_line("cc", "--version")]),
    }
