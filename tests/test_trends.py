"""Trends: one panel a cell from committed data, the same bytes for the same data, simulated hardware named in the picture, edits found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_samples import measurement
from evidence_samples import sample
from matrix_samples import MATRIX

from harness import report_trends
from harness.__main__ import main
from harness.benchmark_codec import Baseline
from harness.benchmark_model import Measurement, Quantity
from harness.benchmark_store import BenchmarkStore
from harness.model import Evidence, Hardware, Stage, VerdictKind
from harness.report import check_report, write_report
from harness.report_trends import check_trends, trends_of, write_trends
from harness.store import Store
from harness.trends import EVIDENCE, TrendPage, trend_pages
from harness.trends_draw import drawn, seal_of

ROOT = Path(__file__).resolve().parent.parent
STEPS = {"step": [1, 2, 3], "seconds": [9.0, 0.2, 0.4], "tokens": [None] * 3, "peak_allocated_mib": 5.0}


def at(day: int, *step_s: float, **changes: Any) -> Measurement:
    one = measurement(*step_s, **changes)
    return replace(one, repeats=tuple(replace(r, at=f"2026-11-{day:02d}T00:00:00+00:00") for r in one.repeats))


def piece(day: int, stack: str, **changes: Any) -> Evidence:
    told = {"nonce": "n0", "rank": 0, "versions": {}, "train_begin": {"device": "npu:0", "simulated": True}, "steps": STEPS}
    started = f"2026-11-{day:02d}T00:00:00+00:00"
    return sample("small", hardware=Hardware.SIM, started_at=started, stack=stack, witnesses=(told,), **changes)


def pages(*measured: Measurement, baselines: tuple[Measurement, ...] = ()) -> dict[Quantity, TrendPage]:
    found = trend_pages([], [Baseline(m, "2026-11-30", "why") for m in baselines], measured)
    return {page.quantity: page for page in found}


def test_a_cell_is_a_panel_with_its_runs_in_the_order_of_time_and_the_newest_baseline() -> None:
    found = pages(at(9, 0.3, 0.1, 0.2), at(3, 0.5), baselines=(at(2, 0.4, 0.4, stack="old"), at(5, 0.6, stack="new")))
    (panel,) = found[Quantity.STEP_S].panels
    assert [(p.at[:10], p.median, p.runs) for p in panel.points] == [
        ("2026-11-02", 0.4, 2), ("2026-11-03", 0.5, 1), ("2026-11-05", 0.6, 1), ("2026-11-09", 0.2, 3),
    ]  # fmt: skip
    assert panel.points[-1].spread == pytest.approx(1.4826 * 0.1)
    assert panel.baseline is not None and panel.baseline.stack == "new"
    assert found[Quantity.STEP_S].name == "trends/step_s--sim.svg" and set(found) == {Quantity.STEP_S, Quantity.PEAK_ALLOCATED_MIB}


def test_evidence_makes_a_trend_from_two_runs_and_never_of_what_failed() -> None:
    assert trend_pages([piece(1, "a")], []) == ()
    assert trend_pages([piece(1, "a"), piece(2, "b", kind=VerdictKind.FAILED)], []) == ()
    assert trend_pages([piece(1, "a"), replace(piece(2, "b"), stage=Stage.RESUME)], []) == ()
    found = {page.quantity: page for page in trend_pages([piece(2, "b"), piece(1, "a")], [])}
    (panel,) = found[Quantity.STEP_S].panels
    assert [(p.stack, p.origin, p.median) for p in panel.points] == [
        ("a", EVIDENCE, pytest.approx(0.3)),
        ("b", EVIDENCE, pytest.approx(0.3)),
    ]
    assert found[Quantity.PEAK_ALLOCATED_MIB].panels[0].points[0].median == 5.0


def test_hardware_and_ways_of_serving_are_kept_apart_and_many_cells_fill_several_pages() -> None:
    many = [at(1, 0.1, cell=f"cell-{number:02d}") for number in range(31)]
    found = trend_pages([], [], [*many, at(1, 0.1, hardware=Hardware.A2), at(1, 0.1, kind="serve", concurrency=4)])
    assert [(p.name, len(p.panels)) for p in found if p.quantity is Quantity.STEP_S] == [
        ("trends/step_s--sim.svg", 30), ("trends/step_s--sim--2.svg", 2), ("trends/step_s--a2.svg", 1),
    ]  # fmt: skip


def test_the_same_data_give_the_same_bytes_whatever_a_person_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    page = pages(at(1, 0.1, 0.2), at(2, 0.1))[Quantity.STEP_S]
    text = drawn(page)
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 9.0)
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "mine")
    assert drawn(page) == text and "<dc:date>" not in text
    assert drawn(pages(at(1, 0.1, 0.2), at(2, 0.1001))[Quantity.STEP_S]) != text


@pytest.mark.parametrize(("hardware", "word", "told"), [
    (Hardware.SIM, "simulated", "SIMULATED NPU"), (Hardware.CPU, "plain CPU", "plain CPU: says"), (Hardware.A2, "", ""),
])  # fmt: skip
def test_what_is_no_npu_says_so_in_every_panel(hardware: Hardware, word: str, told: str) -> None:
    pytest.importorskip("matplotlib")
    text = drawn(pages(at(1, 0.1, hardware=hardware), at(1, 0.1, hardware=hardware, cell="b"))[Quantity.STEP_S])
    assert f"on {hardware} -->" in text
    for no_npu in ("simulated", "plain CPU"):
        assert text.count(f"<!-- {no_npu} -->") == (2 if no_npu == word else 0)
    assert told in text and ("says nothing about NPU hardware" in text) is bool(told)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    BenchmarkStore(tmp_path).promote(Baseline(at(1, 0.1, 0.1), "2026-11-30", "first"))
    return tmp_path


def report(root: Path) -> tuple[str, ...]:
    return check_report(root, MATRIX, Store(root, root / ".harness" / "evidence"))


def test_reports_hold_the_drawings_of_committed_baselines_and_check_finds_edits(repository: Path) -> None:
    pytest.importorskip("matplotlib")
    BenchmarkStore(repository).keep(at(2, 0.5), "20261130T000000-own")  # not committed, so in no report
    written = write_report(repository, MATRIX, Store(repository, repository / ".harness" / "evidence"))
    picture = repository / "reports" / "trends" / "step_s--sim.svg"
    assert picture in written and report(repository) == ()
    assert "![trends/step_s--sim.svg](trends/step_s--sim.svg)" in (repository / "reports" / "report.md").read_text()
    text = picture.read_text()
    for edited, what in (
        (text.replace("<svg", "<svg ", 1), "is not as it was drawn"),
        (text[:-20], "is not as it was drawn"),
        (drawn(pages(at(1, 0.7))[Quantity.STEP_S]), "is drawn of other data"),
        (None, "is missing"),
    ):
        picture.unlink() if edited is None else picture.write_text(edited)
        assert [d.partition(": ")[2][: len(what)] for d in report(repository)] == [what]
    picture.write_text(text)
    (picture.parent / "step_s--a9.svg").write_text(text)
    assert "is a drawing of nothing" in report(repository)[0]
    write_trends(repository / "reports", trends_of([], repository)[0])
    assert report(repository) == ()


def test_a_drawing_of_another_matplotlib_is_held_to_its_data(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    found, _ = trends_of([], repository)
    with monkeypatch.context() as patch:
        patch.setattr("harness.trends_draw.matplotlib_version", lambda: "3.0")
        patch.setattr(report_trends, "matplotlib_version", lambda: "3.0")
        write_trends(repository / "reports", found)
    assert seal_of((repository / "reports" / found[0].name).read_text()) == (found[0].digest, "3.0")
    monkeypatch.setattr(report_trends, "drawn", lambda page: pytest.fail("drawn again, by another version"))
    assert check_trends(repository / "reports", found) == ()


def test_without_matplotlib_nothing_is_drawn_and_only_edits_are_differences(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    reports, (found, _) = repository / "reports", trends_of([], repository)
    write_trends(reports, found)
    monkeypatch.setattr(report_trends, "matplotlib_version", lambda: None)
    other = tuple(replace(page, panels=()) for page in found)
    assert check_trends(reports, found) == check_trends(reports, other) == () and write_trends(reports, found) == ()
    (reports / found[0].name).write_text("<svg/>")
    assert "is not as it was drawn" in check_trends(reports, found)[0]
    (reports / found[0].name).unlink()
    assert check_trends(reports, found) == ()


def test_a_damaged_baseline_is_named_and_nothing_is_drawn_of_any(repository: Path) -> None:
    path = next((repository / "reports" / "baselines").rglob("*.json"))
    path.write_text(path.read_text().replace("0.1", "0.2"))
    found, refused = trends_of([], repository)
    assert found == () and "was edited" in str(refused[0])
    assert any("was edited" in difference for difference in report(repository))


def test_this_hosts_own_runs_are_drawn_apart_from_the_reports(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    common = ["--root", str(repository), "--matrix", str(ROOT / "tests" / "matrix_small.yaml")]
    BenchmarkStore(repository).keep(at(2, 0.5), "20261130T000000-own")
    assert main(["trends", *common]) == 0
    assert ".harness/trends/step_s--sim.svg" in capsys.readouterr().out and not (repository / "reports" / "trends").exists()
    damaged = next((repository / ".harness" / "benchmarks").rglob("*.json"))
    damaged.write_text("{}")
    assert main(["trends", *common]) == 4 and "refused: " in capsys.readouterr().err
