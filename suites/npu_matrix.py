"""pytest -m npu_matrix: each (cell, stage) of this host as a test item, `suites/npu_matrix.py::CELL::STAGE`.

Cells run ahead in the session's pool; an item waits for its stage and says what the verdict means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.model import Cell, Evidence, RulingKind, Stage, VerdictKind
from harness.pool import Cancelled, Refused
from harness.retries import flaky_text
from harness.run_words import explain_failure
from harness.session import Session, Wanted, one_line

SKIPS = (VerdictKind.UNTESTED, VerdictKind.NOT_RUNNABLE, VerdictKind.EXCLUDED)


class StageItem(pytest.Item):
    """One stage of one cell."""

    def __init__(self, *, ours: Session, wanted: Wanted, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ours, self.wanted = ours, wanted
        self.measured_s: float | None = None

    def runtest(self) -> None:
        ruling = self.ours.ruling(self.wanted.cell)
        if ruling.kind in (RulingKind.EXCLUDED, RulingKind.NOT_RUNNABLE):
            pytest.skip(f"{ruling.kind}: {ruling.because}")
        try:
            evidence = self.ours.wait(self.wanted)
        except Refused as refusal:
            pytest.skip(str(refusal))
        self.measured_s = evidence.duration_s
        if evidence.cell != self.wanted.cell.id:
            self.add_report_section("call", "evidence", f"answered by the tiny run of {evidence.cell}, same family and settings")
        if flaky := flaky_text(evidence):
            self.add_report_section("call", "flaky", f"{self.wanted.cell.id} {self.wanted.stage}: {flaky}")
        verdict = evidence.verdict
        if verdict.kind is VerdictKind.KNOWN_FAILURE:
            pytest.xfail(verdict.because)
        if verdict.kind is VerdictKind.BLOCKED:
            self.blocked(evidence)
        if verdict.kind in SKIPS:
            pytest.skip(f"{verdict.kind}: {verdict.because}")
        if verdict.kind is not VerdictKind.PASSED and not self.ours.is_only_reported(evidence):
            self.quarantined(evidence)
            raise StageFailed(evidence)

    def blocked(self, evidence: Evidence) -> None:
        """Green only if an item of this run tells of the stage that stands in the way: else nobody would."""
        blocker = str(evidence.facts["blocked_by"])
        if evidence.facts.get("blocked_verdict") == VerdictKind.KNOWN_FAILURE:
            pytest.xfail(f"{evidence.verdict.because}: {evidence.ruling.because}")
        held = self.ours.quarantine(self.wanted.cell, Stage(blocker))
        if held and evidence.facts.get("blocked_verdict") == VerdictKind.FAILED:
            pytest.xfail(f"{evidence.verdict.because}, which is {held}")
        if self.ours.is_selected(self.wanted, blocker):
            pytest.skip(f"blocked: {evidence.verdict.because}")

    def quarantined(self, evidence: Evidence) -> None:
        """A failure that a quarantine is about stops nobody until its day, and is told all the same."""
        held = self.ours.quarantine(self.wanted.cell, self.wanted.stage)
        if held and evidence.verdict.kind in (VerdictKind.FAILED, VerdictKind.FIXED):
            self.add_report_section("call", "quarantine", explain_failure(evidence))
            pytest.xfail(f"{held}; {evidence.verdict.kind}: {evidence.verdict.because}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, StageFailed):
            return explain_failure(excinfo.value.evidence)
        if isinstance(excinfo.value, (HarnessError, OSError, Cancelled)):
            return f"{self.wanted.cell.id} {self.wanted.stage}: no verdict, {one_line(excinfo.value)} [blame environment]"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, f"{self.wanted.cell.id}::{self.name}"


class StageFailed(Exception):
    """The verdict on this stage is not green."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.verdict.because)
        self.evidence = evidence


class CellItems(pytest.Collector):
    """One cell: its name is the cell's, its items are the stages."""

    def __init__(self, *, ours: Session, cell: Cell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ours, self.cell = ours, cell

    def collect(self) -> Iterator[pytest.Item]:
        for stage in self.ours.stages(self.cell):
            yield StageItem.from_parent(self, name=str(stage), ours=self.ours, wanted=Wanted(self.cell, stage))


def items(parent: pytest.Collector, ours: Session) -> Iterator[pytest.Item | pytest.Collector]:
    parent.add_marker(pytest.mark.npu_matrix)
    for cell in ours.cells():
        yield CellItems.from_parent(parent, name=cell.id, ours=ours, cell=cell)
