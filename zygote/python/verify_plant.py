# Leave behind whatever a job can leave behind (mandor verify isolation); `params` says which part of it.
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
import types
import warnings

from pyodide.ffi import to_js
from pyodide.ffi.wrappers import set_timeout


def callback():
    sys.planted_callback = 1


def timer():
    sys.planted_timer = 1


async def task():
    await asyncio.sleep(0.05)
    sys.planted_task = 1


def plant():
    sys.modules["__main__"].planted_global = 1
    json.dumps = lambda *args, **keys: "patched"
    builtins.planted = 1
    sys.modules["planted_module"] = types.ModuleType("planted_module")
    sys.path.append("/planted")
    os.environ["PLANTED"] = "1"
    os.makedirs("/tmp/planted", exist_ok=True)
    with open("/tmp/planted/file", "w") as file:
        file.write("planted")
    with open("/home/pyodide/planted", "w") as file:
        file.write("planted")
    os.chdir("/tmp/planted")
    random.seed(12345)
    decimal.getcontext().prec = 3
    warnings.filterwarnings("ignore", "planted")
    calendar.setfirstweekday(3)
    logging.basicConfig(level=logging.DEBUG)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    csv.register_dialect("planted", delimiter="|")
    codecs.register(lambda name: codecs.lookup("utf-8") if name == "planted" else None)
    codecs.lookup("planted")
    codecs.register_error("planted", codecs.ignore_errors)
    set_timeout(timer, 50)
    asyncio.get_event_loop().call_later(0.05, callback)
    builtins.planted_task = asyncio.ensure_future(task())
    print("unflushed", end="")


def plant_for_good():
    json.JSONEncoder.planted = 1
    try:
        to_js([1]).constructor.prototype.planted = 1
    except BaseException:
        pass  # sealed: nothing is left there
    with open("/lib/python3.14/site-packages/planted_library.py", "w") as file:
        file.write("planted = 1")


planted_global = 1
[plant, plant_for_good][params]()
