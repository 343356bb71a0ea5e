"""Micro-kernels, one for each thing that Triton's interpreter gets wrong on CPU tensors: its fixes are tried on them, and tested by them.

Import only after harness.kernels.interpreter.prepare() has decided how Triton runs here. Annotations are real objects: Triton reads them.
"""

import triton
import triton.language as tl

aliased_exp = tl.exp


@triton.jit
def loop_kernel(out, start, stop, step):
    """out[j] = 2 * i for the j-th i of range(start, stop, step): the index is a tensor, as in a compiled kernel."""
    j = 0
    for i in range(start, stop, step):
        tl.store(out + j, i.to(tl.int64) * 2)
        j = j + 1


@triton.jit
def tl_loop_kernel(out, stop):
    """As loop_kernel, over tl.range."""
    for i in tl.range(0, stop, num_stages=2):
        tl.store(out + i, i.to(tl.int64) * 2)


@triton.jit
def last_kernel(out):
    """out = the program that stores last."""
    tl.store(out, tl.program_id(0))


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["size"])
@triton.jit
def tuned_kernel(x, out, size, BLOCK: tl.constexpr):
    """out = x, in blocks whose size the autotuner chooses."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < size), mask=at < size)


@triton.jit
def alias_kernel(x, out, SIZE: tl.constexpr):
    """out = exp(x) by a name that a module gave to tl.exp."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, aliased_exp(tl.load(x + at)))


@triton.jit
def cast_kernel(x, out, SIZE: tl.constexpr):
    """out = x in out's dtype."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def cast_rounded_kernel(x, out, SIZE: tl.constexpr, HOW: tl.constexpr):
    """out = x in out's dtype, rounded as HOW says: rtne, rtz."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty, fp_downcast_rounding=HOW))


@triton.jit
def arithmetic_kernel(x, y, out, SIZE: tl.constexpr, OP: tl.constexpr):  # noqa: C901
    """out = x OP y, element by element; the result in the dtype that Triton gives it, rounded to out's."""
    at = tl.arange(0, SIZE)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "neg":
        r = -a
    elif OP == "abs":
        r = tl.abs(a)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "max":
        r = tl.maximum(a, b)
    elif OP == "min":
        r = tl.minimum(a, b)
    elif OP == "clamp":
        r = tl.clamp(a, -1.0, 1.0)
    elif OP == "scalar":
        r = a * 1.5 + 2.5
    elif OP == "where":
        r = tl.where(a > b, a, b)
    elif OP == "exp":
        r = tl.exp(a.to(tl.float32))
    tl.store(out + at, r)


@triton.jit
def compare_kernel(x, y, out, SIZE: tl.constexpr, OP: tl.constexpr):
    """out = 1 where x OP y, else 0, in out's dtype."""
    at = tl.arange(0, SIZE)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if OP == "lt":
        r = a < b
    elif OP == "le":
        r = a <= b
    elif OP == "eq":
        r = a == b
    elif OP == "ne":
        r = a != b
    tl.store(out + at, r.to(out.dtype.element_ty))


@triton.jit
def full_kernel(out, SIZE: tl.constexpr, VALUE: tl.constexpr):
    """out = VALUE, made in out's dtype."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.full([SIZE], VALUE, out.dtype.element_ty))


@triton.jit
def dot_kernel(x, y, z, out, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """out = z + x @ y, accumulated in z's dtype."""
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    a = tl.load(x + m[:, None] * K + k[None, :])
    b = tl.load(y + k[:, None] * N + n[None, :])
    acc = tl.load(z + m[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(a, b, acc, allow_tf32=False))


@triton.jit
def reduce_kernel(x, out, M: tl.constexpr, N: tl.constexpr, OP: tl.constexpr):
    """out[m] = the sum, largest or smallest of x[m, :]."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + m[:, None] * N + n[None, :])
    if OP == "sum":
        r = tl.sum(a, 1)
    elif OP == "max":
        r = tl.max(a, 1)
    elif OP == "min":
        r = tl.min(a, 1)
    elif OP == "own":
        r = tl.reduce(a, 1, _add)
    tl.store(out + m, r)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def scan_kernel(x, out, SIZE: tl.constexpr, OP: tl.constexpr, REVERSE: tl.constexpr):
    """out = the running sum or product of x."""
    at = tl.arange(0, SIZE)
    a = tl.load(x + at)
    if OP == "sum":
        r = tl.cumsum(a, 0, reverse=REVERSE)
    elif OP == "prod":
        r = tl.cumprod(a, 0, reverse=REVERSE)
    elif OP == "own":
        r = tl.associative_scan(a, 0, _add, reverse=REVERSE)
    tl.store(out + at, r)


@triton.jit
def atomic_kernel(x, at, out, SIZE: tl.constexpr):
    """out[at[i]] += x[i], also where several at are the same."""
    i = tl.arange(0, SIZE)
    tl.atomic_add(out + tl.load(at + i), tl.load(x + i))
