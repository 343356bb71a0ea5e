"""How a reference operator says no: in the words of the real one's documentation, before any number is made."""

from __future__ import annotations

from collections.abc import Collection

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class OperatorRefused(RuntimeError):
    """The call breaks the contract that torch_npu documents. A RuntimeError, since that is what torch_npu raises."""


class NotInReference(NotImplementedError):
    """The real operator can do this and the reference can't: a gap of ours, not a fault of the caller."""


def require(holds: bool, operator: str, what: str) -> None:
    """Raises OperatorRefused unless `holds`."""
    if not holds:
        raise OperatorRefused(f"{operator}: {what}")


def require_none(operator: str, because: str, **given: object) -> None:
    """Raises NotInReference for each argument that is set."""
    for name, value in given.items():
        if value is not None:
            raise NotInReference(f"{operator}: {name} is given, and the reference {because}. Leave it out, or extend the reference.")


def require_dtype(operator: str, name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]) -> None:
    require(tensor.dtype in allowed, operator, f"{name} is {tensor.dtype}; supported: {', '.join(str(d) for d in allowed)}")


def require_same_device(operator: str, first: torch.Tensor, **others: torch.Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None:
            require(tensor.device == first.device, operator, f"{name} is on {tensor.device} and the first input on {first.device}")
