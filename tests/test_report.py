from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path

import pytest
from evidence_samples import sample
from matrix_samples import MATRIX

from harness.__main__ import main
from harness.errors import EvidenceError, HostError
from harness.evidence import from_json, to_json
from harness.model import Evidence, VerdictKind
from harness.report import check_report, count_marks, current_table, write_report
from harness.rules import required_stages
from harness.store import Store

CELL = next(c for c in MATRIX.cells if c.id == "small")
WHOLE = tuple(sample("small", s, tiny_key=CELL.tiny_key) for s in required_stages(CELL.algorithm, CELL.tuner, CELL.engine))
PAGES = ("support.md", "support.zh.md", "npu-support.md", "npu-support.zh.md", "report.md", "kernel-parity.md", "kernel-parity.zh.md")


def stored(root: Path, *evidence: Evidence) -> Store:
    store = Store(root, root / ".harness" / "evidence", now=lambda: datetime(2026, 7, 1, tzinfo=timezone.utc))
    for piece in evidence:
        store.save(piece)
    return store


def pages(root: Path) -> dict[str, bytes]:
    return {name: (root / "reports" / name).read_bytes() for name in PAGES}


def test_what_was_written_passes_its_check(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    assert [p.name for p in write_report(tmp_path, MATRIX, store)] == list(PAGES)
    assert check_report(tmp_path, MATRIX, store) == ()


def test_the_same_evidence_gives_the_same_bytes_wherever_it_is(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "another place"
    write_report(one, MATRIX, stored(one, *WHOLE))
    write_report(two, MATRIX, stored(two, *reversed(WHOLE)))
    assert pages(one) == pages(two)
    write_report(two, MATRIX, stored(two), as_of=date(2026, 6, 1))
    assert pages(one) == pages(two)


def test_a_fresh_clone_without_a_history_passes_the_check(tmp_path: Path) -> None:
    write_report(tmp_path, MATRIX, stored(tmp_path, *WHOLE))
    for path in (tmp_path / ".harness" / "evidence").glob("*.json"):
        path.unlink()
    assert check_report(tmp_path, MATRIX, stored(tmp_path)) == ()


@pytest.mark.parametrize("name", PAGES)
def test_one_edited_byte_of_any_page_is_found_and_located(tmp_path: Path, name: str) -> None:
    store = stored(tmp_path, *WHOLE)
    write_report(tmp_path, MATRIX, store)
    path = tmp_path / "reports" / name
    text = path.read_bytes()
    for position in range(len(text) // 3, len(text), len(text) // 5):
        line = text[:position].count(b"\n") + 1
        path.write_bytes(text[:position] + bytes([text[position] ^ 1]) + text[position + 1 :])
        found = check_report(tmp_path, MATRIX, store)
        assert found
        assert any(f"reports/{name}:{n}:" in found[0] for n in (line - 1, line, line + 1)) or "UTF-8" in found[0]


def test_a_missing_page_is_a_difference(tmp_path: Path) -> None:
    assert len(check_report(tmp_path, MATRIX, stored(tmp_path))) == len(PAGES)


def test_a_deleted_piece_of_evidence_is_found(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    write_report(tmp_path, MATRIX, store)
    next((tmp_path / "reports" / "evidence" / "small").glob("merge--*.json")).unlink()
    assert any("wired" in difference for difference in check_report(tmp_path, MATRIX, store))


def test_a_forged_piece_is_found_though_its_hash_was_made_anew(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    write_report(tmp_path, MATRIX, store)
    path = next((tmp_path / "reports" / "evidence" / "small").glob("train--*.json"))
    path.write_text(to_json(replace(from_json(path.read_text(encoding="utf-8"), "x"), duration_s=1.0)), encoding="utf-8")
    assert len(store.load_all(strict=True)[0]) == len(WHOLE)
    assert check_report(tmp_path, MATRIX, store)


def test_a_damaged_piece_is_a_difference_and_the_report_names_it(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    path = next((tmp_path / "reports" / "evidence" / "small").glob("train--*.json"))
    path.write_bytes(path.read_bytes()[:-20])
    write_report(tmp_path, MATRIX, store)
    assert "cut short" in (tmp_path / "reports" / "report.md").read_text(encoding="utf-8")
    assert [d.split(":")[0] for d in check_report(tmp_path, MATRIX, store)] == [str(path.relative_to(tmp_path))]


def test_a_partial_run_changes_only_its_own_evidence_and_rows(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE, sample("zero2", tiny_key="tiny-zero2"))
    write_report(tmp_path, MATRIX, store)
    kept = {p: p.read_bytes() for p in (tmp_path / "reports" / "evidence").rglob("*.json")}
    before = (tmp_path / "reports" / "support.md").read_text(encoding="utf-8").splitlines()
    again = store.save(sample("zero2", kind=VerdictKind.FAILED, tiny_key="tiny-zero2", started_at="2026-06-01T11:00:00Z"))
    write_report(tmp_path, MATRIX, store)
    assert [p for p, content in kept.items() if p.read_bytes() != content] == [again]
    after = (tmp_path / "reports" / "support.md").read_text(encoding="utf-8").splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert all("deepspeed" in line or "zero2" in line or line.endswith(" |") for line in changed)
    assert sum("**failing** (cpu)" in line for line in changed) == 2
    assert not any("Qwen3-0.6B" in line for line in changed)


def test_a_rehearsals_store_gives_no_report(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / ".harness" / "evidence", rehearsal=True)
    with pytest.raises(EvidenceError, match="rehearsal"):
        write_report(tmp_path, MATRIX, store)


def test_ages_are_measured_on_the_day_asked_for(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    assert current_table(MATRIX, store, date(2026, 5, 1))[0].later == len(WHOLE)
    assert current_table(MATRIX, store)[0].as_of == date(2026, 6, 1)


def test_marks_are_counted_as_the_legend_counts_them(tmp_path: Path) -> None:
    assert count_marks(MATRIX, stored(tmp_path, *WHOLE)) == {"wired": 2, "untested": 3}


def test_a_page_that_is_no_regular_file_is_a_difference_and_hangs_nobody(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    write_report(tmp_path, MATRIX, store)
    (tmp_path / "reports" / "support.md").unlink()
    (tmp_path / "reports" / "support.md").mkdir()
    (tmp_path / "reports" / "report.md").unlink()
    os.mkfifo(tmp_path / "reports" / "report.md")
    found = check_report(tmp_path, MATRIX, store)
    assert [d.split(" ")[0] for d in found] == ["reports/support.md:", "reports/report.md:"]
    with pytest.raises(HostError, match=r"support\.md"):
        write_report(tmp_path, MATRIX, store)


def test_a_stray_among_the_evidence_is_a_difference(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE)
    write_report(tmp_path, MATRIX, store)
    (tmp_path / "reports" / "evidence" / "notes.txt").write_text("x")
    assert [d.split(":")[0] for d in check_report(tmp_path, MATRIX, store)] == ["reports/evidence/notes.txt"]


def test_evidence_of_the_future_changes_no_mark_whatever_day_is_asked_for(tmp_path: Path) -> None:
    store = stored(tmp_path, *WHOLE, sample("small", tiny_key=CELL.tiny_key, started_at="2031-01-01T00:00:00+00:00"))
    for as_of in (None, date(2026, 6, 2), date(2032, 1, 1)):
        table, refused = current_table(MATRIX, store, as_of)
        assert [e.what for e in refused] == ["says that it ran at 2031-01-01T00:00:00+00:00, which is yet to come."]
        assert table.later == 0
    assert table.as_of == date(2032, 1, 1)


def test_the_command_names_what_it_refuses_and_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path, *WHOLE).save(sample("zero2", tiny_key="tiny-zero2"))
    matrix = str(Path(__file__).resolve().parent.parent / "matrix.yaml")
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["report", "--root", str(tmp_path), "--matrix", matrix]) == 4
    assert f"refused: {path.relative_to(tmp_path)}:" in capsys.readouterr().err
    assert main(["report", "--json", "--root", str(tmp_path), "--matrix", matrix]) == 4
    assert "cut short" in str(json.loads(capsys.readouterr().out)["refused"])
    shutil.rmtree(tmp_path / "reports" / "evidence")
    assert main(["report", "--root", str(tmp_path), "--matrix", matrix]) == 0
