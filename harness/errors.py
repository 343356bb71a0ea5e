"""Errors meant for people: where it happened, what is wrong, what to do next. A traceback for bad input is a bug."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HarnessError(Exception):
    """A fault that a person can mend. `str(error)` is `where: what. next`."""

    exit_code = 2

    def __init__(self, where: str, what: str, next_step: str = "") -> None:
        self.where, self.what, self.next_step = where, what, next_step
        super().__init__(f"{where}: {what}" + (f" {next_step}" if next_step else ""))


class MatrixError(HarnessError):
    """matrix.yaml says something that has no meaning; `where` is `file:line`."""

    exit_code = 3


class EvidenceError(HarnessError):
    """A piece of evidence is damaged, forged, of another schema, or from a rehearsal."""

    exit_code = 4


class HostError(HarnessError):
    """This host can't do what was asked (no usable NPU, a program missing)."""

    exit_code = 5


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Perhaps 'x'? Known: a, b, x` for an unknown `word`; the guess is left out when nothing is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    guess = f"Perhaps {close[0]!r}? " if close else ""
    return f"{guess}Known: {', '.join(names)}"
