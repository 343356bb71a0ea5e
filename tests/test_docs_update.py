"""`docs update` on real pages: with a prepared store, exactly the rows that the marks speak of change, and to these bytes."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from docs_evidence import MATRIX, MATRIX_TEXT, OLD, run, stored
from evidence_samples import sample
from markdown_it import MarkdownIt

from harness.__main__ import main
from harness.docs_update import npu_answers, update_page
from harness.model import Evidence, Hardware, MarkKind, Stage, VerdictKind, Weights
from harness.report import current_table
from harness.support import SupportTable

PAGES = Path(__file__).resolve().parent / "docs"
ZH, EN = ((PAGES / f"npu_support.{language}.md").read_bytes().decode("utf-8") for language in ("zh", "en"))
DAY = date(2026, 6, 10)

# Qwen2.5-1.5B: three strategies verified. Qwen3-8B: FSDP1 fails. Qwen3-32B: zero2 verified, zero3 by a run of long ago. And what changes
# nothing: a simulated NPU, a plain cpu, an NPU with tiny weights, passing and failing.
EVIDENCE: tuple[Evidence, ...] = (
    *run("sft-qwen2_5_1_5b_instruct-lora-fsdp1"),
    *run("sft-qwen2_5_1_5b_instruct-lora-zero2"),
    *run("sft-qwen2_5_1_5b_instruct-lora-zero3"),
    *run("sft-qwen3_8b-lora-fsdp1", fails=Stage.MERGE),
    *run("sft-qwen3_32b-lora-zero2"),
    *run("sft-qwen3_32b-lora-zero3", at=OLD),
    *run("sft-qwen2_5_0_5b_instruct-lora-zero2", hardware=Hardware.SIM, weights=Weights.TINY),
    *run("sft-qwen2_5_0_5b_instruct-lora-single", hardware=Hardware.CPU, weights=Weights.TINY),
    *run("sft-qwen3_30b_a3b-lora-zero2", weights=Weights.TINY),
    *run("sft-qwen3_30b_a3b-lora-zero3", weights=Weights.TINY, fails=Stage.TRAIN),
)
A2 = "Atlas 900 A2 PODc"
BASE = "FSDP1/FSDP2/deepspeed"
ZH_ROWS = {
    f"| SFT | Qwen2.5-1.5B-Instruct | {BASE} | {A2} |": f"| SFT | Qwen2.5-1.5B-Instruct | "
    f"{BASE}（FSDP1/zero2/zero3：已验证 2026-06-01，CANN 9.0.0，torch_npu 2.9.0） | {A2} |",
    f"| SFT | Qwen3-8B | {BASE} | {A2} |": f"| SFT | Qwen3-8B | {BASE}（FSDP1：失败 2026-06-01：merge，args.unknown） | {A2} |",
    f"| SFT | Qwen3-32B | {BASE} | {A2} |": f"| SFT | Qwen3-32B | {BASE}（zero2：已验证 2026-06-01，CANN 9.0.0，torch_npu 2.9.0；"
    f"zero3：已过期，上次通过 2026-03-02，CANN 9.0.0，torch_npu 2.9.0） | {A2} |",
}
EN_ROWS = {
    f"| SFT       | Qwen2.5-1.5B-Instruct       | {BASE} | {A2} |": f"| SFT       | Qwen2.5-1.5B-Instruct       | "
    f"{BASE} (FSDP1/zero2/zero3: verified 2026-06-01, CANN 9.0.0, torch_npu 2.9.0) | {A2} |",
    f"| SFT       | Qwen3-8B                    | {BASE} | {A2} |": f"| SFT       | Qwen3-8B                    | "
    f"{BASE} (FSDP1: failing 2026-06-01: merge, args.unknown) | {A2} |",
    f"| SFT       | Qwen3-32B                   | {BASE} | {A2} |": f"| SFT       | Qwen3-32B                   | "
    f"{BASE} (zero2: verified 2026-06-01, CANN 9.0.0, torch_npu 2.9.0; "
    f"zero3: stale, last passed 2026-03-02, CANN 9.0.0, torch_npu 2.9.0) | {A2} |",
}


def expected(page: str, rows: dict[str, str]) -> str:
    for old, new in rows.items():
        assert page.count(old) == 1
        page = page.replace(old, new)
    return page


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "matrix.yaml").write_text(MATRIX_TEXT, encoding="utf-8")
    stored(tmp_path, EVIDENCE)
    return tmp_path


def update(root: Path, page: Path, *options: str) -> int:
    return main(["docs", "update", str(page), "--root", str(root), "--as-of", str(DAY), *options])


def rows_of(page: str) -> list[list[str]]:
    """The rows of all tables, as a real parser draws them."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows and token.level >= 3:
            rows[-1].append(token.content)
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> SupportTable:
    return current_table(MATRIX, stored(tmp_path_factory.mktemp("store"), EVIDENCE), DAY)[0]


@pytest.mark.parametrize(("text", "rows"), [(ZH, ZH_ROWS), (EN, EN_ROWS)], ids=["zh", "en"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
def test_exactly_the_rows_with_npu_evidence_change(table: SupportTable, text: str, rows: dict[str, str], ends: str, mark: str) -> None:
    page = mark + text.replace("\n", ends)
    first = update_page(page, table, MATRIX).text
    assert first == mark + expected(text, rows).replace("\n", ends)
    assert update_page(first, table, MATRIX).text == first


@pytest.mark.parametrize(("text", "rows"), [(ZH, ZH_ROWS), (EN, EN_ROWS)], ids=["zh", "en"])
def test_the_updated_page_is_drawn_with_the_marks_in_their_cells(table: SupportTable, text: str, rows: dict[str, str]) -> None:
    before, after = rows_of(text), rows_of(update_page(text, table, MATRIX).text)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new for _, new in changed] == [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.values()]
    assert all(old[:2] == new[:2] and old[3:] == new[3:] and new[2].startswith(old[2]) for old, new in changed)


@pytest.mark.parametrize(("text", "rows"), [(ZH, ZH_ROWS), (EN, EN_ROWS)], ids=["zh", "en"])
def test_the_command_writes_the_file_once_and_for_all(repository: Path, text: str, rows: dict[str, str]) -> None:
    page = repository / "page.md"
    page.write_bytes(("\ufeff" + text.replace("\n", "\r\n")).encode("utf-8"))
    for _ in range(2):
        assert update(repository, page) == 0
        assert page.read_bytes() == ("\ufeff" + expected(text, rows).replace("\n", "\r\n")).encode("utf-8")


def test_a_dry_run_prints_the_difference_writes_nothing_and_says_so_by_its_exit_code(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = repository / "page.md"
    page.write_text(ZH, encoding="utf-8")
    assert update(repository, page, "--dry-run") == 1
    said = capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == ZH
    assert [line for line in said.splitlines() if line.startswith("+|")] == [f"+{row}" for row in ZH_ROWS.values()]
    assert update(repository, page) == 0
    capsys.readouterr()
    assert update(repository, page, "--dry-run") == 0
    assert "says what the evidence says" in capsys.readouterr().out


def test_the_changes_are_told_with_their_lines_and_for_machines(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = repository / "page.md"
    page.write_text(EN, encoding="utf-8")
    assert update(repository, page, "--dry-run", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [(change["line"], change["old"]) for change in told["changes"]] == [(EN.splitlines().index(row) + 1, row) for row in EN_ROWS]
    assert update(repository, page) == 0
    assert all(f"{page}:{EN.splitlines().index(row) + 1}: now" in capsys.readouterr().out for row in list(EN_ROWS)[:1])


def test_a_mark_that_changes_is_replaced(table: SupportTable, tmp_path: Path) -> None:
    old = update_page(EN, table, MATRIX).text
    later = stored(tmp_path, run("sft-qwen3_8b-lora-fsdp1", at="2026-06-05T10:00:00+00:00"))
    new = update_page(old, current_table(MATRIX, later, DAY)[0], MATRIX).text
    row = next(line for line in new.splitlines() if "Qwen3-8B " in line)
    assert row == f"| SFT       | Qwen3-8B                    | {BASE} (FSDP1: verified 2026-06-05, CANN 9.0.0, torch_npu 2.9.0) | {A2} |"
    assert [line for line in new.splitlines() if "Qwen3-8B " not in line] == [line for line in old.splitlines() if "Qwen3-8B " not in line]


def test_a_store_without_the_evidence_unsays_nothing(table: SupportTable, tmp_path: Path) -> None:
    page = update_page(ZH, table, MATRIX).text
    empty = current_table(MATRIX, stored(tmp_path, ()), DAY)[0]
    assert update_page(page, empty, MATRIX).text == page
    assert update_page(ZH, empty, MATRIX).text == ZH


def test_verified_cells_that_no_row_means_get_a_row_in_the_tables_own_style(tmp_path: Path) -> None:
    more = (
        *run("sft-qwen3_0_6b-lora-single"),
        *run("sft-qwen3_0_6b-full-zero3", fails=Stage.TRAIN),
        *run("dpo-qwen3_0_6b-lora-zero2"),
        *run("dpo-qwen3_0_6b-lora-zero3"),
        *run("pt-qwen3_0_6b-lora-zero2"),
    )
    table = current_table(MATRIX, stored(tmp_path, (*EVIDENCE, *more)), DAY)[0]
    for text, rows, added, last in (
        (
            EN,
            EN_ROWS,
            (
                f"| SFT       | Qwen3-0.6B                  | single NPU (verified 2026-06-01, CANN 9.0.0, torch_npu 2.9.0) | {A2} |",
                "| **DPO**   | Qwen3-0.6B          | deepspeed (verified 2026-06-01, CANN 9.0.0, torch_npu 2.9.0) | -              | "
                f"{A2} |",
            ),
            ("Qwen3.5-35B-A3B ", "| **DPO**   | Qwen3-8B"),
        ),
        (
            ZH,
            ZH_ROWS,
            (
                f"| SFT | Qwen3-0.6B | 单卡（已验证 2026-06-01，CANN 9.0.0，torch_npu 2.9.0） | {A2} |",
                f"| **DPO** | Qwen3-0.6B | deepspeed（已验证 2026-06-01，CANN 9.0.0，torch_npu 2.9.0） | - | {A2} |",
            ),
            ("Qwen3.5-35B-A3B ", "| **DPO** | Qwen3-8B"),
        ),
    ):
        update = update_page(text, table, MATRIX)
        lines = expected(text, rows).splitlines()
        for row, above in zip(added, last, strict=True):
            lines.insert(next(n for n, line in enumerate(lines) if above in line) + 1, row)
        assert update.text.splitlines() == lines
        assert update_page(update.text, table, MATRIX).text == update.text
        assert [note for note in update.notes if "PT Qwen/Qwen3-0.6B" in note] and len(update.notes) == 1
        drawn = [row for row in rows_of(update.text) if "Qwen3-0.6B" in row]
        assert [(row[0], row[-1], len(row)) for row in drawn] == [("SFT", A2, 4), ("**DPO**", A2, 5)]


def test_a_row_added_to_a_page_without_a_last_line_end_leaves_it_without_one(tmp_path: Path) -> None:
    table = current_table(MATRIX, stored(tmp_path, run("sft-qwen3_0_6b-lora-single")), DAY)[0]
    page = EN[EN.index("| algorithm") : EN.index("\n\n### Verified RL")].replace("\n", "\r\n")
    update = update_page(page, table, MATRIX)
    assert update.text.startswith(page + "\r\n| SFT       | Qwen3-0.6B") and update.text.endswith("PODc |")
    assert len(update.changes) == 1


def test_a_feature_that_one_model_stands_for_changes_only_where_it_is_contradicted(tmp_path: Path) -> None:
    failing = run("sft-qwen2_5_7b_instruct-lora-fsdp1", fails=Stage.TRAIN)
    passing = run("sft-qwen2_5_7b_instruct-lora-zero2")
    store = stored(tmp_path, (*failing, *passing))
    page = update_page(EN, current_table(MATRIX, store, DAY)[0], MATRIX).text
    changed = [new for old, new in zip(EN.splitlines(), page.splitlines(), strict=True) if old != new]
    assert changed[0] == (
        "|                 | FSDP                  | "
        "Supported (Qwen2.5-7B-Instruct SFT lora fsdp1 A2: failing 2026-06-01: train, args.unknown) |"
    )
    assert len(changed) == 2 and "Qwen2.5-7B-Instruct " in changed[1]
    store = stored(tmp_path, run("sft-qwen2_5_7b_instruct-lora-fsdp1", at="2026-06-05T10:00:00+00:00"))
    again = update_page(page, current_table(MATRIX, store, DAY)[0], MATRIX).text
    assert again.splitlines()[:25] == EN.splitlines()[:25]


def test_the_real_fold_decides_what_counts(tmp_path: Path) -> None:
    """FSDP2 with LoRA has a recorded limit (its resume and merge), so that a pass is no plain `verified`."""
    crash = sample("sft-qwen3_8b-lora-zero2", Stage.TRAIN, VerdictKind.FAILED, Hardware.SIM, Weights.TINY)
    table = current_table(MATRIX, stored(tmp_path, (*EVIDENCE, crash, *run("sft-qwen3_8b-lora-fsdp2"))), DAY)[0]
    kinds = {cell: said.kind for (cell, _), said in npu_answers(table).items()}
    assert kinds == {
        "sft-qwen2_5_1_5b_instruct-lora-fsdp1": MarkKind.VERIFIED,
        "sft-qwen2_5_1_5b_instruct-lora-zero2": MarkKind.VERIFIED,
        "sft-qwen2_5_1_5b_instruct-lora-zero3": MarkKind.VERIFIED,
        "sft-qwen3_8b-lora-fsdp1": MarkKind.FAILING,
        "sft-qwen3_8b-lora-fsdp2": MarkKind.FIXED,
        "sft-qwen3_32b-lora-zero2": MarkKind.VERIFIED,
        "sft-qwen3_32b-lora-zero3": MarkKind.STALE,
    }
    assert "FSDP2: passed despite a recorded limit 2026-06-01)" in update_page(EN, table, MATRIX).text


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "does not exist"), (b"| a |\n| - |\n| \xff |\n", "no UTF-8 text (byte 14)")],
)
def test_a_page_that_cant_be_read_is_refused(
    repository: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = repository / "page.md"
    if content is not None:
        page.write_bytes(content)
    assert update(repository, page) == 2
    assert said in capsys.readouterr().err
    assert update(repository, repository) == 2


def test_a_disk_that_refuses_leaves_the_page(repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = repository / "page.md"
    page.write_text(EN, encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.store.os.replace", full)
    assert update(repository, page) == 5
    assert "No space left" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == EN and sorted(p.name for p in repository.glob(".*.tmp")) == []


def test_a_read_only_page_is_not_written(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = repository / "page.md"
    page.write_text(EN, encoding="utf-8")
    page.chmod(0o444)
    assert update(repository, page) == 2
    assert page.read_text(encoding="utf-8") == EN and "is read-only. Make it writable" in capsys.readouterr().err


def test_a_linked_page_stays_a_link_and_keeps_its_permissions(repository: Path) -> None:
    page, link = repository / "page.md", repository / "link.md"
    page.write_text(EN, encoding="utf-8")
    page.chmod(0o664)
    link.symlink_to(page)
    assert update(repository, link) == 0
    assert link.is_symlink() and page.read_text(encoding="utf-8") != EN
    assert page.stat().st_mode & 0o777 == 0o664


def test_refused_evidence_is_told_and_the_rest_is_written(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = repository / "page.md"
    page.write_text(EN, encoding="utf-8")
    path = next((repository / "reports" / "evidence" / "sft-qwen3_8b-lora-fsdp1").glob("merge--*.json"))
    path.write_bytes(path.read_bytes()[:-20])
    assert update(repository, page) == 4
    assert "refused: reports/evidence/sft-qwen3_8b-lora-fsdp1" in capsys.readouterr().err
    rows = {old: new for old, new in EN_ROWS.items() if "Qwen3-8B" not in old}
    assert page.read_text(encoding="utf-8") == expected(EN, rows)
