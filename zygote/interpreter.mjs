// interpreter.mjs - Pyodide, started, warmed and cut off from Node.
//
// The sandbox of the operating system is the border (sandbox.c).  What is taken away here is depth: the ways from Python to
// JavaScript that people know.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Watch } from "./watch.mjs";

const here = path.dirname(fileURLToPath(import.meta.url));
const EINTR = 27; // emscripten's numbers
const EIO = 29;
const EPIPE = 64;
const NODE_EINTR = -4;
const NODE_EPIPE = -32;
const ERROR_MAX = 1 << 15; // code units, one or two a character: more than host.py leaves of a traceback

// What Python sees as module `js` while Pyodide starts, and what Pyodide itself needs of it.
const jsNames = ["Object", "Array", "Map", "Set", "Promise", "Error", "Uint8Array", "ArrayBuffer", "JSON", "Math", "Date",
  "setTimeout", "clearTimeout", "setInterval", "clearInterval"];

// Standard modules that jobs use: what is not imported before the fork is imported in every copy.
const standard = ["abc", "argparse", "array", "ast", "asyncio", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
  "colorsys", "concurrent.futures", "configparser", "contextlib", "contextvars", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib",
  "email.mime.text", "email.mime.multipart", "enum", "fnmatch", "fractions", "functools", "glob", "graphlib", "gzip", "hashlib", "heapq", "hmac",
  "html", "html.parser", "io", "ipaddress", "itertools", "json", "keyword", "linecache", "locale", "logging", "math", "mimetypes",
  "numbers", "operator", "os", "pathlib", "pickle", "pprint", "queue", "random", "re", "secrets", "shlex", "shutil", "statistics", "string", "struct",
  "tempfile", "textwrap", "threading", "time", "timeit", "tomllib", "traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid", "warnings",
  "weakref", "xml.etree.ElementTree", "zipfile", "zlib", "zoneinfo"];

const cutOff = `
def _cut_off():
    import sys, types, pyodide_js, js
    import pyodide.webloop, pyodide.ffi, pyodide.ffi.wrappers, pyodide.code, pyodide.http, asyncio, ssl
    from _pyodide._importhook import jsfinder
    api = types.ModuleType("pyodide_js._api")
    api.config = types.SimpleNamespace(enableRunUntilComplete=True)
    api.scheduleCallback = pyodide_js._api.scheduleCallback
    stub = types.ModuleType("pyodide_js")
    stub._api, stub.__path__, stub.version = api, [], str(pyodide_js.version)
    jsfinder.jsproxies.clear()
    for name in list(sys.modules):
        if name == "js" or name.startswith(("js.", "pyodide_js")):
            del sys.modules[name]
    sys.modules["js"] = types.ModuleType("js")
    sys.modules["pyodide_js"], sys.modules["pyodide_js._api"] = stub, api
_cut_off()
del _cut_off
`;

// A module that no import finds, with builtins of its own.
const loader = `
def _load(source):
    import builtins, types
    module = types.ModuleType("<mandor>")
    module.__builtins__ = dict(builtins.__dict__)
    exec(compile(source, "<mandor>", "exec"), module.__dict__)
    return module
_load
`;

const nothing = { isatty: false, read: () => 0 };

function channel(addon, py, flag) {
  const encoder = new TextEncoder();

  // Everything, waiting as long as it takes; a signal lets Python look at its flag.
  const writeAll = (fd, bytes) => {
    for (let at = 0; at < bytes.length;) {
      const n = addon.write(fd, bytes.subarray(at));
      if (n === NODE_EINTR) py.checkInterrupt();
      else if (n < 0) return false;
      else at += n;
    }
    return true;
  };
  const emit = (text) => writeAll(3, encoder.encode(text + "\n"));

  return {
    emit,
    // One write(2), for Python's own streams.
    output: (fd) => ({
      isatty: false,
      write(bytes) {
        if (flag[0] !== 0) throw new py.FS.ErrnoError(EINTR);
        const n = addon.write(fd, bytes);
        if (n === NODE_EINTR) throw new py.FS.ErrnoError(EINTR);
        if (n < 0) throw new py.FS.ErrnoError(n === NODE_EPIPE ? EPIPE : EIO);
        return n;
      },
    }),
    input: {
      isatty: false,
      read(bytes) {
        const n = addon.read(0, bytes);
        if (n === NODE_EINTR) throw new py.FS.ErrnoError(EINTR);
        if (n < 0) throw new py.FS.ErrnoError(EIO);
        return n;
      },
    },
    writeAll,
  };
}

// A getter that a job puts on the prototype of all objects is called by Pyodide's own code, with Pyodide's own objects.  Sealed, not
// frozen: an object that inherits a frozen `constructor` cannot be given one of its own, and Pyodide does that.
function sealPrototypes() {
  for (const kind of [Object, Function, Array, Map, Set, Promise, ArrayBuffer, Uint8Array, Object.getPrototypeOf(Uint8Array)]) {
    Object.seal(kind.prototype);
    Object.seal(kind);
  }
}

// Install wheels from files, without network and without pip.
function installWheels(py, wheels) {
  const site = py.runPython("import site; site.getsitepackages()[0]");
  for (const wheel of wheels) {
    const file = fs.readFileSync(wheel); // a Buffer, which Pyodide does not know
    py.unpackArchive(new Uint8Array(file.buffer, file.byteOffset, file.length), "wheel", { extractDir: site });
  }
  if (wheels.length > 0) py.runPython("import importlib; importlib.invalidate_caches()");
}

async function importAll(py, names, mayFail) {
  const failures = [];
  for (const name of names) {
    try {
      await py.runPythonAsync(`import importlib; importlib.import_module(${JSON.stringify(name)}); None`);
    } catch (error) {
      const last = String(error.message).trim().split("\n").pop();
      if (!mayFail) throw new Error(`preload '${name}': ${last}`);
      failures.push(name);
    }
  }
  return failures;
}

// A file of Pyodide that is not there, or not whole, says so in many ways.
export function cannotStart(error) {
  const text = String(error?.message ?? error).trim().split("\n")[0];
  throw new Error(`Pyodide cannot be started: ${text}`);
}

async function findPyodide() {
  try {
    return (await import("pyodide")).loadPyodide;
  } catch (error) {
    return cannotStart(error);
  }
}

// The flag as Python looks at it: it reads, and then writes 0, whatever it has read.  A signal between the two would be lost.
export function signalBuffer(flag) {
  let seen = 0;
  return {
    get 0() {
      return (seen = flag[0]);
    },
    set 0(value) {
      if (seen !== 0) flag[0] = value;
    },
  };
}

export async function startInterpreter(addon, config) {
  const loadPyodide = await findPyodide();
  const watch = config.isolation === "scope" ? new Watch() : undefined;
  const jsglobals = { ...Object.fromEntries(jsNames.map((name) => [name, globalThis[name]])), ...watch?.timers };
  const env = { HOME: "/home/pyodide", LANG: "C.UTF-8" };
  if (config.hash_seed !== undefined) env.PYTHONHASHSEED = String(config.hash_seed);
  const compiled = path.join(here, "stdlib.zip"); // compile_stdlib.mjs
  const stdLibURL = fs.existsSync(compiled) ? compiled : undefined;
  const py = await loadPyodide({ jsglobals, env, stdLibURL, _sysExecutable: "/bin/python" }).catch(cannotStart);

  const flag = new Uint8Array(1);
  py.setInterruptBuffer(signalBuffer(flag));
  const io = channel(addon, py, flag);
  py.setStdout(io.output(1));
  py.setStderr(io.output(2));
  py.setStdin(config.isolation === "scope" ? nothing : io.input); // many jobs have one pipe, which does not end with any of them

  py.runPython("import atexit; atexit.register(int); atexit._run_exitfuncs()"); // compiled now, while nobody has registered anything
  await importAll(py, standard, true);
  installWheels(py, config.wheels ?? []);
  await importAll(py, config.preload ?? [], false);

  const end = { error: null, result: null };
  // What the job's half of the harness can call (host.py): nothing of it speaks for mandor.
  const forJobs = {
    out: (proxy) => {
      const view = proxy.getBuffer("u8");
      try {
        if (!io.writeAll(1, view.data)) throw new Error("standard output is closed");
      } finally {
        view.release();
        proxy.destroy?.();
      }
    },
    emit: (text) => void io.emit(text),
    sleep: (ms) => void addon.sleep(ms),
    check: () => py.checkInterrupt(),
  };
  const forKeeper = {
    error: (text) => void (end.error = text),
    result: (text) => void (end.result = text),
    pause: () => watch?.pause(),
    forget: () => watch?.forget(),
    changed: () => watch.changed(),
    touched: () => watch.touched(),
    interrupted: () => interrupted(),
    exited: (code) => leave(host.exited(code)),
  };
  for (const functions of [forJobs, forKeeper])
    for (const one of Object.values(Object.freeze(functions))) if (typeof one === "function") Object.freeze(one);

  // The last words on the channel; returns the exit code.
  function report(code, emit = io.emit) {
    const { error, result } = end;
    end.error = end.result = null;
    if (error !== null) emit(JSON.stringify({ error: error.slice(0, ERROR_MAX).toWellFormed() }));
    else if (result !== null && result.length > config.result_max) {
      emit(JSON.stringify({ over: result.length }));
      return 1;
    } else if (result !== null) emit(`{"result": ${result}}`);
    return code;
  }

  // Nothing of Node runs after it.
  function leave(code) {
    addon.exit(report(code));
  }

  const load = py.runPython(loader);
  const source = (name) => fs.readFileSync(path.join(here, "python", name), "utf8");
  const host = load(source("host.py"));
  const keeper = load(source("keeper.py"));
  load.destroy();
  host.setup(forJobs, watch !== undefined);
  const { run: runInTurn, start, interrupted: interruptAll, reseed, remember, tidy, settle } = keeper.setup(host, forKeeper);
  const interrupted = () => {
    watch?.pause();
    interruptAll();
  };
  // Pyodide waits a turn of the loop before it calls what may wait in the middle; nothing is under way here that it could meet.
  const runAtOnce = (frame) => {
    const later = py._api.scheduleCallback;
    py._api.scheduleCallback = (callback) => callback();
    try {
      return start.callPromising(frame);
    } finally {
      py._api.scheduleCallback = later;
    }
  };
  // An interrupt may come before the job's first line, or after its last.
  const run = async (frame) => {
    try {
      return await (watch === undefined ? runAtOnce : runInTurn)(frame);
    } catch (error) {
      if (!isInterrupt(error)) throw error;
      return 1;
    }
  };
  watch?.schedule(py);
  if (config.sandbox !== "none") {
    py.runPython(cutOff);
    sealPrototypes();
  }

  guardFatal(py, addon, io, interrupted);
  return { py, flag, io, end, run, interrupted, reseed, remember, tidy, settle, report, leave, watch };
}

const isInterrupt = (error) => error?.type === "KeyboardInterrupt";

// Pyodide's fatal errors settle no promise and print into standard output: say it on the channel, and die of it.
function guardFatal(py, addon, io, interrupted) {
  const die = (error) => {
    if (isInterrupt(error)) return void interrupted(); // of a callback before its own first line
    const lines = String(error?.message ?? error).trim().split("\n");
    const text = lines[0].startsWith("Traceback") ? lines.at(-1) : lines[0]; // Python says the exception last
    if (error?.name === "Exit" || error?.name === "ExitStatus") addon.exit(Number(error.status) || 0);
    io.emit(JSON.stringify({ fatal: text.slice(0, 200).toWellFormed().replaceAll("\0", " ") }));
    addon.abort();
  };
  py._api.fatal_error = die;
  py._api.on_fatal = die;
  process.removeAllListeners("unhandledRejection");
  process.removeAllListeners("uncaughtException");
  process.on("unhandledRejection", die);
  process.on("uncaughtException", die);
  process.exit = process.reallyExit = (code) => addon.exit(Number(code) || 0);
  process.abort = () => addon.abort();
  process.kill = () => false;
}
