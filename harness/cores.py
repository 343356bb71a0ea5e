"""Cores and memory lent to the cells of one harness, where there is no NPU to lend: a cell of n ranks takes n cores.

A cell that is wider than the machine, or needs more memory than it has, takes all of it and runs alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.leases import PATIENCE_S, Held, Lease, Want
from harness.packing import Busy, may_start
from harness.ports import lend_ports

_CGROUP = Path("/sys/fs/cgroup")
# Left for the harness, the warm processes and what else runs.
_SPARE_SHARE = 0.9


@dataclass
class CoreDesk:
    """Lends `cores` cores and `memory_mib` MiB. `device_ids` are simulated devices, which everybody may use at once."""

    cores: int
    memory_mib: float
    port_folder: Path
    device_ids: tuple[int, ...] = ()
    patience_s: float = PATIENCE_S
    _out: dict[str, tuple[Want, float]] = field(default_factory=dict)
    _first: dict[str, Want] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def take(self, want: Want) -> Held | None:
        now, key = time.monotonic(), want.load.key
        with self._lock:
            if want.first_s is not None:
                self._first[key] = want
            free, spare_mib = self._free()
            width, needed_mib = self._asked(want)
            if width > free or needed_mib > spare_mib or self._delays_another(want, free - width, spare_mib - needed_mib, now):
                return None
            self._first.pop(key, None)
            self._out[key] = want, now
        try:
            descriptor, ports = lend_ports(self.port_folder, want.shunned)
        except BaseException:
            self._back(key)
            raise
        return Held(Lease(self.device_ids, ports), want.load, (descriptor,), now, lambda: self._back(key))

    def check(self, held: Held) -> Mapping[int, str]:
        return {}

    def lacking(self, width: int) -> str:
        return ""

    def give_up(self, key: str) -> None:
        with self._lock:
            self._first.pop(key, None)

    def close(self) -> None:
        with self._lock:
            self._first.clear()

    def _asked(self, want: Want) -> tuple[int, float]:
        return min(want.load.width, self.cores), min(want.memory_mib, self.memory_mib)

    def _free(self) -> tuple[int, float]:
        taken = [self._asked(want) for want, _ in self._out.values()]
        return self.cores - sum(width for width, _ in taken), self.memory_mib - sum(mib for _, mib in taken)

    def _delays_another(self, want: Want, left: int, left_mib: float, now: float) -> bool:
        """Whether somebody who has waited too long, and longer than `want`, would wait longer still."""
        others = [w for w in self._first.values() if w.load.key != want.load.key and w.first_s is not None]
        head = min(others, key=lambda w: w.first_s or 0.0, default=None)
        if head is None or head.first_s is None or now - head.first_s <= self.patience_s:
            return False
        if want.first_s is not None and want.first_s <= head.first_s:
            return False
        head_width, head_mib = self._asked(head)
        busy = [Busy(self._asked(w)[0], at + w.load.expected_s if w.known else None) for w, at in self._out.values()]
        width, _ = self._asked(want)
        fits = may_start(want.load, head_width=head_width, free=left + width, busy=busy, now=now, known=want.known)
        return not fits or left_mib < head_mib

    def _back(self, key: str) -> None:
        with self._lock:
            self._out.pop(key, None)


def memory_to_lend_mib() -> float:
    """What cells may take: nine tenths of the memory that is free now, within the limit of this container."""
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = [pages * size / 2**20]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        sizes = {line.partition(":")[0]: line.split()[1] for line in meminfo.read_text(encoding="ascii").splitlines()}
        free = [int(sizes["MemAvailable"]) / 1024]
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        free.append((limit - used) / 2**20)
    return max(0.0, _SPARE_SHARE * min(free))


def _number(path: Path) -> int | None:
    """None: no such limit, or cgroups of another version."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
