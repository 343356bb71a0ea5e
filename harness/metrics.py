"""ms-swift's logging.jsonl as rows. No text makes this raise: what can't be read is listed as a fault.

What real logs hold, and a naive reader gets wrong: numbers as strings, bare NaN and Infinity, rows as Python reprs (the console's),
progress bars glued to rows, a half row at the end, rows of an earlier run in front, Megatron's `iteration` in place of
`global_step/max_steps`, and evaluation and summary rows that carry a step counter as well.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.model import MetricRow, Metrics

_COUNTERS = ("global_step/max_steps", "iteration")
_PROGRESS = re.compile(r"\d+%\||it/s|s/it")
_COUNT = re.compile(r"\s*(\d{1,12})\s*/\s*(\d{1,12})\s*")


def parse_logging(text: str) -> Metrics:
    """All rows of `text`, in file order, duplicates included; the trailing rows merged into `summary`; faults by line.

    A row counts as a step if it has a step counter and is neither an evaluation (`eval_*`) nor the end's `train_runtime` row.
    A value that is no number (a string such as "abc") becomes None and a fault; "NaN" and Infinity become floats.
    """
    rows: list[MetricRow] = []
    summary: dict[str, Any] = {}
    faults: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        objects, rest = _objects(line)
        if rest or (not objects and not _PROGRESS.search(line)):
            faults.append(f"line {number}: not a whole row: {_shorten(rest or line)}")
        for found in objects:
            _sort_in(found, number, rows, summary, faults)
    return Metrics(tuple(rows), summary, tuple(faults))


def as_logged(value: object) -> float | None:
    """A witnessed number as ms-swift writes it into logging.jsonl: rounded to 8 digits (swift/trainers/patcher.py). None for none.

    What is no number, and the text that stands for NaN or an infinity, becomes NaN, which equals nothing.
    """
    try:
        found = _number(value)
    except ValueError:
        return math.nan
    return found if found is None or not math.isfinite(found) else round(found, 8)


def duplicated_steps(metrics: Metrics) -> tuple[int, ...]:
    """Steps that are logged more than once, ascending."""
    counted = Counter(row.step for row in metrics.rows)
    return tuple(sorted(step for step, times in counted.items() if times > 1))


def _sort_in(found: Mapping[str, Any], number: int, rows: list[MetricRow], summary: dict[str, Any], faults: list[str]) -> None:
    counter = next((found[name] for name in _COUNTERS if name in found), None)
    is_evaluation = any(str(key).startswith("eval_") for key in found) and "loss" not in found
    if counter is None or "train_runtime" in found or is_evaluation:
        summary.update(found)
        return
    match = _COUNT.fullmatch(counter) if isinstance(counter, str) else None
    if match is None:
        faults.append(f"line {number}: a step counter that is not k/n: {_shorten(repr(counter))}")
        return
    values: dict[str, float | None] = {}
    for name in ("loss", "grad_norm", "learning_rate"):
        try:
            values[name] = _number(found.get(name))
        except ValueError:
            values[name] = None
            faults.append(f"line {number}: {name} is not a number: {_shorten(repr(found.get(name)))}")
    step, max_steps = int(match.group(1)), int(match.group(2))
    rows.append(MetricRow(step, max_steps, values["loss"], values["grad_norm"], values["learning_rate"], found))


def _number(value: object) -> float | None:
    """A float, from a number or its text; None for a missing one. Raises ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _objects(line: str) -> tuple[list[Mapping[str, Any]], str]:
    """The row objects within one line, and what looks like a broken one. Progress bars and other text around them are dropped."""
    found: list[Mapping[str, Any]] = []
    position = line.find("{")
    while position >= 0:
        row, end = _object_at(line, position)
        if row is None:
            return found, line[position:]
        found.append(row)
        position = line.find("{", end)
    return found, ""


_DECODER = json.JSONDecoder()


def _object_at(line: str, start: int) -> tuple[Mapping[str, Any] | None, int]:
    try:
        row, end = _DECODER.raw_decode(line, start)
    except (ValueError, RecursionError):
        return _python_object_at(line, start)
    return (row, end) if isinstance(row, dict) else (None, start)


def _python_object_at(line: str, start: int) -> tuple[Mapping[str, Any] | None, int]:
    """A flat Python repr, as the console prints rows: `{'loss': nan, 'global_step/max_steps': '2/2046'}`."""
    end = line.find("}", start) + 1
    if not end:
        return None, start
    try:
        tree = ast.parse(line[start:end], mode="eval").body
        if not isinstance(tree, ast.Dict):
            return None, start
        row = {_literal(key): _literal(value) for key, value in zip(tree.keys, tree.values, strict=True)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, start
    return row, end


def _literal(node: ast.expr | None) -> Any:
    """Raises ValueError for anything but a plain scalar, nan or inf."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, ast.Name) and node.id in ("nan", "inf"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _literal(node.operand)
        if isinstance(operand, (int, float)):
            return -operand
    raise ValueError("not a plain scalar")


def _shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
