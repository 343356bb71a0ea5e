"""Tables of imported exports: counts, the newest of every key, benchmarks, memory, and the marks that harness.support folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from harness import frames_tables
from harness.export_rows import piece_of
from harness.frames import read_frames, rows_at
from harness.model import Mark, Matrix
from harness.report import fold

if TYPE_CHECKING:
    import pandas as pd

_MICROSECONDS = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Tables:
    """`rows` were read, `later` of them are of after `as_of` and left out. The frames' columns: see harness.frames_tables."""

    as_of: date | None
    rows: int
    later: int
    marks: tuple[Mark, ...]
    counts: pd.DataFrame
    newest: pd.DataFrame
    benchmarks: pd.DataFrame
    memory: pd.DataFrame


def tables_of(paths: Sequence[Path], matrix: Matrix, as_of: date | None = None) -> Tables:
    """The tables of the imported exports `paths` on the day `as_of` (default: that of the newest piece of evidence).

    Raises EvidenceError for a file that is not what was imported, HarnessError where pandas is missing.
    """
    everything = read_frames(paths)
    dated = frames_tables.evidence_of(everything)["at"]
    if as_of is None and len(dated):
        as_of = (_EPOCH + int(dated.max()) * _MICROSECONDS).date()
    end = (datetime.combine(as_of, time(), timezone.utc) + timedelta(days=1) - _EPOCH) // _MICROSECONDS if as_of else 0
    frame = everything[everything["at"] < end] if as_of and len(everything) and int(everything["at"].max()) >= end else everything
    return Tables(
        as_of,
        len(everything),
        len(everything) - len(frame),
        marks_of(paths, frame, matrix, as_of),
        frames_tables.counts(frame),
        frames_tables.newest(frame),
        frames_tables.benchmarks(frame),
        frames_tables.memory(frame),
    )


def marks_of(paths: Sequence[Path], frame: pd.DataFrame, matrix: Matrix, as_of: date | None) -> tuple[Mark, ...]:
    """The marks of a frame of these files, folded by harness.support from the rows that no other outranks in all that it asks."""
    pieces = [piece_of(row) for row in rows_at(paths, frames_tables.candidates(frame))]
    return fold(matrix, pieces, as_of).marks
