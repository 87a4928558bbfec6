"""The command line without a worker: usage errors, exit codes, what JSON looks like, jobs in and out of the queue."""
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import termios
import time

import pytest

from harness import have, read_until, wait_for

COMMANDS = ("run", "add", "work", "ls", "show", "logs", "wait", "cancel", "retry", "rm", "stats", "top", "pause", "resume", "doctor", "help")
STATES = ("waiting", "delayed", "active", "completed", "failed", "cancelled")


def spec_of(mandor, job):
    return mandor.show(job)["spec"]


# ---- words ----


def test_mandor_alone_says_how_to_begin(mandor):
    done = mandor.ok()
    assert "mandor add" in done.text and "mandor work" in done.text


def test_help_lists_every_command_and_each_explains_itself(mandor):
    text = mandor.ok("--help").text
    for command in COMMANDS:
        assert f"  {command} " in text
        explained = mandor.ok(command, "--help").text
        assert explained.startswith(f"Usage: mandor {command}") and "--help" in explained
        assert mandor.ok("help", command).text == explained


def test_help_names_every_job_option_of_add(mandor):
    text = mandor.ok("add", "--help").text
    for option in ("--timeout D", "--memory S", "--env NAME=VALUE", "--stdout SINK", "--attempts N", "--unique KEY"):
        assert option in text, option


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_completion_scripts_know_commands_and_options(mandor, shell):
    text = mandor.ok("help", "--completion", shell).text
    assert "resume" in text and "no-such" not in text and "attempts" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text.encode(), check=True)


def test_the_manual_part_is_valid_scdoc(mandor):
    text = mandor.ok("help", "--man").text
    assert "*--timeout*" in text
    if shutil.which("scdoc"):
        page = "mandor(1)\n\n# COMMANDS\n\n" + text
        subprocess.run(["scdoc"], input=page.encode(), check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("args, said", [
    (("lss",), "lss"),
    (("cancle", "1"), "cancel"),
    (("ls", "--stat", "x"), "--state"),
    (("add", "--timout", "1s", "--", "true"), "--timeout"),
    (("ls", "--queue"), "--queue"),
    (("ls", "--state", "done"), "completed"),
    (("ls", "extra"), "extra"),
    (("show",), "ID"),
    (("add",), "CMD"),
    (("add", "--timeout", "soon", "--", "true"), "--timeout"),
    (("add", "--each", "--", "echo"), "{}"),
    (("add", "--from", "-", "--", "true"), "--from"),
    (("add", "--from", "no-such-file"), "no-such-file"),
    (("add", "--data", "{}", "--", "true"), "--pool"),
    (("add", "--pool", "p", "--data", "{"), "--data"),
    (("add", "--stdout", "ftp://x", "--", "true"), "ftp"),
    (("add", "--stdout", "inherit:", "--", "true"), "inherit"),
    (("retry",), "--failed"),
    (("rm", "--completed", "1"), "not both"),
    (("logs", "1", "2"), "2"),
    (("run", "--attempts", "2", "--", "true"), "--attempts"),
    (("ls", "--broker", "mysql:x"), "mysql"),
    (("run",), "no command"),
    (("run", "--stdout", "out.txt", "--", "true"), "out.txt"),
    (("run", "--stdout", "auto:", "--", "true"), "auto:"),
    (("work", "--concurrency", "0"), "--concurrency"),
    (("work", "--concurrency", "99999999"), "--concurrency"),
    (("work", "--check", "--broker", "mysql:x"), "mysql"),
])
def test_a_wrong_command_line_is_exit_2_and_says_why(mandor, args, said):
    done = mandor.run(*args)
    assert done.code == 2 and said in done.complaint and done.out == b"", done


def test_no_line_of_help_ends_in_a_space(mandor):
    for command in COMMANDS + ("pools",):
        for line in mandor.ok(command, "--help").text.splitlines():
            assert line == line.rstrip(), (command, line)


def test_help_names_the_defaults_of_its_own_command(mandor):
    run, add = mandor.ok("run", "--help").text, mandor.ok("add", "--help").text
    assert "(default inherit:)" in run and "(default auto:)" not in run
    assert "(default auto:)" in add and "(default inherit:)" not in add


def test_bash_completes_the_values_of_an_option(mandor, tmp_path):
    script = tmp_path / "completion"
    script.write_bytes(mandor.ok("help", "--completion", "bash").out)

    def words(*line):
        text = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _mandor; printf "%s\\n" "${COMPREPLY[@]}"'
        return subprocess.run(["bash", "-uc", text, script, *line], check=True, text=True, capture_output=True).stdout.split()

    assert words("mandor", "add", "--frame", "u32") == ["u32be", "u32le"]
    assert words("mandor", "add", "--frame", "=", "li") == ["lines"]
    assert words("mandor", "ls", "--state", "c") == ["completed", "cancelled"]
    assert words("mandor", "help", "do") == ["doctor"]
    assert words("mandor", "can") == ["cancel"]
    assert "--timeout" in words("mandor", "run", "--ti")


def test_bash_completes_files_behind_options_and_what_a_command_does(mandor, tmp_path):
    script = tmp_path / "completion"
    script.write_bytes(mandor.ok("help", "--completion", "bash").out)
    (tmp_path / "job.py").write_text("1")

    def words(*line):
        text = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _mandor; printf "%s\\n" "${COMPREPLY[@]}"'
        return subprocess.run(["bash", "-uc", text, script, *line], check=True, text=True, capture_output=True, cwd=tmp_path).stdout.split()

    for option in ("--python", "--from", "--config", "--cwd"):
        assert "job.py" in words("mandor", "add", option, ""), option
    assert words("mandor", "wheels", "add", "--lock", "jo") == ["job.py"]
    assert words("mandor", "wheels", "imp") == ["import"] and words("mandor", "verify", "i") == ["isolation"]


COMPLETIONS = [  # what is typed, and what must be among the offers
    ("mandor ls --state comp", b"completed"),
    ("mandor add --frame nets", b"netstring"),
    ("mandor work --concurr", b"--concurrency"),
    ("mandor help doc", b"doctor"),
    ("mandor wheels impo", b"import"),
    ("mandor verify iso", b"isolation"),
    ("mandor run --timeout 5s -- printen", b"printenv"),
]


@pytest.mark.skipif(not have("fish"), reason="no fish here")
def test_fish_completes_commands_options_values_and_the_jobs_own_command(mandor, tmp_path):
    script = tmp_path / "mandor.fish"
    script.write_bytes(mandor.ok("help", "--completion", "fish").out)

    def offers(typed):
        done = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]', str(script), typed],
                              capture_output=True, env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path, timeout=120)
        return done.stdout
    for typed, expected in COMPLETIONS:
        assert expected in offers(typed), typed
    assert offers("mandor show ") == b"" and offers("mandor ls --queue ") == b""  # neither is a file


@pytest.mark.skipif(not have("zsh"), reason="no zsh here")
def test_zsh_completes_commands_options_values_and_the_jobs_own_command(mandor, tmp_path):
    (tmp_path / "_mandor").write_bytes(mandor.ok("help", "--completion", "zsh").out)
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=tmp_path,
                             env={**os.environ, "TERM": "dumb", "HOME": str(tmp_path)})
    os.close(theirs)
    try:
        os.write(ours, f"unsetopt zle_bracketed_paste; PS1='r''eady> '; fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -D -u\n".encode())
        read_until(ours, b"ready> ")
        for typed, expected in COMPLETIONS:
            os.write(ours, typed.encode() + b"\t")
            read_until(ours, expected)  # put in, or in the list
            os.write(ours, b"\x15")  # an empty line again
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_check_says_what_would_be_served(mandor):
    config = mandor.tmp / "check.yaml"
    config.write_text("queues: {a: {weight: 3, concurrency: 2}, b: {}}\npools: {p: {command: [sh], size: {min: 1, max: 3}}}\n")
    lines = mandor.ok("work", "--check", "--config", config, env={"MANDOR_BROKER": None}).lines
    assert "queue: a (weight 3, concurrency 2)" in lines and "queue: b (weight 1, concurrency the worker's)" in lines
    assert any(line.startswith("broker: sqlite:/") and line.endswith("queue.db") for line in lines), lines
    assert "pool: p (sh, 3 workers at most)" in lines
    lines = mandor.ok("work", "--check", "--config", config, "-q", "b", "-q", "c").lines
    assert [line for line in lines if line.startswith("queue: ")] == [f"queue: {q} (weight 1, concurrency the worker's)" for q in "bc"]


@pytest.mark.parametrize("text, said", [
    ("queues: {a: {stdout: out.txt}}", "queues.a.stdout: unknown sink"),
    ("queues: {a: {stderr: 'ftp://x'}}", "queues.a.stderr: unknown sink"),
    ("queues: {a: {stderr: 'rediss://u:secret@x?key=v'}}", "unknown sink 'rediss://u:***@x?key=v'"),
    ("queues: {a: {stdin: 'ftp://u:secret@x'}}", "queues.a.stdin: unknown stdin source 'ftp://u:***@x'"),
])
def test_check_refuses_streams_that_lead_nowhere(mandor, text, said):
    config = mandor.tmp / "check.yaml"
    config.write_text(text)
    done = mandor.run("work", "--check", "--config", config)
    assert done.code == 2 and said in done.complaint, done


def test_pausing_a_queue_that_nobody_has_used_is_said(mandor):
    mandor.add("true")
    assert mandor.ok("pause", "default").err == b""
    done = mandor.ok("pause", "defualt")
    assert "defualt" in done.complaint and "no jobs yet" in done.complaint
    assert mandor.ok("pause", "defualt").err == b""


def test_arguments_that_need_escapes_are_shown_as_a_shell_reads_them(mandor):
    words = [b"a\nb", b"a\\nb", b"it's", b"\xff\xfe1", "\u0085\u202e".encode(), b"'\t'", "\u00fc".encode(), b""]
    job = mandor.ok("add", "--", "printf", "%s|", *words).lines[0]
    line = next(line for line in mandor.ok("show", job).lines if line.startswith("Command"))
    shown = subprocess.run(["bash", "-c", line.split(None, 1)[1]], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}).stdout
    assert shown == b"".join(word + b"|" for word in words), line


def test_a_list_has_no_history_and_a_record_has(mandor):
    job = mandor.add("true")
    assert "history" not in mandor.list()[0] and "history" in mandor.show(job)


# ---- looking where nothing is ----


def test_looking_never_makes_a_database(mandor):
    assert mandor.ok("ls").out == b""
    assert mandor.ok("ls", "--json").out == b""
    assert mandor.ok("stats", "--json").json()["queues"] == {}
    assert mandor.ok("top", "--json").json()["workers"] == []
    for command in (("show", "1"), ("logs", "1"), ("wait", "1"), ("cancel", "1"), ("retry", "1"), ("rm", "1")):
        assert mandor.run(*command).code == 3, command
    mandor.ok("retry", "--failed")
    mandor.run("doctor")
    assert not mandor.db.exists() and not mandor.data.exists()


def test_the_default_broker_is_in_the_state_directory(mandor):
    assert mandor.ok("add", "--", "true", env={"MANDOR_BROKER": None}).lines
    assert list((mandor.tmp / "home" / "state" / "mandor").iterdir())
    assert not mandor.db.exists()


def test_the_option_wins_over_environment_and_configuration(mandor):
    (mandor.tmp / "m.yaml").write_text(f"broker: sqlite:{mandor.tmp}/configured.db\n")
    mandor.ok("add", "--config", mandor.tmp / "m.yaml", "--", "true", env={"MANDOR_BROKER": None})
    assert (mandor.tmp / "configured.db").exists()
    mandor.ok("add", "--config", mandor.tmp / "m.yaml", "--", "true")
    assert mandor.db.exists()
    mandor.ok("add", "--config", mandor.tmp / "m.yaml", "--broker", f"sqlite:{mandor.tmp}/option.db", "--", "true")
    assert (mandor.tmp / "option.db").exists()


@pytest.mark.parametrize("kind", ("directory", "corrupt", "locked away"))
def test_a_database_that_cannot_be_used_is_exit_125_and_named(mandor, kind):
    path = mandor.tmp / "bad.db"
    if kind == "directory":
        path.mkdir()
    elif kind == "corrupt":
        path.write_bytes(b"this is no database" * 100)
    else:
        path = "/proc/nowhere/q.db"
    command = ("add", "--", "true") if kind == "locked away" else ("ls",)
    done = mandor.run(command[0], "--broker", f"sqlite:{path}", *command[1:])
    assert done.code == 125 and str(path) in done.complaint, done


# ---- add ----


def test_add_prints_one_id_a_line_and_json_when_asked(mandor):
    first = mandor.ok("add", "--", "true")
    assert len(first.lines) == 1
    value = mandor.ok("add", "--json", "--", "true").json()
    assert value == {"id": value["id"], "existing": False} and value["id"] != first.lines[0]


def test_add_warns_when_nobody_serves_the_queue(mandor):
    done = mandor.ok("add", "--queue", "lonely", "--", "true")
    assert "lonely" in done.complaint and "mandor work" in done.complaint


def test_options_reach_the_job(mandor):
    job = mandor.ok("add", "--queue", "media", "--timeout", "90s", "--attempts", "3", "--memory", "64M", "--env", "A=1", "--env", "B=x=y",
                    "--priority", "7", "--", "sh", "-c", "exit 0").lines[0]
    record = mandor.show(job)
    assert (record["queue"], record["priority"], record["attempts"], record["state"]) == ("media", 7, 3, "waiting")
    spec = record["spec"]
    assert spec["exec"] == ["sh", "-c", "exit 0"] and spec["env"] == {"A": "1", "B": "x=y"}


def test_what_only_bullmq_knows_is_refused(mandor):
    """With the line, where there are many: the others are added."""
    for flags, word in ((("--id", "a"), "'unique'"), (("--lifo",), "'lifo': only queues of BullMQ know it")):
        done = mandor.run("add", *flags, "--", "true")
        assert done.code == 2 and word in done.complaint and not done.out, done
    lines = '{"exec": ["true"]}\n{"exec": ["true"], "lifo": true}\n{"exec": ["true"], "id": "x"}\n{"exec": ["true"], "lifo": false}\n'
    done = mandor.run("add", "--from", "-", input=lines)
    assert done.code == 1 and len(done.lines) == 2 and "-:2: 'lifo'" in done.complaint and "-:3: 'id'" in done.complaint, done


def test_a_unique_key_that_is_taken_adds_nothing(mandor):
    job = mandor.ok("add", "--unique", "u", "--", "true").lines[0]
    again = mandor.ok("add", "--unique", "u", "--", "false")
    assert again.lines == [job] and job in again.complaint
    assert mandor.ok("add", "--json", "--unique", "u", "--", "false").json() == {"id": job, "existing": True}
    assert len(mandor.list()) == 1
    assert mandor.ok("add", "--queue", "other", "--unique", "u", "--", "true").lines != [job]


def test_relative_paths_are_seen_from_the_callers_directory(mandor):
    here = mandor.tmp / "a {b}"
    here.mkdir()
    done = mandor.ok("add", "--stdin", "file:in.txt", "--stdout", "file:./{id}.out", "--", "cat", cwd=str(here))
    spec = spec_of(mandor, done.lines[0])
    assert spec["cwd"] == str(here)
    braces = str(here).replace("{", "{{")
    assert spec["stdin"] == f"file:{braces}/in.txt" and spec["stdout"] == f"file:{braces}/{{id}}.out"
    done = mandor.ok("add", "--cwd", "sub", "--", "true", cwd=str(here))
    assert spec_of(mandor, done.lines[0])["cwd"] == f"{here}/sub"


def test_a_relative_path_from_json_is_an_error(mandor):
    for job in ({"exec": ["true"], "cwd": "x"}, {"exec": ["true"], "stdout": "file:x"}):
        done = mandor.run("add", "--from", "-", input=json.dumps(job))
        assert done.code == 1 and done.out == b"" and "relative" in done.complaint, done


def test_a_job_from_json_has_no_directory_of_the_caller(mandor):
    assert "cwd" not in spec_of(mandor, mandor.add("true"))


def test_argument_bytes_that_are_not_utf8_are_kept(mandor):
    done = mandor.ok("add", "--", b"printf", b"a\xffb")
    assert spec_of(mandor, done.lines[0])["exec"] == ["printf", {"b64": "Yf9i"}]


def test_pool_jobs_are_made_from_their_options(mandor):
    job = mandor.ok("add", "--pool", "thumbs", "--data", '{"a": [1, null]}').lines[0]
    spec = spec_of(mandor, job)
    assert spec["pool"] == "thumbs" and spec["data"] == {"a": [1, None]} and "cwd" not in spec


def test_data_may_be_nested_as_deeply_as_json_is_read(mandor):
    deep = "[" * 2040 + "]" * 2040
    job = mandor.ok("add", "--pool", "thumbs", "--data", deep).lines[0]
    assert deep in mandor.ok("show", job, "--json").text and deep in mandor.ok("ls", "--json").text


# ---- add --from ----


def test_each_bad_line_is_reported_with_file_and_number_and_the_rest_is_added(mandor):
    path = mandor.tmp / "jobs.ndjson"
    path.write_text('{"exec": ["true"]}\n\n{"exec": [}\n{"exec": ["true"], "tiemout": "1s"}\n[]\n{"exec": ["false"]}')
    done = mandor.run("add", "--from", path)
    assert done.code == 1 and len(done.lines) == 2, done
    complaints = [line for line in done.complaint.splitlines() if line.startswith(f"{path}:")]
    assert [line.split(":")[1] for line in complaints] == ["3", "4", "5"], done
    assert "timeout" in complaints[1]


def test_options_fill_what_a_line_leaves_out(mandor):
    lines = '{"exec": ["true"]}\n{"exec": ["true"], "queue": "own", "limits": {"pids": 5}}\n'
    done = mandor.ok("add", "--from", "-", "--queue", "common", "--memory", "1G", input=lines)
    first, second = (mandor.show(job) for job in done.lines)
    assert first["queue"] == "common" and second["queue"] == "own"
    assert set(second["spec"]["limits"]) == {"pids", "memory"}


def test_ids_come_in_the_order_of_the_lines(mandor):
    jobs = mandor.add_many([{"exec": ["true", str(n)]} for n in range(2500)])
    assert jobs == sorted(jobs, key=int)
    by_id = {record["id"]: record["spec"]["exec"][1] for record in mandor.list()}
    assert [by_id[job] for job in jobs] == [str(n) for n in range(2500)]


def test_input_that_trickles_is_not_kept_waiting(mandor):
    proc = mandor.popen("add", "--from", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        proc.stdin.write(b'{"exec": ["true"]}\n')
        proc.stdin.flush()
        read_until(proc.stdout.fileno(), b"\n")
    proc.stdin.close()
    assert proc.wait(60) == 0
    proc.stdout.close()
    proc.stderr.close()


def test_adding_leaves_the_callers_stdin_blocking(mandor):
    read, write = os.pipe()
    proc = mandor.popen("add", "--from", "-", stdin=read, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.write(write, b'{"exec": ["true"]}\n')
    read_until(proc.stdout.fileno(), b"\n")
    assert os.get_blocking(read)
    os.close(write)
    assert proc.wait(60) == 0
    os.close(read)
    proc.stdout.close()


def test_a_line_of_more_than_16_mib_is_skipped_in_bounded_memory(mandor):
    long = b'{"exec": ["' + b"x" * (17 << 20) + b'"]}\n'
    done = mandor.run("add", "--from", "-", input=long + b'{"exec": ["true"]}\n')
    assert done.code == 1 and len(done.lines) == 1 and "-:1:" in done.complaint and "longer" in done.complaint


def test_a_reader_that_goes_away_loses_no_job(mandor):
    lines = "".join('{"exec": ["true"]}\n' for _ in range(3000))
    proc = mandor.popen("add", "--from", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    proc.stdout.close()
    proc.stdin.write(lines.encode())
    proc.stdin.close()
    complaint = proc.stderr.read()
    proc.stderr.close()
    assert proc.wait(60) == 0 and b"pipe" not in complaint.lower(), complaint
    assert len(mandor.list()) == 3000


# ---- add --each ----


def test_each_keeps_the_bytes_of_a_line(mandor):
    values = [b"plain", b"two  words ", b"", b"'quo\"ted'", b"\xff\xfe", b"tab\there", b"{}", b"cr\r"]
    done = mandor.ok("add", "--each", "--", "printf", "%s", "<{}|{}>", input=b"\n".join(values) + b"\n")
    assert len(done.lines) == len(values)
    for job, value in zip(done.lines, values):
        argument = spec_of(mandor, job)["exec"][2]
        got = __import__("base64").b64decode(argument["b64"]) if isinstance(argument, dict) else argument.encode()
        assert got == b"<" + value + b"|" + value + b">", (value, got)


def test_each_with_nul_takes_newlines_as_they_are(mandor):
    done = mandor.ok("add", "--each", "-0", "--", "echo", "{}", input=b"a\nb\0c\0")
    assert [spec_of(mandor, job)["exec"][1] for job in done.lines] == ["a\nb", "c"]


def test_a_nul_byte_in_a_line_is_reported_and_skipped(mandor):
    done = mandor.run("add", "--each", "--", "echo", "{}", input=b"a\nb\0c\nd\n")
    assert done.code == 1 and len(done.lines) == 2 and "-:2:" in done.complaint, done


# ---- looking ----


def test_ls_shows_newest_first_and_filters(mandor):
    jobs = [mandor.ok("add", "--queue", queue, "--", "true").lines[0] for queue in ("a", "b", "a")]
    mandor.ok("cancel", jobs[0])
    assert [record["id"] for record in mandor.list()] == jobs[::-1]
    assert [record["id"] for record in mandor.list("--queue", "a")] == [jobs[2], jobs[0]]
    assert [record["id"] for record in mandor.list("--state", "cancelled")] == [jobs[0]]
    assert [record["id"] for record in mandor.list("--limit", "1")] == [jobs[2]]
    table = mandor.ok("ls").lines
    assert table[0].split()[:3] == ["ID", "STATE", "QUEUE"] and table[1].split()[0] == jobs[2]


def test_the_record_has_the_keys_of_the_contract(mandor):
    record = mandor.show(mandor.add("true"))
    for key in ("id queue state phase attempt attempts_used attempts priority created_at started_at finished_at worker cause exit_code signal "
                "error result progress streams usage containment limits_enforced descendants_killed").split():
        assert key in record, key
    assert record["created_at"].endswith("Z") and len(record["created_at"]) == 24


def test_control_characters_of_a_command_are_escaped_in_tables(mandor):
    job = mandor.ok("add", "--", "echo", "\x1b[31mred\x07", "\u202eevil").lines[0]
    for command in (("ls",), ("show", job)):
        out = mandor.ok(*command).out
        assert b"\x1b" not in out and b"\x07" not in out and "\u202e".encode() not in out and b"\\x1b[31mred" in out, out


def test_a_table_fits_the_terminal_and_colour_can_be_turned_off(mandor):
    mandor.ok("cancel", mandor.ok("add", "--", "echo", "x" * 500).lines[0])

    def on_terminal(**env):
        master, slave = pty.openpty()
        __import__("fcntl").ioctl(slave, __import__("termios").TIOCSWINSZ, b"\x18\0\x50\0\0\0\0\0")
        proc = mandor.popen("ls", stdin=slave, stdout=slave, stderr=slave, env={"TERM": "xterm", **env})
        os.close(slave)
        out = b""
        try:
            while chunk := os.read(master, 65536):
                out += chunk
        except OSError:
            pass
        os.close(master)
        assert proc.wait(60) == 0
        return out.decode()

    plain = on_terminal(NO_COLOR="1")
    assert "\x1b" not in plain and all(len(line) <= 80 for line in plain.splitlines()), plain
    assert "\x1b[" in on_terminal(NO_COLOR=None)


def test_stats_counts_queues(mandor):
    mandor.ok("add", "--", "true")
    mandor.ok("cancel", mandor.ok("add", "--", "true").lines[0])
    queue = mandor.stats()["queues"]["default"]
    assert {state: queue[state] for state in STATES} == {**dict.fromkeys(STATES, 0), "waiting": 1, "cancelled": 1}
    assert queue["paused"] is False
    assert "default" in mandor.ok("stats").text and "default" in mandor.ok("top").text


def test_logs_of_a_job_that_never_ran_says_so(mandor):
    done = mandor.ok("logs", mandor.add("true"))
    assert done.out == b"" and "has not run" in done.complaint


@pytest.mark.parametrize("args", (("ls", "--json"), ("cat", "file:blob")))
def test_a_reader_that_goes_away_ends_ls_and_cat_quietly(mandor, args):
    mandor.add_many([{"exec": ["true", "x" * 200]}] * 2000)
    (mandor.tmp / "blob").write_bytes(bytes(1 << 20))
    proc = mandor.popen(*args, cwd=mandor.tmp, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    proc.stdout.read(100)
    proc.stdout.close()
    assert proc.stderr.read() == b"" and proc.wait(60) == 0
    proc.stderr.close()


@pytest.mark.parametrize("args", (("ls",), ("cat", "file:/etc/passwd")))
def test_a_full_disk_behind_stdout_is_an_error(mandor, args):
    mandor.add("true")
    with open("/dev/full", "wb") as full:
        done = mandor.run(*args, stdout=full)
    assert done.code == 125 and "No space left" in done.complaint, done


def test_cat_waits_where_somebody_made_stdout_non_blocking(mandor):
    blob = os.urandom(300000)
    (mandor.tmp / "blob").write_bytes(blob)
    read, write = os.pipe()
    os.set_blocking(write, False)
    proc = mandor.popen("cat", f"file:{mandor.tmp}/blob", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    size = fcntl.fcntl(read, fcntl.F_GETPIPE_SZ)
    wait_for(lambda: struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, bytes(4)))[0] == size, what="a full pipe")
    with open(read, "rb") as pipe:
        assert pipe.read() == blob
    assert proc.stderr.read() == b"" and proc.wait(60) == 0
    proc.stderr.close()


def test_closed_standard_descriptors_are_not_taken_by_files(mandor):
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        proc = mandor.spawn(["sh", "-c", f"{mandor.binary} add -- true {closed}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert proc.wait(60) == 0, closed
    assert len(mandor.list()) == 3


# ---- changing ----


def test_cancel_of_a_waiting_job_is_at_once_and_only_once(mandor):
    job = mandor.add("true")
    value = mandor.ok("cancel", job, "--json").json()
    assert value["id"] == job and value["worker"] is None
    assert mandor.show(job)["state"] == "cancelled"
    done = mandor.run("cancel", job)
    assert done.code == 4 and job in done.complaint, done
    assert mandor.run("cancel", "--wait", mandor.add("true")).code == 0


def test_one_bad_id_does_not_stop_the_others(mandor):
    jobs = mandor.add_many([{"exec": ["true"]}] * 2)
    done = mandor.run("cancel", jobs[0], "nope", jobs[1])
    assert done.code == 3 and "nope" in done.complaint
    assert [mandor.show(job)["state"] for job in jobs] == ["cancelled", "cancelled"]


def test_retry_puts_an_ended_job_back(mandor):
    job = mandor.add("true")
    assert mandor.run("retry", job).code == 4
    mandor.ok("cancel", job)
    mandor.ok("retry", job)
    assert mandor.show(job)["state"] == "waiting"
    assert mandor.ok("retry", "--failed", "--json").json() == {"count": 0}


def test_rm_removes_one_or_all_of_a_state_and_queue(mandor):
    jobs = [mandor.ok("add", "--queue", queue, "--", "true").lines[0] for queue in ("a", "a", "b", "b")]
    mandor.ok("cancel", *jobs[:3])
    mandor.ok("rm", jobs[0])
    assert mandor.run("show", jobs[0]).code == 3
    assert mandor.ok("rm", "--cancelled", "--queue", "b", "--json").json() == {"count": 1}
    assert mandor.ok("rm", "--cancelled", "--completed", "--failed").text == "1 job removed\n"
    assert [record["id"] for record in mandor.list()] == [jobs[3]]


def test_pause_and_resume_show_in_stats(mandor):
    mandor.ok("pause", "q")
    assert mandor.stats()["queues"]["q"]["paused"] is True
    assert mandor.ok("resume", "q", "--json").json() == {"queue": "q", "paused": False}
    assert mandor.stats()["queues"]["q"]["paused"] is False


def test_wait_tells_by_its_exit_code(mandor):
    waiting, cancelled = mandor.add_many([{"exec": ["true"]}] * 2)
    mandor.ok("cancel", cancelled)
    done = mandor.run("wait", cancelled)
    assert done.code == 1 and done.out == b"", done
    assert mandor.run("wait", cancelled, "--json").json()["state"] == "cancelled"
    assert mandor.run("wait", cancelled, "nope").code == 3
    begin = time.monotonic()
    done = mandor.run("wait", waiting, "--timeout", "200ms")
    assert done.code == 124 and waiting in done.complaint and time.monotonic() - begin >= 0.2


def test_wait_ends_when_the_job_does(mandor):
    job = mandor.add("true")
    proc = mandor.popen("wait", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    mandor.ok("cancel", job)
    assert wait_for(lambda: proc.poll() is not None, what="wait to end")
    assert proc.returncode == 1 and proc.stdout.read() == b""
    proc.stdout.close()
    proc.stderr.close()


# ---- doctor ----


def test_doctor_checks_the_database(mandor):
    mandor.add("true")
    done = mandor.run("doctor", "--json")
    checks = {check["check"]: check for check in done.json()["checks"]}
    assert checks["database"]["health"] == "ok" and str(mandor.db) in checks["database"]["text"]
    assert {"kernel", "open files", "containment auto", "sqlite", "data directory", "workers", "limit memory"} <= set(checks)
    assert done.code == (0 if done.json()["ok"] else 1)


def test_doctor_says_what_auto_means_and_what_can_be_limited(mandor):
    value = mandor.run("doctor", "--json").json()
    assert value["containment"] in ("cgroup", "pidns", "group") and value["limits"]["open_files"] is True
    assert set(value["limits"]) == {"memory", "pids", "cpu", "cpu_time", "open_files", "file_size"}


def test_doctor_finds_a_broken_database(mandor):
    mandor.db.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    done = mandor.run("doctor", "--json")
    assert done.code == 1 and done.json()["ok"] is False
    assert any(check["health"] == "broken" and str(mandor.db) in check["text"] for check in done.json()["checks"]), done


def test_json_is_all_there_is_on_stdout(mandor):
    job = mandor.ok("add", "--json", "--", "true")
    job.json()
    for command in (("ls",), ("show", job.json()["id"]), ("stats",), ("top",), ("doctor",), ("pause", "q")):
        done = mandor.run(*command, "--json")
        for line in done.lines:
            json.loads(line)
