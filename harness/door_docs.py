"""python -m harness docs check FILE... [--docs-tree DIR] [--source DIR] [--notes] [--json]: what pages say that is not so.

Exit codes: 0 no fault, 1 a fault was found, 2 a file can't be read as a page, 3 matrix.yaml, 5 there is no ms-swift to ask about the
commands of a page. Nothing of a page is run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from harness.docs_check import Facts, as_json, as_text, check_page, page_of
from harness.docs_check_facts import Finding
from harness.docs_check_installed import Installed
from harness.docs_check_tree import DocsTree
from harness.docs_commands import check_commands
from harness.docs_files import page_bytes
from harness.docs_page import Page
from harness.door_docs_run import add_run
from harness.door_docs_update import add_update
from harness.errors import HarnessError, HostError
from harness.model import Matrix
from harness.report import current_table
from harness.session import open_store


def add_docs(commands: Any) -> None:
    """Adds `docs` with its own subcommands to argparse's subparsers."""
    parser = commands.add_parser("docs", help="documents against matrix.yaml, evidence and the installed packages")
    subcommands = parser.add_subparsers(required=True, metavar="check|update|run")
    for subparser in (_add_check(subcommands), add_update(subcommands), add_run(subcommands)):
        subparser.add_argument("--json", action="store_true", help="for machines")
        subparser.add_argument("--root", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        subparser.add_argument("--matrix", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _add_check(subcommands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "check",
        help="what pages say that is not so, each with its line",
        description="Prints a line a fault, and nothing for a page without faults. Nothing of a page is run or imported. Exit codes: 0 no "
        "fault, 1 a fault was found, 2 a file can't be read as a page, 5 no ms-swift to ask about commands.",
    )
    parser.add_argument("file", type=Path, nargs="+", metavar="FILE", help="a page of Markdown or plain text, or a shell script")
    parser.add_argument("--docs-tree", type=Path, default=None, metavar="DIR", help="the documentation's folder: links are looked up in it")
    parser.add_argument("--source", type=Path, default=None, metavar="DIR", help="a checkout of ms-swift, instead of the installed one")
    parser.add_argument("--notes", action="store_true", help="notes too where there is no fault: what was seen and why it is none")
    parser.set_defaults(run=run_check)
    return parser


def run_check(args: argparse.Namespace, matrix: Matrix) -> int:
    packages = Installed(_folder(args.source, "swift", "a checkout of ms-swift"))
    tree: Path | None = _folder(args.docs_tree, "", "the folder of a documentation")
    table, _ = current_table(matrix, open_store(args.root))
    marks = {(mark.cell, mark.target): mark for mark in table.marks}
    found: dict[str, tuple[Finding, ...]] = {}
    errors: list[HarnessError] = []
    for path in dict.fromkeys(args.file):
        try:
            page = page_of(page_bytes(path), str(path))
        except HarnessError as error:
            errors.append(error)
            continue
        facts = Facts(matrix, packages, partial(_commands, errors), marks, DocsTree(tree, path) if tree else None)
        found[str(path)] = check_page(page, str(path), facts)
    _print(found, errors, args)
    if errors:
        return errors[0].exit_code
    return 1 if any(not finding.note for findings in found.values() for finding in findings) else 0


def _commands(errors: list[HarnessError], page: Page) -> tuple[Finding, ...]:
    """What ms-swift refuses of the page's commands. Where it can't be asked, that is an error, and the rest is checked all the same."""
    try:
        return check_commands(page)
    except HostError as error:
        errors.append(error)
        return ()


def _print(found: dict[str, tuple[Finding, ...]], errors: Iterable[HarnessError], args: argparse.Namespace) -> None:
    if args.json:
        rows = [row for path, findings in found.items() for row in as_json(path, findings)]
        print(json.dumps({"findings": rows, "errors": [str(error) for error in errors]}, ensure_ascii=False, indent=1))
        return
    for path, findings in found.items():
        if text := as_text(path, findings, args.notes):
            print(text)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)


def _folder(path: Path | None, holds: str, what: str) -> Path | None:
    if path is not None and not (path / holds).is_dir():
        raise HarnessError(str(path), f"is not {what}." + (f" It has no folder {holds}." if path.is_dir() else ""), "Name another folder.")
    return path
