"""Routing of tokens to experts and grouped products as torch_npu 2.13 documents them, in plain torch: row by row, slot by slot.

The stand-in's operators sort and split tensors; these walk lists of whole numbers and multiply by one-hot matrices. "Slot" i is choice
i % k of token i // k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def members(sizes: Sequence[int]) -> list[int]:
    """The group of every row: sizes [2, 0, 1] give [0, 0, 2]."""
    return [group for group, size in enumerate(sizes) for _ in range(size)]


def grouped_rows(
    x: torch.Tensor, weights: Sequence[torch.Tensor], sizes: Sequence[int], biases: Sequence[torch.Tensor] | None
) -> torch.Tensor:
    """[m, n]: each row times the [k, n] of its group, plus its bias."""
    products = [torch.einsum("k,kn->n", x[row], weights[group]) for row, group in enumerate(members(sizes))]
    if biases is not None:
        products = [product + biases[group].to(x.dtype) for product, group in zip(products, members(sizes), strict=True)]
    return torch.stack(products) if products else x.new_zeros((0, weights[0].shape[1]))


def grouped_reduction(x: torch.Tensor, y: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """[g, k, n]: the sum of the outer products of a group's rows of x [m, k] and y [m, n]; zero for a group without rows."""
    belongs = torch.zeros(len(x), len(sizes), dtype=x.dtype)
    for row, group in enumerate(members(sizes)):
        belongs[row, group] = 1
    return torch.einsum("rg,rk,rn->gkn", belongs, x, y)


def slots_in_order(choices: torch.Tensor, first: int = 0, last: int | None = None) -> list[int]:
    """Slots by expert, those of one expert in their own order; only experts from `first` up to but without `last`."""
    experts = [int(expert) for expert in choices.reshape(-1).tolist()]
    wanted = sorted({expert for expert in experts if first <= expert and (last is None or expert < last)})
    return [slot for expert in wanted for slot, of in enumerate(experts) if of == expert]


def permute(tokens: torch.Tensor, choices: torch.Tensor, kept: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows in the order of their experts, cut as a slice [:kept] where kept isn't None or 0; int32: the row of every slot)."""
    per_token = choices.shape[1] if choices.dim() == 2 else 1
    order = slots_in_order(choices)
    place = torch.zeros(len(order), dtype=torch.int32)
    for row, slot in enumerate(order):
        place[slot] = row
    shown = order[:kept] if kept else order
    return torch.stack([tokens[slot // per_token] for slot in shown]), place


def unpermute(rows: torch.Tensor, place: torch.Tensor, probs: torch.Tensor | None) -> torch.Tensor:
    """[t, h]: for every token the sum over its slots of probability times row `place[slot]`; without probs a token has one slot."""
    if probs is None:
        return torch.stack([rows[row] for row in place.tolist()])
    per_token = probs.shape[1]
    tokens = []
    for token in range(len(probs)):
        mine = [int(place[token * per_token + choice]) for choice in range(per_token)]
        tokens.append(torch.einsum("k,kh->h", probs[token].to(rows.dtype), rows[mine]))
    return torch.stack(tokens)


@dataclass(frozen=True)
class Routed:
    """What npu_moe_init_routing_v2 documents as defined; the rest of its outputs holds anything.

    `rows` [available, h]; `places` by slot with -1 for a slot of no active expert (row_idx_type 0), or the slots of the available rows
    (row_idx_type 1); `counts` an expert (type 1), or the pairs (expert, count) of the experts that have rows, ended by a pair of
    zeros where there is room (type 2); `scales` [available] or None.
    """

    rows: torch.Tensor
    places: torch.Tensor
    counts: torch.Tensor
    scales: torch.Tensor | None


def init_routing(
    x: torch.Tensor,
    choices: torch.Tensor,
    scale: torch.Tensor | None,
    experts: int,
    active: tuple[int, int],
    index_type: int,
    counts_type: int,
) -> Routed:
    per_token = choices.shape[1]
    order = slots_in_order(choices, *active)
    tokens = [slot // per_token for slot in order]
    places = torch.tensor(order, dtype=torch.int32)
    if index_type == 0:
        by_slot = {slot: row for row, slot in enumerate(order)}
        places = torch.tensor([by_slot.get(slot, -1) for slot in range(choices.numel())], dtype=torch.int32)
    taken = [int(expert) for expert in choices.reshape(-1).tolist()]
    busy = [(expert, taken.count(expert)) for expert in range(*active)]
    if counts_type == 1:
        counts = torch.tensor([count for _, count in busy])
    else:
        pairs = [pair for pair in busy if pair[1]]
        counts = torch.tensor([*pairs, (0, 0)][:experts]).reshape(-1, 2)
    return Routed(x[tokens], places, counts, None if scale is None else scale[tokens])
