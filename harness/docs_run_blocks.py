"""What each block of a page sets, writes and serves, and which blocks above it takes something of that from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.commands_page import DEFAULT_OUTPUT, OUTPUT_FLAGS, TRAINING, subcommand_of
from harness.docs_page import Fence
from harness.docs_run_edits import documented_port, ports_asked
from harness.docs_run_obstacles import obstacles_of, writes_outside
from harness.docs_run_reasons import DECLARING, Obstacle, PageHost, Reason, flags_of
from harness.docs_run_units import Statement, is_transcript, statements
from harness.docs_shell import Command, CommandKind, read_shell
from harness.docs_shell_values import Value

Needs = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Draft:
    """A block as read: what it sets, writes and serves, and what it reads of the kind."""

    fence: Fence
    statements: tuple[Statement, ...]
    commands: tuple[Command, ...]
    obstacles: tuple[Obstacle, ...]
    sets: frozenset[str]
    writes: frozenset[str]
    serves: frozenset[int]
    reads: frozenset[str]
    asks: frozenset[int]


def read_blocks(shells: Sequence[Fence], host: PageHost) -> list[Draft]:
    """Each block with the variables that those above it set, in page order."""
    drafts: list[Draft] = []
    variables: Mapping[str, Value | None] = {}
    made: set[str] = set()
    for fence in shells:
        script = read_shell(fence.body, variables)
        variables = script.variables
        draft = _draft(fence, script.commands, host, made)
        drafts.append(draft)
        made |= draft.writes
    return drafts


def _draft(fence: Fence, commands: tuple[Command, ...], host: PageHost, made: Collection[str]) -> Draft:
    own = [command for command in commands if command.depth == 0]
    sets = {name for command in own for name, _ in command.environment if not command.words or command.words[0].text in DECLARING}
    writes = {path for command in commands for path in _written(command)} | _redirected(fence.text) | set(_FUNCTION.findall(fence.text))
    found = [obstacle for command in commands for obstacle in obstacles_of(command, host, {*made, *writes})]
    found += writes_outside(fence.body)
    if is_transcript(fence.body) and not found:
        found = [Obstacle(Reason.TRANSCRIPT, fence.line, "the block")]
    ports = [documented_port(command) for command in commands]
    return Draft(
        fence,
        statements(fence.body),
        commands,
        tuple(dict.fromkeys(found)),
        frozenset(sets),
        frozenset(writes),
        frozenset(port for port in ports if port is not None),
        frozenset(_VARIABLE.findall(fence.text)) | frozenset(_read_paths(commands)),
        ports_asked(commands),
    )


_FUNCTION = re.compile(r"(?:^|[;&|{])[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*\(\)", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")


def _written(command: Command) -> list[str]:
    """Folders and files that a command is to leave."""
    if command.words and command.words[0].text in ("mkdir", "touch", "cp", "tee"):
        return [word.text for word in command.words[1:] if not word.text.startswith("-")]
    if command.kind is not CommandKind.SWIFT or len(command.words) < 2:
        return []
    given = flags_of(command)
    named = [word.text for flag in OUTPUT_FLAGS for word in given.get(flag, ())]
    trains = subcommand_of(command.words[1].text) in TRAINING
    return [*named, *([DEFAULT_OUTPUT] if trains and "--output_dir" not in given else [])]


def _redirected(text: str) -> set[str]:
    return {match[1] for match in re.finditer(r"(?<![<&\d])>{1,2}\s*([\w./-]+)", text)}


def _read_paths(commands: Sequence[Command]) -> list[str]:
    """Words that may name what an earlier block left: all but those that say where to write."""
    found = []
    for command in commands:
        written = set(_written(command))
        words = [*command.words, *(word for _, word in command.environment)]
        found += [word.text for word in words if word.text not in written]
    return found


def needs_of(draft: Draft, above: Sequence[Draft]) -> Needs:
    """(number of a block above, what of it is taken). Of several that make the same, the nearest that can be run."""
    needs: dict[int, str] = {}

    def take(makers: list[int], what: str) -> None:
        if makers:
            nearest = next((i for i in reversed(makers) if not above[i].obstacles), makers[-1])
            needs.setdefault(nearest, what)

    for name in sorted(draft.reads - draft.sets):
        take([i for i, other in enumerate(above) if name in other.sets], f"${name}")
    for path in sorted({path for other in above for path in other.writes}):
        if any(word == path or word.startswith(path.rstrip("/") + "/") for word in draft.reads):
            take([i for i, other in enumerate(above) if path in other.writes], path)
    for port in sorted(draft.asks - draft.serves):
        take([i for i, other in enumerate(above) if port in other.serves], f"the server on port {port}")
    return tuple(sorted(needs.items()))


def with_needed(chosen: Sequence[int], needs: Sequence[Needs]) -> set[int]:
    """The blocks chosen, those that they need, and those that these need."""
    wanted: set[int] = set()
    waiting = list(chosen)
    while waiting:
        number = waiting.pop()
        if number not in wanted:
            wanted.add(number)
            waiting += [other for other, _ in needs[number]]
    return wanted


def blocked(order: Sequence[int], runs: set[int], needs: Sequence[Needs], drafts: Sequence[Draft]) -> dict[int, str]:
    """Of the blocks that could run (`runs`) those that can't for want of another, with what they lack. `order`: those wanted."""
    blocked: dict[int, str] = {}
    for number in order:
        lacking = next(((i, what) for i, what in needs[number] if i not in runs or i in blocked), None)
        if number in runs and lacking is not None:
            blocked[number] = f"takes {lacking[1]} from the block at line {drafts[lacking[0]].fence.line}, which is not run here"
    return blocked
