"""Fused attention and its gradient: softmax(mask(scale * Q K^T)) V, computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .attention_layout import Arrangement, arrange
from .attention_mask import UNBOUNDED, Masking, masking
from .refusal import NotInReference, require, require_dtype, require_none, require_same_device

FORWARD, BACKWARD = "npu_fusion_attention", "npu_fusion_attention_grad"
# Largest logit of a row that attends to nothing. Its sum is 0, so that max + log(sum) is -inf: such a row weighs nothing in a merge.
NOTHING = torch.finfo(torch.float32).min


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """(output in query's layout, softmax max and sum in float32, an empty tensor, 0, 0, 0). Only the output carries a gradient.

    A row that attends to nothing gives zero. That is documented for sparse modes 2 to 4 and inner_precise 2; elsewhere the documentation
    promises nothing. No dropout, pse or sink.
    """
    require_none(FORWARD, "computes without it", pse=pse, sink=sink, dropout_mask=dropout_mask)
    _require_plain(FORWARD, padding_mask, keep_prob, inner_precise, softmax_layout, input_layout)
    arrangement = arrange(FORWARD, query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen)
    mask = _masking(FORWARD, arrangement, query, key, sparse_mode, atten_mask, pre_tockens, next_tockens, prefix)
    outputs, maxima, sums = [], [], []
    inputs = list(zip(arrangement.queries(query), arrangement.keys(key), arrangement.keys(value), strict=True))
    for i, (q, k, v) in enumerate(inputs):
        output, largest, total = _attend(q.float(), k.float(), v.float(), scale, mask.of_sequence(i, len(inputs)))
        outputs.append(output)
        maxima.append(largest)
        sums.append(total)
    rows = query.shape[0]
    return (
        arrangement.join_queries(outputs, rows).to(query.dtype),
        arrangement.join_statistics(maxima, rows, softmax_layout),
        arrangement.join_statistics(sums, rows, softmax_layout),
        query.new_empty(0),
        0,
        0,
        0,
    )


def npu_fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, torch.Tensor]:
    """(dq, dk, dv, None, empty) from the forward's output and statistics, which may come from more keys than are given here (a ring)."""
    require_none(BACKWARD, "computes without it", pse=pse, sink=sink)
    _require_plain(BACKWARD, padding_mask, keep_prob, inner_precise, softmax_layout, input_layout)
    arrangement = arrange(BACKWARD, query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen)
    mask = _masking(BACKWARD, arrangement, query, key, sparse_mode, atten_mask, pre_tockens, next_tockens, prefix)
    maxima, sums, output = _require_saved(arrangement, query, value, dy, softmax_max, softmax_sum, attention_in)
    pieces = list(
        zip(
            zip(arrangement.queries(query), arrangement.keys(key), arrangement.keys(value), strict=True),
            zip(arrangement.queries(output), arrangement.queries(dy), strict=True),
            zip(arrangement.statistics(maxima, softmax_layout), arrangement.statistics(sums, softmax_layout), strict=True),
            strict=True,
        )
    )
    gradients = [_gradients(*piece, scale_value, mask.of_sequence(i, len(pieces))) for i, piece in enumerate(pieces)]
    dq = arrangement.join_queries([g[0] for g in gradients], query.shape[0])
    dk, dv = (arrangement.join_keys([g[i] for g in gradients], key.shape[0]) for i in (1, 2))
    no_sink = torch.empty(0, dtype=torch.float32, device=query.device)
    return dq.to(query.dtype), dk.to(query.dtype), dv.to(query.dtype), None, no_sink


def _require_plain(name: str, padding_mask: object, keep_prob: float, inner_precise: int, softmax_layout: str, input_layout: str) -> None:
    require(padding_mask is None, name, "padding_mask isn't supported")
    require(0 < keep_prob <= 1, name, f"keep_prob is {keep_prob}; it must be in (0, 1]")
    if keep_prob != 1:
        raise NotInReference(f"{name}: keep_prob is {keep_prob}, and the reference has no dropout. Set the dropout to 0.")
    require(inner_precise in (0, 1, 2), name, f"inner_precise is {inner_precise}; supported: 0 to 2")
    require(softmax_layout in ("", "TND"), name, f"softmax_layout is {softmax_layout!r}; supported: 'TND'")
    require(softmax_layout == "" or input_layout == "TND", name, f"softmax_layout is for input_layout TND, not {input_layout}")


def _masking(
    name: str,
    arrangement: Arrangement,
    query: torch.Tensor,
    key: torch.Tensor,
    mode: int,
    mask: torch.Tensor | None,
    before: int,
    after: int,
    prefix: Sequence[int] | None,
) -> Masking:
    queries, keys = arrangement.queries(query), arrangement.keys(key)
    packed = arrangement.layout == "TND"
    batch = len(queries) if packed else queries[0].shape[0]
    sizes = (batch, arrangement.heads, max(q.shape[2] for q in queries), max(k.shape[2] for k in keys))
    return masking(name, query, mode, mask, before, after, prefix=prefix, packed=packed, sizes=sizes)


def _require_saved(
    arrangement: Arrangement,
    query: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    softmax_max: torch.Tensor | None,
    softmax_sum: torch.Tensor | None,
    attention_in: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    saved = {"softmax_max": softmax_max, "softmax_sum": softmax_sum, "attention_in": attention_in}
    for label, tensor in saved.items():
        require(tensor is not None, BACKWARD, f"{label} is missing: hand over what the forward returned")
    assert softmax_max is not None and softmax_sum is not None and attention_in is not None
    require_same_device(BACKWARD, query, dy=dy, **saved)
    piece = arrangement.queries(query)[0]
    expected = (query.shape[0], arrangement.heads, 8) if arrangement.layout == "TND" else (*piece.shape[:3], 8)
    for label, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        require_dtype(BACKWARD, label, tensor, (torch.float32,))
        require(tuple(tensor.shape) == expected, BACKWARD, f"{label} is {tuple(tensor.shape)}; it must be {expected}")
    require(dy.dtype == query.dtype, BACKWARD, f"dy is {dy.dtype} and query {query.dtype}; they must be equal")
    require(dy.shape == attention_in.shape, BACKWARD, f"dy is {tuple(dy.shape)} and attention_in {tuple(attention_in.shape)}")
    width = arrangement.keys(value)[0].shape[-1]
    fits = dy.dim() == query.dim() and arrangement.queries(dy)[0].shape == (*piece.shape[:3], width)
    require(fits, BACKWARD, f"dy {tuple(dy.shape)} isn't shaped as the output of query {tuple(query.shape)}")
    return softmax_max, softmax_sum, attention_in


def _spread(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Key or value heads repeated for the query heads that share them."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, mask: Masking) -> torch.Tensor:
    scores = q @ _spread(k, q.shape[1]).transpose(-1, -2) * scale
    blocked = mask.blocked(q.shape[2], k.shape[2], q.device)
    return scores if blocked is None else scores.masked_fill(blocked, float("-inf"))


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: Masking
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if k.shape[2] == 0:
        nothing = q.new_full((*q.shape[:3], 1), NOTHING)
        return q.new_zeros((*q.shape[:3], v.shape[-1])), nothing, torch.zeros_like(nothing)
    scores = _scores(q, k, scale, mask)
    largest = scores.detach().amax(-1, keepdim=True)
    idle = largest == float("-inf")
    weights = (scores - largest.masked_fill(idle, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    output = (weights / total.masked_fill(idle, 1.0)) @ _spread(v, q.shape[1])
    return output, largest.masked_fill(idle, NOTHING), total.detach()


def _gradients(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    outputs: tuple[torch.Tensor, torch.Tensor],
    statistics: tuple[torch.Tensor, torch.Tensor],
    scale: float,
    mask: Masking,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one piece: `inputs` q, k, v; `outputs` the attention and its gradient; `statistics` max and sum of the softmax."""
    q, k, v = (tensor.float() for tensor in inputs)
    output, dy = (tensor.float() for tensor in outputs)
    largest, total = statistics
    heads, shared = q.shape[1], q.shape[1] // k.shape[1]
    idle = total == 0
    weights = (_scores(q, k, scale, mask) - largest).exp() / total.masked_fill(idle, 1.0)
    weights = weights.masked_fill(idle, 0.0)
    through_softmax = dy @ _spread(v, heads).transpose(-1, -2) - (dy * output).sum(-1, keepdim=True)
    slope = weights * through_softmax * scale

    def folded(gradient: torch.Tensor) -> torch.Tensor:
        batch, _, keys, width = gradient.shape
        return gradient.reshape(batch, heads // shared, shared, keys, width).sum(2)

    return slope @ _spread(k, heads), folded(slope.transpose(-1, -2) @ q), folded(weights.transpose(-1, -2) @ dy)
