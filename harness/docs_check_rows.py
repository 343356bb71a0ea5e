"""Support tables against matrix.yaml and evidence: rows without a cell, claims without a row, claims that evidence contradicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.docs_check_facts import Finding, Kind
from harness.docs_page import Page, Row, Table
from harness.docs_rows import RowMeaning, TableForm, TableKind, read_rows, table_form
from harness.matrix_claims import row_text
from harness.model import Algorithm, Claim, Hardware, Mark, MarkKind, Matrix

Marks = Mapping[tuple[str, Hardware], Mark]
# The column by which matrix.yaml's tables of a kind are known.
_COLUMN = {TableKind.COMBINATIONS: "strategy", TableKind.FEATURES: "feature_zh", TableKind.MEMORY: "max_memory"}
_NEGATIVE = re.compile(r"不支持|未|not\b|unsupported|^x$|❌|no$", re.IGNORECASE)
_AGAINST = (MarkKind.FAILING, MarkKind.KNOWN_FAILURE)


@dataclass(frozen=True)
class _Read:
    table: Table
    form: TableForm
    rows: tuple[tuple[Row, RowMeaning], ...]


def document_of(page: Page, path: str, matrix: Matrix) -> str | None:
    """The title under which matrix.yaml knows the page: by its own title, or by the name of its file; None for another page."""
    stem = _letters(re.sub(r"\.\w+$", "", path.replace("\\", "/").rpartition("/")[2]))
    heading = _letters(page.headings[0].title) if page.headings else ""
    for title in dict.fromkeys(claim.document for claim in matrix.claims):
        core = _letters(title).removeprefix("msswift")
        if core and (core in stem or core == heading):
            return title
    return None


def check_rows(page: Page, matrix: Matrix, marks: Marks, document: str | None) -> Iterator[Finding]:
    """Tables of combinations are read on every page; those of features, limits and memory only where the page is the `document`."""
    reads = [read for table in page.tables if (read := _read(table, matrix, document)) is not None]
    for read in reads:
        for row, meaning in read.rows:
            yield from _without_cell(row, meaning, matrix.source)
        yield from _against_evidence(read, marks)
    if document is not None:
        yield from _without_row(reads, matrix, document)


def _read(table: Table, matrix: Matrix, document: str | None) -> _Read | None:
    form = table_form(table.columns)
    if form is None or (document is None and form.kind is not TableKind.COMBINATIONS):
        return None
    whole = [row for row in table.rows if len(row.cells) == len(table.columns)]
    heading = table.heading_path[-1] if table.heading_path else ""
    return _Read(table, form, tuple(zip(whole, read_rows(form, [row.cells for row in whole], matrix, heading), strict=True)))


def _without_cell(row: Row, meaning: RowMeaning, source: str) -> Iterator[Finding]:
    for problem in meaning.problems:
        yield Finding(
            row.line, Kind.ROW, f"the row can't be read as a cell of {source}: {problem}", "Mend the row, or declare what it names."
        )
    if meaning.without_cell:
        some = "; ".join(meaning.without_cell[:4]) + (f" and {len(meaning.without_cell) - 4} more" if len(meaning.without_cell) > 4 else "")
        yield Finding(row.line, Kind.ROW, f"no cell of {source} asks what the row claims: {some}", "Declare the cell, or mend the row.")


def _without_row(reads: Sequence[_Read], matrix: Matrix, document: str) -> Iterator[Finding]:
    """Claims of the document that no row of its tables makes, told at the table that should."""
    for kind, column in _COLUMN.items():
        mine = [read for read in reads if read.form.kind is kind]
        said = {key for read in mine for _, meaning in read.rows for key in meaning.cells}
        texts = {row_text(row) for rows in matrix.tables.values() for row in rows if column in row}
        missing: dict[str, list[Claim]] = {}
        for claim in matrix.claims:
            if claim.document == document and claim.row in texts and claim.cell and claim.target and (claim.cell, claim.target) not in said:
                missing.setdefault(claim.row, []).append(claim)
        for text, claims in missing.items():
            if (read := _table_for(claims[0], mine, matrix)) is not None:
                cells = ", ".join(f"{claim.cell} on {claim.target}" for claim in claims[:4]) + (" ..." if len(claims) > 4 else "")
                because = f"{matrix.source} has the claim {text!r}, but no row of this table makes it ({cells})"
                yield Finding(read.table.line, Kind.ROW, because, "Restore the row, or take the claim out.")


def _table_for(claim: Claim, reads: Sequence[_Read], matrix: Matrix) -> _Read | None:
    """The table that has rows of the claim's sort: SFT, or anything else."""
    cell = matrix.cell(claim.cell or "")
    for read in reads:
        algorithms = {found.algorithm for _, meaning in read.rows for key, _ in meaning.cells if (found := matrix.cell(key))}
        if read.form.kind is not TableKind.COMBINATIONS:
            return read
        if cell and any((cell.algorithm is Algorithm.SFT) == (algorithm is Algorithm.SFT) for algorithm in algorithms):
            return read
    return None


def _against_evidence(read: _Read, marks: Marks) -> Iterator[Finding]:
    """What runs on the claimed hardware say against a row is a fault; what is only unproved is counted in one note a table."""
    kinds: Counter[str] = Counter()
    for row, meaning in read.rows:
        claimed = not _NEGATIVE.search(meaning.says) and read.form.kind is not TableKind.UNSUPPORTED
        for key in meaning.cells:
            mark = marks.get(key)
            if mark is None:
                continue
            by_npu = mark.hardware is not None and mark.hardware.is_npu
            what = f"{mark.cell} on {mark.target} is {mark.kind} ({mark.because})"
            if claimed and mark.kind in _AGAINST and by_npu:
                yield Finding(row.line, Kind.EVIDENCE, f"evidence contradicts the row: {what}", "Run `python -m harness docs update`.")
            elif not claimed and mark.kind is MarkKind.VERIFIED:
                yield Finding(row.line, Kind.EVIDENCE, f"evidence contradicts the row: {what}", "Take the limit out.")
            elif claimed and mark.kind is not MarkKind.VERIFIED:
                kinds[str(mark.kind)] += 1
    if kinds:
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        because = f"{sum(kinds.values())} claims of this table have no current evidence of their hardware: {counted}"
        yield Finding(read.table.line, Kind.EVIDENCE, because, note=True)


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold().replace("支持", "support"))
