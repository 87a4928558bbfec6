"""The wheel store from end to end: real pip, an index on 127.0.0.1, wheels made on the spot, some of them hostile."""
import hashlib
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import time
import warnings
import zipfile
import zlib

import pytest

from harness import Mandor, absent, have, wait_for
from snakes import job, snakes_in, why_not
from wheel_lab import PURE, WASM, Index, compiled, contents, file_name, pack, wheel


@pytest.fixture
def index(tmp_path):
    it = Index(tmp_path / "index")
    yield it
    it.close()


@pytest.fixture
def store(mandor, index):
    """An empty store; pip asks the index of the test and nobody else."""
    mandor.env.update({"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1",
                       "PIP_DISABLE_PIP_VERSION_CHECK": "1", "MANDOR_PYODIDE_URL": "none"})
    path = mandor.tmp / "store"
    mandor.env["MANDOR_CONFIG"] = str(mandor.tmp / "mandor.yaml")
    (mandor.tmp / "mandor.yaml").write_text(json.dumps({"python": {"store": str(path)}}))
    return path


def wheels(mandor, *args, **kw):
    return mandor.run("wheels", *args, **kw)


def ok(mandor, *args, **kw):
    return mandor.ok("wheels", *args, **kw)


def listed(mandor):
    """{name: what `ls --json` says}"""
    done = wheels(mandor, "ls", "--json")
    return {} if done.code == 3 else {line["name"]: line for line in map(json.loads, done.lines)}


def versions(mandor):
    return {name: one["version"] for name, one in listed(mandor).items()}


def sound(mandor):
    """Every wheel that the store names is good."""
    return wheels(mandor, "verify", "--no-import").code in (0, 3)


def files(store):
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


# ---- add ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["json", "html"])
def test_add_resolves_dependencies_extras_and_markers_for_the_target(mandor, index, store, style):
    index.style = style
    wheel(index.folder, "app", requires=[
        "lib>=1,<2", 'only-wasm; sys_platform == "emscripten"', 'only-linux; sys_platform == "linux"', 'old; python_version < "3.10"',
        'machine; platform_machine == "wasm32"', 'speed; extra == "fast"', 'never; extra == "other"'], extras=["fast", "other"])
    for version in ("1.0", "1.5", "2.0"):
        wheel(index.folder, "lib", version)
    wheel(index.folder, "lib", "1.9", python=">=3.15")
    for name in ("only-wasm", "machine", "speed"):
        wheel(index.folder, name)

    ok(mandor, "add", "App[fast]")
    assert versions(mandor) == {"app": "1.0", "lib": "1.5", "machine": "1.0", "only-wasm": "1.0", "speed": "1.0"}
    app = listed(mandor)["app"]
    assert app["depends"] == ["lib<2,>=1", "machine", "only-wasm"]
    assert app["extras"] == {"fast": ["speed"], "other": ["never"]}
    assert app["imports"] == ["app"] and app["tags"] == [PURE]
    assert sound(mandor)

    wheel(index.folder, "lib", "1.6")
    index.asked.clear()
    assert "kept" in ok(mandor, "add", "app[fast]").text
    assert versions(mandor)["lib"] == "1.5", "what is in the store stays"
    assert not [path for path in index.asked if path.endswith(".whl")], "and is not fetched again"
    ok(mandor, "add", "--upgrade", "lib")
    assert versions(mandor)["lib"] == "1.6"
    assert not any("1.5" in path for path in files(store)), "a wheel that was replaced goes"


def test_a_compiled_wheel_is_chosen_before_one_for_this_host_R105(mandor, index, store):
    native = compiled(mandor.tmp / "lab")
    if native is None:
        pytest.skip(absent("clang or wasm-ld is not installed"))
    shutil.copy(native, index.folder)
    wheel(index.folder, "native", "2.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    ok(mandor, "add", "native")
    assert listed(mandor)["native"]["tags"] == [WASM]
    assert sound(mandor)


def fake_pyodide(folder, index, packages):
    """An npm package as `--pyodide` takes it: packages {name: wheel in the folder of `index`}."""
    folder.mkdir()
    entries = {name: {"name": name, "version": path.name.split("-")[1], "file_name": path.name, "depends": [], "imports": [],
                      "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "package_type": "package"} for name, path in packages.items()}
    (folder / "pyodide-lock.json").write_text(json.dumps({
        "info": {"abi_version": "2026_0", "arch": "wasm32", "python": "3.14.2"}, "packages": entries}))
    return folder


def test_what_pyodide_was_built_with_comes_first_and_the_index_when_it_does_not_fit(mandor, index, store):
    own = Index(mandor.tmp / "own")
    lib = wheel(own.folder, "lib", "1.0", files={"lib.py": "whose = 'pyodide'\n"})
    pyodide = fake_pyodide(mandor.tmp / "pyodide", own, {"lib": lib})
    wheel(index.folder, "lib", "1.0", files={"lib.py": "whose = 'index'\n"})
    wheel(index.folder, "lib", "2.0")
    wheel(index.folder, "app", requires=["lib"])
    wheel(index.folder, "modern", requires=["lib>=2"])
    options = ("--pyodide", str(pyodide), "--pyodide-url", f"{own.base}/files")

    ok(mandor, "add", *options, "app[]")
    assert listed(mandor)["lib"]["sha256"] == hashlib.sha256(lib.read_bytes()).hexdigest()
    lock = mandor.tmp / "wheels.lock"
    lock.write_text(ok(mandor, "export").text)
    ok(mandor, "add", *options, "--store", str(mandor.tmp / "other"), "--lock", str(lock))
    assert files(mandor.tmp / "other") == files(store), "each file from where it came"
    done = ok(mandor, "add", *options, "modern")
    assert versions(mandor) == {"app": "1.0", "lib": "2.0", "modern": "1.0"}
    assert "not with the versions that Pyodide was built with" in done.complaint

    shutil.rmtree(store)
    own.close()
    done = ok(mandor, "add", *options, "app")
    assert "cannot be had" in done.complaint and versions(mandor)["lib"] == "2.0"


def test_a_wrong_hash_where_pyodide_keeps_its_packages_is_no_reason_to_look_elsewhere(mandor, index, store):
    lib = wheel(mandor.tmp / "own", "lib", "1.0")
    pyodide = fake_pyodide(mandor.tmp / "pyodide", index, {"lib": lib})
    wheel(mandor.tmp / "own", "lib", "1.0", files={"lib.py": "tampered = True\n"})
    wheel(index.folder, "lib", "1.0")
    own = Index(mandor.tmp / "own")
    done = wheels(mandor, "add", "--pyodide", str(pyodide), "--pyodide-url", f"{own.base}/files", "lib")
    own.close()
    assert done.code == 1 and "DO NOT MATCH THE HASHES" in done.complaint
    assert versions(mandor) == {}


def test_pips_own_settings_are_respected(mandor, index, store):
    extra = Index(mandor.tmp / "extra")
    wheel(extra.folder, "lib")
    wheel(index.folder, "app", requires=["lib"])
    conf = mandor.tmp / "pip.conf"
    conf.write_text(f"[global]\nindex-url = {index.url}\nextra-index-url = {extra.url}\nretries = 0\n")
    ok(mandor, "add", "app", env={"PIP_INDEX_URL": None, "PIP_CONFIG_FILE": str(conf)})
    extra.close()
    assert versions(mandor) == {"app": "1.0", "lib": "1.0"}


@pytest.mark.parametrize("fault, says", [("wrong hash", "DO NOT MATCH THE HASHES"), ("cut", ""), ("500", "500")])
def test_an_index_that_fails_leaves_the_store_as_it_was(mandor, index, store, fault, says):
    good = wheel(mandor.tmp, "good")
    ok(mandor, "import", str(good))
    before = files(store)
    wheel(index.folder, "app", requires=["lib"])
    lib = wheel(index.folder, "lib", files={"lib.py": "x = 1\n" * 1000, "data.bin": os.urandom(50_000)})
    index.faults[lib.name] = fault
    done = wheels(mandor, "add", "app")
    assert done.code == 1 and says in done.complaint, done
    assert files(store) == before and sound(mandor)
    index.faults.clear()
    ok(mandor, "add", "app")
    assert set(versions(mandor)) == {"app", "good", "lib"}


def test_a_full_disk_is_said_and_leaves_the_store_as_it_was(mandor, index, store):
    wheel(index.folder, "small")
    wheel(index.folder, "large", files={"large.py": "".join(f"x{n} = '{random.random()}'\n" for n in range(40000))})
    store.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", store], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs may be mounted: {done.stderr.strip()}")
    try:
        ok(mandor, "add", "small")
        there = files(store)
        for command in (["add", "large"], ["import", str(next(index.folder.glob("large-*")))]):
            done = wheels(mandor, *command)
            assert done.code != 0 and re.search("[Nn]o space", done.complaint) and "the store" in done.complaint, done
            assert len(done.complaint.splitlines()) == 1 and versions(mandor) == {"small": "1.0"} and files(store) == there and sound(mandor), done
    finally:
        subprocess.run(["umount", store], check=True)


def test_versions_that_do_not_fit_together_are_said_with_the_reason(mandor, index, store):
    wheel(index.folder, "app", requires=["lib>=2"])
    wheel(index.folder, "host", requires=["host-only"])
    wheel(index.folder, "lib", "1.0")
    wheel(index.folder, "lib", "0.5")
    wheel(index.folder, "host-only", tag="cp314-cp314-manylinux_2_17_x86_64")
    wheel(index.folder, "one", requires=["lib<1"])
    wheel(index.folder, "two", requires=["lib>=1"])
    for asked, says in ((["app"], "requirement lib>=2 (from app)"), (["host"], "host-only"),
                        (["one", "two"], "no versions fit together: one 1.0 depends on lib<1; two 1.0 depends on lib>=1")):
        done = wheels(mandor, "add", *asked)
        assert done.code == 1 and says in done.complaint and len(done.complaint) < 700, done
    assert versions(mandor) == {}


def test_what_nobody_has_and_what_is_no_requirement_are_said_in_one_line(mandor, index, store):
    for asked, says in (("nowhere-to-be-found", "no index has a package 'nowhere-to-be-found'"), ("lib>>1", "no requirement"), ("--index-url=http://x", "unknown option"),
                        ("./lib.whl", "no requirement")):
        done = wheels(mandor, "add", asked)
        assert done.code in (1, 2) and says in done.complaint and "Traceback" not in done.complaint, done


def test_what_nobody_has_for_the_target_is_said_with_what_was_looked_for_and_what_there_is(mandor, index, store):
    for number, tag in (("1.9", "cp313-cp313-manylinux_2_17_x86_64"), ("1.10", "cp314-cp314-win_amd64"), ("1.2", "cp312-cp312-pyodide_2024_0_wasm32")):
        wheel(index.folder, "numbers", number, tag=tag)
    wheel(index.folder, "frames", requires=["numbers"])
    looked = f"looked for py3-none-any and {WASM} (or abi3), there is "
    for asked, name, there in (("numbers", "numbers", "1.2 to 1.10 for cp312-cp312-pyodide_2024_0_wasm32, manylinux, win"), ("Numbers>=1", "numbers", "1.2 to 1.10 for cp312-cp312-pyodide_2024_0_wasm32, manylinux, win"),
                               ("frames", "numbers", "1.2 to 1.10 for cp312-cp312-pyodide_2024_0_wasm32, manylinux, win")):
        done = wheels(mandor, "add", asked)
        assert done.code == 1 and f"no wheel of '{name}' can be loaded here: {looked}{there}" in done.complaint, done
        assert len(done.complaint.splitlines()) == 1, done


# ---- import ---------------------------------------------------------------------------------------------------------------------


def test_import_takes_what_pip_left_all_or_nothing(mandor, store):
    left = mandor.tmp / "left"
    wheel(left, "app", requires=["lib>=1"])
    done = wheels(mandor, "import", str(left))
    assert done.code == 1 and "'lib>=1', which 'app' needs, is neither among these wheels nor in the store" in done.complaint
    assert versions(mandor) == {}
    lib = wheel(mandor.tmp, "lib", "0.9")
    done = wheels(mandor, "import", str(left), str(lib))
    assert done.code == 1 and "does not fit the lib 0.9" in done.complaint
    ok(mandor, "import", str(left), str(wheel(mandor.tmp, "lib", "1.1")))
    assert versions(mandor) == {"app": "1.0", "lib": "1.1"}
    done = wheels(mandor, "import", str(lib))
    assert done.code == 1 and "does not fit" in done.complaint, "what the store needs is not taken from it"
    ok(mandor, "import", "--no-deps", str(lib))
    assert versions(mandor)["lib"] == "0.9"
    assert wheels(mandor, "verify", "--no-import").code == 0

    (left / "source-1.0.tar.gz").write_bytes(b"")
    done = wheels(mandor, "import", str(left))
    assert done.code == 1 and "not a wheel" in done.complaint
    assert wheels(mandor, "import", "/nowhere").code == 3
    done = wheels(mandor, "import", str(store.parent / "home"))
    assert done.code == 1 and "no wheel in" in done.complaint


INFO = "bad-1.0.dist-info"


def with_member(name, data=b"x", mode=None):
    """A good wheel and one member more, which its RECORD names, too."""
    parts = contents("bad", "1.0", files={"bad.py": "", name: data})
    if mode is None:
        return parts
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return [(info if path == name else path, body) for path, body in parts.items()]


def with_second_name(name, second):
    """The extra field in which Info-ZIP keeps a name in UTF-8: Python 3.14 takes it, older ones do not."""
    info = zipfile.ZipInfo(name)
    info.extra = struct.pack("<HHBL", 0x7075, 5 + len(second), 1, zlib.crc32(name.encode())) + second.encode()
    return [(info if path == name else path, body) for path, body in contents("bad", "1.0").items()]


def with_record(change):
    parts = contents("bad", "1.0")
    parts[f"{INFO}/RECORD"] = change(parts[f"{INFO}/RECORD"].decode()).encode()
    return parts


def without(path):
    parts = contents("bad", "1.0")
    del parts[path]
    return parts


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def flip(path):
    data = bytearray(path.read_bytes())
    at = data.find(b"bad.py") + 6
    data[at + 2] ^= 0xFF
    path.write_bytes(data)


HOSTILE = {
    "zip slip": (with_member("../../evil.py"), "would land outside"),
    "absolute path": (with_member("/etc/evil.py"), "absolute path"),
    "backslashes": (with_member("..\\evil.py"), "not allowed"),
    "empty path part": (with_member("a//b.py"), "plain form"),
    "symbolic link": (with_member("link", b"/etc/passwd", stat.S_IFLNK | 0o777), "symbolic link"),
    "device": (with_member("dev", b"", stat.S_IFCHR | 0o666), "special file"),
    "same member twice": ([*contents("bad", "1.0").items(), ("bad.py", b"other")], "there twice"),
    "a second name": (with_second_name("bad.py", "json/decoder.py"), "second name"),
    "file and directory": (with_member("bad.py/x.py"), "a file and a directory"),
    "zip bomb": (lambda: with_member("bomb.bin", b"\0" * (70 << 20)), "zip bomb"),
    "no RECORD": (without(f"{INFO}/RECORD"), "has no 'bad-1.0.dist-info/RECORD'"),
    "RECORD with another hash": (with_record(lambda text: text.replace("sha256=", "sha256=A", 1)), "not the bytes that RECORD says"),
    "RECORD without a member": (with_record(lambda text: text.split("\n", 1)[1]), "RECORD has no hash of 'bad.py'"),
    "RECORD with more": (with_record(lambda text: "gone.py,sha256=x,1\n" + text), "which is not there"),
    "RECORD with weak hashes": (with_record(lambda text: text.replace("sha256=", "md5=", 1)), "expected sha256 or better"),
    "RECORD of another form": (with_record(lambda text: "a,b\n" + text), "fields"),
    "no METADATA": (without(f"{INFO}/METADATA"), "has no 'bad-1.0.dist-info/METADATA'"),
    "another name inside": (contents("good", "1.0"), "it was renamed"),
    "another version inside": (contents("bad", "2.0"), "it was renamed"),
    "other tags inside": (contents("bad", "1.0", tag=WASM), "it was renamed"),
    "a requirement that is none": (contents("bad", "1.0", requires=["lib >> 1"]), "no requirement"),
    "a later Python": (contents("bad", "1.0", python=">=3.15"), "wants Python >=3.15"),
    "ELF in a pure wheel": (with_member("bad.so", b"\x7fELF\2\1\1"), "ELF library for a host"),
    "modules where nobody looks": (with_member("bad-1.0.data/purelib/more.py"), "which Pyodide does not unpack"),
    "not a library": (with_member("bad.so", b"MZ"), "not WebAssembly"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_wheel_is_refused_with_the_reason(mandor, store, name):
    parts, says = HOSTILE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that comes twice
        path = pack(mandor.tmp / file_name("bad", "1.0"), parts() if callable(parts) else parts)
    done = wheels(mandor, "import", str(path))
    assert done.code == 1 and says in done.complaint and "Traceback" not in done.complaint, done
    assert versions(mandor) == {} and not list(store.rglob("*.whl"))
    assert not list(mandor.tmp.rglob("evil.py"))


def elf_under_wasm(path):
    return contents("bad", "1.0", tag=WASM, files={"bad.so": b"\x7fELF\2\1\1"})


@pytest.mark.parametrize("file, parts, harm, says", [
    (file_name("bad", "1.0"), None, cut, "corrupt"),
    (file_name("bad", "1.0"), None, flip, "corrupt"),
    (file_name("bad", "1.0"), None, lambda path: path.write_bytes(b""), "corrupt"),
    (file_name("bad", "1.0"), None, lambda path: path.write_bytes(os.urandom(5000)), "corrupt"),
    ("bad.whl", None, None, "not a wheel's file name"),
    ("bad-x!-py3-none-any.whl", None, None, "file name"),
    (file_name("bad", "1.0", "cp314-cp314-pyodide_2025_0_wasm32"), None, None, "another WebAssembly ABI"),
    (file_name("bad", "1.0", "cp314-cp314-manylinux_2_17_x86_64"), None, None, "made for a host"),
    (file_name("bad", "1.0", "cp313-cp313-pyemscripten_2026_0_wasm32"), None, None, "made for cp313-cp313"),
    (file_name("bad", "1.0", WASM), elf_under_wasm, None, "ELF library for a host"),
])
def test_a_wrong_abi_a_host_wheel_a_corrupt_or_renamed_file_is_refused_R104_R105(mandor, store, file, parts, harm, says):
    path = pack(mandor.tmp / file, parts(file) if parts else contents("bad", "1.0"))
    if harm:
        harm(path)
    done = wheels(mandor, "import", str(path))
    assert done.code == 1 and says in done.complaint and "Traceback" not in done.complaint, done
    assert versions(mandor) == {}


def test_what_is_no_file_is_refused_and_not_waited_for(mandor, store):
    pipe, device, folder = (mandor.tmp / kind / file_name("bad", "1.0") for kind in ("pipe", "device", "folder"))
    for path in (pipe, device, folder):
        path.parent.mkdir()
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    folder.mkdir()
    for path, says in ((pipe, "not a regular file"), (device, "not a wheel"), (folder, "there is no wheel in")):
        done = wheels(mandor, "import", str(path), timeout=20)
        assert done.code == 1 and says in done.complaint, done


def test_names_of_any_bytes_are_refused_like_others(mandor, store):
    folder = os.fsencode(mandor.tmp / "odd")
    os.mkdir(folder)
    with open(os.path.join(folder, b"bad-1.0\xff-py3-none-any.whl"), "wb"):
        pass
    done = wheels(mandor, "import", mandor.tmp / "odd")
    assert done.code == 1 and "not a wheel's file name" in done.complaint, done
    done = wheels(mandor, "import", os.path.join(folder, b"bad-1.0\xff-py3-none-any.whl"))
    assert done.code == 2 and "not UTF-8" in done.complaint, done
    assert wheels(mandor, "add", b"p\xff").code == 2


def test_wheels_cut_anywhere_are_refused_and_never_crash_the_look(mandor, store):
    """Bytes changed at random: refused, or (in what a zip does not look at) taken as good."""
    data = pack(mandor.tmp / file_name("bad", "1.0"), contents("bad", "1.0"), zipfile.ZIP_STORED).read_bytes()
    source = random.Random(7)
    folder = mandor.tmp / "many"
    names = []
    for number in range(60):
        torn = bytearray(data)
        for _ in range(source.choice([1, 1, 4])):
            torn[source.randrange(len(torn))] = source.randrange(256)
        torn = torn[: source.randrange(len(torn))] if number % 3 == 0 else torn
        path = folder / str(number) / file_name("bad", "1.0")
        path.parent.mkdir(parents=True)
        path.write_bytes(torn)
        names.append(str(path))
    done = wheels(mandor, "import", *names)
    assert done.code == 1 and "Traceback" not in done.complaint, done
    assert done.complaint.count("refused:") > 40


# ---- crashes and company --------------------------------------------------------------------------------------------------------


def test_kill_9_while_fetching_leaves_the_store_good_and_nothing_behind_for_long(mandor, index, store):
    good = wheel(mandor.tmp, "good")
    ok(mandor, "import", str(good))
    before = files(store)
    slow = wheel(index.folder, "slow", files={"slow.py": "", "data.bin": os.urandom(100_000)})
    index.faults[slow.name] = "stall"
    proc = mandor.popen("wheels", "add", "slow")
    assert index.stalled.wait(30)
    proc.send_signal(signal.SIGKILL)
    proc.wait()
    wait_for(lambda: not mandor.cell.pids(), 20, "the end of pip")
    index.go_on.set()
    assert versions(mandor) == {"good": "1.0"} and sound(mandor)
    index.faults.clear()
    ok(mandor, "import", str(good))
    assert files(store) == before, "the next change sweeps"


def test_kill_9_at_any_moment_of_an_import_leaves_a_good_store(mandor, store):
    source = random.Random(3)
    path = wheel(mandor.tmp, "app", files={"app.py": "", "data.bin": os.urandom(300_000)})
    start = time.monotonic()
    ok(mandor, "import", str(path))
    took = time.monotonic() - start
    taken = 0
    for number in range(14):
        other = wheel(mandor.tmp, f"more{number}", files={"m.py": "", "data.bin": os.urandom(300_000)})
        proc = mandor.popen("wheels", "import", str(other))
        time.sleep(took * source.uniform(0.3, 1.1))  # any moment will do
        proc.send_signal(signal.SIGKILL)
        proc.wait()
        assert sound(mandor)
        taken += f"more{number}" in versions(mandor)
    ok(mandor, "import", str(path))
    assert len(files(store)) == len(versions(mandor)) + 2  # lock.json and .turn


def test_two_adds_at_once_both_count(mandor, index, store):
    for name in ("a", "b", "c", "d"):
        wheel(index.folder, name, requires=["common"])
    wheel(index.folder, "common")
    procs = [mandor.popen("wheels", "add", name) for name in ("a", "b", "c", "d")]
    assert [proc.wait(200) for proc in procs] == [0, 0, 0, 0]
    assert set(versions(mandor)) == {"a", "b", "c", "d", "common"}
    assert sound(mandor)


# ---- ls, verify, rm, export -----------------------------------------------------------------------------------------------------


def test_verify_names_what_is_wrong_R103(mandor, store):
    ok(mandor, "import", str(wheel(mandor.tmp, "lib")), str(wheel(mandor.tmp, "app", requires=["lib"])))
    [path] = store.rglob("lib-1.0*.whl")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    done = wheels(mandor, "verify", "--no-import")
    assert done.code == 1 and "WRONG  lib 1.0" in done.text and "ok     app 1.0" in done.text, done
    path.unlink()
    done = wheels(mandor, "verify", "--no-import", "--json")
    assert done.code == 1 and [json.loads(line)["ok"] for line in done.lines] == [True, False]
    assert "has gone" in done.text
    assert wheels(mandor, "verify", "--no-import", "nobody").code == 3
    ok(mandor, "import", str(mandor.tmp / file_name("lib", "1.0")))
    assert sound(mandor), "the same wheel again mends it"


def test_doctor_says_which_wheel_of_a_runtime_is_missing_R103(mandor, store):
    ok(mandor, "import", str(wheel(mandor.tmp, "lib")), str(wheel(mandor.tmp, "app", requires=["lib"])))
    (mandor.tmp / "mandor.yaml").write_text(json.dumps({"python": {"store": str(store), "runtimes": {"data": {"packages": ["App"]}}}}))

    def told():
        return [one for one in mandor.run("doctor", "--json").json()["checks"] if one["check"] == "runtime data"]
    assert [one["health"] for one in told()] == ["ok"] and "2 wheels" in told()[0]["text"]
    [path] = store.rglob("lib-*.whl")
    path.unlink()
    assert [one["health"] for one in told()] == ["broken"] and "package 'lib' has gone from the store" in told()[0]["text"]


def test_rm_refuses_what_others_need_unless_forced(mandor, store):
    ok(mandor, "import", str(wheel(mandor.tmp, "lib")), str(wheel(mandor.tmp, "app", requires=["lib"])))
    (mandor.tmp / "mandor.yaml").write_text(json.dumps({"python": {"store": str(store), "runtimes": {"data": {"packages": ["App"]}}}}))
    done = wheels(mandor, "rm", "lib")
    assert done.code == 4 and "'app' could not be loaded any more" in done.complaint
    done = wheels(mandor, "rm", "lib", "app")
    assert done.code == 4 and "runtime 'data'" in done.complaint
    assert set(versions(mandor)) == {"app", "lib"}
    assert wheels(mandor, "rm", "nobody").code == 3
    ok(mandor, "rm", "--force", "lib")
    assert set(versions(mandor)) == {"app"} and not list(store.rglob("lib-*.whl"))
    assert wheels(mandor, "verify", "--no-import").code == 1
    ok(mandor, "import", str(mandor.tmp / file_name("lib", "1.0")))
    (mandor.tmp / "mandor.yaml").write_text(json.dumps({"python": {"store": str(store)}}))
    ok(mandor, "rm", "lib", "APP")
    assert files(store) == [".turn", "lock.json"]


def test_export_makes_the_same_store_elsewhere(mandor, index, store):
    wheel(index.folder, "app", requires=["lib"])
    lib = wheel(index.folder, "lib")
    ok(mandor, "add", "app")
    lock = mandor.tmp / "wheels.json"
    lock.write_text(ok(mandor, "export").text)
    assert lock.read_text() == (store / "lock.json").read_text()
    wheel(index.folder, "lib", "1.1")  # later than the lock

    other = ("--store", str(mandor.tmp / "other"))
    ok(mandor, "add", *other, "--lock", str(lock))
    assert files(mandor.tmp / "other") == files(store)
    third = ("--store", str(mandor.tmp / "third"))
    ok(mandor, "import", *third, "--lock", str(lock), str(index.folder))
    assert files(mandor.tmp / "third") == files(store)

    wheel(index.folder, "lib", files={"lib.py": "other = True\n"})
    fourth = ("--store", str(mandor.tmp / "fourth"))
    done = wheels(mandor, "add", *fourth, "--lock", str(lock))
    assert done.code == 1 and "DO NOT MATCH THE HASHES" in done.complaint
    done = wheels(mandor, "import", *fourth, "--lock", str(lock), str(index.folder))
    assert done.code == 1 and "the lock file wants" in done.complaint
    lib.unlink()
    done = wheels(mandor, "import", *fourth, "--lock", str(lock), str(index.folder))
    assert done.code == 1 and "which the lock file names, is not there" in done.complaint
    assert wheels(mandor, "ls", *fourth).code in (0, 3) and not list((mandor.tmp / "fourth").rglob("*.whl"))
    lock.write_text("{}")
    done = wheels(mandor, "add", *fourth, "--lock", str(lock))
    assert done.code == 2 and "expected the lock file of a wheel store" in done.complaint


def test_all_but_add_and_import_need_no_python(mandor, store):
    path = wheel(mandor.tmp, "lib")
    ok(mandor, "import", str(path))
    bare = {"PATH": str(mandor.tmp / "nothing")}
    for command in (["ls"], ["ls", "--json"], ["verify", "--no-import"], ["export"], ["rm", "lib"]):
        ok(mandor, *command, env=bare)
    for command in (["add", "lib"], ["import", str(path)]):
        done = wheels(mandor, *command, env=bare)
        assert done.code == 125 and "no python3 in PATH" in done.complaint, done


def test_looking_at_the_store_opens_no_socket(mandor, store):
    if not have("strace"):
        pytest.skip("needs strace")
    ok(mandor, "import", str(wheel(mandor.tmp, "lib")))
    trace = mandor.tmp / "trace"
    done = mandor.run("wheels", "verify", "--no-import", prefix=["strace", "-f", "-qq", "-e", "trace=%network", "-o", str(trace)])
    assert done.code == 0 and trace.read_text() == "", trace.read_text()


def test_a_store_that_cannot_be_used_is_said_in_one_sentence(mandor, store):
    for args in (["ls"], ["verify"], ["export"], ["rm", "lib"]):
        done = wheels(mandor, *args)
        assert done.code == 3 and "there is no wheel store at" in done.complaint and len(done.complaint.splitlines()) == 1, done
    store.mkdir()
    (store / "lock.json").write_text('{"format": 1, "target": {"python": "3.13"}, "packages": {}}')
    done = wheels(mandor, "import", str(wheel(mandor.tmp, "lib")))
    assert done.code == 2 and "3.13" in done.complaint
    done = wheels(mandor, "ls", env={"MANDOR_CONFIG": None})
    assert done.code == 2 and "which store?" in done.complaint


# ---- what jobs get --------------------------------------------------------------------------------------------------------------

needs_python = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
LAZY = {"app/__init__.py": "from base_lib import name\n", "app/lazy.py": "import json, native\ndef total(n):\n    return native.add(n)\n"}


def fill(mandor, tmp):
    """app (pure, with a module that jobs import when they want to), its dependency, and a compiled package."""
    native = compiled(tmp / "lab")
    if native is None:
        pytest.skip(absent("clang or wasm-ld is not installed"))
    store = tmp / "wheels"
    ok(mandor, "import", "--store", str(store), str(native),
       str(wheel(tmp / "lab", "app", files=LAZY, requires=["base-lib", 'native>=1; sys_platform == "emscripten"'])),
       str(wheel(tmp / "lab", "base-lib", files={"base_lib.py": "name = 'base'\n"})))
    return store


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A filled store; the snakes of a worker that loads it."""
    if why_not():
        pytest.skip(why_not())
    tmp = tmp_path_factory.mktemp("filled")
    (tmp / "fill").mkdir()
    filler = Mandor(tmp / "fill")
    store = fill(filler, tmp)
    filler.close()
    with snakes_in(tmp, {"default": {"packages": ["App"], "preload": ["app"], "spare": 1}}, store=str(store)) as snakes:
        yield store, snakes


@needs_python
def test_jobs_import_pure_and_compiled_packages_lazily_inside_the_sandbox_and_share_nothing_R107(filled):
    _, snakes = filled
    code = """
        import sys
        before = 'app.lazy' in sys.modules, 'native' in sys.modules, 'app' in sys.modules
        import app.lazy
        [before, app.name, app.lazy.total(2), app.lazy.total(40)]
    """
    for record in snakes.run(*[job(code) for _ in range(3)], job(code, packages=["App"]), job(code, packages=["app"])):
        assert record["state"] == "completed", record
        assert record["result"] == [[False, False, True], "base", 2, 42]
    record = snakes.one("1", packages=["numpy"])
    assert record["state"] == "failed" and "package 'numpy' is not in runtime 'default'" in record["error"]


@needs_python
def test_a_wheel_removed_under_a_running_server_is_one_clear_sentence_R103(filled):
    store, snakes = filled
    mandor = snakes.mandor
    assert snakes.result("import app.lazy\napp.lazy.total(1)") == 1
    [path] = store.rglob("base_lib-*.whl")
    away = path.with_suffix(".away")
    path.rename(away)
    assert snakes.result("import app.lazy\napp.lazy.total(1)") == 1, "what is loaded needs no file"

    os.kill(snakes.runtimes()["default"]["servers"][0]["pid"], signal.SIGKILL)

    def told():
        record = snakes.one("1")
        return record if record["state"] == "failed" else None
    record = wait_for(told, 120, "a job that fails for want of the wheel")
    assert "the wheel of package 'base-lib' has gone from the store" in record["error"]
    done = mandor.add_many([{"exec": ["true"]}])
    assert mandor.run("wait", *done).code == 0, "other executors go on"

    away.rename(path)

    def well():
        record = snakes.one("import app\napp.name")
        return record["result"] if record["state"] == "completed" else None
    assert wait_for(well, 150, "the runtime's recovery") == "base"


@needs_python
def test_verify_imports_each_package_in_the_sandbox_R107(mandor, store):
    filled_store = fill(mandor, mandor.tmp)
    bad = wheel(mandor.tmp, "broken", files={"broken/__init__.py": "from native import nothing\n"})
    rude = wheel(mandor.tmp, "rude", files={"rude.py": "import os\nos.abort()\n"})
    ok(mandor, "import", "--store", str(filled_store), str(bad), str(rude))
    done = wheels(mandor, "verify", "--store", str(filled_store), timeout=280)
    assert done.code == 1, done
    told = {line.split()[1]: line for line in done.lines}
    assert all(told[name].startswith("ok") for name in ("app", "base-lib", "native"))
    assert "cannot import name 'nothing'" in told["broken"] and told["broken"].startswith("WRONG")
    assert told["rude"].startswith("WRONG")
    assert not [path for path in mandor.tmp.glob("mandor-verify-*")]

    (mandor.tmp / "mandor.yaml").write_text(json.dumps({"python": {"store": str(filled_store), "node": "/nowhere/node"}}))
    done = wheels(mandor, "verify")
    assert done.code == 1 and "no package could be imported: Python jobs cannot run: Node is not at '/nowhere/node'" in done.complaint, done


@needs_python
def test_at_run_time_there_is_no_dns_no_tls_no_socket_to_anywhere_R104(mandor, store):
    if not have("strace"):
        pytest.skip("needs strace")
    filled_store = fill(mandor, mandor.tmp)
    (mandor.tmp / "mandor.yaml").write_text(json.dumps(
        {"python": {"store": str(filled_store), "runtimes": {"default": {"packages": ["app"], "preload": ["native"], "spare": 0}}}}))
    ids = mandor.add_many([job("import app.lazy\napp.lazy.total(7)")])
    trace = mandor.tmp / "trace"
    done = mandor.run("work", "--drain", timeout=200, prefix=["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=socket,connect,bind", "-o", str(trace)])
    assert done.code == 0, done
    assert mandor.show(ids[0])["result"] == 7, mandor.show(ids[0])
    calls = [line for line in trace.read_text().splitlines() if "(" in line and "AF_UNIX" not in line and "resumed" not in line]
    assert calls == [], calls


@needs_python
def test_real_packages_of_the_package_index_run(mandor):
    """Rust in WebAssembly, where an index answers that has it."""
    for name, value in os.environ.items():
        if name.startswith(("PIP_", "HTTP", "http", "SSL_", "no_proxy", "NO_PROXY")):
            mandor.env[name] = value
    real = str(mandor.tmp / "real")
    done = wheels(mandor, "add", "--store", real, "--pyodide-url", "none", "pydantic", timeout=250)
    if done.code != 0:
        pytest.skip(f"the package index has no pydantic for this Pyodide: {done.cause[:200]}")
    (mandor.tmp / "mandor.yaml").write_text(json.dumps({"python": {"store": real, "runtimes": {"default": {"packages": ["pydantic"], "spare": 0}}}}))
    mandor.env["MANDOR_CONFIG"] = str(mandor.tmp / "mandor.yaml")
    ids = mandor.add_many([job("""
        import pydantic
        class Point(pydantic.BaseModel):
            x: int
            tags: list[str] = []
        [Point.model_validate_json('{"x": "7", "tags": ["a"]}').model_dump(), pydantic.TypeAdapter(list[int]).validate_python(["1", 2])]
    """)])
    mandor.drain(timeout=280)
    assert mandor.show(ids[0])["result"] == [{"x": 7, "tags": ["a"]}, [1, 2]], mandor.show(ids[0])
