"""Benchmarks on the host that a session chose: one run at a time, alone on all its devices or cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from harness.bench import Launch
from harness.benchmark_model import Question
from harness.benchmark_store import BenchmarkStore
from harness.benchmarking import Benchmarks
from harness.cores import CoreDesk, memory_to_lend_mib
from harness.errors import HostError
from harness.host import Host
from harness.launch import launch as launch_process
from harness.leases import Desk, Want
from harness.lock_files import host_folder
from harness.model import Cell, RulingKind, Run, Weights
from harness.packing import Load
from harness.session import Session, cleaner
from harness.warm import WarmLauncher
from harness.yard import device_desk

_POLL_S = 0.2
# How long a run waits for devices that others of this host use.
_PATIENCE_S = 3600.0
_EXPECTED_S = 300.0


class BenchmarkSession:
    """The benchmarks of one session; `close` it at its end. `launch` is how a run is started where it isn't forked from a warm process."""

    def __init__(
        self,
        ours: Session,
        questions: Sequence[Question],
        repeats: int,
        tell: Callable[[str], object],
        launch: Callable[..., Run] = launch_process,
    ) -> None:
        self._ours, self._launch = ours, launch
        host = ours.host
        self._warm = WarmLauncher(host.runs / "warm") if host.launcher == "warm" else None
        self._desk: Desk = device_desk(host) if host.hardware.is_npu else CoreDesk(1, memory_to_lend_mib(), host_folder(), host.npu_ids)
        self.benchmarks = Benchmarks(
            questions,
            matrix=ours.matrix,
            lend=self.lend,
            store=BenchmarkStore(ours.request.root if ours.request.rehearsal is None else host.runs),
            repeats=repeats,
            stop=ours.stop,
            clean=cleaner(host),
            tell=tell,
        )

    @contextmanager
    def lend(self, cell: Cell) -> Iterator[tuple[Host, Launch]]:
        """A benchmark has its devices to itself by its lease, and the cores of a host without any because one runs at a time."""
        host = self._ours.host
        width = host.width_of(cell, host.weights_for(cell.model)) if host.hardware.is_npu else 1
        began = time.monotonic()
        want = Want(Load(cell.id, width, _EXPECTED_S), first_s=began)
        while (held := self._desk.take(want)) is None:
            if self._ours.stop.wait(_POLL_S) or time.monotonic() - began > _PATIENCE_S:
                self._desk.give_up(cell.id)
                raise HostError(cell.id, f"{width} devices did not come free in {_PATIENCE_S:g} s.", "End what else uses them.")
        try:
            yield host.lent(held.lease), self._warm or partial(self._launch, inherit=held.descriptors)
        finally:
            held.release()

    def close(self) -> None:
        self._desk.close()
        if self._warm is not None:
            self._warm.close()


def runnable(ours: Session, question: Question) -> str:
    """Why `question` can't be measured here; empty where it can."""
    ruling = ours.ruling(question.cell)
    return "" if ruling.kind is RulingKind.RUN else f"{ruling.kind}: {ruling.because}"


def once_each(ours: Session, questions: Sequence[Question]) -> dict[str, Question]:
    """The questions by what answers them: cells that one tiny run answers are measured once."""
    found: dict[str, Question] = {}
    for question in questions:
        found.setdefault(answered_by(ours, question), question)
    return found


def answered_by(ours: Session, question: Question) -> str:
    cell = question.cell
    return f"{cell.tiny_key if ours.host.weights_for(cell.model) is Weights.TINY else cell.id} {question.kind}"
