"""Devices lent to cells, so that no two cells of this host ever share one: not of one harness, not of two, not after one was killed.

One lock file a device. Whoever takes devices takes all it wants or none, inside a gate that lets one harness process look at a time. The
lock is held by the harness and by the processes of the run that was given the descriptors: a killed harness frees nothing while its run
lives. Who has waited in vain for `patience_s` has a ticket that the others heed: they start only what doesn't delay it.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.lock_files import gate, made, read, try_lock, write
from harness.packing import Busy, Load, choose, may_start
from harness.ports import Ports, lend_ports

# ids to what is wrong with those that must not be used now.
Probe = Callable[[Sequence[int]], Mapping[int, str]]
PATIENCE_S, RECHECK_S = 30.0, 60.0
# A ticket that nobody asked for again in this time counts no longer. The pool asks several times a second.
_DEAF_S = 5.0


@dataclass(frozen=True)
class Device:
    """`id` as ASCEND_RT_VISIBLE_DEVICES counts; `identity` names the same die in every process of this host."""

    id: int
    identity: str


@dataclass(frozen=True)
class Want:
    """What a cell asks for: `load.width` devices at once. `first_s`: since when (CLOCK_MONOTONIC) it is the first in its line; or None.

    `known`: its expected time comes from records, so others may rely on it. `shunned`: ports that it had before, to no good.
    """

    load: Load
    memory_mib: float = 0.0
    first_s: float | None = None
    known: bool = False
    shunned: tuple[Ports, ...] = ()


@dataclass(frozen=True)
class Lease:
    """What a cell may use while it runs. `device_ids` is empty on a plain cpu."""

    device_ids: tuple[int, ...]
    ports: Ports


@dataclass
class Held:
    """A lease in force. `descriptors` hold its locks: whoever inherits them keeps the lease in force. `release` once."""

    lease: Lease
    load: Load
    descriptors: tuple[int, ...]
    since_s: float
    released: Callable[[], object] = lambda: None

    def release(self) -> None:
        """Closed, not unlocked: where a process of the run could not be killed, its devices stay taken."""
        held, self.descriptors = self.descriptors, ()
        for descriptor in held:
            os.close(descriptor)
        self.released()


class Desk(Protocol):
    """Whoever lends what cells run on. Thread-safe."""

    def take(self, want: Want) -> Held | None:
        """All that `want` asks for, or None now; never waits. Raises HostError where nothing can ever be lent."""

    def check(self, held: Held) -> Mapping[int, str]:
        """What is wrong with devices of `held`, by id."""

    def lacking(self, width: int) -> str:
        """Why `width` can't be had for now, whoever else ends; empty where it can."""

    def give_up(self, key: str) -> None:
        """`key` waits no longer."""

    def close(self) -> None:
        """Nobody of this harness waits any longer."""


@dataclass
class DeviceDesk:
    """Lends the devices of this host. Thread-safe. `folder`: the locks of the devices, `port_folder`: of the ports.

    `aside`: the devices that a check found unfit, with the reason; they are tried again after `recheck_s`.
    """

    folder: Path
    port_folder: Path
    devices: Sequence[Device]
    distance: Callable[[int, int], int] = lambda one, other: 0
    probe: Probe = lambda ids: {}
    patience_s: float = PATIENCE_S
    recheck_s: float = RECHECK_S
    aside: dict[int, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made(self.folder)
        self._lock = threading.Lock()
        self._tickets: dict[str, tuple[Path, int]] = {}

    def take(self, want: Want) -> Held | None:
        """All the devices that `want` asks for, or None now. Never waits for a device. Raises HostError where locks can't be had."""
        with self._lock, gate(self.folder / "gate.lock"):
            now = time.monotonic()
            free, busy = self._look(now)
            head = self._overdue_before(want, now)
            yields = head is not None and not may_start(want.load, head_width=head, free=len(free), busy=busy, now=now, known=want.known)
            chosen = () if yields else choose(free, want.load.width, self.distance)
            for one, descriptor in free.items():
                if one not in chosen:
                    os.close(descriptor)
            if not chosen:
                self._post(want)
                return None
            record = {"pid": os.getpid(), "cell": want.load.key, "ends_at": now + want.load.expected_s if want.known else None}
            for one in chosen:
                write(free[one], record)
            self._withdraw(want.load.key)
        return self._held(want, chosen, [free[one] for one in chosen], now)

    def check(self, held: Held) -> Mapping[int, str]:
        """What is wrong with devices of `held`, by id: sick, or in use by a stranger. Those are set aside for a while."""
        bad = dict(self.probe(held.lease.device_ids))
        with self._lock:
            for one in held.lease.device_ids:
                if one in bad:
                    self.aside[one] = (bad[one], time.monotonic() + self.recheck_s)
                else:
                    self.aside.pop(one, None)
        return bad

    def lacking(self, width: int) -> str:
        """Why `width` devices can't be had for now, whoever else ends: too many are set aside. Empty where they can."""
        with self._lock:
            fit = [device for device in self.devices if device.id not in self.aside]
            told = "; ".join(f"NPU {one}: {because}" for one, (because, _) in sorted(self.aside.items()))
        return "" if width <= len(fit) else f"needs {width} NPUs and {len(fit)} of {len(self.devices)} are fit for use ({told})"

    def give_up(self, key: str) -> None:
        """`key` waits no longer."""
        with self._lock:
            self._withdraw(key)

    def close(self) -> None:
        with self._lock:
            for key in tuple(self._tickets):
                self._withdraw(key)

    def _held(self, want: Want, chosen: Sequence[int], descriptors: list[int], now: float) -> Held:
        try:
            port, ports = lend_ports(self.port_folder, want.shunned)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return Held(Lease(tuple(chosen), ports), want.load, (*descriptors, port), now)

    def _look(self, now: float) -> tuple[dict[int, int], list[Busy]]:
        """(descriptors of the locks that are free, now ours, by device; what the others are taken for). Devices set aside are neither."""
        free: dict[int, int] = {}
        busy: list[Busy] = []
        for device in self.devices:
            if self.aside.get(device.id, ("", now))[1] > now:
                continue
            path = self.folder / f"device-{device.identity}.lock"
            descriptor = try_lock(path)
            if descriptor is None:
                ends_at = read(path).get("ends_at")
                busy.append(Busy(1, ends_at if isinstance(ends_at, (int, float)) else None))
            else:
                free[device.id] = descriptor
        return free, busy

    def _overdue_before(self, want: Want, now: float) -> int | None:
        """How many devices somebody wants who has waited too long, and longer than `want`; the one who waits longest counts."""
        mine, _ = self._tickets.get(want.load.key, (None, 0))
        found: list[tuple[float, int]] = []
        for path in self.folder.glob("waits-*.json"):
            if path == mine or self._is_dead(path):
                continue
            record = read(path)
            since, width = record.get("since"), record.get("width")
            asked = record.get("asked", 0.0)
            if not isinstance(since, (int, float)) or not isinstance(width, int) or now - asked > _DEAF_S:
                continue
            if now - since > self.patience_s:
                found.append((since, width))
        since, width = min(found, default=(now, 0))
        longer = want.first_s is not None and want.first_s <= since
        return width if width and not longer else None

    def _is_dead(self, path: Path) -> bool:
        """Whether nobody holds this ticket any more; then it is removed. The gate keeps others from posting meanwhile."""
        descriptor = try_lock(path)
        if descriptor is None:
            return False
        path.unlink(missing_ok=True)
        os.close(descriptor)
        return True

    def _post(self, want: Want) -> None:
        """Say, or say again, that `want` waits: who no longer asks, being stopped or busy with other cells, must not hold others up."""
        if want.first_s is None:
            return
        if want.load.key not in self._tickets:
            path = self.folder / f"waits-{uuid.uuid4().hex}.json"
            new = try_lock(path)
            assert new is not None, "the name was made just now"
            self._tickets[want.load.key] = path, new
        _, descriptor = self._tickets[want.load.key]
        write(descriptor, {"since": want.first_s, "width": want.load.width, "asked": time.monotonic()})

    def _withdraw(self, key: str) -> None:
        path, descriptor = self._tickets.pop(key, (None, 0))
        if path is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)
