"""The document's table of device memory with the measured peaks beside it, and the same rows again from tiny models, marked so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.cell_facts import changes
from harness.evidence import rank
from harness.matrix_claims import row_text
from harness.model import Cell, Claim, Evidence, Hardware, Stage, VerdictKind, Weights
from harness.redact import escape_markdown
from harness.render_seed import Cells, SeedPage, SeedTable
from harness.render_seed_words import seed_columns
from harness.support import worked_on

# Train stages that passed, on whatever.
Trained = tuple[Evidence, ...]
Measured = Callable[[SeedPage, Trained, Claim, Cell], Cells]
_FIELDS = ("model_size", "npus", "deepspeed", "max_memory")


@dataclass(frozen=True)
class Peak:
    """What the ranks of one training run took, each number that of the rank with most, in MiB (2^20 bytes), in how many `steps`."""

    ranks: int
    reserved_mib: float
    allocated_mib: float
    rss_mib: float
    steps: int


def peak_of(piece: Evidence) -> Peak | None:
    """The peaks that the witnesses of the piece's step `train` tell; None unless every rank of it tells all of them."""
    nonces = {run.nonce for run in piece.runs if run.step == "train"}
    seen: dict[int, tuple[float, float, float, int]] = {}
    worlds: set[object] = set()
    for witness in piece.witnesses:
        told = _told(witness) if witness.get("nonce") in nonces else None
        if told is not None:
            worlds.add(witness.get("world_size"))
            seen[int(witness["rank"])] = told
    if not seen or worlds != {len(seen)} or set(seen) != set(range(len(seen))):
        return None
    reserved, allocated, rss, steps = zip(*seen.values(), strict=True)
    return Peak(len(seen), max(reserved), max(allocated), max(rss), max(steps))


def memory_tables(seed: SeedPage) -> tuple[SeedTable, ...]:
    """The document's table, and its rows from tiny models; nothing where matrix.yaml has no such table."""
    if "memory" not in seed.page.matrix.tables:
        return ()
    evidence = seed.page.table.evidence
    trained = tuple(e for e in evidence if e.stage is Stage.TRAIN and e.verdict.kind is VerdictKind.PASSED and e.hardware)
    return (
        _table(seed, trained, "memory", f"## {seed.words['memory']}", _real, seed.page.readings("memory")),
        _table(seed, trained, "tiny", f"### {seed.words['tiny']}", _tiny),
    )


def _table(seed: SeedPage, trained: Trained, name: str, heading: str, measured: Measured, below: Cells = ()) -> SeedTable:
    """A row of the document for each cell that it means; one without a cell says why, in the column before the stack's."""
    columns, rows = seed_columns(name, seed.page.language), []
    for row in seed.page.matrix.tables["memory"]:
        claims = seed.page.claims.get(row_text(row), [])
        words = tuple(escape_markdown(str(seed.page.value(row, field))) for field in _FIELDS)
        cells = [(claim, cell) for claim in claims if claim.cell and (cell := seed.page.matrix.cell(claim.cell)) is not None]
        blank = ("",) * (len(columns) - len(words) - 3)
        rows += [(*words, *measured(seed, trained, claim, cell)) for claim, cell in cells] or [
            (*words, *blank, seed.no_cell(claims), "", "")
        ]
    return SeedTable(heading, (seed.words[f"{name}_above"],), columns, tuple(rows), below)


def _real(seed: SeedPage, trained: Trained, claim: Claim, cell: Cell) -> Cells:
    """Peaks of the documented weights on the documented hardware, or why there are none; then the stack and the evidence."""
    found = _newest(seed, trained, cell, Weights.REAL, claim.target)
    if found is None:
        return ("", "", seed.words["no_real_run"].format(hardware=claim.target), "", "")
    peak = peak_of(found)
    proof = (seed.page.versions(found.versions), seed.page.link(found))
    if peak is None or not peak.reserved_mib:
        return ("", "", seed.words["no_peak"], *proof)
    sizes = [f"{peak.ranks} * {mib / 1024:.1f} GiB" for mib in (peak.reserved_mib, peak.allocated_mib)]
    return (*map(escape_markdown, sizes), seed.words["steps"].format(steps=peak.steps), *proof)


def _tiny(seed: SeedPage, trained: Trained, claim: Claim, cell: Cell) -> Cells:
    """Peaks of a tiny model in the cell's place: on the documented hardware, else simulated, else on a plain cpu."""
    for hardware in filter(None, (claim.target, Hardware.SIM, Hardware.CPU)):
        found = _newest(seed, trained, cell, Weights.TINY, hardware)
        if found is None:
            continue
        where = seed.words["on_npu" if hardware.is_npu else f"on_{hardware}"].format(hardware=hardware)
        proof = (where, seed.page.versions(found.versions), seed.page.link(found))
        peak = peak_of(found)
        if peak is None:
            return (seed.words["no_peak"], "", "", *proof)
        reserved, allocated, rss = (
            escape_markdown(f"{peak.ranks} * {mib:.1f} MiB") for mib in (peak.reserved_mib, peak.allocated_mib, peak.rss_mib)
        )
        none = seed.words["no_device"]
        return (*((none, none) if hardware is Hardware.CPU else (reserved, allocated)), rss, *proof)
    return ("", "", "", seed.words["no_tiny_run"], "", "")


def _newest(seed: SeedPage, trained: Trained, cell: Cell, weights: Weights, hardware: Hardware | None) -> Evidence | None:
    """The run there that says something of the cell as matrix.yaml has it now: the cell's own first, then the newest."""
    found = []
    for piece in trained:
        about = piece.cell == cell.id if weights is Weights.REAL else piece.tiny_key == cell.tiny_key
        there = piece.weights is weights and worked_on(piece) is hardware
        if about and there and not changes(piece, cell, seed.page.matrix):
            found.append(piece)
    return max(found, key=lambda piece: (piece.cell == cell.id, rank(piece)), default=None)


def _told(witness: Mapping[str, Any]) -> tuple[float, float, float, int] | None:
    """Reserved, allocated, resident, in MiB, and the number of steps; None where one is missing."""
    steps, end = witness.get("steps"), witness.get("end")
    if not isinstance(steps, Mapping) or not isinstance(witness.get("rank"), int):
        return None
    resident = end.get("peak_rss_mib") if isinstance(end, Mapping) else None
    told = (steps.get("peak_reserved_mib"), steps.get("peak_allocated_mib"), steps.get("rss_mib") if resident is None else resident)
    numbers = [float(number) for number in told if isinstance(number, int | float)]
    if len(numbers) < len(told) or not isinstance(steps.get("step"), list | tuple):
        return None
    reserved, allocated, rss = numbers
    return reserved, allocated, rss, len(steps["step"])
