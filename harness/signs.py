"""What tells that a run failed without telling why, and what tells that it ended well or at least went on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.log_lines import TRACEBACK, is_talk
from harness.symptoms import loose, words_of

# How far from a log's end a weak sign still tells of the end: further up it was got over.
_NEAR_LINES, _NEAR_ERRORS = 12, 200


@dataclass(frozen=True)
class Sign:
    """A line that tells of a failure. A weak one counts only near the end of a log, and where nothing went on after it."""

    line: str
    number: int
    strong: bool
    levelled: bool

    def near(self, lines: int) -> bool:
        return self.strong or lines - self.number < (_NEAR_ERRORS if self.levelled else _NEAR_LINES)


_STRONG = re.compile(
    r"Fatal Python error|Segmentation fault|core dumped|terminate called after throwing|ChildFailedError|"
    r"\*\*\* \[\S+\] Error \d|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAIL)|[Ee]xit ?code\s*[:=]\s*-?[1-9]|"
    r"exit(?:ed)? (?:with )?(?:exit )?(?:code|status)\W{0,2}-?[1-9]|"
    r"\bERR(?!99999)\d{5}\b|\bE[A-Z\d]9999\b|\bE[A-Z\d]\d{4}: ?\[PID|[Ii]nner [Ee]rror!|"
    r"error code(?: is|:)? ?-?[1-9]\d*\b|EngineCore (?:died|failed|encountered)|EngineDeadError|ActorDiedError|RayTaskError|"
    r"hit an exception|terminated (?:with|by) signal|\(SIG(?:KILL|SEGV|ABRT|BUS)\)|Signal \d+ \(SIG|"
    r"^(?:\w+\.)*(?:[A-Z]\w*)?(?:Error|Exception)(?:: |$)"
)
_WEAK = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception)\b|\b[Jj]ob\b.{0,40}\bFAILED\b|Error response from daemon|^KeyboardInterrupt\b|"
    r"^(?:\w+\.)+(?:errors?|exceptions?)\.[A-Z]\w*(?:: |$)|^(?:\w+\.)+[A-Z]\w*(?:NotFound|Traceback|Conflict|Exceeded)(?:: |$)|"
    r"(?i:\b(?:failed with|failed to|failed:|fatal|aborted|crash(?:ed)?|has died|timed out|hangs?|hung|stuck|deadlock|wait on)\b)"
)
_GOOD_END = re.compile(
    r"'train_runtime':|\"train_runtime\":|\blast_model_checkpoint: [^N\s]|End time of running main|Application shutdown complete|"
    r"(?i:\b(?:training|run|inference|evaluation|export|merge) (?:has |was )?(?:finished|completed|done|succeeded)\b)"
)
# Rows of metrics, answers, and words of success: there are millions in a log, so only the last of each is looked for.
SIGNS_OF_LIFE = (
    *(b"'loss': ", b'"loss": ', b"'reward': ", b"Saving model checkpoint to", b'HTTP/1.1" 200'),
    *(b"finished", b"completed", b" done", b"success", b"Success", b"startup complete"),
)
_NOT_GOOD = re.compile(r"(?i)\b(?:not|un|never|fail\w*|error|abort\w*)\b")

# Words that a line has to hold to be looked at for signs, good ends, tracebacks and operators that fell back.
SIGN_WORDS: frozenset[str] = frozenset(
    {word for pattern in (_STRONG, _WEAK, _GOOD_END) for word in words_of(pattern) if len(word) > 3}
    | {"traceback (most", "will fall back", "error", "critical", "fatal", "exception"}
)
_LOOSE = loose(_STRONG)


def may_tell(shape: str, level: str) -> bool:
    """Whether lines of a shape (digits as 0, without their speaker) could be signs, heads of tracebacks, or good ends."""
    return level == "error" or any(pattern.search(shape) for pattern in (_LOOSE, _WEAK, TRACEBACK, _GOOD_END))


def sign_in(said: str, level: str, number: int) -> Sign | None:
    """The sign of a failure in what is said (without its speaker), unless it warns, informs, or only talks of one."""
    if level in ("info", "warning"):
        return None
    found = _STRONG.search(said)
    strong = found is not None
    found = found or _WEAK.search(said)
    if found is not None and is_talk(said, *found.span()):
        return None
    return Sign(said.strip()[:400], number, strong, level == "error") if found or level == "error" else None


def is_good_end(said: str, level: str) -> bool:
    """Whether what is said (without its speaker) tells of a good end."""
    return level != "error" and bool(_GOOD_END.search(said)) and not _NOT_GOOD.search(said)


def is_life(said: str, level: str) -> bool:
    """Whether a line with one of SIGNS_OF_LIFE is one: after it a weak sign of failure counts no more."""
    return level != "error" and not _NOT_GOOD.search(said)
