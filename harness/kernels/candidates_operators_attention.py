"""npu_fusion_attention and npu_fusion_attention_grad of the real torch_npu against their goldens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from harness.kernels import references_attention as golden
from harness.kernels.candidates_operators_attention_cases import EXAMPLES, PLAIN_CASE, asked_of, gradient_shapes, has_statistics, shapes
from harness.kernels.candidates_operators_dense import Given, answers, typed
from harness.kernels.kernel import DTYPES, Kernel, Kind, Limit, Params
from harness.kernels.npu import Operators
from harness.kernels.references_attention import Attended
from harness.kernels.values import edged, normal

FORWARD, BACKWARD = "npu_fusion_attention", "npu_fusion_attention_grad"
COMPRESSED = 2048  # the triangle that the sparse modes 2 to 8 want, whatever the lengths are
_STATISTIC = Limit(1e-2, "sums of exponentials of scores whose products an NPU may take in the input's 16 bits")


def attention_kernels(operators: Operators) -> tuple[Kernel, ...]:
    return (attention(operators), attention_gradient(operators))


def _laid(params: Params, heads: int, positions: int, width: int) -> list[int]:
    batch = params["batch"]
    laid: dict[str, list[int]] = {
        "BSH": [batch, positions, heads * width],
        "SBH": [positions, batch, heads * width],
        "BNSD": [batch, heads, positions, width],
        "BSND": [batch, positions, heads, width],
        "TND": [positions, heads, width],
    }
    return laid[params["layout"]]


def _positions(params: Params) -> tuple[int, int]:
    """Rows of query and of key: of the one sequence, or of all packed ones."""
    return sum(q for q, _ in params["lengths"]), sum(k for _, k in params["lengths"])


def _inputs(params: Params, generator: torch.Generator) -> Given:
    queries, keys = _positions(params)
    heads = params["kv_heads"] * params["sharing"]
    query = normal(generator, *_laid(params, heads, queries, params["width"]))
    if params["edge"] == "peaked":  # nearly all weight on one key
        query = query * 4
    given = {
        "query": edged(query, params["edge"] if params["edge"] in ("zeros", "nan") else "none", generator),
        "key": normal(generator, *_laid(params, params["kv_heads"], keys, params["width"])),
        "value": normal(generator, *_laid(params, params["kv_heads"], keys, params["value_width"])),
    }
    if params["mask"]:
        given["mask"] = _full_mask(params, generator)
    return given


def _full_mask(params: Params, generator: torch.Generator) -> torch.Tensor:
    """Of modes 0, 1 and 5: the band that before and after say, random bits, or what the prefixes say; True leaves out."""
    longest = [max(pair[i] for pair in params["lengths"]) for i in (0, 1)]
    heads = params["kv_heads"] * params["sharing"]
    leads: dict[str, list[int]] = {"SS": [], "11SS": [1, 1], "B1SS": [params["batch"], 1], "BNSS": [params["batch"], heads]}
    lead = leads[params["mask"]]
    if params["mode"] == 5:
        free = golden.allowed(asked_of(params), longest[0], longest[1], None)
        return ~free if lead[1] == 1 else ~free.repeat(1, heads, 1, 1)
    if params["mode"] == 0:
        row, column = torch.arange(longest[0])[:, None], torch.arange(longest[1])[None]
        band: torch.Tensor = (column > row + params["after"]) | (column < row - params["before"])
        return band.repeat(*lead, 1, 1)
    mask: torch.Tensor = torch.rand(*lead, *longest, generator=generator) < 0.4
    if params["layout"] == "TND":  # no row may leave out everything, for no sequence: the first key always stays
        mask[..., 0] = False
    return mask


def _options(operators: Operators, given: Given, params: Params, idle: bool) -> dict[str, Any]:
    """What both operators take besides tensors and scale; nothing that is at its default."""
    asked, named = asked_of(params), dict[str, Any]()
    if asked.ends is not None:
        named |= {"actual_seq_qlen": list(asked.ends[0]), "actual_seq_kvlen": list(asked.ends[1])}
    if params["softmax_layout"]:
        named["softmax_layout"] = params["softmax_layout"]
    if asked.mode is None:
        return named
    named["sparse_mode"] = asked.mode
    if asked.prefix:
        named["prefix"] = list(asked.prefix)
    if asked.mode in (0, 4, 7, 8):
        named |= {"pre_tockens": asked.before, "next_tockens": asked.after}
    mask = given["mask"] if "mask" in given else _compressed(asked.mode)
    named["atten_mask"] = operators.place(mask.to(torch.uint8) if params["uint8"] else mask)
    if idle and asked.mode != 3:  # found by the operator itself only in mode 3, says the documentation
        named["inner_precise"] = 2
    return named


def _compressed(mode: int) -> torch.Tensor:
    """True above the diagonal; for mode 6 a rectangle below, its right half True."""
    triangle = torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool).triu(1)
    if mode != 6:
        return triangle
    return torch.cat((triangle, (torch.arange(COMPRESSED) >= COMPRESSED // 2).expand(COMPRESSED // 2, -1)))


def _exact(given: Given, params: Params) -> Attended:
    return golden.attention(given["query"], given["key"], given["value"], asked_of(params), given.get("mask"))


def _idle(given: Given, params: Params) -> torch.Tensor:
    """Rows that attend to nothing, shaped as the statistics."""
    return _exact({name: value.detach() for name, value in given.items()}, params).idle


def attention(operators: Operators) -> Kernel:
    def candidate(given: Given, params: Params) -> Given:
        asked, idle = asked_of(params), _idle(given, params)
        query, key, value = (operators.place(given[name], params["lay"]) for name in ("query", "key", "value"))
        named = _options(operators, given, params, bool(idle.any()))
        output, largest, total, *_ = operators.call(FORWARD, query, key, value, asked.heads, asked.layout, scale=asked.scale, **named)
        found = {"output": typed(FORWARD, "output", output, query.dtype)}
        for label, statistic in (("softmax_max", largest), ("softmax_sum", total)):
            found[label] = _one_copy(label, typed(FORWARD, label, statistic, torch.float32)).masked_fill(idle.to(operators.device), 0)
        return answers(params, **_comparable(found, params))

    def exact(given: Given, params: Params) -> Given:
        attended = _exact(given, params)
        largest, total = (statistic.masked_fill(attended.idle, 0) for statistic in (attended.largest, attended.total))
        return answers(params, **_comparable({"output": attended.output, "softmax_max": largest, "softmax_sum": total}, params))

    return Kernel(
        name=FORWARD,
        kind=Kind.OPERATOR,
        what="softmax(mask(scale * Q K^T)) V and the softmax's statistics, in five layouts",
        dtypes=tuple(DTYPES),
        params=shapes(),
        examples=EXAMPLES,
        inputs=_inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(FORWARD,),
        differentiable=("query", "key", "value"),
        plain=exact,
        dual=False,  # a fused softmax rounds elsewhere: over a few rows either may be luckier by more than the criterion allows
        output_limits={(dtype, label): _STATISTIC for dtype in ("fp16", "bf16") for label in ("softmax_max", "softmax_sum")},
        tries=40,
        missing=operators.missing,
    )


def _one_copy(label: str, statistic: torch.Tensor) -> torch.Tensor:
    """A statistic comes eight times over. Raises ValueError where the copies differ or are another number."""
    if statistic.shape[-1] != 8 or not torch.equal(statistic.nan_to_num(), statistic[..., :1].expand_as(statistic).nan_to_num()):
        raise ValueError(f"{label} {tuple(statistic.shape)} doesn't hold every value eight times")
    return statistic[..., 0].detach()


def _comparable(found: Given, params: Params) -> Given:
    """The output alone where statistics have no documented order (packed, unless TND is asked for) or no meaning (not a number)."""
    if params["edge"] == "nan" or (params["layout"] == "TND" and not params["softmax_layout"]):
        return {"output": found["output"]}
    return found


def attention_gradient(operators: Operators) -> Kernel:
    """The operator called by itself, on output and statistics from the golden: `ring`, from more keys than it is given;
    `merged`, statistics as ms-swift's ring hands them over, log(sum) + max and 1."""

    def inputs(params: Params, generator: torch.Generator) -> Given:
        given = _inputs(params, generator)
        heads, (queries, _) = params["kv_heads"] * params["sharing"], _positions(params)
        given["dy"] = normal(generator, *_laid(params, heads, queries, params["value_width"]))
        if params["ring"]:
            for label, width in (("far_key", params["width"]), ("far_value", params["value_width"])):
                given[label] = normal(generator, *_laid(params, params["kv_heads"], params["ring"], width))
        return given

    def candidate(given: Given, params: Params) -> Given:
        asked = asked_of(params)
        attended = _whole(given, params)
        query, key, value, dy = (operators.place(given[name], params["lay"]) for name in ("query", "key", "value", "dy"))
        largest, total = attended.largest.masked_fill(attended.idle, torch.finfo(torch.float32).min), attended.total
        if params["merged"]:
            largest, total = largest + torch.log(total), torch.ones_like(total)
        saved = {
            label: operators.place(statistic.float()[..., None].expand(*statistic.shape, 8).contiguous())
            for label, statistic in (("softmax_max", largest), ("softmax_sum", total.masked_fill(attended.idle, 0)))
        }
        named = _options(operators, given, params, bool(attended.idle.any()))
        saved["attention_in"] = operators.place(attended.output.to(query.dtype))
        found = operators.call(BACKWARD, query, key, value, dy, asked.heads, asked.layout, scale_value=asked.scale, **saved, **named)
        return {label: typed(BACKWARD, label, gradient, query.dtype) for label, gradient in zip(_GRADIENTS, found[:3], strict=True)}

    def plain(given: Given, params: Params) -> Given:
        """Statistics in the dtype's own digits would only measure what the rounding of a large logarithm does."""
        attended, dtype = _whole(given, params), given["query"].dtype
        saved = replace(attended, output=attended.output.to(dtype), largest=attended.largest.float(), total=attended.total.float())
        found = golden.gradient_from_statistics(given, asked_of(params), given.get("mask"), saved)
        return {label: gradient.to(dtype) for label, gradient in zip(_GRADIENTS, found, strict=True)}

    def exact(given: Given, params: Params) -> Given:
        far = (given["far_key"], given["far_value"]) if params["ring"] else None
        return dict(zip(_GRADIENTS, golden.attention_gradient(given, asked_of(params), given.get("mask"), far), strict=True))

    return Kernel(
        name=BACKWARD,
        kind=Kind.OPERATOR,
        what="gradients of attention from its output and statistics",
        dtypes=tuple(DTYPES),
        params=gradient_shapes(),
        examples=(
            *({**example, "ring": 0, "merged": False} for example in EXAMPLES if has_statistics(example)),
            {**PLAIN_CASE, "lengths": [[5, 4]], "sharing": 2, "ring": 6, "merged": False},
            {**PLAIN_CASE, "layout": "BSND", "lengths": [[3, 4]], "ring": 3, "merged": True},
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(BACKWARD,),
        plain=plain,
        dual=False,
        missing=operators.missing,
    )


_GRADIENTS = ("dq", "dk", "dv")


def _whole(given: Given, params: Params) -> Attended:
    """The forward in float64 over the keys given and those far away."""
    given = {name: value.detach().double() if value.is_floating_point() else value for name, value in given.items()}
    if not params["ring"]:
        return _exact(given, params)
    along = {"SBH": 0, "BNSD": 2}.get(params["layout"], 1)
    return _exact({**given, **{name: torch.cat((given[name], given[f"far_{name}"]), along) for name in ("key", "value")}}, params)
