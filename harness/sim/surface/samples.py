"""Sample calls of the operators: the real wheel's Meta kernels say what comes out, and the reference operators must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

OPERATORS = (
    "npu_cross_entropy_loss",
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "npu_grouped_matmul",
    "npu_moe_init_routing_v2",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
)
Call = tuple[str, list[Any], dict[str, Any]]


def calls(device: str) -> Mapping[str, Call]:
    """Name of the sample to (operator, arguments, named arguments) with zeros on `device`."""

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return {**_dense(zeros), **_grouped(zeros, device), **_routing(zeros, device), **_loss(zeros), **_attention(zeros)}


def _dense(zeros: Callable[..., torch.Tensor]) -> Mapping[str, Call]:
    return {
        "rms_norm": ("npu_rms_norm", [zeros(2, 3, 8), zeros(8)], {}),
        "rms_norm of float32": ("npu_rms_norm", [zeros(2, 8, dtype=torch.float32), zeros(8, dtype=torch.float32)], {}),
        "rms_norm over two dimensions": ("npu_rms_norm", [zeros(2, 3, 4, 8), zeros(4, 8)], {}),
        "rotary": ("npu_rotary_mul", [zeros(1, 2, 3, 8), zeros(1, 1, 3, 8), zeros(1, 1, 3, 8)], {}),
        "rotary, interleaved": (
            "npu_rotary_mul",
            [zeros(2, 3, 4, 8), zeros(1, 3, 1, 8), zeros(1, 3, 1, 8)],
            {"rotary_mode": "interleave"},
        ),
        "swiglu": ("npu_swiglu", [zeros(2, 3, 8)], {"dim": -1}),
        "swiglu over the middle": ("npu_swiglu", [zeros(2, 6, 8)], {"dim": 1}),
    }


def _grouped(zeros: Callable[..., torch.Tensor], device: str) -> Mapping[str, Call]:
    def counts(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device)

    rows = {"group_type": 0, "group_list_type": 1, "split_item": 2, "group_list": counts(2, 4)}
    reduction = {"group_type": 2, "group_list_type": 1, "split_item": 3, "group_list": counts(2, 4)}
    return {
        "grouped rows": ("npu_grouped_matmul", [[zeros(6, 8)], [zeros(2, 8, 3)]], rows),
        "grouped rows, list": ("npu_grouped_matmul", [[zeros(6, 8)], [zeros(8, 3), zeros(8, 3)]], rows),
        "grouped reduction": ("npu_grouped_matmul", [[zeros(6, 8).T], [zeros(6, 3)]], reduction),
        "ungrouped": ("npu_grouped_matmul", [[zeros(6, 8), zeros(2, 5)], [zeros(8, 3), zeros(5, 4)]], {"group_type": -1}),
        "grouped rows, bias": (
            "npu_grouped_matmul",
            [[zeros(6, 8)], [zeros(8, 3), zeros(8, 3)]],
            {**rows, "split_item": 3, "bias": [zeros(3, dtype=torch.float32), zeros(3, dtype=torch.float32)]},
        ),
        "grouped rows, cumulative": (
            "npu_grouped_matmul",
            [[zeros(6, 8)], [zeros(2, 3, 8).transpose(1, 2)]],
            {**rows, "group_list_type": 0, "group_list": counts(2, 6)},
        ),
        "grouped rows of many": (
            "npu_grouped_matmul",
            [[zeros(2, 8), zeros(4, 8)], [zeros(8, 3), zeros(8, 3)]],
            {"group_type": 0, "split_item": 2, "group_list": counts(2, 6)},
        ),
        "whole numbers, one to many": (
            "npu_grouped_matmul",
            [[zeros(6, 8)], [zeros(8, 3), zeros(8, 5)]],
            {"split_item": 1, "group_list": [2, 6]},
        ),
        "whole numbers, one to one": (
            "npu_grouped_matmul",
            [[zeros(6, 8)], [zeros(8, 3), zeros(8, 3)]],
            {"split_item": 3, "group_list": [2, 6]},
        ),
        "ungrouped, deep": (
            "npu_grouped_matmul",
            [[zeros(2, 3, 8), zeros(2, 4, 5)], [zeros(8, 3), zeros(5, 4)]],
            {"group_type": -1, "split_item": 0},
        ),
    }


def _routing(zeros: Callable[..., torch.Tensor], device: str) -> Mapping[str, Call]:
    counted = {"expert_num": 4, "expert_tokens_num_flag": True}
    found: dict[str, Call] = {
        "permute": ("npu_moe_token_permute", [zeros(3, 8), zeros(3, 2, dtype=torch.int32)], {}),
        "permute, cut": (
            "npu_moe_token_permute",
            [zeros(3, 8), zeros(3, 2, dtype=torch.int64)],
            {"num_out_tokens": 4},
        ),
        "permute, all but two": (
            "npu_moe_token_permute",
            [zeros(3, 8), zeros(3, 2, dtype=torch.int32)],
            {"num_out_tokens": -2},
        ),
        "permute, one choice": ("npu_moe_token_permute", [zeros(3, 8), zeros(3, dtype=torch.int32)], {}),
        "unpermute": (
            "npu_moe_token_unpermute",
            [zeros(6, 8), torch.arange(6, dtype=torch.int32).to(device)],
            {"probs": zeros(3, 2, dtype=torch.float32)},
        ),
        "unpermute, no weights": ("npu_moe_token_unpermute", [zeros(6, 8), torch.arange(6, dtype=torch.int32).to(device)], {}),
    }
    for kind in (1, 2):
        chosen = zeros(3, 2, dtype=torch.int32)
        named = {**counted, "expert_tokens_num_type": kind, "active_expert_range": [1, 3]}
        found[f"init_routing, counts of type {kind}"] = ("npu_moe_init_routing_v2", [zeros(3, 8), chosen], named)
    scaled: dict[str, Any] = {**counted, "expert_tokens_num_type": 1, "active_expert_range": [0, 4], "row_idx_type": 1, "active_num": 6}
    scaled["scale"] = zeros(3, dtype=torch.float32)
    found["init_routing, scaled"] = ("npu_moe_init_routing_v2", [zeros(3, 8), zeros(3, 2, dtype=torch.int32)], scaled)
    return found


def _loss(zeros: Callable[..., torch.Tensor]) -> Mapping[str, Call]:
    target = zeros(4, dtype=torch.int64)
    return {
        f"cross entropy, {how}": ("npu_cross_entropy_loss", [zeros(4, 9), target], {"reduction": how}) for how in ("mean", "sum", "none")
    }


def _attention(zeros: Callable[..., torch.Tensor]) -> Mapping[str, Call]:
    """Batch 2, 4 tokens, 6 heads of 8 over 3 key heads; packed: 5 tokens."""
    shapes = {"BNSD": ((2, 6, 4, 8), (2, 3, 4, 8)), "BSND": ((2, 4, 6, 8), (2, 4, 3, 8)), "BSH": ((2, 4, 48), (2, 4, 24))}
    shapes |= {"SBH": ((4, 2, 48), (4, 2, 24)), "TND": ((5, 6, 8), (5, 3, 8))}
    found: dict[str, Call] = {}
    for layout, (query, key) in shapes.items():
        named: dict[str, Any] = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]} if layout == "TND" else {}
        inputs = [zeros(*query), zeros(*key), zeros(*key)]
        found[f"attention {layout}"] = ("npu_fusion_attention", [*inputs, 6, layout], named)
        statistics = zeros(*((5, 6, 8) if layout == "TND" else (2, 6, 4, 8)), dtype=torch.float32)
        saved = {"softmax_max": statistics, "softmax_sum": statistics, "attention_in": zeros(*query)}
        found[f"attention gradient {layout}"] = ("npu_fusion_attention_grad", [*inputs, zeros(*query), 6, layout], {**named, **saved})
        narrow = [zeros(*query), zeros(*key), zeros(*_narrowed(key, layout))]
        found[f"attention {layout}, narrow values"] = ("npu_fusion_attention", [*narrow, 6, layout], named)
    return found


def _narrowed(key: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape of values 4 wide to keys 8 wide."""
    return (*key[:-1], 12 if layout in ("BSH", "SBH") else 4)


def outcome(result: Any) -> list[Any]:
    """Shapes and dtypes of tensors, other values as they are."""
    items = result if isinstance(result, (list, tuple)) else [result]
    return [[list(item.shape), str(item.dtype)] if isinstance(item, torch.Tensor) else item for item in items]


def outputs_on_meta() -> dict[str, Any]:
    """What the installed torch_npu's Meta kernels give for every sample, or {"refused": why}."""
    import torch_npu
    from torch_npu.op_plugin.meta import _meta_registrations

    # A warning about the chip would ask a device that isn't there; said to be printed, it asks nothing.
    _meta_registrations._npu_fusion_attention_warning_printed = True
    found: dict[str, Any] = {}
    for sample, (operator, arguments, named) in calls("meta").items():
        try:
            found[sample] = outcome(getattr(torch_npu, operator)(*arguments, **named))
        except Exception as error:  # recorded, not hidden: the test compares only what the wheel answered
            found[sample] = {"refused": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    return found
