"""Shell text -> words and operators, each with its line. Nothing is expanded or run; what a shell would refuse is a located fault.

A scanner, no shell: it knows quotes, expansions, comments, continuations, here-documents and what documents add (placeholders like <path>).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

# Quotes and brackets that are never closed: beyond so many they are taken for plain characters unseen, which keeps any text linear.
_UNCLOSED = 16
_PLAIN = re.compile(r"[^\s'\"\\$`;&|()<>]+")
_BLANK = re.compile(r"[^\S\n]+")
_OPERATOR = re.compile(r";;&?|;&|&&|\|\||\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|<&|>&|>>|>\||&>>|&>|<|>)|&>>?")
# <path>, <你的路径>: neither `<in >out` nor `<<EOF` nor `<(ls)`.
_PLACEHOLDER = re.compile(r"<(?![\s<(&=>])[^<>\n|;&()]{0,99}(?<!\s)>")
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<list>\[[@*]\])?(?::?[-=](?P<default>[^$`'\"\\{}]*))?\Z")
_QUOTED = re.compile(r"\\(?:\n|.)|[$`]|[^\\$`\n]+\n?|\n", re.DOTALL)
# What can end or nest a bracket, for finding the end of one.
_NESTING = re.compile(r"\\.|'|\"|\$\(|\$\{|[(){}`]", re.DOTALL)


class PieceKind(Enum):
    LITERAL = "literal"
    VARIABLE = "variable"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Piece:
    """A part of a word, within one line. `text` is what it is without its quotes, or the expansion as written.

    `name`, `default`, `is_list`: of a variable (${name:-default}, ${name[@]}).
    """

    kind: PieceKind
    text: str
    line: int
    quoted: bool = False
    name: str = ""
    default: str | None = None
    is_list: bool = False


@dataclass(frozen=True)
class Token:
    """A word (`pieces`), or an operator, a redirection among them (`operator`). `raw` is what stands there, from line to end_line.

    `nested`: the texts of its $(...), <(...) and `...`, each with its first line.
    """

    raw: str
    line: int
    end_line: int
    start: int
    operator: str = ""
    pieces: tuple[Piece, ...] = ()
    nested: tuple[tuple[int, str], ...] = ()

    @property
    def plain(self) -> str:
        """The word, if it is one without quotes and expansions; else empty."""
        return self.raw if len(self.pieces) == 1 and self.pieces[0].text == self.raw and not self.pieces[0].quoted else ""


@dataclass(frozen=True)
class ShellFault:
    """What is wrong, for people, and the line on which to mend it."""

    line: int
    message: str


@dataclass
class Scanner:
    """Mutable: reads `text`, whose lines carry `numbers`, once, gathering `faults` and the number of each comment line."""

    text: str
    numbers: tuple[int, ...]
    faults: list[ShellFault] = field(default_factory=list)
    comments: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        self._end = len(self.text.rstrip())
        self._unclosed = 0
        self._documents: list[tuple[str, bool, int]] = []

    def line_at(self, at: int) -> int:
        return self.numbers[min(bisect.bisect_right(self._starts, at), len(self.numbers)) - 1]

    def tokens(self) -> Iterator[Token]:
        at = 0
        while at < len(self.text):
            if blank := _BLANK.match(self.text, at):
                at = blank.end()
            elif (after := self._continued(at)) is not None:
                at = after
            elif self.text[at] == "#":
                at = self._comment(at)
            elif (token := self._operator(at)) is not None:
                yield token
                at += len(token.raw)
                if token.raw == "\n":
                    at = self._skip_documents(at)
            else:
                token = self._word(at)
                yield token
                at = token.start + len(token.raw)

    def _comment(self, at: int) -> int:
        self.comments.add(self.line_at(at))
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end

    def _continued(self, at: int) -> int | None:
        """Where the next line begins, if a backslash ends this one; blanks after it are a fault that a reader can't see."""
        if self.text[at] != "\\":
            return None
        after = at + 1
        if blank := _BLANK.match(self.text, after):
            after = blank.end()
        if after >= len(self.text):
            return after
        if self.text[after] != "\n":
            return None
        if at + 1 < after < self._end:
            self.faults.append(
                ShellFault(self.line_at(at), "a blank follows the backslash, so the command ends here. Remove what follows the backslash.")
            )
        return after + 1

    def _operator(self, at: int) -> Token | None:
        if self.text.startswith(("<(", ">("), at) or _PLACEHOLDER.match(self.text, at):
            return None
        found = _REDIRECTION.match(self.text, at) or _OPERATOR.match(self.text, at)
        if found is None:
            return None
        line = self.line_at(at)
        if found[0].lstrip("0123456789") in ("<<", "<<-"):
            self._note_document(found.end(), found[0].endswith("-"), line)
        return Token(found[0], line, line, at, operator=found[0].lstrip("0123456789") or found[0])

    def _note_document(self, at: int, tabs: bool, line: int) -> None:
        if delimiter := re.compile(r"[^\S\n]*(['\"]?)([^\s'\"<>|;&()]+)\1").match(self.text, at):
            self._documents.append((delimiter[2].replace("\\", ""), tabs, line))

    def _skip_documents(self, at: int) -> int:
        """Past the bodies of the here-documents that were opened on the line that ends before `at`."""
        for delimiter, tabs, line in self._documents:
            lead = "\t*" if tabs else ""
            last = re.compile(f"^{lead}{re.escape(delimiter)}$", re.MULTILINE)
            end = last.search(self.text, at) if self._unclosed < _UNCLOSED else None
            if end is None:
                self.faults.append(ShellFault(line, f"the here-document has no end: no line below reads {delimiter!r} alone."))
                self._unclosed += 1
            else:
                at = end.end()
        self._documents.clear()
        return at

    def _word(self, at: int) -> Token:
        start, pieces, nested = at, list[Piece](), list[tuple[int, str]]()
        while at < len(self.text) and (end := self._piece(at, pieces, nested)) > at:
            at = end
        return Token(self.text[start:at], self.line_at(start), self.line_at(max(start, at - 1)), start, "", tuple(pieces), tuple(nested))

    def _piece(self, at: int, pieces: list[Piece], nested: list[tuple[int, str]]) -> int:
        """Adds what begins at `at` to the word; the place after it, or `at` where the word has ended."""
        text, line = self.text, self.line_at(at)
        if plain := _PLAIN.match(text, at):
            pieces.append(Piece(PieceKind.LITERAL, plain[0], line))
            return plain.end()
        if placeholder := _PLACEHOLDER.match(text, at):
            pieces.append(Piece(PieceKind.UNKNOWN, placeholder[0], line))
            return placeholder.end()
        if text.startswith(("<(", ">("), at):
            return self._bracketed(at, 2, ")", False, pieces, nested)
        character = text[at]
        if character == "\\":
            return self._escaped(at, pieces)
        if character in "$`":
            return self._expansion(at, False, pieces, nested)
        if character in "'\"":
            return self._quoted(at, pieces, nested)
        return at

    def _escaped(self, at: int, pieces: list[Piece]) -> int:
        line = self.line_at(at)
        if self._ends_line(at):
            if self.text.startswith("\\\n", at):
                # The word goes on in the next line if that begins without a blank.
                return at + 2
            return at
        pieces.append(Piece(PieceKind.LITERAL, self.text[at + 1 : at + 2], line, quoted=True))
        return min(at + 2, len(self.text))

    def _ends_line(self, at: int) -> bool:
        blank = _BLANK.match(self.text, at + 1)
        after = blank.end() if blank else at + 1
        return after >= len(self.text) or self.text[after] == "\n"

    def _quoted(self, at: int, pieces: list[Piece], nested: list[tuple[int, str]]) -> int:
        quote = self.text[at]
        end = -1
        if self._unclosed < _UNCLOSED:
            end = self.text.find("'", at + 1) if quote == "'" else self._closing(at + 1, '"')
        if end < 0:
            if self._unclosed < _UNCLOSED:
                self.faults.append(ShellFault(self.line_at(at), f"the quote {quote} is opened here and never closed."))
            self._unclosed += 1
            pieces.append(Piece(PieceKind.LITERAL, quote, self.line_at(at)))
            return at + 1
        pieces.append(Piece(PieceKind.LITERAL, "", self.line_at(at), quoted=True))
        if quote == "'":
            for begin, part in _lines_of(self.text[at + 1 : end]):
                pieces.append(Piece(PieceKind.LITERAL, part, self.line_at(at + 1 + begin), quoted=True))
        else:
            self._inside_quotes(at + 1, end, pieces, nested)
        return end + 1

    def _inside_quotes(self, at: int, end: int, pieces: list[Piece], nested: list[tuple[int, str]]) -> None:
        while at < end and (found := _QUOTED.match(self.text, at, end)):
            if found[0][0] in "$`":
                at = min(self._expansion(at, True, pieces, nested), end)
                continue
            text = found[0]
            if text[0] == "\\" and len(text) == 2:
                text = "" if text[1] == "\n" else text[1] if text[1] in '"$`\\' else text
            pieces.append(Piece(PieceKind.LITERAL, text, self.line_at(at), quoted=True))
            at = found.end()

    def _expansion(self, at: int, quoted: bool, pieces: list[Piece], nested: list[tuple[int, str]]) -> int:
        text, line = self.text, self.line_at(at)
        if text[at] == "`":
            return self._bracketed(at, 1, "`", quoted, pieces, nested)
        if text.startswith("$(", at):
            return self._bracketed(at, 2, ")", quoted, pieces, nested)
        if text.startswith("${", at):
            return self._bracketed(at, 2, "}", quoted, pieces, nested)
        if name := _NAME.match(text, at + 1):
            pieces.append(Piece(PieceKind.VARIABLE, "$" + name[0], line, quoted, name[0]))
            return name.end()
        if special := re.compile(r"\$[\d@*#?$!-]").match(text, at):
            pieces.append(Piece(PieceKind.UNKNOWN, special[0], line, quoted))
            return special.end()
        pieces.append(Piece(PieceKind.LITERAL, "$", line, quoted))
        return at + 1

    def _bracketed(self, at: int, width: int, close: str, quoted: bool, pieces: list[Piece], nested: list[tuple[int, str]]) -> int:
        """$(...), `...`, <(...) and ${...}; unclosed, its opening is a plain word."""
        opening, line = self.text[at : at + width], self.line_at(at)
        end = self._closing(at + width, close) if self._unclosed < _UNCLOSED else -1
        if end < 0:
            if self._unclosed < _UNCLOSED:
                self.faults.append(ShellFault(line, f"{opening} is opened here and never closed by {close}."))
            self._unclosed += 1
            pieces.append(Piece(PieceKind.LITERAL, opening, line, quoted))
            return at + width
        inner, whole = self.text[at + width : end], self.text[at : end + 1]
        if close == "}" and (braced := _BRACED.match(inner)):
            variable = Piece(PieceKind.VARIABLE, whole, line, quoted, braced["name"], braced["default"], braced["list"] is not None)
            pieces.append(variable)
            return end + 1
        if close != "}" and not inner.startswith("("):
            nested.append((self.line_at(at + width), inner))
        pieces.append(Piece(PieceKind.UNKNOWN, whole, line, quoted))
        return end + 1

    def _closing(self, at: int, close: str) -> int:
        """The place of the `close` that ends what was opened before `at`; -1 where there is none."""
        open_ones = [close]
        found = _NESTING.search(self.text, at)
        while found is not None:
            what, here, after = found[0], open_ones[-1], found.end()
            if what == here:
                open_ones.pop()
                if not open_ones:
                    return found.start()
            elif what in ("$(", "${"):
                open_ones.append(")" if what == "$(" else "}")
            elif here == ")" and what == "(":
                open_ones.append(")")
            elif here == ")" and what == "'":
                after = self.text.find("'", after) + 1
                if not after:
                    return -1
            elif what in ('"', "`"):
                open_ones.append(what)
            found = _NESTING.search(self.text, after)
        return -1


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    begin = 0
    for part in text.split("\n"):
        after = begin + len(part) + 1
        yield begin, text[begin:after]
        begin = after
