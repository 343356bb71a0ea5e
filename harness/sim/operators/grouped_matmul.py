"""Many matrix products in one call. The real operator has no gradient: callers write their own, and so must they here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .refusal import FLOATS, NotInReference, require, require_dtype, require_none, require_same_device

NAME = "npu_grouped_matmul"
MAX_LIST = 128
# group_type: the axis of C[m,n] = A[m,k] B[k,n] that is cut into groups.
UNGROUPED, OVER_ROWS, OVER_REDUCTION = -1, 0, 2
CUMULATIVE, COUNTS = 0, 1


def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    scale: Sequence[torch.Tensor] | None = None,
    offset: Sequence[torch.Tensor] | None = None,
    antiquant_scale: Sequence[torch.Tensor] | None = None,
    antiquant_offset: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    activation_input: Sequence[torch.Tensor] | None = None,
    activation_quant_scale: Sequence[torch.Tensor] | None = None,
    activation_quant_offset: Sequence[torch.Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: torch.dtype | int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[torch.Tensor]:
    """The products, one tensor a weight (`split_item` 0, 1) or all in one (2, 3).

    Rows grouped (0): x [m, k], weight one [g, k, n] or g of [k, n]; gives [m, n], or g of [m_i, n].
    Reduction grouped (2): x [m, k] (a transposed view), weight [k, n]; gives [g, m, n], zero for an empty group.
    Ungrouped (-1, or None with a list of ints or no group_list): x and weight lists of the same length.
    `group_list`: int64, cumulative ends (`group_list_type` 0) or sizes (1). A list of ints is always cumulative.
    """
    require_none(
        NAME,
        "doesn't quantise",
        scale=scale,
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        per_token_scale=per_token_scale,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
        activation_quant_offset=activation_quant_offset,
        x_dtype=x_dtype,
        weight_dtype=weight_dtype,
        scale_dtype=scale_dtype,
        per_token_scale_dtype=per_token_scale_dtype,
    )
    if act_type:
        raise NotInReference(f"{NAME}: act_type {act_type} belongs to the quantised form, which the reference lacks.")
    if output_dtype is not None and output_dtype != x[0].dtype:
        raise NotInReference(f"{NAME}: output_dtype {output_dtype}; the reference gives x's dtype.")
    require(split_item in (0, 1, 2, 3), NAME, f"split_item is {split_item}; supported: 0 to 3")
    _require_tensors(x, weight, bias)
    one_output = split_item in (2, 3)
    kind = _group_type(group_list, group_type)
    if kind == OVER_REDUCTION:
        return _over_reduction(x, weight, bias, _sizes(group_list, group_list_type), one_output)
    sizes = None if group_list is None else _sizes(group_list, group_list_type)
    parts = _row_parts(x, weight, sizes, kind)
    biases = _biases(bias, len(parts))
    products = [a @ w if b is None else a @ w + b.to(a.dtype) for (a, w), b in zip(parts, biases, strict=True)]
    return [torch.cat(products)] if one_output else products


def _require_tensors(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], bias: Sequence[torch.Tensor] | None) -> None:
    require(0 < len(x) <= MAX_LIST and 0 < len(weight) <= MAX_LIST, NAME, f"{len(x)} x and {len(weight)} weights; 1 to {MAX_LIST} of each")
    for label, tensors in (("x", x), ("weight", weight)):
        for tensor in tensors:
            require_dtype(NAME, label, tensor, FLOATS)
            require(tensor.dtype == x[0].dtype, NAME, f"{label} is {tensor.dtype} and the first x {x[0].dtype}; they must be equal")
            require_same_device(NAME, x[0], **{label: tensor})
    for tensor in bias or ():
        require_dtype(NAME, "bias", tensor, (torch.float16,) if x[0].dtype == torch.float16 else (torch.float32,))
        require_same_device(NAME, x[0], bias=tensor)


def _group_type(group_list: torch.Tensor | Sequence[int] | None, group_type: int | None) -> int:
    if group_list is None or not isinstance(group_list, torch.Tensor):
        require(group_type in (None, UNGROUPED, OVER_ROWS), NAME, f"group_type {group_type} needs group_list as a tensor")
        return UNGROUPED if group_list is None else OVER_ROWS
    allowed = (UNGROUPED, OVER_ROWS, OVER_REDUCTION)
    require(group_type in allowed, NAME, f"group_type only supports -1, 0 and 2, but got {group_type}")
    return OVER_ROWS if group_type is None else group_type


def _sizes(group_list: torch.Tensor | Sequence[int] | None, group_list_type: int | None) -> list[int]:
    """Sizes of the groups; the values are read here, which the real operator does on the device."""
    require(group_list is not None, NAME, "group_list is missing")
    if isinstance(group_list, torch.Tensor):
        require(group_list.dtype == torch.int64, NAME, f"group_list is {group_list.dtype}; it must be int64")
        require(group_list.dim() == 1, NAME, f"group_list has {group_list.dim()} dimensions; it must have 1")
        require(group_list_type in (CUMULATIVE, COUNTS), NAME, f"group_list_type is {group_list_type}; supported: 0, 1")
        values, cumulative = [int(v) for v in group_list.tolist()], group_list_type == CUMULATIVE
    else:
        values, cumulative = [int(v) for v in group_list or ()], True
    sizes = [end - start for start, end in zip([0, *values], values, strict=False)] if cumulative else values
    require(all(size >= 0 for size in sizes), NAME, f"group_list {values} has a group of negative size: is group_list_type right?")
    return sizes


def _row_parts(
    x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], sizes: list[int] | None, kind: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(rows, matrix) of every group."""
    packed = len(weight) == 1 and weight[0].dim() == 3
    matrices = list(weight[0].unbind(0)) if packed else list(weight)
    for matrix in matrices:
        require(matrix.dim() == 2, NAME, f"a weight has {matrix.dim()} dimensions; a list of weights holds matrices")
    if len(x) > 1 or sizes is None or kind == UNGROUPED:
        require(len(x) == len(matrices), NAME, f"{len(x)} x and {len(matrices)} matrices; each x needs one")
        rows = list(x)
        require(sizes is None or sizes == [len(r) for r in rows], NAME, f"group_list says {sizes}, x has {[len(r) for r in rows]} rows")
    else:
        require(x[0].dim() == 2, NAME, f"x has {x[0].dim()} dimensions; a grouped x has 2")
        require(len(sizes) == len(matrices), NAME, f"group_list has {len(sizes)} groups and there are {len(matrices)} matrices")
        covered = f"group_list covers {sum(sizes)} rows and x has {x[0].shape[0]}: is group_list_type right?"
        require(sum(sizes) == x[0].shape[0], NAME, covered)
        rows = list(torch.split(x[0], sizes))
    for row, matrix in zip(rows, matrices, strict=True):
        require(row.shape[-1] == matrix.shape[0], NAME, f"x {tuple(row.shape)} and weight {tuple(matrix.shape)} don't fit")
    return list(zip(rows, matrices, strict=True))


def _over_reduction(
    x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], bias: Sequence[torch.Tensor] | None, sizes: list[int], one_output: bool
) -> list[torch.Tensor]:
    require(bias is None, NAME, "bias isn't supported when the reduction is grouped")
    require(len(x) == 1 and len(weight) == 1, NAME, "when the reduction is grouped, x and weight are one tensor each")
    left, right = x[0], weight[0]
    require(left.dim() == 2 and right.dim() == 2, NAME, f"x {tuple(left.shape)} and weight {tuple(right.shape)} must be matrices")
    shapes = f"x {tuple(left.shape)}, weight {tuple(right.shape)} and groups of {sum(sizes)} in all don't fit"
    require(left.shape[1] == right.shape[0] == sum(sizes), NAME, shapes)
    products = [a @ b for a, b in zip(torch.split(left, sizes, dim=1), torch.split(right, sizes), strict=True)]
    return [torch.stack(products)] if one_output else products


def _biases(bias: Sequence[torch.Tensor] | None, groups: int) -> list[torch.Tensor | None]:
    if bias is None:
        return [None] * groups
    rows = list(bias[0].unbind(0)) if len(bias) == 1 and bias[0].dim() == 2 else list(bias)
    require(len(rows) == groups, NAME, f"{len(rows)} biases and {groups} groups")
    return list(rows)
