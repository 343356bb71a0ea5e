"""Labels of benchmarks: an effect beyond the floor, beyond the noise, by the named test, and twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.benchmark_model import HIGHER_IS_BETTER, MEMORY, REGRESSIONS, Label, Quantity
from harness.benchmark_verdict import (
    LEAST_REPEATS,
    Compared,
    compare_once,
    confirmed,
    decide,
    power_of,
    repeats_needed,
    spread,
    tolerance,
    wants_confirmation,
)

BASE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in BASE)


def test_without_a_baseline_nothing_passes_by_silence() -> None:
    assert compare_once((), times(1), Quantity.STEP_S).label is Label.NO_BASELINE


@pytest.mark.parametrize("fewest", range(LEAST_REPEATS))
def test_too_few_runs_are_insufficient_data_on_either_side(fewest: int) -> None:
    few = times(2)[:fewest]
    assert compare_once(times(1), few, Quantity.STEP_S).label is Label.INSUFFICIENT
    if fewest:
        assert compare_once(few, times(1), Quantity.STEP_S).label is Label.INSUFFICIENT


@pytest.mark.parametrize("broken", [math.nan, math.inf, 0.0, -1.0])
def test_a_value_that_is_none_is_no_data(broken: float) -> None:
    assert compare_once(times(1), (*times(1), broken), Quantity.STEP_S).label is Label.INSUFFICIENT


@pytest.mark.parametrize(
    ("quantity", "factor", "label"),
    [
        (Quantity.STEP_S, 1.25, Label.SLOWER),
        (Quantity.STEP_S, 0.8, Label.FASTER),
        (Quantity.TOKENS_PER_S, 0.8, Label.SLOWER),
        (Quantity.TOKENS_PER_S, 1.25, Label.FASTER),
        (Quantity.PEAK_ALLOCATED_MIB, 1.2, Label.MORE_MEMORY),
        (Quantity.PEAK_ALLOCATED_MIB, 0.8, Label.LESS_MEMORY),
        (Quantity.STEP_S, 1.03, Label.OK),
        (Quantity.PEAK_RESERVED_MIB, 1.02, Label.OK),
    ],
)
def test_the_direction_decides_the_label_and_the_floor_what_counts(quantity: Quantity, factor: float, label: Label) -> None:
    assert compare_once(times(1), times(factor), quantity).label is label


def test_equal_memory_to_the_byte_is_ok_and_a_fifth_more_is_found() -> None:
    flat = (512.0,) * 5
    assert compare_once(flat, flat, Quantity.PEAK_ALLOCATED_MIB).label is Label.OK
    assert compare_once(flat, (614.4,) * 5, Quantity.PEAK_ALLOCATED_MIB).label is Label.MORE_MEMORY


def test_runs_that_spread_widely_are_noisy_and_not_ok() -> None:
    wild = (1.0, 1.5, 0.7, 1.3, 0.8, 1.1)
    assert compare_once(wild, tuple(v * 1.1 for v in wild), Quantity.STEP_S).label is Label.NOISY


def test_a_regression_needs_a_second_set_of_runs() -> None:
    first = compare_once(times(1), times(1.25), Quantity.STEP_S)
    assert wants_confirmation(first)
    again = decide(times(1), times(1.25), lambda: times(1.25), Quantity.STEP_S)
    assert again.label is Label.SLOWER and "confirmed" in again.because
    chance = decide(times(1), times(1.25), lambda: times(1.0), Quantity.STEP_S)
    assert chance.label is Label.OK and "not confirmed" in chance.because
    assert confirmed(first, Compared(Quantity.STEP_S, Label.INSUFFICIENT, "it died")).label is Label.NOISY


def test_what_is_no_regression_asks_for_no_second_set() -> None:
    def never() -> tuple[float, ...]:
        raise AssertionError("the confirming runs were made")

    assert decide(times(1), times(1.01), never, Quantity.STEP_S).label is Label.OK


def test_the_spread_is_the_standard_deviation_where_noise_is_normal() -> None:
    drawn = 10 + np.random.default_rng(0).normal(0, 0.5, 20_000)
    assert spread([float(v) for v in drawn]) == pytest.approx(0.05, rel=0.03)


def test_more_runs_shrink_the_tolerance_to_the_floor() -> None:
    noisy = (1.0, 1.1, 0.9, 1.05, 0.95, 1.15, 0.85, 1.0)
    few, many = tolerance(noisy, noisy, Quantity.STEP_S), tolerance(noisy * 16, noisy * 16, Quantity.STEP_S)
    assert few > many == 0.05


@given(
    st.lists(st.floats(0.5, 2.0), min_size=LEAST_REPEATS, max_size=12),
    st.lists(st.floats(0.5, 2.0), min_size=LEAST_REPEATS, max_size=12),
    st.sampled_from(list(Quantity)),
    st.floats(1e-3, 1e3),
)
def test_the_unit_decides_nothing(baseline: list[float], candidate: list[float], quantity: Quantity, unit: float) -> None:
    here = compare_once(baseline, candidate, quantity)
    there = compare_once([v * unit for v in baseline], [v * unit for v in candidate], quantity)
    assert here.effect == pytest.approx(there.effect, abs=1e-9)
    # Rounding may tie values apart, which moves p a little.
    assert here.label is there.label or min(abs(abs(here.effect or 0) - (here.tolerance or 0)), abs((here.p or 0) - 0.05)) < 0.03


@given(st.lists(st.floats(0.5, 2.0), min_size=LEAST_REPEATS, max_size=12), st.sampled_from(list(Quantity)))
def test_a_set_of_runs_against_itself_is_never_a_regression(values: list[float], quantity: Quantity) -> None:
    assert compare_once(values, values, quantity).label not in REGRESSIONS
    assert (quantity in MEMORY) + (quantity in HIGHER_IS_BETTER) <= 1


def test_the_power_calculation_keeps_its_word_and_grows_with_the_noise() -> None:
    needed = [repeats_needed(noise, 0.10) for noise in (0.01, 0.03)]
    assert needed == sorted(needed) and needed[0] == LEAST_REPEATS
    for noise, repeats in ((0.03, needed[1]),):
        assert power_of(repeats, noise, 0.10, seed=7) >= 0.9
        assert power_of(repeats, noise, 0.0, seed=7) <= 0.05


def test_an_effect_below_the_floor_is_never_found_and_says_so() -> None:
    with pytest.raises(ValueError, match="floor"):
        repeats_needed(0.01, 0.05)
    with pytest.raises(ValueError, match="more than"):
        repeats_needed(0.6, 0.06)
