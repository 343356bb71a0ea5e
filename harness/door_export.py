"""`python -m harness export FILE`, `import FILE` of what it wrote, and `tables`: evidence by the million, as one line a piece."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError, HarnessError
from harness.export_store import PARTS, export, import_export, imported
from harness.export_tables import Tables, tables_of
from harness.model import Matrix, Tier
from harness.session import open_store, parse_day

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".jsonl", ".jsonl.gz")
FRAMES = ("counts", "memory", "benchmarks", "newest")
_SHOWN_ROWS = 40


def add_export(commands: Any) -> tuple[argparse.ArgumentParser, ...]:
    """The subcommands `export` and `tables`; their parsers are returned for the options that all share."""
    written: argparse.ArgumentParser = commands.add_parser("export", help="write evidence and benchmarks as one line a piece")
    written.add_argument("file", type=Path, metavar="FILE", help="ends in .jsonl or .jsonl.gz")
    written.add_argument("--part", action="append", choices=PARTS, default=None, help="only this part (all of them); may be repeated")
    written.set_defaults(run=_export)
    tables: argparse.ArgumentParser = commands.add_parser("tables", help="tables of imported exports")
    tables.add_argument("exports", nargs="*", metavar="EXPORT", help="how their names begin (all that were imported)")
    tables.add_argument("--as-of", default=None, metavar="DATE", help="the last day that counts (the newest evidence's)")
    tables.set_defaults(run=_tables)
    return written, tables


def is_export(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def import_file(args: argparse.Namespace) -> int:
    """`import FILE.jsonl`. Exit 4 where a line was refused."""
    found = import_export(args.root, args.dir)
    if args.json:
        refused = [str(error) for error in found.refused]
        print(json.dumps({"lines": found.lines, "kept": _name(found.path), "faults": found.faults, "refused": refused}, indent=1))
    else:
        kept = f", kept as {_name(found.path)}: `python -m harness tables {_name(found.path)}`" if found.path else ", nothing was kept"
        print(f"{found.lines} lines hold, {found.faults} refused{kept}")
        for error in found.refused:
            print(f"refused: {error}", file=sys.stderr)
        if found.faults > len(found.refused):
            print(f"refused: and {found.faults - len(found.refused)} more lines", file=sys.stderr)
    return EvidenceError.exit_code if found.faults else 0


def _name(path: Path | None) -> str:
    return path.stem[:12] if path else ""


def _export(args: argparse.Namespace, matrix: Matrix) -> int:
    if not is_export(args.file):
        raise HarnessError(str(args.file), "doesn't say what it is.", f"Give it a name that ends in {' or '.join(SUFFIXES)}.")
    written = export(open_store(args.root), BenchmarkStore(args.root), args.file, args.part or PARTS)
    if args.json:
        print(json.dumps({"lines": written.lines, "refused": [str(error) for error in written.refused]}, indent=1))
    else:
        print(f"{written.lines} lines written to {args.file}, {len(written.refused)} files refused")
        for error in written.refused:
            print(f"refused: {error}", file=sys.stderr)
    return EvidenceError.exit_code if written.refused else 0


def _tables(args: argparse.Namespace, matrix: Matrix) -> int:
    found = tables_of(imported(args.root, args.exports), matrix, parse_day(args.as_of))
    if args.json:
        print(json.dumps(_plain(found), ensure_ascii=False, indent=1))
        return 0
    later = f", {found.later} of later days left out" if found.later else ""
    print(f"{found.rows} rows of {found.as_of or 'no day'}{later}: exports, from which no page of reports/ is written")
    parsed_only = {cell.id for cell in matrix.cells if cell.tier is Tier.CONTRACT}
    marks = Counter(str(mark.kind) for mark in found.marks if mark.cell not in parsed_only)
    print(f"marks: {', '.join(f'{n} {kind}' for kind, n in sorted(marks.items()))}")
    for name in FRAMES:
        for line in _shown(name, getattr(found, name)):
            print(line)
    return 0


def _shown(name: str, frame: pd.DataFrame) -> list[str]:
    if name == "newest":
        return [f"\n{len(frame)} keys (cell, stage, weights, hardware, stack): --json names them"]
    if frame.empty:
        return [f"\n{name}: none"]
    more = [f"... and {len(frame) - _SHOWN_ROWS} more: --json"] if len(frame) > _SHOWN_ROWS else []
    return [f"\n{name}", frame.head(_SHOWN_ROWS).to_string(index=False, float_format=lambda value: f"{value:.4g}"), *more]


def _plain(found: Tables) -> dict[str, Any]:
    marks = [
        {"cell": m.cell, "target": str(m.target), "mark": str(m.kind), "date": m.date, "because": m.because, "evidence": list(m.evidence)}
        for m in found.marks
    ]
    frames = {name: json.loads(getattr(found, name).to_json(orient="records")) for name in FRAMES}
    return {"as_of": str(found.as_of) if found.as_of else None, "rows": found.rows, "later": found.later, "marks": marks, **frames}
