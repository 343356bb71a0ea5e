"""Proof of a cell's options: what the process saw of each that is asked for. A flag that parses may well be ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.compare import check
from harness.model import Comparison, Options, Tuner

# ms-swift's words for an attention implementation (--attn_impl) to those of transformers' configuration.
_ATTENTION = {"flash_attn": ("flash_attention_2",), "sdpa": ("sdpa",), "eager": ("eager",)}


def prove_options(stage: str, options: Options, tuner: Tuner, begin: Mapping[str, Any], end: Mapping[str, Any]) -> Comparison:
    """Every option that training can show, set or not, against train_begin and train_end.

    `npu_model_patch` is proved by the operators that it calls (harness/npu_patches.py), `tiny_experts` by the model that was made.
    """
    wrong = [
        text
        for text in (
            _sequence(options, begin),
            _attention(options, begin),
            _dropout(options, tuner, begin),
            _same("padding_free", options.padding_free or options.packing, begin.get("padding_free")),
            _offload(options, end),
        )
        if text
    ]
    return check(f"{stage}.options", not wrong, "proof.options", "the options asked for, and no others", "; ".join(wrong) or "so")


def _same(name: str, wanted: object, found: object) -> str:
    return "" if wanted == found else f"{name} {found}, not {wanted}"


def _sequence(options: Options, begin: Mapping[str, Any]) -> str:
    found = begin.get("sequence_parallel")
    size = found.get("size") if isinstance(found, Mapping) else None
    return _same("sequence_parallel", options.sequence_parallel_size if options.sequence_parallel_size > 1 else None, size)


def _attention(options: Options, begin: Mapping[str, Any]) -> str:
    if options.attn_impl is None:
        return ""
    return "" if begin.get("attn_impl") in _ATTENTION[options.attn_impl] else f"attention {begin.get('attn_impl')}, not {options.attn_impl}"


def _dropout(options: Options, tuner: Tuner, begin: Mapping[str, Any]) -> str:
    lora = begin.get("lora")
    if tuner is Tuner.FULL or options.lora_dropout is None or not isinstance(lora, Mapping):
        return ""
    found = lora.get("lora_dropout")
    good = isinstance(found, (int, float)) and math.isclose(found, options.lora_dropout, abs_tol=1e-9)
    return "" if good else f"lora_dropout {found}, not {options.lora_dropout}"


def _offload(options: Options, end: Mapping[str, Any]) -> str:
    layers = end.get("offloading")
    wanted = options.fsdp_config == "activation_offload"
    return "" if isinstance(layers, list) and bool(layers) is wanted else f"layers whose activations are offloaded: {layers or 'none'}"
