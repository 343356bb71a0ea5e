"""Each strategy is believed only when every rank saw it: one that is passed off as another logs the very same losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import example_ranks as er
import examples as ex
import pytest
from example_ranks import SPREAD, ran
from examples import Event
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model import Blame, Comparison, Hardware, StepResult, Strategy, Tuner
from harness.proof_strategy import TRAITS, UNEVEN, prove_strategy
from harness.rules import PROVED_STRATEGIES

FLAT = {"by": "fsdp1", "how": "FULL_SHARD", "ranks": 2, "units": 3, "kept": 0}
DTENSOR = {"by": "dtensor", "how": "S(0)", "ranks": 2, "units": 3, "kept": 1}
NAMES = ("ranks", "strategy", "shards", "optimizer_shards", "ranks_agree")


def prove(strategy: Strategy, result: StepResult, hardware: Hardware = Hardware.SIM, ranks: int = 2) -> dict[str, Comparison]:
    made = {c.name: c for c in prove_strategy("x", strategy, hardware, ranks, result)}
    assert tuple(made) == tuple(f"x.{name}" for name in NAMES)
    return made


def failed(made: Mapping[str, Comparison]) -> dict[str, str]:
    return {name.removeprefix("x."): c.cause for name, c in made.items() if not c.ok}


# Honest ones


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("hardware", [Hardware.SIM, Hardware.A2])
@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_honest_ranks_pass(strategy: Strategy, ranks: int, hardware: Hardware, tuner: Tuner) -> None:
    assert failed(prove(strategy, ran(strategy, ranks, hardware, tuner), hardware, ranks)) == {}


@pytest.mark.parametrize("hardware", [Hardware.CPU, Hardware.SIM, Hardware.A2])
@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_one_honest_process_passes(hardware: Hardware, tuner: Tuner) -> None:
    assert failed(prove(Strategy.SINGLE, ran(Strategy.SINGLE, 1, hardware, tuner), hardware, 1)) == {}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_plain_cpu_does_ddp_by_gloo(ranks: int) -> None:
    assert failed(prove(Strategy.DDP, ran(Strategy.DDP, ranks, Hardware.CPU), Hardware.CPU, ranks)) == {}
    by_hccl = ran(Strategy.DDP, ranks, Hardware.CPU, bent={rank: {"train_begin": {"backend": "hccl"}} for rank in range(ranks)})
    assert failed(prove(Strategy.DDP, by_hccl, Hardware.CPU, ranks)) == {"ranks": "proof.ranks"}


def test_every_strategy_that_is_said_to_be_proved_has_traits() -> None:
    assert TRAITS.keys() == PROVED_STRATEGIES
    with pytest.raises(KeyError):
        prove_strategy("x", Strategy.MEGATRON, Hardware.SIM, 2, ran(Strategy.DDP))


@pytest.mark.parametrize("how", ["S(0)", "Shard(dim=0)"])
def test_a_placement_is_known_in_either_spelling(how: str) -> None:
    bent = {rank: {"train_begin": {"sharding": {**DTENSOR, "how": how}}} for rank in (0, 1)}
    assert failed(prove(Strategy.FSDP2, ran(Strategy.FSDP2, bent=bent))) == {}


# One passed off as another


@pytest.mark.parametrize("asked", SPREAD)
@pytest.mark.parametrize("done", SPREAD)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_strategy_passed_off_as_another_is_found_out(asked: Strategy, done: Strategy, ranks: int) -> None:
    made = prove(asked, ran(done, ranks, asked=asked), ranks=ranks)
    assert (made["x.strategy"].ok, bool(failed(made))) == (asked is done, asked is not done)
    assert set(failed(made).values()) <= {"proof.strategy"}
    if asked is not done:
        assert str(asked) in made["x.strategy"].expected
        assert made["x.strategy"].blame is Blame.PRODUCT


@pytest.mark.parametrize("asked", SPREAD)
@pytest.mark.parametrize("hardware", [Hardware.CPU, Hardware.SIM])
def test_one_process_passed_off_as_several_ranks_is_found_out(asked: Strategy, hardware: Hardware) -> None:
    found = failed(prove(asked, ran(Strategy.SINGLE, 1, hardware), hardware))
    assert (found["ranks"], found["strategy"], found["ranks_agree"]) == ("proof.ranks", "proof.strategy", "proof.ranks")


@pytest.mark.parametrize("done", SPREAD)
def test_ranks_passed_off_as_one_process_are_found_out(done: Strategy) -> None:
    found = failed(prove(Strategy.SINGLE, ran(done), ranks=1))
    assert (found["ranks"], found["strategy"]) == ("proof.ranks", "proof.strategy")


@pytest.mark.parametrize("asked", SPREAD)
def test_two_processes_that_know_nothing_of_each_other_are_no_two_ranks(asked: Strategy) -> None:
    alone = [ex.witness(er.rank_events(Strategy.SINGLE, 0, 1), pid=pid) for pid in (7, 8)]
    found = failed(prove(asked, replace(ran(asked), witnesses=tuple(alone))))
    assert (found["ranks"], found["strategy"]) == ("proof.ranks", "proof.strategy")


# The documented difference of each strategy is told from that one thing alone
HALF, ALL = er.NUMEL // 2, er.NUMEL
BEGIN: dict[str, tuple[Strategy, Event, str]] = {
    "ddp that never wrapped": (Strategy.DDP, {"wrapped_class": "PeftModelForCausalLM"}, "strategy"),
    "ddp by another type": (Strategy.DDP, {"distributed_type": "MULTI_CPU"}, "strategy"),
    "ddp that shards": (Strategy.DDP, {"sharding": DTENSOR}, "strategy"),
    "ddp with half the model": (Strategy.DDP, {"numel_local": HALF}, "shards"),
    "fsdp1 that replicates": (Strategy.FSDP1, {"sharding": {**FLAT, "how": "NO_SHARD"}}, "strategy"),
    "fsdp1 that shards gradients only": (Strategy.FSDP1, {"sharding": {**FLAT, "how": "SHARD_GRAD_OP"}}, "strategy"),
    "fsdp1 that shards some modules only": (Strategy.FSDP1, {"sharding": {**FLAT, "how": "FULL_SHARD, NO_SHARD"}}, "strategy"),
    "fsdp1 that gathers all at once": (Strategy.FSDP1, {"sharding": {**FLAT, "units": 0}}, "strategy"),
    "fsdp1 that frees nothing": (Strategy.FSDP1, {"sharding": {**FLAT, "kept": 3}}, "strategy"),
    "fsdp1 within one rank": (Strategy.FSDP1, {"sharding": {**FLAT, "ranks": 1}}, "strategy"),
    "fsdp1 with the whole model": (Strategy.FSDP1, {"numel_local": ALL}, "shards"),
    "fsdp2 by the old class": (Strategy.FSDP2, {"wrapped_class": "FullyShardedDataParallel"}, "strategy"),
    "fsdp2 that replicates": (Strategy.FSDP2, {"sharding": {**DTENSOR, "how": "R"}}, "strategy"),
    "fsdp2 that replicates in part": (Strategy.FSDP2, {"sharding": {**DTENSOR, "how": "R, S(0)"}}, "strategy"),
    "fsdp2 that cuts the other way": (Strategy.FSDP2, {"sharding": {**DTENSOR, "how": "S(1)"}}, "strategy"),
    "fsdp2 that gathers all at once": (Strategy.FSDP2, {"sharding": {**DTENSOR, "units": 0, "kept": 0}}, "strategy"),
    "fsdp2 that frees nothing": (Strategy.FSDP2, {"sharding": {**DTENSOR, "kept": 3}}, "strategy"),
    "fsdp2 that does not say what it frees": (Strategy.FSDP2, {"sharding": {**DTENSOR, "kept": None}}, "strategy"),
    "fsdp2 without a DTensor": (Strategy.FSDP2, {"sharding": None}, "strategy"),
    "fsdp2 with the whole model": (Strategy.FSDP2, {"numel_local": ALL}, "shards"),
    "zero2 of stage 1": (Strategy.ZERO2, {"zero_stage": 1, "sharding": {"by": "zero", "how": "1", "ranks": 2}}, "strategy"),
    "zero2 of stage 3": (Strategy.ZERO2, {"zero_stage": 3, "sharding": {"by": "zero", "how": "3", "ranks": 2}}, "strategy"),
    "zero2 whose engine says no stage": (Strategy.ZERO2, {"zero_stage": None}, "strategy"),
    "zero2 over one rank": (Strategy.ZERO2, {"sharding": {"by": "zero", "how": "2", "ranks": 1}}, "strategy"),
    "zero2 with half the model": (Strategy.ZERO2, {"numel_local": HALF}, "shards"),
    "zero3 of stage 2": (Strategy.ZERO3, {"zero_stage": 2, "sharding": {"by": "zero", "how": "2", "ranks": 2}}, "strategy"),
    "zero3 with the whole model": (Strategy.ZERO3, {"numel_local": ALL}, "shards"),
    "zero3 without an engine": (Strategy.ZERO3, {"wrapped_class": "PeftModelForCausalLM"}, "strategy"),
}
WHOLE_OPTIMIZER = {s: {"first_moments_numel": er.TRAINABLE // (1 if er.SHARDED[s][1] else 2)} for s in SPREAD}
ONE_THING: dict[str, tuple[Strategy, str, Event, str]] = {
    **{name: (strategy, "train_begin", fields, what) for name, (strategy, fields, what) in BEGIN.items()},
    **{f"{s} with another part of the optimizer": (s, "train_end", fields, "optimizer_shards") for s, fields in WHOLE_OPTIMIZER.items()},
}


@pytest.mark.parametrize("name", ONE_THING)
@pytest.mark.parametrize("where", [(0,), (1,), (0, 1)], ids=["rank 0", "rank 1", "both"])
def test_a_strategy_that_lacks_one_thing_is_found_out_by_it_on_whichever_rank(name: str, where: tuple[int, ...]) -> None:
    strategy, event, fields, what = ONE_THING[name]
    made = prove(strategy, ran(strategy, bent={rank: {event: fields} for rank in where}))
    assert failed(made) == {what: "proof.strategy"}


UNSAID = ("wrapped_class", "distributed_type", "numel_local", "numel_global", "device", "backend")


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("field", UNSAID)
def test_what_a_rank_does_not_say_is_not_believed(strategy: Strategy, rank: int, field: str) -> None:
    assert failed(prove(strategy, ran(strategy, bent={rank: {"train_begin": {field: None}}})))


@pytest.mark.parametrize("strategy", SPREAD)
def test_a_rank_that_says_nothing_of_its_sharding_or_optimizer_is_not_believed(strategy: Strategy) -> None:
    if strategy is not Strategy.DDP:
        assert "strategy" in failed(prove(strategy, ran(strategy, bent={1: {"train_begin": {"sharding": None}}})))
    assert failed(prove(strategy, ran(strategy, bent={1: {"train_end": {"first_moments_numel": None}}}))) == {
        "optimizer_shards": "proof.strategy"
    }


# Ranks


def without_rank(result: StepResult, rank: int) -> StepResult:
    return replace(result, witnesses=tuple(w for w in result.witnesses if w.rank != rank))


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize(("ranks", "gone"), [(2, 0), (2, 1), (4, 2)])
def test_a_missing_rank_is_told(strategy: Strategy, ranks: int, gone: int) -> None:
    made = prove(strategy, without_rank(ran(strategy, ranks), gone), ranks=ranks)
    found = failed(made)
    assert (found["ranks"], found["ranks_agree"]) == ("proof.ranks", "proof.ranks")
    assert f"ranks {[rank for rank in range(ranks) if rank != gone]}" in made["x.ranks"].found
    # Shares of those that are left are not all of the model.
    assert ("shards" in found) is er.SHARDED[strategy][0]


@pytest.mark.parametrize("strategy", SPREAD)
def test_no_witness_at_all_is_no_strategy(strategy: Strategy) -> None:
    assert set(failed(prove(strategy, replace(ran(strategy), witnesses=())))) == set(NAMES)


ODD_RANKS: dict[str, tuple[int, Event]] = {
    "two ranks on one device": (1, {"device": "npu:0"}),
    "a rank on another's device": (0, {"device": "npu:1"}),
    "a rank on the cpu": (1, {"device": "cpu"}),
    "a rank beyond those lent": (1, {"device": "npu:2"}),
    "gloo": (0, {"backend": "gloo"}),
    "gloo beside hccl": (1, {"backend": "cpu:gloo,npu:hccl"}),
    "no group": (1, {"backend": None}),
    "another group's size": (1, {"world_size": 4}),
    "a rank alone": (0, {"world_size": 1}),
}


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("name", ODD_RANKS)
def test_a_rank_that_is_elsewhere_than_asked_is_told(strategy: Strategy, name: str) -> None:
    rank, fields = ODD_RANKS[name]
    assert failed(prove(strategy, ran(strategy, bent={rank: {"train_begin": fields}}))) == {"ranks": "proof.ranks"}


def test_other_ranks_than_asked_are_told_in_either_direction() -> None:
    for asked, done in ((2, 4), (4, 2)):
        assert failed(prove(Strategy.DDP, ran(Strategy.DDP, done), ranks=asked)).keys() == {"ranks", "ranks_agree"}
        assert failed(prove(Strategy.ZERO3, ran(Strategy.ZERO3, done), ranks=asked)).keys() >= {"ranks", "strategy", "ranks_agree"}


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("event", ["train_begin", "train_end"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_disagree_about_the_weights_are_told(strategy: Strategy, event: str, ranks: int) -> None:
    for digest in ("drifted", "", None):
        made = prove(strategy, ran(strategy, ranks, bent={ranks - 1: {event: {"trainable_digest": digest}}}), ranks=ranks)
        assert failed(made) == {"ranks_agree": "proof.ranks"}


@pytest.mark.parametrize("strategy", SPREAD)
def test_a_rank_that_did_not_come_to_the_end_does_not_agree(strategy: Strategy) -> None:
    result = ran(strategy)
    cut = replace(result.witnesses[1], events=tuple(e for e in result.witnesses[1].events if e["event"] != "train_end"))
    found = failed(prove(strategy, replace(result, witnesses=(result.witnesses[0], cut))))
    assert found == {"optimizer_shards": "proof.strategy", "ranks_agree": "proof.ranks"}


# Shares


@given(
    strategy=st.sampled_from([s for s in SPREAD if er.SHARDED[s][0]]),
    ranks=st.sampled_from([2, 4]),
    total=st.integers(100, 10**9),
    weights=st.lists(st.floats(0.9, 1.1), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_shares_that_are_even_within_the_tolerance_and_cover_the_model_pass(
    strategy: Strategy, ranks: int, total: int, weights: list[float]
) -> None:
    shares = [int(total / ranks * min(w / min(weights[:ranks]), UNEVEN * 0.99)) + 1 for w in weights[:ranks]]
    bent = {rank: {"train_begin": {"numel_local": share, "numel_global": total}} for rank, share in enumerate(shares)}
    assert failed(prove(strategy, ran(strategy, ranks, bent=bent), ranks=ranks)) == {}


ANY_SHARE = st.sampled_from([None, True, "500", 500.0, float("nan"), -1, 0]) | st.integers(-(10**6), 10**6) | st.integers(200, 1100)


@given(strategy=st.sampled_from(SPREAD), ranks=st.sampled_from([2, 4]), at=st.integers(0, 3), held=ANY_SHARE)
@settings(deadline=None)
def test_a_share_that_is_too_small_too_large_or_no_number_never_passes(strategy: Strategy, ranks: int, at: int, held: Any) -> None:
    """The other ranks hold an even share, or all of the model where it is not spread."""
    least, most = (er.NUMEL // ranks, math.ceil(er.NUMEL * UNEVEN / ranks)) if er.SHARDED[strategy][0] else (er.NUMEL, er.NUMEL)
    fits = type(held) is int and least <= held <= most
    made = prove(strategy, ran(strategy, ranks, bent={at % ranks: {"train_begin": {"numel_local": held}}}), ranks=ranks)
    assert made["x.shards"].ok is fits


@given(ranks=st.sampled_from([2, 4]), held=st.integers(0, 200))
@settings(deadline=None)
def test_exactly_the_whole_optimizer_or_a_fair_part_of_it_is_stepped(ranks: int, held: int) -> None:
    bent = {0: {"train_end": {"first_moments_numel": held}}}
    fair = -(-er.TRAINABLE // ranks)
    made = prove(Strategy.ZERO2, ran(Strategy.ZERO2, ranks, bent=bent), ranks=ranks)
    assert made["x.optimizer_shards"].ok is (fair <= held <= int(-(-er.TRAINABLE * UNEVEN // ranks)))
    made = prove(Strategy.DDP, ran(Strategy.DDP, ranks, bent=bent), ranks=ranks)
    assert made["x.optimizer_shards"].ok is (held == er.TRAINABLE)


def test_ranks_that_name_another_size_of_the_model_share_none() -> None:
    assert failed(prove(Strategy.ZERO3, ran(Strategy.ZERO3, bent={1: {"train_begin": {"numel_global": 999}}}))) == {
        "shards": "proof.strategy"
    }


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
FIELDS = (*UNSAID, "sharding", "zero_stage", "first_moments_numel", "trainable_numel", "trainable_digest", "world_size")


@given(strategy=st.sampled_from(SPREAD), event=st.sampled_from(["train_begin", "train_end"]), name=st.sampled_from(FIELDS), value=ANYTHING)
@settings(deadline=None)
def test_no_value_of_a_witness_makes_the_proof_raise(strategy: Strategy, event: str, name: str, value: Any) -> None:
    prove(strategy, ran(strategy, bent={0: {event: {name: value}}}))
