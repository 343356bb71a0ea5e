"""Inputs of operators: random numbers in float64, and the values at the edges of what a dtype can hold."""

from __future__ import annotations

import math

import torch

FINITE = ("none", "zeros", "large", "tiny", "denormal")
# Whose gradients aren't compared: what 0 * inf does to them hangs on the order of the operations, which no documentation fixes.
NOT_FINITE = ("nan", "inf", "huge")
EDGES = (*FINITE, *NOT_FINITE)
LARGE, HUGE, TINY = 1e3, 1e15, 2.0**-12  # sums of a few LARGE stay below 65504, where float16 ends; the square of HUGE fits float32
DENORMAL = 1e-40  # of float32 and bfloat16; 0 in float16


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def apart(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal, but no nearer to zero than 0.1, so that relative errors of products have a meaning in 16 bits too."""
    drawn = normal(generator, *shape)
    return drawn + torch.where(drawn < 0, -0.1, 0.1)


def integers(generator: torch.Generator, below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=generator)


def edged(value: torch.Tensor, edge: str, generator: torch.Generator, large: float = LARGE) -> torch.Tensor:
    """`value` with the edge: scaled as a whole, or every third element replaced (denormal), or one or two of them (nan, inf)."""
    if edge == "none" or not value.numel():
        return value
    if edge in ("zeros", "large", "huge", "tiny"):
        return value * {"zeros": 0.0, "large": large, "huge": HUGE, "tiny": TINY}[edge]
    flat = value.flatten().clone()
    if edge == "denormal":
        flat[::3] = DENORMAL
    else:
        places = integers(generator, flat.numel(), 2).tolist()
        flat[places[0]] = math.nan if edge == "nan" else math.inf
        if edge == "inf":
            flat[places[1]] = -math.inf
    return flat.reshape(value.shape)
