"""What is put in place of a page's own words for a tiny run: ids, sizes, steps, ports and devices, each difference with its line and why.

An edit is made in the text, at the line where the word stands, be it in a command or in the assignment that the command reads.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.commands_flags import Change
from harness.commands_page import (
    DATASET_FLAGS,
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEVICE_VARIABLES,
    LOOPBACK,
    MODEL_FLAGS,
    NO_NPU,
    PORT_VARIABLE,
    RANKS_VARIABLE,
    SERVING,
    TINY_RANKS,
    device_changes,
    rows_of,
    step_changes,
    subcommand_of,
    type_changes,
)
from harness.docs_run_reasons import DECLARING, Given, PageHost, flags_of, is_hub_id, texts
from harness.docs_shell import Command, CommandKind, ShellWord
from harness.model import Hardware

FREE_PORT = "a free port, so that runs side by side don't meet"
_SUBSET = re.compile(r"(?<!:):(?!:).*")
_SERVED = re.compile(r"(?P<scheme>\w+://)?(?P<host>localhost|127\.0\.0\.1|0\.0\.0\.0):(?P<port>\d{2,5})(?!\d)")


@dataclass(frozen=True)
class Edit:
    """`before` "" is an addition, behind the command that is `anchor`; else `anchor` stands before it. `after` "" leaves a word out."""

    line: int
    before: str
    after: str
    because: str
    anchor: str = ""

    def __str__(self) -> str:
        if not self.before:
            return f"added: {self.after}"
        named = (
            f"{self.anchor} " if self.anchor.startswith("--") and "/" not in self.before else self.anchor if self.anchor[-1:] == "=" else ""
        )
        return f"{named}{self.before} -> {self.after or 'left out'}"


@dataclass(frozen=True)
class StandIns:
    """Places of the tiny models (by id and family) and rows (by kind), and the free port for a documented one.

    `longest`: tokens that a tiny model reads.
    """

    model: Callable[[str, str], str]
    rows: Mapping[str, str]
    port: Callable[[int], int]
    longest: int


def edits_of(command: Command, host: PageHost, stand_ins: StandIns, page: Mapping[int, str]) -> list[Edit]:
    """The edits for one command, in no order. A word that several commands read is edited once: equal edits are one.

    `page`: the lines of all blocks, by number. A value that stands nowhere as a whole is given once more at the command's end, where it
    counts.
    """
    found = _of_variables(command, host, stand_ins, page)
    if command.kind is not CommandKind.SWIFT or len(command.words) < 2:
        return found
    subcommand, given = subcommand_of(command.words[1].text), flags_of(command)
    values = texts(given)
    additions: list[Change] = []

    def put(flag: str, word: ShellWord, value: str, because: str) -> None:
        edit = Edit(word.line, word.text, value, because, flag)
        if _found(page.get(word.line, ""), edit):
            found.append(edit)
        else:
            additions.append(Change(flag, (value,), because))

    for flag, word in _words_of(given, MODEL_FLAGS):
        if family := host.family_of(word.text):
            put(flag, word, stand_ins.model(word.text, family), f"a tiny model of the same family ({family})")
            additions += type_changes(family, values, flag)
    for flag, word in _words_of(given, DATASET_FLAGS):
        name = word.text.partition("#")[0]
        if is_hub_id(_SUBSET.sub("", name)):
            rows = stand_ins.rows[rows_of(subcommand, values)]
            put(flag, ShellWord(name, word.line), rows, "made-up rows of the kind that the command reads")
    changes = [*step_changes(subcommand, values), *device_changes(subcommand, host.hardware), *_shortened(given, stand_ins.longest)]
    for change in [*changes, *(_served(given, stand_ins) if subcommand in SERVING else [])]:
        words, value = given.get(change.flag), (change.values or ("",))[0]
        if words is None:
            additions.append(change)
        elif words and words[0].text != value:
            put(change.flag, words[0], value, change.because)
    return found + [_added(command, change) for change in dict.fromkeys(additions)]


def _words_of(given: Given, flags: Sequence[str]) -> list[tuple[str, ShellWord]]:
    return [(flag, word) for flag in flags for word in given.get(flag, ())]


def url_edits(body: Sequence[tuple[int, str]], served: Mapping[int, int]) -> list[Edit]:
    """Where a page's text asks a server of its own: the port that was documented becomes the one that is free (`served`)."""
    found = []
    for number, text in body:
        for match in _SERVED.finditer(text):
            port = served.get(int(match["port"]))
            if port is not None:
                found.append(
                    Edit(number, match[0], f"{match['scheme'] or ''}{match['host'].replace('0.0.0.0', '127.0.0.1')}:{port}", FREE_PORT)
                )
    return list(dict.fromkeys(found))


def ports_asked(commands: Sequence[Command]) -> frozenset[int]:
    """The ports of this machine that commands name."""
    words = [word.text for command in commands for word in (*command.words, *(value for _, value in command.environment))]
    return frozenset(int(match["port"]) for text in words for match in _SERVED.finditer(text))


def documented_port(command: Command) -> int | None:
    """The port on which a command is to serve; None for one that serves nothing, or on a port that the text does not tell."""
    if command.kind is not CommandKind.SWIFT or len(command.words) < 2 or subcommand_of(command.words[1].text) not in SERVING:
        return None
    words = flags_of(command).get("--port", ())
    if not words:
        return DEFAULT_PORT
    return int(words[0].text) if words[0].text.isdigit() else None


def applied(lines: Sequence[tuple[int, str]], edits: Sequence[Edit]) -> tuple[str, list[Edit]]:
    """(the text of `lines` with the edits that belong to them made, those edits). Of two edits of one word the first counts.

    The number of lines stays, so that bash's own line numbers stay the page's.
    """
    first = lines[0][0]
    text = "\n".join(text for _, text in lines)
    made: list[Edit] = []
    for edit in reversed(edits):  # each goes right behind its command, so that the first one comes to stand first
        begins = _offset(text, edit.line - first) if first <= edit.line <= lines[-1][0] and not edit.before else -1
        # Additions first: a command is found by its text, which the other edits change.
        at = text.find(edit.anchor, begins) if begins >= 0 else -1
        if at >= 0:
            end = at + len(edit.anchor)
            text = f"{text[:end]} {edit.after}{text[end:]}"
            made.insert(0, edit)
    kept = dict(zip((number for number, _ in lines), text.split("\n"), strict=True))
    for edit in edits:
        match = _found(kept[edit.line], edit) if edit.before and edit.line in kept else None
        if match:
            begin, end = match.span("word")
            kept[edit.line] = kept[edit.line][:begin] + edit.after + kept[edit.line][end:]
            made.append(edit)
    return "\n".join(kept.values()) + "\n", sorted(made, key=lambda edit: (edit.line, not edit.before))


def _offset(text: str, lines: int) -> int:
    at = 0
    for _ in range(lines):
        at = text.index("\n", at) + 1
    return at


def _found(text: str, edit: Edit) -> re.Match[str] | None:
    # A path goes on behind the port of a server; behind an id it would make another one of it.
    ends = r"(?!\d)" if _SERVED.search(edit.before) else r"(?![\w/.-])"
    word = rf"(?P<word>{re.escape(edit.before)}){ends}"
    if edit.anchor:
        # A flag's value, on the flag's own line or alone on the next; or what is assigned to a variable.
        match = re.search(rf"{re.escape(edit.anchor)}(?:[ \t=]+|(?<==))['\"]?{word}", text)
        if match:
            return match
    return re.search(rf"(?<![\w/.-])['\"]?{word}", text)


def _added(command: Command, change: Change) -> Edit:
    words = [change.flag, *(shlex.quote(value) for value in change.values or ())]
    return Edit(command.line, "", " ".join(words), change.because, command.raw)


def _shortened(given: Given, longest: int) -> list[Change]:
    words = given.get("--max_length", ())
    longer = bool(words) and words[0].text.isdigit() and int(words[0].text) > longest
    return [Change("--max_length", (str(longest),), "a tiny model reads no more")] if longer else []


def _served(given: Given, stand_ins: StandIns) -> list[Change]:
    """Loopback and a free port, whether or not the page names any."""
    words = given.get("--port", ())
    named = words[0].text if words else str(DEFAULT_PORT)
    port = [Change("--port", (str(stand_ins.port(int(named))),), FREE_PORT)] if named.isdigit() else []
    hosts = given.get("--host", ())
    open_to_all = (hosts[0].text if hosts else DEFAULT_HOST) == DEFAULT_HOST
    return [*([Change("--host", ("127.0.0.1",), LOOPBACK)] if open_to_all else []), *port]


def _of_variables(command: Command, host: PageHost, stand_ins: StandIns, page: Mapping[int, str]) -> list[Edit]:
    """The variables in front of a command, or set by one of its own: devices, the number of ranks, and where these meet."""
    found = []
    ranks = 1
    for name, word in command.environment:
        if name == RANKS_VARIABLE and word.text.isdigit():
            ranks = min(int(word.text), TINY_RANKS)
            if str(ranks) != word.text:
                found.append(Edit(word.line, word.text, str(ranks), "as many ranks as tiny runs have", f"{name}="))
    for name, word in command.environment:
        if name in DEVICE_VARIABLES and word.known and word.text:
            found += _of_devices(name, word, ranks, host.hardware, command)
        elif name == PORT_VARIABLE and word.text.isdigit():
            found.append(Edit(word.line, word.text, str(stand_ins.port(int(word.text))), FREE_PORT, f"{name}="))
    return [edit for edit in found if _found(page.get(edit.line, ""), edit)]


def _of_devices(name: str, word: ShellWord, ranks: int, hardware: Hardware, command: Command) -> list[Edit]:
    if hardware is Hardware.CPU:
        written = re.search(rf"(?<!\w){name}=(?:\"[^\"]*\"|'[^']*'|\S*)", command.raw)
        if written and command.words and command.words[0].text not in DECLARING:
            return [Edit(word.line, written[0], "", NO_NPU)]
        return [Edit(word.line, word.text, "", NO_NPU, f"{name}=")]
    fewer = ",".join(map(str, range(min(len(word.text.split(",")), max(ranks, 1)))))
    return [Edit(word.line, word.text, fewer, "as many devices as ranks", f"{name}=")] if fewer != word.text else []
