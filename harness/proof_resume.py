"""Proof of resuming: the run continues at the checkpoint, and its numbers are the straight run's.

Equal numbers prove little where the optimizer's state hardly matters, so negative controls that lost that state must fail the very
same check; one that passes shows that the check is blind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.causes import blame_of
from harness.commands_tables import ZERO_MOMENTS, controls_of
from harness.compare import Tolerance, check, check_error, largest_difference, logged_tolerance, weights_tolerance
from harness.model import Cell, Comparison, Hardware, StepResult, Weights, Witness
from harness.proof_process import prove_process
from harness.proof_sanity import prove_logged
from harness.proof_train import LOGS_NO_LOSS, prove_begun, prove_log
from harness.tensors import TensorFile
from harness.witness_log import rank_zero


@dataclass(frozen=True)
class _Continuation:
    """What is compared of a run after step k: (losses, grad_norms) by step, and the digest that it ended with."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    digest: str


def prove_resume(
    *,
    cell: Cell,
    hardware: Hardware,
    weights: Weights,
    dtype: str,
    straight: StepResult,
    resumed: StepResult,
    from_step: int,
    asked_steps: int,
    controls: Mapping[str, StepResult],
    finals: tuple[TensorFile, TensorFile] | None = None,
    device_names: Sequence[str] = (),
) -> tuple[Comparison, ...]:
    """Design section 4, row `resume`: `resumed` went from the checkpoint of step `from_step` to `asked_steps`.

    `dtype` is the training dtype. `finals` are the last checkpoints' weights, (straight, resumed): needed on an NPU, where digests
    of equal runs differ. `controls`: by name from CONTROLS, needed for tiny weights. Tolerances: harness/compare.py.
    """
    made = list(_prove_continues(cell, resumed, from_step, asked_steps))
    sound = all(c.ok for c in made)
    process, witness = prove_process("resume", resumed, "train_end")
    made += process
    if witness is None:
        return tuple(made)
    made += prove_begun("resume", cell, hardware, resumed, witness, from_step, asked_steps, device_names)
    made.append(_prove_loaded(straight, witness, from_step))
    made += prove_logged("resume", resumed.metrics, witness) if sound and cell.algorithm not in LOGS_NO_LOSS else ()
    if not all(c.ok for c in made):
        return tuple(made)
    norm = (witness.last("train_begin") or {}).get("optimizer_moment_norm")
    moved = isinstance(norm, (int, float)) and math.isfinite(norm) and norm > 0
    made.append(check("resume.optimizer", moved, "proof.optimizer", "optimizer moments loaded (norm > 0)", f"norm {norm}"))
    if not moved:
        return tuple(made)
    reference, found = _continuation(straight, from_step), _continuation(resumed, from_step)
    same = _same_numbers("resume", reference, found, logged_tolerance(hardware, dtype))
    made += same
    made.append(_same_weights("resume", reference, found, hardware, dtype, finals))
    if weights is Weights.TINY:
        for name in controls_of(cell.strategy):
            made += _prove_control(name, controls.get(name), reference, from_step, hardware, dtype)
    return tuple(made)


def _prove_loaded(straight: StepResult, witness: Witness, from_step: int) -> Comparison:
    """That training began with the very weights of the checkpoint: a run that starts anew repeats the straight run's later numbers."""
    reference = rank_zero(straight.witnesses)
    saves = [event for event in (reference.all("save") if reference else ()) if event.get("step") == from_step]
    saved = saves[-1].get("trainable_digest") if saves else None
    if reference is None or not saved:
        return check("resume.loaded", False, "proof.witness_missing", f"the straight run's save at step {from_step}", "not witnessed")
    found = (witness.last("train_begin") or {}).get("trainable_digest")
    untrained = (reference.last("train_begin") or {}).get("trainable_digest")
    cause = "resume.ignored" if found == untrained else "resume.differs"
    return check("resume.loaded", found == saved, cause, f"the weights of step {from_step}, digest {str(saved)[:12]}", str(found)[:12])


def _prove_continues(cell: Cell, resumed: StepResult, from_step: int, asked_steps: int) -> tuple[Comparison, ...]:
    """Rows of exactly the steps after `from_step`. Rows of earlier ones mean that the checkpoint was ignored."""
    steps = [row.step for row in resumed.metrics.rows]
    earlier = [step for step in steps if step <= from_step]
    began = check("resume.continues", not earlier, "resume.ignored", f"steps after {from_step}", f"steps {steps}")
    if not began.ok:
        return (began,)
    return (*prove_log("resume", resumed.metrics, range(from_step + 1, asked_steps + 1), asked_steps, cell.algorithm), began)


def _continuation(result: StepResult, from_step: int) -> _Continuation:
    rows = [row for row in result.metrics.rows if row.step > from_step]
    witness = rank_zero(result.witnesses)
    end = (witness.last("train_end") if witness else None) or {}
    return _Continuation(
        tuple(row.step for row in rows),
        tuple(math.nan if row.loss is None else row.loss for row in rows),
        tuple(math.nan if row.grad_norm is None else row.grad_norm for row in rows),
        str(end.get("trainable_digest") or ""),
    )


def _same_numbers(stage: str, reference: _Continuation, found: _Continuation, tolerance: Tolerance) -> list[Comparison]:
    aligned = reference.steps == found.steps and bool(found.steps)
    return [
        check_error(
            f"{stage}.{what}",
            "resume.differs",
            largest_difference(expected, seen),
            tolerance,
            f"{what.removesuffix('_equal')} of steps {list(reference.steps)} as in the straight run",
            ok=aligned,
        )
        for what, expected, seen in (
            ("losses_equal", reference.losses, found.losses),
            ("grad_norms_equal", reference.grad_norms, found.grad_norms),
        )
    ]


def _same_weights(
    stage: str,
    reference: _Continuation,
    found: _Continuation,
    hardware: Hardware,
    dtype: str,
    finals: tuple[TensorFile, TensorFile] | None,
) -> Comparison:
    name = f"{stage}.weights_equal"
    if not hardware.is_npu:
        same = bool(reference.digest) and reference.digest == found.digest
        return check(name, same, "resume.differs", f"final digest {reference.digest[:12]}", found.digest[:12] or "none")
    tolerance = weights_tolerance(hardware, dtype)
    error = _largest_weight_difference(*finals) if finals else math.inf
    return check_error(name, "resume.differs", error, tolerance, "every final tensor as in the straight run")


def _largest_weight_difference(reference: TensorFile, found: TensorFile) -> float:
    """Over tensors: max |difference| / max |reference entry|. Infinity if names or shapes differ, or there is nothing to compare."""
    if not reference.usable or not found.usable or reference.tensors.keys() != found.tensors.keys():
        return math.inf
    largest = 0.0
    for name, tensor in reference.tensors.items():
        if tensor.shape != found.tensors[name].shape:
            return math.inf
        expected, seen = tensor.values(), found.tensors[name].values()
        if expected.size:
            difference, scale = float(abs(expected - seen).max()), float(abs(expected).max())
            largest = max(largest, difference / scale if scale else (math.inf if difference else 0.0))
        if math.isnan(largest):
            return math.inf
    return largest


def _prove_control(
    name: str, control: StepResult | None, reference: _Continuation, from_step: int, hardware: Hardware, dtype: str
) -> list[Comparison]:
    """That control `name` ran, lost its optimizer state as witnessed, and is told apart by the check that `resumed` passed."""
    lacking = "it did not run" if control is None else _not_a_control(name, control, from_step)
    ran = check(f"resume.control.{name}.ran", not lacking, "resume.control_missing", "a witnessed control", lacking or "witnessed")
    if control is None or lacking:
        return [ran]
    found = _continuation(control, from_step)
    tolerance = logged_tolerance(hardware, dtype)
    numbers = _same_numbers("control", reference, found, tolerance)
    caught = [c for c in numbers if not c.ok]
    if not hardware.is_npu and not _same_weights("control", reference, found, hardware, dtype, None).ok:
        caught.append(numbers[0])
    deviation = max((c.error for c in numbers if c.error is not None), default=math.nan)
    return [
        ran,
        Comparison(
            f"resume.control.{name}.fails",
            bool(caught),
            f"a deviation above {tolerance.value:.3g}, or another final digest",
            f"largest deviation {deviation:.3g}",
            cause="" if caught else "resume.control_passed",
            blame=blame_of("resume.control_passed"),
            error=deviation if math.isfinite(deviation) else None,
            tolerance=tolerance.value,
            source=tolerance.source,
        ),
    ]


def _not_a_control(name: str, control: StepResult, from_step: int) -> str:
    """Why `control` is none: "" if it is."""
    if control.run.exit_code != 0:
        return f"it ended with exit code {control.run.exit_code}"
    process, witness = prove_process("control", control, "train_end")
    if witness is None:
        return next(f"{c.name}: {c.found}" for c in process if not c.ok)
    begin = witness.last("train_begin") or {}
    if not any(row.step > from_step for row in control.metrics.rows):
        return f"it logged no step after {from_step}"
    if name == ZERO_MOMENTS:
        return "" if begin.get("control") == ZERO_MOMENTS else f"control {begin.get('control')!r} witnessed"
    norm = begin.get("optimizer_moment_norm")
    return "" if not norm else f"its optimizer had moments (norm {norm})"
