"""pytest -m npu_benchmark: an item a (cell, what is measured). All selected ones are measured in turns when the first item is reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.benchmark_model import Question
from harness.benchmark_session import runnable
from harness.door_benchmark import BENCHMARKS, outcome_of
from harness.errors import HarnessError
from harness.matrix_benchmarks import questions_of
from harness.session import Session, one_line


class BenchmarkItem(pytest.Item):
    """One question of one cell."""

    def __init__(self, *, ours: Session, question: Question, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ours, self.question = ours, question

    def runtest(self) -> None:
        if because := runnable(self.ours, self.question):
            pytest.skip(because)
        outcome, why = outcome_of(self.config.stash[BENCHMARKS].answer(self.question))
        self.add_report_section("call", "benchmark", why)
        if outcome == "skipped":
            pytest.skip(why)
        if outcome != "passed":
            raise Regressed(why)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Regressed):
            return str(excinfo.value)
        if isinstance(excinfo.value, (HarnessError, OSError)):
            return f"{self.question}: nothing was measured, {one_line(excinfo.value)} [blame environment]"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, self.name


class Regressed(Exception):
    """The item's failure, whose text is all that is shown of it."""


def items(parent: pytest.Collector, ours: Session) -> Iterator[pytest.Item]:
    parent.add_marker(pytest.mark.npu_benchmark)
    for question in questions_of(ours.matrix):
        yield BenchmarkItem.from_parent(parent, name=str(question).replace(" ", "::"), ours=ours, question=question)
