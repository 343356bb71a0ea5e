"""python -m harness explain LOG... [--json]: what went wrong, by logs alone.

`-` is standard input, several files are the ranks of one job, a folder stands for all files in it. Exit codes: 0 nothing wrong is said,
1 a cause was found, 2 wrong usage (no such file), 6 a failure whose text does not tell its cause.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from harness.decisive import Decisive
from harness.errors import HarnessError
from harness.explain import Explanation, explain
from harness.logs import blocks
from harness.sieve import Sieve

UNKNOWN = 6


def add_explain(commands: Any) -> None:
    """Adds the command to argparse's subparsers; it needs no matrix.yaml."""
    parser = commands.add_parser(
        "explain",
        help="what logs say went wrong",
        description="The earliest cause across the logs of one job's ranks. Exit codes: 0 nothing wrong is said, 1 a cause was found, "
        "2 no such file, 6 a failure whose text does not tell its cause.",
    )
    parser.add_argument("log", nargs="+", help="a log, a folder of logs, or - for standard input")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(apart=_explain)


def _explain(args: argparse.Namespace) -> int:
    found = explain_logs(args.log, sys.stdin.buffer)
    if args.json:
        print(json.dumps(as_json(found), ensure_ascii=False, indent=1))
    else:
        print("\n".join(as_text(found)))
    return {"none": 0, "unknown": UNKNOWN}.get(found.cause, 1)


def explain_logs(names: Sequence[str], stdin: IO[bytes]) -> Explanation:
    """Read each log once, in bounded memory. Raises HarnessError for one that is not there or can't be read."""
    sieve = Sieve()
    return explain([log for name in names for log in _read(name, stdin, sieve)])


def as_json(found: Explanation) -> dict[str, Any]:
    seen = [dict(zip(("cause", "where", "line"), entry, strict=True)) for entry in found.seen]
    return {**dataclasses.asdict(found), "blame": str(found.blame), "seen": seen}


def as_text(found: Explanation) -> list[str]:
    lines = [f"cause: {found.cause}"]
    if found.cause not in ("none", "unknown"):
        lines[0] += f"  (blame: {found.blame}; confidence: {found.confidence})"
    if found.line:
        lines.append(f"{found.where}: {found.line}")
    if found.remedy:
        lines.append(f"remedy ({found.remedy_confidence}): {found.remedy}")
    if found.seen:
        lines += ["also seen:", *(f"  {cause:22} {where}: {line[:160]}" for cause, where, line in found.seen)]
    if found.fallbacks:
        total = sum(found.fallbacks.values())
        lines.append(f"ran on the CPU {total} times: {', '.join(f'{name} {count}' for name, count in found.fallbacks.items())}")
    return lines


def _read(name: str, stdin: IO[bytes], sieve: Sieve) -> Iterator[Decisive]:
    if name == "-":
        yield _of(stdin, "-", sieve)
        return
    path = Path(name)
    try:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as opened:
                yield _of(opened, str(file), sieve)
    except OSError as fault:
        raise HarnessError(name, f"can't be read: {fault.strerror}.", "Give logs, folders of logs, or - for standard input.") from None
    if not files:
        raise HarnessError(name, "holds no file.", "Give logs, folders of logs, or - for standard input.")


def _of(file: IO[bytes], source: str, sieve: Sieve) -> Decisive:
    found = Decisive(source, sieve)
    for block in blocks(file):
        found.read(block)
    return found
