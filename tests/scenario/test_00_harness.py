"""The harness itself: a check that cannot fail is no check."""
import subprocess

import pytest

from harness import alive, own_cgroups, sh, wait_for


def test_the_binary_says_its_version(mandor):
    done = mandor.ok("--version")
    assert "0." in done.text


def test_what_is_left_is_found(mandor):
    proc = mandor.spawn(["sleep", "600"])
    assert wait_for(lambda: proc.pid in mandor.left())
    proc.kill()
    proc.wait()
    assert not mandor.left()


def test_a_daemon_of_a_test_is_found_without_its_environment(mandor):
    if mandor.cell.unified is None:
        pytest.skip("no cgroup v2 here that tests may write")
    proc = mandor.spawn(sh("env -i setsid sleep 600 & exit 0"))
    proc.wait()
    assert wait_for(lambda: any(alive(p) for p in mandor.left()))
    mandor.check_left = False
    assert mandor.close() == []
    assert not mandor.left()


def test_cells_are_where_the_first_mount_of_their_hierarchy_is(tmp_path):
    """Another view of it, which a container that is made meanwhile brings, goes before the test is over."""
    own = own_cgroups()
    if "" not in own:
        pytest.skip("no cgroup v2 here")
    done = subprocess.run(["mount", "--bind", own[""], tmp_path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing may be mounted: {done.stderr.strip()}")
    try:
        assert own_cgroups() == own
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
