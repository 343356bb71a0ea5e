"""One row of the table of lies."""

from __future__ import annotations

from dataclasses import dataclass

from fakes.honest.habits import Honest


@dataclass(frozen=True)
class Lie:
    """`stage`: the one that must not pass. `cause` and `blame`: ids of harness/causes.py and harness/model.py.

    `steps`: those in which the lie is told, by default the one that has the stage's name; empty: from the start, in every step. Honest
    ones lead up to it. `deadline_s`: how long the drill lets each command of the stage run, 0 for the usual.
    """

    name: str
    stage: str
    cause: str
    blame: str
    habits: type[Honest]
    tuner: str = "lora"
    steps: tuple[str, ...] | None = None
    deadline_s: float = 0.0

    def told_in(self, step: str) -> bool:
        return step in ((self.stage,) if self.steps is None else self.steps) or self.steps == ()
