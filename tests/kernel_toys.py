"""Kernels small enough to be right or wrong in plain sight; as a pytest plugin (`-p kernel_toys`) they are all that kernel_parity finds."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import catalogue, interpreter
from harness.kernels.checks import Check
from harness.kernels.kernel import Case, Kernel, Kind, KnownFailure, Params

CALLS: Counter[str] = Counter()
Inputs = dict[str, torch.Tensor]
Function = Callable[[Inputs, Params], Inputs]


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    CALLS.clear()
    yield CALLS


def norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def candidate(eps: float = 1e-6, count: str = "norm") -> Function:
    def run(given: Inputs, params: Params) -> Inputs:
        CALLS[count] += 1
        x = given["x"]
        return {"y": norm(x.float(), given["w"].float(), eps).to(x.dtype)}

    return run


def golden(given: Inputs, params: Params) -> Inputs:
    return {"y": norm(given["x"], given["w"], 1e-6)}


def inputs(params: Params, generator: torch.Generator) -> Inputs:
    x = torch.randn(params["n"], params["h"], generator=generator, dtype=torch.float64) * params["scale"]
    return {"x": x, "w": torch.randn(params["h"], generator=generator, dtype=torch.float64)}


def params() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"n": st.integers(1, 9), "h": st.integers(2, 33), "scale": st.sampled_from([1.0, 1e-3])})


SOUND = Kernel(
    name="toy.sound",
    kind=Kind.OPERATOR,
    what="a norm",
    dtypes=("fp32", "bf16"),
    params=params(),
    examples=({"n": 3, "h": 8, "scale": 1.0},),
    inputs=inputs,
    candidate=candidate(),
    golden=golden,
    counted=counted,
    must_run=("norm",),
    differentiable=("x", "w"),
    plain=golden,
)


def toy(name: str, **changes: Any) -> Kernel:
    return replace(SOUND, **{"name": f"toy.{name}", "dtypes": ("fp32",), **changes})


def wrong_at_small_scale(given: Inputs, params: Params) -> Inputs:
    return candidate(1e-5 if params["scale"] < 1 else 1e-6)(given, params)


def dying(given: Inputs, params: Params) -> Inputs:
    raise ValueError("no such kernel\nand more of it")


def small_scale(case: Case) -> bool:
    return bool(case.params["scale"] < 1)


def crashing(given: Inputs, params: Params) -> Inputs:
    os._exit(9)


SMALL = ({"n": 3, "h": 8, "scale": 1e-3},)
KNOWN = KnownFailure("eps is too large", "told in a note", small_scale)
WRONG = toy("wrong", candidate=wrong_at_small_scale)
ALL = (
    SOUND,
    WRONG,
    toy("known", candidate=wrong_at_small_scale, examples=(*SOUND.examples, *SMALL), known=(KNOWN,)),
    toy("mended", examples=(*SOUND.examples, *SMALL), known=(KNOWN,)),
    toy("unshown", known=(KNOWN,)),
    toy("absent", missing=lambda: "no toys here: pip install toys"),
    toy("idle", examples=(), tries=0, quick_tries=0),
    toy("dies", candidate=dying),
)


def upside_down() -> None:
    raise AssertionError("it is upside down")


CHECKS = (Check("upright", "stands", lambda: None), Check("fallen", "stands", upside_down))


def pytest_configure(config: object) -> None:
    setattr(interpreter, "prepare", lambda: None)  # noqa: B010 - toys launch no Triton kernel
    crash = (toy("crashes", candidate=crashing),) if os.environ.get("TOYS_THAT_CRASH") else ()
    setattr(catalogue, "all_kernels", lambda: (*ALL, *crash))  # noqa: B010
    setattr(catalogue, "all_checks", lambda: CHECKS)  # noqa: B010
