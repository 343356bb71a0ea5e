"""The steps of the chunked gated delta rule, one row each: their inputs, drawn independently, and their golden outputs.

So that a fault is told by the name of the kernel that has it. Libraries whose kernels take these steps (fla, its Ascend backend, MindSpeed)
differ in the gates' base: `unit` is ln 2 where g counts in powers of 2, else 1. Gradients of gates are to the base e everywhere.
Outputs and given gradients are inputs like others here; what a backward step gives is compared as its output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import delta_rule as forward
from harness.kernels import delta_rule_backward as backward
from harness.kernels import fla_parts as parts
from harness.kernels.fla_parts import Named, case
from harness.kernels.kernel import Params
from harness.kernels.values import normal

Tensor = torch.Tensor
KEEP = frozenset({"g", "gk", "gamma", "initial", "dht"})  # what kernels take in float32 whatever the rest is


@dataclass(frozen=True)
class Step:
    """`inputs(params, generator, unit)` and `golden(inputs, params, unit)`; `must_run`: see Kernel."""

    name: str
    what: str
    inputs: Callable[[Params, torch.Generator, float], Named]
    golden: Callable[[Named, Params, float], Named]
    examples: tuple[dict[str, Any], ...]
    more: dict[str, st.SearchStrategy[Any]] = field(default_factory=dict)


_GATED = (
    case(65, share=2),
    case(lengths=[3, 64, 70], H=2, gate="strong"),
    case(130, B=2, K=40, V=72),
    case(63, share=3, gate="none", K=72, V=40),
    case(1, B=2, H=3, share=2, K=32, V=16),
    case(lengths=[1, 65, 15], share=2, gate="none"),
    case(66, K=96, V=80),
)


def _more(key: str, values: tuple[Any, ...], examples: tuple[dict[str, Any], ...] = _GATED) -> tuple[dict[str, Any], ...]:
    """The examples with `key`, whose values take turns."""
    return tuple({**params, key: values[at % len(values)]} for at, params in enumerate(examples))


def _natural(inputs: Named, params: Params, unit: float) -> Tensor | None:
    """The running sums of gates to the base e; those of one gate for all tokens count the tokens of a chunk."""
    if "gamma" in inputs:
        rows, tokens, _, heads, _, _ = parts.shape(params)
        ones = torch.ones(rows, tokens, heads, dtype=inputs["gamma"].dtype)
        return forward.chunk_cumsum(ones, params["size"], lengths=params["lengths"]) * inputs["gamma"] * unit
    return inputs["g"] * unit if "g" in inputs else None


def _gates(params: Params, generator: torch.Generator, unit: float) -> Named:
    return {name: g / unit for name, g in parts.running_gates(generator, params, params.get("size", forward.CHUNK)).items()}


def _scale(params: Params) -> float:
    return float(params["scale"] or params["K"] ** -0.5)


def _cumsum_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, _, heads, _, _ = parts.shape(params)
    return {"x": normal(generator, rows, tokens, heads, *([params["S"]] if params["S"] else []))}


def _cumsum(inputs: Named, params: Params, unit: float) -> Named:
    found = forward.chunk_cumsum(inputs["x"], params["size"], reverse=params["reverse"], lengths=params["lengths"])
    return {"sums": found * (params["scale"] or 1.0)}


def _kkt_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, heads, wide, k, _ = parts.shape(params)
    return {
        "k": parts.keys(generator, rows, tokens, heads, k),
        "beta": parts.betas(generator, rows, tokens, wide),
        **_gates(params, generator, unit),
    }


def _kkt(inputs: Named, params: Params, unit: float) -> Named:
    g = _natural(inputs, params, unit)
    return {"A": forward.scaled_dot_kkt(inputs["k"], inputs["beta"], g, params["size"], lengths=params["lengths"])}


def _tril_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, _, heads, _, _ = parts.shape(params)
    lower = torch.zeros(rows, tokens, heads, params["size"], dtype=torch.float64)
    for row, begin, end, _ in forward.spans(rows, tokens, params["lengths"]).chunks(params["size"]):
        count = end - begin
        lower[row, begin:end, :, :count] = normal(generator, heads, count, count).tril(-1).transpose(0, 1) * 0.2
    return {"a": lower}


def _tril(inputs: Named, params: Params, unit: float) -> Named:
    return {"Ai": forward.solve_tril(inputs["a"], lengths=params["lengths"])}


def _wy_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, _, wide, _, v = parts.shape(params)
    solved = forward.solve_tril(_tril_inputs(params, generator, unit)["a"], lengths=params["lengths"])
    return {**_kkt_inputs(params, generator, unit), "v": normal(generator, rows, tokens, wide, v), "Ai": solved}


def _wy(inputs: Named, params: Params, unit: float) -> Named:
    g = _natural(inputs, params, unit)
    w, u = forward.wy(inputs["k"], inputs["v"], inputs["beta"], inputs["Ai"], g, lengths=params["lengths"])
    return {"w": w, "u": u}


def _intra_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, _, wide, _, v = parts.shape(params)
    return {**_kkt_inputs(params, generator, unit), "v": normal(generator, rows, tokens, wide, v)}


def _intra(inputs: Named, params: Params, unit: float) -> Named:
    g, x, lengths = _natural(inputs, params, unit), inputs, params["lengths"]
    solved = forward.solve_tril(forward.scaled_dot_kkt(x["k"], x["beta"], g, params["size"], lengths=lengths), lengths=lengths)
    w, u = forward.wy(x["k"], x["v"], x["beta"], solved, g, lengths=lengths)
    return {"w": w, "u": u, "solved": solved}


def _wy_backward_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, _, wide, k, v = parts.shape(params)
    given = _kkt_inputs(params, generator, unit)
    solved = forward.solve_tril(_kkt(given, params, unit)["A"], lengths=params["lengths"])
    return {
        **given,
        "v": normal(generator, rows, tokens, wide, v),
        "dw": normal(generator, rows, tokens, wide, k),
        "du": normal(generator, rows, tokens, wide, v),
        "solved": solved,
    }


def _wy_backward(inputs: Named, params: Params, unit: float) -> Named:
    x = inputs
    given = (x["k"], x["v"], x["beta"], _natural(x, params, unit), x["dw"], x["du"])
    return backward.representation(*given, params["size"], lengths=params["lengths"])


def _states_of(params: Params) -> tuple[int, int, int, int]:
    """(sequences, HV, K, V) of a state for each."""
    rows, _, _, wide, k, v = parts.shape(params)
    return len(params["lengths"]) if params["lengths"] else rows, wide, k, v


def _turned(state: Tensor, params: Params) -> Tensor:
    return state.transpose(-1, -2) if params.get("v_first") else state


def _h_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, heads, wide, k, v = parts.shape(params)
    given = {
        "k": parts.keys(generator, rows, tokens, heads, k),
        "w": parts.keys(generator, rows, tokens, wide, k) * 0.5,
        "u": normal(generator, rows, tokens, wide, v),
        **_gates(params, generator, unit),
    }
    if params["initial"]:
        given["initial"] = _turned(normal(generator, *_states_of(params)), params).contiguous()
    return given


def _h(inputs: Named, params: Params, unit: float) -> Named:
    x, initial = inputs, inputs.get("initial")
    start = None if initial is None else _turned(initial, params)
    gk = x["gk"] * unit if "gk" in x else None
    given = (x["k"], x["w"], x["u"], _natural(x, params, unit), params["size"])
    found = forward.chunk_states(*given, initial=start, gk=gk, lengths=params["lengths"])
    return {"h": _turned(found.entering, params), "v_new": found.new_values, "final": _turned(found.final, params)}


def _dhu_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, heads, wide, k, v = parts.shape(params)
    given = {
        "q": normal(generator, rows, tokens, heads, k),
        "k": parts.keys(generator, rows, tokens, heads, k),
        "w": parts.keys(generator, rows, tokens, wide, k) * 0.5,
        "do": normal(generator, rows, tokens, wide, v),
        "dv": normal(generator, rows, tokens, wide, v),
        **_gates(params, generator, unit),
    }
    if params["initial"]:
        given["initial"] = _turned(normal(generator, *_states_of(params)), params).contiguous()
        given["dht"] = _turned(normal(generator, *_states_of(params)), params).contiguous()
    return given


def _dhu(inputs: Named, params: Params, unit: float) -> Named:
    x = inputs
    dht = _turned(x["dht"], params) if "dht" in x else None
    given = (x["q"], x["k"], x["w"], x["do"], x["dv"], _natural(x, params, unit), _scale(params), params["size"])
    found = backward.states(*given, dht=dht, gk=x["gk"] * unit if "gk" in x else None, lengths=params["lengths"])
    answer = {"dh": _turned(found.dh, params), "dv2": found.values}
    return answer | {"dh0": _turned(found.initial, params)} if params["initial"] else answer


def _o_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, heads, wide, k, v = parts.shape(params)
    entering = normal(generator, parts.chunks_of(params, params["size"]), wide, k, v)
    return {
        "q": normal(generator, rows, tokens, heads, k),
        "k": parts.keys(generator, rows, tokens, heads, k),
        "v": normal(generator, rows, tokens, wide, v),
        "h": _turned(entering, params).contiguous(),
        **_gates(params, generator, unit),
    }


def _o(inputs: Named, params: Params, unit: float) -> Named:
    x = inputs
    given = (x["q"], x["k"], x["v"], _turned(x["h"], params), _natural(x, params, unit), _scale(params), params["size"])
    return {"o": forward.chunk_output(*given, lengths=params["lengths"])}


def _local_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    given = _dhu_inputs({**params, "initial": False}, generator, unit)
    return {name: value for name, value in given.items() if name in ("q", "k", "do", "g", "gamma")}


def _local(inputs: Named, params: Params, unit: float) -> Named:
    x = inputs
    given = (x["q"], x["k"], x["do"], _natural(x, params, unit), _scale(params), params["size"])
    return {"dv": backward.local_values(*given, lengths=params["lengths"])}


def _dv_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    _, _, _, wide, k, v = parts.shape(params)
    given = _local_inputs(params, generator, unit)
    return given | {"dh": _turned(normal(generator, parts.chunks_of(params, params["size"]), wide, k, v), params).contiguous()}


def _dv(inputs: Named, params: Params, unit: float) -> Named:
    """What a chunk's own values add to its output, and what they add to the state that leaves it."""
    x, g, lengths = inputs, _natural(inputs, params, unit), params["lengths"]
    found = backward.local_values(x["q"], x["k"], x["do"], g, _scale(params), params["size"], lengths=lengths)
    return {"dv": found + backward.leaving_values(x["k"], found, _turned(x["dh"], params), g, params["size"], lengths=lengths)}


def _total(inputs: Named, params: Params, unit: float) -> Named:
    longest = inputs["x"].shape[1]
    found = forward.chunk_cumsum(inputs["x"], longest, reverse=params["reverse"], lengths=params["lengths"])
    return {"sums": found * (params["scale"] or 1.0)}


def _dqkwg_inputs(params: Params, generator: torch.Generator, unit: float) -> Named:
    rows, tokens, _, wide, k, v = parts.shape(params)
    count = parts.chunks_of(params, params["size"])
    given = _o_inputs(params, generator, unit)
    given |= {"do": normal(generator, rows, tokens, wide, v), "dh": _turned(normal(generator, count, wide, k, v), params).contiguous()}
    if params["weighted"]:
        given |= {"w": normal(generator, rows, tokens, wide, k), "dv": normal(generator, rows, tokens, wide, v)}
    return given


def _dqkwg(inputs: Named, params: Params, unit: float) -> Named:
    x, states = inputs, [_turned(inputs[name], params) for name in ("h", "dh")]
    given = (x["q"], x["k"], x["v"], states[0], x["do"], states[1], _natural(x, params, unit), _scale(params), params["size"])
    found = backward.outputs(*given, dv=x.get("dv"), lengths=params["lengths"])
    answer = {"dq": found.dq, "dk": found.dk, "dw": found.dw, "dg": None if "gamma" in x else found.dg}
    return {name: value for name, value in answer.items() if value is not None}


def _sized(examples: tuple[dict[str, Any], ...], *sizes: int) -> tuple[dict[str, Any], ...]:
    return _more("size", sizes or (forward.CHUNK,), examples)


# States are kept in blocks of 64 rows: one row more takes one more block.
_WIDE = (
    case(66, K=256, V=40, share=2),
    case(66, K=200, V=40, gate="none"),
    *(case(17, K=wide, V=8) for wide in (65, 129, 193)),
)
_VECTOR = (case(70, K=40, gate="vector"), case(lengths=[3, 66], K=256, V=16, gate="vector"), case(66, K=72, gate="vector", share=2))
_GAMMA = (case(70, share=2, gate="gamma"), case(lengths=[3, 66], K=40, H=2, gate="gamma"))
_SCALED = {"scale": st.sampled_from([None, 0.5, 1.0])}
_SIZES = {"size": st.just(forward.CHUNK)}
_CUMSUM = tuple(
    case(tokens, B=rows, H=2, lengths=lengths, S=wide, reverse=back, scale=scale, size=size)
    for tokens, rows, lengths, wide, back, scale, size in (
        (65, 2, None, 0, False, None, 64),
        (65, 2, None, 0, True, 0.5, 64),
        (100, 1, [1, 33, 66], 0, False, 1.5, 32),
        (100, 1, [70, 3], 0, True, None, 16),
        (40, 2, None, 5, False, 0.5, 16),
        (40, 1, [33, 70], 40, True, None, 64),
        (1, 2, None, 3, False, None, 64),
    )
)
CUMSUM = Step(
    "chunk_local_cumsum", "running sums within chunks", _cumsum_inputs, _cumsum, _CUMSUM,
    {
        "S": st.sampled_from([0, 1, 20, 40]), "reverse": st.booleans(),
        "scale": st.sampled_from([None, 0.5]), "size": st.sampled_from([16, 64]),
    },
)  # fmt: skip
TOTAL = Step("chunk_global_cumsum", "running sums within sequences", _cumsum_inputs, _total, _CUMSUM, CUMSUM.more)
_PACKED = tuple(case(lengths=lengths, size=size, share=2) for lengths, size in (([3, 40, 17], 32), ([20, 1, 33], 16)))
KKT = Step(
    "chunk_scaled_dot_kkt_fwd", "beta exp(g_i - g_j) <k_i, k_j>", _kkt_inputs, _kkt, (*_sized(_GATED, 64, 64, 32, 64, 16), *_PACKED), _SIZES
)
TRIL = Step(
    "solve_tril",
    "(I + A)^-1",
    _tril_inputs,
    _tril,
    (*_PACKED, *_sized(_GATED, 64, 64, 32, 64, 16)),
    {"size": st.sampled_from([16, 32, 64])},
)
WY = Step("recompute_w_u_fwd", "w and u", _wy_inputs, _wy, (*_sized(_GATED, 64, 64, 32, 64, 16), *_PACKED), _SIZES)
INTRA = Step("chunk_gated_delta_rule_fwd_intra", "(I + A)^-1, w and u at once", _intra_inputs, _intra, _sized(_GATED), _SIZES)
WY_BACKWARD = Step(
    "prepare_wy_repr_bwd",
    "dk, dv, dbeta, dg through w and u",
    _wy_backward_inputs,
    _wy_backward,
    _sized(_GATED, 64, 64, 32, 64, 16),
    _SIZES,
)
H = Step(
    "chunk_gated_delta_rule_fwd_h", "states at the chunks' begins, v', final states", _h_inputs, _h,
    _sized(_more("initial", (True, False, True), (*_GATED, *_WIDE, *_VECTOR))), {"initial": st.booleans(), **_SIZES},
)  # fmt: skip
DHU = Step(
    "chunk_gated_delta_rule_bwd_dhu", "gradients of states and of v'", _dhu_inputs, _dhu,
    _more("scale", (None, 0.5), _sized(_more("initial", (True, False, True), (*_GATED, *_WIDE, *_VECTOR)))),
    {"initial": st.booleans(), **_SCALED, **_SIZES},
)  # fmt: skip
O = Step(  # noqa: E741 as the paper calls it
    "chunk_fwd_o", "outputs from states and v'", _o_inputs, _o,
    _more("scale", (None, 0.5), _sized((*_GATED, case(66, K=200, V=136, share=2), *_GAMMA), 64, 64, 32, 64)), {**_SCALED, **_SIZES},
)  # fmt: skip
LOCAL = Step(
    "chunk_bwd_dv_local", "dv of a chunk's own part of the output", _local_inputs, _local,
    _more("scale", (None, 0.5), _sized((*_GATED, *_GAMMA), 64, 64, 32, 64)), {**_SCALED, **_SIZES},
)  # fmt: skip
DV = Step(
    "chunk_bwd_dv", "dv of a chunk's output and of the state that leaves it", _dv_inputs, _dv,
    _more("scale", (None, 0.5), _sized((*_GATED, *_GAMMA), 64, 64, 32, 64)), {**_SCALED, **_SIZES},
)  # fmt: skip
DQKWG = Step(
    "chunk_bwd_dqkwg", "dq, dk, dw, dg", _dqkwg_inputs, _dqkwg,
    _more("scale", (None, 0.5), _more("weighted", (True, True, True, False), _sized((*_WIDE[:1], *_GATED, *_GAMMA), 64, 64, 64, 32))),
    {"weighted": st.booleans(), **_SCALED, **_SIZES},
)  # fmt: skip
