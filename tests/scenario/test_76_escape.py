"""Jobs that want out: of Python into JavaScript, of JavaScript into Node, of Node into the machine, and into each other."""
import contextlib
import json

import pytest

from break_in import ATTACK, Bait, attack, attempts, open_harness
from harness import SLACK, alive
from snakes import job, snakes_in, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

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
    bait = Bait(tmp)
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


def storm(it, names, deadline=100, **keys):
    """All attempts of some files, an honest job after each; returns {what it tries: its record}."""
    server = it.runtimes()["default"]["servers"][0]["pid"]
    tries = {title: code for name in names for title, code in attempts(name).items()}
    first = it.result(LOOK, params=["before"])
    jobs = []
    for n, code in enumerate(tries.values()):
        jobs += [attack(code, it.bait, {"worker": it.worker.pid, "server": server}, **keys), job(LOOK, params=[n])]
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
    storm(snakes, ["harness"])
