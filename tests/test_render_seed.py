"""The page with ms-swift's own tables: the document's columns word for word, and beside them what evidence says and nothing more."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from docs_evidence import MATRIX, NEW, OLD, run
from evidence_samples import sample
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matrix_samples import no_gap, no_rule

from harness.docs_page import Table, read_page
from harness.docs_rows import TableForm, read_rows, table_form
from harness.docs_rows_words import bare
from harness.evidence import sealed
from harness.matrix_claims import row_text
from harness.model import Evidence, Hardware, Stage, VerdictKind, Weights
from harness.render import render_npu_support
from harness.render_said import said
from harness.render_seed_memory import peak_of
from harness.render_seed_words import SEED_TABLES, SEED_WORDS
from harness.rules import required_stages
from harness.support import SupportTable, support_table

DOCS = Path(__file__).resolve().parent / "docs"
LANGUAGES = ("en", "zh")
MEMORY_CELLS = ("single", "ddp-x4", "zero2", "zero3", "ddp-x8")
QWEN3_8B = "sft-qwen3_8b-lora-"


def fold(*evidence: Evidence, as_of: date | None = None) -> SupportTable:
    return support_table(MATRIX, evidence, as_of, required_stages=required_stages, ruling=no_rule, gap=no_gap)


def page(*evidence: Evidence, language: str = "en") -> str:
    return render_npu_support(fold(*evidence), MATRIX, language)


def tables(text: str) -> dict[str, Table]:
    """The tables by the title that they stand under."""
    found = read_page(text)
    assert not found.faults
    return {table.heading_path[-1]: table for table in found.tables}


def of(text: str, name: str, language: str = "en") -> list[list[str]]:
    """The rows of the table `name`, as their readers see them."""
    return [[bare(cell) for cell in row.cells] for row in tables(text)[SEED_WORDS[language][name]].rows]


def words(cell: str) -> str:
    return bare(cell.replace("\\*", "*"))  # the star of `4 * 22 GB`, which only one of the pages escapes


def column(text: str, name: str, title: str) -> list[str]:
    at = list(tables(text)[SEED_WORDS["en"][name]].columns).index(title)
    return [row[at] for row in of(text, name)]


def form_of(table: Table) -> TableForm:
    form = table_form(table.columns)
    assert form is not None, table.columns
    return form


def seen(rank: int, world: int, reserved: Any, allocated: Any = 1.0, rss: Any = 600.0) -> dict[str, Any]:
    """What evidence keeps of the memory that one rank of a step `train` saw, in MiB."""
    steps = {"step": [1, 2], "peak_reserved_mib": reserved, "peak_allocated_mib": allocated, "rss_mib": rss}
    return {"nonce": "n0", "rank": rank, "world_size": world, "steps": steps, "end": {"peak_rss_mib": rss}}


def trained(strategy: str, *ranks: dict[str, Any], at: str = OLD, **how: Any) -> Evidence:
    """A train stage of a cell of the memory table that passed, with these witnesses."""
    piece = run(f"sft-qwen2_7b_instruct-lora-{strategy}", at=at, **how)[0]
    assert piece.stage is Stage.TRAIN
    witnesses = tuple({**piece.witnesses[0], **rank} for rank in ranks)
    return sealed(replace(piece, witnesses=witnesses or piece.witnesses))


# --- the document's part


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_table_of_the_document_is_there_word_for_word_in_its_order(language: str) -> None:
    ours, checked = tables(page(language=language)), []
    for name in ("npu_support", "npu_support_tables"):
        for title, theirs in tables((DOCS / f"{name}.{language}.md").read_text(encoding="utf-8")).items():
            form = table_form(theirs.columns)
            if form is None:
                continue
            mine, width = ours[title], len(theirs.columns)
            assert mine.columns[:width] == theirs.columns
            assert [[words(c) for c in row.cells[:width]] for row in mine.rows] == [[words(c) for c in row.cells] for row in theirs.rows]
            checked.append((str(form.kind), len(theirs.rows)))
    assert sorted(checked) == [
        ("combinations", 6),
        ("combinations", 15),
        ("features", 19),
        ("memory", 9),
        ("products", 8),
        ("unsupported", 4),
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_regenerated_tables_read_back_as_the_claims_that_they_came_from(language: str) -> None:
    found = tables(page(*run(f"{QWEN3_8B}zero2"), language=language))
    for name in ("features", "sft", "rl", "unsupported", "memory"):
        table = found[SEED_WORDS[language][name]]
        meanings = read_rows(form_of(table), [row.cells for row in table.rows], MATRIX, table.heading_path[-1])
        for row, meaning in zip(MATRIX.tables[name], meanings, strict=True):
            claimed = {(claim.cell, claim.target) for claim in MATRIX.claims if claim.row == row_text(row) and claim.cell}
            assert (set(meaning.cells), meaning.problems, meaning.without_cell) == (claimed, (), ()), (name, row)
            assert meaning.says == row.get(f"state_{language}", "")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("evidence", [(), run(f"{QWEN3_8B}zero2")], ids=["nothing", "npu"])
def test_a_markdown_parser_sees_every_row_with_all_its_columns(language: str, evidence: tuple[Evidence, ...]) -> None:
    tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(page(*evidence, language=language))
    assert sum(token.type == "table_open" for token in tokens) == len(SEED_TABLES) + 1
    widths: list[list[int]] = []
    for token in tokens:
        if token.type == "table_open":
            widths.append([])
        elif token.type == "tr_open":
            widths[-1].append(0)
        elif token.type in ("td_open", "th_open"):
            widths[-1][-1] += 1
    assert all(len(table) > 1 and len(set(table)) == 1 for table in widths)
    assert sum(token.type == "html_block" for token in tokens) == 0


def test_both_languages_have_the_same_words_rows_and_evidence() -> None:
    evidence = (*run(f"{QWEN3_8B}zero2"), trained("zero2", *(seen(rank, 4, 1024.0) for rank in range(4))))
    english, chinese = (read_page(page(*evidence, language=language)) for language in LANGUAGES)
    assert [len(t.rows) for t in english.tables] == [len(t.rows) for t in chinese.tables]
    assert [link.target for link in english.links if link.target.startswith("evidence/e")] == [
        link.target for link in chinese.links if link.target.startswith("evidence/e")
    ]
    assert SEED_WORDS["en"].keys() == SEED_WORDS["zh"].keys()
    for name, word in SEED_WORDS["en"].items():
        assert word.count("{") == SEED_WORDS["zh"][name].count("{")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_matrix_without_the_documents_tables_says_so(language: str) -> None:
    text = render_npu_support(fold(), replace(MATRIX, tables={}), language)
    assert SEED_WORDS[language]["no_tables"] in text and "## " not in text


def test_every_sentence_of_matrix_yaml_about_a_row_has_a_chinese_form() -> None:
    shown = {row_text(row) for name in SEED_TABLES for row in MATRIX.tables[name]}
    claims = [claim for claim in MATRIX.claims if claim.row in shown]
    sentences = {text for claim in claims for text in (claim.reading, claim.because_no_cell, claim.says, claim.date) if text}
    untranslated = {text for text in sentences if said(text, "zh") == text}
    assert all("*" in text or text.endswith((" GB", " h")) for text in untranslated), "add these to harness/render_said.py"


# --- marks


def test_a_row_shows_the_mark_of_each_of_its_cells_with_hardware_date_stack_and_evidence() -> None:
    verified, failing = run(f"{QWEN3_8B}zero2"), run(f"{QWEN3_8B}zero3", fails=Stage.RESUME)
    text = page(*verified, *failing)
    at = [row[1] for row in of(text, "sft")].index("Qwen3-8B")
    row = of(text, "sft")[at]
    assert row[:4] == ["SFT", "Qwen3-8B", "FSDP1/FSDP2/deepspeed", "Atlas 900 A2 PODc"]
    assert row[4] == "FSDP1/FSDP2: untested; zero2: verified (a2) 2026-06-01; zero3: failing (a2) 2026-06-01"
    assert "torch_npu 2.9.0, cann 9.0.0" in row[5]
    oldest = min(verified, key=lambda piece: piece.sha256)
    assert row[6] == f"zero2: {oldest.stage} {oldest.sha256[:8]}, zero3: resume {failing[-1].sha256[:8]}"
    others = [row[4] for number, row in enumerate(of(text, "sft")) if number != at]
    assert set(others) == {"untested"}


@pytest.mark.parametrize("stage", [Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY])
def test_a_failing_mark_leads_to_what_failed_and_not_to_an_older_pass(stage: Stage) -> None:
    *passed, failed = run(f"{QWEN3_8B}zero2", fails=stage)
    older = [sealed(replace(piece, started_at=OLD)) for piece in passed]
    row = next(row for row in of(page(*older, failed), "sft") if row[1] == "Qwen3-8B")
    assert row[6] == f"zero2: {stage} {failed.sha256[:8]}"


def test_a_feature_names_the_cell_that_stands_for_it_and_its_group_once() -> None:
    rows = of(page(*run("sft-qwen2_5_7b_instruct-lora-zero2")), "features")
    deepspeed = next(row for row in rows if row[1] == "DeepSpeed")
    assert deepspeed[:4] == ["", "DeepSpeed", "Supported", "sft-qwen2_5_7b_instruct-lora-zero2, sft-qwen2_5_7b_instruct-lora-zero3"]
    assert deepspeed[4] == (
        "Qwen2.5-7B-Instruct SFT lora zero2 A2: verified (a2) 2026-06-01; Qwen2.5-7B-Instruct SFT lora zero3 A2: untested"
    )
    assert [row[0] for row in rows if row[0]] == ["Training", "Distributed", "PEFT", "RLHF", "Optimization", "Deployment"]


@pytest.mark.parametrize("hardware", [Hardware.CPU, Hardware.SIM])
def test_what_ran_on_no_npu_is_told_by_hardware_and_weights_and_measures_no_product(hardware: Hardware) -> None:
    text = page(*run(f"{QWEN3_8B}zero2", hardware=hardware, weights=Weights.TINY))
    marks = " ".join(column(text, "sft", "mark"))
    assert f"({hardware}, tiny) 2026-06-01" in marks and "verified" not in marks
    assert set(column(text, "products", "evidence")) == {"no run on it yet", "no target of matrix.yaml"}
    assert "NO NPU EVIDENCE" in text.split("## ")[0]


def test_tiny_weights_on_an_npu_say_so() -> None:
    marks = column(page(*run(f"{QWEN3_8B}zero2", weights=Weights.TINY)), "sft", "mark")
    assert any("zero2: tiny-npu (a2, tiny) 2026-06-01" in mark for mark in marks)


def test_a_product_counts_the_runs_on_it() -> None:
    rows = of(page(*run(f"{QWEN3_8B}zero2")), "products")
    assert [row for row in rows if "runs" in row[2]] == [["Atlas A2 training series products", "√", "5 runs", "verified 1", "2026-06-01"]]


def test_what_the_document_says_does_not_change_with_the_evidence() -> None:
    before, after = (tables(page(*evidence)) for evidence in ((), run(f"{QWEN3_8B}zero2", fails=Stage.TRAIN)))
    for name, width in {"products": 2, "features": 3, "sft": 4, "rl": 5, "unsupported": 1, "qwen3_5": 2, "memory": 4}.items():
        title = SEED_WORDS["en"][name]
        assert [row.cells[:width] for row in before[title].rows] == [row.cells[:width] for row in after[title].rows]


def test_neither_the_order_of_evidence_nor_later_evidence_enters() -> None:
    old, new = run(f"{QWEN3_8B}zero2", at=OLD), run(f"{QWEN3_8B}zero3")
    assert page(*old, *new) == page(*reversed(new), *old)
    day = date(2026, 3, 2)
    alone, both = (render_npu_support(fold(*evidence, as_of=day), MATRIX, "en") for evidence in (old, (*old, *new)))
    assert [line for line in alone.splitlines() if "As of" not in line] == [line for line in both.splitlines() if "As of" not in line]


MARKUP = st.lists(st.sampled_from(["|", "`", "\n", "\n\n# x\n\n", "<script>", "[a](http://b)", "\\", "*", "a", "\x1b[1m", "/"])).map(
    "".join
)


@settings(max_examples=20, deadline=None)
@given(MARKUP)
def test_text_that_runs_left_can_not_break_the_page(text: str) -> None:
    usual, odd = (
        tables(page(*(sealed(replace(piece, versions={**piece.versions, "torch": words})) for piece in run(f"{QWEN3_8B}zero2"))))
        for words in ("2.9.0", text)
    )
    assert {title: len(table.rows) for title, table in usual.items()} == {title: len(table.rows) for title, table in odd.items()}
    assert all(len(row.cells) == len(table.columns) for table in odd.values() for row in table.rows)


# --- memory


def test_a_measured_peak_stands_beside_the_documented_one_as_the_largest_of_its_ranks_in_gib() -> None:
    ranks = [seen(rank, 4, 20480.0 + 1024 * rank, 18432.0) for rank in range(4)]
    piece = trained("zero2", *ranks)
    text = page(piece)
    row = next(row for row in of(text, "memory") if row[:3] == ["7B", "4", "zero2"])
    assert row[3:7] == ["4 * 28 GB", "4 * 23.0 GiB", "4 * 18.0 GiB", "the peak of 2 steps"]
    assert row[8] == f"train {piece.sha256[:8]}"
    assert sum("GiB" in cell for row in of(text, "memory") for cell in row) == 2
    assert set(column(text, "tiny", "measured on")) == {
        "no train stage with a tiny model has passed",
        "the row names neither a model nor a command",
    }


def test_without_real_weights_on_the_documented_npu_nothing_is_measured_and_every_row_says_why() -> None:
    ranks = [seen(rank, 4, 20480.0) for rank in range(4)]
    tiny = trained("zero2", *ranks, hardware=Hardware.SIM, weights=Weights.TINY)
    elsewhere = trained("zero3", *ranks, hardware=Hardware.A3)
    failed = sealed(replace(trained("single", seen(0, 1, 9.0)), verdict=replace(tiny.verdict, kind=VerdictKind.FAILED)))
    other = trained("ddp-x4", *ranks)
    other = sealed(replace(other, facts={**other.facts, "revision": "f" * 40}))
    rows = of(page(tiny, elsewhere, failed, other), "memory")
    assert {(row[4], row[5], row[7], row[8]) for row in rows} == {("", "", "", "")}
    lacking = "not measured: no train stage with the documented weights has passed on a2"
    assert [row[6] for row in rows] == [lacking] * 5 + ["the row names neither a model nor a command"] * 4


def test_the_same_rows_from_tiny_models_are_marked_and_can_not_be_read_as_the_documents() -> None:
    ranks = [seen(rank, 4, 766.0, 764.5, 680.25) for rank in range(4)]
    text = page(trained("zero2", *ranks, hardware=Hardware.SIM, weights=Weights.TINY))
    table = tables(text)[SEED_WORDS["en"]["tiny"]]
    assert table_form(table.columns) is None
    row = next(row for row in of(text, "tiny") if row[:3] == ["7B", "4", "zero2"])
    assert row[3:8] == ["4 * 28 GB", "4 * 766.0 MiB", "4 * 764.5 MiB", "4 * 680.2 MiB", "sim: simulated NPU, host memory"]
    assert "**Not comparable with the values above.**" in text


def test_a_plain_cpu_has_no_device_memory_and_a_simulated_npu_goes_before_it() -> None:
    cpu = trained("single", seen(0, 1, 0.0, 0.0, 680.0), hardware=Hardware.CPU, weights=Weights.TINY)
    first = of(page(cpu), "tiny")[0]
    assert first[4:8] == ["no device", "no device", "1 * 680.0 MiB", "cpu: host memory"]
    sim = trained("single", seen(0, 1, 4.0, 2.0, 690.0), hardware=Hardware.SIM, weights=Weights.TINY)
    assert of(page(cpu, sim), "tiny")[0][4:8] == ["1 * 4.0 MiB", "1 * 2.0 MiB", "1 * 690.0 MiB", "sim: simulated NPU, host memory"]
    npu = trained("single", seen(0, 1, 5.0), hardware=Hardware.A2, weights=Weights.TINY)
    assert of(page(cpu, sim, npu), "tiny")[0][7] == "a2: device memory"


@pytest.mark.parametrize(
    "witnesses",
    [
        [],
        [seen(0, 2, 1.0)],
        [seen(0, 1, 1.0), seen(1, 1, 1.0)],
        [seen(0, 2, 1.0), seen(2, 2, 1.0)],
        [seen(0, 1, None)],
        [seen(0, 1, "1.0")],
        [{**seen(0, 1, 1.0), "nonce": "of another run"}],
        [{**seen(0, 1, 1.0), "steps": None}],
        [{**seen(0, 1, 1.0), "rank": None}],
    ],
)
def test_peaks_of_some_ranks_are_no_peak(witnesses: list[dict[str, Any]]) -> None:
    assert peak_of(replace(sample(), witnesses=tuple(witnesses))) is None


def test_an_npu_whose_allocator_counted_nothing_is_not_measured() -> None:
    rows = of(page(trained("single", seen(0, 1, 0.0, 0.0))), "memory")
    assert rows[0][4:7] == ["", "", "not every rank's witness tells its peak"]


def test_the_newest_run_of_the_cell_itself_is_shown() -> None:
    for first, last in ((2048.0, 1024.0), (1024.0, 2048.0), (3072.0, 1024.0), (1024.0, 3072.0), (4096.0, 5120.0), (6144.0, 1024.0)):
        old = sealed(replace(trained("single", seen(0, 1, first)), stack="another"))
        new = trained("single", seen(0, 1, last), at=NEW)
        assert of(page(new, old), "memory")[0][4] == f"1 * {last / 1024:.1f} GiB"
