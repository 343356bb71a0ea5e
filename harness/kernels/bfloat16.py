"""bf16 as Triton's interpreter keeps it: bit patterns in numpy's uint16, which numpy would add and multiply as whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
_QUIET_NAN = np.uint16(0x7FC0)


def widen(bits: Bits) -> NDArray[np.float32]:
    """The same numbers in float32, exactly; any shape and strides."""
    wide: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def narrow(values: NDArray[Any]) -> Bits:
    """Rounded to the nearest bf16, ties to even, as torch rounds: past the largest to infinity, denormals kept, NaN to a quiet NaN.

    Of any number type; float64 is rounded to float32 first, as torch does.
    """
    with np.errstate(over="ignore"):
        single = np.asarray(values).astype(np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return _with_nan(single, rounded)


def truncate(values: NDArray[Any]) -> Bits:
    """Rounded towards zero."""
    single = np.asarray(values).astype(np.float32)
    return _with_nan(single, single.view(np.uint32) >> np.uint32(16))


def _with_nan(single: NDArray[np.float32], bits: NDArray[np.uint32]) -> Bits:
    found: Bits = np.where(np.isnan(single), _QUIET_NAN, bits.astype(np.uint16))
    return found
