"""Stages whose failure is known and stops nobody for a while: each says why, where it is dealt with, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from harness.errors import MatrixError
from harness.matrix_schema import MatrixShape
from harness.matrix_text import Source
from harness.matrix_when import nearest, read_when
from harness.model import Cell, Matrix, Model, Quarantine, Stage
from harness.rules import applicable_stages, concerns, matches

# What lasts longer is a limit, and belongs under rules.
LONGEST_DAYS = 90


def read_quarantine(source: Source, shape: MatrixShape, models: Mapping[str, Model], cells: tuple[Cell, ...]) -> tuple[Quarantine, ...]:
    """Raises MatrixError for an entry that matches no stage of any cell, or an unknown model. Dates are held against no clock here."""
    found = []
    for number, entry in enumerate(shape.quarantine):
        path = ("quarantine", number)
        when = read_when(source, (*path, "when"), entry.when, models)
        until = date.fromisoformat(entry.until)
        one = Quarantine(when, entry.because, entry.issue, until, source.line(path), source.line((*path, "until")))
        if not any(matches(one, cell) and any(concerns(one, stage) for stage in applicable_stages(cell)) for cell in cells):
            what = f"the quarantine matches no stage of any cell ({one.because})."
            raise source.refuse(path, what, f"{nearest(one, cells)}Declare a cell, or delete it.")
        found.append(one)
    return tuple(found)


def refuse_dates(matrix: Matrix, *, today: date, as_of: date | None = None) -> None:
    """Raises MatrixError where a quarantine is over on the day `as_of` (None: today), or is to last more than LONGEST_DAYS from today."""
    for one in matrix.quarantine:
        where = f"{matrix.source}:{one.until_line}"
        if one.until < (as_of or today):
            what = f"quarantine expired on {one.until}: mend it, or set a new date with a reason."
            raise MatrixError(where, what, f"It was: {one.because} ({one.issue})")
        if one.until > today + timedelta(days=LONGEST_DAYS):
            what = f"quarantine until {one.until} lasts more than {LONGEST_DAYS} days from today, {today}."
            raise MatrixError(where, what, "Set an earlier date; a limit that stays is a rule with `expect: fail`.")


def in_force(matrix: Matrix, cell: Cell, stage: Stage, on: date | None) -> Quarantine | None:
    """The first quarantine that a stage of `cell` is under on a day; its last day counts. Without a day none is."""
    found = (one for one in matrix.quarantine if on is not None and on <= one.until)
    return next((one for one in found if matches(one, cell) and concerns(one, stage)), None)
