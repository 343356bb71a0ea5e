"""The story of one cell: rule, run, prove, judge, keep; stage by stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from harness import rules
from harness.bench import HEALTHY, Bench, Launch
from harness.commands import NotBuilt
from harness.commands_asked import trained_answers
from harness.errors import HarnessError
from harness.evidence import stack_name
from harness.host import Host
from harness.judge import Case, judge
from harness.model import (
    Blame,
    Cell,
    Comparison,
    Evidence,
    Matrix,
    Outcome,
    Ruling,
    Run,
    Stage,
    Step,
    StepResult,
    Tuner,
    Verdict,
    VerdictKind,
    Witness,
)
from harness.proving import missing, prove, witnessed_hardware
from harness.redact import redacted
from harness.witness_log import rank_zero, summary

# Characters of a log that evidence keeps.
HEALTHY_EXCERPT, FAILED_EXCERPT = 800, 12_000

Keep = Callable[[Evidence], object]
# What a stage reads of earlier ones: nothing can be said of it unless they passed.
NEEDS = {
    Stage.TRAIN: (),
    Stage.RESUME: (Stage.TRAIN,),
    Stage.MERGE: (Stage.TRAIN,),
    Stage.INFER: (Stage.TRAIN, Stage.MERGE),
    Stage.DEPLOY: (Stage.TRAIN, Stage.MERGE),
    Stage.EVAL: (Stage.TRAIN, Stage.MERGE),
    Stage.ROLLOUT: (Stage.TRAIN,),
}


def run_cell(
    cell: Cell,
    stages: tuple[Stage, ...],
    *,
    matrix: Matrix,
    host: Host,
    launch: Launch,
    keep: Keep,
    clean: Callable[[str], str],
    stop: threading.Event,
) -> Iterator[Evidence]:
    """Run the stages and those that they need; keep and yield each one's evidence as it comes. A stop ends after the current stage."""
    weights = host.weights_for(cell.model)
    ruling = rules.rule_for(cell, matrix, hardware=host.hardware, weights=weights, rehearsal=host.rehearsal is not None)
    bench = Bench(cell, weights, host, launch, stop)
    verdicts: dict[Stage, Verdict] = {}
    for stage in with_needed(stages, cell):
        began = datetime.now(timezone.utc)
        gap = rules.proof_gap(cell, stage, hardware=host.hardware, weights=weights)
        blocker = "" if gap else next((str(s) for s in needed(stage, cell) if verdicts[s].kind is not VerdictKind.PASSED), "")
        steps, results, gap = _work(bench, stage, gap, blocker)
        comparisons = () if gap or blocker else _proved(stage, bench, results, matrix)
        evidence = _evidence(bench, matrix, stage, ruling, steps, results, comparisons, gap, blocker, verdicts, began)
        evidence = redacted(evidence, clean)
        keep(evidence)
        verdicts[stage] = evidence.verdict
        yield evidence
        if stop.is_set():
            break
    bench.close(keep=any(v.kind is VerdictKind.FAILED for v in verdicts.values()))


def needed(stage: Stage, cell: Cell) -> tuple[Stage, ...]:
    """The stages whose results `stage` reads, in order. Full training leaves nothing to merge."""
    return tuple(s for s in NEEDS[stage] if s in rules.applicable_stages(cell) and not (s is Stage.MERGE and cell.tuner is Tuner.FULL))


def with_needed(stages: tuple[Stage, ...], cell: Cell) -> tuple[Stage, ...]:
    """`stages` and all that they need, in the order in which they run."""
    wanted = set(stages)
    for stage in stages:
        wanted.update(needed(stage, cell))
    return tuple(stage for stage in Stage if stage in wanted)


def _work(bench: Bench, stage: Stage, gap: str, blocker: str) -> tuple[tuple[Step, ...], tuple[StepResult, ...], str]:
    """Run the stage's steps. Without a proof a run proves nothing, so only a rehearsal runs them, and runs all of them."""
    if blocker or (gap and bench.host.rehearsal is None):
        return (), (), gap
    try:
        steps = bench.plan(stage)
        # The served answer is held against what infer said of the same question.
        if stage is Stage.DEPLOY and not gap:
            steps = (*(s for s in bench.plan(Stage.INFER) if s.name == trained_answers(bench.cell.tuner)), *steps)
    except NotBuilt as missing_command:
        return (), (), gap or missing_command.because
    except HarnessError:
        if not gap:  # a place that a proved stage lacks is a fault of ours
            raise
        return (), (), gap
    return steps, bench.results(steps, stop_at_failure=not gap), gap


def _proved(stage: Stage, bench: Bench, results: tuple[StepResult, ...], matrix: Matrix) -> tuple[Comparison, ...]:
    if any(result.run.ended_by == "interrupt" for result in results) or _outcome(results).cause != HEALTHY:
        return ()
    facts: Any = matrix.hardware.get(bench.host.hardware, {})
    return prove(stage, bench, tuple(facts.get("device_names", ())))


def _outcome(results: tuple[StepResult, ...]) -> Outcome:
    """The first thing that went wrong with a process of the stage."""
    return next((r.outcome for r in results if r.outcome.cause != HEALTHY), Outcome(HEALTHY, Blame.UNKNOWN))


def _evidence(
    bench: Bench,
    matrix: Matrix,
    stage: Stage,
    ruling: Ruling,
    steps: tuple[Step, ...],
    results: tuple[StepResult, ...],
    comparisons: tuple[Comparison, ...],
    gap: str,
    blocker: str,
    verdicts: dict[Stage, Verdict],
    began: datetime,
) -> Evidence:
    cell, host = bench.cell, bench.host
    outcome = _outcome(results)
    runs = tuple(_kept(r.run, r.outcome.cause == HEALTHY) for r in results)
    unproved = () if gap or blocker or outcome.cause != HEALTHY else missing(stage, bench, comparisons)
    facts = {**_facts(bench), "gap": gap, "blocked_by": blocker, "missing": list(unproved)}
    if blocker:
        facts["blocked_verdict"] = str(verdicts[Stage(blocker)].kind)
    lead = next((w for w in (rank_zero(r.witnesses) for r in results) if w is not None), None)
    versions = _versions(lead) if lead else {}
    return Evidence(
        cell=cell.id,
        stage=stage,
        weights=bench.weights,
        hardware=witnessed_hardware(results, matrix.hardware),
        asked=host.hardware,
        stack=stack_name(versions, matrix.stacks),
        tiny_key=cell.tiny_key,
        facts=facts,
        nonce=bench.nonce,
        launcher=host.launcher,
        started_at=began.isoformat(timespec="seconds"),
        duration_s=round((datetime.now(timezone.utc) - began).total_seconds(), 3),
        ruling=ruling,
        steps=steps,
        runs=runs,
        witnesses=tuple(summary(w) for r in results for w in r.witnesses),
        metrics={r.step.name: [dict(row.raw) for row in r.metrics.rows] for r in results if r.metrics.rows},
        outcome=outcome,
        comparisons=comparisons,
        verdict=judge(Case(ruling, outcome, comparisons, runs, gap, blocker, unproved)),
        versions=versions,
        machine=host.machine,
        rehearsal=host.rehearsal is not None,
    )


def _versions(witness: Witness) -> dict[str, str]:
    """Packages as the process saw them, and what of `start` belongs to a stack: CANN, driver, an editable ms-swift's commit."""
    start = witness.last("start") or {}
    others = {name: str(start[name]) for name in ("cann", "driver", "swift_commit") if start.get(name)}
    dirty = {"swift_dirty": "true"} if start.get("swift_dirty") else {}
    return {**witness.versions, **others, **dirty}


def _kept(run: Run, healthy: bool) -> Run:
    """The run with an excerpt of its log: enough to see a healthy end, or to look into a failure."""
    limit = HEALTHY_EXCERPT if healthy else FAILED_EXCERPT
    tail = run.log_tail
    return replace(run, log_tail=tail if len(tail) <= limit else "[...]" + tail[-limit:])


def _facts(bench: Bench) -> dict[str, Any]:
    cell = bench.cell
    facts: dict[str, Any] = {name: str(getattr(cell, name)) for name in ("algorithm", "tuner", "strategy", "engine")}
    facts |= {"model": cell.model.id, "revision": cell.model.revision or "unknown", "family": cell.model.family, "recipe": cell.recipe.key}
    if bench.tiny:
        facts |= {"tiny_model": bench.tiny.sha256, "note": f"random weights of family {bench.tiny.family}, made on the spot"}
    return facts



