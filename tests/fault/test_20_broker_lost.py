"""The database goes away under a living worker."""
import shutil


from harness import wait_for


def test_a_database_that_is_locked_for_good_does_not_hang_a_command_for_ever(mandor):
    import sqlite3
    mandor.add("true")
    other = sqlite3.connect(mandor.db, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    done = mandor.run("add", "--", "true")
    other.execute("ROLLBACK")
    other.close()
    assert done.code == 125 and done.complaint.strip(), done


def test_removing_the_data_directory_ends_in_an_error_not_a_crash(mandor):
    with mandor.worker() as worker:
        mandor.wait_state(mandor.add("true"), "completed")
        shutil.rmtree(mandor.data, ignore_errors=True)
        job = mandor.add("true")
        wait_for(lambda: not worker.running() or mandor.show(job)["state"] in ("completed", "failed", "waiting", "delayed"))
        if not worker.running():
            assert worker.proc.returncode >= 0, f"died of a signal:\n{worker.stderr[-3000:]}"
