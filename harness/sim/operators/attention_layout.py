"""The five layouts of attention inputs, all brought to pieces of [B, N, S, D]: one piece for a batch, one a sequence for TND."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .refusal import FLOATS, require, require_dtype, require_same_device

# Where B, N, S, D lie in a layout of four dimensions.
_AXES = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "SBND": (1, 2, 0, 3)}
# Layouts that hold heads and width in one dimension, and what they are once it is split.
_MERGED = {"BSH": "BSND", "SBH": "SBND"}
LAYOUTS = ("BSH", "SBH", "BNSD", "BSND", "TND")
MAX_WIDTH, MAX_HEADS, MAX_SEQUENCES, STATISTIC_COPIES = 768, 256, 2048, 8


@dataclass(frozen=True)
class Span:
    """A sequence's rows [start, end) in a packed tensor."""

    start: int
    end: int


@dataclass(frozen=True)
class Arrangement:
    """How query, key and value of one call lie in memory. `q_spans` and `kv_spans` are empty but for TND."""

    layout: str
    heads: int
    kv_heads: int
    q_spans: tuple[Span, ...] = ()
    kv_spans: tuple[Span, ...] = ()

    def queries(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Pieces of what has the query's heads: query, output, its gradient."""
        return self._pieces(tensor, self.heads, self.q_spans)

    def keys(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._pieces(tensor, self.kv_heads, self.kv_spans)

    def _pieces(self, tensor: torch.Tensor, heads: int, spans: tuple[Span, ...]) -> list[torch.Tensor]:
        if self.layout == "TND":
            return [tensor[span.start : span.end].permute(1, 0, 2).unsqueeze(0) for span in spans]
        split = tensor.reshape(*tensor.shape[:-1], heads, tensor.shape[-1] // heads) if self.layout in _MERGED else tensor
        return [split.permute(*_AXES[_MERGED.get(self.layout, self.layout)])]

    def join_queries(self, pieces: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
        """The pieces back in the layout; `rows` is T. Rows that belong to no sequence are zero."""
        return self._joined(pieces, self.q_spans, rows)

    def join_keys(self, pieces: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
        return self._joined(pieces, self.kv_spans, rows)

    def _joined(self, pieces: Sequence[torch.Tensor], spans: tuple[Span, ...], rows: int) -> torch.Tensor:
        if self.layout == "TND":
            return _padded(torch.cat([piece[0].permute(1, 0, 2) for piece in pieces]), rows)
        axes = _AXES[_MERGED.get(self.layout, self.layout)]
        whole = pieces[0].permute(*(axes.index(i) for i in range(4)))
        return whole.flatten(-2) if self.layout in _MERGED else whole

    def join_statistics(self, pieces: Sequence[torch.Tensor], rows: int, softmax_layout: str) -> torch.Tensor:
        """[B, N, S, 8], or [T, N, 8] for TND. Unless `softmax_layout` is TND its memory holds [N, S, 8], one sequence after the other:
        "the default is NTD", says the documentation."""
        wide = [piece.expand(*piece.shape[:-1], STATISTIC_COPIES) for piece in pieces]
        if self.layout != "TND":
            return wide[0].contiguous()
        if softmax_layout == "TND":
            return _padded(torch.cat([piece[0].permute(1, 0, 2) for piece in wide]), rows)
        return _padded(torch.cat([piece[0].reshape(-1, self.heads, STATISTIC_COPIES) for piece in wide]), rows)

    def statistics(self, tensor: torch.Tensor, softmax_layout: str) -> list[torch.Tensor]:
        """The pieces [B, N, S, 1] that `join_statistics` packed."""
        if self.layout != "TND":
            return [tensor[..., :1]]
        parts = [tensor[span.start : span.end] for span in self.q_spans]
        if softmax_layout == "TND":
            return [part.permute(1, 0, 2).unsqueeze(0)[..., :1] for part in parts]
        return [part.reshape(1, self.heads, -1, STATISTIC_COPIES)[..., :1] for part in parts]


def _padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))]) if missing else tensor.contiguous()


def arrange(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    actual_seq_qlen: Sequence[int] | None,
    actual_seq_kvlen: Sequence[int] | None,
) -> Arrangement:
    """Raises OperatorRefused where the inputs break the documented contract of shapes, dtypes and lengths."""
    require(input_layout in LAYOUTS, name, f"input_layout is {input_layout!r}; supported: {', '.join(LAYOUTS)}")
    require_same_device(name, query, key=key, value=value)
    for label, tensor in (("query", query), ("key", key), ("value", value)):
        require_dtype(name, label, tensor, FLOATS)
        require(tensor.dtype == query.dtype, name, f"{label} is {tensor.dtype} and query {query.dtype}; they must be equal")
        rank = 3 if input_layout in ("BSH", "SBH", "TND") else 4
        require(tensor.dim() == rank, name, f"{label} has {tensor.dim()} dimensions; {input_layout} has {rank}")
    require(1 <= head_num <= MAX_HEADS, name, f"head_num is {head_num}; it must be in 1 to {MAX_HEADS}")
    kv_heads = _kv_heads(name, query, key, head_num, input_layout)
    require(kv_heads > 0 and head_num % kv_heads == 0, name, f"{head_num} query heads aren't a multiple of {kv_heads} key heads")
    q_spans, kv_spans = _spans(name, query, key, input_layout, actual_seq_qlen, actual_seq_kvlen)
    arrangement = Arrangement(input_layout, head_num, kv_heads, q_spans, kv_spans)
    _require_shapes(name, arrangement, query, key, value)
    return arrangement


def _kv_heads(name: str, query: torch.Tensor, key: torch.Tensor, head_num: int, layout: str) -> int:
    if layout in _MERGED:
        require(query.shape[-1] % head_num == 0, name, f"query's last dimension {query.shape[-1]} can't be cut into {head_num} heads")
        width = query.shape[-1] // head_num
        require(width > 0 and key.shape[-1] % width == 0, name, f"key's last dimension {key.shape[-1]} isn't a multiple of {width}")
        return key.shape[-1] // width
    axis = {"BNSD": 1, "BSND": 2, "TND": 1}[layout]
    require(query.shape[axis] == head_num, name, f"head_num is {head_num} and query has {query.shape[axis]} heads")
    return key.shape[axis]


def _spans(
    name: str, query: torch.Tensor, key: torch.Tensor, layout: str, q_ends: Sequence[int] | None, kv_ends: Sequence[int] | None
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    if layout != "TND":
        require(q_ends is None and kv_ends is None, name, "actual_seq_qlen and actual_seq_kvlen belong to the layout TND")
        return (), ()
    require(bool(q_ends) and bool(kv_ends), name, "TND needs actual_seq_qlen and actual_seq_kvlen")
    assert q_ends and kv_ends
    counts = f"{len(q_ends)} query and {len(kv_ends)} key lengths; equally many, at most {MAX_SEQUENCES}"
    require(len(q_ends) == len(kv_ends) <= MAX_SEQUENCES, name, counts)
    return _cumulative(name, "actual_seq_qlen", q_ends, len(query)), _cumulative(name, "actual_seq_kvlen", kv_ends, len(key))


def _cumulative(name: str, label: str, ends: Sequence[int], rows: int) -> tuple[Span, ...]:
    """Zeros at the end mean sequences that take no part; the rows left over are then nobody's."""
    counts = [int(end) for end in ends]
    while len(counts) > 1 and counts[-1] == 0:
        counts.pop()
    spans = tuple(Span(start, end) for start, end in zip([0, *counts], counts, strict=False))
    require(all(span.start <= span.end for span in spans), name, f"{label} {list(ends)} isn't cumulative")
    covered, shortened = counts[-1], len(counts) < len(ends)
    require(covered == rows or (shortened and covered < rows), name, f"{label} ends at {covered} and the tensor has {rows} rows")
    return spans


def _require_shapes(name: str, arrangement: Arrangement, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if arrangement.layout in _MERGED:
        divides = value.shape[-1] % arrangement.kv_heads == 0
        require(divides, name, f"value's last dimension {value.shape[-1]} can't be cut into {arrangement.kv_heads} heads")
    shapes = f"key {tuple(key.shape)} and value {tuple(value.shape)}"
    require(key.shape[:-1] == value.shape[:-1], name, f"{shapes} differ before the last dimension")
    queries, keys, values = arrangement.queries(query)[0], arrangement.keys(key)[0], arrangement.keys(value)[0]
    require(queries.shape[0] == keys.shape[0], name, f"{queries.shape[0]} and {keys.shape[0]} batches of query and key")
    require(queries.shape[-1] == keys.shape[-1], name, f"query is {queries.shape[-1]} wide and key {keys.shape[-1]}")
    widths = f"value is {values.shape[-1]} wide and key {keys.shape[-1]}; value <= key <= {MAX_WIDTH}"
    require(values.shape[-1] <= keys.shape[-1] <= MAX_WIDTH, name, widths)
