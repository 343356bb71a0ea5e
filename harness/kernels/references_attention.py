"""Fused attention and its gradient as torch_npu 2.13 documents them, in plain torch, each layout by its own einsum.

The stand-in brings every layout to one shape, subtracts a maximum and divides by a sum; here heads and width are named where they lie,
and the weights are exp(score - logsumexp). The gradient operator's golden is autograd through that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

# Where batch, key head, the query heads that share it, position and width lie, once heads are split off.
_QUERY = {"BSH": "bqhgd", "BSND": "bqhgd", "SBH": "qbhgd", "BNSD": "bhgqd", "TND": "qhgd"}
_KEY = {"BSH": "bkhd", "BSND": "bkhd", "SBH": "kbhd", "BNSD": "bhkd", "TND": "khd"}
LAYOUTS = tuple(_QUERY)


@dataclass(frozen=True)
class Asked:
    """What one call asks for. `mode`: the sparse mode, or None without a mask; `ends`: cumulative (query, key) lengths of TND;
    `prefix`: of the modes 5 and 6, how many keys every row of a batch, or packed sequence, sees."""

    layout: str
    heads: int
    kv_heads: int
    scale: float
    mode: int | None = None
    before: int = 0
    after: int = 0
    ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    prefix: tuple[int, ...] = ()

    def pieces(self, query: torch.Tensor, key: torch.Tensor) -> list[tuple[slice, slice]]:
        """The rows of every sequence, or everything at once where the layout isn't packed."""
        if self.ends is None:
            return [(slice(None), slice(None))]
        starts = [(0, *ends[:-1]) for ends in self.ends]
        spans = [[slice(a, b) for a, b in zip(s, e, strict=True)] for s, e in zip(starts, self.ends, strict=True)]
        return list(zip(*spans, strict=True))


@dataclass(frozen=True)
class Attended:
    """`output` in the query's layout; `largest`, `total` [B, N, S], or [T, N] for TND; `idle` the same shape: attends to nothing.

    Of an idle row the output is zero; its statistics aren't documented.
    """

    output: torch.Tensor
    largest: torch.Tensor
    total: torch.Tensor
    idle: torch.Tensor


def allowed(asked: Asked, queries: int, keys: int, mask: torch.Tensor | None, at: int = 0) -> torch.Tensor:
    """What a row may attend to, True, as [queries, keys] or what spreads over [B, N, queries, keys]; `at`: which packed sequence.

    Modes 0 and 1 take the mask as it is; 2 is the lower triangle from the top left, 3 from the bottom right, 4 the band of `before` and
    `after` around the diagonal that ends bottom right. 5 and 6 are mode 3 and the keys of the prefix. 7 is mode 3 but for the last
    sequence, 8 is mode 2 but for the first: those, cut between devices, have the band of mode 4.
    """
    everything = torch.ones(queries, keys, dtype=torch.bool)
    if asked.mode is None:
        return everything
    if asked.mode in (0, 1):
        assert mask is not None
        return ~mask.bool()[..., :queries, :keys]
    corner = keys - queries
    band = everything.tril(corner + asked.after).triu(corner - asked.before)
    if asked.mode in (5, 6):
        prefix = asked.prefix if asked.ends is None else asked.prefix[at : at + 1]
        seen = torch.stack([torch.arange(keys) < length for length in prefix])
        return everything.tril(corner) | seen[:, None, None]
    last = asked.ends is not None and at == len(asked.ends[0]) - 1
    of_mode = {2: everything.tril(), 3: everything.tril(corner), 4: band}
    of_mode |= {7: band if last else of_mode[3], 8: of_mode[2] if at else band}
    return of_mode[asked.mode]


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, asked: Asked, mask: torch.Tensor | None) -> Attended:
    found = []
    for at, (rows, columns) in enumerate(asked.pieces(query, key)):
        q = _split(query[rows], asked.layout, asked.kv_heads, asked.heads)
        k, v = (_split(t[columns], asked.layout, asked.kv_heads) for t in (key, value))
        found.append(_attend(q, k, v, asked, mask, at))
    return Attended(*(torch.cat([getattr(f, name) for f in found]) if asked.ends else getattr(found[0], name) for name in _FIELDS))


_FIELDS = ("output", "largest", "total", "idle")


def _split(tensor: torch.Tensor, layout: str, kv_heads: int, heads: int = 0) -> torch.Tensor:
    """Heads as dimensions of their own: [.., kv_heads, width] of keys and values, [.., kv_heads, sharing, width] of queries."""
    sizes = list(tensor.shape)
    at = len(sizes) - 1 if layout in ("BSH", "SBH") else 1 if layout in ("BNSD", "TND") else 2
    split = [kv_heads, heads // kv_heads] if heads else [kv_heads]
    width = [sizes[at] // (heads or kv_heads)] if at == len(sizes) - 1 else sizes[at + 1 :]
    return tensor.reshape(*sizes[:at], *split, *width)


def _scores(q: torch.Tensor, k: torch.Tensor, asked: Asked, mask: torch.Tensor | None, at: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(scores [(b) h g q k] with -inf where nothing is attended to, what is allowed, spread over them)."""
    of_query, of_key = _QUERY[asked.layout], _KEY[asked.layout]
    batch = "" if asked.layout == "TND" else "b"
    scores = torch.einsum(f"{of_query},{of_key}->{batch}hgqk", q, k) * asked.scale
    queries, keys = scores.shape[-2:]
    free = allowed(asked, queries, keys, mask, at)
    if free.dim() == 4 and not batch:  # of one packed sequence, the same for its heads
        free = free[0, 0]
    elif free.dim() == 4:
        free = free.reshape(len(free), asked.kv_heads, -1, queries, keys) if free.shape[1] > 1 else free[:, :, None]
    free = free.expand(scores.shape)
    return torch.where(free, scores, torch.full_like(scores, -torch.inf)), free


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: Asked, mask: torch.Tensor | None, at: int) -> Attended:
    scores, free = _scores(q, k, asked, mask, at)
    idle = ~free.any(-1)
    total_log = torch.logsumexp(scores, -1) if scores.shape[-1] else scores.new_zeros(scores.shape[:-1])
    total_log = torch.where(idle, torch.zeros_like(total_log), total_log)
    weights = torch.exp(scores - total_log[..., None])
    of_query, of_value = _QUERY[asked.layout], _KEY[asked.layout].replace("d", "e")
    batch = "" if asked.layout == "TND" else "b"
    output = torch.einsum(f"{batch}hgqk,{of_value}->{of_query.replace('d', 'e')}", weights, v)
    largest = scores.detach().amax(-1) if scores.shape[-1] else torch.zeros_like(total_log)
    statistics = (largest, torch.exp(total_log.detach() - largest), idle)
    # [h g q] to [q, N] for TND, [b h g q] to [b, N, q] else.
    shaped = (s.flatten(0, 1).movedim(1, 0) if asked.layout == "TND" else s.flatten(1, 2) for s in statistics)
    return Attended(_joined(output, asked.layout), *shaped)


def _joined(output: torch.Tensor, layout: str) -> torch.Tensor:
    """The layout again, from the output with its heads as [.., kv_heads, sharing, ..]."""
    if layout in ("BSH", "SBH"):
        return output.flatten(-3)
    return output.flatten(2, 3) if layout == "BSND" else output.flatten(1, 2)


def attention_gradient(
    given: Mapping[str, torch.Tensor], asked: Asked, mask: torch.Tensor | None, far: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv) of sum(output * dy). `far`: keys and values of other blocks that the output came from too; then the part of dq
    that goes through the keys given here, as a rank of a ring computes it. `far` needs a layout that isn't packed, and no mask."""
    q, k, v = (given[name].detach().requires_grad_() for name in ("query", "key", "value"))
    with torch.enable_grad():
        output = attention(q, k, v, asked, mask).output if far is None else _ring(q, k, v, asked, far)
        dq, dk, dv = torch.autograd.grad(output, (q, k, v), given["dy"])
    return dq, dk, dv


def gradient_from_statistics(
    given: Mapping[str, torch.Tensor], asked: Asked, mask: torch.Tensor | None, saved: Attended
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same as the operator computes it, from the forward's output, maximum and sum: not the golden, the plain computation beside it.

    `saved` may come from more keys than are given. Statistics of idle rows may hold anything.
    """
    found: list[tuple[torch.Tensor, ...]] = []
    of_query, of_key = _QUERY[asked.layout], _KEY[asked.layout]
    wide_query, wide_key = of_query.replace("d", "e"), of_key.replace("d", "e")
    batch = "" if asked.layout == "TND" else "b"
    for at, (rows, columns) in enumerate(asked.pieces(given["query"], given["key"])):
        q, dy, out = (_split(t[rows], asked.layout, asked.kv_heads, asked.heads) for t in (given["query"], given["dy"], saved.output))
        k, v = (_split(given[name][columns], asked.layout, asked.kv_heads) for name in ("key", "value"))
        scores, _ = _scores(q, k, asked, mask, at)
        largest, total, idle = (_by_head(t[rows], asked) for t in (saved.largest, saved.total, saved.idle))
        weights = torch.where(idle[..., None], 0.0, torch.exp(scores - largest[..., None]) / total[..., None]).to(q.dtype)
        through = torch.einsum(f"{wide_query},{wide_key}->{batch}hgqk", dy, v)
        slope = weights * (through - torch.einsum(f"{wide_query},{wide_query}->{batch}hgq", dy, out)[..., None]) * asked.scale
        dq = torch.einsum(f"{batch}hgqk,{of_key}->{of_query}", slope, k)
        dk = torch.einsum(f"{batch}hgqk,{of_query}->{of_key}", slope, q)
        dv = torch.einsum(f"{batch}hgqk,{wide_query}->{wide_key}", weights, dy)
        found.append((_joined(dq, asked.layout), *(t.flatten(-2) if asked.layout in ("BSH", "SBH") else t for t in (dk, dv))))
    dq, dk, dv = (torch.cat(parts) if asked.ends else parts[0] for parts in zip(*found, strict=True))
    return dq, dk, dv


def _by_head(statistic: torch.Tensor, asked: Asked) -> torch.Tensor:
    """[b, N, q] as [b, h, g, q]; [q, N] of TND as [h, g, q]."""
    if asked.layout == "TND":
        return statistic.movedim(0, 1).reshape(asked.kv_heads, asked.heads // asked.kv_heads, len(statistic))
    return statistic.reshape(len(statistic), asked.kv_heads, asked.heads // asked.kv_heads, statistic.shape[-1])


def _ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: Asked, far: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The whole attention, with the query that meets the far keys held apart from the one that is differentiated."""
    query, key, value = (_split(t, asked.layout, asked.kv_heads, asked.heads * (t is q)) for t in (q, k, v))
    near, _ = _scores(query, key, asked, None)
    beyond, _ = _scores(query.detach(), _split(far[0], asked.layout, asked.kv_heads), asked, None)
    weights = torch.softmax(torch.cat((near, beyond), -1), -1)
    along = _KEY[asked.layout].index("k")
    every = torch.cat((value, _split(far[1], asked.layout, asked.kv_heads)), along)
    of_query, of_value = _QUERY[asked.layout], _KEY[asked.layout].replace("d", "e")
    return _joined(torch.einsum(f"bhgqk,{of_value}->{of_query.replace('d', 'e')}", weights, every), asked.layout)


def ends_of(lengths: Sequence[int]) -> tuple[int, ...]:
    """Cumulative ends, as actual_seq_qlen wants them: lengths [2, 0, 3] give (2, 2, 5)."""
    return tuple(sum(lengths[: i + 1]) for i in range(len(lengths)))
