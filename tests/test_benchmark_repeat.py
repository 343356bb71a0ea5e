"""From witnesses to the numbers of one run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.benchmark_model import Quantity
from harness.benchmark_repeat import Answered, NotMeasured, serve_repeat, train_repeat
from tests.benchmark_samples import run, witness

WARM, STEPS = 2, 6
SECONDS = (9.0, 9.0, 0.4, 0.2, 0.3, 0.3)


def measured(*witnesses):
    return train_repeat(witnesses, run(), steps=STEPS, warmup_steps=WARM, at="then").values


def test_the_step_time_is_the_median_without_the_steps_that_warm_up() -> None:
    assert measured(witness(0, SECONDS))[Quantity.STEP_S] == pytest.approx(0.3)


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    other = (1.0, 1.0, 0.1, 0.9, 0.1, 0.9)
    values = measured(witness(0, SECONDS, world_size=2), witness(1, other, world_size=2))
    assert values[Quantity.STEP_S] == pytest.approx((0.4 + 0.9) / 2)


def test_tokens_and_samples_are_those_of_the_measured_steps_per_second_and_device() -> None:
    values = measured(witness(0, SECONDS))
    assert values[Quantity.TOKENS_PER_S] == pytest.approx(4 * 100 / 1.2)
    assert values[Quantity.SAMPLES_PER_S] == pytest.approx(4 * 2 * 2 / 1.2)
    two = measured(witness(0, SECONDS, world_size=2), witness(1, SECONDS, world_size=2))
    assert two[Quantity.SAMPLES_PER_S] == pytest.approx(values[Quantity.SAMPLES_PER_S]), "two ranks have twice the rows and devices"
    split = {"sequence_parallel": {"size": 2, "ulysses": 2, "ring": 1}}
    shared = measured(witness(0, SECONDS, world_size=2, begin=split), witness(1, SECONDS, world_size=2, begin=split))
    assert shared[Quantity.SAMPLES_PER_S] == pytest.approx(values[Quantity.SAMPLES_PER_S] / 2), "a split sequence is one row of both"


def test_what_nobody_counted_is_left_out_and_never_zero() -> None:
    values = measured(witness(0, SECONDS, tokens=None, peak_allocated_mib=None, peak_reserved_mib=0.0))
    assert {Quantity.TOKENS_PER_S, Quantity.PEAK_ALLOCATED_MIB, Quantity.PEAK_RESERVED_MIB}.isdisjoint(values)


def test_device_memory_is_the_largest_over_ranks_and_host_memory_their_sum() -> None:
    values = measured(witness(0, SECONDS, world_size=2), witness(1, SECONDS, world_size=2, peak_allocated_mib=99.0))
    assert values[Quantity.PEAK_ALLOCATED_MIB] == 99.0
    assert values[Quantity.HOST_RSS_MIB] == 300.0 + 301.0


@pytest.mark.parametrize("steps", [(), SECONDS[:5], (*SECONDS[:5], None)])
def test_a_run_that_lacks_a_step_is_no_repeat(steps: tuple[float, ...]) -> None:
    with pytest.raises(NotMeasured):
        measured(witness(0, steps))


def test_a_run_of_warm_up_only_or_without_a_witness_is_no_repeat() -> None:
    with pytest.raises(NotMeasured, match="warm-up"):
        train_repeat([witness(0, SECONDS)], run(), steps=STEPS, warmup_steps=STEPS, at="then")
    with pytest.raises(NotMeasured, match="no process"):
        measured()


def test_serving_is_timed_per_token_after_the_first_and_in_all_over_the_round() -> None:
    values = serve_repeat([Answered(0.5, 1.5, 11), Answered(0.7, 0.7, 1), Answered(0.6, 1.6, 5)], 2.0, at="then", nonce="n").values
    assert values[Quantity.FIRST_TOKEN_S] == 0.6
    assert values[Quantity.PER_TOKEN_S] == pytest.approx((0.1 + 0.25) / 2)
    assert values[Quantity.OUTPUT_TOKENS_PER_S] == pytest.approx(17 / 2.0)


@pytest.mark.parametrize("answers", [[], [Answered(0.1, 0.2, 1)]])
def test_answers_too_short_to_time_a_token_are_no_repeat(answers: list[Answered]) -> None:
    with pytest.raises(NotMeasured):
        serve_repeat(answers, 1.0, at="then", nonce="n")


@given(st.lists(st.floats(0.001, 100.0), min_size=STEPS, max_size=STEPS), st.floats(0.1, 10.0))
def test_a_host_twice_as_slow_has_twice_the_step_time_and_half_the_throughput(seconds: list[float], factor: float) -> None:
    one, other = measured(witness(0, seconds)), measured(witness(0, [s * factor for s in seconds]))
    assert other[Quantity.STEP_S] == pytest.approx(one[Quantity.STEP_S] * factor)
    assert other[Quantity.TOKENS_PER_S] == pytest.approx(one[Quantity.TOKENS_PER_S] / factor)
