"""Put before each attempt.  An attempt that gets through says so with got(); so does what it finds that no job may see."""
import gc
import os
import sys

SECRET, MARK, PORT = params["secret"], params["mark"], params["port"]


def got(what):
    print("ESCAPED", what, flush=True)


def attempt(road, *args):
    """Go a road; an exception is a closed door."""
    try:
        return road(*args)
    except Exception as error:
        print("closed:", type(error).__name__, str(error)[:200])
        return None


def is_proxy(thing):
    return type(thing).__name__.startswith("Js") and hasattr(thing, "js_id")


def proxies():
    """Every JavaScript object that any Python object holds on to."""
    seen, found, todo = set(), [], [*gc.get_objects(), *(frame.f_locals for frame in sys._current_frames().values())]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if is_proxy(thing):
            found.append(thing)
        todo.extend(gc.get_referents(thing))
    return found


def node(root):
    """Is this JavaScript's global object, or one of Node's?"""
    for name in ("process", "require", "mainModule", "binding", "getBuiltinModule", "reallyExit", "readFileSync", "execSync"):
        try:
            if getattr(root, name, None) is not None:
                got(f"{name} of {str(root)[:100]}")
        except Exception:
            pass
