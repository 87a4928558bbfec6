# What of it does the next job see (mandor verify isolation)?
import asyncio
import builtins
import calendar
import codecs
import csv
import decimal
import json
import logging
import os
import random
import signal
import sys
import warnings

from pyodide.ffi import to_js


def is_known(look, name):
    try:
        look(name)
        return True
    except LookupError:
        return False


chance = random.random() == random.Random(12345).random()
await asyncio.sleep(0.15)
{
    "globals": "planted_global" in globals() or hasattr(sys.modules["__main__"], "planted_global"),
    "patched module": json.dumps([1]) != "[1]",
    "patched class": hasattr(json.JSONEncoder, "planted"),
    "builtins": hasattr(builtins, "planted") or hasattr(builtins, "planted_task"),
    "new module": "planted_module" in sys.modules,
    "sys.path": "/planted" in sys.path,
    "environment": "PLANTED" in os.environ,
    "logging": bool(logging.root.handlers),
    "working directory": os.getcwd() == "/tmp/planted",
    "files": os.path.exists("/tmp/planted") or os.path.exists("/home/pyodide/planted"),
    "file of a library": os.path.exists("/lib/python3.14/site-packages/planted_library.py"),
    "random state": chance,
    "decimal context": decimal.getcontext().prec == 3,
    "warnings filters": any("planted" in str(one[1]) for one in warnings.filters),
    "signal handlers": callable(signal.getsignal(signal.SIGUSR1)),
    "csv dialect": "planted" in csv.list_dialects(),
    "codec": is_known(codecs.lookup, "planted"),
    "codec error handler": is_known(codecs.lookup_error, "planted"),
    "JavaScript prototype": hasattr(to_js([1]), "planted"),
    "object changed in place": calendar.firstweekday() == 3,
    "timer left behind": hasattr(sys, "planted_timer"),
    "callback left behind": hasattr(sys, "planted_callback"),
    "task left behind": hasattr(sys, "planted_task"),
}
