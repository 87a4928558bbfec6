"""I4: a sink gets what the child wrote, byte by byte, whatever the sizes, frames, speeds and ends."""
import contextlib
import hashlib
import os
import shutil
import subprocess
import time

import pytest

from harness import SOAK, hwm_bytes, read_until, rss_bytes, sh, status_field, wait_for

BLOCK = bytes(range(256)) * 1024


def writer(size, fd=1, chunk=65536, then=""):
    """A program that writes `size` bytes of a known pattern (all 256 values)."""
    return ["python3", "-c",
            f"import os\np = bytes(range(256)) * 1024\nleft = {size}\n"
            f"while left:\n    left -= os.write({fd}, p[:min(left, {chunk})])\n{then}"]


def pattern(size, chunk=65536):
    """What writer() writes when every write is taken whole."""
    piece = BLOCK[:chunk]
    return (piece * (size // chunk + 1))[:size // chunk * chunk] + piece[:size % chunk]


def digest(path):
    result = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            result.update(data)
    return result.hexdigest()


SIZES = [0, 1, 65535, 65536, 65537, 262144, 1_000_003]


@pytest.mark.parametrize("sink", ["auto", "file", "inherit"])
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_of_every_size_arrives(mandor, size, sink):
    if sink == "inherit":
        assert mandor.ok("run", "--", *writer(size)).out == pattern(size)
        return
    keys = {} if sink == "auto" else {"stdout": f"file:{mandor.tmp}/out"}
    job = mandor.add(*writer(size), **keys)
    mandor.drain()
    record = mandor.show(job)
    stream = record["streams"]["stdout"]
    assert record["state"] == "completed" and stream["bytes"] == size and stream["committed"], record
    got = mandor.logs_of(job, "--stdout") if sink == "auto" else (mandor.tmp / "out").read_bytes()
    assert got == pattern(size)


def xxh3(path):
    """xxHash3-64 as hex by the xxhsum program, or None."""
    if not shutil.which("xxhsum"):
        return None
    return subprocess.run(["xxhsum", "-H3", path], capture_output=True, text=True).stdout.split("=")[-1].split()[-1].removeprefix("XXH3_")


def test_the_record_names_the_checksum_and_it_depends_on_the_bytes(mandor):
    jobs = mandor.add_many([{"exec": ["printf", "%s", text], "stdout": f"file:{mandor.tmp}/o{i}"} for i, text in enumerate("aab")])
    mandor.drain()
    a, same, other = (mandor.show(job)["streams"]["stdout"]["xxh3"] for job in jobs)
    assert a == same != other and len(a) == 16, (a, same, other)
    assert a == "e6c632b61e964e1f"  # XXH3-64 of "a", from the algorithm's own test values


@pytest.mark.slow
def test_a_gibibyte_arrives_whole_with_memory_flat(mandor):
    size = 1 << 30
    out = mandor.tmp / "big"
    job = mandor.add(*writer(size), stdout=f"file:{out}")
    with mandor.worker() as worker:
        record = mandor.wait_state(job, "completed", deadline=250)
        peak = hwm_bytes(worker.pid)
    assert record["streams"]["stdout"]["bytes"] == out.stat().st_size == size
    expected = hashlib.sha256()
    for _ in range(size // len(BLOCK)):
        expected.update(BLOCK)
    assert digest(out) == expected.hexdigest()
    assert peak < 400 << 20  # a sanitizer's share included
    out.unlink()


def test_what_goes_through_cat_comes_out_equal_R42(mandor):
    source = mandor.tmp / "in"
    source.write_bytes(os.urandom(1 << 20) * 64)
    job = mandor.add("cat", stdin=f"file:{source}", stdout=f"file:{mandor.tmp}/out")
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert digest(source) == digest(mandor.tmp / "out")


def test_a_payload_for_a_program_that_does_not_read_yet_stays_on_disk_R114(mandor, plain_binary):
    source = mandor.tmp / "in"
    with open(source, "wb") as file:
        file.truncate(2 << 30)
    gate = mandor.tmp / "gate"
    with mandor.worker() as worker:
        warm = mandor.add("cat", stdin=f"inline:x")
        mandor.wait_state(warm, "completed")
        before = rss_bytes(worker.pid)
        job = mandor.add(*sh(f"until [ -e {gate} ]; do sleep 0.02; done; head -c 300000000 | wc -c"), stdin=f"file:{source}")
        mandor.wait_phase(job, "running")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert rss_bytes(worker.pid) - before < 4 << 20
            time.sleep(0.1)
        gate.touch()
        mandor.wait_state(job, "completed")
        assert rss_bytes(worker.pid) - before < 4 << 20
        assert mandor.logs_of(job, "--stdout").strip() == b"300000000"


@pytest.mark.parametrize("first", [1, 2])
def test_both_pipes_are_read_whichever_is_full_first_R41(mandor, first):
    size = 4 << 20
    script = f"import os\np = bytes(range(256)) * 4096\nfor fd in ({first}, {3 - first}):\n    left = {size}\n    while left: left -= os.write(fd, p[:min(left, 65536)])"
    job = mandor.add("python3", "-c", script, stdout=f"file:{mandor.tmp}/o", stderr=f"file:{mandor.tmp}/e")
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert (mandor.tmp / "o").read_bytes() == (mandor.tmp / "e").read_bytes() == pattern(size)


def test_the_last_64_kib_are_never_lost_R43(mandor):
    """The exit is seen before the pipe is empty, again and again."""
    count = 5000 if SOAK else 300
    mandor.add_many([{"exec": ["head", "-c", "65536", "/dev/zero"], "stdout": f"file:{mandor.tmp}/out/{{id}}"}] * count)
    mandor.drain("--concurrency", "8", timeout=250)
    records = mandor.list("--state", "completed")
    assert len(records) == count or len(mandor.states()) == count
    files = list((mandor.tmp / "out").iterdir())
    assert len(files) == count and all(f.stat().st_size == 65536 for f in files)


def test_data_left_in_the_pipe_at_the_end_of_a_paused_stream_arrives_R51_R52(mandor):
    """The reader is slow, the program ends with its pipe full: quiet while paused, whole afterwards."""
    size = 900_000
    proc = mandor.popen("run", "--", *writer(size), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    worker = wait_for(lambda: [p for p in mandor.left() if p != proc.pid and status_field(p, "Name").startswith("mandor")])[0]
    assert proc.stdout.read(1) == b"\0"

    def ticks():
        fields = open(f"/proc/{worker}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    start = time.monotonic()
    before = ticks()
    while time.monotonic() - start < 1.5:
        time.sleep(0.1)
    assert ticks() - before < 30, "the worker burns CPU while its stream is paused"
    rest = proc.stdout.read()
    assert b"\0" + rest == pattern(size)
    assert proc.wait(60) == 0
    proc.stdout.close()
    proc.stderr.close()


def test_a_line_of_16_mib_is_never_lost_R45(mandor):
    job = mandor.add(*sh("head -c 16777216 /dev/zero | tr '\\0' a; printf '\\nsecond\\nthird\\n'"), frame="lines", stdout=f"file:{mandor.tmp}/out")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed", record
    assert (mandor.tmp / "out").read_bytes() == b"a" * (16 << 20) + b"\nsecond\nthird\n"
    assert record["streams"]["stdout"]["frames"] >= 16 + 2


def test_an_unterminated_last_line_of_a_killed_program_is_delivered_R46(mandor):
    job = mandor.add(*sh("printf a; kill -9 $$"), frame="lines")
    mandor.drain()
    record = mandor.show(job)
    assert record["cause"] == "signal" and record["streams"]["stdout"]["bytes"] == 1 and record["streams"]["stdout"]["frames"] == 1, record
    assert mandor.logs_of(job, "--stdout") == b"a"


def test_a_character_that_straddles_chunks_is_not_broken_R47(mandor):
    job = mandor.add("python3", "-c", "import os,time\nfor b in b'\\xe2\\x89\\xa4':\n    os.write(2, bytes([b])); time.sleep(0.1)")
    mandor.drain()
    err = mandor.show(job)["streams"]["stderr"]
    assert err["tail"] == "≤" and "tail_b64" not in {k for k, v in err.items() if v is not None}, err
    assert mandor.logs_of(job, "--stderr") == "≤".encode()


def test_a_tail_that_is_no_text_is_kept_as_base64_too(mandor):
    import base64
    job = mandor.add("printf", "\\377\\000x", stderr="auto:")
    job = mandor.add(*sh("printf 'ok\\377\\000' >&2"))
    mandor.drain()
    err = mandor.show(job)["streams"]["stderr"]
    assert "�" in err["tail"] and base64.b64decode(err["tail_b64"]) == b"ok\xff\0", err


def test_progress_by_carriage_returns_flows_with_memory_flat_R49(mandor, plain_binary):
    count = 2_000_000
    job = mandor.add("python3", "-c", f"import sys\nfor i in range({count}): sys.stdout.write('frame=%d\\r' % i)", frame="lines", stdout="null:")
    with mandor.worker() as worker:
        pid = worker.pid
        mandor.wait_phase(job, "running")
        before = rss_bytes(pid)
        record = mandor.wait_state(job, "completed")
        assert rss_bytes(pid) - before < 8 << 20
    assert record["streams"]["stdout"]["bytes"] == sum(len(f"frame={i}\r") for i in range(count))


@pytest.mark.parametrize("policy", ["kill", "discard"])
def test_output_over_the_cap_follows_the_policy_R50(mandor, policy):
    cmd = ["yes"] if policy == "kill" else sh("yes | head -c 50000000")
    job = mandor.add(*cmd, output_max="10M", output_policy=policy, timeout="10m")
    mandor.drain()
    record = mandor.show(job)
    stream = record["streams"]["stdout"]
    if policy == "kill":
        assert record["state"] == "failed" and record["cause"] == "limit", record
    else:
        assert record["state"] == "completed" and stream["bytes"] == 50_000_000, record
        assert stream.get("discarded_bytes", stream.get("discarded", 0)) >= 50_000_000 - (11 << 20), stream
        assert len(mandor.logs_of(job, "--stdout")) < 11 << 20


# ---- frames ----


def frames_of(kind, payloads):
    import struct
    out = b""
    for data in payloads:
        if kind == "u32be":
            out += struct.pack(">I", len(data)) + data
        elif kind == "u32le":
            out += struct.pack("<I", len(data)) + data
        elif kind == "varint":
            n = len(data)
            while n > 127:
                out += bytes([n & 127 | 128])
                n >>= 7
            out += bytes([n]) + data
        elif kind == "netstring":
            out += str(len(data)).encode() + b":" + data + b","
        elif kind == "lines":
            out += data.replace(b"\n", b"") + b"\n"
    return out


@pytest.mark.parametrize("chunk", [1, 7, 65536])
@pytest.mark.parametrize("kind", ["lines", "u32be", "u32le", "varint", "netstring"])
def test_frames_are_counted_across_any_chunk_boundary(mandor, kind, chunk):
    data = frames_of(kind, [b"", b"x", b"y" * 127, b"z" * 128, b"\0\n\r,:" * 50])
    (mandor.tmp / "data").write_bytes(data)
    script = f"import os\nd = open('{mandor.tmp}/data','rb').read()\nfor i in range(0, len(d), {chunk}): os.write(1, d[i:i+{chunk}])"
    job = mandor.add("python3", "-c", script, frame=kind)
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed", record
    assert record["streams"]["stdout"]["frames"] == 5, record["streams"]
    assert mandor.logs_of(job, "--stdout") == data


@pytest.mark.parametrize("kind, data", [("u32be", b"\0\0\0\5abc"), ("u32le", b"\5\0\0\0abc"), ("varint", b"\5abc"), ("netstring", b"5:abc"),
                                        ("netstring", b"3:abcX"), ("netstring", b"x"), ("u32be", b"\xff\xff\xff\xffabc"),
                                        ("varint", b"\xff" * 11)])
def test_a_torn_or_absurd_frame_is_a_protocol_error_with_its_offset(mandor, kind, data):
    (mandor.tmp / "data").write_bytes(frames_of(kind, [b"good"]) + data)
    job = mandor.add("cat", str(mandor.tmp / "data"), frame=kind, stdout=f"file:{mandor.tmp}/out")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and record["cause"] == "protocol", record
    assert any(ch.isdigit() for ch in record["error"]) and ("offset" in record["error"] or "byte" in record["error"]), record["error"]
    assert not (mandor.tmp / "out").exists()


# ---- sinks ----


def test_auto_keeps_short_output_in_the_record_and_spills_long_output(mandor):
    short, long = mandor.add(*writer(65536)), mandor.add(*writer(65537))
    mandor.drain()
    assert mandor.logs_of(short, "--stdout") == pattern(65536)
    assert mandor.logs_of(long, "--stdout") == pattern(65537)
    assert not (mandor.data / "output" / short).exists()
    spilled = [p for p in mandor.data.rglob("*") if p.is_file() and p.stat().st_size == 65537]
    assert len(spilled) == 1, list(mandor.data.rglob("*"))
    assert mandor.show(long)["streams"]["stdout"]["target"] == str(spilled[0])
    mandor.ok("rm", long)
    wait_for(lambda: not spilled[0].exists(), what="rm to take the spilled file along")


def test_output_of_a_failed_job_under_auto_is_kept(mandor):
    job = mandor.add(*sh("echo partial; head -c 100000 /dev/zero; exit 1"))
    mandor.drain()
    assert mandor.logs_of(job, "--stdout") == b"partial\n" + b"\0" * 100000


def test_stdout_file_is_published_on_success_only_and_stderr_always_R111(mandor):
    job = mandor.add(*sh("echo half; echo why >&2; kill -9 $$"), stdout=f"file:{mandor.tmp}/d/out", stderr=f"file:{mandor.tmp}/d/{{id}}.{{attempt}}.err")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed"
    assert sorted(p.name for p in (mandor.tmp / "d").iterdir()) == [f"{job}.1.err"]
    assert (mandor.tmp / "d" / f"{job}.1.err").read_text() == "why\n"
    assert (record["streams"]["stdout"]["committed"], record["streams"]["stderr"]["committed"]) == (False, True)


def test_what_is_published_on_success_only_is_published_together(mandor):
    """stdout cannot be published, which shows only at the end: then stderr is not either, where it is to be seen on success only."""
    script = f"echo out; echo err >&2; mkdir -p {mandor.tmp}/$MANDOR_JOB_ID.out"
    streams = {"stdout": f"file:{mandor.tmp}/{{id}}.out", "stderr": f"file:{mandor.tmp}/{{id}}.err"}
    both, always = (mandor.add(*sh(script), **streams, **more) for more in ({"commit": "success"}, {}))
    fine = mandor.add(*sh("echo out; echo err >&2"), **streams, commit="success")
    mandor.drain()
    for job in (both, always):
        record = mandor.show(job)
        assert (record["state"], record["cause"]) == ("failed", "sink") and "a directory" in record["error"], record
    assert not (mandor.tmp / f"{both}.err").exists() and not list(mandor.tmp.glob(".mandor.*"))
    assert (mandor.tmp / f"{always}.err").read_text() == "err\n"
    assert (mandor.tmp / f"{fine}.out").read_text() == "out\n" and (mandor.tmp / f"{fine}.err").read_text() == "err\n"


def test_jobs_of_two_queues_with_one_number_write_into_one_directory(mandor):
    brokers = [("--broker", f"sqlite:{mandor.tmp}/{name}.db") for name in "ab"]
    with contextlib.ExitStack() as ends:
        for name, broker in zip("ab", brokers):
            script = f"echo {name}; while [ ! -e {mandor.tmp}/go ]; do sleep 0.02; done"
            assert mandor.ok("add", *broker, "--stdout", f"file:{mandor.tmp}/out/{name}", "--", *sh(script)).text.strip() == "1"
            ends.enter_context(mandor.worker(*broker, "--drain"))
        wait_for(lambda: len(list((mandor.tmp / "out").glob(".mandor.1.1.*"))) == 2, what="both to write")
        (mandor.tmp / "go").touch()
        wait_for(lambda: all(mandor.ok("show", *broker, "1", "--json").json()["state"] == "completed" for broker in brokers))
    assert {p.name: p.read_text() for p in (mandor.tmp / "out").iterdir()} == {"a": "a\n", "b": "b\n"}


def test_a_timed_out_job_publishes_nothing_R111(mandor):
    job = mandor.add(*sh('trap "exit 0" TERM; echo half; sleep 600 & wait'), timeout="300ms", stdout=f"file:{mandor.tmp}/d/out")
    mandor.drain()
    assert mandor.show(job)["cause"] == "timeout"
    assert list((mandor.tmp / "d").glob("*")) == [] and list((mandor.tmp / "d").glob(".*")) == []


def test_commit_can_be_asked_for_always(mandor):
    mandor.add(*sh("echo half; exit 1"), stdout=f"file:{mandor.tmp}/out", commit="always")
    mandor.drain()
    assert (mandor.tmp / "out").read_text() == "half\n"


def test_the_file_is_not_visible_before_the_job_has_ended(mandor):
    gate, out = mandor.tmp / "gate", mandor.tmp / "d" / "out"
    job = mandor.add(*sh(f"echo x; until [ -e {gate} ]; do sleep 0.02; done"), stdout=f"file:{out}")
    with mandor.worker():
        mandor.wait_phase(job, "running")
        assert not out.exists()
        gate.touch()
        mandor.wait_state(job, "completed")
        assert out.read_text() == "x\n"


def test_attempts_never_mix_in_a_file(mandor):
    job = mandor.add(*sh('echo "attempt $MANDOR_ATTEMPT"; [ "$MANDOR_ATTEMPT" = 3 ]'), attempts=3, backoff={"type": "fixed", "delay": "10ms"},
                     stdout=f"file:{mandor.tmp}/out")
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"
    assert (mandor.tmp / "out").read_text() == "attempt 3\n"
    assert [p.name for p in mandor.tmp.iterdir() if p.name.startswith(".mandor")] == []


def test_templates_are_filled_and_values_cannot_leave_the_directory(mandor):
    job = mandor.add("echo", "x", queue="../up/.q", stdout=f"file:{mandor.tmp}/t/{{queue}}/{{id}}-{{attempt}}-{{stream}}-{{{{")
    mandor.drain("--queue", "../up/.q")
    assert mandor.show(job)["state"] == "completed", mandor.show(job)
    found = [p for p in (mandor.tmp / "t").rglob("*") if p.is_file()]
    assert len(found) == 1 and found[0].name == f"{job}-1-stdout-{{", found
    assert found[0].parent.parent == mandor.tmp / "t" and "/" not in found[0].parent.name
    assert not found[0].parent.name.startswith("."), found


def test_an_unknown_placeholder_is_refused_by_name(mandor):
    done = mandor.run("add", "--stdout", "file:/tmp/{nmae}", "--", "true")
    if done.code == 0:
        mandor.drain()
        record = mandor.show(done.text.strip())
        assert record["state"] == "failed" and "nmae" in record["error"], record
    else:
        assert "nmae" in done.complaint, done


def test_a_target_that_became_a_link_is_not_written_through(mandor):
    gate, out = mandor.tmp / "gate", mandor.tmp / "out"
    victim = mandor.tmp / "victim"
    victim.write_text("precious")
    job = mandor.add(*sh(f"echo x; until [ -e {gate} ]; do sleep 0.02; done"), stdout=f"file:{out}")
    with mandor.worker():
        mandor.wait_phase(job, "running")
        out.symlink_to(victim)
        gate.touch()
        mandor.wait_state(job, "completed", "failed")
    assert victim.read_text() == "precious"


def test_a_descendant_that_keeps_the_pipe_never_hangs_a_job_R22(mandor):
    job = mandor.add(*sh("sleep 600 & echo ok; exit 0"))
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "completed" and record["descendants_killed"] >= 1, record
    assert mandor.logs_of(job, "--stdout") == b"ok\n"


def test_a_descendant_that_writes_for_ever_is_cut_at_output_drain(mandor):
    job = mandor.add(*sh("while :; do echo x; sleep 0.05; done & exit 0"), output_drain="1s")
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"


def test_fd_3_held_by_a_descendant_never_hangs_a_job(mandor):
    job = mandor.add(*sh("sleep 600 >/dev/null 2>&1 & exit 0"))
    mandor.drain()
    assert mandor.show(job)["state"] == "completed"


def test_a_writer_outside_of_the_containment_never_hangs_a_job(mandor):
    """The pipe was handed to a process that is not the job's: end of file never comes."""
    import array
    import socket
    path = str(mandor.tmp / "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(1)
    job = mandor.add("python3", "-c", f"import socket,array\ns = socket.socket(socket.AF_UNIX); s.connect({path!r})\n"
                                      "s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1]))])\nprint('sent')")
    with mandor.worker():
        peer, _ = server.accept()
        _, ancillary, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(4))
        fd = array.array("i", ancillary[0][2][:4])[0]
        record = mandor.wait_state(job, "completed")
        assert record["streams"]["stdout"]["bytes"] == 5
        os.close(fd)
    server.close()
    peer.close()


def test_a_stalled_sink_ends_the_attempt_as_sink(mandor):
    """A FIFO nobody reads is no regular file: refused.  A full one is what stalls; file: knows only regular files."""
    os.mkfifo(mandor.tmp / "fifo")
    job = mandor.add("echo", "x", stdout=f"file:{mandor.tmp}/fifo")
    mandor.drain()
    record = mandor.show(job)
    assert record["state"] == "failed" and record["cause"] == "sink" and "fifo" in record["error"], record
    assert (mandor.tmp / "fifo").is_fifo()


def test_logs_of_a_running_job_follow_from_the_start_to_the_end(mandor):
    gate = mandor.tmp / "gate"
    job = mandor.add(*sh(f"echo first; until [ -e {gate} ]; do sleep 0.02; done; echo last"))
    with mandor.worker():
        mandor.wait_phase(job, "running")
        proc = mandor.popen("logs", job, "-f", "--stdout", stdout=subprocess.PIPE)
        head = read_until(proc.stdout.fileno(), b"first\n")
        gate.touch()
        rest = proc.stdout.read()
        assert head + rest == b"first\nlast\n"
        assert proc.wait(60) == 0
        proc.stdout.close()


def test_a_follower_that_reads_nothing_never_slows_the_job(mandor):
    gate = mandor.tmp / "gate"
    job = mandor.add(*sh(f"until [ -e {gate} ]; do echo up; sleep 0.02; done; head -c 50000000 /dev/zero"), stdout="null:")
    with mandor.worker():
        mandor.wait_phase(job, "running")
        proc = mandor.popen("logs", job, "-f", "--stdout", stdout=subprocess.PIPE)
        read_until(proc.stdout.fileno(), b"up\n")  # and no more
        gate.touch()
        mandor.wait_state(job, "completed")
        proc.kill()
        proc.wait()
        proc.stdout.close()
