"""`diff RUN RUN`: what changed is told with its cause and evidence, what did not is not, and what can't be told from the runs says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_samples import measurement
from evidence_samples import VERSIONS, sample
from export_samples import kept
from matrix_samples import MATRIX, STAGES

from harness.__main__ import main
from harness.benchmark_codec import Baseline
from harness.benchmark_model import Measurement
from harness.benchmark_store import BenchmarkStore
from harness.diff import Change, Difference
from harness.diff_runs import Side
from harness.door_diff import difference
from harness.export_rows import row_of, rows_of_runs
from harness.model import Evidence, Hardware, Stage, VerdictKind, Weights
from harness.store import Store

ROOT = Path(__file__).resolve().parent.parent
FAILED, PASSED, KNOWN = VerdictKind.FAILED, VerdictKind.PASSED, VerdictKind.KNOWN_FAILURE


def piece(stage: Stage = Stage.TRAIN, kind: VerdictKind = PASSED, cell: str = "small", **changes: Any) -> Evidence:
    return sample(cell, stage, kind, changes.pop("hardware", Hardware.SIM), Weights.TINY, tiny_key="tiny-qwen3", **changes)


def between(tmp_path: Path, before: list[Any], after: list[Any]) -> Difference:
    sides = []
    for name, given in (("a", before), ("b", after)):
        (tmp_path / name).mkdir()
        rows: list[Mapping[str, Any]] = []
        for one in given:
            rows += rows_of_runs(one, "r") if isinstance(one, Measurement) else [row_of(one)]
        sides.append(Side(name, "it", kept(tmp_path / name, rows), ()))
    return difference(sides[0], sides[1], MATRIX)


def test_what_did_not_change_is_not_told(tmp_path: Path) -> None:
    same = [*map(piece, STAGES), measurement(0.1, 0.1, 0.101, 0.1)]
    later = [replace(e, started_at="2026-06-09T10:00:00+00:00", stack="another") for e in map(piece, STAGES)]
    found = between(tmp_path, same, [*later, measurement(0.1, 0.101, 0.1, 0.1, stack="another")])
    assert found == Difference((), (), ()) and not found.got_worse


def test_a_stage_that_fails_now_is_newly_failing_with_its_cause_and_evidence(tmp_path: Path) -> None:
    good, bad = list(map(piece, STAGES)), piece(Stage.RESUME, FAILED)
    found = between(tmp_path, good, [*(e for e in good if e.stage is not Stage.RESUME), bad])
    (verdict,) = found.verdicts
    assert (verdict.change, verdict.about) == (Change.FAILING, ("small", "resume", "tiny", "sim"))
    assert (verdict.before, verdict.after) == ("passed", "failed args.unknown")
    assert verdict.evidence == (good[1].sha256[:8], bad.sha256[:8]) and "--train_type" in verdict.because
    # the cell's own mark, and that of the one that shares its tiny model
    assert {(m.about, m.change, m.before, m.after) for m in found.marks} == {
        (("small", "a2"), Change.FAILING, "simulated (sim)", "failing (sim)"),
        (("big", "a2"), Change.FAILING, "simulated (sim)", "failing (sim)"),
    }
    assert found.got_worse


@pytest.mark.parametrize(
    ("before", "after", "change", "worse"),
    [
        ([piece(kind=FAILED)], [piece()], Change.PASSING, False),
        ([piece()], [piece(kind=KNOWN)], Change.FAILING, True),
        ([piece(kind=KNOWN)], [piece(kind=FAILED)], Change.FAILING, True),
        ([piece(kind=FAILED)], [piece(kind=KNOWN)], Change.BETTER, False),
        ([piece(Stage.INFER)], [piece(Stage.INFER), piece()], Change.APPEARED, False),
        ([piece(Stage.INFER)], [piece(Stage.INFER), piece(kind=FAILED)], Change.FAILING, True),
        ([piece(), piece(Stage.INFER)], [piece(Stage.INFER)], Change.GONE, False),
        ([piece()], [piece(hardware=None, kind=FAILED, asked=Hardware.SIM)], Change.FAILING, True),
    ],
)  # fmt: skip
def test_every_change_of_a_verdict_has_its_word(tmp_path: Path, before: Any, after: Any, change: Change, worse: bool) -> None:
    found = between(tmp_path, before, after)
    assert [v.change for v in found.verdicts] == [change] and found.got_worse is worse


def test_another_cause_of_the_same_failure_is_told(tmp_path: Path) -> None:
    other = piece(kind=FAILED)
    other = replace(other, verdict=replace(other.verdict, cause="ckpt.load"))
    (verdict,) = between(tmp_path, [piece(kind=FAILED)], [other]).verdicts
    assert (verdict.change, verdict.before, verdict.after) == (Change.OTHER, "failed args.unknown", "failed ckpt.load")


def test_the_newest_piece_of_a_place_speaks_for_a_run_of_many(tmp_path: Path) -> None:
    old, new = piece(kind=FAILED), piece(started_at="2026-06-02T10:00:00+00:00", stack="another")
    assert between(tmp_path, [old, new], [new]).verdicts == ()


def test_numbers_have_the_label_of_their_repeats(tmp_path: Path) -> None:
    before = measurement(0.100, 0.101, 0.102, 0.103)
    found = between(tmp_path, [before], [measurement(0.130, 0.131, 0.132, 0.133)])
    (number,) = found.numbers
    assert (number.quantity, number.label, number.runs) == ("step_s", "slower", (4, 4)) and found.got_worse
    assert number.about == ("benchmark", "a-cell", "train", "0", "tiny", "sim", "warm")
    assert "p 0.029" in number.because


def test_too_few_repeats_are_insufficient_and_never_worse(tmp_path: Path) -> None:
    found = between(tmp_path, [measurement(0.1, memory_mib=100.0)], [measurement(0.2, memory_mib=100.0)])
    assert [(n.quantity, n.label) for n in found.numbers] == [("step_s", "insufficient data")] and not found.got_worse


def test_other_places_are_not_held_against_each_other(tmp_path: Path) -> None:
    one = measurement(*[0.1] * 4)
    others = [
        replace(one, concurrency=4, kind="serve"),
        replace(one, hardware=Hardware.CPU),
        replace(one, launcher="cli"),
        replace(one, cell="b"),
    ]
    assert between(tmp_path, [one], [replace(m, repeats=measurement(*[0.9] * 4).repeats) for m in others]).numbers == ()


def test_a_loss_that_differs_is_told_and_not_called_worse(tmp_path: Path) -> None:
    def logged(loss: float) -> Evidence:
        return piece(metrics={"train": [{"loss": 3.0, "grad_norm": 1.0}, {"loss": loss, "grad_norm": 1.0}]})

    found = between(tmp_path, [logged(2.5)], [logged(2.6)])
    assert [(n.quantity, n.label, n.before, n.after) for n in found.numbers] == [("loss", "differs", 2.5, 2.6)] and not found.got_worse
    (tmp_path / "again").mkdir()
    assert between(tmp_path / "again", [logged(2.5)], [logged(2.500001)]).numbers == ()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two stacks, two days and two versions of ms-swift, two runs of benchmarks and a baseline; samples of evidence that prove nothing are
    taken as they are."""
    for door in ("door_diff", "door_export"):
        monkeypatch.setattr(f"harness.{door}.open_store", lambda root: Store(root, root / ".harness" / "evidence"))
    store = Store(tmp_path, tmp_path / ".harness" / "evidence")
    commit = {"swift_commit": "0123456789abcdef0123456789abcdef01234567"}
    store.save(piece(stack="first"))
    store.save(
        piece(kind=FAILED, stack="second", started_at="2026-06-02T10:00:00+00:00", versions={**VERSIONS, "ms-swift": "4.7.0", **commit})
    )
    benchmarks = BenchmarkStore(tmp_path)
    benchmarks.keep(measurement(0.1, 0.1, 0.1, 0.1), "20260601T000000-a")
    benchmarks.keep(measurement(0.2, 0.2, 0.2, 0.2), "20260602T000000-b")
    benchmarks.promote(Baseline(measurement(0.1, 0.1, 0.1, 0.1), "2026-06-01", "first"))
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after", "code", "told"),
    [
        ("first", "second", 1, "newly failing: small train tiny sim: passed -> failed args.unknown"),
        ("second", "first", 0, "newly passing: small train"),
        ("4.6.0", "4.7.0", 1, "newly failing"),
        ("4.6.0", "01234567", 1, "newly failing"),
        ("2026-06-01", "2026-06-02", 1, "newly failing"),
        ("2026-06-02", "2026-06-05", 0, "stages: nothing changed"),
        ("20260601T000000-a", "20260602T000000-b", 1, "slower: a-cell train (benchmark, tiny, sim, warm) step_s 0.1 -> 0.2 (+100.0%)"),
        ("baselines", "20260602T000000-b", 1, "slower: a-cell"),
        ("{root}/reports/evidence/small", "{root}", 0, "nothing changed"),
        ("{root}/.harness/benchmarks/20260601T000000-a", "baselines", 0, "numbers: nothing changed"),
    ],
)
def test_a_run_has_many_names(repository: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, code: int, told: str) -> None:
    names = [name.format(root=repository) for name in (before, after)]
    assert main(["diff", *names, *_common(repository)]) == code
    assert told in capsys.readouterr().out


def test_an_export_is_a_run(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(repository / "x.jsonl.gz")
    assert main(["export", file, *_common(repository)]) == 0
    assert main(["import", file, "--json", *_common(repository)]) == 0
    name = json.loads(capsys.readouterr().out.partition("\n")[2])["kept"]
    for one in (file, name):
        assert main(["diff", one, "2026-06-30", *_common(repository)]) == 0
        assert "stages: nothing changed" in capsys.readouterr().out


def test_an_unknown_run_names_the_known_ones(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "first", "third", *_common(repository)]) == 2
    said = capsys.readouterr().err
    for known in (
        "third: is no run",
        "stacks: first, second, undeclared-1",
        "4.6.0, 4.7.0",
        "0123456789ab",
        "20260601T000000-a",
        "baselines",
    ):
        assert known in said
    assert main(["diff", "2026-06-31", "first", *_common(repository)]) == 2 and "is no date" in capsys.readouterr().err
    (repository / "empty").mkdir()
    assert main(["diff", str(repository / "empty"), "first", *_common(repository)]) == 4
    assert "holds no evidence and no measurement" in capsys.readouterr().err


def test_what_is_refused_is_named_and_machines_get_all(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "reports" / "evidence" / "small" / "x.json").write_text("{}")
    assert main(["diff", str(repository), str(repository), "--json", *_common(repository)]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (found["marks"], found["verdicts"], found["got_worse"]) == ([], [], False) and "x.json" in found["refused"][0]


def _common(root: Path) -> list[str]:
    return ["--root", str(root), "--matrix", str(ROOT / "tests" / "matrix_small.yaml")]
