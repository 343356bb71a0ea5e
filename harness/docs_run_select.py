"""Which blocks of a page are asked for: all of its shell, those of a section, or the one at a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.docs_page import Fence, Page
from harness.errors import HarnessError, did_you_mean

SHELLS = ("shell", "bash", "sh", "zsh", "shell script", "console", "shell-session", "terminal")


@dataclass(frozen=True)
class Selection:
    """`section`: a title, or a regular expression that titles are searched with; `only`: a line within a block."""

    section: str | None = None
    only: int | None = None


def shell_blocks(page: Page, where: str) -> list[Fence]:
    """Raises HarnessError for a page without any."""
    shells = [fence for fence in page.fences if _is_shell(fence)]
    if not shells:
        raise HarnessError(where, "holds no block of shell.", f"Blocks that are run begin with ```{' or ```'.join(SHELLS[:3])}.")
    return shells


def _is_shell(fence: Fence) -> bool:
    return fence.language.strip("{}. ").split(" ")[0].partition("{")[0].lower() in SHELLS and bool(fence.body)


def selected(page: Page, shells: Sequence[Fence], selection: Selection, where: str) -> list[int]:
    """The places in `shells` of what is asked for. Raises HarnessError where that is nothing: an unknown section, a line in no block."""
    chosen = list(range(len(shells)))
    if selection.only is not None:
        line = selection.only
        chosen = [i for i in chosen if shells[i].line <= line <= max(number for number, _ in shells[i].body) + 1]
        if not chosen:
            begins = ", ".join(str(fence.line) for fence in shells)
            raise HarnessError(f"{where}:{line}", "no block of shell is there.", f"They begin at lines {begins}.")
    if selection.section is not None:
        spans = _spans(page, selection.section, where)
        chosen = [i for i in chosen if any(begin <= shells[i].line < end for begin, end in spans)]
        if not chosen:
            raise HarnessError(where, f"no block of shell stands under {selection.section!r}.", "Choose another section.")
    return chosen


def _spans(page: Page, wanted: str, where: str) -> list[tuple[int, int]]:
    """The lines of each section that is meant, those of its own sections included."""
    try:
        pattern = re.compile(wanted, re.IGNORECASE)
    except re.error as fault:
        raise HarnessError(f"--section {wanted}", f"is no regular expression: {fault}.", "Escape its special characters.") from None
    exact = [heading for heading in page.headings if heading.title == wanted]
    named = exact or [heading for heading in page.headings if pattern.search(heading.title)]
    if not named:
        raise HarnessError(where, f"no section's title matches {wanted!r}.", did_you_mean(wanted, [h.title for h in page.headings]))
    ends = [*((heading.line, heading.level) for heading in page.headings), (len(page.lines) + 1, 0)]
    return [(h.line, next(line for line, level in ends if line > h.line and level <= h.level)) for h in named]
