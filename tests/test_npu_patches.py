"""ms-swift's NPU patches as seen by a witness: live where they are meant to be, their operators called, and nothing of either when off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from examples import causes, changed, train_events, witness

from harness.model import Blame, Comparison, Options
from harness.npu_patches import FLASH, PATCHES, prove_patches

MODULE = "swift.model.npu_patch.model"
FAMILIES = sorted(PATCHES)


def seen(
    classes: Mapping[str, str], calls: Mapping[str, Any] | None, family: str, on: bool = True, attn_impl: str | None = None
) -> tuple[Comparison, ...]:
    events = changed(train_events(), "train_end", patched=classes, npu_calls=calls)
    return prove_patches(family, witness(events), Options(npu_model_patch=on, attn_impl=attn_impl))


def honest(family: str) -> tuple[dict[str, str], dict[str, int]]:
    wanted = PATCHES[family]
    return dict.fromkeys(wanted.classes, MODULE), dict.fromkeys(wanted.operators, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_live_patches_whose_operators_were_called_hold(family: str) -> None:
    made = seen(*honest(family), family)
    assert causes(made) == ()
    assert [c.name for c in made] == ["train.patches", "train.patch_calls"]


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in FAMILIES for name in sorted(PATCHES[family].classes)])
def test_each_class_that_is_not_patched_is_told_by_its_absence(family: str, name: str) -> None:
    classes, calls = honest(family)
    del classes[name]
    made = seen(classes, calls, family)
    assert causes(made) == ("patch.not_live",)
    assert name in made[0].expected and name not in made[0].found.split(", ")
    assert made[0].blame is Blame.PRODUCT


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in FAMILIES for name in sorted(PATCHES[family].operators)])
def test_each_operator_that_was_never_called_is_told(family: str, name: str) -> None:
    classes, calls = honest(family)
    for count in (0, None):
        left = {k: v for k, v in calls.items() if k != name} | ({} if count is None else {name: count})
        made = seen(classes, left, family)
        assert causes(made) == ("patch.not_called",)
        assert name in made[1].expected
        assert made[1].blame is Blame.PRODUCT


@pytest.mark.parametrize("family", FAMILIES)
def test_a_class_that_something_else_patched_is_not_ms_swifts(family: str) -> None:
    classes, calls = honest(family)
    for name in classes:
        assert causes(seen({**classes, name: "liger_kernel.transformers"}, calls, family)) == ("patch.not_live",)


def test_what_accelerate_wraps_is_no_patch() -> None:
    classes, calls = honest("qwen2")
    assert causes(seen({**classes, "Qwen2ForCausalLM": "accelerate.hooks"}, calls, "qwen2")) == ()


def test_a_patch_that_nobody_wrote_down_is_told() -> None:
    classes, calls = honest("qwen2")
    made = seen({**classes, "Qwen2Attention": MODULE}, calls, "qwen2")
    assert causes(made) == ("patch.not_live",)
    assert "Qwen2Attention" in made[0].found


def test_more_operators_than_the_patches_call_are_no_fault() -> None:
    """Attention calls torch_npu's own through transformers."""
    classes, calls = honest("qwen3")
    assert causes(seen(classes, {**calls, "npu_fusion_attention": 8}, "qwen3")) == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_with_the_switch_off_nothing_may_be_live_or_called(family: str) -> None:
    classes, calls = honest(family)
    assert causes(seen({}, {}, family, on=False)) == ()
    assert causes(seen({}, dict.fromkeys(calls, 0), family, on=False)) == ()
    assert causes(seen(classes, {}, family, on=False)) == ("patch.not_live",)
    assert causes(seen({}, calls, family, on=False)) == ("patch.not_called",)
    assert causes(seen(classes, calls, family, on=False)) == ("patch.not_live", "patch.not_called")


def test_a_family_without_patches_has_nothing_live_and_nothing_called() -> None:
    assert causes(seen({}, {}, "qwen2_5_vl")) == ()
    assert causes(seen({"NpuRMSNorm": MODULE}, {}, "qwen2_5_vl")) == ("patch.not_live",)
    assert causes(seen({}, {"npu_rms_norm": 3}, "qwen2_5_vl")) == ("patch.not_called",)


def test_calls_that_nobody_counted_are_not_claimed_to_be_enough() -> None:
    classes, _ = honest("qwen2")
    assert [c.name for c in seen(classes, None, "qwen2")] == ["train.patches"]


def test_a_witness_that_saw_no_end_of_training_saw_no_patch() -> None:
    events = [event for event in train_events() if event["event"] != "train_end"]
    assert causes(prove_patches("qwen2", witness(events), Options())) == ("patch.not_live",)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("on", [True, False])
def test_flash_attention_calls_its_operator_whatever_the_switch(family: str, on: bool) -> None:
    classes, calls = honest(family) if on else ({}, {})
    fused = dict.fromkeys(FLASH, 4)
    assert causes(seen(classes, {**calls, **fused}, family, on, "flash_attn")) == ()
    assert causes(seen(classes, calls, family, on, "flash_attn")) == ("patch.not_called",)


def test_flash_attention_that_nobody_asked_for_is_uninvited_with_the_switch_off() -> None:
    for attn_impl in (None, "sdpa", "eager"):
        assert causes(seen({}, dict.fromkeys(FLASH, 4), "qwen2", False, attn_impl)) == ("patch.not_called",)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_class_that_fsdp2_renamed_is_still_the_patched_one(family: str) -> None:
    classes, calls = honest(family)
    renamed = {f"FSDP{name}" if at % 2 else name: module for at, (name, module) in enumerate(sorted(classes.items()))}
    assert causes(seen(renamed, calls, family)) == ()
