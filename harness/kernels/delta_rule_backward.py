"""The golden of each backward step of the chunked gated delta rule: its definition as a gradient, left to autograd of delta_rule.py.

Shapes, `size` and `lengths` as there. `do`, `dv`, `dw`, `du`, `dht`: given gradients of o, v', w, u and the final state; `dh`: that of the
state which leaves each chunk [chunks, HV, K, V]. Gates g are running sums within chunks, and so are their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.kernels.delta_rule import CHUNK, chunk_output, chunk_states, scaled_dot_kkt, shared_heads, solve_tril, spans, wy

Tensor = torch.Tensor
Lengths = Sequence[int] | None


def _leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_()


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum()


def local_values(q: Tensor, k: Tensor, do: Tensor, g: Tensor | None, scale: float, size: int = CHUNK, *, lengths: Lengths = None) -> Tensor:
    """dv of what a chunk's own values add to its output: chunk_bwd_dv_local."""
    rows, tokens, heads, wide = do.shape
    nothing = do.new_zeros(len(spans(rows, tokens, lengths).chunks(size)), heads, q.shape[-1], wide)
    with torch.enable_grad():
        values = _leaf(torch.zeros_like(do))
        o = chunk_output(q, k, values, nothing, g, scale, size, lengths=lengths)
        return torch.autograd.grad(o, values, do)[0]


def leaving_values(k: Tensor, like: Tensor, dh: Tensor, g: Tensor | None, size: int = CHUNK, *, lengths: Lengths = None) -> Tensor:
    """dv of what values add to the state that leaves their chunk; `like`: anything of dv's shape."""
    rows, tokens, heads, _ = like.shape
    keys = shared_heads(k, heads)
    found = torch.empty_like(like)
    for chunk, (row, begin, end, _) in enumerate(spans(rows, tokens, lengths).chunks(size)):
        gates = torch.zeros(end - begin, heads, dtype=like.dtype) if g is None else g[row, begin:end]
        found[row, begin:end] = torch.einsum("thk,hkv->thv", keys[row, begin:end], dh[chunk]) * (gates[-1] - gates).exp()[..., None]
    return found


@dataclass(frozen=True)
class StateGradients:
    """`initial`: that of the initial state; `values`: dv of all that depends on v', the given part included."""

    dh: Tensor
    initial: Tensor
    values: Tensor


def states(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    do: Tensor,
    dv: Tensor,
    g: Tensor | None,
    scale: float,
    size: int = CHUNK,
    *,
    dht: Tensor | None = None,
    gk: Tensor | None = None,
    lengths: Lengths = None,
) -> StateGradients:
    """Of <o, do> + <v', dv> + <final, dht>, o being what the entering states add to the output: chunk_gated_delta_rule_bwd_dhu."""
    rows, tokens, heads, wide = do.shape
    where = spans(rows, tokens, lengths)
    chunks = where.chunks(size)
    gates = torch.zeros(rows, tokens, heads, dtype=do.dtype) if g is None else g
    reads = shared_heads(q, heads) * gates.exp()[..., None] * scale
    with torch.enable_grad():
        u = _leaf(torch.zeros_like(do))
        initial = _leaf(do.new_zeros(len(where.sequences), heads, q.shape[-1], wide))
        added = _leaf(do.new_zeros(len(chunks), heads, q.shape[-1], wide))
        found = chunk_states(k, w, u, g, size, initial=initial, added=added, gk=gk, lengths=lengths)
        loss = _inner(found.new_values, dv)
        for chunk, (row, begin, end, _) in enumerate(chunks):
            loss = loss + _inner(torch.einsum("thk,hkv->thv", reads[row, begin:end], found.entering[chunk]), do[row, begin:end])
        if dht is not None:
            loss = loss + _inner(found.final, dht)
        return StateGradients(*torch.autograd.grad(loss, (added, initial, u), materialize_grads=True))


@dataclass(frozen=True)
class OutputGradients:
    """Of a head of q and k that several of v share: the sum. `dw`, `dg`: None where w or g was."""

    dq: Tensor
    dk: Tensor
    dw: Tensor | None
    dg: Tensor | None


def outputs(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    entering: Tensor,
    do: Tensor,
    dh: Tensor,
    g: Tensor | None,
    scale: float,
    size: int = CHUNK,
    *,
    dv: Tensor | None = None,
    lengths: Lengths = None,
) -> OutputGradients:
    """Of <o, do> + <leaving, dh> with respect to q, k, g, and of <-w S, dv> to w: chunk_bwd_dqkwg. `entering`: the states S."""
    rows, tokens, heads, _ = values.shape
    where = spans(rows, tokens, lengths)
    with torch.enable_grad():
        leaves = [_leaf(q), _leaf(k), *([] if g is None else [_leaf(g)])]
        gates = leaves[2] if g is not None else torch.zeros(rows, tokens, heads, dtype=values.dtype)
        o = chunk_output(leaves[0], leaves[1], values, entering, gates, scale, size, lengths=lengths)
        loss, keys, dw = _inner(o, do), shared_heads(leaves[1], heads), []
        for chunk, (row, begin, end, _) in enumerate(where.chunks(size)):
            span = gates[row, begin:end]
            kept = values[row, begin:end] * (span[-1] - span).exp()[..., None]
            leaving = entering[chunk] * span[-1].exp()[:, None, None] + torch.einsum("thk,thv->hkv", keys[row, begin:end], kept)
            loss = loss + _inner(leaving, dh[chunk])
            if dv is not None:
                dw.append((row, begin, end, -torch.einsum("thv,hkv->thk", dv[row, begin:end], entering[chunk])))
        gradients = torch.autograd.grad(loss, leaves)
    placed = None
    if dv is not None:
        placed = values.new_empty(rows, tokens, heads, q.shape[-1])
        for row, begin, end, part in dw:
            placed[row, begin:end] = part
    return OutputGradients(gradients[0], gradients[1], placed, gradients[2] if g is not None else None)


def representation(
    k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, dw: Tensor, du: Tensor, size: int = CHUNK, *, lengths: Lengths = None
) -> dict[str, Tensor]:
    """dk, dv, db and, with g, dg of <w, dw> + <u, du>, through (I + A)^-1 too: prepare_wy_repr_bwd."""
    with torch.enable_grad():
        leaves = {"dk": _leaf(k), "dv": _leaf(v), "db": _leaf(beta)} | ({} if g is None else {"dg": _leaf(g)})
        gates = leaves.get("dg")
        solved = solve_tril(scaled_dot_kkt(leaves["dk"], leaves["db"], gates, size, lengths=lengths), lengths=lengths)
        w, u = wy(leaves["dk"], leaves["dv"], leaves["db"], solved, gates, lengths=lengths)
        return dict(zip(leaves, torch.autograd.grad(_inner(w, dw) + _inner(u, du), list(leaves.values())), strict=True))
