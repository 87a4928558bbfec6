"""Redis as a sink and as a source: an entry a frame, values that appear whole, the attempt that fences, the bound that holds the job up."""
import contextlib
import hashlib
import signal
import subprocess

import pytest

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
        assert proc.wait(20) == 0
        proc.stdout.close()


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


def test_a_server_that_is_away_and_bad_urls_are_said_clearly(mandor, redis):
    done = mandor.run("run", "--stdout", f"redis://127.0.0.1:{stores.free_port()}?key=x", "--", "true")
    assert done.code == 125 and "refused" in done.cause, done
    redis("SET", "list-not", "x")
    done = mandor.run("run", "--stdout", f"{redis.url}?stream=list-not", "--", "echo", "x")
    assert done.code == 125 and "WRONGTYPE" in done.cause, done
    for query in ("", "?key=", "?hash=h", "?stream=a&key=b", "?strem=a"):
        done = mandor.run("run", "--stdout", f"{redis.url}{query}", "--", "true")
        assert done.code == 2 and "expected" in done.complaint, (query, done)
    done = mandor.run("run", "--stdout", f"{redis.url}?stream=a&max_pendng=3", "--", "true")
    assert done.code == 125 and "did you mean 'max_pending'" in done.cause, done


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
