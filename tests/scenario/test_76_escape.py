"""Jobs that want out: of Python into JavaScript, of JavaScript into Node, of Node into the machine, and into each other."""
import contextlib
import json
import math
import os
import platform
import re
import shutil
import signal
import time
import zlib

import pytest

from break_in import ATTACK, Bait, attack, attempts, open_harness
from harness import SOAK, absent, alive, children, cmdline, hwm_bytes, is_sanitized, rss_bytes, status_field, wait_for
from snakes import ZYGOTE, configure, job, open_ends, snakes_in, things_of, why_not
from web import store

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

why_no_attack = "" if ATTACK.exists() else absent(f"no {ATTACK.name}: script/build with tests")
needs_attack = pytest.mark.skipif(bool(why_no_attack), reason=why_no_attack or "-")

# What an honest job sees of the interpreter that it is given.
LOOK = """
    import builtins, json, os, sys, time, mandor, asyncio
    await asyncio.sleep(0)
    time.sleep(0)
    print("honest", end="")
    [json.loads(json.dumps(params)), sorted(os.environ), sorted(os.listdir("/")), os.listdir("/tmp"), os.getcwd(), len(builtins.__dict__), len(sys.modules),
     sorted(vars(sys.modules["js"])), isinstance(1, int), sorted(mandor.__all__), type(asyncio.get_event_loop()).__name__, len(asyncio.all_tasks())]
"""


@contextlib.contextmanager
def besieged(tmp, runtimes=None, **keys):
    """A worker, the bait beside it."""
    bait = Bait()
    try:
        with snakes_in(tmp, runtimes, **keys) as it:
            it.bait = bait
            yield it
            assert bait.touched() == []
    finally:
        bait.close()


@pytest.fixture(scope="module")
def snakes(tmp_path_factory):
    with besieged(tmp_path_factory.mktemp("besieged")) as it:
        yield it


def ended_alone(it, title, record):
    """Nothing got through, and it ended as a job ends."""
    mandor = it.mandor
    said = mandor.logs_of(record["id"], "--stdout").decode(errors="replace")
    assert "ESCAPED" not in said, (title, said[:3000])
    assert it.bait.word not in said + json.dumps(record), (title, record)
    assert record["state"] in ("completed", "failed") and record["cause"] in ("exit", "signal", "oom", "limit", "timeout"), (title, record)


def storm(it, names, deadline=250, head="", look=LOOK, **keys):
    """All attempts of some files, an honest job after each; returns {what it tries: its record}."""
    server = it.runtimes()["default"]["servers"][0]["pid"]
    tries = {title: code for name in names for title, code in attempts(name).items()}
    first = it.result(look, params=["before"])
    jobs = []
    for n, code in enumerate(tries.values()):
        jobs += [attack(head + code, it.bait, {"worker": it.worker.pid, "server": server}, **keys), job(look, params=[n])]
    records = it.run(*jobs, deadline=deadline)
    for n, title in enumerate(tries):
        tried, honest = records[2 * n], records[2 * n + 1]
        ended_alone(it, title, tried)
        assert honest["state"] == "completed" and honest["result"] == [[n], *first[1:]], (title, honest)
        assert honest["streams"]["stdout"]["bytes"] == len("honest"), (title, honest)
    runtime = it.runtimes()["default"]
    assert [one["pid"] for one in runtime["servers"]] == [server] and runtime["deaths"] == 0 and alive(server), runtime
    return dict(zip(tries, records[::2]))


# ---- from Python ----


def test_no_road_from_python_leads_to_node_R100(snakes):
    storm(snakes, ["javascript"])


def test_memory_of_webassembly_is_all_that_can_be_broken_R100(snakes):
    ends = storm(snakes, ["memory"])
    assert ends["write over the whole heap"]["cause"] in ("signal", "oom"), ends


def test_neither_files_nor_sockets_nor_processes_nor_signals_R100(snakes):
    ends = storm(snakes, ["system"])
    assert ends["close descriptors 0 to 1023"]["state"] in ("completed", "failed")
    assert ends["abort"]["cause"] == "signal"


def test_who_lies_to_the_harness_lies_about_itself_alone_R98(snakes):
    storm(snakes, ["harness"], timeout="3s")


# ---- the other levels of isolation ----

# The same in an interpreter where another job has been: and what that one could have left lying in its way.
LOOK_AROUND = LOOK + """
    import atexit, codecs, csv, gc, colorsys, logging, tracemalloc, warnings
    try:
        late_codec = codecs.lookup("late").name
    except LookupError:
        late_codec = None
    gc.collect()
    try:
        b"\\xff".decode()
    except UnicodeDecodeError:
        pass
    try:
        import sitecustomize
    except ImportError:
        pass
    async def one():
        yield 1
    async for _ in one():
        await asyncio.sleep(0.03)
    [json.loads(json.dumps(params)), sorted(os.environ), sorted(os.listdir("/")), os.listdir("/tmp"), os.listdir("/home/pyodide"), os.getcwd(), len(builtins.__dict__),
     len(sys.modules), sorted(vars(sys.modules["js"])), isinstance(1, int), sorted(mandor.__all__), type(asyncio.get_event_loop()).__name__, len(asyncio.all_tasks()), gc.isenabled(),
     len(gc.callbacks), len(sys.meta_path), sys.getrecursionlimit(), sys.stdout.errors, len(logging.root.handlers), len(gc.garbage), gc.get_threshold(), gc.get_debug(),
     sys.getswitchinterval(), sys.get_coroutine_origin_tracking_depth(), tracemalloc.is_tracing(), len(warnings.onceregistry), len(sys.path),
     csv.list_dialects(), late_codec, atexit._ncallbacks()]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One process for job after job."""
    with besieged(tmp_path_factory.mktemp("shared"), {"default": {"isolation": "scope", "spare": 1}}, concurrency=1) as it:
        yield it


@pytest.mark.parametrize("name", ["javascript", "memory", "system", "harness"])
def test_at_scope_too_nothing_leaves_the_copy_R100(shared, name):
    storm(shared, [name], look=LOOK_AROUND, timeout="3s")


def test_a_job_at_scope_neither_ends_nor_runs_nor_sees_a_later_one(shared):
    ends = storm(shared, ["scope"], head="def late(*what): print('late', *what, flush=True)\n", look=LOOK_AROUND, timeout="10s")
    assert (ends["its own end"]["state"], ends["its own end"]["result"]) == ("completed", "still here"), ends["its own end"]


@pytest.mark.limit(3600 if SOAK else 240)
def test_at_instance_too_nothing_leaves_the_copy_R100(tmp_path):
    tries = {f"{name}: {title}": code for name in ("javascript", "memory", "system", "harness") for title, code in attempts(name).items()}
    if not SOAK:  # an interpreter for each of them takes its seconds
        tries = dict(list(tries.items())[::40])
    with besieged(tmp_path, {"default": {"isolation": "instance", "spare": 0}}, concurrency=1, ready=False) as it:
        for title, record in zip(tries, it.run(*(attack(code, it.bait) for code in tries.values()), LOOK, deadline=3000 if SOAK else 200)):
            ended_alone(it, title, record)


@needs_attack
def test_who_has_taken_the_copy_at_scope_has_nothing_else_R100(tmp_path):
    """Native attacks, and a neighbour that works on through all of them."""
    with besieged(tmp_path, {"default": {"isolation": "scope", "spare": 2}}, env={"MANDOR_ZYGOTE": str(open_harness(tmp_path))}) as it:
        neighbour = it.mandor.add_many([job("import time\nend, n = time.monotonic() + 6, 0\nwhile time.monotonic() < end:\n    time.sleep(0.001)\n    n += 1\n[n > 0]", timeout="250s")])[0]
        it.mandor.wait_phase(neighbour, "running")
        ends = storm(it, ["native"], head="import mandor\nmandor.native.require('fs')\nprint('in hand', flush=True)\n", look=LOOK_AROUND, timeout="10s")
        for title, record in ends.items():
            assert it.mandor.logs_of(record["id"], "--stdout").startswith(b"in hand"), (title, record)
        record = it.mandor.wait_state(neighbour, "completed", "failed", deadline=100)
        assert (record["state"], record["result"]) == ("completed", [True]), record


def test_the_greedy_at_scope_are_bounded_and_alone_R96(tmp_path):
    with besieged(tmp_path, {"default": {"isolation": "scope", "spare": 2}}) as it:
        before = rss_bytes(it.worker.pid)
        ends = storm(it, ["greedy"], look=LOOK_AROUND, timeout="1s")
        assert ends["BaseException is caught, for ever"]["cause"] == "timeout"
        assert ends["a large result"]["cause"] in ("limit", "timeout"), ends["a large result"]
        assert rss_bytes(it.worker.pid) - before < 96 << 20


# ---- from below: JavaScript, Node and system calls at will ----

# What a copy may ask of the kernel: this list is not made from the filter's own.
ALLOWED = """read write readv writev mmap munmap mprotect pkey_mprotect madvise mremap brk futex clock_gettime clock_nanosleep epoll_wait epoll_pwait epoll_ctl
    poll ppoll exit exit_group getpid gettid tgkill setitimer rt_sigprocmask rt_sigaction rt_sigreturn getrandom close sched_yield getrusage lseek restart_syscall
    sched_getaffinity prlimit64""".split()
DEADLY = "execve execveat ptrace bpf io_uring_setup io_uring_enter io_uring_register process_vm_readv process_vm_writev".split()


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """Jobs that have taken over their whole process (runtime `default`), and what that means without a sandbox (`open`)."""
    tmp = tmp_path_factory.mktemp("taken")
    runtimes = {"default": {"spare": 2}, "open": {"sandbox": "none", "spare": 1}}
    with besieged(tmp, runtimes, env={"MANDOR_ZYGOTE": str(open_harness(tmp))}) as it:
        yield it


def below(it, code, **keys):
    """The record of a job that calls the kernel itself."""
    record = it.run(attack("import mandor\ncall, number = mandor.native.attack.call, mandor.native.attack.number\n" + code, it.bait, **keys))[0]
    ended_alone(it, code, record)
    return record


@needs_attack
def test_without_the_sandbox_all_this_would_get_through(taken):
    """The attempts are real: where the sandbox is asked away they succeed."""
    record = taken.one("import mandor\nmandor.native.require('fs').readFileSync(params['secret'], 'utf8')", params=taken.bait.params(), runtime="open")
    assert record["state"] == "completed" and record["result"] == taken.bait.word, record
    record = taken.one("import mandor\nmandor.native.attack.call(mandor.native.attack.number('openat'), -100, params['secret'], 0, 0)",
                       params=taken.bait.params(), runtime="open")
    assert record["state"] == "completed" and record["result"] > 3, record


@needs_attack
def test_who_has_all_of_node_has_nothing_of_the_machine_R100(taken):
    ends = storm(taken, ["native"], head="import mandor\nmandor.native.require('fs')\nprint('in hand', flush=True)\n")
    for title, record in ends.items():
        assert taken.mandor.logs_of(record["id"], "--stdout").startswith(b"in hand"), (title, record)


@needs_attack
def test_the_kernel_refuses_whatever_is_not_on_the_list_R100(taken):
    record = below(taken, f"""
allowed = {{number(name) for name in {ALLOWED + DEADLY}}}
answers = {{}}
kernels_own = {{335, 336}} if number("read") == 0 else set()  # uretprobe, uprobe: past every filter, and SIGILL from anywhere but the kernel's own page
for n in range(0, 480):
    if n not in allowed | kernels_own:
        answers[n] = call(n, 0, 0, 0, 0, 0, 0)
result = [len(answers), {{n: answer for n, answer in answers.items() if answer != -1}}]
""")
    assert record["state"] == "completed", record
    count, others = record["result"]
    assert count > 400 and others == {}, others


@needs_attack
def test_calls_that_no_accident_makes_are_death_R100(taken):
    ways = [f"call(number('{name}'), 0, 0, 0, 0, 0, 0)" for name in DEADLY]
    if platform.machine() == "x86_64":
        ways += ["call(number('getpid') | 0x40000000)", "mandor.native.attack.int80(20)"]  # other doors to the same kernel
    head = "import mandor\ncall, number = mandor.native.attack.call, mandor.native.attack.number\n"
    for way, record in zip(ways, taken.run(*(attack(f"{head}r = {way}\nresult = r", taken.bait) for way in ways))):
        assert (record["state"], record["cause"]) == ("failed", "signal"), (way, record)
        assert record["signal"] in (signal.SIGSYS, signal.SIGSEGV), (way, record)
    assert taken.result("6 * 7") == 42


@needs_attack
def test_allowed_calls_reach_nobody_else_R100(taken):
    record = below(taken, """
me, EPERM = call(number("getpid")), -1
worker, server = params["worker"], params["server"]
answers = {
    "signal of its own": call(number("tgkill"), me, call(number("gettid")), 0) == 0,
    "signal of others": [call(number("tgkill"), pid, pid, 9) for pid in (worker, server, 1, -1, 0)] == [EPERM] * 5,
    "limits of others": [call(number("prlimit64"), pid, 4, 0, 0) for pid in (worker, server, 1, -1)] == [EPERM] * 4,
    "limits raised": [call(number("prlimit64"), 0, which, "\\x7f" * 16, 0) < 0 for which in (1, 4)] == [True] * 2,
    "shared memory": [call(number("mmap"), 0, 4096, 3, flags, -1, 0) for flags in (0x21, 0x23)] == [EPERM] * 2,
    "private memory": call(number("mmap"), 0, 4096, 3, 0x22, -1, 0) > 0,
    "a poisoned page": call(number("madvise"), mandor.native.attack.address(mandor.native.global_.Uint8Array.new(8192)) & ~4095, 4096, 100) in (EPERM, -22),
    "a thread": mandor.native.attack.thread() != 0,
}
result = [name for name, well in answers.items() if not well]
""", more={"worker": taken.worker.pid, "server": taken.runtimes()["default"]["servers"][0]["pid"]})
    assert record["result"] == [], record


def copies_of(it):
    """Copies that wait, locked."""
    servers = {one["pid"] for runtime in it.runtimes().values() for one in runtime["servers"]}
    return [pid for pid in children(it.worker.pid) if pid not in servers and "main.mjs" in cmdline(pid) and status_field(pid, "Seccomp") == "2"]


def test_from_outside_a_copy_shows_its_sandbox_R100(snakes):
    snakes.wait_ready(spares=2)
    server = snakes.runtimes()["default"]["servers"][0]["pid"]
    copies = wait_for(lambda: (found := copies_of(snakes)) if len(copies_of(snakes)) >= 2 else None, 20, "two spare copies")
    of_server = set(things_of(server).values())
    seen = set()
    for pid in copies[:2]:
        assert status_field(pid, "NoNewPrivs") == "1" and status_field(pid, "Threads") == "1"
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status_field(pid, name), 16) == 0, name
        assert "0" not in status_field(pid, "Uid").split() + status_field(pid, "Gid").split() or os.geteuid() != 0
        assert os.getsid(pid) == pid, "it is in a session with others"
        if os.geteuid() == 0:
            assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink(f"/proc/{snakes.worker.pid}/ns/net")
        # Descriptors: four of the job, and what the loop has made for itself.
        things = things_of(pid)
        assert sorted(things)[:4] == [0, 1, 2, 3] and things[3].startswith("socket:"), things
        for fd, thing in things.items():
            assert thing.startswith("pipe:") or fd == 3 or thing in ("anon_inode:[eventpoll]", "anon_inode:[eventfd]"), things
        own = {thing for thing in things.values() if not thing.startswith("anon_inode")}
        assert not own & of_server and not own & seen, (things, of_server)
        seen |= own
        # Memory: nothing that is shared can be written.
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            assert [line for line in maps if line.split()[1][1] == "w" and line.split()[1][3] == "s"] == []
        with open(f"/proc/{pid}/environ", "rb") as environ:
            names = {entry.partition(b"=")[0].decode() for entry in environ.read().split(b"\0") if entry}
        assert names <= {"UV_USE_IO_URING", "LD_BIND_NOW", "TMPDIR", "MANDOR_FD"}, names
        limits = open(f"/proc/{pid}/limits", encoding="ascii").read()
        for limit in ("Max core file size", "Max file size"):
            assert re.search(rf"{limit}\s+0\s+0", limits), limits
        assert int(open(f"/proc/{pid}/oom_score_adj", encoding="ascii").read()) > int(open(f"/proc/{server}/oom_score_adj", encoding="ascii").read())


# ---- those that take what there is ----


def test_the_greedy_are_bounded_and_alone_R96(snakes):
    before = rss_bytes(snakes.worker.pid)
    ends = storm(snakes, ["greedy"], timeout="1500ms", limits={"memory": "256M"})
    assert ends["BaseException is caught, for ever"]["cause"] == "timeout"
    assert ends["a large result"]["cause"] in ("limit", "timeout"), ends["a large result"]
    assert rss_bytes(snakes.worker.pid) - before < 96 << 20


def test_a_result_that_would_be_large_in_the_workers_memory_is_refused(snakes):
    """Two bytes of JSON are 250 in memory: four million empty objects would be a gigabyte."""
    worker = snakes.worker.pid
    before = rss_bytes(worker)
    forge = """
        import mandor
        emit = mandor.log.__globals__["_native"].emit
        for kind in ("progress", "log", "error", "result"):
            emit('{"' + kind + '": [' + "{}," * 4_000_000 + "{}]}")
        5
    """
    records = snakes.run(job(forge, timeout="200s"), job("[{}] * 300_000", timeout="200s"), job("[0] * 300_000", timeout="200s"),
                         job("import mandor\nmandor.progress('x' * 2_000_000)", timeout="200s"), deadline=250)
    assert hwm_bytes(worker) - before < 160 << 20, (before, hwm_bytes(worker))
    forged, objects, numbers, words = records
    assert (forged["state"], forged["cause"]) == ("failed", "limit"), forged
    assert (objects["state"], objects["cause"]) == ("failed", "limit") and "more values than mandor takes" in objects["error"], objects
    assert numbers["state"] == "completed" and len(numbers["result"]) == 300_000
    assert words["state"] == "failed" and "progress has 2000016 bytes as JSON" in words["error"], words


def test_a_broken_interpreter_ends_with_its_job_R96(snakes):
    bodies = ["x = []\nfor i in range(200000): x = [x]\nrepr(x)", "import json\nx = []\nfor i in range(100000): x = {'a': x}\njson.dumps(x)",
              "import functools\nx = functools.partial(print)\nfor i in range(50000): x = functools.partial(print, x)\nrepr(x)",
              "x = ()\nfor i in range(200000): x = (x,)\nhash(x)", "x = []\nfor i in range(3000000): x = [x]\ndel x"]
    jobs = [one for body in bodies for one in (body, "sum(range(1000))")]
    records = snakes.run(*(job(one, timeout="150s") for one in jobs))
    for body, broken, well in zip(bodies, records[::2], records[1::2]):
        assert (broken["state"], broken["cause"]) == ("failed", "signal"), (body, broken)
        assert "Maximum call stack size exceeded" in broken["error"], (body, broken)
        assert well["result"] == 499500, (body, well)


# ---- output ----


@pytest.mark.limit(900)
def test_a_gibibyte_goes_through_a_slow_sink_whole_and_memory_stays_R44_R95(snakes):
    mib = 1024 if not is_sanitized() else 64
    with store() as web:
        taken_bytes, checksum = [0], [0]

        def take(data):
            if taken_bytes[0] >> 27 != taken_bytes[0] + len(data) >> 27 or taken_bytes[0] == 0:
                time.sleep(0.5)  # every 128 MiB, and before the first
            taken_bytes[0] += len(data)
            checksum[0] = zlib.crc32(data, checksum[0])

        web.take = take
        before = rss_bytes(snakes.worker.pid)
        one = snakes.mandor.add_many([job(f"""
            import mandor, zlib
            sum, block = 0, bytes(range(256)) * 4096
            for i in range({mib}):
                piece = i.to_bytes(4, "big") + block[4:]
                sum = zlib.crc32(piece, sum)
                mandor.write(piece)
            print("the end", end="")
            sum = zlib.crc32(b"the end", sum)
            sum
        """, stdout=f"http://127.0.0.1:{web.port}/out", timeout="800s", frame="raw")])[0]
        peak = [0]

        def done():
            peak[0] = max(peak[0], rss_bytes(snakes.worker.pid))
            return snakes.mandor.show(one)["state"] not in ("waiting", "active")

        wait_for(done, 800, "a gibibyte", every=0.1)
        record = snakes.mandor.show(one)
        assert record["state"] == "completed", record
        assert record["streams"]["stdout"]["bytes"] == taken_bytes[0] == (mib << 20) + len("the end")
        assert record["result"] == checksum[0]
        assert peak[0] - before < 32 << 20, f"{before} -> {peak[0]}"


def test_three_mebibytes_as_the_last_act_arrive_and_belong_to_their_own_job_R44(snakes):
    """What is printed without a newline is flushed before the end, however it ends."""
    endings = {"": 0, "\nimport sys\nsys.exit(3)": 3, "\nraise ValueError": 1, "\nimport sys\nsys.stdout.write('')\nsys.exit()": 0}
    records = snakes.run(*(job(f"print('{n}' * (3 << 20), end=''){ending}") for n, ending in enumerate(endings)), "print('next', end='')")
    for n, (code, record) in enumerate(zip(endings.values(), records)):
        assert record["exit_code"] == code, record
        assert record["streams"]["stdout"]["bytes"] == 3 << 20, record
        assert set(snakes.mandor.logs_of(record["id"], "--stdout")) == {ord(str(n))}
    assert snakes.mandor.logs_of(records[-1]["id"], "--stdout") == b"next"


# ---- the server ----


def test_a_wrong_node_is_one_sentence_and_no_storm_of_starts_R106(mandor, tmp_path):
    """A Node that refuses a flag, one of another release, one that is no program: others go on, starts are few."""
    wrong = tmp_path / "node"
    says = {"#!/bin/sh\\necho \"$0: bad option: --single-threaded\" >&2; exit 9\\n": "bad option: --single-threaded"}
    for n, (script, words) in enumerate(says.items()):
        wrong.write_text(script.replace("\\n", "\n").replace("exit 9", f"echo start >>{tmp_path}/starts; exit 9"))
        wrong.chmod(0o755)
        configure(mandor, node=str(wrong))
        ids = mandor.add_many([job("1"), {"exec": ["echo", "hi"]}])
        began = time.monotonic()
        with mandor.worker() as worker:
            assert mandor.wait_state(ids[1], "completed")
            wait_for(lambda: words in worker.stderr, 20, "the reason in the log")
            wait_for(lambda: mandor.stats()["live"][0]["runtimes"][0]["last_error"], 20, "the reason in stats")
            time.sleep(2)
            starts = len((tmp_path / "starts").read_text().split())
            assert starts <= 2 + math.log2(1 + (time.monotonic() - began) / 0.5), starts  # each pause is twice as long as the last
            assert worker.running()


@needs_attack
def test_a_pyodide_that_is_not_whole_is_one_sentence_and_others_go_on_R106(mandor, tmp_path):
    whole = open_harness(tmp_path)
    files = whole / "node_modules"
    files.unlink()
    shutil.copytree(ZYGOTE / "node_modules" / "pyodide", files / "pyodide")
    for entry in (ZYGOTE / "node_modules").iterdir():
        if entry.name != "pyodide":
            (files / entry.name).symlink_to(entry)
    mandor.env["MANDOR_ZYGOTE"] = str(whole)
    configure(mandor)
    (whole / "stdlib.zip").unlink(missing_ok=True)  # Pyodide's own is read then
    for name, cut, words in (("pyodide.asm.wasm", True, "cannot be started"), ("python_stdlib.zip", True, "cannot be started"), ("python_stdlib.zip", False, "ENOENT: no such file"),
                             ("pyodide.mjs", True, "Unexpected end of input"), ("pyodide.mjs", False, "Cannot find module"), ("pyodide.asm.wasm", False, "Pyodide is not installed")):
        path = files / "pyodide" / name
        kept = path.read_bytes()
        path.write_bytes(kept[:3000]) if cut else path.unlink()
        ids = mandor.add_many([job("1", attempts=1), {"exec": ["echo", "hi"]}])
        mandor.drain()
        python, echo = mandor.show(ids[0]), mandor.show(ids[1])
        assert python["state"] == "failed" and python["cause"] == "spawn" and "Pyodide" in python["error"] and words in python["error"], (name, cut, python)
        assert "\n" not in python["error"] and echo["state"] == "completed", (python, echo)
        path.write_bytes(kept)


def test_servers_are_processes_that_come_and_go_and_leave_nothing_R101_R108(tmp_path):
    """No snapshot, no threads: a server that has made its number of copies is followed by another one, and its memory goes with it."""
    with snakes_in(tmp_path, {"default": {"spare": 1, "max_forks": 6}}) as it:
        before = open_ends(it.worker.pid)
        first = it.runtimes()["default"]["servers"][0]["pid"]
        records = it.run(*[f"{n} + 1" for n in range(12)])
        assert [record["result"] for record in records] == [n + 1 for n in range(12)]
        wait_for(lambda: it.runtimes()["default"]["recycles"] >= 1 and not alive(first), 60, "another server, the first one gone")
        wait_for(lambda: len(it.runtimes()["default"]["servers"]) == 1, 60, "one server")
        wait_for(lambda: open_ends(it.worker.pid) <= before, 30, f"{before} descriptors as before")
        assert it.runtimes()["default"]["deaths"] == 0
