"""What was found on disk, as plain values: what the proofs read beside a StepResult. Read by harness.artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model import StepResult, Word
from harness.tensors import TensorFile

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CheckpointFiles:
    """One checkpoint folder. `weights` is the adapter's or the model's tensors; `faults` names each file that can't be read.

    `nonce` is npu_matrix_nonce.json, `trainer_state`, `adapter_config` and `config` the files of those names; None: not there.
    `states` maps optimizer.pt, scheduler.pt and rng_state*.pth (those that are there) to the bytes of tensor data in them; so too FSDP1's
    optimizer.bin and pytorch_model_fsdp.bin, ZeRO's global_stepN/*_states.pt, and FSDP2's folder optimizer_0, for its moments alone.
    `moments`: the entries of the two moments in that folder, two for each trained parameter; None: no such folder.
    """

    dir: str
    weights: TensorFile | None
    is_adapter: bool
    nonce: Mapping[str, Any] | None = None
    trainer_state: Mapping[str, Any] | None = None
    adapter_config: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    states: Mapping[str, int] = field(default_factory=dict)
    moments: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def fault(self) -> str:
        """All that is wrong, in one sentence; "" if nothing is."""
        return "; ".join(self.faults)


@dataclass(frozen=True)
class Answer:
    """One row of a result file: the last user message and the response to it."""

    user: str
    response: str


@dataclass(frozen=True)
class Answers:
    """A result jsonl, in file order. `faults`: lines that can't be read, or that contradict themselves."""

    path: str
    rows: tuple[Answer, ...]
    faults: tuple[str, ...] = ()


class Role(Word):
    """Which model answered. FULL: the checkpoint of a training of every weight."""

    BASE = "base"
    ADAPTER = "adapter"
    FULL = "full"
    MERGED = "merged"


class Way(Word):
    """How it answered: rows at once, rows streamed, or questions on standard input."""

    PLAIN = "plain"
    STREAM = "stream"
    INTERACTIVE = "interactive"


@dataclass(frozen=True, eq=False)
class Inference:
    """One infer step: what it wrote and the logits that its witness saw, [rows, vocabulary] in row order (None: none found)."""

    role: Role
    way: Way
    result: StepResult
    answers: Answers
    logits: Logits | None = None

    @property
    def name(self) -> str:
        return str(self.role) if self.way is Way.PLAIN else f"{self.role}.{self.way}"


@dataclass(frozen=True)
class AskedLora:
    """The adapter that the command asked for. `target_modules`: ("all-linear",) or names of modules; `alpha` as --lora_alpha."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...] = ("all-linear",)
    rslora: bool = False

    @property
    def scaling(self) -> float:
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)
