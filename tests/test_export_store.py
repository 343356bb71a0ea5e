"""Exports on disk and at the door: all of a store goes out, and every line is verified on its way in: a damaged one costs only itself."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from benchmark_samples import measurement
from evidence_samples import sample
from export_samples import kept
from matrix_samples import MATRIX

import harness.frames
from harness.__main__ import main
from harness.benchmark_codec import Baseline
from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError, HarnessError
from harness.export_lines import line_of, opened
from harness.export_rows import row_of, rows_of_runs
from harness.export_store import LARGEST_LINE, export, import_export, imported
from harness.export_tables import tables_of
from harness.model import Hardware, Stage
from harness.report import fold
from harness.store import Store

ROOT = Path(__file__).resolve().parent.parent
PIECES = tuple(sample(stage=stage, started_at=f"2026-06-0{day}T10:00:00+00:00") for stage in (Stage.TRAIN, Stage.RESUME) for day in (1, 2))


def store_of(root: Path) -> Store:
    store = Store(root, root / ".harness" / "evidence")
    for piece in PIECES:
        store.save(piece)
    return store


def good(count: int = 3) -> list[str]:
    return [line_of(row) for row in rows_of_runs(measurement(*[0.1 + i / 100 for i in range(count)]), "r1")]


def test_current_evidence_history_and_benchmarks_go_out_once_each(tmp_path: Path) -> None:
    store, benchmarks, file = store_of(tmp_path), BenchmarkStore(tmp_path), tmp_path / "out.jsonl"
    benchmarks.keep(measurement(0.1, 0.2), "20261130T000000-abc")
    benchmarks.promote(Baseline(measurement(0.3), "2026-11-30", "first"))
    assert export(store, benchmarks, file).lines == 4 + 2 + 1
    rows = [opened(line, "f") for line in file.read_text(encoding="utf-8").splitlines(keepends=True)]
    assert [row["record"] for row in rows] == ["evidence"] * 4 + ["repeat"] * 2 + ["baseline"]
    assert {row["piece"] for row in rows[:4]} == {piece.sha256 for piece in PIECES}
    assert export(store, benchmarks, file, ["current"]).lines == 2
    assert export(store, benchmarks, file, ["benchmarks"]).lines == 3


def test_tables_of_an_exported_store_are_those_of_the_store(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    export(store, BenchmarkStore(tmp_path), tmp_path / "out.jsonl.gz")
    path = import_export(tmp_path, tmp_path / "out.jsonl.gz").path
    assert path is not None
    assert tables_of([path], MATRIX).marks == fold(MATRIX, store.load_all(strict=True)[0]).marks


def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        export(store, BenchmarkStore(tmp_path), tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_damaged_piece_is_named_and_the_others_go_out(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    spoiled = next((tmp_path / "reports" / "evidence").rglob("train*.json"))
    spoiled.write_text(spoiled.read_text().replace("12.5", "12.6"))
    written = export(store, BenchmarkStore(tmp_path), tmp_path / "out.jsonl", ["current"])
    assert written.lines == 1 and len(written.refused) == 1 and "was edited" in str(written.refused[0])


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (lambda line: line.replace(b"0.11", b"0.12"), "cut or edited"),
        (lambda line: line[:40] + b"\n", "no JSON"),
        (lambda line: b"\n", "no JSON"),
        (lambda line: b"\xff\xfe" + line, "no UTF-8 text"),
        (lambda line: b'{ "a": "' + b"x" * (2 * LARGEST_LINE) + b'"}\n', "more than 1048576 bytes"),
        (lambda line: changed(line, record="thought"), "record 'thought' is unknown"),
        (lambda line: changed(line, hardware="a9"), "a9"),
        (lambda line: changed(line, step_s=-1.0), "not finite and above 0"),
        (lambda line: changed(line, step_s="fast"), "step_s is a str"),
        (lambda line: changed(line, step_s=True), "step_s is a bool"),
        (lambda line: changed(line, mood="good"), "unknown column 'mood'"),
        (lambda line: changed(line, started_at="2026-11-30"), "no time in UTC"),
        (lambda line: changed(line, started_at="2036-11-30T00:00:00+00:00"), "yet to come"),
        (lambda line: changed(line, versions="[]"), "versions is no object"),
        (lambda line: changed(line, cell=""), "an empty cell"),
    ],
)  # fmt: skip
def test_a_damaged_line_costs_that_line_and_its_number_is_told(tmp_path: Path, damaged, what: str) -> None:  # type: ignore[no-untyped-def]
    lines = [line.encode() for line in good()]
    (tmp_path / "f.jsonl").write_bytes(lines[0] + damaged(lines[1]) + lines[2])
    found = import_export(tmp_path, tmp_path / "f.jsonl", lambda: datetime(2027, 1, 1, tzinfo=timezone.utc))
    assert (found.lines, found.faults) == (2, 1)
    assert "f.jsonl:2: " in str(found.refused[0]) and what in str(found.refused[0])
    assert found.path is not None and found.path.read_bytes() == lines[0] + lines[2]


def changed(line: bytes, **values: object) -> bytes:
    """A line whose hash is right and whose content is not."""
    return line_of({**json.loads(line), **values}).encode()


@pytest.mark.parametrize(
    "values", [{"piece": "x"}, {"stage": "sleep"}, {"blame": "me"}, {"flaky_after": "7"}, {"ruling": ""}, {"compared": "2"}]
)
def test_a_row_that_no_evidence_gives_is_refused(tmp_path: Path, values: dict[str, object]) -> None:
    (tmp_path / "f.jsonl").write_text(line_of({**row_of(PIECES[0]), **values}))
    assert import_export(tmp_path, tmp_path / "f.jsonl").faults == 1


def test_what_is_cut_short_loses_its_last_line_only(tmp_path: Path) -> None:
    text = "".join(good()).encode()
    (tmp_path / "f.jsonl").write_bytes(text[:-1])
    found = import_export(tmp_path, tmp_path / "f.jsonl")
    assert (found.lines, found.faults) == (2, 1) and "f.jsonl:3: is cut short" in str(found.refused[0])
    packed = gzip.compress("".join(good(400)).encode())
    (tmp_path / "f.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    found = import_export(tmp_path, tmp_path / "f.jsonl.gz")
    assert 0 < found.lines < 400 and "can't be unpacked, nor what follows" in str(found.refused[-1])


def test_where_no_line_holds_nothing_is_kept_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text("{}\n" * 300)
    found = import_export(tmp_path, tmp_path / "f.jsonl")
    assert (found.path, found.lines, found.faults, len(found.refused)) == (None, 0, 300, 100)
    assert list((tmp_path / ".harness" / "exports").iterdir()) == []
    for name in (".", "none.jsonl"):
        with pytest.raises(EvidenceError, match="can't be read"):
            import_export(tmp_path, tmp_path / name)


def test_an_export_is_named_by_how_its_name_begins(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="holds no export"):
        imported(tmp_path)
    path = kept(tmp_path, rows_of_runs(measurement(0.1), "r"))
    assert imported(tmp_path) == imported(tmp_path, [path.stem[:6]]) == (path,)
    with pytest.raises(HarnessError, match=f"Known: {path.stem[:12]}"):
        imported(tmp_path, ["zz"])


def test_lines_that_chunks_cut_are_whole_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path, [*map(row_of, PIECES), *rows_of_runs(measurement(*[0.1] * 9), "r")])
    whole = tables_of([path], MATRIX)
    monkeypatch.setattr(harness.frames, "CHUNK_BYTES", 333)
    cut = tables_of([path], MATRIX)
    assert (cut.rows, cut.marks) == (whole.rows, whole.marks) and cut.benchmarks.equals(whole.benchmarks)


def test_the_doors_export_import_and_show_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--root", str(tmp_path), "--matrix", str(ROOT / "tests" / "matrix_small.yaml")]
    BenchmarkStore(tmp_path).keep(measurement(0.1, 0.2, hardware=Hardware.SIM), "20261130T000000-abc")
    assert main(["tables", *common]) == 2 and "holds no export" in capsys.readouterr().err
    assert main(["export", "x.csv", *common]) == 2 and "ends in .jsonl or .jsonl.gz" in capsys.readouterr().err
    file = str(tmp_path / "x.jsonl")
    assert main(["export", file, *common]) == 0 and "2 lines written" in capsys.readouterr().out
    assert main(["import", file, *common]) == 0 and "2 lines hold, 0 refused, kept as " in capsys.readouterr().out
    assert main(["tables", *common]) == 0
    assert "step_s" in capsys.readouterr().out
    assert main(["tables", "--json", *common]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2 and {row["quantity"]: row["median"] for row in found["benchmarks"]}["step_s"] == pytest.approx(0.15)
    (tmp_path / "x.jsonl").write_text("{}\n")
    assert main(["import", file, *common]) == 4 and "x.jsonl:1: " in capsys.readouterr().err
