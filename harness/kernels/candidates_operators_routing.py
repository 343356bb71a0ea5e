"""npu_moe_token_permute, npu_moe_token_unpermute and npu_moe_init_routing_v2 of the real torch_npu against their goldens."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import references_experts as golden
from harness.kernels.candidates_operators_dense import Given, answers, typed
from harness.kernels.kernel import DTYPES, Kernel, Kind, Limit, Params
from harness.kernels.model_shapes import SPARSE
from harness.kernels.npu import LAYS, Operators
from harness.kernels.values import edged, integers, normal

COPIED = Limit(1e-9, "rows are copied: every bit stays, and less than the last bit of float32 is none")
# Of the values at the edges those that a copy and a sum keep apart from other rows.
ROW_EDGES = ("none", "none", "zeros", "large", "tiny", "denormal", "nan", "inf")


def routing_kernels(operators: Operators) -> tuple[Kernel, ...]:
    return (permute(operators), unpermute(operators), init_routing(operators))


def _choices(generator: torch.Generator, params: Params) -> torch.Tensor:
    """[t, k] experts, or [t] with k None; `skewed`: all of the first expert but the last token's, so that others have no rows."""
    rows, choices, experts = params["rows"], params["choices"], params["experts"]
    shape = (rows,) if choices is None else (rows, choices)
    if params["distinct"] and choices is not None and choices <= experts:
        return torch.stack([torch.randperm(experts, generator=generator)[:choices] for _ in range(rows)])
    drawn = integers(generator, experts, *shape)
    if params["skewed"]:
        drawn[:-1] = 0
    return drawn


_ROUTES = {
    "rows": st.integers(1, 9),
    "experts": st.integers(1, 9),
    "distinct": st.booleans(),
    "skewed": st.booleans(),
    "width": st.integers(1, 33),
}
_ROUTE = {"rows": 5, "choices": 2, "experts": 4, "distinct": False, "skewed": False, "width": 8}


def permute(operators: Operators) -> Kernel:
    name = "npu_moe_token_permute"

    def inputs(params: Params, generator: torch.Generator) -> Given:
        tokens = edged(normal(generator, params["rows"], params["width"]), params["edge"], generator)
        return {"tokens": tokens, "choices": _choices(generator, params).to(torch.int64 if params["wide"] else torch.int32)}

    def candidate(given: Given, params: Params) -> Given:
        tokens = operators.place(given["tokens"], params["lay"])
        named = {} if params["kept"] is None else {"num_out_tokens": params["kept"]}
        rows, place = operators.call(name, tokens, operators.place(given["choices"]), **named)
        return answers(params, rows=typed(name, "rows", rows, tokens.dtype), place=typed(name, "indices", place, torch.int32))

    def exact(given: Given, params: Params) -> Given:
        rows, place = golden.permute(given["tokens"], given["choices"], params["kept"])
        return answers(params, rows=rows, place=place)

    @st.composite
    def shapes(draw: st.DrawFn) -> dict[str, Any]:
        found: dict[str, Any] = {"choices": draw(st.one_of(st.none(), st.integers(1, 4))), "wide": draw(st.booleans())}
        found |= draw(st.fixed_dictionaries(_ROUTES))
        slots = found["rows"] * (found["choices"] or 1)
        # Negative: as the end of a slice, of which at least one row is left.
        kept = draw(st.one_of(st.none(), st.just(0), st.integers(1, slots + 2), st.integers(-slots + 1, -1) if slots > 1 else st.none()))
        return {**found, "kept": kept, "edge": draw(st.sampled_from(ROW_EDGES)), "lay": draw(st.sampled_from(LAYS))}

    plain = {**_ROUTE, "wide": False, "kept": None, "edge": "none", "lay": "plain"}
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="tokens sorted by their experts, and where each went",
        dtypes=tuple(DTYPES),
        params=shapes(),
        examples=(
            {**plain, "rows": 1, "choices": 1},
            {**plain, "rows": 7, "choices": 3, "skewed": True},
            {**plain, "choices": None, "wide": True},
            {**plain, "kept": 4},
            {**plain, "kept": -3},
            {**plain, "rows": 259, "choices": 3, "experts": 7},
            *({**plain, "rows": 5, "choices": 8, "experts": 128, "distinct": True, "width": shape.hidden} for shape in SPARSE),
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(name,),
        differentiable=("tokens",),
        plain=exact,
        output_limits={(dtype, "rows"): COPIED for dtype in DTYPES},
        missing=operators.missing,
    )


def unpermute(operators: Operators) -> Kernel:
    name = "npu_moe_token_unpermute"

    def inputs(params: Params, generator: torch.Generator) -> Given:
        choices = params["choices"] or 1
        slots = params["rows"] * choices
        rows = edged(normal(generator, slots, params["width"]), params["edge"], generator)
        given = {"rows": rows, "place": torch.randperm(slots, generator=generator).to(torch.int32)}
        if params["choices"] is not None:
            given["probs"] = torch.rand(params["rows"], choices, generator=generator, dtype=torch.float64)
        return given

    def candidate(given: Given, params: Params) -> Given:
        rows = operators.place(given["rows"], params["lay"])
        named = {"probs": operators.place(given["probs"], params["lay"])} if "probs" in given else {}
        tokens = operators.call(name, rows, operators.place(given["place"]), **named)
        return answers(params, tokens=typed(name, "output", tokens, rows.dtype))

    def exact(given: Given, params: Params) -> Given:
        return answers(params, tokens=golden.unpermute(given["rows"], given["place"], given.get("probs")))

    plain = {"rows": 5, "choices": 2, "width": 8, "edge": "none", "lay": "plain"}
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="the weighted rows of every token added up",
        dtypes=tuple(DTYPES),
        params=st.fixed_dictionaries(
            {
                "rows": st.integers(1, 9),
                "choices": st.one_of(st.none(), st.integers(1, 5)),
                "width": st.integers(1, 33),
                "edge": st.sampled_from(ROW_EDGES),
                "lay": st.sampled_from(LAYS),
            }
        ),
        examples=(
            {**plain, "rows": 1, "choices": 1},
            {**plain, "choices": None},
            {**plain, "rows": 4, "choices": 3, "width": 1},
            {**plain, "rows": 259, "choices": 3},
            *({**plain, "choices": 8, "width": shape.hidden} for shape in SPARSE),
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(name,),
        differentiable=("rows", "probs"),
        plain=exact,
        missing=operators.missing,
    )


def _routing_inputs(params: Params, generator: torch.Generator) -> Given:
    given = {"x": edged(normal(generator, params["rows"], params["width"]), params["edge"], generator)}
    given["choices"] = _choices(generator, params).to(torch.int32)
    if params["scaled"]:
        given["scale"] = normal(generator, params["rows"])
    return given


def _routed(given: Given, params: Params) -> Given:
    routed = golden.init_routing(
        given["x"],
        given["choices"],
        given.get("scale"),
        params["experts"],
        (params["active"][0], params["active"][1]),
        params["index_type"],
        params["counts_type"],
    )
    found = {"rows": routed.rows, "places": routed.places, "counts": routed.counts}
    return {**found, "scales": routed.scales} if routed.scales is not None else found


@st.composite
def _routings(draw: st.DrawFn) -> dict[str, Any]:
    found = draw(st.fixed_dictionaries({**_ROUTES, "choices": st.integers(1, 4), "scaled": st.booleans()}))
    first = draw(st.integers(0, found["experts"] - 1))
    return {
        **found,
        "active": [first, draw(st.integers(first + 1, found["experts"]))],
        "active_num": draw(st.sampled_from((-1, 0, "all"))),
        "counts_type": draw(st.sampled_from((1, 2))),
        "index_type": draw(st.sampled_from((0, 1))),
        "edge": draw(st.sampled_from(ROW_EDGES)),
        "lay": draw(st.sampled_from(LAYS)),
    }


_ROUTING = {
    **_ROUTE,
    "scaled": False,
    "active": [0, 4],
    "active_num": 0,
    "counts_type": 1,
    "index_type": 0,
    "edge": "none",
    "lay": "plain",
}


def init_routing(operators: Operators) -> Kernel:
    """Without quantisation. What the documentation leaves undefined is cut off before anything is compared."""
    name = "npu_moe_init_routing_v2"

    def candidate(given: Given, params: Params) -> Given:
        x, choices = operators.place(given["x"], params["lay"]), operators.place(given["choices"])
        first, last = params["active"]
        named = {
            "scale": operators.place(given["scale"]) if params["scaled"] else None,
            "offset": None,
            "active_num": choices.numel() if params["active_num"] == "all" else params["active_num"],
            "expert_capacity": -1,
            "expert_num": params["experts"],
            "drop_pad_mode": 0,
            "expert_tokens_num_type": params["counts_type"],
            "expert_tokens_num_flag": True,
            "active_expert_range": [first, last],
            "quant_mode": -1,
            "row_idx_type": params["index_type"],
        }
        rows, places, counts, scales = operators.call(name, x, choices, **named)
        typed(name, "rows", rows, x.dtype)
        typed(name, "scales", scales, torch.float32)
        flat = given["choices"].reshape(-1)
        active = flat[(flat >= first) & (flat < last)]
        pairs = min(len(set(active.tolist())) + 1, params["experts"])
        found = {
            "rows": rows[: len(active)],
            "places": typed(name, "places", places, torch.int32)[: len(active) if params["index_type"] else None],
            "counts": typed(name, "counts", counts, torch.int64)[: pairs if params["counts_type"] == 2 else None],
        }
        return {**found, "scales": scales[: len(active)]} if params["scaled"] else found

    experts = {"rows": 5, "choices": 8, "experts": 128, "distinct": True}
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="rows of the active experts in order, where each slot went, and how many rows an expert has",
        dtypes=tuple(DTYPES),
        params=_routings(),
        examples=(
            {**_ROUTING, "rows": 1, "choices": 1},
            {**_ROUTING, "scaled": True, "active": [1, 3], "index_type": 1},
            {**_ROUTING, "active": [1, 3], "counts_type": 2, "active_num": -1},
            {**_ROUTING, "skewed": True, "counts_type": 2, "active_num": "all"},
            {**_ROUTING, "rows": 259, "choices": 3, "experts": 7, "active": [2, 7], "scaled": True},
            *({**_ROUTING, **experts, "active": [64, 128], "width": shape.hidden} for shape in SPARSE),
        ),
        inputs=_routing_inputs,
        candidate=candidate,
        golden=_routed,
        counted=operators.counted,
        must_run=(name,),
        keep=frozenset({"scale"}),
        output_limits={(dtype, label): COPIED for dtype in DTYPES for label in ("rows", "scales")},
        missing=operators.missing,
    )
