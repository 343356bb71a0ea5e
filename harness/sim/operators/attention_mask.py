"""Which positions attention leaves out. True (or 1) in a mask means left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .refusal import require, require_dtype, require_same_device

DEFAULT, ALL, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND, PREFIX, PREFIX_COMPRESSED, CUT_RIGHT_DOWN, CUT_LEFT_UP = range(9)
COMPRESSED_SIZE, PREFIX_ROWS, MAX_PREFIXES = 2048, 1024, 32
UNBOUNDED = 2147483647


@dataclass(frozen=True)
class Masking:
    """A checked choice of sparse mode, mask and band. `prefix`: keys that every row of a batch, or packed sequence, attends to."""

    mode: int
    mask: torch.Tensor | None
    before: int
    after: int
    prefix: tuple[int, ...] = ()

    def of_sequence(self, index: int, count: int) -> Masking:
        """That of one of `count` packed sequences. Cut ones have a band where they were cut: the last (mode 7), or the first (8)."""
        if self.mode == CUT_RIGHT_DOWN:
            return replace(self, mode=BAND if index == count - 1 else RIGHT_DOWN_CAUSAL)
        if self.mode == CUT_LEFT_UP:
            return replace(self, mode=LEFT_UP_CAUSAL if index else BAND)
        return replace(self, prefix=self.prefix[index : index + 1]) if self.prefix and count > 1 else self

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
        if self.mode in (PREFIX, PREFIX_COMPRESSED):
            lengths = torch.tensor(self.prefix, device=device).view(-1, 1, 1, 1)
            return (column > corner) & (column >= lengths)
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
    prefix: Sequence[int] | None,
    packed: bool,
    sizes: tuple[int, int, int, int],
) -> Masking:
    """`sizes`: batch or packed sequences, heads, longest query, longest key. Raises OperatorRefused."""
    require(0 <= mode <= 8, name, f"sparse_mode is {mode}; supported: 0 to 8")
    if mask is None:
        return Masking(mode, None, before, after)
    require_dtype(name, "atten_mask", mask, (torch.bool, torch.uint8))
    require_same_device(name, query, atten_mask=mask)
    require(mode not in (CUT_RIGHT_DOWN, CUT_LEFT_UP) or packed, name, f"sparse_mode {mode} is for input_layout TND")
    require(mode != PREFIX or not packed, name, "sparse_mode 5 isn't for input_layout TND")
    found = Masking(mode, mask, before, after, _prefixes(name, mode, prefix, sizes[0]))
    if mode in (DEFAULT, ALL):
        _require_full(name, mask, packed, sizes)
    elif mode == PREFIX:
        _require_written_out(name, found, sizes)
    elif mode == PREFIX_COMPRESSED:
        _require_rectangle(name, mask)
        _require_compressed(name, mask[:COMPRESSED_SIZE], mode)
    else:
        _require_compressed(name, mask, mode)
    return found


def _prefixes(name: str, mode: int, prefix: Sequence[int] | None, batch: int) -> tuple[int, ...]:
    if mode not in (PREFIX, PREFIX_COMPRESSED):
        return ()
    require(prefix is not None, name, f"sparse_mode {mode} needs prefix")
    lengths = tuple(int(length) for length in prefix or ())
    require(
        len(lengths) == batch <= MAX_PREFIXES, name, f"{len(lengths)} prefixes for {batch} batches; equally many, at most {MAX_PREFIXES}"
    )
    return lengths


def _require_written_out(name: str, found: Masking, sizes: tuple[int, int, int, int]) -> None:
    """The mask of mode 5 says the same as its prefixes."""
    batch, heads, queries, keys = sizes
    assert found.mask is not None
    shapes = ((batch, 1, queries, keys), (batch, heads, queries, keys))
    require(tuple(found.mask.shape) in shapes, name, f"atten_mask is {tuple(found.mask.shape)}; sparse_mode 5 wants one of {shapes}")
    blocked = found.blocked(queries, keys, found.mask.device)
    assert blocked is not None
    require(bool((found.mask.bool() == blocked).all()), name, "atten_mask and prefix contradict each other")


def _require_rectangle(name: str, mask: torch.Tensor) -> None:
    shape = (COMPRESSED_SIZE + PREFIX_ROWS, COMPRESSED_SIZE)
    require(tuple(mask.shape) == shape, name, f"sparse_mode 6 wants the compressed mask {shape[0]}x{shape[1]}, not {tuple(mask.shape)}")
    left, right = mask[COMPRESSED_SIZE:].bool().chunk(2, 1)
    require(not bool(left.any()) and bool(right.all()), name, "sparse_mode 6 wants a rectangle below the triangle, its right half True")


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
