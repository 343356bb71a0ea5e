"""Whole tiny models with ms-swift's NPU patches: outputs and the gradients of all weights against the unpatched model in float64."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

from harness.kernels.candidates_swift import QWEN2, QWEN3, QWEN3_5, QWEN3_5_MOE, QWEN3_MOE, QWEN3_VL, QWEN3_VL_MOE, Family, counted
from harness.kernels.installed_swift import patches, transformers_module
from harness.kernels.kernel import Direction, Kernel, Kind, Limit, Params
from harness.kernels.stand_in import bench

_BASE: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "head_dim": 8,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
    }
)
_MOE = MappingProxyType({"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True})
_LINEAR = MappingProxyType(
    {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
    }
)
_MROPE = MappingProxyType({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}})


@dataclass(frozen=True, eq=False)
class Tiny:
    """A family's tiny model: its class, that of its config (with the module that has it), and what the config says beside _BASE."""

    family: Family
    model: str
    config: str
    says: Mapping[str, Any] = field(default_factory=dict)
    operators: tuple[str, ...] = ("npu_rms_norm", "npu_rotary_mul", "npu_swiglu")
    # In 16 bits a router may choose another expert than in float64, and a delta rule of small states loses all its digits.
    only_fp32: bool = False


_PACKED = ("npu_moe_token_permute", "npu_grouped_matmul", "npu_swiglu", "npu_moe_token_unpermute")
_ROUTED: Mapping[str, Any] = {"operators": ("npu_rms_norm", "npu_rotary_mul", *_PACKED), "only_fp32": True}
TINY = (
    Tiny(QWEN2, "Qwen2ForCausalLM", "Qwen2Config"),
    Tiny(QWEN3, "Qwen3ForCausalLM", "Qwen3Config"),
    Tiny(QWEN3_VL, "Qwen3VLTextModel", "Qwen3VLTextConfig", _MROPE),
    Tiny(QWEN3_MOE, "Qwen3MoeForCausalLM", "Qwen3MoeConfig", _MOE, **_ROUTED),
    Tiny(QWEN3_VL_MOE, "Qwen3VLMoeTextModel", "Qwen3VLMoeTextConfig", {**_MOE, **_MROPE}, **_ROUTED),
    Tiny(QWEN3_5, "Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _LINEAR, only_fp32=True),
    Tiny(
        QWEN3_5_MOE, "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", {**_MOE, **_LINEAR, "shared_expert_intermediate_size": 10}, **_ROUTED
    ),
)
_OF_LAYERS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.{part}" for name in "qkvo" for part in ("weight", "bias")),
    *(f"self_attn.{name}_norm.weight" for name in "qk"),
    *(f"linear_attn.{name}" for name in ("conv1d.weight", "dt_bias", "A_log", "norm.weight", "out_proj.weight")),
    *(f"linear_attn.in_proj_{name}.weight" for name in ("qkv", "z", "b", "a")),
    *(f"mlp.{inner}{name}_proj.weight" for inner in ("", "shared_expert.") for name in ("gate", "up", "down")),
    *(f"mlp.{name}" for name in ("gate.weight", "experts.gate_up_proj", "experts.down_proj", "shared_expert_gate.weight")),
)
# Every name that a weight of one of these models has: a tuple that is known without a model.
_NAMES = tuple(
    f"{prefix}{name}"
    for prefix in ("", "model.")
    for name in ("embed_tokens.weight", "norm.weight", "lm_head.weight", *(f"layers.{n}.{name}" for n in (0, 1) for name in _OF_LAYERS))
)


_UNPATCHED = "twice what the unpatched models have in bf16 over 12 cases: 1.7e-2 forward, 8.8e-2 backward"
_IN_BF16 = {("bf16", Direction.FORWARD): Limit(3.4e-2, _UNPATCHED), ("bf16", Direction.BACKWARD): Limit(0.18, _UNPATCHED)}


def kernels() -> tuple[Kernel, ...]:
    return tuple(_whole(tiny) for tiny in TINY)


def _whole(tiny: Tiny) -> Kernel:
    usual = {"batch": 2, "tokens": 11, "padded": False}
    return Kernel(
        name=tiny.family.kernel_name("model"),
        kind=Kind.PATCH,
        what=f"{tiny.model} of {tiny.family.model}, all its patches together: {', '.join(tiny.operators)}",
        dtypes=("fp32",) if tiny.only_fp32 else ("fp32", "bf16"),
        params=st.fixed_dictionaries({"batch": st.integers(1, 3), "tokens": st.integers(4, 20), "padded": st.booleans()}),
        examples=(usual, {**usual, "padded": True}),
        inputs=lambda params, generator: _inputs(tiny, params, generator),
        candidate=lambda inputs, params: _patched(tiny, inputs, params),
        golden=lambda inputs, params: _forward(tiny, inputs, params, patched=False),
        # Where there is bf16, gradients of few numbers would make the comparison with the unpatched bf16 model a lottery.
        plain=(lambda inputs, params: _forward(tiny, inputs, params, patched=False)) if tiny.only_fp32 else None,
        counted=counted,
        must_run=tiny.operators,
        differentiable=_NAMES,
        limits={} if tiny.only_fp32 else _IN_BF16,
        tries=4,
        quick_tries=0,
        missing=functools.partial(tiny.family.missing, tiny.model),
    )


def _inputs(tiny: Tiny, params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    drawn: dict[str, torch.Tensor] = {}
    for name, parameter in sorted(_model(tiny, patched=False).named_parameters()):
        assert name in _NAMES, f"{name} of {tiny.model} is in no list of weights, so its gradient would not be compared"
        value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        is_norm = "norm" in name
        offset = 1.0 if is_norm and not (tiny.family.centred and "linear_attn" not in name) else 0.0
        drawn[name] = value * (0.3 if parameter.dim() == 1 else 0.2) + offset
    return {**drawn, "ids": torch.randint(1, _BASE["vocab_size"], (params["batch"], params["tokens"]), generator=generator)}


def _patched(tiny: Tiny, inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(inputs)
    with patches().patched():
        return _forward(tiny, here, params, patched=True)


def _forward(tiny: Tiny, given: Mapping[str, torch.Tensor], params: Params, *, patched: bool) -> dict[str, torch.Tensor]:
    weights = {name: value for name, value in given.items() if name != "ids"}
    model = _model(tiny, patched=patched).to(given["ids"].device)
    seen = torch.ones_like(given["ids"])
    if params["padded"]:
        # At the end: a row that sees nothing is NaN in float64, whose smallest number is no float32, and not in float32.
        seen[0, -2:] = 0
    with _plain_delta_rule(tiny.family):
        said = {"input_ids": given["ids"], "attention_mask": seen, "use_cache": False}
        output = torch.func.functional_call(model, {**dict(model.named_buffers()), **weights}, (), said, strict=True)
    return {"y": output.logits if hasattr(output, "logits") else output.last_hidden_state}


@functools.cache
def _model(tiny: Tiny, *, patched: bool) -> torch.nn.Module:
    """Of the classes that are in transformers now. Its own weights are never used."""
    config = tiny.family.get(tiny.config)(**{**_BASE, **tiny.says}, attn_implementation="eager", experts_implementation="eager")
    model: torch.nn.Module = tiny.family.get(tiny.model)(config)
    return model.eval()


@contextmanager
def _plain_delta_rule(family: Family) -> Iterator[None]:
    """transformers wraps its plain torch functions so that, with fla importable, they launch fla's kernels instead: unwrap them.

    ms-swift's patches leave these functions alone; fla's kernels are compared by themselves.
    """
    owner = transformers_module(family.model)
    with ExitStack() as stack:
        for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, inspect.unwrap(getattr(owner, name))))
        yield
