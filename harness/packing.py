"""Which cells start next, and on which devices: list scheduling of cells that take several devices (or cores) at once.

Nothing here waits or looks: numbers in, decisions out. Times are seconds on one clock, widths are devices or cores.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

# What a cell is thought to take whose like was never recorded: start-up of its processes, and minutes for each billion of parameters.
UNKNOWN_STAGE_S, UNKNOWN_BILLION_S = 60.0, 30.0
TINY_STAGE_S = 15.0


@dataclass(frozen=True)
class Load:
    """One cell to place: `width` devices or cores for about `expected_s` seconds."""

    key: str
    width: int
    expected_s: float


@dataclass(frozen=True)
class Busy:
    """`width` devices or cores that are taken until about `ends_at`; None: nobody knows."""

    width: int
    ends_at: float | None


def order(loads: Sequence[Load], capacity: int, at_once: int | None = None) -> tuple[Load, ...]:
    """The order in which cells start where they fit, at most `at_once` at a time: the one that ends soonest on `capacity`.

    As declared, longest first, widest first and most work first are tried out on the expected times: longest first leaves holes beside
    wide cells, the others leave long narrow ones for the end, and which is worse depends on the cells. Among equals the first named stays.
    """
    longest = sorted(loads, key=lambda load: (-load.expected_s, -load.width))
    widest = sorted(loads, key=lambda load: (-load.width, -load.expected_s))
    most = sorted(loads, key=lambda load: (-load.width * load.expected_s, -load.width))
    best: list[Load] = min((list(loads), longest, widest, most), key=lambda tried: round(ends_after(tried, capacity, at_once=at_once), 3))
    return tuple(best)


def ends_after(loads: Sequence[Load], capacity: int, busy: Sequence[Busy] = (), now: float = 0.0, at_once: int | None = None) -> float:
    """Seconds from `now` until all are done, each started as soon as it fits, in this order with backfill; `busy` runs already.

    No more than `at_once` run at the same time. A load wider than `capacity` takes all of it. What is busy for an unknown time, or
    overdue, is thought to end now.
    """
    ends = [(max(0.0, (one.ends_at or now) - now), one.width) for one in busy]
    heapq.heapify(ends)
    free, waiting, at, last = capacity - sum(one.width for one in busy), list(loads), 0.0, 0.0
    while waiting or ends:
        left: list[Load] = []
        for load in waiting:
            width = min(load.width, capacity)
            if width <= free and (at_once is None or len(ends) < at_once):
                free -= width
                heapq.heappush(ends, (at + load.expected_s, width))
            else:
                left.append(load)
        waiting = left
        if not ends:
            break
        at, width = heapq.heappop(ends)
        free, last = free + width, max(last, at)
    return last


def may_start(mine: Load, *, head_width: int, free: int, busy: Sequence[Busy], now: float, known: bool) -> bool:
    """Whether `mine` may start although somebody has waited for `head_width` for too long (EASY backfill: never delays the head).

    Yes, if the head still fits beside it, or if it is thought to be over (`known`: on records) before the head could start anyway.
    """
    if head_width <= free - mine.width:
        return True
    if head_width <= free:
        return False
    ends = sorted((one.ends_at if one.ends_at is not None else math.inf, one.width) for one in busy)
    gathered = free
    for at, width in ends:
        gathered += width
        if gathered >= head_width:
            # An unknown end promises nothing, and whoever is overdue may end at any moment.
            if math.isinf(at):
                return False
            spare = gathered - head_width
            return mine.width <= min(free, spare) or (known and now + mine.expected_s <= at)
    # Not even all of it would do for the head: waiting for that would stop everybody for nothing.
    return True


def choose(free: Collection[int], count: int, distance: Callable[[int, int], int]) -> tuple[int, ...]:
    """`count` of the `free` devices that reach each other best, sorted; () if there are too few.

    Among equals those whose near neighbours are taken already: a pair or a ring that is whole stays whole for whoever needs it.
    """
    if not 0 < count <= len(free):
        return ()
    grown = [_grow(seed, frozenset(free), count, distance) for seed in sorted(free)]
    return min(grown, key=lambda chosen: (_within(chosen, distance), -_to_rest(chosen, free, distance), chosen))


def _grow(seed: int, free: frozenset[int], count: int, distance: Callable[[int, int], int]) -> tuple[int, ...]:
    chosen = [seed]
    while len(chosen) < count:
        rest = sorted(free.difference(chosen))
        costs = {one: sum(distance(one, other) for other in chosen) for one in rest}
        chosen.append(min(rest, key=lambda one: (costs[one], -sum(distance(one, other) for other in rest), one)))
    return tuple(sorted(chosen))


def _within(chosen: Sequence[int], distance: Callable[[int, int], int]) -> int:
    return sum(distance(one, other) for at, one in enumerate(chosen) for other in chosen[at + 1 :])


def _to_rest(chosen: Sequence[int], free: Collection[int], distance: Callable[[int, int], int]) -> int:
    rest = set(free).difference(chosen)
    return sum(distance(one, other) for one in chosen for other in rest)


def guessed_s(stages: int, *, params_b: float | None, devices: int, tiny: bool) -> float:
    """Seconds for a cell without records: `stages` stages of a model of `params_b` billions on `devices` devices (or ranks).

    A guess, only good for an order and an estimate that says so.
    """
    if tiny:
        return stages * TINY_STAGE_S * max(1, devices)
    return stages * (UNKNOWN_STAGE_S + UNKNOWN_BILLION_S * (params_b or 1.0) / max(1, devices))
