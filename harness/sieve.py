"""Most lines of a log differ in their digits only: each shape of line is looked at once, so that gigabytes take a minute."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from re import Pattern

from harness.log_lines import clean_line, level_of, split_speaker
from harness.signs import SIGN_WORDS, is_good_end, may_tell
from harness.symptom_table import FALLBACK, NOT_FINITE, SYMPTOMS
from harness.symptoms import Symptom, gates_of, loose, words_of

_ZERO_DIGITS = bytes(48 if 48 <= number <= 57 else number for number in range(256))
# Ids of requests and the like, which no two lines share; their digits are 0 by then.
_HEXADECIMAL = re.compile(rb"(?<![0-9A-Za-z])(?=[a-fA-F]*0)[0a-fA-F]{8,}(?:-[0a-fA-F]{4,12})*(?![0-9A-Za-z])")
# Characters beyond which a line is chosen by its words alone.
_LONG = 10_000
# Shapes are forgotten all at once when there are so many, or so many bytes of them: it costs time, not correctness.
_SHAPES, _SHAPE_BYTES = 100_000, 16 * 2**20


@dataclass(frozen=True)
class _Table:
    """`gates`: each with the words under it. `rules`: word -> rules. `loose`: of each rule a pattern that shapes of its lines match."""

    gates: tuple[tuple[str, tuple[str, ...]], ...]
    rules: dict[str, tuple[int, ...]]
    loose: tuple[Pattern[str], ...]


@functools.lru_cache(maxsize=1)
def _table() -> _Table:
    places: dict[str, list[int]] = {word: [] for word in SIGN_WORDS}
    for place, symptom in enumerate(SYMPTOMS):
        for word in words_of(symptom.pattern):
            places.setdefault(word, []).append(place)
    gates = tuple(gates_of(places).items())
    return _Table(gates, {word: tuple(rules) for word, rules in places.items()}, tuple(loose(s.pattern) for s in SYMPTOMS))


class Sieve:
    """Mutable. Chooses the lines of logs that may matter; several logs may share one."""

    def __init__(self) -> None:
        self._dull: set[bytes] = set()
        self._telling: dict[bytes, tuple[Symptom, ...]] = {}
        self._bytes = 0

    def choose(self, raw: list[bytes]) -> list[tuple[int, tuple[Symptom, ...]]]:
        """The places in `raw` of lines that may matter, in order, with the rules to try on each."""
        shapes = b"\n".join(raw).translate(_ZERO_DIGITS).split(b"\n")
        new = list(set(shapes) - self._dull)
        if not new:
            return []
        plain = _HEXADECIMAL.sub(b"0", b"\n".join(new)).split(b"\n")
        self._look_at(set(plain) - self._dull - self._telling.keys())
        telling = {shape: self._telling[form] for shape, form in zip(new, plain, strict=True) if form in self._telling}
        if len(self._dull) + len(self._telling) > _SHAPES or self._bytes > _SHAPE_BYTES:
            self._dull, self._telling, self._bytes = set(), {}, 0
        return [(at, telling[shape]) for at, shape in enumerate(shapes) if shape in telling] if telling else []

    def _look_at(self, fresh: set[bytes]) -> None:
        present = _words_in(b"\n".join(fresh).decode("utf-8", "replace").lower())
        for shape in fresh:
            rules = _rules_of(shape.decode("utf-8", "replace"), present)
            if rules is None:
                self._dull.add(shape)
            else:
                self._telling[shape] = rules
            self._bytes += len(shape)


def _words_in(low: str) -> list[str]:
    return [word for gate, under in _table().gates if gate in low for word in under if word in low]


def _rules_of(shape: str, present: list[str]) -> tuple[Symptom, ...] | None:
    """Rules to try on lines of a shape; None if none can match, and they are nothing that tells of a failure or an end.

    `present`: the words that it can hold at all.
    """
    low = shape.lower()
    words = [word for word in present if word in low]
    if not words:
        return None
    if len(shape) > _LONG:
        # Some patterns take the square of a line's length. Whoever reads such a line does so piece by piece.
        return tuple(SYMPTOMS[place] for place in sorted({place for word in words for place in _table().rules[word]}))
    said = split_speaker(shape)[1]
    level = level_of(said)
    if level in ("info", "warning"):
        if NOT_FINITE.pattern.search(shape):
            return (NOT_FINITE,)
        return () if is_good_end(said, level) or FALLBACK.search(shape) else None
    if not clean_line(shape):
        return () if FALLBACK.search(shape) else None
    table = _table()
    places = sorted({place for word in words for place in table.rules[word]})
    rules = tuple(SYMPTOMS[place] for place in places if table.loose[place].search(shape))
    return rules if rules or (not SIGN_WORDS.isdisjoint(words) and may_tell(said, level)) else None
