"""Faults as an operator of torch_npu might have them, planted around the stand-in's operators: each wraps a sound one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.sim.operators import OPERATORS

Operator = Callable[..., Any]
# (the sound operator, every argument by its name, defaults filled in) -> what the faulty one gives.
Wrong = Callable[[Operator, dict[str, Any]], Any]


@dataclass(frozen=True)
class Fault:
    """`kernel` is the one that must notice, of those that call `operator`. `dtype`: where it is looked for."""

    operator: str
    what: str
    wrong: Wrong
    kernel: str = ""
    dtype: str = "fp32"

    @property
    def noticed_by(self) -> str:
        return self.kernel or self.operator

    def find(self, name: str) -> Operator:
        sound = OPERATORS[name]
        if name != self.operator:
            return sound
        signature = inspect.signature(sound)

        def call(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            return self.wrong(lambda **changed: sound(**{**bound.arguments, **changed}), dict(bound.arguments))

        return call


def halved_gradient(value: torch.Tensor) -> torch.Tensor:
    return value.detach() + 0.5 * (value - value.detach())


def shifted(values: list[int], by: int) -> list[int]:
    return values[by:] + values[:by]


def first_lost(value: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.zeros_like(value[:1]), value[1:]))


RMS, ROTARY, SWIGLU, LOSS = "npu_rms_norm", "npu_rotary_mul", "npu_swiglu", "npu_cross_entropy_loss"
GMM, PERMUTE, UNPERMUTE, ROUTING = "npu_grouped_matmul", "npu_moe_token_permute", "npu_moe_token_unpermute", "npu_moe_init_routing_v2"
ATTENTION, GRADIENT = "npu_fusion_attention", "npu_fusion_attention_grad"
ROWS, LISTED, REDUCTION, LISTS = f"{GMM}_rows", f"{GMM}_listed", f"{GMM}_reduction", f"{GMM}_lists"


def _ones(value: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(value)


DENSE = (
    Fault(RMS, "epsilon ten times as large", lambda op, a: op(epsilon=a["epsilon"] * 10)),
    Fault(RMS, "epsilon always the default", lambda op, a: op(epsilon=1e-6)),
    Fault(RMS, "no epsilon", lambda op, a: op(epsilon=0.0)),
    Fault(RMS, "gamma left out", lambda op, a: op(gamma=_ones(a["gamma"]))),
    Fault(RMS, "gamma plus one", lambda op, a: op(gamma=a["gamma"] + 1)),
    Fault(RMS, "the sign", lambda op, a: (-op()[0], op()[1])),
    Fault(RMS, "the RMS instead of its reciprocal", lambda op, a: (op()[0], 1 / op()[1])),
    Fault(RMS, "only the last dimension's mean", lambda op, a: _rms_last(a) if a["gamma"].dim() > 1 else op()),
    Fault(RMS, "half the gradient", lambda op, a: (halved_gradient(op()[0]), op()[1])),
    Fault(RMS, "no gradient for gamma", lambda op, a: op(gamma=a["gamma"].detach())),
    Fault(RMS, "computed in bfloat16", lambda op, a: _narrowed(op(input=a["input"].bfloat16(), gamma=a["gamma"].bfloat16()))),
    Fault(RMS, "output in float32", lambda op, a: (op()[0].float(), op()[1]), dtype="bf16"),
    Fault(ROTARY, "half for interleave", lambda op, a: op(rotary_mode="half")),
    Fault(ROTARY, "interleave for half", lambda op, a: op(rotary_mode="interleave")),
    Fault(ROTARY, "the sign of the sine", lambda op, a: op(r2=-a["r2"])),
    Fault(ROTARY, "cosine and sine exchanged", lambda op, a: op(r1=a["r2"], r2=a["r1"])),
    Fault(ROTARY, "no gradient for the sine", lambda op, a: op(r2=a["r2"].detach())),
    Fault(ROTARY, "the first batch's tables for all", lambda op, a: op(r1=_first(a["r1"]), r2=_first(a["r2"]))),
    Fault(ROTARY, "NaN swallowed", lambda op, a: op(input=a["input"].nan_to_num())),
    Fault(SWIGLU, "gate and up exchanged", lambda op, a: op(input=torch.cat(a["input"].chunk(2, a["dim"])[::-1], a["dim"]))),
    Fault(SWIGLU, "always the last dimension", lambda op, a: op(dim=-1) if a["input"].shape[-1] % 2 == 0 else op()),
    Fault(SWIGLU, "a steeper sigmoid", lambda op, a: _steep(a)),
    Fault(SWIGLU, "no gradient for the gate", lambda op, a: _gateless(op, a)),
    Fault(SWIGLU, "an offset", lambda op, a: op() + 1e-4),
    Fault(SWIGLU, "the strides ignored", lambda op, a: op(input=_by_memory(a["input"]))),
    Fault(LOSS, "the ignored class counted", lambda op, a: op(ignore_index=-100)),
    Fault(LOSS, "weights left out", lambda op, a: op(weight=None)),
    Fault(LOSS, "the sum for the mean", lambda op, a: op(reduction="sum") if a["reduction"] == "mean" else op()),
    Fault(LOSS, "no smoothing", lambda op, a: op(label_smoothing=0.0)),
    Fault(LOSS, "probabilities without their log", lambda op, a: (op()[0], op()[1].exp(), *op()[2:])),
    Fault(LOSS, "the next class", lambda op, a: op(target=(a["target"] + 1) % a["input"].shape[1])),
    Fault(LOSS, "half the gradient", lambda op, a: (halved_gradient(op()[0]), *op()[1:])),
    Fault(LOSS, "a mean over all rows", lambda op, a: _over_all(op, a)),
)


def _rms_last(a: dict[str, Any]) -> Any:
    x, gamma = a["input"], a["gamma"]
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + a["epsilon"])
    over = tuple(range(x.dim() - gamma.dim(), x.dim() - 1))
    return (x * rstd * gamma).to(x.dtype), rstd.mean(over, keepdim=True).detach()


def _narrowed(found: Any) -> Any:
    return found[0].float(), found[1]


def _first(table: torch.Tensor) -> torch.Tensor:
    return table[:1].expand_as(table)


def _steep(a: dict[str, Any]) -> torch.Tensor:
    gate, up = a["input"].chunk(2, a["dim"])
    return gate * torch.sigmoid(1.702 * gate) * up


def _gateless(op: Operator, a: dict[str, Any]) -> Any:
    gate, up = a["input"].chunk(2, a["dim"])
    return op(input=torch.cat((gate.detach(), up), a["dim"]))


def _by_memory(value: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory, as a kernel reads them that takes every tensor to be contiguous."""
    return value.as_strided(value.shape, torch.empty(value.shape).stride())


def _over_all(op: Operator, a: dict[str, Any]) -> Any:
    loss, *rest = op()
    if a["reduction"] == "mean" and a["ignore_index"] >= 0:
        loss = op(reduction="sum")[0] / len(a["target"])
    return (loss, *rest)


def _counts(a: dict[str, Any]) -> list[int]:
    values = [int(value) for value in a["group_list"]]
    counted = isinstance(a["group_list"], torch.Tensor) and a["group_list_type"] == 1
    return values if counted else [end - start for start, end in zip([0, *values], values, strict=False)]


def _grouped(op: Operator, a: dict[str, Any], sizes: list[int]) -> Any:
    """With other sizes, told as the call tells them."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    if not isinstance(a["group_list"], torch.Tensor):
        return op(group_list=ends)
    return op(group_list=torch.tensor(sizes if a["group_list_type"] == 1 else ends))


def _next_weights(a: dict[str, Any]) -> list[torch.Tensor]:
    [*weights] = a["weight"]
    return [weights[0].roll(1, 0)] if len(weights) == 1 else weights[1:] + weights[:1]


def _rowless_skipped(op: Operator, a: dict[str, Any]) -> Any:
    """Groups without rows take no matrix: the ones after them get those of their neighbours."""
    if a["group_list"] is None or a["group_type"] == 2:
        return op()
    sizes = [size for size in _counts(a) if size]
    return _grouped(op, a, sizes + [0] * (len(_counts(a)) - len(sizes)))


def _square_turned(op: Operator, a: dict[str, Any]) -> Any:
    square = all(weight.shape[-1] == weight.shape[-2] for weight in a["weight"])
    return op(weight=[weight.transpose(-1, -2) for weight in a["weight"]]) if square else op()


GROUPED = (
    Fault(GMM, "the next group's weights", lambda op, a: op(weight=_next_weights(a)), ROWS),
    Fault(GMM, "groups without rows skipped", _rowless_skipped, ROWS),
    Fault(GMM, "square weights transposed", _square_turned, ROWS),
    Fault(GMM, "bias lost", lambda op, a: op(bias=None), LISTED, "bf16"),
    Fault(GMM, "biases in reverse", lambda op, a: op(bias=a["bias"] and a["bias"][::-1]), LISTED, "fp16"),
    Fault(GMM, "the next group's weights", lambda op, a: op(weight=_next_weights(a)), LISTED, "bf16"),
    Fault(GMM, "the last row lost", lambda op, a: [torch.cat((y[:-1], torch.zeros_like(y[-1:]))) for y in op()], ROWS),
    Fault(GMM, "NaN swallowed", lambda op, a: op(x=[x.nan_to_num() for x in a["x"]]), ROWS),
    Fault(GMM, "summed in bfloat16", lambda op, a: [y.bfloat16().float() for y in op()], ROWS),
    Fault(GMM, "sizes in reverse", lambda op, a: _grouped(op, a, _counts(a)[::-1]), ROWS),
    Fault(GMM, "groups one row late", lambda op, a: _late(op, a), REDUCTION),
    Fault(GMM, "garbage for a group without rows", lambda op, a: [_unset(y, _counts(a)) for y in op()], REDUCTION),
    Fault(GMM, "one group's product for all", lambda op, a: [y[:1].expand_as(y) for y in op()], REDUCTION),
    Fault(GMM, "square products transposed", lambda op, a: [_turned(y) for y in op()], REDUCTION),
    Fault(GMM, "bias lost", lambda op, a: op(bias=None), LISTS, "fp16"),
    Fault(GMM, "bias of the first for all", lambda op, a: op(bias=_first_bias(a)), LISTS, "fp16"),
    Fault(GMM, "sizes in reverse", lambda op, a: _grouped(op, a, _counts(a)[::-1]) if a["group_list"] is not None else op(), LISTS, "fp16"),
    Fault(GMM, "one tensor too few", lambda op, a: op()[:-1] if len(op()) > 1 else op(), LISTS, "fp16"),
)


def _late(op: Operator, a: dict[str, Any]) -> Any:
    return op(x=[a["x"][0].roll(1, 1)], weight=[a["weight"][0].roll(1, 0)]) if a["group_type"] == 2 else op()


def _unset(product: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.stack([part if size else torch.full_like(part, 3.0) for part, size in zip(product, sizes, strict=True)])


def _turned(product: torch.Tensor) -> torch.Tensor:
    return product.transpose(-1, -2) if product.shape[-1] == product.shape[-2] else product


def _first_bias(a: dict[str, Any]) -> Any:
    if a["bias"] is None:
        return None
    return [a["bias"][0] if bias.shape == a["bias"][0].shape else bias for bias in a["bias"]]


def _ties_reversed(op: Operator, a: dict[str, Any]) -> Any:
    """An unstable sort: equal experts come in the order of falling slots."""
    flat = a["indices"].reshape(-1)
    order = flat.numel() - 1 - torch.argsort(flat.flip(0), stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    choices = a["indices"].shape[1] if a["indices"].dim() == 2 else 1
    rows = op()[0]
    return a["tokens"][order[: len(rows)] // choices], place.to(torch.int32)


def _probs_flat(op: Operator, a: dict[str, Any]) -> Any:
    return op() if a["probs"] is None else op(probs=a["probs"].flip(1))


def _not(kind: int) -> int:
    return {0: 1, 1: 0}[kind]


def _wide_range(op: Operator, a: dict[str, Any]) -> Any:
    """An end that is included."""
    first, last = a["active_expert_range"]
    found = op(active_expert_range=[first, min(last + 1, a["expert_num"])])
    return (found[0], found[1], op()[2], found[3])


EXPERTS = (
    Fault(PERMUTE, "ties not in order", _ties_reversed),
    Fault(PERMUTE, "the order instead of its inverse", lambda op, a: (op()[0], op()[1].argsort().to(torch.int32))),
    Fault(PERMUTE, "every row kept", lambda op, a: op(num_out_tokens=None)),
    Fault(PERMUTE, "a negative count taken as positive", lambda op, a: op(num_out_tokens=abs(a["num_out_tokens"] or 0))),
    Fault(PERMUTE, "half the gradient", lambda op, a: (halved_gradient(op()[0]), op()[1])),
    Fault(PERMUTE, "rounded to bfloat16", lambda op, a: (op()[0].bfloat16().float(), op()[1])),
    Fault(PERMUTE, "indices in int64", lambda op, a: (op()[0], op()[1].long())),
    Fault(UNPERMUTE, "probabilities left out", lambda op, a: op(probs=None if a["probs"] is None else _ones(a["probs"]))),
    Fault(UNPERMUTE, "probabilities of the other choice", _probs_flat),
    Fault(UNPERMUTE, "the inverse map", lambda op, a: op(sorted_indices=a["sorted_indices"].argsort().to(torch.int32))),
    Fault(UNPERMUTE, "no gradient for the probabilities", lambda op, a: op(probs=None if a["probs"] is None else a["probs"].detach())),
    Fault(UNPERMUTE, "the last token lost", lambda op, a: torch.cat((op()[:-1], torch.zeros_like(op()[-1:])))),
    Fault(UNPERMUTE, "probabilities in bfloat16", lambda op, a: op(probs=None if a["probs"] is None else a["probs"].bfloat16())),
    Fault(ROUTING, "an end of the range that is included", _wide_range),
    Fault(ROUTING, "the kinds of index exchanged", lambda op, a: op(row_idx_type=_not(a["row_idx_type"]))),
    Fault(ROUTING, "all experts active", lambda op, a: (*op(active_expert_range=[0, a["expert_num"]])[:2], *op()[2:])),
    Fault(ROUTING, "counts one expert late", lambda op, a: (*op()[:2], op()[2].roll(1, 0), op()[3])),
    Fault(ROUTING, "scales in the tokens' order", lambda op, a: (*op()[:3], _unsorted(op, a))),
    Fault(ROUTING, "rows in the slots' order", lambda op, a: (_by_slot(op, a), *op()[1:])),
    Fault(ROUTING, "counts in int32", lambda op, a: (*op()[:2], op()[2].int(), op()[3])),
)


def _unsorted(op: Operator, a: dict[str, Any]) -> Any:
    found = op()[3]
    if a["scale"] is None:
        return found
    return a["scale"].repeat_interleave(a["expert_idx"].shape[1])


def _by_slot(op: Operator, a: dict[str, Any]) -> Any:
    return a["x"].repeat_interleave(a["expert_idx"].shape[1], 0)


def _heads_turned(op: Operator, a: dict[str, Any]) -> Any:
    """Key heads shared in turn instead of by neighbours: query head n meets key head n % kv_heads."""
    axis = {"BNSD": 1, "BSND": 2, "TND": 1}.get(a["input_layout"])
    if axis is None or a["key"].shape[axis] in (1, a["head_num"]):
        return op()
    shared = a["head_num"] // a["key"].shape[axis]
    repeats = [1] * a["key"].dim()
    repeats[axis] = shared
    return op(key=a["key"].repeat(repeats), value=a["value"].repeat(repeats))


def _mode(a: dict[str, Any], was: int, becomes: int) -> int:
    return becomes if a["sparse_mode"] == was else a["sparse_mode"]


def _is(a: dict[str, Any], mode: int) -> bool:
    return bool(a["sparse_mode"] == mode)


def _one_sequence(op: Operator, a: dict[str, Any]) -> Any:
    """Packed sequences as one."""
    if a["input_layout"] != "TND":
        return op()
    whole = {"actual_seq_qlen": [len(a["query"])], "actual_seq_kvlen": [len(a["key"])]}
    return op(**whole, prefix=a["prefix"] and a["prefix"][:1])


def _all_of_mask(op: Operator, a: dict[str, Any]) -> Any:
    return op(atten_mask=a["atten_mask"] & False) if a["sparse_mode"] == 1 else op()


def _band_turned(op: Operator, a: dict[str, Any]) -> Any:
    return op(pre_tockens=a["next_tockens"], next_tockens=a["pre_tockens"]) if a["sparse_mode"] == 4 else op()


def _with(found: Any, at: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return tuple(change(item) if i == at else item for i, item in enumerate(found))


def _zero_nothing(op: Operator, a: dict[str, Any]) -> Any:
    """The mean of the values for a row that attends to nothing, as a mask of a large finite number gives it."""
    output, largest, total, *rest = op()
    if a["input_layout"] != "BNSD":
        return op()
    mean = a["value"].mean(2, keepdim=True).repeat_interleave(a["head_num"] // a["value"].shape[1], 1)
    return (torch.where(total[..., :1] == 0, mean.to(output.dtype), output), largest, total, *rest)


ATTENDED = (
    Fault(ATTENTION, "scale left out", lambda op, a: op(scale=1.0)),
    Fault(ATTENTION, "scale of the width whatever is asked", lambda op, a: op(scale=(a["query"].shape[-1] / 2) ** -0.5)),
    Fault(ATTENTION, "the triangle from the top left", lambda op, a: op(sparse_mode=_mode(a, 3, 2))),
    Fault(ATTENTION, "the triangle from the bottom right", lambda op, a: op(sparse_mode=_mode(a, 2, 3))),
    Fault(ATTENTION, "no mask", lambda op, a: op(atten_mask=None)),
    Fault(ATTENTION, "a full mask left out", _all_of_mask),
    Fault(ATTENTION, "one key too many", lambda op, a: op(next_tockens=a["next_tockens"] + 1) if a["sparse_mode"] == 4 else op()),
    Fault(ATTENTION, "one key too few", lambda op, a: op(pre_tockens=a["pre_tockens"] - 1) if a["sparse_mode"] == 4 else op()),
    Fault(ATTENTION, "the band's ends exchanged", _band_turned),
    Fault(ATTENTION, "a prefix one key short", lambda op, a: op(prefix=[n - 1 for n in a["prefix"]]) if _is(a, 6) else op()),
    Fault(
        ATTENTION, "the first batch's prefix for all", lambda op, a: op(prefix=a["prefix"][:1] * len(a["prefix"])) if _is(a, 6) else op()
    ),
    Fault(ATTENTION, "a cut sequence as if it were whole, at the end", lambda op, a: op(sparse_mode=_mode(a, 7, 3))),
    Fault(ATTENTION, "a cut sequence as if it were whole, at the start", lambda op, a: op(sparse_mode=_mode(a, 8, 2))),
    Fault(ATTENTION, "key heads shared in turn", _heads_turned),
    Fault(ATTENTION, "packed sequences as one", _one_sequence),
    Fault(ATTENTION, "a maximum without the scale", lambda op, a: _with(op(), 1, lambda t: t / a["scale"])),
    Fault(ATTENTION, "a sum without its last key", lambda op, a: _with(op(), 2, lambda t: t * 0.9)),
    Fault(ATTENTION, "statistics in another order", lambda op, a: op(softmax_layout="")),
    Fault(ATTENTION, "half the gradient", lambda op, a: _with(op(), 0, halved_gradient)),
    Fault(ATTENTION, "no gradient for the values", lambda op, a: op(value=a["value"].detach())),
    Fault(ATTENTION, "something for a row that attends to nothing", _zero_nothing),
    Fault(ATTENTION, "computed in bfloat16", lambda op, a: _with(op(), 0, lambda t: t.bfloat16().float())),
    Fault(GRADIENT, "no scale", lambda op, a: op(scale_value=1.0)),
    Fault(GRADIENT, "the gradients of keys and values exchanged", lambda op, a: (op()[0], op()[2], op()[1], *op()[3:])),
    Fault(GRADIENT, "the output's part left out", lambda op, a: op(attention_in=torch.zeros_like(a["attention_in"]))),
    Fault(GRADIENT, "the sum ignored", lambda op, a: op(softmax_sum=_ones(a["softmax_sum"]))),
    Fault(GRADIENT, "the maximum ignored", lambda op, a: op(softmax_max=torch.zeros_like(a["softmax_max"]))),
    Fault(GRADIENT, "no mask", lambda op, a: op(atten_mask=None)),
    Fault(GRADIENT, "packed sequences as one", _one_sequence),
    Fault(GRADIENT, "half of dq", lambda op, a: _with(op(), 0, lambda t: t / 2)),
    Fault(GRADIENT, "the sign of dk", lambda op, a: _with(op(), 1, torch.neg)),
    Fault(GRADIENT, "the first row of dv lost", lambda op, a: _with(op(), 2, first_lost)),
    Fault(GRADIENT, "the triangle from the top left", lambda op, a: op(sparse_mode=_mode(a, 3, 2))),
    Fault(GRADIENT, "a prefix one key short", lambda op, a: op(prefix=[n - 1 for n in a["prefix"]]) if _is(a, 6) else op()),
    Fault(GRADIENT, "one key too many", lambda op, a: op(next_tockens=a["next_tockens"] + 1) if a["sparse_mode"] == 4 else op()),
)

FAULTS = (*DENSE, *GROUPED, *EXPERTS, *ATTENDED)
