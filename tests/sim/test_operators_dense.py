"""Norm, rotary embedding, activation, routing and grouped products against formulas in float64 that share no code with them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_numbers import LIMITS, dtypes, error, random, seeds

from harness.sim.operators import DIFFERENTIABLE, OPERATORS, NotInReference, OperatorRefused


def check(operator: Callable[..., torch.Tensor], formula: Callable[..., torch.Tensor], seed: int, *inputs: torch.Tensor) -> None:
    """Output and the gradient of every input, with the same random gradient coming in."""
    ours = [t.clone().requires_grad_() for t in inputs]
    exact = [t.double().requires_grad_() for t in inputs]
    found, expected = operator(*ours), formula(*exact)
    limit = LIMITS[inputs[0].dtype]
    assert found.dtype == inputs[0].dtype
    assert error(found, expected) <= limit
    incoming = random(seed + 1, *found.shape, dtype=found.dtype)
    for got, want in zip(torch.autograd.grad(found, ours, incoming), torch.autograd.grad(expected, exact, incoming.double()), strict=True):
        assert error(got, want) <= 2 * limit  # a broadcast input adds up what was rounded


@settings(deadline=None, max_examples=40)
@given(seeds, dtypes, st.lists(st.integers(1, 4), max_size=3), st.integers(8, 40), st.booleans(), st.sampled_from([1e-6, 1e-5]))
def test_rms_norm_is_its_formula(seed: int, dtype: torch.dtype, lead: list[int], width: int, wide_gamma: bool, epsilon: float) -> None:
    x = random(seed, *lead, width, dtype=dtype)
    gamma = random(seed + 2, width, dtype=torch.float32 if wide_gamma else dtype)

    def formula(a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return a / (a.pow(2).sum(-1, keepdim=True) / width + epsilon).sqrt() * g

    check(lambda a, g: OPERATORS["npu_rms_norm"](a, g, epsilon=epsilon)[0], formula, seed, x, gamma)
    rstd = OPERATORS["npu_rms_norm"](x, gamma, epsilon)[1]
    assert rstd.dtype == torch.float32
    assert rstd.shape == (*lead, 1)
    assert error(rstd, 1 / (x.double().pow(2).mean(-1, keepdim=True) + epsilon).sqrt()) < 2e-6


def test_rms_norm_over_two_dimensions_keeps_both_as_one_in_its_statistic() -> None:
    x, gamma = random(1, 2, 3, 4, 8), random(2, 4, 8)
    y, rstd = OPERATORS["npu_rms_norm"](x, gamma)
    assert rstd.shape == (2, 3, 1, 1)
    assert error(y, x.double() * rstd.double() * gamma.double()) < 2e-6


def test_the_statistic_of_rms_norm_carries_no_gradient() -> None:
    assert not OPERATORS["npu_rms_norm"](random(1, 2, 8).requires_grad_(), random(2, 8))[1].requires_grad


def rotate(x: torch.Tensor, interleave: bool) -> torch.Tensor:
    """By complex numbers: (first, second) of a pair times i is (-second, first)."""
    pairs = x.unflatten(-1, (-1, 2)) if interleave else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * 1j)
    return (turned if interleave else turned.transpose(-1, -2)).flatten(-2)


@settings(deadline=None, max_examples=40)
@given(seeds, dtypes, st.tuples(*[st.integers(1, 4)] * 3), st.integers(1, 10), st.booleans(), st.sets(st.integers(0, 2)))
def test_rotary_mul_is_its_formula(
    seed: int, dtype: torch.dtype, lead: tuple[int, int, int], half: int, interleave: bool, spread: set[int]
) -> None:
    x = random(seed, *lead, 2 * half, dtype=dtype)
    table = [1 if i in spread else n for i, n in enumerate(lead)] + [2 * half]
    cos, sin = random(seed + 2, *table, dtype=dtype), random(seed + 3, *table, dtype=dtype)
    mode = "interleave" if interleave else "half"
    check(lambda *a: OPERATORS["npu_rotary_mul"](*a, mode), lambda a, c, s: c * a + s * rotate(a, interleave), seed, x, cos, sin)


def test_rotary_mul_takes_the_rotation_as_a_matrix_too() -> None:
    x, cos, sin = random(1, 2, 3, 4, 6), random(2, 1, 3, 1, 6), random(3, 1, 3, 1, 6)
    matrix = torch.zeros(6, 6)
    matrix[:3, 3:], matrix[3:, :3] = torch.eye(3), -torch.eye(3)
    rotary = OPERATORS["npu_rotary_mul"]
    assert torch.equal(rotary(x, cos, sin, "half", matrix), rotary(x, cos, sin))


@settings(deadline=None, max_examples=40)
@given(seeds, dtypes, st.lists(st.integers(1, 4), max_size=3), st.integers(1, 9), st.integers(0, 3))
def test_swiglu_is_its_formula(seed: int, dtype: torch.dtype, lead: list[int], half: int, at: int) -> None:
    dim = min(at, len(lead))
    shape = [*lead[:dim], 2 * half, *lead[dim:]]

    def formula(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.narrow(dim, 0, half), x.narrow(dim, half, half)
        return gate / (1 + (-gate).exp()) * up

    check(lambda x: OPERATORS["npu_swiglu"](x, dim), formula, seed, random(seed, *shape, dtype=dtype))


def test_under_autocast_the_operators_compute_in_the_dtypes_that_they_are_given() -> None:
    x, gamma = random(1, 4, 8), random(2, 8)
    plain = OPERATORS["npu_rms_norm"](x, gamma)[0]
    sizes, weight = torch.tensor([1, 3]), random(3, 2, 8, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(OPERATORS["npu_rms_norm"](x, gamma)[0], plain)
        product = OPERATORS["npu_grouped_matmul"]([x], [weight], group_list=sizes, split_item=2, group_type=0, group_list_type=1)[0]
    assert product.dtype == torch.float32


@pytest.mark.parametrize("name", [n for n, differentiable in DIFFERENTIABLE.items() if not differentiable and "attention" not in n])
def test_what_the_real_wheel_can_not_differentiate_gives_no_gradient(name: str) -> None:
    x = random(1, 4, 8).requires_grad_()
    if name == "npu_grouped_matmul":
        out = OPERATORS[name]([x], [random(2, 2, 8, 3).requires_grad_()], group_list=torch.tensor([2, 4]), split_item=3, group_type=0)
    else:
        chosen = torch.zeros(4, 2, dtype=torch.int32)
        out = OPERATORS[name](x, chosen, expert_num=2, expert_tokens_num_type=1, expert_tokens_num_flag=True)
    assert not any(t.requires_grad for t in out)
    assert torch.is_grad_enabled()


@settings(deadline=None, max_examples=40)
@given(seeds, dtypes, st.integers(1, 5), st.integers(2, 9), st.sampled_from(["mean", "sum", "none"]), st.booleans())
def test_cross_entropy_is_its_formula(seed: int, dtype: torch.dtype, rows: int, classes: int, reduction: str, weighted: bool) -> None:
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))
    weight = random(seed + 2, classes).abs() + 0.1 if weighted and reduction != "mean" else None

    def formula(x: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(classes).double() if weight is None else weight.double()
        each = torch.stack([(x[i].exp().sum().log() - x[i, t]) * scale[t] for i, t in enumerate(target.tolist())])
        return each if reduction == "none" else (each.mean() if reduction == "mean" else each.sum()).reshape(1)

    loss = OPERATORS["npu_cross_entropy_loss"]
    check(lambda x: loss(x, target, weight, reduction)[0], formula, seed, random(seed, rows, classes, dtype=dtype))


def test_the_log_of_probabilities_that_cross_entropy_gives_carries_no_gradient() -> None:
    x = random(1, 3, 5).requires_grad_()
    found = OPERATORS["npu_cross_entropy_loss"](x, torch.tensor([0, 1, 4]))
    assert torch.allclose(found[1], torch.log_softmax(x, 1), rtol=1e-6)
    assert [t.requires_grad for t in found] == [True, False, False, False]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "float64 norm": (lambda: OPERATORS["npu_rms_norm"](random(1, 2, 8).double(), random(2, 8).double()), "float64"),
    "gamma of another 16-bit dtype": (lambda: OPERATORS["npu_rms_norm"](random(1, 2, 8).half(), random(2, 8).bfloat16()), "gamma is"),
    "gamma narrower than wide input": (lambda: OPERATORS["npu_rms_norm"](random(1, 2, 8), random(2, 8).bfloat16()), "gamma is"),
    "gamma of another size": (lambda: OPERATORS["npu_rms_norm"](random(1, 2, 8), random(2, 4)), "isn't the end"),
    "gamma with more dimensions": (lambda: OPERATORS["npu_rms_norm"](random(1, 8), random(2, 2, 1, 8)), "isn't the end"),
    "rotary of rank 3": (lambda: OPERATORS["npu_rotary_mul"](random(1, 2, 3, 8), random(1, 2, 3, 8), random(1, 2, 3, 8)), "it must have 4"),
    "rotary of odd width": (lambda: OPERATORS["npu_rotary_mul"](*[random(1, 1, 2, 3, 7)] * 3), "even"),
    "rotary mode": (lambda: OPERATORS["npu_rotary_mul"](*[random(1, 1, 2, 3, 8)] * 3, "quarter"), "quarter"),
    "rotary tables of another dtype": (
        lambda: OPERATORS["npu_rotary_mul"](random(1, 1, 2, 3, 8).bfloat16(), *[random(1, 1, 2, 3, 8)] * 2),
        "they must be equal",
    ),
    "rotary tables of half the width": (lambda: OPERATORS["npu_rotary_mul"](random(1, 1, 2, 3, 8), *[random(1, 1, 2, 3, 4)] * 2), "spread"),
    "rotary tables of different shapes": (
        lambda: OPERATORS["npu_rotary_mul"](random(1, 2, 2, 3, 8), random(1, 2, 2, 3, 8), random(1, 1, 2, 3, 8)),
        "differ in shape",
    ),
    "odd swiglu": (lambda: OPERATORS["npu_swiglu"](random(1, 2, 7)), "must be even"),
    "integer swiglu": (lambda: OPERATORS["npu_swiglu"](torch.ones(2, 8, dtype=torch.int32)), "int32"),
    "classes that aren't there": (lambda: OPERATORS["npu_cross_entropy_loss"](random(1, 2, 4), torch.tensor([0, -100])), "class outside"),
    "a gradient of smoothed labels": (
        lambda: OPERATORS["npu_cross_entropy_loss"](random(1, 2, 4).requires_grad_(), torch.tensor([0, 1]), label_smoothing=0.1),
        "label_smoothing has no gradient",
    ),
    "a gradient of a weighted mean": (
        lambda: OPERATORS["npu_cross_entropy_loss"](random(1, 2, 4).requires_grad_(), torch.tensor([0, 1]), random(2, 4).abs()),
        "only with every argument at its default",
    ),
    "a loss without a reduction that exists": (
        lambda: OPERATORS["npu_cross_entropy_loss"](random(1, 2, 4), torch.tensor([0, 1]), reduction="median"),
        "median",
    ),
    "swiglu over a dimension that isn't there": (lambda: OPERATORS["npu_swiglu"](random(1, 2, 8), 2), "out of range"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_against_the_contract_is_refused_and_says_why(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(OperatorRefused, match=words):
        call()


def test_devices_are_not_mixed() -> None:
    with pytest.raises(OperatorRefused, match=r"on meta and the first input on cpu"):
        OPERATORS["npu_rms_norm"](random(1, 2, 8), random(2, 8).to("meta"))


def test_what_only_the_reference_lacks_is_told_apart() -> None:
    with pytest.raises(NotInReference, match="quantise"):
        OPERATORS["npu_grouped_matmul"]([random(1, 2, 4)], [random(2, 4, 4)], scale=[random(3, 4)])


def test_the_formulas_of_these_tests_are_in_double_precision() -> None:
    assert math.isclose(float(rotate(torch.tensor([1.0, 2.0], dtype=torch.float64), True)[0]), -2.0)
