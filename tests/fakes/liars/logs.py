"""Lies of the log: what was trained and what is written about it are two things."""

from __future__ import annotations

import json
from typing import Any

from fakes.honest.habits import Honest
from fakes.liars.lie import Lie


def _step(row: dict[str, Any]) -> int:
    """The step of a logged row, 0 for the summaries."""
    return int(str(row.get("global_step/max_steps", "0/0")).split("/")[0]) if "loss" in row else 0


class NoLog(Honest):
    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return []


class FewerSteps(Honest):
    def last_step(self, max_steps: int) -> int:
        return 4


class HiddenSteps(Honest):
    """All steps are trained, the last one is not logged."""

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return [] if _step(row) == 6 else super().log_lines(row)


class MoreSteps(Honest):
    def last_step(self, max_steps: int) -> int:
        return max_steps + 1


class Replaced(Honest):
    """One value of one row is another one."""

    key, value, at = "loss", "NaN", 3

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        if _step(row) != self.at:
            return super().log_lines(row)
        return [json.dumps({**row, self.key: "@"}).replace('"@"', self.value)]


class NanLoss(Replaced):
    pass


class NanAsText(Replaced):
    value = '"nan"'


class InfiniteGradient(Replaced):
    key, value = "grad_norm", "Infinity"


class ZeroGradient(Replaced):
    key, value = "grad_norm", "0.0"


class AnotherGoal(Honest):
    """Each row says that fewer steps were asked for than were."""

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return super().log_lines({**row, "global_step/max_steps": f"{_step(row)}/9"} if _step(row) else row)


class Duplicated(Honest):
    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return super().log_lines(row) * (2 if _step(row) == 2 else 1)


class HalfRow(Honest):
    def log_lines(self, row: dict[str, Any]) -> list[str]:
        line = super().log_lines(row)[0]
        return [line[: len(line) // 2] if _step(row) == 5 else line]


class Unordered(Honest):
    """Row 3 is written after row 4."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.held: list[str] = []

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        lines = super().log_lines(row)
        if _step(row) == 3:
            self.held = lines
            return []
        return [*lines, *self.held] if _step(row) == 4 else lines


class Frozen(Replaced):
    """One loss at every step."""

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return Honest.log_lines(self, {**row, "loss": 2.5} if _step(row) else row)


class Scaled(Honest):
    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return super().log_lines({**row, "loss": round(row["loss"] * 0.5, 8)} if _step(row) else row)


class Polished(Replaced):
    """The last digit of one gradient norm."""

    key, value = "grad_norm", "1.00000001"


class NoRate(Honest):
    def log_lines(self, row: dict[str, Any]) -> list[str]:
        return super().log_lines({**row, "learning_rate": 0.0} if _step(row) else row)


LIES = (
    Lie("one_loss_for_all_steps", "train", "proof.constant_loss", "product", Frozen),
    Lie("losses_halved", "train", "proof.log_differs", "product", Scaled),
    Lie("one_number_polished", "train", "proof.log_differs", "product", Polished),
    Lie("losses_halved_after_resume", "resume", "proof.log_differs", "product", Scaled),
    Lie("learning_rate_of_zero", "train", "proof.learning_rate_zero", "product", NoRate),
    Lie("no_log", "train", "proof.no_log", "product", NoLog),
    Lie("fewer_steps", "train", "proof.steps_missing", "product", FewerSteps),
    Lie("hidden_step", "train", "proof.steps_missing", "product", HiddenSteps),
    Lie("more_steps", "train", "proof.steps_extra", "product", MoreSteps),
    Lie("another_goal", "train", "proof.steps_extra", "product", AnotherGoal),
    Lie("nan_loss", "train", "train.nan", "product", NanLoss),
    Lie("nan_as_text", "train", "train.nan", "product", NanAsText),
    Lie("infinite_gradient", "train", "train.nan", "product", InfiniteGradient),
    Lie("zero_gradient", "train", "proof.grad_zero", "product", ZeroGradient),
    Lie("duplicated_row", "train", "proof.rows_duplicated", "product", Duplicated),
    Lie("half_row", "train", "proof.row_damaged", "product", HalfRow),
    Lie("rows_out_of_order", "train", "proof.rows_unordered", "product", Unordered),
)
