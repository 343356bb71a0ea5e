"""When two tensors are equal enough: each number with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from harness.kernels.kernel import Direction, Limit

_OURS = "RMS ratio to a float64 golden: about ten times the worst honest error measured over fla, MindSpeed and ms-swift's patches"
RMS_LIMITS: Mapping[str, Limit] = {"fp32": Limit(1e-5, _OURS), "fp16": Limit(2e-3, _OURS), "bf16": Limit(1e-2, _OURS)}

# Ascend's single-benchmark criterion: mean relative error below the threshold and the largest below ten times it.
SINGLE_THRESHOLD: Mapping[str, float] = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-13}
SINGLE_MAX_FACTOR = 10.0
SINGLE_FLOOR = 1e-7  # added to |golden| in the denominator, as the criterion defines it


@dataclass(frozen=True)
class DualLevel:
    """Ascend's dual-benchmark criterion: candidate's error over that of the same dtype on the CPU, both against the golden."""

    name: str
    largest: float
    mean: float
    rms: float


DUAL_LEVELS = (DualLevel("L0", 10.0, 2.0, 2.0), DualLevel("L1", 5.0, 1.5, 1.5), DualLevel("L2", 2.0, 1.2, 1.2))
DUAL = DUAL_LEVELS[0]


@dataclass(frozen=True)
class Errors:
    """Errors of one tensor against its golden, over the elements where the golden is finite. All relative but `absolute_*`."""

    rms_ratio: float
    single_mean: float
    single_max: float
    absolute_max: float
    absolute_mean: float
    absolute_rms: float


def limit_for(dtype: str, direction: Direction, own: Mapping[tuple[str, Direction], Limit]) -> Limit:
    return own.get((dtype, direction), RMS_LIMITS[dtype])


def errors_of(found: torch.Tensor, golden: torch.Tensor) -> Errors:
    """Of tensors of one shape; where the golden is not finite nothing is measured (see not_finite_fault).

    A golden of zeros has no relative error: then the candidate's RMS itself is the ratio.
    """
    wide, right = found.detach().double().flatten(), golden.detach().double().flatten()
    finite = torch.isfinite(right) & torch.isfinite(wide)
    wide, right = wide[finite], right[finite]
    if not wide.numel():
        return Errors(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    # Scaled first, so that neither huge nor denormal values leave the range of float64 when squared.
    difference, scale = (wide - right).abs(), float(right.abs().max())
    unit = scale or 1.0
    rms = float((right / unit).square().mean().sqrt()) or 1.0
    absolute_rms = float((difference / unit).square().mean().sqrt())
    relative = difference / (right.abs() + SINGLE_FLOOR)
    return Errors(
        rms_ratio=absolute_rms / rms,
        single_mean=float(relative.mean()),
        single_max=float(relative.max()),
        absolute_max=float(difference.max()),
        absolute_mean=float(difference.mean()),
        absolute_rms=absolute_rms * unit,
    )


def not_finite_fault(found: torch.Tensor, golden: torch.Tensor, largest: float) -> str:
    """ "" or where NaN and infinities differ. A golden beyond `largest`, the dtype's largest value, may be that infinity."""
    wide, right = found.detach().double(), golden.detach().double()
    right = torch.where(right.abs() > largest, torch.copysign(torch.full_like(right, math.inf), right), right)
    for name, of in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        here, there = of(wide), of(right)
        if not torch.equal(here, there):
            return f"{name} at {int(here.sum())} places, the golden at {int(there.sum())}, {int((here != there).sum())} of them different"
    return ""


def ratio(found: float, other: float) -> float:
    """found / other, where two exact results are equally good and an exact other makes any error infinitely worse."""
    if found == 0.0:
        return 0.0
    return found / other if other else math.inf
