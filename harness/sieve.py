"""Most lines of a log differ in their digits only: each shape of line is looked at once, so that gigabytes take a minute."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.symptoms import Symptom, gates_of, is_about_digits, words_of

_ZERO_DIGITS = bytes(48 if 48 <= number <= 57 else number for number in range(256))
# Shapes are forgotten all at once when there are so many, or so many bytes of them: it costs time, not correctness.
_SHAPES, _SHAPE_BYTES = 100_000, 16 * 2**20


@dataclass(frozen=True)
class _Table:
    """`gates`: each with the words under it. `rules`: word -> places in `symptoms`, none for a word that only matters by being there."""

    symptoms: tuple[Symptom, ...]
    of_shape: tuple[bool, ...]
    gates: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    rules: dict[bytes, tuple[int, ...]]
    others: frozenset[bytes]


@functools.lru_cache(maxsize=8)
def _table(symptoms: tuple[Symptom, ...], others: frozenset[str]) -> _Table:
    places: dict[str, list[int]] = {word: [] for word in others}
    for place, symptom in enumerate(symptoms):
        for word in words_of(symptom.pattern):
            places.setdefault(word, []).append(place)
    return _Table(
        symptoms,
        # Whether two lines that differ in digits only are the same to a rule.
        tuple(symptom.check is None and not is_about_digits(symptom.pattern) for symptom in symptoms),
        tuple((gate.encode(), tuple(word.encode() for word in words)) for gate, words in gates_of(places).items()),
        {word.encode(): tuple(of_word) for word, of_word in places.items()},
        frozenset(word.encode() for word in others),
    )


class Sieve:
    """Mutable. Chooses the lines that a rule could match, or that hold one of the `others` words (lower case, digits as 0)."""

    def __init__(self, symptoms: Sequence[Symptom], others: Iterable[str]) -> None:
        self._table = _table(tuple(symptoms), frozenset(others))
        self._dull: set[bytes] = set()
        self._telling: dict[bytes, tuple[Symptom, ...]] = {}
        self._bytes = 0

    def choose(self, raw: list[bytes]) -> list[tuple[int, tuple[Symptom, ...]]]:
        """The places in `raw` of lines that may matter, in order, with the rules to try on each."""
        shapes = b"\n".join(raw).translate(_ZERO_DIGITS).split(b"\n")
        new = set(shapes) - self._dull
        if not new:
            return []
        for shape in new - self._telling.keys():
            rules = self._of(shape)
            if rules is None:
                self._dull.add(shape)
            else:
                self._telling[shape] = rules
            self._bytes += len(shape)
        chosen = [(at, self._telling[shape]) for at, shape in enumerate(shapes) if shape in self._telling]
        if len(self._dull) + len(self._telling) > _SHAPES or self._bytes > _SHAPE_BYTES:
            self._dull, self._telling, self._bytes = set(), {}, 0
        return chosen

    def _of(self, shape: bytes) -> tuple[Symptom, ...] | None:
        """Rules to try on lines of a shape; None if none can match it and it holds no other word."""
        table, low = self._table, shape.lower()
        words = [word for gate, under in table.gates if gate in low for word in under if word in low]
        if not words:
            return None
        text = shape.decode("utf-8", "replace")
        places = sorted({place for word in words for place in table.rules[word]})
        rules = tuple(table.symptoms[p] for p in places if not table.of_shape[p] or table.symptoms[p].pattern.search(text))
        return rules if rules or not table.others.isdisjoint(words) else None
