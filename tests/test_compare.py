"""Numbers are equal within a tolerance that names its source; nothing that is not finite is ever equal."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness.compare as compare
from harness.causes import CAUSES, blame_of
from harness.errors import HarnessError
from harness.model import Blame, Hardware

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_a_cpu_repeats_exactly_and_an_npu_within_its_dtype() -> None:
    assert compare.logged_tolerance(Hardware.CPU, "bfloat16").value == 0
    assert compare.logged_tolerance(Hardware.SIM, "float32").value == 0
    assert compare.logged_tolerance(Hardware.A2, "float32").value == 1e-5
    assert compare.logged_tolerance(Hardware.A3, "torch.bfloat16").value == 2e-3
    assert compare.weights_tolerance(Hardware.A5, "float32").value == 1e-6


def test_every_tolerance_names_its_source() -> None:
    for dtype in ("float32", "bfloat16", "float16", "float8_e4m3fn"):
        for found in (
            compare.logged_tolerance(Hardware.A2, dtype),
            compare.weights_tolerance(Hardware.A2, dtype),
            compare.merge_tolerance(dtype, 8),
            compare.logits_tolerance(dtype),
        ):
            assert found.source and 0 < found.value < 0.1


@given(finite, finite)
def test_a_relative_difference_is_symmetric_and_between_0_and_2(a: float, b: float) -> None:
    assert compare.relative_difference(a, b) == compare.relative_difference(b, a)
    assert 0 <= compare.relative_difference(a, b) <= 2
    assert (compare.relative_difference(a, b) == 0) == (a == b)


@given(finite)
def test_nothing_equals_what_is_not_finite(a: float) -> None:
    for wild in (math.nan, math.inf, -math.inf):
        assert compare.relative_difference(a, wild) == compare.relative_difference(wild, a) == math.inf
        assert compare.relative_difference(wild, wild) == math.inf


def test_nothing_compared_is_no_equality() -> None:
    assert compare.largest_difference([], []) == math.inf
    assert compare.largest_difference([1.0], [1.0, 2.0]) == math.inf
    assert compare.largest_difference([1.0, 2.0], [1.0, 4.0]) == 0.5


def test_an_infinite_error_fails_and_can_be_written_as_json() -> None:
    made = compare.check_error("x", "resume.differs", math.inf, compare.EXACT, "equal")
    assert not made.ok and made.cause == "resume.differs" and made.error is None
    json.dumps(made.error, allow_nan=False)


def test_a_number_within_its_tolerance_still_fails_when_something_else_did() -> None:
    assert not compare.check_error("x", "resume.differs", 0.0, compare.EXACT, "equal", ok=False).ok
    assert compare.check_error("x", "resume.differs", 0.0, compare.EXACT, "equal").cause == ""


def test_an_unknown_cause_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(HarnessError, match=r"resume\.ignored"):
        blame_of("resume.ignore")


def test_the_causes_that_logs_tell_are_all_there() -> None:
    expected = (Path(__file__).parent / "fixtures" / "cause_ids.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for line in expected:
        name, blame, _ = line.split("\t")
        assert CAUSES[name][0] is (Blame(blame) if blame else Blame.UNKNOWN)


def test_every_cause_has_a_meaning_and_no_two_the_same() -> None:
    meanings = [meaning for _, meaning in CAUSES.values()]
    assert all(meanings) and len(set(meanings)) == len(meanings)


def test_the_largest_and_the_smallest_numbers_are_told_apart() -> None:
    assert compare.relative_difference(1.7976931348623157e308, -9.9792015476736e291) == pytest.approx(1.0)
    assert compare.relative_difference(1.7976931348623157e308, -1.7976931348623157e308) == 2.0
    assert compare.relative_difference(5e-324, 1e-323) == 0.5
