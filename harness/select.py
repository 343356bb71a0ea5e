"""Which cells a run is about."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from harness.errors import HarnessError
from harness.model import Cell, Matrix, Stage, Tier
from harness.rules import applicable_stages

_COST = {tier: cost for cost, tier in enumerate(Tier)}


def select_cells(matrix: Matrix, *, tier: Tier | None = None, ids: Iterable[str] = ()) -> tuple[Cell, ...]:
    """The cells of a run, in the matrix's order. Cells of tier `contract` are only ever parsed, never selected.

    Args:
        tier: takes the cells that cost at most this; None takes every tier.
        ids: takes these cells only; empty takes all.

    Returns:
        Perhaps nothing (tier `contract`): whoever asked decides that an empty selection is an error.

    Raises:
        HarnessError: an id that the matrix lacks, or that `tier` leaves out.
    """
    wanted = tuple(dict.fromkeys(ids))
    limit = _COST[tier] if tier is not None else max(_COST.values())
    runnable = {c.id: c for c in matrix.cells if _COST[Tier.CONTRACT] < _COST[c.tier] <= limit}
    if not wanted:
        return tuple(runnable.values())
    for cell_id in wanted:
        if cell_id not in runnable:
            raise _not_selectable(matrix, cell_id, tier)
    return tuple(c for c in runnable.values() if c.id in set(wanted))


def stages_in(cell: Cell, tier: Tier) -> tuple[Stage, ...]:
    """The stages of `cell` that a run of `tier` is about, in running order: tier weekly, the last one, takes all."""
    found = applicable_stages(cell)
    return found if cell.stages is None or tier is Tier.WEEKLY else tuple(stage for stage in found if stage in cell.stages)


def _not_selectable(matrix: Matrix, cell_id: str, tier: Tier | None) -> HarnessError:
    cell = matrix.cell(cell_id)
    if cell is None:
        close = difflib.get_close_matches(cell_id, [c.id for c in matrix.cells], n=3, cutoff=0.5)
        guess = f"Perhaps {' or '.join(repr(c) for c in close)}?" if close else "`python -m harness list` names them."
        return HarnessError(matrix.source, f"no cell is called {cell_id!r}.", guess)
    where = f"{matrix.source}:{cell.line}"
    if cell.tier is Tier.CONTRACT:
        return HarnessError(where, f"{cell_id} is of tier contract: it is parsed, not run.", "Give its block another tier to run it.")
    return HarnessError(where, f"{cell_id} is of tier {cell.tier}, which --tier {tier} leaves out.", f"Ask for --tier {cell.tier}.")
