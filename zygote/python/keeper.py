"""The half of the harness that no job reaches: it starts jobs, and for isolation `scope` puts back what they have changed.

The code of jobs runs in host.py.  A function leads to its module's names, a frame to those below it; so no object of this module is
reachable from there but by what interpreter.mjs watches (watch.mjs): gc, ctypes, frames of coroutines, hooks.  For the same
reason it has builtins of its own, and calls nothing written in Python before the modules are what they were."""

import asyncio
import atexit
import codecs
import csv
import encodings.aliases
import functools
import gc
import locale
import logging
import os
import shutil
import signal
import sys
import types
import uuid
import warnings
import weakref
import _signal
import _tracemalloc
from asyncio import all_tasks, current_task
from json import JSONDecoder

from pyodide.webloop import PyodideTask

decode = JSONDecoder().decode
loop = asyncio.get_event_loop()
create_task, nap = loop.create_task, asyncio.sleep
top = job = None  # tasks


def at_once(coroutine):
    """A task whose first step is taken here and now."""
    return PyodideTask(coroutine, loop=loop, eager_start=True)


def setup(host, native):
    perform, pause = host.perform, native.pause
    loop._keyboard_interrupt_handler = native.interrupted
    loop._system_exit_handler = native.exited

    async def run(text, begin=create_task):
        """Run one job; returns its exit code."""
        global top, job

        task = decode(text)
        top = current_task()
        try:
            job = begin(perform(task))
            outcome = await job
        except BaseException:
            outcome = None
        pause()  # from here on nothing of the job may look at frames: ours are among them
        job = None
        if type(outcome) is not tuple or len(outcome) != 3 or type(outcome[0]) is not int:
            return 1
        code, error, result = outcome
        if type(error) is str:
            native.error(error)
        elif type(result) is str:
            native.result(result)
        return code & 0xFF

    def start(text):
        """Run one job, at once: what waits for nothing takes no turn of the loop.  Returns its exit code, or a future of it.  The harness
        is below the job's frames then, so this is for a process that takes no other job."""
        loop._install_running_loop()
        loop._install_asyncgen_hooks()
        task = at_once(run(text, at_once))
        return task.result() if task.done() else task

    cleaner = _Cleaner(host, native)
    return types.SimpleNamespace(run=run, start=start, interrupted=interrupted, reseed=reseed, remember=cleaner.remember, tidy=cleaner.tidy,
                                 settle=cleaner.settle)


def interrupted():
    for task in all_tasks():
        if task is not top:
            task.cancel()


def reseed():
    """What copies of one process would else share."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "uuid" in modules:
        uuid._node = None
        uuid._last_timestamp = None
        uuid._GETTERS = []
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    numpy_random = modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


# ---- isolation `scope` ----


def _same(a, b):
    """The same objects under the same names; == would ask the objects."""
    if len(a) != len(b):
        return False
    for key, value in b.items():
        if a.get(key, _same) is not value:
            return False
    return True


def _put_back(names, before):
    """One dict, as it was; returns whether it was so already."""
    if _same(names, before):
        return True
    names.clear()
    names.update(before)
    return False


class _Cleaner:
    """Puts back what a job has changed, as far as that can be seen; tidy() is false where it could not be done.

    The order matters: what is put back lets go of objects of the job, whose finalizers are code of the job.  So at the end nothing
    may be left to put back."""

    HEAP_TYPE = 1 << 9
    RESTLESS = {weakref.finalize: ("_dirty", "_registered_with_atexit", "_shutdown")}  # classes that change themselves, and where
    WRITABLE = ("/tmp", "/home/pyodide", "/home")
    STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")

    def __init__(self, host, native):
        self.host, self.close_handlers, self.forget = host, host.close_handlers, native.forget
        self.changed, self.touched = native.changed, native.touched

    def remember(self):
        """Called once; returns the addresses of all functions, of all classes that can be changed, and of the modules' names, for who watches them."""
        gc.unfreeze()  # the fork server froze what it had
        gc.collect()
        everything = gc.get_objects()
        functions = [id(one) for one in everything if type(one) is types.FunctionType]
        classes = [id(one) for one in everything if isinstance(one, type) and one.__flags__ & self.HEAP_TYPE and one not in self.RESTLESS]
        self.present = sys.modules
        self.modules = dict(sys.modules)
        searches, registries = self._registries(everything)
        dicts = [module.__dict__ for module in sys.modules.values() if isinstance(module, types.ModuleType)]
        dicts += [self.host.__dict__, self.host.__builtins__, sys.path_importer_cache, logging.root.manager.loggerDict, warnings.onceregistry, *registries]
        self.dicts = {str(id(one)): (one, dict(one)) for one in dicts}
        self.lists = [(one, list(one)) for one in (sys.path, sys.meta_path, sys.path_hooks, warnings.filters, gc.callbacks, gc.garbage,
                                                   logging.root.handlers, logging.root.filters, *searches)]
        streams = [getattr(sys, name) for name in self.STREAMS]
        self.tables = [(one, dict(one)) for one in (os.environ.__dict__, *(stream.__dict__ for stream in streams))]
        self.loop = {key: value for key, value in loop.__dict__.items() if type(value) is not int}
        self.environ = dict(os.environ._data)
        self.cwd = os.getcwd()
        self.files = {place: set(os.listdir(place)) for place in self.WRITABLE}
        self.signals = {int(number): _signal.getsignal(number) for number in signal.valid_signals()}
        self.streams = [(stream, self._look_at(stream)) for stream in streams]
        self.restless = [(vars(one), dict(vars(one)), own) for one, own in self.RESTLESS.items()]
        for one in list(weakref.finalize._registry):
            one.atexit = False  # a job's end is not its own
        self._tidy_exit()
        finalize, manager, policy = weakref.finalize, logging.root.manager, asyncio.events._get_event_loop_policy()
        finalize._registered_with_atexit = finalize._shutdown = False

        def attribute(one, name):
            return functools.partial(getattr, one, name), functools.partial(setattr, one, name), getattr(one, name)

        def setting(look, put):
            return look, put, look()

        self.settings = [
            setting(sys.getrecursionlimit, sys.setrecursionlimit), setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
            setting(sys.getswitchinterval, sys.setswitchinterval),
            setting(sys.get_coroutine_origin_tracking_depth, sys.set_coroutine_origin_tracking_depth),
            setting(sys.get_asyncgen_hooks, lambda hooks: sys.set_asyncgen_hooks(*hooks)),
            setting(gc.get_threshold, lambda limits: gc.set_threshold(*limits)), setting(gc.get_debug, gc.set_debug),
            setting(gc.isenabled, lambda on: gc.enable()), setting(_tracemalloc.is_tracing, lambda on: _tracemalloc.stop()),
            setting(csv.field_size_limit, csv.field_size_limit),
            setting(functools.partial(locale.setlocale, locale.LC_ALL), functools.partial(locale.setlocale, locale.LC_ALL)),
            setting(logging.root.getEffectiveLevel, logging.root.setLevel), attribute(manager, "disable"), attribute(policy, "_default_loop"),
            attribute(finalize, "_registered_with_atexit"), attribute(finalize, "_shutdown"),
        ]
        gc.freeze()  # what a job leaves behind is all that there is to collect
        return functions, classes, [id(self.present), *(id(names) for names, _ in self.dicts.values())]

    @staticmethod
    def _registries(everything):
        """Those that C code keeps to itself: where codecs are searched for, which were found, how errors of them are handled, dialects of CSV."""
        def kept(kind, fits):
            found = [one for one in everything if type(one) is kind and 0 < len(one) < 1000 and fits(one)]
            if not found:
                raise LookupError("a registry is not where it was")
            return found

        searches = kept(list, lambda one: any(entry is encodings.search_function for entry in one))
        codecs_found = kept(dict, lambda one: type(one.get("utf_8")) is codecs.CodecInfo)
        handlers = kept(dict, lambda one: one.get("backslashreplace") is codecs.backslashreplace_errors)
        dialects = kept(dict, lambda one: one.get("excel") is csv.get_dialect("excel"))
        return searches, [*codecs_found, *handlers, *dialects, encodings.aliases.aliases]

    @staticmethod
    def _look_at(stream):
        return stream.closed, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, id(stream.buffer)

    async def tidy(self):
        try:
            return await self._tidy()
        except BaseException:
            return False

    async def _tidy(self):
        self._tidy_modules()
        me = current_task()
        for task in all_tasks():
            if task is not me:
                task.cancel()
        await nap(0)
        self.forget()
        self._tidy_modules()
        clean = all(task is me for task in all_tasks())
        for names, before, own in self.restless:
            clean = clean and len(names) == len(before) and all(key in own or value is before.get(key, _same) for key, value in names.items())
        self._put_all_back()
        return clean

    def settle(self):
        """The last look, after which no callback of the job can come: true if there was nothing left to put back, and to finalize."""
        try:
            return self._put_all_back()
        except BaseException:
            return False

    def _put_all_back(self):
        """True if all was as it should be.  Else finalizers may have run after what they changed was looked at."""
        clean = self._tidy_modules()
        clean = gc.collect() == 0 and clean
        clean = self._tidy_interpreter() and clean
        clean = self._tidy_exit() and clean
        clean = self._tidy_files() and clean
        self._tidy_streams()
        return clean

    def _tidy_interpreter(self):
        clean = True
        for one, before in self.lists:
            if len(one) != len(before) or any(a is not b for a, b in zip(one, before)):
                one[:] = before
                clean = False
        for one, before in self.tables:
            clean = _put_back(one, before) and clean
        if not _same(os.environ._data, self.environ):
            os.environ.clear()
            os.environ.update({os.fsdecode(key): os.fsdecode(value) for key, value in self.environ.items()})
            self.environ = dict(os.environ._data)
            clean = False
        for number, handler in self.signals.items():
            if _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)
                clean = False
        for look, put, before in self.settings:
            if look() != before:
                put(before)
                clean = False
        return clean

    def _tidy_exit(self):
        """At the end of the next job, nothing of this one is done."""
        atexit.unregister(self.close_handlers)
        clean = atexit._ncallbacks() == 0
        atexit._clear()
        atexit.register(self.close_handlers)
        return clean

    def _tidy_streams(self):
        for stream, settings in self.streams:
            if self._look_at(stream) != settings:
                raise ValueError("a stream is not what it was")
            if not settings[0] and stream.writable():
                stream.flush()

    def _tidy_modules(self):
        """New modules go, old ones come back, and each has the names that it had; returns whether they had."""
        clean = True
        for address in self.changed().split():
            known = self.dicts.get(address)  # None: sys.modules, which nobody may find empty
            clean = (_put_back(*known) if known else self._tidy_list_of_modules()) and clean
        for key in [key for key in loop.__dict__ if type(loop.__dict__[key]) is not int and key not in self.loop]:
            del loop.__dict__[key]
            clean = False
        for key, value in self.loop.items():
            if loop.__dict__.get(key, _same) is not value:
                loop.__dict__[key] = value
                clean = False
        return clean

    def _tidy_list_of_modules(self):
        if _same(self.present, self.modules):
            return True
        for name in [name for name in self.present if name not in self.modules]:
            del self.present[name]
        self.present.update(self.modules)
        return False

    def _tidy_files(self):
        clean = not self.touched()
        if os.getcwd() != self.cwd:
            os.chdir(self.cwd)
        if clean:
            return True
        for place, known in self.files.items():
            for name in os.listdir(place):
                if name in known:
                    continue
                path = f"{place}/{name}"
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
        return False
