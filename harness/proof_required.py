"""Which comparisons a stage can't pass without: a proof that left one out compared too little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.commands_tables import controls_of
from harness.found import Way
from harness.model import Algorithm, Comparison, Hardware, Stage, Strategy, Tuner, Weights
from harness.proof_deploy import REQUIRED_DEPLOY, SAME_ANSWER
from harness.proof_golden import REQUIRED_GOLDEN_INFER, REQUIRED_GOLDEN_TRAIN, REQUIRED_PARITY, REQUIRED_PATCHES
from harness.proof_infer import wanted_inferences
from harness.proof_train import LOGS_NO_LOSS, LOSS_MAY_STAND

_PROCESS = ("witness", "nonce", "witness_whole", "witnessed", "argv", "is_swift", "witness_sane")
_LOG = (
    "log", "rows_whole", "rows_once", "finite", "steps", "no_extra_steps", "order", "max_steps", "losses", "gradients",
    "losses_move", "rates",
)  # fmt: skip
_BEGUN = (
    "device", "ranks", "strategy", "shards", "optimizer_shards", "ranks_agree", "begun", "max_steps_witnessed", "options", "no_control",
    "arguments", "log_witnessed",
)  # fmt: skip
_TRAIN = (
    "base_model", "weights_changed", "steps_witnessed",
    *(f"checkpoint.{what}" for what in ("present", "whole", "of_this_run", "witnessed", "finite", "digest", "last", "optimizer")),
)  # fmt: skip
_TRAIN_LORA = ("adapter", "adapter_modules", "lora_b", "checkpoint.adapter", "checkpoint.modules", "checkpoint.lora_b")
_TRAIN_FULL = ("no_adapter", "checkpoint.trained")
_RESUME = ("continues", "loaded", "optimizer", "losses_equal", "grad_norms_equal", "weights_equal")
_MERGE = (
    "base_model", "files", "present", "config", "tokenizer",
    "tensors", "adapter", "adapter_shapes", "sensitive", "happened", "values", "rest",
    "logits_witnessed", "logits_finite", "logits", "logits_moved",
)  # fmt: skip
_INFER_ROLE = (
    "answers", "rows_whole", "rows", "questions", "not_empty", "device", "engine", "adapters", "generated", "not_repeated", "as_generated",
)  # fmt: skip

# Names of the comparisons without the stage before them, whatever the tuner, the weights and the algorithm.
REQUIRED: Mapping[Stage, tuple[str, ...]] = {
    Stage.TRAIN: (*_LOG, *_PROCESS, *_BEGUN, *_TRAIN),
    Stage.RESUME: (*_LOG, *_PROCESS, *_BEGUN, *_RESUME),
    Stage.MERGE: (*_PROCESS, *_MERGE),
    Stage.INFER: ("same_prompts", "differs_from_base"),
    Stage.DEPLOY: tuple(name.removeprefix("deploy.") for name in (*REQUIRED_DEPLOY, SAME_ANSWER)),
}

# PPO logs no loss and no grad_norm, counts its updates by itself and skips the callbacks of a step.
_NOT_OF_PPO = frozenset(
    {"losses", "gradients", "losses_move", "rates", "max_steps_witnessed", "steps_witnessed", "log_witnessed"}
)


@dataclass(frozen=True)
class Asked:
    """What decides which comparisons a pass takes. `hardware`: as asked for or witnessed, simulated if either was."""

    weights: Weights
    tuner: Tuner
    algorithm: Algorithm
    strategy: Strategy
    hardware: Hardware


def required(stage: Stage, asked: Asked) -> tuple[str, ...]:
    """The full names that a passing proof of `stage` must hold. Raises KeyError for a stage that no proof is built for."""
    return (*(f"{stage}.{name}" for name in _of_the_run(stage, asked)), *_beside(stage, asked))


def missing_required(stage: Stage, comparisons: Iterable[Comparison], asked: Asked) -> tuple[str, ...]:
    """The required comparisons of `stage` that were never made, for `judge`."""
    made = {comparison.name for comparison in comparisons}
    return tuple(name for name in required(stage, asked) if name not in made)


def has_golden(strategy: Strategy, hardware: Hardware, weights: Weights) -> bool:
    """Whether a run on a plain cpu stands beside a tiny one: of a simulated NPU, or of several ranks, which must agree with one process."""
    return weights is Weights.TINY and (hardware is Hardware.SIM or (hardware is Hardware.CPU and strategy is not Strategy.SINGLE))


def _beside(stage: Stage, asked: Asked) -> tuple[str, ...]:
    """Comparisons with a golden, and of the NPU patches that a simulated NPU takes."""
    if not has_golden(asked.strategy, asked.hardware, asked.weights):
        return ()
    if stage is Stage.TRAIN:
        names = REQUIRED_GOLDEN_TRAIN if asked.strategy is Strategy.SINGLE else REQUIRED_PARITY
        return (*names, *(REQUIRED_PATCHES if asked.hardware is Hardware.SIM else ()))
    return REQUIRED_GOLDEN_INFER if stage is Stage.INFER and asked.hardware is Hardware.SIM else ()


def _of_the_run(stage: Stage, asked: Asked) -> tuple[str, ...]:
    names = list(REQUIRED[stage])
    if stage is Stage.TRAIN:
        names += _TRAIN_FULL if asked.tuner is Tuner.FULL else _TRAIN_LORA
        if asked.weights is Weights.REAL:
            names.remove("checkpoint.digest")
    if stage is Stage.RESUME and asked.weights is Weights.TINY:
        names += [f"control.{control}.{what}" for control in controls_of(asked.strategy) for what in ("ran", "fails")]
    if stage is Stage.INFER:
        for role, way in wanted_inferences(asked.tuner, asked.strategy):
            prefix = str(role) if way is Way.PLAIN else f"{role}.{way}"
            names += [f"{prefix}.{what}" for what in (*_INFER_ROLE, *_PROCESS, *(() if way is Way.PLAIN else ("equals_plain",)))]
            # A tiny model's tokenizer is ours, so its answers can always be decoded.
            names += [f"{prefix}.prompts"] if asked.weights is Weights.TINY else []
        names += [] if asked.tuner is Tuner.FULL else ["merged.equals_adapter"]
    if asked.algorithm in LOSS_MAY_STAND:
        names = [name for name in names if name != "losses_move"]
    if asked.algorithm in LOGS_NO_LOSS:
        names = [name for name in names if name not in _NOT_OF_PPO]
    return tuple(names)
