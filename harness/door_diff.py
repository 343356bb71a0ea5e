"""`python -m harness diff RUN RUN`: what changed between two runs, stacks, versions or days. Exit 1 where something got worse."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.diff import Changed, Difference, Number, marks_changed, numbers_changed, places_of, verdicts_changed
from harness.diff_runs import Side, find_side
from harness.errors import EvidenceError
from harness.export_tables import marks_of
from harness.frames import read_frames, rows_at
from harness.model import Matrix
from harness.session import open_store

_MOST_TEXT = 160


def add_diff(commands: Any) -> argparse.ArgumentParser:
    """The subcommand `diff`; its parser is returned for the options that all share."""
    parser: argparse.ArgumentParser = commands.add_parser("diff", help="what changed between two runs")
    told = "a folder of evidence, an export, a run of benchmarks (or `baselines`), a stack, an ms-swift version or commit, or a day"
    parser.add_argument("before", metavar="RUN", help=told)
    parser.add_argument("after", metavar="RUN", help="the later one")
    parser.set_defaults(run=_diff)
    return parser


def _diff(args: argparse.Namespace, matrix: Matrix) -> int:
    store = open_store(args.root)
    with tempfile.TemporaryDirectory(prefix="npu-matrix-diff-") as scratch:
        sides = []
        for number, name in enumerate((args.before, args.after)):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            sides.append(find_side(name, store, folder))
        found = difference(sides[0], sides[1], matrix)
    refused = [error for side in sides for error in side.refused]
    if args.json:
        named = {word: {"name": side.name, "is": side.what} for word, side in zip(("before", "after"), sides, strict=True)}
        whole = {**named, **asdict(found), "got_worse": found.got_worse, "refused": [str(error) for error in refused]}
        print(json.dumps(whole, ensure_ascii=False, indent=1))
    else:
        print(f"from {sides[0].what} {sides[0].name} to {sides[1].what} {sides[1].name}")
        for line in lines_of(found):
            print(line)
        for error in refused:
            print(f"refused: {error}", file=sys.stderr)
    return 1 if found.got_worse else EvidenceError.exit_code if refused else 0


def difference(before: Side, after: Side, matrix: Matrix) -> Difference:
    """Raises HarnessError where pandas or scipy is missing."""
    frames = [read_frames([side.path]) for side in (before, after)]
    marks = [marks_of([side.path], frame, matrix, None) for side, frame in zip((before, after), frames, strict=True)]
    rows = [list(rows_at([side.path], places_of(frame))) for side, frame in zip((before, after), frames, strict=True)]
    return Difference(tuple(marks_changed(*marks)), tuple(verdicts_changed(*rows)), tuple(numbers_changed(frames[0], frames[1])))


def lines_of(found: Difference) -> Iterator[str]:
    """For people: the counts, then every change with its cause and evidence."""
    for title, changes in (("marks", found.marks), ("stages", found.verdicts)):
        counts = Counter(str(one.change) for one in changes)
        yield f"{title}: {', '.join(f'{n} {change}' for change, n in sorted(counts.items())) or 'nothing changed'}"
        for one in sorted(changes, key=lambda one: str(one.change)):
            yield f"  {_change(one)}"
    labels = Counter(number.label for number in found.numbers)
    yield f"numbers: {', '.join(f'{n} {label}' for label, n in sorted(labels.items())) or 'nothing changed'}"
    for number in found.numbers:
        yield f"  {_number(number)}"


def _change(one: Changed) -> str:
    evidence = " -> ".join(hashes or "none" for hashes in one.evidence)
    because = " ".join(one.because.split())[:_MOST_TEXT]
    return f"{one.change}: {' '.join(one.about)}: {one.before or 'nothing'} -> {one.after or 'nothing'}: {because} [evidence {evidence}]"


def _number(number: Number) -> str:
    record, cell, stage, concurrency, weights, hardware, launcher = number.about
    at_once = f" x{concurrency}" if concurrency != "0" else ""
    moved = f"{number.before:.5g} -> {number.after:.5g} ({number.after / number.before - 1:+.1%})"
    where = f"{cell} {stage}{at_once} ({record}, {weights}, {hardware}, {launcher})"
    return f"{number.label}: {where} {number.quantity} {moved}: {number.because}"
