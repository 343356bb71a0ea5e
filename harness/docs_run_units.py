"""A page's shell block, cut into what bash runs one after another: statements, each from its first line to the line before the next.

A loop, a pipeline, a list joined by && and a here-document are one statement each. The text stays as it is, comments included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.docs_shell_words import Scanner, Token

Line = tuple[int, str]

_OPENS = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_CLOSES = frozenset({"fi", "done", "esac", "}"})
_GOES_ON = frozenset({"|", "|&", "&&", "||"})
_PROMPT = re.compile(r"\s*(?:\([\w.+-]{1,60}\)\s*)?(?:\[?[\w.-]{1,60}@[\w.-]{1,60}[:\s][^$#]{0,200}[$#]|\$|>>>)(?=\s)")


@dataclass(frozen=True)
class Statement:
    """`lines`: of the page, with their numbers; the first is where the statement begins."""

    lines: tuple[Line, ...]

    @property
    def line(self) -> int:
        return self.lines[0][0]

    @property
    def end_line(self) -> int:
        return self.lines[-1][0]

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.lines) + "\n"


def statements(body: Sequence[Line]) -> tuple[Statement, ...]:
    """The statements of a block's lines; none for one of comments alone. What follows a statement on its last line belongs to it."""
    starts = _starts(body)
    cuts = [*starts, body[-1][0] + 1] if starts else []
    return tuple(Statement(tuple(line for line in body if begin <= line[0] < end)) for begin, end in pairwise(cuts))


def is_transcript(body: Sequence[Line]) -> bool:
    """Whether the lines are what a terminal showed, prompts and answers, not what a person would paste."""
    return any(_PROMPT.match(text) for _, text in body)


@dataclass
class _Nesting:
    """What is open at a place: reserved words, and brackets outside a `case`, whose patterns end in one that nothing opened."""

    words: list[str]
    brackets: int = 0

    def read(self, token: Token, begins: bool) -> None:
        if token.operator in ("(", ")") and "case" not in self.words:
            self.brackets = max(0, self.brackets + (1 if token.operator == "(" else -1))
        elif begins and token.plain in _OPENS:
            self.words.append(token.plain)
        elif begins and token.plain in _CLOSES and self.words:
            self.words.pop()

    @property
    def closed(self) -> bool:
        return not self.words and not self.brackets


def _starts(body: Sequence[Line]) -> list[int]:
    """The line on which each statement begins."""
    scanner = Scanner("\n".join(text for _, text in body), tuple(number for number, _ in body) or (1,))
    nesting, starts = _Nesting([]), list[int]()
    begins, over = True, True
    before = ""
    for token in scanner.tokens():
        if token.operator == "\n":
            begins = True
            if nesting.closed and before not in _GOES_ON:
                over = True
            continue
        if over:
            starts.append(token.line)
            over = False
        nesting.read(token, begins)
        before = token.operator
        redirects = token.operator[:1] in ("<", ">") or token.operator[:2] == "&>"
        begins = bool(token.operator and not redirects) or token.plain in ("then", "do", "else", "elif", "!", "{")
    return list(dict.fromkeys(starts))
