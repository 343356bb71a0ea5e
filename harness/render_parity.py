"""The kernel-parity table: kernel x dtype x direction, on a terminal and as a page. The same evidence gives the same bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from harness.model import Hardware
from harness.parity import GREEN, Entry, NotRun, ParityEvidence, RunFacts, Sort, State, moment, shown
from harness.parity_words import PARITY_WORDS
from harness.redact import escape_markdown, fenced
from harness.render import one_blank_line

_COLUMNS = ("kernel", "dtype", "direction", "worst", "limit", "in", "cases", "ill", "state")
_RIGHT = frozenset({"worst", "limit", "cases", "ill"})


def terminal_table(entries: Iterable[Entry]) -> list[str]:
    """Aligned lines: a kernel's dtypes and directions, then known failures and checks that are not green."""
    entries = sorted(entries, key=lambda entry: entry.item)
    parity = [entry for entry in entries if entry.sort is Sort.PARITY]
    lines = _aligned([_COLUMNS, *(row for entry in parity for row in _terminal_rows(entry))]) if parity else []
    for entry in (entry for entry in entries if entry.sort is Sort.KNOWN):
        lines.append(f"{entry.state}: {entry.item} ({entry.failed} of {entry.failed + entry.passed} cases fail): {_first(entry.because)}")
    checks = Counter(str(entry.state) for entry in entries if entry.sort is Sort.CHECK)
    if checks:
        lines.append("checks: " + ", ".join(f"{count} {state}" for state, count in sorted(checks.items())))
    return lines


def not_run_lines(not_run: Iterable[NotRun]) -> list[str]:
    """One line a reason, with the items that it keeps from running."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for one in sorted(not_run, key=lambda one: one.item):
        by_reason[one.because].append(one.item)
    return [f"not run: {', '.join(items)}: {because}" for because, items in by_reason.items()]


def render_parity(evidence: Sequence[ParityEvidence], language: str) -> str:
    """reports/kernel-parity.md (`en`) or kernel-parity.zh.md (`zh`)."""
    words = PARITY_WORDS[language]
    lines = [f"# {words['title']}", words["generated"], "", words["what"], ""]
    if not any(piece.hardware.is_npu for piece in evidence):
        lines += [words["no_npu"], ""]
    if not evidence:
        lines.append(words["nothing"])
    for piece in evidence:
        lines += _section(piece, words)
    return one_blank_line(lines)


def _terminal_rows(entry: Entry) -> list[tuple[str, ...]]:
    state = str(entry.state) + (" (quick)" if entry.quick else "")
    counts = (str(entry.cases), str(entry.ill))
    if not entry.worst:
        return [(entry.name, entry.dtype, "", "", "", "", *counts, state)]
    rows: list[tuple[str, ...]] = []
    for worst in entry.worst:
        figures = (worst.direction, f"{worst.rms_ratio:.2e}", f"{worst.limit:.2e}", worst.tensor)
        rows.append((entry.name, entry.dtype, *figures, *counts, state))
    return rows


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    right = [name in _RIGHT for name in _COLUMNS]
    made = []
    for row in rows:
        cells = [cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in zip(row, widths, right, strict=True)]
        made.append("  ".join(cells).rstrip())
    return made


def _section(piece: ParityEvidence, words: Mapping[str, str]) -> list[str]:
    entries = shown(piece)
    title = words["cpu"] if piece.hardware is Hardware.CPU else words["npu"].format(hardware=piece.hardware)
    lines = [f"## {title}", ""]
    parity = [entry for entry in entries if entry.sort is Sort.PARITY]
    lines += _table(words["table"], [row for entry in parity for row in _parity_rows(entry, piece.facts_of(entry), words)], words)
    failing = [entry for entry in entries if entry.state not in GREEN]
    if failing:
        lines += [f"### {words['failing']}", ""]
        lines += [part for entry in failing for part in (f"#### {escape_markdown(entry.item)}", "", fenced(entry.because), "")]
    known = [
        (
            *(escape_markdown(text) for text in (entry.name, entry.dtype, entry.item.partition("known: ")[2])),
            *(str(count) for count in (entry.failed, entry.passed)),
            *(_state(entry, words), escape_markdown(_first(entry.because)), _date(piece.facts_of(entry))),
        )
        for entry in entries
        if entry.sort is Sort.KNOWN
    ]
    checks = [
        (
            *(escape_markdown(text) for text in (entry.name, entry.what)),
            *(_state(entry, words), escape_markdown(_first(entry.because)), _date(piece.facts_of(entry))),
        )
        for entry in entries
        if entry.sort is Sort.CHECK
    ]
    not_run = [(escape_markdown(one.item), escape_markdown(one.because)) for one in sorted(piece.not_run, key=lambda one: one.item)]
    runs = [_run_row(run) for run in piece.runs]
    for name, columns, rows in (
        ("known", "known_table", known),
        ("checks", "check_table", checks),
        ("not_run", "not_run_table", not_run),
        ("runs", "runs_table", runs),
    ):
        lines += [f"### {words[name]}", "", *_table(words[columns], rows, words)]
    return lines


def _table(columns: str, rows: Sequence[tuple[str, ...]], words: Mapping[str, str]) -> list[str]:
    if not rows:
        return [words["none"], ""]
    width = columns.count("|") + 1
    return [f"| {columns} |", "|" + " --- |" * width, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _parity_rows(entry: Entry, facts: RunFacts, words: Mapping[str, str]) -> list[tuple[str, ...]]:
    head = tuple(escape_markdown(text) for text in (entry.name, entry.kind, entry.dtype))
    tail = (str(entry.cases), str(entry.ill), _state(entry, words), _date(facts))
    if not entry.worst:
        found = "" if entry.state is State.FAILED else words["ill_only"]
        return [(*head, found, "", "", "", *tail)]
    return [
        (*head, words[worst.direction], f"{worst.rms_ratio:.2e}", f"{worst.limit:.2e}", escape_markdown(worst.tensor), *tail)
        for worst in entry.worst
    ]


def _state(entry: Entry, words: Mapping[str, str]) -> str:
    return f"**{entry.state}**" + (f" ({words['quick']})" if entry.quick else "")


def _run_row(run: RunFacts) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    machine = ", ".join(f"{name} {value}" for name, value in sorted(run.machine.items()))
    return (run.nonce[:8], _date(run), escape_markdown(versions), escape_markdown(machine))


def _date(run: RunFacts) -> str:
    return f"{moment(run.started_at):%Y-%m-%d}"


def _first(text: str) -> str:
    return text.partition("\n")[0]
