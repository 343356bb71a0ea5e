"""What the operators of torch_npu are documented to compute, in plain torch, on any device: the oracle of the simulated NPU and of the
kernel-parity suite. It shows nothing about an NPU's own kernels.

Signatures are those of torch_npu 2.13's schemas. Autograd differentiates what the real operators differentiate; the three without an
autograd kernel there (DIFFERENTIABLE is False) give no gradient here either. Autocast is off inside, as the real ones have no rule for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .attention import npu_fusion_attention, npu_fusion_attention_grad
from .dense import npu_rms_norm, npu_rotary_mul, npu_swiglu
from .grouped_matmul import npu_grouped_matmul
from .loss import npu_cross_entropy_loss
from .refusal import NotInReference, OperatorRefused
from .routing import npu_moe_init_routing_v2, npu_moe_token_permute, npu_moe_token_unpermute

Operator = Callable[..., Any]

# Whether the real wheel registers an autograd kernel (harness/sim/surface compares this with the wheel).
DIFFERENTIABLE: Mapping[str, bool] = {
    "npu_cross_entropy_loss": True,
    "npu_fusion_attention": True,
    "npu_fusion_attention_grad": False,
    "npu_grouped_matmul": False,
    "npu_moe_init_routing_v2": False,
    "npu_moe_token_permute": True,
    "npu_moe_token_unpermute": True,
    "npu_rms_norm": True,
    "npu_rotary_mul": True,
    "npu_swiglu": True,
}


def _device_type(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """Of the first tensor, or of the first in a list; "cpu" where there is none, which the operator then refuses."""
    for value in (*arguments, *named.values()):
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(first, torch.Tensor):
            return first.device.type
    return "cpu"


def _called_as_the_real_one(operator: Operator) -> Operator:
    differentiable = DIFFERENTIABLE[operator.__name__]

    @functools.wraps(operator)
    def call(*arguments: Any, **named: Any) -> Any:
        kind = _device_type(arguments, named)
        with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
            if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
                return operator(*arguments, **named)
            with torch.autocast(kind, enabled=False):
                return operator(*arguments, **named)

    return call


OPERATORS: Mapping[str, Operator] = {
    operator.__name__: _called_as_the_real_one(operator)
    for operator in (
        npu_cross_entropy_loss,
        npu_fusion_attention,
        npu_fusion_attention_grad,
        npu_grouped_matmul,
        npu_moe_init_routing_v2,
        npu_moe_token_permute,
        npu_moe_token_unpermute,
        npu_rms_norm,
        npu_rotary_mul,
        npu_swiglu,
    )
}

__all__ = ["DIFFERENTIABLE", "OPERATORS", "NotInReference", "OperatorRefused"]
