"""One row of the table of lies."""

from __future__ import annotations

from dataclasses import dataclass

from fakes.honest.habits import Honest


@dataclass(frozen=True)
class Lie:
    """`stage`: the one that must not pass. `cause` and `blame`: ids of harness/causes.py and harness/model.py.

    `from_start`: the lie is told from training on; otherwise honest stages lead up to `stage`. `deadline_s`: how long the drill lets
    each command of the stage run, 0 for the usual.
    """

    name: str
    stage: str
    cause: str
    blame: str
    habits: type[Honest]
    tuner: str = "lora"
    from_start: bool = False
    deadline_s: float = 0.0
