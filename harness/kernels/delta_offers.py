"""How a library's kernels take the steps of delta_steps.py, and the row of the parity table that comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import fla_parts as parts
from harness.kernels.delta_steps import KEEP, Step
from harness.kernels.fla_parts import Named
from harness.kernels.kernel import Kernel, Kind, Limit, Params

# {our name: what the library gives}, from its function, the tensors where kernels run, the parameters, and the arguments of all steps.
Call = Callable[[Any, Named, Params, dict[str, Any]], Named]
_EXACT = "float32 of 16-bit inputs whose products are exact: as in float32"
_SUMMED = "sums that cancel, of parts rounded to bf16: twice the worst of 30 honest cases of fla and MindSpeed"
_LIMITS = {(dtype, output): Limit(1e-5, _EXACT) for output in ("A", "Ai", "sums") for dtype in ("fp16", "bf16")}
_LIMITS |= {("bf16", output): Limit(2e-2, _SUMMED) for output in ("dg", "db")}


@dataclass(frozen=True)
class Library:
    """`locate(module, name)` imports a function when a case asks for it. `unit`: see delta_steps. `adapted`: a case as it takes it."""

    prefix: str
    locate: Callable[[str, str], Any]
    unit: float
    missing: Callable[[], str]
    dtypes: tuple[str, ...] = ("fp32", "fp16", "bf16")
    counted: Callable[[], AbstractContextManager[Counter[str]]] = parts.launched
    adapted: Callable[[Params], dict[str, Any]] = dict
    tries: int = 8
    quick_examples: int = 2


@dataclass(frozen=True)
class Offer:
    """One step as a library offers it, under the step's name or `name` in `module`."""

    step: Step
    module: str
    must_run: tuple[str, ...]
    call: Call
    v_first: bool = False  # whether it knows states [V, K]
    name: str = ""


def kernel_of(library: Library, offer: Offer) -> Kernel:
    step, unit, name = offer.step, library.unit, offer.name or offer.step.name

    def candidate(inputs: Named, params: Params) -> Named:
        options: dict[str, Any] = {"cu_seqlens": parts.boundaries(params["lengths"]), "chunk_size": params["size"]}
        if offer.v_first:
            options["state_v_first"] = params["v_first"]
        return offer.call(library.locate(offer.module, name), parts.there(inputs), params, options)

    more = {**step.more, "v_first": st.booleans()} if offer.v_first else step.more
    return Kernel(
        name=f"{library.prefix}.{step.name}",
        kind=Kind.TRITON,
        what=f"{library.prefix.partition('_')[0]}.{offer.module}.{name}: {step.what}",
        dtypes=library.dtypes,
        params=parts.shapes(**more).map(library.adapted),
        examples=_once(map(library.adapted, _examples(offer))),
        inputs=lambda params, generator: step.inputs(params, generator, unit),
        candidate=candidate,
        golden=lambda inputs, params: step.golden(inputs, params, unit),
        counted=library.counted,
        must_run=offer.must_run,
        keep=KEEP,
        output_limits=_LIMITS,
        quick_examples=library.quick_examples,
        half_examples=4,
        tries=library.tries,
        quick_tries=0,
        missing=library.missing,
    )


def _once(examples: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    kept: list[dict[str, Any]] = []
    for params in examples:
        if params not in kept:
            kept.append(params)
    return tuple(kept)


def _examples(offer: Offer) -> tuple[dict[str, Any], ...]:
    """The step's, every fourth with states [V, K] where those are known, and each wide one so too."""
    if not offer.v_first:
        return offer.step.examples
    turned = tuple({**params, "v_first": at % 4 == 3} for at, params in enumerate(offer.step.examples))
    return turned + tuple({**params, "v_first": True} for params in offer.step.examples if params["K"] > 64)


def cumsum(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"sums": kernel(x["x"], reverse=params["reverse"], scale=params["scale"], **options)}


def kkt(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"A": kernel(k=x["k"], g=x.get("g"), beta=x["beta"], **options)}


def tril(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"Ai": kernel(A=x["a"], cu_seqlens=options["cu_seqlens"], output_dtype=torch.float32)}


def wy(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    w, u = kernel(k=x["k"], v=x["v"], beta=x["beta"], A=x["Ai"], g=x.get("g"), cu_seqlens=options["cu_seqlens"])
    return {"w": w, "u": u}


def intra(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    w, u, solved = kernel(k=x["k"], v=x["v"], g=x.get("g"), beta=x["beta"], **options)
    return {"w": w, "u": u, "solved": solved}


def wy_backward(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("k", "v", "beta", "dw", "du", "g")}
    found = kernel(**given, A=x["solved"], cu_seqlens=options["cu_seqlens"])
    return {name: value for name, value in zip(("dk", "dv", "db", "dg"), found, strict=True) if value is not None}


def _scale(params: Params) -> float:
    """Backward steps have no default of their own: models pass the forward pass's."""
    return float(params["scale"] or params["K"] ** -0.5)


def _flat(states: torch.Tensor) -> torch.Tensor:
    """[B, NT, HV, K, V] as [chunks, HV, K, V]."""
    return states.flatten(0, 1)


def _row(states: torch.Tensor, params: Params) -> torch.Tensor:
    return states.reshape(parts.shape(params)[0], -1, *states.shape[1:])


def h(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("k", "w", "u", "g", "gk")}
    found = kernel(**given, initial_state=x.get("initial"), output_final_state=True, **options)
    return {"h": _flat(found[0]), "v_new": found[1], "final": found[2]}


def dhu(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "w", "do", "dv", "g", "gk", "dht")}
    dh, dh0, dv2 = kernel(**given, h0=x.get("initial"), scale=_scale(params), **options)
    return {"dh": _flat(dh), "dv2": dv2} | ({} if dh0 is None else {"dh0": dh0})


def o(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "v", "g")}
    return {"o": kernel(**given, h=_row(x["h"], params), g_gamma=x.get("gamma"), scale=params["scale"], **options)}


def local(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "do", "g")}
    return {"dv": kernel(**given, g_gamma=x.get("gamma"), scale=_scale(params), **options)}


def total(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    return {"sums": kernel(x["x"], reverse=params["reverse"], scale=params["scale"], cu_seqlens=options["cu_seqlens"])}


def dv(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    given = {name: x.get(name) for name in ("q", "k", "do", "g")}
    return {"dv": kernel(**given, dh=_row(x["dh"], params), g_gamma=x.get("gamma"), scale=_scale(params), **options)}


def dqkwg(kernel: Any, x: Named, params: Params, options: dict[str, Any]) -> Named:
    states = {name: _row(x[name], params) for name in ("h", "dh")}
    given = {name: x.get(name) for name in ("q", "k", "v", "do", "w", "g", "dv")}
    found = kernel(**given, **states, g_gamma=x.get("gamma"), scale=_scale(params), **options)
    return {name: value for name, value in zip(("dq", "dk", "dw", "dg"), found, strict=True) if value is not None}
