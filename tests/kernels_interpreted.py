"""The interpreter's fixes against torch, on micro-kernels. Run by test_kernels_interpreter.py in a process of its own: see there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kernels.interpreter import Engine, prepare

PREPARED = prepare()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from harness.kernels import fla_parts, interpreter_fixes, probes  # noqa: E402
from harness.kernels.launches import counted  # noqa: E402

SIZE = 64
# Zeros, ones, the largest, infinities, NaN, denormals, and a tie's neighbours: drawn more often than their share.
EDGES = [0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F81]
BITS = st.lists(st.sampled_from(EDGES) | st.integers(0, 2**16 - 1), min_size=SIZE, max_size=SIZE)
WORDS = st.lists(
    st.integers(0, 2**32 - 1) | st.sampled_from([edge << 16 | tie for edge in EDGES for tie in (0x7FFF, 0x8000, 0x8001)]),
    min_size=SIZE,
    max_size=SIZE,
)
tried = settings(max_examples=12, deadline=None, derandomize=True, database=None)


def bf16(bits: list[int]) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def float32(words: list[int]) -> torch.Tensor:
    return torch.tensor(words, dtype=torch.int64).to(torch.int32).view(torch.float32)


def same(found: torch.Tensor, right: torch.Tensor) -> None:
    """Equal to the bit, but any NaN is like another."""
    assert found.dtype == right.dtype
    assert torch.equal(torch.isnan(found), torch.isnan(right))
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = [torch.where(torch.isnan(value), torch.zeros_like(value), value).view(kinds[value.element_size()]) for value in (found, right)]
    assert torch.equal(*bits), [(f.item(), r.item()) for f, r in zip(found, right, strict=True) if f != r]


def computed(op: str, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    out = torch.zeros(SIZE, dtype=dtype)
    probes.arithmetic_kernel[(1,)](x, y, out, SIZE=SIZE, OP=op)
    return out


def test_it_says_what_it_replaced_and_why() -> None:
    assert PREPARED.engine is Engine.INTERPRETED and PREPARED.device == "cpu" and PREPARED.triton == triton.__version__
    assert all(": " in line for line in PREPARED.replaced)
    assert prepare() is PREPARED


def test_every_fix_holds_on_its_own_micro_kernel() -> None:
    assert [fix.name for fix in interpreter_fixes.FIXES if not fix.probe()] == []


@tried
@given(BITS, BITS)
def test_bf16_numbers_are_added_multiplied_and_divided_as_torch_does(left: list[int], right: list[int]) -> None:
    x, y = bf16(left), bf16(right)
    same(computed("add", x, y), x + y)
    same(computed("sub", x, y), x - y)
    same(computed("mul", x, y), x * y)
    same(computed("div", x, y), (x.float() / y.float()).bfloat16())
    same(computed("fma", x, y), (x.float() * y.float() + x.float()).bfloat16())
    same(computed("scalar", x, y), x * 1.5 + 2.5)


@tried
@given(BITS, BITS)
def test_bf16_signs_bounds_and_selections_are_those_of_torch(left: list[int], right: list[int]) -> None:
    x, y = bf16(left), bf16(right)
    same(computed("neg", x, y), -x)
    same(computed("abs", x, y), x.abs())
    same(computed("max", x, y).float() + 0.0, torch.fmax(x, y).float() + 0.0)  # + 0.0: which zero is larger nobody says
    same(computed("min", x, y).float() + 0.0, torch.fmin(x, y).float() + 0.0)
    same(computed("clamp", x, y).float() + 0.0, torch.fmin(torch.fmax(x, torch.tensor(-1.0)), torch.tensor(1.0)).float() + 0.0)
    chosen = computed("where", x, y).view(torch.int16)
    assert torch.equal(chosen, torch.where(x > y, x.view(torch.int16), y.view(torch.int16))), "a selection moves bits, those of a NaN too"


@pytest.mark.parametrize(("op", "right"), [("lt", torch.lt), ("le", torch.le), ("eq", torch.eq), ("ne", torch.ne)])
@tried
@given(left=BITS, other=BITS)
def test_bf16_numbers_are_compared_as_numbers(op: str, right: Any, left: list[int], other: list[int]) -> None:
    x, y = bf16(left), bf16(other)
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        out = torch.zeros(SIZE, dtype=dtype)
        probes.compare_kernel[(1,)](x, y, out, SIZE=SIZE, OP=op)
        assert torch.equal(out, right(x, y).to(dtype))


@tried
@given(WORDS)
def test_float32_is_rounded_to_the_nearest_bf16_ties_to_even(words: list[int]) -> None:
    x, out = float32(words), torch.zeros(SIZE, dtype=torch.bfloat16)
    probes.cast_kernel[(1,)](x, out, SIZE=SIZE)
    same(out, x.bfloat16())
    probes.cast_rounded_kernel[(1,)](x, out, SIZE=SIZE, HOW="rtne")
    same(out, x.bfloat16())
    probes.cast_rounded_kernel[(1,)](x, out, SIZE=SIZE, HOW="rtz")
    whole = (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    same(out, torch.where(torch.isnan(x), torch.tensor(float("nan")).bfloat16(), whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32, torch.int64])
@tried
@given(bits=BITS)
def test_bf16_is_cast_to_and_from_other_types_as_torch_does(dtype: torch.dtype, bits: list[int]) -> None:
    x = bf16(bits)
    if not dtype.is_floating_point:
        x = torch.where(torch.isfinite(x), x, torch.ones_like(x)).clamp(-1e6, 1e6)
    out, back = torch.zeros(SIZE, dtype=dtype), torch.zeros(SIZE, dtype=torch.bfloat16)
    probes.cast_kernel[(1,)](x, out, SIZE=SIZE)
    assert torch.equal(out, x.to(dtype)) or dtype.is_floating_point
    if dtype.is_floating_point:
        same(out, x.to(dtype))
    probes.cast_kernel[(1,)](out, back, SIZE=SIZE)
    same(back, out.to(torch.bfloat16))


@pytest.mark.parametrize("value", [0.0, 1.0, -2.7, 1 / 3, 3.4e38, 1e-40, float("inf")])
def test_bf16_constants_are_rounded(value: float) -> None:
    out = torch.zeros(SIZE, dtype=torch.bfloat16)
    probes.full_kernel[(1,)](out, SIZE=SIZE, VALUE=value)
    same(out, torch.full((SIZE,), value, dtype=torch.float32).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16, 16, 16), (16, 64, 32), (1, 4, 2)])
def test_a_dot_accumulates_in_float32_onto_what_was_there(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(m, k, generator=generator).to(dtype), torch.randn(k, n, generator=generator).to(dtype)
    start, out = torch.randn(m, n, generator=generator), torch.zeros(m, n)
    probes.dot_kernel[(1,)](x, y, start, out, M=m, K=k, N=n)
    assert torch.allclose(out.double(), start.double() + x.double() @ y.double(), atol=1e-5)


@pytest.mark.parametrize("op", ["sum", "own", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reductions_of_bf16_are_those_of_its_numbers(dtype: torch.dtype, op: str) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(5)).bfloat16()
    out = torch.zeros(4, dtype=dtype)
    probes.reduce_kernel[(1,)](x, out, M=4, N=16, OP=op)
    right = {"sum": x.double().sum(1), "own": x.double().sum(1), "max": x.double().amax(1), "min": x.double().amin(1)}[op]
    exact = op in ("max", "min")
    assert torch.allclose(out.double(), right, rtol=0 if exact else 2**-7, atol=0 if exact else 2**-5)


def test_a_largest_or_smallest_passes_over_nan_and_sees_negative_numbers() -> None:
    x = torch.tensor([[-3.0, float("nan"), -1.0, -2.0]] * 2).bfloat16()
    for op, right in (("max", -1.0), ("min", -3.0)):
        out = torch.zeros(2, dtype=torch.bfloat16)
        probes.reduce_kernel[(1,)](x, out, M=2, N=4, OP=op)
        assert out.tolist() == [right, right]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["sum", "prod", "own"])
def test_scans_of_bf16_are_those_of_its_numbers(op: str, reverse: bool) -> None:
    x = (1 + torch.randn(16, generator=torch.Generator().manual_seed(5)) / 4).bfloat16()
    out = torch.zeros(16)
    probes.scan_kernel[(1,)](x, out, SIZE=16, OP=op, REVERSE=reverse)
    turned = x.double().flip(0) if reverse else x.double()
    right = turned.cumprod(0) if op == "prod" else turned.cumsum(0)
    assert torch.allclose(out.double(), right.flip(0) if reverse else right, rtol=2**-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_atomic_sums_count_each_part_also_at_one_address(dtype: torch.dtype) -> None:
    x, at, out = torch.arange(1.0, 9.0).to(dtype), torch.tensor([0, 1, 0, 0, 3, 3, 3, 2]), torch.ones(5, dtype=dtype)
    probes.atomic_kernel[(1,)](x, at, out, SIZE=8)
    assert out.tolist() == [9.0, 3.0, 9.0, 19.0, 1.0]


@tried
@given(st.integers(-5, 5), st.integers(-5, 5), st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_a_loop_goes_where_range_goes_and_its_index_is_a_tensor(start: int, stop: int, step: int) -> None:
    out, right = torch.full((10,), -99), [2 * i for i in range(start, stop, step)]
    probes.loop_kernel[(1,)](out, start, stop, step)
    assert out.tolist() == right + [-99] * (10 - len(right))


@triton.jit
def _index_kernel(wide, out):
    for i in range(tl.load(wide)):
        tl.store(out, i.dtype.primitive_bitwidth)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.int64, 64), (torch.int32, 32)])
def test_an_index_is_as_wide_as_its_bounds(dtype: torch.dtype, bits: int) -> None:
    out = torch.zeros(1, dtype=torch.int64)
    _index_kernel[(1,)](torch.tensor([1], dtype=dtype), out)
    assert out.item() == bits


def test_a_module_of_kernels_keeps_its_own_range() -> None:
    probes.loop_kernel[(1,)](torch.zeros(4, dtype=torch.int64), 0, 4, 1)
    assert vars(probes).get("range", range) is range


@pytest.mark.parametrize(("count", "last"), [(1, 0), (2, 1), (3, 1), (4, 3), (5, 3)])
def test_every_program_runs_once_and_odd_ones_last(count: int, last: int) -> None:
    out, seen = torch.zeros(1, dtype=torch.int64), torch.zeros(count)
    probes.last_kernel[(count,)](out)
    _once_kernel[(count,)](seen)
    assert out.item() == last and seen.tolist() == [1.0] * count


@triton.jit
def _once_kernel(seen):
    tl.atomic_add(seen + tl.program_id(0), 1.0)


@pytest.mark.parametrize("size", [1, 16, 17, 40])
def test_an_autotuned_kernel_takes_its_first_configuration(size: int) -> None:
    x, out = torch.arange(float(size)), torch.zeros(size)
    probes.tuned_kernel[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, out, size)
    assert torch.equal(x, out) and probes.tuned_kernel.best_config.kwargs == {"BLOCK": 16}


def _with_hook(arguments: dict[str, Any]) -> None:
    arguments["out"].fill_(-1.0)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 16, "multibuffer": True}, pre_hook=_with_hook),
        triton.Config({"BLOCK": 32}),
    ],
    key=[],
    prune_configs_by={"early_config_prune": lambda configs, named, **others: configs[:1]},
)
@triton.jit
def _hooked_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


def test_its_hook_is_called_and_an_option_of_another_compiler_is_left_out() -> None:
    x, out = torch.ones(16), torch.zeros(20)
    _hooked_kernel[(1,)](x, out)
    assert out.tolist() == [1.0] * 16 + [-1.0] * 4


def test_launches_are_counted_by_kernel_and_blocks_nest() -> None:
    x, y = torch.ones(SIZE).bfloat16(), torch.ones(SIZE).bfloat16()
    with counted() as outer:
        computed("add", x, y)
        with counted() as inner:
            probes.cast_kernel[(1,)](x, torch.zeros(SIZE), SIZE=SIZE)
            probes.cast_kernel[(1,)](x, torch.zeros(SIZE), SIZE=SIZE)
        computed("mul", x, y)
    assert inner == {"cast_kernel": 2} and outer == {"cast_kernel": 2, "arithmetic_kernel": 2}


def test_plain_torch_and_a_launch_that_dies_count_nothing() -> None:
    with counted() as seen:
        torch.ones(4).bfloat16() + 1
        with pytest.raises(Exception, match="unknown"):
            _dying_kernel[(1,)](torch.zeros(1))
    assert not seen


@triton.jit
def _dying_kernel(out):
    tl.static_assert(False, "unknown")


def test_what_lies_beside_a_tensor_is_not_a_number() -> None:
    given = torch.arange(6.0).reshape(2, 3).requires_grad_()
    found = fla_parts.there({"x": given, "count": torch.tensor([3])})
    storage = found["x"].untyped_storage()
    whole = torch.empty(0).set_(storage)
    begin = found["x"].storage_offset()
    assert torch.equal(found["x"], given) and found["x"].is_contiguous() and found["count"].item() == 3
    assert torch.isnan(whole[:begin]).all() and torch.isnan(whole[begin + 6 :]).all() and begin > 1000
    assert torch.equal(torch.autograd.grad(found["x"].sum(), given)[0], torch.ones(2, 3))


def test_what_a_kernel_does_not_write_is_not_a_number_while_it_is_counted() -> None:
    with fla_parts.launched() as seen:
        assert torch.isnan(torch.empty(3)).all() and torch.isnan(torch.ones(2).new_empty(4)).all()
        probes.cast_kernel[(1,)](torch.ones(SIZE), torch.zeros(SIZE), SIZE=SIZE)
    assert seen == {"cast_kernel": 1} and not torch.are_deterministic_algorithms_enabled()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    import numpy as np

    with np.errstate(all="ignore"):
        yield
