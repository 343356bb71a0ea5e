"""The words of a benchmark: what is measured, in which unit and which way is better, and what a comparison may be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.model import Cell, Hardware, Weights, Word


class Quantity(Word):
    """What a run is measured by. One value a run: of steps the median after warm-up, of memory the largest over ranks."""

    STEP_S = "step_s"
    TOKENS_PER_S = "tokens_per_s_per_device"
    SAMPLES_PER_S = "samples_per_s_per_device"
    PEAK_ALLOCATED_MIB = "peak_allocated_mib"
    PEAK_RESERVED_MIB = "peak_reserved_mib"
    HOST_RSS_MIB = "host_rss_mib"
    FIRST_TOKEN_S = "time_to_first_token_s"
    PER_TOKEN_S = "time_per_output_token_s"
    OUTPUT_TOKENS_PER_S = "output_tokens_per_s"


HIGHER_IS_BETTER = frozenset({Quantity.TOKENS_PER_S, Quantity.SAMPLES_PER_S, Quantity.OUTPUT_TOKENS_PER_S})
MEMORY = frozenset({Quantity.PEAK_ALLOCATED_MIB, Quantity.PEAK_RESERVED_MIB, Quantity.HOST_RSS_MIB})
# Quantities whose change is a regression of its own; the others follow from them and are shown.
DECISIVE = (Quantity.STEP_S, Quantity.PEAK_ALLOCATED_MIB, Quantity.PEAK_RESERVED_MIB, Quantity.FIRST_TOKEN_S, Quantity.PER_TOKEN_S)


class Label(Word):
    """What a comparison with a baseline is called. Only `ok`, `faster` and `less memory` are good; nothing passes by silence."""

    OK = "ok"
    FASTER = "faster"
    SLOWER = "slower"
    MORE_MEMORY = "more memory"
    LESS_MEMORY = "less memory"
    NOISY = "noisy"
    INSUFFICIENT = "insufficient data"
    NO_BASELINE = "no baseline"


REGRESSIONS = frozenset({Label.SLOWER, Label.MORE_MEMORY})


class Kind(Word):
    TRAIN = "train"
    SERVE = "serve"


@dataclass(frozen=True)
class Question:
    """What is measured: the training of a cell, or the serving of what it trained."""

    cell: Cell
    kind: Kind

    def __str__(self) -> str:
        return f"{self.cell.id} {self.kind}"


@dataclass(frozen=True)
class Repeat:
    """One run: its values by quantity, and the trace that they were taken from (seconds of every step, warm-up included)."""

    values: Mapping[Quantity, float]
    step_s: tuple[float, ...]
    warmup_steps: int
    at: str
    nonce: str


@dataclass(frozen=True)
class Measurement:
    """Repeats of one cell on one hardware and stack. `kind`: train, or serve at `concurrency` requests at a time."""

    cell: str
    kind: str
    hardware: Hardware
    weights: Weights
    stack: str
    launcher: str
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    repeats: tuple[Repeat, ...]
    concurrency: int = 0
    rehearsal: bool = False

    def values(self, quantity: Quantity) -> tuple[float, ...]:
        return tuple(repeat.values[quantity] for repeat in self.repeats if quantity in repeat.values)
