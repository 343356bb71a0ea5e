"""What changed between two runs: marks, verdicts of stages, and numbers. What did not change is not told.

A side is a frame of exported rows (harness.frames); the stack is no part of what is held against each other, since two stacks are what
people compare.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.benchmark_model import MEMORY, REGRESSIONS, Label, Quantity
from harness.benchmark_verdict import FLOORS, compare_once
from harness.export_numbers import LOGGED
from harness.export_rows import EVIDENCE
from harness.frames_tables import first_of
from harness.model import Mark, MarkKind, VerdictKind, Word

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["cell", "stage", "weights", "hardware"]
_MEASURED_AT = ["record", "cell", "stage", "concurrency", "weights", "hardware", "launcher"]
# Losses and gradient norms of one precision that differ by less are equal (relative, fp32; README, "What a pass takes").
LOGGED_TOLERANCE = 1e-5
DIFFERS = "differs"

_GOOD = {VerdictKind.PASSED: 2, VerdictKind.FIXED: 2, VerdictKind.KNOWN_FAILURE: 1}
_MARKS = (MarkKind.VERIFIED, MarkKind.STALE, MarkKind.TINY_NPU, MarkKind.SIMULATED, MarkKind.WIRED)


class Change(Word):
    FAILING = "newly failing"
    PASSING = "newly passing"
    WORSE = "worse"
    BETTER = "better"
    OTHER = "changed"
    APPEARED = "appeared"
    GONE = "gone"


WORSE = frozenset({Change.FAILING, Change.WORSE})


@dataclass(frozen=True)
class Changed:
    """`about`: the place, word by word. `before`, `after`: what is said of it; "" where it is not there. `evidence`: hashes of both."""

    about: tuple[str, ...]
    change: Change
    before: str
    after: str
    because: str
    evidence: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Number:
    """Medians of the runs of both sides. `label`: of harness.benchmark_verdict, or `differs` for what is logged and not timed."""

    about: tuple[str, ...]
    quantity: str
    before: float
    after: float
    runs: tuple[int, int]
    label: str
    because: str

    @property
    def is_worse(self) -> bool:
        return self.label in REGRESSIONS


@dataclass(frozen=True)
class Difference:
    marks: tuple[Changed, ...]
    verdicts: tuple[Changed, ...]
    numbers: tuple[Number, ...]

    @property
    def got_worse(self) -> bool:
        """What is gone is not worse: nothing is known of it, and the summary counts it."""
        return any(c.change in WORSE for c in (*self.marks, *self.verdicts)) or any(n.is_worse for n in self.numbers)


def marks_changed(before: Iterable[Mark], after: Iterable[Mark]) -> Iterator[Changed]:
    """Of the same cells and targets, in the order of the matrix. A mark that turns `untested` is gone."""
    old = {(m.cell, m.target): m for m in before}
    for new in after:
        was = old[new.cell, new.target]
        if (was.kind, was.hardware) == (new.kind, new.hardware):
            continue
        pieces = tuple(", ".join(sha[:8] for sha in mark.evidence) for mark in (was, new))
        yield Changed((new.cell, str(new.target)), _of_marks(was, new), _mark(was), _mark(new), new.because, (pieces[0], pieces[1]))


def _mark(mark: Mark) -> str:
    return "" if mark.kind is MarkKind.UNTESTED else f"{mark.kind} ({mark.hardware})" if mark.hardware else str(mark.kind)


def _of_marks(was: Mark, new: Mark) -> Change:
    if new.kind is MarkKind.FAILING and was.kind is not MarkKind.FAILING:
        return Change.FAILING
    if MarkKind.UNTESTED in (was.kind, new.kind):
        return Change.APPEARED if was.kind is MarkKind.UNTESTED else Change.GONE
    places = [_MARKS.index(kind) if kind in _MARKS else len(_MARKS) for kind in (was.kind, new.kind)]
    if places[0] == places[1]:
        return Change.OTHER
    return (Change.BETTER if was.kind in _MARKS else Change.PASSING) if places[1] < places[0] else Change.WORSE


def places_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The newest piece of every place (cell, stage, weights, hardware as witnessed, or as asked for where nothing was)."""
    found = frame[frame["record"] == EVIDENCE]
    where = found["hardware"].astype(str)
    found = found.assign(hardware=where.where(where != "", found["asked"].astype(str)).astype("category"))
    told = {str(kind) for kind in (*_GOOD, VerdictKind.FAILED, VerdictKind.BLOCKED)}
    return first_of(found[found["verdict"].isin(told)], PLACE).drop_duplicates(PLACE)


def verdicts_changed(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[Changed]:
    """Of the whole rows of `places_of` both sides, by place."""
    sides = [{_place(row): row for row in rows} for rows in (before, after)]
    for about in sorted(sides[0].keys() | sides[1].keys()):
        was, new = (side.get(about) for side in sides)
        if was and new and (was["verdict"], was.get("cause")) == (new["verdict"], new.get("cause")):
            continue
        pieces = (was["piece"][:8] if was else "", new["piece"][:8] if new else "")
        yield Changed(about, _of_verdicts(was, new), _verdict(was), _verdict(new), (new or was or {}).get("because", ""), pieces)


def _place(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(str(row[name]) for name in PLACE[:3]), str(row.get("hardware") or row["asked"]))


def _verdict(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    cause = row.get("cause", "")
    return f"{row['verdict']} {cause}" if cause not in ("", "none") else str(row["verdict"])


def _of_verdicts(was: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change:
    """What appears failing is newly failing: nobody knew it to fail."""
    if new is None:
        return Change.GONE
    now = _GOOD.get(VerdictKind(new["verdict"]), 0)
    if was is None:
        return Change.FAILING if VerdictKind(new["verdict"]) is VerdictKind.FAILED else Change.APPEARED
    then = _GOOD.get(VerdictKind(was["verdict"]), 0)
    if now < then:
        return Change.FAILING
    return Change.PASSING if now > then and now == 2 else Change.BETTER if now > then else Change.OTHER


def numbers_changed(before: pd.DataFrame, after: pd.DataFrame) -> Iterator[Number]:
    """Of what both sides measured at the same place: evidence with evidence; runs of benchmarks and baselines with each other."""
    sides = [_samples(frame) for frame in (before, after)]
    for key in sorted(sides[0].keys() & sides[1].keys()):
        (*about, quantity), (old, new) = key, (side[key] for side in sides)
        number = _logged(about, quantity, old, new) if quantity in LOGGED else _timed(about, quantity, old, new)
        if number is not None:
            yield number


def _samples(frame: pd.DataFrame) -> dict[tuple[str, ...], list[float]]:
    """By place and quantity, in the order of time. What failed measured nothing."""
    kept = frame[(frame["record"] != EVIDENCE) | frame["verdict"].isin([str(kind) for kind, good in _GOOD.items() if good == 2])]
    words = {name: kept[name].astype(str) for name in _MEASURED_AT if name != "concurrency"}
    words["record"] = words["record"].where(words["record"] == EVIDENCE, "benchmark")
    words["concurrency"] = kept["concurrency"].fillna(0).astype(int).astype(str)
    told = kept.assign(**words).sort_values(["at", "file", "place"])
    columns = [str(quantity) for quantity in Quantity] + list(LOGGED)
    long = told[[*_MEASURED_AT, *columns]].melt(id_vars=_MEASURED_AT, var_name="quantity", value_name="value").dropna(subset=["value"])
    return {key: list(values) for key, values in long.groupby([*_MEASURED_AT, "quantity"], sort=False)["value"]}


def _logged(about: Sequence[str], quantity: str, old: Sequence[float], new: Sequence[float]) -> Number | None:
    """The newest of each side."""
    was, now = old[-1], new[-1]
    error = abs(now - was) / max(abs(was), 1e-12)
    if error <= LOGGED_TOLERANCE:
        return None
    because = f"relative difference {error:.2g}, equal runs agree to {LOGGED_TOLERANCE:g} (the newest of each side)"
    return Number(tuple(about), quantity, was, now, (len(old), len(new)), DIFFERS, because)


def _timed(about: Sequence[str], quantity: str, old: Sequence[float], new: Sequence[float]) -> Number | None:
    compared = compare_once(old, new, Quantity(quantity))
    medians = [statistics.median(values) for values in (old, new)]
    same = abs(medians[1] / medians[0] - 1) <= FLOORS[Quantity(quantity) in MEMORY]
    if compared.label is Label.OK or (same and compared.label is Label.INSUFFICIENT):
        return None
    return Number(tuple(about), quantity, medians[0], medians[1], (len(old), len(new)), str(compared.label), compared.because)
