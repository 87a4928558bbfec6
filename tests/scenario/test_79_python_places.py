"""Python jobs where something else holds them, and where they are installed."""
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from break_in import copied_harness, replace
from harness import BINARY, ROOT, alive, children, wait_for
from snakes import ZYGOTE, job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

ENDS = {
    "1 + 1": ("completed", "exit"),
    "1 / 0": ("failed", "exit"),
    "import asyncio\nasyncio.run(asyncio.sleep(0.01))": ("completed", "exit"),
    "import os\nos.abort()": ("failed", "signal"),
    "x = []\nfor i in range(200000): x = [x]\nrepr(x)": ("failed", "signal"),
}


def ends_well(it):
    """Every kind of end, the stubborn among them."""
    stubborn = job("while True:\n    try:\n        while True: pass\n    except BaseException: pass", timeout="500ms", kill_after="200ms")
    greedy = job("x = []\nwhile True: x.append(bytearray(4 << 20))", limits={"memory": "64M"})
    records = it.run(*ENDS, stubborn, greedy, "print('last', end='')")
    assert [(r["state"], r["cause"]) for r in records] == [*ENDS.values(), ("failed", "timeout"), ("failed", "exit"), ("completed", "exit")], records
    assert "MemoryError" in records[-2]["error"]
    assert it.mandor.logs_of(records[-1]["id"]) == b"last"
    return {r["containment"] for r in records}


@pytest.mark.parametrize("rung, holds", [("group", "group"), ("pidns", "group"), ("strict", "cgroup")])
def test_every_containment_holds_copies_too(tmp_path, rung, holds):
    if rung != "group" and os.geteuid() != 0:
        pytest.skip("a PID namespace of its own needs root")
    with snakes_in(tmp_path, {"default": {"spare": 1}}, env={"MANDOR_CONTAINMENT": rung}) as it:
        assert ends_well(it) == {holds}  # never a PID namespace: a copy would be born in its server's
        server = it.runtimes()["default"]["servers"][0]["pid"]
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: not alive(server), 20, "the server reaped")  # until then its copies take jobs
        assert it.result("6 * 7") == 42
        if holds == "group":  # the next worker would remove what a killed one leaves of its cgroups
            copies = children(it.worker.pid)
            it.worker.kill()
            wait_for(lambda: not any(alive(pid) for pid in copies), 20, "no copy left behind by a worker that was killed")


def test_without_a_sandbox_jobs_end_as_they_should(tmp_path):
    with snakes_in(tmp_path, {"default": {"sandbox": "none", "spare": 1}}) as it:
        ends_well(it)
        assert it.runtimes()["default"]["servers"][0]["ready"]["layers"]["seccomp"] is False


LOCK = 'if (config.sandbox !== "none") addon.lock();\n  io.emit(READY);'


def test_where_copies_are_slow_jobs_wait_and_no_server_is_ended(tmp_path):
    """As on a machine that is overloaded: more time than a copy has at first."""
    harness = copied_harness(tmp_path)
    replace(harness / "copy.mjs", LOCK, "addon.sleep(12000);\n  " + LOCK)
    with snakes_in(tmp_path, {"default": {"spare": 2}}, ready=False, env={"MANDOR_ZYGOTE": str(harness)}) as it:
        assert it.run("6 * 7", "6 * 8", deadline=250)[1]["result"] == 48
        runtime = it.runtimes()["default"]
        assert (runtime["deaths"], runtime["failed_starts"], len(runtime["servers"])) == (0, 0, 1), runtime
        assert it.worker.stderr.count("the next ones have 20 s") == 1, it.worker.stderr
        assert "did not become ready" not in it.worker.stderr


def test_where_no_copy_lives_servers_do_not_respawn_in_a_storm_and_jobs_wait(tmp_path):
    harness = copied_harness(tmp_path)
    replace(harness / "copy.mjs", LOCK, "addon.exit(3);\n  " + LOCK)
    with snakes_in(tmp_path, {"default": {"spare": 2}}, ready=False, env={"MANDOR_ZYGOTE": str(harness)}) as it:
        [one] = it.mandor.add_many([job("6 * 7")])
        pauses = re.compile(r"its server is no good, the next one starts in (\d+) ms")
        wait_for(lambda: len(pauses.findall(it.worker.stderr)) >= 3, 100, "three servers")
        waits = [int(ms) for ms in pauses.findall(it.worker.stderr)]
        assert waits[0] == 500 and all(b >= 2 * a for a, b in zip(waits, waits[1:])), it.worker.stderr
        assert it.mandor.show(one)["state"] not in ("failed", "completed")
        shutil.copy(ZYGOTE / "copy.mjs", harness)
        assert it.mandor.wait_state(one, "completed", deadline=200)["result"] == 42


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_an_installed_mandor_runs_python_without_its_source(tmp_path):
    """The installed tree is put where it belongs, in a mount namespace, and the trees that it was made from are hidden."""
    build = pathlib.Path(BINARY).resolve().parent
    if shutil.which("meson") is None or not (build / "meson-private").is_dir():
        pytest.skip("no meson build here")
    out = tmp_path / "out"
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", out], check=True, capture_output=True)
    prefix = next(out.rglob("bin/mandor")).parents[1].relative_to(out)
    for name in ("lib/systemd/system/mandor.service", "share/bash-completion/completions/mandor", "share/man/man1/mandor.1", "share/man/man5/mandor.yaml.5",
                 "lib/libmandor.so.0", "lib/pkgconfig/mandor.pc", "libexec/mandor/zygote/mandor_zygote.node",
                 "libexec/mandor/zygote/mandor_places.so"):
        assert (out / prefix / name).stat().st_size > 0, name
    queue = tmp_path / "queue"
    queue.mkdir()
    (queue / "sum.py").write_text("sum(params)\n")
    script = f"""
        set -e
        mount --make-rprivate /
        mount --bind {out / prefix} /{prefix}
        mount --bind {queue} /mnt
        mount -t tmpfs none {ROOT}
        cd /mnt
        export PATH=/{prefix}/bin:/usr/bin:/bin MANDOR_BROKER=sqlite:/mnt/queue.db
        unset MANDOR MANDOR_ZYGOTE MANDOR_CONFIG
        mandor doctor | grep -q "python pyodide .*/{prefix}/libexec/mandor/zygote"
        mandor add --python sum.py --params '[20, 22]' 2>/dev/null
        mandor work --drain
        mandor show 1 --json
    """
    done = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and '"result":42' in done.stdout, done
