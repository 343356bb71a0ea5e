"""The cases of fused attention: layouts, sparse modes and masks, shared heads, packed sequences; within what is documented."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.kernels.kernel import Params
from harness.kernels.model_shapes import MODELS
from harness.kernels.npu import LAYS, PLAIN
from harness.kernels.references_attention import LAYOUTS, Asked, ends_of


def asked_of(params: Params) -> Asked:
    lengths = params["lengths"]
    ends = None
    if params["layout"] == "TND":
        ends = (ends_of([q for q, _ in lengths]), ends_of([k for _, k in lengths]))
    heads, width = params["kv_heads"] * params["sharing"], params["width"]
    scale = width**-0.5 if params["scale"] is None else params["scale"]
    prefix = tuple(params["prefix"])
    return Asked(params["layout"], heads, params["kv_heads"], scale, params["mode"], params["before"], params["after"], ends, prefix)


def has_statistics(params: Params) -> bool:
    return params["edge"] != "nan" and (params["layout"] != "TND" or bool(params["softmax_layout"]))


@st.composite
def gradient_shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Statistics must be at hand; rows without keys can't be merged, and a ring's blocks are whole here: no mask, not packed.

    No queries of zeros: weights that are all equal are exact in any dtype, and the plain computation then no measure. Nor few keys with
    steep scores: next to a weight of nearly 1 the gradient is the difference of two numbers that were rounded before.
    """
    found = draw(shapes(shortest=4))
    found["scale"] = None if found["scale"] == 0.5 else found["scale"]
    found["edge"] = "peaked" if found["edge"] == "peaked" else "none"
    if found["layout"] == "TND":
        found["softmax_layout"] = "TND"
    ring = draw(st.integers(1, 7)) if found["mode"] is None and found["layout"] != "TND" and draw(st.booleans()) else 0
    return {**found, "ring": ring, "merged": found["mode"] is None and draw(st.booleans())}


@st.composite
def shapes(draw: st.DrawFn, shortest: int = 1) -> dict[str, Any]:
    layout, edge = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(("none", "none", "zeros", "peaked", "nan")))
    # Steep scores of steep queries, or of few, leave one weight of nearly 1 and gradients that are rounding errors.
    shortest, scales = (4, (None, 0.1)) if edge == "peaked" else (shortest, (None, 0.5, 0.1))
    # 5 isn't for packed sequences, and those that are cut between devices (7, 8) are packed.
    mode = draw(st.sampled_from((None, 0, 1, 2, 3, 4, *((6, 7, 8) if layout == "TND" else (5, 6)))))
    width = draw(st.integers(4, 24))
    found: dict[str, Any] = {"layout": layout, "mode": mode, "width": width, "value_width": draw(st.integers(4, width))}
    found |= {"kv_heads": draw(st.integers(1, 3)), "sharing": draw(st.integers(1, 3)), "batch": draw(st.integers(1, 3))}
    found["lengths"] = draw(
        _packed(shortest)
        if layout == "TND"
        else st.tuples(st.integers(shortest, 9), st.integers(shortest, 9)).map(lambda pair: [list(pair)])
    )
    full = ("SS",) if layout == "TND" else ("SS", "11SS", "B1SS", "BNSS")
    shapes_of_mask = full if mode in (0, 1) else ("B1SS", "BNSS") if mode == 5 else ("",)
    found |= {"mask": draw(st.sampled_from(shapes_of_mask)), "uint8": mode is not None and draw(st.booleans())}
    before, after = draw(st.integers(0, 6)), draw(st.integers(0, 4))
    found |= {"before": before, "after": -min(before, after) if mode == 4 and draw(st.booleans()) else after}
    found |= {"edge": edge, "scale": draw(st.sampled_from(scales))}
    found |= {"softmax_layout": draw(st.sampled_from(("", "TND"))) if layout == "TND" else "", "lay": draw(st.sampled_from(LAYS))}
    found["prefix"] = [draw(_prefix(q, k)) for q, k in _sequences(found)] if mode in (5, 6) else []
    return _legal(found)


def _sequences(params: Params) -> list[list[int]]:
    """(queries, keys) of every batch or packed sequence."""
    pairs: list[list[int]] = params["lengths"]
    return pairs if params["layout"] == "TND" else pairs * params["batch"]


def _prefix(queries: int, keys: int) -> st.SearchStrategy[int]:
    """As long as documented: at least what every row sees anyhow."""
    return st.integers(max(0, keys - queries), keys)


@st.composite
def _packed(draw: st.DrawFn, shortest: int) -> list[list[int]]:
    """Sequences of any lengths, some without queries, some without anything; the whole has both queries and keys."""
    pairs = draw(st.lists(st.tuples(st.integers(shortest, 7), st.integers(shortest, 7)), min_size=1, max_size=4))
    empty = draw(st.lists(st.integers(0, len(pairs) - 1), max_size=1)) if len(pairs) > 1 else []
    kept_keys = draw(st.booleans())
    return [[0, k if kept_keys else 0] if i in empty else [q, k] for i, (q, k) in enumerate(pairs)]


def _legal(params: dict[str, Any]) -> dict[str, Any]:
    """Within what is documented: of a packed call no row of a full mask leaves out everything; a negative `after` is above -Skv."""
    params = {**params, "after": max(params["after"], 1 - min(k for q, k in params["lengths"] if q))}
    if params["mode"] == 7:  # a triangle from the bottom right whose last sequence has lost its last queries
        queries, keys = params["lengths"][-1]
        return {**params, "before": max(keys, params["before"]), "after": -min(max(keys - queries, 0), params["before"])}
    if params["mode"] == 8:  # a triangle from the top left whose first sequence has lost its first `after` queries
        queries, keys = params["lengths"][0]
        return {**params, "before": max(keys, queries), "after": params["after"] - (keys - queries)}
    if params["layout"] == "TND" and params["mode"] == 0:
        shortest = min(k for q, k in params["lengths"] if q)
        # Row i sees [i - before, i + after] cut to its sequence's keys; the longest query's last row must still see one.
        reach = max(q for q, _ in params["lengths"]) - shortest
        return {**params, "before": max(params["before"], reach), "after": max(params["after"], 0)}
    return params


PLAIN_CASE: dict[str, Any] = {
    "layout": "BNSD",
    "batch": 2,
    "kv_heads": 2,
    "sharing": 1,
    "lengths": [[5, 5]],
    "width": 8,
    "value_width": 8,
    "mode": None,
    "mask": "",
    "uint8": False,
    "before": 0,
    "after": 0,
    "scale": None,
    "prefix": [],
    "softmax_layout": "",
    "edge": "none",
    "lay": PLAIN,
}
_TND = {"layout": "TND", "softmax_layout": "TND", "lengths": [[3, 5], [0, 0], [4, 4], [6, 2], [1, 1]]}
EXAMPLES: tuple[dict[str, Any], ...] = (
    {**PLAIN_CASE, "lengths": [[1, 1]], "kv_heads": 1, "width": 1, "value_width": 1},
    *({**PLAIN_CASE, "layout": layout, "sharing": 3, "lengths": [[5, 7]], "value_width": 5} for layout in LAYOUTS if layout != "TND"),
    *({**PLAIN_CASE, "mode": mode, "lengths": lengths} for mode in (2, 3) for lengths in ([[6, 6]], [[4, 7]], [[7, 4]])),
    {**PLAIN_CASE, "mode": 0, "mask": "SS", "before": 9, "after": 0},
    {**PLAIN_CASE, "mode": 0, "mask": "B1SS", "before": 2, "after": 1, "uint8": True},
    {**PLAIN_CASE, "mode": 1, "mask": "BNSS", "sharing": 2, "layout": "BSND"},
    {**PLAIN_CASE, "mode": 4, "before": 2, "after": 1, "lengths": [[6, 8]]},
    {**PLAIN_CASE, "mode": 4, "before": 3, "after": -1, "lengths": [[8, 8]]},
    {**PLAIN_CASE, "mode": 5, "mask": "B1SS", "lengths": [[5, 6]], "prefix": [2, 4]},
    {**PLAIN_CASE, "mode": 6, "layout": "SBH", "lengths": [[6, 4]], "prefix": [0, 3], "uint8": True},
    {**PLAIN_CASE, **_TND, "mode": 6, "prefix": [3, 0, 1, 2, 1]},
    {**PLAIN_CASE, **_TND, "mode": 7, "lengths": [[3, 3], [2, 6]], "before": 6, "after": -2},
    {**PLAIN_CASE, **_TND, "mode": 8, "lengths": [[3, 4], [5, 5], [4, 4]], "before": 4, "after": 1},
    {**PLAIN_CASE, **_TND},
    {**PLAIN_CASE, **_TND, "mode": 3, "sharing": 2},
    {**PLAIN_CASE, **_TND, "mode": 2, "softmax_layout": ""},
    {**PLAIN_CASE, **_TND, "mode": 4, "before": 2, "after": 0},
    # Longer than the compressed triangle, which a kernel reads tile by tile.
    {**PLAIN_CASE, "mode": 3, "batch": 1, "kv_heads": 1, "lengths": [[300, 2300]]},
    {**PLAIN_CASE, **_TND, "mode": 3, "kv_heads": 1, "lengths": [[1030, 1030], [1, 1], [517, 517]]},
    *(
        {**PLAIN_CASE, "layout": "BSND", "batch": 1, "mode": 3, "lengths": [[17, 17]], **heads}
        for heads in (
            {"kv_heads": shape.kv_heads, "sharing": shape.heads // shape.kv_heads, "width": shape.head, "value_width": shape.head}
            for shape in MODELS
        )
    ),
)
