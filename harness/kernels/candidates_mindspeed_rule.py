"""The whole gated delta rule of MindSpeed's branch core_r0.16.0, for Ascend910B and Ascend950 (arch35), alone and as ms-swift wraps it.

MindSpeed asks torch_npu for the chip's name while it is imported. Where no NPU is, a stand-in tells the name that the case is about, during
that import only; everything else that these functions need is Triton and torch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import candidates_mindspeed as master
from harness.kernels import fla_parts as parts
from harness.kernels.delta_rule import l2norm, recurrence
from harness.kernels.fla_parts import Named, case
from harness.kernels.interpreter import Engine, prepared
from harness.kernels.kernel import Kernel, Kind, KnownFailure, Limit, Params
from harness.kernels.stand_in import imported
from harness.kernels.values import normal

_RULE = "mindspeed.core.ssm.chunk_gated_delta_rule"
_BRANCH = "a checkout of MindSpeed's branch core_r0.16.0 on PYTHONPATH"
_SUMMED = "a sum over tokens of parts that cancel, as fla's: three times the worst of 20 honest cases"
_LIMITS = {("bf16", name): Limit(2e-2, _SUMMED) for name in ("g", "beta")}
_NO_BOS = KnownFailure(
    cause="arch35_varlen_gate_offset",
    because=(
        "mindspeed.ops.triton.triton_950.chunk_o: the backward pass of packed sequences reads gates without the sequence's begin (bos), "
        "so that each but the first takes another's: dq, dk and dg are wrong. ms-swift's _mindspeed_gdn_with_safe_varlen avoids it."
    ),
    concerns=lambda case: len(case.params["lengths"] or ()) > 1,
)


def kernels() -> tuple[Kernel, ...]:
    return (
        _kernel("mindspeed016.chunk_gated_delta_rule_910b", "Ascend910B3", _missing),
        _kernel("mindspeed016.chunk_gated_delta_rule_950", "Ascend950", _missing_950, known=(_NO_BOS,)),
        _kernel("mindspeed016.swift_safe_varlen_950", "Ascend950", _missing_swift, wrapped=True),
    )


def _missing() -> str:
    if without := master.missing():
        return without
    try:
        found = importlib.util.find_spec(_RULE)
    except ModuleNotFoundError:
        found = None
    return "" if found is not None else f"this MindSpeed has no {_RULE}: put {_BRANCH}"


def _missing_950() -> str:
    return _missing() or parts.missing()


def _missing_swift() -> str:
    if without := _missing_950():
        return without
    if importlib.util.find_spec("swift") is None:
        return "ms-swift is not installed: `pip install ms-swift`"
    return "" if _patch_file() else "this ms-swift has no swift/model/npu_patch/mindspeed.py: take 4.6 or later"


def _patch_file() -> Path | None:
    found = importlib.util.find_spec("swift")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder) / "model" / "npu_patch" / "mindspeed.py"
        if path.is_file() and "_mindspeed_gdn_with_safe_varlen" in path.read_text(encoding="utf-8"):
            return path
    return None


@functools.cache
def _rule(chip: str) -> Callable[..., Any]:
    """MindSpeed's function as it is on `chip`; on an NPU, as it is on that."""
    if prepared().engine is Engine.COMPILED:
        return _executed(_RULE).chunk_gated_delta_rule  # type: ignore[no-any-return]
    if "950" in chip:
        # As ms-swift's prepare_mindspeed_gdn_import does: MindSpeed imports a flag that fla has dropped.
        vars(importlib.import_module("fla.utils")).setdefault("USE_CUDA_GRAPH", False)
        importlib.import_module("fla.ops.utils")  # before the stand-in is there, which fla's own imports would take for an NPU
    utils: Any = importlib.import_module("mindspeed.ops.triton.utils")
    forget = getattr(getattr(utils, "is_arch35", None), "cache_clear", lambda: None)  # it remembers which chip it was told of
    with imported({"torch_npu": _named(chip)}):
        forget()
        try:
            return _executed(_RULE).chunk_gated_delta_rule  # type: ignore[no-any-return]
        finally:
            forget()


def _executed(name: str) -> Any:
    """A module of its own, not in sys.modules, where it stands for one chip."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None, f"{name} was there when it was asked for"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named(chip: str) -> ModuleType:
    """A torch_npu that knows the name of its device and nothing else."""
    module: Any = ModuleType("torch_npu")
    module.npu = ModuleType("torch_npu.npu")
    module.npu.get_device_name = lambda device=None: chip
    made: ModuleType = module
    return made


@functools.cache
def _wrapped(chip: str) -> Callable[..., Any]:
    """ms-swift's function around MindSpeed's, its file executed alone: the package's other patches are no matter here."""
    path = _patch_file()
    spec = importlib.util.spec_from_file_location("swift_npu_patch_mindspeed", path) if path else None
    assert spec is not None and spec.loader is not None, "the file was there when it was asked for"
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._ORIGINAL_MINDSPEED_GDN = _rule(chip)
    return module._mindspeed_gdn_with_safe_varlen  # type: ignore[no-any-return]


def _inputs(params: Params, generator: torch.Generator) -> Named:
    rows, tokens, heads, _, k, v = parts.shape(params)
    given = {
        "q": normal(generator, rows, tokens, heads, k),
        "k": normal(generator, rows, tokens, heads, k),
        "v": normal(generator, rows, tokens, heads, v),
        "g": parts.gates(generator, params["gate"], rows, tokens, heads),
        "beta": parts.betas(generator, rows, tokens, heads),
    }
    return given if params["normalised"] else given | {"q": l2norm(given["q"], 0.0), "k": l2norm(given["k"], 0.0)}


def _golden(inputs: Named, params: Params) -> Named:
    x = dict(inputs)
    if params["normalised"]:
        x |= {"q": l2norm(x["q"]), "k": l2norm(x["k"])}
    o, final = recurrence(x["q"], x["k"], x["v"], x["g"], x["beta"], scale=params["scale"], lengths=params["lengths"])
    return {"o": o, "final": final} if params["final"] else {"o": o}


def _kernel(name: str, chip: str, missing: Callable[[], str], *, wrapped: bool = False, known: tuple[KnownFailure, ...] = ()) -> Kernel:
    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        o, final = (_wrapped if wrapped else _rule)(chip)(
            x["q"],
            x["k"],
            x["v"],
            x["g"],
            x["beta"],
            scale=params["scale"],
            output_final_state=params["final"],
            use_qk_l2norm_in_kernel=params["normalised"],
            cu_seqlens=parts.boundaries(params["lengths"]),
        )
        return {"o": o, "final": final} if params["final"] else {"o": o}

    def example(T: int = 70, **given: Any) -> dict[str, Any]:
        return case(T, **({"K": 128, "V": 128, "normalised": True, "final": False, "scale": None} | given))

    yes = st.booleans()
    drawn = parts.shapes(
        share=st.just(1), gate=st.sampled_from(["mild", "strong"]), normalised=yes, final=yes, scale=st.sampled_from([None, 0.5])
    )
    return Kernel(
        name=name,
        kind=Kind.TRITON,
        what=f"{_RULE} on {chip}" + (", in ms-swift's _mindspeed_gdn_with_safe_varlen" if wrapped else ""),
        dtypes=("bf16",),
        params=drawn,
        examples=(
            example(70, H=2),
            example(lengths=[60, 70], final=True),
            example(lengths=[3, 65, 64], H=2, K=64, V=64, gate="strong"),
            example(lengths=[66], K=64, V=32),
            example(130, B=2, K=64, V=72, final=True, normalised=False, scale=0.5),
            example(1, B=2, H=4, K=64, V=64),
        ),
        inputs=_inputs,
        candidate=candidate,
        golden=_golden,
        counted=master.launched,
        must_run=("chunk_bwd_kernel_dqkwg",) if "950" in chip else (),
        differentiable=("q", "k", "v", "g", "beta"),
        keep=frozenset({"g"}),
        output_limits=_LIMITS,
        quick_examples=2,
        tries=4,
        quick_tries=0,
        missing=missing,
        known=known,
    )
