"""Many short jobs: everything is back to where it was in the end."""
import os
import time

import pytest

from harness import SOAK, fd_count, sh, wait_for

COUNT = int(os.environ.get("MANDOR_MANY", "20000"))


KEPT = 10000  # completed jobs that stay on record a queue, when the configuration does not say


def all_done(mandor):
    """Has every job ended, and none of them badly?  Completed ones are not all on record any more."""
    queue = mandor.stats()["queues"]["default"]
    assert queue["failed"] == queue["cancelled"] == 0
    return queue["waiting"] == queue["delayed"] == queue["active"] == 0


@pytest.mark.slow
@pytest.mark.limit(600)
def test_twenty_thousand_short_jobs_leave_nothing(mandor):
    with mandor.worker("--concurrency", "4") as worker:
        warm = mandor.add_many([{"exec": ["true"]}] * 20)
        mandor.ok("wait", *warm)
        descriptors, groups = fd_count(worker.pid), len(mandor.cell.groups())
        directories = sum(1 for _ in mandor.tmp.rglob("*"))
        start = time.monotonic()
        for _ in range(COUNT // 2000):
            mandor.add_many([{"exec": ["true"]}] * 2000)
        worst = [0]

        def done():
            worst[0] = max(worst[0], len(mandor.zombies()))
            return all_done(mandor)

        wait_for(done, 500, every=0.25)
        print(f"{COUNT / (time.monotonic() - start):.0f} jobs a second; at most {worst[0]} zombies seen at once")
        assert worst[0] < 40
        wait_for(lambda: not mandor.zombies(), 5)
        wait_for(lambda: fd_count(worker.pid) <= descriptors + 16, 10, "descriptors to be as before") # a spawn that stalled has got lanes more, for good
        assert len(mandor.cell.groups()) <= groups + 40
        wait_for(lambda: sum(1 for _ in mandor.tmp.rglob("*")) <= directories + 20, 20, "temporary directories to be gone")
        assert worker.running()
    assert not mandor.cell.groups()


@pytest.mark.slow
@pytest.mark.limit(600)
def test_jobs_that_leave_orphans_do_not_pile_up_R16(mandor):
    count = 20000 if SOAK else 1000
    mandor.add_many([{"exec": sh("(sleep 0.02 &) ; exit 0"), "output_drain": "50ms"}] * count)
    with mandor.worker("--concurrency", "8"):
        worst = [0]

        def done():
            worst[0] = max(worst[0], len(mandor.zombies()))
            return all_done(mandor)

        wait_for(done, 500, every=0.1)
        assert worst[0] < 40
        wait_for(lambda: not mandor.zombies(), 5)


@pytest.mark.limit(600)
def test_no_child_is_ever_stuck_between_fork_and_exec_R05(mandor):
    count = 10000 if SOAK else 1500
    mandor.add_many([{"exec": ["true"]}] * count)
    done = mandor.drain("--concurrency", "8", timeout=500)
    assert all_done(mandor) and mandor.stats()["queues"]["default"]["completed"] == min(count, KEPT), done


def test_the_database_is_sound_after_many_spawns_R83(mandor):
    import sqlite3
    mandor.add_many([{"exec": sh("echo x; exit $((RANDOM % 2))"), "attempts": 2, "backoff": {"type": "fixed", "delay": "1ms"}}] * 300)
    mandor.drain("--concurrency", "8", timeout=250)
    db = sqlite3.connect(mandor.db)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


def test_retention_removes_old_records(mandor):
    (mandor.tmp / "m.yaml").write_text("queues:\n  default: {keep_completed: {age: 1s}}\n")
    job = mandor.add("true")
    with mandor.worker("--config", mandor.tmp / "m.yaml"):
        wait_for(lambda: mandor.run("show", job).code == 3, 40, "the record to be removed", every=0.3)
