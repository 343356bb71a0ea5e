"""A command as a launch sees it: its leader, and the supervisor that is the parent of all that it starts (warmed/supervising.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.processes import NONCE_VARIABLE

SUPERVISOR = Path(__file__).parent / "warmed" / "supervising.py"
_START_S = 60.0
_END_S = 15.0


@dataclass(frozen=True)
class Start:
    """What a new process gets. `stdin` and `log` (both output streams) are descriptors, closed by the caller once it has them.

    `inherit`: descriptors that stay open in the run for as long as anything of it lives, such as locks; a fork of a warm process has none.
    """

    program: Path
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stdin: int
    log: int
    inherit: tuple[int, ...] = ()


class Supervised:
    """A command that runs. `pid` leads a process group and a session of its own; every process of the run is below `supervisor`.

    `process` is the supervisor where it is a child of ours, to be waited for. `lost`: the supervisor died before it told the end.
    """

    def __init__(self, pid: int, supervisor: int, link: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.supervisor = pid, supervisor
        self.lost = False
        self._link, self._process = link, process
        self._status: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, negative for a signal; raises subprocess.TimeoutExpired. A run whose supervisor died is killed: -SIGKILL."""
        if self._status is None:
            said = hear(self._link, timeout)
            if said is None:
                raise subprocess.TimeoutExpired("a command", timeout or 0.0)
            word, _, number = said.partition(" ")
            if word == "status":
                self._status = os.waitstatus_to_exitcode(int(number))
            else:
                self.lost = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._status = -signal.SIGKILL
        return self._status

    def close(self) -> None:
        """Let the supervisor end, and all that is still below it."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
            while hear(self._link, _END_S):
                pass
        self._link.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


Spawn = Callable[[Start], Supervised]


def hear(link: socket.socket, timeout: float | None) -> str | None:
    """The next message; "" when the other end is gone, None when nothing came within `timeout` seconds."""
    # An empty timeout would turn the socket non-blocking, which raises another error.
    link.settimeout(timeout if timeout is None else max(timeout, 0.001))
    try:
        return link.recv(65536).decode("utf-8", "replace").strip()
    except TimeoutError:
        return None
    except ConnectionError:
        return ""


def start_process(start: Start) -> Supervised:
    """The ordinary way. Raises OSError or ValueError where the program can't be started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked = {"program": str(start.program), "arguments": start.args, "environment": dict(start.env), "folder": str(start.cwd)}
    process: subprocess.Popen[bytes] | None = None
    try:
        # A file, not a message: an environment may be larger than a socket takes at once.
        with theirs, tempfile.TemporaryFile() as request:
            request.write(json.dumps({**asked, "parent": os.getpid()}).encode())
            request.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), str(request.fileno())],
                # Our own environment, for the interpreter. The nonce marks the run, and this is not a part of it.
                env={name: value for name, value in os.environ.items() if name != NONCE_VARIABLE},
                stdin=start.stdin,
                stdout=start.log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno(), request.fileno(), *start.inherit],
                start_new_session=True,
            )
        return started(ours, f"supervisor (pid {process.pid})", _START_S, process)
    except BaseException:
        ours.close()
        if process is not None:
            process.wait(_END_S)
        raise


def started(link: socket.socket, who: str, within_s: float, process: subprocess.Popen[bytes] | None = None) -> Supervised:
    """The command whose start is told on `link`. Raises OSError where `who`, which was asked for it, started nothing.

    That is a ConnectionError where `who` died before the program began.
    """
    said = hear(link, within_s)
    if said == "":
        raise ConnectionError(f"the {who} started nothing: it is gone")
    word, _, rest = (said or "").partition(" ")
    if word != "pid":
        raise OSError(rest if word == "failed" else f"the {who} started nothing within {within_s:g} s: {said}")
    leader, supervisor = map(int, rest.split())
    return Supervised(leader, supervisor, link, process)
