"""Variables of a shell text: what is assigned to them above, and words with it put in. What nobody can know stays as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.docs_shell_words import Piece, PieceKind

# A value longer than this is taken for unknown: values that double themselves would grow beyond any memory.
_LONGEST = 20_000
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True)
class Value:
    """One word (`X=...`) or several (`X=(...)`), each as its pieces, of which none is a variable any more."""

    words: tuple[tuple[Piece, ...], ...]

    def __len__(self) -> int:
        return sum(len(piece.text) + 1 for word in self.words for piece in word)


@dataclass
class Variables:
    """Mutable. `known`: each variable's value, None where it is assigned and can't be known. `budget`: characters that may be put in."""

    known: dict[str, Value | None]
    budget: int

    def assign(self, name: str, value: Value, add: bool = False, is_list: bool = False) -> None:
        """`add`: name+=..., by which a list gets more words, and a word more text."""
        before = self.known.get(name) if add else None
        if before is not None:
            value = Value(before.words + value.words) if is_list else _appended(before, value)
            self.budget -= len(value)
        known = (before is not None or not add or name not in self.known) and len(value) <= min(_LONGEST, self.budget)
        self.known[name] = value if known else None

    def forget(self, name: str) -> None:
        self.known[name] = None

    def expanded(self, pieces: Sequence[Piece], split: bool = True) -> list[tuple[Piece, ...]]:
        """The words that a shell would make of one word. `split`: an unquoted variable may become several, or none."""
        words: list[list[Piece]] = [[]]
        for piece in pieces:
            if piece.kind is not PieceKind.VARIABLE:
                words[-1].append(piece)
                continue
            first, *others = self._value_of(piece, split and not piece.quoted)
            words[-1] += first
            words += [list(word) for word in others]
        return [tuple(word) for word in words if word or not split]

    def _value_of(self, piece: Piece, split: bool) -> list[tuple[Piece, ...]]:
        value = self.known.get(piece.name)
        if value is None and piece.name not in self.known and piece.default is not None:
            value = Value(((Piece(PieceKind.LITERAL, piece.default, piece.line),),))
        if value is None or len(value) > self.budget:
            return [(replace(piece, kind=PieceKind.UNKNOWN),)]
        self.budget -= len(value)
        if piece.is_list:
            return list(value.words) or [()]
        first = value.words[0] if value.words else ()
        return _split(first) if split else [first]


def _appended(before: Value, after: Value) -> Value:
    if not before.words:
        return after
    return Value((*before.words[:-1], (*before.words[-1], *after.words[0])))


def _split(word: tuple[Piece, ...]) -> list[tuple[Piece, ...]]:
    """A value's words, as a shell splits what it puts in for an unquoted variable. The first and the last may be empty."""
    words: list[list[Piece]] = [[]]
    for piece, starts in _parts(word):
        if starts:
            words.append([])
        if piece.text:
            words[-1].append(piece)
    return [tuple(words[0]), *(tuple(each) for each in words[1:] if each)]


def _parts(word: tuple[Piece, ...]) -> Iterator[tuple[Piece, bool]]:
    for piece in word:
        if piece.kind is PieceKind.UNKNOWN:
            yield piece, False
            continue
        for place, part in enumerate(_BLANKS.split(piece.text)):
            yield replace(piece, text=part, quoted=False), place > 0
