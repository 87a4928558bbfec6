"""Redis as a sink and as a source: an entry a frame, values that appear whole, the attempt that fences, the bound that holds the job up."""
import contextlib
import hashlib
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

import redis_server
import stores
from harness import hwm_bytes, sh, wait_for

FAST = {"type": "fixed", "delay": "10ms"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with stores.redis() as it:
        yield it


@pytest.fixture
def redis(server):
    server("FLUSHALL")
    return server


def frame_bytes(kind, payload):
    length = len(payload)
    if kind == "u32be":
        return length.to_bytes(4, "big") + payload
    if kind == "u32le":
        return length.to_bytes(4, "little") + payload
    if kind == "netstring":
        return b"%d:%s," % (length, payload)
    if kind == "varint":
        head = b""
        while True:
            head += bytes([length & 127 | (128 if length > 127 else 0)])
            length >>= 7
            if not length:
                return head + payload
    return payload.replace(b"\n", b"N") + b"\n"


PAYLOADS = [b"", b"a", b"\x00\n,:" * 5, b"x" * 127, b"y" * 128, b"z" * 300]


def test_each_entry_is_one_frame_whatever_the_producers_writes(mandor, redis):
    """Every stream is written byte by byte, so that it is cut everywhere; tests/unit/test_pieces.c cuts it in all other ways."""
    program = "import os, sys, time\nfor b in open(sys.argv[1], 'rb').read(): os.write(1, bytes([b])); time.sleep(0)"
    kinds = ["u32be", "u32le", "varint", "netstring", "lines"]
    frames = {kind: [frame_bytes(kind, p) for p in PAYLOADS] for kind in kinds}
    for kind in kinds:
        (mandor.tmp / kind).write_bytes(b"".join(frames[kind]))
    jobs = mandor.add_many([{"exec": ["python3", "-S", "-c", program, kind], "cwd": str(mandor.tmp), "frame": kind,
                             "stdout": f"{redis.url}?stream=cut:{{id}}"} for kind in kinds])
    mandor.drain()
    for kind, job in zip(kinds, jobs):
        *entries, last = redis.entries(f"cut:{job}")
        assert [e["data"] for e in entries] == frames[kind]
        assert [int(e["seq"]) for e in entries] == list(range(len(PAYLOADS)))
        offset = 0
        for entry, frame, payload in zip(entries, frames[kind], PAYLOADS):
            assert int(entry["off"]) == offset
            offset += len(frame)
            if kind != "lines":
                assert entry["data"][int(entry["head"]):][:len(payload)] == payload
        assert last["eof"] == "1" and int(last["bytes"]) == offset and int(last["entries"]) == len(PAYLOADS)


def test_a_stream_is_read_back_as_it_was_written_and_its_record_says_so(mandor, redis):
    job = mandor.add("seq", "20000", stdout=f"{redis.url}?stream=out:{{id}}", frame="lines")
    raw = mandor.add("head", "-c", "3000000", "/dev/urandom", stdout=f"{redis.url}?stream=out:{{id}}")
    mandor.drain()
    record = mandor.show(job)["streams"]["stdout"]
    assert record["committed"] and record["frames"] == 20000 and record["target"] == f"{redis.url}?stream=out:{job}"
    assert mandor.ok("cat", record["target"]).out == subprocess.run(["seq", "20000"], capture_output=True).stdout
    last = redis.entries(f"out:{job}")[-1]
    assert last["xxh3"] == record["xxh3"]
    raw_record = mandor.show(raw)["streams"]["stdout"]
    out = mandor.ok("cat", raw_record["target"]).out
    assert len(out) == 3000000
    done = mandor.run("run", "--stdin", raw_record["target"], "--", "sha256sum")
    assert done.text.split()[0] == hashlib.sha256(out).hexdigest()


def test_an_attempt_without_its_end_is_passed_over_and_the_next_one_is_whole(mandor, redis):
    job = mandor.add(*sh('echo "of attempt $MANDOR_ATTEMPT"; test $MANDOR_ATTEMPT -ge 2'),
                     stdout=f"{redis.url}?stream=s", frame="lines", attempts=3, backoff=FAST)
    mandor.drain()
    entries = redis.entries("s")
    assert [e["attempt"] for e in entries if "data" in e] == ["1", "2"]
    assert [e["attempt"] for e in entries if "aborted" in e] == ["1"]
    assert [e["attempt"] for e in entries if "eof" in e] == ["2"]
    assert mandor.ok("cat", f"{redis.url}?stream=s").out == b"of attempt 2\n"
    assert mandor.ok("cat", f"{redis.url}?stream=s&job={job}").out == b"of attempt 2\n"
    assert mandor.run("cat", f"{redis.url}?stream=s&job=other").code == 3

    failed = mandor.add("sh", "-c", "echo x; exit 1", stdout=f"{redis.url}?stream=t")
    mandor.drain()
    assert mandor.show(failed)["state"] == "failed"
    assert mandor.run("cat", f"{redis.url}?stream=t").code == 3


def test_cat_follows_an_attempt_that_is_being_written(mandor, redis):
    with mandor.worker():
        proc = mandor.popen("cat", "-f", f"{redis.url}?stream=live", stdout=subprocess.PIPE)
        mandor.add(*sh("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"), cwd=str(mandor.tmp),
                   stdout=f"{redis.url}?stream=live", frame="lines")
        assert proc.stdout.readline() == b"one\n"
        assert proc.poll() is None
        (mandor.tmp / "go").touch()
        assert proc.stdout.read() == b"two\n"
        assert proc.wait(30) == 0
        proc.stdout.close()


def test_cat_follows_the_newest_of_several_jobs_and_passes_over_what_others_add(mandor, redis):
    url = f"{redis.url}?stream=s"
    redis("XADD", "s", "*", "job", "another program's", "data", "x")
    for word in ("first", "second"):
        mandor.ok("run", "--frame", "lines", "--stdout", url, "--", "echo", word)
    redis("XADD", "s", "*", "job", "another program's", "data", "x")
    for more in ((), ("-f",)):
        assert mandor.ok("cat", *more, url).text == "second\n"


def test_cat_says_what_is_missing_or_was_changed(mandor, redis):
    url = f"{redis.url}?stream=s"
    mandor.ok("run", "--stdout", url, "--frame", "lines", "--", "seq", "3")
    ids = [i.decode() for i, _ in redis("XRANGE", "s", "-", "+")]
    redis("XDEL", "s", ids[1])
    done = mandor.run("cat", url)
    assert done.code == 125 and "entries are missing" in done.complaint, done

    redis("DEL", "t")
    fields = ["job", "j.stdout", "attempt", "1"]
    redis("XADD", "t", "*", *fields, "seq", "0", "off", "0", "data", "abc")
    redis("XADD", "t", "*", *fields, "seq", "1", "eof", "1", "bytes", "3", "entries", "1", "xxh3", "0" * 16)
    done = mandor.run("cat", f"{redis.url}?stream=t")
    assert done.code == 125 and "checksum" in done.complaint, done


def test_a_lower_attempt_can_neither_write_nor_commit(mandor, redis):
    """The worker is stopped, the job's next attempt begins elsewhere, the worker goes on."""
    urls = {"stream": f"{redis.url}?stream=f:{{id}}", "key": f"{redis.url}?key=f:{{id}}", "hash": f"{redis.url}?hash=f:{{id}}&field=x"}
    for kind, url in urls.items():
        job = mandor.add(*sh("echo mine; touch ready; while [ ! -e go ]; do sleep 0.02; done; echo more"), cwd=str(mandor.tmp),
                         stdout=url, frame="lines")
        with mandor.worker():
            wait_for(lambda: (mandor.tmp / "ready").exists(), 20)
            fence = f"{{f:{job}}}:mandor:fence:{job}.stdout"
            wait_for(lambda: redis("EXISTS", fence), 10)
            redis("SET", fence, "7.ab:0")
            (mandor.tmp / "go").touch()
            record = mandor.wait_state(job, "failed")
        assert record["cause"] == "sink" and "attempt 7" in record["error"], record
        if kind == "stream":
            assert not any("eof" in e or e.get("data") == b"more\n" for e in redis.entries(f"f:{job}"))
        else:
            assert redis("EXISTS", f"f:{job}") == 0
        (mandor.tmp / "ready").unlink()
        (mandor.tmp / "go").unlink()


@pytest.mark.parametrize("group", ["", "readers"])
def test_the_bound_holds_the_job_up_until_readers_have_read(mandor, redis, group):
    if group:
        redis("XGROUP", "CREATE", "bound", group, "0", "MKSTREAM")
    url = f"{redis.url}?stream=bound&max_pending=10" + (f"&group={group}" if group else "")
    job = mandor.add("seq", "100", stdout=url, frame="lines")
    most, got = 0, []
    with mandor.worker():
        wait_for(lambda: redis("EXISTS", "bound") and redis("XLEN", "bound") == 10, 20)
        while len(got) < 100:
            if group:
                most = max(most, redis("XLEN", "bound") - len(got))
                read = wait_for(lambda: redis("XREADGROUP", "GROUP", group, "c", "COUNT", "7", "STREAMS", "bound", ">"), 20)[0][1]
            else:
                most = max(most, redis("XLEN", "bound"))
                read = wait_for(lambda: redis("XRANGE", "bound", "-", "+", "COUNT", "7"), 20)
            for entry, fields in read:
                values = dict(zip(fields[::2], fields[1::2]))
                if b"data" in values:
                    got.append(values[b"data"])
                redis("XACK", "bound", group, entry) if group else redis("XDEL", "bound", entry)
        assert mandor.wait_state(job, "completed")
    assert most <= 10
    assert got == [b"%d\n" % n for n in range(1, 101)]


def test_a_value_appears_whole_and_replaces_the_old_one(mandor, redis):
    for url, get in ((f"{redis.url}?key=v%201", ("GET", "v 1")), (f"{redis.url}?hash=h&field=f", ("HGET", "h", "f"))):
        if get[0] == "GET":
            redis("SET", "v 1", "old")
        job = mandor.add(*sh("head -c 5000000 /dev/zero; while [ ! -e go ]; do sleep 0.02; done; echo end"), cwd=str(mandor.tmp), stdout=url)
        with mandor.worker():
            stage = wait_for(lambda: [k for k in redis("KEYS", "*stage*") if redis("STRLEN", k) == 5000000], 20)[0]
            assert 0 < redis("TTL", stage) <= 3600
            assert redis(*get) in (b"old", None)
            (mandor.tmp / "go").touch()
            mandor.wait_state(job, "completed")
        assert redis(*get) == bytes(5000000) + b"end\n"
        assert redis("KEYS", "*stage*") == [] and redis("TTL", "v 1") == -1
        assert mandor.ok("cat", url).out == bytes(5000000) + b"end\n"
        (mandor.tmp / "go").unlink()
    done = mandor.run("run", "--stdout", f"{redis.url}?key=v%201", "--", "sh", "-c", "echo x; exit 1")
    assert done.code == 1
    assert redis("STRLEN", "v 1") == 5000004 and redis("KEYS", "*stage*") == []
    mandor.ok("run", "--stdout", f"{redis.url}?key=v%201", "--", "true")
    assert redis("GET", "v 1") == b""


def test_jobs_of_two_queues_that_write_one_value_never_mix(mandor, redis):
    """Both are attempt 1 of a job `1`: who began last publishes its own bytes alone, and the other one is refused."""
    fences = set()
    with contextlib.ExitStack() as ends:
        for name in "ab":
            broker = ["--broker", f"sqlite:{mandor.tmp}/{name}.db"]
            script = f"while [ ! -e write-{name} ]; do sleep 0.02; done; printf %s {name * 8}; while [ ! -e end-{name} ]; do sleep 0.02; done"
            mandor.ok("add", *broker, "--stdout", f"{redis.url}?key=both", "--", "sh", "-c", script)
            ends.enter_context(mandor.worker(*broker, "--drain"))
            fences.add(wait_for(lambda: {redis("GET", key) for key in redis("KEYS", "*:fence:*")} - fences, 20, f"job {name} to begin").pop())
        for name in "ba":
            (mandor.tmp / f"write-{name}").touch()
            wait_for(lambda: any(redis("GET", key) == name.encode() * 8 for key in redis("KEYS", "*:stage:*")), 20, f"what {name} wrote")
        for name, state in (("a", "failed"), ("b", "completed")):
            (mandor.tmp / f"end-{name}").touch()
            show = ["show", "--broker", f"sqlite:{mandor.tmp}/{name}.db", "1", "--json"]
            wait_for(lambda: mandor.ok(*show).json()["state"] in ("failed", "completed"), 20)
            assert mandor.ok(*show).json()["state"] == state
    assert redis("GET", "both") == b"b" * 8


def test_a_connection_that_breaks_neither_loses_nor_doubles_entries(mandor, redis):
    job = mandor.add("seq", "60000", stdout=f"{redis.url}?stream=broken", frame="lines")
    with mandor.worker():
        for n in (1000, 10000, 30000):
            wait_for(lambda: redis("EXISTS", "broken") and redis("XLEN", "broken") > n, 30)
            redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        record = mandor.wait_state(job, "completed", deadline=60)
    assert record["streams"]["stdout"]["frames"] == 60000
    want = subprocess.run(["seq", "60000"], capture_output=True).stdout
    assert mandor.ok("cat", f"{redis.url}?stream=broken").out == want


@pytest.mark.parametrize("query, lost", [("key=v", "stage"), ("key=v", "all"), ("hash=v&field=f", "stage"), ("hash=v&field=f", "all"), ("stream=v", "all"),
                                         ("stream=v&max_pending=1000", "all")])
def test_what_the_server_loses_meanwhile_is_not_published_as_whole(mandor, redis, query, lost):
    """Somebody deletes it, flushes the server, or a failover forgets it."""
    job = mandor.add(*sh("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"), cwd=str(mandor.tmp), stdout=f"{redis.url}?{query}", frame="lines")
    with mandor.worker():
        place = wait_for(lambda: (redis("KEYS", "*stage*") or [b"v"])[0] if redis("DBSIZE") > 1 else None, 20)
        redis("FLUSHALL") if lost == "all" else redis("DEL", place)
        (mandor.tmp / "go").touch()
        record = mandor.wait_state(job, "failed")
    assert record["cause"] == "sink" and ("GONE" in record["error"] or "GAP" in record["error"]), record
    assert not any("eof" in e for e in redis.entries("v")) if "stream" in query else not redis("EXISTS", "v")


def test_a_value_of_a_silent_job_does_not_expire(mandor, redis):
    job = mandor.add(*sh("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"), cwd=str(mandor.tmp), stdout=f"{redis.url}?key=v")
    with mandor.worker():
        stage = wait_for(lambda: redis("KEYS", "*stage*"), 20)[0]
        redis("EXPIRE", stage, "600")
        wait_for(lambda: redis("TTL", stage) > 3000, 30)
        (mandor.tmp / "go").touch()
        mandor.wait_state(job, "completed")
    assert redis("GET", "v") == b"one\ntwo\n"


def part_read(mandor, url, then):
    """cat url, with then() after its first bytes: its output and how it ended."""
    proc = mandor.popen("cat", url, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    got = proc.stdout.read(1000)
    then()
    got += proc.stdout.read()
    with proc:
        err = proc.stderr.read().decode()
    return got, proc.returncode, err


def test_what_is_read_is_of_one_value(mandor, redis):
    one, other = b"a" * (8 * MIB), b"b" * (8 * MIB)
    for then in (lambda: redis("SET", "v", other), lambda: redis("DEL", "v")):
        redis("SET", "v", one)
        _, code, err = part_read(mandor, f"{redis.url}?key=v", then)
        assert code == 125 and "changed while it was read" in err, err
    redis("SET", "v", one)
    _, code, err = part_read(mandor, f"{redis.url}?key=v", lambda: redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
    assert code == 125 and "connection was lost" in err, err
    assert part_read(mandor, f"{redis.url}?key=v", lambda: None)[:2] == (one, 0)
    redis("HSET", "h", "f", one)
    assert part_read(mandor, f"{redis.url}?hash=h&field=f", lambda: redis("HSET", "h", "f", other))[:2] == (one, 0)
    for size in (0, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1):
        redis("SET", "v", one[:size])
        assert mandor.ok("cat", f"{redis.url}?key=v").out == one[:size]
    for query in ("key=none", "hash=none&field=f", "hash=h&field=none"):
        assert mandor.run("cat", f"{redis.url}?{query}").code == 3


def test_a_reader_whose_connection_breaks_goes_on_where_it_was(mandor, redis):
    url = f"{redis.url}?stream=s"
    mandor.ok("run", "--stdout", url, "--frame", "lines", "--", "seq", "200000")
    out, code, err = part_read(mandor, url, lambda: redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
    assert code == 0, err
    assert out == subprocess.run(["seq", "200000"], capture_output=True).stdout


def test_a_server_that_is_away_and_bad_urls_are_said_clearly(mandor, redis):
    done = mandor.run("run", "--stdout", f"redis://127.0.0.1:{stores.free_port()}?key=x", "--", "true")
    assert done.code == 125 and "refused" in done.cause, done
    redis("SET", "list-not", "x")
    done = mandor.run("run", "--stdout", f"{redis.url}?stream=list-not", "--", "echo", "x")
    assert done.code == 125 and "WRONGTYPE" in done.cause, done


@pytest.mark.parametrize("query, said", [("", "expected one of"), ("?key=", "expected the name of a key"), ("?hash=h", "hash=KEY and field=F together"),
                                         ("?stream=a&key=b", "expected one of"), ("?stream=a&max_pendng=3", "did you mean 'max_pending'"),
                                         ("?strem=a", "did you mean 'stream'"), ("?stream=a&maxlen=x", "maxlen"), ("?key=x%zzy", "'%zz': '%' must"),
                                         ("?key=a%4", "'%4': '%' must"), ("?key=a&b", "'b': what follows '?' is key=value")])
def test_a_bad_url_is_refused_where_it_is_written(mandor, query, said):
    """Before anything runs, and before it is added."""
    url = f"redis://:secret@127.0.0.1:1{query}"
    for words in (("run", "--stdout"), ("add", "--stdout"), ("add", "--stdin")):
        done = mandor.run(*words, url, "--", "true")
        assert done.code == 2 and said in done.complaint and "secret" not in done.complaint, done
    mandor.env["MANDOR_CONFIG"] = str(mandor.tmp / "mandor.yaml")
    (mandor.tmp / "mandor.yaml").write_text(f"queues:\n  q:\n    stdout: '{url}'\n")
    done = mandor.run("work", "--check")
    assert done.code == 2 and said in done.complaint, done


def test_a_stopped_server_holds_the_job_up_in_bounded_memory(mandor, plain_binary):
    with stores.redis() as own, mandor.worker() as worker:
        mandor.wait_state(mandor.add("true", stdout=f"{own.url}?stream=a"), "completed")
        before = hwm_bytes(worker.pid)
        own.proc.send_signal(signal.SIGSTOP)
        job = mandor.add("head", "-c", "200M", "/dev/zero", stdout=f"{own.url}?stream=b")
        try:
            wait_for(lambda: mandor.show(job)["phase"] == "running", 20)
        finally:
            own.proc.send_signal(signal.SIGCONT)
        mandor.wait_state(job, "completed", deadline=60)
        grown = hwm_bytes(worker.pid) - before
    assert grown < 24 * MIB, f"{grown / MIB:.1f} MiB"


@contextlib.contextmanager
def full(redis):
    """Its memory is full, and it evicts nothing."""
    redis("CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        redis("CONFIG", "SET", "maxmemory", "0")


PLACES = ["stream=v", "stream=v&max_pending=100000", "key=v", "hash=v&field=f"]


@pytest.mark.parametrize("query", PLACES)
def test_a_full_server_is_waited_for(mandor, redis, query):
    """Longer than a call's tries last, while it is opened and in the middle."""
    job = mandor.add(*sh("seq 20000; while [ ! -e go ]; do sleep 0.02; done; seq 20000"), cwd=str(mandor.tmp), stdout=f"{redis.url}?{query}", frame="lines")
    with contextlib.ExitStack() as stack:
        with full(redis):
            stack.enter_context(mandor.worker())
            time.sleep(3)
            assert not redis("DBSIZE")
        wait_for(lambda: redis("KEYS", "*stage*") or redis("EXISTS", "v"), 20)
        with full(redis):
            (mandor.tmp / "go").touch()
            time.sleep(3)
            assert mandor.show(job)["state"] == "active"
        record = mandor.wait_state(job, "completed", deadline=30)
    assert record["attempt"] == 1
    want = subprocess.run(["seq", "20000"], capture_output=True).stdout * 2
    assert mandor.ok("cat", f"{redis.url}?{query.split('&max')[0]}").out == want


@pytest.mark.parametrize("query", ["stream=v", "key=v"])
def test_a_server_that_loads_for_long_after_a_restart_is_waited_for(mandor, query):
    with redis_server.Redis(mandor.tmp / "own", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024") as own:
        own.cli("EVAL", "for i = 1, 4000 do redis.call('SET', i, i) end", "0")
        job = mandor.add(*sh("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"), cwd=str(mandor.tmp), stdout=f"redis://127.0.0.1:{own.port}?{query}")
        with mandor.worker():
            wait_for(lambda: int(own.cli("DBSIZE")) == 4002, 20)
            own.kill()
            (mandor.tmp / "go").touch()
            begun = time.monotonic()
            own.start()
            assert time.monotonic() - begun > 3, "it did not load for long"
            record = mandor.wait_state(job, "completed", deadline=30)
        assert record["attempt"] == 1
        assert mandor.ok("cat", f"redis://127.0.0.1:{own.port}?{query}").out == b"one\ntwo\n"


@pytest.mark.parametrize("query", ["stream=v", "key=v"])
def test_a_source_that_loads_for_long_after_a_restart_is_waited_for(mandor, query):
    """Away, then loading: when stdin is opened, and while a stream of many entries is read."""
    with redis_server.Redis(mandor.tmp / "own", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024") as own:
        own.cli("EVAL", "for i = 1, 4000 do redis.call('SET', i, i) end", "0")
        url = f"redis://127.0.0.1:{own.port}?{query}"
        want = b"".join(b"%0999d\n" % i for i in range(300))
        (mandor.tmp / "want").write_bytes(want)
        mandor.ok("run", "--stdout", url, "--frame", "lines", "--", "cat", str(mandor.tmp / "want"))
        script = "dd bs=1 count=100 status=none; echo >begun; while [ ! -e go ]; do sleep 0.02; done; cat" if "stream" in query else "cat"
        own.kill()
        begun = time.monotonic()
        job = mandor.add(*sh(script), cwd=str(mandor.tmp), stdin=url, stdout=f"file:{mandor.tmp}/out")
        with mandor.worker():
            for _ in range(2 if "stream" in query else 1):
                own.start()
                if "stream" in query and not (mandor.tmp / "go").exists():
                    wait_for((mandor.tmp / "begun").exists, 20)
                    own.kill()
                    (mandor.tmp / "go").touch()
            assert time.monotonic() - begun > 3, "it did not load for long"
            record = mandor.wait_state(job, "completed", "failed", deadline=30)
        assert (record["state"], record["attempt"]) == ("completed", 1), record
        assert (mandor.tmp / "out").read_bytes() == want


@pytest.mark.parametrize("query", PLACES)
def test_a_server_that_stays_full_fails_the_attempt_after_sink_timeout_and_says_why(mandor, redis, query):
    job = mandor.add(*sh("echo one; while [ ! -e go ]; do sleep 0.02; done; seq 2000000"), cwd=str(mandor.tmp), stdout=f"{redis.url}?{query}",
                     frame="lines", sink_timeout="12s", attempts=1)
    with mandor.worker():
        wait_for(lambda: redis("KEYS", "*stage*") or redis("EXISTS", "v"), 20)
        with full(redis):
            begun = time.monotonic()
            (mandor.tmp / "go").touch()
            record = mandor.wait_state(job, "failed", deadline=60)
            took = time.monotonic() - begun
            assert not redis("KEYS", "*stage*")
    assert record["cause"] == "sink" and "OOM" in record["error"], record
    assert 8 < took < 50, took  # a minute is what a sink has when nothing is said


# ---- memcached ----


@pytest.mark.parametrize("size", [0, 1, 1_000_000, 1_000_001, 5_300_000])
def test_memcached_holds_values_of_any_length(mandor, size):
    with stores.memcached() as port:
        url = f"memcached://127.0.0.1:{port}/out%2F{{id}}"
        body = bytes(i * 7 % 251 for i in range(65521)) * (size // 65521 + 1)
        (mandor.tmp / "in").write_bytes(body[:size])
        for _ in range(2):  # the second replaces the first, whose parts go
            mandor.ok("run", "--stdout", url.replace("{id}", "x"), "--", "cat", str(mandor.tmp / "in"))
        assert mandor.ok("cat", url.replace("{id}", "x")).out == body[:size]
        done = mandor.run("run", "--stdin", url.replace("{id}", "x"), "--", "sha256sum")
        assert done.text.split()[0] == hashlib.sha256(body[:size]).hexdigest()
        parts = -(-size // 1_000_000) if size > 1_000_000 else 0
        assert memcached_items(port) == parts + 1 + 2  # each attempt of `run` is a job of its own: two fences


def memcached_items(port):
    import socket
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"stats\r\nquit\r\n")
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(next(line.split()[2] for line in text.splitlines() if line.startswith("STAT curr_items ")))


@pytest.mark.parametrize("command, size", [(b"set k.", 3_000_000), (b"touch k.", 3_000_000), (b"gets k", 10), (b"add k ", 0), (b"add k ", 10),
                                           (b"add k ", 3_000_000), (b"cas k ", 10), (b"cas k ", 3_000_000)])
def test_memcached_a_connection_that_breaks_is_made_again(mandor, command, size):
    """Also where the server has carried it out: the value is looked at, and what it took the place of goes."""
    with stores.memcached() as port, redis_server.Proxy(port) as proxy:
        if command.startswith(b"cas"):
            mandor.ok("run", "--stdout", f"memcached://127.0.0.1:{port}/k", "--", "head", "-c", "4000000", "/dev/urandom")
        before, lost = memcached_items(port), []

        def lose(request):
            if lost or command not in request:
                return False
            lost.append(request)
            return True
        proxy.lose = lose
        mandor.ok("run", "--stdout", f"memcached://127.0.0.1:{proxy.port}/k", "--", "head", "-c", str(size), "/dev/zero")
        assert lost and mandor.ok("cat", f"memcached://127.0.0.1:{port}/k").out == bytes(size)
        parts = -(-size // 1_000_000) if size > 1_000_000 else 0
        assert memcached_items(port) == parts + 1 + 1 + (1 if before else 0)  # the value, and a fence for each `run`


def test_memcached_shows_nothing_of_an_attempt_that_failed_and_says_what_is_missing(mandor):
    import socket
    with stores.memcached() as port:
        url = f"memcached://127.0.0.1:{port}/k"
        assert mandor.run("run", "--stdout", url, "--", "sh", "-c", "head -c 3000000 /dev/zero; exit 1").code == 1
        assert mandor.run("cat", url).code == 3
        assert memcached_items(port) == 1
        mandor.ok("run", "--stdout", url, "--", "head", "-c", "3000000", "/dev/zero")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"get k\r\n")
            manifest = connection.recv(65536)
            prefix = manifest.split(b'"prefix":"')[1].split(b'"')[0]
            connection.sendall(b"set %s.1 0 0 3\r\nabc\r\n" % prefix)
            assert connection.recv(100) == b"STORED\r\n"
        done = mandor.run("cat", url)
        assert done.code == 125 and "not what its manifest says" in done.complaint, done
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"delete %s.1\r\n" % prefix)
            assert connection.recv(100) == b"DELETED\r\n"
        assert mandor.run("cat", url).code == 125
    done = mandor.run("run", "--stdout", url, "--", "true", timeout=60)
    assert done.code == 125 and "memcached" in done.cause, done


def test_memcached_keeps_the_parts_of_a_long_job(mandor):
    with stores.memcached() as port, mandor.worker():
        job = mandor.add(*sh("head -c 1500000 /dev/zero; sleep 600"), stdout=f"memcached://127.0.0.1:{port}/k")

        def parts():
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"lru_crawler metadump all\r\n")
                text = connection.makefile("rb")
                return [line.split() for line in iter(text.readline, b"END\r\n") if line.startswith(b"key=k.1.")]
        found = wait_for(parts, 20)
        mandor.ok("cancel", job, "--wait")
        assert int(found[0][1].removeprefix(b"exp=")) - time.time() > 20 * 3600


class Meanwhile:
    """A proxy to memcached.  Before it passes on the first command that sets `key`, a later attempt begins and publishes."""

    def __init__(self, port, key):
        self.target, self.key, self.fence, self.done = port, key, None, False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def later_attempt(self):
        with socket.create_connection(("127.0.0.1", self.target)) as direct:
            for key, value in ((self.fence, b"9"), (self.key, b"newer")):
                direct.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
                assert direct.recv(100) == b"STORED\r\n"

    def pump(self, client):
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            while ready := select.select([client, server], [], [], 30)[0]:
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    words = data.split()
                    if end is client and words[0] in (b"get", b"gets") and b".mandor." in words[1]:
                        self.fence = words[1]
                    if end is client and words[0] in (b"set", b"add", b"cas") and words[1] == self.key and not self.done:
                        self.done = True
                        self.later_attempt()
                    (server if end is client else client).sendall(data)

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.pump, args=(self.server.accept()[0],), daemon=True).start()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("size", [10, 1_500_000])
def test_memcached_a_lower_attempt_does_not_replace_what_a_higher_one_has_published(mandor, before, size):
    with stores.memcached() as port:
        if before:
            mandor.ok("run", "--stdout", f"memcached://127.0.0.1:{port}/out", "--", "echo", "older")
        meanwhile = Meanwhile(port, b"out")
        done = mandor.run("run", "--stdout", f"memcached://127.0.0.1:{meanwhile.port}/out", "--", "head", "-c", str(size), "/dev/zero")
        assert meanwhile.done and done.code == 125 and "attempt 9 has begun since" in done.complaint, done
        assert mandor.ok("cat", f"memcached://127.0.0.1:{port}/out").out == b"newer"
        meanwhile.server.close()
