"""The lies, as a closed table: each is the honest fake with one deviation, and says what a harness must find.

Imported by the fake program as well, so nothing of the harness is imported here; a test holds the causes against its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fakes.honest.habits import Honest
from fakes.liars import answering, files, logs, merging, processes, resuming, serving, weights, witnessing
from fakes.liars.lie import Lie as Lie

LIES: tuple[Lie, ...] = (
    *logs.LIES,
    *weights.LIES,
    *files.LIES,
    *witnessing.LIES,
    *processes.LIES,
    *resuming.LIES,
    *merging.LIES,
    *answering.LIES,
    *serving.LIES,
)


def habits_of(name: str, settings: Mapping[str, Any]) -> Honest:
    """The habits of the lie called `name`. Raises KeyError for a name that the table does not hold."""
    return {lie.name: lie for lie in LIES}[name].habits(settings)
