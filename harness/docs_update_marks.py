"""How marks are written into a cell of a page, and told from what people wrote there.

    FSDP1/FSDP2/deepspeed (zero2: verified 2026-11-20, CANN 9.0.0, torch_npu 2.9.0; FSDP2: failing 2026-11-20: train, device.oom)
    FSDP1/FSDP2/deepspeed（已验证 2026-11-20，CANN 9.0.0，torch_npu 2.9.0）

Only a bracket at the end of a cell whose every item is a kind and a date is one of ours, or a cell that is nothing but such items.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.model import Mark, MarkKind
from harness.redact import escape_markdown

LANGUAGES = ("en", "zh")
_WORDS: Mapping[MarkKind, tuple[str, str]] = {
    MarkKind.VERIFIED: ("verified", "已验证"),
    MarkKind.STALE: ("stale, last passed", "已过期，上次通过"),
    MarkKind.FAILING: ("failing", "失败"),
    MarkKind.KNOWN_FAILURE: ("known failure", "已知失败"),
    MarkKind.FIXED: ("passed despite a recorded limit", "已通过，与已记录的限制相反"),
}
# Marks that say something of a page: the others are no evidence of an NPU, or no answer.
WRITTEN = frozenset(_WORDS)
_KINDS = "|".join(re.escape(word).replace("，", "[，,] ?") for words in _WORDS.values() for word in words)
_OTHER = "[^()（）;；|]"
_ITEM = rf"(?:{_OTHER}*?[:：] ?)?(?:{_KINDS}) \d{{4}}-\d\d-\d\d(?!\d){_OTHER}*"
_ITEMS = rf"{_ITEM}(?:[;；] ?{_ITEM})*"
_BRACKET = re.compile(rf"\s*(?:\({_ITEMS}\)|（{_ITEMS}）)\s*\Z", re.IGNORECASE)
_WHOLE = re.compile(rf"\s*{_ITEMS}\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Said:
    """What is written of a mark. `of`: which part of the row it speaks of ("" for all of it); `detail`: versions, or what failed."""

    kind: MarkKind
    date: str
    detail: tuple[str, ...]
    of: str = ""


def without_marks(text: str) -> str:
    """`text` without the marks that were written into it, ends trimmed."""
    text = text.strip()
    bracket = _BRACKET.search(text)
    if bracket is not None:
        return text[: bracket.start()].rstrip()
    return "" if _WHOLE.match(text) else text


def said_of(mark: Mark, causes: Iterable[str]) -> Said:
    """What a page says of `mark`: of a pass the versions, of a failure its `causes` (the stage and the cause)."""
    if mark.kind in (MarkKind.VERIFIED, MarkKind.STALE):
        shown = (("CANN", mark.versions.get("cann")), ("torch_npu", mark.versions.get("torch_npu")))
        return Said(mark.kind, mark.date, tuple(f"{name} {version}" for name, version in shown if version))
    return Said(mark.kind, mark.date, tuple(causes))


def items(said: Iterable[Said], language: str) -> str:
    """What is said, as the inside of a bracket."""
    return _sign(language, "; ", "；").join(_item(one, language) for one in said)


def bracketed(said: Iterable[Said], language: str) -> str:
    """What is said, as it follows the words of a cell."""
    return _sign(language, f" ({items(said, language)})", f"（{items(said, language)}）")


def _item(said: Said, language: str) -> str:
    colon, comma = _sign(language, ": ", "："), _sign(language, ", ", "，")
    kind = _WORDS[said.kind][LANGUAGES.index(language)]
    passed = said.kind in (MarkKind.VERIFIED, MarkKind.STALE)
    detail = comma.join(_safe(part) for part in said.detail)
    of = f"{_safe(said.of)}{colon}" if said.of else ""
    return f"{of}{kind} {said.date}{(comma if passed else colon) + detail if detail else ''}"


def _safe(text: str) -> str:
    """`text` without what ends an item, a bracket or a cell, and as no markup."""
    return escape_markdown(" ".join(re.sub(r"[()（）;；|\\<>&@]", " ", text).split()))


def _sign(language: str, english: str, chinese: str) -> str:
    return chinese if language == "zh" else english
