"""What a rule, a quarantine or a benchmark matches: the fields that its `when` names, held against what is declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.errors import did_you_mean
from harness.matrix_schema import WhenShape
from harness.matrix_text import Source
from harness.model import Benchmark, Cell, Model, Quarantine, Rule
from harness.rules import matches


def read_when(source: Source, path: Sequence[str | int], shape: WhenShape, models: Mapping[str, Model]) -> dict[str, tuple[Any, ...]]:
    """The values of each field named at `path` (that of the `when`). Raises MatrixError for an unknown model or family, or no field."""
    known = {"model": set(models), "family": {model.family for model in models.values()}}
    when: dict[str, tuple[Any, ...]] = {}
    for name in type(shape).model_fields:
        values = getattr(shape, name)
        if values is None:
            continue
        for position, value in enumerate(values):
            if name in known and value not in known[name]:
                what = f"{name} {value!r} is not defined under models."
                raise source.refuse((*path, name, position), what, did_you_mean(value, known[name]))
        when[name] = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    if not when:
        noun = {"rules": "rule", "benchmarks": "benchmark"}.get(str(path[0]), "quarantine")
        raise source.refuse(path, f"a {noun} that names no field would match every cell.", "Name a field.")
    return when


def nearest(rule: Rule | Quarantine | Benchmark, cells: tuple[Cell, ...]) -> str:
    """Which single field, if any, keeps the rule from matching."""
    for name in rule.when:
        others = replace(rule, when={k: v for k, v in rule.when.items() if k != name})
        if others.when and any(matches(others, cell) for cell in cells):
            return f"Only its {name} keeps it from matching. "
    return ""
