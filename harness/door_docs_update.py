"""python -m harness docs update FILE [--dry-run] [--as-of DATE]: a page's support tables, written anew from evidence.

Exit codes: 0 done (also where nothing had to change), 1 with --dry-run if something would, 2 no such page, 3 matrix.yaml, 4 evidence was
refused (the rest was written).
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from harness.docs_files import page_bytes
from harness.docs_update import Change, Update, update_page
from harness.errors import EvidenceError, HarnessError, HostError
from harness.matrix_quarantine import refuse_dates
from harness.model import Matrix
from harness.report import current_table
from harness.session import open_store, parse_day
from harness.store import utc_now, write_atomically


def add_update(commands: Any) -> argparse.ArgumentParser:
    """Adds `update` to the subparsers of `docs`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "update",
        help="write a page's support tables anew from evidence",
        description="Rows with NPU evidence of real weights say what the marks say; rows are added for verified cells that no row "
        "speaks of; every other byte stays. Exit codes: 0 done, 1 with --dry-run if something would change, 2 no such page, "
        "3 matrix.yaml, 4 evidence was refused.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a page of Markdown, in Chinese or English")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, print the difference; exit 1 if there is one")
    parser.add_argument("--as-of", default=None, metavar="DATE", help="the day on which ages are measured (newest evidence's)")
    parser.set_defaults(run=run_update)
    return parser


def run_update(args: argparse.Namespace, matrix: Matrix) -> int:
    path: Path = args.file
    text = _page(path)
    as_of = parse_day(args.as_of)
    refuse_dates(matrix, today=utc_now().date(), as_of=as_of)
    table, refused = current_table(matrix, open_store(args.root), as_of)
    update = update_page(text, table, matrix)
    if not args.dry_run and update.changes:
        _write(path, text, update.text)
    if getattr(args, "json", False):
        print(json.dumps(_as_json(path, update, [str(error) for error in refused]), ensure_ascii=False, indent=1))
    else:
        print("\n".join(_diff(path, text, update.text) if args.dry_run and update.changes else _told(path, update)))
        for note in (*update.notes, *(f"refused: {error}" for error in refused)):
            print(note, file=sys.stderr)
    if refused:
        return EvidenceError.exit_code
    return 1 if args.dry_run and update.changes else 0


def _page(path: Path) -> str:
    """The page as it stands, byte order mark and line ends included. Raises HarnessError."""
    try:
        return page_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise HarnessError(str(path), f"is no UTF-8 text (byte {error.start}).", "Save it as UTF-8.") from error


def _write(path: Path, old: str, new: str) -> None:
    """Put the new text in the page's place, behind a link too, with its permissions. Raises HostError if the disk refuses, HarnessError if
    somebody wrote the page in between; then the page is as it was."""
    target = path.resolve()
    if _page(target) != old:
        raise HarnessError(str(path), "was written by somebody else in between.", "Run it again.")
    mode = stat.S_IMODE(target.stat().st_mode)
    if not mode & 0o222:  # putting another file in its place would not ask
        raise HarnessError(str(path), "is read-only.", "Make it writable (chmod u+w), or look at the difference by --dry-run.")
    write_atomically(target, new)
    try:
        os.chmod(target, mode)
    except OSError as error:
        raise HostError(
            str(path), f"was written, but not given its permissions {mode:o} ({error.strerror}).", "Give them by chmod."
        ) from error


def _told(path: Path, update: Update) -> list[str]:
    lines = [f"{path}:{change.line}: {_words(change)} {change.new.strip()}" for change in update.changes]
    return lines or [f"{path}: says what the evidence says"]


def _words(change: Change) -> str:
    return "added below:" if change.old is None else "now"


def _diff(path: Path, old: str, new: str) -> list[str]:
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), f"{path} (as it is)", f"{path} (by evidence)", lineterm=""))


def _as_json(path: Path, update: Update, refused: list[str]) -> dict[str, Any]:
    changes = [
        {"line": c.line, "added": c.old is None, "old": c.old and c.old.strip(), "new": c.new.strip()} for c in update.changes
    ]  # fmt: skip
    return {"file": str(path), "changes": changes, "notes": list(update.notes), "refused": refused}
