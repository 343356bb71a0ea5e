"""Whether a piece of evidence agrees with itself: what it claims, computed again from what else it holds.

A content hash can be made anew by anybody. What can be read twice here (a comparison's numbers, the ends of processes, devices, versions,
the list of required comparisons) must give the same answer twice. Pure: no matrix, no files, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from harness.causes import CAUSES, blame_of
from harness.diagnose import diagnose
from harness.model import Algorithm, Comparison, Evidence, Hardware, Run, Stage, Strategy, Tuner, VerdictKind, Weights
from harness.proof_required import Asked, missing_required
from harness.retries import attempt_contradictions

HEALTHY = "none"
CPU, SIM, NPU = "cpu", "sim", "npu"
CUT = "[...]"

_NEEDS_A_WITNESS = frozenset({VerdictKind.PASSED, VerdictKind.FIXED})
# Causes that a process of exit code 0 can have; every other one needs a process that ended otherwise.
_AT_EXIT_0 = frozenset({"train.nan", "run.traceback_exit_0", "run.orphan"})
# A stage reads steps that ran for earlier stages of the same session; none of ours takes a week.
_LONGEST_SESSION = timedelta(days=7)


def contradictions(evidence: Evidence) -> tuple[str, ...]:
    """What `evidence` says twice and differently, a sentence each; empty where it agrees with itself."""
    return tuple(
        [
            *_comparisons(evidence),
            *_outcome(evidence),
            *_idle(evidence),
            *_nonces(evidence),
            *_hardware(evidence),
            *_versions(evidence),
            *_times(evidence),
            *_model(evidence),
            *attempt_contradictions(evidence),
            *(_pass(evidence) if evidence.verdict.kind in _NEEDS_A_WITNESS else ()),
        ]
    )


def missing_comparisons(evidence: Evidence) -> tuple[str, ...]:
    """Comparisons that a pass of this stage takes and that `evidence` lacks; empty where nothing was to be proved (a gap, a failed run).

    A stage, tuner or algorithm that no proof is built for lacks a proof as such.
    """
    if evidence.facts.get("gap") or evidence.facts.get("blocked_by") or evidence.outcome.cause != HEALTHY:
        return ()
    sim = Hardware.SIM in (evidence.hardware, evidence.asked)
    try:
        words = [evidence.facts.get(name) for name in ("tuner", "algorithm", "strategy")]
        tuner, algorithm, strategy = Tuner(words[0]), Algorithm(words[1]), Strategy(words[2])
        asked = Asked(evidence.weights, tuner, algorithm, strategy, Hardware.SIM if sim else evidence.asked)
        return missing_required(evidence.stage, evidence.comparisons, asked)
    except (KeyError, ValueError):
        return (f"a proof of {evidence.stage}",)


def seen_devices(witnesses: Iterable[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """(cpu, sim, npu or the device's own word; the name that it gave itself, "" where none was kept) of every witnessed piece of work."""
    found: set[tuple[str, str]] = set()
    for witness in witnesses:
        stands_in = "+sim" in str(_object(witness, "versions").get("torch_npu", ""))
        begun, generated = _object(witness, "train_begin"), _object(witness, "generate")
        if begun.get("device"):
            found.add(_device(begun["device"], begun.get("device_name"), stands_in or begun.get("simulated") is True))
        simulated = stands_in or generated.get("simulated") is True
        names = [*_list(generated, "device_names")] or [None]
        found |= {_device(device, name, simulated) for device in _list(generated, "devices") for name in names}
    return frozenset(found)


def _device(device: object, name: object, simulated: bool) -> tuple[str, str]:
    if simulated:
        return SIM, str(name or "")
    return str(device).partition(":")[0], str(name or "")


def _comparisons(evidence: Evidence) -> Iterator[str]:
    for c in evidence.comparisons:
        if c.ok and not _may_hold(c, on_npu=evidence.hardware is not None and evidence.hardware.is_npu):
            yield f"{c.name} is said to hold, but its error is {c.error} and its tolerance {c.tolerance}"
        if c.ok and c.cause:
            yield f"{c.name} is said to hold, but has the cause {c.cause}"
        if not c.ok and c.cause in CAUSES and c.blame is not blame_of(c.cause):
            yield f"{c.name} blames {c.blame} for {c.cause}, which is {blame_of(c.cause)}"


def _may_hold(c: Comparison, *, on_npu: bool) -> bool:
    """Whether a comparison's numbers allow it to hold. A negative control holds when the two runs differ: by their numbers, or (off an
    NPU, where equal runs are equal to the bit) by their final weights alone."""
    if c.error is None:
        return c.tolerance is None or (_is_control(c) and not on_npu)
    if c.tolerance is None or not math.isfinite(c.error):
        return False
    return (c.error > c.tolerance or not on_npu) if _is_control(c) else 0 <= c.error <= c.tolerance


def _is_control(c: Comparison) -> bool:
    return c.name.startswith("resume.control.") and c.name.endswith(".fails")


def _outcome(evidence: Evidence) -> Iterator[str]:
    cause, runs = evidence.outcome.cause, evidence.runs
    if cause == HEALTHY:
        for run in runs:
            if (found := _ended(run)) != HEALTHY and run.ended_by != "interrupt":
                yield f"its outcome is none, but step {run.step} ended by {run.ended_by}, exit code {run.exit_code}: {found}"
    elif not runs:
        yield f"its outcome is {cause}, but no process ran"
    elif cause not in _AT_EXIT_0 and all(_is_clean(run) for run in runs):
        yield f"its outcome is {cause}, but every process ended well"
    if cause in CAUSES and cause != "mem.npu_oom" and evidence.outcome.blame is not blame_of(cause):
        yield f"its outcome blames {evidence.outcome.blame} for {cause}, which is {blame_of(cause)}"


def _is_clean(run: Run) -> bool:
    return run.ended_by == "request" or (run.ended_by == "exit" and run.exit_code == 0)


def _ended(run: Run) -> str:
    """The cause that the run's end and the kept part of its log lead to."""
    if not _is_clean(run):
        return diagnose("", run).cause
    tail = run.log_tail
    if tail.startswith(CUT):
        # The first line is half a line, and the second one could be the rest of what the first one introduced.
        tail = "\n".join(tail.splitlines()[2:])
    return diagnose(tail, run).cause


def _idle(evidence: Evidence) -> Iterator[str]:
    """What nothing was run for holds nothing; a rehearsal runs stages that have no proof."""
    for fact, is_idle in (("blocked_by", True), ("gap", not evidence.rehearsal)):
        if evidence.facts.get(fact) and is_idle and (evidence.runs or evidence.comparisons):
            yield f"{fact} is {evidence.facts[fact]!r}, yet something ran or was compared"


def _nonces(evidence: Evidence) -> Iterator[str]:
    known = {run.nonce for run in evidence.runs}
    strangers = sorted({str(w.get("nonce")) for w in evidence.witnesses} - known)
    # A failed run may hold such a witness: its proof found it, or it was never proved.
    if strangers and evidence.verdict.kind in _NEEDS_A_WITNESS:
        yield f"it passed, but witnesses carry nonces of no run of it: {', '.join(strangers)}"


def _hardware(evidence: Evidence) -> Iterator[str]:
    kinds = {kind for kind, _ in seen_devices(evidence.witnesses)}
    said = {Hardware.CPU: CPU, Hardware.SIM: SIM}.get(evidence.hardware, NPU) if evidence.hardware else ""
    if said and kinds != {said}:
        yield f"its hardware is {evidence.hardware}, but its witnesses saw {' and '.join(sorted(kinds)) or 'no device'}"
    if not said and len(kinds) == 1 and kinds <= {CPU, SIM}:
        yield f"its hardware is unwitnessed, but its witnesses saw {kinds.pop()}"


def _versions(evidence: Evidence) -> Iterator[str]:
    """A stack is read from versions, so they must be those of a process that led."""
    leading = [w for w in evidence.witnesses if w.get("rank") in (0, -1)]
    if leading and not any(versions_of(w) == dict(evidence.versions) for w in leading):
        yield "its versions are those of no witness"
    if not leading and evidence.versions:
        yield "it names versions that nobody witnessed"


def versions_of(witness: Mapping[str, Any]) -> dict[str, str]:
    """The versions of a witness's summary as evidence names them: packages, and CANN, driver and ms-swift's commit (see harness.flow)."""
    start = _object(witness, "start")
    others = {name: str(start[name]) for name in ("cann", "driver", "swift_commit") if start.get(name)}
    dirty = {"swift_dirty": "true"} if start.get("swift_dirty") else {}
    return {**{str(k): str(v) for k, v in _object(witness, "versions").items()}, **others, **dirty}


def _model(evidence: Evidence) -> Iterator[str]:
    """Real weights are those of the model and revision that the commands name."""
    if evidence.weights is not Weights.REAL or not evidence.runs:
        return
    revision = evidence.facts.get("revision")
    asked = [value for step in evidence.steps for value in _values(step.command.args, "--model_revision")]
    if any(value != revision for value in asked):
        yield f"it says revision {revision}, but its commands ask for {' and '.join(sorted(set(asked)))}"
    if evidence.stage is Stage.TRAIN and revision != "unknown" and not asked:
        yield f"it says revision {revision}, which no command of it asks for"
    models = [value for step in evidence.steps for value in _values(step.command.args, "--model")]
    if evidence.stage is Stage.TRAIN and any(value != evidence.facts.get("model") for value in models):
        yield f"it says model {evidence.facts.get('model')}, but its commands train {' and '.join(sorted(set(models)))}"


def _values(args: tuple[str, ...], flag: str) -> list[str]:
    return [value for name, value in pairwise(args) if name == flag]


def _times(evidence: Evidence) -> Iterator[str]:
    began = _time(evidence.started_at)
    if began is None:
        return
    for run in evidence.runs:
        at = _time(run.started_at)
        if at is None or at.utcoffset() != began.utcoffset():
            continue
        if not began - _LONGEST_SESSION <= at <= began + timedelta(seconds=evidence.duration_s + 2):
            yield f"it ran at {evidence.started_at} for {evidence.duration_s} s, but step {run.step} started at {run.started_at}"


def _pass(evidence: Evidence) -> Iterator[str]:
    """What every pass stands on: all its steps ran, each of them witnessed, without a fault, and nothing logged that is no number."""
    if not evidence.witnesses:
        yield "it passed without a witness"
    seen = {str(w.get("nonce")) for w in evidence.witnesses}
    for run in evidence.runs:
        if run.nonce not in seen:
            yield f"it passed, but nobody witnessed step {run.step}"
    planned, ran = {step.name for step in evidence.steps}, {run.step for run in evidence.runs}
    if planned != ran:
        yield f"it passed, but of its steps these did not run or were never asked for: {', '.join(sorted(planned ^ ran))}"
    if any(w.get("faults") for w in evidence.witnesses):
        yield "it passed, but a witness reports faults"
    for step, rows in evidence.metrics.items():
        for row in rows if isinstance(rows, list) else ():
            values = [row.get(name) for name in ("loss", "grad_norm")] if isinstance(row, Mapping) else []
            if any(isinstance(v, float) and not math.isfinite(v) for v in values):
                yield f"it passed, but {step} logged {values}"


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


def _object(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(of: Mapping[str, Any], name: str) -> list[Any]:
    found = of.get(name)
    return found if isinstance(found, list) else []
