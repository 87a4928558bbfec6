"""What runs a job inside the interpreter: its code, its result, its traceback.

`setup(native)` is called once, before the first copy, and leaves nothing behind in any module but what jobs may see.  `native` are
the harness's functions (interpreter.mjs)."""

import ast
import asyncio
import builtins
import linecache
import re
import sys
import time
import traceback
import types

JOB_FILE = "job.py"
DEPTH_MAX = 200  # of a result
WORDS_MAX = 1 << 20  # of progress and log, as JSON
_SURROGATE = re.compile("[\ud800-\udfff]")


class ResultError(TypeError):
    """The result is nothing that JSON can hold."""


# ---- results ----


def _scalar(value):
    """The JSON form of a value that is no container, or None."""
    import base64
    import datetime
    import decimal
    import enum
    import pathlib
    import uuid

    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath)):
        return str(value)
    if isinstance(value, enum.Enum):
        return _encode(value.value, "", 0)
    return None


def _foreign(value, path, depth):
    """numpy and pandas, without importing either."""
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "tolist"):
        return _encode(value.tolist(), path, depth + 1)
    if module == "pandas":
        if kind.__name__ in ("DataFrame", "Series"):
            split = value.to_dict(orient="split") if kind.__name__ == "DataFrame" else {
                "name": value.name, "index": value.index.tolist(), "data": value.tolist()}
            return _encode(split, path, depth + 1)
        if hasattr(value, "isoformat"):
            return value.isoformat() if value == value else None
        if hasattr(value, "tolist"):
            return _encode(value.tolist(), path, depth + 1)
        if kind.__name__ in ("NAType", "NaTType"):
            return None
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raise ResultError(f"{path or 'the result'} is of type '{name}', which JSON cannot hold")


def _encode(value, path, depth):
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        return _text(value, path)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    if kind is float:
        return value if value - value == 0 else None
    if depth >= DEPTH_MAX:
        raise ResultError(f"{path[:200]}… is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, dict):
        return {_key(key, path): _encode(item, f"{path}.{key}" if path else str(key), depth + 1)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [_encode(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    module = kind.__module__.partition(".")[0]
    if module in ("numpy", "pandas"):
        return _foreign(value, path, depth)
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, int):
        return _encode(int(value), path, depth)
    if isinstance(value, float):
        return _encode(float(value), path, depth)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: _encode(getattr(value, name), f"{path}.{name}" if path else name, depth + 1)
                for name in kind.__dataclass_fields__}
    return _foreign(value, path, depth)


def _text(value, path):
    if "\0" in value:
        raise ResultError(f"{path or 'the result'} is text with a NUL character, which JSON here cannot hold")
    if not value.isascii() and _SURROGATE.search(value):
        raise ResultError(f"{path or 'the result'} is text with half a character (a lone surrogate), which JSON cannot hold")
    return value


def _key(key, path):
    return _text(key if type(key) is str else str(key), path)


# ---- tracebacks ----


_OURS = ("<mandor", "/lib/python314.zip/pyodide/", "/lib/python314.zip/_pyodide/", "file:", "node:", "wasm:")


def _is_ours(filename):
    return filename.startswith(_OURS) or filename.endswith((".mjs", ".js"))


def _strip(stack):
    """Leave out what called the job's code, and the harness wherever it shows."""
    kept = [frame for frame in stack if not _is_ours(frame.filename)]
    stack[:] = kept


def _clean(report, seen):
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    _strip(report.stack)
    _clean(report.__cause__, seen)
    _clean(report.__context__, seen)
    for inner in report.exceptions or ():
        _clean(inner, seen)


def _describe(error):
    report = traceback.TracebackException.from_exception(error, compact=True)
    _clean(report, set())
    return "".join(report.format(colorize=False)).rstrip("\n")


# ---- one job ----


def _compile(source):
    """The code, whose last expression becomes `_mandor_last` of its globals."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, JOB_FILE, "exec", flags | ast.PyCF_ONLY_AST, True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    body = compile(tree, JOB_FILE, "exec", flags, True)
    return body, None if last is None else compile(last, JOB_FILE, "eval", flags, True)


def _flush():
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        try:
            stream.flush()
        except BaseException:
            pass


def setup(native):
    from inspect import CO_COROUTINE
    from json import dumps, loads

    out, emit, leave, wait, check = native.out, native.emit, native.leave, native.sleep, native.check
    state = types.SimpleNamespace(top=None, job=None, code=None)

    def sleep(seconds, /):
        """Suspend execution for a given number of seconds."""
        seconds = float(seconds) if not hasattr(seconds, "__index__") else seconds.__index__()
        if seconds != seconds:
            raise ValueError("Invalid value NaN (not a number)")
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        end = time.monotonic() + seconds
        left = seconds
        while left > 0:
            wait(min(left, 1000.0) * 1000)
            check()
            left = end - time.monotonic()
        check()

    time.sleep = sleep

    # -- the module `mandor` --

    def say(kind, value):
        text = dumps({kind: _encode(value, kind, 0)}, ensure_ascii=True)
        if len(text) > WORDS_MAX:
            raise ValueError(f"{kind} has {len(text)} bytes as JSON, at most {WORDS_MAX} are heard")
        emit(text)

    def progress(value, /):
        """Tell how far the job is: a number, or any JSON value."""
        say("progress", value)

    def log(*values):
        """Write one line into the job's log."""
        say("log", " ".join(map(str, values)))

    def write(data, /):
        """Write bytes to standard output."""
        sys.stdout.flush()
        view = memoryview(data).cast("B")
        out(view)
        return view.nbytes

    def read(size=-1, /):
        """Read bytes of standard input: at most `size`, or all."""
        return sys.stdin.buffer.read(size)

    module = types.ModuleType("mandor", "What a job can say to mandor.")
    module.progress, module.log, module.write, module.read = progress, log, write, read
    module.__all__ = ["log", "progress", "read", "write"]
    sys.modules["mandor"] = module

    # -- the end of a job --

    def fail(error):
        """Report an exception as CPython would; returns the exit code."""
        if isinstance(error, SystemExit):
            code = error.code
            if code is None:
                return 0
            if isinstance(code, int):
                return code & 0xFF
            print(code, file=sys.stderr)
            return 1
        try:
            text = _describe(error)
        except BaseException as worse:
            text = f"{type(error).__name__} (its traceback cannot be shown: {type(worse).__name__})"
        try:
            print(text, file=sys.stderr)
        except BaseException:
            pass
        native.error(text)
        return 1

    def exit_now(code):
        """SystemExit in a task ends the job as well."""
        _flush()
        leave(fail(SystemExit(code)))

    def interrupted():
        for task in asyncio.all_tasks():
            if task is not state.top:
                task.cancel()

    async def evaluate(code, last, names):
        value = eval(code, names)
        if code.co_flags & CO_COROUTINE:
            await value
        if last is None:
            return names.get("result")
        value = eval(last, names)
        if last.co_flags & CO_COROUTINE:
            value = await value
        return names.get("result") if value is None else value

    def names_for(job):
        main = types.ModuleType("__main__")
        names = main.__dict__
        names["__file__"] = JOB_FILE
        names["__builtins__"] = builtins
        params = job.get("params")
        names["params"] = params
        if job.get("bind_params") and isinstance(params, dict):
            for key, value in params.items():
                if key.isidentifier():
                    names[key] = value
        sys.modules["__main__"] = main
        return names

    async def run(text):
        """Run one job; returns its exit code."""
        job = loads(text)
        source = job["code"]
        state.top = asyncio.current_task()
        linecache.cache[JOB_FILE] = (len(source), None, source.splitlines(True), JOB_FILE)
        try:
            code, last = _compile(source)
            state.job = asyncio.ensure_future(evaluate(code, last, names_for(job)))
            value = await state.job
            _flush()
            native.result(dumps(_encode(value, "", 0), ensure_ascii=True))
            return 0
        except BaseException as error:
            code = fail(error)
            _flush()
            return code

    loop = asyncio.get_event_loop()
    loop._keyboard_interrupt_handler = interrupted
    loop._system_exit_handler = exit_now
    cleaner = _Cleaner(loop, state)
    return types.SimpleNamespace(run=run, interrupted=interrupted, reseed=_reseed, remember=cleaner.remember, tidy=cleaner.tidy)


# ---- isolation `scope` ----


class _Cleaner:
    """Puts back what a job has changed, as far as that can be seen; tidy() is false where it could not be done."""

    WRITABLE = ("/tmp", "/home/pyodide", "/home")

    def __init__(self, loop, state):
        self.loop, self.state = loop, state

    def remember(self):
        import gc
        import os
        import signal
        import warnings

        gc.collect()
        self.modules = dict(sys.modules)
        self.dicts = {name: dict(module.__dict__) for name, module in sys.modules.items()
                      if isinstance(module, types.ModuleType) and name not in ("__main__", "<mandor>")}
        self.path, self.meta_path, self.path_hooks = list(sys.path), list(sys.meta_path), list(sys.path_hooks)
        self.environ = dict(os.environ)
        self.cwd = os.getcwd()
        self.files = {place: set(os.listdir(place)) for place in self.WRITABLE}
        self.filters = list(warnings.filters)
        self.signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.recursion = sys.getrecursionlimit()
        self.handles = []
        self._listen()

    def _listen(self):
        """Every callback that is put off goes through one of these two."""
        loop, handles = self.loop, self.handles
        call_later, call_soon = type(loop).call_later, type(loop).call_soon

        def later(*args, **keys):
            handle = call_later(loop, *args, **keys)
            handles.append(handle)
            return handle

        def soon(*args, **keys):
            handle = call_soon(loop, *args, **keys)
            handles.append(handle)
            return handle

        loop.call_later, loop.call_soon = later, soon
        self.own = (later, soon)

    async def tidy(self):
        try:
            return await self._tidy()
        except BaseException:
            return False

    async def _tidy(self):
        import gc

        top = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not top:
                task.cancel()
        await asyncio.sleep(0)
        clean = all(task is top for task in asyncio.all_tasks())
        for handle in self.handles:
            handle.cancel()
        self.handles.clear()
        if (self.loop.__dict__.get("call_later"), self.loop.__dict__.get("call_soon")) != self.own:
            clean = False
        self._tidy_interpreter()
        clean = self._tidy_modules() and clean
        self._tidy_files()
        _flush()
        gc.enable()
        gc.collect(0)
        return clean

    def _tidy_interpreter(self):
        import os
        import signal
        import warnings

        sys.path[:], sys.meta_path[:], sys.path_hooks[:] = self.path, self.meta_path, self.path_hooks
        if dict(os.environ) != self.environ:
            os.environ.clear()
            os.environ.update(self.environ)
        warnings.filters[:] = self.filters
        for number, handler in self.signals.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        sys.setrecursionlimit(self.recursion)
        sys.settrace(None)
        sys.setprofile(None)
        for hook in ("displayhook", "excepthook"):
            setattr(sys, hook, getattr(sys, f"__{hook}__"))
        import atexit
        atexit._clear()

    def _tidy_modules(self):
        """New modules go, old ones come back, and each has the names that it had."""
        current = sys.modules
        for name in list(current):
            if name not in self.modules and name != "__main__":
                del current[name]
        for name, module in self.modules.items():
            if current.get(name) is not module and name != "__main__":
                current[name] = module
        for name, names in self.dicts.items():
            own = self.modules[name].__dict__
            if not _same(own, names):
                own.clear()
                own.update(names)
        return True

    def _tidy_files(self):
        import os
        import shutil

        os.chdir(self.cwd)
        for place, known in self.files.items():
            for name in os.listdir(place):
                if name in known:
                    continue
                path = f"{place}/{name}"
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)


def _same(a, b):
    """The same objects under the same names; == would ask the objects."""
    if len(a) != len(b):
        return False
    for key, value in b.items():
        if a.get(key, _same) is not value:
            return False
    return True


def _reseed():
    """What copies of one process would else share."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "uuid" in modules:
        modules["uuid"]._node = None
        modules["uuid"]._last_timestamp = None
        modules["uuid"]._GETTERS = []
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    numpy_random = modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
