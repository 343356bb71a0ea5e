"""Orders that end soon, backfill that never delays who has waited, and devices that are near each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.packing import Busy, Load, choose, ends_after, may_start, order

CAPACITY = 8
LOADS = st.lists(st.builds(Load, st.uuids().map(str), st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.1, 100)), max_size=30)


def least(loads: list[Load]) -> float:
    areas = sum(min(load.width, CAPACITY) * load.expected_s for load in loads) / CAPACITY
    return max([areas, *(load.expected_s for load in loads)], default=0.0)


@given(LOADS)
def test_an_order_has_every_cell_once_and_no_schedule_beats_the_bound(loads: list[Load]) -> None:
    ordered = order(loads, CAPACITY)
    assert sorted(ordered, key=repr) == sorted(loads, key=repr)
    assert least(loads) <= ends_after(ordered, CAPACITY) * (1 + 1e-9) + 1e-9


@given(LOADS)
def test_an_order_ends_no_later_than_longest_first(loads: list[Load]) -> None:
    longest = sorted(loads, key=lambda load: (-load.expected_s, -load.width))
    assert ends_after(order(loads, CAPACITY), CAPACITY) <= ends_after(longest, CAPACITY) + 1e-3


@given(LOADS)
def test_one_after_the_other_they_run_as_declared(loads: list[Load]) -> None:
    assert list(order(loads, CAPACITY, at_once=1)) == loads


def test_a_long_narrow_cell_starts_before_short_wide_ones_that_fit_beside_it() -> None:
    loads = [*(Load(f"wide{n}", 4, 10.0) for n in range(4)), Load("long", 1, 60.0)]
    assert order(loads, CAPACITY)[0].key == "long"


def test_a_cell_wider_than_the_host_takes_all_of_it() -> None:
    assert ends_after([Load("a", 16, 5.0), Load("b", 1, 5.0)], CAPACITY) == 10.0


def test_what_runs_already_counts_and_an_overdue_one_ends_now() -> None:
    assert ends_after([Load("a", 8, 5.0)], CAPACITY, [Busy(8, 103.0)], now=100.0) == 8.0
    assert ends_after([Load("a", 8, 5.0)], CAPACITY, [Busy(8, 90.0)], now=100.0) == 5.0
    assert ends_after([Load("a", 8, 5.0)], CAPACITY, [Busy(8, None)], now=100.0) == 5.0


def test_no_more_run_at_once_than_asked() -> None:
    loads = [Load(str(n), 1, 5.0) for n in range(4)]
    assert [ends_after(loads, CAPACITY, at_once=most) for most in (None, 4, 2, 1)] == [5.0, 5.0, 10.0, 20.0]
    assert ends_after(loads, CAPACITY, [Busy(1, 3.0)], at_once=1) == 23.0


NARROW = Load("narrow", 1, 10.0)


@pytest.mark.parametrize(
    ("head_width", "free", "busy", "known", "starts"),
    [
        (4, 5, [Busy(3, None)], False, True),
        (8, 2, [Busy(6, 100.0)], True, True),
        (8, 2, [Busy(6, 100.0)], False, False),
        (8, 2, [Busy(6, 5.0)], True, False),
        (8, 2, [Busy(6, None)], True, False),
        (8, 2, [Busy(6, -3.0)], True, False),
        (4, 2, [Busy(3, 5.0), Busy(3, 50.0)], False, True),
        (9, 2, [Busy(6, None)], False, True),
        (2, 2, [Busy(6, 100.0)], True, False),
    ],
    ids=[
        "both-fit", "over-before", "guessed-only", "not-over-before", "nobody-knows-when", "overdue", "beside-it-later",
        "never-fits-anyway", "head-could-start-now",
    ],
)  # fmt: skip
def test_backfill_never_delays_who_has_waited(head_width: int, free: int, busy: list[Busy], known: bool, starts: bool) -> None:
    assert may_start(NARROW, head_width=head_width, free=free, busy=busy, now=0.0, known=known) is starts


def pairs(one: int, other: int) -> int:
    """Two dies a module, four modules a ring of eight: 0-1, 2-3, ... are nearest, then 0-7 and 8-15."""
    if one == other:
        return 0
    if one // 2 == other // 2:
        return 1
    return 2 if one // 8 == other // 8 else 6


@given(st.sets(st.integers(0, 15)), st.integers(0, 16))
def test_exactly_as_many_free_devices_are_chosen_or_none(free: set[int], count: int) -> None:
    chosen = choose(free, count, pairs)
    assert len(chosen) == (count if 0 < count <= len(free) else 0)
    assert set(chosen) <= free and list(chosen) == sorted(set(chosen))


def test_neighbours_are_chosen_before_a_lower_number() -> None:
    assert choose({1, 6, 7}, 2, pairs) == (6, 7)
    assert choose({0, 2, 8, 9, 10, 11}, 4, pairs) == (8, 9, 10, 11)
    assert choose(set(range(16)), 8, pairs) in (tuple(range(8)), tuple(range(8, 16)))


def test_one_device_is_taken_where_its_neighbour_is_in_use_already() -> None:
    assert choose({0, 1, 3}, 1, pairs) == (3,)
    assert choose({*range(8), 12, 13}, 2, pairs) == (12, 13)
