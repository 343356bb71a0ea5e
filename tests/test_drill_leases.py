"""Drill: the pytest door on a rehearsed host of eight NPUs lends them out, and tells what it did not start and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes import rehearsal
from fakes.install import write_executable
from test_doors import SMALL

from harness.host import REHEARSAL_STORE

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = """
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| {npu}       0                 | 4242          | python                   | 1024                    |
+===========================+===============+====================================================+
"""
HEAD = SMALL.partition("cells:")[0]
BLOCK = """
  wide{width}:
    models: [qwen2_5_0_5b_instruct, qwen3_0_6b]
    algorithms: [{algorithms}]
    tuners: [lora]
    strategies: [{strategy}]
    hardware: [a2]
    tier: pr
    recipe: quick_start
    devices: {width}
"""


@dataclass(frozen=True)
class Drill:
    root: Path

    def door(self, matrix: str, *words: str) -> tuple[int, str]:
        file = self.root.parent / "matrix.yaml"
        file.write_text(matrix, encoding="utf-8")
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "npu_matrix", "-rs", "--rehearsal", str(self.root)]
        argv += ["--hardware", "a2", "--weights", "real", "--matrix", str(file), "-k", "train", *words]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NPU_MATRIX_", "ASCEND_"))}
        done = subprocess.run(argv, cwd=ROOT, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def calls(self) -> list[dict[str, Any]]:
        return rehearsal.Rehearsal(self.root).calls("swift")

    def kept(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text(encoding="utf-8")) for path in (self.root / REHEARSAL_STORE / "history").glob("*.json")]


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    rehearsal.build(tmp_path / "root", cells=())
    return Drill(tmp_path / "root")


def matrix(*widths: int, algorithms: str = "sft", more: str = "") -> str:
    strategies = {1: "single", 2: "ddp", 4: "fsdp2", 8: "zero3", 16: "zero2"}
    return HEAD + "cells:" + "".join(BLOCK.format(width=w, strategy=strategies[w], algorithms=algorithms) for w in widths) + more


def test_cells_of_every_width_get_devices_and_ports_of_their_own(drill: Drill) -> None:
    _, output = drill.door(matrix(1, 2, 4, 8))
    assert "8 deselected" not in output and len(drill.calls()) == 8, output
    for call in drill.calls():
        ids = call["env"]["ASCEND_RT_VISIBLE_DEVICES"].split(",")
        assert len(set(ids)) == int(call["env"].get("NPROC_PER_NODE", "1")), call
        assert ("HCCL_IF_BASE_PORT" in call["env"]) == (len(ids) > 1), call
    assert "device-hours: 0.0" in output
    assert not list((drill.root / REHEARSAL_STORE / "leases").glob("waits-*"))
    assert list((drill.root / REHEARSAL_STORE / "leases").glob("device-0000-C1-00.0-*")), "a lock is named by the bus address"


def test_a_cell_that_needs_more_devices_than_there_are_is_not_runnable_here(drill: Drill) -> None:
    _, output = drill.door(matrix(1, 16))
    assert output.count("not_runnable_here: it needs 16 NPUs and this host has 8 to use") == 1, output
    assert {piece["cell"].rpartition("-")[2] for piece in drill.kept()} == {"single"}


def test_a_run_starts_no_cell_beyond_its_device_hours_and_names_it(drill: Drill) -> None:
    _, output = drill.door(matrix(1, 8), "--device-hours", "0.1")
    refused = "sft-qwen3_0_6b-lora-zero3: not started: it is expected to take"
    assert refused in output and "of the budget of 0.1 there are" in output, output
    assert {piece["cell"] for piece in drill.kept()} == {"sft-qwen3_0_6b-lora-single", "sft-qwen2_5_0_5b_instruct-lora-single"}
    assert "of 0.1\n" in output


def test_a_budget_of_the_tier_holds_unless_another_is_given(drill: Drill) -> None:
    tiers = "\ntiers:\n  pr: {device_hours: 0.001}\n"
    code, output = drill.door(matrix(1, more=tiers), "--tier", "pr")
    assert (code, drill.calls(), drill.kept()) == (pytest.ExitCode.NO_TESTS_COLLECTED, [], []), output
    assert output.count("not started: it is expected to take") >= 2, output
    _, output = drill.door(matrix(1, more=tiers), "--tier", "pr", "--device-hours", "9")
    assert len(drill.calls()) == 2 and "of 9\n" in output, output


@pytest.mark.parametrize("words", [("--device-hours", "0"), ("--device-hours", "nan")])
def test_a_budget_that_is_none_is_refused(drill: Drill, words: tuple[str, ...]) -> None:
    code, output = drill.door(matrix(1), *words)
    assert code == pytest.ExitCode.USAGE_ERROR and "--device-hours" in output, output


def test_a_device_that_a_stranger_uses_is_set_aside_and_named(drill: Drill) -> None:
    table = drill.root / "npu-smi.txt"
    table.write_text(rehearsal.npu_smi_info() + PROCESSES.format(npu=0), encoding="utf-8")
    write_executable(drill.root / "usr/local/sbin/npu-smi", f"#!/bin/sh\ncat {table}\n")
    _, output = drill.door(matrix(1, 4))
    assert "NPU 0 was set aside: in use by pid 4242 (python, 1024 MB)" in output, output
    assert len(drill.calls()) == 4
    assert all("0" not in call["env"]["ASCEND_RT_VISIBLE_DEVICES"].split(",") for call in drill.calls())
