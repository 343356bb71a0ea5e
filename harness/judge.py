"""The one place where fact meets expectation and becomes a Verdict.

`judge` is pure and reads only what Evidence keeps, so that anybody can judge a piece of evidence again: a stored verdict that
differs from the recomputed one is a forgery or a fault, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.consistency import missing_comparisons
from harness.model import Blame, Comparison, Evidence, Outcome, Ruling, RulingKind, Run, Verdict, VerdictKind

HEALTHY = "none"
# A limit that names no causes is none of these: a mistyped command, a crash that says nothing and a proof that came to nothing look the
# same whatever is broken
NEVER_THE_LIMIT = ("args.", "run.", "proof.", "data.", "unknown")


@dataclass(frozen=True)
class Case:
    """All that a verdict depends on. `gap`: why no proof exists for this stage; `blocked_by`: the earlier stage that failed;
    `missing`: required comparisons that were never made."""

    ruling: Ruling
    outcome: Outcome
    comparisons: tuple[Comparison, ...]
    runs: tuple[Run, ...]
    gap: str = ""
    blocked_by: str = ""
    missing: tuple[str, ...] = ()


def judge(case: Case) -> Verdict:
    """The verdict on one stage. A pass that compared nothing is a failure; a known failure needs the product to blame."""
    if case.ruling.kind is RulingKind.EXCLUDED:
        return Verdict(VerdictKind.EXCLUDED, case.ruling.because)
    if case.ruling.kind is RulingKind.NOT_RUNNABLE:
        return Verdict(VerdictKind.NOT_RUNNABLE, case.ruling.because)
    if case.blocked_by:
        return Verdict(VerdictKind.BLOCKED, f"stage {case.blocked_by} did not pass")
    if any(run.ended_by == "interrupt" for run in case.runs):
        return Verdict(VerdictKind.INTERRUPTED, "the run was interrupted by a person or a signal")
    if case.gap:
        return Verdict(VerdictKind.UNTESTED, case.gap)
    failure = _failure(case)
    if case.ruling.kind is RulingKind.EXPECT_FAIL:
        return _against_expected_failure(case.ruling, failure)
    return failure or Verdict(VerdictKind.PASSED, f"{len(case.comparisons)} comparisons hold", HEALTHY)


def _failure(case: Case) -> Verdict | None:
    """The first thing that went wrong, in the order: how the process ended, what it failed to prove, what was never compared."""
    if not case.runs:
        return Verdict(VerdictKind.FAILED, "no process ran", "proof.nothing_ran", Blame.HARNESS)
    if case.outcome.cause != HEALTHY:
        quoted = f": {case.outcome.line}" if case.outcome.line else ""
        return Verdict(VerdictKind.FAILED, f"{case.outcome.cause}{quoted}", case.outcome.cause, case.outcome.blame)
    for comparison in case.comparisons:
        if not comparison.ok:
            because = f"{comparison.name}: expected {comparison.expected}, found {comparison.found}"
            return Verdict(VerdictKind.FAILED, because, comparison.cause or "proof.unnamed", comparison.blame)
    if case.missing or not case.comparisons:
        never = ", ".join(case.missing) or "anything at all"
        return Verdict(VerdictKind.FAILED, f"never compared: {never}", "proof.nothing_compared", Blame.HARNESS)
    return None


def _against_expected_failure(ruling: Ruling, failure: Verdict | None) -> Verdict:
    if failure is None:
        return Verdict(VerdictKind.FIXED, f"passed, though expected to fail: {ruling.because}", HEALTHY)
    if failure.blame not in (Blame.PRODUCT, Blame.UNKNOWN):
        return failure
    if not _is_the_limit(failure.cause, ruling.causes):
        return replace(failure, because=f"{failure.because} (not the recorded limit: {ruling.because})")
    return Verdict(VerdictKind.KNOWN_FAILURE, f"{ruling.because} (seen: {failure.because})", failure.cause, failure.blame)


def _is_the_limit(cause: str, causes: tuple[str, ...]) -> bool:
    if not causes:
        return not cause.startswith(NEVER_THE_LIMIT)
    return any(cause.startswith(known) if known.endswith(".") else cause == known for known in causes)


def rejudge(evidence: Evidence) -> Verdict:
    """The verdict that this evidence's own facts lead to. Which comparisons a pass takes is asked anew, not read from the evidence."""
    case = case_of(evidence)
    return judge(replace(case, missing=tuple(dict.fromkeys((*case.missing, *missing_comparisons(evidence))))))


def judge_under(evidence: Evidence, ruling: Ruling) -> Verdict:
    """The verdict on what this evidence found, had `ruling` been asked of it."""
    return judge(replace(case_of(evidence), ruling=ruling))


def case_of(evidence: Evidence) -> Case:
    facts = evidence.facts
    return Case(
        ruling=evidence.ruling,
        outcome=evidence.outcome,
        comparisons=evidence.comparisons,
        runs=evidence.runs,
        gap=str(facts.get("gap", "")),
        blocked_by=str(facts.get("blocked_by", "")),
        missing=tuple(facts.get("missing", ())),
    )
