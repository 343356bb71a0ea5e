"""An option that parses may well be ignored, and one that nobody asked for may be in force: either is told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import examples as ex
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model import Blame, Comparison, Options, Tuner
from harness.proof_options import prove_options

BEGIN = next(event for event in ex.train_events() if event["event"] == "train_begin")
END = next(event for event in ex.train_events() if event["event"] == "train_end")
LORA = BEGIN["lora"]


def prove(options: Options, tuner: Tuner = Tuner.LORA, begin: Any = None, end: Any = None, without: str = "") -> Comparison:
    seen = {**BEGIN, **(begin or {}), **({"lora": None} if tuner is Tuner.FULL else {})}
    both = [{k: v for k, v in event.items() if k != without} for event in (seen, {**END, **(end or {})})]
    made = prove_options("train", options, tuner, *both)
    assert made.name == "train.options"
    assert made.ok or (made.cause, made.blame) == ("proof.options", Blame.PRODUCT)
    return made


SP2, SP4 = {"size": 2, "ulysses": 2, "ring": 1}, {"size": 4, "ulysses": 2, "ring": 2}
# The options asked for, and what a process that heeds them sees in train_begin or train_end.
HEEDED: dict[str, tuple[Options, dict[str, Any], dict[str, Any]]] = {
    "none": (Options(), {}, {}),
    "two ranks a sequence": (Options(sequence_parallel_size=2), {"sequence_parallel": SP2}, {}),
    "four ranks a sequence": (Options(sequence_parallel_size=4), {"sequence_parallel": SP4}, {}),
    "padding free": (Options(padding_free=True), {"padding_free": True}, {}),
    "packing": (Options(packing=True), {"padding_free": True}, {}),
    "flash attention": (Options(attn_impl="flash_attn"), {"attn_impl": "flash_attention_2"}, {}),
    "eager attention": (Options(attn_impl="eager"), {"attn_impl": "eager"}, {}),
    "sdpa": (Options(attn_impl="sdpa"), {"attn_impl": "sdpa"}, {}),
    "dropout": (Options(lora_dropout=0.1), {"lora": {**LORA, "lora_dropout": 0.1}}, {}),
    "no dropout": (Options(lora_dropout=0.0), {"lora": {**LORA, "lora_dropout": 0.0}}, {}),
    "offloading": (Options(fsdp_config="activation_offload"), {}, {"offloading": ["Qwen3DecoderLayer"]}),
    "a gathered checkpoint": (Options(fsdp_config="full_state_dict"), {}, {}),
}


@pytest.mark.parametrize("name", HEEDED)
def test_an_option_that_took_effect_passes(name: str) -> None:
    options, begin, end = HEEDED[name]
    assert prove(options, begin=begin, end=end).ok


@pytest.mark.parametrize("asked", HEEDED)
@pytest.mark.parametrize("done", HEEDED)
def test_an_option_passed_off_as_another_is_told_unless_training_looks_the_same(asked: str, done: str) -> None:
    options, asked_begin, asked_end = HEEDED[asked]
    _, begin, end = HEEDED[done]
    # Nobody said which attention or dropout it was to be: whatever it is, is right.
    free = {"attn_impl"} if options.attn_impl is None else set()
    free |= {"lora"} if options.lora_dropout is None else set()
    alike = {**BEGIN, **begin, **{k: None for k in free}} == {**BEGIN, **asked_begin, **{k: None for k in free}}
    alike = alike and {**END, **end} == {**END, **asked_end}
    made = prove(options, begin=begin, end=end)
    assert made.ok is alike, made.found


@pytest.mark.parametrize(
    ("asked", "begin", "end", "says"),
    [
        ("two ranks a sequence", {"sequence_parallel": None}, {}, "sequence_parallel None, not 2"),
        ("two ranks a sequence", {"sequence_parallel": SP4}, {}, "sequence_parallel 4, not 2"),
        ("none", {"sequence_parallel": SP2}, {}, "sequence_parallel 2, not None"),
        ("padding free", {"padding_free": False}, {}, "padding_free False, not True"),
        ("packing", {"padding_free": False}, {}, "padding_free False, not True"),
        ("flash attention", {"attn_impl": "sdpa"}, {}, "attention sdpa, not flash_attn"),
        ("flash attention", {"attn_impl": "flash_attention_3"}, {}, "attention flash_attention_3, not flash_attn"),
        ("dropout", {"lora": {**LORA, "lora_dropout": 0.05}}, {}, "lora_dropout 0.05, not 0.1"),
        ("no dropout", {"lora": {**LORA, "lora_dropout": 0.05}}, {}, "lora_dropout 0.05, not 0.0"),
        ("offloading", {}, {"offloading": []}, "layers whose activations are offloaded: none"),
        ("none", {}, {"offloading": ["Qwen3DecoderLayer"]}, "layers whose activations are offloaded: ['Qwen3DecoderLayer']"),
        ("a gathered checkpoint", {}, {"offloading": ["Qwen3DecoderLayer"]}, "offloaded: ['Qwen3DecoderLayer']"),
    ],
)
def test_an_ignored_option_is_told_with_what_was_found(asked: str, begin: dict[str, Any], end: dict[str, Any], says: str) -> None:
    made = prove(HEEDED[asked][0], begin=begin, end=end)
    assert not made.ok and says in made.found


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ("two ranks a sequence", "sequence_parallel"),
        ("padding free", "padding_free"),
        ("none", "padding_free"),
        ("flash attention", "attn_impl"),
        ("offloading", "offloading"),
        ("none", "offloading"),
    ],
)
def test_what_the_witness_does_not_say_is_not_taken_for_heeded(asked: str, field: str) -> None:
    options, begin, end = HEEDED[asked]
    assert not prove(options, begin=begin, end=end, without=field).ok


def test_all_that_is_wrong_is_told_at_once() -> None:
    options = Options(sequence_parallel_size=2, attn_impl="flash_attn", padding_free=True, lora_dropout=0.2)
    found = prove(replace(options, fsdp_config="activation_offload")).found
    assert all(word in found for word in ("sequence_parallel", "attention", "padding_free", "lora_dropout", "offloaded"))


def test_full_training_has_no_lora_to_drop_out_of() -> None:
    assert prove(Options(lora_dropout=0.1), Tuner.FULL).ok


@given(st.floats(0, 0.99), st.floats(allow_nan=True))
def test_a_dropout_is_held_to_the_number_asked_for(asked: float, found: float) -> None:
    made = prove(Options(lora_dropout=asked), begin={"lora": {**LORA, "lora_dropout": found}})
    assert made.ok is (math.isfinite(found) and abs(asked - found) <= max(1e-9, 1e-9 * max(abs(asked), abs(found))))


ODD = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=4), lambda x: st.lists(x, max_size=2), max_leaves=3)


@given(name=st.sampled_from(["sequence_parallel", "attn_impl", "padding_free", "lora", "offloading"]), value=ODD)
def test_no_value_of_a_witness_makes_the_proof_raise(name: str, value: object) -> None:
    for options, begin, end in HEEDED.values():
        event = end if name == "offloading" else begin
        bent = {**event, name: value}
        prove(options, begin=begin if name == "offloading" else bent, end=bent if name == "offloading" else end)


def test_settings_that_other_proofs_answer_for_are_not_asked_here() -> None:
    assert prove(replace(Options(), npu_model_patch=False, tiny_experts="square", dtype="bfloat16")).ok
