"""The lines of a log that can decide, found while all of it streams past; what is kept has a bound, the log has none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from harness.log_lines import (
    COLOUR,
    EXCEPTION,
    EXCEPTION_IGNORED,
    TRACEBACK,
    clean_line,
    is_talk,
    last_time,
    level_of,
    split_speaker,
    time_of,
)
from harness.sieve import Sieve
from harness.signs import SIGNS_OF_LIFE, Sign, is_good_end, is_life, sign_in
from harness.symptom_table import FALLBACK, NOT_FINITE
from harness.symptoms import Symptom

_TRACEBACKS = 3
_SPEAKERS = 64
# Lines kept to find the last one that is no noise, and the time of one that carries none.
_REMEMBERED = 16
# Of a traceback: how far its exception may be from its head (other ranks print in between), and how many of its lines are kept.
_REACH_LINES, _SHOWN_LINES = 400, 40
_PIECE_CHARACTERS, _OVERLAP, _QUOTED, _LEAD = 8192, 512, 1000, 200
_ERROR_WORDS = re.compile(r"ERROR|CRITICAL|FATAL|[EF]\d{4} \d\d:")
_FAILED_LEVEL = re.compile(r"\[?(?:ERROR|CRITICAL|FATAL)\b(?:[:\]]|\s+-)|[EF]\d{4} \d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Hit:
    """A line that a rule matches. `number` counts from 1 within `source`; `time` as log_lines.time_of, or None."""

    symptom: Symptom
    line: str
    source: str
    number: int
    speaker: str
    time: float | None


@dataclass(frozen=True)
class Fault:
    """A traceback: its exception, or its head where that was cut off."""

    line: str
    number: int


class Decisive:
    """Mutable: give it a log's bytes in order, whole lines at a time; one log each.

    `hits`: lines that rules match, in order, a bounded number a rule. `faults`: the first tracebacks. `kept`: of what was read with
    `keep`, the lines of both. `error`: the first line of a level ERROR. `fallbacks`: operators that ran on the CPU, with counts.
    `signs`: lines that tell of a failure without its cause. `ended_well`, `went_on`: the number of the last line that tells of a good
    end, or of life, or 0.
    """

    def __init__(self, source: str = "", sieve: Sieve | None = None) -> None:
        self.source = source
        self.hits: list[Hit] = []
        self.faults: list[Fault] = []
        self.signs: list[Sign] = []
        self.kept: list[str] = []
        self.fallbacks: Counter[str] = Counter()
        self.error = ""
        self.lines = 0
        self.ended_well = self.went_on = 0
        self._sieve = sieve or Sieve()
        self._earlier: list[bytes] = []
        self._now: list[bytes] = []
        self._at = 0
        self._known: dict[str, set[str]] = {}
        self._awaited = 0
        self._ignored = False

    def read(self, data: bytes, *, keep: bool = False) -> None:
        """`keep`: whether the lines of `data` are to be remembered; else they are shown elsewhere."""
        if b"\x1b" in data:  # a colour may stand inside a word that is looked for
            data = COLOUR.sub("", data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._now = data.split(b"\n")
        if not self._now[-1]:
            self._now.pop()
        self._look_for_life(data)
        for at, maybe in self._chosen(self._now):
            self._at = at
            line = self._now[at].decode("utf-8", "replace")
            if found := FALLBACK.search(line):
                self.fallbacks[found[1]] += 1
            cleaned = clean_line(line)
            for start in range(0, len(cleaned), _PIECE_CHARACTERS):
                self._line(cleaned[start : start + _PIECE_CHARACTERS + _OVERLAP], maybe, self.lines + at + 1, keep)
        self.lines += len(self._now)
        self._earlier = [line[:_PIECE_CHARACTERS] for line in (self._earlier + self._now[-_REMEMBERED:])[-_REMEMBERED:]]
        self._now, self._at = [], 0

    def _look_for_life(self, data: bytes) -> None:
        for sign in SIGNS_OF_LIFE:
            if (place := data.rfind(sign)) >= 0:
                start = data.rfind(b"\n", 0, place) + 1
                said = split_speaker(data[start : place + _OVERLAP].partition(b"\n")[0].decode("utf-8", "replace"))[1]
                if is_life(said, level_of(said)):
                    self.went_on = max(self.went_on, self.lines + data.count(b"\n", 0, place) + 1)

    def _chosen(self, raw: list[bytes]) -> Iterator[tuple[int, tuple[Symptom, ...]]]:
        """The lines that may matter, and all of those that follow a traceback's head until its exception."""
        here = 0
        for at, maybe in [*self._sieve.choose(raw), (len(raw), ())]:
            while self._awaited and here < at:
                yield here, ()
                here += 1
            if at < len(raw):
                yield at, maybe
            here = at + 1

    def _before(self) -> list[str]:
        lines = [*self._earlier, *self._now[max(0, self._at - _REMEMBERED) : self._at]][-_REMEMBERED:]
        return [line.decode("utf-8", "replace") for line in lines]

    @property
    def before(self) -> str:
        """The last line that was read before the present one, noise left out."""
        return next((cleaned for line in reversed(self._before()) if (cleaned := clean_line(line))), "")

    def _line(self, line: str, maybe: tuple[Symptom, ...], number: int, keep: bool) -> None:
        speaker, said = split_speaker(line)
        level = level_of(said)
        wanted, start = self._is_of_a_traceback(said, number), 0
        if self._ignored:
            return
        if hit := self._hit(line, level, maybe):
            found = hit.found_in(line)
            if found is not None and self._is_new(hit, speaker):
                wanted, start = True, found.start()
                time = time_of(line)
                time = self._time_before(speaker) if time is None else time
                self.hits.append(Hit(hit, _around(line, start), self.source, number, speaker, time))
        elif sign := sign_in(said, level, number):
            self.signs = [*self.signs[-7:], sign]
        if is_good_end(said, level):
            self.ended_well = number
        if not self.error and _ERROR_WORDS.search(line) and _FAILED_LEVEL.match(said):
            self.error = line[:_QUOTED]
        if wanted and keep:
            self.kept.append(_around(line, start))

    def _time_before(self, speaker: str) -> float | None:
        """The last time that the same rank said, shortly before."""
        return last_time(line for line in self._before() if split_speaker(COLOUR.sub("", line))[0] == speaker)

    def _is_new(self, symptom: Symptom, speaker: str) -> bool:
        """Whether nothing like it was kept: one line of a rule and speaker is enough, since each speaks in order."""
        known = self._known.setdefault(symptom.id, set())
        if speaker in known or len(known) >= _SPEAKERS:
            return False
        known.add(speaker)
        return True

    def _hit(self, line: str, level: str, maybe: tuple[Symptom, ...]) -> Symptom | None:
        """The first rule that the line matches, unless it warns, informs, or only talks of it."""
        for symptom in maybe:
            if found := symptom.found_in(line):
                if symptom is NOT_FINITE:
                    return symptom
                if level in ("warning", "info") or is_talk(line, *found.span()):
                    continue
                return symptom
        return None

    def _is_of_a_traceback(self, said: str, number: int) -> bool:
        if self._awaited:
            self._awaited -= 1
            if EXCEPTION.match(said.strip()):
                self._awaited, ignored, self._ignored = 0, self._ignored, False
                if not ignored:
                    self.faults[-1] = Fault(said.strip()[:_QUOTED], number)
                return not ignored
            self._ignored = self._ignored and self._awaited > 0
            return not self._ignored and _REACH_LINES - self._awaited <= _SHOWN_LINES
        if len(self.faults) < _TRACEBACKS and TRACEBACK.search(said):
            self._awaited = _REACH_LINES
            self._ignored = EXCEPTION_IGNORED in self.before
            if not self._ignored:
                self.faults.append(Fault(said.strip(), number))
            return not self._ignored
        return False


def _around(line: str, start: int) -> str:
    return line[max(0, start - _LEAD) :][:_QUOTED]
