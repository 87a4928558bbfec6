"""What people get wrong when they meet brokers, sinks, Python and wheels: one sentence says what, and the exit code who can put it right."""
import pathlib

import pytest

NOBODY = "127.0.0.1:1"  # where no server listens


@pytest.mark.parametrize("args, code, said", [
    (("add", "--broker", "redis://host", "--", "true"), 2, "expected sqlite:PATH, streams[+tls]://HOST[:PORT][/DB] or bullmq[+tls]://"),
    (("add", "--broker", "streams:/host", "--", "true"), 2, "expected SCHEME://"),
    (("add", "--broker", f"streams://{NOBODY}?prefx=x", "--", "true"), 2, "unknown parameter 'prefx'"),
    (("add", "--broker", f"streams://{NOBODY}", "--", "true"), 125, "refused"),
    (("add", "--broker", f"bullmq+sentinel://{NOBODY}/main?sentinel_password=x", "--", "true"), 125, "refused"),
    (("add", "--broker", f"bullmq://{NOBODY}?limiter_mx=1", "--", "true"), 2, "unknown parameter 'limiter_mx', did you mean 'limiter_max'?"),
    (("add", "--python", "missing.py"), 2, "'missing.py': No such file"),
    (("add", "--python", "."), 2, "directory"),
    (("add", "--python", "ok.py", "--params", "{x: 1}"), 2, "--params: JSON, line 1, column 2"),
    (("add", "--python", "ok.py", "--", "echo"), 2, "takes no command"),
    (("add", "--params", "1", "--", "echo"), 2, "go with '--python'"),
    (("add", "--python", "ok.py", "--env", "A=B"), 2, "'--env' goes with a command, not with '--python'"),
    (("add", "--python", "ok.py", "--containment", "strict"), 2, "'--containment' goes with a command"),
    (("add", "--queue", "gret", "--data", "1"), 2, "bound to one in the configuration, which 'gret' is not"),
    (("add", "--pool", "p", "--cwd", "."), 2, "'--cwd' goes with a command, not with '--pool'"),
    (("add", "--pool", "p", "--data", "{a"), 2, "--data: JSON, line 1"),
    (("wheels", "ls"), 2, "which store?"),
    (("wheels", "ls", "--store", "nowhere"), 3, "no wheel store"),
    (("wheels", "import", "--store", "new", "nosuch.whl"), 3, "No such file"),
    (("wheels", "import", "--store", "new", "ok.py"), 1, "not a wheel"),
    (("wheels", "import", "--store", "new", "--lock", "nosuch", "."), 3, "'nosuch': No such file"),
    (("wheels", "add", "--store", "new", "./x.whl"), 1, "'mandor wheels import' takes files"),
    (("wheels", "add", "--store", "new", "--pyodide-url", "foo", "six"), 2, "--pyodide-url: 'foo', expected https://"),
    (("wheels", "frob"), 2, "expected add, import, ls"),
    (("verify", "nothing"), 2, "expected isolation"),
    (("run", "--stdout", "s3://bucket", "--", "true"), 2, "expected s3://BUCKET/KEY"),
    (("run", "--stdout", "s3://bucket/key", "--", "true"), 125, "no S3 credentials"),
    (("run", "--stdin", "s3://bucket/key", "--", "cat"), 125, "stdin: no S3 credentials"),
    (("run", "--stdin", f"http://{NOBODY}/x", "--", "cat"), 125, "stdin: GET of"),
    (("run", "--stdout", f"redis://{NOBODY}", "--", "true"), 2, "?stream=KEY"),
    (("run", "--stdout", f"memcached://{NOBODY}", "--", "true"), 2, "memcached://HOST[:PORT]/KEY"),
    (("run", "--stdout", f"memcached://{NOBODY}/k", "--", "true"), 125, f"memcached '{NOBODY}': Connection refused"),
    (("run", "--stdout", "ftp://host", "--", "true"), 2, "or memcached://HOST/KEY"),
    (("cat", "file:nosuch"), 3, "No such file"),
    (("cat", "nosuch"), 2, "expected file:PATH, s3:"),
    (("cat", f"memcached://{NOBODY}/k"), 125, f"memcached '{NOBODY}': Connection refused"),
])
def test_a_mistake_is_named_in_one_sentence(mandor, tmp_path, args, code, said):
    (tmp_path / "ok.py").write_text("1 + 1")
    done = mandor.run(*args, cwd=tmp_path)
    assert done.code == code, done.complaint
    assert said in done.complaint
    assert len([line for line in done.complaint.splitlines() if not line.startswith("Try 'mandor")]) == 1, done.complaint


@pytest.mark.parametrize("text, said", [
    ("queues: {q: {command: [echo, {data.x}]}}", 'a placeholder takes quotes in YAML, expected "{data.x}"'),
    ("queues: {q: {command: [echo, '{dat.x}']}}", "unknown placeholder '{dat.x}'"),
    ("queues: {q: {command: echo}}", "expected a list of words"),
    ("queues: {q: {pool: nosuch}}", "queues.q.pool: there is no 'nosuch' below pools"),
    ("queues: {q: {runtime: nosuch, executor: python}}", "there is no 'nosuch' below python.runtimes"),
    ("queues: {q: {code: nosuch.py}}", "'nosuch.py': No such file"),
    ("queues: {q: {stdout: 's3:/x'}}", "expected s3://BUCKET/KEY"),
    ("broker: redis://host", "expected sqlite:PATH"),
    ("queues: {q: {broker: redis://host}}", "expected sqlite:PATH"),
    ("sinks: {s3: {endpont: x}}", "did you mean 'endpoint'"),
    ("queues:\n  q: {}\n  r:\n    command: [echo, '{dat.x}']", "mandor.yaml:3: queues.r: command: unknown placeholder '{dat.x}'"),
    ("queues: {q: {memory: 2G}}", "queues.q.memory: unknown key, expected 'memory' in 'limits'"),
    ("queues: {q: {backoff_delay: 1s}}", "queues.q.backoff_delay: unknown key, expected 'delay' in 'backoff'"),
    ("sinks: {s3: {endpoint: localhost}}", "endpoint: 'localhost': expected a URL such as https://"),
    ("pools: {p: {size: 2}}", "no command"),
    ("pools: {p: {command: [a], size: {min: 3, max: 1}}}", "pools.p.size: min is 3 and max 1"),
    ("python: {stor: x}", "did you mean 'store'"),
    ("python: {runtimes: {data: {packages: [numpy]}}}", "python.runtimes.data.packages: there is no python.store"),
    ("python: {store: /nowhere, runtimes: {data: {packages: [numpy]}}}", "there is no wheel store at '/nowhere'"),
])
def test_work_check_finds_what_would_fail_every_job(mandor, tmp_path, text, said):
    (tmp_path / "mandor.yaml").write_text(text + "\n")
    done = mandor.run("work", "--check", "--config", tmp_path / "mandor.yaml")
    assert done.code == 2 and said in done.complaint


def test_the_name_of_an_option_of_the_command_line_is_no_key_of_a_job(mandor):
    done = mandor.run("add", "--from", "-", input='{"exec": ["true"], "memory": "2G"}\n')
    assert done.code == 1 and done.complaint.strip() == "-:1: unknown key 'memory' in job, expected 'memory' in 'limits'"


def test_wheels_without_pip_is_told_in_one_line(mandor, tmp_path):
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text('#!/bin/sh\nexec /usr/bin/python3 -I -S "$@"\n')  # without any package
    bare.chmod(0o755)
    for what in (("add", "six"), ("import", tmp_path)):
        done = mandor.run("wheels", what[0], "--store", tmp_path / "store", *what[1:], env={"PATH": f"{bare.parent}:/usr/bin:/bin"})
        assert done.code == 1 and "neither pip nor" in done.complaint and len(done.complaint.splitlines()) == 1, done


def test_a_shared_queue_that_is_bound_to_nothing_is_warned_of(mandor, tmp_path):
    config = tmp_path / "mandor.yaml"
    config.write_text(f"queues: {{q: {{broker: 'bullmq://{NOBODY}'}}, r: {{broker: 'bullmq://{NOBODY}', command: [true]}}, s: {{}}}}\n")
    text = mandor.ok("work", "--check", "--config", config).text
    assert text.count("warning:") == 1 and "queue 'q'" in text and "allow_exec" in text


def test_run_and_cat_take_a_configuration_file(mandor, tmp_path):
    config = tmp_path / "mandor.yaml"
    config.write_text("sinks: {s3: {endpont: x}}\n")
    for args in (("run", "--config", config, "--stdout", "s3://b/k", "--", "true"), ("cat", "--config", config, "s3://b/k")):
        done = mandor.run(*args)
        assert done.code == 2 and "did you mean 'endpoint'" in done.complaint, done


def test_credentials_that_are_not_there_are_no_object_that_is_not_there(mandor, tmp_path):
    config = tmp_path / "mandor.yaml"
    config.write_text(f"sinks: {{s3: {{endpoint: 'http://{NOBODY}', credentials_file: {tmp_path}/nosuch}}}}\n")
    for args in (("cat", "--config", config, "s3://b/k"), ("run", "--config", config, "--stdout", "s3://b/k", "--", "true")):
        done = mandor.run(*args, env={name: None for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")})
        assert done.code == 125 and "no S3 credentials: read '" in done.complaint and "No such file" in done.complaint, done


def test_add_goes_to_the_broker_of_its_queue(mandor, tmp_path):
    config = tmp_path / "mandor.yaml"
    config.write_text("broker: sqlite:main.db\nqueues: {far: {broker: 'sqlite:far.db'}, near: {}}\n")
    common = {"env": {"MANDOR_BROKER": None, "MANDOR_CONFIG": str(config)}}
    assert mandor.run("add", "--queue", "far", "--", "true", **common).code == 0
    assert mandor.run("add", "--queue", "near", "--", "true", **common).code == 0
    assert mandor.run("ls", "--queue", "far", "--json", **common).json()["queue"] == "far"
    assert mandor.run("ls", "--json", **common).json()["queue"] == "near"
    done = mandor.run("add", "--from", "-", input='{"exec": ["true"], "queue": "far"}\n', **common)
    assert done.code == 1 and "queue 'far' is at another broker" in done.complaint


def test_a_broker_of_the_environment_leads_no_job_past_its_queue(mandor, tmp_path):
    """`work` serves a queue with a broker of its own there, whatever $MANDOR_BROKER says: elsewhere the job would wait for ever."""
    config = tmp_path / "mandor.yaml"
    config.write_text("queues: {far: {broker: 'sqlite:far.db'}, near: {}}\n")
    done = mandor.run("add", "--config", config, "--queue", "far", "--", "true")
    assert done.code == 2 and "queue 'far' has a broker of its own in" in done.complaint and "$MANDOR_BROKER" in done.complaint
    assert mandor.run("add", "--config", config, "--queue", "near", "--", "true").code == 0
    assert mandor.run("add", "--config", config, "--queue", "far", "--broker", mandor.env["MANDOR_BROKER"], "--", "true").code == 0


def test_add_says_when_no_worker_of_this_configuration_would_serve_the_queue(mandor, tmp_path):
    config = tmp_path / "mandor.yaml"
    config.write_text("queues: {media: {}}\n")
    said = mandor.ok("add", "--config", config, "--", "true").complaint
    assert "no live worker serves queue 'default', and it is not one of those in" in said and "'mandor work --queue default'" in said
    assert "'mandor work' starts one" in mandor.ok("add", "--config", config, "--queue", "media", "--", "true").complaint
    mandor.ok("work", "--config", config, "--queue", "default", "--drain")
    assert mandor.show("1")["state"] == "completed"


def test_the_only_broker_of_a_configuration_is_the_one_that_is_looked_at(mandor, tmp_path):
    config = tmp_path / "mandor.yaml"
    config.write_text("queues: {far: {broker: 'sqlite:far.db'}}\n")
    common = {"env": {"MANDOR_BROKER": None, "MANDOR_CONFIG": str(config)}}
    assert mandor.run("add", "--queue", "far", "--", "true", **common).code == 0
    assert mandor.run("show", "1", **common).code == 0


def test_the_example_of_a_configuration_is_good(mandor):
    example = pathlib.Path(__file__).parents[2] / "examples" / "mandor.yaml"
    done = mandor.run("work", "--check", "--config", example)
    assert done.code == 0 and "warning:" not in done.text, done
