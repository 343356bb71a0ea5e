"""What a page says that is not so, each with its line. Nothing of the page is run, nothing imported because it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.docs_check_devices import check_devices
from harness.docs_check_facts import Finding, Kind, Packages
from harness.docs_check_links import Tree, check_links
from harness.docs_check_names import check_names, check_paths
from harness.docs_check_quotes import check_quotes
from harness.docs_check_rows import Marks, check_rows, document_of
from harness.docs_check_versions import check_stacks, check_versions, document_stacks
from harness.docs_page import Page, read_page, read_script
from harness.errors import HarnessError
from harness.model import Matrix

_SCRIPTS = (".sh", ".bash", ".zsh")


@dataclass(frozen=True)
class Facts:
    """What a page is held against. `commands`: what the installed ms-swift says of the page's commands."""

    matrix: Matrix
    packages: Packages
    commands: Callable[[Page], Iterable[Finding]]
    marks: Marks = field(default_factory=dict)
    tree: Tree | None = None


def page_of(data: bytes, path: str) -> Page:
    """The page in a file's bytes.

    Raises:
        HarnessError: nothing in it, no text, or no UTF-8 (with the line of the first byte that is none).
    """
    if b"\0" in data[:65536]:
        raise HarnessError(path, "is no text (it holds zero bytes).", "Give a page of Markdown, a text or a shell script.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HarnessError(f"{path}:{line}", f"is no UTF-8 (byte {error.start} of the file).", "Save the page as UTF-8.") from None
    if not text.removeprefix("\ufeff").strip():
        raise HarnessError(path, "is empty: nothing was checked.", "Give a page with text in it.")
    return read_script(text) if path.endswith(_SCRIPTS) or text.startswith("#!") else read_page(text)


def check_page(page: Page, path: str, facts: Facts) -> tuple[Finding, ...]:
    """Every finding about the page, by its line; faults before notes where both speak of one."""
    found = sorted(dict.fromkeys(_findings(page, path, facts)), key=lambda one: (one.line, one.note, str(one.kind)))
    return tuple(found)


def _findings(page: Page, path: str, facts: Facts) -> Iterator[Finding]:
    for fault in page.faults:
        kind = Kind.TABLE if any(word in fault.message for word in ("table", "row", "cells")) else Kind.PAGE
        yield Finding(fault.line, kind, fault.message, fault.next_step)
    document = document_of(page, path, facts.matrix)
    yield from check_rows(page, facts.matrix, facts.marks, document)
    contradicting = list(check_versions(page))
    yield from contradicting
    if document is not None:
        told = {finding.line for finding in contradicting if not finding.note}
        stacks = check_stacks(page, document_stacks(facts.matrix, document), facts.matrix.source)
        yield from (finding for finding in stacks if finding.line not in told)
    yield from facts.commands(page)
    yield from check_devices(page, path)
    yield from check_names(page, facts.packages)
    yield from check_paths(page, facts.packages)
    yield from check_quotes(page, facts.packages)
    yield from check_links(page, facts.tree, facts.packages)


def as_text(path: str, findings: Iterable[Finding], notes: bool) -> str:
    """A line a finding: `file:line: kind: message. next step`. Notes stand beside faults; alone they are shown only if asked for."""
    found = list(findings)
    shown = found if notes or any(not finding.note for finding in found) else []
    lines = [
        f"{path}:{finding.line}: {'note: ' if finding.note else ''}{finding.kind}: {finding.message}. {finding.next_step}".rstrip()
        for finding in shown
    ]
    return "\n".join(lines)


def as_json(path: str, findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "file": path,
            "line": finding.line,
            "kind": str(finding.kind),
            "note": finding.note,
            "message": finding.message,
            "next": finding.next_step,
        }
        for finding in findings
    ]
