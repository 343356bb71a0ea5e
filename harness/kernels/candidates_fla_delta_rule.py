"""fla's gated delta rule as models call it, chunked and recurrent, forward and backward, against the recurrence in float64."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import fla_parts as parts
from harness.kernels.delta_rule import l2norm, recurrence
from harness.kernels.fla_parts import Named, case
from harness.kernels.kernel import Kernel, Kind, Limit, Params
from harness.kernels.values import normal

_STEPS = (
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",
    "chunk_fwd_kernel_o",
    "chunk_bwd_kernel_dqkwg",
    "chunk_bwd_kernel_dv_local",
    "prepare_wy_repr_bwd_kernel",
    "recompute_w_u_fwd_kernel",
)
_SUMMED = "a sum over tokens of parts that cancel, from running sums of gates: three times the worst of 36 honest cases"
_LIMITS = {
    (dtype, name): Limit(ratio, _SUMMED)
    for name in ("g", "A_log", "dt_bias")
    for dtype, ratio in (("fp32", 3e-5), ("fp16", 5e-3), ("bf16", 3e-2))
} | {("fp16", "beta"): Limit(4e-3, _SUMMED), ("bf16", "beta"): Limit(2e-2, _SUMMED)}
_OPTIONS: dict[str, Any] = {
    "initial": False,  # an initial state is given
    "final": False,  # the final state is asked for
    "normalised": True,  # q and k are normalised inside
    "scale": None,
    "small": False,  # q and k so small that the norm's epsilon matters
    "v_first": False,  # states are [V, K]
    "sigmoid": 0.0,  # beta is a logit; its sigmoid times this (1, or 2 for negative eigenvalues)
    "gate_inside": "",  # g is what A_log ("a") and dt_bias ("a+bias") make decays of
}


def kernels() -> tuple[Kernel, ...]:
    return (_chunked(), _recurrent())


def _example(T: int = 65, **given: Any) -> dict[str, Any]:
    return case(T, **(_OPTIONS | given))


def _drawn(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    yes = st.booleans()
    return parts.shapes(
        gate=st.sampled_from(["mild", "strong"]),
        initial=yes,
        final=yes,
        normalised=yes,
        scale=st.sampled_from([None, 0.5, 1.0]),
        small=yes,
        v_first=yes,
        sigmoid=st.sampled_from([0.0, 1.0, 2.0]),
        gate_inside=st.sampled_from(["", "a", "a+bias"]),
        **more,
    )


def _inputs(params: Params, generator: torch.Generator) -> Named:
    rows, tokens, heads, wide, k, v = parts.shape(params)
    factor = 1e-3 if params["small"] else 1.0
    logits = normal(generator, rows, tokens, wide)
    given = {
        "q": normal(generator, rows, tokens, heads, k) * factor,
        "k": normal(generator, rows, tokens, heads, k) * factor,
        "v": normal(generator, rows, tokens, wide, v),
        "g": parts.gates(generator, params["gate"], rows, tokens, wide),
        "beta": logits if params["sigmoid"] else torch.sigmoid(logits),
    }
    if not params["normalised"]:
        given |= {"q": l2norm(given["q"], 0.0), "k": l2norm(given["k"], 0.0)}
    if params["gate_inside"]:
        given |= {"g": normal(generator, rows, tokens, wide), "A_log": normal(generator, wide)}
    if params["gate_inside"] == "a+bias":
        given["dt_bias"] = normal(generator, wide)
    for name, size in {"gk": k, "gv": v}.items():
        if params.get("wide") == name:
            given[name] = parts.gates(generator, "mild", rows, tokens, wide, size)
    if params.get("wide") == "beta":
        given["beta"] = given["beta"][..., None] * torch.sigmoid(normal(generator, rows, tokens, wide, v))
    if params["initial"]:
        count = len(params["lengths"]) if params["lengths"] else rows
        given["initial"] = normal(generator, count, wide, *((v, k) if params["v_first"] else (k, v)))
    return given


def _asked(inputs: Named, params: Params) -> tuple[Named, dict[str, Any]]:
    """(the tensors, all arguments by their names) of fla's functions."""
    x = parts.there(inputs)
    options: dict[str, Any] = {
        "g": x["g"],
        "beta": x["beta"],
        "scale": params["scale"],
        "initial_state": x.get("initial"),
        "output_final_state": params["final"],
        "use_qk_l2norm_in_kernel": params["normalised"],
        "use_beta_sigmoid_in_kernel": params["sigmoid"] > 0,
        "allow_neg_eigval": params["sigmoid"] > 1,
        "state_v_first": params["v_first"],
        "cu_seqlens": parts.boundaries(params["lengths"]),
    }
    if params["gate_inside"]:
        options |= {"use_gate_in_kernel": True, "A_log": x["A_log"], "dt_bias": x.get("dt_bias")}
    return x, options


def _answer(o: torch.Tensor, final: torch.Tensor | None, params: Params) -> Named:
    return {"o": o, "final": final} if params["final"] and final is not None else {"o": o}


def _golden(inputs: Named, params: Params) -> Named:
    x = dict(inputs)
    if params["normalised"]:
        x |= {"q": l2norm(x["q"]), "k": l2norm(x["k"])}
    beta = params["sigmoid"] * torch.sigmoid(x["beta"]) if params["sigmoid"] else x["beta"]
    g = x["g"] + x.get("dt_bias", torch.zeros(()).double())
    if params["gate_inside"]:
        g = -x["A_log"].exp() * torch.nn.functional.softplus(g)
    initial = x.get("initial")
    if initial is not None and params["v_first"]:
        initial = initial.transpose(-1, -2)
    more = {"scale": params["scale"], "initial": initial, "lengths": params["lengths"], "gk": x.get("gk"), "gv": x.get("gv")}
    o, final = recurrence(x["q"], x["k"], x["v"], g, beta, **more)
    return _answer(o, final.transpose(-1, -2) if params["v_first"] else final, params)


def _chunked() -> Kernel:
    def candidate(inputs: Named, params: Params) -> Named:
        x, options = _asked(inputs, params)
        rule = parts.fla("ops.gated_delta_rule", "chunk_gated_delta_rule")
        o, final = rule(x["q"], x["k"], x["v"], **options, chunk_size=params["chunk"])
        return _answer(o, final, params)

    examples = (
        _example(65, share=2, initial=True, final=True, chunk=64),
        _example(lengths=[3, 64, 70], H=2, initial=True, final=True, normalised=False, scale=0.5, gate="strong", chunk=64),
        _example(130, B=2, v_first=True, initial=True, final=True, gate_inside="a+bias", small=True, chunk=64),
        _example(40, share=2, sigmoid=2.0, gate_inside="a", chunk=16),
        _example(lengths=[1, 33, 40], share=3, sigmoid=1.0, gate_inside="a+bias", initial=True, chunk=32),
        _example(70, K=96, V=80, final=True, chunk=64),
        _example(66, K=256, V=72, initial=True, final=True, chunk=64),
        _example(66, K=200, V=40, v_first=True, initial=True, final=True, chunk=64),
        _example(1, B=2, H=3, share=3, chunk=64),
        _example(3, B=2, H=3, initial=True, chunk=64),
        _example(63, H=3, gate="strong", chunk=64),
        _example(64, B=2, H=2, share=2, small=True, chunk=64),
    )
    return Kernel(
        name="fla.chunk_gated_delta_rule",
        kind=Kind.TRITON,
        what="fla.ops.gated_delta_rule.chunk_gated_delta_rule",
        dtypes=("fp32", "fp16", "bf16"),
        params=_drawn(chunk=st.sampled_from([16, 32, 64])),
        examples=examples,
        inputs=_inputs,
        candidate=candidate,
        golden=_golden,
        counted=parts.launched,
        must_run=_STEPS,
        differentiable=("q", "k", "v", "g", "beta", "initial", "A_log", "dt_bias"),
        keep=frozenset({"g", "initial", "A_log", "dt_bias"}),
        output_limits=_LIMITS,
        quick_examples=2,
        half_examples=6,
        tries=3,
        quick_tries=0,
        missing=parts.missing,
    )


def _recurrent() -> Kernel:
    def candidate(inputs: Named, params: Params) -> Named:
        x, options = _asked(inputs, params)
        rule = parts.fla("ops.gated_delta_rule", "fused_recurrent_gated_delta_rule")
        o, final = rule(x["q"], x["k"], x["v"], **options, gk=x.get("gk"), gv=x.get("gv"))
        return _answer(o, final, params)

    examples = (
        _example(5, share=2, initial=True, final=True),
        _example(lengths=[1, 2, 4], H=2, initial=True, final=True, normalised=False, scale=0.5, gate="strong"),
        _example(4, B=2, v_first=True, initial=True, final=True, gate_inside="a+bias", small=True),
        _example(3, sigmoid=2.0, gate_inside="a"),
        _example(3, sigmoid=1.0, K=96, V=20),
        _example(1, final=True),
        _example(5, B=2, share=2, initial=True, final=True, wide="beta", V=20),
        _example(lengths=[2, 3], H=2, final=True, wide="gk", v_first=True),
        _example(5, B=2, initial=True, final=True, wide="gv", K=20),
        _example(lengths=[2, 3], share=2, final=True, wide="gv", v_first=True),
        _example(4, B=2, final=True, wide="gk", initial=True),
        _example(4, B=2, final=True, wide="beta", v_first=True, sigmoid=1.0),
    )
    short = st.sampled_from([1, 2, 3, 5, 9])
    return Kernel(
        name="fla.fused_recurrent_gated_delta_rule",
        kind=Kind.TRITON,
        what="fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule, forward only",
        dtypes=("fp32", "fp16", "bf16"),
        params=_drawn(T=short, lengths=st.none() | st.lists(short, min_size=1, max_size=3), wide=st.sampled_from(["", "beta", "gk", "gv"])),
        examples=examples,
        inputs=_inputs,
        candidate=candidate,
        golden=_golden,
        counted=parts.launched,
        must_run=("fused_recurrent_gated_delta_rule_fwd_kernel",),
        keep=frozenset({"g", "gk", "gv", "initial", "A_log", "dt_bias"}),
        quick_examples=4,
        tries=6,
        quick_tries=0,
        missing=parts.missing,
    )
