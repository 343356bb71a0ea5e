"""Cells run ahead in threads of one process, as many as a desk lends devices or cores to; whoever needs a stage waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitTimeout
from contextlib import closing
from dataclasses import dataclass, replace

from harness.errors import HostError
from harness.leases import Desk, Held, Want
from harness.model import Cell, Evidence, Stage, VerdictKind
from harness.packing import Busy, Load, ends_after, order
from harness.ports import Ports
from harness.progress import Progress
from harness.retries import Attempt, attempt_at, is_worth_another

# How soon another harness's end is noticed. Our own wakes the pool at once.
_POLL_S = 0.1
# How long a cell waits for devices that were set aside to get well.
GIVE_UP_S = 600.0


@dataclass(frozen=True)
class Job:
    """One cell to run, with the stages that somebody waits for. `known`: its time and memory come from records, not from a guess.

    `before`: attempts that its environment spoiled. `spoiled`: what the last of them found; whoever waits for its stage gets it where no
    other attempt is started. `shunned`: the ports that they had.
    """

    key: str
    cell: Cell
    stages: tuple[Stage, ...]
    load: Load
    memory_mib: float = 0.0
    known: bool = False
    before: tuple[Attempt, ...] = ()
    spoiled: Evidence | None = None
    shunned: tuple[Ports, ...] = ()


class Cancelled(Exception):
    """The pool was ended before this stage was reached."""


class Refused(Exception):
    """This cell was not started, and nothing was recorded of it. Its text says why."""


@dataclass
class _Running:
    job: Job
    held: Held


class Pool:
    """`run(job, held)` yields evidence stage by stage. A fault inside it fails that job's stages and no other's.

    `capacity`: devices or cores, for the order and the time left. `jobs`: at most so many at once; None: as many as fit. `refuse` says why
    a job must not be started now (empty: it may), given the device-seconds that are spent or promised; it is asked again while others run.
    `tell` gets a line for each device set aside, each job refused and each attempt after the first. `retries`: how often a cell is run
    again, from its training on, when a stage fails of its environment.
    """

    def __init__(
        self,
        run: Callable[[Job, Held], Generator[Evidence, None, None]],
        desk: Desk,
        *,
        capacity: int,
        jobs: int | None = None,
        refuse: Callable[[Job, float], str] = lambda job, spoken_for_s: "",
        tell: Callable[[str], object] = lambda line: None,
        give_up_s: float = GIVE_UP_S,
        retries: int = 0,
    ) -> None:
        self._run, self._desk, self._capacity, self._jobs = run, desk, capacity, jobs
        self._refuse, self._tell, self._give_up_s, self._retries = refuse, tell, give_up_s, retries
        self._results: dict[tuple[str, Stage], Future[Evidence]] = {}
        self._changed = threading.Condition()
        self._pending: list[Job] = []
        self._running: dict[str, _Running] = {}
        self._waits: dict[str, float] = {}
        self._unfit: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        self._done = self._total = 0
        self._spent_s = 0.0
        self._stopping = False

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, to be started in the order that ends soonest; a job whose key is queued already is left out."""
        with self._changed:
            for job in jobs:
                if any((job.key, stage) in self._results for stage in job.stages):
                    continue
                for stage in job.stages:
                    self._results[job.key, stage] = Future()
                self._pending.append(job)
                self._total += 1
            places = {load.key: at for at, load in enumerate(order([job.load for job in self._pending], self._capacity, self._jobs))}
            self._pending.sort(key=lambda job: places[job.load.key])
            if not self._threads:
                self._thread(self._dispatch, "pool")
            self._changed.notify_all()

    def wait(self, key: str, stage: Stage, poll_s: float = 0.5, turn: Callable[[], object] = lambda: None) -> Evidence:
        """Evidence of one stage. Waits in short turns, so that Ctrl-C is noticed, and calls `turn` in each.

        Raises Cancelled, Refused, HostError (devices that never got well), or what the job raised.
        """
        future = self._results[key, stage]
        while True:
            try:
                return future.result(timeout=poll_s)
            except WaitTimeout:
                if future.done():
                    raise
            turn()

    def progress(self) -> Progress:
        now = time.monotonic()
        with self._changed:
            running = sorted(self._running.values(), key=lambda one: one.held.since_s)
            pending = list(self._pending)
            done, total = self._done, self._total
        busy = [Busy(min(r.job.load.width, self._capacity), r.held.since_s + r.job.load.expected_s) for r in running]
        left = ends_after([job.load for job in pending], self._capacity, busy, now, self._jobs)
        guessed = not all(job.known for job in (*pending, *(r.job for r in running)))
        return Progress(done, total, tuple((r.job.key, now - r.held.since_s) for r in running), left, guessed)

    @property
    def spent_s(self) -> float:
        """Device-seconds (or core-seconds) for which cells that are over held what they were lent."""
        with self._changed:
            return self._spent_s

    def close(self) -> None:
        """Start nothing more and wait for what is running. The caller has ended the running processes where that is wanted."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._desk.close()
        for job in self._pending:
            self._let_go(job, Cancelled(f"{job.key}: not reached"))
        for (key, stage), future in self._results.items():
            if not future.done():
                future.set_exception(Cancelled(f"{key} {stage}: not reached"))

    def _thread(self, work: Callable[..., None], name: str, *given: object) -> None:
        thread = threading.Thread(target=work, args=given, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _dispatch(self) -> None:
        with self._changed:
            while not self._stopping:
                self._start_what_fits()
                # Without a poll nobody would notice what other harness processes give back.
                self._changed.wait(_POLL_S if self._pending else None)

    def _start_what_fits(self) -> None:
        refused: list[Job] = []
        for job in tuple(self._pending):
            if self._jobs is not None and len(self._running) >= self._jobs:
                return
            if any(_asks_no_less(job, other) for other in refused):
                continue
            try:
                if because := self._refuse(job, self._spoken_for_s()):
                    if not self._running:  # else what they really take may leave enough
                        self._drop(job, Refused(f"{job.key}: not started: {because}"))
                    continue
                held = self._take(job, first=not refused)
            except Exception as fault:  # whoever waits for this job must learn of it, whatever it is
                self._drop(job, fault)
                continue
            if held is None:
                refused.append(job)
                continue
            self._pending.remove(job)
            self._waits.pop(job.key, None)
            self._running[job.key] = _Running(job, held)
            self._thread(self._work, f"cell {job.key}", job, held)

    def _take(self, job: Job, first: bool) -> Held | None:
        """Raises HostError where devices did not get well."""
        now = time.monotonic()
        if first:
            self._waits.setdefault(job.key, now)
        held = self._desk.take(Want(job.load, job.memory_mib, self._waits.get(job.key), job.known, job.shunned))
        lacking = "" if held else self._desk.lacking(job.load.width)
        if not lacking:
            self._unfit.pop(job.key, None)
        elif now - self._unfit.setdefault(job.key, now) > self._give_up_s:
            raise HostError(job.key, f"{lacking}, for {self._give_up_s:g} s.", "See npu-smi info, mend them or end what uses them.")
        return held

    def _spoken_for_s(self) -> float:
        """Device-seconds (or core-seconds) that are spent, or promised to what runs."""
        now = time.monotonic()
        running = ((r.held.load, now - r.held.since_s) for r in self._running.values())
        return self._spent_s + sum(load.width * max(load.expected_s, so_far) for load, so_far in running)

    def _drop(self, job: Job, fault: BaseException) -> None:
        if isinstance(fault, Refused):
            self._tell(str(fault))
        elif job.spoiled:
            self._tell(f"{job.key}: not run again: {fault}")
        self._pending.remove(job)
        self._desk.give_up(job.key)
        self._done += 1
        self._let_go(job, fault)

    def _let_go(self, job: Job, fault: BaseException) -> None:
        """No attempt is started any more: what the last one found still stands."""
        if job.spoiled and job.spoiled.stage in job.stages:
            self._results[job.key, job.spoiled.stage].set_result(job.spoiled)
        self._fail(job, fault)

    def _fail(self, job: Job, fault: BaseException) -> None:
        for stage in job.stages:
            if not self._results[job.key, stage].done():
                self._results[job.key, stage].set_exception(fault)

    def _work(self, job: Job, held: Held) -> None:
        again: Job | None = None
        try:
            again = job if self._set_aside(self._desk.check(held)) else self._answer(job, held)
        except BaseException as fault:  # a fault of ours must reach everybody who waits, whatever it is
            self._fail(job, fault)
        finally:
            held.release()
            with self._changed:
                del self._running[job.key]
                self._spent_s += held.load.width * (time.monotonic() - held.since_s)
                if again is not None:
                    self._pending.insert(0, again)
                else:
                    self._done += 1
                self._changed.notify_all()

    def _answer(self, job: Job, held: Held) -> Job | None:
        """Run the cell and tell what it found; the job of another attempt where the environment spoiled this one, else None."""
        if self._stopping:
            self._let_go(job, Cancelled(f"{job.key}: not reached"))
            return None
        failed = False
        with closing(self._run(job, held)) as found:
            for evidence in found:
                failed = failed or evidence.verdict.kind is VerdictKind.FAILED
                if again := self._again(job, evidence, held):
                    self._set_aside(self._desk.check(held))
                    return again
                if evidence.stage in job.stages and not self._results[job.key, evidence.stage].done():
                    self._results[job.key, evidence.stage].set_result(evidence)
                if self._stopping:
                    break
        self._fail(job, Cancelled(f"{job.key}: not reached"))
        if failed and not self._stopping:
            self._set_aside(self._desk.check(held))
        return None

    def _again(self, job: Job, evidence: Evidence, held: Held) -> Job | None:
        """The job of the next attempt: of the stages that nobody was told of yet, on other ports."""
        if self._stopping or len(job.before) >= self._retries or not is_worth_another(evidence):
            return None
        last = attempt_at(evidence)
        self._tell(f"{evidence.cell} {last.stage}: attempt {len(job.before) + 1} ended by {last.cause}, so the cell is run again")
        left = tuple(stage for stage in job.stages if not self._results[job.key, stage].done())
        shunned = (*job.shunned, held.lease.ports)
        return replace(job, stages=left, before=(*job.before, last), spoiled=evidence, shunned=shunned)

    def _set_aside(self, bad: Mapping[int, str]) -> bool:
        for one, because in bad.items():
            self._tell(f"NPU {one} was set aside: {because}")
        return bool(bad)


def _asks_no_less(job: Job, refused: Job) -> bool:
    """Whether `job` is refused for certain where `refused` was, so that a long queue needn't be tried one by one."""
    return (
        job.load.width >= refused.load.width
        and job.memory_mib >= refused.memory_mib
        and (job.load.expected_s >= refused.load.expected_s or not job.known)
    )
