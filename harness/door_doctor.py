"""python -m harness doctor [--json] [--rehearsal ROOT] [--model DIR] [--command TEXT]: what keeps this host from NPU work, how to mend it.

Exit codes: 0 nothing but notes, 1 something degrades NPU work, 5 something blocks it; 2 wrong usage and 3 matrix.yaml as everywhere.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

from harness.doctor import cleaned, examine, exit_code
from harness.doctor_command import parse_command
from harness.doctor_host import gather
from harness.doctor_text import as_json, render
from harness.host import rehearsal_root
from harness.model import Matrix
from harness.redact import redact
from harness.redact_patterns import secret_values


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """The options of `doctor`; what they mean is `run_doctor`."""
    parser.add_argument("--rehearsal", default=None, metavar="ROOT", help="look at the planted host under ROOT instead")
    parser.add_argument("--model", type=Path, default=None, metavar="DIR", help="a checkpoint's folder: its dtypes, quantization and size")
    parser.add_argument("--command", default=None, metavar="TEXT", help="a command that is to run, quoted as a whole, with its variables")
    parser.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace, matrix: Matrix) -> int:
    root = rehearsal_root(args.rehearsal, args.root) if args.rehearsal is not None else None
    command = parse_command(args.command) if args.command is not None else None
    facts = gather(root, model=args.model, command=command)
    findings = cleaned(examine(facts, matrix.stacks), _cleaner(args.root, root))
    if args.json:
        print(json.dumps(as_json(facts, findings), ensure_ascii=False, indent=1))
    else:
        print(render(facts, findings))
    return exit_code(findings)


def _cleaner(repository: Path, root: Path | None) -> Callable[[str], str]:
    folders = [str(path) for path in (root, repository.resolve()) if path is not None]
    secrets = secret_values(os.environ)
    names = {"user": getpass.getuser(), "host": platform.node(), "home": str(Path.home())}
    return lambda text: redact(text, **names, extra=folders, secrets=secrets)
