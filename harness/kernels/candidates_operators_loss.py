"""npu_cross_entropy_loss of the real torch_npu against its golden."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import references_dense as golden
from harness.kernels.candidates_operators_dense import Given, answers, typed
from harness.kernels.kernel import DTYPES, Kernel, Kind, Params
from harness.kernels.model_shapes import MODELS
from harness.kernels.npu import LAYS, Operators
from harness.kernels.values import FINITE, edged, integers, normal


def cross_entropy(operators: Operators) -> Kernel:
    """`gradient` as the documentation allows it: all defaults for the mean, no smoothing for sum and none."""
    name = "npu_cross_entropy_loss"

    def inputs(params: Params, generator: torch.Generator) -> Given:
        rows, classes = params["rows"], params["classes"]
        given = {"logits": edged(normal(generator, rows, classes), params["edge"], generator)}
        given["target"] = integers(generator, classes, rows)
        if params["ignored"] is not None:  # at least one row counts: the mean of none is undocumented
            given["target"][1::2] = params["ignored"]
            given["target"][0] = (params["ignored"] + 1) % classes
        if params["weighted"]:
            given["weight"] = 1 - torch.rand(classes, generator=generator, dtype=torch.float64) * 0.9
        return given

    def candidate(given: Given, params: Params) -> Given:
        logits = operators.place(given["logits"], params["lay"])
        logits = logits.detach() if params["forward_only"] else logits  # asked for a gradient the operator refuses such a call
        named: dict[str, Any] = {} if params["reduction"] is None else {"reduction": params["reduction"]}
        if "weight" in given:
            named["weight"] = operators.place(given["weight"])
        if params["ignored"] is not None:
            named["ignore_index"] = params["ignored"]
        if params["smoothing"]:
            named["label_smoothing"] = params["smoothing"]
        loss, log_prob, *_ = operators.call(name, logits, operators.place(given["target"]), **named)
        loss, log_prob = (typed(name, label, value, logits.dtype) for label, value in (("loss", loss), ("log_prob", log_prob)))
        return answers(params, loss=loss, log_prob=log_prob.detach())

    def exact(given: Given, params: Params) -> Given:
        reduction, ignored = params["reduction"] or "mean", -100 if params["ignored"] is None else params["ignored"]
        loss, log_prob = golden.cross_entropy(
            given["logits"], given["target"], given.get("weight"), reduction, ignored, params["smoothing"]
        )
        return answers(params, loss=loss, log_prob=log_prob.detach())

    @st.composite
    def shapes(draw: st.DrawFn) -> dict[str, Any]:
        found: dict[str, Any] = {"rows": draw(st.integers(1, 9)), "classes": draw(st.integers(2, 40))}
        found |= {"reduction": draw(st.sampled_from((None, "mean", "sum", "none"))), "weighted": draw(st.booleans())}
        found |= {
            "ignored": draw(st.one_of(st.none(), st.integers(0, found["classes"] - 1))),
            "smoothing": draw(st.sampled_from((0.0, 0.1))),
        }
        # A row that isn't a number and is ignored: what becomes of it isn't documented.
        edges = (*FINITE[:2], "tiny") if found["ignored"] is not None else (*FINITE[:2], "tiny", "nan")
        return _with_gradient({**found, "edge": draw(st.sampled_from(edges)), "lay": draw(st.sampled_from(LAYS))})

    plain: dict[str, Any] = {
        "rows": 6,
        "classes": 11,
        "reduction": None,
        "weighted": False,
        "ignored": None,
        "smoothing": 0.0,
        "edge": "none",
        "lay": "plain",
    }
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="loss of logits and classes, with weights, an ignored class and smoothing",
        dtypes=tuple(DTYPES),
        params=shapes(),
        examples=tuple(_with_gradient({**plain, **change}) for change in _CHANGES),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(name,),
        differentiable=("logits",),
        keep=frozenset({"weight"}),
        plain=exact,
        missing=operators.missing,
    )


_CHANGES: tuple[dict[str, Any], ...] = (
    {"rows": 1},
    {"reduction": "sum"},
    {"reduction": "none", "weighted": True},
    {"reduction": "none", "ignored": 0},
    {"reduction": "sum", "weighted": True, "ignored": 10},
    {"weighted": True, "ignored": 3},
    {"smoothing": 0.1},
    {"smoothing": 0.1, "weighted": True, "ignored": 3},
    {"rows": 517, "classes": 33},
    *({"rows": 3, "classes": classes} for classes in sorted({shape.vocabulary for shape in MODELS})),
)


def _with_gradient(params: dict[str, Any]) -> dict[str, Any]:
    """The case, its gradient left out where the documentation says that there is none."""
    mean = params["reduction"] in (None, "mean")
    changed = params["weighted"] or params["ignored"] is not None or params["smoothing"]
    return {**params, "forward_only": bool(params["smoothing"] or (mean and changed))}
