"""What logs say by themselves, without an exit code: the earliest cause across the ranks, or "none", or "unknown"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.causes import blame_of
from harness.decisive import Decisive, Hit
from harness.log_lines import EXCEPTION, split_speaker
from harness.model import Blame
from harness.symptoms import Role

# Times that differ by more do not belong to one failure: then the order of the lines decides.
_ONE_FAILURE_S = 12 * 3600
# Ranks write through different buffers: closer times say no more than the order of the lines.
_SAME_MOMENT_S = 1.0
# A traceback's frame is explained by what the same rank says within so many lines.
_FRAME_REACH_LINES = 60
_SEEN, _QUOTED_CHARACTERS = 12, 400
_MEMORY = re.compile(r"([\d.]+) (MiB|GiB) (total capacity|free|reserved in total)")


@dataclass(frozen=True)
class Explanation:
    """`confidence` of the cause: "high", "low" (a symptom that may follow from something unseen), or "none" where there is no cause.

    `seen`: what else rules matched, earliest first, as (cause, source:line, quoted line). `fallbacks`: operator -> times it ran on the CPU.
    """

    cause: str
    blame: Blame
    confidence: str
    line: str
    where: str
    remedy: str
    remedy_confidence: str
    seen: tuple[tuple[str, str, str], ...]
    fallbacks: dict[str, int]


def explain(logs: Sequence[Decisive]) -> Explanation:
    """What `logs`, one a rank or all of one job, say went wrong.

    Of the lines that say a cause the earliest across ranks decides, by time where lines carry one; a follower's timeout only where no
    other line does. A failure without a cause is "unknown", and so are logs without a line; what a later good end shows was got over
    (all but a loss that is not finite) is no cause.
    """
    hits = [hit for log in logs for hit in log.hits if _counts(hit, log)]
    fallbacks = dict(sum((log.fallbacks for log in logs), Counter[str]()).most_common())
    best = deciding(hits)
    if best is None:
        said, where = _failure_without_cause(logs)
        cause = "unknown" if said else "none"
        return Explanation(cause, blame_of(cause), "none", said, where, "", "", _seen(logs, None), fallbacks)
    confidence = "high" if best.symptom.role in (Role.CAUSE, Role.FRAME) else "low"
    blame, remedy = blame_and_remedy(best)
    sure = best.symptom.remedy_confidence
    return Explanation(best.symptom.cause, blame, confidence, quote(best.line), _where(best), remedy, sure, _seen(logs, best), fallbacks)


def deciding(hits: Sequence[Hit]) -> Hit | None:
    """The hit that decides: the earliest of those that say a cause, else of those that are no hint, else of all.

    `hits` of one source are in order.
    """
    causes = [hit for hit in hits if hit.symptom.role is Role.CAUSE or (hit.symptom.role is Role.FRAME and not _is_explained(hit, hits))]
    best: Hit | None = None
    for hit in causes or [hit for hit in hits if hit.symptom.role is not Role.HINT] or hits:
        if best is None or _is_earlier(hit, best):
            best = hit
    return best


def blame_and_remedy(hit: Hit) -> tuple[Blame, str]:
    """The table's, but device memory that another process holds is not the product's fault."""
    if hit.symptom.cause == "mem.npu_oom" and _held_by_others(hit.line):
        return Blame.ENVIRONMENT, "Another process holds the device's memory: find it with npu-smi info and end it."
    return blame_of(hit.symptom.cause), hit.symptom.remedy


def _counts(hit: Hit, log: Decisive) -> bool:
    """Whether nothing later in its log shows that it was got over."""
    if hit.symptom.role is Role.HINT:
        return hit.number > max(log.ended_well, log.went_on) or (
            hit.number > log.ended_well and bool(EXCEPTION.match(split_speaker(hit.line)[1]))
        )
    return hit.number > log.ended_well or hit.symptom.cause == "train.nan"


def quote(line: str) -> str:
    return line.strip()[:_QUOTED_CHARACTERS]


def _is_explained(frame: Hit, hits: Iterable[Hit]) -> bool:
    return any(
        hit.symptom.role is Role.CAUSE
        and (hit.source, hit.speaker) == (frame.source, frame.speaker)
        and 0 < hit.number - frame.number <= _FRAME_REACH_LINES
        for hit in hits
    )


def _is_earlier(hit: Hit, other: Hit) -> bool:
    """Whether `hit`, which comes later in the order given, was said before `other`."""
    if (hit.source, hit.speaker) == (other.source, other.speaker) or hit.time is None or other.time is None:
        return False
    sooner = other.time - hit.time
    return sooner > 0 if hit.source != other.source else _SAME_MOMENT_S < sooner < _ONE_FAILURE_S


def _failure_without_cause(logs: Sequence[Decisive]) -> tuple[str, str]:
    """(the line, where) that tells of a failure; ("", "") if none does."""
    for log in logs:
        for fault in log.faults:
            if fault.number > log.ended_well:
                return quote(fault.line), f"{log.source}:{fault.number}"
    for log in logs:
        for sign in log.signs:
            if sign.number > (log.ended_well if sign.strong else max(log.ended_well, log.went_on)) and sign.near(log.lines):
                return quote(sign.line), f"{log.source}:{sign.number}"
    if not any(log.lines for log in logs):
        return "nothing was printed", logs[0].source if logs else ""
    return "", ""


def _seen(logs: Sequence[Decisive], best: Hit | None) -> tuple[tuple[str, str, str], ...]:
    """The first hit of each other rule in each log."""
    seen: dict[tuple[str, str], Hit] = {}
    for hit in (hit for log in logs for hit in log.hits):
        if best is None or hit.symptom.id != best.symptom.id:
            seen.setdefault((hit.symptom.id, hit.source), hit)
    return tuple((hit.symptom.cause, _where(hit), quote(hit.line)) for hit in list(seen.values())[:_SEEN])


def _where(hit: Hit) -> str:
    return f"{hit.source}:{hit.number}"


def _held_by_others(line: str) -> bool:
    """Whether what is neither free nor reserved by this process is more than a quarter of the device."""
    gib = {what: float(size) / (1024 if unit == "MiB" else 1) for size, unit, what in _MEMORY.findall(line)}
    if len(gib) < 3:
        return False
    return gib["total capacity"] - gib["free"] - gib["reserved in total"] > gib["total capacity"] / 4
