"""Evidence of whole runs on an NPU with real weights, such as a store takes and the real fold decides on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from evidence_samples import sample

from harness.cell_facts import cell_facts
from harness.evidence import sealed
from harness.judge import rejudge
from harness.matrix import parse_matrix
from harness.model import Comparison, Evidence, Hardware, Stage, VerdictKind, Weights
from harness.proof_required import Asked, required
from harness.rules import required_stages
from harness.store import Store

REVISION = "c1899de289a04d12100db370d81485cdf75e47ca"
# The repository's own, as it will be once somebody pins the checkpoints: without that nothing is ever verified.
MATRIX_TEXT = (Path(__file__).resolve().parent.parent / "matrix.yaml").read_text(encoding="utf-8")
MATRIX_TEXT = MATRIX_TEXT.replace("revision: unknown", f"revision: {REVISION}")
MATRIX = parse_matrix(MATRIX_TEXT, "matrix.yaml")
NEW, OLD = "2026-06-01T10:00:00+00:00", "2026-03-02T10:00:00+00:00"


def run(
    cell_id: str, fails: Stage | None = None, at: str = NEW, hardware: Hardware = Hardware.A2, weights: Weights = Weights.REAL
) -> tuple[Evidence, ...]:
    """Every required stage of the cell passed, up to the one that `fails`."""
    cell = MATRIX.cell(cell_id)
    assert cell is not None, cell_id
    found: list[Evidence] = []
    for stage in required_stages(cell.algorithm, cell.tuner, cell.engine):
        kind = VerdictKind.FAILED if stage is fails else VerdictKind.PASSED
        names = required(stage, Asked(weights, cell.tuner, cell.algorithm, cell.strategy, hardware))
        made = tuple(Comparison(name, True, "as asked", "as asked") for name in names)
        piece = sample(cell_id, stage, kind, hardware, weights, at, facts=cell_facts(cell), tiny_key=cell.tiny_key)
        words = ("sft", "--model", cell.model.id, "--model_revision", REVISION)
        step = replace(piece.steps[0], command=replace(piece.steps[0].command, args=words))
        asking = replace(piece, steps=(step,), runs=(replace(piece.runs[0], argv=step.command.argv),))
        found.append(sealed(asking if stage is fails else replace(asking, comparisons=made)))
        if stage is fails:
            break
    return tuple(found)


def stored(root: Path, evidence: Iterable[Evidence]) -> Store:
    """The repository's store under `root`, with its evidence judged again as it is read."""
    store = Store(root, root / ".harness" / "evidence", rejudge, now=lambda: datetime(2026, 12, 1, tzinfo=timezone.utc))
    for piece in evidence:
        store.save(piece)
    return store
