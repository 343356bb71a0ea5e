"""MindSpeed's Triton kernels of the gated delta rule step by step, from a checkout on PYTHONPATH (branch master, or core_r0.16.0)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

from harness.kernels import delta_offers as offers
from harness.kernels import delta_steps as steps
from harness.kernels import fla_parts as parts
from harness.kernels.delta_offers import Library, Offer, kernel_of
from harness.kernels.delta_rule import l2norm
from harness.kernels.fla_parts import Named
from harness.kernels.interpreter import Engine, missing_triton, prepared
from harness.kernels.kernel import Kernel, Kind, Params
from harness.kernels.values import normal

_UTILS = "mindspeed.ops.triton.utils"


def missing() -> str:
    """ "" or how to get MindSpeed: the package of that name on PyPI is a placeholder."""
    if without := missing_triton():
        return without
    found = importlib.util.find_spec("mindspeed")
    if found is None or not found.submodule_search_locations:
        return "MindSpeed is not installed: `git clone https://gitcode.com/Ascend/MindSpeed` and put the checkout on PYTHONPATH"
    if importlib.util.find_spec("mindspeed.ops.triton") is None:
        return "this MindSpeed has no mindspeed.ops.triton: take a checkout of branch master, or core_r0.16.0"
    return ""


def kernels() -> tuple[Kernel, ...]:
    return (*(kernel_of(_MINDSPEED, offer) for offer in _OFFERS), _l2norm())


@contextlib.contextmanager
def launched() -> Iterator[Counter[str]]:
    """Launches; in the interpreter without the device's context, which MindSpeed takes from torch.cuda where it finds no device."""
    with contextlib.ExitStack() as stack:
        if prepared().engine is Engine.INTERPRETED and missing() == "":
            stack.enter_context(mock.patch(f"{_UTILS}.custom_device_ctx", lambda index: contextlib.nullcontext()))
        yield stack.enter_context(parts.launched())


def _located(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"mindspeed.ops.triton.{module}"), name)


def _adapted(params: Params) -> dict[str, Any]:
    """As many heads of v as of q, a plain gate for each token, chunks of 64, no initial state: what it is made for."""
    fixed = {"share": 1, "size": 64, "initial": False, "S": 0, "weighted": True}
    kept = {name: fixed.get(name, value) for name, value in params.items()}
    return kept | {"gate": "strong" if params["gate"] == "strong" else "mild"}


_MINDSPEED = Library("mindspeed", _located, 1.0, missing, ("fp32", "bf16"), launched, _adapted, tries=4, quick_examples=1)
_OFFERS = (
    Offer(steps.CUMSUM, "cumsum", ("chunk_local_cumsum_scalar_kernel",), offers.cumsum),
    Offer(steps.KKT, "chunk_scaled_dot_kkt", ("chunk_scaled_dot_kkt_fwd_kernel",), offers.kkt),
    Offer(steps.TRIL, "solve_tril", (), offers.tril),
    Offer(steps.WY, "wy_fast", ("recompute_w_u_fwd_kernel",), offers.wy),
    Offer(steps.WY_BACKWARD, "wy_fast", ("prepare_wy_repr_bwd_kernel",), offers.wy_backward),
    Offer(steps.H, "chunk_delta_h", ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64",), offers.h),
    Offer(steps.DHU, "chunk_delta_h", (), offers.dhu),
    Offer(steps.O, "chunk_o", ("chunk_fwd_kernel_o",), offers.o),
    Offer(steps.LOCAL, "chunk_o", ("chunk_bwd_kernel_dv_local",), offers.local),
    Offer(steps.DQKWG, "chunk_o", (), offers.dqkwg),
)


def _l2norm() -> Kernel:
    def inputs(params: Params, generator: torch.Generator) -> Named:
        return {"x": normal(generator, 1, params["T"], params["D"]) * params["factor"]}

    def candidate(inputs: Named, params: Params) -> Named:
        return {"y": _located("l2norm", "l2norm")(parts.there(inputs)["x"], params["eps"])}

    def case(T: int, D: int, eps: float = 1e-6, factor: float = 1.0) -> dict[str, Any]:
        return {"T": T, "D": D, "eps": eps, "factor": factor}

    return Kernel(
        name="mindspeed.l2norm",
        kind=Kind.TRITON,
        what="mindspeed.ops.triton.l2norm.l2norm",
        dtypes=("fp32", "bf16"),
        params=st.builds(
            case, st.integers(1, 50), st.sampled_from([16, 40, 520]), st.sampled_from([1e-6, 1e-3]), st.sampled_from([1.0, 1e-2])
        ),
        examples=(case(17, 40, 1e-3, 1e-2), case(70, 128), case(3, 520, 1e-3, 1e-2), case(1, 64)),
        inputs=inputs,
        candidate=candidate,
        golden=lambda inputs, params: {"y": l2norm(inputs["x"], params["eps"])},
        counted=launched,
        differentiable=("x",),
        tries=8,
        quick_tries=0,
        missing=missing,
    )
