"""What the parity of a kernel means: a candidate, its golden, the cases to try and the limits that decide."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from harness.model import Word

Params = Mapping[str, Any]
Tensors = Mapping[str, torch.Tensor]
# (inputs, params) -> named outputs. Differentiable inputs are leaves that require a gradient; the trial differentiates the outputs.
Function = Callable[[dict[str, torch.Tensor], Params], dict[str, torch.Tensor]]
DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Kind(Word):
    """What sort of thing is under test."""

    OPERATOR = "operator"  # of torch_npu
    PATCH = "patch"  # ms-swift's, on a model class of transformers
    ATTENTION = "attention"  # ms-swift's and transformers' NPU attention paths
    TRITON = "triton"  # a Triton kernel, compiled on an NPU, in the interpreter on a CPU


class Direction(Word):
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Limit:
    """The largest relative error of one dtype: RMS(candidate - golden) / RMS(golden), and where the number comes from."""

    rms_ratio: float
    source: str


@dataclass(frozen=True)
class Case:
    """One try. `params` are JSON values (shapes, flags); the tensors follow from them, `dtype` and `seed`, to the bit."""

    params: Params
    dtype: str
    seed: int = 0


@dataclass(frozen=True)
class KnownFailure:
    """A fault of the product that this kernel is known to show: its cause (a few words, part of an item's name), why and where it is told,
    and the cases that it concerns, of which at least one must be among the kernel's examples."""

    cause: str
    because: str
    concerns: Callable[[Case], bool]


@dataclass(frozen=True)
class Kernel:
    """One row of the parity table.

    `inputs(params, generator)` gives the inputs in float64 (integers as they are, on the CPU); the trial rounds them to the case's dtype,
    and gives the candidate the rounded values and the golden the same values in float64. Names in `keep` are not rounded to 16 bits but to
    float32 (a gate that a kernel takes in float32). `differentiable`: inputs whose gradients are compared; empty: forward only.
    `counted()` counts what ran under it, by name: launches of Triton kernels or calls of operators. A trial counts only if the candidate
    was counted (every name of `must_run`) and the golden was not.
    `plain`: the same computation in plain torch and the case's dtype on the CPU, the second benchmark of the dual criterion; None where
    there is none; it also widens the limit of an ill-conditioned case. `dual`: whether that criterion decides (not where the plain
    computation starts from other roundings). `single`: whether the single-benchmark criterion decides the outputs too (only where no
    element can cancel to nearly 0).
    `missing()`: "" or why it can't run here and how to get it.
    """

    name: str
    kind: Kind
    what: str
    dtypes: tuple[str, ...]
    params: SearchStrategy[dict[str, Any]]
    examples: tuple[Params, ...]
    inputs: Callable[[Params, torch.Generator], dict[str, torch.Tensor]]
    candidate: Function
    golden: Function
    counted: Callable[[], AbstractContextManager[Counter[str]]]
    must_run: tuple[str, ...] = ()
    differentiable: tuple[str, ...] = ()
    keep: frozenset[str] = frozenset()
    plain: Function | None = None
    single: bool = False
    dual: bool = True
    limits: Mapping[tuple[str, Direction], Limit] = field(default_factory=dict)
    output_limits: Mapping[tuple[str, str], Limit] = field(default_factory=dict)  # by (dtype, output or input's name)
    quick_examples: int | None = None  # how many of the first are tried in a quick run; None: all
    half_examples: int | None = None  # and in 16 bits, where a case costs the same and, by the wider limits, tells less
    tries: int = 20
    quick_tries: int = 4
    missing: Callable[[], str] = lambda: ""
    known: tuple[KnownFailure, ...] = ()

    def examples_in(self, dtype: str, *, quick: bool) -> tuple[Params, ...]:
        return self.examples[: self.quick_examples if quick else None if dtype == "fp32" else self.half_examples]

    def known_failure(self, case: Case) -> KnownFailure | None:
        return next((known for known in self.known if known.concerns(case)), None)


@dataclass(frozen=True)
class Figure:
    """One tensor compared: `rms_ratio` against `limit`; the named criteria beside it (relative errors; None where not applicable).

    `ill`: the case is ill-conditioned, so that plain torch in the same dtype misses the declared limit too, and `limit` was widened by it.
    """

    tensor: str
    direction: Direction
    rms_ratio: float
    limit: float
    single_mean: float | None = None
    single_max: float | None = None
    dual_max: float | None = None
    dual_mean: float | None = None
    dual_rms: float | None = None
    faults: tuple[str, ...] = ()
    ill: bool = False


@dataclass(frozen=True)
class Trial:
    """What one case gave. No faults: the candidate is within every deciding limit and really ran."""

    case: Case
    figures: tuple[Figure, ...]
    ran: Mapping[str, int]
    faults: tuple[str, ...]


def replay_text(kernel: str, case: Case) -> str:
    """The command that repeats one case."""
    whole = {"kernel": kernel, "dtype": case.dtype, "params": dict(case.params), "seed": case.seed}
    words = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return f"pytest -m kernel_parity -k {shlex.quote(f'{kernel}-{case.dtype}')} --kernel-case {shlex.quote(words)}"
