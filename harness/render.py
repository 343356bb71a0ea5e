"""Reports as markdown. The same support table gives the same bytes; whatever came from a log is escaped."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.errors import EvidenceError
from harness.evidence import MEASURED, day
from harness.model import Evidence, Matrix, VerdictKind
from harness.redact import escape_markdown, fenced
from harness.render_seed import SeedPage
from harness.render_seed_memory import memory_tables
from harness.render_strings import STRINGS
from harness.render_tables import Page, witnessed
from harness.retries import flaky_text
from harness.support import SupportTable, worked_on

_SHOWN_IN_FULL = (VerdictKind.FAILED, VerdictKind.FIXED, VerdictKind.KNOWN_FAILURE, VerdictKind.BLOCKED)


@dataclass(frozen=True)
class Failure:
    """What report.md says of one run that did not simply pass: markdown, escaped."""

    title: str
    lines: tuple[str, ...]
    log: str
    commands: tuple[str, ...]


def render_support(table: SupportTable, matrix: Matrix, language: str) -> str:
    """reports/support.md (`en`) or support.zh.md (`zh`)."""
    page = Page(table, matrix, language)
    return _render("support.md.j2", words=STRINGS[language], head=_head(table, language), tables=page.tables())


def render_npu_support(table: SupportTable, matrix: Matrix, language: str) -> str:
    """reports/npu-support.md (`en`) or npu-support.zh.md (`zh`): the document's own tables, in its form."""
    seed = SeedPage(Page(table, matrix, language))
    _, *rest = _head(table, language)
    return _render("npu-support.md.j2", words=seed.words, head=[seed.head(), *rest], tables=[*seed.tables(), *memory_tables(seed)])


def render_report(table: SupportTable, matrix: Matrix, refused: Sequence[EvidenceError] = (), trends: Sequence[str] = ()) -> str:
    """reports/report.md: every run, what failed and why, with the command to paste; `trends`: pictures beside it."""
    page = Page(table, matrix, "en")
    _, versions = witnessed(table.evidence, matrix)
    return _render(
        "report.md.j2",
        head=_head(table, "en"),
        runs=[_run_row(piece, page) for piece in table.evidence],
        failures=[_failure(piece, page) for piece in table.evidence if piece.verdict.kind in _SHOWN_IN_FULL],
        versions=versions,
        orphans=[f"{escape_markdown(piece.cell)}: {page.link(piece)}" for piece in table.orphans],
        refused=[escape_markdown(str(error)) for error in refused],
        trends=trends,
    )


def _head(table: SupportTable, language: str) -> list[str]:
    """The first lines: what the page is, how old, on what it stands, and whether any of it is about NPUs."""
    words = STRINGS[language]
    measured = [e for e in table.evidence if e.verdict.kind in MEASURED]
    counts = Counter(str(worked_on(e)) if e.hardware else f"{e.asked} as asked, unwitnessed" for e in measured)
    npu = any(e.hardware and worked_on(e).is_npu for e in measured)
    pieces = ", ".join(f"{place} {count}" for place, count in sorted(counts.items())) or words["nothing_yet"]
    facts = {"as_of": str(table.as_of or words["nothing_yet"]), "pieces": pieces, **({"later": str(table.later)} if table.later else {})}
    line = " · ".join(f"{words[name]}{words['colon']}{value}" for name, value in facts.items())
    return [words["what"], line, words["npu"] if npu else f"**{words['no_npu']}**"]


def _run_row(piece: Evidence, page: Page) -> tuple[str, ...]:
    hardware = str(piece.hardware) if piece.hardware else f"{piece.asked} as asked, unwitnessed"
    flaky = flaky_text(piece)
    because = f"flaky: {flaky}; {piece.verdict.because}" if flaky else piece.verdict.because
    said = (piece.cell, piece.stage, piece.weights, hardware, piece.verdict.kind, because)
    rest = (f"{piece.duration_s:.1f}", str(day(piece)), escape_markdown(piece.launcher), page.link(piece))
    return (*(escape_markdown(str(part)) for part in said), *rest)


def _failure(piece: Evidence, page: Page) -> Failure:
    verdict, outcome = piece.verdict, piece.outcome
    lines = [f"{verdict.kind}: {escape_markdown(verdict.because)}", f"evidence: {page.link(piece)}, {day(piece)}"]
    if verdict.cause:
        lines.append(f"cause: {escape_markdown(verdict.cause)}, blame: {verdict.blame}")
    if outcome.remedy:
        lines.append(f"remedy: {escape_markdown(outcome.remedy)}")
    if piece.ruling.because:
        issue = f" ({escape_markdown(piece.ruling.issue)})" if piece.ruling.issue else ""
        lines.append(f"expected: {escape_markdown(piece.ruling.because)}{issue}")
    for c in piece.comparisons:
        if not c.ok:
            lines.append(f"{escape_markdown(c.name)}: expected {escape_markdown(c.expected)}, found {escape_markdown(c.found)}")
    for run in piece.runs:
        ended = f"exit code {run.exit_code}" if run.exit_code is not None else f"ended by {run.ended_by}"
        lines.append(f"step {escape_markdown(run.step)}: {escape_markdown(ended)} after {run.duration_s:.1f} s")
    hardware = str(piece.hardware) if piece.hardware else f"{piece.asked} as asked"
    title = f"{piece.cell}, {piece.stage} on {hardware} with {piece.weights} weights"
    return Failure(escape_markdown(title), tuple(lines), fenced(outcome.line) if outcome.line else "", _commands(piece))


def _commands(piece: Evidence) -> tuple[str, ...]:
    """What a person can paste: the environment that was set, and the argv."""
    found = [(step.command.env, step.command.argv) for step in piece.steps] or [(run.env, run.argv) for run in piece.runs]
    lines = []
    for env, argv in found:
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
        lines.append(" ".join([*settings, shlex.join(argv)]))
    return tuple(fenced(line, "sh") for line in dict.fromkeys(lines))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("harness", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # markdown: escape_markdown is what escapes
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _render(template: str, **values: Any) -> str:
    text = _environment().get_template(template).render(**values)
    return one_blank_line(text.splitlines())


def one_blank_line(lines: Iterable[str]) -> str:
    """Blank lines do nothing in markdown but part blocks; one is enough, and none stands at the end. Fenced blocks keep theirs."""
    kept: list[str] = []
    fence = ""
    for line in lines:
        mark = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(mark) >= 3:
            fence = mark
        elif fence and line == fence:
            fence = ""
        if line.strip() or fence or (kept and kept[-1].strip()):
            kept.append(line.rstrip() if not fence else line)
    return "\n".join(kept).rstrip() + "\n"
