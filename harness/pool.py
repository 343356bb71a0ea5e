"""Cells run ahead in threads of the controlling process, at most `jobs` at a time; whoever needs a stage's evidence waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from dataclasses import dataclass

from harness.model import Cell, Evidence, Stage


@dataclass(frozen=True)
class Job:
    """One cell to run, with the stages that somebody waits for."""

    key: str
    cell: Cell
    stages: tuple[Stage, ...]


class Cancelled(Exception):
    """The pool was ended before this stage was reached."""


class Pool:
    """`run(job)` yields evidence stage by stage. A fault inside it fails that job's stages and no other's."""

    def __init__(self, run: Callable[[Job], Iterator[Evidence]], jobs: int) -> None:
        self._run = run
        self._executor = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="cell")
        self._results: dict[tuple[str, Stage], Future[Evidence]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs in the given order; a job whose key is queued already is left out."""
        for job in jobs:
            with self._lock:
                if any((job.key, stage) in self._results for stage in job.stages):
                    continue
                for stage in job.stages:
                    self._results[job.key, stage] = Future()
            self._executor.submit(self._work, job)

    def wait(self, key: str, stage: Stage, poll_s: float = 0.5) -> Evidence:
        """Evidence of one stage. Waits in short turns, so that Ctrl-C is noticed. Raises Cancelled, or what the job raised."""
        future = self._results[key, stage]
        while True:
            try:
                return future.result(timeout=poll_s)
            except WaitTimeout:
                if future.done():
                    raise

    def close(self) -> None:
        """Start nothing more and wait for what is running. The caller has ended the running processes where that is wanted."""
        self._stopping.set()
        self._executor.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            for (key, stage), future in self._results.items():
                if not future.done():
                    future.set_exception(Cancelled(f"{key} {stage}: not reached"))

    def _work(self, job: Job) -> None:
        waiting = list(job.stages)
        try:
            if not self._stopping.is_set():
                for evidence in self._run(job):
                    if evidence.stage in waiting:
                        waiting.remove(evidence.stage)
                        self._results[job.key, evidence.stage].set_result(evidence)
                    if self._stopping.is_set():
                        break
            for stage in waiting:
                self._results[job.key, stage].set_exception(Cancelled(f"{job.key} {stage}: not reached"))
        except BaseException as error:  # a fault of ours must reach everybody who waits, whatever it is
            for stage in waiting:
                self._results[job.key, stage].set_exception(error)
