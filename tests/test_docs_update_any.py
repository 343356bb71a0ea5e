"""`docs update` whatever the marks and whatever the page: nothing but the rows that marks speak of, and the same again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import pytest
from docs_evidence import MATRIX
from evidence_samples import sample
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_docs_update import EN, ZH, rows_of

from harness.docs_page import read_page
from harness.docs_rows import read_rows, table_form
from harness.docs_update import npu_answers, update_page
from harness.docs_update_lines import lines_of
from harness.docs_update_marks import WRITTEN, without_marks
from harness.model import Hardware, Mark, MarkKind, Stage, Tier, VerdictKind, Weights
from harness.support import SupportTable

STATUS = """# Status
| Hardware | Strategy | Status | Model | Algorithm | Notes |
|---|:--|:-:|--:|---|---|
|A2|FSDP1|Verified|Qwen3-8B|SFT|as `a\\|b`|
|A2/A3|zero2/zero3|Not supported|Qwen3.5-27B|SFT||
|A2|deepspeed| **Verified** |[Qwen3-32B](https://x.cn/Qwen3-32B)|SFT|<b>x</b>|
|||Untested|Qwen3-30B-A3B|SFT|a row|
"""
SIGNS = """> | 算法 | 模型 | 训练策略 | 硬件 | 是否支持 |
> | --- | --- | --- | --- | :-: |
> | SFT | Qwen3-8B/Qwen3-32B | FSDP2、DeepSpeed | A2 | √ |
> | SFT | Qwen3-14B-Base | FSDP2 | A2 | √ |
> | DPO | Qwen3-0.6B | ZeRO-2/3 | A2 | x |
>
> 完"""
LOOSE = """algorithm | model families | strategy | hardware
--- | --- | --- | ---
SFT | Qwen3-8B | FSDP1/2 | A2
SFT | Qwen3-32B | warp/zero2 | A2 

end  """
PAGES = (EN, ZH, STATUS, SIGNS, LOOSE)
MODELS = ("qwen3_8b", "qwen3_32b", "qwen3_30b_a3b", "qwen3_5_27b", "qwen3_0_6b", "qwen2_5_7b_instruct")
CELLS = [cell for cell in MATRIX.cells if cell.model.key in MODELS and cell.tier is not Tier.CONTRACT]
PIECES = {
    (weights, kind): sample("x", Stage.TRAIN, kind, Hardware.A2, weights)
    for weights in Weights
    for kind in (VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.KNOWN_FAILURE)
}
DECIDED = {MarkKind.FAILING: VerdictKind.FAILED, MarkKind.KNOWN_FAILURE: VerdictKind.KNOWN_FAILURE}
VERSION = st.sampled_from(["9.0.0", "8.5.1.post4", "2.9.0+git(dirty)", "9|0; 1）", "<b>"])


@st.composite
def marks(draw: st.DrawFn) -> tuple[Mark, ...]:
    """Any marks at all on some cells, of any weights and hardware."""
    found: list[Mark] = []
    for cell in draw(st.lists(st.sampled_from(CELLS), max_size=8, unique_by=lambda cell: cell.id)):
        for target in cell.targets:
            kind = draw(st.sampled_from(list(MarkKind)))
            weights = draw(st.sampled_from([Weights.REAL, Weights.REAL, Weights.TINY]))
            hardware = draw(st.sampled_from([target, target, Hardware.SIM, Hardware.CPU]))
            piece = PIECES[weights, DECIDED.get(kind, VerdictKind.PASSED)]
            versions = {"cann": draw(VERSION), "torch_npu": draw(VERSION)}
            day = str(draw(st.dates(date(2026, 1, 1), date(2026, 12, 31))))
            found.append(Mark(cell.id, target, kind, "because", "", hardware, day, versions, (piece.sha256,)))
    return tuple(found)


def table_of(found: tuple[Mark, ...]) -> SupportTable:
    return SupportTable(date(2026, 12, 31), found, tuple(PIECES.values()), 0, ())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PAGES), marks(), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_all_but_the_changed_rows_stays_and_a_second_time_changes_nothing(text: str, found: tuple[Mark, ...], ends: str, bom: bool) -> None:
    table = table_of(found)
    page = ("\ufeff" if bom else "") + text.replace("\n", ends)
    update = update_page(page, table, MATRIX)
    old, new = lines_of(page), lines_of(update.text)
    changed = {change.line: change.new for change in update.changes if change.old is not None}
    added = [change for change in update.changes if change.old is None]
    assert len(new) == len(old) + len(added)
    at = 0
    for number, line in enumerate(old, 1):
        assert new[at].rstrip("\r\n") == changed.get(number, line).rstrip("\r\n")
        at += 1 + sum(change.line == number for change in added)
    assert update.text.endswith(page[-1:])
    answers = npu_answers(table)
    assert all(_speaks(page, number, answers) for number in changed)
    assert bool(added) <= any(said.kind is MarkKind.VERIFIED for said in answers.values())
    again = update_page(update.text, table, MATRIX)
    assert again.text == update.text and again.changes == ()


def _speaks(page: str, number: int, answers: Mapping[tuple[str, Hardware], object]) -> bool:
    for table in read_page(page).tables:
        form = table_form(table.columns)
        if form is not None and table.line < number <= table.end_line:
            meanings = read_rows(form, [row.cells for row in table.rows], MATRIX)
            meant = next(meaning for row, meaning in zip(table.rows, meanings, strict=True) if row.line == number)
            return any(key in answers for key in meant.cells)
    return False


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PAGES), marks(), marks())
def test_what_a_row_says_is_what_the_evidence_says_now(text: str, before: tuple[Mark, ...], now: tuple[Mark, ...]) -> None:
    """Rows with evidence come to the same words, whatever the page said of them before."""
    answers, table = npu_answers(table_of(now)), table_of(now)
    said, said_again = (_said(update_page(page, table, MATRIX).text, answers) for page in (text, _updated(text, before)))
    assert said <= said_again


def _updated(text: str, found: tuple[Mark, ...]) -> str:
    return update_page(text, table_of(found), MATRIX).text


def _said(page: str, answers: Mapping[tuple[str, Hardware], object]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for table in read_page(page).tables:
        form = table_form(table.columns)
        if form is None or "status" in form.at:  # the word of a status follows the words that the column has left
            continue
        for row, meaning in zip(table.rows, read_rows(form, [r.cells for r in table.rows], MATRIX), strict=True):
            found |= {row.cells} if any(key in answers for key in meaning.cells) else set()
    return found


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PAGES), marks())
def test_every_row_is_drawn_with_as_many_cells_and_means_the_same(text: str, found: tuple[Mark, ...]) -> None:
    new = _updated(text, found)
    before, after = rows_of(text), rows_of(new)
    if len(before) == len(after):
        assert [len(row) for row in before] == [len(row) for row in after]
        assert all(a == b or "2026-" in "".join(b) for a, b in zip(before, after, strict=True))
    for old_table, new_table in zip(read_page(text).tables, read_page(new).tables, strict=True):
        form = table_form(old_table.columns)
        if form is not None:
            meant, means = (read_rows(form, [r.cells for r in t.rows], MATRIX) for t in (old_table, new_table))
            rest = [meaning.cells for meaning in means]
            assert all(meaning.cells in rest for meaning in meant)


@given(st.text("ab (（)）:：;；,，-0123456789√x已验证", max_size=40))
@example("MindSpeed (Megatron)")
@example("0.18.0(A3)")
@example("FSDP2 (see 2026-06-01)")
@example("FSDP2 (verified in June)")
@example("FSDP2（需要 2026-06-01 之后的版本）")
def test_what_people_wrote_is_not_taken_for_a_mark(text: str) -> None:
    if "-" not in text or "已验证 " not in text:
        assert without_marks(text) == text.strip()


def page(*rows: str, columns: str = "| algorithm | model | strategy | hardware | Status |") -> str:
    return "\n".join([columns, "|" + "---|" * (columns.count("|") - 1), *rows, ""])


def told(text: str, **kinds: MarkKind) -> list[str]:
    """The statuses after marks of SFT with Qwen3-8B on A2, by strategy."""
    pieces = {kind: PIECES[Weights.REAL, DECIDED.get(kind, VerdictKind.PASSED)].sha256 for kind in WRITTEN}
    found = tuple(
        Mark(f"sft-qwen3_8b-lora-{strategy}", Hardware.A2, kind, "", "", Hardware.A2, "2026-06-01", {"cann": "9"}, (pieces[kind],))
        for strategy, kind in kinds.items()
    )
    new = update_page(text, SupportTable(date(2026, 6, 2), found, tuple(PIECES.values()), 0, ()), MATRIX).text
    return [row.cells[-1] for row in read_page(new).tables[0].rows]


VERIFIED, FAILING, STALE = MarkKind.VERIFIED, MarkKind.FAILING, MarkKind.STALE


@pytest.mark.parametrize(
    ("word", "kinds", "said"),
    [
        ("Supported", {"zero2": VERIFIED, "zero3": VERIFIED}, "Supported (verified 2026-06-01, CANN 9)"),
        ("Not supported", {"zero2": VERIFIED, "zero3": VERIFIED}, "**Verified** (verified 2026-06-01, CANN 9)"),
        ("Supported", {"zero2": STALE, "zero3": STALE}, "Supported (stale, last passed 2026-06-01, CANN 9)"),
        ("Supported", {"zero2": FAILING, "zero3": FAILING}, "failing 2026-06-01: train, args.unknown"),
        ("Supported", {"zero2": FAILING}, "Partly supported (zero2: failing 2026-06-01: train, args.unknown)"),
        (
            "Supported",
            {"zero2": VERIFIED, "zero3": FAILING},
            "Partly supported (zero2: verified 2026-06-01, CANN 9; zero3: failing 2026-06-01: train, args.unknown)",
        ),
        ("Not supported", {"zero2": FAILING}, "Not supported (zero2: failing 2026-06-01: train, args.unknown)"),
        ("√", {"zero2": VERIFIED, "zero3": VERIFIED}, "√ (verified 2026-06-01, CANN 9)"),
        ("√", {"zero2": FAILING, "zero3": FAILING}, "x (failing 2026-06-01: train, args.unknown)"),
        ("x", {"zero2": VERIFIED, "zero3": VERIFIED}, "√ (verified 2026-06-01, CANN 9)"),
        ("✅", {"zero2": FAILING, "zero3": FAILING}, "❌ (failing 2026-06-01: train, args.unknown)"),
        ("√", {"zero2": FAILING}, "√ (zero2: failing 2026-06-01: train, args.unknown)"),
    ],
)
def test_a_status_column_says_nothing_that_the_marks_contradict(word: str, kinds: dict[str, MarkKind], said: str) -> None:
    other = {"√": "√", "x": "√", "✅": "✅"}.get(word, "**Verified**")
    text = page(f"| SFT | Qwen3-8B | deepspeed | A2 | {word} |", f"| SFT | Qwen3-32B | deepspeed | A2 | {other} |")
    assert told(text, **kinds) == [said, other]


def test_a_row_of_which_a_word_is_unknown_says_what_its_mark_speaks_of() -> None:
    text = page("| SFT | Qwen3-8B/Qwen9 | zero2 | A2 |", columns="| algorithm | model | strategy | hardware |")
    new = told(text.replace("| A2 |", "| A2 |"), zero2=VERIFIED)
    assert new == ["A2"]
    text = page("| SFT | Qwen3-8B/Qwen9 | A2 | zero2 |", columns="| algorithm | model | hardware | strategy |")
    assert told(text, zero2=VERIFIED) == ["zero2 (Qwen3-8B A2 zero2: verified 2026-06-01, CANN 9)"]


def test_a_table_in_a_fence_or_a_comment_is_no_table() -> None:
    text = page("| SFT | Qwen3-8B | zero2 | A2 | Supported |")
    for hidden in (f"```\n{text}```\n", f"<!--\n{text}-->\n"):
        found = Mark("sft-qwen3_8b-lora-zero2", Hardware.A2, FAILING, "", "", Hardware.A2, "2026-06-01", {}, ())
        assert update_page(hidden, SupportTable(None, (found,), (), 0, ()), MATRIX).text == hidden


def test_a_row_with_a_comment_or_too_few_cells_is_left_alone() -> None:
    text = page("| SFT | Qwen3-8B | zero2 | A2 <!-- checked --> | Supported |", "| SFT | Qwen3-8B | zero2 | A2 |")
    assert told(text, zero2=FAILING) == ["Supported", "A2"]
