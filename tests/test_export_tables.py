"""Tables from exported rows say what the plain fold of the evidence itself says."""

from __future__ import annotations

import importlib.util
import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from benchmark_samples import measurement
from export_samples import PIECES, RIVALS, kept
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_samples import MATRIX

from harness.benchmark_codec import Baseline
from harness.benchmark_verdict import spread
from harness.errors import EvidenceError
from harness.evidence import day, rank
from harness.export_rows import piece_of, row_of, rows_of_baseline, rows_of_runs
from harness.export_tables import tables_of
from harness.model import Evidence, Hardware, Matrix, Rule, RulingKind
from harness.report import fold
from harness.session import read_matrix
from harness.store import KEPT
from harness.support import worked_on

ROOT = Path(__file__).resolve().parent.parent
LIMITED = replace(
    MATRIX, rules=(Rule({"strategy": ("single",)}, RulingKind.EXPECT_FAIL, "a limit", "i", "4.5", Hardware.A2, 1, ("args.",)),)
)


@given(RIVALS | PIECES, st.sampled_from([MATRIX, LIMITED]), st.sampled_from([None, date(2026, 6, 2)]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_marks_are_those_of_the_evidence_itself(tmp_path: Path, pieces: list[Evidence], matrix: Matrix, as_of: date | None) -> None:
    path = kept(tmp_path, map(row_of, pieces))
    assert tables_of([path], matrix, as_of).marks == fold(matrix, pieces, as_of).marks


@given(PIECES)
@settings(max_examples=40, deadline=None)
def test_a_row_keeps_all_that_a_mark_asks_of_a_piece(pieces: list[Evidence]) -> None:
    back = [piece_of(row_of(piece)) for piece in pieces]
    assert fold(LIMITED, back).marks == fold(LIMITED, pieces).marks
    for one, other in zip(back, pieces, strict=True):
        assert (rank(one), worked_on(one), one.verdict, one.ruling, one.tiny_key) == (
            rank(other), worked_on(other), other.verdict, other.ruling, other.tiny_key,
        )  # fmt: skip


def test_counts_newest_and_memory_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    rows, matrix = _million_rows(20_000)
    tables = tables_of([kept(tmp_path, rows)], matrix)
    evidence = [row for row in rows if row["record"] == "evidence"]
    assert tables.rows == 20_000 and len(evidence) < 20_000
    pieces = [piece_of(row) for row in evidence]
    assert tables.as_of == max(map(day, pieces))
    assert tables.marks == fold(matrix, pieces).marks
    counted = Counter((row["stage"], row["verdict"], row["cause"]) for row in evidence)
    assert {tuple(row[:3]): row[3] for row in tables.counts.itertuples(index=False)} == counted
    best: dict[tuple[Any, ...], Evidence] = {}
    for piece in (piece for piece in pieces if piece.verdict.kind in KEPT):
        key = (piece.cell, str(piece.stage), str(piece.weights), str(piece.hardware), piece.stack)
        best[key] = max(piece, best.get(key, piece), key=rank)
    found = {
        tuple(row[:5]): row[5]
        for row in tables.newest[["cell", "stage", "weights", "hardware", "stack", "verdict"]].itertuples(index=False)
    }
    assert found == {key: piece.verdict.kind for key, piece in best.items()}
    peaks = defaultdict(list)
    for row in evidence:
        if row["stage"] == "train" and row["verdict"] == "passed":
            place = tuple(row[name] for name in ("model", "algorithm", "tuner", "strategy", "weights", "hardware", "stack"))
            peaks[place].append(row["peak_allocated_mib"])
    memory = tables.memory[tables.memory["quantity"] == "peak_allocated_mib"]
    names = ["model", "algorithm", "tuner", "strategy", "weights", "hardware", "stack", "runs", "median", "spread"]
    assert {tuple(row[:7]): tuple(row[7:]) for row in memory[names].itertuples(index=False)} == {
        place: (len(values), pytest.approx(statistics.median(values)), pytest.approx(spread(values))) for place, values in peaks.items()
    }


def test_benchmarks_have_the_median_and_spread_of_their_runs_and_baselines_stand_apart(tmp_path: Path) -> None:
    now, then = measurement(0.1, 0.12, 0.13, 0.5), measurement(0.2, 0.2)
    rows = [*rows_of_runs(now, "r1"), *rows_of_baseline(Baseline(then, "2026-11-30", "first"))]
    table = tables_of([kept(tmp_path, rows)], MATRIX).benchmarks
    steps = {row.record: row for row in table[table["quantity"] == "step_s"].itertuples()}
    assert steps["repeat"].runs == 4 and steps["repeat"].median == pytest.approx(0.125)
    assert steps["repeat"].spread == pytest.approx(spread([0.1, 0.12, 0.13, 0.5]))
    assert steps["baseline"].runs == 2 and steps["baseline"].spread == 0
    assert set(table["quantity"]) == {"step_s", "peak_allocated_mib"}


def test_a_row_in_two_exports_counts_once(tmp_path: Path) -> None:
    rows = list(rows_of_runs(measurement(0.1, 0.12), "r1"))
    first = kept(tmp_path, rows)
    second = kept(tmp_path, [*rows, *rows_of_runs(measurement(0.1, cell="b"), "r1")])
    assert tables_of([first, second], MATRIX).rows == 3


def test_an_export_that_was_changed_after_its_import_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, rows_of_runs(measurement(0.1, 0.12), "r1"))
    for text in (path.read_text().replace("0.12", "0.11"), path.read_text()[:-9], path.read_text() + "\n", ""):
        path.write_text(text)
        with pytest.raises(EvidenceError, match="is not what was imported"):
            tables_of([path], MATRIX)


def _million_rows(count: int) -> tuple[list[dict[str, Any]], Matrix]:
    """Of .ci/million_rows.py."""
    spec = importlib.util.spec_from_file_location("million_rows", ROOT / ".ci" / "million_rows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    matrix = read_matrix(ROOT / "matrix.yaml")
    return list(module.rows(matrix, count)), matrix
