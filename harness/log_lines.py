"""One line of a log: which rank says it, when, at what level, and whether it reports something or only talks about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.symptom_table import NOISE

COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
TRACEBACK = re.compile(r"(?:^|\s)Traceback \(most recent call last\):\s*$")
EXCEPTION = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|NotFound|Timeout|Failure)\b.*|AssertionError)$")
# Python prints tracebacks under this while it shuts down, about objects that nobody waits for any more.
EXCEPTION_IGNORED = "Exception ignored in"

_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\]\s*$")
# `[rank3]:`, `[R3]`, torchrun's `[default3]:`, vLLM's `(Worker_TP2 pid=7)`, Ray's `(RayWorker pid=7, ip=...)`, `worker-1:`, `[Stage-0]`,
# docker compose's `name   |`.
_SPEAKER = re.compile(
    r"\s*(\[?rank[ _]?\d+\]\s*:?(?=[\s\[])|\[R(?:ank)?[ _]?\d+\]:?|\[(?:default|trainer|worker|node|local)[ _]?\d+\]:|"
    r"\([^()]{0,60}\b(?:pid|rank)\s?=\s?\d[^()]{0,80}\)|[A-Za-z][\w.]*-\d+:(?=\s)|\[[Ss]tage-\d+\]|[\w.-]{1,60}\s+\|(?=\s)|\d{1,4}:(?=\s))\s?"
)
_LEVEL = re.compile(
    r"(?:^|[\s\[|(.])(?:"
    r"(?P<error>ERROR|Error\](?=:)|CRITICAL|FATAL|[EF]\d{3,4}(?= \d\d:\d\d:\d\d))|"
    r"(?P<warning>WARN(?:ING)?|W\d{3,4}(?= \d\d:\d\d:\d\d)|W(?= \w+\.\w+:\d))|"
    r"(?P<info>INFO|DEBUG|TRACE|EVENT|NOTICE|I\d{3,4}(?= \d\d:\d\d:\d\d))"
    r")(?=[\s\]:|,-])|^(?P<w>(?:\[[Ww]arning\]|[Ww]arning:))"
)
_LEVEL_WITHIN = 90
_CLOCK = re.compile(
    r"(?:\b(?:(?P<year>\d{4})[-/])?(?P<month>\d{1,2})[-/](?P<day>\d{1,2})[-T ]|\b[EWIF](?P<glog>\d{3,4}) )"
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>[.,]\d{1,3}(?:\.?\d{3})*)?"
)
_TALK_BEFORE = re.compile(
    r"(?i)\b(?:if|in case(?: of)?|to avoid|avoid(?:s|ing)?|(?:to )?prevents?|may|might|could(?! not)|without|never|handles?|handled|"
    r"recover(?:ed|s)? from|retry(?:ing)?(?: on| after)?|ignor(?:e|ed|es|ing)|skip(?:s|ped|ping)?|catch(?:es)?|"
    r"check(?:s|ing)? (?:for|whether)|such as|e\.g\.|tip:|hint:|note:|faq:|see:?)[\s:'\"`(][^.;]{0,60}$|\bno (?:\w+ ){0,2}$"
)
_TALK_AFTER = re.compile(
    r"(?i)\b(?:retrying|will retry|will be retried|try(?:ing)? (?:the )?(?:next|another)|falling back|falls? back|instead\b|"
    r"(?:was|is|being|and) (?:ignored|skipped|recovered|handled)|ignoring|skipping|recovered)\b|"
    r"^(?:s|(?: \w+)? (?:errors?|count|events?|failures?))\s?[:=] ?0\b"
)


def clean_line(line: str) -> str:
    """`line` without colours and repetition counts; "" for noise."""
    line = _REPEATED.sub("", COLOUR.sub("", line)).rstrip()
    return "" if any(noise.search(line) for noise in NOISE) else line


def split_speaker(line: str) -> tuple[str, str]:
    """(who says it, what is said): the prefixes of ranks and workers, "" where there is none, and the rest."""
    who: list[str] = []
    at = 0
    while len(who) < 4 and (found := _SPEAKER.match(line, at)):
        who.append(found[1].strip())
        at = found.end()
    return " ".join(who), line[at:]


def level_of(said: str) -> str:
    """ "error", "warning", "info", or "" where a line (without its speaker) names no level."""
    found = _LEVEL.search(said[:_LEVEL_WITHIN])
    return "" if found is None else "warning" if found["w"] else found.lastgroup or ""


def time_of(line: str) -> float | None:
    """When it was said, in seconds since the year began (many formats leave the year out); None if the line carries no date and time."""
    found = _CLOCK.search(line[:200])
    if found is None:
        return None
    glog = found["glog"]
    month, day = (int(glog[:-2]), int(glog[-2:])) if glog else (int(found["month"]), int(found["day"]))
    hour, minute, second = (int(found[name]) for name in ("hour", "minute", "second"))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    fraction = re.sub(r"\D", "", found["fraction"] or "")
    return ((month * 31 + day) * 86400) + hour * 3600 + minute * 60 + second + (float(f"0.{fraction}") if fraction else 0.0)


def is_talk(line: str, start: int, end: int) -> bool:
    """Whether the words from `start` to `end` are only talked about: advice, a condition, something that was got over."""
    return bool(_TALK_BEFORE.search(line[max(0, start - 90) : start]) or _TALK_AFTER.search(line[end : end + 200]))


def last_time(lines: Iterable[str]) -> float | None:
    """The last time that any of `lines`, in order, carries."""
    return next((time for line in reversed(list(lines)) if (time := time_of(line)) is not None), None)
