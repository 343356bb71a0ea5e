"""Ports and shared memory: what a server may take while it runs, and must have given back after its end."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from harness.proof_deploy import ServerReport

HOST = "127.0.0.1"
_SHARED_MEMORY = Path("/dev/shm")


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now. Another process may take it before the server does: `serve.port_taken`."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether nobody listens on `port` of the loopback; connections that are still winding down don't count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def shared_memory_names() -> frozenset[str]:
    return frozenset(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else frozenset()


def shared_memory_of(pids: Iterable[int]) -> frozenset[str]:
    """Shared memory of these processes: what they map or have open, and what carries one of their pids in its name.

    Asked while they live: other runs on this host come and go, and what they leave is not this run's.
    """
    names, known = shared_memory_names(), {str(pid) for pid in pids}
    in_use = {path for pid in known for path in _files_of(Path("/proc") / pid)} if names else set()
    return frozenset(n for n in names if f"{_SHARED_MEMORY}/{n}" in in_use or known & set(re.findall(r"\d+", n)))


def after_the_end(report: ServerReport, used: frozenset[str], *, within_s: float = 2.0) -> ServerReport:
    """`report` with what the server left: its port taken, or shared memory that it `used` while it lived.

    Waits up to `within_s` seconds for both to be clear.
    """
    deadline = time.monotonic() + within_s
    while True:
        free = port_is_free(report.port)
        left = shared_memory_names() & used
        if (free and not left) or time.monotonic() > deadline:
            return replace(report, port_free=free, shm_left=tuple(sorted(left)))
        time.sleep(0.1)


def _files_of(process: Path) -> Iterator[str]:
    """The paths that a process maps or has open, as far as they can be seen: it may end meanwhile, or be another user's."""
    try:
        for line in (process / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
            yield line.partition("/")[1] + line.partition("/")[2]
    except OSError:
        return
    try:
        links = os.listdir(process / "fd")
    except OSError:
        return
    for link in links:
        try:
            yield os.readlink(process / "fd" / link)
        except OSError:
            continue
