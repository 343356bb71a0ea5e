"""`python -m harness trends`: step time and memory over this host's own runs of benchmarks, beside what the repository holds."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError, HarnessError
from harness.model import Matrix
from harness.report_trends import write_trends
from harness.session import open_store
from harness.trends import trend_pages
from harness.trends_draw import matplotlib_version


def add_trends(commands: Any) -> argparse.ArgumentParser:
    """The subcommand `trends`; its parser is returned for the options that all share."""
    parser: argparse.ArgumentParser = commands.add_parser("trends", help="draw this host's benchmarks over time, to .harness/trends")
    parser.set_defaults(run=_trends)
    return parser


def _trends(args: argparse.Namespace, matrix: Matrix) -> int:
    """Exit 4 where a file is damaged; the others are drawn."""
    if matplotlib_version() is None:
        raise HarnessError("trends", "matplotlib is missing.", "pip install -e '.[benchmark]'")
    store, benchmarks = open_store(args.root), BenchmarkStore(args.root)
    evidence, refused = store.load_all(strict=False)
    damaged, measured = list(refused), []
    for run in benchmarks.runs():
        try:
            measured += list(benchmarks.measurements(run))
        except EvidenceError as error:
            damaged.append(error)
    pages = trend_pages(evidence, benchmarks.all_baselines(), measured)
    written = [str(path.relative_to(args.root)) for path in write_trends(args.root / ".harness", pages)]
    if args.json:
        print(json.dumps({"written": written, "refused": [str(one) for one in damaged]}, indent=1))
    else:
        print("\n".join(written) or "nothing to draw: a cell takes a baseline, a run of benchmarks, or two pieces of evidence")
        for one in damaged:
            print(f"refused: {one}", file=sys.stderr)
    return EvidenceError.exit_code if damaged else 0
