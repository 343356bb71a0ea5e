"""The honest fake as several ranks: the real flow and the real launcher find it to be the strategy that was asked for, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fakes.drill import Ground
from fakes.install import install

from harness.host import Host
from harness.launch import launch
from harness.model import Cell, Evidence, Hardware, Options, Run, Stage, Step, Strategy, VerdictKind

SPREAD = (Strategy.DDP, Strategy.FSDP1, Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3)
GATHERED = Options(fsdp_config="full_state_dict")  # the fake writes no sharded checkpoint


@dataclass(frozen=True)
class Plain:
    """Launches every step, the golden's too, with the programs of one folder: no ms-swift is needed beside the fake."""

    programs: Path

    def __call__(self, step: Step, **how: Any) -> Run:
        return launch(step, **{**how, "search_path": str(self.programs)})


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    ground = Ground.under(tmp_path_factory.mktemp("ranks"))
    install(ground.folder / "npu", device="npu")
    yield ground
    ground.forget()


def cell(ground: Ground, strategy: Strategy, tuner: str = "lora", algorithm: str = "sft", devices: int | None = None) -> Cell:
    single = ground.cell(tuner, algorithm)
    options = GATHERED if strategy is Strategy.FSDP2 else Options()
    name = f"{algorithm}-fake-{tuner}-{strategy}-{devices or 2}"
    return replace(single, id=name, tiny_key=name, strategy=strategy, options=options, devices=devices)


def npus(ground: Ground, one: Cell, ranks: int = 2) -> Host:
    return replace(
        ground.host(one.id, ground.folder / "npu"), hardware=Hardware.A2, npu_ids=tuple(range(ranks)), swift_cli_dir="/site/swift/cli"
    )


def on_npus(ground: Ground, one: Cell, stages: tuple[Stage, ...], ranks: int = 2) -> dict[Stage, Evidence]:
    return {e.stage: e for e in ground.run(one, stages, npus(ground, one, ranks), Plain(ground.folder / "npu"))}


def told(found: dict[Stage, Evidence]) -> dict[Stage, str]:
    return {stage: f"{e.verdict.kind}: {e.verdict.because}" for stage, e in found.items()}


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("tuner", ["lora", "full"])
def test_honest_ranks_train_and_resume_as_what_was_asked(ground: Ground, strategy: Strategy, tuner: str) -> None:
    found = on_npus(ground, cell(ground, strategy, tuner), (Stage.TRAIN, Stage.RESUME))
    assert {stage: e.verdict.kind for stage, e in found.items()} == dict.fromkeys((Stage.TRAIN, Stage.RESUME), VerdictKind.PASSED), told(
        found
    )
    ranks = sorted(w["rank"] for w in found[Stage.TRAIN].witnesses)
    assert ranks == [0, 1]


@pytest.mark.parametrize("strategy", [Strategy.DDP, Strategy.ZERO3])
def test_four_honest_ranks_are_four(ground: Ground, strategy: Strategy) -> None:
    found = on_npus(ground, cell(ground, strategy, devices=4), (Stage.TRAIN,), ranks=4)
    assert found[Stage.TRAIN].verdict.kind is VerdictKind.PASSED, told(found)
    assert sorted(w["rank"] for w in found[Stage.TRAIN].witnesses) == [0, 1, 2, 3]


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "pt", "rm"])
def test_ddp_on_a_plain_cpu_agrees_with_one_process(ground: Ground, algorithm: str) -> None:
    one = cell(ground, Strategy.DDP, algorithm=algorithm)
    (train,) = ground.run(one, (Stage.TRAIN,), ground.host(one.id, ground.honest), Plain(ground.honest))
    assert train.verdict.kind is VerdictKind.PASSED, train.verdict.because
    errors = {c.name: c.error for c in train.comparisons if c.name.startswith("parity.")}
    assert errors.keys() == {"parity.loss", "parity.grad_norm", "parity.weights"}
    assert all(error is not None and error < 1e-3 for error in errors.values()), errors


def test_ddp_goes_through_every_later_stage(ground: Ground) -> None:
    one = cell(ground, Strategy.DDP)
    found = {e.stage: e for e in ground.run(one, ground.stages(one), ground.host(f"{one.id}-all", ground.honest), Plain(ground.honest))}
    assert {e.verdict.kind for e in found.values()} == {VerdictKind.PASSED}, told(found)
    assert {Stage.MERGE, Stage.INFER, Stage.DEPLOY} <= found.keys()


SWAPS = [(asked, done) for asked in SPREAD for done in (Strategy.DDP, Strategy.ZERO2, Strategy.ZERO3) if asked is not done]


@pytest.mark.parametrize(("asked", "done"), SWAPS)
def test_a_command_in_place_of_another_is_never_green(ground: Ground, asked: Strategy, done: Strategy) -> None:
    """Hidden words, which no argument list shows, are tests/test_drill_strategies.py's."""

    def swapped(step: Step, **how: Any) -> Run:
        words = list(step.command.args)
        if step.command.program == "accelerate":
            script = next(at for at, word in enumerate(words) if word.endswith("sft.py"))
            words = ["sft", *words[script + 1 :]]
        for flag in ("--deepspeed", "--fsdp"):
            if flag in words:
                del words[words.index(flag) : words.index(flag) + 2]
        words += [] if done is Strategy.DDP else ["--deepspeed", str(done)]
        command = replace(step.command, program="swift", args=tuple(words), env={**step.command.env, "NPROC_PER_NODE": "2"})
        return Plain(ground.folder / "npu")(replace(step, command=command), **how)

    one = replace(cell(ground, asked), id=f"{asked}-by-{done}")
    (train,) = ground.run(one, (Stage.TRAIN,), npus(ground, one), swapped)
    # FSDP1's words go to accelerate alone: that they were not heeded shows on the ranks only.
    cause = "proof.strategy" if (asked, done) == (Strategy.FSDP1, Strategy.DDP) else "proof.argv"
    assert (train.verdict.kind, train.verdict.cause) == (VerdictKind.FAILED, cause), train.verdict.because
    assert cause == "proof.argv" or str(asked) in train.verdict.because


def test_a_rank_that_dies_ends_the_others_and_the_run(ground: Ground, tmp_path: Path) -> None:
    install(tmp_path, "killed_half_way")
    one = replace(cell(ground, Strategy.DDP), id="ddp-dies")
    (train,) = ground.run(one, (Stage.TRAIN,), ground.host(one.id, tmp_path), Plain(tmp_path))
    assert (train.verdict.kind, train.outcome.cause) == (VerdictKind.FAILED, "run.exit_nonzero")
    assert not any(run.leftovers for run in train.runs)
