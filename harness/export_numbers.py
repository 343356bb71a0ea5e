"""The numbers of a piece of evidence that are compared between runs, named and meant as those of a benchmark (harness.benchmark_model)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.benchmark_model import Quantity
from harness.model import Evidence

# The first step compiles, allocates and fills caches.
WARMUP_STEPS = 1
LOGGED = ("loss", "grad_norm")
_PEAKS: tuple[tuple[Quantity, str, Callable[[list[float]], float]], ...] = (
    (Quantity.PEAK_ALLOCATED_MIB, "peak_allocated_mib", max),
    (Quantity.PEAK_RESERVED_MIB, "peak_reserved_mib", max),
    (Quantity.HOST_RSS_MIB, "rss_mib", sum),
)


def numbers_of(piece: Evidence) -> dict[str, float]:
    """Of the stage's own step (train, resume): the last logged loss and grad_norm, and from its witnesses the number of ranks, the median
    seconds of a step after the first (the slowest rank's), tokens a second and device, and memory in MiB: of devices the largest over
    ranks, of the host (RSS) the sum. What nobody told is left out.
    """
    found: dict[str, float] = {**_logged(piece)}
    nonces = {run.nonce for run in piece.runs if run.step == str(piece.stage)}
    told = [w.get("steps") for w in piece.witnesses if w.get("nonce") in nonces]
    ranks = [steps for steps in told if isinstance(steps, Mapping) and steps.get("step")]
    if not ranks:
        return found
    found["ranks"] = len(ranks)
    seconds = [_numbers(steps.get("seconds")) for steps in ranks]
    if len({len(of_rank) for of_rank in seconds}) == 1 and len(seconds[0]) > WARMUP_STEPS:
        measured = [max(of_step) for of_step in zip(*seconds, strict=True)][WARMUP_STEPS:]
        found[str(Quantity.STEP_S)] = statistics.median(measured)
        counted = _numbers(ranks[0].get("tokens"))
        if len(counted) == len(seconds[0]) and sum(measured) > 0 and counted[-1] > counted[WARMUP_STEPS - 1]:
            rate = (counted[-1] - counted[WARMUP_STEPS - 1]) / sum(measured) / len(ranks)
            found[str(Quantity.TOKENS_PER_S)] = rate
    for quantity, name, fold in _PEAKS:
        peaks = _numbers([steps.get(name) for steps in ranks])
        if len(peaks) == len(ranks) and fold(peaks) > 0:
            found[str(quantity)] = fold(peaks)
    return found


def _logged(piece: Evidence) -> dict[str, float]:
    rows = piece.metrics.get(str(piece.stage))
    if not isinstance(rows, Sequence):
        return {}
    found = {}
    for name in LOGGED:
        told = [number for row in rows if isinstance(row, Mapping) for number in _numbers([row.get(name)])]
        if told:
            found[name] = told[-1]
    return found


def _numbers(values: Any) -> list[float]:
    """Those that are finite numbers."""
    if not isinstance(values, list | tuple):
        return []
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
