"""Proof of training: what was logged, what was witnessed, and (harness/proof_checkpoint.py) what was saved.

Comparisons come in an order in which the first that fails is the cause; one whose input is missing is left out, since the
failure that made it missing has been written down, and `missing_required` refuses a pass without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.commands_asked import asked_dtype, asked_ranks
from harness.compare import check
from harness.found import AskedLora, CheckpointFiles
from harness.metrics import duplicated_steps
from harness.model import Algorithm, Cell, Comparison, Hardware, MetricRow, Metrics, StepResult, Weights, Witness
from harness.proof_asked import prove_arguments
from harness.proof_checkpoint import layout_of, packs_experts, prove_checkpoints, wanted_modules
from harness.proof_options import prove_options
from harness.proof_process import prove_device, prove_process
from harness.proof_sanity import prove_logged
from harness.proof_strategy import prove_strategy
from harness.tensors import TensorFile

# TRL's PPO logs loss/policy_avg and the like, no loss and no grad_norm, and skips the callbacks of a step: it is proved by digests.
LOGS_NO_LOSS = frozenset({Algorithm.PPO})
# Where each answer is weighed against its group's mean, the loss of a first pass over it is zero by construction.
LOSS_MAY_STAND = frozenset({Algorithm.GRPO, Algorithm.RLOO})
FEW_ROWS = 3


def prove_train(
    *,
    cell: Cell,
    hardware: Hardware,
    weights: Weights,
    result: StepResult,
    asked_steps: int,
    save_steps: Sequence[int],
    checkpoints: Mapping[int, CheckpointFiles],
    base: TensorFile,
    asked_lora: AskedLora | None,
    device_names: Sequence[str] = (),
) -> tuple[Comparison, ...]:
    """Design section 4, row `train`. `save_steps` names every step at which a checkpoint must lie, the last one included."""
    made = list(prove_log("train", result.metrics, range(1, asked_steps + 1), asked_steps, cell.algorithm))
    sound = all(c.ok for c in made)
    process, witness = prove_process("train", result, "train_end")
    made += process
    if witness is None:
        return tuple(made)
    made += prove_begun("train", cell, hardware, result, witness, 0, asked_steps, device_names)
    made += prove_logged("train", result.metrics, witness) if sound and cell.algorithm not in LOGS_NO_LOSS else ()
    found = base.fault or f"{len(base.tensors)} tensors"
    made.append(check("train.base_model", base.usable, "proof.base_unreadable", "the base model's weights", found))
    if witness.last("train_begin") is None or not base.usable:
        return tuple(made)
    made += _prove_change(cell, witness, asked_steps)
    made += _prove_adapter(witness, asked_lora, base)
    made += prove_checkpoints(
        weights=weights,
        witness=witness,
        nonce=result.run.nonce,
        steps=save_steps,
        found=checkpoints,
        base=base,
        asked=asked_lora,
        layout=layout_of(cell.strategy, cell.options.fsdp_config, asked_dtype(result.step)),
        ranks=asked_ranks(result.step),
    )
    return tuple(made)


def prove_log(stage: str, metrics: Metrics, steps: Iterable[int], max_steps: int, algorithm: Algorithm) -> tuple[Comparison, ...]:
    """Exactly `steps`, each logged once and in order, with finite losses and finite, positive gradient norms."""
    wanted = tuple(steps)
    rows = metrics.rows
    made = [check(f"{stage}.log", bool(rows or metrics.faults), "proof.no_log", "logged steps", f"{len(rows)} rows")]
    if not made[0].ok:
        return tuple(made)
    damage = "; ".join(metrics.faults)
    made.append(check(f"{stage}.rows_whole", not damage, "proof.row_damaged", "whole rows only", damage or "whole"))
    repeated = duplicated_steps(metrics)
    made.append(check(f"{stage}.rows_once", not repeated, "proof.rows_duplicated", "each step once", list(repeated) or "once each"))
    made += _prove_numbers(stage, metrics, algorithm)
    made += _prove_steps(stage, rows, wanted, max_steps, excuse=len(metrics.faults))
    return tuple(made)


def _prove_steps(stage: str, rows: Sequence[MetricRow], wanted: tuple[int, ...], max_steps: int, excuse: int) -> list[Comparison]:
    seen = [row.step for row in rows]
    missing = sorted(set(wanted) - set(seen))
    extra = sorted(set(seen) - set(wanted))
    found = f"steps {seen}"
    made = []
    # A damaged row has been written down as such; its step is not missing a second time.
    if not (missing and len(missing) <= excuse):
        made.append(check(f"{stage}.steps", not missing, "proof.steps_missing", f"steps {list(wanted)}", found))
    made.append(check(f"{stage}.no_extra_steps", not extra, "proof.steps_extra", f"steps {list(wanted)}", found))
    if len(seen) == len(set(seen)):
        made.append(check(f"{stage}.order", seen == sorted(seen), "proof.rows_unordered", "steps in order", found))
    if not missing and not extra:
        totals = sorted({row.max_steps for row in rows})
        made.append(check(f"{stage}.max_steps", totals == [max_steps], "proof.steps_extra", f"max_steps {max_steps}", totals))
    return made


def _prove_numbers(stage: str, metrics: Metrics, algorithm: Algorithm) -> list[Comparison]:
    rows = metrics.rows
    numbers = [(f"step {row.step} {what}", value) for row in rows for what, value in (("loss", row.loss), ("grad_norm", row.grad_norm))]
    numbers.append(("train_loss", _as_float(metrics.summary.get("train_loss"))))
    wild = [f"{what} {value}" for what, value in numbers if value is not None and not math.isfinite(value)]
    made = [check(f"{stage}.finite", not wild, "train.nan", "finite losses and gradients", ", ".join(wild) or "finite")]
    if algorithm in LOGS_NO_LOSS:
        return made
    lossless = [row.step for row in rows if row.loss is None]
    # A value that is no number has been written down as damage of its row.
    if not metrics.faults:
        made.append(check(f"{stage}.losses", not lossless, "proof.row_damaged", "a loss each step", lossless or "one each"))
    flat = [f"step {row.step}: {row.grad_norm}" for row in rows if row.grad_norm is None or row.grad_norm <= 0]
    if not metrics.faults or any(row.grad_norm is not None and row.grad_norm <= 0 for row in rows):
        made.append(check(f"{stage}.gradients", not flat, "proof.grad_zero", "grad_norm > 0 each step", ", ".join(flat) or "positive"))
    made += _prove_movement(stage, rows, algorithm)
    return made


def _prove_movement(stage: str, rows: Sequence[MetricRow], algorithm: Algorithm) -> list[Comparison]:
    """Numbers of a training that goes somewhere: not one loss for all rows, and a rate that is above zero somewhere."""
    losses = [row.loss for row in rows]
    # Two losses may well be equal: DPO's are ln 2 until the adapter has moved.
    frozen = len(losses) >= FEW_ROWS and len(set(losses)) == 1 and losses[0] is not None
    told = f"{losses[0]} in each of {len(losses)} rows" if frozen else f"{len(set(losses))} losses in {len(losses)} rows"
    rates = [row.learning_rate for row in rows]
    moving = any(rate is not None and rate > 0 for rate in rates)
    made = [check(f"{stage}.rates", moving, "proof.learning_rate_zero", "a learning rate above zero", rates)]
    if algorithm not in LOSS_MAY_STAND:
        made.insert(0, check(f"{stage}.losses_move", not frozen, "proof.constant_loss", "losses that differ", told))
    return made


def prove_begun(
    stage: str,
    cell: Cell,
    hardware: Hardware,
    result: StepResult,
    witness: Witness,
    global_step: int,
    max_steps: int,
    device_names: Sequence[str] = (),
) -> tuple[Comparison, ...]:
    """Device, strategy and where training began, as witnessed. For resume: `global_step` is the checkpoint's step."""
    begin = witness.last("train_begin")
    if begin is None:
        return (check(f"{stage}.begun", False, "proof.witness_missing", "event train_begin", "none"),)
    made = [
        prove_device(stage, hardware, witness, [begin], device_names),
        *prove_strategy(stage, cell.strategy, hardware, asked_ranks(result.step), result),
        check(
            f"{stage}.begun",
            begin.get("global_step") == global_step,
            "resume.ignored" if global_step else "proof.steps_missing",
            f"training begins at step {global_step}",
            f"at {begin.get('global_step')}",
        ),
    ]
    # PPO computes its number of updates by itself.
    if cell.algorithm not in LOGS_NO_LOSS:
        found = begin.get("max_steps")
        made.append(check(f"{stage}.max_steps_witnessed", found == max_steps, "proof.steps_extra", f"max_steps {max_steps}", found))
    made.append(prove_options(stage, cell.options, cell.tuner, begin, witness.last("train_end") or {}))
    control = begin.get("control")
    made.append(check(f"{stage}.no_control", control is None, "proof.optimizer", "no negative control in force", control))
    made.append(prove_arguments(stage, result, begin))
    return tuple(made)


def _prove_change(cell: Cell, witness: Witness, asked_steps: int) -> list[Comparison]:
    begin, end = witness.last("train_begin") or {}, witness.last("train_end") or {}
    before, after = begin.get("trainable_digest"), end.get("trainable_digest")
    changed = bool(before) and bool(after) and before != after
    made = [check("train.weights_changed", changed, "proof.weights_unchanged", f"another digest than {before}", after)]
    if cell.algorithm in LOGS_NO_LOSS:
        return made
    taken = [event.get("step") for event in witness.all("step")]
    wanted = list(range(1, asked_steps + 1))
    made.append(check("train.steps_witnessed", taken == wanted, "proof.steps_missing", f"steps {wanted} taken", f"{taken}"))
    return made


def _prove_adapter(witness: Witness, asked: AskedLora | None, base: TensorFile) -> list[Comparison]:
    begin, end = witness.last("train_begin") or {}, witness.last("train_end") or {}
    lora = begin.get("lora")
    if asked is None:
        return [check("train.no_adapter", lora is None, "proof.adapter_modules", "no adapter: every weight is trained", lora)]
    if not isinstance(lora, Mapping):
        return [check("train.adapter", False, "proof.adapter_modules", "a LoRA", "none witnessed")]
    expected = {"r": asked.rank, "lora_alpha": asked.alpha, "scaling": asked.scaling}
    found = {name: lora.get(name) for name in expected}
    wanted, sat = wanted_modules(base, asked, packs_experts(witness)), witnessed_modules(begin)
    largest = _as_float(end.get("lora_b_max_abs"))
    moved = largest is not None and math.isfinite(largest) and largest > 0
    return [
        check("train.adapter", found == expected, "proof.adapter_rank", expected, found),
        check("train.adapter_modules", bool(sat) and sat == wanted, "proof.adapter_modules", _modules(wanted), _difference(wanted, sat)),
        check("train.lora_b", moved, "proof.lora_b_zero", "a LoRA B that is not zero", f"largest entry {largest}"),
    ]


def witnessed_modules(begin: Mapping[str, Any]) -> frozenset[str]:
    """The modules that got a LoRA, by the base model's names."""
    names = begin.get("adapter_modules")
    return frozenset(str(n).removeprefix("base_model.model.") for n in names) if isinstance(names, list) else frozenset()


def _modules(names: frozenset[str]) -> str:
    return f"{len(names)} modules ({', '.join(sorted({name.rpartition('.')[2] for name in names}))})"


def _difference(wanted: frozenset[str], found: frozenset[str]) -> str:
    lacking, extra = sorted(wanted - found), sorted(found - wanted)
    return f"{_modules(found)}; lacking {lacking[:4]}, extra {extra[:4]}" if lacking or extra else _modules(found)


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
