"""Which comparisons a stage can't pass without: a proof that left one out compared too little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.found import Way
from harness.model import Algorithm, Comparison, Stage, Tuner, Weights
from harness.proof_deploy import REQUIRED_DEPLOY
from harness.proof_infer import wanted_inferences
from harness.proof_resume import CONTROLS
from harness.proof_train import LOGS_NO_LOSS, LOSS_MAY_STAND

_PROCESS = ("witness", "nonce", "witness_whole", "witnessed", "argv", "is_swift", "witness_sane")
_LOG = (
    "log", "rows_whole", "rows_once", "finite", "steps", "no_extra_steps", "order", "max_steps", "losses", "gradients",
    "losses_move", "rates",
)  # fmt: skip
_BEGUN = ("device", "strategy", "begun", "max_steps_witnessed", "no_control", "arguments", "log_witnessed")
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
    Stage.DEPLOY: tuple(name.removeprefix("deploy.") for name in REQUIRED_DEPLOY),
}

# PPO logs no loss and no grad_norm, counts its updates by itself and skips the callbacks of a step.
_NOT_OF_PPO = frozenset(
    {"losses", "gradients", "losses_move", "rates", "max_steps_witnessed", "steps_witnessed", "log_witnessed"}
)


def required(stage: Stage, *, weights: Weights, tuner: Tuner, algorithm: Algorithm) -> tuple[str, ...]:
    """The full names that a passing proof of `stage` must hold. Raises KeyError for a stage that no proof is built for."""
    names = list(REQUIRED[stage])
    if stage is Stage.TRAIN:
        names += _TRAIN_FULL if tuner is Tuner.FULL else _TRAIN_LORA
        if weights is Weights.REAL:
            names.remove("checkpoint.digest")
    if stage is Stage.RESUME and weights is Weights.TINY:
        names += [f"control.{control}.{what}" for control in CONTROLS for what in ("ran", "fails")]
    if stage is Stage.INFER:
        for role, way in wanted_inferences(tuner):
            prefix = str(role) if way is Way.PLAIN else f"{role}.{way}"
            names += [f"{prefix}.{what}" for what in (*_INFER_ROLE, *_PROCESS, *(() if way is Way.PLAIN else ("equals_plain",)))]
            # A tiny model's tokenizer is ours, so its answers can always be decoded.
            names += [f"{prefix}.prompts"] if weights is Weights.TINY else []
        names += [] if tuner is Tuner.FULL else ["merged.equals_adapter"]
    if algorithm in LOSS_MAY_STAND:
        names = [name for name in names if name != "losses_move"]
    if algorithm in LOGS_NO_LOSS:
        names = [name for name in names if name not in _NOT_OF_PPO]
    return tuple(f"{stage}.{name}" for name in names)


def missing_required(
    stage: Stage, comparisons: Iterable[Comparison], *, weights: Weights, tuner: Tuner, algorithm: Algorithm
) -> tuple[str, ...]:
    """The required comparisons of `stage` that were never made, for `judge`."""
    made = {comparison.name for comparison in comparisons}
    return tuple(name for name in required(stage, weights=weights, tuner=tuner, algorithm=algorithm) if name not in made)
