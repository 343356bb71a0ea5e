"""README.zh.md keeps step with README.md: the same sections, tables and commands. What a test finds lacking is said in the words to add."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})


def commands(text: str) -> list[str]:
    """The lines of code blocks without their comments, which are prose."""
    blocks = [token.content for token in MARKDOWN.parse(text) if token.type in ("code_block", "fence")]
    lines = [re.sub(r"\s+#\s.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def headings(text: str) -> list[str]:
    return [token.tag for token in MARKDOWN.parse(text) if token.type == "heading_open"]


def rows(text: str) -> list[int]:
    """How many rows each table has, that of its titles included."""
    found: list[int] = []
    for token in MARKDOWN.parse(text):
        if token.type == "table_open":
            found.append(0)
        elif token.type == "tr_open":
            found[-1] += 1
    return found


def links(text: str) -> list[str]:
    inline: list[Token] = [child for token in MARKDOWN.parse(text) for child in token.children or []]
    return sorted({str(child.attrGet("href")) for child in inline if child.type == "link_open"})


def test_the_chinese_readme_has_the_commands_of_the_english_one_in_their_order() -> None:
    here, there = commands(CHINESE), commands(ENGLISH)
    assert [line for line in there if line not in here] == [], "add these lines to the code blocks of README.zh.md"
    assert [line for line in here if line not in there] == [], "take these lines out of the code blocks of README.zh.md"
    assert here == there


@pytest.mark.parametrize("part", [headings, rows], ids=["headings", "tables"])
def test_the_chinese_readme_has_the_sections_and_tables_of_the_english_one(part: Callable[[str], list[object]]) -> None:
    assert part(CHINESE) == part(ENGLISH)


def test_the_excerpt_of_evidence_is_the_same_in_both() -> None:
    excerpt = [line for line in ENGLISH.splitlines() if line.startswith("| SFT |")]
    assert excerpt
    assert [line for line in CHINESE.splitlines() if line.startswith("| SFT |")] == excerpt, "copy the rows of README.md"


def test_each_readme_leads_to_the_other_and_the_chinese_one_nowhere_that_does_not_exist() -> None:
    assert "README.zh.md" in links(ENGLISH) and "README.md" in links(CHINESE)
    lost = [link for link in links(CHINESE) if not link.startswith("https://") and not (ROOT / link).exists()]
    assert lost == []


def test_a_new_command_or_section_of_the_english_one_is_missed() -> None:
    longer = ENGLISH.replace("## Everyday commands\n", "## Everyday commands\n    python -m harness new # words\n", 1) + "\n## More\n"
    assert [line for line in commands(longer) if line not in commands(CHINESE)] == ["python -m harness new"]
    assert headings(longer) != headings(CHINESE)
