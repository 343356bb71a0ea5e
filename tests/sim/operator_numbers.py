"""Random inputs, errors and limits that the tests of the reference operators share."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

# Root mean square of the error over that of the float64 result. 16 bit: one rounding of half a unit in the last place.
LIMITS = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
dtypes = st.sampled_from(list(LIMITS))
seeds = st.integers(0, 2**31 - 1)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    off = (found.detach().double() - expected.detach().double()).square().mean().sqrt()
    return float(off / expected.detach().double().square().mean().sqrt().clamp_min(1e-30)) if found.numel() else 0.0
