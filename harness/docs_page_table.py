"""The tables of a page, by the rules of GitHub-flavoured Markdown; what is damaged about one is a Fault with its line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    line: int
    message: str
    next_step: str


@dataclass(frozen=True)
class Row:
    """`cells` are as many as the row has (a row of another width is a Fault of the page), trimmed, with `\\|` read as `|`."""

    line: int
    cells: tuple[str, ...]
    raw: str


@dataclass(frozen=True)
class Table:
    """`line` is that of the columns' names, `end_line` that of the last row; `heading_path` has the outermost title first."""

    line: int
    heading_path: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    end_line: int


_DELIMITER = re.compile(r":?-+:?")
_DASHES = re.compile(r"[:：\-‐-―－—_=]+")
_BLOCK = re.compile(r"#{1,6}(?:\s|$)|>|(?:[-*+]|\d{1,9}[.)])\s|(?:[-_*]\s*){3,}$|</?[A-Za-z][^>]*>?|!\[")
_CONTAINER = re.compile(r"^[ \t]*(?:>[ \t]?)*[ \t]*")
Visible = Sequence[str | None]


def split_row(text: str) -> tuple[str, ...]:
    """The cells of a line: bars that are escaped divide nothing, those in `code` do, and the outermost bars are optional."""
    inner = text.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner))


def read_table(number: int, visible: Visible, path: tuple[str, ...], spaced: bool) -> tuple[Table | None, list[Fault], int]:
    """The table whose columns are named at line `number`, its faults, and the line after it (`number` itself where none begins).

    `spaced`: the page puts empty lines between its blocks, so that text directly below a table is meant, and drawn, as a row of it.
    """
    header, below = _text(number, visible), _text(number + 1, visible)
    if "|" not in header:
        return None, [], number
    columns, marks = split_row(header), split_row(below)
    if "|" in below and all(_DELIMITER.fullmatch(mark) for mark in marks):
        if len(columns) == len(marks):
            return _whole(number, visible, path, columns, spaced)
        because = f"no table: {len(columns)} column names, but the delimiter row below has {len(marks)} cells"
        return None, [Fault(number + 1, because, "Give it one cell a column.")], _after_rows(number, visible)
    if not _is_row(header):
        return None, [], number
    if _is_row(below) and _nearly_delimiter(marks):
        because = f"no table: {below[:60]!r} is no delimiter row, whose cells have dashes only"
        return None, [Fault(number + 1, because, "Write | --- | for every column.")], _after_rows(number, visible)
    if _text(number - 1, visible).startswith("+-") and not _is_row(_text(number - 2, visible)):
        grid = _grid(number, visible, path)
        return grid, [], grid.end_line + 2 if grid else number
    return _orphans(number, visible)


def _grid(number: int, visible: Visible, path: tuple[str, ...]) -> Table | None:
    """A table of reStructuredText, whose rows lines of +---+ divide; None for other boxes, such as those that programs draw."""
    columns = split_row(_text(number, visible))
    rows: list[Row] = []
    at = number + 1
    while (text := _text(at, visible)) and (_is_row(text) or re.fullmatch(r"\+(?:[-=]+\+)+", text)):
        divides, after = text.startswith("+"), _text(at - 1, visible).startswith("+")
        if divides and (after or text.count("+") != len(columns) + 1):
            return None
        if not divides:
            rows.append(Row(at, split_row(text), visible[at - 1] or ""))
        at += 1
    whole = _text(at - 1, visible).startswith("+") and rows and all(len(row.cells) == len(columns) for row in rows)
    return Table(number, path, columns, tuple(rows), at - 2) if whole else None


def _whole(number: int, visible: Visible, path: tuple[str, ...], columns: tuple[str, ...], spaced: bool) -> tuple[Table, list[Fault], int]:
    faults: list[Fault] = []
    rows: list[Row] = []
    barred = _text(number, visible).startswith("|")
    at = number + 2
    while (text := _text(at, visible)) and not _BLOCK.match(text):
        bars = re.search(r"(?<!\\)\|", text) is not None
        if not bars or (barred and not spaced and not text.startswith("|")):
            faults += _below(at, text, spaced and not bars)
            break
        cells = split_row(text)
        if len(cells) != len(columns):
            faults.append(_width(at, len(cells), len(columns), text))
        rows.append(Row(at, cells, visible[at - 1] or ""))
        at += 1
    return Table(number, path, columns, tuple(rows), at - 1), faults, at


def _width(at: int, found: int, wanted: int, text: str) -> Fault:
    lost = "cells beyond the last column are not shown" if found > wanted else "it is filled up with empty cells"
    code = " A bar inside code divides too: write \\|." if found > wanted and "`" in text else ""
    return Fault(at, f"the row has {found} cells, its table {wanted} columns ({lost})", f"Give it {wanted} cells.{code}")


def _below(at: int, text: str, drawn: bool) -> list[Fault]:
    if "｜" in text:
        return [Fault(at, "full-width bars (｜) divide no cells: the row is not in the table above", "Write |.")]
    if drawn:
        return [Fault(at, "text directly below a table is drawn as a row of it", "Put an empty line between them.")]
    return []


def _orphans(number: int, visible: Visible) -> tuple[None, list[Fault], int]:
    """Rows under no columns: lines that begin and end with a bar, but for the boxes that programs draw (+---+) and for a lone line."""
    boxed = any(re.match(r"\+[-=+]|\S*[=─━]{3}", _text(at, visible)) for at in (number - 1, number + 1))
    end = _after_rows(number, visible)
    closes = _text(end, visible)
    if boxed or re.match(r"\+[-=+]", closes) or end - number < 2:
        return None, [], number
    because = "rows of no table: a row of column names and a delimiter row must stand directly above"
    return None, [Fault(number, because, "Write them, or join the rows to the table that they belong to.")], end


def _after_rows(number: int, visible: Visible) -> int:
    at = number
    while _is_row(_text(at, visible)):
        at += 1
    return max(at, number + 1)


def _is_row(text: str) -> bool:
    return len(text) > 2 and text.startswith("|") and not text.startswith("||") and text.endswith("|")


def _nearly_delimiter(marks: tuple[str, ...]) -> bool:
    dashes = sum(bool(_DASHES.fullmatch(mark)) for mark in marks)
    return dashes * 2 >= len(marks) and any(len(mark) > 1 for mark in marks if _DASHES.fullmatch(mark))


def _text(number: int, visible: Visible) -> str:
    """Line `number` without what contains it (quote marks, indentation); empty beyond the page and inside fences."""
    if not 1 <= number <= len(visible):
        return ""
    return _CONTAINER.sub("", visible[number - 1] or "", count=1).rstrip()
