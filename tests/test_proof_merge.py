"""Merged weights are recomputed, not believed: W + scaling B A where LoRA was, the base model's bytes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import examples as ex
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.found import CheckpointFiles, Role
from harness.model import Blame, Comparison, Stage
from harness.proof_config import Surroundings
from harness.proof_merge import prove_logits, prove_merge
from harness.proof_required import missing_required
from harness.tensors import Tensor, TensorFile

BASE, LORA = ex.base_model(), ex.weights_at(4)
MERGED = ex.merged_model(BASE, LORA)
RESULT = ex.result([ex.start(("export", "--merge_lora", "true"))], arguments=("export", "--merge_lora", "true"), name="merge")
CONFIG = {"hidden_size": 8, "rope_theta": 1e6, "torch_dtype": "float32", "sliding_window": 32, "tie_word_embeddings": True}
BESIDE = Surroundings(CONFIG, frozenset({"config.json", "tokenizer.json", "tokenizer_config.json"}), ex.VOCABULARY)
WEIGHT = f"{ex.MODULES[0]}.weight"


def prove(
    merged: TensorFile | None = MERGED, base: TensorFile = BASE, adapter: CheckpointFiles | None = None, tied: bool = True, **more: Any
) -> tuple[Comparison, ...]:
    given = {"result": RESULT, "base": base, "adapter": adapter or ex.checkpoint(4), "merged": merged, "tied": tied}
    given |= {"surroundings": (BESIDE, BESIDE), **more}
    return prove_merge(**given)


def prove_of(roles: Mapping[str, Role]) -> tuple[Comparison, ...]:
    return prove_logits(**{name: ex.logits(role) for name, role in roles.items()}, dtype="float32")


HONEST = {"base": Role.BASE, "adapter": Role.ADAPTER, "merged": Role.MERGED}


def test_an_honest_merge_passes_and_nothing_required_is_left_out() -> None:
    made = prove() + prove_of(HONEST)
    assert ex.causes(made) == ()
    assert missing_required(Stage.MERGE, made, ex.asked()) == ()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_merge_in_each_dtype_passes_and_its_neighbours_do_not(dtype: str) -> None:
    base = ex.base_model(dtype=dtype)
    assert ex.causes(prove(ex.merged_model(base, LORA, dtype=dtype), base)) == ()
    for scaling in (0.9, 1.1, -1.0, 0.5, 2.0):
        assert ex.causes(prove(ex.merged_model(base, LORA, ex.LORA.scaling * scaling, dtype), base)) == ("merge.wrong_values",)


def test_a_merge_may_change_the_dtype_of_every_tensor() -> None:
    assert ex.causes(prove(ex.merged_model(BASE, LORA, dtype="BF16"))) == ()


def test_rslora_divides_by_the_root_of_the_rank() -> None:
    adapter = replace(ex.checkpoint(4), adapter_config={"r": 2, "lora_alpha": 4, "use_rslora": True})
    assert ex.causes(prove(ex.merged_model(BASE, LORA, 4 / 2**0.5), adapter=adapter)) == ()
    assert ex.causes(prove(MERGED, adapter=adapter)) == ("merge.wrong_values",)


SMALL = np.asarray(MERGED.tensors[WEIGHT].values())
LIES: dict[str, tuple[TensorFile | None, str]] = {
    "nothing": (None, "proof.checkpoint_missing"),
    "no tensors": (TensorFile("merged", {}), "proof.checkpoint_missing"),
    "truncated": (replace(MERGED, tensors={}, fault="model.safetensors: cut short"), "proof.checkpoint_damaged"),
    "the base model copied": (BASE, "merge.not_merged"),
    "one module left out": (ex.with_tensor(MERGED, WEIGHT, BASE.tensors[WEIGHT].values()), "merge.wrong_values"),
    "one entry off": (ex.with_tensor(MERGED, WEIGHT, np.where(np.arange(SMALL.size).reshape(SMALL.shape) == 3, SMALL + 1e-3, SMALL)),
                      "merge.wrong_values"),
    "NaN": (ex.with_tensor(MERGED, WEIGHT, SMALL * np.nan), "merge.wrong_values"),
    "transposed": (ex.with_tensor(MERGED, WEIGHT, SMALL.T), "merge.wrong_values"),
    "a tensor missing": (ex.without_tensor(MERGED, "model.norm.weight"), "merge.tensors_missing"),
    "a tensor of another shape": (ex.with_tensor(MERGED, "model.norm.weight", np.ones(3)), "merge.tensors_missing"),
    "a tensor more": (replace(MERGED, tensors={**MERGED.tensors, "extra": MERGED.tensors["model.norm.weight"]}), "merge.tensors_missing"),
    "a norm changed": (ex.with_tensor(MERGED, "model.norm.weight", np.ones(8) * (1 + 2e-7)), "merge.base_changed"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_merge_that_lies_is_named(name: str) -> None:
    merged, cause = LIES[name]
    assert ex.causes(prove(merged)) == (cause,)


def test_a_written_out_output_layer_must_be_the_embedding_it_is_tied_to() -> None:
    embedding = MERGED.tensors["model.embed_tokens.weight"]
    written = replace(MERGED, tensors={**MERGED.tensors, "lm_head.weight": embedding})
    other = ex.with_tensor(written, "lm_head.weight", embedding.values() + 1)
    assert ex.causes(prove(written)) == ()
    assert ex.causes(prove(other)) == ("merge.base_changed",)
    assert ex.causes(prove(written, tied=False)) == ("merge.tensors_missing",)


def test_tensors_that_the_adapter_replaces_are_the_adapter_s() -> None:
    score = ex.tensor(np.ones((1, ex.HIDDEN)))
    base = replace(BASE, tensors={**BASE.tensors, "score.weight": ex.tensor(np.zeros((1, ex.HIDDEN)))})
    lora = replace(LORA, tensors={**LORA.tensors, "base_model.model.score.weight": score})
    merged = replace(MERGED, tensors={**MERGED.tensors, "score.weight": score})
    kept = replace(MERGED, tensors={**MERGED.tensors, "score.weight": base.tensors["score.weight"]})
    adapter = ex.checkpoint(4, weights=lora)
    assert ex.causes(prove(merged, base, adapter)) == ()
    assert ex.causes(prove(kept, base, adapter)) == ("merge.base_changed",)


def test_an_adapter_too_weak_to_be_seen_makes_the_check_blind_and_it_says_so() -> None:
    tensors = {name: ex.tensor(t.values() * 1e-9) if "lora_B" in name else t for name, t in LORA.tensors.items()}
    # All weight entries are far from zero, where even a weak adapter would show.
    base = replace(BASE, tensors={n: ex.tensor(np.sign(t.values()) + t.values()) for n, t in BASE.tensors.items()})
    weak = ex.checkpoint(4, weights=TensorFile("adapter", tensors))
    made = prove(ex.merged_model(base, TensorFile("adapter", tensors)), base, weak)
    assert ex.causes(made) == ("merge.blind",)
    assert next(c for c in made if not c.ok).blame is Blame.HARNESS


def test_adapters_that_can_t_be_recomputed_are_refused() -> None:
    plain = ex.checkpoint(4)
    for change in ({"lora_alpha": None}, {"r": 0}, {"use_dora": True}, {"rank_pattern": {"q_proj": 4}}):
        odd = replace(plain, adapter_config={**(plain.adapter_config or {}), **change})
        assert ex.causes(prove(adapter=odd)) == ("proof.adapter_modules",)
    name = f"base_model.model.{ex.MODULES[0]}.lora_B.weight"
    assert ex.causes(prove(adapter=ex.checkpoint(4, weights=ex.without_tensor(LORA, name)))) == ("proof.adapter_modules",)
    bent = ex.with_tensor(LORA, name, np.ones((3, 2)))
    assert ex.causes(prove(adapter=ex.checkpoint(4, weights=bent))) == ("proof.adapter_rank",)


def test_a_base_model_that_can_t_be_read_is_the_environment_s_fault() -> None:
    made = prove(base=replace(BASE, fault="cut short"))
    assert ex.causes(made) == ("proof.base_unreadable",)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["F32", "F16", "BF16"]), st.floats(0.05, 8))
@settings(max_examples=25, deadline=None)
def test_rounding_never_fails_an_honest_merge(seed: int, dtype: str, alpha: float) -> None:
    base, lora = ex.base_model(seed, dtype), ex.adapter(seed + 1)
    adapter = replace(ex.checkpoint(4, weights=lora), adapter_config={"r": 2, "lora_alpha": alpha})
    assert ex.causes(prove(ex.merged_model(base, lora, alpha / 2, dtype), base, adapter)) == ()


LOGIT_LIES: dict[str, tuple[Mapping[str, Role], str]] = {
    "merged is the base model": ({**HONEST, "merged": Role.BASE}, "merge.logits_equal_base"),
    "all are the base model": (dict.fromkeys(HONEST, Role.BASE), "merge.logits_equal_base"),
    "adapter is the base model": ({**HONEST, "adapter": Role.BASE}, "merge.logits_equal_base"),
}


@pytest.mark.parametrize("name", LOGIT_LIES)
def test_logits_of_the_base_model_are_told_apart(name: str) -> None:
    roles, cause = LOGIT_LIES[name]
    assert ex.causes(prove_of(roles)) == (cause,)


def test_logits_that_differ_by_more_than_rounding_are_refused() -> None:
    base, adapter, merged = (ex.logits(role) for role in HONEST.values())
    off = merged.copy()
    off[1, 3] += 1e-3
    assert ex.causes(prove_logits(base=base, adapter=adapter, merged=off, dtype="float32")) == ("merge.logits_differ",)
    assert ex.causes(prove_logits(base=base, adapter=adapter, merged=off, dtype="bfloat16")) == ()


def test_missing_or_wild_logits_are_no_proof() -> None:
    base, adapter, merged = (ex.logits(role) for role in HONEST.values())
    assert ex.causes(prove_logits(base=None, adapter=adapter, merged=merged, dtype="float32")) == ("proof.witness_missing",)
    assert ex.causes(prove_logits(base=base[:2], adapter=adapter, merged=merged, dtype="float32")) == ("proof.witness_missing",)
    assert ex.causes(prove_logits(base=base[:0], adapter=base[:0], merged=base[:0], dtype="float32")) == ("proof.witness_missing",)
    assert ex.causes(prove_logits(base=base, adapter=adapter, merged=merged * np.nan, dtype="float32")) == ("train.nan",)


def test_an_integer_tensor_is_compared_by_its_bytes() -> None:
    ints = Tensor("I64", (2,), np.arange(2, dtype="<i8").view(np.uint8))
    base = replace(BASE, tensors={**BASE.tensors, "ids": ints})
    assert ex.causes(prove(replace(MERGED, tensors={**MERGED.tensors, "ids": ints}), base)) == ()
    recast = replace(MERGED, tensors={**MERGED.tensors, "ids": Tensor("I32", (2,), np.arange(2, dtype="<i4").view(np.uint8))})
    assert ex.causes(prove(recast, base)) == ("merge.base_changed",)


SAVED = {**{name: value for name, value in CONFIG.items() if name not in ("torch_dtype", "rope_theta")}, "dtype": "bfloat16"}
SAVED |= {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_window": None}
SAVED |= {"transformers_version": "5.19.0", "layer_types": ["full_attention"]}


def beside(**fields: Any) -> tuple[str, ...]:
    return ex.causes(prove(surroundings=(BESIDE, replace(BESIDE, **{"config": SAVED, **fields}))))


def test_what_saving_rewrites_in_a_config_changes_no_model() -> None:
    assert beside() == ()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**SAVED, "hidden_size": 9},
        {name: value for name, value in SAVED.items() if name != "hidden_size"},
        {**SAVED, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        {**SAVED, "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4}},
        {**SAVED, "quantization_config": {"bits": 4}},
    ],
)
def test_a_merged_model_of_another_config_is_refused(config: Mapping[str, Any]) -> None:
    assert beside(config=config) == ("merge.config_differs",)


@pytest.mark.parametrize("gone", ["tokenizer.json", "tokenizer_config.json"])
def test_a_merged_model_without_its_tokenizer_is_refused(gone: str) -> None:
    assert beside(files=BESIDE.files - {gone}) == ("merge.config_differs",)


def test_a_merged_model_that_spells_otherwise_is_refused() -> None:
    tokens = {**ex.VOCABULARY.tokens, 100: "else"}
    assert beside(vocabulary=replace(ex.VOCABULARY, tokens=tokens)) == ("merge.config_differs",)
