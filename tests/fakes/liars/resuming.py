"""Lies of resuming: from nowhere, from half of it, or with controls that control nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.honest.habits import Honest
from fakes.honest.tensors import Array
from fakes.liars.lie import Lie


class Anew(Honest):
    def resumed_from(self, checkpoint: str) -> str:
        return ""


class AnewInDisguise(Honest):
    """Training begins anew, which repeats the straight run's numbers; rows and witness speak of the later steps only."""

    def resumed_from(self, checkpoint: str) -> str:
        return ""

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        step = int(str(row.get("global_step/max_steps", "9/9")).split("/")[0])
        return [] if step <= 3 else super().log_lines(row)

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any] | None:
        if event["event"] == "train_begin":
            return {**event, "global_step": 3, "optimizer_moment_norm": 1.0}
        return None if event["event"] in ("step", "log", "save") and event["step"] <= 3 else event


class Untrained(Honest):
    """Untrained weights, under the step and the optimizer of the checkpoint."""

    def restored(self, fresh: dict[str, Array], kept: dict[str, Array]) -> dict[str, Array]:
        return fresh


class Blurred(Honest):
    """The checkpoint's weights, a little off."""

    def restored(self, fresh: dict[str, Array], kept: dict[str, Array]) -> dict[str, Array]:
        return {name: array * np.float32(1.001) for name, array in kept.items()}


class Forgetful(Honest):
    """Weights and step are restored, the optimizer is not."""

    def optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "state": {}}


class ForgetfulInDisguise(Forgetful):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "optimizer_moment_norm": 1.0} if event["event"] == "train_begin" and not event["control"] else event


class AtAnotherStep(Honest):
    """The weights of step 3 are loaded, and the count goes on from 4."""

    def first_step(self, step: int) -> int:
        return step + 1


class Stateless(Honest):
    """Steps along the gradient alone: the moments are kept, saved and loaded, and matter to nothing."""

    def direction(self, first: Array, second: Array, gradient: Array) -> Array:
        return gradient


class Uncontrolled(Honest):
    """The negative control is not carried out."""

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        environment.pop("NPU_MATRIX_CONTROL", None)
        return argv


class KeepsEverything(Honest):
    """--resume_only_model restores the optimizer as well."""

    def only_model(self, asked: bool) -> bool:
        return False


LIES = (
    Lie("resume_ignored", "resume", "resume.ignored", "product", Anew),
    Lie("resume_pretended", "resume", "resume.ignored", "product", AnewInDisguise),
    Lie("resume_of_untrained_weights", "resume", "resume.ignored", "product", Untrained),
    Lie("resume_of_blurred_weights", "resume", "resume.differs", "product", Blurred),
    Lie("resume_at_another_step", "resume", "proof.steps_missing", "product", AtAnotherStep),
    Lie("optimizer_forgotten", "resume", "proof.optimizer", "product", Forgetful),
    Lie("optimizer_forgotten_in_silence", "resume", "resume.differs", "product", ForgetfulInDisguise),
    Lie("optimizer_without_memory", "resume", "resume.control_passed", "harness", Stateless, steps=()),
    Lie("control_ignored", "resume", "resume.control_missing", "harness", Uncontrolled, steps=("resume-zero-moments",)),
    Lie("only_model_ignored", "resume", "resume.control_missing", "harness", KeepsEverything, steps=("resume-only-model",)),
)
