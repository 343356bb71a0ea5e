"""The story of one cell: rule, run, prove, judge, keep; stage by stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from harness import rules
from harness.bench import HEALTHY, Bench, Launch
from harness.cell_facts import cell_facts
from harness.commands import NotBuilt
from harness.commands_asked import trained_answers
from harness.errors import HarnessError, HostError
from harness.evidence import stack_name
from harness.goldens import Goldens
from harness.host import Host
from harness.judge import Case, judge
from harness.model import (
    Blame,
    Cell,
    Comparison,
    Evidence,
    Hardware,
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
from harness.retries import Attempt, as_attempt
from harness.witness_log import rank_zero, summary

# Characters of a log that evidence keeps.
HEALTHY_EXCERPT, FAILED_EXCERPT = 800, 12_000

Keep = Callable[[Evidence], object]
# What leaves behind all that later stages read: an unexpected pass is a pass.
PROCEEDS = frozenset({VerdictKind.PASSED, VerdictKind.FIXED})
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
    goldens: Goldens | None = None,
    keep: Keep,
    clean: Callable[[str], str],
    stop: threading.Event,
    before: tuple[Attempt, ...] = (),
) -> Iterator[Evidence]:
    """Run the stages and those that they need; keep and yield each one's evidence as it comes. A stop ends after the current stage.

    `before`: earlier attempts at this cell that the environment spoiled.
    """
    weights = host.weights_for(cell.model)
    bench = Bench(cell, weights, host, launch, stop)
    goldens = goldens or Goldens(launch)
    golden = goldens.beside(bench)
    verdicts: dict[Stage, Verdict] = {}
    look_into = False
    try:
        for stage in with_needed(stages, cell, idle_stages(stages, cell, host)):
            began = datetime.now(timezone.utc)
            ruling = rules.rule_for(
                cell, matrix, hardware=host.hardware, weights=weights, rehearsal=host.rehearsal is not None, stage=stage
            )
            gap = rules.proof_gap(cell, stage, hardware=host.hardware, weights=weights)
            blocker = "" if gap else next((str(s) for s in needed(stage, cell) if verdicts[s].kind not in PROCEEDS), "")
            steps, results, gap = _work(bench, stage, gap, blocker)
            comparisons = () if gap or blocker else _proved(stage, bench, results, matrix, goldens, golden)
            evidence = _evidence(bench, matrix, stage, ruling, steps, results, comparisons, gap, blocker, verdicts, began, golden)
            evidence = redacted(as_attempt(evidence, before), clean)
            keep(evidence)
            verdicts[stage] = evidence.verdict
            yield evidence
            if stop.is_set():
                break
    except Exception as fault:
        # A proof that broke is looked into; what a full disk refused would only fill it further.
        look_into = not isinstance(fault, HostError)
        raise
    finally:
        # Whoever ends a run early drops this generator at a `yield`, so nothing after the loop would be reached.
        keep_files = look_into or any(v.kind is VerdictKind.FAILED for v in verdicts.values())
        for one in (bench, golden):
            if one is not None:
                one.close(keep=keep_files)


def needed(stage: Stage, cell: Cell) -> tuple[Stage, ...]:
    """The stages whose results `stage` reads, in order. Full training leaves nothing to merge."""
    return tuple(s for s in NEEDS[stage] if s in rules.applicable_stages(cell) and not (s is Stage.MERGE and cell.tuner is Tuner.FULL))


def with_needed(stages: tuple[Stage, ...], cell: Cell, idle: frozenset[Stage] = frozenset()) -> tuple[Stage, ...]:
    """`stages` and all that they need, in the order in which they run. `idle` ones run nothing, so they need nothing."""
    wanted = set(stages)
    for stage in stages:
        if stage not in idle:
            wanted.update(needed(stage, cell))
    return tuple(stage for stage in Stage if stage in wanted)


def idle_stages(stages: tuple[Stage, ...], cell: Cell, host: Host) -> frozenset[Stage]:
    """Those without a proof. A rehearsal runs them all the same."""
    weights = host.weights_for(cell.model)
    unproved = (s for s in stages if rules.proof_gap(cell, s, hardware=host.hardware, weights=weights))
    return frozenset() if host.rehearsal else frozenset(unproved)


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


def _proved(
    stage: Stage, bench: Bench, results: tuple[StepResult, ...], matrix: Matrix, goldens: Goldens, golden: Bench | None
) -> tuple[Comparison, ...]:
    if any(result.run.ended_by == "interrupt" for result in results) or _outcome(results).cause != HEALTHY:
        return ()
    facts: Any = matrix.hardware.get(bench.host.hardware, {})
    if golden is not None:
        goldens.run(stage, bench, golden)
    return prove(stage, bench, tuple(facts.get("device_names", ())), golden)


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
    golden: Bench | None,
) -> Evidence:
    cell, host = bench.cell, bench.host
    outcome = _outcome(results)
    runs = tuple(_kept(r.run, r.outcome.cause == HEALTHY) for r in results)
    unproved = () if gap or blocker or outcome.cause != HEALTHY else missing(stage, bench, comparisons)
    facts = {**_facts(bench), "gap": gap, "blocked_by": blocker, "missing": list(unproved)}
    if blocker:
        facts["blocked_verdict"] = str(verdicts[Stage(blocker)].kind)
    lead = next((w for w in (rank_zero(r.witnesses) for r in results) if w is not None), None)
    versions = versions_of(lead) if lead else {}
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
        metrics={name: [dict(row.raw) for row in r.metrics.rows] for name, r in _logged(results, golden) if r.metrics.rows},
        outcome=outcome,
        comparisons=comparisons,
        verdict=judge(Case(ruling, outcome, comparisons, runs, gap, blocker, unproved)),
        versions=versions,
        machine=host.machine,
        rehearsal=host.rehearsal is not None,
    )


def versions_of(witness: Witness) -> dict[str, str]:
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


def _logged(results: tuple[StepResult, ...], golden: Bench | None) -> list[tuple[str, StepResult]]:
    """Every step's rows, and those of the golden training under a name that says so."""
    names = {r.step.name for r in results}
    beside = [(f"golden-{name}", r) for name, r in golden.ran.items() if name in names] if golden else []
    return [*((r.step.name, r) for r in results), *beside]


def _facts(bench: Bench) -> dict[str, Any]:
    cell = bench.cell
    facts: dict[str, Any] = dict(cell_facts(cell))
    if bench.host.hardware is Hardware.SIM:
        facts["simulated"] = "SIMULATED NPU: a torch device in host memory, no NPU hardware"
    if foreign := bench.foreign_swift():
        facts["swift_interpreter"] = foreign
    if bench.tiny:
        facts |= {"tiny_model": bench.tiny.sha256, "note": f"random weights of family {bench.tiny.family}, made on the spot"}
    return facts



