"""pytest -m npu_benchmark as people meet it: what is measured, fails or is skipped, with which exit status. `swift` is a fake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.install import install
from test_doors import CELL, SMALL, Place, place  # noqa: F401

BENCHMARKS = """
benchmarks:
  - {when: {algorithm: [sft]}, kinds: [train]}
"""
CPU = ("-m", "npu_benchmark", "--hardware", "cpu")


@pytest.fixture
def measuring(place: Place) -> Place:  # noqa: F811
    (place.root / "matrix.yaml").write_text(SMALL + BENCHMARKS, encoding="utf-8")
    return place


def harness(at: Place, *words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=at.root, env=at.env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_cells_are_measured_promoted_and_held_against_their_baseline(measuring: Place) -> None:
    install(measuring.programs)
    code, output = measuring.door(*CPU, "-k", CELL, "--repeats", "4")
    assert code == 0 and "1 skipped" in output and "no baseline" in output, output
    assert "ms/step" in output and output.rstrip().endswith("NO NPU: ran on cpu, proves nothing about NPU hardware"), output
    (kept,) = (measuring.root / ".harness" / "benchmarks").glob("*/*.json")
    assert [len(r["step_s"]) for r in json.loads(kept.read_text())["repeats"]] == [24] * 4
    code, output = harness(measuring, "promote", "--reason", "the first on this host")
    assert code == 0 and "reports/baselines/cpu" in output, output
    (baseline,) = (measuring.root / "reports" / "baselines").rglob("*.json")
    text = baseline.read_text()
    assert json.loads(text)["reason"] == "the first on this host"
    assert str(measuring.root) not in text and str(Path.home()) not in text
    code, output = measuring.door(*CPU, "-k", CELL, "--repeats", "4", "-rs")
    # The fake's steps take next to no time, so that the host decides; but there is a baseline now.
    assert code in (0, 1) and "no baseline" not in output, output


def test_a_training_that_dies_or_proves_nothing_fails_its_item_and_measures_nothing(measuring: Place) -> None:
    code, output = measuring.door(*CPU, "-k", CELL, "--repeats", "2")
    assert code == 1 and "1 failed" in output, output
    assert not list((measuring.root / ".harness").glob("benchmarks/*/*.json"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*CPU, "--repeats", "0"), "nothing is measured less than once"),
        ((*CPU, "-n", "2"), "run in one process"),
        (("-m", "npu_matrix", "--repeats", "2"), "--repeats: without -m npu_benchmark"),
        ((*CPU, "--quick"), "--quick: without -m kernel_parity"),
        (("-m", "npu_benchmark", "--require-npu"), "no"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(measuring: Place, words: tuple[str, ...], says: str) -> None:
    plugins = ("-p", "xdist") if "-n" in words else ()
    code, output = measuring.door(*plugins, *words)
    assert code == 4 and says in output, output


def test_what_cant_run_here_is_skipped_and_neither_measured_nor_waited_for(measuring: Place) -> None:
    there = (measuring.root / "matrix.yaml").read_text(encoding="utf-8").replace("tuners: [lora]", "tuners: [lora, qlora]")
    (measuring.root / "matrix.yaml").write_text(there, encoding="utf-8")
    install(measuring.programs)
    code, output = measuring.door(*CPU, "-k", "qwen3_0_6b", "--repeats", "1", "-rs")
    assert code == 0 and "2 skipped" in output, output
    assert "benchmark 1 of 1: sft-qwen3_0_6b-lora-single train" in output and "benchmark 1 of 1: sft-qwen3_0_6b-qlora" not in output, output
    code, output = measuring.door(*CPU, "-k", "qlora", "--repeats", "1")
    assert code == 5 and "2 skipped" in output, output


def test_nothing_selected_is_exit_status_five(measuring: Place) -> None:
    code, output = measuring.door(*CPU, "-k", "nothing")
    assert code == 5, output


def test_a_benchmark_of_no_cell_is_refused_with_its_line(measuring: Place) -> None:
    (measuring.root / "matrix.yaml").write_text(SMALL + BENCHMARKS.replace("[sft]", "[dpo]"), encoding="utf-8")
    code, output = measuring.door(*CPU)
    assert code == 4 and "matrix.yaml:" in output and "no cell matches whose train could be measured" in output, output
