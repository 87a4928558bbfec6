# Leave behind whatever a job can leave behind (mandor verify isolation).
import asyncio
import builtins
import decimal
import json
import os
import random
import signal
import sys
import types
import warnings

from pyodide.ffi import to_js

planted_global = 1
sys.modules["__main__"].planted_global = 1
json.dumps = lambda *args, **keys: "patched"
json.JSONEncoder.planted = 1
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
signal.signal(signal.SIGUSR1, lambda *_: None)
try:
    to_js([1]).constructor.prototype.planted = 1
except BaseException:
    pass  # frozen: nothing is left there


def late():
    sys.planted_callback = 1


asyncio.get_event_loop().call_later(0.05, late)


async def task():
    await asyncio.sleep(0.05)
    sys.planted_task = 1


builtins.planted_task = asyncio.ensure_future(task())
print("unflushed", end="")
