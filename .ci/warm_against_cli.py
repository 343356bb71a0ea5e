"""Eight cells side by side by both launchers: wall times in pairs, and whether both computed the same. Its figures are in README.

    python .ci/warm_against_cli.py [--hardware cpu|sim] [--only WORD] [--keep FOLDER]

Exits 1 where the launchers disagree or warm needs more than one sixth of cli's wall time (median of the pairs, its start-up apart).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.bench import HEALTHY, Bench, Launch
from harness.commands_asked import trained_answers
from harness.host import Host
from harness.launch import launch
from harness.machine import programs_path
from harness.model import Cell, Hardware, Matrix, Stage, Step, StepResult, Strategy, Tuner, Weights
from harness.select import select_cells
from harness.session import read_matrix
from harness.warm import WarmLauncher

MODELS = ("sft-qwen2_5_0_5b_instruct", "sft-qwen3_0_6b")
SHARE = 1 / 6


@dataclass(frozen=True)
class Pair:
    """One command, run by both launchers. `differs` is empty where they agree."""

    cell: str
    step: str
    cli_s: float
    warm_s: float
    differs: str


def eight(matrix: Matrix) -> Iterator[Cell]:
    """Two families, both tuners, one rank and two."""
    ids = [f"{model}-{tuner}-single" for model in MODELS for tuner in (Tuner.LORA, Tuner.FULL)]
    for cell in select_cells(matrix, ids=ids):
        yield cell
        yield replace(cell, id=cell.id.replace("single", "ddp"), strategy=Strategy.DDP)


def steps(bench: Bench) -> Iterator[Step]:
    """Planned one after another: each needs what the one before left."""
    yield bench.plan(Stage.TRAIN)[0]
    if bench.cell.tuner is Tuner.LORA:
        yield bench.plan(Stage.MERGE)[0]
    yield next(step for step in bench.plan(Stage.INFER) if step.name == trained_answers(bench.cell.tuner))


def found(result: StepResult, bench: Bench) -> dict[str, Any]:
    """All the numbers that a run left: what both launchers must agree on, to the last bit."""
    events = [event for witness in sorted(result.witnesses, key=lambda w: w.rank) for event in witness.events]
    return {
        "losses": [row.raw.get("loss") for row in result.metrics.rows],
        "grad_norms": [row.raw.get("grad_norm") for row in result.metrics.rows],
        "digests": [event["trainable_digest"] for event in events if event["event"] == "train_end"],
        "answers": [event["output_ids"] for event in events if event["event"] == "generate"],
        "merged": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((bench.work / "merged").glob("*.safetensors"))],
        "events": sorted({event["event"] for event in events}),
    }


def differences(cli: dict[str, Any], warm: dict[str, Any], step: str) -> str:
    needed = {"train": ("losses", "grad_norms", "digests"), "merge": ("merged",)}.get(step, ("answers",))
    empty = [name for name in needed if not cli[name] or None in cli[name]]
    return ", ".join([f"no {name}" for name in empty] + [f"{name} differ" for name in cli if cli[name] != warm[name]])


def pairs_of(cell: Cell, hosts: dict[str, tuple[Host, Launch]]) -> Iterator[Pair]:
    benches = {name: Bench(cell, Weights.TINY, host, launcher, threading.Event()) for name, (host, launcher) in hosts.items()}
    for both in zip(*(steps(bench) for bench in benches.values()), strict=True):
        results = {}
        for (name, bench), step in zip(benches.items(), both, strict=True):
            (results[name],) = bench.results((step,), stop_at_failure=True)
            if results[name].outcome.cause != HEALTHY:
                raise SystemExit(f"{cell.id}, {step.name} by {name}: {results[name].outcome}\n{results[name].run.log_tail[-3000:]}")
        saw = {name: found(result, benches[name]) for name, result in results.items()}
        step_name = both[0].name
        yield Pair(
            cell.id,
            step_name,
            results["cli"].run.duration_s,
            results["warm"].run.duration_s,
            differences(saw["cli"], saw["warm"], step_name),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hardware", choices=["cpu", "sim"], default="cpu")
    parser.add_argument("--only", default="", help="only the cells whose id contains this")
    parser.add_argument("--keep", type=Path, help="where runs and the warm process's log are kept (default: removed at the end)")
    asked = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.keep or Path(scratch)).absolute()
        warm = WarmLauncher(folder / "warm")
        host = Host(
            hardware=Hardware(asked.hardware),
            weights="tiny",
            npu_ids=(),
            root=root,
            runs=folder,
            cache=folder / "cache",
            search_path=programs_path(None),
            machine={},
            rehearsal=None,
            deadline_scale=4.0,
        )
        hosts: dict[str, tuple[Host, Launch]] = {
            "cli": (replace(host, runs=folder / "cli"), launch),
            "warm": (replace(host, runs=folder / "warm-runs", launcher="warm"), warm),
        }
        try:
            cells = [cell for cell in eight(read_matrix(root / "matrix.yaml")) if asked.only in cell.id]
            pairs = [pair for cell in cells for pair in shown(pairs_of(cell, hosts))]
            starts = warm.parent_start_s.values()
        finally:
            warm.close()
    return verdict(pairs, list(starts))


def shown(pairs: Iterator[Pair]) -> Iterator[Pair]:
    for pair in pairs:
        ratio = pair.cli_s / pair.warm_s
        print(
            f"{pair.cell:40} {pair.step:13} cli {pair.cli_s:6.2f} s  warm {pair.warm_s:5.2f} s  x{ratio:5.1f}  {pair.differs or 'equal'}",
            flush=True,
        )
        yield pair


def verdict(pairs: list[Pair], starts: list[float]) -> int:
    if not pairs:
        print("nothing was compared")
        return 1
    ratio = statistics.median(pair.warm_s / pair.cli_s for pair in pairs)
    by_rank = {word: [p.warm_s / p.cli_s for p in pairs if p.cell.endswith(word)] for word in ("single", "ddp")}
    print(f"{len(pairs)} pairs, load {os.getloadavg()[0]:.1f}; warm processes took {', '.join(f'{s:.1f} s' for s in starts)} to start")
    print(
        f"median of the pairs: warm takes 1/{1 / ratio:.1f} of cli's wall time; "
        + ", ".join(f"{word} 1/{1 / statistics.median(values):.1f}" for word, values in by_rank.items() if values)
    )
    different = [pair for pair in pairs if pair.differs]
    print(f"{len(different)} of {len(pairs)} pairs differ")
    return 1 if different or ratio > SHARE else 0


if __name__ == "__main__":
    sys.exit(main())
