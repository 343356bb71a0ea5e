"""From one run's witnesses, or one client's answers, to a repeat: the numbers of one run, each taken where the work was done."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.benchmark_model import Quantity, Repeat
from harness.model import Run, Witness
from harness.witness_log import workers


class NotMeasured(Exception):
    """The run left too little to be a repeat; the text says what is missing."""


@dataclass(frozen=True)
class Answered:
    """One streamed answer as the client saw it, seconds from the moment the request was sent. `tokens`: the server's own usage."""

    first_token_s: float
    total_s: float
    tokens: int


def train_repeat(witnesses: Sequence[Witness], run: Run, *, steps: int, warmup_steps: int, at: str) -> Repeat:
    """One training run of `steps` optimizer steps on every rank.

    A step takes as long as its slowest rank; the value is the median after `warmup_steps`. Tokens (padding included) and samples are
    those of the measured steps over their seconds and the devices. Memory is the largest over ranks, host memory (RSS) their sum.
    Raises NotMeasured.
    """
    ranks = workers(witnesses)
    if not ranks:
        raise NotMeasured("no process witnessed a training step")
    timed = [_seconds(witness, steps) for witness in ranks]
    slowest = tuple(max(of_ranks) for of_ranks in zip(*timed, strict=True))
    measured = slowest[warmup_steps:]
    if not measured:
        raise NotMeasured(f"{steps} steps, all of them warm-up")
    values = {Quantity.STEP_S: statistics.median(measured)}
    values |= _throughput(ranks, measured, warmup_steps, steps)
    for quantity, name in ((Quantity.PEAK_ALLOCATED_MIB, "peak_allocated_mib"), (Quantity.PEAK_RESERVED_MIB, "peak_reserved_mib")):
        peaks = [float(event[name]) for witness in ranks for event in witness.all("step") if event.get(name) is not None]
        if peaks and max(peaks) > 0:
            values[quantity] = max(peaks)
    resident = [max((float(e["rss_mib"]) for e in w.all("step") if e.get("rss_mib") is not None), default=math.nan) for w in ranks]
    if all(map(math.isfinite, resident)):
        values[Quantity.HOST_RSS_MIB] = sum(resident)
    return Repeat(values, slowest, warmup_steps, at, run.nonce)


def _seconds(witness: Witness, steps: int) -> tuple[float, ...]:
    found = {int(event["step"]): event.get("seconds") for event in witness.all("step")}
    lacking = [step for step in range(1, steps + 1) if not isinstance(found.get(step), (int, float))]
    if lacking:
        raise NotMeasured(f"rank {witness.rank} timed no step {', '.join(map(str, lacking[:4]))} of {steps}")
    return tuple(float(found[step]) for step in range(1, steps + 1))  # type: ignore[arg-type]


def _throughput(ranks: Sequence[Witness], measured: Sequence[float], warmup_steps: int, steps: int) -> dict[Quantity, float]:
    """Per second and device. Tokens are left out where nobody counted them."""
    first, devices, seconds = ranks[0], len(ranks), sum(measured)
    arguments = (first.last("train_begin") or {}).get("arguments") or {}
    values: dict[Quantity, float] = {}
    rows, accumulated = arguments.get("per_device_train_batch_size"), arguments.get("gradient_accumulation_steps")
    parallel = max(1, devices // _split(first))
    if isinstance(rows, int) and isinstance(accumulated, int):
        values[Quantity.SAMPLES_PER_S] = rows * accumulated * parallel * len(measured) / seconds / devices
    tokens = {int(event["step"]): event.get("tokens") for event in first.all("step")}
    before, after = tokens.get(warmup_steps), tokens.get(steps)
    if isinstance(before, int) and isinstance(after, int) and after > before:
        values[Quantity.TOKENS_PER_S] = (after - before) / seconds / devices
    return values


def _split(witness: Witness) -> int:
    """Over how many ranks a sequence is split: they share their rows."""
    said = (witness.last("train_begin") or {}).get("sequence_parallel")
    size = said.get("size") if isinstance(said, Mapping) else None
    return size if isinstance(size, int) and size > 0 else 1


def serve_repeat(answers: Sequence[Answered], wall_s: float, *, at: str, nonce: str) -> Repeat:
    """One round of requests against a server, all answered. Medians over requests; tokens a second over the round's `wall_s`.

    Time per output token is (total - first) / (tokens - 1), of answers of at least two tokens. Raises NotMeasured.
    """
    if not answers or wall_s <= 0:
        raise NotMeasured("no request was answered")
    longer = [(a.total_s - a.first_token_s) / (a.tokens - 1) for a in answers if a.tokens > 1]
    if not longer:
        raise NotMeasured("no answer has two tokens, so that no time per token can be told")
    values = {
        Quantity.FIRST_TOKEN_S: statistics.median(a.first_token_s for a in answers),
        Quantity.PER_TOKEN_S: statistics.median(longer),
        Quantity.OUTPUT_TOKENS_PER_S: sum(a.tokens for a in answers) / wall_s,
    }
    return Repeat(values, tuple(a.total_s for a in answers), 0, at, nonce)
