"""Rows of documents, as read: each becomes claims about (cell, target), or says why it is no cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.errors import did_you_mean
from harness.matrix_cells import options_of
from harness.matrix_schema import ClaimedShape, ClaimShape, MatrixShape
from harness.matrix_text import Source
from harness.model import Cell, Claim, Hardware

Row = Mapping[str, Any]


def read_tables(source: Source, shape: MatrixShape) -> dict[str, tuple[Row, ...]]:
    """The documents' tables.

    Raises:
        MatrixError: an undefined document, or a row whose columns differ from the first row's.
    """
    for name, table in shape.tables.items():
        check_document(source, shape, ("tables", name, "document"), table.document)
        columns = set(table.rows[0])
        for number, row in enumerate(table.rows):
            if set(row) != columns:
                odd = sorted(set(row) ^ columns)
                what = f"row {number + 1} of table {name!r} differs from row 1 in column {odd[0]!r}."
                raise source.refuse(("tables", name, "rows", number), what, f"Columns: {', '.join(table.rows[0])}")
    return {name: tuple(dict(row) for row in table.rows) for name, table in shape.tables.items()}


def check_document(source: Source, shape: MatrixShape, path: Sequence[str | int], document: str) -> None:
    if document not in shape.documents:
        raise source.refuse(path, f"document {document!r} is not defined under documents.", did_you_mean(document, shape.documents))


def row_text(row: Row) -> str:
    """A row in the document's own words: translations, and the section that a row may carry, are left out."""
    shown = (value for name, value in row.items() if not name.endswith("_en") and name != "section" and value is not None)
    return " | ".join(map(str, shown))


def expand_claims(source: Source, shape: MatrixShape, cells: tuple[Cell, ...]) -> tuple[Claim, ...]:
    """Every claim, in the order of the text.

    Raises:
        MatrixError: a row, column, table or cell that does not exist, or a claim that is neither a cell nor says why.
    """
    index: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        key = (cell.model.key, cell.algorithm, cell.tuner, cell.strategy, cell.engine, cell.options)
        index.setdefault(key, []).append(cell)
    claims: list[Claim] = []
    first: dict[tuple[str, int, str | None, Hardware | None], int] = {}
    for number, claim in enumerate(shape.claims):
        _check(source, shape, number, claim)
        for row in claim.models or claim.rows:
            for said in _claims_of_row(source, shape, index, number, row):
                other = first.setdefault((claim.table, row, said.cell, said.target), number)
                if other != number:
                    what = f"row {row} of table {claim.table!r} is already read as {said.cell or 'no cell'} on line {{}}."
                    raise source.refuse(("claims", number), what.format(source.line(("claims", other))), "Keep one of them.")
                claims.append(said)
    return tuple(claims)


def _check(source: Source, shape: MatrixShape, number: int, claim: ClaimShape) -> None:
    path = ("claims", number)
    if claim.table not in shape.tables:
        what = f"table {claim.table!r} is not defined under tables."
        raise source.refuse((*path, "table"), what, did_you_mean(claim.table, shape.tables))
    table = shape.tables[claim.table]
    if claim.because_no_cell is None:
        if not (claim.models and claim.cells and claim.hardware) or claim.rows:
            raise source.refuse(path, "a claim needs models, cells and hardware.", "Or rows and because_no_cell, where it names no cell.")
    elif claim.models or claim.cells or claim.hardware or not claim.rows:
        what = "a claim with because_no_cell names rows, and neither models, cells nor hardware."
        raise source.refuse(path, what, "Keep one of the two.")
    if (claim.says is None) == (claim.says_column is None):
        raise source.refuse(path, "a claim has either says or says_column.", "Keep one of them.")
    if claim.says_column is not None and claim.says_column not in table.rows[0]:
        what = f"column {claim.says_column!r} is unknown in table {claim.table!r}."
        raise source.refuse((*path, "says_column"), what, did_you_mean(claim.says_column, table.rows[0]))
    for row in claim.models or claim.rows:
        if not 1 <= row <= len(table.rows):
            raise source.refuse(path, f"table {claim.table!r} has no row {row}.", f"It has {len(table.rows)}.")


def _claims_of_row(
    source: Source, shape: MatrixShape, index: Mapping[tuple[object, ...], list[Cell]], number: int, row_number: int
) -> Iterator[Claim]:
    claim = shape.claims[number]
    table = shape.tables[claim.table]
    row, document = table.rows[row_number - 1], shape.documents[table.document]
    says = claim.says if claim.says is not None else str(row[claim.says_column or ""])
    section = str(row.get("section") or table.section)

    def said(cell: Cell | None, target: Hardware | None) -> Claim:
        return Claim(
            document=document.title,
            section=section,
            date=document.date,
            row=row_text(row),
            reading=claim.reading,
            cell=cell.id if cell else None,
            target=target,
            says=says,
            because_no_cell=claim.because_no_cell or "",
        )

    if claim.cells is None:
        yield said(None, None)
        return
    for cell in _cells_of_row(source, index, number, claim.models[row_number], claim.cells):
        for target in map(Hardware, claim.hardware):
            if target not in cell.targets:
                what = f"the claim speaks of {cell.id} on {target}, which its block {cell.block!r} (line {cell.line}) leaves out."
                raise source.refuse(("claims", number, "hardware"), what, f"Add {target} there.")
            yield said(cell, target)


def _cells_of_row(
    source: Source, index: Mapping[tuple[object, ...], list[Cell]], number: int, model: str, claimed: ClaimedShape
) -> Iterator[Cell]:
    options = options_of(claimed.options)
    for strategy in claimed.strategies:
        key = (model, claimed.algorithm, claimed.tuner, strategy, claimed.engine, options)
        found = [c for c in index.get(key, []) if claimed.devices in (None, c.devices)]
        if len(found) == 1:
            yield found[0]
            continue
        asked = f"{claimed.algorithm}, {model}, {claimed.tuner}, {strategy}, {claimed.engine}"
        what = f"{'no cell is' if not found else 'more than one cell is'} what the claim speaks of ({asked})."
        next_step = "Declare it under cells." if not found else f"Say devices: {', '.join(str(c.devices) for c in found)}."
        raise source.refuse(("claims", number), what, next_step)
