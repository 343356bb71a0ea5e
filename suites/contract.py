"""pytest -m contract: every command of every cell, in the NPU form and in the tiny form, parsed by the installed ms-swift's own classes.

Nothing is run and no model is loaded. Which interpreter's ms-swift was asked is said at the end: `swift` on PATH may be another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.commands import NotBuilt, contract_commands, normalised, not_built, shell_line, stages_of
from harness.contract import Finding
from harness.model import Cell, Step
from harness.session import Session
from harness.swift_parsers import check_command


class ContractItem(pytest.Item):
    """All commands of one cell."""

    def __init__(self, *, ours: Session, cell: Cell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ours, self.cell = ours, cell

    def runtest(self) -> None:
        steps = contract_commands(self.cell)
        if not steps:
            pytest.skip("; ".join(sorted({not_built(self.cell, stage) for stage in stages_of(self.cell)})))
        self.ours.parsed.update(normalised(step.command.argv) for step in steps)
        refused = [(step, findings) for step in steps if (findings := check_command(step))]
        if refused:
            raise Refused(refused)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Refused):
            return "\n".join(_told(self.cell, step, findings) for step, findings in excinfo.value.refused)
        if isinstance(excinfo.value, NotBuilt):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, self.name


class Refused(Exception):
    """The installed ms-swift refuses commands of this cell."""

    def __init__(self, refused: list[tuple[Step, tuple[Finding, ...]]]) -> None:
        super().__init__(f"{len(refused)} commands are refused")
        self.refused = refused


def _told(cell: Cell, step: Step, findings: tuple[Finding, ...]) -> str:
    faults = "\n".join(f"  {finding.kind}: {finding.message}" for finding in findings)
    return f"{cell.id} {step.name}: refused by the installed ms-swift\n{faults}\n  {shell_line(step)}"


def items(parent: pytest.Collector, ours: Session) -> Iterator[pytest.Item]:
    parent.add_marker(pytest.mark.contract)
    for cell in ours.matrix.cells:
        yield ContractItem.from_parent(parent, name=cell.id, ours=ours, cell=cell)
