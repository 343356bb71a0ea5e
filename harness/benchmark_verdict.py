"""A benchmark against its baseline: an effect counts only beyond a floor, beyond the noise of the repeats, by a named test, and twice.

One value a run is compared, never single steps: steps of a run depend on each other, so that many of them are no many samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.benchmark_model import HIGHER_IS_BETTER, MEMORY, REGRESSIONS, Label, Quantity
from harness.errors import HarnessError

TEST = "two-sided exact Mann-Whitney U test of the runs' values"
SIGNIFICANCE = 0.05
# With 3 against 3 the smallest two-sided p is 0.1, with 4 against 4 it is 0.029: fewer can't show anything.
LEAST_REPEATS = 4
# No change smaller than this is called one: clocks, caches and page sizes move times by some percent between hosts of one kind.
FLOORS = {True: 0.03, False: 0.05}  # by whether the quantity is memory
# Above this relative spread of the runs (1.4826 MAD over median) no comparison with the floor's size means anything.
NOISY_SPREAD = 0.15
NOISE_FACTOR = 2.0  # an effect must be this many standard errors of the difference of medians
POWER = 0.95
SIMULATIONS = 200
MOST_REPEATS = 256


@dataclass(frozen=True)
class Compared:
    """`effect`: candidate's median over the baseline's, minus 1 (0.25: a quarter more). `tolerance`: what it must exceed. p of the test."""

    quantity: Quantity
    label: Label
    because: str
    effect: float | None = None
    tolerance: float | None = None
    p: float | None = None


def spread(values: Sequence[float]) -> float:
    """Relative spread, robust: 1.4826 x median absolute deviation / median, which is the standard deviation where noise is normal."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - middle) for v in values) / abs(middle) if middle else 0.0


def tolerance(baseline: Sequence[float], candidate: Sequence[float], quantity: Quantity) -> float:
    """The smallest effect that counts: the floor, or what the repeats' own noise allows for a difference of two medians."""
    # The standard error of a median is about 1.2533 sigma / sqrt(n) for normal noise.
    error = 1.2533 * math.hypot(spread(baseline) / math.sqrt(len(baseline)), spread(candidate) / math.sqrt(len(candidate)))
    return max(FLOORS[quantity in MEMORY], NOISE_FACTOR * error)


def compare_once(baseline: Sequence[float], candidate: Sequence[float], quantity: Quantity) -> Compared:
    """One set of runs against the baseline's. Raises HarnessError where scipy is missing."""
    if not baseline:
        return Compared(quantity, Label.NO_BASELINE, "no baseline of this cell, hardware and stack; `promote` makes one")
    fewest = min(len(baseline), len(candidate))
    if fewest < LEAST_REPEATS:
        return Compared(quantity, Label.INSUFFICIENT, f"{fewest} runs, and {TEST} needs {LEAST_REPEATS} on each side")
    if not all(math.isfinite(value) and value > 0 for value in (*baseline, *candidate)):
        return Compared(quantity, Label.INSUFFICIENT, "a value is missing, zero or not finite")
    effect = statistics.median(candidate) / statistics.median(baseline) - 1
    wide = max(spread(baseline), spread(candidate))
    least = tolerance(baseline, candidate, quantity)
    p = _p_of(baseline, candidate)
    told = f"{effect:+.1%}, tolerance {least:.1%}, p {p:.2g} ({len(baseline)} and {len(candidate)} runs)"
    counts = abs(effect) > least and p < SIGNIFICANCE
    if wide > NOISY_SPREAD and not counts:
        return Compared(quantity, Label.NOISY, f"the runs spread by {wide:.0%}; {told}", effect, least, p)
    return Compared(quantity, _label(quantity, effect) if counts else Label.OK, told, effect, least, p)


def _p_of(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    try:  # here, so that commands which compare nothing do without scipy
        from scipy import stats
    except ImportError as error:
        raise HarnessError("scipy", f"is needed to compare benchmarks ({error}).", "pip install -e '.[benchmark]'") from error
    return float(stats.mannwhitneyu(baseline, candidate, alternative="two-sided", method="auto").pvalue)


def _label(quantity: Quantity, effect: float) -> Label:
    if quantity in MEMORY:
        return Label.MORE_MEMORY if effect > 0 else Label.LESS_MEMORY
    return Label.FASTER if (effect > 0) == (quantity in HIGHER_IS_BETTER) else Label.SLOWER


def wants_confirmation(first: Compared) -> bool:
    """Whether a second set of runs has to be made before the first one may be believed."""
    return first.label in REGRESSIONS


def confirmed(first: Compared, second: Compared) -> Compared:
    """What stands after the confirming runs: a regression only if both say so; otherwise the first was chance, and it says so."""
    if not wants_confirmation(first) or second.label is first.label:
        because = f"{second.because}; confirmed by a second set of runs" if wants_confirmation(first) else first.because
        kept = second if wants_confirmation(first) else first
        return Compared(kept.quantity, first.label, because, kept.effect, kept.tolerance, kept.p)
    label = Label.NOISY if second.label in (Label.NOISY, Label.INSUFFICIENT) else second.label
    return Compared(
        second.quantity, label, f"{second.because}; {first.label} at first, not confirmed", second.effect, second.tolerance, second.p
    )


def decide(baseline: Sequence[float], first: Sequence[float], second: Callable[[], Sequence[float]], quantity: Quantity) -> Compared:
    """The whole rule: `second` makes the confirming runs, and is called only where the first set looks like a regression."""
    found = compare_once(baseline, first, quantity)
    return confirmed(found, compare_once(baseline, second(), quantity)) if wants_confirmation(found) else found


def power_of(repeats: int, relative_spread: float, effect: float, trials: int = SIMULATIONS, seed: int = 0) -> float:
    """How often `effect` on a time is found by this very rule with `repeats` runs in each set: simulated with log-normal noise."""
    draw = np.random.default_rng(seed)

    def runs(factor: float) -> list[float]:
        return [float(v) for v in factor * np.exp(draw.normal(0.0, relative_spread, repeats))]

    found = sum(decide(runs(1.0), runs(1 + effect), lambda: runs(1 + effect), Quantity.STEP_S).label is Label.SLOWER for _ in range(trials))
    return found / trials


def repeats_needed(relative_spread: float, effect: float, power: float = POWER) -> int:
    """The fewest runs in each set with which `effect` on a time is found with probability `power`, its confirmation included.

    Simulated: floor, noise term, test and the second set of runs must all agree, which no formula for the test alone says.

    Raises:
        ValueError: the effect isn't above the floor, or MOST_REPEATS are too few, so that no sensible number of runs shows it.
    """
    floor = FLOORS[False]
    if effect <= floor:
        raise ValueError(f"an effect of {effect:.1%} is no more than the floor of {floor:.1%}: no number of runs shows it")
    low, high = LEAST_REPEATS - 1, LEAST_REPEATS
    while power_of(high, relative_spread, effect) < power:
        low, high = high, high * 2
        if high > MOST_REPEATS:
            raise ValueError(f"runs that spread by {relative_spread:.0%} show {effect:.0%} with more than {MOST_REPEATS} repeats only")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle, relative_spread, effect) >= power else (middle, high)
    return high
