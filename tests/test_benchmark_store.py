"""Measurements and baselines on disk: what is damaged is refused, what changes a baseline says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.__main__ import main
from harness.benchmark_codec import Baseline, baseline_from_json, baseline_to_json, from_json, to_json
from harness.benchmark_model import Quantity
from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError
from tests.benchmark_samples import measurement

TIMES = (1.0, 1.01, 0.99, 1.005)
REPOSITORY = Path(__file__).resolve().parent.parent


def test_a_measurement_comes_back_as_it_was_written() -> None:
    one = measurement(*TIMES)
    assert from_json(to_json(one), "here") == one
    baseline = Baseline(one, "2026-11-30", "first")
    assert baseline_from_json(baseline_to_json(baseline), "here") == baseline


@given(st.data())
def test_any_edit_of_a_file_is_refused(data: st.DataObject) -> None:
    text = to_json(measurement(*TIMES))
    at = data.draw(st.integers(0, len(text) - 2))
    other = data.draw(st.characters(codec="ascii", exclude_characters=text[at]))
    with pytest.raises(EvidenceError):
        from_json(text[:at] + other + text[at + 1 :], "here")


@pytest.mark.parametrize("cut", [0, 1, 40, -2])
def test_a_file_that_was_cut_is_refused_with_its_name(cut: int) -> None:
    with pytest.raises(EvidenceError, match="here"):
        from_json(to_json(measurement(*TIMES))[:cut], "here")


def test_a_measurement_is_no_baseline() -> None:
    with pytest.raises(EvidenceError, match="not a baseline"):
        baseline_from_json(to_json(measurement(*TIMES)), "here")


def test_every_repeat_is_on_disk_at_once_and_the_newest_run_is_known(tmp_path: Path) -> None:
    store = BenchmarkStore(tmp_path)
    assert store.newest_run() is None
    store.keep(measurement(1.0), "20261130T1-a")
    store.keep(measurement(1.0, 1.1), "20261130T1-a")
    store.keep(measurement(2.0), "20261130T2-b")
    assert [len(m.repeats) for m in store.measurements("20261130T1-a")] == [2]
    assert store.newest_run() == "20261130T2-b"


def promote(root: Path, *words: str) -> int:
    return main(["promote", *words, "--root", str(root), "--matrix", str(REPOSITORY / "matrix.yaml")])


def test_promote_writes_only_with_a_reason_and_shows_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = BenchmarkStore(tmp_path)
    store.keep(measurement(*TIMES), "1-a")
    assert promote(tmp_path) == 1
    assert "give --reason" in capsys.readouterr().err and not store.all_baselines()
    assert promote(tmp_path, "--reason", "the first\none") == 0
    (held,) = store.all_baselines()
    assert held.reason == "the first one" and held.measurement.values(Quantity.STEP_S) == TIMES
    store.keep(measurement(*(2 * t for t in TIMES)), "2-b")
    capsys.readouterr()
    assert promote(tmp_path, "a-cell", "--reason", "a slower kernel, accepted") == 0
    said = capsys.readouterr().out
    assert "slower" in said and "because the first one" in said and "+100" in said


def test_promote_refuses_a_cell_that_was_not_measured_and_too_few_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert promote(tmp_path, "--reason", "x") != 0
    BenchmarkStore(tmp_path).keep(measurement(1.0, 1.0), "1-a")
    assert promote(tmp_path, "a-cel", "--reason", "x") != 0
    assert "a-cell" in capsys.readouterr().err
    assert promote(tmp_path, "--reason", "x") == 1
    assert not BenchmarkStore(tmp_path).all_baselines()


def test_a_rehearsal_never_becomes_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BenchmarkStore(tmp_path).keep(measurement(*TIMES, rehearsal=True), "1-a")
    assert promote(tmp_path, "--reason", "x") == 1
    assert "a rehearsal measures nothing" in capsys.readouterr().out and not BenchmarkStore(tmp_path).all_baselines()


def test_a_damaged_baseline_is_told_with_its_path(tmp_path: Path) -> None:
    store = BenchmarkStore(tmp_path)
    path = store.promote(Baseline(measurement(*TIMES), "2026-11-30", "first"))
    assert path.relative_to(tmp_path).parts[:3] == ("reports", "baselines", "sim")
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "reason": "another"}, indent=1, sort_keys=True) + "\n")
    with pytest.raises(EvidenceError, match="reports/baselines/sim"):
        store.baseline_for(measurement(*TIMES))
