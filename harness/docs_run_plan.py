"""Which blocks of a page run here, in what form, and which wait for which: decided from the text alone, before anything is run.

A block runs whole or not at all. One whose inputs come from a block that isn't run is blocked: variables that it sets, folders that it
writes, a server that it starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.commands_page import KNOWN, SERVING, TRAINING, converses, merges, subcommand_of, trains_adapter
from harness.docs_page import Heading, Page
from harness.docs_run_blocks import Draft, Needs, blocked, needs_of, read_blocks, with_needed
from harness.docs_run_edits import Edit, StandIns, applied, documented_port, edits_of, ports_asked, url_edits
from harness.docs_run_reasons import DECLARING, Obstacle, PageHost, flags_of, texts
from harness.docs_run_select import Selection, selected, shell_blocks
from harness.docs_run_units import Statement
from harness.docs_shell import Command, CommandKind
from harness.model import Word


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
    needs: Needs = ()
    because: str = ""
    pulled_in: bool = False


@dataclass(frozen=True)
class PagePlan:
    """`blocks`: those selected, and those that they need, in page order. `models`: id to family of each tiny model that is wanted."""

    blocks: tuple[Block, ...]
    models: Mapping[str, str]
    others: int


def plan_page(page: Page, host: PageHost, stand_ins: StandIns, selection: Selection, where: str) -> PagePlan:
    """Raises HarnessError where nothing is selected: a page without shell, an unknown section, a line in no block."""
    shells = shell_blocks(page, where)
    chosen = selected(page, shells, selection, where)
    drafts = read_blocks(shells, host)
    models: dict[str, str] = {}
    known = replace(stand_ins, model=_noting(stand_ins.model, models))
    lines = {number: text for fence in shells for number, text in fence.body}
    needs = [needs_of(draft, drafts[:i]) for i, draft in enumerate(drafts)]
    wanted = with_needed(chosen, needs)
    runs = {i for i in wanted if not drafts[i].obstacles}
    stuck = blocked(sorted(wanted), runs, needs, drafts)
    runs -= stuck.keys()
    served = {port: stand_ins.port(port) for i in runs for port in drafts[i].serves}
    edits: list[Edit] = []
    for i in sorted(runs):
        edits += [edit for command in drafts[i].commands for edit in edits_of(command, host, known, lines)]
        edits += url_edits(drafts[i].fence.body, served)
    # A variable's value is edited where it is assigned, which may be in a block above the command that reads it.
    edits = list(dict.fromkeys(edits))
    blocks = [_block(i, drafts[i], page.headings, edits, served, runs, stuck, needs[i], i not in chosen) for i in sorted(wanted)]
    return PagePlan(tuple(blocks), models, len(page.fences) - len(shells))


def _noting(model: Callable[[str, str], str], models: dict[str, str]) -> Callable[[str, str], str]:
    def note(model_id: str, family: str) -> str:
        models[model_id] = family
        return model(model_id, family)

    return note


def _block(
    number: int,
    draft: Draft,
    headings: Sequence[Heading],
    edits: Sequence[Edit],
    served: Mapping[int, int],
    runs: set[int],
    stuck: Mapping[int, str],
    needs: Needs,
    pulled_in: bool,
) -> Block:
    section = next((heading.title for heading in reversed(headings) if heading.line < draft.fence.line), "")
    fate = Fate.RUN if number in runs else Fate.BLOCKED if number in stuck else Fate.NOT_RUNNABLE
    because = stuck.get(number, "") or "; ".join(map(str, draft.obstacles))
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
