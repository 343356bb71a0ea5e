"""Fused attention against a softmax in float64, against torch's own attention, and its gradient operator against autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_numbers import LIMITS, dtypes, error, random, seeds

from harness.sim.operators import OPERATORS, NotInReference, OperatorRefused

attention, gradient = OPERATORS["npu_fusion_attention"], OPERATORS["npu_fusion_attention_grad"]
CAUSAL_2048 = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
LAYOUTS = ("BSH", "SBH", "BNSD", "BSND")
layouts = st.sampled_from(LAYOUTS)


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kv_heads, width = draw(st.integers(1, 2)), draw(st.integers(1, 8))
    numbers = [draw(st.integers(1, high)) for high in (2, 3, 7, 7)]
    return Shape(numbers[0], kv_heads * numbers[1], kv_heads, numbers[2], numbers[3], width, draw(st.integers(1, width)))


def inputs(seed: int, s: Shape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as [B, N, S, D]."""
    q = random(seed, s.batch, s.heads, s.queries, s.width, dtype=dtype)
    k = random(seed + 1, s.batch, s.kv_heads, s.keys, s.width, dtype=dtype)
    return q, k, random(seed + 2, s.batch, s.kv_heads, s.keys, s.value_width, dtype=dtype)


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """[B, N, S, D] as the layout, written out."""
    if layout == "BNSD":
        return x.contiguous()
    if layout == "BSND":
        return x.transpose(1, 2).contiguous()
    if layout == "BSH":
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)
    return x.permute(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1)


def back(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """The layout as [B, N, S, D]."""
    if layout in ("BSH", "SBH"):
        x = x.reshape(*x.shape[:2], heads, -1)
    return {"BNSD": x, "BSND": x.transpose(1, 2), "BSH": x.transpose(1, 2)}.get(layout, x.permute(1, 2, 0, 3))


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, blocked: torch.Tensor | None = None) -> torch.Tensor:
    """In float64, one query at a time; a query that sees nothing gives zero."""
    q, k, v = q.double(), k.double(), v.double()
    shared = q.shape[1] // k.shape[1]
    out = []
    for b in range(q.shape[0]):
        for n in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if blocked is None or not blocked[i, j]]
                keys, values = k[b, n // shared][seen], v[b, n // shared][seen]
                out.append(
                    torch.softmax(keys @ q[b, n, i] * scale, 0) @ values
                    if seen
                    else (q[b, n, i].sum() + v.sum()) * v.new_zeros(v.shape[-1])
                )
    return torch.stack(out).reshape(*q.shape[:3], v.shape[-1])


def blocked_by(mode: int, queries: int, keys: int, before: int, after: int) -> torch.Tensor:
    table = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            corner = i + keys - queries
            table[i, j] = {2: j > i, 3: j > corner, 4: j > corner + after or j < corner - before}[mode]
    return table


def compare(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, slack: float = 1) -> None:
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    assert found.shape == expected.shape
    off = float((found.detach().double() - expected.detach()).abs().max()) if found.numel() else 0.0
    assert off <= slack * 4 * LIMITS[dtype] * scale


@settings(deadline=None, max_examples=60)
@given(seeds, dtypes, shapes(), layouts, st.sampled_from([0, 2, 3, 4]), st.integers(0, 4), st.integers(0, 3))
def test_attention_and_its_autograd_are_the_formula(
    seed: int, dtype: torch.dtype, s: Shape, layout: str, mode: int, before: int, after: int
) -> None:
    q, k, v = inputs(seed, s, dtype)
    scale = s.width**-0.5
    options: dict[str, Any] = {"scale": scale}
    blocked = None
    if mode:
        options.update(atten_mask=CAUSAL_2048, sparse_mode=mode)
        options.update({"pre_tockens": before, "next_tockens": after} if mode == 4 else {})
        blocked = blocked_by(mode, s.queries, s.keys, before, after)
    ours = [laid(x, layout).requires_grad_() for x in (q, k, v)]
    precise = [x.double().requires_grad_() for x in (q, k, v)]
    out = attention(*ours, s.heads, layout, **options)
    expected = exact(precise[0], precise[1], precise[2], scale, blocked)
    assert out[0].dtype == dtype
    compare(back(out[0], layout, s.heads), expected, dtype)
    assert out[1].shape == out[2].shape == (s.batch, s.heads, s.queries, 8)
    assert (out[1].dtype, out[2].dtype, out[3].shape, out[4:]) == (torch.float32, torch.float32, (0,), (0, 0, 0))
    assert not out[1].requires_grad
    incoming = random(seed + 3, *expected.shape, dtype=dtype)
    got = torch.autograd.grad(out[0], ours, laid(incoming, layout))
    want = torch.autograd.grad(expected, precise, incoming.double())
    for g, w, heads in zip(got, want, (s.heads, s.kv_heads, s.kv_heads), strict=True):
        compare(back(g, layout, heads), w, dtype, slack=2)


@settings(deadline=None, max_examples=40)
@given(seeds, dtypes, shapes(), layouts, st.sampled_from([0, 3]))
def test_the_gradient_operator_agrees_with_autograd(seed: int, dtype: torch.dtype, s: Shape, layout: str, mode: int) -> None:
    ours = [laid(x, layout).requires_grad_() for x in inputs(seed, s, dtype)]
    options: dict[str, Any] = {"atten_mask": CAUSAL_2048, "sparse_mode": 3} if mode else {}
    out = attention(*ours, s.heads, layout, scale=0.5, **options)
    incoming = random(seed + 3, *out[0].shape, dtype=dtype)
    want = torch.autograd.grad(out[0], ours, incoming)
    plain = [x.detach() for x in ours]
    got = gradient(
        *plain, incoming, s.heads, layout, softmax_max=out[1], softmax_sum=out[2], attention_in=out[0].detach(), scale_value=0.5, **options
    )
    assert len(got) == 5
    for g, w in zip(got[:3], want, strict=True):
        assert g.dtype == dtype
        compare(g, w.double(), dtype, slack=4)  # the operator starts from the rounded output, autograd from the unrounded one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_what_torch_computes(dtype: torch.dtype, causal: bool) -> None:
    s = Shape(2, 4, 2, 33, 33, 16, 16)
    q, k, v = (x.requires_grad_() for x in inputs(5, s, dtype))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    options: dict[str, Any] = {"atten_mask": CAUSAL_2048, "sparse_mode": 2} if causal else {}
    ours = attention(q, k, v, 4, "BNSD", scale=16**-0.5, **options)[0]
    incoming = random(9, *ours.shape, dtype=dtype)
    limit = 1e-6 if dtype == torch.float32 else 2**-7
    assert error(ours, theirs) < limit
    for mine, other in zip(torch.autograd.grad(ours, (q, k, v), incoming), torch.autograd.grad(theirs, (q, k, v), incoming), strict=True):
        assert error(mine, other) < limit


@pytest.mark.parametrize("lead", [(), (1, 1), (2, 1), (2, 4)])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("mode", [0, 1])
def test_a_full_mask_is_taken_as_it_is(lead: tuple[int, ...], mask_dtype: torch.dtype, mode: int) -> None:
    q, k, v = inputs(1, Shape(2, 4, 2, 5, 6, 8, 8), torch.float32)
    mask = random(3, *lead, 5, 6) > 0.3
    mask[..., 0] = False
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, ~mask, scale=1.0, enable_gqa=True)
    assert error(attention(q, k, v, 4, "BNSD", atten_mask=mask.to(mask_dtype), sparse_mode=mode)[0], theirs) < 1e-6


def test_without_a_mask_every_mode_attends_to_everything() -> None:
    q, k, v = inputs(1, Shape(1, 2, 2, 5, 5, 8, 8), torch.float32)
    for mode in range(9):
        assert torch.equal(attention(q, k, v, 2, "BNSD", sparse_mode=mode)[0], attention(q, k, v, 2, "BNSD")[0])


def test_a_row_that_sees_nothing_gives_zero_a_weight_of_nothing_and_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(1, Shape(1, 2, 1, 5, 3, 8, 8), torch.float32))
    out, largest, total, *_ = attention(q, k, v, 2, "BNSD", atten_mask=CAUSAL_2048, sparse_mode=3)  # rows 0 and 1 see no key
    assert not out[:, :, :2].any()
    assert out[:, :, 2:].any()
    assert bool(((largest + total.log())[:, :, :2] == float("-inf")).all())
    assert bool((largest[:, :, :2] == torch.finfo(torch.float32).min).all())
    incoming = torch.ones_like(out)
    auto = torch.autograd.grad(out, (q, k, v), incoming)
    saved = {"softmax_max": largest, "softmax_sum": total, "attention_in": out.detach()}
    by_hand = gradient(q, k, v, incoming, 2, "BNSD", atten_mask=CAUSAL_2048, sparse_mode=3, **saved)
    for mine, other in zip(by_hand[:3], auto, strict=True):
        assert bool(torch.isfinite(other).all())
        assert error(mine, other) < 1e-6
    assert not auto[0][:, :, :2].any()


def packed(x: list[torch.Tensor]) -> torch.Tensor:
    """[1, N, S, D] pieces as [T, N, D]."""
    return torch.cat([piece[0].transpose(0, 1) for piece in x])


@settings(deadline=None, max_examples=40)
@given(
    seeds,
    dtypes,
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_packed_sequences_are_the_sequences_one_by_one(
    seed: int, dtype: torch.dtype, lengths: list[tuple[int, int]], causal: bool, tnd_statistics: bool, absent: int
) -> None:
    pieces = [inputs(seed + 10 * i, Shape(1, 4, 2, a, b, 8, 8), dtype) for i, (a, b) in enumerate(lengths)]
    q, k, v = (packed([piece[i] for piece in pieces]).requires_grad_() for i in range(3))
    if not len(q) or not len(k):
        return
    ends = [tuple(sum(p[i].shape[2] for p in pieces[: n + 1]) for n in range(len(pieces))) for i in (0, 1)]
    if not (ends[0][-1] and ends[1][-1]) or 0 in (pieces[-1][0].shape[2], pieces[-1][1].shape[2]):
        absent = 0
    options: dict[str, Any] = {"atten_mask": CAUSAL_2048, "sparse_mode": 3} if causal else {}
    options.update(actual_seq_qlen=[*ends[0], *[0] * absent], actual_seq_kvlen=[*ends[1], *[0] * absent])
    options.update({"softmax_layout": "TND"} if tnd_statistics else {})
    out, largest, total, *_ = attention(q, k, v, 4, "TND", scale=0.4, **options)
    alone = [
        exact(*piece, 0.4, blocked_by(3, piece[0].shape[2], piece[1].shape[2], 0, 0) if causal else None)
        for piece in pieces
        if piece[0].shape[2]
    ]
    compare(out, packed(alone), dtype)
    assert largest.shape == total.shape == (len(q), 4, 8)
    incoming = random(seed + 3, *out.shape, dtype=dtype)
    want = torch.autograd.grad(out, (q, k, v), incoming)
    saved = {"softmax_max": largest, "softmax_sum": total, "attention_in": out.detach()}
    got = gradient(q.detach(), k.detach(), v.detach(), incoming, 4, "TND", scale_value=0.4, **saved, **options)
    for mine, other in zip(got[:3], want, strict=True):
        compare(mine, other.double(), dtype, slack=4)


def test_the_default_statistics_of_packed_sequences_hold_heads_first_within_each_sequence() -> None:
    q = random(1, 5, 2, 4)
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    default = attention(q, q, q, 2, "TND", **ends)[1]
    by_token = attention(q, q, q, 2, "TND", softmax_layout="TND", **ends)[1]
    assert default.shape == by_token.shape == (5, 2, 8)
    for start, end in ((0, 2), (2, 5)):
        heads_first = by_token[start:end].transpose(0, 1).reshape(-1, 8)
        assert torch.equal(default[start:end].reshape(-1, 8), heads_first)
    assert not torch.equal(default, by_token)


def test_sequences_that_take_no_part_leave_zeros() -> None:
    q = random(1, 9, 2, 4)
    out = attention(q, q, q, 2, "TND", actual_seq_qlen=[2, 5, 0, 0], actual_seq_kvlen=[2, 5, 0, 0])
    assert [len(t) for t in out[:3]] == [9, 9, 9]
    assert not out[0][5:].any()
    assert torch.equal(out[0][:5], attention(q[:5], q[:5], q[:5], 2, "TND", actual_seq_qlen=[2, 5], actual_seq_kvlen=[2, 5])[0])


def test_blocks_of_keys_merged_by_their_statistics_are_the_whole_and_so_are_their_gradients() -> None:
    """What ring attention does: forward by blocks, merge by log-sum-exp, backward by blocks with max = lse and sum = 1."""
    q, k, v = (random(i, 6, 4, 8) for i in (1, 2, 3))
    k, v = k[:, :2].contiguous(), v[:, :2].contiguous()
    dy, whole = random(4, 6, 4, 8), {"actual_seq_qlen": [6], "actual_seq_kvlen": [6], "softmax_layout": "TND"}
    half = {**whole, "actual_seq_kvlen": [3]}
    parts = [attention(q, k[at], v[at], 4, "TND", scale=0.3, **half) for at in (slice(0, 3), slice(3, 6))]
    lse = [p[1][..., :1] + p[2][..., :1].log() for p in parts]
    merged = torch.logaddexp(lse[0], lse[1])
    out = sum(p[0] * (part - merged).exp() for p, part in zip(parts, lse, strict=True))
    full = attention(q, k, v, 4, "TND", scale=0.3, **whole)
    assert isinstance(out, torch.Tensor)
    assert error(out, full[0]) < 1e-6
    saved = {
        "softmax_max": merged.expand(6, 4, 8).contiguous(),
        "softmax_sum": torch.ones(6, 4, 8),
        "attention_in": out,
        "scale_value": 0.3,
    }
    blocks = [gradient(q, k[at], v[at], dy, 4, "TND", **saved, **half) for at in (slice(0, 3), slice(3, 6))]
    precise = {"softmax_max": full[1], "softmax_sum": full[2], "attention_in": full[0], "scale_value": 0.3}
    want = gradient(q, k, v, dy, 4, "TND", **precise, **whole)
    assert error(blocks[0][0] + blocks[1][0], want[0]) < 2e-6
    for i in (1, 2):
        assert error(torch.cat([blocks[0][i], blocks[1][i]]), want[i]) < 2e-6


def test_a_single_token_attends_to_itself() -> None:
    v = random(3, 1, 2, 1, 8)
    for options in ({}, {"atten_mask": CAUSAL_2048, "sparse_mode": 2}, {"atten_mask": CAUSAL_2048, "sparse_mode": 3}):
        assert error(attention(random(1, 1, 2, 1, 8), random(2, 1, 2, 1, 8), v, 2, "BNSD", **options)[0], v) < 1e-6


def test_large_logits_do_not_overflow() -> None:
    q = torch.full((1, 1, 2, 4), 1e4)
    out, largest, total, *_ = attention(q, q, random(3, 1, 1, 2, 4), 1, "BNSD")
    assert bool(torch.isfinite(out).all())
    assert math.isclose(float(total[0, 0, 0, 0]), 2.0)
    assert float(largest[0, 0, 0, 0]) == pytest.approx(4e8)


Q = random(1, 2, 3, 4, 8)  # as BNSD: batch 2, 3 heads, 4 tokens
T = random(1, 6, 3, 8)
ENDS = {"actual_seq_qlen": [2, 6], "actual_seq_kvlen": [2, 6]}
REFUSED: dict[str, tuple[Any, ...]] = {
    "input_layout is 'BSDN'": (Q, Q, Q, 3, "BSDN", {}),
    "has 4 dimensions; BSH has 3": (Q, Q, Q, 3, "BSH", {}),
    "head_num is 4 and query has 3 heads": (Q, Q, Q, 4, "BNSD", {}),
    "aren't a multiple of 2 key heads": (Q, Q[:, :2], Q[:, :2], 3, "BNSD", {}),
    "key is torch.float16 and query torch.float32": (Q, Q.half(), Q.half(), 3, "BNSD", {}),
    "float64": (Q.double(), Q.double(), Q.double(), 3, "BNSD", {}),
    "differ before the last dimension": (Q, Q, Q[:, :, :2], 3, "BNSD", {}),
    "query is 8 wide and key 4": (Q, Q[..., :4], Q[..., :4], 3, "BNSD", {}),
    "value is 8 wide and key 4": (Q[..., :4], Q[..., :4], Q, 3, "BNSD", {}),
    "batches of query and key": (Q, Q[:1], Q[:1], 3, "BNSD", {}),
    "value <= key <= 768": (random(1, 1, 1, 1, 776), random(1, 1, 1, 1, 776), random(1, 1, 1, 1, 776), 1, "BNSD", {}),
    "sparse_mode is 9": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 9}),
    "compressed mask 2048x2048, not": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 3, "atten_mask": CAUSAL_2048[:4, :4]}),
    "True above the diagonal": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 3, "atten_mask": ~CAUSAL_2048}),
    "mask that is True above the diagonal": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 2, "atten_mask": CAUSAL_2048.T}),
    "atten_mask is torch.float32": (Q, Q, Q, 3, "BNSD", {"atten_mask": torch.zeros(4, 4)}),
    r"atten_mask is \(4, 5\)": (Q, Q, Q, 3, "BNSD", {"atten_mask": torch.zeros(4, 5, dtype=torch.bool)}),
    "lets through what pre_tockens": (Q, Q, Q, 3, "BNSD", {"atten_mask": torch.zeros(4, 4, dtype=torch.bool), "next_tockens": 0}),
    "padding_mask isn't supported": (Q, Q, Q, 3, "BNSD", {"padding_mask": Q}),
    "keep_prob is 0": (Q, Q, Q, 3, "BNSD", {"keep_prob": 0.0}),
    "inner_precise is 3": (Q, Q, Q, 3, "BNSD", {"inner_precise": 3}),
    "softmax_layout is 'NTD'": (T, T, T, 3, "TND", {**ENDS, "softmax_layout": "NTD"}),
    "softmax_layout is for input_layout TND": (Q, Q, Q, 3, "BNSD", {"softmax_layout": "TND"}),
    "belong to the layout TND": (Q, Q, Q, 3, "BNSD", {"actual_seq_qlen": [4]}),
    "TND needs actual_seq_qlen": (T, T, T, 3, "TND", {}),
    "2 query and 1 key lengths": (T, T, T, 3, "TND", {"actual_seq_qlen": [2, 6], "actual_seq_kvlen": [6]}),
    r"\[2, 4, 3, 6\] isn't cumulative": (T, T, T, 3, "TND", {"actual_seq_qlen": [2, 4, 3, 6], "actual_seq_kvlen": [2, 4, 5, 6]}),
    "ends at 5 and the tensor has 6 rows": (T, T, T, 3, "TND", {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 6]}),
    "sparse_mode 5 isn't for input_layout TND": (T, T, T, 3, "TND", {**ENDS, "sparse_mode": 5, "atten_mask": CAUSAL_2048}),
    "sparse_mode 7 is for input_layout TND": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 7, "atten_mask": CAUSAL_2048}),
    "sparse_mode 6 needs prefix": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 6, "atten_mask": CAUSAL_2048}),
    "3 prefixes for 2 batches": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 6, "prefix": [1, 2, 3], "atten_mask": CAUSAL_2048}),
    "sparse_mode 6 wants the compressed mask 3072x2048": (
        *(Q, Q, Q, 3, "BNSD"),
        {"sparse_mode": 6, "prefix": [1, 2], "atten_mask": CAUSAL_2048},
    ),
    "sparse_mode 6 wants a rectangle": (
        *(Q, Q, Q, 3, "BNSD"),
        {"sparse_mode": 6, "prefix": [1, 2], "atten_mask": torch.cat((CAUSAL_2048, CAUSAL_2048[:1024]))},
    ),
    "sparse_mode 5 wants one of": (Q, Q, Q, 3, "BNSD", {"sparse_mode": 5, "prefix": [1, 2], "atten_mask": CAUSAL_2048[:4, :4]}),
    "atten_mask and prefix contradict each other": (
        *(Q, Q, Q, 3, "BNSD"),
        {"sparse_mode": 5, "prefix": [1, 2], "atten_mask": CAUSAL_2048[:4, :4].repeat(2, 1, 1, 1)},
    ),
    "leaves out everything": (T, T, T, 3, "TND", {**ENDS, "atten_mask": torch.ones(4, 4, dtype=torch.bool)}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_attention_against_the_contract_is_refused_and_says_why(words: str) -> None:
    q, k, v, heads, layout, options = REFUSED[words]
    with pytest.raises(OperatorRefused, match=words):
        attention(q, k, v, heads, layout, **options)


@pytest.mark.parametrize("options", [{"keep_prob": 0.9}, {"pse": Q}, {"sink": Q}])
def test_what_the_reference_lacks_is_told_apart_from_a_breach(options: dict[str, Any]) -> None:
    with pytest.raises(NotInReference):
        attention(Q, Q, Q, 3, "BNSD", **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"softmax_max": None}, "softmax_max is missing"),
        ({"attention_in": None}, "attention_in is missing"),
        ({"softmax_sum": torch.ones(2, 3, 4, 1)}, "softmax_sum is"),
        ({"softmax_max": torch.ones(2, 3, 4, 8).half()}, "float16"),
        ({"dy": Q.half()}, "dy is torch.float16"),
        ({"dy": Q[:, :, :2]}, "attention_in"),
    ],
)
def test_the_gradient_operator_wants_what_the_forward_saved(change: dict[str, Any], words: str) -> None:
    out = attention(Q, Q, Q, 3, "BNSD")
    sound = {"dy": Q, "softmax_max": out[1], "softmax_sum": out[2], "attention_in": out[0], **change}
    with pytest.raises(OperatorRefused, match=words):
        gradient(Q, Q, Q, sound.pop("dy"), 3, "BNSD", **sound)
