"""Cross entropy, by torch's own in float32 and rounded once."""

from __future__ import annotations

import torch

from .refusal import FLOATS, NotInReference, require, require_dtype, require_same_device


def npu_cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(loss [1], or [N] for "none"; log of the probabilities [N, C], without gradient; zloss and its sums, which hold nothing yet).

    `input` [N, C], `target` int64 [N] in [0, C), `weight` float32 [C]. A negative `ignore_index` ignores nothing.
    """
    name = "npu_cross_entropy_loss"
    require_dtype(name, "input", input, FLOATS)
    require_dtype(name, "target", target, (torch.int64,))
    shapes = f"input {tuple(input.shape)} and target {tuple(target.shape)} must be [N, C] and [N]"
    require(input.dim() == 2 and target.shape == input.shape[:1], name, shapes)
    require(reduction in ("mean", "sum", "none"), name, f"reduction is {reduction!r}; supported: 'mean', 'sum', 'none'")
    count = input.shape[1]
    require(ignore_index < count, name, f"ignore_index is {ignore_index}; it must be below C, {count}")
    require(0 <= label_smoothing < 1, name, f"label_smoothing is {label_smoothing}; it must be in [0, 1)")
    require_same_device(name, input, target=target, weight=weight)
    if weight is not None:
        require_dtype(name, "weight", weight, (torch.float32,))
        require(weight.shape == (count,), name, f"weight is {tuple(weight.shape)}; it must be {(count,)}")
    if lse_square_scale_for_zloss or return_zloss:
        raise NotInReference(f"{name}: zloss isn't in the reference, nor in the operator yet.")
    _require_differentiable(name, input, weight, reduction, ignore_index, label_smoothing)
    known = bool(((target >= 0) & (target < count)).all())
    require(known, name, f"target names a class outside 0 to {count - 1}, which ignore_index below 0 doesn't ignore")
    loss = torch.nn.functional.cross_entropy(
        input.float(), target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    log_prob = torch.log_softmax(input.detach().float(), 1).to(input.dtype)
    shaped = loss.to(input.dtype) if reduction == "none" else loss.to(input.dtype).reshape(1)
    return shaped, log_prob, torch.zeros_like(shaped).detach(), input.new_zeros(len(input))


def _require_differentiable(
    name: str, input: torch.Tensor, weight: torch.Tensor | None, reduction: str, ignore_index: int, label_smoothing: float
) -> None:
    if not (torch.is_grad_enabled() and input.requires_grad):
        return
    require(label_smoothing == 0, name, "label_smoothing has no gradient")
    plain = reduction != "mean" or (weight is None and ignore_index == -100)
    require(plain, name, "the mean has a gradient only with every argument at its default")
