"""Which cells are measured, and what of them."""

from __future__ import annotations

from collections.abc import Mapping

from harness.benchmark_model import Kind, Question
from harness.matrix_schema import MatrixShape
from harness.matrix_text import Source
from harness.matrix_when import nearest, read_when
from harness.model import Benchmark, Cell, Matrix, Model, Stage
from harness.rules import applicable_stages, matches


def read_benchmarks(source: Source, shape: MatrixShape, models: Mapping[str, Model], cells: tuple[Cell, ...]) -> tuple[Benchmark, ...]:
    """Raises MatrixError for an entry that matches no cell that can do what it asks, or an unknown model."""
    found = []
    for number, entry in enumerate(shape.benchmarks):
        path = ("benchmarks", number)
        if entry.when.stage is not None:
            raise source.refuse((*path, "when"), "a benchmark measures cells, not stages.", "Name what to measure under kinds.")
        one = Benchmark(read_when(source, (*path, "when"), entry.when, models), tuple(entry.kinds), source.line(path))
        for kind in one.kinds:
            if not any(matches(one, cell) and _can(cell, Kind(kind)) for cell in cells):
                what = f"no cell matches whose {kind} could be measured."
                raise source.refuse(path, what, f"{nearest(one, cells)}Declare one, or delete it.")
        found.append(one)
    return tuple(found)


def questions_of(matrix: Matrix) -> tuple[Question, ...]:
    """What the matrix asks to be measured, in the order of its cells; each once."""
    asked: dict[str, Question] = {}
    for cell in matrix.cells:
        for one in (one for one in matrix.benchmarks if matches(one, cell)):
            for kind in (Kind(word) for word in one.kinds):
                if _can(cell, kind):
                    asked.setdefault(f"{cell.id} {kind}", Question(cell, kind))
    return tuple(asked.values())


def _can(cell: Cell, kind: Kind) -> bool:
    return (Stage.TRAIN if kind is Kind.TRAIN else Stage.DEPLOY) in applicable_stages(cell)
