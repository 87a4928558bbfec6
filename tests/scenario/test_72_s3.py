"""Object storage and HTTP as sinks, against a server that checks signatures and a proxy that injects faults: R85 R87 R88 R89 R90 R91 R92 R111."""
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import signal
import socket
import threading
import time

import pytest

import s3
import web
from harness import NOBODY, children, hwm_bytes, sh, wait_for

MIB = 1 << 20
FAST = {"type": "fixed", "delay": "10ms"}
ODD_KEY = "a b+c%d/é(1).bin"


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    with s3.server(tmp_path_factory.mktemp("s3")) as client:
        yield client


@pytest.fixture
def proxy(swift):
    with web.proxy(swift.port) as it:
        yield it


@pytest.fixture
def store():
    with web.store() as it:
        yield it


def configure(mandor, **settings):
    """A mandor.yaml with these keys below sinks.s3."""
    path = pathlib.Path(mandor.env["XDG_CONFIG_HOME"]) / "mandor" / "mandor.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sinks": {"s3": settings}}))


def produce(size, then=""):
    """A command that writes `size` bytes that depend on their place, and what they hash to."""
    block = bytes(i * 7 % 251 for i in range(65521))
    digest, left = hashlib.sha256(), size
    while left > 0:
        digest.update(block[:min(left, len(block))])
        left -= min(left, len(block))
    program = (f"import sys; b = bytes(i * 7 % 251 for i in range(65521)); left = {size}\n"
               "w = sys.stdout.buffer.write\n"
               "while left > 0: w(b[:left]); left -= len(b)\n"
               f"sys.stdout.flush(); {then}")
    return ["python3", "-c", program], digest.hexdigest()


def sha(body):
    return None if body is None else hashlib.sha256(body).hexdigest()


def put(mandor, client, url, size, port=None, **kw):
    command, want = produce(size)
    done = mandor.run("run", "--stdout", url, "--", *command, env=client.env(port), **kw)
    return done, want


@pytest.mark.parametrize("size", [0, 1, 5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 17 * MIB + 3])
def test_an_object_is_exactly_what_the_command_wrote(mandor, swift, size):
    configure(mandor, part_size="5M")
    done, want = put(mandor, swift, f"s3://media/exact/{size}", size)
    assert done.code == 0, done
    assert sha(swift.get(f"exact/{size}")) == want
    assert swift.uploads() == []


def test_200_mib_of_unknown_length_in_bounded_memory(mandor, swift, plain_binary):
    configure(mandor, part_size="8M", concurrency=3)
    command, want = produce(200 * MIB, then="open('done', 'w').close()\nimport time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)")
    with mandor.worker(env=swift.env()) as worker:
        first = mandor.add("true", stdout="s3://media/first")
        mandor.wait_state(first, "completed")
        before = hwm_bytes(worker.pid)
        job = mandor.add(*command, stdout="s3://media/big", cwd=str(mandor.tmp))
        wait_for(lambda: (mandor.tmp / "done").exists(), 60)
        (mandor.tmp / "go").touch()
        record = mandor.wait_state(job, "completed", deadline=60)
        grown = hwm_bytes(worker.pid) - before
    assert record["streams"]["stdout"]["bytes"] == 200 * MIB
    assert record["streams"]["stdout"]["target"] == "s3://media/big"
    assert sha(swift.get("big")) == want
    assert grown <= 3 * 8 * MIB + 16 * MIB, f"{grown / MIB:.1f} MiB"


def test_a_key_of_odd_characters_is_signed_and_stored_as_it_is_R90(mandor, swift):
    done, want = put(mandor, swift, f"s3://media/{ODD_KEY}", 1000)
    assert done.code == 0, done
    assert sha(swift.get(ODD_KEY)) == want


def test_attempt_and_job_stand_in_the_objects_metadata(mandor, swift):
    job = mandor.add(*sh('test "$MANDOR_ATTEMPT" -gt 1 && echo x'), stdout="s3://media/meta", attempts=2, backoff=FAST)
    mandor.drain(env=swift.env())
    assert mandor.show(job)["state"] == "completed"
    head = swift.head("meta")
    assert head["x-amz-meta-mandor-attempt"] == "2"
    assert head["x-amz-meta-mandor-job"] == job
    assert head["x-amz-meta-mandor-stream"] == "stdout"


def test_a_failed_attempt_leaves_no_object_and_no_parts_R111(mandor, swift):
    configure(mandor, part_size="5M")
    command, _ = produce(12 * MIB, then="sys.exit(3)")
    job = mandor.add(*command, stdout="s3://media/failed/{id}")
    mandor.drain(env=swift.env())
    assert mandor.show(job)["state"] == "failed"
    assert swift.get(f"failed/{job}") is None
    assert swift.uploads() == []


def test_nothing_is_visible_before_the_commit_R111(mandor, swift):
    configure(mandor, part_size="5M")
    command, want = produce(12 * MIB, then="open('written', 'w').close()\nimport time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)")
    swift.put("replaced", b"old")
    with mandor.worker(env=swift.env()):
        job = mandor.add(*command, stdout="s3://media/replaced", cwd=str(mandor.tmp))
        wait_for(lambda: (mandor.tmp / "written").exists() and swift.uploads(), 30, "an upload under way")
        assert swift.get("replaced") == b"old"
        (mandor.tmp / "go").touch()
        mandor.wait_state(job, "completed")
    assert sha(swift.get("replaced")) == want


def test_parts_that_are_reset_are_sent_again_R89(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    count = [0]

    def fault(request):
        if "partNumber" not in request.query:
            return None
        count[0] += 1
        return "reset" if count[0] % 5 in (0, 1) else None

    proxy.fault = fault
    done, want = put(mandor, swift, "s3://media/reset", 31 * MIB, proxy.port)
    assert done.code == 0, done
    assert count[0] > 7
    assert sha(swift.get("reset")) == want


def test_a_200_with_an_error_inside_is_no_success_R87(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    bad = (200, [("Content-Type", "application/xml")],
           b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>We are sorry</Message></Error>')
    left = [1]

    def once(request):
        if request.method == "POST" and "uploadId" in request.query and left[0] > 0:
            left[0] -= 1
            return bad
        return None

    proxy.fault = once
    done, want = put(mandor, swift, "s3://media/once", 6 * MIB, proxy.port)
    assert done.code == 0, done
    assert left[0] == 0 and sha(swift.get("once")) == want

    left[0] = 1000
    done, _ = put(mandor, swift, "s3://media/always", 6 * MIB, proxy.port, timeout=90)
    assert done.code == 125 and "InternalError" in done.cause, done
    assert swift.get("always") is None
    assert swift.uploads() == []


def test_the_lost_answer_to_a_completion_is_looked_up(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    lost = [0]

    def fault(request):
        if request.method == "POST" and "uploadId" in request.query and lost[0] == 0:
            lost[0] += 1
            return "lost"
        return None

    proxy.fault = fault
    done, want = put(mandor, swift, "s3://media/lost-answer", 6 * MIB, proxy.port)
    assert done.code == 0, done
    assert lost[0] == 1 and sha(swift.get("lost-answer")) == want


def test_slow_down_is_waited_for_and_a_refusal_is_not(mandor, swift, proxy):
    left = [3]

    def fault(request):
        if left[0] > 0:
            left[0] -= 1
            return 503, [], b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
        return None

    proxy.fault = fault
    done, want = put(mandor, swift, "s3://media/slow", 1000, proxy.port)
    assert done.code == 0, done
    assert sha(swift.get("slow")) == want

    proxy.fault = lambda request: (403, [], b"<Error><Code>AccessDenied</Code><Message>No.</Message></Error>")
    proxy.seen.clear()
    done, _ = put(mandor, swift, "s3://media/denied", 1000, proxy.port)
    assert done.code == 125 and "AccessDenied: No." in done.cause, done
    assert len(proxy.seen) == 1


def test_a_wrong_secret_is_refused_by_name(mandor, swift):
    env = swift.env() | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    done = mandor.run("run", "--stdout", "s3://media/wrong", "--", "echo", env=env)
    assert done.code == 125 and "SignatureDoesNotMatch" in done.cause, done


def test_no_credentials_no_bucket_and_bad_urls_are_said_clearly(mandor, swift):
    env = swift.env() | {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    done = mandor.run("run", "--stdout", "s3://media/x", "--", "echo", env=env)
    assert done.code == 125 and "no S3 credentials" in done.cause, done
    done = mandor.run("run", "--stdout", "s3://nowhere/x", "--", "echo", env=swift.env())
    assert done.code == 125 and "NoSuchBucket" in done.cause, done
    for url in ("s3:media/x", "s3://media", "s3://media/", "http:/x", "http://"):
        done = mandor.run("run", "--stdout", url, "--", "echo")
        assert done.code == 2 and "expected" in done.complaint, (url, done)


def test_who_has_no_credentials_is_told_so_with_one_exit_code(mandor, swift):
    where = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{swift.port}"}
    (mandor.tmp / "keys").write_text("[other]\n")
    for env in (where, {**where, "AWS_SHARED_CREDENTIALS_FILE": str(mandor.tmp / "keys")}):
        for args in (("run", "--stdout", "s3://media/k", "--", "true"), ("cat", "s3://media/k"), ("run", "--stdin", "s3://media/k", "--", "cat")):
            done = mandor.run(*args, env=env)
            assert done.code == 125 and "no S3 credentials" in done.complaint, done


def test_a_part_that_is_changed_on_the_way_is_sent_again(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    left = [1]

    def fault(request):
        if "partNumber=1&" in request.query and left[0] > 0:
            left[0] -= 1
            request.body = request.body[:MIB] + bytes([request.body[MIB] ^ 1]) + request.body[MIB + 1:]
        return None

    proxy.fault = fault
    done, want = put(mandor, swift, "s3://media/etag", 11 * MIB, proxy.port)
    assert done.code == 0, done
    assert left[0] == 0 and sha(swift.get("etag")) == want


def test_part_sizes_grow_so_that_few_parts_hold_much_R88(mandor, swift, proxy):
    configure(mandor, part_size="5M", max_parts=10)
    done, want = put(mandor, swift, "s3://media/grows", 70 * MIB, proxy.port)
    assert done.code == 0, done
    assert sha(swift.get("grows")) == want
    parts = [len(r.body) for r in sorted(proxy.seen, key=lambda r: r.query) if "partNumber" in r.query]
    assert parts == [5 * MIB, 10 * MIB, 20 * MIB, 35 * MIB], parts


def test_keys_that_run_out_in_a_long_upload_are_read_again_R92(mandor, swift, proxy):
    keys = mandor.tmp / "keys"
    keys.write_text(f"[default]\naws_access_key_id = {s3.ACCESS_KEY}\naws_secret_access_key = {s3.SECRET_KEY}\n")
    configure(mandor, part_size="5M", credentials_file=str(keys))
    expired = threading.Event()
    refused = [0]

    def fault(request):
        if expired.is_set() and s3.ACCESS_KEY in request.headers["Authorization"]:
            refused[0] += 1
            if refused[0] == 2:
                keys.write_text("[other]\naws_access_key_id = x\n[default]\naws_access_key_id = test:second\n"
                                "aws_secret_access_key = testing2\n")
            return 400, [], b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
        if "partNumber=2&" in request.query:
            expired.set()
        return None

    proxy.fault = fault
    done, want = put(mandor, swift, "s3://media/rotated", 23 * MIB, proxy.port)
    assert done.code == 0, done
    assert refused[0] >= 2 and sha(swift.get("rotated")) == want


def test_a_redirect_is_signed_anew_for_where_it_leads(mandor, swift, proxy):
    with web.proxy(swift.port) as other:
        def fault(request):
            return 307, [("Location", f"http://127.0.0.1:{other.port}{request.target}")], b""

        proxy.fault = fault
        done, want = put(mandor, swift, "s3://media/moved a+b", 1000, proxy.port)
        assert done.code == 0, done
        assert len(other.seen) == 1 and sha(swift.get("moved a+b")) == want


def test_a_wrong_clock_is_corrected_by_the_servers_date_R91(mandor, swift, plain_binary):
    command, want = produce(1000)
    proc = mandor.spawn(["faketime", "-f", "+1h", mandor.binary, "run", "--stdout", "s3://media/clock", "--", *command],
                        env=swift.env() | {"DONT_FAKE_MONOTONIC": "1"})
    assert proc.wait(30) == 0
    assert sha(swift.get("clock")) == want


def test_a_slow_producers_parts_are_signed_when_they_are_sent_R91(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    command, want = produce(6 * MIB, then="import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    stamps = lambda: [request.headers["x-amz-date"] for request in proxy.seen]
    with mandor.background("run", "--stdout", "s3://media/late", "--", *command, env=swift.env(proxy.port)) as it:
        wait_for(lambda: any("partNumber=1&" in request.query for request in proxy.seen), 20, "the first part")
        early = len(stamps())
        now = lambda: time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        wait_for(lambda: now() > max(stamps()), 20, "the next second")
        since = now()
        (mandor.tmp / "go").touch()
        assert it.wait() == 0
    assert len(stamps()) > early and min(stamps()[early:]) >= since, stamps()
    assert sha(swift.get("late")) == want


def test_a_cancelled_job_leaves_no_parts_R85(mandor, swift):
    configure(mandor, part_size="5M")
    command, _ = produce(17 * MIB, then="import time; time.sleep(600)")
    with mandor.worker(env=swift.env()):
        job = mandor.add(*command, stdout="s3://media/cancelled")
        wait_for(swift.uploads, 30, "an upload under way")
        mandor.ok("cancel", job, "--wait")
        mandor.wait_state(job, "cancelled")
        assert swift.uploads() == []
    assert not list(mandor.data.glob("journal/*/*")) and not list(mandor.data.glob("left/*"))


def test_what_a_killed_worker_had_begun_is_swept_by_the_next_R85(mandor, swift):
    configure(mandor, part_size="5M")
    command, want = produce(17 * MIB, then="""
import os, time
if os.environ['MANDOR_ATTEMPT'] == '1': time.sleep(600)""")
    job = mandor.add(*command, stdout="s3://media/swept", attempts=2, backoff=FAST)
    with mandor.worker(env=swift.env()) as worker:
        wait_for(swift.uploads, 30, "an upload under way")
        wait_for(lambda: "upload_id" in "".join(p.read_text() for p in mandor.data.glob("journal/*/*.left")), 20, "its note")
        worker.kill()
        worker.wait()
    assert swift.uploads() == ["swept"]
    with mandor.worker(env=swift.env()):
        mandor.wait_state(job, "completed", deadline=60)
        wait_for(lambda: swift.uploads() == [], 20, "the sweep")
        wait_for(lambda: not list(mandor.data.glob("left/*")), 20, "the notes to go")
    assert sha(swift.get("swept")) == want
    assert swift.head("swept")["x-amz-meta-mandor-attempt"] == "2"


@pytest.mark.parametrize("which", ["guard", "both"])
def test_what_a_killed_run_had_begun_is_ended_by_the_next_R85(mandor, swift, which):
    mandor.check_left = which == "guard"  # an empty cgroup stays where both die at once
    configure(mandor, part_size="5M")
    mandor.env.update(swift.env())
    proc = mandor.popen("run", "--stdout", "s3://media/run", "--stderr", f"file:{mandor.tmp}/err", "--",
                        *sh("head -c 20000000 /dev/zero; echo x >&2; exec sleep 600"))
    wait_for(lambda: swift.uploads() == ["run"], 20)
    for pid in (children(proc.pid) if which == "both" else []) + [proc.pid]:
        os.kill(pid, signal.SIGKILL)
    proc.wait()
    wait_for(lambda: not mandor.left(), 20)
    state = pathlib.Path(mandor.env["XDG_STATE_HOME"]) / "mandor" / "run"
    assert len(list((state / "journal").iterdir())) == 1 and swift.uploads() == ["run"]
    with mandor.background("run", "--stdout", "s3://media/next", "--", *sh("while [ ! -e go ]; do sleep 0.02; done; echo y"), cwd=str(mandor.tmp)) as it:
        wait_for(lambda: swift.uploads() == [], 20)
        (mandor.tmp / "go").touch()
        assert it.wait() == 0
    assert swift.get("next") == b"y\n" and swift.get("run") is None
    assert not list((state / "journal").iterdir()) and not list((state / "left").iterdir())
    assert not list(mandor.tmp.glob(".mandor*"))


def test_a_run_does_not_wait_for_what_others_have_left(mandor, swift):
    """The server of the dead one's upload takes connections and says nothing."""
    left = pathlib.Path(mandor.env["XDG_STATE_HOME"]) / "mandor" / "run" / "left"
    left.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (left / "run-1.1.stdout.left").write_text(json.dumps({
            "kind": "s3", "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "region": "us-east-1", "path_style": True,
            "bucket": "media", "key": "k", "upload_id": "x", "since_ms": 0}))
        began = time.monotonic()
        done = mandor.run("run", "--stdout", "s3://media/quick", "--", "echo", "z", env=swift.env())
        took = time.monotonic() - began
    assert done.code == 0 and swift.get("quick") == b"z\n"
    assert took < 45, took  # a server that says nothing is waited for a minute
    assert list(left.iterdir())


def test_an_upload_whose_id_never_arrived_is_swept_by_its_key_R85(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    stuck = threading.Event()
    gone = threading.Event()

    def fault(request):
        if request.method == "POST" and "uploads" in request.query and not stuck.is_set():
            def hold(*triple):
                stuck.set()
                gone.wait(300)
                return triple
            return hold
        return None

    proxy.fault = fault
    command, _ = produce(12 * MIB, then="import time; time.sleep(600)")
    job = mandor.add(*command, stdout="s3://media/unnamed", attempts=1)
    with mandor.worker(env=swift.env(proxy.port)) as worker:
        assert stuck.wait(30)
        worker.kill()
        worker.wait()
    gone.set()
    other = swift.request("POST", "/media/bystander", "uploads")
    assert other[0] == 200
    assert sorted(swift.uploads()) == ["bystander", "unnamed"]
    with mandor.worker(env=swift.env(proxy.port)):
        wait_for(lambda: swift.uploads() == ["bystander"], 30, "the sweep")
        mandor.wait_state(job, "failed")
    upload = swift.request("GET", "/media", "uploads")[2].decode().split("<UploadId>")[1].split("<")[0]
    assert swift.request("DELETE", "/media/bystander", f"uploadId={upload}")[0] == 204


@pytest.mark.parametrize("code", [0, 1])
def test_an_upload_that_was_begun_twice_leaves_nothing_R85(mandor, swift, proxy, code):
    """The answer to the first request is lost: its upload has no name here."""
    configure(mandor, part_size="5M")
    lost, named = [], threading.Event()

    def fault(request):
        if request.method == "POST" and request.query.startswith("uploads") and not lost:
            lost.append(request)
            return "lost"
        if request.method == "PUT":
            named.set()  # a part of the second one, whose name is known
        return None
    proxy.fault = fault
    command, want = produce(12 * MIB, then=f"import os, time\nwhile not os.path.exists('{mandor.tmp}/go'): time.sleep(0.02)\nsys.exit({code})")
    job = mandor.add(*command, stdout="s3://media/twice", attempts=1)
    with mandor.worker(env=swift.env(proxy.port)):
        assert named.wait(30)
        (mandor.tmp / "go").touch()
        mandor.wait_state(job, "failed" if code else "completed")
    assert swift.uploads() == ["twice"]
    with mandor.worker(env=swift.env(proxy.port)):
        wait_for(lambda: not swift.uploads(), 30, "the sweep")
    assert sha(swift.get("twice")) == (None if code else want)
    swift.request("DELETE", "/media/twice")


def test_an_upload_that_arrives_behind_the_sweep_is_swept_and_those_of_the_living_are_not_R85(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    asked, let = threading.Event(), threading.Event()

    def fault(request):
        if request.method == "POST" and request.query.startswith("uploads") and not asked.is_set():
            asked.set()
            return let  # it is on its way when its worker is killed
        return None
    proxy.fault = fault
    command, want = produce(12 * MIB, then=f"import os, time\nwhile not os.path.exists('{mandor.tmp}/go'): time.sleep(0.02)")
    job = mandor.add(*command, stdout="s3://media/late", attempts=2, backoff=FAST)
    with mandor.worker(env=swift.env(proxy.port)) as first:
        assert asked.wait(30)
        first.kill()
        first.wait()
    with mandor.worker(env=swift.env(proxy.port)):
        wait_for(lambda: swift.uploads() == ["late"], 30, "the second attempt's upload")
        let.set()
        wait_for(lambda: swift.uploads() == ["late", "late"], 30, "the first attempt's")
        with mandor.worker(env=swift.env(proxy.port)):
            wait_for(lambda: swift.uploads() == ["late"], 30, "the sweep")
            (mandor.tmp / "go").touch()
            assert mandor.wait_state(job, "completed")["attempt"] == 2
    assert sha(swift.get("late")) == want and not swift.uploads()
    swift.request("DELETE", "/media/late")


def test_a_server_that_is_away_ends_the_attempt_and_its_notes_wait(mandor, swift, proxy):
    configure(mandor, part_size="5M")
    away = threading.Event()
    proxy.fault = lambda request: "reset" if away.is_set() else None
    command, _ = produce(12 * MIB, then="open('written', 'w').close(); import time; time.sleep(600)")
    job = mandor.add(*command, stdout="s3://media/away", cwd=str(mandor.tmp))
    with mandor.worker(env=swift.env(proxy.port)):
        wait_for(lambda: (mandor.tmp / "written").exists() and swift.uploads() == ["away"], 30)
        away.set()
        mandor.ok("cancel", job)
        mandor.wait_state(job, "cancelled", deadline=60)
        wait_for(lambda: list(mandor.data.glob("left/*.left")), 20, "a note for later")
    away.clear()
    with mandor.worker(env=swift.env(proxy.port)):
        wait_for(lambda: swift.uploads() == [], 20, "the sweep")


# ---- HTTP ----


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 9 * MIB])
def test_a_put_carries_exactly_what_the_command_wrote(mandor, store, size):
    command, want = produce(size)
    done = mandor.run("run", "--stdout", f"http://127.0.0.1:{store.port}/a/b%20c?x=1", "--", *command)
    assert done.code == 0, done
    assert sha(store.objects["/a/b%20c?x=1"]) == want
    assert store.headers["/a/b%20c?x=1"]["X-Mandor-Attempt"] == "1"
    assert store.requests == 1


def test_an_aborted_put_never_gets_its_end(mandor, store):
    for size in (1000, 5 * MIB):
        command, _ = produce(size, then="sys.exit(1)")
        done = mandor.run("run", "--stdout", f"http://127.0.0.1:{store.port}/x", "--", *command)
        assert done.code == 1, done
    assert store.objects == {}
    wait_for(lambda: store.broken == 1, 10, "the server to see the broken body")


def test_a_put_is_tried_again_while_its_bytes_are_here_and_follows_redirects(mandor, store):
    url = f"http://127.0.0.1:{store.port}"
    store.answers = [(503, {}), (429, {})]
    command, want = produce(1000)
    assert mandor.run("run", "--stdout", f"{url}/again", "--", *command).code == 0
    assert sha(store.objects["/again"]) == want

    for size in (1000, 5 * MIB):
        store.answers = [(307, {"Location": f"{url}/there{size}"})]
        command, want = produce(size)
        done = mandor.run("run", "--stdout", f"{url}/here", "--", *command)
        assert done.code == 0, done
        assert sha(store.objects[f"/there{size}"]) == want and "/here" not in store.objects


def test_a_refused_put_fails_the_attempt_with_the_servers_answer(mandor, store):
    for size, status in ((1000, 403), (5 * MIB, 413)):
        store.answers = [(status, {})]
        command, _ = produce(size)
        done = mandor.run("run", "--stdout", f"http://user:secret@127.0.0.1:{store.port}/x", "--", *command)
        assert done.code == 125 and f"answered {status}" in done.cause and "secret" not in done.cause, done
    assert store.objects == {}


def test_a_put_that_is_sent_to_see_other_is_not_put_there(mandor):
    for size in (1000, 5 * MIB):
        command, _ = produce(size)
        with web.canned(b"HTTP/1.1 303 See Other\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, lines):
            assert mandor.run("run", "--stdout", f"http://127.0.0.1:{port}/x", "--", *command).code == 0
        assert lines == ["PUT /x HTTP/1.1", "GET /other HTTP/1.1"]


@pytest.mark.parametrize("status", [b"200 OK", b"500 Oops"])
def test_an_answer_without_end_is_a_failure(mandor, status):
    flood = itertools.chain([b"HTTP/1.1 " + status + b"\r\nContent-Length: 100000000000\r\n\r\n"], itertools.repeat(b"<" * 65536))
    command, _ = produce(5 * MIB)
    with web.canned(flood) as (port, _):
        done = mandor.run("run", "--stdout", f"http://127.0.0.1:{port}/x", "--", *command)
    assert done.code == 125 and "the answer is longer than 1048576 bytes" in done.cause, done


@pytest.mark.parametrize("answer, said", [(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig", "the server answered 413: big"), (b"", "Connection reset by peer")])
def test_a_server_that_hangs_up_on_a_body_is_quoted(mandor, answer, said):
    """It closes with most of the body unread, which is a reset; what it said before that counts."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                with connection:
                    head = b""
                    while b"\r\n\r\n" not in head:
                        head += connection.recv(1)
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    connection.recv(1, socket.MSG_PEEK)  # some of the body is here
                    time.sleep(0.5)  # and the sender has filled the buffers: in the middle of a send it hears of the reset alone
                    connection.sendall(answer)
    threading.Thread(target=serve, daemon=True).start()
    command, _ = produce(3 * MIB)
    for _ in range(5):
        done = mandor.run("run", "--stdout", f"http://127.0.0.1:{server.getsockname()[1]}/x", "--", *command)
        assert done.code == 125 and said in done.cause, done
    server.close()


def drip(head):
    yield head
    while True:
        time.sleep(0.1)
        yield b" "


@pytest.mark.parametrize("head", [b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=["headers", "body"])
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_an_answer_that_trickles_ends_with_sink_timeout(mandor, scheme, head):
    """A byte now and then is no silence."""
    with web.canned(drip(head), drip(head), drip(head)) as (port, lines):
        mandor.env.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
        url = f"http://127.0.0.1:{port}/x" if scheme == "http" else "s3://b/x"
        done = mandor.run("run", "--sink-timeout", "3s", "--stdout", url, "--", "echo", "x")
    assert done.code == 125 and "the answer was not whole after 3000 ms" in done.cause, done
    assert len(lines) == 2


def test_stdin_that_trickles_takes_its_time(mandor):
    with web.canned(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")) as (port, _):
        assert mandor.run("run", "--sink-timeout", "4s", "--stdin", f"http://127.0.0.1:{port}/x", "--", "head", "-c", "50").out == b" " * 50


def test_a_put_whose_answer_never_comes_ends(mandor):
    command, _ = produce(5 * MIB)
    with web.canned(None) as (port, _):
        done = mandor.run("run", "--stdout", f"http://127.0.0.1:{port}/x", "--", *command, timeout=100)
    assert done.code == 125 and "no answer after the last byte" in done.cause, done


def test_https_needs_a_certificate_that_is_trusted(mandor):
    import ssl
    import subprocess
    cert, key = mandor.tmp / "cert.pem", mandor.tmp / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1", "-subj",
                    "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with web.store(tls) as store:
        for size in (1000, 3 * MIB):
            command, want = produce(size)
            url = f"https://127.0.0.1:{store.port}/x"
            done = mandor.run("run", "--stdout", url, "--", *command, env={"SSL_CERT_FILE": str(cert)})
            assert done.code == 0, done
            assert sha(store.objects.pop("/x")) == want
            done = mandor.run("run", "--stdout", url, "--", *command)
            assert done.code == 125 and "certificate" in done.cause, done
        with web.store() as plain:  # what was meant to be private does not go on in the clear
            store.answers = [(307, {"Location": f"http://127.0.0.1:{plain.port}/x"})] * 9
            done = mandor.run("run", "--stdout", url, "--", *command, env={"SSL_CERT_FILE": str(cert)})
            assert done.code == 125 and plain.requests == 0, done
        assert store.objects == {}


def test_a_slow_web_server_holds_the_job_up_and_no_memory_is_used(mandor, plain_binary):
    """A server that reads nothing for a while: the command cannot write on."""
    import socket
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        with mandor.worker() as worker:
            mandor.wait_state(mandor.add("true"), "completed")
            before = hwm_bytes(worker.pid)
            job = mandor.add(*produce(200 * MIB)[0], stdout=url)
            connection, _ = listener.accept()
            with connection:
                wait_for(lambda: b"\r\n\r\n" in connection.recv(4096, socket.MSG_PEEK), 10)
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                wait_for(lambda: mandor.show(job)["phase"] == "running", 10)
                wait_for(lambda: connection.recv(1 << 20, socket.MSG_PEEK), 10)
                grown = hwm_bytes(worker.pid) - before
                assert grown < 16 * MIB, grown
                mandor.ok("cancel", job)
            mandor.wait_state(job, "cancelled", "failed")


# ---- stdin ----


def body_of(size):
    block = bytes(i * 7 % 251 for i in range(65521))
    return (block * (size // len(block) + 1))[:size]


def test_stdin_comes_from_an_object_and_from_a_web_server(mandor, swift, store):
    body = body_of(9 * MIB + 5)
    swift.put("in/a b", body)
    store.objects["/in"] = body
    for url in ("s3://media/in/a b", f"http://127.0.0.1:{store.port}/in"):
        done = mandor.run("run", "--stdin", url, "--", "sha256sum", env=swift.env())
        assert done.code == 0, done
        assert done.text.split()[0] == sha(body)
        done = mandor.run("run", "--stdin", url, "--", "head", "-c", "10", env=swift.env())
        assert done.code == 0 and done.out == body[:10], done
    job = mandor.add("sha256sum", stdin="s3://media/in/a b")
    mandor.drain(env=swift.env())
    assert mandor.show(job)["state"] == "completed" and mandor.logs_of(job).split()[0] == sha(body).encode()


def test_stdin_that_is_not_there_fails_the_attempt_by_name(mandor, swift, store):
    for url, word in (("s3://media/nothing", "NoSuchKey"), (f"http://127.0.0.1:{store.port}/nothing", "404")):
        done = mandor.run("run", "--stdin", url, "--", "cat", env=swift.env())
        assert done.code == 125 and word in done.cause, done


def test_stdin_whose_connection_breaks_goes_on_where_it_broke(mandor, swift):
    import http.server
    body = body_of(5 * MIB)
    asked = []

    class Breaks(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            asked.append((start, self.headers.get("If-Match")))
            self.send_response_only(206 if start else 200)
            self.send_header("ETag", '"one"')
            self.send_header("Content-Length", str(len(body) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            self.wfile.write(body[start:start + 2 * MIB])
            self.close_connection = True

    with web._serve(Breaks) as server:
        done = mandor.run("run", "--stdin", f"http://127.0.0.1:{server.server_address[1]}/x", "--", "sha256sum")
    assert done.code == 0, done
    assert done.text.split()[0] == sha(body)
    assert asked == [(0, None), (2 * MIB, '"one"'), (4 * MIB, '"one"')]


@pytest.mark.parametrize("first, rest, whole", [
    ("ETag: \"a\"", "ETag: \"a\"\r\nContent-Range: bytes 10-19/20", True),
    ("Last-Modified: Mon, 30 Nov 2026 00:00:00 GMT", "Last-Modified: Mon, 30 Nov 2026 00:00:00 GMT\r\nContent-Range: bytes 10-19/20", True),
    ("ETag: \"a\"", "ETag: \"b\"\r\nContent-Range: bytes 10-19/20", False),
    ("ETag: \"a\"", "ETag: \"a\"\r\nContent-Range: bytes 9-18/20", False),
    ("Last-Modified: Mon, 30 Nov 2026 00:00:00 GMT", "Last-Modified: Mon, 30 Nov 2026 00:00:01 GMT\r\nContent-Range: bytes 10-19/20", False),
    ("X-A: b", "Content-Range: bytes 10-19/20", False)])
def test_stdin_is_of_one_object_and_goes_on_at_the_right_place(mandor, first, rest, whole):
    answers = [f"HTTP/1.1 200 OK\r\n{first}\r\nContent-Length: 20\r\n\r\n0123456789".encode(),
               f"HTTP/1.1 206 Partial Content\r\n{rest}\r\nContent-Length: 10\r\n\r\nabcdefghij".encode()]
    with web.canned(*answers) as (port, _):
        done = mandor.run("run", "--stdin", f"http://127.0.0.1:{port}/x", "--", "cat")
    if whole:
        assert done.code == 0 and done.out == b"0123456789abcdefghij", done
    else:
        assert done.code == 125 and "same object" in done.cause, done


def test_stdin_goes_on_after_an_answer_that_broke_amid_its_headers(mandor):
    answers = [b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 20\r\n\r\n0123456789", b"HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Ra",
               b"HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 10-19/20\r\nContent-Length: 10\r\n\r\nabcdefghij"]
    with web.canned(*answers) as (port, _):
        done = mandor.run("run", "--stdin", f"http://127.0.0.1:{port}/x", "--", "cat")
    assert done.code == 0 and done.out == b"0123456789abcdefghij", done


def test_a_job_that_does_not_read_holds_its_source_up_R114(mandor, swift, plain_binary):
    body = body_of(120 * MIB)
    swift.put("in/big", body)
    with mandor.worker(env=swift.env()) as worker:
        swift.put("in/small", b"x")
        mandor.wait_state(mandor.add("cat", stdin="s3://media/in/small"), "completed")
        before = hwm_bytes(worker.pid)
        job = mandor.add(*sh("touch ready; while [ ! -e go ]; do sleep 0.02; done; sha256sum"), stdin="s3://media/in/big", cwd=str(mandor.tmp))
        wait_for(lambda: (mandor.tmp / "ready").exists(), 20)
        (mandor.tmp / "go").touch()
        record = mandor.wait_state(job, "completed", deadline=60)
        assert record["exit_code"] == 0
        grown = hwm_bytes(worker.pid) - before
    assert mandor.logs_of(job).split()[0] == sha(body).encode()
    assert grown < 8 * MIB, f"{grown / MIB:.1f} MiB"
