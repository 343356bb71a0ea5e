"""The lines of a log that `diagnose` could decide by, found while all of it streams past; what is kept has a bound, the log has none."""

from __future__ import annotations

import re
from collections import deque

from harness.diagnose import COLOUR, EXCEPTION, EXCEPTION_IGNORED, TRACEBACK, clean_line
from harness.symptoms import NOT_FINITE, SYMPTOMS, Symptom, present

_TRACEBACKS = 3
# Lines kept to find the last one that is no noise.
_REMEMBERED = 16
# Of a traceback: how far its exception may be from its head (other ranks print in between), and how many of its lines are kept.
_REACH_LINES, _SHOWN_LINES = 400, 40
_PIECE_CHARACTERS, _OVERLAP, _QUOTED, _LEAD = 8192, 512, 1000, 200
# A logger's level at the start of a line: ms-swift's ([ERROR:swift] ...), torchrun's (E1130 14:00:00.1 ...), or the bare word.
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?(?:\[?(?:ERROR|CRITICAL|FATAL)\b(?:[:\]]|\s+-)|[EF]\d{4} \d\d:\d\d:\d\d)")
_ERROR_WORDS = re.compile(r"ERROR|CRITICAL|FATAL|[EF]\d{4} \d\d:")


class Decisive:
    """Mutable: give it a log's text in order, whole lines at a time. `kept`: the first line of each symptom, the first tracebacks.

    `error`: the first line of all that a logger marked as an error.
    """

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.error = ""
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self._wanted: list[Symptom] = list(SYMPTOMS)
        self._not_finite = False
        self._tracebacks = 0
        self._awaited = 0

    def read(self, text: str, *, keep: bool) -> None:
        """`keep`: whether the lines of `text` are to be remembered; else they are shown elsewhere, and count as known."""
        # A colour may stand inside a word that is looked for.
        text = COLOUR.sub("", text) if "\x1b" in text else text
        symptoms = present(text, self._wanted)
        fault = self._tracebacks < _TRACEBACKS and "Traceback (most" in text
        error = not self.error and _ERROR_WORDS.search(text)
        if not (self._awaited or symptoms or fault or error or (not self._not_finite and NOT_FINITE.search(text))):
            self._last.extend(re.split(r"[\r\n]+", text[-_PIECE_CHARACTERS:])[-_REMEMBERED:])
            return
        for line in re.split(r"[\r\n]+", text):
            # Cleaning costs more than looking: only lines that can matter are cleaned.
            maybe = present(line, symptoms) if symptoms else []
            marked = "Traceback (most" in line or (not self.error and _ERROR_WORDS.search(line))
            if self._awaited or maybe or marked or (not self._not_finite and NOT_FINITE.search(line)):
                cleaned = clean_line(line)
                for at in range(0, len(cleaned), _PIECE_CHARACTERS):
                    self._line(cleaned[at : at + _PIECE_CHARACTERS + _OVERLAP], maybe, keep)
            self._last.append(line)

    @property
    def before(self) -> str:
        """The last line that was read, noise left out."""
        return next((cleaned for line in reversed(self._last) if (cleaned := clean_line(line))), "")

    def _line(self, line: str, symptoms: list[Symptom], keep: bool) -> None:
        wanted = self._is_of_a_traceback(line)
        start = 0
        if not self._not_finite and (found := NOT_FINITE.search(line)):
            self._not_finite, wanted, start = True, True, found.start()
        for symptom in [s for s in symptoms if s in self._wanted]:
            if found := symptom.pattern.search(line):
                self._wanted.remove(symptom)
                wanted, start = True, found.start()
        if not self.error and _ERROR.search(line):
            self.error = line[:_QUOTED]
        if wanted and keep:
            self.kept.append(line[max(0, start - _LEAD) :][:_QUOTED])

    def _is_of_a_traceback(self, line: str) -> bool:
        if self._awaited:
            self._awaited -= 1
            if EXCEPTION.match(line.strip()):
                self._awaited = 0
                return True
            return _REACH_LINES - self._awaited <= _SHOWN_LINES
        if self._tracebacks < _TRACEBACKS and TRACEBACK.search(line) and EXCEPTION_IGNORED not in self.before:
            self._tracebacks += 1
            self._awaited = _REACH_LINES
            return True
        return False
