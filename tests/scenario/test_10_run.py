"""`mandor run`: one command under supervision, no queue."""
import contextlib
import os
import pty
import signal
import subprocess
import time

import pytest

from harness import MARK, NOBODY, nobodys_directory, proc_stat, read_until, sh, wait_for


@pytest.mark.parametrize("code", [0, 1, 3, 99, 100, 124, 125, 126, 127, 255])
def test_run_exits_with_the_code_of_its_child(mandor, code):
    assert mandor.run("run", "--", *sh(f"exit {code}")).code == code


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "ABRT", "KILL", "SEGV", "PIPE", "TERM", "USR1", "RTMIN"])
def test_a_child_ended_by_signal_n_gives_128_plus_n(mandor, name):
    number = getattr(signal, f"SIG{name}")
    done = mandor.run("run", "--", "python3", "-c",
                      f"import os,resource,signal; resource.setrlimit(resource.RLIMIT_CORE,(0,0));"
                      f"signal.signal({int(number)}, 0) if {int(number)} != 9 else 0; os.kill(os.getpid(), {int(number)})")
    assert done.code == 128 + number, done
    assert "signal" in done.cause.lower() or f"SIG{name}" in done.cause, done


def test_success_says_nothing_on_stderr(mandor):
    done = mandor.run("run", "--", "true")
    assert (done.code, done.out, done.err) == (0, b"", b"")


def test_output_comes_through_exactly(mandor):
    done = mandor.run("run", "--", "python3", "-c",
                      "import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\0complaint\\xff')")
    assert done.out == bytes(range(256)) * 1000
    assert done.err == b"\0complaint\xff"
    assert done.code == 0


def test_output_before_a_failure_comes_through_and_the_last_line_names_the_cause(mandor):
    done = mandor.run("run", "--", *sh("echo out; echo err >&2; exit 7"))
    assert done.code == 7
    assert done.out == b"out\n"
    assert done.err.startswith(b"err\n")


def test_a_timeout_is_124_and_says_so(mandor):
    done = mandor.run("run", "--timeout", "300ms", "--", "sleep", "600")
    assert done.code == 124, done
    assert done.cause == "mandor run: timeout of 300ms", done


def test_a_child_that_exits_0_on_the_timeouts_sigterm_has_still_timed_out(mandor):
    done = mandor.run("run", "--timeout", "300ms", "--", *sh('trap "exit 0" TERM; while :; do sleep 0.05; done'))
    assert done.code == 124, done


def test_a_silent_child_is_ended_by_the_idle_timeout(mandor):
    done = mandor.run("run", "--idle-timeout", "3s", "--", *sh("echo x; sleep 600"))
    assert done.code == 124, done
    assert done.out == b"x\n"
    assert "idle" in done.cause or "silen" in done.cause, done


def test_a_program_that_is_not_there_is_127_and_named(mandor):
    done = mandor.run("run", "--", "no-such-program-anywhere", "x")
    assert done.code == 127, done
    assert "no-such-program-anywhere" in done.cause and done.out == b""


def test_a_long_path_does_not_hide_what_was_looked_for(mandor):
    path = ":".join(f"/opt/some/long/directory/{n}" for n in range(40))
    done = mandor.run("run", "--env", f"PATH={path}", "--", "no-such-program-anywhere")
    assert done.code == 127 and done.cause.startswith("mandor run: spawn: no program 'no-such-program-anywhere' in the job's PATH"), done
    assert done.cause.endswith("…)"), done


def test_a_user_that_is_not_there_is_named(mandor):
    done = mandor.run("run", "--user", "no-such-user", "--", "true")
    assert done.code == 125 and done.cause == "mandor run: spawn: this machine has no user 'no-such-user'", done


def test_a_path_that_is_not_there_is_127(mandor):
    done = mandor.run("run", "--", "/no/such/program")
    assert done.code == 127 and "/no/such/program" in done.cause, done


def test_a_file_that_is_not_executable_is_126(mandor):
    path = mandor.tmp / "plain"
    path.write_text("#!/bin/sh\nexit 0\n")
    done = mandor.run("run", "--", path)
    assert done.code == 126, done
    assert str(path) in done.cause


def test_a_text_without_hash_bang_is_126(mandor):
    path = mandor.tmp / "noexec"
    path.write_text("this is no program\n")
    path.chmod(0o755)
    assert mandor.run("run", "--", path).code == 126


def test_a_directory_is_126(mandor):
    assert mandor.run("run", "--", "/tmp").code == 126


@pytest.mark.parametrize("args", [
    [], ["--"], ["--timeout", "soon", "--", "true"], ["--timeout", "-1s", "--", "true"], ["--no-such-flag", "--", "true"],
    ["--timeout"], ["--stdout", "gopher:x", "--", "true"], ["--frame", "words", "--", "true"],
], ids=lambda a: " ".join(a) or "nothing")
def test_wrong_usage_is_refused_before_anything_runs(mandor, args):
    done = mandor.run("run", *args)
    assert done.code in (2, 125), done
    assert done.out == b"" and done.complaint.strip(), done


def test_an_unknown_flag_gets_the_nearest_known_one_as_advice(mandor):
    done = mandor.run("run", "--timout", "1s", "--", "true")
    assert done.code in (2, 125) and "timeout" in done.complaint, done


def test_a_command_that_looks_like_a_flag_comes_after_the_dashes(mandor):
    assert mandor.run("run", "--", "echo", "--timeout", "-x").out == b"--timeout -x\n"


# ---- stdin ----


def test_stdin_is_inherited_from_a_pipe(mandor):
    blob = bytes(range(256)) * 3000
    assert mandor.run("run", "--", "cat", input=blob).out == blob


def test_stdin_from_a_terminal_becomes_dev_null(mandor):
    master, slave = pty.openpty()
    try:
        done = mandor.run("run", "--", *sh("readlink /proc/self/fd/0; cat"), stdin=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert (done.code, done.out) == (0, b"/dev/null\n"), done


def test_stdin_from_a_file_source(mandor):
    (mandor.tmp / "in").write_bytes(b"hello\0world")
    assert mandor.run("run", "--stdin", f"file:{mandor.tmp}/in", "--", "cat", input="not this").out == b"hello\0world"


def test_stdin_from_inline_text(mandor):
    assert mandor.run("run", "--stdin", "inline:two words", "--", "cat").out == b"two words"


def test_a_missing_stdin_file_is_mandors_own_failure(mandor):
    done = mandor.run("run", "--stdin", f"file:{mandor.tmp}/none", "--", "cat")
    assert done.code == 125 and "none" in done.complaint, done


def test_a_child_that_does_not_read_its_stdin_is_no_error(mandor):
    assert mandor.run("run", "--", "true", input=b"x" * 3_000_000).code == 0


def test_inherited_descriptors_are_never_set_nonblocking(mandor):
    """O_NONBLOCK sits on the open file description, so a neighbour would feel it."""
    import fcntl
    read, write = os.pipe()
    try:
        done = mandor.run("run", "--", *sh("echo hello"), stdout=write)
        assert done.code == 0
        assert not fcntl.fcntl(write, fcntl.F_GETFL) & os.O_NONBLOCK
        assert os.read(read, 100) == b"hello\n"
    finally:
        os.close(read)
        os.close(write)


def test_a_reader_that_goes_away_ends_the_run(mandor):
    """`mandor run yes | head -1` must end by itself."""
    proc = mandor.popen("run", "--", "yes", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert proc.stdout.read(2) == b"y\n"
    proc.stdout.close()
    assert proc.wait(60) != 0
    proc.stderr.close()
    wait_for(lambda: not mandor.left(), what="the child to be gone")


# ---- environment ----


def test_secrets_of_the_caller_do_not_reach_the_child_R09(mandor):
    done = mandor.run("run", "--", "env", env={"AWS_SECRET_ACCESS_KEY": "hush", "REDIS_URL": "redis://:pw@h", "LC_TIME": "C", "TZ": "UTC",
                                               "USER": "someone", "LD_PRELOAD": "", "MANDOR_BROKER": "sqlite:/hush"})
    names = {line.split("=", 1)[0] for line in done.lines}
    assert b"hush" not in done.out and b"pw@h" not in done.out, done
    assert {"PATH", "HOME", "USER", "LANG", "LC_TIME", "TZ", "TMPDIR", MARK} <= names, names
    allowed = {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_",
               "MANDOR_FD", "MANDOR_JOB_ID", "MANDOR_ATTEMPT", "MANDOR_QUEUE"}
    assert {n for n in names if not n.startswith("LC_")} <= allowed, names


def test_env_flag_adds_variables_and_wins(mandor):
    done = mandor.run("run", "--env", "GREETING=a=b c", "--env", "LANG=xx", "--", *sh('printf "%s|%s" "$GREETING" "$LANG"'))
    assert done.out == b"a=b c|xx", done


def test_secrets_are_not_in_any_environment_that_a_job_can_read(mandor):
    """Not even by way of /proc of mandor's helpers in the job's namespace."""
    done = mandor.run("run", "--containment", "strict", "--",
                      *sh("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c hush || true"), env={"TOKEN": "hush"})
    if done.code == 125 and "contain" in done.complaint:
        pytest.skip("strict containment cannot be had here")
    assert done.out.strip() == b"0", done


# ---- sinks ----


def test_stdout_to_a_file_appears_only_after_success(mandor):
    path = mandor.tmp / "deep" / "er" / "out"
    assert mandor.run("run", "--stdout", f"file:{path}", "--", "echo", "kept").code == 0
    assert path.read_bytes() == b"kept\n"
    assert [p.name for p in path.parent.iterdir()] == ["out"]


def test_stdout_of_a_failed_run_leaves_no_file(mandor):
    path = mandor.tmp / "out" / "file"
    assert mandor.run("run", "--stdout", f"file:{path}", "--", *sh("echo half; exit 1")).code == 1
    assert not path.parent.exists() or list(path.parent.iterdir()) == []


def test_a_failed_run_leaves_the_earlier_file_untouched(mandor):
    path = mandor.tmp / "out"
    path.write_text("before")
    assert mandor.run("run", "--stdout", f"file:{path}", "--", *sh("echo half; kill -9 $$")).code == 137
    assert path.read_text() == "before"


def test_null_swallows_everything(mandor):
    done = mandor.run("run", "--stdout", "null:", "--stderr", "null:", "--", *sh("echo a; echo b >&2"))
    assert (done.code, done.out, done.err) == (0, b"", b"")


def test_a_file_sink_that_cannot_be_opened_is_125_and_names_the_path(mandor):
    (mandor.tmp / "plain").write_text("x")
    done = mandor.run("run", "--stdout", f"file:{mandor.tmp}/plain/out", "--", "true")
    assert done.code == 125 and "plain" in done.complaint, done


def test_a_sink_target_that_is_a_directory_is_refused(mandor):
    (mandor.tmp / "dir").mkdir()
    done = mandor.run("run", "--stdout", f"file:{mandor.tmp}/dir", "--", "echo", "x")
    assert done.code == 125, done
    assert list((mandor.tmp / "dir").iterdir()) == []


# ---- signals ----


TREE = 'sleep 600 & setsid sleep 601 & echo up; wait'


@pytest.fixture
def started(mandor):
    """Starts a run whose child says `up`, and ends it with the test."""
    with contextlib.ExitStack() as stack:
        def start(*args):
            run = stack.enter_context(mandor.background("run", *args, stdout=subprocess.PIPE))
            read_until(run.proc.stdout.fileno(), b"up\n")
            return run

        yield start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_run_ends_the_whole_tree(mandor, started, number):
    run = started("--", *sh(TREE))
    run.signal(number)
    code = run.wait()
    assert code != 0
    assert not mandor.left(), "something is alive after run has ended"


def test_a_signalled_run_gives_its_child_the_grace(mandor, started):
    run = started("--", *sh('trap "echo bye; exit 9" TERM; echo up; while :; do sleep 0.05; done'))
    run.signal(signal.SIGTERM)
    assert read_until(run.proc.stdout.fileno(), b"bye\n")
    run.wait()


def test_a_second_signal_kills_at_once(mandor, started):
    run = started("--kill-after", "10m", "--", *sh('trap "echo heard" TERM INT; echo up; while :; do sleep 0.05; done'))
    run.signal(signal.SIGINT)
    read_until(run.proc.stdout.fileno(), b"heard\n")
    run.signal(signal.SIGINT)
    run.wait()
    assert not mandor.left()


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(mandor):
    done = mandor.run("run", "--timeout", "200ms", "--kill-after", "300ms", "--", *sh('trap "" TERM; while :; do sleep 0.05; done'))
    assert done.code == 124, done


def test_a_stopped_terminal_run_stops_its_child_and_continues_with_it(mandor, started):
    run = started("--", *sh("echo up; while :; do sleep 0.02; done"))
    job = wait_for(lambda: [p for p in mandor.jobs_left()])
    leader = next(p for p in job if (s := proc_stat(p)) and s[1] not in job)  # numbers wrap: the lowest may be a passing sleep
    run.signal(signal.SIGTSTP)
    wait_for(lambda: (s := proc_stat(leader)) and s[0] in "Tt", what="the child to be stopped")
    wait_for(lambda: (s := proc_stat(run.guard_pid)) and s[0] in "Tt", what="run itself to be stopped")
    run.signal(signal.SIGCONT)
    wait_for(lambda: (s := proc_stat(leader)) and s[0] not in "Tt", what="the child to go on")


def test_ctrl_c_on_a_terminal_reaches_run_and_ends_it(mandor):
    """The terminal signals the whole foreground group; guard and worker must not count it twice."""
    pid, master = pty.fork()
    if pid == 0:
        mandor.cell.enter()
        os.chdir(mandor.tmp)
        os.execve(mandor.binary, [mandor.binary, "run", "--kill-after", "10m", "--",
                                  *sh('trap "sleep 0.3; echo bye; exit 0" TERM INT; echo up; while :; do sleep 0.05; done')], mandor.env)
    try:
        read_until(master, b"up\r\n")
        os.write(master, b"\x03")
        read_until(master, b"bye\r\n")  # one ^C asks; it is no second signal
        wait_for(lambda: not mandor.left(), what="everything to end")
    finally:
        os.close(master)
        os.waitpid(pid, 0)


# ---- descendants ----


def test_run_ends_with_its_leader_and_takes_the_descendants_along(mandor):
    done = mandor.run("run", "--", *sh("setsid sleep 600 & sleep 601 & echo ok"))
    assert (done.code, done.out) == (0, b"ok\n")
    assert not mandor.left()


def test_output_that_a_child_of_the_leader_writes_late_still_comes(mandor):
    # Within half a second.  Once is enough: the machine may stand still for as long.
    outs = (mandor.ok("run", "--", *sh("(sleep 0.2; echo late) & echo early")).out for _ in range(20))
    assert b"early\nlate\n" in outs


def test_closed_pipes_are_not_an_exit(mandor):
    start = time.monotonic()
    assert mandor.run("run", "--", *sh("exec >&- 2>&-; sleep 0.5; exit 4")).code == 4
    assert time.monotonic() - start >= 0.5


# ---- limits ----


def test_a_memory_limit_ends_with_137_and_names_it(mandor):
    done = mandor.run("run", "--memory", "64M", "--", "python3", "-c", "x = bytearray(1 << 30)")
    if done.code == 125 and "memory" in done.complaint:
        pytest.skip(f"no memory limit here: {done.cause}")
    assert done.code == 137, done
    assert "memory" in done.cause.lower() or "oom" in done.cause.lower(), done


def test_run_opens_no_queue(mandor):
    mandor.ok("run", "--", "true", env={"MANDOR_BROKER": f"sqlite:{mandor.tmp}/never.db"})
    assert not list(mandor.tmp.glob("never*"))
    assert not (mandor.tmp / "home" / "state").exists() or not list((mandor.tmp / "home" / "state").rglob("*.db"))


def test_run_leaves_no_directory_behind(mandor):
    done = mandor.ok("run", "--", *sh('touch "$TMPDIR/x"; mkdir -p "$TMPDIR/d"; chmod 0 "$TMPDIR/d"; echo "$TMPDIR"'))
    assert not os.path.exists(done.text.strip()), done.text
    assert not list(mandor.tmp.glob("mandor-run-*"))


def test_run_as_nobody_works_with_what_it_can_get(mandor):
    if os.getuid() != 0:
        pytest.skip("needs root to become someone else")
    with nobodys_directory() as (home, env):
        done = mandor.run("run", "--", *sh("id -u; setsid sleep 600 & exit 5"), prefix=NOBODY, env=env, cwd=str(home))
    assert (done.code, done.out) == (5, b"65534\n"), done
    assert not mandor.left()
