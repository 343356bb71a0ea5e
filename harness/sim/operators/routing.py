"""Tokens to their experts and back. "Slot" i below is choice i % k of token i // k."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .refusal import FLOATS, NotInReference, require, require_dtype, require_same_device

MAX_SLOTS, MAX_CHOICES, MAX_EXPERTS = 16777215, 512, 10240


def npu_moe_token_permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows sorted by expert, ties by slot; int32 [slots]: the row that slot i went to).

    `tokens` [t, h], `indices` [t] or [t, k], int32 or int64. `num_out_tokens` keeps so many rows; None or 0 all, negative all but.
    """
    name = "npu_moe_token_permute"
    require_dtype(name, "tokens", tokens, FLOATS)
    require_dtype(name, "indices", indices, (torch.int32, torch.int64))
    require(tokens.dim() == 2, name, f"tokens has {tokens.dim()} dimensions; it must have 2")
    require(indices.dim() in (1, 2), name, f"indices has {indices.dim()} dimensions; it must have 1 or 2")
    require(len(indices) == len(tokens), name, f"indices is for {len(indices)} tokens and there are {len(tokens)}")
    choices = indices.shape[1] if indices.dim() == 2 else 1
    require(1 <= choices <= MAX_CHOICES and indices.numel() < MAX_SLOTS, name, f"indices {tuple(indices.shape)} is too large or empty")
    require(not padded_mode, name, "padded_mode only supports False")
    require_same_device(name, tokens, indices=indices)
    order = torch.argsort(indices.reshape(-1), stable=True)
    slots, asked = order.numel(), num_out_tokens or 0
    kept = min(asked, slots) if asked > 0 else slots + asked
    require(kept >= 0, name, f"num_out_tokens {num_out_tokens} drops more than the {slots} rows")
    return tokens.index_select(0, order[:kept] // choices), _inverse(order).to(torch.int32)


def _inverse(order: torch.Tensor) -> torch.Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device, dtype=order.dtype)
    return inverse


def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """[t, h]: the rows of a token's slots times their probabilities, added up in float32 and rounded once.

    `permuted_tokens` [t * k, h], `sorted_indices` [t * k] int32, `probs` [t, k]; without probs k is 1.
    """
    name = "npu_moe_token_unpermute"
    require_dtype(name, "permuted_tokens", permuted_tokens, FLOATS)
    require_dtype(name, "sorted_indices", sorted_indices, (torch.int32,))
    require(permuted_tokens.dim() == 2, name, f"permuted_tokens has {permuted_tokens.dim()} dimensions; it must have 2")
    require(sorted_indices.dim() == 1, name, f"sorted_indices has {sorted_indices.dim()} dimensions; it must have 1")
    rows, width = permuted_tokens.shape
    require(sorted_indices.numel() == rows, name, f"sorted_indices is for {sorted_indices.numel()} rows and there are {rows}")
    require(not padded_mode and restore_shape is None, name, "padded_mode only supports False and restore_shape None")
    require_same_device(name, permuted_tokens, sorted_indices=sorted_indices, probs=probs)
    slots = permuted_tokens.index_select(0, sorted_indices.long()).float()
    if probs is None:
        return slots.to(permuted_tokens.dtype)
    require_dtype(name, "probs", probs, FLOATS)
    require(probs.dim() == 2, name, f"probs has {probs.dim()} dimensions; it must have 2")
    require(probs.numel() == rows and probs.shape[1] <= MAX_CHOICES, name, f"probs {tuple(probs.shape)} doesn't fit {rows} rows")
    weighted = slots.view(*probs.shape, width) * probs.float().unsqueeze(-1)
    return weighted.sum(1).to(permuted_tokens.dtype)


def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows of the active experts in order [t * k, h], row index int32 [t * k], tokens an expert int64, scale of each row float32).

    Without quantisation and without drops, as the documentation allows on A2 and A3. Row index type 0: the row of slot i, -1 where its
    expert isn't active; 1: the slot of row j. What the documentation leaves undefined (rows after the active ones) is zero here.
    No gradient: the real operator has none.
    """
    name = "npu_moe_init_routing_v2"
    require_dtype(name, "x", x, (*FLOATS, torch.int8))
    require_dtype(name, "expert_idx", expert_idx, (torch.int32,))
    require(x.dim() == 2 and expert_idx.dim() == 2, name, "x and expert_idx must have 2 dimensions")
    require(len(x) == len(expert_idx), name, "the first dim of expert_idx and x should be the same")
    require_same_device(name, x, expert_idx=expert_idx, scale=scale)
    if quant_mode != -1 or drop_pad_mode != 0 or x_dtype is not None or 0 < active_num < expert_idx.numel():
        raise NotInReference(f"{name}: the reference knows quant_mode -1, drop_pad_mode 0, no x_dtype and active_num -1, 0 or all slots.")
    require(offset is None, name, "offset belongs to quantisation")
    require(expert_tokens_num_flag, name, "expert_tokens_num_flag only supports True")
    require(expert_tokens_num_type in (1, 2), name, f"expert_tokens_num_type is {expert_tokens_num_type}; supported: 1, 2")
    require(row_idx_type in (0, 1), name, f"row_idx_type is {row_idx_type}; supported: 0 (gather), 1 (scatter)")
    require(0 < expert_num <= MAX_EXPERTS, name, f"expert_num is {expert_num}; it must be in 1 to {MAX_EXPERTS}")
    first, last = _active_range(name, active_expert_range, expert_num)
    flat = expert_idx.reshape(-1).long()
    known = flat.numel() == 0 or (int(flat.min()) >= 0 and int(flat.max()) < expert_num)
    require(known, name, f"expert_idx names an expert outside 0 to {expert_num - 1}")
    order = torch.argsort(flat, stable=True)
    order = order[(flat[order] >= first) & (flat[order] < last)]
    token_of = order // max(expert_idx.shape[1], 1)
    expanded = x.new_zeros((flat.numel(), x.shape[1]))
    expanded[: len(order)] = x.index_select(0, token_of)
    scales = torch.zeros(flat.numel(), dtype=torch.float32, device=x.device)
    if scale is not None:
        require_dtype(name, "scale", scale, (torch.float32,))
        require(scale.shape == (len(x),), name, "the scale shape support only 1D (bs,) in no quant mode")
        scales[: len(order)] = scale.index_select(0, token_of)
    counts = torch.bincount(flat[order] - first, minlength=last - first)
    return expanded, _row_index(order, flat.numel(), row_idx_type), _token_counts(counts, first, expert_num, expert_tokens_num_type), scales


def _active_range(name: str, given: Sequence[int], expert_num: int) -> tuple[int, int]:
    if not given:
        return 0, expert_num
    require(len(given) == 2, name, "active_expert_range is None or invalid. must be int[2]")
    first, last = int(given[0]), int(given[1])
    require(0 <= first < last <= expert_num, name, f"active_expert_range [{first}, {last}) isn't increasing within [0, {expert_num})")
    return first, last


def _row_index(order: torch.Tensor, slots: int, kind: int) -> torch.Tensor:
    index = torch.full((slots,), -1 if kind == 0 else 0, dtype=torch.int32, device=order.device)
    if kind == 0:
        index[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    else:
        index[: len(order)] = order.to(torch.int32)
    return index


def _token_counts(counts: torch.Tensor, first: int, expert_num: int, kind: int) -> torch.Tensor:
    if kind == 1:
        return counts
    pairs = counts.new_zeros((expert_num, 2))
    busy = torch.nonzero(counts).reshape(-1)
    pairs[: len(busy), 0] = busy + first
    pairs[: len(busy), 1] = counts[busy]
    return pairs
