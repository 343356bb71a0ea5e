"""What a host lacks for a cell is told before the cell starts; what nobody knows refuses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matrix_samples import MATRIX

from harness.model import Cell, Strategy, Tuner, Weights
from harness.needs import Room, devices_lacking, host_lacking, over_budget
from harness.packing import Load


def cell(params_b: float | None, tuner: Tuner = Tuner.FULL, strategy: Strategy = Strategy.ZERO3) -> Cell:
    some = MATRIX.cells[0]
    return replace(some, model=replace(some.model, params_b=params_b), tuner=tuner, strategy=strategy)


@pytest.mark.parametrize(
    ("of", "width", "lacks"),
    [
        (cell(8.0), 16, "it needs 16 NPUs and this host has 8 to use"),
        (cell(8.0), 1, "at least 60 GiB on each NPU"),
        (cell(8.0), 8, ""),
        (cell(8.0, strategy=Strategy.DDP), 8, "at least 60 GiB on each NPU"),
        (cell(8.0, Tuner.LORA, Strategy.SINGLE), 1, ""),
        (cell(32.8, Tuner.LORA, Strategy.SINGLE), 1, "at least 61 GiB on each NPU"),
        (cell(32.8, Tuner.QLORA, Strategy.SINGLE), 1, ""),
        (cell(None), 8, ""),
    ],
)
def test_devices_that_cannot_hold_a_cell_are_told(of: Cell, width: int, lacks: str) -> None:
    found = devices_lacking(of, width, Weights.REAL, Room(8, 32 * 1024.0))
    assert found.startswith("it needs") == bool(lacks) and lacks in found


def test_tiny_weights_need_nothing_but_devices() -> None:
    assert devices_lacking(cell(800.0), 8, Weights.TINY, Room(8, 1.0)) == ""
    assert host_lacking(cell(800.0), Weights.TINY, 2, Room(8, 1.0, 1.0, 1.0)) == ""
    assert devices_lacking(cell(8.0), 2, Weights.TINY, Room(1)) != ""


def test_a_disk_or_a_memory_that_is_too_small_is_told() -> None:
    assert "writes at least 89 GiB" in host_lacking(cell(8.0), Weights.REAL, 2, Room(8, disk_mib=50_000.0))
    assert host_lacking(cell(8.0, Tuner.LORA), Weights.REAL, 2, Room(8, disk_mib=50_000.0)) == ""
    assert "gathers at least 15 GiB in memory" in host_lacking(cell(8.0), Weights.REAL, 2, Room(8, memory_mib=8_000.0))
    assert host_lacking(cell(8.0, strategy=Strategy.FSDP2), Weights.REAL, 2, Room(8, memory_mib=8_000.0)) == ""
    assert host_lacking(cell(8.0), Weights.REAL, 2, Room(8)) == ""


def test_a_budget_is_spent_to_the_end_and_no_further() -> None:
    hour_on_four = Load("a", 4, 3600.0)
    assert over_budget(hour_on_four, 0.0, 4.0) == ""
    assert over_budget(hour_on_four, 3600.0, 5.0) == ""
    assert over_budget(hour_on_four, 3601.0, 5.0) == "it is expected to take 4.00 device-hours, and of the budget of 5 there are 4.00 left"
    assert "0.00 left" in over_budget(hour_on_four, 9e9, 5.0)
