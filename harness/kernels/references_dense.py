"""Norm, rotary embedding, activation and loss as torch_npu 2.13 documents them (torch_npu/_op_plugin_docs.py), in plain torch.

Given float64 they are the golden, given the case's own dtype the plain computation beside it; autograd differentiates both. None shares
a formula with the stand-in's operators: rotations are permutations with signs, sums are inner products, picks are one-hot products.
"""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(y [..., *gamma], 1 / RMS with 1 for every normalised dimension); the mean goes over as many dimensions as gamma has."""
    rows = x.reshape(-1, gamma.numel())
    power = torch.einsum("rn,rn->r", rows, rows) / gamma.numel() + epsilon
    y = torch.einsum("rn,n,r->rn", rows, gamma.reshape(-1), power.pow(-0.5))
    lead = x.shape[: x.dim() - gamma.dim()]
    return y.reshape(x.shape), power.pow(-0.5).reshape(*lead, *[1] * gamma.dim())


def rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    """cos * x + sin * (x with the halves, or the neighbours, of its last dimension exchanged and the first of each pair negated)."""
    width = x.shape[-1]
    half = width // 2
    place = torch.arange(width)
    first = place < half if mode == "half" else place % 2 == 0
    partner = torch.where(first, place + (half if mode == "half" else 1), place - (half if mode == "half" else 1))
    sign = torch.where(first, -1.0, 1.0).to(x.dtype)
    return x * cos + x[..., partner] * sign * sin


def swiglu(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A * sigmoid(A) * B, A the first and B the second half of `dim`."""
    ordered = x.movedim(dim, 0)
    half = len(ordered) // 2
    gate, up = ordered[:half], ordered[half:]
    return (gate * torch.sigmoid(gate) * up).movedim(0, dim)


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: str, ignore_index: int, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss [1], or [N] without reduction; log of the probabilities [N, C]). A negative `ignore_index` ignores nothing.

    As torch's CrossEntropyLoss, which the operator fuses: the smoothed part weighs every class by weight / C; the mean is over the
    weights of the targets that aren't ignored.
    """
    count = logits.shape[1]
    log_prob = logits - torch.logsumexp(logits, 1, keepdim=True)
    scale = torch.ones(count, dtype=logits.dtype) if weight is None else weight.to(logits.dtype)
    chosen = torch.zeros_like(logits).scatter(1, target[:, None], 1.0)
    kept = torch.ones_like(target, dtype=logits.dtype) if ignore_index < 0 else (target != ignore_index).to(logits.dtype)
    wanted = (1 - smoothing) * chosen + smoothing / count
    each = -torch.einsum("nc,nc,c,n->n", wanted, log_prob, scale, kept) if smoothing else -_picked(chosen, log_prob, scale, kept)
    if reduction == "none":
        return each, log_prob
    total = each.sum()
    return (total / torch.einsum("nc,c,n->", chosen, scale, kept) if reduction == "mean" else total).reshape(1), log_prob


def _picked(chosen: torch.Tensor, log_prob: torch.Tensor, scale: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Where nothing is smoothed the other classes take no part, be they infinite."""
    taken = torch.where(chosen > 0, log_prob, torch.zeros_like(log_prob)).sum(1)
    return taken * (chosen @ scale) * kept
