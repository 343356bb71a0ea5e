"""Which blocks of a page run here, in what form, and which wait for which: decided from the text alone, before anything is run.

A block runs whole or not at all. One whose inputs come from a block that isn't run is blocked: variables that it sets, folders that it
writes, a server that it starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.commands_page import (
    DEFAULT_OUTPUT,
    KNOWN,
    OUTPUT_FLAGS,
    SERVING,
    TRAINING,
    converses,
    merges,
    subcommand_of,
    trains_adapter,
)
from harness.docs_page import Fence, Heading, Page
from harness.docs_run_edits import Edit, StandIns, applied, documented_port, edits_of, ports_asked, url_edits
from harness.docs_run_reasons import DECLARING, Obstacle, PageHost, Reason, flags_of, obstacles_of, texts, writes_outside
from harness.docs_run_units import Statement, is_transcript, statements
from harness.docs_shell import Command, CommandKind, read_shell
from harness.errors import HarnessError, did_you_mean
from harness.model import Word

SHELLS = ("shell", "bash", "sh", "zsh", "shell script", "console", "shell-session", "terminal")


class Kind(Word):
    """What a statement is for, which is what must be there after it. SET: variables and the folder, which prove nothing."""

    TRAIN = "train"
    MERGE = "merge"
    EXPORT = "export"
    INFER = "infer"
    DEPLOY = "deploy"
    ASK = "ask"
    SHELL = "shell"
    SET = "set"


class Fate(Word):
    RUN = "run"
    NOT_RUNNABLE = "not runnable here"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class Unit:
    """One statement. `script`: as it runs, `text`: as the page has it. `port`: where it serves, or asks.

    `leaves_adapter`: of a training; `converses`: of an inference that is fed a question; `fills`: variables set to what a command prints.
    """

    statement: Statement
    kind: Kind
    script: str
    port: int = 0
    leaves_adapter: bool = False
    converses: bool = False
    asked: str = ""
    fills: tuple[str, ...] = ()

    @property
    def line(self) -> int:
        return self.statement.line


@dataclass(frozen=True)
class Block:
    """A shell block. `needs`: the numbers of the blocks that it takes something from, with what. `pulled_in`: only for another's sake."""

    number: int
    line: int
    section: str
    units: tuple[Unit, ...]
    edits: tuple[Edit, ...]
    fate: Fate
    obstacles: tuple[Obstacle, ...] = ()
    needs: tuple[tuple[int, str], ...] = ()
    because: str = ""
    pulled_in: bool = False


@dataclass(frozen=True)
class PagePlan:
    """`blocks`: those selected, and those that they need, in page order. `models`: id to family of each tiny model that is wanted."""

    blocks: tuple[Block, ...]
    models: Mapping[str, str]
    others: int


@dataclass(frozen=True)
class Selection:
    """`section`: a title, or a regular expression that titles are searched with; `only`: a line within a block."""

    section: str | None = None
    only: int | None = None


def plan_page(page: Page, host: PageHost, stand_ins: StandIns, selection: Selection, where: str) -> PagePlan:
    """Raises HarnessError where nothing is selected: a page without shell, an unknown section, a line in no block."""
    shells = [fence for fence in page.fences if _is_shell(fence)]
    if not shells:
        raise HarnessError(where, "holds no block of shell.", f"Blocks that are run begin with ```{' or ```'.join(SHELLS[:3])}.")
    chosen = _selected(page, shells, selection, where)
    drafts = _read(shells, host)
    models: dict[str, str] = {}
    known = replace(stand_ins, model=_noting(stand_ins.model, models))
    lines = {number: text for fence in shells for number, text in fence.body}
    needs = [_needs(draft, drafts[:i]) for i, draft in enumerate(drafts)]
    wanted = _with_needed(chosen, needs)
    runs = {i for i in wanted if not drafts[i].obstacles}
    blocked = _blocked(sorted(wanted), runs, needs, drafts)
    runs -= blocked.keys()
    served = {port: stand_ins.port(port) for i in runs for port in drafts[i].serves}
    edits: list[Edit] = []
    for i in sorted(runs):
        edits += [edit for command in drafts[i].commands for edit in edits_of(command, host, known, lines)]
        edits += url_edits(drafts[i].fence.body, served)
    # A variable's value is edited where it is assigned, which may be in a block above the command that reads it.
    edits = list(dict.fromkeys(edits))
    blocks = [_block(i, drafts[i], page.headings, edits, served, runs, blocked, needs[i], i not in chosen) for i in sorted(wanted)]
    return PagePlan(tuple(blocks), models, len(page.fences) - len(shells))


@dataclass(frozen=True)
class _Draft:
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


def _is_shell(fence: Fence) -> bool:
    return fence.language.strip("{}. ").split(" ")[0].partition("{")[0].lower() in SHELLS and bool(fence.body)


def _selected(page: Page, shells: Sequence[Fence], selection: Selection, where: str) -> list[int]:
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


def _noting(model: Callable[[str, str], str], models: dict[str, str]) -> Callable[[str, str], str]:
    def note(model_id: str, family: str) -> str:
        models[model_id] = family
        return model(model_id, family)

    return note


def _read(shells: Sequence[Fence], host: PageHost) -> list[_Draft]:
    drafts: list[_Draft] = []
    variables: Mapping[str, object] = {}
    made: set[str] = set()
    for fence in shells:
        script = read_shell(fence.body, variables)  # type: ignore[arg-type]
        variables = script.variables
        draft = _draft(fence, script.commands, host, made)
        drafts.append(draft)
        made |= draft.writes
    return drafts


def _draft(fence: Fence, commands: tuple[Command, ...], host: PageHost, made: Collection[str]) -> _Draft:
    own = [command for command in commands if command.depth == 0]
    sets = {name for command in own for name, _ in command.environment if not command.words or command.words[0].text in DECLARING}
    writes = {path for command in commands for path in _written(command)} | _redirected(fence.text) | set(_FUNCTION.findall(fence.text))
    found = [obstacle for command in commands for obstacle in obstacles_of(command, host, {*made, *writes})]
    found += writes_outside(fence.body)
    if is_transcript(fence.body) and not found:
        found = [Obstacle(Reason.TRANSCRIPT, fence.line, "the block")]
    ports = [documented_port(command) for command in commands]
    return _Draft(
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


_FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*\(\)", re.MULTILINE)
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
        found += [word.text for word in words if "/" in word.text and word.text not in written]
    return found


def _needs(draft: _Draft, above: Sequence[_Draft]) -> tuple[tuple[int, str], ...]:
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


def _with_needed(chosen: Sequence[int], needs: Sequence[tuple[tuple[int, str], ...]]) -> set[int]:
    wanted: set[int] = set()
    waiting = list(chosen)
    while waiting:
        number = waiting.pop()
        if number not in wanted:
            wanted.add(number)
            waiting += [other for other, _ in needs[number]]
    return wanted


def _blocked(
    order: Sequence[int], runs: set[int], needs: Sequence[tuple[tuple[int, str], ...]], drafts: Sequence[_Draft]
) -> dict[int, str]:
    blocked: dict[int, str] = {}
    for number in order:
        lacking = next(((i, what) for i, what in needs[number] if i not in runs or i in blocked), None)
        if number in runs and lacking is not None:
            blocked[number] = f"takes {lacking[1]} from the block at line {drafts[lacking[0]].fence.line}, which is not run here"
    return blocked


def _block(
    number: int,
    draft: _Draft,
    headings: Sequence[Heading],
    edits: Sequence[Edit],
    served: Mapping[int, int],
    runs: set[int],
    blocked: Mapping[int, str],
    needs: tuple[tuple[int, str], ...],
    pulled_in: bool,
) -> Block:
    section = next((heading.title for heading in reversed(headings) if heading.line < draft.fence.line), "")
    fate = Fate.RUN if number in runs else Fate.BLOCKED if number in blocked else Fate.NOT_RUNNABLE
    because = blocked.get(number, "") or "; ".join(map(str, draft.obstacles))
    units: list[Unit] = []
    made: list[Edit] = []
    for statement in draft.statements if fate is Fate.RUN else ():
        script, own = applied(statement.lines, edits)
        made += own
        units.append(_unit(statement, script, draft.commands, served))
    # Tuple order: what is written first on the page is told first.
    line = draft.fence.line or draft.fence.body[0][0]  # a script is a block without a fence
    return Block(number, line, section, tuple(units), tuple(made), fate, draft.obstacles, needs, because, pulled_in)


def _unit(statement: Statement, script: str, commands: Sequence[Command], served: Mapping[int, int]) -> Unit:
    mine = [command for command in commands if statement.line <= command.line <= statement.end_line]
    for command in mine:
        if command.kind is CommandKind.SWIFT and len(command.words) > 1:
            subcommand, given = subcommand_of(command.words[1].text), texts(flags_of(command))
            if subcommand in SERVING:
                return Unit(statement, Kind.DEPLOY, _in_front(script), served.get(documented_port(command) or 0, 0))
            if subcommand in KNOWN:
                return Unit(statement, _kind(subcommand, given), script, 0, trains_adapter(given), converses(subcommand, given))
        urls = [word.text for word in command.words if "://" in word.text or ":" in word.text]
        asked = next((url for url in urls for port in ports_asked([command])), "") if _program(command) == "curl" else ""
        if asked:
            port = next(iter(ports_asked([command])), 0)
            return Unit(statement, Kind.ASK, script, served.get(port, port), asked=asked)
    only_sets = all(_program(command) in ("", "cd", "unset", "set", *DECLARING) for command in mine if command.depth == 0)
    fills = [name for command in mine for name, word in command.environment if command.depth == 0 and re.match(r"\$\(|`", word.text)]
    return Unit(statement, Kind.SET if only_sets else Kind.SHELL, script, fills=tuple(fills) if only_sets else ())


def _program(command: Command) -> str:
    return command.words[0].text.rpartition("/")[2] if command.words else ""


def _kind(subcommand: str, given: Mapping[str, Sequence[str]]) -> Kind:
    if subcommand in TRAINING:
        return Kind.TRAIN
    if subcommand == "infer":
        return Kind.INFER
    return Kind.MERGE if merges(subcommand, given) else Kind.EXPORT


def _in_front(script: str) -> str:
    """A server that the page puts into the background is kept in front: the harness waits for it, and ends it."""
    return re.sub(r"(?<!&)&[ \t]*(#.*)?\n\Z", "\n", script.rstrip() + "\n")
