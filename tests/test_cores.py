"""Cores and memory: what fits runs side by side, what is wider than the machine runs alone, and nobody waits for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.cores import CoreDesk, memory_to_lend_mib
from harness.leases import Held, Want
from harness.packing import Load


def want(key: str, width: int, mib: float = 0.0, first_s: float | None = None) -> Want:
    return Want(Load(key, width, 1.0), mib, first_s)


@pytest.fixture
def desk(tmp_path: Path) -> CoreDesk:
    return CoreDesk(4, 1000.0, tmp_path, patience_s=0.0)


def taken(desk: CoreDesk, want: Want) -> Held:
    held = desk.take(want)
    assert held is not None
    return held


def test_cells_share_the_cores_until_there_are_none(desk: CoreDesk) -> None:
    one, other = taken(desk, want("a", 2)), taken(desk, want("b", 2))
    assert desk.take(want("c", 1)) is None
    one.release()
    assert len({one.lease.ports.master, other.lease.ports.master}) == 2
    assert taken(desk, want("c", 2))


def test_cells_share_the_memory_until_there_is_none(desk: CoreDesk) -> None:
    held = taken(desk, want("a", 1, 700.0))
    assert desk.take(want("b", 1, 400.0)) is None
    held.release()
    assert taken(desk, want("b", 1, 400.0))


def test_what_is_wider_than_the_machine_runs_alone(desk: CoreDesk) -> None:
    narrow = taken(desk, want("narrow", 1))
    assert desk.take(want("wide", 16, 5000.0)) is None
    narrow.release()
    wide = taken(desk, want("wide", 16, 5000.0))
    assert desk.take(want("narrow", 1)) is None
    wide.release()


def test_who_has_waited_is_not_overtaken(desk: CoreDesk) -> None:
    held = taken(desk, want("a", 3))
    assert desk.take(want("wide", 4, first_s=time.monotonic() - 1)) is None
    assert desk.take(want("narrow", 1)) is None
    desk.give_up("wide")
    assert taken(desk, want("narrow", 1))
    held.release()


def test_a_lease_that_found_no_ports_takes_no_cores(desk: CoreDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(folder: Path, shunned: object) -> None:
        raise OSError("no ports")

    with monkeypatch.context() as patch:
        patch.setattr("harness.cores.lend_ports", none_left)
        with pytest.raises(OSError, match="no ports"):
            desk.take(want("a", 4))
    assert taken(desk, want("b", 4))


def test_there_is_memory_to_lend_and_less_than_the_machine_has() -> None:
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines() if "MemTotal" in line)
    assert 0 < memory_to_lend_mib() < total / 1024
