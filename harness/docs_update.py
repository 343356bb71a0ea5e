"""A page's support tables, written anew from evidence; every byte that no mark speaks of stays as it was.

    update_page(text, table, matrix) -> Update

A row changes where an NPU, with real weights, decided one of its cells: verified, stale, failing, known failure, fixed? (harness.support).
What was simulated, ran on a plain cpu or with tiny weights changes nothing, and a row without evidence keeps the marks that it has: that a
store lacks evidence, as a fresh clone's does, unsays nothing (`docs check` names claims without evidence). A row with evidence says what
the evidence says now, whatever stood there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.docs_page import Page, Table, read_page
from harness.docs_rows import CellKey, RowMeaning, TableForm, TableKind, read_rows, table_form
from harness.docs_update_added import Added, TableRows, added_rows
from harness.docs_update_lines import Cells, cells_of, end_of, lines_of
from harness.docs_update_marks import WRITTEN, Said, said_of
from harness.docs_update_rows import rewritten, style_of
from harness.model import Evidence, Mark, MarkKind, Matrix, VerdictKind, Weights
from harness.rules import changed_options
from harness.support import SupportTable

_CJK = re.compile(r"[\u4e00-\u9fff]")
_DECIDED_BY = {
    MarkKind.FAILING: VerdictKind.FAILED,
    MarkKind.KNOWN_FAILURE: VerdictKind.KNOWN_FAILURE,
}


@dataclass(frozen=True)
class Change:
    """A line of the page. `line`: its number in the old page; of an added row, that of the row above it. `old` is None for an added row."""

    line: int
    old: str | None
    new: str


@dataclass(frozen=True)
class Update:
    """The page's new text, what changed in it, and sentences on what is verified and could not be written."""

    text: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Known:
    """A support table of the page: those of its rows that can be exchanged byte for byte, the number of each one's line, and the cells
    that any of its rows means."""

    of: TableRows
    numbers: tuple[int, ...]
    means: frozenset[CellKey]


def update_page(text: str, table: SupportTable, matrix: Matrix) -> Update:
    """The page `text` with its support tables as `table` says. The same text again, given what it made."""
    page, lines = read_page(text), lines_of(text)
    language = language_of(page)
    answers = npu_answers(table)
    tables = [known for found in page.tables if (known := _known(found, lines, matrix, language)) is not None]
    changes: list[Change] = []
    for known in tables:
        for number, row, meaning in zip(known.numbers, known.of.rows, known.of.meanings, strict=True):
            new = rewritten(row, known.of.form, meaning, answers, matrix, known.of.style)
            changes += [Change(number, row.line, new)] if new != row.line else []
    combinations = [known for known in tables if known.of.form.kind is TableKind.COMBINATIONS]
    covered = frozenset[CellKey]().union(*(known.means for known in combinations))
    stood_for = frozenset[CellKey]().union(*(known.means for known in tables))
    special = {cell.id for cell in matrix.cells if changed_options(cell.options)}
    verified = [key for key, said in answers.items() if said.kind is MarkKind.VERIFIED]
    unsaid = [key for key in verified if key not in (stood_for if key[0] in special else covered)]
    added, notes = added_rows([known.of for known in combinations if known.of.rows], unsaid, matrix)
    changes += [_added(row, tables, answers, matrix) for row in added]
    return Update(_written(lines, changes), tuple(sorted(changes, key=lambda change: (change.line, change.old is None))), tuple(notes))


def npu_answers(table: SupportTable) -> dict[CellKey, Said]:
    """What an NPU with real weights decided, by cell and hardware, in the order of the matrix."""
    pieces = {piece.sha256: piece for piece in table.evidence}
    found: dict[CellKey, Said] = {}
    for mark in table.marks:
        mine = [pieces[sha256] for sha256 in mark.evidence]
        real = bool(mine) and all(piece.weights is Weights.REAL for piece in mine)
        if mark.kind in WRITTEN and mark.target.is_npu and mark.hardware is mark.target and real:
            found[mark.cell, mark.target] = said_of(mark, _causes(mark, mine))
    return found


def language_of(page: Page) -> str:
    """zh where one letter in a hundred of the prose and tables is Chinese, else en."""
    texts = [text for _, text in page.prose]
    texts += [cell for table in page.tables for cells in (table.columns, *(row.cells for row in table.rows)) for cell in cells]
    chinese = sum(len(_CJK.findall(text)) for text in texts)
    latin = sum(len(re.findall(r"[A-Za-z]", text)) for text in texts)
    return "zh" if chinese * 100 > latin else "en"


def _causes(mark: Mark, pieces: list[Evidence]) -> tuple[str, ...]:
    """The stage that decided, and its cause."""
    weak = next((piece for piece in pieces if piece.verdict.kind is _DECIDED_BY.get(mark.kind)), None)
    return (str(weak.stage), *([weak.verdict.cause] if weak.verdict.cause else [])) if weak else ()


def _known(found: Table, lines: list[str], matrix: Matrix, language: str) -> _Known | None:
    """The table as one of support, or None. Rows that hold comments, or more or fewer cells than columns, are left alone."""
    form = table_form(found.columns)
    if form is None:
        return None
    heading = found.heading_path[-1] if found.heading_path else ""
    meanings = read_rows(form, [row.cells for row in found.rows], matrix, heading)
    kept: list[tuple[int, Cells, RowMeaning]] = []
    for row, meaning in zip(found.rows, meanings, strict=True):
        cells = cells_of(lines[row.line - 1])
        if cells.values() == row.cells and len(row.cells) == len(found.columns):
            kept.append((row.line, cells, meaning))
    style = style_of(form, lines[found.line], [cells for _, cells, _ in kept], language)
    rows = TableRows(form, heading, tuple(cells for _, cells, _ in kept), tuple(meaning for *_, meaning in kept), style)
    means = frozenset(key for meaning in meanings for key in meaning.cells)
    return _Known(rows, tuple(number for number, *_ in kept), means)


def _added(row: Added, tables: list[_Known], answers: Mapping[CellKey, Said], matrix: Matrix) -> Change:
    known = next(known for known in tables if known.of is row.table)
    form: TableForm = row.table.form
    line = rewritten(cells_of(row.line), form, row.meaning, answers, matrix, row.table.style)
    return Change(known.numbers[row.behind], None, line)


def _written(lines: list[str], changes: list[Change]) -> str:
    """The lines with their changes. A row that comes to stand last takes over that the file had no last line end."""
    written = list(lines)
    for change in changes:
        if change.old is not None:
            written[change.line - 1] = change.new
    for change in (change for change in changes if change.old is None):
        above = written[change.line - 1]
        if end_of(above):
            written[change.line - 1] = above + change.new + end_of(above)
        else:
            written[change.line - 1] = above + end_of(lines[change.line - 2]) + change.new
    return "".join(written)
