"""Processes of this machine as /proc shows them: who belongs to a run, how to end them. Standard library only (the guardian runs it)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

NONCE_VARIABLE = "NPU_MATRIX_NONCE"


@dataclass(frozen=True)
class Process:
    """One live process. `started` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def _read(pid: int, what: str) -> bytes | None:
    """None: the process is gone, or is not ours to look at."""
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def look(pid: int) -> Process | None:
    """The live process `pid`; None when it is gone or a zombie, which can do no harm and waits only for its parent."""
    stat = _read(pid, "stat")
    if stat is None:
        return None
    # The name may hold blanks and brackets: the last ')' ends it.
    name, _, rest = stat.decode("utf-8", "replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), name)


def everyone() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := look(int(entry))) is not None:
            yield process


def carries(pid: int, nonces: Iterable[str]) -> bool:
    """Whether the environment that `pid` was started with holds one of `nonces`."""
    environment = _read(pid, "environ")
    if not environment:
        return False
    variables = environment.split(b"\0")
    return any(f"{NONCE_VARIABLE}={nonce}".encode() in variables for nonce in nonces)


def members(groups: Iterable[int], nonces: Iterable[str]) -> list[Process]:
    """The live processes of `groups`, and those that carry one of `nonces` in whatever group; never the caller itself."""
    groups, nonces, me = set(groups), tuple(nonces), os.getpid()
    return [p for p in everyone() if p.pid != me and (p.group in groups or (nonces and carries(p.pid, nonces)))]


def descendants(pid: int) -> list[Process]:
    """Live children of `pid`, their children and so on, `pid` itself first."""
    by_parent: dict[int, list[Process]] = {}
    for process in everyone():
        by_parent.setdefault(process.parent, []).append(process)
    first = look(pid)
    found = [first] if first else []
    for process in found:
        found.extend(by_parent.get(process.pid, ()))
    return found


def still_there(processes: Iterable[Process]) -> list[Process]:
    return [p for p in processes if (now := look(p.pid)) is not None and now.started == p.started]


def signal_all(processes: Iterable[Process], number: int) -> None:
    for process in still_there(processes):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def kill_until_gone(find: Callable[[], list[Process]], *, within_s: float = 10.0) -> list[Process]:
    """SIGKILL whatever `find` finds, again and again since a process may fork while we look; returns what is left after `within_s`."""
    deadline = time.monotonic() + within_s
    while found := find():
        signal_all(found, signal.SIGKILL)
        if time.monotonic() > deadline:
            return found
        time.sleep(0.02)
    return []


def resident_mib(processes: Iterable[Process]) -> tuple[float, float]:
    """(sum of the resident sizes now, largest peak of any one process), MiB. Shared pages are counted once per process.

    The peak is VmHWM: wait4's ru_maxrss would start from the size of the harness that forked the child.
    """
    total = peak = 0.0
    for process in processes:
        status = (_read(process.pid, "status") or b"").decode("ascii", "replace")
        lines = (line.partition(":") for line in status.splitlines())
        sizes = {name: float(size.split()[0]) / 1024 for name, _, size in lines if name in ("VmRSS", "VmHWM")}
        total += sizes.get("VmRSS", 0.0)
        peak = max(peak, sizes.get("VmHWM", 0.0))
    return total, peak


@dataclass
class Band:
    """Everything one run started: what is below its `supervisor`, the group of its `leader`, and bearers of its `nonce`.

    The first is all of it while the supervisor lives; the others, and the descendants `seen` while it ran, are for when it was killed.
    """

    leader: int
    nonce: str
    supervisor: int
    peak_mib: float = 0.0
    seen: dict[int, Process] = field(default_factory=dict)

    def sample(self) -> None:
        """Remember the present descendants and the memory they take."""
        tree = self._tree()
        self.seen.update((p.pid, p) for p in tree)
        self.peak_mib = max(self.peak_mib, *resident_mib(tree))

    def alive(self) -> list[Process]:
        found = {p.pid: p for p in (*members((self.leader,), (self.nonce,)), *still_there(self.seen.values()), *self._tree())}
        return list(found.values())

    def _tree(self) -> list[Process]:
        return [p for p in descendants(self.supervisor) if p.pid != self.supervisor]

    def in_group(self) -> list[Process]:
        return [p for p in members((self.leader,), ()) if p.group == self.leader]

    def ask_to_end(self) -> None:
        """SIGTERM to the group, as a service manager would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.leader, signal.SIGTERM)

    def kill(self) -> list[Process]:
        """Kill all of it without grace; returns what could not be killed."""
        return kill_until_gone(self.alive)
