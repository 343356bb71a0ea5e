"""A training of several ranks as a whole, and where each strategy keeps the optimizer's state in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import example_ranks as er
import examples as ex
import pytest
from example_ranks import SPREAD, ran

from harness.commands_asked import asked_ranks
from harness.found import CheckpointFiles
from harness.model import Comparison, Hardware, Options, Stage, StepResult, Strategy, Tuner, Weights
from harness.proof_checkpoint import Layout, layout_of
from harness.proof_required import missing_required
from harness.proof_train import prove_train


def checkpoints(strategy: Strategy, ranks: int, tuner: Tuner = Tuner.LORA, fsdp_config: str | None = None) -> dict[int, CheckpointFiles]:
    found = {step: replace(ex.checkpoint(step, tuner), states=er.states(strategy, step, ranks, fsdp_config)) for step in ex.SAVES}
    if layout_of(strategy, fsdp_config, "float32").sharded:
        found = {step: replace(files, adapter_config=None) for step, files in found.items()}
    return found


def trained(
    strategy: Strategy,
    result: StepResult,
    found: Mapping[int, CheckpointFiles],
    tuner: Tuner = Tuner.LORA,
    hardware: Hardware = Hardware.SIM,
    options: Options | None = None,
) -> tuple[Comparison, ...]:
    return prove_train(
        cell=replace(ex.cell(tuner=tuner, strategy=strategy), options=options or Options()),
        hardware=hardware,
        weights=Weights.TINY,
        result=result,
        asked_steps=ex.STEPS,
        save_steps=ex.SAVES,
        checkpoints=found,
        base=ex.base_model(),
        asked_lora=ex.LORA if tuner is Tuner.LORA else None,
    )


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_an_honest_training_of_several_ranks_passes_whole(strategy: Strategy, ranks: int, tuner: Tuner) -> None:
    result = ran(strategy, ranks, tuner=tuner)
    assert asked_ranks(result.step) == ranks
    made = trained(strategy, result, checkpoints(strategy, ranks, tuner), tuner)
    assert ex.causes(made) == ()
    # The parity with one process and the patches come from the golden, which tests/test_proof_golden.py asks.
    assert missing_required(Stage.TRAIN, made, ex.asked(tuner, strategy=strategy, hardware=Hardware.A2)) == ()


def test_an_honest_ddp_training_on_a_plain_cpu_passes_whole() -> None:
    assert (
        ex.causes(trained(Strategy.DDP, ran(Strategy.DDP, hardware=Hardware.CPU), checkpoints(Strategy.DDP, 2), hardware=Hardware.CPU))
        == ()
    )


def test_a_gathered_fsdp2_checkpoint_is_laid_out_as_fsdp1s() -> None:
    gathered = checkpoints(Strategy.FSDP2, 2, fsdp_config="full_state_dict")
    options = Options(fsdp_config="full_state_dict")
    assert ex.causes(trained(Strategy.FSDP2, ran(Strategy.FSDP2), gathered, options=options)) == ()
    assert ex.causes(trained(Strategy.FSDP2, ran(Strategy.FSDP2), gathered)) == ("proof.checkpoint_missing",)
    sharded = checkpoints(Strategy.FSDP2, 2)
    assert ex.causes(trained(Strategy.FSDP2, ran(Strategy.FSDP2), sharded, options=options)) == ("proof.checkpoint_missing",)


ZERO = Layout(("global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",))
LAYOUTS = [
    (Strategy.SINGLE, None, Layout(("optimizer.pt",))),
    (Strategy.DDP, None, Layout(("optimizer.pt",))),
    (Strategy.FSDP1, None, Layout(("optimizer.bin",))),
    (Strategy.FSDP2, None, Layout(("optimizer_0",), sharded=True)),
    (Strategy.FSDP2, "activation_offload", Layout(("optimizer_0",), sharded=True)),
    (Strategy.FSDP2, "full_state_dict", Layout(("optimizer.bin",))),
    (Strategy.ZERO2, None, ZERO),
    (Strategy.ZERO3, None, ZERO),
]


@pytest.mark.parametrize(("strategy", "fsdp_config", "layout"), LAYOUTS)
def test_each_strategy_keeps_its_optimizer_where_it_writes_it(strategy: Strategy, fsdp_config: str | None, layout: Layout) -> None:
    assert layout_of(strategy, fsdp_config, "float32") == layout


@pytest.mark.parametrize(("strategy", "fsdp_config", "layout"), LAYOUTS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_file_that_is_missing_from_a_checkpoint_is_named(
    strategy: Strategy, fsdp_config: str | None, layout: Layout, ranks: int
) -> None:
    ranks = 1 if strategy is Strategy.SINGLE else ranks
    options = Options(fsdp_config=fsdp_config)
    honest = checkpoints(strategy, ranks, fsdp_config=fsdp_config)
    events = (
        {rank: {"train_end": {"offloading": ["Qwen2DecoderLayer"]}} for rank in range(ranks)} if fsdp_config == "activation_offload" else {}
    )
    result = ran(strategy, ranks, bent=events)
    assert ex.causes(trained(strategy, result, honest, options=options)) == ()
    last = ex.SAVES[-1]
    wanted = {**honest[last].states}
    assert len(wanted) == 1 + ranks + (ranks if layout is ZERO or "{rank}" in layout.optimizer[0] else 1)
    for name in wanted:
        states = {other: size for other, size in wanted.items() if other != name}
        made = trained(strategy, result, {**honest, last: replace(honest[last], states=states)}, options=options)
        assert ex.causes(made) == ("proof.checkpoint_missing",), name
        (told,) = (c for c in made if not c.ok)
        assert told.found == f"checkpoint-{last}: without {name}"


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("other", SPREAD)
def test_a_checkpoint_of_another_layout_is_incomplete(strategy: Strategy, other: Strategy) -> None:
    made = trained(strategy, ran(strategy), checkpoints(other, 2))
    same = er.OPTIMIZERS[strategy] == er.OPTIMIZERS[other]
    assert ex.causes(made) == (() if same else ("proof.checkpoint_missing",))


@pytest.mark.parametrize("strategy", SPREAD)
def test_an_optimizer_that_was_saved_in_part_is_thin(strategy: Strategy) -> None:
    found = checkpoints(strategy, 2)
    thin = {name: size // 4 if "optim" in name else size for name, size in found[4].states.items()}
    assert ex.causes(trained(strategy, ran(strategy), {**found, 4: replace(found[4], states=thin)})) == ("proof.optimizer",)


@pytest.mark.parametrize("strategy", [s for s in SPREAD if s is not Strategy.FSDP2])
def test_only_a_sharded_checkpoint_may_lack_its_adapters_configuration(strategy: Strategy) -> None:
    bare = {step: replace(files, adapter_config=None) for step, files in checkpoints(strategy, 2).items()}
    assert ex.causes(trained(strategy, ran(strategy), bare)) == ("proof.checkpoint_missing",)


def test_a_sharded_checkpoint_that_has_an_adapters_configuration_is_held_to_it() -> None:
    found = checkpoints(Strategy.FSDP2, 2)
    wrong = {"r": 8, "lora_alpha": 4.0, "use_rslora": False}
    told = {**found, 4: replace(found[4], adapter_config=wrong)}
    assert ex.causes(trained(Strategy.FSDP2, ran(Strategy.FSDP2), told)) == ("proof.adapter_rank",)
