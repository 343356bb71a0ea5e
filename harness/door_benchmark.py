"""The doors of benchmarks: the part of pytest's that belongs to npu_benchmark, and `python -m harness promote`."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from harness.benchmark_codec import Baseline, key_of
from harness.benchmark_model import REGRESSIONS, Label, Measurement, Question
from harness.benchmark_session import BenchmarkSession, answered_by, once_each, runnable
from harness.benchmark_store import BenchmarkStore
from harness.benchmark_table import aligned, amount, rows_of, unit_of
from harness.benchmark_verdict import LEAST_REPEATS, compare_once, spread
from harness.benchmarking import Answer
from harness.errors import HarnessError, did_you_mean
from harness.model import Matrix
from harness.session import Session
from harness.store import utc_now

BENCHMARKS: pytest.StashKey[BenchmarkDoor] = pytest.StashKey()
REPEATS = 6


class BenchmarkDoor:
    """One run of the suite: measures what the selected items ask as soon as the first one does, shows the table at the end."""

    def __init__(self, config: pytest.Config, ours: Session, repeats: int) -> None:
        if repeats < 1:
            raise HarnessError(f"--repeats {repeats}", "nothing is measured less than once.", f"Give a number from {LEAST_REPEATS}.")
        self.config, self.ours, self.repeats = config, ours, repeats
        self._selected: list[Question] = []
        self._running: BenchmarkSession | None = None

    def select(self, questions: Sequence[Question]) -> None:
        """What items will ask. Nothing is measured, or waited for, that can't run here."""
        self._selected = [question for question in questions if not runnable(self.ours, question)]

    def answer(self, question: Question) -> Answer:
        """Raises HarnessError where the first call can't start anything."""
        once = once_each(self.ours, self._selected)
        if self._running is None:
            self._running = BenchmarkSession(self.ours, list(once.values()), self.repeats, self._say)
        return self._running.benchmarks.answer(once[answered_by(self.ours, question)])

    def _say(self, line: str) -> None:
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            if reporter is not None and reporter.verbosity >= 0:
                reporter.ensure_newline()
                reporter.write_line(line)

    # --- pytest's hooks

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.ours.stop.set()
        if self._running is not None:
            self._running.close()
        elif session.exitstatus == pytest.ExitCode.OK and all(hasattr(item, "question") for item in session.items):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED  # nothing of what was selected could be measured here

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._running is None:
            return
        store = self._running.benchmarks.store
        measured = [
            one for question in once_each(self.ours, self._selected).values() for one in self._running.benchmarks.answer(question).measured
        ]
        if not measured:
            return
        with_baseline = []
        for measurement, compared in measured:
            baseline = store.baseline_for(measurement)
            with_baseline.append((measurement, compared, baseline.measurement if baseline else None))
        for line in aligned(rows_of(with_baseline)):
            terminalreporter.write_line(line)
        run = self._running.benchmarks.run
        kept = store.measured / run
        terminalreporter.write_line(f"measured: {len(measured)} sets of runs, kept in {kept.relative_to(store.root)}")
        if self.ours.request.rehearsal is None and any(one.label is Label.NO_BASELINE for _, compared in measured for one in compared):
            terminalreporter.write_line(f'to make them baselines: python -m harness promote --run {run} --reason "WHY"')


def outcome_of(answer: Answer) -> tuple[str, str]:
    """("passed" | "skipped" | "failed", why). Nothing passes that was compared with nothing."""
    if answer.fault:
        return "failed", answer.fault
    found = [(measurement, one) for measurement, compared in answer.measured for one in compared]
    lines = [f"{key_of(m)} {one.quantity}: {one.label}: {one.because}" for m, one in found]
    labels = {one.label for _, one in found}
    if labels & REGRESSIONS:
        return "failed", "\n".join(lines)
    for label in (Label.NO_BASELINE, Label.INSUFFICIENT, Label.NOISY):
        if label in labels:
            return "skipped", next(line for line, (_, one) in zip(lines, found, strict=True) if one.label is label)
    return ("passed", "\n".join(lines)) if found else ("failed", "nothing was measured that a baseline could be held against")


def add_promote(commands: Any) -> argparse.ArgumentParser:
    """The subcommand `promote`; its parser is returned for the options that all share."""
    parser: argparse.ArgumentParser = commands.add_parser("promote", help="make what was measured the baseline, with a reason")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="only these cells (all that were measured)")
    parser.add_argument("--run", dest="measured", default=None, help="which run of benchmarks (the newest)")
    parser.add_argument("--reason", default=None, help="why the baseline changes; without it nothing is written")
    parser.set_defaults(run=_promote)
    return parser


def _promote(args: argparse.Namespace, matrix: Matrix) -> int:
    """Show the difference, then write, if a reason was given. Exit 1 where something can't be promoted or no reason was given."""
    store = BenchmarkStore(args.root)
    run = args.measured or store.newest_run()
    if run is None:
        raise HarnessError(".harness/benchmarks", "holds no measurement.", "Run `pytest -m npu_benchmark` first.")
    found = list(store.measurements(run))
    for name in args.cells:
        if name not in {m.cell for m in found}:
            raise HarnessError(name, f"was not measured in run {run}.", did_you_mean(name, sorted({m.cell for m in found})))
    wanted = [m for m in found if not args.cells or m.cell in args.cells]
    refused = 0
    for measurement in wanted:
        refused += not _promoted(store, measurement, args.reason)
    if not args.reason:
        print('nothing was written: give --reason "WHY"', file=sys.stderr)
    return 1 if refused or not args.reason else 0


def _promoted(store: BenchmarkStore, measurement: Measurement, reason: str | None) -> bool:
    before = store.baseline_for(measurement)
    print(f"{key_of(measurement)} on {measurement.hardware}, stack {measurement.stack}")
    if measurement.rehearsal:
        print("  refused: a rehearsal measures nothing")
        return False
    if len(measurement.repeats) < LEAST_REPEATS:
        print(f"  refused: {len(measurement.repeats)} runs, a baseline needs {LEAST_REPEATS}")
        return False
    for quantity in {q: None for repeat in measurement.repeats for q in repeat.values}:
        values, old = measurement.values(quantity), before.measurement.values(quantity) if before else ()
        compared = compare_once(old, values, quantity)
        was = f"{amount(quantity, statistics.median(old))} -> " if old else ""
        now = f"{amount(quantity, statistics.median(values))} {unit_of(quantity)}, spread {spread(values):.1%}"
        print(f"  {was}{now}: {compared.label}{f' ({compared.because})' if old else ''}")
    if before:
        print(f"  before: of {before.date}, because {before.reason}")
    if reason:
        path = store.promote(Baseline(measurement, utc_now().date().isoformat(), " ".join(reason.split())))
        print(f"  written: {path.relative_to(store.root)}")
    return True
