#!/usr/bin/python3
"""fence.py [--limit SECONDS] [--scratch NAME] [--] CMD...: run a command and leave none of its processes behind.

It is a subreaper: whatever daemonises or outlives CMD is adopted here, and killed when CMD has ended, when the
limit is over, or when this process is told to stop.  Exits as CMD did; 124 when the limit ended it.
--scratch makes a fresh directory, $TMPDIR for CMD, and removes it when all is over.
"""
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE = 10.0  # seconds between SIGTERM and SIGKILL for CMD itself


def children():
    """Pids of all that we are the parent of."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as listing:
                found += [int(pid) for pid in listing.read().split()]
        except OSError:
            pass
    return found


def kill_leftovers():
    """Kill and reap until nothing is left; a killed process's children come to us and are next."""
    killed = set()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = children()
        if not left:
            break
        for pid in left:
            os.kill(pid, signal.SIGKILL)  # our own unreaped child: the number cannot be another's
            killed.add(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return len(killed)


def wait_for(pid, limit, told):
    """Reap everything until pid has ended; returns its exit code.  told: signals that came for us, passed on meanwhile."""
    deadline = time.monotonic() + limit if limit else None
    kill_at = None
    limited = False
    while True:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done == pid:
            code = os.waitstatus_to_exitcode(status)
            return 124 if limited else (code if code >= 0 else 128 - code)
        if done:
            continue
        now = time.monotonic()
        if deadline and now > deadline and not limited:
            print(f"fence: over its limit of {limit:g} s, ending it", file=sys.stderr)
            limited, kill_at = True, now + GRACE
            os.kill(pid, signal.SIGTERM)
        if told and not kill_at:
            kill_at = now + GRACE
        if kill_at and now > kill_at:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)


def main():
    args = sys.argv[1:]
    limit = 0.0
    scratch = None
    while args[:1] in (["--limit"], ["--scratch"]):
        if args[0] == "--limit":
            limit = float(args[1])
        else:
            scratch = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=args[1] + ".")
        args = args[2:]
    if args[:1] == ["--"]:
        args = args[1:]
    if not args:
        sys.exit(__doc__)

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit(f"fence: prctl: {os.strerror(ctypes.get_errno())}")

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            os.execvp(args[0], args)
        except OSError as error:
            print(f"fence: {args[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)

    told = []

    def pass_on(number, _frame):
        told.append(number)
        os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)

    code = wait_for(pid, limit, told)
    left = kill_leftovers()
    if left:
        print(f"fence: killed {left} process(es) that were left behind", file=sys.stderr)
    if scratch:
        subprocess.run(["chmod", "-R", "u+rwX", scratch], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(code)


main()
