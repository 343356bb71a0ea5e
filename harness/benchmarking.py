"""One harness run of benchmarks: every question once, then every question again, so that a drift of the host meets all of them alike."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from harness import artifacts
from harness.bench import HEALTHY, Bench, Launch
from harness.benchmark_client import NoAnswer, round_of, wait_until_ready
from harness.benchmark_codec import key_of
from harness.benchmark_model import DECISIVE, Kind, Measurement, Question, Repeat
from harness.benchmark_repeat import Answered, NotMeasured, serve_repeat, train_repeat
from harness.benchmark_store import BenchmarkStore
from harness.benchmark_verdict import Compared, compare_once, confirmed, wants_confirmation
from harness.commands_asked import asked_lora, asked_new_tokens, asked_port
from harness.commands_benchmark import BENCHMARK_STEPS, WARMUP_STEPS, benchmark_train_step
from harness.errors import HarnessError
from harness.evidence import stack_name
from harness.flow import versions_of
from harness.host import Host
from harness.launch import Alive
from harness.model import Cell, Matrix, Stage, StepResult
from harness.proof_train import prove_train
from harness.proving import base_weights, witnessed_hardware
from harness.witness_log import rank_zero

CONCURRENCIES = (1, 4)
# Requests of one round, for each client: the median is then not that of a first request.
REQUESTS_EACH = 3
SERVER_SHARE = 0.8
Lend = Callable[[Cell], AbstractContextManager[tuple[Host, Launch]]]


class Broken(Exception):
    """A run that can't count: it failed, or did not prove that it did the work. The text says so."""


@dataclass(frozen=True)
class Answer:
    """What one question gave: measurements (of serving one for each concurrency) with their comparisons, or the fault that ended it."""

    question: Question
    measured: tuple[tuple[Measurement, tuple[Compared, ...]], ...] = ()
    fault: str = ""


class Benchmarks:
    """Measures everything when first asked, then answers question by question. Mutable on purpose.

    `repeats` runs of each question; a regression is confirmed by as many again. What was measured is on disk after every single run.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        *,
        matrix: Matrix,
        lend: Lend,
        store: BenchmarkStore,
        repeats: int,
        stop: threading.Event,
        clean: Callable[[str], str],
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.questions, self.matrix, self.store, self.repeats = tuple(questions), matrix, store, repeats
        self._lend, self._stop, self._clean, self._tell = lend, stop, clean, tell
        self._sets: tuple[dict[str, Measurement], dict[str, Measurement]] = ({}, {})
        self._keys: dict[str, list[str]] = {str(question): [] for question in self.questions}
        self._faults: dict[str, str] = {}
        self._answers: dict[str, Answer] = {}
        self.run = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"

    def answer(self, question: Question) -> Answer:
        """What `question` gave; the first call runs all of them."""
        if not self._answers:
            self._measure(self.questions, 0)
            doubtful = [q for q in self.questions if any(wants_confirmation(c) for _, found in self._first(q) for c in found)]
            self._measure(doubtful, 1)
            self._answers = {str(q): self._answer(q) for q in self.questions}
        return self._answers[str(question)]

    def _measure(self, questions: Sequence[Question], which: int) -> None:
        for repeat in range(self.repeats):
            for question in questions:
                if self._stop.is_set() or str(question) in self._faults:
                    continue
                self._tell(f"benchmark {repeat + 1} of {self.repeats}{' (confirming)' if which else ''}: {question}")
                try:
                    with self._lend(question.cell) as (host, launch):
                        found = measure_once(question, matrix=self.matrix, host=host, launch=launch, stop=self._stop)
                except (Broken, HarnessError) as fault:
                    self._faults[str(question)] = self._clean(str(fault))
                    continue
                for one in found:
                    self._add(question, one, which)

    def _add(self, question: Question, one: Measurement, which: int) -> None:
        key = key_of(one)
        before = self._sets[which].get(key)
        whole = one if before is None else replace(before, repeats=before.repeats + one.repeats)
        self._sets[which][key] = whole
        if key not in self._keys[str(question)]:
            self._keys[str(question)].append(key)
        self.store.keep(whole, f"{self.run}-confirming" if which else self.run)

    def _first(self, question: Question) -> list[tuple[Measurement, tuple[Compared, ...]]]:
        """Each measurement of the first set against its baseline, quantity by quantity."""
        found = []
        for key in self._keys[str(question)]:
            measurement = self._sets[0][key]
            baseline = self.store.baseline_for(measurement)
            held = baseline.measurement if baseline else replace(measurement, repeats=())
            # What the baseline has and nobody witnesses any more is no data, and not left out in silence.
            asked = (q for q in DECISIVE if measurement.values(q) or held.values(q))
            compared = tuple(compare_once(held.values(q), measurement.values(q), q) for q in asked)
            found.append((measurement, compared))
        return found

    def _answer(self, question: Question) -> Answer:
        if str(question) in self._faults:
            return Answer(question, fault=self._faults[str(question)])
        made = []
        for measurement, compared in self._first(question):
            again = self._sets[1].get(key_of(measurement))
            baseline = self.store.baseline_for(measurement)
            if again is not None and baseline is not None:
                held = baseline.measurement
                compared = tuple(
                    confirmed(c, compare_once(held.values(c.quantity), again.values(c.quantity), c.quantity)) for c in compared
                )
            made.append((measurement, compared))
        return Answer(question, tuple(made), "" if made else "nothing was measured: the run was ended first")


def measure_once(question: Question, *, matrix: Matrix, host: Host, launch: Launch, stop: threading.Event) -> tuple[Measurement, ...]:
    """One run of `question` and its numbers. Raises Broken for a run that failed or proves nothing, HarnessError as the parts do."""
    cell = question.cell
    bench = Bench(cell, host.weights_for(cell.model), host, launch, stop)
    keep = True
    try:
        trained = _train(bench, matrix)
        repeats = {0: _repeat_of(trained)} if question.kind is Kind.TRAIN else _serve(bench)
        keep = False
        witness = rank_zero(trained.witnesses)
        versions = versions_of(witness) if witness else {}
        found = witnessed_hardware((trained,), matrix.hardware)
        if found is None:
            raise Broken(f"{question}: no process witnessed the hardware that it ran on")
        one = Measurement(
            cell.id,
            str(question.kind),
            found,
            bench.weights,
            stack_name(versions, matrix.stacks),
            host.launcher,
            versions,
            host.machine,
            (),
        )
        return tuple(
            replace(one, repeats=(repeat,), concurrency=concurrency, rehearsal=host.rehearsal is not None)
            for concurrency, repeat in repeats.items()
        )
    finally:
        bench.close(keep=keep)


def _train(bench: Bench, matrix: Matrix) -> StepResult:
    """The lengthened training, proved as any training is, but for the golden: what is measured must have been done."""
    (step,) = bench.plan(Stage.TRAIN)
    step = benchmark_train_step(step, bench.cell, bench.weights, bench.host.deadline_scale)
    (result,) = bench.results((step,), stop_at_failure=True)
    _require_healthy(result, bench.cell)
    folders = artifacts.checkpoints(Path(step.output_dir))
    comparisons = prove_train(
        cell=bench.cell,
        hardware=bench.host.hardware,
        weights=bench.weights,
        result=result,
        asked_steps=BENCHMARK_STEPS,
        save_steps=(BENCHMARK_STEPS,),
        checkpoints={BENCHMARK_STEPS: artifacts.read_checkpoint(folders[BENCHMARK_STEPS])} if BENCHMARK_STEPS in folders else {},
        base=base_weights(bench),
        asked_lora=asked_lora(step, bench.cell.tuner),
        device_names=tuple(matrix.hardware.get(bench.host.hardware, {}).get("device_names", ())),
    )
    wrong = [c for c in comparisons if not c.ok]
    if wrong or not comparisons:
        told = "; ".join(f"{c.name}: expected {c.expected}, found {c.found}" for c in wrong[:3]) or "nothing was compared"
        raise Broken(f"{bench.cell.id}: the measured training isn't proved: {told}")
    return result


def _require_healthy(result: StepResult, cell: Cell) -> None:
    if result.outcome.cause != HEALTHY:
        raise Broken(f"{cell.id} {result.step.name}: {result.outcome.cause}: {result.outcome.line}")


def _repeat_of(result: StepResult) -> Repeat:
    try:
        return train_repeat(result.witnesses, result.run, steps=BENCHMARK_STEPS, warmup_steps=WARMUP_STEPS, at=result.run.started_at)
    except NotMeasured as lacking:
        raise Broken(str(lacking)) from lacking


def _serve(bench: Bench) -> dict[int, Repeat]:
    """Merge, deploy, and ask: one round for each concurrency, after one that warms the server up."""
    for result in bench.results(bench.plan(Stage.MERGE), stop_at_failure=True):
        _require_healthy(result, bench.cell)
    step = next(s for s in bench.plan(Stage.DEPLOY) if s.serves)
    rounds: dict[int, tuple[tuple[Answered, ...], float]] = {}
    faults: list[str] = []

    def attend(alive: Alive) -> None:
        until = time.monotonic() + step.deadline_s * SERVER_SHARE
        try:
            model = wait_until_ready(asked_port(step), until=until, alive=alive.is_alive)
            questions = bench.inputs
            for concurrency in (0, *CONCURRENCIES):
                asked = [questions[i % len(questions)] for i in range(max(1, concurrency) * REQUESTS_EACH)]
                rounds[concurrency] = round_of(
                    asked_port(step), model, asked, concurrency=max(1, concurrency), max_tokens=asked_new_tokens(step), until=until
                )
        except NoAnswer as fault:
            faults.append(str(fault))

    result = bench.attended(step, attend)
    if faults:
        raise Broken(f"{bench.cell.id} deploy: {faults[0]}")
    _require_healthy(result, bench.cell)
    try:
        return {at_once: serve_repeat(*rounds[at_once], at=result.run.started_at, nonce=result.run.nonce) for at_once in CONCURRENCIES}
    except (KeyError, NotMeasured) as lacking:
        raise Broken(f"{bench.cell.id} deploy: {lacking}") from lacking
