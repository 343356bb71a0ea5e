"""The commands in a document's shell text, each word with its line: variables put in where they are known, nothing run.

Read `Script.commands` for what a person would run, `Script.faults` for what a shell would refuse or read otherwise than it was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.docs_shell_programs import ASSIGNED, Command, CommandKind, ShellWord, kind_of, looks_run, script_in, unwrapped
from harness.docs_shell_values import Value, Variables
from harness.docs_shell_words import Piece, PieceKind, Scanner, ShellFault, Token

__all__ = ["Command", "CommandKind", "Script", "ShellFault", "ShellWord", "Value", "numbered", "read_shell"]

# Scripts in scripts ($(...), bash -c '...') are read so deep.
_DEPTH = 5


@dataclass(frozen=True)
class Script:
    """`variables`: what is assigned at the end, for the blocks that follow (give it to their read_shell)."""

    commands: tuple[Command, ...]
    faults: tuple[ShellFault, ...]
    variables: Mapping[str, Value | None] = field(default_factory=dict)


_PROMPT = re.compile(
    r"\s*(?:\([\w.+-]{1,60}\)\s*)?(?:\[?[\w.-]{1,60}@[\w.-]{1,60}(?::|\s)[^\s$#\]]{0,200}\]?\s*[$#]|\$)(?=\s)",
)
# Boxes of npu-smi and trees of files: what a command answered.
_OUTPUT = re.compile(r"\s*(?:\+[-=+]{3,}|\|.*\|\s*$|[├└│╭╰┌])")
_ELISION = re.compile(r"(?:\.{3,}|…+|。。。+)\\?")
_OPENING = {"if", "for", "while", "until", "case", "select", "{"}
_CLOSING = {"fi", "done", "esac", "}"}
_RESERVED = _OPENING | _CLOSING | {"then", "elif", "else", "do", "!", "time"}
_DECLARING = {"export", "local", "declare", "typeset", "readonly"}
_CONTINUED_BY = re.compile(r"--?[A-Za-z]")
_GLUED = re.compile(r"\\[ \t]+(?:[A-Za-z_]\w*=|(?:swift|megatron|accelerate|torchrun|python)\b)")


def numbered(text: str, first: int = 1) -> list[tuple[int, str]]:
    """The lines of `text` with their numbers, as read_shell takes them."""
    return list(enumerate(text.split("\n"), first))


def read_shell(lines: Sequence[tuple[int, str]], variables: Mapping[str, Value | None] | None = None) -> Script:
    """Takes any text apart, in time linear in its length. `lines`: (number, text) of each, in ascending order.

    `variables`: what blocks above assigned; None as a value means that the variable is assigned, but not to what.
    """
    return _read(lines, dict(variables or {}), 0)


def _read(lines: Sequence[tuple[int, str]], variables: dict[str, Value | None], depth: int) -> Script:
    shown = _without_output(lines)
    text = "\n".join(line for _, line in shown)
    scanner = Scanner(text, tuple(number for number, _ in shown) or (1,))
    reader = _Reader(scanner, Variables(variables, 4 * len(text) + 10_000), depth)
    reader.read()
    answers = {line for command in reader.commands if not looks_run(command) for line in range(command.line, command.end_line + 1)}
    faults = sorted({*(f for f in scanner.faults if f.line not in answers), *reader.faults}, key=lambda fault: fault.line)
    return Script(tuple(reader.commands), tuple(faults), reader.variables.known)


def _without_output(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Prompts and answers are emptied. Where there are prompts, lines without one that continue nothing are answers too."""
    prompts = [_PROMPT.match(line) for _, line in lines]
    has_prompts, continued = any(prompts), False
    kept: list[tuple[int, str]] = []
    for (number, line), prompt in zip(lines, prompts, strict=True):
        line = line.rstrip("\r").replace("\n", " ")
        if prompt:
            line = line[prompt.end() :]
        elif not continued and (has_prompts or _OUTPUT.match(line) or line.lstrip().startswith((">>>", "<<<"))):
            line = ""
        kept.append((number, line))
        continued = line.rstrip().endswith("\\")
    return kept


@dataclass
class _Draft:
    """A command while it is read. `arrays`: the words between the brackets of X=(...), by the place of X among `tokens`."""

    tokens: list[Token] = field(default_factory=list)
    arrays: dict[int, list[Token]] = field(default_factory=dict)
    elided: bool = False
    elided_last: bool = False
    end_line: int = 0

    def add(self, token: Token) -> None:
        self.end_line = token.end_line
        self.elided_last = bool(_ELISION.fullmatch(token.plain))
        if self.elided_last:
            self.elided = True
        else:
            self.tokens.append(token)

    @property
    def first(self) -> str:
        return self.tokens[0].plain if self.tokens else ""


@dataclass
class _Reader:
    """Mutable: makes commands of a scanner's tokens."""

    scanner: Scanner
    variables: Variables
    depth: int
    commands: list[Command] = field(default_factory=list)
    faults: list[ShellFault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draft = _Draft()
        # The command that a newline has ended: a flag at the beginning of the next line was meant for it.
        self._held: _Draft | None = None
        self._array: list[Token] | None = None
        self._target = self._brackets = self._pattern = False
        # The variables assigned in each open if, loop or function: once it ends nobody knows whether they were.
        self._blocks: list[set[str]] = []

    def read(self) -> None:
        for token in self.scanner.tokens():
            if token.operator:
                self._operator(token)
            elif self._target:
                self._target = False
            elif self._array is not None:
                self._array.append(token)
            elif self._pattern and token.plain != "esac":
                continue
            else:
                self._word(token)
        self._end(held=False)

    def _operator(self, token: Token) -> None:
        operator = token.operator
        if self._array is not None:
            if operator == ")":
                self._array = None
            return
        if self._pattern:
            self._pattern = operator != ")"
            return
        if self._brackets and operator != "\n":
            return
        self._brackets = False
        self._target = operator[0] in "<>" or operator[:2] == "&>"
        if self._target:
            return
        if operator == "(" and self._draft.tokens:
            last = self._draft.tokens[-1]
            if ASSIGNED.fullmatch(last.raw) and token.start == last.start + len(last.raw):
                self._array = self._draft.arrays[len(self._draft.tokens) - 1] = []
                return
            if len(self._draft.tokens) == 1:
                self._draft = _Draft()
        self._end(held=operator == "\n")
        self._pattern = operator.startswith(";;") or operator == ";&"

    def _word(self, token: Token) -> None:
        draft = self._draft
        if draft.tokens or draft.elided:
            draft.add(token)
            self._brackets = self._brackets and token.plain != "]]"
            if draft.first == "case" and token.plain == "in":
                self._draft, self._pattern = _Draft(), True
            elif draft.first == "function" and token.plain == "{":
                self._open_or_close("{")
                self._draft = _Draft()
            return
        if self._goes_on(token):
            return
        self._release()
        if token.plain in _RESERVED:
            self._open_or_close(token.plain)
            self._pattern = self._pattern and token.plain != "esac"
            if token.plain not in ("for", "select", "case"):
                return
        self._brackets = token.plain == "[["
        draft.add(token)

    def _open_or_close(self, word: str) -> None:
        if word in _OPENING:
            self._blocks.append(set())
        elif word in _CLOSING and self._blocks:
            for name in self._blocks.pop():
                self.variables.forget(name)
                if self._blocks:
                    self._blocks[-1].add(name)

    def _goes_on(self, token: Token) -> bool:
        """Whether a word at the beginning of a line was meant for the command above, which has ended: it is added, with the fault."""
        held = self._held
        if held is None:
            return False
        elided = bool(_ELISION.fullmatch(token.plain))
        if not elided and not _CONTINUED_BY.match(token.raw):
            return False
        if not elided and not held.elided_last and not held.first.startswith("-") and _takes_flags(held):
            self._broken(held.end_line, token)
        self._draft, self._held = held, None
        held.add(token)
        return True

    def _broken(self, end_line: int, token: Token) -> None:
        ignored = f"so {token.raw[:60]} on line {token.line} is no part of it but a command of its own."
        comment = next((line for line in range(end_line + 1, token.line) if line in self.scanner.comments), None)
        if comment is not None:
            self.faults.append(ShellFault(comment, f"this comment ends the command above, {ignored} Move it above the command."))
        elif token.line > end_line + 1:
            self.faults.append(ShellFault(end_line + 1, f"this empty line ends the command above, {ignored} Remove it."))
        else:
            self.faults.append(ShellFault(end_line, f"the command ends here, {ignored} End this line in a backslash."))

    def _end(self, held: bool) -> None:
        draft, self._draft = self._draft, _Draft()
        self._target = False
        if draft.tokens:
            self._release()
            self._held = draft
        if not held:
            self._release()

    def _release(self) -> None:
        draft, self._held = self._held, None
        if draft is None or not draft.tokens or draft.first in ("case", "function"):
            return
        if draft.first in ("for", "select"):
            if len(draft.tokens) > 1:
                self._assigned(draft.tokens[1].raw, None)
            return
        self._emit(draft)

    def _assigned(self, name: str, value: Value | None, add: bool = False, is_list: bool = False) -> None:
        if self._blocks:
            self._blocks[-1].add(name)
        if value is None:
            self.variables.forget(name)
        else:
            self.variables.assign(name, value, add, is_list)

    def _emit(self, draft: _Draft) -> None:
        tokens, first, last = draft.tokens, draft.tokens[0], draft.tokens[-1]
        lead = next((i for i, token in enumerate(tokens) if not _assigns(token)), len(tokens))
        words = [word for token in tokens[lead:] for word in map(_shell_word, self.variables.expanded(token.pieces))]
        environment = [self._environment(token, draft.arrays.get(i), keep=lead == len(tokens)) for i, token in enumerate(tokens[:lead])]
        if tokens[lead:] and tokens[lead].plain in _DECLARING:
            declared = [i for i, token in enumerate(tokens) if i > lead and _assigns(token)]
            environment += [self._environment(tokens[i], draft.arrays.get(i), keep=True) for i in declared]
        wrapped, words = unwrapped(words)
        raw = self.scanner.text[first.start : last.start + len(last.raw)]
        command = Command(kind_of(words), first.line, draft.end_line, (*environment, *wrapped), tuple(words), raw, draft.elided, self.depth)
        # A variable that is empty leaves nothing to run.
        if command.words or command.environment:
            self.commands.append(command)
        self.faults += [ShellFault(token.line, _GLUED_SAYS) for token in tokens if _GLUED.search(token.raw)]
        inner = [(line, text) for token in (*tokens, *_flat(draft.arrays.values())) for line, text in token.nested]
        for line, text in [*inner, *script_in(words)]:
            self._read_inside([(min(number, draft.end_line), part) for number, part in numbered(text, line)])

    def _read_inside(self, lines: Sequence[tuple[int, str]]) -> None:
        if self.depth < _DEPTH:
            script = _read(lines, dict(self.variables.known), self.depth + 1)
            self.commands += script.commands
            self.faults += script.faults

    def _environment(self, token: Token, array: list[Token] | None, keep: bool) -> tuple[str, ShellWord]:
        """What one assignment says; kept for the words below where it is a command of its own."""
        found = ASSIGNED.match(token.raw)
        assert found is not None
        rest = token.pieces[0].text[found.end() :]
        pieces = (Piece(PieceKind.LITERAL, rest, token.line), *token.pieces[1:])
        words = self.variables.expanded(pieces, split=False)
        if array is not None:
            words = [word for each in array for word in self.variables.expanded(each.pieces)]
        if keep:
            # One element of an array is changed: what the others are is still known, but nobody counts places here.
            value = None if "[" in found[0] else Value(tuple(words))
            self._assigned(found["name"], value, add=found["plus"] == "+", is_list=array is not None)
        return found["name"], _shell_word(tuple(piece for word in words for piece in word) or pieces[:1])


_GLUED_SAYS = "a backslash before a blank makes one word of both sides; only at the end of a line it continues the command. Remove it."


def _assigns(token: Token) -> bool:
    first = token.pieces[0] if token.pieces else None
    return first is not None and not first.quoted and first.kind is PieceKind.LITERAL and bool(ASSIGNED.match(first.text))


def _flat(lists: Iterable[list[Token]]) -> list[Token]:
    return [token for each in lists for token in each]


def _shell_word(pieces: tuple[Piece, ...]) -> ShellWord:
    known = all(piece.kind is PieceKind.LITERAL for piece in pieces)
    line = next((piece.line for piece in pieces if piece.text), pieces[0].line)
    return ShellWord("".join(piece.text for piece in pieces), line, known, any(piece.quoted for piece in pieces))


def _takes_flags(draft: _Draft) -> bool:
    return any(token.raw.startswith("--") or token.plain in ("swift", "megatron", "accelerate", "torchrun") for token in draft.tokens)
