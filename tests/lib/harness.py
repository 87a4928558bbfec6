"""Drives the real binary from outside: a private directory, a private broker, a private cgroup ("cell") for each test.

The cell holds every process that a test starts, however it forks, so that "nothing is left" can be checked without trusting
mandor: no process and no cgroup below it.  Where cells cannot be made (no root, cgroups read-only) a marker in the environment,
which jobs inherit because LC_* is on mandor's list, takes its place.

Tests wait for events (wait_for) and never sleep to be in time.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MANDOR") or str(ROOT / "build" / "mandor")
SLACK = float(os.environ.get("MANDOR_TEST_SLACK", "1"))  # stretches every deadline on slow machines
PATIENCE = 60  # no wait for what will come is shorter, whatever it asks for: a machine may be slow, or stand still for seconds
SOAK = os.environ.get("MANDOR_SOAK", "") not in ("", "0")
MARK = "LC_MANDOR_MARK"


def wait_for(predicate, deadline=PATIENCE, what="", every=0.01):
    """Wait until predicate() is true and return its value; fail after `deadline` seconds, PATIENCE at the least.

    This never shows that something is quick.  Where that matters, what is wrong must be far slower than what is right, and a test
    measures, and compares with something between the two."""
    deadline = max(deadline, PATIENCE)
    end = time.monotonic() + deadline * SLACK
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline * SLACK:g} s in vain for {what or predicate}")
        time.sleep(every)


def wait_soon(predicate, seconds, what=""):
    """wait_for(), where what is promised is that it is quick.  A machine that stands still for a while, or has others to run, is not
    counted: each look counts as what it takes where nothing is in the way, its own work and a hundredth of a second."""
    spent = 0
    while True:
        began = time.process_time()
        value = predicate()
        if value:
            return value
        if spent > seconds * SLACK:
            raise AssertionError(f"in {seconds * SLACK:g} s there was not yet {what or predicate}")
        time.sleep(0.01)
        spent += time.process_time() - began + 0.01


def is_sanitized(path=BINARY):
    """Is the binary built with AddressSanitizer?  Then memory figures say nothing."""
    out = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return "libasan" in out or b"__asan_init" in pathlib.Path(path).read_bytes()


# ---- /proc ----------------------------------------------------------------------------------------------------------------


def proc_stat(pid):
    """(state, ppid, starttime) of pid, or None when it is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2:].split()
    return fields[0], int(fields[1]), int(fields[19])


def alive(pid):
    stat = proc_stat(pid)
    if stat is None or stat[0] == "X":
        return False
    if stat[0] != "Z":
        return True
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1  # its leading thread has exited, others run on
    except OSError:
        return False


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid):
    return [p for p in pids() if (s := proc_stat(p)) and s[1] == pid]


def tree(pid):
    """pid's descendants, zombies included."""
    parents = {p: s[1] for p in pids() if (s := proc_stat(p))}
    found, todo = [], [pid]
    while todo:
        top = todo.pop()
        for child, parent in parents.items():
            if parent == top and child not in found:
                found.append(child)
                todo.append(child)
    return found


def held(pid):
    """Its threads that strace holds up at one call, for longer than it does at any."""
    def call(task):
        with contextlib.suppress(OSError):
            return pathlib.Path(f"/proc/{pid}/task/{task}/syscall").read_text()
        return ""

    def stopped():
        time.sleep(0.03)
        with contextlib.suppress(OSError):  # it has ended
            return {(task, call(task)) for task in os.listdir(f"/proc/{pid}/task") if (stat := proc_stat(f"{pid}/task/{task}")) and stat[0] == "t"}
        return set()
    return {task for task, _ in set.intersection(*(stopped() for _ in range(10)))}


def let_go(*held):
    """Kills the strace that holds these processes up (when it is asked to end, it waits): they go on."""
    for tracer in {status_field(pid, "TracerPid") for pid in held} - {"", "0"}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(tracer), signal.SIGKILL)


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def status_field(pid, name):
    """A line of /proc/PID/status, as text; '' when there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
    match = re.search(rf"^{name}:\s*(.*)$", text, re.M)
    return match.group(1) if match else ""


def rss_bytes(pid):
    return int((status_field(pid, "VmRSS") or "0 kB").split()[0]) * 1024


def hwm_bytes(pid):
    return int((status_field(pid, "VmHWM") or "0 kB").split()[0]) * 1024


def pss_bytes(pid):
    """Proportional share: sums over processes without counting shared pages twice."""
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(re.search(r"^Pss:\s+(\d+)", text, re.M).group(1)) * 1024


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def marked(mark):
    """Living processes that carry the marker in their environment."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for pid in pids():
        try:
            if needle in pathlib.Path(f"/proc/{pid}/environ").read_bytes() and alive(pid):
                found.append(pid)
        except OSError:
            pass
    return found


def describe(found):
    return ", ".join(f"{p} [{(proc_stat(p) or '?')[0]}] {cmdline(p)!r}" for p in found) or "nothing"


# ---- the cell ---------------------------------------------------------------------------------------------------------------


def own_cgroups():
    """{controller: directory of this process}, '' is cgroup v2."""
    mounts = {}
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        kind, _, options = right.split()[:3]
        root, point = left.split()[3:5]
        for name in {"cgroup2": [""], "cgroup": options.split(",")}.get(kind, []):
            mounts.setdefault(name, (root, point))  # the others are passing views: of a container that is made beside us, and goes
    own = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounts:
                root, point = mounts[name]
                rel = path[len(root):] if root != "/" and path.startswith(root) else path
                own[name] = pathlib.Path(point) / rel.lstrip("/")
    return own


class Cell:
    """A cgroup a test, in every hierarchy that mandor uses.  Empty paths = could not be had."""

    def __init__(self):
        self.name = f"t-{uuid.uuid4().hex[:10]}"
        self.paths = {}
        own = own_cgroups()
        for name in ("", "memory", "pids", "cpu"):
            if name not in own:
                continue
            path = own[name] / self.name
            try:
                path.mkdir()
            except OSError:
                continue
            self.paths[name] = path

    @property
    def unified(self):
        return self.paths.get("")

    def enter(self):
        """Run in the child before exec.  The kernel refuses a move now and then on a busy machine; the version 2 cell is a must."""
        for name, path in self.paths.items():
            for turn in range(300):
                try:
                    (path / "cgroup.procs").write_text("0")
                    break
                except OSError:
                    if turn == 299 and name == "":
                        raise
                    time.sleep(0.01)

    def groups(self):
        """All cgroups below the cell."""
        found = []
        for top in self.paths.values():
            for path, dirs, _ in os.walk(top):
                found += [os.path.join(path, d) for d in dirs]
        return found

    def pids(self):
        found = set()
        if self.unified is None:
            return found
        for path, _, _ in os.walk(self.unified):
            with contextlib.suppress(OSError):
                for word in pathlib.Path(path, "cgroup.procs").read_text().split():
                    found.add(int(word))
        return found

    def kill(self):
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        if self.unified is not None:
            with contextlib.suppress(OSError):
                (self.unified / "cgroup.kill").write_text("1")

    def remove(self):
        for top in self.paths.values():
            for path, _, _ in os.walk(top, topdown=False):
                end = time.monotonic() + PATIENCE * SLACK
                while True:
                    try:
                        os.rmdir(path)
                    except FileNotFoundError:
                        pass
                    except OSError:
                        if time.monotonic() < end:
                            time.sleep(0.01)
                            continue
                    break


# ---- mandor -----------------------------------------------------------------------------------------------------------------


class Done:
    """How a command ended."""

    def __init__(self, args, code, out, err):
        self.args, self.code, self.out, self.err = args, code, out, err

    @property
    def text(self):
        return self.out.decode(errors="replace")

    @property
    def lines(self):
        return self.text.splitlines()

    @property
    def complaint(self):
        return self.err.decode(errors="replace")

    @property
    def cause(self):
        """The last line on stderr."""
        lines = self.complaint.strip().splitlines()
        return lines[-1] if lines else ""

    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"{' '.join(map(str, self.args))} -> {self.code}\nstdout: {self.out[-1500:]!r}\nstderr: {self.complaint[-3000:]}"


def _set_pdeathsig():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Gate:
    """Holds calls of what is started with its env, each until it is let go: see gate.c."""

    def __init__(self, place, *calls):
        self.env = {"LD_PRELOAD": str(pathlib.Path(BINARY).resolve().parent / "tests" / "gate.so"), "MANDOR_GATE": str(place), "MANDOR_GATE_CALLS": ",".join(calls),
                    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
        assert os.access(self.env["LD_PRELOAD"], os.R_OK), "no gate.so beside the binary: build the tests"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(place))
        self.socket.listen(100)
        self.socket.settimeout(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open()

    def open(self):
        """From now on nothing is held."""
        self.socket.close()

    @contextlib.contextmanager
    def held(self):
        """The name of a call that is held during the block (of fsync the file's too), None when there is none at the moment."""
        try:
            call, _ = self.socket.accept()
        except TimeoutError:
            yield None
            return
        with call, call.makefile() as lines:
            yield lines.readline().strip()


class Worker:
    """A running `mandor work` (or `run`): the guard is what was started, the worker is its child."""

    def __init__(self, mandor, args, proc, log):
        self.mandor, self.args, self.proc, self.log = mandor, args, proc, log
        self._worker_pid = None

    @property
    def guard_pid(self):
        return self.proc.pid

    @property
    def pid(self):
        """The worker below the guard (waits until it has been forked)."""
        if self._worker_pid is None:
            name = os.path.basename(self.mandor.binary)

            def find():
                if self.proc.poll() is not None:
                    raise AssertionError(f"ended early with {self.proc.returncode}:\n{self.stderr}")
                return next((p for p in children(self.proc.pid) if name in cmdline(p)), None)

            self._worker_pid = wait_for(find, what="the worker below the guard")
        return self._worker_pid

    @property
    def stderr(self):
        return pathlib.Path(self.log).read_text(errors="replace")

    def says(self, *words, deadline=PATIENCE):
        """Wait until its log has all of these: a thread of its own writes it, a moment after what it tells has happened."""
        try:
            wait_for(lambda: all(word in self.stderr for word in words), deadline)
        except AssertionError:
            raise AssertionError(f"not said in {max(deadline, PATIENCE) * SLACK:g} s: {words}\n{self.stderr[-4000:]}") from None

    def signal(self, number):
        self.proc.send_signal(number)

    def wait(self, timeout=PATIENCE):
        """Exit code, negative for a signal."""
        timeout = max(timeout, PATIENCE)
        try:
            return self.proc.wait(timeout * SLACK)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.args} did not end in {timeout * SLACK:g} s:\n{self.stderr[-4000:]}") from None

    def running(self):
        return self.proc.poll() is None

    def kill(self, guard=True, worker=True):
        """SIGKILL; both are stopped first, so that neither sees the other one die."""
        targets = ([self.pid] if worker else []) + ([self.guard_pid] if guard else [])
        for number in [signal.SIGSTOP] * (len(targets) > 1) + [signal.SIGKILL]:
            for pid in targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def end(self, timeout=PATIENCE):  # jobs may end within 30 s, as the configuration has it when it says nothing
        """SIGTERM; SIGKILL when that does not do."""
        if self.proc.poll() is not None:
            print(f"{' '.join(map(str, self.args))}: had ended already, exit {self.proc.returncode}")
            return
        with contextlib.suppress(ProcessLookupError):
            self.proc.send_signal(signal.SIGCONT)
            self.proc.send_signal(signal.SIGTERM)
        try:
            self.proc.wait(timeout * SLACK)
        except subprocess.TimeoutExpired:
            self.kill()
            self.proc.wait(PATIENCE * SLACK)
            raise AssertionError(f"{self.args} did not end on SIGTERM:\n{self.stderr[-4000:]}") from None


class Mandor:
    """The binary with a private broker.  Every process it starts lives in the test's cell."""

    def __init__(self, tmp, binary=BINARY):
        self.tmp = pathlib.Path(tmp)
        self.binary = binary
        self.mark = uuid.uuid4().hex
        self.cell = Cell()
        self.started = []
        self.logs = 0
        self.db = self.tmp / "q.db"
        self.data = self.tmp / "q.db.d"
        self.check_left = True
        home = self.tmp / "home"
        home.mkdir(exist_ok=True)
        keep = ("PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "LLVM_PROFILE_FILE", "GCOV_PREFIX")
        self.env = {name: os.environ[name] for name in keep if name in os.environ}
        self.env.update({
            "HOME": str(home), "USER": os.environ.get("USER", "root"), "LANG": "C.UTF-8", "NO_COLOR": "1",
            "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config"), "TMPDIR": str(self.tmp),
            "MANDOR_BROKER": f"sqlite:{self.db}", MARK: self.mark,
        })

    # -- starting --

    def popen(self, *args, prefix=(), **kw):
        """Popen of [prefix…] mandor args…, inside the cell."""
        return self.spawn([*prefix, self.binary, *args], **kw)

    def spawn(self, argv, env=None, preexec=None, **kw):
        """Popen of any program inside the cell.  env: added to the private one; None removes."""
        full = dict(self.env)
        for name, value in (env or {}).items():
            if value is None:
                full.pop(name, None)
            else:
                full[name] = value

        def enter():
            try:
                _set_pdeathsig()
                for number in signal.SIGINT, signal.SIGQUIT:  # a shell's background jobs, and what they start, ignore these
                    signal.signal(number, signal.SIG_DFL)
                self.cell.enter()
                if preexec:
                    preexec()
            except BaseException as error:  # Popen says no more than that there was one
                os.write(why.fileno(), f"{type(error).__name__}: {error}".encode())
                raise

        kw.setdefault("stdin", subprocess.DEVNULL)
        kw.setdefault("cwd", str(self.tmp))
        argv = [os.fspath(a) if not isinstance(a, bytes) else a for a in argv]
        told, why = map(open, os.pipe(), "rb wb".split())
        with told, why:
            try:
                proc = subprocess.Popen(argv, env=full, preexec_fn=enter, **kw)
            except subprocess.SubprocessError as error:
                why.close()
                raise RuntimeError(f"before exec: {told.read().decode()}") from error
        self.started.append(proc)
        return proc

    def run(self, *args, input=None, timeout=60, **kw):
        """Run a command to its end, which it has a minute for at the least."""
        timeout = max(timeout, 2 * PATIENCE)
        if input is not None:
            kw["stdin"] = subprocess.PIPE
            if isinstance(input, str):
                input = input.encode()
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        proc = self.popen(*args, **kw)
        try:
            out, err = proc.communicate(input, timeout=timeout * SLACK)
        except subprocess.TimeoutExpired:
            self.cell.kill()
            proc.kill()
            out, err = proc.communicate()
            raise AssertionError(f"mandor {' '.join(map(str, args))} did not end in {timeout * SLACK:g} s\n"
                                 f"stdout: {(out or b'')[-1500:]!r}\nstderr: {(err or b'')[-3000:].decode(errors='replace')}") from None
        return Done(args, proc.returncode, out, err)

    def ok(self, *args, **kw):
        """Run a command that must succeed."""
        done = self.run(*args, **kw)
        assert done.code == 0, done
        return done

    @contextlib.contextmanager
    def background(self, *args, **kw):
        """A command that goes on, ended with the block."""
        self.logs += 1
        log = self.tmp / f"stderr-{self.logs}.log"
        with open(log, "wb") as file:
            kw.setdefault("stderr", file)
            kw.setdefault("stdout", file)
            proc = self.popen(*args, **kw)
        worker = Worker(self, args, proc, log)
        try:
            yield worker
        except BaseException:  # what the block says is the reason, not that its jobs hold the worker up now
            try:
                worker.end()
            except AssertionError as late:
                print(late)
            raise
        else:
            worker.end()
        finally:
            for stream in (proc.stdin, proc.stdout, proc.stderr):
                if stream:
                    stream.close()

    def worker(self, *args, **kw):
        """`mandor work …` for a with block."""
        return self.background("work", *args, **kw)

    def drain(self, *args, timeout=2 * PATIENCE, **kw):
        """`mandor work --drain` to its end."""
        done = self.run("work", "--drain", *args, timeout=timeout, **kw)
        assert done.code == 0, done
        return done

    # -- jobs --

    def add(self, *cmd, **keys):
        """Add one job by its JSON form (§9 keys, dots as objects given) and return its id."""
        return self.add_many([{"exec": list(cmd), **keys}])[0]

    def add_many(self, jobs):
        lines = "".join(json.dumps(job) + "\n" for job in jobs)
        ids = self.ok("add", "--from", "-", input=lines).lines
        assert len(ids) == len(jobs), (len(ids), len(jobs))
        return ids

    def show(self, job):
        return self.ok("show", job, "--json").json()

    def list(self, *args):
        return [json.loads(line) for line in self.ok("ls", "--json", *args).lines]

    def stats(self):
        return self.ok("stats", "--json").json()

    def logs_of(self, job, *args):
        """One stream of a job, wherever `logs` prints it."""
        done = self.ok("logs", job, *args)
        return done.out or done.err if "--stderr" in args else done.out

    def wait_state(self, job, *states, deadline=PATIENCE):
        """Wait until the job is in one of `states`; returns its record."""
        last = {}

        def look():
            last.update(self.show(job))
            return last if last["state"] in states else None

        try:
            return wait_for(look, deadline, f"job {job} to become {'/'.join(states)}", every=0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last.get('state')} ({last})") from None

    def wait_phase(self, job, *phases, deadline=PATIENCE):
        return wait_for(lambda: self.show(job)["phase"] in phases, deadline, f"job {job} in phase {phases}", every=0.02)

    def states(self):
        """{id: state} straight from the database, for tests with thousands of jobs."""
        return {record["id"]: record["state"] for record in self.list()}

    # -- what is left --

    def dead_groups(self):
        """The cgroups of workers that the queue does not know.  One that died before it had registered is seen to after some seconds."""
        known = {f"mandor-{worker['name']}" for worker in self.stats()["workers"]}
        return {part for path in self.cell.groups() for part in path.split("/") if part.startswith("mandor-")} - known

    def left(self):
        """Living processes of this test."""
        found = set(marked(self.mark)) | {p for p in self.cell.pids() if alive(p)}
        found.discard(os.getpid())
        return sorted(found)

    def zombies(self):
        return [p for p in self.cell.pids() if (s := proc_stat(p)) and s[0] == "Z"]

    def jobs_left(self):
        """Living processes that are not mandor itself: jobs and what they forked (keepers of namespaces count as mandor)."""
        name = os.path.basename(self.binary)
        found = []
        for pid in self.left():
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(f"/proc/{pid}/exe").split(" (deleted)")[0]) != name:
                    found.append(pid)
        return found

    def close(self):
        """End what still runs; complain about what mandor left behind."""
        for proc in self.started:
            if proc.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(proc.pid, signal.SIGKILL)
                proc.wait()
        complaints = []
        if self.check_left:
            try:
                wait_for(lambda: not self.left(), what="processes to be gone")
            except AssertionError:
                complaints.append("processes left: " + describe(self.left()))
        self.cell.kill()
        for pid in marked(self.mark):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.check_left:
            groups = self.cell.groups()
            if groups and not any("kill" in a for a in complaints):
                complaints.append(f"cgroups left: {groups[:5]} ({len(groups)})")
        wait_for(lambda: not self.left(), what="killed processes to be gone")
        self.cell.remove()
        for mount in [l.split()[1] for l in open("/proc/self/mounts") if l.split()[1].startswith(str(self.tmp))]:
            subprocess.run(["umount", "-l", mount], check=False)
        return complaints


NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@contextlib.contextmanager
def nobodys_directory():
    """A directory that user 65534 owns and can reach, with an environment that points nowhere else."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="mandor-nobody-", dir="/tmp"))
    os.chown(path, 65534, 65534)
    env = {"HOME": str(path), "TMPDIR": str(path), "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "MANDOR_BROKER": f"sqlite:{path}/q.db"}
    try:
        yield path, env
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sh(script):
    """argv of a shell script."""
    return ["sh", "-c", script]


def database(path):
    """A read connection, for what the command line does not tell."""
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=PATIENCE)


def absent(what):
    """A reason to skip: something is not installed.  Under script/test, which has installed it, that is an error."""
    assert "MANDOR_FENCED" not in os.environ, f"{what}, though script/test has run script/bootstrap"
    return what


def have(program):
    return shutil.which(program) is not None or not absent(f"no {program} here")


def read_until(fd, needle, deadline=PATIENCE):
    """Read from fd until needle has come; returns everything read."""
    deadline = max(deadline, PATIENCE)
    data, end = b"", time.monotonic() + deadline * SLACK
    while needle not in data:
        ready, _, _ = select.select([fd], [], [], max(0, end - time.monotonic()))
        if not ready:
            raise AssertionError(f"{needle!r} did not come in {deadline} s, only {data!r}")
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            raise AssertionError(f"end of file before {needle!r}: {data!r}")
        data += chunk
    return data
