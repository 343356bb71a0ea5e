"""The plain CPU beside tiny runs: one process of the harness's own interpreter, with the same model, data and global batch.

A golden is compared with and is no evidence of its own. Trainings are shared: each is run once for all cells that must agree with it,
whatever their strategy.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from harness.bench import HEALTHY, Bench, Launch
from harness.commands import normalised
from harness.model import Cell, Hardware, Stage, Strategy
from harness.proof_required import has_golden
from harness.proving import golden_steps


class Goldens:
    """Thread-safe; `close` it when all cells are done, since shared trainings keep their folders until then."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, ...], threading.Lock] = {}
        self._trained: dict[tuple[str, ...], Bench] = {}

    def beside(self, bench: Bench) -> Bench | None:
        """The golden's bench of this cell, on which nothing has run yet; None where none is asked for."""
        if not has_golden(bench.cell.strategy, bench.host.hardware, bench.weights):
            return None
        return self._bench(bench, golden_of=bench)

    def run(self, stage: Stage, bench: Bench, golden: Bench) -> None:
        """Run what the golden repeats of `stage`, or take it from a cell that asked for the same training before."""
        wanted = golden_steps(stage, bench)
        if stage is Stage.TRAIN:
            golden.ran["train"] = self._training(bench, golden).ran["train"]
        elif wanted:
            golden.results(tuple(step for step in golden.plan(stage) if step.name in wanted), stop_at_failure=True)

    def close(self) -> None:
        with self._lock:
            shared, self._trained = tuple(self._trained.values()), {}
        for bench in shared:
            bench.close(keep=False)

    def _training(self, bench: Bench, golden: Bench) -> Bench:
        step = golden.plan(Stage.TRAIN)[0]
        words = list(normalised(step.command.argv))
        if bench.cell.options.attn_impl == "flash_attn":
            # That of this golden's own inference: see _bench.
            at = words.index("--attn_impl")
            del words[at : at + 2]
        key = (golden.model, *words, *(f"{k}={v}" for k, v in step.command.env.items() if k != "MASTER_PORT"))
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:  # one thread runs it, the others wait for it
            known = self._trained.get(key)
            if known is None:
                known = self._bench(bench, golden_of=None)
                result = known.results(known.plan(Stage.TRAIN), stop_at_failure=True)[0]
                if result.outcome.cause != HEALTHY:
                    # Whoever asks next may have better luck: what failed is kept for nobody.
                    known.close(keep=True)
                    return known
                with self._lock:
                    self._trained[key] = known
            return known

    def _bench(self, bench: Bench, golden_of: Bench | None) -> Bench:
        # Of the harness's own interpreter: whatever stands in front of `swift` on PATH is on trial, its golden is not.
        programs = os.pathsep.join([str(Path(sys.executable).parent), bench.host.search_path])
        runs = bench.work / "golden" if golden_of else bench.host.runs / "goldens"
        host = replace(bench.host, hardware=Hardware.CPU, npu_ids=(), runs=runs, search_path=programs)
        cell = in_one_process(bench.cell)
        if golden_of and bench.cell.options.attn_impl == "flash_attn":
            # A checkpoint remembers the attention that it was trained with, and would ask a cpu for it.
            cell = replace(cell, options=replace(cell.options, attn_impl="sdpa"))
        return Bench(cell, bench.weights, host, self._launch, bench.stop, golden_of=golden_of)


def in_one_process(cell: Cell) -> Cell:
    """`cell` as one process on a plain CPU trains it: nothing of it that changes how, and not what, is computed."""
    options = cell.options
    attention = None if options.attn_impl == "flash_attn" else options.attn_impl
    plain = replace(
        options, sequence_parallel_size=1, fsdp_config=None, npu_model_patch=True, padding_free=False, attn_impl=attention
    )
    return replace(cell, id=f"golden-{cell.tiny_key}", strategy=Strategy.SINGLE, devices=1, options=plain)
