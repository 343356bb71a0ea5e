"""Drill: `swift` is whatever is found on PATH. Each fake that lies ends non-green, with the cause of its lie and the right blame."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.drill import Ground
from fakes.liars import LIES, Lie
from fakes.wrap_real import WRAPPERS, wrap

from harness.causes import CAUSES, blame_of
from harness.commands_tables import DEADLINES
from harness.model import Stage, VerdictKind

# Causes that no lying program can bring about, and where they are tested instead.
NO_LIE = {
    "proof.nothing_ran": "says that flow started nothing; tests/test_judge.py",
    "proof.nothing_compared": "says that a proof left something out; tests/test_judge.py",
    "proof.unnamed": "says that a proof forgot to name its cause; tests/test_judge.py",
    "proof.base_unreadable": "the harness made the base model itself; tests/test_proof_merge.py",
    "proof.golden_missing": "a golden is run by the harness's own interpreter; tests/test_proof_golden.py",
    "proof.engine": "only the transformers engine runs here, and another one leaves no generate event at all",
    "run.not_started": "there is no program then; test_without_a_program_nothing_is_claimed",
}
LIED_ABOUT = ("proof.", "resume.", "merge.", "infer.", "serve.", "run.")
PHASES = {"train": "train", "resume": "train", "merge": "export", "infer": "infer", "deploy": "deploy"}


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    ground = Ground.under(tmp_path_factory.mktemp("drill"))
    yield ground
    ground.forget()


@pytest.mark.parametrize("lie", [pytest.param(lie, id=f"{lie.stage}-{lie.name}") for lie in LIES])
def test_a_lie_is_found_out(ground: Ground, lie: Lie) -> None:
    scale = lie.deadline_s / DEADLINES[PHASES[lie.stage]].tiny_s if lie.deadline_s else 1.0
    told = ground.tell(lie, scale)
    for stage, evidence in told.items():
        if stage != lie.stage:
            assert evidence.verdict.kind is VerdictKind.PASSED, f"{stage}: {evidence.verdict.because}"
    verdict = told[Stage(lie.stage)].verdict
    found = (str(verdict.kind), verdict.cause, str(verdict.blame))
    assert found == ("failed", lie.cause, lie.blame), verdict.because
    assert verdict.because


@pytest.mark.parametrize(
    ("algorithm", "tuner", "family"),
    [
        *((algorithm, tuner, "qwen2") for algorithm in ("sft", "dpo", "pt", "rm") for tuner in ("lora", "full")),
        ("sft", "lora", "qwen3"),
        ("sft", "full", "qwen3"),
    ],
)
def test_the_honest_fake_is_green_on_every_stage(ground: Ground, algorithm: str, tuner: str, family: str) -> None:
    cell = ground.cell(tuner, algorithm, family)
    stages = ground.stages(cell)
    evidence = ground.run(cell, stages, ground.host(f"honest-{cell.id}", ground.honest))
    verdicts = {e.stage: (str(e.verdict.kind), e.verdict.because) for e in evidence}
    assert {stage: kind for stage, (kind, _) in verdicts.items()} == dict.fromkeys(stages, "passed"), verdicts
    assert {Stage.TRAIN, Stage.RESUME} <= set(stages)


@pytest.mark.swift
@pytest.mark.parametrize("name", ["strips_the_witness", "does_fewer_steps", "zeroes_lora_b"])
def test_a_wrapper_around_the_real_swift_is_found_out(ground: Ground, tmp_path: Path, name: str) -> None:
    real = Path(sys.executable).with_name("swift")
    if not real.exists():
        pytest.skip("no ms-swift beside this interpreter to wrap; install the swift extra")
    wrapper = WRAPPERS[name]
    wrap(tmp_path, name, real)
    (evidence,) = ground.run(ground.cell("lora"), (Stage(wrapper.stage),), ground.host(f"wrapped-{name}", tmp_path))
    verdict = evidence.verdict
    assert (str(verdict.kind), verdict.cause, str(verdict.blame)) == ("failed", wrapper.cause, wrapper.blame), verdict.because


def test_without_a_program_nothing_is_claimed(ground: Ground, tmp_path: Path) -> None:
    (evidence,) = ground.run(ground.cell("lora"), (Stage.TRAIN,), ground.host("nothing", tmp_path))
    assert (evidence.verdict.kind, evidence.verdict.cause) == (VerdictKind.FAILED, "run.not_started")
    assert str(evidence.verdict.blame) == "environment"


def test_the_lies_cover_every_cause_that_a_program_can_lie_about() -> None:
    wanted = {cause for cause in CAUSES if cause.startswith(LIED_ABOUT)}
    told = {lie.cause for lie in LIES}
    assert sorted(wanted - told - NO_LIE.keys()) == []
    assert sorted(NO_LIE.keys() & told) == [], "these have a lie by now"
    assert sorted(told - CAUSES.keys()) == []


def test_the_lies_blame_whom_the_table_of_causes_blames() -> None:
    assert {lie.name: lie.blame for lie in LIES} == {lie.name: str(blame_of(lie.cause)) for lie in LIES}


def test_each_lie_has_a_name_of_its_own() -> None:
    assert len({lie.name for lie in LIES}) == len(LIES)
