"""The layers around the gated delta rule in plain torch: norms with a gate or a residual, short causal convolution, loss, rotary embedding.

Given float64 they are the goldens of fla's Triton kernels; autograd differentiates them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.kernels.delta_rule import spans

Tensor = torch.Tensor


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, eps: float, *, centred: bool, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """(y, x + residual): layer norm (centred) or RMS norm of x + residual [..., D], over each of `groups` parts of D by itself."""
    total = x if residual is None else x + residual
    parts = total.unflatten(-1, (groups, -1))  # type: ignore[no-untyped-call]
    if centred:
        parts = parts - parts.mean(-1, keepdim=True)
    y = (parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(-2)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, total


def gated(y: Tensor, gate: Tensor, activation: str) -> Tensor:
    """y times silu(gate) ("swish", "silu") or sigmoid(gate)."""
    return y * torch.sigmoid(gate) * (1.0 if activation == "sigmoid" else gate)


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    initial: Tensor | None,
    *,
    activated: bool,
    lengths: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """(y [B, T, D], final state [N, D, W]): y_t = silu(bias + sum over w of weight[:, w] x_(t - W + 1 + w)) + residual.

    A state holds the last W tokens, oldest first; before the first one stand those of `initial`, or zeros.
    """
    rows, tokens, width = x.shape
    window = weight.shape[1]
    out, finals = torch.empty_like(x), []
    for row, begin, end, number in spans(rows, tokens, lengths).sequences:
        before = x.new_zeros(window, width) if initial is None else initial[number].t()
        seen = torch.cat([before, x[row, begin:end]])
        mixed = torch.stack([seen[w + 1 : w + 1 + end - begin] * weight[:, w] for w in range(window)]).sum(0)
        mixed = mixed if bias is None else mixed + bias
        out[row, begin:end] = mixed * torch.sigmoid(mixed) if activated else mixed
        finals.append(seen[-window:].t())
    return out if residual is None else out + residual, torch.stack(finals)


def cross_entropy(logits: Tensor, target: Tensor, *, smoothing: float, scale: float, square: float, ignored: int) -> tuple[Tensor, Tensor]:
    """(loss [N], its part `square` * logsumexp^2 [N], which is only told) of logits [N, V] times `scale`; 0 where the target is ignored."""
    scaled = logits * scale
    total = torch.logsumexp(scaled, 1)
    kept = target != ignored
    picked = scaled.gather(1, torch.where(kept, target, 0)[:, None])[:, 0]
    punished = square * total.square()
    each = total - (1 - smoothing) * picked - smoothing * scaled.mean(1) + punished
    return torch.where(kept, each, 0.0), torch.where(kept, punished, 0.0).detach()


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, offset: int, lengths: Sequence[int] | None) -> Tensor:
    """x [B, T, H, D], its first 2 R dimensions turned by the angles of the tokens' positions, from `offset` on; cos, sin [positions, R]."""
    rows, tokens, _, _ = x.shape
    half = cos.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    out = x.clone()
    for row, begin, end, _ in spans(rows, tokens, lengths).sequences:
        c, s = (table[offset : offset + end - begin, None] for table in (cos, sin))
        one, other = x[row, begin:end, :, first], x[row, begin:end, :, second]
        out[row, begin:end, :, first] = one * c - other * s
        out[row, begin:end, :, second] = one * s + other * c
    return out
