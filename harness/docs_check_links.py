"""Links and images of a page that lead nowhere: to files that a documentation tree lacks, to headings that a page lacks."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from typing import Protocol

from harness.docs_check_facts import Answer, Finding, Kind, Known, Packages
from harness.docs_page import Page

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_IN_REPOSITORY = re.compile(r"https?://github\.com/modelscope/(?:ms-swift|swift)/(?:blob|tree)/(?:main|master)/([^#?]*)")
_NAMED_PLACE = re.compile(r"<[^>]*?\s(?:id|name)\s*=\s*[\"']([^\"']+)[\"']|^\(([\w-]+)\)=\s*$|\{#([\w-]+)\}")


class Tree(Protocol):
    """A documentation tree in which the page has its place."""

    def find(self, target: str) -> str | None:
        """What a link of the page leads to, by a name for messages and `page`; None where the tree has nothing there."""

    def page(self, found: str) -> Page | None:
        """The page that `find` named; None where it is no page (a folder, a picture)."""


def check_links(page: Page, tree: Tree | None, packages: Packages) -> Iterator[Finding]:
    """Anchors of the page itself always; other files with a tree; ms-swift's files on GitHub with a checkout."""
    for link in page.links:
        target = link.target.strip()
        if found := _IN_REPOSITORY.match(target):
            yield from _in_repository(link.line, urllib.parse.unquote(found[1]), packages)
        elif _SCHEME.match(target):
            continue
        elif not target:
            yield Finding(link.line, Kind.LINK, f"the link {link.text!r} has no target", "Give it one.")
        elif target.startswith("#"):
            if page.headings and not has_anchor(page, target[1:]):
                yield Finding(link.line, Kind.LINK, f"no heading of this page is {target}", "Link to a heading that is there.")
        elif tree is not None:
            yield from _in_tree(link.line, target, tree)


def _in_repository(line: int, path: str, packages: Packages) -> Iterator[Finding]:
    if packages.checkout is None or not path.strip("/"):
        return
    answer: Answer = packages.file(path.strip("/"))
    if answer.known is Known.NO:
        yield Finding(line, Kind.LINK, answer.because, f"There is {answer.near}." if answer.near else "Link to what is there now.")


def _in_tree(line: int, target: str, tree: Tree) -> Iterator[Finding]:
    path, _, anchor = target.partition("#")
    path = urllib.parse.unquote(path.partition("?")[0])
    found = tree.find(path)
    if found is None:
        yield Finding(line, Kind.LINK, f"{path} does not exist in the documentation tree", "Link to what is there, or leave the link out.")
    elif anchor and (other := tree.page(found)) is not None and not has_anchor(other, anchor):
        yield Finding(line, Kind.LINK, f"{found} has no heading #{anchor}", "Link to a heading that is there.")


def has_anchor(page: Page, anchor: str) -> bool:
    """Whether a page has the heading, or the named place, that `anchor` asks for (as GitHub and Sphinx's MyST make anchors of titles)."""
    wanted = _plain(urllib.parse.unquote(anchor))
    seen: dict[str, int] = {}
    for heading in page.headings:
        slug = slug_of(heading.title)
        names = [slug, f"{slug}-{seen[slug]}"] if slug in seen else [slug]
        seen[slug] = seen.get(slug, 0) + 1
        if wanted in map(_plain, names):
            return True
    places = (match for text in page.lines for match in _NAMED_PLACE.finditer(text))
    return any(_plain(next(name for name in match.groups() if name)) == wanted for match in places)


def slug_of(title: str) -> str:
    """The anchor that GitHub makes of a heading's title."""
    shown = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", re.sub(r"<[^>]*>", "", title))
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def _plain(slug: str) -> str:
    """Generators differ in what they make of punctuation and of runs of dashes."""
    return re.sub(r"[^\w]|_", "", slug.lower())
