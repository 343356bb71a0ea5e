"""Norm, rotary embedding and activation. 16-bit inputs are computed in float32 and rounded once, at the end."""

from __future__ import annotations

import torch

from .refusal import FLOATS, require, require_dtype, require_same_device

# aclnnRotaryPositionEmbedding on A2 and A3: D < 896, B and N < 1000.
ROTARY_MAX_WIDTH, ROTARY_MAX_BATCH = 896, 1000


def npu_rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """(y of input's shape and dtype, reciprocal RMS in float32 with 1 in every normalised dimension; it carries no gradient).

    `gamma` has the shape of input's last dimensions, and its dtype or float32 (aclnnRmsNorm's table of dtypes).
    """
    name = "npu_rms_norm"
    require_dtype(name, "input", input, FLOATS)
    require(1 <= input.dim() <= 8, name, f"input has {input.dim()} dimensions; supported: 1 to 8")
    dtypes = f"gamma is {gamma.dtype} and input {input.dtype}; gamma has input's dtype or float32"
    require(gamma.dtype in (input.dtype, torch.float32), name, dtypes)
    normalised = input.shape[input.dim() - gamma.dim() :] if gamma.dim() <= input.dim() else None
    require(gamma.dim() >= 1 and gamma.shape == normalised, name, f"gamma {tuple(gamma.shape)} isn't the end of input {tuple(input.shape)}")
    require_same_device(name, input, gamma=gamma)
    wide = input.float()
    over = tuple(range(input.dim() - gamma.dim(), input.dim()))
    rstd = torch.rsqrt(wide.square().mean(over, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(input.dtype), rstd.detach()


def npu_rotary_mul(
    input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", rotate: torch.Tensor | None = None
) -> torch.Tensor:
    """r1 * input + r2 * rotated(input). `r1`, `r2` (cos, sin): input's dtype, one shape, its size or 1 in each dimension but the last.

    With `rotate` ([D, D]) the rotation is input @ rotate, whatever the mode, and carries no gradient to `rotate`.
    """
    name = "npu_rotary_mul"
    require(rotary_mode in ("half", "interleave"), name, f"rotary_mode is {rotary_mode!r}; supported: 'half', 'interleave'")
    require_dtype(name, "input", input, FLOATS)
    require(input.dim() == 4, name, f"input has {input.dim()} dimensions; it must have 4 (BNSD, BSND, SBND)")
    width = input.shape[-1]
    require(width % 2 == 0 and width < ROTARY_MAX_WIDTH, name, f"input is {width} wide; it must be even and below {ROTARY_MAX_WIDTH}")
    for label, table in (("r1", r1), ("r2", r2)):
        require(table.dtype == input.dtype, name, f"{label} is {table.dtype} and input {input.dtype}; they must be equal")
        fits = table.dim() == 4 and all(t in (1, i) for t, i in zip(table.shape, input.shape, strict=True)) and table.shape[-1] == width
        require(fits, name, f"{label} {tuple(table.shape)} can't be spread over input {tuple(input.shape)}")
    require(r1.shape == r2.shape, name, f"r1 {tuple(r1.shape)} and r2 {tuple(r2.shape)} differ in shape")
    require_same_device(name, input, r1=r1, r2=r2, rotate=rotate)
    wide = input.float()
    return (r1.float() * wide + r2.float() * _rotated(wide, rotary_mode, rotate)).to(input.dtype)


def _rotated(wide: torch.Tensor, mode: str, rotate: torch.Tensor | None) -> torch.Tensor:
    if rotate is not None:
        width = wide.shape[-1]
        require_dtype("npu_rotary_mul", "rotate", rotate, FLOATS)
        require(rotate.shape == (width, width), "npu_rotary_mul", f"rotate is {tuple(rotate.shape)}; it must be {(width, width)}")
        return wide @ rotate.detach().float()
    if mode == "half":
        first, second = wide.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    return torch.stack((-wide[..., 1::2], wide[..., ::2]), dim=-1).flatten(-2)


def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """silu(first half) * second half, split along `dim`, which must be even."""
    name = "npu_swiglu"
    require_dtype(name, "input", input, FLOATS)
    require(1 <= input.dim() <= 8, name, f"input has {input.dim()} dimensions; supported: 1 to 8")
    require(-input.dim() <= dim < input.dim(), name, f"dim {dim} is out of range for {input.dim()} dimensions")
    require(input.shape[dim] % 2 == 0, name, f"dimension {dim} is {input.shape[dim]}; it must be even")
    gate, up = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)
