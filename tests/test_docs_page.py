"""Pages are read as their readers see them, and what is damaged is told with its line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.docs_page import Heading, Link, read_page, read_script


def faults(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.message) for fault in read_page(text).faults]


def test_a_table_may_interrupt_a_paragraph_and_keeps_lines_raw_text_and_headings() -> None:
    page = read_page("# Top\n## Below\nwords\n| a | b |\n|--|:-:|\n| 1 | x \\| y |\n| `z` | 全角｜宽 |\n\nafter\n")
    (table,) = page.tables
    assert (table.line, table.end_line, table.columns, table.heading_path) == (4, 7, ("a", "b"), ("Top", "Below"))
    assert [(row.line, row.cells) for row in table.rows] == [(6, ("1", "x | y")), (7, ("`z`", "全角｜宽"))]
    assert table.rows[0].raw == "| 1 | x \\| y |"
    assert page.faults == ()
    assert [text for _, text in page.prose] == ["# Top", "## Below", "words", "", "after"]


def test_bars_at_the_ends_of_a_row_are_optional() -> None:
    (table,) = read_page("a | b\n--- | ---\n1 | 2\n| 3 | 4\n").tables
    assert [row.cells for row in table.rows] == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "end"])
def test_line_ends_marks_and_a_missing_last_line_end_change_nothing(end: str, bom: str, last: str) -> None:
    text = bom + end.join(["# T", "", "| a |", "| - |", "| 1 |", "", "```sh", "x", "```", last])
    page = read_page(text)
    assert page.headings == (Heading(1, 1, "T"),)
    assert [(table.line, table.end_line) for table in page.tables] == [(3, 5)]
    assert [(fence.line, fence.body, fence.closed) for fence in page.fences] == [(7, ((8, "x"),), True)]
    assert page.faults == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("| a | b |\n|--|--|\n| 1 |\n", 3, "1 cells, its table 2 columns"),
        ("| a | b |\n|--|--|\n| 1 | 2 | 3 |\n", 3, "3 cells, its table 2 columns"),
        ("x\n\n| a | b |\n|--|\n| 1 | 2 |\n", 4, "2 column names, but the delimiter row below has 1"),
        ("| a | b |\n| -- | -x |\n| 1 | 2 |\n", 2, "is no delimiter row"),
        ("| a | b |\n| —— | —— |\n| 1 | 2 |\n", 2, "is no delimiter row"),
        ("| a | b |\n| 1 | 2 |\n| 3 | 4 |\n", 1, "rows of no table"),
        ("| a | b |\n|--|--|\n| 1 | 2 |\n\n| 3 | 4 |\n| 5 | 6 |\n", 5, "rows of no table"),
        ("| a | b |\n|--|--|\n| 1 | 2 |\n｜ 3 ｜ 4 ｜\n", 4, "full-width bars"),
        ("one\n\n| a | b |\n|--|--|\n| 1 | 2 |\nwords\n", 6, "text directly below a table"),
        ("one\n```sh\nls\n", 2, "never closed"),
        ("```sh\nls\n\ntext\n```python\nx\n```\n", 1, "not closed before the next one opens (line 5)"),
        ("> ```sh\n> ls\n\nrest\n", 1, "never closed"),
        ("a\n<!-- b\nc\n", 2, "comment is never closed"),
    ],
)
def test_damage_is_told_with_its_line(text: str, line: int, words: str) -> None:
    (found,) = faults(text)
    assert found[0] == line and words in found[1]


def test_a_row_with_a_bar_in_code_is_told_how_to_write_it() -> None:
    (fault,) = read_page("| a |\n|--|\n| `x|y` |\n").faults
    assert "\\|" in fault.next_step


@pytest.mark.parametrize(
    "text",
    [
        "ls | wc\n| tee log\n",
        "+---+---+\n| a | b |\n+---+---+\n",
        "| npu-smi 24 |\n+----+\n| 0 | OK |\n",
        "text || more\n||\n",
        "| a |\n|--|\n| x |\nwords in a page whose empty lines were lost\n",
        "````markdown\n```sh\nls\n```\n````\n",
        "~~~\n```\n~~~\n",
        "`<!--` in code\n",
    ],
)
def test_what_only_looks_like_damage_is_none(text: str) -> None:
    assert faults(text) == []


def test_fences_may_be_longer_tilded_or_indented_in_lists_and_quotes() -> None:
    text = "1. step\n   ```shell\n   swift sft \\\n     --model x\n   ```\n> ~~~~text\n> a\n> ~~~~\n- ```sh\n  b\n  ```\n"
    fences = read_page(text).fences
    assert [(fence.line, fence.language, fence.closed) for fence in fences] == [(2, "shell", True), (6, "text", True), (9, "sh", True)]
    assert fences[0].body == ((3, "swift sft \\"), (4, "  --model x"))
    assert fences[1].text == "a" and fences[2].text.strip() == "b"


def test_comments_and_front_matter_are_not_read() -> None:
    page = read_page("---\ntitle: x\n---\n# A\n<!-- | a |\n| - |\n[x](gone.md) -->\nsee <!-- no --> it\n")
    assert page.headings == (Heading(4, 1, "A"),)
    assert page.tables == () and page.links == ()
    assert page.prose[-1] == (8, "see  it")


def test_headings_are_read_with_hashes_and_underlined() -> None:
    page = read_page("# A #\nB\n===\nC\n---\n#no\n- item\n---\n```\n# not one\n```\n")
    assert [(heading.line, heading.level, heading.title) for heading in page.headings] == [(1, 1, "A"), (2, 1, "B"), (4, 2, "C")]


def test_links_images_definitions_and_html_are_found_and_those_in_code_are_not() -> None:
    text = '[a](x.md "t") ![i](p.png) `[c](no.md)` <img src="q.png" width="3"> [![b](r.svg)](s.md)\n[ref]: t.md\n| [u](v.md) |\n|--|\n'
    assert read_page(text).links == (
        Link(1, "a", "x.md"), Link(1, "i", "p.png"), Link(1, "![b](r.svg)", "s.md"), Link(1, "b", "r.svg"), Link(1, "", "q.png"),
        Link(2, "ref", "t.md"), Link(3, "u", "v.md"),
    )  # fmt: skip


def test_a_script_is_one_block_of_shell() -> None:
    (fence,) = read_script("#!/bin/bash\nswift sft\n").fences
    assert (fence.line, fence.language, fence.body) == (0, "shell", ((1, "#!/bin/bash"), (2, "swift sft")))


def test_a_grid_table_of_restructured_text_is_a_table() -> None:
    page = read_page("Title\n~~~~~\n\n.. note:: x\n\n  +---+---+\n  | a | b |\n  +---+---+\n  | 1 | 2 |\n  +---+---+\n\n| x\n")
    assert [(table.line, table.columns, table.rows[0].cells) for table in page.tables] == [(7, ("a", "b"), ("1", "2"))]
    assert page.faults == ()


def drawn(text: str) -> list[list[list[str]]]:
    """The tables that a real markdown parser makes: rows of the text of cells, the columns' names first."""
    tables: list[list[list[str]]] = []
    tokens: list[Any] = MarkdownIt("commonmark").enable("table").parse(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("th_open", "td_open"):
            tables[-1][-1].append(following.content)
    return tables


CELL = st.text(alphabet="ab｜表`*\\|- ", max_size=6).map(lambda text: text.replace("\\", "").replace("|", "\\|").replace("`", "") or "x")
ROWS = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=5))


@given(ROWS, st.booleans())
@settings(deadline=None)
def test_tables_are_those_that_a_markdown_parser_draws(rows: list[list[str]], bars: bool) -> None:
    rows = [[cell.strip() or "x" for cell in row] for row in rows]
    bars = bars or len(rows[0]) == 1 or any(row[0][0] in "-*" for row in rows)
    lines = [" | ".join(row) for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]
    text = "before\n\n" + "\n".join(f"| {line} |" if bars else line for line in lines) + "\n\nafter\n"
    ours = [[list(table.columns), *(list(row.cells) for row in table.rows)] for table in read_page(text).tables]
    assert ours == drawn(text)


@given(st.text(alphabet="ab|-:` ~#>\n\r\t<!/*+=[]()表", max_size=120))
@settings(deadline=None)
def test_any_text_is_read_and_every_line_number_is_one_of_the_page(text: str) -> None:
    page = read_page(text)
    numbers = [fault.line for fault in page.faults] + [heading.line for heading in page.headings] + [link.line for link in page.links]
    numbers += [row.line for table in page.tables for row in table.rows] + [fence.line for fence in page.fences]
    assert all(1 <= number <= len(page.lines) for number in numbers)
    assert all(page.lines[row.line - 1].strip() for table in page.tables for row in table.rows)
