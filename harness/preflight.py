"""What the doctor says before cells run on NPUs: which cells this host makes impossible, and what the rest may stumble over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.doctor import cell_obstacle, cleaned, examine
from harness.doctor_facts import Finding, Probe, Severity
from harness.doctor_host import gather
from harness.model import Cell, Matrix, Ruling, RulingKind

_RUNS = (RulingKind.RUN, RulingKind.EXPECT_FAIL)


@dataclass(frozen=True)
class Preflight:
    """Empty off NPUs, where nothing of this is asked."""

    findings: tuple[Finding, ...] = ()

    def ruling(self, cell: Cell, ruling: Ruling) -> Ruling:
        """`ruling`, or NOT_RUNNABLE where the cell would run and is certain to fail for want of something on this host."""
        obstacle = cell_obstacle(cell, self.findings) if ruling.kind in _RUNS else ""
        return replace(ruling, kind=RulingKind.NOT_RUNNABLE, because=f"doctor: {obstacle}") if obstacle else ruling

    @property
    def notes(self) -> list[str]:
        """One line where something blocks or degrades NPU work."""
        counts = Counter(f.severity for f in self.findings if f.severity is not Severity.NOTE)
        if not counts:
            return []
        worst = self.findings[0]
        told = " and ".join(f"{count} that {severity}" for severity, count in sorted(counts.items()))
        return [f"doctor: {told}, first: {worst.what}. `python -m harness doctor` tells all."]


def look(matrix: Matrix, root: Path | None, *, npu_said: str, clean: Callable[[str], str]) -> Preflight:
    """Examine this host, or the rehearsal's under `root`, once `npu_said` told that its NPUs are usable: so no second tensor is made."""
    facts = gather(root, probe=Probe(True, npu_said))
    return Preflight(cleaned(examine(facts, matrix.stacks), clean))
