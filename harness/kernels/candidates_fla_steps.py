"""fla's kernels step by step, each alone: a fault of the whole rule is told by the name of the kernel that has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import delta_steps as steps
from harness.kernels import fla_parts as parts
from harness.kernels.delta_steps import Step
from harness.kernels.fla_parts import Named
from harness.kernels.kernel import Kernel, Kind, Limit, Params
from harness.kernels.launches import counted

_LN2 = math.log(2)
# {our name: what fla gives}, from the tensors where kernels run, the parameters and the arguments that all steps have.
Call = Callable[[Any, Named, Params, dict[str, Any]], Named]
_EXACT = "float32 of 16-bit inputs whose products are exact: as in float32"


@dataclass(frozen=True)
class Ours:
    """One step as fla offers it: `fla.<module>.<step's name>`."""

    step: Step
    module: str
    must_run: tuple[str, ...]
    call: Call
    v_first: bool = False  # whether it knows states [V, K]


def kernels() -> tuple[Kernel, ...]:
    return tuple(_kernel(ours) for ours in _OURS)


def _kernel(ours: Ours) -> Kernel:
    step = ours.step

    def candidate(inputs: Named, params: Params) -> Named:
        options: dict[str, Any] = {"cu_seqlens": parts.boundaries(params["lengths"]), "chunk_size": params["size"]}
        if ours.v_first:
            options["state_v_first"] = params["v_first"]
        return ours.call(parts.fla(ours.module, step.name), parts.there(inputs), params, options)

    turned = (False, False, False, True)
    examples = tuple({**params, "v_first": turned[at % 4]} for at, params in enumerate(step.examples)) if ours.v_first else step.examples
    if ours.v_first:
        examples += tuple({**params, "v_first": True} for params in step.examples if params["K"] > 192)
    more = {**step.more, "v_first": st.booleans()} if ours.v_first else step.more
    return Kernel(
        name=f"fla.{step.name}",
        kind=Kind.TRITON,
        what=f"fla.{ours.module}.{step.name}: {step.what}",
        dtypes=("fp32", "fp16", "bf16"),
        params=parts.shapes(**more),
        examples=examples,
        inputs=lambda params, generator: step.inputs(params, generator, _LN2),
        candidate=candidate,
        golden=lambda inputs, params: step.golden(inputs, params, _LN2),
        counted=counted,
        must_run=ours.must_run,
        keep=steps.KEEP,
        output_limits={(dtype, name): Limit(1e-5, _EXACT) for name in ("A", "Ai", "sums") for dtype in ("fp16", "bf16")},
        quick_examples=3,
        half_examples=4,
        tries=8,
        quick_tries=0,
        missing=parts.missing,
    )


def _cumsum(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"sums": kernel(x["x"], reverse=params["reverse"], scale=params["scale"], **options)}


def _kkt(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"A": kernel(k=x["k"], g=x.get("g"), beta=x["beta"], **options)}


def _tril(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"Ai": kernel(A=x["a"], cu_seqlens=options["cu_seqlens"], output_dtype=torch.float32)}


def _wy(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    w, u = kernel(k=x["k"], v=x["v"], beta=x["beta"], A=x["Ai"], g=x.get("g"), cu_seqlens=options["cu_seqlens"])
    return {"w": w, "u": u}


def _intra(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    w, u, solved = kernel(k=x["k"], v=x["v"], g=x.get("g"), beta=x["beta"], **options)
    return {"w": w, "u": u, "solved": solved}


def _wy_backward(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    solved = parts.solved_of({**x, **({"g": x["g"] * _LN2} if "g" in x else {})}, params, params["size"])
    given = {name: x[name] for name in ("k", "v", "beta", "dw", "du")}
    found = kernel(**given, A=solved, g=x.get("g"), cu_seqlens=options["cu_seqlens"])
    return {name: value for name, value in zip(("dk", "dv", "db", "dg"), found, strict=True) if value is not None}


def _scale(params: Params) -> float:
    """Backward steps have no default of their own: models pass the forward pass's."""
    return float(params["scale"] or params["K"] ** -0.5)


def _flat(states: torch.Tensor) -> torch.Tensor:
    """[B, NT, HV, K, V] as [chunks, HV, K, V]."""
    return states.flatten(0, 1)


def _row(states: torch.Tensor, params: Params) -> torch.Tensor:
    return states.reshape(parts.shape(params)[0], -1, *states.shape[1:])


def _h(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("k", "w", "u", "g", "gk")}
    found = kernel(**given, initial_state=x.get("initial"), output_final_state=True, **options)
    return {"h": _flat(found[0]), "v_new": found[1], "final": found[2]}


def _dhu(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "w", "do", "dv", "g", "gk", "dht")}
    dh, dh0, dv2 = kernel(**given, h0=x.get("initial"), scale=_scale(params), **options)
    return {"dh": _flat(dh), "dv2": dv2} | ({} if dh0 is None else {"dh0": dh0})


def _o(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "v", "g")}
    return {"o": kernel(**given, h=_row(x["h"], params), g_gamma=x.get("gamma"), scale=params["scale"], **options)}


def _local(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "do", "g")}
    return {"dv": kernel(**given, g_gamma=x.get("gamma"), scale=_scale(params), **options)}


def _dqkwg(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    states = {name: _row(x[name], params) for name in ("h", "dh")}
    given = {name: x.get(name) for name in ("q", "k", "v", "do", "w", "g", "dv")}
    found = kernel(**given, **states, g_gamma=x.get("gamma"), scale=_scale(params), **options)
    return {name: value for name, value in zip(("dq", "dk", "dw", "dg"), found, strict=True) if value is not None}


_OURS = (
    Ours(steps.CUMSUM, "ops.utils", (), _cumsum),
    Ours(steps.KKT, "ops.common.chunk_scaled_dot_kkt", ("chunk_scaled_dot_kkt_fwd_kernel",), _kkt),
    Ours(steps.TRIL, "ops.utils", (), _tril),
    Ours(steps.WY, "ops.gated_delta_rule.wy_fast", ("recompute_w_u_fwd_kernel",), _wy),
    Ours(steps.INTRA, "ops.gated_delta_rule.chunk_fwd", ("chunk_gated_delta_rule_fwd_kkt_solve_kernel",), _intra),
    Ours(steps.WY_BACKWARD, "ops.gated_delta_rule.wy_fast", ("prepare_wy_repr_bwd_kernel",), _wy_backward),
    Ours(steps.H, "ops.common.chunk_delta_h", ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64",), _h, True),
    Ours(steps.DHU, "ops.common.chunk_delta_h", ("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",), _dhu, True),
    Ours(steps.O, "ops.common.chunk_o", ("chunk_fwd_kernel_o",), _o, True),
    Ours(steps.LOCAL, "ops.common.chunk_o", ("chunk_bwd_kernel_dv_local",), _local),
    Ours(steps.DQKWG, "ops.common.chunk_o", ("chunk_bwd_kernel_dqkwg",), _dqkwg, True),
)
