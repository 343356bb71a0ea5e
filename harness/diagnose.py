"""Our reading of how a process ended: from its exit and its log, a cause id, the line that says so, who is to blame, and what to do."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from harness.causes import blame_of
from harness.model import Blame, Outcome, Run
from harness.symptoms import NOISE, NOT_FINITE, Symptom, present

# The words of Run.notes that have consequences; whoever ends a run writes them first in the note.
SILENT = "silent hang"
CHATTY = "chatty hang"
DEAF = "deaf to SIGTERM"

_QUOTED_CHARACTERS = 400
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\]\s*$")
TRACEBACK = re.compile(r"(?:^|\s)Traceback \(most recent call last\):\s*$")
EXCEPTION = re.compile(r"^(?:\[\w+\]:\s*|\(\w[^)]*\)\s+)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|NotFound)\b.*|AssertionError)$")
# Python prints tracebacks under this while it shuts down, about objects that nobody waits for any more.
EXCEPTION_IGNORED = "Exception ignored in"
_MEMORY = re.compile(r"([\d.]+) (MiB|GiB) (total capacity|free|reserved in total)")
# Signals whose number a shell (128 + n) or `swift` (its child's -n, as a byte) passes on as an exit code.
_PASSED_ON = {code: s for s in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTERM)
              for code in (128 + s, 256 - s)}  # fmt: skip


def diagnose(log_tail: str, run: Run) -> Outcome:
    """Why `run` ended as it did, by `log_tail`: its whole log, or harness.logs' excerpt of it.

    Cause "none" only for a run that ended by exit code 0 (or because we asked it to) with a clean log.

    The exit code outranks what the log claims: success printed with exit code 1 is `run.exit_nonzero`. Of several symptoms the earliest
    decides, since the later ones usually follow from it.
    """
    if run.ended_by == "not started":
        return _outcome("run.not_started", " ".join(run.notes), "Install the program, or put it on PATH.")
    if run.ended_by == "interrupt":
        return Outcome("unknown", Blame.UNKNOWN, "interrupted by a person or a signal")
    lines = list(_clean_lines(log_tail))
    if run.ended_by == "request":
        return _outcome("none")
    if run.ended_by == "exit" and run.exit_code == 0:
        return _of_exit_0(lines, run)
    return _of_symptoms(lines) or _of_the_end(lines, run)


def _of_exit_0(lines: list[str], run: Run) -> Outcome:
    for line in lines:
        if NOT_FINITE.search(line):
            return _outcome("train.nan", line, "Look at the first step whose loss or gradient is not finite.")
    if (fault := _traceback(lines)) is not None:
        return _outcome("run.traceback_exit_0", fault, "The exit code hides an exception: read the log from its traceback on.")
    if run.leftovers:
        return _outcome("run.orphan", f"left running: {'; '.join(run.leftovers)}", "Find what starts it and does not wait for it.")
    return _outcome("none")


def _of_symptoms(lines: list[str]) -> Outcome | None:
    """The earliest line that decides; lines that only follow from something else count when there is no other."""
    first: tuple[Symptom, str] | None = None
    symptoms = present("\n".join(lines))
    for line in lines:
        if NOT_FINITE.search(line):
            return _outcome("train.nan", line, "Look at the first step whose loss or gradient is not finite.")
        symptom = next((s for s in symptoms if s.pattern.search(line)), None)
        if symptom is not None and not symptom.symptom_only:
            return _from_symptom(symptom, line)
        if symptom is not None and first is None:
            first = symptom, line
    return _from_symptom(*first) if first else None


def _of_the_end(lines: list[str], run: Run) -> Outcome:
    """No line of the log decides: what is left is the manner of the end."""
    last_words = _traceback(lines) or (lines[-1] if lines else "nothing was printed")
    if run.ended_by == "deadline":
        silent = any(note.startswith(SILENT) for note in run.notes)
        cause = "run.deadline_silent" if silent else "run.deadline_chatty"
        return _outcome(cause, " ".join(run.notes) or last_words, "See where its processes stood, in the evidence's stacks.")
    number = -run.exit_code if run.exit_code is not None and run.exit_code < 0 else _PASSED_ON.get(run.exit_code or 0)
    if run.ended_by == "signal" or number is not None:
        name = signal_name(number) if number is not None else "a signal"
        remedy = "If it was SIGKILL, see dmesg: only the kernel knows of a lack of memory."
        return _outcome("run.signal", f"ended by {name}; last line: {last_words}", remedy)
    return _outcome("run.exit_nonzero", f"exit code {run.exit_code}; {last_words}", "Read the log from its first error on.")


def signal_name(number: int) -> str:
    """SIGKILL for 9; a number that Python has no name for (glibc's own, say) stays a number."""
    return signal.Signals(number).name if number in {int(s) for s in signal.Signals} else f"signal {number}"


def _traceback(lines: list[str]) -> str | None:
    """The exception line of the first traceback, or the traceback's head if that was cut off; None if there is none."""
    for at, line in enumerate(lines):
        if TRACEBACK.search(line) and not (at and EXCEPTION_IGNORED in lines[at - 1]):
            return next((later.strip() for later in lines[at + 1 :] if EXCEPTION.match(later.strip())), line.strip())
    return None


def _clean_lines(text: str) -> Iterator[str]:
    """Lines without colours, Ray's repetition counts and known noise; a progress bar's overwritten states are lines of their own."""
    for line in re.split(r"[\r\n]+", text):
        if cleaned := clean_line(line):
            yield cleaned


def clean_line(line: str) -> str:
    """`line` without colours and repetition counts; "" for noise."""
    line = _REPEATED.sub("", COLOUR.sub("", line)).rstrip()
    return "" if any(noise.search(line) for noise in NOISE) else line


def _from_symptom(symptom: Symptom, line: str) -> Outcome:
    if symptom.cause == "mem.npu_oom" and _held_by_others(line):
        remedy = "Another process holds the device's memory: find it with npu-smi info and end it."
        return Outcome(symptom.cause, Blame.ENVIRONMENT, _quote(line), remedy)
    return _outcome(symptom.cause, line, symptom.remedy)


def _held_by_others(line: str) -> bool:
    """Whether what is neither free nor reserved by this process is more than a quarter of the device."""
    gib = {what: float(size) / (1024 if unit == "MiB" else 1) for size, unit, what in _MEMORY.findall(line)}
    if len(gib) < 3:
        return False
    return gib["total capacity"] - gib["free"] - gib["reserved in total"] > gib["total capacity"] / 4


def _outcome(cause: str, line: str = "", remedy: str = "") -> Outcome:
    return Outcome(cause, blame_of(cause), _quote(line), remedy)


def _quote(line: str) -> str:
    return line.strip()[:_QUOTED_CHARACTERS]
