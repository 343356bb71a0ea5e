"""The gated delta rule in plain torch: as a recurrence over tokens, and, independently of it, in chunks, step by step.

Given float64 these are the goldens of fla's and MindSpeed's Triton kernels, whose steps have the same names. Shapes: q, k [B, T, H, K];
v, u [B, T, HV, V]; g (logarithms of decays, to the base e), beta [B, T, HV]; states [N, HV, K, V]; HV is a multiple of H, and head h of v
uses head h // (HV / H) of q and k. `lengths`: B is 1 and the T tokens are sequences of these lengths, one after the other, each with
chunks and a state of its own (N = their number); None: each of the N = B rows is one sequence. The formulas are those of Yang, Kautz,
Hatamizadeh: Gated Delta Networks (arXiv 2412.06464), equations 10 to 13 and appendix A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

Tensor = torch.Tensor
CHUNK = 64


@dataclass(frozen=True)
class Spans:
    """Where sequences and their chunks lie: (row of the batch, first token, token after the last, sequence)."""

    sequences: tuple[tuple[int, int, int, int], ...]

    def chunks(self, size: int) -> list[tuple[int, int, int, int]]:
        return [
            (row, begin, min(begin + size, end), number) for row, first, end, number in self.sequences for begin in range(first, end, size)
        ]


def spans(rows: int, tokens: int, lengths: Sequence[int] | None) -> Spans:
    """Raises ValueError for lengths that don't add up to the tokens of one row."""
    if lengths is None:
        return Spans(tuple((row, 0, tokens, row) for row in range(rows)))
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    if rows != 1 or ends[-1] != tokens:
        raise ValueError(f"sequences of {list(lengths)} tokens are not {rows} x {tokens} tokens in one row")
    return Spans(tuple((0, begin, end, number) for number, (begin, end) in enumerate(pairwise(ends))))


def shared_heads(x: Tensor, heads: int) -> Tensor:
    """x [B, T, H, D] with each head as often as heads of v share it: [B, T, heads, D]."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(|x|^2 + eps) over the last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """(o [B, T, HV, V], final state): S <- exp(g) S; S <- S + k (beta (v - S^T k))^T; o = scale S^T q, token by token.

    beta may be one for each element of v [B, T, HV, V]; `gk` [B, T, HV, K], `gv` [B, T, HV, V]: decays of the state's rows and columns.
    """
    rows, tokens, heads, wide = v.shape
    q, k = shared_heads(q, heads), shared_heads(k, heads)
    where, finals, outputs = spans(rows, tokens, lengths), [], []
    for row, begin, end, number in where.sequences:
        state = q.new_zeros(heads, q.shape[-1], wide) if initial is None else initial[number]
        for t in range(begin, end):
            state = state * g[row, t].exp()[:, None, None]
            state = state if gk is None else state * gk[row, t].exp()[:, :, None]
            state = state if gv is None else state * gv[row, t].exp()[:, None, :]
            wrong = v[row, t] - torch.einsum("hk,hkv->hv", k[row, t], state)
            mended = (beta[row, t] if beta.dim() == v.dim() else beta[row, t, :, None]) * wrong
            state = state + torch.einsum("hk,hv->hkv", k[row, t], mended)
            outputs.append(torch.einsum("hk,hkv->hv", q[row, t], state))
        finals.append(state)
    o = torch.stack(outputs).reshape(rows, tokens, heads, wide) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return o, torch.stack(finals)


# The same in chunks: within one, all tokens at once.


def _by_chunk(x: Tensor, where: Spans, size: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """`compute` of each chunk [tokens, ...], in place of it."""
    out = torch.empty_like(x)
    for row, begin, end, _ in where.chunks(size):
        out[row, begin:end] = compute(x[row, begin:end])
    return out


def chunk_cumsum(g: Tensor, size: int = CHUNK, *, reverse: bool = False, lengths: Sequence[int] | None = None) -> Tensor:
    """Running sums over the tokens of each chunk, from its first token on or, reverse, from its last back. g [B, T, ...]."""

    def running(chunk: Tensor) -> Tensor:
        return chunk.flip(0).cumsum(0).flip(0) if reverse else chunk.cumsum(0)

    return _by_chunk(g, spans(g.shape[0], g.shape[1], lengths), size, running)


def decays(g: Tensor, *, diagonal: bool) -> Tensor:
    """exp(g_i - g_j) of one chunk's running sums g [C, HV] for j < i (diagonal: j <= i), else 0: [HV, C, C]. No infinity times 0."""
    count = g.shape[0]
    kept = torch.ones(count, count, dtype=torch.bool).tril(0 if diagonal else -1)
    gap = g.t()[:, :, None] - g.t()[:, None, :]
    return torch.where(kept, torch.where(kept, gap, torch.zeros_like(gap)).exp(), torch.zeros_like(gap))


def scaled_dot_kkt(k: Tensor, beta: Tensor, g: Tensor | None, size: int = CHUNK, *, lengths: Sequence[int] | None = None) -> Tensor:
    """A [B, T, HV, size]: beta_i exp(g_i - g_j) <k_i, k_j> for tokens j < i of a chunk, else 0. g: the running sums of the gates."""
    rows, tokens, heads = beta.shape
    k = shared_heads(k, heads)
    out = k.new_zeros(rows, tokens, heads, size)
    for row, begin, end, _ in spans(rows, tokens, lengths).chunks(size):
        keys = k[row, begin:end]
        gates = g[row, begin:end] if g is not None else torch.zeros_like(beta[row, begin:end])
        inner = torch.einsum("ihk,jhk->hij", keys, keys) * decays(gates, diagonal=False)
        out[row, begin:end, :, : end - begin] = torch.einsum("hij,ih->ihj", inner, beta[row, begin:end])
    return out


def solve_tril(a: Tensor, *, lengths: Sequence[int] | None = None) -> Tensor:
    """(I + A)^-1 of each chunk's strictly lower triangular A [B, T, HV, size]; columns beyond a short chunk are 0."""
    rows, tokens, _, size = a.shape
    out = torch.zeros_like(a)
    for row, begin, end, _ in spans(rows, tokens, lengths).chunks(size):
        count = end - begin
        lower = a[row, begin:end, :, :count].transpose(0, 1).tril(-1) + torch.eye(count, dtype=a.dtype)
        solved = torch.linalg.solve_triangular(lower, torch.eye(count, dtype=a.dtype).expand_as(lower), upper=False, unitriangular=True)
        out[row, begin:end, :, :count] = solved.transpose(0, 1)
    return out


def wy(
    k: Tensor, v: Tensor, beta: Tensor, solved: Tensor, g: Tensor | None, *, lengths: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """(w [B, T, HV, K], u): the chunk's (I + A)^-1 times beta exp(g) k, and times beta v."""
    rows, tokens, heads, size = solved.shape
    weighted = shared_heads(k, heads) * beta[..., None]
    if g is not None:
        weighted = weighted * g.exp()[..., None]
    w, u = torch.empty_like(weighted), torch.empty_like(v)
    for row, begin, end, _ in spans(rows, tokens, lengths).chunks(size):
        inverse = solved[row, begin:end, :, : end - begin]
        w[row, begin:end] = torch.einsum("ihj,jhk->ihk", inverse, weighted[row, begin:end])
        u[row, begin:end] = torch.einsum("ihj,jhv->ihv", inverse, v[row, begin:end] * beta[row, begin:end, :, None])
    return w, u


@dataclass(frozen=True)
class States:
    """`entering`: the state at each chunk's begin [chunks, HV, K, V], in order of (row or sequence, chunk); `new_values` [B, T, HV, V];
    `final`: that after each sequence [N, HV, K, V]."""

    entering: Tensor
    new_values: Tensor
    final: Tensor


def chunk_states(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    g: Tensor | None,
    size: int = CHUNK,
    *,
    initial: Tensor | None = None,
    added: Tensor | None = None,
    gk: Tensor | None = None,
    lengths: Sequence[int] | None = None,
) -> States:
    """v' = u - w S; S <- exp(g_last) S + sum over the chunk of exp(g_last - g_i) k_i v'_i^T.

    `gk` [B, T, HV, K]: running sums of a gate for each key's element, by whose last the state decays too.
    `added` [chunks, HV, K, V]: goes into the state that leaves each chunk, whose gradient is its own, then.
    """
    rows, tokens, heads, wide = u.shape
    k = shared_heads(k, heads)
    where = spans(rows, tokens, lengths)
    state = [k.new_zeros(heads, k.shape[-1], wide) if initial is None else initial[number] for *_, number in where.sequences]
    pieces: list[list[Tensor]] = [[] for _ in range(rows)]
    entering = []
    for chunk, (row, begin, end, number) in enumerate(where.chunks(size)):
        entering.append(state[number])
        new = u[row, begin:end] - torch.einsum("thk,hkv->thv", w[row, begin:end], state[number])
        gates = g[row, begin:end] if g is not None else torch.zeros(end - begin, heads, dtype=u.dtype)
        kept = new * (gates[-1] - gates).exp()[..., None]
        decay = gates[-1].exp()[:, None] if gk is None else gk[row, end - 1].exp() * gates[-1].exp()[:, None]
        state[number] = state[number] * decay[..., None] + torch.einsum("thk,thv->hkv", k[row, begin:end], kept)
        if added is not None:
            state[number] = state[number] + added[chunk]
        pieces[row].append(new)
    return States(torch.stack(entering), torch.stack([torch.cat(row) for row in pieces]), torch.stack(state))


def chunk_output(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    entering: Tensor,
    g: Tensor | None,
    scale: float,
    size: int = CHUNK,
    *,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """o = scale (exp(g) q S + sum over j <= i of exp(g_i - g_j) <q_i, k_j> v'_j), S the state that enters the chunk."""
    rows, tokens, heads, _ = values.shape
    q, k = shared_heads(q, heads), shared_heads(k, heads)
    out = torch.empty_like(values)
    for number, (row, begin, end, _) in enumerate(spans(rows, tokens, lengths).chunks(size)):
        gates = g[row, begin:end] if g is not None else torch.zeros(end - begin, heads, dtype=values.dtype)
        before = torch.einsum("thk,hkv->thv", q[row, begin:end], entering[number]) * gates.exp()[..., None]
        inner = torch.einsum("ihk,jhk->hij", q[row, begin:end], k[row, begin:end]) * decays(gates, diagonal=True)
        out[row, begin:end] = scale * (before + torch.einsum("hij,jhv->ihv", inner, values[row, begin:end]))
    return out


def in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    size: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """What recurrence() gives, by the steps above."""
    running = chunk_cumsum(g, size, lengths=lengths)
    solved = solve_tril(scaled_dot_kkt(k, beta, running, size, lengths=lengths), lengths=lengths)
    w, u = wy(k, v, beta, solved, running, lengths=lengths)
    states = chunk_states(k, w, u, running, size, initial=initial, lengths=lengths)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return chunk_output(q, k, states.new_values, states.entering, running, factor, size, lengths=lengths), states.final
