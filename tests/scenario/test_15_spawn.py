"""What a job finds when it starts: R02 R03 R04 R06 R07 R08 R10 and its directories."""
import json
import os
import pty
import resource
import signal
import time

import pytest

from harness import alive, cmdline, nobodys_directory, sh, wait_for


def job_output(mandor, *cmd, **keys):
    job = mandor.add(*cmd, **keys)
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed", record
    return mandor.logs_of(job, "--stdout").decode()


@pytest.fixture(params=["run", "work"])
def start(request, mandor):
    """Both ways to start a program must give it the same start."""
    def by_run(*cmd):
        done = mandor.ok("run", "--", *cmd)
        return done.text

    return by_run if request.param == "run" else lambda *cmd: job_output(mandor, *cmd)


def test_no_signal_is_ignored_in_a_job_R02(start):
    text = start(*sh("yes | head -1; grep -E 'SigIgn|SigBlk|ShdPnd' /proc/self/status"))
    assert text.startswith("y\n")
    for name in ("SigIgn", "SigBlk", "ShdPnd"):
        value = next(line.split()[1] for line in text.splitlines() if line.startswith(name))
        assert int(value, 16) == 0, text


def test_signals_ignored_by_the_caller_are_not_handed_on_R02(mandor):
    def ignore():
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2})

    done = mandor.run("run", "--", "grep", "-E", "SigIgn|SigBlk", "/proc/self/status", preexec=ignore)
    assert done.code == 0, done
    assert all(int(line.split()[1], 16) == 0 for line in done.lines), done


def test_a_plain_sigterm_ends_a_plain_sleep_R03(start):
    assert "143" in start(*sh("sleep 600 & kill $!; wait $!; echo $?"))


def test_a_job_has_only_its_own_descriptors_R04(start):
    text = start("python3", "-c", "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1])")
    assert json.loads(text) in ([0, 1, 2], [0, 1, 2, 3]), text


def test_stdio_of_a_job_is_blocking(start):
    text = start("python3", "-c", "import fcntl,os; print([fcntl.fcntl(f, fcntl.F_GETFL) & os.O_NONBLOCK for f in (0,1,2)])")
    assert json.loads(text) == [0, 0, 0]


def test_short_jobs_end_while_a_sleeper_lives_R04(mandor):
    """No job holds another one's pipe."""
    probe = "import os; print([os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd')[:-1]])"
    with mandor.worker("--concurrency", "64"):
        sleeper = mandor.add("sleep", "600")
        mandor.wait_phase(sleeper, "running")
        jobs = mandor.add_many([{"exec": ["python3", "-c", probe]}] * 63)
        mandor.ok("wait", *jobs)
        pipes = []
        for job in jobs:
            own = {w for w in mandor.logs_of(job, "--stdout").decode().split("'") if w.startswith("pipe:")}
            assert len(own) in (2, 3), own
            pipes.append(own)
        assert mandor.show(sleeper)["state"] == "active"
        mandor.ok("cancel", sleeper, "--wait")


def test_a_huge_descriptor_limit_neither_slows_nor_changes_the_job_R06(mandor):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with mandor.worker("--concurrency", "1", prefix=("prlimit", f"--nofile=1000:{hard}")):
        job = mandor.add(*sh("ulimit -Sn; ulimit -Hn"))
        mandor.wait_state(job, "completed")
        assert mandor.logs_of(job, "--stdout").split() == [b"1000", str(hard).encode()]


@pytest.mark.slow
def test_spawning_is_quick_with_a_huge_descriptor_limit_R06(mandor, plain_binary):
    jobs = mandor.add_many([{"exec": ["true"]}] * 200)
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    mandor.drain("--concurrency", "1", prefix=("prlimit", "--nofile={0}:{0}".format(resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    assert (spent() - before) / len(jobs) < 0.05
    assert set(mandor.states().values()) == {"completed"}


# ---- what cannot start ----


def failed_start(mandor, *cmd, **keys):
    job = mandor.add(*cmd, attempts=3, **keys)
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed", record
    assert record["cause"] == "spawn" and record["exit_code"] is None and record["signal"] is None, record
    assert record["attempt"] == 1, "a permanent failure is not retried"
    return record


def test_a_missing_program_is_a_failed_start_R07(mandor):
    record = failed_start(mandor, "/no/such/prog")
    assert "/no/such/prog" in record["error"] and "exec" in (record["error"] + str(record.get("stage"))), record


def test_a_missing_directory_is_told_from_a_missing_program_R07(mandor):
    record = failed_start(mandor, "true", cwd="/no/such/dir")
    assert "/no/such/dir" in record["error"], record


def test_a_program_without_x_is_a_failed_start_R07(mandor):
    path = mandor.tmp / "plain"
    path.write_text("#!/bin/sh\n")
    assert str(path) in failed_start(mandor, str(path))["error"]


def test_a_bad_interpreter_is_a_failed_start_R07(mandor):
    path = mandor.tmp / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    assert str(path) in failed_start(mandor, str(path))["error"]


def test_a_text_without_hash_bang_is_a_failed_start_R07(mandor):
    path = mandor.tmp / "text"
    path.write_text("echo this must not run by way of a shell\n")
    path.chmod(0o755)
    failed_start(mandor, str(path))


@pytest.mark.parametrize("code", [125, 126, 127])
def test_a_program_that_exits_127_is_an_exit_not_a_failed_start_R07(mandor, code):
    job = mandor.add(*sh(f"exit {code}"))
    mandor.drain()
    record = mandor.show(job)
    assert (record["cause"], record["exit_code"]) == ("exit", code), record


@pytest.mark.parametrize("where", ["argv", "env"])
def test_a_string_over_the_kernels_limit_fails_once_and_is_named_R08(mandor, where):
    long = "x" * (200 << 10)
    job = {"exec": ["true", long], "attempts": 5} if where == "argv" else {"exec": ["true"], "env": {"LONG_ONE": long}, "attempts": 5}
    done = mandor.run("add", "--from", "-", input=json.dumps(job) + "\n")
    if done.code != 0:
        assert ("argument" in done.complaint or "exec" in done.complaint) if where == "argv" else "LONG_ONE" in done.complaint, done
        return
    mandor.drain()
    record = mandor.show(done.text.strip())
    assert record["state"] == "failed" and record["attempt"] == 1, record
    assert record["cause"] == "spawn"
    assert ("argument" in record["error"] or "argv" in record["error"]) if where == "argv" else "LONG_ONE" in record["error"], record


def test_programs_are_looked_up_in_the_jobs_own_path(mandor):
    (mandor.tmp / "bin").mkdir()
    tool = mandor.tmp / "bin" / "only-here"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert job_output(mandor, "only-here", env={"PATH": f"{mandor.tmp}/bin:/usr/bin:/bin"}) == "found\n"


def test_an_argument_that_is_not_utf8_arrives_byte_by_byte(mandor):
    job = mandor.add_many([{"exec": ["printf", "%s", {"b64": "//4B"}]}])[0]
    mandor.drain()
    assert mandor.logs_of(job, "--stdout") == b"\xff\xfe\x01"


def test_bytes_on_the_command_line_reach_the_program(mandor):
    job = mandor.ok("add", "--", "printf", "%s", b"\xff\x80z").text.strip()
    mandor.drain()
    assert mandor.logs_of(job, "--stdout") == b"\xff\x80z"


# ---- surroundings ----


def test_a_job_without_stdin_reads_dev_null_and_has_no_terminal_R10(mandor):
    master, slave = pty.openpty()
    try:
        with mandor.worker(stdin=slave):
            job = mandor.add(*sh('read x; echo "got=$x"; readlink /proc/self/fd/0; (: </dev/tty) 2>/dev/null && echo tty || echo no tty'))
            mandor.wait_state(job, "completed")
            assert mandor.logs_of(job, "--stdout") == b"got=\n/dev/null\nno tty\n"
    finally:
        os.close(master)
        os.close(slave)


def test_a_job_is_the_leader_of_its_own_session(start):
    pid, pgid, sid = start("python3", "-c", "import os; print(os.getpid(), os.getpgid(0), os.getsid(0))").split()
    assert pid == pgid == sid


def test_each_attempt_gets_a_fresh_tmpdir_and_cwd_that_are_gone_afterwards_R110(mandor):
    script = 'ls -A "$TMPDIR" . ; pwd; echo "$TMPDIR"; head -c 1000000 /dev/zero > "$TMPDIR/big"; touch left; kill -9 $$'
    job = mandor.add(*sh(script), attempts=2, backoff={"type": "fixed", "delay": "10ms"}, stdout=f"file:{mandor.tmp}/o.{{attempt}}", commit="always")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and record["cause"] == "signal" and record["signal"] in (9, "KILL", "SIGKILL"), record
    dirs = set()
    for attempt in (1, 2):
        *listing, cwd, tmpdir = (mandor.tmp / f"o.{attempt}").read_text().split("\n")[:-1]
        assert not any("big" in line or "left" in line for line in listing), "an attempt saw what another one left"
        dirs |= {cwd, tmpdir}
    for path in dirs:
        assert not os.path.exists(path), path


def test_a_tmpdir_with_closed_doors_is_removed_all_the_same_R112(mandor):
    target = mandor.tmp / "precious"
    target.mkdir()
    (target / "keep").write_text("x")
    script = (f'cd "$TMPDIR"; echo "$TMPDIR"; mkdir -p a/b; ln -s {target} a/link; touch a/b/f; chmod 000 a/b; chmod 000 a; '
              'd=x; mkdir $d; for i in $(seq 200); do d=$d/x; mkdir $d; done')
    path = job_output(mandor, *sh(script)).strip()
    wait_for(lambda: not os.path.exists(path), what=f"{path} to be gone")
    assert (target / "keep").exists(), "a link was followed"


def test_jobs_are_the_first_to_go_when_memory_is_short_R37(mandor):
    job = int(job_output(mandor, "cat", "/proc/self/oom_score_adj"))
    assert job > int(open("/proc/self/oom_score_adj").read())


def test_no_new_privileges_by_default_and_on_request_not(mandor):
    assert job_output(mandor, "grep", "NoNewPrivs", "/proc/self/status").split()[1] == "1"
    assert job_output(mandor, "grep", "NoNewPrivs", "/proc/self/status", no_new_privs=False).split()[1] == "0"


def test_a_job_can_run_as_another_user(mandor):
    if os.getuid() != 0:
        pytest.skip("needs root")
    with nobodys_directory() as (_, env):  # a place that others can reach; pytest's own is closed
        mandor.env["MANDOR_BROKER"] = env["MANDOR_BROKER"]
        text = job_output(mandor, *sh('id -un; id -gn; id -Gn; touch "$TMPDIR/mine" && echo writable'), user="nobody")
    assert text.split("\n")[0] == "nobody" and "writable" in text, text
    assert "root" not in text


def test_an_unknown_user_is_named(mandor):
    job = mandor.add("true", user="no-such-user-here")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and "no-such-user-here" in record["error"], record


def test_limits_reach_the_job(mandor):
    text = job_output(mandor, *sh("ulimit -Sn; ulimit -St; ulimit -Sf"), limits={"open_files": 77, "cpu_time": "9s", "file_size": "1M"})
    assert text.split()[:2] == ["77", "9"]
    assert int(text.split()[2]) * 512 == 1 << 20


def test_a_job_that_uses_up_its_cpu_time_ends_as_limit(mandor):
    job = mandor.add(*sh("while :; do :; done"), limits={"cpu_time": "1s"}, timeout="10m")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and record["cause"] in ("limit", "signal"), record
    assert record["cause"] == "limit", record


def test_a_job_knows_its_own_name(mandor):
    job = mandor.add(*sh('echo "$MANDOR_JOB_ID $MANDOR_ATTEMPT $MANDOR_QUEUE $MANDOR_FD"'), queue="q1")
    mandor.drain("--queue", "q1")
    assert mandor.logs_of(job, "--stdout").decode() == f"{job} 1 q1 3\n"


def test_the_workers_secrets_do_not_reach_a_job_R09(mandor):
    job = mandor.add("env")
    mandor.drain(env={"AWS_SECRET_ACCESS_KEY": "hush", "REDIS_URL": "redis://:pw@h"})
    text = mandor.logs_of(job, "--stdout")
    assert b"hush" not in text and b"pw@h" not in text and b"MANDOR_BROKER" not in text


def test_variables_named_in_env_pass_do_reach_a_job(mandor):
    (mandor.tmp / "m.yaml").write_text("env_pass: [CERT_FILE]\n")
    job = mandor.add(*sh('echo "$CERT_FILE"'))
    mandor.drain("--config", mandor.tmp / "m.yaml", env={"CERT_FILE": "/etc/cert"})
    assert mandor.logs_of(job, "--stdout") == b"/etc/cert\n"


def test_two_hundred_jobs_with_distinct_codes_all_keep_theirs_R13(mandor):
    """All exit at the same instant: one SIGCHLD, many children."""
    gate = mandor.tmp / "gate"
    script = 'until [ -e "$0" ]; do sleep 0.02; done; exit $1'
    jobs = mandor.add_many([{"exec": ["sh", "-c", script, str(gate), str(n)]} for n in range(1, 100)])
    with mandor.worker("--concurrency", "100") as worker:
        wait_for(lambda: mandor.stats()["queues"]["default"]["active"] == 99, what="all to run")
        gate.touch()
        wait_for(lambda: mandor.stats()["queues"]["default"]["failed"] == 99, what="all to end")
        codes = [mandor.show(job)["exit_code"] for job in jobs]
        assert codes == list(range(1, 100))
        wait_for(lambda: not mandor.zombies(), what="zombies to be gone")
        assert worker.running()


def test_stopped_is_not_ended_R17(mandor):
    with mandor.worker():
        job = mandor.add(*sh('echo $$; kill -STOP $$; exit 3'), timeout="1s", kill_after="200ms")
        record = mandor.wait_state(job, "failed")
        assert record["cause"] == "timeout", record
        job = mandor.add(*sh(f'echo $$ > {mandor.tmp}/pid; kill -STOP $$; exit 3'), timeout="10m")
        text = wait_for(lambda: (mandor.tmp / "pid").exists() and (mandor.tmp / "pid").read_text())
        jobs = mandor.jobs_left()
        assert jobs and mandor.show(job)["state"] == "active", text
        for pid in jobs:
            if "STOP" in cmdline(pid):
                wait_for(lambda: open(f"/proc/{pid}/stat").read().split(")")[1].split()[0] == "T")
                os.kill(pid, signal.SIGCONT)
        record = mandor.wait_state(job, "failed")
        assert (record["cause"], record["exit_code"]) == ("exit", 3), record
        assert not any(alive(p) for p in jobs)


def test_a_helper_that_is_killed_is_the_jobs_own_affair_and_hangs_nothing_R21(mandor):
    job = mandor.add(*sh("sleep 600 & kill -9 $!; wait $!; echo $?"))
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert mandor.logs_of(job, "--stdout") == b"137\n"
