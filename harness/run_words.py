"""What a run says of its evidence at the end and where a stage is not green: for people, from evidence alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.commands import shell_line
from harness.model import Evidence, Stage, VerdictKind


def explain_failure(evidence: Evidence) -> str:
    """What a person needs of a stage that is not green: what, why, who, the log's line, the command to paste, where the rest is."""
    verdict, failed = evidence.verdict, [c for c in evidence.comparisons if not c.ok]
    lines = [f"{evidence.cell} {evidence.stage} on {evidence.hardware or 'unwitnessed hardware'}: {verdict.kind}, {verdict.because}"]
    lines.append(f"cause {verdict.cause or 'none'}, blame {verdict.blame}")
    lines += [f"  {c.name}: expected {c.expected}, found {c.found} [{c.cause}]" for c in failed[:8]]
    if evidence.outcome.remedy:
        lines.append(f"next: {evidence.outcome.remedy}")
    lines += [f"command: {shell_line(step)}" for step in evidence.steps[len(evidence.runs) - 1 : len(evidence.runs)]]
    lines += [f"log: {run.log_path}" for run in evidence.runs[-1:]]
    return "\n".join(lines)


def counted_as(evidence: Evidence, run_again: frozenset[tuple[str, str]]) -> str:
    """How the summary counts a piece. `run_again`: (nonce, stage) of the failures that another attempt followed."""
    if (evidence.nonce, evidence.stage) in run_again:
        return "run again"
    flaky = evidence.facts.get("flaky") and evidence.verdict.kind is VerdictKind.PASSED
    return "flaky" if flaky else str(evidence.verdict.kind)


def why_untold(evidence: Evidence, selected: bool) -> str:
    return "not green when run again" if selected else "not selected, but not green"


def by_stage(kept: Sequence[Evidence]) -> Iterator[str]:
    """What became of each stage, and where it ran; what nothing ran for is left out."""
    for stage in Stage:
        found = Counter(f"{e.verdict.kind} on {e.hardware or 'unwitnessed hardware'}" for e in kept if e.stage is stage and e.runs)
        if found:
            yield f"{stage}: " + ", ".join(f"{count} {text}" for text, count in sorted(found.items()))
