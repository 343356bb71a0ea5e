"""Forty cells of 1, 2, 4 and 8 devices on eight that aren't there, with the real pool, leases and launcher; and two harnesses at once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.rehearsal import npu_smi_info
from fakes.sleepers import DEVICES, EACH_OF_SEVERAL, WIDTHS, Place, bound_s, sleepers

from harness.leases import Want
from harness.packing import Load
from harness.processes import descendants, everyone, look

TESTS = Path(__file__).resolve().parent
LIMIT_S = 60.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.under(tmp_path / "place", npu_smi_info())


def a_harness(place: Place, seed: int, patience_s: float = 1.0) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "fakes.sleepers", str(place.folder), str(seed), str(patience_s)]
    above = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": above}, start_new_session=True)


def until(what: object, limit_s: float = LIMIT_S) -> None:
    assert callable(what)
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def used_by(place: Place) -> list[tuple[float, float, int]]:
    """(start, end, device) of every use, as the fakes recorded it."""
    began = {record["cell"]: record["at"] for record in place.records() if record["what"] == "start"}
    return [(began[r["cell"]], r["at"], one) for r in place.records() if r["what"] == "end" for one in r["ids"]]


@pytest.mark.alone
@pytest.mark.parametrize(("seed", "known"), [(1, True), (2, False)], ids=["times-known", "times-unknown"])
def test_forty_cells_end_soon_after_the_shortest_time_possible_and_never_overlap(place: Place, seed: int, known: bool) -> None:
    cells = sleepers(seed)
    began = time.monotonic()
    place.run_all(cells, known=known)
    took_s = time.monotonic() - began
    assert place.ended() == {one.key for one in cells}
    assert place.overlaps() == []
    uses = sorted(used_by(place), key=lambda use: (use[2], use[0]))
    for (_, end, one), (start, _, other) in itertools.pairwise(uses):
        assert one != other or end <= start
    assert {len(record["ids"]) for record in place.records()} == {1, 2, 4, 8}
    assert took_s <= 1.10 * bound_s(cells) + 2.0, f"{took_s:.1f} s, at best {bound_s(cells):.1f} s"


def test_cells_that_run_at_once_have_ports_of_their_own(place: Place) -> None:
    cells = sleepers(3, 4, widths=(1,), scale=0.3)
    place.run_all(cells, known=True)
    starts = [record for record in place.records() if record["what"] == "start"]
    ends = {record["cell"]: record["at"] for record in place.records() if record["what"] == "end"}
    for one in starts:
        beside = [other for other in starts if other is not one and other["at"] < ends[one["cell"]] and one["at"] < ends[other["cell"]]]
        assert one["port"] not in {other["port"] for other in beside}


def test_two_harnesses_never_overlap_nor_starve_each_other(place: Place) -> None:
    both = [a_harness(place, seed) for seed in (11, 12)]
    assert [one.wait(LIMIT_S) for one in both] == [0, 0]
    assert place.overlaps() == []
    assert len(place.ended()) == 2 * EACH_OF_SEVERAL * len(WIDTHS)


def test_what_a_killed_harness_left_running_is_never_overlapped(place: Place) -> None:
    killed = a_harness(place, 21)
    other = a_harness(place, 22)
    until(lambda: len(place.ended()) >= 4)
    killed.kill()
    third = a_harness(place, 23)
    assert [one.wait(LIMIT_S) for one in (other, third)] == [0, 0]
    killed.wait(LIMIT_S)
    assert place.overlaps() == []
    assert {one.key for seed in (22, 23) for one in sleepers(seed, EACH_OF_SEVERAL)} <= place.ended()


def test_the_devices_of_a_killed_harness_are_free_only_when_its_run_is_gone(place: Place) -> None:
    """Whoever would end the run is stopped first, so that it outlives its harness."""
    harness = a_harness(place, 31)
    until(place.records)
    below = [process for process in descendants(harness.pid) if process.pid != harness.pid]
    started = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
    asleep = [process for process in below if process.name == "swift"]
    assert asleep and started
    watchers = [process for process in below if process not in asleep]
    for process in watchers:
        os.kill(process.pid, signal.SIGSTOP)
    harness.kill()
    harness.wait(LIMIT_S)
    try:
        assert any(look(process.pid) for process in asleep)
        assert place.desk().take(Want(Load("all", DEVICES, 1.0))) is None
    finally:
        for process in watchers:
            os.kill(process.pid, signal.SIGCONT)
    until(lambda: not any(p.pid in {one.pid for one in asleep} for p in everyone()))
    desk = place.desk()
    until(lambda: _all_of(desk), 5.0)
    assert place.overlaps() == []


def _all_of(desk: object) -> bool:
    held = desk.take(Want(Load("all", DEVICES, 1.0)))  # type: ignore[attr-defined]
    if held is not None:
        held.release()
    return held is not None
