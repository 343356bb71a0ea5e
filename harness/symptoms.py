"""How a rule that reads logs looks, and the plain words that are looked for before it; symptom_table.py gathers the rules themselves."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from re import Match, Pattern
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as sre_parse
else:
    import sre_parse


_GATE = 4  # characters


class Role(enum.Enum):
    """What a matching line is worth. Of several the earliest of the strongest role decides."""

    CAUSE = "says what is wrong"
    FRAME = "a traceback's frame: a cause, unless the same rank says something better soon after"
    VAGUE = "names where it surfaced: decides only where no cause does"
    FOLLOWS = "usually follows from another rank's death: decides only where no cause does"
    HINT = "a plain sentence: decides only where no cause does and nothing went on after it"


@dataclass(frozen=True)
class Symptom:
    """A line that speaks for `cause`. A remedy that nobody confirmed begins with "Perhaps". `check`: a further condition on the match."""

    id: str
    cause: str
    pattern: Pattern[str]
    remedy: str
    role: Role = Role.CAUSE
    check: Callable[[Match[str]], bool] | None = None

    def found_in(self, line: str) -> Match[str] | None:
        found = self.pattern.search(line)
        return found if found and (self.check is None or self.check(found)) else None

    @property
    def remedy_confidence(self) -> str:
        """ "confirmed": the message itself, a maintainer or a vendor's manual names it; "inferred": nobody has yet."""
        return "inferred" if self.remedy.startswith("Perhaps") else "confirmed"


def symptom(id: str, cause: str, remedy: str, *alternatives: str, role: Role = Role.CAUSE) -> Symptom:
    """A rule that matches where any of `alternatives` does."""
    return Symptom(id, cause, re.compile("|".join(alternatives)), remedy, role)


def code(numbers: str) -> str:
    """A pattern for what CANN's parts return: `error code is 507015`, `runtime result = 107001`, `failed: 507033`, `ErrCode=107001`."""
    return rf"(?:[Cc]ode|[Rr]esult|failed|errno)\W{{0,3}}(?:is\W{{0,3}})?(?:{numbers})\b"


def loose(pattern: Pattern[str]) -> Pattern[str]:
    """`pattern` for texts whose digits are all 0. What must not follow says nothing there, so it is left out."""
    text = re.sub(r"\(\?!(?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*\)", "", pattern.pattern)
    return re.compile(re.sub(r"\{\d*,?\d*\}|\d", lambda found: found[0] if found[0][0] == "{" else "0", text), pattern.flags & ~re.UNICODE)


def words_of(pattern: Pattern[str]) -> frozenset[str]:
    """Words of which any text that `pattern` matches holds at least one, as `shape` writes it; {""} if none are sure.

    Looking for plain words first makes reading a log of gigabytes some fifty times as fast.
    """
    return _needed(sre_parse.parse(pattern.pattern, pattern.flags)) or frozenset({""})


def _needed(parsed: Any) -> frozenset[str]:
    """The best of the choices that a sequence offers: each of its parts has to match. Empty: there is no choice."""
    choices: list[frozenset[str]] = []
    word = ""
    for operation, value in parsed:
        kind = str(operation)
        if letter := _letter(kind, value):
            word += letter
            continue
        whole = _spelled_out(kind, value)
        choices.append(frozenset(word + ending for ending in whole) if whole else frozenset({word} - {""}))
        word = ""
        if kind == "SUBPATTERN":
            choices.append(_needed(value[-1]))
        elif kind in ("MAX_REPEAT", "MIN_REPEAT") and value[0] > 0:
            choices.append(_needed(value[2]))
        elif kind == "BRANCH":
            parts = [_needed(part) for part in value[1]]
            choices.append(frozenset().union(*parts) if all(parts) else frozenset())
    choices.append(frozenset({word} - {""}))
    return max(choices, key=lambda choice: min((_rarity(word) for word in choice), default=0))


def _spelled_out(kind: str, value: Any) -> list[str]:
    """The texts that a choice offers, if each is plain: `EJ0003|EI0019` is written E(?:J0003|I0019), and only the whole is telling."""
    if kind == "SUBPATTERN" and len(value[-1]) == 1:
        return _spelled_out(str(value[-1][0][0]), value[-1][0][1])
    if kind != "BRANCH":
        return []
    texts = [[_letter(str(operation), inner) for operation, inner in part] for part in value[1]]
    return ["".join(letters) for letters in texts] if all(all(letters) and letters for letters in texts) else []


def _letter(kind: str, value: Any) -> str:
    """The letter that a part of a pattern stands for, if it is but one: `e`, `[Ee]`; a digit as 0."""
    if kind == "LITERAL":
        return "0" if chr(value).isdecimal() else chr(value).lower()
    if kind == "IN" and all(str(operation) == "LITERAL" for operation, _ in value):
        letters = {"0" if chr(number).isdecimal() else chr(number).lower() for _, number in value}
        return letters.pop() if len(letters) == 1 else ""
    return ""


def _rarity(word: str) -> int:
    """How telling a word is: short numbers are everywhere in a log, those of six digits, as CANN's codes have, are not."""
    if re.search(r"[a-z]", word):
        return len(word)
    return 7 if len(word) >= 6 else 1 if word else 0


def gates_of(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """A few short texts, each with those of `words` that hold it: where a text is missing, so are its words. Every word is under one."""
    left = sorted(set(words))
    holders: dict[str, set[str]] = {}
    for word in left:
        for part in {word[at : at + _GATE] for at in range(max(1, len(word) - _GATE + 1))}:
            holders.setdefault(part, set()).add(word)
    gates: dict[str, tuple[str, ...]] = {}
    for part, under in sorted(holders.items(), key=lambda item: (-len(item[1]), item[0])):
        if found := tuple(word for word in left if word in under):
            gates[part] = found
            left = [word for word in left if word not in under]
    return gates
