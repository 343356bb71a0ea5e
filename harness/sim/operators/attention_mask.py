"""Which positions attention leaves out. True (or 1) in a mask means left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .refusal import NotInReference, require, require_dtype, require_same_device

DEFAULT, ALL, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = 0, 1, 2, 3, 4
COMPRESSED_SIZE = 2048
UNBOUNDED = 2147483647


@dataclass(frozen=True)
class Masking:
    """A checked choice of sparse mode, mask and band."""

    mode: int
    mask: torch.Tensor | None
    before: int
    after: int

    def blocked(self, queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
        """Mask that spreads over [B, N, queries, keys], or None where all is attended to.

        Without a mask every mode attends to all: so the documentation, and so a caller's forgotten mask shows.
        """
        if self.mask is None:
            return None
        if self.mode in (DEFAULT, ALL):
            return self._full(queries, keys)
        row = torch.arange(queries, device=device)[:, None]
        column = torch.arange(keys, device=device)[None]
        if self.mode == LEFT_UP_CAUSAL:
            return column > row
        corner = row + (keys - queries)
        if self.mode == RIGHT_DOWN_CAUSAL:
            return column > corner
        return (column > corner + self.after) | (column < corner - self.before)

    def _full(self, queries: int, keys: int) -> torch.Tensor:
        assert self.mask is not None
        mask = self.mask[..., :queries, :keys].bool()
        if self.mode == DEFAULT and (self.before < UNBOUNDED or self.after < UNBOUNDED):
            row = torch.arange(queries, device=mask.device)[:, None]
            column = torch.arange(keys, device=mask.device)[None]
            outside = (column > row + self.after) | (column < row - self.before)
            contradiction = bool((outside & ~mask).any())
            require(not contradiction, "npu_fusion_attention", "atten_mask lets through what pre_tockens and next_tockens leave out")
        return mask


def masking(
    name: str,
    query: torch.Tensor,
    mode: int,
    mask: torch.Tensor | None,
    before: int,
    after: int,
    *,
    packed: bool,
    sizes: tuple[int, int, int, int],
) -> Masking:
    """`sizes`: batch, heads, longest query, longest key. Raises OperatorRefused, or NotInReference for the modes 5 to 8."""
    require(0 <= mode <= 8, name, f"sparse_mode is {mode}; supported: 0 to 8")
    if mode > BAND:
        raise NotInReference(f"{name}: sparse_mode {mode} (prefix and cut sequences) isn't in the reference, which has 0 to 4.")
    if mask is None:
        return Masking(mode, None, before, after)
    require_dtype(name, "atten_mask", mask, (torch.bool, torch.uint8))
    require_same_device(name, query, atten_mask=mask)
    if mode in (DEFAULT, ALL):
        _require_full(name, mask, packed, sizes)
    else:
        _require_compressed(name, mask, mode)
    return Masking(mode, mask, before, after)


def _require_full(name: str, mask: torch.Tensor, packed: bool, sizes: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = sizes
    one: tuple[int, ...] = (queries, keys)
    allowed = [one] if packed else [one, (1, 1, *one), (batch, 1, *one), (batch, heads, *one)]
    require(tuple(mask.shape) in allowed, name, f"atten_mask is {tuple(mask.shape)}; supported here: {', '.join(map(str, allowed))}")
    if packed:
        require(not bool(mask.bool().all(-1).any()), name, "atten_mask has a row that leaves out everything, which TND doesn't support")


def _require_compressed(name: str, mask: torch.Tensor, mode: int) -> None:
    """The shape, and the parts of the content that tell a lower triangle from its inverse, transpose and shift."""
    size = COMPRESSED_SIZE
    require(tuple(mask.shape) == (size, size), name, f"sparse_mode {mode} wants the compressed mask {size}x{size}, not {tuple(mask.shape)}")
    bits = mask.bool()
    triangle = not bool(bits.diagonal().any()) and bool(bits.diagonal(1).all()) and bool(bits[0, 1:].all()) and not bool(bits[-1].any())
    require(triangle, name, f"sparse_mode {mode} wants a compressed mask that is True above the diagonal and False elsewhere")
