"""What Triton's interpreter gets wrong on CPU tensors, each with the micro-kernel that shows it and what puts it right.

Seen in Triton 3.7.1 and 3.8.0. Sums and the like of bf16 are computed in float32 and rounded once: in which order a compiled kernel adds,
and with how many digits, its compiler decides, and this is the best that the dtype can do. A kernel's own combination rounds each step.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import autotuner
from triton.runtime import interpreter as stock

from harness.kernels import probes
from harness.kernels.bfloat16 import narrow, truncate, widen
from harness.kernels.interpreter import Fix

Handle = Any
_LOOP = "_loop_of_tensors"
_builder: Any = stock.InterpreterBuilder


# Loops: a compiled kernel's index is a tensor, the interpreter's a Python int that has no `.to`.


def loop(first: Any, second: Any = None, step: Any = 1, **hints: Any) -> Iterator[Any]:
    """range() and tl.range() with tensors for an index: int64 where a bound is, else int32. Hints to the compiler are of no account."""
    bounds = (0, first, step) if second is None else (first, second, step)
    wide = any(isinstance(bound, tl.core.tensor) and bound.dtype == tl.int64 for bound in bounds)
    dtype, kept = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for index in builtins.range(*map(_whole, bounds)):
        yield tl.core.tensor(stock.TensorHandle(np.array([index], dtype=kept), dtype), dtype)


def _whole(bound: Any) -> int:
    if isinstance(bound, tl.core.tensor):
        return int(bound.handle.data.squeeze())
    return int(getattr(bound, "value", bound))


class _Transformer(stock.ASTTransformer):  # type: ignore[misc]
    """The interpreter's own rewriting of a kernel's source, and the loops."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) in ("range", "tl.range"):
            node.iter.func = ast.copy_location(ast.Name(id=_LOOP, ctx=ast.Load()), node.iter.func)
        return node


def _fix_loops() -> None:
    stock.FunctionRewriter.ast_transformer = _Transformer()
    _before_rewriting(lambda names: names.setdefault(_LOOP, loop))


def _before_rewriting(act: Any) -> None:
    """`act` on a kernel's global names before its rewritten source is compiled."""
    rewrite = stock.FunctionRewriter._compile_and_exec

    def rewriting(self: Any, tree: Any) -> Any:
        act(self.fn.__globals__)
        return rewrite(self, tree)

    stock.FunctionRewriter._compile_and_exec = rewriting
    stock.InterpretedFunction.rewritten_fn.clear()  # what was rewritten before stays as it was otherwise


def _loops_are_tensors() -> bool:
    one, other = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    probes.loop_kernel[(1,)](one, 9, 1, -2)
    probes.tl_loop_kernel[(1,)](other, 4)
    return one.tolist() == [18, 14, 10, 6] and other.tolist() == [0, 2, 4, 6]


# Builtins by another name: the interpreter replaces the attributes of tl only.


def _fix_aliases() -> None:
    def replace(names: dict[str, Any]) -> None:
        for name, value in list(names.items()):
            if callable(value) and tl.core.is_builtin(value):
                names[name] = partial(value, _semantic=stock.interpreter_semantic)

    _before_rewriting(replace)


def _aliases_work() -> bool:
    x, out = torch.linspace(-2, 2, 16), torch.zeros(16)
    probes.alias_kernel[(1,)](x, out, SIZE=16)
    return torch.allclose(out, x.exp())


# Speed: every call of a device function looks through all of tl again, a third of the time of a kernel.


def _fix_patching() -> None:
    plain = stock._patch_lang
    done: set[int] = set()

    def patch(fn: Any) -> Any:
        if id(fn.__globals__) in done:
            return None
        outermost, scope = not done, plain(fn)
        done.add(id(fn.__globals__))
        if outermost:  # the launch itself, which takes its patches back at its end
            restore = scope.restore

            def take_back() -> None:
                done.clear()
                restore()

            scope.restore = take_back
        return scope

    stock._patch_lang = patch


def _patches_once() -> bool:
    return stock._patch_lang.__module__ == __name__ or not hasattr(stock, "_LangPatchScope")


# Order: on a device programs run at once. One after another, from the first to the last, each would put right what the one before it wrote
# into its part.


def _fix_order() -> None:
    plain = _builder.set_grid_idx

    def set_grid_idx(self: Any, *index: int) -> None:
        plain(self, *(_evens_first(at, count) for at, count in zip(index, self.grid_dim, strict=True)))

    _builder.set_grid_idx = set_grid_idx


def _evens_first(at: int, count: int) -> int:
    """0, 2, 4, ... and then 1, 3, ...: of two neighbours now the one and now the other comes first."""
    half = (count + 1) // 2
    return 2 * at if at < half else 2 * (at - half) + 1


def _order_is_mixed() -> bool:
    out = torch.zeros(1, dtype=torch.int64)
    probes.last_kernel[(3,)](out)
    return out.item() == 1


# The autotuner: times its candidates on a device that isn't there.


def _run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The first configuration that pruning leaves; num_warps and the like mean nothing here, and which is fastest neither."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = self.prune_configs(kwargs)[0]
    self.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
    # A configuration of triton-ascend also carries options of its compiler, which the kernel doesn't take.
    known = {name: value for name, value in config.kwargs.items() if name in self.arg_names}
    try:
        return self.fn.run(*args, **kwargs, **known)
    finally:
        self.nargs = None


def _fix_autotuner() -> None:
    autotuner.Autotuner.run = _run_first


def _autotuner_runs() -> bool:
    x, out = torch.arange(40.0), torch.zeros(40)
    probes.tuned_kernel[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, out, 40)
    return torch.equal(x, out)


# bf16, which is kept as bit patterns: every number that is made of others must be widened before and rounded after.


def _is_bf16(handle: Handle) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _wide(handle: Handle) -> Handle:
    return stock.TensorHandle(widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _narrow(handle: Handle) -> Handle:
    if handle.data.dtype == np.bool_:  # of a comparison; under the name of its operands' dtype it would be widened again
        return stock.TensorHandle(handle.data, tl.int1)
    return stock.TensorHandle(narrow(handle.data), tl.bfloat16)


def _lift(name: str, operands: int) -> None:
    plain = getattr(_builder, name)

    def lifted(self: Any, *args: Any) -> Handle:
        handles, rest = args[:operands], args[operands:]
        if np.where in rest or not any(_is_bf16(handle) for handle in handles):  # a selection only moves bits
            return plain(self, *args)
        return _narrow(plain(self, *map(_wide, handles), *rest))

    setattr(_builder, name, lifted)


def _fix_arithmetic() -> None:
    for name, operands in (("binary_op", 2), ("unary_op", 1), ("ternary_op", 3), ("create_fma", 3), ("create_rsqrt", 1)):
        _lift(name, operands)
    _builder.get_bf16 = lambda self, value: stock.TensorHandle(narrow(np.array([value], dtype=np.float32)), tl.bfloat16)


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(64, generator=generator).bfloat16(), torch.randn(64, generator=generator).bfloat16()


def _arithmetic_rounds() -> bool:
    x, y = _pair()
    expected = {"add": x + y, "sub": x - y, "mul": x * y, "neg": -x, "abs": x.abs(), "where": torch.maximum(x, y), "scalar": x * 1.5 + 2.5}
    for op, right in expected.items():
        out = torch.zeros_like(x)
        probes.arithmetic_kernel[(1,)](x, y, out, SIZE=64, OP=op)
        if not torch.equal(out, right):
            return False
    less = torch.zeros(64)
    probes.compare_kernel[(1,)](x, y, less, SIZE=64, OP="lt")
    return torch.equal(less, (x < y).float())


def _fix_casts() -> None:
    plain, rounded = _builder.cast_impl, _builder.create_fp_to_fp
    ordinary = (tl.float16, tl.bfloat16, tl.float32, tl.float64)

    def cast(self: Any, source: Handle, to: Any) -> Handle:
        if _is_bf16(source):
            if to.scalar == tl.bfloat16:
                return source
            return _wide(source) if to.scalar == tl.float32 else plain(self, _wide(source), to)
        if to.scalar == tl.bfloat16:
            return stock.TensorHandle(narrow(source.data), tl.bfloat16)
        return plain(self, source, to)

    def cast_rounded(self: Any, source: Handle, to: Any, mode: Any) -> Handle:
        if source.dtype.scalar not in ordinary or to.scalar not in ordinary:
            return rounded(self, source, to, mode)
        if to.scalar == tl.bfloat16 and mode == stock._ir.ROUNDING_MODE.RTZ:
            return stock.TensorHandle(truncate(_wide(source).data), tl.bfloat16)
        if mode == stock._ir.ROUNDING_MODE.RTZ:
            return rounded(self, _wide(source), to, mode)
        return cast(self, source, to)

    _builder.cast_impl, _builder.create_fp_to_fp = cast, cast_rounded


def _casts_round_to_even() -> bool:
    # Ties (1 + 2^-8 and 1 + 3 * 2^-8), the first number that rounds to infinity, a denormal, and ordinary ones.
    hard = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.3961776e38, 1e-40, -0.0, float("inf"), 1 / 3, -2.71828], dtype=torch.float32)
    whole, down, up, from_whole = torch.arange(-4, 4), torch.zeros(8).bfloat16(), torch.zeros(8), torch.zeros(8).bfloat16()
    probes.cast_kernel[(1,)](hard, down, SIZE=8)
    probes.cast_kernel[(1,)](hard.bfloat16(), up, SIZE=8)
    probes.cast_kernel[(1,)](whole, from_whole, SIZE=8)
    return torch.equal(down, hard.bfloat16()) and torch.equal(up, hard.bfloat16().float()) and torch.equal(from_whole, whole.bfloat16())


def _fix_dot() -> None:
    plain = _builder.create_dot

    def dot(self: Any, a: Handle, b: Handle, accumulator: Handle, *how: Any) -> Handle:
        return plain(self, _wide(a), _wide(b), accumulator, *how)

    _builder.create_dot = dot


def _dot_accumulates() -> bool:
    x, y = (value[:16].reshape(4, 4) for value in _pair())
    start, out = torch.ones(4, 4), torch.zeros(4, 4)
    probes.dot_kernel[(1,)](x, y, start, out, M=4, K=4, N=4)
    return torch.allclose(out, start + x.float() @ y.float(), atol=1e-6)


def _fix_reductions() -> None:
    for owner, names in ((stock.ReduceOps, ("min_max", "sum")), (stock.ScanOps, ("cumsum", "cumprod"))):
        for name in names:
            _lift_reduction(owner, name)


def _lift_reduction(owner: Any, name: str) -> None:
    plain = getattr(owner, name)

    def lifted(self: Any, operand: Any, *how: Any, **named: Any) -> Any:
        tensor = operand[0] if isinstance(operand, tuple) else operand
        if tensor.dtype.scalar != tl.bfloat16:
            return plain(self, operand, *how, **named)
        widened = tl.core.tensor(_wide(tensor.handle), _of_float32(tensor.type))
        found = plain(self, widened, *how, **named)
        if isinstance(found, (list, tuple)):
            return type(found)(map(_rounded, found))
        return _rounded(found)

    setattr(owner, name, lifted)


def _of_float32(kind: Any) -> Any:
    return tl.block_type(tl.float32, list(kind.shape)) if kind.is_block() else tl.float32


def _rounded(tensor: Any) -> Any:
    """A float32 result in bf16 again; an index stays."""
    if tensor.dtype.scalar != tl.float32:
        return tensor
    kind = tl.block_type(tl.bfloat16, list(tensor.type.shape)) if tensor.type.is_block() else tl.bfloat16
    return tl.core.tensor(stock.TensorHandle(narrow(tensor.handle.data), tl.bfloat16), kind)


def _reductions_add_numbers() -> bool:
    x = _pair()[0].reshape(4, 16)
    total, least, running = torch.zeros(4), torch.zeros(4), torch.zeros(16)
    probes.reduce_kernel[(1,)](x, total, M=4, N=16, OP="sum")
    probes.reduce_kernel[(1,)](x, least, M=4, N=16, OP="min")
    probes.scan_kernel[(1,)](x[0].contiguous(), running, SIZE=16, OP="sum", REVERSE=False)
    sums = x.float().sum(1), x[0].float().cumsum(0)
    near = torch.allclose(total, sums[0], rtol=2**-7) and torch.allclose(running, sums[1], rtol=2**-7)
    return near and torch.equal(least, x.float().min(1).values)


def _fix_atomics() -> None:
    plain = _builder.create_atomic_rmw

    def atomic(self: Any, op: Any, pointers: Handle, values: Handle, mask: Handle, *how: Any) -> Handle:
        if not _is_bf16(values):
            return plain(self, op, pointers, values, mask, *how)
        if op != stock._ir.ATOMIC_OP.FADD:
            raise ValueError(f"{op} of bf16: Triton itself knows the sum only")
        at, parts, chosen = (np.broadcast_to(handle.data, pointers.data.shape).flatten() for handle in (pointers, values, mask))
        before = np.zeros(at.shape, dtype=np.uint16)
        for i in np.flatnonzero(chosen):  # one after the other, since addresses may repeat
            place = stock.TensorHandle(at[i : i + 1], pointers.dtype)
            old = self.create_load(place, None, None, False)
            before[i] = old.data[0]
            new = stock.TensorHandle(narrow(widen(old.data) + widen(parts[i : i + 1])), tl.bfloat16)
            self.create_store(place, new, None, None)
        return stock.TensorHandle(before.reshape(pointers.data.shape), tl.bfloat16)

    _builder.create_atomic_rmw = atomic


def _atomics_add() -> bool:
    at, out = torch.tensor([0, 1, 0, 0]), torch.zeros(2).bfloat16()
    probes.atomic_kernel[(1,)](torch.tensor([1.0, 2.0, 3.0, 0.5]).bfloat16(), at, out, SIZE=4)
    return out.tolist() == [4.5, 2.0]


FIXES = (
    Fix("loops", "the index of range() is a Python int, in a compiled kernel a tensor", _loops_are_tensors, _fix_loops),
    Fix("aliases", "a builtin that a module calls by a name of its own is refused", _aliases_work, _fix_aliases),
    Fix("speed", "each call of a device function patches the language again", _patches_once, _fix_patching),
    Fix(
        "order",
        "programs run from the first to the last, and each overwrites what the one before it wrote too far",
        _order_is_mixed,
        _fix_order,
    ),
    Fix("autotuner", "configurations are timed, which takes a device", _autotuner_runs, _fix_autotuner),
    Fix("casts to bf16", "float32 is cut off instead of rounded, whole numbers become bit patterns", _casts_round_to_even, _fix_casts),
    Fix("bf16 arithmetic", "numbers are added, multiplied and compared as bit patterns", _arithmetic_rounds, _fix_arithmetic),
    Fix("bf16 dot", "matrices of bit patterns are multiplied", _dot_accumulates, _fix_dot),
    Fix("bf16 reductions and scans", "bit patterns are summed and compared", _reductions_add_numbers, _fix_reductions),
    Fix("bf16 atomics", "they are refused", _atomics_add, _fix_atomics),
)
