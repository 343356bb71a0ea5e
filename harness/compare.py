"""Comparisons: how one is written down, how close two numbers must be, and where each tolerance comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import blame_of
from harness.model import Comparison, Hardware

_LONGEST = 400
_DESIGN = "design section 4"


@dataclass(frozen=True)
class Tolerance:
    """The largest difference that still counts as equal (relative, dimensionless), and the source of that number."""

    value: float
    source: str


EXACT = Tolerance(0.0, "one process on a CPU repeats to every printed digit (measured: resume from step 3 to 6, ms-swift 4.6.0)")

_LOGGED = {
    "float32": Tolerance(1e-5, f"{_DESIGN}: fp32 loss and grad_norm 1e-5"),
    "bfloat16": Tolerance(2e-3, f"{_DESIGN}: bf16 2e-3 with the attention path equal"),
    "float16": Tolerance(2e-3, f"{_DESIGN}: as bf16, whose resolution is coarser"),
}
_WEIGHTS = {
    "float32": Tolerance(1e-6, f"{_DESIGN}: fp32 weights 1e-6"),
    "bfloat16": Tolerance(2e-3, f"{_DESIGN}: bf16 2e-3"),
    "float16": Tolerance(2e-3, f"{_DESIGN}: as bf16, whose resolution is coarser"),
}
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def logged_tolerance(hardware: Hardware, dtype: str) -> Tolerance:
    """For losses and grad_norms of one process run twice. Exact on a CPU, simulated NPUs included; by `dtype` on an NPU."""
    return _by_dtype(_LOGGED, dtype) if hardware.is_npu else EXACT


def weights_tolerance(hardware: Hardware, dtype: str) -> Tolerance:
    """For parameters of one process run twice, relative to a tensor's largest entry."""
    return _by_dtype(_WEIGHTS, dtype) if hardware.is_npu else EXACT


def merge_tolerance(dtype: str, rank: int) -> Tolerance:
    """For merged tensors of `dtype`, as a componentwise backward error: |found - (W + s B A)| / (|W| + |s| |B| |A|).

    Rounding analysis: B A, the scaling and the sum are each rounded once in the tensor's dtype (3 u); a product accumulated in
    float32 over `rank` terms adds at most rank * 2^-24.
    """
    unit = UNIT_ROUNDOFF[_known(dtype)]
    value = 3 * unit + rank * UNIT_ROUNDOFF["float32"]
    return Tolerance(value, f"rounding analysis: 3 u({dtype}) + rank * 2^-24")


def logits_tolerance(dtype: str) -> Tolerance:
    """For next-token logits of an adapter against its merged model: max |difference| / max |logit|."""
    return _by_dtype(_LOGITS, dtype)


_LOGITS = {
    "float32": Tolerance(1e-5, "measured, tiny Qwen2.5, fp32: 3.4e-6 where logits reach 3.2 (1.1e-6 relative); ten times that"),
    "bfloat16": Tolerance(2e-2, "measured, tiny Qwen2.5, bf16: 0.025 where logits reach 2.9 (8.7e-3 relative); about twice that"),
    "float16": Tolerance(2e-2, "as bf16, whose resolution is coarser"),
}


def plain_dtype(dtype: str) -> str:
    """`torch.bfloat16`, `BF16` and `bfloat16` all as `bfloat16`."""
    name = dtype.removeprefix("torch.")
    return {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(name, name)


def relative_difference(expected: float, found: float) -> float:
    """|expected - found| / max(|expected|, |found|); 0 for equal numbers, infinity when either is not finite."""
    if not (math.isfinite(expected) and math.isfinite(found)):
        return math.inf
    if expected == found:
        return 0.0
    largest = max(abs(expected), abs(found))
    difference = abs(expected - found)
    if math.isinf(difference):
        # Two huge numbers of opposite sign: halved, so that they don't overflow. Tiny ones would vanish if they were.
        return abs(expected / 2 - found / 2) / largest * 2
    return difference / largest


def largest_difference(expected: Sequence[float], found: Sequence[float]) -> float:
    """The largest relative difference, pair by pair. Infinity when the lengths differ or there is nothing to compare."""
    if len(expected) != len(found) or not expected:
        return math.inf
    return max(relative_difference(a, b) for a, b in zip(expected, found, strict=True))


def check(name: str, ok: bool, cause: str, expected: object, found: object) -> Comparison:
    """A yes-or-no comparison. `cause` is written down only if it failed, with the blame that the table of causes gives."""
    blame = blame_of(cause)
    return Comparison(name, bool(ok), _shorten(expected), _shorten(found), cause="" if ok else cause, blame=blame)


def _shorten(value: object) -> str:
    """A thousand damaged rows are told by the first of them: evidence is read by people."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def check_error(name: str, cause: str, error: float, tolerance: Tolerance, what: str, ok: bool = True) -> Comparison:
    """A number against its tolerance: ok when `error` is finite and not above it (and `ok`, what else was asked, holds)."""
    passed = bool(ok) and math.isfinite(error) and error <= tolerance.value
    return Comparison(
        name,
        passed,
        f"{what} within {tolerance.value:.3g}",
        f"largest difference {error:.3g}",
        cause="" if passed else cause,
        blame=blame_of(cause),
        # Evidence is JSON, which has no infinity.
        error=error if math.isfinite(error) else None,
        tolerance=tolerance.value,
        source=tolerance.source,
    )


def _known(dtype: str) -> str:
    name = plain_dtype(dtype)
    # An unlisted dtype gets the strictest treatment that makes sense: it is compared as float32.
    return name if name in UNIT_ROUNDOFF else "float32"


def _by_dtype(table: dict[str, Tolerance], dtype: str) -> Tolerance:
    return table.get(_known(dtype), table["float32"])
