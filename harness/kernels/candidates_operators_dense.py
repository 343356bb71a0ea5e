"""npu_rms_norm, npu_rotary_mul and npu_swiglu of the real torch_npu against their goldens."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import references_dense as golden
from harness.kernels.criteria import RMS_LIMITS
from harness.kernels.kernel import DTYPES, Kernel, Kind, Params
from harness.kernels.model_shapes import MODELS
from harness.kernels.npu import LAYS, Operators
from harness.kernels.values import EDGES, NOT_FINITE, apart, edged, normal

Given = dict[str, torch.Tensor]
EPSILONS = (1e-6, 1e-5, 1e-2)


def dense_kernels(operators: Operators) -> tuple[Kernel, ...]:
    return (rms_norm(operators), rotary_mul(operators), swiglu(operators))


def answers(params: Params, **outputs: torch.Tensor) -> Given:
    """Outputs of candidate or golden; without gradients where the case's edge leaves none that could be compared."""
    cut = params["edge"] in NOT_FINITE or params.get("forward_only", False)
    return {name: value.detach() if cut else value for name, value in outputs.items()}


def typed(operator: str, output: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Raises TypeError for an output of another dtype than documented: a comparison of numbers would not see it."""
    if value.dtype != dtype:
        raise TypeError(f"{operator}'s {output} is {value.dtype}; documented: {dtype}")
    return value


def rms_norm(operators: Operators) -> Kernel:
    name = "npu_rms_norm"

    def inputs(params: Params, generator: torch.Generator) -> Given:
        x = edged(apart(generator, *params["lead"], *params["normalised"]), params["edge"], generator)
        return {"x": x, "gamma": apart(generator, *params["normalised"])}

    def candidate(given: Given, params: Params) -> Given:
        x, gamma = operators.place(given["x"], params["lay"]), operators.place(given["gamma"])
        named = {} if params["epsilon"] is None else {"epsilon": params["epsilon"]}
        y, rstd = operators.call(name, x, gamma, **named)
        return answers(params, y=typed(name, "y", y, x.dtype), rstd=typed(name, "rstd", rstd, torch.float32).detach())

    def exact(given: Given, params: Params) -> Given:
        y, rstd = golden.rms_norm(given["x"], given["gamma"], params["epsilon"] or 1e-6)
        return answers(params, y=y, rstd=rstd.detach())

    # Of a row of one element the gradient cancels to nothing: such a row is an example, forward only.
    shapes = st.fixed_dictionaries(
        {
            "lead": st.lists(st.integers(1, 5), min_size=1, max_size=3),
            "normalised": st.lists(st.integers(1, 33), min_size=1, max_size=2).filter(lambda sizes: math.prod(sizes) > 1),
            "epsilon": st.sampled_from((None, *EPSILONS)),
            "edge": st.sampled_from(EDGES),
            "lay": st.sampled_from(LAYS),
        }
    )
    plain = {"epsilon": 1e-6, "edge": "none", "lay": "plain"}
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="y and the reciprocal RMS, over one or more last dimensions",
        dtypes=tuple(DTYPES),
        params=shapes,
        examples=(
            {**plain, "lead": [1], "normalised": [1], "forward_only": True},
            {**plain, "lead": [3, 7], "normalised": [80], "epsilon": 1e-2},
            {**plain, "lead": [2], "normalised": [3, 5]},
            {**plain, "lead": [4], "normalised": [64], "edge": "tiny", "epsilon": None},
            {**plain, "lead": [4], "normalised": [64], "edge": "zeros"},
            {**plain, "lead": [517], "normalised": [96]},  # more rows than cores, and no multiple of them
            *({**plain, "lead": [3], "normalised": [shape.hidden]} for shape in MODELS),
            *({**plain, "lead": [1, 2, shape.heads], "normalised": [shape.head]} for shape in MODELS),
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(name,),
        differentiable=("x", "gamma"),
        plain=lambda given, params: {"y": exact(given, params)["y"]},
        single=True,
        output_limits={(dtype, "rstd"): RMS_LIMITS["fp32"] for dtype in DTYPES},  # float32 whatever the input is
        missing=operators.missing,
    )


# Where input is BNSD, BSND or SBND the tables are spread over: N; B and N; nothing.
_SPREADS = {"BNSD": ((0, 1), (1,), ()), "BSND": ((0, 2), (2,), ()), "SBND": ((1, 2), (2,), ())}


def rotary_mul(operators: Operators) -> Kernel:
    name = "npu_rotary_mul"

    def inputs(params: Params, generator: torch.Generator) -> Given:
        shape = params["shape"]
        table = [1 if i in params["spread"] else size for i, size in enumerate(shape)]
        # Independent tables, not the cosine and sine of one angle: exchanged they would often look alike.
        cos, sin = (torch.rand(table, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(2))
        return {"x": edged(normal(generator, *shape), params["edge"], generator), "cos": cos, "sin": sin}

    def candidate(given: Given, params: Params) -> Given:
        x = operators.place(given["x"], params["lay"])
        mode = {} if params["mode"] is None else {"rotary_mode": params["mode"]}
        y = operators.call(name, x, operators.place(given["cos"]), operators.place(given["sin"]), **mode)
        return answers(params, y=typed(name, "output", y, x.dtype))

    def exact(given: Given, params: Params) -> Given:
        return answers(params, y=golden.rotary_mul(given["x"], given["cos"], given["sin"], params["mode"] or "half"))

    @st.composite
    def shapes(draw: st.DrawFn) -> dict[str, Any]:
        layout, mode = draw(st.sampled_from(sorted(_SPREADS))), draw(st.sampled_from((None, "half", "interleave")))
        # The documentation spreads the tables over B and N in interleave mode, always.
        spread = _SPREADS[layout][0] if mode == "interleave" else draw(st.sampled_from(_SPREADS[layout]))
        shape = [draw(st.integers(1, 5)) for _ in range(3)]
        edge = draw(st.sampled_from([edge for edge in EDGES if edge != "inf"]))
        return {
            "shape": [*shape, 2 * draw(st.integers(1, 40))],
            "spread": list(spread),
            "mode": mode,
            "edge": edge,
            "lay": draw(st.sampled_from(LAYS)),
        }

    plain = {"mode": None, "edge": "none", "lay": "plain"}
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="rotation of pairs, half a width or one element apart",
        dtypes=tuple(DTYPES),
        params=shapes(),
        examples=(
            {**plain, "shape": [1, 1, 1, 2], "spread": [0, 1]},
            {**plain, "shape": [2, 3, 5, 6], "spread": [], "mode": "half"},
            {**plain, "shape": [2, 3, 5, 6], "spread": [0, 1], "mode": "interleave"},
            {**plain, "shape": [2, 3, 5, 6], "spread": [1], "edge": "nan"},
            {**plain, "shape": [3, 5, 259, 24], "spread": [1]},
            *({**plain, "shape": [2, shape.heads, 3, shape.rotated], "spread": [1]} for shape in MODELS),
            *({**plain, "shape": [1, shape.kv_heads, 5, shape.rotated], "spread": [0, 1]} for shape in MODELS),
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(name,),
        differentiable=("x", "cos", "sin"),
        plain=exact,
        missing=operators.missing,
    )


def swiglu(operators: Operators) -> Kernel:
    name = "npu_swiglu"

    def inputs(params: Params, generator: torch.Generator) -> Given:
        # Large enough that no product of two is near the end of float16: all are beyond.
        return {"x": edged(apart(generator, *params["shape"]), params["edge"], generator, large=1e4)}

    def candidate(given: Given, params: Params) -> Given:
        x = operators.place(given["x"], params["lay"])
        named = {} if params["dim"] is None else {"dim": params["dim"]}
        return answers(params, y=typed(name, "output", operators.call(name, x, **named), x.dtype))

    def exact(given: Given, params: Params) -> Given:
        return answers(params, y=golden.swiglu(given["x"], -1 if params["dim"] is None else params["dim"]))

    @st.composite
    def shapes(draw: st.DrawFn) -> dict[str, Any]:
        shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        dim = draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
        shape[-1 if dim is None else dim] = 2 * draw(st.integers(1, 40))
        edge = draw(st.sampled_from([edge for edge in EDGES if edge != "tiny"]))  # the product would have few bits left in float16
        return {"shape": shape, "dim": dim, "edge": edge, "lay": draw(st.sampled_from(LAYS))}

    plain = {"dim": -1, "edge": "none", "lay": "plain"}
    return Kernel(
        name=name,
        kind=Kind.OPERATOR,
        what="A * sigmoid(A) * B of the halves of one dimension",
        dtypes=tuple(DTYPES),
        params=shapes(),
        examples=(
            {**plain, "shape": [2]},
            {**plain, "shape": [4, 6], "dim": None},
            {**plain, "shape": [4, 6], "dim": 0},
            {**plain, "shape": [3, 8, 5], "dim": 1, "lay": "turned"},
            {**plain, "shape": [3, 8], "edge": "large"},
            {**plain, "shape": [517, 48]},
            *({**plain, "shape": [2, 2 * (shape.expert or shape.intermediate)]} for shape in MODELS),
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(name,),
        differentiable=("x",),
        plain=exact,
        single=True,
        missing=operators.missing,
    )
