"""The job's half of the harness: its code, its result, its traceback, the module `mandor`.

Whatever runs code of the job runs here, and a job can reach all of it: nothing in this module leads to keeper.py, which no job
reaches, and nothing here is believed there.  `setup(native)` is called once, before the first copy; `native` are functions of
interpreter.mjs."""

import ast
import asyncio
import atexit
import builtins
import errno
import gc
import linecache
import logging
import os
import posix
import re
import sys
import time
import traceback
import types
from asyncio.runners import _State
from inspect import CO_COROUTINE
from json import JSONEncoder

from _io import _IOBase

JOB_FILE = "job.py"
DEPTH_MAX = 200  # of a result
WORDS_MAX = 1 << 20  # of progress and log, as JSON
ERROR_MAX = 16000  # characters of a traceback in the record
TIDY_S = 1  # for tasks that a job has begun and not waited for, at its end
_STOCK_HOOKS = (sys.__excepthook__, traceback.print_exception)
_SURROGATE = re.compile("[\ud800-\udfff]")


class ResultError(TypeError):
    """The result is nothing that JSON can hold."""

    __module__ = "builtins"  # its words are the job's error, where nothing of ours shows


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
        names = {}
        for key, item in value.items():
            name = _key(key, path)
            if name in names:
                raise ResultError(f"{path or 'the result'} has two keys that are both {name[:100]!r} in JSON")
            names[name] = _encode(item, f"{path}.{key}" if path else str(key), depth + 1)
        return names
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


def _legible(text):
    """What JSON cannot hold, as Python would write it."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _describe(error):
    report = traceback.TracebackException.from_exception(error, compact=True)
    _clean(report, set())
    return _legible("".join(report.format(colorize=False)).rstrip("\n"))


def _shorten(text):
    """The exception is said last."""
    if len(text) <= ERROR_MAX:
        return text
    return f"{text[:ERROR_MAX // 4]}\n…\n{text[-ERROR_MAX * 3 // 4:]}"


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


def _open_files():
    """Those of the job: what was there before the fork is frozen, and not among them.  At scope, where looking at all objects ends the
    copy, those of its globals."""
    objects = list(vars(sys.modules["__main__"]).values()) if _lasting else gc.get_objects()
    return [one for one in objects if issubclass(type(one), _IOBase)]


def _flush():
    for name in ("stdout", "__stdout__", "stderr", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except BaseException:
            pass


def _finish():
    """As the end of an interpreter: what was put off until then is done, and what was written leaves its buffers."""
    _run_exitfuncs()
    try:
        files = _open_files()
    except BaseException:
        files = []
    for file in files:
        try:
            if not file.closed and file.writable():
                file.flush()
        except BaseException:
            pass
    _flush()


def _handlers():
    return [one for one in logging._handlerList if one() not in _kept_handlers]


def close_handlers():
    """logging.shutdown(), but for the handlers that others need."""
    handlers = _handlers()
    if handlers:
        logging.shutdown(handlers)


def _rehearse_finish():
    _handlers()
    if gc.get_freeze_count() > 0:  # else there are too many objects to look at
        _open_files()
    _flush()


def _complain(words):
    """On standard error, where the job has left one: print() would take standard output for None."""
    try:
        sys.stderr.write(f"{words}\n")
    except BaseException:
        pass


def _lines(source):
    """As the compiler counts them: splitlines() sees more ends of lines."""
    return [f"{line}\n" for line in source.replace("\r\n", "\n").replace("\r", "\n").split("\n")]


async def _evaluate(code, last, names):
    value = eval(code, names)
    if code.co_flags & CO_COROUTINE:
        await value
    if last is None:
        return names.get("result")
    value = eval(last, names)
    if last.co_flags & CO_COROUTINE:
        value = await value
    return names.get("result") if value is None else value


def _names_for(job):
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
    sys.argv = [JOB_FILE]
    return names


def _fail(error):
    """Report an exception as CPython would; returns the exit code and the words for the record."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            return 0, None
        if isinstance(code, int):
            return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF, None
        _complain(code)
        return 1, None
    try:
        text = _describe(error)
    except BaseException as worse:
        text = f"{type(error).__name__} (its traceback cannot be shown: {type(worse).__name__})"
    _show(error, text)
    return 1, _shorten(text)


def _own(stack):
    """Without the frames of who called the job's code."""
    while stack is not None and _is_ours(stack.tb_frame.f_code.co_filename):
        stack = stack.tb_next
    return stack


def _show(error, text):
    """By sys.excepthook, where the job has one of its own."""
    hook = getattr(sys, "excepthook", None)
    if hook is not None and hook not in _STOCK_HOOKS:
        try:
            error.__traceback__ = _own(error.__traceback__)
            hook(type(error), error, error.__traceback__)
            return
        except BaseException as worse:
            worse.__context__ = None
            _complain(f"Error in sys.excepthook:\n{_describe(worse)}\n\nOriginal exception was:")
    _complain(text)


async def perform(job):
    """Run one job; returns its exit code, the words of its end or None, its result as JSON or None."""
    source = job["code"].removeprefix("\ufeff")  # a byte order mark, which some editors write
    linecache.cache[JOB_FILE] = (len(source), None, _lines(source), JOB_FILE)
    try:
        code, last = _compile(source)
        value = await _evaluate(code, last, _names_for(job))
        outcome = 0, None, _to_json(_encode(value, "", 0))
    except BaseException as error:
        outcome = *_fail(error), None
    try:
        tasks = asyncio.all_tasks(_loop)
        if len(tasks) > 2:  # this one, and the one that waits for it
            await _end_tasks([task for task in tasks if not _is_ours(getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", ""))])
        if _loop._asyncgens:
            await _loop.shutdown_asyncgens()
    except BaseException:
        pass  # interrupted once more
    (_rehearse_finish if job.get("rehearsal") else _finish)()
    return outcome


def exited(code):
    """SystemExit in a callback; returns the exit code."""
    code, _ = _fail(SystemExit(code))
    _finish()
    return code


# ---- the event loop: there is one, and it runs already ----


_loop = asyncio.get_event_loop()


async def _end_tasks(tasks):
    """As asyncio.run() ends: what was begun and not waited for is cancelled, and may tidy up."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=TIDY_S)
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            _loop.call_exception_handler({"message": "unhandled exception at the end of the event loop", "exception": task.exception(), "task": task})


class Runner(asyncio.Runner):
    __doc__ = asyncio.Runner.__doc__
    __module__ = asyncio.Runner.__module__

    def __init__(self, *, debug=None, loop_factory=None):
        super().__init__(debug=debug)
        self._before = asyncio.all_tasks(_loop)

    def close(self):
        if self._state is _State.INITIALIZED:
            self._state = _State.CLOSED
            mine = asyncio.all_tasks(_loop) - self._before - {asyncio.current_task(_loop)}
            _loop.run_until_complete(_end_tasks(mine))

    def run(self, coro, *, context=None):
        self._lazy_init()
        if asyncio.iscoroutine(coro):
            coro = _loop.create_task(coro, context=context or self._context)
        return _loop.run_until_complete(asyncio.ensure_future(coro))


def run(main, *, debug=None, loop_factory=None):
    with Runner(debug=debug) as runner:
        return runner.run(main)


def _share_loop():
    run.__doc__, run.__module__ = asyncio.run.__doc__, asyncio.run.__module__
    asyncio.run = asyncio.runners.run = run
    asyncio.Runner = asyncio.runners.Runner = Runner
    type(asyncio.events._get_event_loop_policy()).new_event_loop = lambda policy: _loop


# ---- what a job can say ----


_to_json = JSONEncoder().encode
_run_exitfuncs = atexit._run_exitfuncs
_kept_handlers = (logging.lastResort,)
_native = None
_lasting = False  # does the process take job after job?


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
        _native.sleep(min(left, 1000.0) * 1000)
        _native.check()
        left = end - time.monotonic()
    _native.check()


def system(command):
    """There are no processes, and no shell: as subprocess says it, where the C library would quietly return a status."""
    raise OSError(errno.ENOTSUP, f"{sys.platform} does not support processes.")


def _say(kind, value):
    text = _to_json({kind: _encode(value, kind, 0)})
    if len(text) > WORDS_MAX:
        raise ValueError(f"{kind} has {len(text)} bytes as JSON, at most {WORDS_MAX} are heard")
    _native.emit(text)


def progress(value, /):
    """Tell how far the job is: a number, or any JSON value."""
    _say("progress", value)


def log(*values):
    """Write one line into the job's log."""
    _say("log", _legible(" ".join(map(str, values))))


def write(data, /):
    """Write bytes to standard output."""
    sys.stdout.flush()
    view = memoryview(data).cast("B")
    _native.out(view)
    return view.nbytes


def read(size=-1, /):
    """Read bytes of standard input: at most `size`, or all."""
    return sys.stdin.buffer.read(size)


def setup(native, lasting):
    global _native, _lasting, _kept_handlers
    _native, _lasting = native, lasting
    time.sleep = sleep
    os.system = posix.system = system
    if lasting:
        _kept_handlers = tuple(one() for one in logging._handlerList)
    atexit.unregister(logging.shutdown)
    atexit.register(close_handlers)
    _share_loop()
    module = types.ModuleType("mandor", "What a job can say to mandor.")
    module.progress, module.log, module.write, module.read = progress, log, write, read
    module.__all__ = ["log", "progress", "read", "write"]
    sys.modules["mandor"] = module
