"""Fixtures for the scenarios: see lib/harness.py."""
import ctypes
import os
import pathlib
import signal
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))

import harness  # noqa: E402

RUNGS = ("cgroup", "pidns", "group", "strict")


def pytest_collection_modifyitems(config, items):
    if not os.access(harness.BINARY, os.X_OK):
        raise pytest.UsageError(f"no binary at '{harness.BINARY}': build it, or name it in MANDOR")
    skip = pytest.mark.skip(reason="only with MANDOR_SOAK=1")
    for item in items:
        if "soak" in item.keywords and not harness.SOAK:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def limit(request):
    """End a test that hangs, with a traceback of where.  The long variants of a soak have sixty times as long."""
    marker = request.node.get_closest_marker("limit")
    seconds = int(max(300, marker.args[0] if marker else 0) * harness.SLACK * (60 if harness.SOAK else 1))

    def over(*_):
        raise AssertionError(f"the test took longer than {seconds} s")

    if threading.current_thread() is not threading.main_thread():
        # A process of xdist whose main thread came too late for its first call, on a busy machine, runs all its tests in another one.
        thread = ctypes.c_ulong(threading.get_ident())
        timer = threading.Timer(seconds, ctypes.pythonapi.PyThreadState_SetAsyncExc, (thread, ctypes.py_object(AssertionError)))
        timer.start()
        yield
        timer.cancel()
        return
    old = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture
def mandor(tmp_path, request):
    """The binary with a private directory, broker and cgroup.  Fails the test when something of it is left."""
    it = harness.Mandor(tmp_path)
    yield it
    complaints = it.close()
    for log in sorted(tmp_path.glob("stderr-*.log")):
        text = log.read_text(errors="replace")
        if text:
            print(f"--- {log.name} ---\n{text[-6000:]}")
    assert not complaints, "; ".join(complaints)


@pytest.fixture(scope="session")
def plain_binary():
    """For tests of memory and time: a sanitizer's own use would drown what they measure."""
    if harness.is_sanitized():
        pytest.skip("built with AddressSanitizer: its memory would be measured, not mandor's")


@pytest.fixture(scope="session")
def rungs_here(tmp_path_factory):
    """{rung: reason why not, or ''} on this host."""
    it = harness.Mandor(tmp_path_factory.mktemp("rungs"))
    found = {}
    for rung in RUNGS:
        done = it.run("run", "--containment", rung, "--", "true", env={"MANDOR_CONTAINMENT": rung})
        found[rung] = "" if done.code == 0 else done.cause or f"exit {done.code}"
    it.close()
    return found


def use_rung(mandor, rung, rungs_here):
    if rungs_here[rung]:
        message = f"containment '{rung}' cannot be had here: {rungs_here[rung]}"
        if rung in os.environ.get("MANDOR_RUNGS_REQUIRED", "").split(","):
            pytest.fail(message)
        pytest.skip(message)
    mandor.env["MANDOR_CONTAINMENT"] = rung
    mandor.rung = rung
    return rung


@pytest.fixture(params=RUNGS)
def rung(request, mandor, rungs_here):
    """Each way to hold a job's processes together, in turn."""
    return use_rung(mandor, request.param, rungs_here)


@pytest.fixture(params=("cgroup", "strict"))
def strong_rung(request, mandor, rungs_here):
    """The rungs that hold when worker and guard die at once."""
    return use_rung(mandor, request.param, rungs_here)
