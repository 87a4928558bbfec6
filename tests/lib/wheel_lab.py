"""Wheels made on the spot, and a package index on 127.0.0.1 that serves them (PEP 503 and 691), well or badly."""
import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import threading
import zipfile

PURE = "py3-none-any"
WASM = "cp314-cp314-pyemscripten_2026_0_wasm32"

# The few words of Python's C API that an extension needs, as they are on a machine of 32 bits: no Python.h for WebAssembly is at hand.
EXTENSION = r"""
struct method { const char *name; void *(*call)(void *, void *); int flags; const char *doc; };
struct module { int refcnt; void *type, *init; int index; void *copy; const char *name, *doc; int size; struct method *methods; void *rest[4]; };
void *PyModule_Create2(struct module *, int);
void *PyLong_FromLong(long);
long PyLong_AsLong(void *);
static long total;
static void *add(void *self, void *number) { (void)self; return PyLong_FromLong(total += PyLong_AsLong(number)); }
static struct method methods[] = { { "add", add, 8, 0 }, { 0, 0, 0, 0 } };
static struct module def = { 1, 0, 0, 0, 0, "NAME", 0, -1, methods, { 0, 0, 0, 0 } };
void *PyInit_NAME(void) { return PyModule_Create2(&def, 1013); }
"""


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(name, version, requires=(), extras=(), python=None):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires] + [f"Provides-Extra: {one}" for one in extras]
    lines += [f"Requires-Python: {python}"] if python else []
    return "\n".join(lines) + "\n"


def contents(name, version, files=None, requires=(), extras=(), tag=PURE, python=None):
    """{path: bytes} of a good wheel, RECORD last."""
    stem = re.sub(r"[-_.]+", "_", name)
    info = f"{stem}-{version}.dist-info"
    parts = dict(files) if files is not None else {f"{stem}.py": f"version = {version!r}\n"}
    interpreters, abi, platform = tag.split("-")
    tags = "".join(f"Tag: {one}-{abi}-{platform}\n" for one in interpreters.split("."))
    parts[f"{info}/METADATA"] = metadata(name, version, requires, extras, python)
    parts[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: {str(tag == PURE).lower()}\n{tags}"
    parts = {path: data.encode() if isinstance(data, str) else data for path, data in parts.items()}
    rows = [f"{path},sha256={digest(data)},{len(data)}" for path, data in parts.items()]
    parts[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    return parts


def file_name(name, version, tag=PURE):
    stem = re.sub(r"[-_.]+", "_", name)
    return f"{stem}-{version}-{tag}.whl"


def pack(path, parts, method=zipfile.ZIP_DEFLATED):
    """parts: {path: bytes}, or pairs where a name may come twice or be a ZipInfo."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in parts.items() if isinstance(parts, dict) else parts:
            archive.writestr(name, data)
    return path


def wheel(folder, name, version="1.0", **keys):
    return pack(pathlib.Path(folder) / file_name(name, version, keys.get("tag", PURE)), contents(name, version, **keys))


def compiled(folder, name="native", version="1.0"):
    """A real extension module for the pinned Pyodide, by clang and wasm-ld; None where these are not installed."""
    folder = pathlib.Path(folder)
    linker = shutil.which("wasm-ld") or next((str(path) for path in sorted(pathlib.Path("/usr/bin").glob("wasm-ld-*"))), None)
    if not shutil.which("clang") or not linker:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    source, object_file, library = (folder / f"{name}.{kind}" for kind in ("c", "o", "so"))
    source.write_text(EXTENSION.replace("NAME", name))
    subprocess.run(["clang", "--target=wasm32-unknown-emscripten", "-O2", "-fPIC", "-c", source, "-o", object_file], check=True)
    subprocess.run([linker, "--experimental-pic", "-shared", "--allow-undefined", f"--export=PyInit_{name}", "--export=__wasm_call_ctors",
                    object_file, "-o", library], check=True)
    return wheel(folder / "wheels", name, version, tag=WASM,
                 files={f"{name}.cpython-314-wasm32-emscripten.so": library.read_bytes(), f"{name}_helper.py": f"from {name} import add\n"})


class Index:
    """Packages by name.  faults: {file name: "wrong hash" | "cut" | "500" | "stall"}."""

    def __init__(self, folder, style="json"):
        self.folder, self.style = pathlib.Path(folder), style
        self.folder.mkdir(parents=True, exist_ok=True)
        self.faults, self.asked, self.stalled, self.go_on = {}, [], threading.Event(), threading.Event()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                index.asked.append(self.path)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    index.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.url = f"{self.base}/simple"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def files(self, project):
        return [path for path in sorted(self.folder.glob("*.whl"))
                if re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower() == project]

    def sha256(self, path):
        wrong = self.faults.get(path.name) == "wrong hash"
        return "0" * 64 if wrong else hashlib.sha256(path.read_bytes()).hexdigest()

    def page(self, project):
        files = self.files(project)
        if self.style == "json":
            body = json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": [
                {"filename": path.name, "url": f"../../files/{path.name}", "hashes": {"sha256": self.sha256(path)}} for path in files]})
            return bool(files), "application/vnd.pypi.simple.v1+json", body.encode()
        rows = "".join(f'<a href="/files/{path.name}#sha256={self.sha256(path)}">{path.name}</a><br>' for path in files)
        return bool(files), "text/html", f"<!DOCTYPE html><html><body>{rows}</body></html>".encode()

    def answer(self, request):
        parts = request.path.strip("/").split("/")
        if len(parts) == 2 and parts[0] == "simple":
            there, kind, body = self.page(parts[1])
            return self.send(request, 200 if there else 404, kind, body)
        path = self.folder / parts[-1]
        if parts[0] != "files" or not path.is_file():
            return self.send(request, 404, "text/plain", b"")
        return self.send_file(request, path)

    def send_file(self, request, path):
        fault, body = self.faults.get(path.name), path.read_bytes()
        if fault == "500":
            return self.send(request, 500, "text/plain", b"")
        if fault == "stall":
            self.send(request, 200, "application/octet-stream", body[: len(body) // 2], len(body))
            request.wfile.flush()
            self.stalled.set()
            self.go_on.wait(300)
            return request.wfile.write(body[len(body) // 2:])
        self.send(request, 200, "application/octet-stream", body[: len(body) // 2] if fault == "cut" else body, len(body))
        request.close_connection = True

    def send(self, request, code, kind, body, length=None):
        request.send_response(code)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        request.wfile.write(body)
