"""The whole of it at once: stock BullMQ producers, one `mandor work`, and Python in its sandbox with a local wheel store, FFmpeg into S3, a warm pool."""
import json
import pathlib
import shutil
import subprocess

import pytest

import bullmq
import s3
import snakes
import wheel_lab
from harness import ROOT

MISSING = bullmq.missing() or snakes.why_not() or ("" if shutil.which("ffmpeg") else "ffmpeg is not installed")
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")

POOL_WORKER = str(ROOT / "tests" / "lib" / "pool_worker.py")
WAIT = """
const ev = await events(QUEUE), q = queue(QUEUE);
q.setMaxListeners(0);
const settle = (job) => job.waitUntilFinished(ev, 180000).then((value) => ({ value }), (error) => ({ error: error.message }));
"""


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    with s3.server(tmp_path_factory.mktemp("s3")) as client:
        yield client


@pytest.fixture
def story(mandor, tmp_path, swift):
    """(stock producer, configured mandor): a wheel store with one package, three queues of BullMQ."""
    server = bullmq.Server(tmp_path)
    stock = bullmq.Stock(6, server.port)
    store, wheels = mandor.tmp / "store", mandor.tmp / "wheels"
    wheels.mkdir()
    wheel_lab.wheel(wheels, "shapes", "1.2", files={"shapes/__init__.py": "def area(w, h):\n    return w * h\n"})
    broker = server.url()
    path = mandor.tmp / "mandor.yaml"
    path.write_text(json.dumps({
        "broker": broker, "concurrency": 4, "shutdown_timeout": "1s",
        "queues": {
            "python-tasks": {"executor": "python", "runtime": "data", "timeout": "12s", "kill_after": "5s"},
            "transcode": {"executor": "exec", "command": ["ffmpeg", "-v", "error", "-i", "{data.file}", "-f", "{data.format}", "-"],
                          "stdout": "s3://media/{id}.out"},
            "thumbs": {"executor": "pool", "pool": "warm"}},
        "pools": {"warm": {"command": ["/usr/bin/python3", "-S", POOL_WORKER], "size": 2}},
        "python": {"store": str(store), "runtimes": {"data": {"packages": ["shapes"], "preload": ["shapes"], "spare": 2}}},
        "sinks": {"s3": {"part_size": "5M"}}}))
    mandor.env.update(swift.env(), MANDOR_CONFIG=str(path), MANDOR_BROKER=broker)
    mandor.ok("wheels", "import", str(wheels))
    yield stock, mandor
    stock.stop()
    server.stop()


def test_a_stock_producers_python_runs_offline_and_alone(story):
    stock, mandor = story
    with mandor.worker():
        got = stock.js(WAIT + """
            const jobs = await q.addBulk([
                { name: "area", data: { code: "import shapes\\nshapes.area(**params)", params: { w: 6, h: 7 } } },
                { name: "plant", data: { code: "import shapes, builtins\\nshapes.area = None\\nbuiltins.planted = 1\\n'planted'" } },
                { name: "loop", data: { code: "while True: pass" } },
            ]);
            const first = await Promise.all(jobs.map(settle));
            const after = await q.add("look", { code: "import shapes, builtins\\n[shapes.area(2, 3), hasattr(builtins, 'planted')]" });
            const wrong = await q.add("wrong", { code: "1\\n2/0" });
            const last = [await settle(after), await settle(wrong)];
            return { first, last, states: await Promise.all([...jobs, after, wrong].map((job) => job.getState())),
                     reason: (await q.getJob(jobs[2].id)).failedReason, trace: (await q.getJob(wrong.id)).stacktrace };
        """, timeout=200, QUEUE="python-tasks")
    assert got["first"][0] == {"value": 42} and got["first"][1] == {"value": "planted"}
    assert "timeout" in got["reason"] and "error" in got["first"][2], got
    assert got["last"][0] == {"value": [6, False]}, "the next job must see nothing of the one before"
    assert "division by zero" in got["last"][1]["error"] and any("line 2" in trace for trace in got["trace"]), got
    assert got["states"] == ["completed", "completed", "failed", "completed", "failed"]


def test_a_stock_producers_film_goes_through_ffmpeg_into_object_storage(story, swift):
    stock, mandor = story
    film = mandor.tmp / "test.mkv"
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=size=160x120:rate=10:duration=1", "-c:v", "ffv1", str(film)], check=True)
    with mandor.worker():
        got = stock.js(WAIT + """
            const jobs = [await q.add("ok", { file: FILM, format: "matroska" }), await q.add("gone", { file: "/nonexistent.mkv", format: "matroska" }),
                          await q.add("shell", { file: "$(touch /tmp/never); -y", format: "matroska" })];
            return { ids: jobs.map((job) => job.id), ends: await Promise.all(jobs.map(settle)) };
        """, timeout=200, QUEUE="transcode", FILM=str(film))
    assert "error" not in got["ends"][0] and "error" in got["ends"][1] and "error" in got["ends"][2], got
    made = mandor.tmp / "made.mkv"
    made.write_bytes(swift.get(f"{got['ids'][0]}.out"))
    probe = subprocess.run(["ffprobe", "-v", "error", "-show_entries", "stream=width,height", "-of", "csv=p=0", str(made)], capture_output=True, text=True)
    assert probe.stdout.strip() == "160,120", probe
    assert swift.get(f"{got['ids'][1]}.out") is None and not swift.uploads() and not pathlib.Path("/tmp/never").exists()


def test_a_stock_producers_jobs_are_served_by_a_warm_pool(story):
    stock, mandor = story
    with mandor.worker():
        ends = stock.js(WAIT + """
            const jobs = await q.addBulk([...Array(20).keys()].map((n) => ({ name: "n", data: { n } })));
            return await Promise.all(jobs.map(settle));
        """, timeout=200, QUEUE="thumbs")
    assert len(ends) == 20 and all("value" in end for end in ends), ends
    assert [end["value"]["task"]["data"]["n"] for end in ends] == list(range(20)), ends
