from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from itertools import pairwise

import pytest
from evidence_samples import sample
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from matrix_samples import MATRIX, STAGES, no_gap, no_rule, required_stages

from harness.errors import EvidenceError
from harness.evidence import sealed
from harness.model import Blame, Command, Evidence, Hardware, Outcome, Step, VerdictKind, Weights
from harness.redact import plain
from harness.render import render_report, render_support
from harness.render_strings import STRINGS
from harness.support import SupportTable, support_table

MARKDOWN = MarkdownIt("gfm-like", {"linkify": False, "html": True})
WIRED = tuple(sample("small", stage, tiny_key="tiny-qwen3") for stage in STAGES)
FAILED = sample("zero2", kind=VerdictKind.FAILED, tiny_key="tiny-zero2")
REAL = tuple(sample("zero2", s, hardware=Hardware.A2, weights=Weights.REAL, tiny_key="tiny-zero2") for s in STAGES)


def table(*evidence: Evidence, as_of: date | None = None) -> SupportTable:
    return support_table(MATRIX, evidence, as_of, required_stages=required_stages, ruling=no_rule, gap=no_gap)


def support(*evidence: Evidence, language: str = "en") -> str:
    return render_support(table(*evidence), MATRIX, language)


def read(text: str) -> dict[str, list[list[str]]]:
    """The tables as a browser shows them: section title to rows of cells, the header first."""
    found: dict[str, list[list[str]]] = {}
    title = ""
    tokens = MARKDOWN.parse(text)
    for before, token in pairwise(tokens):
        if token.type == "inline" and before.type == "heading_open":
            title = _words(token)
        elif before.type == "tr_open":
            found.setdefault(title, []).append([])
        if token.type == "inline" and before.type in ("td_open", "th_open"):
            found[title][-1].append(_words(token))
    return found


def _words(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


def row(rows: list[list[str]], *cells: str) -> dict[str, str]:
    return next(dict(zip(rows[0], r, strict=True)) for r in rows[1:] if set(cells) <= set(r))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("evidence", [(), WIRED, (*WIRED, FAILED), REAL], ids=["nothing", "cpu", "failing", "npu"])
def test_every_table_parses_and_every_row_has_its_columns(language: str, evidence: tuple[Evidence, ...]) -> None:
    tables = read(support(*evidence, language=language))
    assert len(tables) >= 6
    for title, rows in tables.items():
        assert len(rows) > 1, title
        assert {len(r) for r in rows} == {len(rows[0])}, title


def test_the_documented_columns_stand_in_their_order_with_the_proof_beside_them() -> None:
    tables = read(support())
    proof = ["claimed", "mark", "date", "versions", "evidence", "because"]
    assert tables["Documented SFT combinations"][0] == ["algorithm", "model families", "strategy", "hardware", *proof]
    assert tables["Documented RL combinations"][0] == ["algorithm", "model families", "strategy", "rollout engine", "hardware", *proof]


def test_a_row_shows_the_claim_and_the_mark_apart() -> None:
    rows = read(support(*REAL))["Documented SFT combinations"]
    assert len(rows) == 3
    a2 = row(rows, "Atlas 900 A2 PODc")
    assert (a2["claimed"], a2["mark"], a2["date"]) == ("verified", "verified", "2026-06-01")
    assert "torch_npu 2.9.0, cann 9.0.0, docs" in a2["versions"]
    assert f"train {REAL[0].sha256[:8]}" in a2["evidence"]
    a3 = row(rows, "Atlas 900 A3 SuperPoD")
    assert (a3["claimed"], a3["mark"]) == ("verified", "untested")


def test_an_edited_checkout_of_ms_swift_is_named() -> None:
    commit = {"swift_commit": "0123456789abcdef", "swift_dirty": "true"}
    checkout = [sealed(replace(e, versions={**e.versions, **commit})) for e in WIRED]
    assert "ms-swift 4.6.0 (01234567, dirty), torch 2.9.0" in row(read(support(*checkout))["Further cells"], "Qwen3-0.6B")["versions"]


def test_a_mark_from_elsewhere_names_the_hardware() -> None:
    further = read(support(*WIRED))["Further cells"]
    assert row(further, "Qwen3-0.6B")["mark"] == "wired (cpu)"
    assert "ran as small" in row(further, "Qwen3-8B")["because"]


def test_every_cell_but_the_contract_tier_has_a_row_of_its_own() -> None:
    tables = read(support())
    shown = sum(len(tables[t]) - 1 for t in ("Documented SFT combinations", "Documented RL combinations", "Further cells"))
    assert shown == 5
    assert "1 cells of tier contract" in support()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_without_npu_evidence_the_page_says_first_that_it_proves_nothing_about_npus(language: str) -> None:
    simulated = tuple(replace(e, hardware=Hardware.SIM) for e in WIRED)
    for evidence in ((), WIRED, tuple(map(sealed, simulated))):
        first = support(*evidence, language=language).split("## ")[0]
        assert STRINGS[language]["no_npu"] in first
    assert STRINGS[language]["no_npu"] not in support(*REAL, language=language)


def test_the_legend_counts_every_mark() -> None:
    legend = read(support(*WIRED, FAILED))["How to read a mark"]
    counts = {r[0]: int(r[2]) for r in legend[1:]}
    assert (counts["wired"], counts["failing"], counts["untested"], sum(counts.values())) == (2, 2, 1, 5)


def test_both_languages_say_the_same() -> None:
    english, chinese = (list(read(support(*WIRED, FAILED, language=lang)).values()) for lang in ("en", "zh"))
    assert [len(rows) for rows in english] == [len(rows) for rows in chinese]
    assert STRINGS["en"].keys() == STRINGS["zh"].keys()
    assert "已验证" in support(language="zh")


def test_a_partial_run_changes_only_its_rows() -> None:
    before, after = support(*WIRED).splitlines(), support(*WIRED, FAILED).splitlines()
    assert len(before) == len(after)
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    own = r"Evidence: cpu|\*\*failing|\*\*untested|\| undeclared"
    assert all(re.search(own, line) for line in changed), changed
    assert len(changed) <= 7


def test_neither_the_order_nor_the_day_of_rendering_enters() -> None:
    assert support(*WIRED, FAILED) == support(FAILED, *reversed(WIRED))
    assert render_report(table(*WIRED, FAILED), MATRIX) == render_report(table(FAILED, *reversed(WIRED)), MATRIX)


def test_the_report_says_what_failed_why_and_what_to_paste() -> None:
    text = render_report(table(*WIRED, FAILED), MATRIX)
    assert "### zero2, train on cpu with tiny weights" in text
    assert "ValueError: remaining_argv: ['--train_type']" in text
    assert "ASCEND_RT_VISIBLE_DEVICES=0 swift sft --model '<work>/tiny' --tuner_type lora" in text
    assert "remedy: use --tuner_type" in text
    assert "exit code 1 after 12.2 s" in text
    runs = read(text)["Runs"]
    assert len(runs) == 7
    assert {len(r) for r in runs} == {10}


def test_orphans_and_refused_files_are_named() -> None:
    error = EvidenceError("reports/evidence/x.json", "was edited.", "Run again.")
    text = render_report(table(sample("gone")), MATRIX, [error])
    assert "- gone: [train " in text
    assert "- reports/evidence/x.json: was edited. Run again." in text


MARKUP = ["~~~", "|", "`", "```", "\n", "\n\n", "\n\n# x\n\n", "<script>", "<!--", "[a](http://b)", "\\"]
MARKUP += ["- ", "1. ", "***", "a", "\x1b[1m", "\t"]
NASTY = st.lists(st.sampled_from(MARKUP)).map("".join)


@settings(max_examples=25, deadline=None)
@given(NASTY, NASTY)
@example("a|b", "c|d")
@example("a\n\n# b", "<script>")
@example("[a](http://b)", "a_b_ *c*")
def test_text_from_a_log_can_not_break_the_pages(line: str, word: str) -> None:
    command = Command("swift", ("sft", word), {"A": line})
    evidence = sealed(
        replace(
            FAILED,
            outcome=Outcome(word, Blame.PRODUCT, line, word),
            verdict=replace(FAILED.verdict, because=line, cause=word),
            steps=(Step(word, command, "o", 1.0),),
            comparisons=tuple(replace(c, name=word, found=line) for c in FAILED.comparisons),
            launcher=word,
            versions={"torch": word, line: "1"},
        )
    )
    usual = {title: len(rows) for title, rows in read(support(FAILED)).items()}
    tables = read(support(evidence))
    assert {title: len(rows) for title, rows in tables.items()} == usual
    because = " ".join(plain(f"train failed on cpu: {line} ({word or 'no cause'}, blame: product)").split())
    assert [r[-1] for r in tables["Documented SFT combinations"][1:]] == [because, because]
    report = render_report(table(evidence), MATRIX)
    assert row(read(report)["Runs"], "zero2")["because"] == " ".join(plain(line).split())
    for page in (support(evidence), report):
        inline = [child for token in MARKDOWN.parse(page) for child in token.children or []]
        kinds = {"text", "text_special", "code_inline", "strong_open", "strong_close", "link_open", "link_close"}
        assert {child.type for child in inline} <= kinds
        links = {str(child.attrGet("href")) for child in inline if child.type == "link_open"}
        assert all(link.startswith(("evidence/", "support.md", "npu-support.md")) for link in links)
    headings = [t.content for before, t in pairwise(MARKDOWN.parse(report)) if before.type == "heading_open"]
    assert headings == ["What ran", "Runs", "Failures", "zero2, train on cpu with tiny weights", "Versions witnessed"]
    assert not [t for t in MARKDOWN.parse(report) if t.type == "html_block"]
