"""Lines of a page as bytes keep them: a cell is exchanged, a row written, and all else stays as it was."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z")
_BEFORE = re.compile("\ufeff?[ \t]*(?:>[ \t]?)*[ \t]*")
_BAR = re.compile(r"(?<!\\)\|")


def lines_of(text: str) -> list[str]:
    r"""The lines with their ends (\n, \r\n or \r); together they are `text`."""
    return _LINE.findall(text)


def end_of(line: str) -> str:
    r"""How a line ends: \n, \r\n, \r, or "" at the end of a file without one."""
    return line[len(line.rstrip("\r\n")) :]


@dataclass(frozen=True)
class Cells:
    """A line of a table. `spans`: where each cell stands, blanks included; outside are bars, indentation, the line's end."""

    line: str
    spans: tuple[tuple[int, int], ...]

    def raw(self, number: int) -> str:
        start, end = self.spans[number]
        return self.line[start:end]

    def values(self) -> tuple[str, ...]:
        """The cells as `harness.docs_page` reads them."""
        return tuple(self.raw(n).strip().replace("\\|", "|") for n in range(len(self.spans)))

    def exchanged(self, number: int, text: str, width: int) -> str:
        """The line with `text` in a cell. A cell that had blanks behind its text is filled up to `width`
        columns of a terminal, by one blank at least."""
        start, end = self.spans[number]
        old = self.line[start:end]
        lead = old[: len(old) - len(old.lstrip())] if old.strip() else old[:1]
        fill = max(1, width - columns_of(lead + text)) if old[-1:].isspace() else 0
        return self.line[:start] + lead + text + " " * fill + self.line[end:]


def cells_of(line: str) -> Cells:
    before = _BEFORE.match(line)
    start, end = before.end() if before else 0, len(line.rstrip())
    start += line[start:end].startswith("|")
    if line[start:end].endswith("|") and not line[start:end].endswith("\\|"):
        end -= 1
    bars = [match.start() for match in _BAR.finditer(line, start, end)] if start <= end else []
    return Cells(line, tuple(zip([start, *(bar + 1 for bar in bars)], [*bars, max(start, end)], strict=True)))


def columns_of(text: str) -> int:
    """How many columns of a terminal `text` takes: wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 0 if unicodedata.combining(letter) else 1 for letter in text)


def new_row(like: Cells, texts: Sequence[str], widths: Sequence[int]) -> str:
    """A row in the style of the row `like` (indentation, bars, blanks), its cells filled up to `widths`, without a line end."""
    row = cells_of(like.line.rstrip())
    for number, text in enumerate(texts):
        row = cells_of(row.exchanged(number, text, widths[number]))
    return row.line
