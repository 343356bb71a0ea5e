"""What a strategy makes of a tiny command: how many ranks, one global batch among them, and which negative controls a resume has."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from cells_by_hand import cell, places
from hypothesis import given
from hypothesis import strategies as st

from harness.commands import Form, plan_stage
from harness.commands_asked import asked_ranks, inference_of
from harness.commands_devices import tiny_devices
from harness.commands_flags import LAUNCH_CONFIGS
from harness.commands_tables import MODEL_ONLY, TINY_GLOBAL_BATCH, ZERO_MOMENTS, controls_of
from harness.commands_train import tiny_batch, train_step
from harness.errors import HarnessError
from harness.model import Cell, Hardware, Stage, Step, Strategy, Tuner, Weights
from harness.proof_infer import wanted_inferences

SPREAD = [s for s in Strategy if s not in (Strategy.SINGLE, Strategy.MEGATRON)]


def trained(asked: Cell, devices: tuple[int, ...] = (), hardware: Hardware = Hardware.SIM, **changes: Any) -> Step:
    return train_step("train", asked, places(visible_devices=devices, master_port=29501, **changes), hardware, Weights.TINY)


def value(step: Step, flag: str) -> str:
    return step.command.args[step.command.args.index(flag) + 1]


def batch(step: Step) -> tuple[int, int]:
    return int(value(step, "--per_device_train_batch_size")), int(value(step, "--gradient_accumulation_steps"))


# Ranks


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize(
    ("devices", "options", "ranks"),
    [
        (None, {}, 2),
        (2, {}, 2),
        (4, {}, 4),
        (8, {}, 4),
        (None, {"sequence_parallel_size": 2}, 2),
        (None, {"sequence_parallel_size": 4}, 4),
        (2, {"sequence_parallel_size": 4}, 4),
    ],
)
def test_a_tiny_run_has_two_ranks_or_four_where_the_cell_takes_four(
    strategy: Strategy, devices: int | None, options: dict[str, int], ranks: int
) -> None:
    asked = cell(strategy=strategy, devices=devices, **options)
    assert tiny_devices(asked) == ranks
    step = trained(asked, tuple(range(ranks)))
    assert asked_ranks(step) == ranks
    assert step.command.env["ASCEND_RT_VISIBLE_DEVICES"] == ",".join(map(str, range(ranks)))


@pytest.mark.parametrize("devices", [None, 1])
def test_one_process_has_one_device_and_asks_for_one_rank(devices: int | None) -> None:
    asked = cell(devices=devices)
    assert tiny_devices(asked) == 1
    step = trained(asked, (3,))
    assert asked_ranks(step) == 1
    assert "NPROC_PER_NODE" not in step.command.env


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("lent", [(2, 5), (1, 3, 4, 6)])
def test_every_device_lent_is_a_rank_however_its_strategy_is_started(strategy: Strategy, lent: tuple[int, ...]) -> None:
    step = trained(cell(strategy=strategy), lent)
    assert asked_ranks(step) == len(lent)
    launched = step.command.program == "accelerate"
    assert launched is (strategy is Strategy.FSDP1)
    assert ("NPROC_PER_NODE" in step.command.env) is not launched


def test_on_a_plain_cpu_ranks_are_as_many_as_a_tiny_run_has_devices() -> None:
    for devices, ranks in ((None, 2), (4, 4)):
        step = trained(cell(strategy=Strategy.DDP, devices=devices), hardware=Hardware.CPU)
        assert asked_ranks(step) == ranks
        assert "ASCEND_RT_VISIBLE_DEVICES" not in step.command.env


@pytest.mark.parametrize("strategy", SPREAD)
def test_one_device_is_not_shared_out(strategy: Strategy) -> None:
    with pytest.raises(HarnessError, match="at least two devices"):
        trained(cell(strategy=strategy), (0,))


# One global batch


@given(
    strategy=st.sampled_from(SPREAD),
    ranks=st.sampled_from([2, 4]),
    parallel=st.sampled_from([1, 2, 4]),
    tuner=st.sampled_from([Tuner.LORA, Tuner.FULL]),
)
def test_every_strategy_takes_one_global_batch(strategy: Strategy, ranks: int, parallel: int, tuner: Tuner) -> None:
    asked = cell(tuner=tuner, strategy=strategy, sequence_parallel_size=min(parallel, ranks))
    step = trained(asked, tuple(range(ranks)))
    micro, accumulated = batch(step)
    assert micro >= 1 and accumulated >= 1
    assert micro * accumulated * (ranks // min(parallel, ranks)) == TINY_GLOBAL_BATCH == 4
    alone = batch(trained(cell(tuner=tuner), (0,)))
    assert alone[0] * alone[1] == TINY_GLOBAL_BATCH
    assert value(step, "--learning_rate") == value(trained(cell(tuner=tuner), (0,)), "--learning_rate")


@pytest.mark.parametrize(
    ("ranks", "parallel", "shared"), [(1, 1, (2, 2)), (2, 1, (2, 1)), (4, 1, (1, 1)), (2, 2, (2, 2)), (4, 2, (2, 1)), (4, 4, (2, 2))]
)
def test_no_rank_takes_more_rows_at_once_than_one_process_does(ranks: int, parallel: int, shared: tuple[int, int]) -> None:
    asked = cell(strategy=Strategy.DDP if ranks > 1 else Strategy.SINGLE, sequence_parallel_size=parallel)
    assert tiny_batch(asked, places(visible_devices=tuple(range(ranks)))) == shared


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 8])
def test_ranks_that_the_batch_does_not_divide_by_are_refused(ranks: int) -> None:
    with pytest.raises(HarnessError, match=f"don't divide by {ranks} ranks"):
        tiny_batch(cell(strategy=Strategy.DDP), places(visible_devices=tuple(range(ranks))))


@pytest.mark.parametrize("strategy", [Strategy.SINGLE, *SPREAD])
def test_no_mask_is_drawn_where_ranks_would_draw_others_but_an_asked_one_is(strategy: Strategy) -> None:
    lent = (0,) if strategy is Strategy.SINGLE else (0, 1)
    assert value(trained(cell(strategy=strategy), lent), "--lora_dropout") == "0"
    assert value(trained(cell(strategy=strategy, lora_dropout=0.05), lent), "--lora_dropout") == "0.05"
    assert "--lora_dropout" not in trained(cell(tuner=Tuner.FULL, strategy=strategy), lent).command.args


# FSDP2's configurations


@pytest.mark.parametrize("name", ["full_state_dict", "activation_offload"])
def test_a_configuration_of_fsdp2_is_the_file_of_its_name(name: str) -> None:
    path = Path(value(trained(cell(strategy=Strategy.FSDP2, fsdp_config=name), (0, 1)), "--fsdp"))
    assert path == LAUNCH_CONFIGS / f"fsdp2_{name}.json"
    assert json.loads(path.read_text(encoding="utf-8"))["fsdp_config"]["fsdp_version"] == 2


def test_without_one_fsdp2_is_the_documented_preset() -> None:
    assert value(trained(cell(strategy=Strategy.FSDP2), (0, 1)), "--fsdp") == "fsdp2"


# The negative controls of a resume

CONTROL_STEPS = {ZERO_MOMENTS: "resume-zero-moments", MODEL_ONLY: "resume-only-model"}


@pytest.mark.parametrize("strategy", [Strategy.SINGLE, *SPREAD])
def test_a_resume_runs_exactly_the_controls_that_its_proof_takes(strategy: Strategy) -> None:
    lent = (0,) if strategy is Strategy.SINGLE else (0, 1)
    asked = places(visible_devices=lent, master_port=29501)
    resume = {"form": Form.TINY, "hardware": Hardware.SIM, "weights": Weights.TINY, "places": asked}
    steps = plan_stage(cell(strategy=strategy), Stage.RESUME, **resume)  # type: ignore[arg-type]
    names = [step.name for step in steps]
    assert names == ["resume", *(CONTROL_STEPS[name] for name in controls_of(strategy))]
    assert {asked_ranks(step) for step in steps} == {len(lent)}


def test_what_can_not_resume_the_model_alone_lacks_that_control() -> None:
    lacking = {strategy for strategy in Strategy if controls_of(strategy) != (ZERO_MOMENTS, MODEL_ONLY)}
    assert lacking == {Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3}


@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_what_several_ranks_trained_is_asked_at_once_only_and_each_infer_step_is_wanted(tuner: Tuner) -> None:
    for strategy in (Strategy.SINGLE, Strategy.DDP, Strategy.ZERO3):
        asked = places(visible_devices=(0,) if strategy is Strategy.SINGLE else (0, 1))
        form = {"form": Form.TINY, "hardware": Hardware.SIM, "weights": Weights.TINY, "places": asked}
        steps = plan_stage(cell(strategy=strategy, tuner=tuner), Stage.INFER, **form)  # type: ignore[arg-type]
        found = {inference_of(step.name) for step in steps}
        assert found >= set(wanted_inferences(tuner, strategy))
        assert strategy is Strategy.SINGLE or found == set(wanted_inferences(tuner, strategy))


def test_no_strategy_is_without_a_control() -> None:
    assert all(ZERO_MOMENTS in controls_of(strategy) for strategy in Strategy)


def test_each_strategy_is_a_command_of_its_own() -> None:
    words = {s: trained(cell(strategy=s), (0, 1) if s is not Strategy.SINGLE else (0,)) for s in (Strategy.SINGLE, *SPREAD)}
    for one, other in itertools.combinations(words.values(), 2):
        assert (one.command.argv, one.command.env) != (other.command.argv, other.command.env)
