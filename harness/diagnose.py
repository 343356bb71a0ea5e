"""Our reading of how a process ended: from its exit and its log, a cause id, the line that says so, who is to blame, and what to do."""

from __future__ import annotations

import signal

from harness.causes import blame_of
from harness.decisive import Decisive
from harness.explain import blame_and_remedy, deciding, quote
from harness.hang_phase import phase_of
from harness.model import Blame, Outcome, Run
from harness.symptom_table import NOT_FINITE

# The words of Run.notes that have consequences; whoever ends a run writes them first in the note.
SILENT = "silent hang"
CHATTY = "chatty hang"
DEAF = "deaf to SIGTERM"
# What stands above the end of a plog in Run.stacks; stacks.py writes it.
PLOG = "== plog "

# Signals whose number a shell (128 + n) or `swift` (its child's -n, as a byte) passes on as an exit code.
_PASSED_ON = {code: s for s in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTERM)
              for code in (128 + s, 256 - s)}  # fmt: skip


def diagnose(log_tail: str, run: Run) -> Outcome:
    """Why `run` ended as it did, by `log_tail`: its whole log, or harness.logs' excerpt of it.

    Cause "none" only for a run that ended by exit code 0 (or because we asked it to) with a clean log.

    The exit code outranks what the log claims: success printed with exit code 1 is `run.exit_nonzero`. Of several symptoms the earliest
    decides, since the later ones usually follow from it. Of a hang the outcome's line names the phase that it was in.
    """
    if run.ended_by == "not started":
        return _outcome("run.not_started", " ".join(run.notes), "Install the program, or put it on PATH.")
    if run.ended_by == "interrupt":
        return Outcome("unknown", Blame.UNKNOWN, "interrupted by a person or a signal")
    if run.ended_by == "request":
        return _outcome("none")
    read = _read(log_tail)
    if run.ended_by == "exit" and run.exit_code == 0:
        return _of_exit_0(read, run)
    return _of_symptoms(read) or _of_the_end(log_tail, read, run)


def _read(text: str) -> Decisive:
    read = Decisive()
    read.read(text.encode("utf-8", "replace"))
    return read


def _of_exit_0(read: Decisive, run: Run) -> Outcome:
    for hit in read.hits:
        if hit.symptom is NOT_FINITE:
            return _outcome("train.nan", hit.line, hit.symptom.remedy)
    if read.faults:
        return _outcome(
            "run.traceback_exit_0", read.faults[0].line, "The exit code hides an exception: read the log from its traceback on."
        )
    if run.leftovers:
        return _outcome("run.orphan", f"left running: {'; '.join(run.leftovers)}", "Find what starts it and does not wait for it.")
    return _outcome("none")


def _of_symptoms(read: Decisive) -> Outcome | None:
    hit = deciding(read.hits)
    if hit is None:
        return None
    blame, remedy = blame_and_remedy(hit)
    return Outcome(hit.symptom.cause, blame, quote(hit.line), remedy)


def _of_the_end(log_tail: str, read: Decisive, run: Run) -> Outcome:
    """No line of the log decides: what is left is the manner of the end."""
    last_words = read.faults[0].line if read.faults else read.before or "nothing was printed"
    if run.ended_by == "deadline":
        return _of_a_hang(log_tail, last_words, run)
    number = -run.exit_code if run.exit_code is not None and run.exit_code < 0 else _PASSED_ON.get(run.exit_code or 0)
    if run.ended_by == "signal" or number is not None:
        name = signal_name(number) if number is not None else "a signal"
        remedy = "If it was SIGKILL, see dmesg: only the kernel knows of a lack of memory."
        return _outcome("run.signal", f"ended by {name}; last line: {last_words}", remedy)
    return _outcome("run.exit_nonzero", f"exit code {run.exit_code}; {last_words}", "Read the log from its first error on.")


def _of_a_hang(log_tail: str, last_words: str, run: Run) -> Outcome:
    stacks, mark, plogs = run.stacks.partition(PLOG)
    if mark and (said := _of_symptoms(_read(plogs))) is not None:
        return said
    silent = any(note.startswith(SILENT) for note in run.notes)
    cause = "run.deadline_silent" if silent else "run.deadline_chatty"
    phase, because = phase_of(log_tail, stacks)
    line = " ".join(run.notes) or last_words
    if phase:
        line = f"{line}; phase: {phase}, by: {because}"
    return _outcome(cause, line, "See where its processes stood, in the evidence's stacks.")


def signal_name(number: int) -> str:
    """SIGKILL for 9; a number that Python has no name for (glibc's own, say) stays a number."""
    return signal.Signals(number).name if number in {int(s) for s in signal.Signals} else f"signal {number}"


def _outcome(cause: str, line: str = "", remedy: str = "") -> Outcome:
    return Outcome(cause, blame_of(cause), quote(line), remedy)
