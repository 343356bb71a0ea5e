"""Routing of tokens and grouped products, against loops over single tokens and experts in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_numbers import LIMITS, dtypes, error, random, seeds

from harness.sim.operators import OPERATORS, NotInReference, OperatorRefused

permute, unpermute = OPERATORS["npu_moe_token_permute"], OPERATORS["npu_moe_token_unpermute"]
matmul, route = OPERATORS["npu_grouped_matmul"], OPERATORS["npu_moe_init_routing_v2"]
tokens, choices, experts, widths = st.integers(1, 6), st.integers(1, 3), st.integers(1, 5), st.integers(1, 7)
group_sizes = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def picks(seed: int, rows: int, k: int, count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(0, count, (rows, k), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_permute_gives_the_documented_example() -> None:
    rows, places = permute(torch.tensor([[1, 1], [2, 2], [3, 3], [4, 4]]).half(), torch.tensor([[0, 1], [1, 0], [0, 2], [2, 0]]))
    assert rows[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert places.tolist() == [0, 4, 5, 1, 2, 6, 7, 3]
    assert places.dtype == torch.int32


@settings(deadline=None, max_examples=50)
@given(seeds, dtypes, tokens, choices, experts, widths, st.sampled_from([torch.int32, torch.int64]))
def test_every_slot_finds_its_token_and_experts_come_in_order(
    seed: int, dtype: torch.dtype, rows: int, k: int, count: int, width: int, index_dtype: torch.dtype
) -> None:
    x, chosen = random(seed, rows, width, dtype=dtype).requires_grad_(), picks(seed, rows, k, count, index_dtype)
    moved, places = permute(x, chosen)
    slots = chosen.reshape(-1)
    for slot in range(rows * k):
        assert torch.equal(moved[int(places[slot])], x[slot // k])
    by_row = torch.empty_like(slots)
    by_row[places.long()] = slots
    assert torch.equal(by_row, slots.sort().values)
    for expert in range(count):  # ties keep the order of the slots
        inside = [int(places[i]) for i in range(rows * k) if slots[i] == expert]
        assert inside == sorted(inside)
    incoming = random(seed + 1, rows * k, width, dtype=dtype)
    expected = torch.stack([sum(incoming[int(places[t * k + c])].double() for c in range(k)) for t in range(rows)])  # type: ignore[misc]
    assert error(torch.autograd.grad(moved, x, incoming)[0], expected) <= 4 * LIMITS[dtype]


@pytest.mark.parametrize(("asked", "kept"), [(None, 6), (0, 6), (4, 4), (9, 6), (-2, 4)])
def test_permute_keeps_as_many_rows_as_asked(asked: int | None, kept: int) -> None:
    rows, places = permute(random(1, 3, 4), torch.tensor([[0, 1]] * 3), num_out_tokens=asked)
    assert len(rows) == kept
    assert len(places) == 6


@settings(deadline=None, max_examples=50)
@given(seeds, dtypes, tokens, choices, widths, st.booleans())
def test_unpermute_adds_up_the_weighted_rows_of_a_token(
    seed: int, dtype: torch.dtype, rows: int, k: int, width: int, wide_probs: bool
) -> None:
    y = random(seed, rows * k, width, dtype=dtype).requires_grad_()
    probs = random(seed + 1, rows, k, dtype=torch.float32 if wide_probs else dtype).requires_grad_()
    places = torch.randperm(rows * k, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    exact_y, exact_probs = y.detach().double().requires_grad_(), probs.detach().double().requires_grad_()
    parts = [sum(exact_y[int(places[t * k + c])] * exact_probs[t, c] for c in range(k)) for t in range(rows)]
    found, expected = unpermute(y, places, probs=probs), torch.stack(parts)  # type: ignore[arg-type]
    assert found.dtype == dtype
    assert error(found, expected) <= LIMITS[dtype]
    incoming = random(seed + 2, rows, width, dtype=dtype)
    got = torch.autograd.grad(found, (y, probs), incoming)
    want = torch.autograd.grad(expected, (exact_y, exact_probs), incoming.double())
    assert error(got[0], want[0]) <= 2 * LIMITS[dtype]
    assert error(got[1], want[1]) <= 2 * LIMITS[dtype]


def test_permute_then_unpermute_with_weights_that_add_up_to_one_gives_the_tokens_back() -> None:
    x = random(1, 5, 4)
    moved, places = permute(x, picks(2, 5, 2, 3))
    assert error(unpermute(moved, places, probs=torch.full((5, 2), 0.5)), x) < 1e-6
    single, places = permute(x, picks(3, 5, 1, 3).reshape(-1))
    assert torch.equal(unpermute(single, places), x)


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


@settings(deadline=None, max_examples=50)
@given(seeds, dtypes, group_sizes, widths, widths, st.booleans(), st.booleans())
def test_grouped_rows_meet_their_own_matrix(
    seed: int, dtype: torch.dtype, sizes: list[int], inner: int, outer: int, cumulative: bool, transposed: bool
) -> None:
    x, w = random(seed, sum(sizes), inner, dtype=dtype), random(seed + 1, len(sizes), inner, outer, dtype=dtype)
    if transposed:
        w = w.transpose(1, 2).contiguous().transpose(1, 2)
    groups = torch.tensor(sizes).cumsum(0) if cumulative else torch.tensor(sizes)
    arguments = {"group_list": groups, "split_item": 2, "group_type": 0, "group_list_type": 0 if cumulative else 1}
    expected = torch.zeros(sum(sizes), outer, dtype=torch.float64)
    for expert, start in enumerate(starts(sizes)):
        for row in range(start, start + sizes[expert]):
            expected[row] = x[row].double() @ w[expert].double()
    packed = matmul([x], [w], **arguments)
    assert len(packed) == 1
    assert packed[0].dtype == dtype
    assert error(packed[0], expected) <= 2 * LIMITS[dtype]
    listed = matmul([x], list(w), **arguments)
    assert torch.equal(listed[0], packed[0])
    apart = matmul([x], list(w), **{**arguments, "split_item": 0})
    assert [len(part) for part in apart] == sizes
    assert torch.equal(torch.cat(apart), packed[0])


@settings(deadline=None, max_examples=50)
@given(seeds, dtypes, group_sizes, widths, widths)
def test_a_grouped_reduction_is_the_gradient_of_each_matrix(
    seed: int, dtype: torch.dtype, sizes: list[int], inner: int, outer: int
) -> None:
    x, dy = random(seed, sum(sizes), inner, dtype=dtype), random(seed + 1, sum(sizes), outer, dtype=dtype)
    found = matmul([x.T], [dy], group_list=torch.tensor(sizes), split_item=3, group_type=2, group_list_type=1)[0]
    expected = torch.zeros(len(sizes), inner, outer, dtype=torch.float64)
    for expert, start in enumerate(starts(sizes)):
        for row in range(start, start + sizes[expert]):
            expected[expert] += torch.outer(x[row].double(), dy[row].double())
    assert found.shape == (len(sizes), inner, outer)
    assert error(found, expected) <= 2 * LIMITS[dtype]


def test_an_expert_without_tokens_gets_a_gradient_of_zero() -> None:
    out = matmul([random(1, 3, 4).T], [random(2, 3, 2)], group_list=torch.tensor([0, 3, 0]), split_item=3, group_type=2, group_list_type=1)[
        0
    ]
    assert not out[0].any()
    assert not out[2].any()
    assert out[1].any()


def test_lists_and_biases_and_a_list_of_ints() -> None:
    xs, ws = [random(1, 2, 4), random(2, 3, 5)], [random(3, 4, 6), random(4, 5, 7)]
    biases = [random(5, 6), random(6, 7)]
    for out, x, w, b in zip(matmul(xs, ws, bias=biases, group_type=-1), xs, ws, biases, strict=True):
        assert error(out, x.double() @ w.double() + b.double()) < 2e-6
    x, w = random(7, 5, 4), [random(8, 4, 3), random(9, 4, 3)]
    as_ints = matmul([x], w, group_list=[2, 5], split_item=3)[0]
    assert torch.equal(as_ints, torch.cat([x[:2] @ w[0], x[2:] @ w[1]]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group_list": torch.tensor([2, 4], dtype=torch.int32)}, "int64"),
        ({"group_list": torch.tensor([2, 1])}, "covers 3 rows and x has 4"),
        ({"group_list": torch.tensor([4, 4])}, "is group_list_type right"),
        ({"group_list": torch.tensor([1, 1, 2])}, "3 groups and there are 2 matrices"),
        ({"group_list": torch.tensor([[2, 2]])}, "dimensions"),
        ({"group_list": torch.tensor([4, 2]), "group_list_type": 0}, "negative size"),
        ({"group_type": 1}, "only supports -1, 0 and 2"),
        ({"group_type": 2}, "matrices"),
        ({"split_item": 4}, "split_item"),
        ({"group_list_type": 2}, "group_list_type"),
        ({"weight": [random(2, 2, 5, 3)]}, "don't fit"),
        ({"weight": [random(2, 2, 8, 3).half()]}, "they must be equal"),
        ({"x": [random(1, 4, 8).double()], "weight": [random(2, 2, 8, 3).double()]}, "float64"),
        ({"x": []}, "0 x and 1 weights"),
    ],
)
def test_a_grouped_product_against_the_contract_is_refused(change: dict[str, object], words: str) -> None:
    sound = {"x": [random(1, 4, 8)], "weight": [random(2, 2, 8, 3)], "group_list": torch.tensor([1, 3]), "split_item": 2}
    arguments = {**sound, "group_type": 0, "group_list_type": 1, **change}
    with pytest.raises(OperatorRefused, match=words):
        matmul(arguments.pop("x"), arguments.pop("weight"), **arguments)


COUNTED = {"expert_tokens_num_type": 1, "expert_tokens_num_flag": True}


@settings(deadline=None, max_examples=50)
@given(seeds, dtypes, tokens, choices, experts, widths, st.data())
def test_init_routing_agrees_with_a_loop(
    seed: int, dtype: torch.dtype, rows: int, k: int, count: int, width: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    x, chosen, scale = random(seed, rows, width, dtype=dtype), picks(seed, rows, k, count), random(seed + 1, rows)
    slots = chosen.reshape(-1).tolist()
    order = [s for e in range(first, last) for s in range(rows * k) if slots[s] == e]
    common = {"scale": scale, "expert_num": count, "active_expert_range": [first, last], **COUNTED}
    moved, places, counts, scales = route(x, chosen, **common)
    assert moved.shape == (rows * k, width)
    assert torch.equal(moved[: len(order)], x[[s // k for s in order]])
    assert torch.equal(scales[: len(order)], scale[[s // k for s in order]])
    assert places.tolist() == [order.index(s) if s in order else -1 for s in range(rows * k)]
    assert counts.tolist() == [slots.count(e) for e in range(first, last)]
    scattered = route(x, chosen, **{**common, "row_idx_type": 1})[1]
    assert scattered[: len(order)].tolist() == order
    pairs = route(x, chosen, **{**common, "expert_tokens_num_type": 2})[2]
    busy = [[e, slots.count(e)] for e in range(first, last) if e in slots]
    assert pairs.tolist() == busy + [[0, 0]] * (count - len(busy))
    assert (places.dtype, counts.dtype, scales.dtype, pairs.dtype) == (torch.int32, torch.int64, torch.float32, torch.int64)


def test_the_call_that_ms_swift_makes_for_vllm_ascend_is_understood() -> None:
    out = route(
        random(1, 3, 4),
        picks(1, 3, 2, 5),
        scale=None,
        offset=None,
        active_num=0,
        expert_capacity=-1,
        expert_num=5,
        drop_pad_mode=0,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, 5],
        quant_mode=-1,
        row_idx_type=0,
    )
    assert int(out[2].sum()) == 6


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"expert_tokens_num_flag": False}, OperatorRefused),
        ({"expert_tokens_num_type": 0}, OperatorRefused),
        ({"expert_num": -1}, OperatorRefused),
        ({"expert_num": 1}, OperatorRefused),
        ({"active_expert_range": [2, 2]}, OperatorRefused),
        ({"active_expert_range": [0, 9]}, OperatorRefused),
        ({"row_idx_type": 2}, OperatorRefused),
        ({"quant_mode": 1}, NotInReference),
        ({"drop_pad_mode": 1}, NotInReference),
    ],
)
def test_init_routing_refuses_what_it_can_not_do(change: dict[str, object], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        route(random(1, 2, 4), torch.tensor([[0, 2], [1, 2]], dtype=torch.int32), **{"expert_num": 3, **COUNTED, **change})


@pytest.mark.parametrize(
    "call",
    [
        lambda: permute(random(1, 2, 3, 4), torch.zeros(2, 1, dtype=torch.int64)),
        lambda: permute(random(1, 2, 4), torch.zeros(3, 1, dtype=torch.int64)),
        lambda: permute(random(1, 2, 4), torch.zeros(2, 1, dtype=torch.int16)),
        lambda: permute(random(1, 2, 4), torch.zeros(2, 1, dtype=torch.int64), padded_mode=True),
        lambda: permute(random(1, 2, 4), torch.zeros(2, 1, dtype=torch.int64), num_out_tokens=-3),
        lambda: unpermute(random(1, 4, 4), torch.arange(4)),
        lambda: unpermute(random(1, 4, 4), torch.arange(3, dtype=torch.int32)),
        lambda: unpermute(random(1, 4, 4), torch.arange(4, dtype=torch.int32), probs=torch.ones(3, 2)),
        lambda: unpermute(random(1, 4, 4), torch.arange(4, dtype=torch.int32), probs=torch.ones(4)),
        lambda: unpermute(random(1, 4, 4), torch.arange(4, dtype=torch.int32), restore_shape=[4, 4]),
    ],
)
def test_permutations_against_the_contract_are_refused(call: object) -> None:
    with pytest.raises(OperatorRefused):
        call()  # type: ignore[operator]
