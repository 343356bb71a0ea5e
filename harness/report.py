"""Reports in the repository: written from evidence, and checked against it."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from harness.errors import EvidenceError
from harness.model import Cell, Evidence, Matrix, Ruling, Stage, Tier, Weights
from harness.parity_store import load_all
from harness.render import render_npu_support, render_report, render_support
from harness.render_parity import render_parity
from harness.report_trends import check_trends, trends_of, write_trends
from harness.rules import proof_gap, required_stages, rule_for
from harness.store import Store, read_regular, write_atomically
from harness.support import SupportTable, support_table, worked_on
from harness.trends import TrendPage

_AGAIN = "Write it anew with `python -m harness report`, or restore what was changed."
_SHOWN_DIFFERENCES = 20


def write_report(root: Path, matrix: Matrix, store: Store, as_of: date | None = None) -> tuple[Path, ...]:
    """Write support, npu-support and kernel-parity (each .md and .zh.md), report.md and trends below `root`/reports; their paths.

    `as_of` is the day on which ages are measured (default: the newest evidence's). Evidence that is refused is named in report.md and
    counts for nothing. Raises EvidenceError for a rehearsal's store, HostError if the disk refuses.
    """
    pages, trends, _ = _pages(matrix, store, as_of)
    parity, _ = _parity_pages(store.root)
    return (*_written(root, {**pages, **parity}), *write_trends(root / "reports", trends))


def write_parity(root: Path) -> tuple[Path, ...]:
    """Write reports/kernel-parity.md and kernel-parity.zh.md below `root` from its reports/kernels; their paths."""
    return _written(root, _parity_pages(root)[0])


def _written(root: Path, pages: Mapping[str, str]) -> tuple[Path, ...]:
    paths = []
    for name, text in pages.items():
        path = root / "reports" / name
        write_atomically(path, text)
        paths.append(path)
    return tuple(paths)


def check_report(root: Path, matrix: Matrix, store: Store, as_of: date | None = None) -> tuple[str, ...]:
    """What differs between the reports below `root` and what their evidence gives, as `file:line: what`; empty when nothing does.

    Evidence that is refused is a difference, and so is whatever lies among the evidence and is none.
    """
    pages, trends, refused = _pages(matrix, store, as_of)
    parity, parity_refused = _parity_pages(store.root)
    differences = [str(error) for error in (*refused, *store.strays(), *parity_refused)]
    for name, text in {**pages, **parity}.items():
        differences += _differences(root / "reports" / name, f"reports/{name}", text)
    return (*differences, *check_trends(root / "reports", trends))


def current_table(matrix: Matrix, store: Store, as_of: date | None = None) -> tuple[SupportTable, tuple[EvidenceError, ...]]:
    """The support table of the store's evidence, and the evidence that was refused."""
    if store.rehearsal:
        raise EvidenceError(str(store.root), "is the store of a rehearsal, which proves nothing.", "Report from the repository's store.")
    evidence, refused = store.load_all(strict=False)
    return fold(matrix, evidence, as_of), refused


def fold(matrix: Matrix, evidence: Iterable[Evidence], as_of: date | None = None) -> SupportTable:
    """The support table of any evidence, as the rules of today have it."""
    asked: dict[tuple[str, Stage | None], Ruling] = {}

    def ruling(cell: Cell, stage: Stage | None) -> Ruling:
        if (cell.id, stage) not in asked:
            asked[cell.id, stage] = _ruling(matrix, cell, stage)
        return asked[cell.id, stage]

    return support_table(matrix, evidence, as_of, required_stages=required_stages, ruling=ruling, gap=_gap)


def count_marks(matrix: Matrix, store: Store, as_of: date | None = None) -> Counter[str]:
    """How many marks of each kind there are, cells of the contract tier aside (as in the pages' legend)."""
    parsed_only = {cell.id for cell in matrix.cells if cell.tier is Tier.CONTRACT}
    table, _ = current_table(matrix, store, as_of)
    return Counter(str(mark.kind) for mark in table.marks if mark.cell not in parsed_only)


def _ruling(matrix: Matrix, cell: Cell, stage: Stage | None) -> Ruling:
    """What matrix.yaml's rules say today of the cell, or of one of its stages. Asked for a place where it can run, and as a rehearsal asks,
    since what keeps a run from starting changes no mark."""
    weights = Weights.TINY if cell.options.tiny_experts else Weights.REAL
    return rule_for(cell, matrix, hardware=cell.targets[0], weights=weights, rehearsal=True, stage=stage)


def _gap(cell: Cell, piece: Evidence) -> str:
    return proof_gap(cell, piece.stage, hardware=worked_on(piece), weights=piece.weights)


def _pages(matrix: Matrix, store: Store, as_of: date | None) -> tuple[dict[str, str], tuple[TrendPage, ...], tuple[EvidenceError, ...]]:
    table, refused = current_table(matrix, store, as_of)
    trends, damaged = trends_of(table.evidence, store.root)
    refused += damaged
    pages = {
        "support.md": render_support(table, matrix, "en"),
        "support.zh.md": render_support(table, matrix, "zh"),
        "npu-support.md": render_npu_support(table, matrix, "en"),
        "npu-support.zh.md": render_npu_support(table, matrix, "zh"),
        "report.md": render_report(table, matrix, refused, [page.name for page in trends]),
    }
    return pages, trends, refused


def _parity_pages(root: Path) -> tuple[dict[str, str], tuple[EvidenceError, ...]]:
    evidence, refused = load_all(root)
    return {"kernel-parity.md": render_parity(evidence, "en"), "kernel-parity.zh.md": render_parity(evidence, "zh")}, refused


def _differences(path: Path, name: str, expected: str) -> list[str]:
    if not os.path.lexists(path):
        return [f"{name}: is missing. {_AGAIN}"]
    try:
        found = read_regular(path, name).decode("utf-8")
    except EvidenceError as error:
        return [f"{error.where}: {error.what} {_AGAIN}"]
    except UnicodeDecodeError as error:
        return [f"{name}: is no UTF-8 text (byte {error.start}). {_AGAIN}"]
    if found == expected:
        return []
    want, have = expected.splitlines(keepends=True), found.splitlines(keepends=True)
    changes = [c for c in difflib.SequenceMatcher(None, have, want, autojunk=False).get_opcodes() if c[0] != "equal"]
    shown = [_change(name, have[i1:i2], want[j1:j2], i1 + 1) for _, i1, i2, j1, j2 in changes[:_SHOWN_DIFFERENCES]]
    more = len(changes) - len(shown)
    return [*shown, *([f"{name}: and {more} more places."] if more else [])]


def _change(name: str, have: Sequence[str], want: Sequence[str], line: int) -> str:
    return f"{name}:{line}: the file has {_quoted(have, want)}, the evidence gives {_quoted(want, have)}. {_AGAIN}"


def _quoted(lines: Sequence[str], others: Sequence[str]) -> str:
    """The first line, from a little before the place where it parts from the other side's first line."""
    if not lines:
        return "nothing"
    other = others[0] if others else ""
    parts = next((i for i, (a, b) in enumerate(zip(lines[0], other, strict=False)) if a != b), min(len(lines[0]), len(other)))
    start = max(0, parts - 20)
    return ("…" if start else "") + repr(lines[0][start : start + 80])
