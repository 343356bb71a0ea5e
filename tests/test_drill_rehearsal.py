"""Drill: the whole matrix on a host with eight NPUs that isn't there. Nothing of it may pass for evidence of a real one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes import rehearsal
from fakes.install import install

from harness.evidence import from_json
from harness.host import REHEARSAL_STORE
from harness.machine import npu_traces
from harness.matrix import parse_matrix
from harness.model import Cell, Evidence, Hardware, RulingKind, Stage, Strategy, Tier, VerdictKind, Weights
from harness.rules import proof_gap, rule_for
from harness.select import select_cells, stages_in
from harness.tiny import make_datasets, make_tiny_model

ROOT = Path(__file__).resolve().parents[1]
FLAGSHIP, FULL = "sft-qwen3_0_6b-lora-single", "dpo-qwen2_5_0_5b_instruct-full-single"
MATRIX = parse_matrix((ROOT / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")
REALLY_DONE = (FLAGSHIP, FULL)


@dataclass(frozen=True)
class Done:
    """A finished `pytest -m npu_matrix`: its output, and under a rehearsal what was called and kept."""

    code: int
    output: str
    calls: list[dict[str, Any]]
    evidence: list[Evidence]

    @property
    def last_line(self) -> str:
        return self.output.strip().splitlines()[-1]

    def of(self, cell: Cell) -> Mapping[Stage, Evidence]:
        return {e.stage: e for e in self.evidence if e.cell == cell.id}


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NPU_MATRIX_", "ASCEND_"))}


def door(root: Path, *words: str) -> Done:
    """`pytest -m npu_matrix --rehearsal=ROOT ...` in the repository."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "npu_matrix", f"--rehearsal={root}", *words]
    done = subprocess.run(argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=580)
    kept = sorted((root / REHEARSAL_STORE / "history").glob("*.json"))
    evidence = [from_json(path.read_text(encoding="utf-8"), path.name, rehearsal_ok=True) for path in kept]
    return Done(done.returncode, done.stdout + done.stderr, rehearsal.Rehearsal(root).calls(), evidence)


def harness(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "harness", *words]
    return subprocess.run(argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=120)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def build(root: Path, **other: Any) -> None:
    cache = root.parent / "cache"
    rehearsal.build(root, model=make_tiny_model("qwen2", cache).path, datasets=make_datasets(cache)["sft"].parent, **other)


def option(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_the_whole_matrix_is_rehearsed(root: Path) -> None:
    """One run of everything, since it takes more than a minute; what is asked of it is in the functions below."""
    build(root, cells=REALLY_DONE)
    done = door(root, "--hardware", "a2", "--require-npu", "--weights", "real")
    cells = select_cells(MATRIX, tier=Tier.NIGHTLY)
    assert len(cells) > 100, "the matrix shrank: is this still a rehearsal of it?"
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in done.calls:
        calls[Path(call["cwd"]).name.rpartition("-")[0]].append(call)
    assert "NO NPU" not in done.output
    assert set(calls) <= {cell.id for cell in cells} | {"", ROOT.name.rpartition("-")[0]}
    for cell in cells:
        ruling = rule_for(cell, MATRIX, hardware=Hardware.A2, weights=Weights.REAL, rehearsal=True)
        if ruling.kind in (RulingKind.EXCLUDED, RulingKind.NOT_RUNNABLE):
            excluded_cells_start_nothing(cell, calls[cell.id], done)
            continue
        every_stage_is_told_and_nothing_unproved_is_green(cell, done)
        devices_and_ranks_agree(cell, calls[cell.id])
        commands_say_what_the_cell_asks(cell, calls[cell.id])
    the_documented_flagship_command_is_run_as_documented(calls[FLAGSHIP], root)
    a_command_has_a_nonce_of_its_own(done.calls)
    cells_of_one_device_are_spread_over_the_eight(done.calls)
    what_was_really_done_is_green_on_the_witnessed_hardware(done)


def excluded_cells_start_nothing(cell: Cell, calls: list[dict[str, Any]], done: Done) -> None:
    assert calls == [], f"{cell.id} is excluded"
    assert done.of(cell) == {}


def every_stage_is_told_and_nothing_unproved_is_green(cell: Cell, done: Done) -> None:
    evidence = done.of(cell)
    assert set(evidence) == set(stages_in(cell, Tier.NIGHTLY)), cell.id
    for stage, told in evidence.items():
        assert told.rehearsal
        assert told.ruling == rule_for(cell, MATRIX, hardware=Hardware.A2, weights=Weights.REAL, rehearsal=True, stage=stage)
        assert told.asked is Hardware.A2
        gap = proof_gap(cell, stage, hardware=Hardware.A2, weights=Weights.REAL)
        if gap:
            assert (told.verdict.kind, told.verdict.because) == (VerdictKind.UNTESTED, gap), f"{cell.id} {stage}"
        elif cell.id not in REALLY_DONE:
            assert told.verdict.kind in (VerdictKind.FAILED, VerdictKind.BLOCKED, VerdictKind.KNOWN_FAILURE), f"{cell.id} {stage}"


def devices_and_ranks_agree(cell: Cell, calls: list[dict[str, Any]]) -> None:
    """As many processes as devices, in order, of the eight; one for a cell of one process; every stage after training has one."""
    for call in calls:
        env, argv = call["env"], call["argv"]
        ids = [int(number) for number in env["ASCEND_RT_VISIBLE_DEVICES"].split(",")]
        assert ids == sorted(set(ids)), call
        assert set(ids) <= set(range(8)), call
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in env, "an NPU needs its torch_npu"
        launched = option(argv, "--num_processes") if call["program"] == "accelerate" else env.get("NPROC_PER_NODE")
        trains = argv[0] in ("pt", "sft", "rlhf") or call["program"] == "accelerate"
        if cell.strategy is Strategy.SINGLE:
            assert (len(ids), launched) == (1, None), call
        elif trains and cell.strategy is not Strategy.MEGATRON:
            documented = cell.devices or cell.model.devices.get(Hardware.A2)
            assert len(ids) == (documented or 8), call
            assert int(launched or 1) <= len(ids), call


def commands_say_what_the_cell_asks(cell: Cell, calls: list[dict[str, Any]]) -> None:
    trainings = [call for call in calls if call["argv"][0] in ("pt", "sft", "rlhf")]
    if cell.strategy is Strategy.MEGATRON:
        return
    assert calls, f"{cell.id} started nothing"
    for call in trainings:
        argv = call["argv"]
        assert option(argv, "--model") == cell.model.id
        assert option(argv, "--tuner_type") in (None, "lora" if cell.tuner == "qlora" else str(cell.tuner))
        assert option(argv, "--deepspeed") == (str(cell.strategy) if cell.strategy in (Strategy.ZERO2, Strategy.ZERO3) else None)
        fsdp2 = fsdp2_configuration(cell.options.fsdp_config) if cell.options.fsdp_config else "fsdp2"
        assert option(argv, "--fsdp") == (fsdp2 if cell.strategy is Strategy.FSDP2 else None)
        assert "--max_steps" in argv or cell.algorithm == "ppo"
    for call in (call for call in calls if call["program"] == "accelerate"):
        assert cell.strategy is Strategy.FSDP1
        assert call["argv"][0] == "launch"


def fsdp2_configuration(name: str) -> str:
    return str(ROOT / "harness" / "launch_configs" / f"fsdp2_{name}.json")


def the_documented_flagship_command_is_run_as_documented(calls: list[dict[str, Any]], root: Path) -> None:
    train = calls[0]
    given = {flag: option(train["argv"], flag) for flag in train["argv"] if flag.startswith("--")}
    documented = {
        "--model": "Qwen/Qwen3-0.6B",
        "--tuner_type": "lora",
        "--torch_dtype": "bfloat16",
        "--per_device_train_batch_size": "1",
        "--learning_rate": "1e-4",
        "--lora_rank": "8",
        "--lora_alpha": "32",
        "--target_modules": "all-linear",
        "--gradient_accumulation_steps": "8",
        "--max_length": "2048",
        "--max_steps": "20",
    }
    assert train["argv"][0] == "sft"
    assert {flag: given.get(flag) for flag in documented} == documented
    assert str(given["--dataset"]).startswith("AI-ModelScope/alpaca-gpt4-data-zh")
    assert str(given["--output_dir"]).startswith(str(root / REHEARSAL_STORE / "runs"))
    assert train["env"]["ASCEND_RT_VISIBLE_DEVICES"] in set("01234567")


def a_command_has_a_nonce_of_its_own(calls: list[dict[str, Any]]) -> None:
    nonces = [call["env"]["NPU_MATRIX_NONCE"] for call in calls if call["program"] in ("swift", "accelerate", "megatron")]
    assert len(nonces) == len(set(nonces)) > 500


def cells_of_one_device_are_spread_over_the_eight(calls: list[dict[str, Any]]) -> None:
    lent = {call["env"].get("ASCEND_RT_VISIBLE_DEVICES", "") for call in calls if call["program"] == "swift"}
    assert {ids for ids in lent if "," not in ids} == set("01234567")
    hccl = {call["env"]["HCCL_IF_BASE_PORT"] for call in calls if "," in call["env"].get("ASCEND_RT_VISIBLE_DEVICES", "")}
    assert hccl, "cells of several devices side by side need ports of their own"


def what_was_really_done_is_green_on_the_witnessed_hardware(done: Done) -> None:
    for cell_id in REALLY_DONE:
        cell = MATRIX.cell(cell_id)
        assert cell is not None
        for stage, told in done.of(cell).items():
            if not proof_gap(cell, stage, hardware=Hardware.A2, weights=Weights.REAL):
                assert told.verdict.kind is VerdictKind.PASSED, f"{cell_id} {stage}: {told.verdict.because}"
                assert told.hardware is Hardware.A2, f"{cell_id} {stage}"


def test_evidence_of_a_rehearsal_is_refused_by_import_and_report(root: Path) -> None:
    build(root)
    done = door(root, "--hardware", "a2", "--weights", "real", "--tier", "pr", "-k", f"{FULL} and train")
    assert [str(e.verdict.kind) for e in done.evidence] == ["passed"], done.output
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(ROOT / "matrix.yaml", elsewhere)
    imported = harness("--root", str(elsewhere), "import", str(root / REHEARSAL_STORE / "history"))
    assert imported.returncode == 4, imported.stdout
    assert imported.stdout.startswith("0 added, 0 now the newest")
    assert "rehearsal" in imported.stderr
    shutil.copytree(root / REHEARSAL_STORE / "reports", elsewhere / "reports")
    written = harness("--root", str(elsewhere), "report", "--json")
    assert set(json.loads(written.stdout)["marks"]) == {"untested"}
    assert "rehearsal" in (elsewhere / "reports" / "report.md").read_text(encoding="utf-8")
    checked = harness("--root", str(elsewhere), "report", "--check")
    assert checked.returncode == 1
    assert "comes from a rehearsal" in checked.stdout


def test_a_rollout_is_rehearsed(root: Path) -> None:
    build(root, cells=())
    done = door(root, "--hardware", "a2", "--require-npu", "--weights", "real", "-k", "grpo-qwen3_8b-lora-zero3-vllm and rollout")
    assert Stage.ROLLOUT in {e.stage for e in done.evidence}


def test_traces_without_a_usable_npu_fail_and_are_named(root: Path) -> None:
    build(root, usable=False)
    done = door(root)
    assert done.code != 0
    for trace in npu_traces(root):
        assert trace in done.output
    assert "npu:0 is not there" in done.output
    assert [call["program"] for call in done.calls] == ["npu-smi", "python"]


def test_chips_that_are_all_sick_are_not_used(root: Path) -> None:
    build(root, sick=range(8))
    done = door(root, "--hardware", "a2")
    assert done.code != 0
    assert "no chip is healthy" in done.output
    assert done.evidence == []


def test_without_any_trace_it_runs_here_and_says_what_that_proves(root: Path) -> None:
    install(root / "usr" / "local" / "bin")
    done = door(root, "--tier", "pr", "-k", "rm-qwen2_5_0_5b_instruct-lora-single and train")
    assert done.code == 0, done.output
    assert "NO NPU: ran on cpu, proves nothing about NPU hardware" in done.output
    assert done.last_line == f"REHEARSAL: programs and devices came from {root}, proves nothing"
    assert [(str(e.stage), str(e.hardware), str(e.verdict.kind)) for e in done.evidence] == [("train", "cpu", "passed")]


def test_a_required_npu_that_is_not_there_fails_at_once(root: Path) -> None:
    install(root / "usr" / "local" / "bin")
    done = door(root, "--require-npu")
    assert done.code != 0
    assert "--require-npu" in done.output
    assert (done.calls, done.evidence) == ([], [])
