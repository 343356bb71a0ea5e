"""python -m harness list | show | report | import | export | tables | diff | trends | doctor | explain ...: cells, evidence, hosts, logs.

`list` and `show` run nothing. Exit codes: 0 done, 1 a check found something, 2 wrong usage, 3 matrix.yaml, 4 evidence, 5 this host,
6 a failure whose log does not tell its cause.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import report
from harness.commands import PRELUDE, NotBuilt, documented_commands, shell_line
from harness.door_benchmark import add_promote
from harness.door_diff import add_diff
from harness.door_docs import add_docs
from harness.door_doctor import add_doctor
from harness.door_explain import add_explain
from harness.door_export import add_export, import_file, is_export
from harness.door_machine import add_machine
from harness.door_trends import add_trends
from harness.errors import EvidenceError, HarnessError, did_you_mean
from harness.matrix_quarantine import refuse_dates
from harness.model import Cell, Hardware, Matrix, Weights
from harness.parity_store import import_dir as import_parity
from harness.parity_store import load_all as load_parity
from harness.report_trends import NOT_DRAWN
from harness.rules import applicable_stages, proof_gap, required_stages, rule_for
from harness.session import open_store, parse_day, read_matrix
from harness.store import ImportCounts, utc_now
from harness.trends_draw import matplotlib_version


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        if hasattr(args, "apart"):  # a command about hosts, which needs no matrix.yaml
            return int(args.apart(args))
        matrix = read_matrix(args.matrix or args.root / "matrix.yaml")
        return int(args.run(args, matrix))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `| head` has read enough
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: here)")
    parser.add_argument("--matrix", type=Path, default=None, help="another matrix.yaml")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listed = commands.add_parser("list", help="every declared cell")
    listed.set_defaults(run=_list)
    shown = commands.add_parser("show", help="one cell: facts, claims, marks, the commands to paste")
    shown.add_argument("cell")
    shown.set_defaults(run=_show)
    reported = commands.add_parser("report", help="write the tables from evidence, or check them")
    reported.add_argument("--check", action="store_true", help="write nothing; exit 1 if the tables differ from what their evidence gives")
    reported.add_argument("--as-of", default=None, metavar="DATE", help="the day on which ages are measured (newest evidence's)")
    reported.set_defaults(run=_report)
    imported = commands.add_parser("import", help="merge the evidence of another host")
    imported.add_argument("dir", type=Path, metavar="DIR", help="a folder of evidence, or a file that `export` wrote")
    imported.set_defaults(run=_import)
    add_machine(commands)
    add_explain(commands)
    add_docs(commands)
    promoted = add_promote(commands)
    exports = (*add_export(commands), add_diff(commands), add_trends(commands))
    examined = commands.add_parser("doctor", help="what keeps this host from NPU work, and what mends it")
    add_doctor(examined)
    for command in (listed, shown, reported, imported, promoted, examined, *exports):
        command.add_argument("--json", action="store_true", help="for machines")
        command.add_argument("--root", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_argument("--matrix", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _list(args: argparse.Namespace, matrix: Matrix) -> int:
    rows = [_row(cell) for cell in matrix.cells]
    if args.json:
        print(json.dumps({"matrix": matrix.source, "sha256": matrix.sha256, "cells": rows}, ensure_ascii=False, indent=1))
        return 0
    for row in rows:
        print(f"{row['tier']:9} {'/'.join(row['targets']):6} {row['id']}")
    print(f"{len(rows)} cells, {len(matrix.claims)} claims of documents. `python -m harness show CELL` tells of one.")
    return 0


def _row(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {"id": cell.id, "model": cell.model.id, "family": cell.model.family}
    row |= {name: str(getattr(cell, name)) for name in ("algorithm", "tuner", "strategy", "engine", "tier")}
    row |= {"targets": [str(t) for t in cell.targets], "stages": [str(s) for s in applicable_stages(cell)]}
    row |= {"devices": cell.devices, "recipe": cell.recipe.key, "tiny_key": cell.tiny_key, "line": cell.line}
    return row


def _show(args: argparse.Namespace, matrix: Matrix) -> int:
    cell = matrix.cell(args.cell)
    if cell is None:
        raise HarnessError(matrix.source, f"no cell is called {args.cell!r}.", _near(args.cell, matrix))
    found = _cell_facts(cell, matrix, args.root)
    if args.json:
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return 0
    print(f"{cell.id}  ({matrix.source}:{cell.line})")
    print(f"  {cell.algorithm} of {cell.model.id} (family {cell.model.family}), {cell.tuner}, {cell.strategy}, engine {cell.engine}")
    print(f"  asked of {', '.join(found['targets'])}; tier {cell.tier}; required stages: {', '.join(found['required_stages'])}")
    for claim in found["claims"]:
        where = f"{claim['document']}, {claim['section']} ({claim['date']})"
        print(f"  claimed: {claim['says']} for {claim['target'] or 'any hardware'} in {where}")
    for mark in found["marks"]:
        print(f"  {mark['target']}: {mark['mark']} {mark['date']} - {mark['because']}")
    for ruling in found["rulings"]:
        print(f"  on {ruling['hardware']} with {ruling['weights']} weights: {ruling['ruling']} {ruling['because']}".rstrip())
    for line in [f"  proof of {stage}: {gap}" for stage, gap in found["proof_gaps"].items()]:
        print(line)
    print("\n# the documented commands, to paste on an NPU host" if found["commands"] else f"\nno command: {found['no_command']}")
    for line in (*PRELUDE[:2], *_pasted(found["commands"])) if found["commands"] else ():
        print(line)
    return 0


def _pasted(commands: list[dict[str, str]]) -> list[str]:
    """The lines in order; the variables that name a checkpoint are set once there is one."""
    lines: list[str] = []
    for command in commands:
        if command["stage"] != "train" and not any(line in PRELUDE for line in lines):
            lines += PRELUDE[2:]
        lines += [f"# {command['stage']}: {command['step']}", command["line"]]
    return lines


def _near(name: str, matrix: Matrix) -> str:
    guess = did_you_mean(name, [cell.id for cell in matrix.cells]).partition("Known:")[0]
    return f"{guess}`python -m harness list` names them."


def _cell_facts(cell: Cell, matrix: Matrix, root: Path) -> dict[str, Any]:
    table, _ = report.current_table(matrix, open_store(root), None)
    try:
        documented = [{"stage": str(stage), "step": step.name, "line": shell_line(step)} for stage, step in documented_commands(cell)]
        no_command = ""
    except NotBuilt as error:
        documented, no_command = [], error.because
    places = [(Hardware.CPU, Weights.TINY), *((t, w) for t in cell.targets for w in Weights)]
    rulings = [(h, w, rule_for(cell, matrix, hardware=h, weights=w)) for h, w in places]
    gaps = {str(s): proof_gap(cell, s, hardware=cell.targets[0], weights=Weights.REAL) for s in applicable_stages(cell)}
    return {
        **_row(cell),
        "required_stages": [str(s) for s in required_stages(cell.algorithm, cell.tuner, cell.engine)],
        "claims": [_claim(c) for c in matrix.claims if c.cell == cell.id],
        "marks": [
            {"target": str(m.target), "mark": str(m.kind), "date": m.date, "because": m.because, "evidence": list(m.evidence)}
            for m in table.marks
            if m.cell == cell.id
        ],
        "rulings": [{"hardware": str(h), "weights": str(w), "ruling": str(r.kind), "because": r.because} for h, w, r in rulings],
        "proof_gaps": {stage: gap for stage, gap in gaps.items() if gap},
        "commands": documented,
        "no_command": no_command,
    }


def _claim(claim: Any) -> Mapping[str, Any]:
    names = ("document", "section", "date", "row", "reading", "says", "target")
    return {name: getattr(claim, name) and str(getattr(claim, name)) for name in names}


def _report(args: argparse.Namespace, matrix: Matrix) -> int:
    store, as_of = open_store(args.root), parse_day(args.as_of)
    refuse_dates(matrix, today=utc_now().date(), as_of=as_of)
    if args.check:
        differences = report.check_report(args.root, matrix, store, as_of)
        if args.json:
            print(json.dumps({"differences": list(differences)}, ensure_ascii=False, indent=1))
        else:
            print("\n".join(differences) or "reports are what their evidence gives")
        return 1 if differences else 0
    written = [str(path.relative_to(args.root)) for path in report.write_report(args.root, matrix, store, as_of)]
    marks = report.count_marks(matrix, store, as_of)
    refused = [str(error) for error in (*report.current_table(matrix, store, as_of)[1], *load_parity(args.root)[1])]
    if args.json:
        print(json.dumps({"written": written, "marks": dict(sorted(marks.items())), "refused": refused}, ensure_ascii=False, indent=1))
    else:
        print(f"written: {', '.join(written)}\nmarks: {', '.join(f'{n} {kind}' for kind, n in sorted(marks.items()))}")
        for error in refused:
            print(f"refused: {error}", file=sys.stderr)
    if matplotlib_version() is None:
        print(NOT_DRAWN, file=sys.stderr)
    return EvidenceError.exit_code if refused else 0


def _import(args: argparse.Namespace, matrix: Matrix) -> int:
    if is_export(args.dir):
        return import_file(args)
    parity = import_parity(args.root, args.dir)
    try:
        counts = open_store(args.root).import_dir(args.dir)
    except EvidenceError:  # there is nothing else to import
        if parity == ImportCounts(0, 0, 0, ()):
            raise
        counts = ImportCounts(0, 0, 0, ())
    counts = counts.plus(parity)
    if args.json:
        refused = [str(error) for error in counts.refused]
        print(json.dumps({"added": counts.added, "current": counts.current, "same": counts.same, "refused": refused}, indent=1))
    else:
        known = f"{counts.current} now the newest of their key, {counts.same} known before"
        print(f"{counts.added} added, {known}, {len(counts.refused)} refused")
        for error in counts.refused:
            print(f"refused: {error}", file=sys.stderr)
    return EvidenceError.exit_code if counts.refused else 0


if __name__ == "__main__":
    sys.exit(main())
