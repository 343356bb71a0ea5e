"""Links that lead nowhere are told where a documentation tree, or a checkout, can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.docs_check_facts import Finding
from harness.docs_check_installed import Installed
from harness.docs_check_links import check_links
from harness.docs_check_tree import DocsTree
from harness.docs_page import read_page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "a").mkdir(parents=True)
    (docs / "b").mkdir()
    (docs / "a" / "page.md").write_text("")
    (docs / "b" / "other.md").write_text("# 推送模型\n## Query-Response (x)\n## Twice\n## Twice\n<a id='named'></a>\n", encoding="utf-8")
    (docs / "b" / "p.png").write_bytes(b"png")
    return docs


def broken(text: str, root: Path | None, page: str = "docs/a/page.md", source: Path | None = None) -> list[Finding]:
    tree = DocsTree(root, root.parent / page) if root else None
    return list(check_links(read_page(text), tree, Installed(source)))


@pytest.mark.parametrize(
    "target",
    [
        "../b/other.md", "../b/other.md#推送模型", "../b/other.md#query-response-x", "../b/other.md#twice-1", "../b/other.md#named",
        "../b/other.html", "/b/other.md", "../b", "../b/p.png", "../b/p.png?raw=true", "../b/%6fther.md", "https://gone.example/x.md",
        "mailto:a@b.c", "page.md",
    ],
)  # fmt: skip
def test_links_that_lead_somewhere_are_not_told(target: str, root: Path) -> None:
    assert broken(f"[x]({target})\n", root) == []


@pytest.mark.parametrize("target", ["../b/gone.md", "other.md", "../b/other.md#nowhere", "../b/other.md#twice-2", "", "../b/gone.png"])
def test_links_that_lead_nowhere_are_told_with_their_line(target: str, root: Path) -> None:
    (found,) = broken(f"words\n\n![x]({target})\n", root)
    assert found.line == 3


def test_anchors_of_the_page_itself_need_no_tree() -> None:
    assert broken("# A b\n[x](#a-b) [y](gone.md)\n", None) == []
    (found,) = broken("# A b\n\n[x](#a-c)\n", None)
    assert found.line == 3


def test_a_copy_outside_of_the_tree_is_looked_up_as_if_it_lay_in_its_place(root: Path) -> None:
    text = "[x](../b/other.md) [y](../b/gone.md)\n"
    assert [finding.message.split()[0] for finding in broken(text, root, "elsewhere/page.md")] == ["../b/gone.md"]
    assert [finding.message.split()[0] for finding in broken(text, root, "elsewhere/copy.md")] == ["../b/gone.md"]


def test_a_page_outside_of_the_tree_may_link_to_its_own_surroundings(root: Path) -> None:
    text = "[x](docs/b/other.md) [y](docs/b/gone.md)\n"
    assert [finding.message.split()[0] for finding in broken(text, root, "README.md")] == ["docs/b/gone.md"]


def test_links_to_the_repository_need_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "swift").mkdir()
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.sh").write_text("")
    at = "https://github.com/modelscope/ms-swift"
    there = f"[x]({at}/tree/main/examples)\n[y]({at}/blob/main/examples/a.sh#L3)\n"
    text = f"{there}[z]({at}/blob/main/examples/b.sh)\n[r]({at})\n[v]({at}/blob/v2.0/x.py)\n"
    assert broken(text, None) == []
    assert [finding.line for finding in broken(text, None, source=tmp_path)] == [3]
