"""A page as its readers see it: headings, tables, fences and links, each with its line. GitHub-flavoured Markdown, or plain text.

    read_page(text) -> Page      a page; read_script(text) -> Page      a shell script, which is one block

Lines are counted from 1. What is damaged is a Fault with its line, never an exception: a page is read as far as it can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.docs_page_table import Fault, Row, Table, read_table

__all__ = ["Fault", "Fence", "Heading", "Link", "Page", "Row", "Table", "read_page", "read_script"]


@dataclass(frozen=True)
class Heading:
    line: int
    level: int
    title: str


@dataclass(frozen=True)
class Fence:
    """A block of code. `line` is that of the opening fence (0: the whole file is the block); `body` has each line with its number."""

    line: int
    language: str
    body: tuple[tuple[int, str], ...]
    closed: bool

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.body)


@dataclass(frozen=True)
class Link:
    line: int
    text: str
    target: str


@dataclass(frozen=True)
class Page:
    """`lines` as they stand, without line ends. `prose`: those outside fences, tables, comments and front matter, comments cut out."""

    lines: tuple[str, ...]
    headings: tuple[Heading, ...]
    tables: tuple[Table, ...]
    fences: tuple[Fence, ...]
    links: tuple[Link, ...]
    faults: tuple[Fault, ...]
    prose: tuple[tuple[int, str], ...]


_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)")
_ATX = re.compile(r"(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_SETEXT = re.compile(r"(=+|-+)[ \t]*$")
_LIST_OR_QUOTE = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)|>")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_INLINE_LINK = re.compile(
    r"\[(?P<text>(?:[^\[\]\\]|\\.|!?\[[^\[\]]*\](?:\([^()\s]*\))?)*)\]"
    r"\([ \t]*(?:<(?P<angle>[^<>]*)>|(?P<bare>(?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:[ \t]+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?[ \t]*\)"
)
_HTML_LINK = re.compile(r"<(?:a|img)\b[^<>]*?\s(?:href|src)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_DEFINITION = re.compile(r" {0,3}\[([^\[\]^][^\[\]]*)\]:[ \t]*(?:<([^<>]*)>|(\S+))")


def read_page(text: str) -> Page:
    """The page that `text` is. A byte order mark, CRLF line ends and a missing last line end are all fine."""
    lines = split_lines(text)
    visible, fences, faults = _visible(lines)
    spaced = any(seen is not None and not seen.strip() for seen in visible)
    headings: list[Heading] = []
    above: list[Heading] = []
    path: tuple[str, ...] = ()
    tables: list[Table] = []
    links: list[Link] = []
    prose: list[tuple[int, str]] = []
    number = 1
    while number <= len(lines):
        seen = visible[number - 1]
        if seen is None:
            number += 1
            continue
        table, found, end = read_table(number, visible, path, spaced)
        faults += found
        if end > number:
            tables += [table] if table else []
            links += [link for at in range(number, end) for link in _links(at, visible[at - 1] or "")]
            number = end
            continue
        heading, end = _heading(number, visible)
        if heading:
            headings.append(heading)
            above = [*(outer for outer in above if outer.level < heading.level), heading]
            path = tuple(outer.title for outer in above)
        prose += [(number, seen)]
        links += _links(number, seen)
        number = end
    return Page(
        tuple(lines), tuple(headings), tuple(tables), tuple(fences), tuple(links), tuple(sorted(faults, key=_by_line)), tuple(prose)
    )


def read_script(text: str) -> Page:
    """A shell script as a page that is one block of shell."""
    lines = split_lines(text)
    return Page(tuple(lines), (), (), (Fence(0, "shell", tuple(enumerate(lines, 1)), True),), (), (), ())


def split_lines(text: str) -> list[str]:
    r"""Lines without their ends (\n, \r\n or \r: not the other characters that str.splitlines takes for line ends)."""
    lines = re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff"))
    return lines[:-1] if lines[-1] == "" else lines


def _by_line(fault: Fault) -> int:
    return fault.line


def _visible(lines: Sequence[str]) -> tuple[list[str | None], list[Fence], list[Fault]]:
    """Each line without its comments, None where it belongs to a fence or to front matter; the fences; what is damaged."""
    visible: list[str | None] = []
    fences: list[Fence] = []
    faults: list[Fault] = []
    rst = any(re.match(r"\s*\.\. [\w-]+::", line) for line in lines)
    number = _front_matter(lines) + 1
    visible += [None] * (number - 1)
    comment = 0
    while number <= len(lines):
        line = lines[number - 1]
        # reStructuredText underlines titles with ~~~~.
        if not comment and (opening := _FENCE.match(line)) and not (rst and re.fullmatch(r"~{4,}\s*", line)):
            fence, found, end = _fence(number, opening, lines)
            fences.append(fence)
            faults += found
            visible += [None] * (end - number)
            number = end
            continue
        seen, inside = _uncommented(line, bool(comment))
        comment = (comment or number) if inside else 0
        visible.append(seen)
        number += 1
    if comment:
        faults.append(Fault(comment, "this comment is never closed: the rest of the page is hidden", "Close it with -->."))
    return visible, fences, faults


def _front_matter(lines: Sequence[str]) -> int:
    """How many lines of YAML stand in front of the page."""
    if not lines or lines[0].rstrip() != "---":
        return 0
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() == "---":
            return number
        if not re.match(r"\s*(?:[\w-]+\s*:|- |#|$)", line):
            return 0
    return 0


def _fence(number: int, opening: re.Match[str], lines: Sequence[str]) -> tuple[Fence, list[Fault], int]:
    """The fence opened at line `number`, and the line after it. One that a later opening shows to be unclosed ends before that opening."""
    mark, language = opening[1], opening[2].strip()
    line = lines[number - 1]
    indent, quoted = len(line[: opening.start(1)].expandtabs(4)), line.lstrip().startswith(">")
    closing = re.compile(rf"[ \t>]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
    body: list[tuple[int, str]] = []
    for at in range(number + 1, len(lines) + 1):
        inner = lines[at - 1]
        if closing.match(inner):
            return Fence(number, language, tuple(body), True), [], at + 1
        if quoted and not inner.lstrip().startswith(">"):
            break
        again = _FENCE.match(inner)
        if again and again[1][0] == mark[0] and len(again[1]) >= len(mark) and re.fullmatch(r"[\w+#.-]+", again[2].strip()):
            because = f"the block opened here is not closed before the next one opens (line {at})"
            return Fence(number, language, tuple(body), False), [Fault(number, because, f"Close it with {mark}.")], at
        body.append((at, _dedented(inner, indent, quoted)))
    ends = number + len(body) + 1
    because = "the block opened here is never closed" + ("" if quoted else ": the rest of the page is drawn as code")
    return Fence(number, language, tuple(body), False), [Fault(number, because, f"Close it with {mark}.")], ends


def _dedented(line: str, indent: int, quoted: bool) -> str:
    if quoted:
        return re.sub(r"^\s*(?:>[ \t]?)+", "", line)
    kept = line.lstrip(" \t")
    blank = len(line[: len(line) - len(kept)].expandtabs(4))
    return line if indent == 0 else " " * max(0, blank - indent) + kept


def _uncommented(line: str, inside: bool) -> tuple[str, bool]:
    """`line` without its html comments, and whether one is still open after it."""
    kept = ""
    while True:
        if inside:
            _, closed, line = line.partition("-->")
            if not closed:
                return kept, True
            inside = False
        masked = _CODE_SPAN.sub(lambda span: "`" * len(span[0]), line)
        at = masked.find("<!--")
        if at < 0:
            return kept + line, False
        kept, line, inside = kept + line[:at], line[at + 4 :], True


def _heading(number: int, visible: Sequence[str | None]) -> tuple[Heading | None, int]:
    """The heading that starts at line `number`, if any, and the line after it (after this line, where there is none)."""
    text = (visible[number - 1] or "").strip()
    if atx := _ATX.match(text):
        return Heading(number, len(atx[1]), (atx[2] or "").strip()), number + 1
    below = visible[number] if number < len(visible) else None
    if text and below and (under := _SETEXT.match(below.strip())) and not _LIST_OR_QUOTE.match(text) and not re.match(r"[-=+|~^<*]", text):
        return Heading(number, 1 if under[1][0] == "=" else 2, text), number + 2
    return None, number + 1


def _links(number: int, text: str) -> list[Link]:
    """The links and images of a line (inline, html, definitions of references), none of those that code shows."""
    code = [span.span() for span in _CODE_SPAN.finditer(text)]
    found: list[Link] = []

    def shown(at: int) -> bool:
        return any(start <= at < end for start, end in code)

    for match in _INLINE_LINK.finditer(text):
        if not shown(match.start()):
            inner = match["text"]
            target = match["angle"] if match["angle"] is not None else match["bare"]
            found += [Link(number, inner, target), *_links(number, inner)]
    found += [Link(number, "", match[1] or match[2] or "") for match in _HTML_LINK.finditer(text) if not shown(match.start())]
    if definition := _DEFINITION.match(text):
        found.append(Link(number, definition[1], definition[2] or definition[3]))
    return found
