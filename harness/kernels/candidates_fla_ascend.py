"""The kernels that fla takes on an Ascend NPU, its backend triton_ascend, in the interpreter.

On an NPU fla's own functions lead to them, so that candidates_fla_*.py compare them there, compiled; on a CPU they are called by name. What
they ask of the device, its numbers of cores, is answered here: it decides how work is spread, not what comes of it. Its convolution and
cross entropy need what only Ascend's own Triton has (tl.extract_slice, tl.math.tanh), so that they can't be interpreted.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from harness.kernels import candidates_fla_layers, candidates_fla_norms
from harness.kernels import delta_offers as offers
from harness.kernels import delta_steps as steps
from harness.kernels import fla_parts as parts
from harness.kernels.delta_offers import Library, Offer, kernel_of
from harness.kernels.interpreter import compiles
from harness.kernels.kernel import Kernel, Params

_COMMON, _RULE, _UTILS = "ops.common.backends.triton_ascend", "ops.gated_delta_rule.backends.triton_ascend", "ops.utils.triton_ascend"
# Few of each, so that a program has several tasks.
_DEVICE = {"num_aicore": 2, "num_vectorcore": 3}


def kernels() -> tuple[Kernel, ...]:
    layers = {kernel.name: kernel for kernel in (*candidates_fla_norms.kernels(), *candidates_fla_layers.kernels())}
    return (*(kernel_of(_ASCEND, offer) for offer in _OFFERS), *(_routed(layers[route.kernel], route) for route in _ROUTES))


def _missing() -> str:
    if without := parts.missing():
        return without
    if compiles():
        return "on an NPU fla's own functions lead to these kernels: see fla.*"
    return ""


@contextlib.contextmanager
def _launched() -> Iterator[Counter[str]]:
    """Launches, on a device of which only the numbers of cores are known."""
    with contextlib.ExitStack() as stack:
        for module in sorted({offer.module for offer in _OFFERS} | {route.backend for route in _ROUTES}):
            loaded = importlib.import_module(f"fla.{module}")
            for name, answer in (("get_npu_properties", _DEVICE), ("get_multiprocessor_count", _DEVICE["num_vectorcore"])):
                if hasattr(loaded, name):
                    stack.enter_context(mock.patch.object(loaded, name, lambda *asked, answer=answer, **named: answer))
        yield stack.enter_context(parts.launched())


def _adapted(params: Params) -> dict[str, Any]:
    """Vectors of 2^n gates: others are for a Triton whose blocks may have any size, as Ascend's."""
    return {**params, "S": {5: 4, 3: 2, 20: 16, 40: 32}.get(params["S"], params["S"])} if "S" in params else dict(params)


@dataclass(frozen=True)
class Route:
    """The functions of `module` in whose place those of `backend`, named *_npu, are called under the candidate of `kernel`."""

    kernel: str
    module: str
    backend: str
    functions: tuple[str, ...]


def _routed(kernel: Kernel, route: Route) -> Kernel:
    @contextlib.contextmanager
    def launched() -> Iterator[Counter[str]]:
        with contextlib.ExitStack() as stack:
            module, backend = (importlib.import_module(f"fla.{name}") for name in (route.module, route.backend))
            for name in route.functions:
                stack.enter_context(mock.patch.object(module, name, getattr(backend, f"{name}_npu")))
            yield stack.enter_context(_launched())

    name = kernel.name.replace("fla.", "fla_ascend.")
    return replace(
        kernel,
        name=name,
        what=f"fla.{route.backend}: {', '.join(route.functions)}",
        counted=launched,
        must_run=(),
        missing=_missing,
        tries=3,
    )


_ASCEND = Library("fla_ascend", parts.fla, math.log(2), _missing, counted=_launched, adapted=_adapted, tries=3, quick_examples=1)
_OFFERS = (
    Offer(steps.CUMSUM, f"{_UTILS}.cumsum", (), offers.cumsum, name="chunk_local_cumsum_npu"),
    Offer(steps.KKT, f"{_COMMON}.chunk_scaled_dot_kkt", (), offers.kkt, name="chunk_scaled_dot_kkt_fwd_npu"),
    Offer(steps.TRIL, f"{_UTILS}.solve_tril", (), offers.tril, name="solve_tril_npu"),
    Offer(steps.WY, f"{_RULE}.wy_fast", (), offers.wy, name="recompute_w_u_fwd_npu"),
    Offer(steps.INTRA, f"{_RULE}.chunk_fwd", (), offers.intra, name="chunk_gated_delta_rule_fwd_intra_npu"),
    Offer(steps.WY_BACKWARD, f"{_RULE}.wy_fast", (), offers.wy_backward, name="prepare_wy_repr_bwd_npu"),
    Offer(steps.H, f"{_COMMON}.chunk_delta_h", (), offers.h, True, "chunk_gated_delta_rule_fwd_h_npu"),
    Offer(steps.DHU, f"{_COMMON}.chunk_delta_h", (), offers.dhu, True, "chunk_gated_delta_rule_bwd_dhu_npu"),
    Offer(steps.O, f"{_COMMON}.chunk_o", (), offers.o, True, "chunk_fwd_o_npu"),
    Offer(steps.LOCAL, f"{_COMMON}.chunk_o", (), offers.local, False, "chunk_bwd_dv_local_npu"),
    Offer(steps.DQKWG, f"{_COMMON}.chunk_o", (), offers.dqkwg, True, "chunk_bwd_dqkwg_npu"),
)
_NORMS = ("layer_norm_gated_fwd", "layer_norm_gated_bwd")
_ROUTES = (
    Route("fla.l2norm", "modules.norm.l2norm", "modules.norm.triton_ascend.l2norm", ("l2norm_fwd", "l2norm_bwd")),
    Route("fla.rms_norm", "modules.norm.layernorm", "modules.norm.triton_ascend.layernorm", ("layer_norm_fwd", "layer_norm_bwd")),
    Route("fla.rms_norm_gated", "modules.norm.fused_norm_gate", "modules.norm.triton_ascend.fused_norm_gate", _NORMS),
    Route("fla.layer_norm_gated", "modules.norm.fused_norm_gate", "modules.norm.triton_ascend.fused_norm_gate", _NORMS),
    Route("fla.swiglu", "modules.activations.ops", "modules.activations.triton_ascend", ("swiglu_fwd", "swiglu_fwdbwd")),
)
