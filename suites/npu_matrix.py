"""pytest -m npu_matrix: each (cell, stage) of this host as a test item.

Cells run ahead in the session's pool; an item waits for its stage and says what the verdict means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.model import Evidence, RulingKind, VerdictKind
from harness.session import Session, Wanted

SKIPS = (VerdictKind.UNTESTED, VerdictKind.NOT_RUNNABLE, VerdictKind.EXCLUDED)


class StageItem(pytest.Item):
    """One stage of one cell; its name is `cell::stage`."""

    def __init__(self, *, ours: Session, wanted: Wanted, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ours, self.wanted = ours, wanted
        self.measured_s: float | None = None

    def runtest(self) -> None:
        ruling = self.ours.ruling(self.wanted.cell)
        if ruling.kind in (RulingKind.EXCLUDED, RulingKind.NOT_RUNNABLE):
            pytest.skip(f"{ruling.kind}: {ruling.because}")
        evidence = self.ours.wait(self.wanted)
        self.measured_s = evidence.duration_s
        if evidence.cell != self.wanted.cell.id:
            self.add_report_section("call", "evidence", f"answered by the tiny run of {evidence.cell}, same family and settings")
        verdict = evidence.verdict
        if verdict.kind is VerdictKind.KNOWN_FAILURE:
            pytest.xfail(verdict.because)
        if verdict.kind is VerdictKind.BLOCKED:
            self.blocked(evidence)
        if verdict.kind in SKIPS:
            pytest.skip(f"{verdict.kind}: {verdict.because}")
        if verdict.kind is not VerdictKind.PASSED and not self.ours.is_only_reported(evidence):
            raise StageFailed(evidence)

    def blocked(self, evidence: Evidence) -> None:
        """Green only if an item of this run tells of the stage that stands in the way: else nobody would."""
        blocker = str(evidence.facts["blocked_by"])
        if evidence.facts.get("blocked_verdict") == VerdictKind.KNOWN_FAILURE:
            pytest.xfail(f"{evidence.verdict.because}: {evidence.ruling.because}")
        if self.ours.is_selected(self.wanted, blocker):
            pytest.skip(f"blocked: {evidence.verdict.because}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, StageFailed):
            return self.ours.explain_failure(excinfo.value.evidence)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, self.name


class StageFailed(Exception):
    """The verdict on this stage is not green."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.verdict.because)
        self.evidence = evidence


def items(parent: pytest.Collector, ours: Session) -> Iterator[pytest.Item]:
    mark = pytest.mark.npu_matrix
    for wanted in ours.all_wanted():
        item = StageItem.from_parent(parent, name=f"{wanted.cell.id}::{wanted.stage}", ours=ours, wanted=wanted)
        item.add_marker(mark)
        yield item
