"""The parent of one run: everything that the run starts stays below it, whatever it sheds, and nothing of anybody else's ever is.

A process that leaves its session and group, drops its environment and loses its parents is handed to the nearest ancestor that asked for
orphans (PR_SET_CHILD_SUBREAPER). That is this one, of one run only, so a run's leftovers are known for certain, also while others run
beside it. It ends, and all below it with it, when the harness closes the link, when it is asked to, or when its own parent dies.

Two ways lead here: a fork of the warm process, and `python supervising.py LINK REQUEST` as a process of its own (standard library only).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# What Python ignores, and what is ignored here, is not what a program that starts expects.
_USUAL_AT_START = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_KILL_S = 10.0


def take_orphans(parent: int) -> None:
    """Become who orphans below go to, and end when `parent`, the process that started this one, does."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_PDEATHSIG, int(signal.SIGTERM))):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed: orphans of a run can't be found on this kernel")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def watch_over(leader: int, link: socket.socket) -> NoReturn:
    """Report the end of `leader` on `link`, collect everybody else's, and at the end of `link` end all that is left."""
    bell, ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, ask)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        ready: list[int] = []
        while not asked and link.fileno() not in ready:
            _collect(leader, link)
            ready, _, _ = select.select([link.fileno(), bell], [], [])
            if bell in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(bell, 4096)
        _end_all()
    finally:
        os._exit(0)


def _collect(leader: int, link: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == leader:
            with contextlib.suppress(OSError):  # the harness no longer listens
                link.send(b"status %d" % status)


def _end_all() -> None:
    """Children of those that die become ours in turn, so that this ends when there is no child left."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # After the name, which may hold anything and ends with the last bracket: state, parent.
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(entry))
    return found


def main(link: socket.socket, request: int) -> NoReturn:
    """Start the program that `request` describes with our own standard streams, say so on `link`, and watch over it."""
    # Inherited by the run, it would hide the end of this process.
    link.set_inheritable(False)
    with open(request, "rb") as file:
        asked = json.loads(file.read())
    try:
        take_orphans(asked["parent"])
        os.chdir(asked["folder"])
        words = [asked["program"], *asked["arguments"]]
        leader = os.posix_spawn(asked["program"], words, asked["environment"], setsid=True, setsigdef=_USUAL_AT_START)
    except (OSError, ValueError) as fault:
        link.send(f"failed {fault}".encode())
        os._exit(1)
    os.chdir("/")
    # Ours are copies: a run's input must break when the run stops reading, and not live on here.
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    link.send(b"pid %d %d" % (leader, os.getpid()))
    watch_over(leader, link)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
