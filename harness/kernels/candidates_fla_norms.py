"""fla's norms: L2, layer, group and RMS norm, with a gate or a residual, forward and backward."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

from harness.kernels import fla_parts as parts
from harness.kernels.delta_rule import l2norm
from harness.kernels.fla_parts import Named
from harness.kernels.interpreter import Engine, prepared
from harness.kernels.kernel import Function, Kernel, Kind, Params
from harness.kernels.references_layers import gated, norm
from harness.kernels.values import FINITE, NOT_FINITE, edged, normal

# Beyond 512 fla takes another kernel, a row to a program.
_WIDTHS = st.sampled_from([5, 16, 40, 64, 128, 512, 520])
_SHARED: dict[str, st.SearchStrategy[Any]] = {
    "T": st.sampled_from([1, 2, 15, 17, 33, 70]),
    "D": _WIDTHS,
    "weight": st.booleans(),
    "bias": st.booleans(),
    "residual": st.booleans(),
    "prenorm": st.booleans(),
    "eps": st.sampled_from([1e-6, 1e-5, 1e-2]),
    "small": st.booleans(),
    "cores": st.sampled_from([1, 3, 20]),
    "edge": st.sampled_from(("none",) * 6 + FINITE),
}
_MODULES = ("fla.modules.norm.layernorm", "fla.modules.norm.fused_norm_gate")
Inputs = Callable[[Params, torch.Generator], Named]
_ALL = {"weight": True, "bias": True, "residual": True, "prenorm": True}


def kernels() -> tuple[Kernel, ...]:
    names = ("rms_norm", "layer_norm", "group_norm")
    gates = ("rms_norm", "layer_norm")
    return (
        _l2norm(),
        *(_norm(name) for name in names),
        *(_gated(f"{name}_gated") for name in gates),
        *(_norm(f"{name}_linear") for name in names),
        *(_gated(f"{name}_swish_gate_linear") for name in gates),
    )


def _case(T: int, D: int, **given: Any) -> dict[str, Any]:
    plain: dict[str, Any] = dict.fromkeys(("weight", "bias", "residual", "prenorm", "small", "module"), False)
    return {"T": T, "D": D, "eps": 1e-5, "cores": 1, "edge": "none", **plain, **given}


def _x(params: Params, generator: torch.Generator) -> torch.Tensor:
    """Rows so small that eps matters, or with an edge value."""
    drawn = normal(generator, 1, params["T"], params["D"]) * (1e-2 if params["small"] else 1.0)
    return edged(drawn, params["edge"], generator)


def _inputs(params: Params, generator: torch.Generator) -> Named:
    x = _x(params, generator)
    given = {"x": x}
    if params["weight"]:
        given["weight"] = 1 + normal(generator, params["D"]) / 2
    if params["bias"]:
        given["bias"] = normal(generator, params["D"])
    if params["residual"]:
        given["residual"] = normal(generator, *x.shape)
    return given


def _with_linear(inputs: Inputs) -> Inputs:
    """And the weights of a linear layer from D to 6, which fla fuses with a norm: going backward, the norm is computed once more."""

    def both(params: Params, generator: torch.Generator) -> Named:
        weight = normal(generator, 6, params["D"]) / params["D"] ** 0.5
        return {**inputs(params, generator), "linear_weight": weight, "linear_bias": normal(generator, 6)}

    return both


def _linear(x: Named) -> list[torch.Tensor]:
    return [x[name] for name in ("linear_weight", "linear_bias") if name in x]


def _through(y: torch.Tensor, x: Named) -> torch.Tensor:
    return torch.nn.functional.linear(y, *_linear(x)) if "linear_weight" in x else y


def _told(outputs: Named, params: Params) -> Named:
    """Without gradients where a value is not finite: what infinity times 0 does to them hangs on the order of the operations."""
    if params["edge"] in NOT_FINITE:
        return {name: value.detach() for name, value in outputs.items()}
    return outputs


# A device's number of cores decides into how many parts the gradients of weights are summed; the interpreter knows none.
_cores = [1]


@contextlib.contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Launches, on as many cores as the case asks for, also in the backward pass, which begins after the candidate has returned."""
    with contextlib.ExitStack() as stack:
        if prepared().engine is Engine.INTERPRETED:
            for module in _MODULES:
                stack.enter_context(mock.patch(f"{module}.get_multiprocessor_count", lambda index=0: _cores[0]))
        yield stack.enter_context(parts.launched())


def _pair(found: Any, params: Params) -> Named:
    """What a norm gives: y, and with prenorm the sum before it."""
    if not isinstance(found, tuple):
        return {"y": found}
    return {"y": found[0], "total": found[1]} if params["prenorm"] else {"y": found[0]}


def _l2norm() -> Kernel:
    def candidate(inputs: Named, params: Params) -> Named:
        return _told({"y": parts.fla("modules.l2norm", "l2norm")(parts.there(inputs)["x"], eps=params["eps"])}, params)

    def golden(inputs: Named, params: Params) -> Named:
        return _told({"y": l2norm(inputs["x"], params["eps"])}, params)

    edges = tuple(_case(3, 40, edge=edge) for edge in ("zeros", "large", "denormal", "nan", "inf"))
    return Kernel(
        name="fla.l2norm",
        kind=Kind.TRITON,
        what="fla.modules.l2norm.l2norm",
        dtypes=("fp32", "fp16", "bf16"),
        params=st.fixed_dictionaries(_SHARED),
        examples=(_case(17, 40, small=True, eps=1e-3), _case(3, 520, small=True, eps=1e-3), _case(1, 64), _case(33, 128, eps=1e-6), *edges),
        inputs=lambda params, generator: {"x": _x(params, generator)},
        candidate=candidate,
        golden=golden,
        counted=parts.launched,
        differentiable=("x",),
        quick_examples=2,
        tries=10,
        quick_tries=0,
        missing=parts.missing,
    )


def _norm(name: str) -> Kernel:
    examples = [
        _case(17, 40, **_ALL, small=True, cores=3, eps=1e-2),
        _case(5, 520, **_ALL, cores=3),
        _case(33, 128, weight=True, cores=20),
        _case(20, 520, bias=True, small=True, eps=1e-6),
        _case(3, 64, residual=True, cores=3),
        _case(70, 16, weight=True, bias=True, residual=True, cores=3),
        _case(1, 512),
        _case(2, 24, weight=True, edge="zeros"),
        _case(2, 24, weight=True, edge="nan"),
    ]
    more: dict[str, st.SearchStrategy[Any]] = {}
    if name.startswith("group"):
        # A group of more than 512 is another kernel's.
        examples = [{**params, "groups": 4, "rms": at % 2 == 1} for at, params in enumerate(examples)]
        examples += [
            {**_case(5, 1040, **_ALL, cores=3), "groups": 2, "rms": False},
            {**_case(4, 1040, weight=True), "groups": 2, "rms": True},
        ]
        more = {"groups": st.sampled_from([2, 4]), "D": st.sampled_from([16, 40, 128, 1040]), "rms": st.booleans()}

    def candidate(inputs: Named, params: Params) -> Named:
        x, _cores[0] = parts.there(inputs), params["cores"]
        options = {"eps": params["eps"], "prenorm": params["prenorm"]}
        if name.startswith("group"):
            options |= {"num_groups": params["groups"], "is_rms_norm": params["rms"]}
        given = (x["x"], x.get("weight"), x.get("bias"), *_linear(x), x.get("residual"))
        found = parts.fla("modules.layernorm", name)(*given, **options)
        return _told(_pair(found, params), params)

    def golden(inputs: Named, params: Params) -> Named:
        x, centred = inputs, not params.get("rms", name.startswith("rms"))
        given = (x["x"], x.get("weight"), x.get("bias"), x.get("residual"), params["eps"])
        y, total = norm(*given, centred=centred, groups=params.get("groups", 1))
        return _told(_pair((_through(y, x), total), params), params)

    inputs = _with_linear(_inputs) if name.endswith("linear") else _inputs
    return _kernel(name, f"fla.modules.layernorm.{name}", {**_SHARED, **more}, examples, inputs, candidate, golden)


def _gated(name: str) -> Kernel:
    examples = [
        _case(17, 40, **_ALL, small=True, cores=3, eps=1e-2, activation="swish", module=name.startswith("layer")),
        _case(5, 24, weight=True, residual=True, prenorm=True, small=True, eps=1e-3, activation="sigmoid", module=True),
        _case(4, 24, activation="silu", small=True, module=True),
        _case(5, 520, **_ALL, cores=3, activation="sigmoid"),
        _case(33, 128, weight=True, cores=20, activation="sigmoid"),
        _case(20, 520, bias=True, small=True, eps=1e-6, activation="silu"),
        _case(3, 64, residual=True, cores=3, activation="silu"),
        _case(70, 16, weight=True, bias=True, residual=True, cores=3, activation="swish"),
        _case(1, 512, activation="swish"),
        _case(2, 24, weight=True, edge="zeros", activation="swish"),
        _case(2, 24, weight=True, edge="nan", activation="sigmoid"),
    ]

    def inputs_of(params: Params, generator: torch.Generator) -> Named:
        return {**_inputs(params, generator), "gate": normal(generator, 1, params["T"], params["D"])}

    def candidate(inputs: Named, params: Params) -> Named:
        x, _cores[0] = parts.there(inputs), params["cores"]
        layer = _linear(x) or [params["activation"]]  # fused with a linear layer, the gate is a swish
        given = (x["x"], x["gate"], x.get("weight"), x.get("bias"), *layer, x.get("residual"))
        if params["module"] and not _linear(x):
            found = _as_module(name, x, params)
        else:
            found = parts.fla("modules.fused_norm_gate", name)(*given, eps=params["eps"], prenorm=params["prenorm"])
        return _told(_pair(found, params), params)

    def golden(inputs: Named, params: Params) -> Named:
        x = inputs
        given = (x["x"], x.get("weight"), x.get("bias"), x.get("residual"), params["eps"])
        y, total = norm(*given, centred=name.startswith("layer"))
        activation = "swish" if "linear_weight" in x else params["activation"]
        return _told(_pair((_through(gated(y, x["gate"], activation), x), total), params), params)

    inputs = _with_linear(inputs_of) if name.endswith("linear") else inputs_of
    drawn = {**_SHARED, "activation": st.sampled_from(["swish", "silu", "sigmoid"]), "module": st.just(False)}
    return _kernel(name, f"fla.modules.fused_norm_gate.{name}", drawn, examples, inputs, candidate, golden)


def _as_module(name: str, x: Named, params: Params) -> Any:
    """As models hold it: transformers' Qwen3-Next takes FusedRMSNormGated where fla is installed. The RMS norm's module has no bias."""
    options = {"elementwise_affine": params["weight"], "eps": params["eps"], "activation": params["activation"]}
    if name.startswith("layer"):
        options["bias"] = params["bias"] and params["weight"]
    kind = "FusedLayerNormGated" if name.startswith("layer") else "FusedRMSNormGated"
    module = parts.fla("modules", kind)(params["D"], **options).to(x["x"].device)
    weights: Named = {key: x[key] for key in ("weight", "bias") if key in x and dict(module.named_parameters()).get(key) is not None}
    return torch.func.functional_call(module, weights, (x["x"], x["gate"]), {"residual": x.get("residual"), "prenorm": params["prenorm"]})


def _kernel(
    name: str,
    what: str,
    drawn: dict[str, st.SearchStrategy[Any]],
    examples: list[dict[str, Any]],
    inputs: Inputs,
    candidate: Function,
    golden: Function,
) -> Kernel:
    return Kernel(
        name=f"fla.{name}",
        kind=Kind.TRITON,
        what=what,
        dtypes=("fp32", "fp16", "bf16"),
        params=st.fixed_dictionaries(drawn),
        examples=tuple(examples),
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        counted=_counted,
        differentiable=("x", "gate", "weight", "bias", "residual", "linear_weight", "linear_bias"),
        quick_examples=2,
        half_examples=4,
        tries=8,
        quick_tries=0,
        missing=parts.missing,
    )
