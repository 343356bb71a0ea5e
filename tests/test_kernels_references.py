"""The goldens of torch_npu's operators against torch's own functions, the documentation's examples, and the real wheel's Meta kernels."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kernels import references_attention as attention
from harness.kernels import references_dense as dense
from harness.kernels import references_experts as experts
from harness.kernels.references_attention import Asked
from harness.sim.surface import samples

REFERENCES = (attention, dense, experts)
F = torch.nn.functional
seeds = st.integers(0, 2**31 - 1)


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def same_with_gradients(found: torch.Tensor, wanted: torch.Tensor, *leaves: torch.Tensor) -> None:
    same(found, wanted)
    incoming = random(9, *found.shape)
    for ours, theirs in zip(torch.autograd.grad(found, leaves, incoming), torch.autograd.grad(wanted, leaves, incoming), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("module", REFERENCES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_a_golden_imports_nothing_of_the_harness(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.startswith(("harness", "torch."))]


@settings(deadline=None, max_examples=20)
@given(seeds, st.lists(st.integers(1, 4), max_size=2), st.lists(st.integers(2, 9), min_size=1, max_size=2))
def test_rms_norm_is_torchs(seed: int, lead: list[int], normalised: list[int]) -> None:
    x, gamma = random(seed, *lead, *normalised).requires_grad_(), random(seed + 1, *normalised).requires_grad_()
    y, rstd = dense.rms_norm(x, gamma, 0.01)
    same_with_gradients(y, F.rms_norm(x, normalised, gamma, 0.01), x, gamma)
    assert rstd.shape == (*lead, *[1] * len(normalised))
    same(x * rstd * gamma, y)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul_is_the_documented_lines_and_the_documented_matrix(mode: str) -> None:
    x, cos, sin = (random(seed, 2, 3, 4, 6).requires_grad_() for seed in (1, 2, 3))
    if mode == "half":
        first, second = torch.chunk(x, 2, -1)
        turned = torch.cat((-second, first), dim=-1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    same_with_gradients(dense.rotary_mul(x, cos, sin, mode), cos * x + sin * turned, x, cos, sin)
    if mode == "half":
        rotate = torch.zeros(6, 6, dtype=torch.float64)
        rotate[:3, 3:], rotate[3:, :3] = torch.eye(3), -torch.eye(3)
        same(dense.rotary_mul(x, cos, sin, mode), cos * x + sin * (x @ rotate))


@pytest.mark.parametrize("dim", [-1, 0, 1, 2])
def test_swiglu_is_torchs(dim: int) -> None:
    x = random(1, 4, 6, 8).requires_grad_()
    gate, up = x.chunk(2, dim)
    same_with_gradients(dense.swiglu(x, dim), F.silu(gate) * up, x)


@settings(deadline=None, max_examples=30)
@given(seeds, st.sampled_from(["mean", "sum", "none"]), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.2]))
def test_cross_entropy_is_torchs(seed: int, reduction: str, weighted: bool, ignored: bool, smoothing: float) -> None:
    logits = random(seed, 5, 7).requires_grad_()
    target, weight = torch.tensor([0, 3, 6, 3, 1]), random(seed + 1, 7).abs() if weighted else None
    index = 3 if ignored else -100
    loss, log_prob = dense.cross_entropy(logits, target, weight, reduction, index, smoothing)
    wanted = F.cross_entropy(logits, target, weight, ignore_index=index, reduction=reduction, label_smoothing=smoothing)
    same_with_gradients(loss, wanted if reduction == "none" else wanted.reshape(1), logits)
    same(log_prob, torch.log_softmax(logits, 1))


def test_permute_and_unpermute_give_the_documented_examples() -> None:
    tokens = torch.tensor([[1, 1], [2, 2], [3, 3], [4, 4]], dtype=torch.float64)
    choices = torch.tensor([[0, 1], [1, 0], [0, 2], [2, 0]])
    rows, place = experts.permute(tokens, choices, None)
    assert rows[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert (place.tolist(), place.dtype) == ([0, 4, 5, 1, 2, 6, 7, 3], torch.int32)
    same(experts.unpermute(rows, place, torch.full((4, 2), 0.5, dtype=torch.float64)), tokens)
    assert [len(experts.permute(tokens, choices, kept)[0]) for kept in (0, 3, -2, 99)] == [8, 3, 6, 8]


@settings(deadline=None, max_examples=30)
@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
def test_grouped_products_are_products_of_slices(seed: int, sizes: list[int]) -> None:
    x, weights, dy = random(seed, sum(sizes), 3), random(seed + 1, len(sizes), 3, 5), random(seed + 2, sum(sizes), 5)
    biases = list(random(seed + 3, len(sizes), 5))
    parts = list(zip(torch.split(x, sizes), weights, biases, torch.split(dy, sizes), strict=True))
    same(experts.grouped_rows(x, list(weights), sizes, None), torch.cat([part @ weight for part, weight, _, _ in parts]))
    same(experts.grouped_rows(x, list(weights), sizes, biases), torch.cat([part @ weight + bias for part, weight, bias, _ in parts]))
    same(experts.grouped_reduction(x, dy, sizes), torch.stack([part.T @ given for part, _, _, given in parts]))


def test_init_routing_keeps_the_active_experts_alone() -> None:
    x, choices = random(1, 3, 4), torch.tensor([[2, 0], [1, 2], [3, 2]], dtype=torch.int32)
    scale = torch.tensor([1.0, 2.0, 3.0])
    routed = experts.init_routing(x, choices, scale, 5, (1, 4), 0, 1)
    assert routed.places.tolist() == [1, -1, 0, 2, 4, 3]
    assert routed.counts.tolist() == [1, 3, 1]
    assert routed.scales is not None
    assert routed.scales.tolist() == [2, 1, 2, 3, 3]
    same(routed.rows, x[[1, 0, 1, 2, 2]])
    assert experts.init_routing(x, choices, None, 5, (1, 4), 1, 2).places.tolist() == [2, 0, 3, 5, 4]
    assert experts.init_routing(x, choices, None, 5, (1, 4), 1, 2).counts.tolist() == [[1, 1], [2, 3], [3, 1], [0, 0]]
    assert experts.init_routing(x, choices, None, 5, (0, 1), 1, 2).counts.tolist() == [[0, 1], [0, 0]]
    assert experts.init_routing(x, choices[:1, :1] * 0, None, 1, (0, 1), 1, 2).counts.tolist() == [[0, 1]]


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """[B, N, S, D] as the layout."""
    if layout == "BNSD":
        return x
    if layout == "SBH":
        return x.permute(2, 0, 1, 3).flatten(2)
    by_position = x.transpose(1, 2)
    return {"BSND": by_position, "BSH": by_position.flatten(2), "TND": by_position.flatten(0, 1)}[layout]


@pytest.mark.parametrize("layout", attention.LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradient_are_torchs_in_every_layout(layout: str, causal: bool) -> None:
    q, k, v = random(1, 2, 6, 5, 8).requires_grad_(), random(2, 2, 3, 5, 8).requires_grad_(), random(3, 2, 3, 5, 4).requires_grad_()
    wide = [tensor.repeat_interleave(2, 1) for tensor in (k, v)]
    wanted = laid(F.scaled_dot_product_attention(q, *wide, is_causal=causal, scale=0.3), layout)
    ends = ((5, 10), (5, 10)) if layout == "TND" else None
    asked = Asked(layout, 6, 3, 0.3, 3 if causal else None, ends=ends)
    found = attention.attention(laid(q, layout), laid(k, layout), laid(v, layout), asked, None)
    same_with_gradients(found.output, wanted, q, k, v)
    assert not found.idle.any()
    scores = q.detach() @ wide[0].detach().transpose(-1, -2) * 0.3
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf) if causal else scores
    log_sum = torch.logsumexp(scores, -1)
    same(found.largest + found.total.log(), log_sum.transpose(1, 2).flatten(0, 1) if layout == "TND" else log_sum)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 7), st.sampled_from([2, 3, 4]), st.integers(0, 5), st.integers(-3, 4))
def test_sparse_modes_allow_what_is_documented(queries: int, keys: int, mode: int, before: int, after: int) -> None:
    found = attention.allowed(Asked("BNSD", 1, 1, 1.0, mode, before, after), queries, keys, None)
    for row in range(queries):
        for column in range(keys):
            from_corner = column - (row + keys - queries)
            wanted = {2: column <= row, 3: from_corner <= 0, 4: -before <= from_corner <= after}[mode]
            assert bool(found[row, column]) == wanted


def test_a_prefix_is_seen_by_every_row_of_its_batch() -> None:
    found = attention.allowed(Asked("BNSD", 1, 1, 1.0, 6, prefix=(4, 5)), 4, 6, None)
    assert found.shape == (2, 1, 4, 6)
    for batch, prefix in enumerate((4, 5)):
        for row in range(4):
            assert found[batch, 0, row].tolist() == [column < prefix or column <= row + 2 for column in range(6)]
    packed = attention.allowed(Asked("TND", 1, 1, 1.0, 6, ends=((2, 6), (2, 8)), prefix=(1, 5)), 4, 6, None, at=1)
    assert torch.equal(packed[0], found[1])


def test_sequences_cut_between_devices_give_the_documented_pictures() -> None:
    """The documentation's two examples: 4x6 from the bottom right, cut 2 and 2; 5x4 from the top left, cut 2 and 3."""
    right_down = attention.allowed(Asked("BNSD", 1, 1, 1.0, 3), 4, 6, None)
    cut = Asked("TND", 1, 1, 1.0, 7, 6, -2, ends=((3, 5), (3, 9)))
    assert torch.equal(attention.allowed(cut, 2, 6, None, at=1), right_down[:2])
    assert torch.equal(attention.allowed(cut, 3, 3, None, at=0), torch.ones(3, 3).tril().bool())
    left_up = attention.allowed(Asked("BNSD", 1, 1, 1.0, 2), 5, 4, None)
    cut = Asked("TND", 1, 1, 1.0, 8, 4, 1, ends=((3, 8, 12), (4, 9, 13)))
    assert torch.equal(attention.allowed(cut, 3, 4, None, at=0), left_up[2:])
    assert torch.equal(attention.allowed(cut, 4, 4, None, at=2), torch.ones(4, 4).tril().bool())


def test_a_row_that_attends_to_nothing_gives_zero_and_passes_no_gradient() -> None:
    q, k, v = (random(seed, 1, 1, size, 4).requires_grad_() for seed, size in ((1, 5), (2, 3), (3, 3)))
    found = attention.attention(q, k, v, Asked("BNSD", 1, 1, 1.0, 3), None)
    assert found.idle[0, 0].tolist() == [True, True, False, False, False]
    assert not found.output[0, 0, :2].any()
    gradients = torch.autograd.grad(found.output.sum(), (q, k, v))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][0, 0, :2].any()


@pytest.mark.parametrize("layout", attention.LAYOUTS)
@pytest.mark.parametrize("mode", [None, 3])
def test_the_two_ways_to_the_gradient_agree(layout: str, mode: int | None) -> None:
    shapes = {"query": (1, 4, 5, 6), "key": (1, 2, 7, 6), "value": (1, 2, 7, 3), "dy": (1, 4, 5, 3)}
    given_tensors = {name: laid(random(i, *shape), layout) for i, (name, shape) in enumerate(shapes.items())}
    asked = Asked(layout, 4, 2, 0.4, mode, ends=((2, 2, 5), (4, 5, 7)) if layout == "TND" else None)
    saved = attention.attention(given_tensors["query"], given_tensors["key"], given_tensors["value"], asked, None)
    one = attention.attention_gradient(given_tensors, asked, None, None)
    for found, wanted in zip(attention.gradient_from_statistics(given_tensors, asked, None, saved), one, strict=True):
        same(found, wanted)


def test_the_parts_of_a_rings_gradient_add_up_to_the_whole() -> None:
    shapes = {"query": (2, 4, 3, 6), "key": (2, 2, 8, 6), "value": (2, 2, 8, 5), "dy": (2, 4, 3, 5)}
    whole = {name: random(i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    asked = Asked("BNSD", 4, 2, 0.4)
    dq, dk, dv = attention.attention_gradient(whole, asked, None, None)
    parts = []
    for near, far in ((slice(0, 3), slice(3, 8)), (slice(3, 8), slice(0, 3))):
        block = {**whole, "key": whole["key"][:, :, near], "value": whole["value"][:, :, near]}
        parts.append(attention.attention_gradient(block, asked, None, (whole["key"][:, :, far], whole["value"][:, :, far])))
    same(parts[0][0] + parts[1][0], dq)
    same(torch.cat((parts[0][1], parts[1][1]), 2), dk)
    same(torch.cat((parts[0][2], parts[1][2]), 2), dv)


@cache
def recorded() -> Any:
    return json.loads(next(Path(samples.__file__).parent.glob("torch_npu-*.json")).read_text())


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotary_mode: str = "half") -> list[torch.Tensor]:
    return [dense.rotary_mul(x, cos, sin, rotary_mode)]


def _loss(logits: torch.Tensor, target: torch.Tensor, reduction: str) -> list[torch.Tensor]:
    return list(dense.cross_entropy(logits, target, None, reduction, -100, 0.0))


def _matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    bias: list[torch.Tensor] | None = None,
    group_list: Any = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
) -> list[torch.Tensor]:
    values = [len(part) for part in x] if group_list is None else [int(value) for value in group_list]
    counted = group_list is None or group_list_type == 1
    sizes = values if counted else [end - start for start, end in zip([0, *values], values, strict=False)]
    if group_type == 2:
        return [experts.grouped_reduction(x[0].T, weight[0], sizes)]
    if group_type == -1:
        flat = [part.reshape(-1, part.shape[-1]) for part in x]
        products = [experts.grouped_rows(part, [matrix], [len(part)], None) for part, matrix in zip(flat, weight, strict=True)]
        return [product.reshape(*part.shape[:-1], -1) for product, part in zip(products, x, strict=True)]
    matrices = list(weight[0]) if weight[0].dim() == 3 else weight
    if split_item > 1:
        return [experts.grouped_rows(torch.cat(x), matrices, sizes, bias)]
    rows = torch.split(torch.cat(x), sizes)
    return [experts.grouped_rows(part, [matrix], [len(part)], None) for part, matrix in zip(rows, matrices, strict=True)]


def _routing(x: torch.Tensor, choices: torch.Tensor, **named: Any) -> list[torch.Tensor]:
    """Padded to the documented sizes, since what lies beyond what is defined holds anything."""
    first, last = named["active_expert_range"]
    kind = named["expert_tokens_num_type"]
    routed = experts.init_routing(x, choices, named.get("scale"), named["expert_num"], (first, last), named.get("row_idx_type", 0), kind)
    slots = choices.numel()
    counts = routed.counts if kind == 1 else routed.counts.new_zeros(named["expert_num"], 2)
    return [x.new_zeros(slots, x.shape[1]), torch.zeros(slots, dtype=routed.places.dtype), counts, torch.zeros(slots)]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, layout: str, **named: Any) -> list[torch.Tensor]:
    found = attention.attention(q, k, v, _asked(heads, layout, named), None)
    return [found.output, *(statistic.float()[..., None].expand(*statistic.shape, 8) for statistic in (found.largest, found.total))]


def _gradient(*arguments: Any, **named: Any) -> list[torch.Tensor]:
    *tensors, heads, layout = arguments
    given_tensors = dict(zip(("query", "key", "value", "dy"), tensors, strict=True))
    return list(attention.attention_gradient(given_tensors, _asked(heads, layout, named), None, None))


def _asked(heads: int, layout: str, named: dict[str, Any]) -> Asked:
    ends = (tuple(named["actual_seq_qlen"]), tuple(named["actual_seq_kvlen"])) if layout == "TND" else None
    return Asked(layout, heads, 3, 1.0, ends=ends)


# Operator to what its golden gives for the same call. Outputs after these are documented to hold nothing yet.
GOLDENS: dict[str, Callable[..., list[torch.Tensor]]] = {
    "npu_rms_norm": lambda x, gamma: [(y := dense.rms_norm(x, gamma, 1e-6))[0], y[1].float()],
    "npu_rotary_mul": _rotary,
    "npu_swiglu": lambda x, dim: [dense.swiglu(x, dim)],
    "npu_cross_entropy_loss": _loss,
    "npu_grouped_matmul": _matmul,
    "npu_moe_token_permute": lambda tokens, choices, num_out_tokens=None: list(experts.permute(tokens, choices, num_out_tokens)),
    "npu_moe_token_unpermute": lambda rows, place, probs=None: [experts.unpermute(rows, place, probs)],
    "npu_moe_init_routing_v2": _routing,
    "npu_fusion_attention": _attention,
    "npu_fusion_attention_grad": _gradient,
}


@pytest.mark.parametrize("sample", samples.calls("cpu"))
def test_a_golden_has_the_shapes_and_dtypes_of_the_real_meta_kernel(sample: str) -> None:
    operator, arguments, named = samples.calls("cpu")[sample]
    golden = GOLDENS[operator](*arguments, **{name: value for name, value in named.items() if name not in ("softmax_max", "softmax_sum")})
    found = samples.outcome(golden)
    assert found == recorded()["outputs"][sample][: len(found)]


def test_every_operator_of_the_surface_has_a_golden() -> None:
    assert set(GOLDENS) == set(samples.OPERATORS)
