"""Saved terminal output as lines, and the words in it as values: what is no number, or a cut one, is None."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BARS = str.maketrans({"│": "|", "┃": "|", "｜": "|", "║": "|", "\x00": None, "\ufeff": None, "\u00a0": " ", "：": ":"})
_NOTHING = re.compile(r"(?:-+|n/?a|none|null|unknown)?", re.IGNORECASE)
_LONGEST = 20_000
# Where a wrapped line is joined between two letters or digits: one word or two? Nothing is read across it.
_SEAM = "\ufffd"


@dataclass(frozen=True)
class Row:
    """One line of a table between its bars. `closed`: it ends with a bar. `open_end`: it doesn't, and the text ends there too."""

    cells: tuple[str, ...]
    closed: bool
    open_end: bool


def lines_of(text: str) -> list[str]:
    """Lines without colours, carriage returns and the marks of a quotation; a line longer than any table's is cut."""
    plain = _ESCAPES.sub("", text.translate(_BARS).replace("\r\n", "\n").replace("\r", "\n"))
    return [re.sub(r"^\s*(?:>\s?)+(?=\s*[|+\w])", "", line)[:_LONGEST] for line in plain.split("\n")]


def rows_of(lines: Sequence[str]) -> list[Row]:
    """The lines that have bars, with or without a log's words before them. What a terminal wrapped is put together again."""
    joined: list[str] = []
    for line in lines:
        start = joined[-1] if joined else ""
        wrapped = start.lstrip().startswith("|") and not start.rstrip().endswith("|")
        if wrapped and line.rstrip().endswith("|") and not line.lstrip().startswith(("|", "+")):
            joined[-1] = start + (_SEAM if start[-1].isalnum() and line[0].isalnum() else "") + line
        else:
            joined.append(line)
    final = max((i for i, line in enumerate(joined) if line.strip()), default=-1)
    return [_row(line, i == final) for i, line in enumerate(joined) if _has_cells(line)]


def _has_cells(line: str) -> bool:
    before, _, inner = line.partition("|")
    return bool(re.search(r"\w", inner)) and (not before.strip() or "|" in inner) and "npu-smi info" not in before


def _row(line: str, last: bool) -> Row:
    inner = line[line.index("|") + 1 :].rstrip()
    closed = inner.endswith("|")
    return Row(tuple(cell.strip() for cell in inner.removesuffix("|").split("|")), closed, last and not closed)


def unfinished(lines: Sequence[str], at: int) -> bool:
    """Whether this line is the last one and has no end: it may have been cut, and so may its last word."""
    return at == len(lines) - 1 and lines[at] != "" and not lines[at][-1].isspace()


def whole(word: str | None) -> int | None:
    """A non-negative integer of at most nine digits."""
    return int(word) if word and re.fullmatch(r"[0-9]{1,9}", word.strip()) else None


def number(word: str | None) -> float | None:
    """A decimal number as printed: 37 stays an int, 97.3 a float; `-`, NA and anything else are None."""
    if not word or not re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", word.strip()):
        return None
    return float(word) if "." in word else int(word)


def words(text: str | None) -> str | None:
    """The text with single spaces; None for nothing, `-`, NA and the like."""
    plain = " ".join((text or "").split())
    return None if _NOTHING.fullmatch(plain) or _SEAM in plain else plain


def health_of(word: str | None) -> str | None:
    """OK, Warning, Alarm, Critical as npu-smi spells them, UNKNOWN (npu-smi could not tell), or another printed word."""
    plain = " ".join((word or "").split())
    return "UNKNOWN" if plain.casefold() == "unknown" else words(plain)
