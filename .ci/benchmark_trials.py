"""Can the benchmarks be trusted? Slowdowns and memory that are planted must be found, and nothing where nothing was planted.

    python .ci/benchmark_trials.py [--trials 20] [--repeats 6] [--hardware sim] [--traces FILE] [--out FILE]

A trial interleaves three arms of one cell, run by run: a baseline, the same again, and one with real extra work in every step (matrix
products between backward and optimizer, as many as a calibration says make a quarter of a step). Each arm is then judged by the rule of
`pytest -m npu_benchmark`, its confirming runs included. Exits 1 unless the planted slowdown is called slower in at least 19 of 20 trials,
the honest arm in at most 1 of 20, and a planted fifth more memory is found. Needs a host that does nothing else; its output is kept in
reports/trials.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import benchmarking
from harness.benchmark_model import Kind, Label, Measurement, Quantity, Question
from harness.benchmark_session import BenchmarkSession
from harness.benchmark_verdict import Compared, compare_once, confirmed, repeats_needed, spread, wants_confirmation
from harness.commands_benchmark import WARMUP_STEPS, benchmark_train_step
from harness.host import HostRequest
from harness.model import Cell, Step
from harness.session import Session

CELL = "sft-qwen3_0_6b-lora-single"
SLOWER, MORE_MEMORY, LITTLE_SLOWER = 0.25, 0.20, 0.10
PLANT = """
import torch
from swift.callbacks import callbacks_map
from swift.callbacks.base import TrainerCallback


class Planted(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        device = next(self.trainer.model.parameters()).device
        self.held = torch.zeros({held_bytes}, dtype=torch.uint8, device=device)
        self.one = torch.eye(64, device=device)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        for _ in range({units}):
            self.one = self.one @ self.one


callbacks_map["{name}"] = Planted
"""


@dataclass(frozen=True)
class Arm:
    """How the command of one arm differs: work units in each step, bytes held on the device."""

    name: str
    units: int = 0
    held_bytes: int = 0


class Trials:
    """Runs of one cell on this host; `plant` files are written into `folder`."""

    def __init__(self, session: BenchmarkSession, question: Question, ours: Session, folder: Path) -> None:
        self.session, self.question, self.ours, self.folder = session, question, ours, folder
        self.traces: list[tuple[float, ...]] = []

    def run(self, arm: Arm) -> Measurement:
        benchmarking.benchmark_train_step = self._planted(arm)  # type: ignore[attr-defined]
        with self.session.lend(self.question.cell) as (host, launch):
            (found,) = benchmarking.measure_once(self.question, matrix=self.ours.matrix, host=host, launch=launch, stop=threading.Event())
        if not arm.units and not arm.held_bytes:
            self.traces.append(found.repeats[0].step_s)
        return found

    def _planted(self, arm: Arm) -> Callable[..., Step]:
        def step_of(step: Step, *given: object) -> Step:
            longer = benchmark_train_step(step, *given)  # type: ignore[arg-type]
            if not arm.units and not arm.held_bytes:
                return longer
            file = self.folder / f"{arm.name}.py"
            file.write_text(PLANT.format(units=arm.units, held_bytes=max(1, arm.held_bytes), name=arm.name), encoding="utf-8")
            args = list(longer.command.args)
            args.insert(args.index("--external_plugins") + 2, str(file))
            args.insert(args.index("--callbacks") + 2, arm.name)
            return replace(longer, command=replace(longer.command, args=tuple(args)))

        return step_of

    def calibrated(self) -> Arm:
        """The arm whose units make SLOWER of a step: from runs with none and with many, in turns."""
        many = Arm("planted_calibration", units=2000)
        plain, loaded = [], []
        for _ in range(3):
            plain.append(self.run(Arm("honest")).repeats[0].values[Quantity.STEP_S])
            loaded.append(self.run(many).repeats[0].values[Quantity.STEP_S])
        unit_s = (statistics.median(loaded) - statistics.median(plain)) / many.units
        units = round(SLOWER * statistics.median(plain) / unit_s)
        print(f"a step takes {statistics.median(plain) * 1e3:.1f} ms, a unit of extra work {unit_s * 1e6:.2f} us: {units} units planted")
        return Arm("planted_work", units=units)


def values(runs: Sequence[Measurement], quantity: Quantity) -> list[float]:
    return [run.repeats[0].values[quantity] for run in runs]


def judged(
    trials: Trials, baseline: Sequence[Measurement], runs: Sequence[Measurement], arm: Arm, repeats: int, quantity: Quantity
) -> Compared:
    """The suite's rule, with confirming runs of this arm where the first ones look like a regression."""
    held = values(baseline, quantity)
    first = compare_once(held, values(runs, quantity), quantity)
    if not wants_confirmation(first):
        return first
    again = [trials.run(arm) for _ in range(repeats)]
    return confirmed(first, compare_once(held, values(again, quantity), quantity))


def slow_trials(trials: Trials, count: int, repeats: int, say: Callable[[str], object]) -> tuple[int, int]:
    """(trials whose planted arm was called slower, trials whose honest arm was)."""
    planted, honest = trials.calibrated(), Arm("honest")
    caught = blamed = 0
    for number in range(1, count + 1):
        began = time.monotonic()
        arms: dict[str, list[Measurement]] = {"baseline": [], "honest": [], "planted": []}
        for _ in range(repeats):
            for name, runs in arms.items():
                runs.append(trials.run(planted if name == "planted" else honest))
        slow = judged(trials, arms["baseline"], arms["planted"], planted, repeats, Quantity.STEP_S)
        same = judged(trials, arms["baseline"], arms["honest"], honest, repeats, Quantity.STEP_S)
        caught += slow.label is Label.SLOWER
        blamed += same.label is Label.SLOWER
        say(
            f"trial {number:2}: planted {slow.label} ({slow.because}); honest {same.label} ({same.because}); "
            f"baseline spread {spread(values(arms['baseline'], Quantity.STEP_S)):.1%}; {time.monotonic() - began:.0f} s"
        )
    return caught, blamed


def memory_trial(trials: Trials, repeats: int, say: Callable[[str], object]) -> bool:
    honest = [trials.run(Arm("honest")) for _ in range(repeats)]
    peak_mib = statistics.median(values(honest, Quantity.PEAK_ALLOCATED_MIB))
    arm = Arm("planted_memory", held_bytes=round(MORE_MEMORY * peak_mib * 2**20))
    runs = [trials.run(arm) for _ in range(repeats)]
    found = judged(trials, honest, runs, arm, repeats, Quantity.PEAK_ALLOCATED_MIB)
    same = judged(trials, honest, [trials.run(Arm("honest")) for _ in range(repeats)], Arm("honest"), repeats, Quantity.PEAK_ALLOCATED_MIB)
    say(f"memory: {arm.held_bytes} bytes held beside a peak of {peak_mib:.3f} MiB: {found.label} ({found.because}); honest: {same.label}")
    return found.label is Label.MORE_MEMORY and same.label is Label.OK


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--hardware", default="sim")
    parser.add_argument("--cell", default=CELL)
    parser.add_argument("--traces", type=Path, default=None, help="keep the honest runs' step times in this file")
    parser.add_argument("--out", type=Path, default=None, help="keep the output in this file")
    args = parser.parse_args()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("", encoding="utf-8")

    def say(line: str) -> None:
        print(line, flush=True)
        if args.out:  # as it comes: an interrupted session keeps what it found
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    ours = Session.open(HostRequest(root=Path.cwd(), hardware=args.hardware, launcher="warm"))
    ours.choose_host()
    cell: Cell | None = ours.matrix.cell(args.cell)
    assert cell is not None, args.cell
    question = Question(cell, Kind.TRAIN)
    session = BenchmarkSession(ours, [question], args.repeats, lambda line: None)
    folder = ours.host.runs / "plants"
    folder.mkdir(parents=True)
    trials = Trials(session, question, ours, folder)
    try:
        trials.run(Arm("honest"))  # the warm process starts
        trials.traces.clear()
        say(f"{args.cell} on {ours.host.hardware}, {args.trials} trials of {args.repeats} runs an arm, {os.cpu_count()} cores")
        caught, blamed = slow_trials(trials, args.trials, args.repeats, say)
        memory = memory_trial(trials, args.repeats, say)
    finally:
        session.close()
        ours.finish()
    say(f"{SLOWER:.0%} more work: slower in {caught} of {args.trials}; nothing planted: slower in {blamed} of {args.trials}")
    noise = spread([statistics.median(trace[WARMUP_STEPS:]) for trace in trials.traces])
    try:
        needed = str(repeats_needed(noise, LITTLE_SLOWER))
    except ValueError as never:
        needed = str(never)
    say(f"{len(trials.traces)} honest runs spread by {noise:.1%}; repeats to find {LITTLE_SLOWER:.0%} more: {needed}")
    if args.traces:
        args.traces.write_text(json.dumps([[round(s, 6) for s in trace] for trace in trials.traces]) + "\n", encoding="utf-8")
    good = caught >= args.trials * 0.95 and blamed <= args.trials * 0.05 and memory
    say("as it should be" if good else "NOT as it should be")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
