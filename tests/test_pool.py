"""The pool: everybody gets the evidence they wait for, whatever becomes of other jobs; what fits is started, what can't be is told."""

import threading
import time
from types import SimpleNamespace

import pytest

from harness.errors import HostError
from harness.leases import Held, Lease
from harness.model import Stage, VerdictKind
from harness.packing import Load
from harness.pool import Cancelled, Job, Pool, Refused
from harness.ports import Ports


class Spots:
    """A desk with `spots` to lend. `bad`: what checks find, one after the other."""

    def __init__(self, spots, bad=()):
        self.spots, self.all, self.bad, self.lock = spots, spots, list(bad), threading.Lock()

    def take(self, want):
        with self.lock:
            if want.load.width > self.spots:
                return None
            self.spots -= want.load.width
        return Held(Lease((), Ports(1, 2, 3)), want.load, (), time.monotonic(), lambda: self.back(want.load.width))

    def back(self, width):
        with self.lock:
            self.spots += width

    def check(self, held):
        with self.lock:
            return self.bad.pop(0) if self.bad else {}

    def lacking(self, width):
        return "" if width <= self.all else f"needs {width}, has {self.all}"

    def give_up(self, key):
        pass

    def close(self):
        pass


def evidence(stage, kind=VerdictKind.PASSED):
    return SimpleNamespace(stage=stage, verdict=SimpleNamespace(kind=kind))


def job(key, *stages, width=1, seconds=1.0):
    return Job(key, None, stages or (Stage.TRAIN,), Load(key, width, seconds))


def pool_of(run, jobs=1, spots=100, bad=(), **other):
    return Pool(run, Spots(spots, bad), capacity=spots, jobs=jobs, **other)


def passes(j, held):
    yield evidence(Stage.TRAIN)


def test_everyone_who_waits_gets_the_evidence_of_their_stage():
    pool = pool_of(lambda j, held: (evidence(s) for s in (Stage.TRAIN, Stage.MERGE)), jobs=2)
    pool.submit([job("a", Stage.TRAIN, Stage.MERGE), job("b", Stage.MERGE)])
    assert pool.wait("a", Stage.MERGE).stage is Stage.MERGE
    assert pool.wait("b", Stage.MERGE).stage is Stage.MERGE
    pool.close()


def test_a_fault_in_one_job_fails_that_job_and_no_other():
    def run(j, held):
        if j.key == "bad":
            raise ValueError("broken")
        yield evidence(Stage.TRAIN)

    pool = pool_of(run)
    pool.submit([job("bad"), job("good")])
    with pytest.raises(ValueError, match="broken"):
        pool.wait("bad", Stage.TRAIN)
    assert pool.wait("good", Stage.TRAIN).stage is Stage.TRAIN
    pool.close()


def test_never_more_than_the_asked_number_of_jobs_run_at_once():
    running, most, lock = [], [], threading.Lock()
    gate = threading.Barrier(2, timeout=10)

    def run(j, held):
        with lock:
            running.append(j.key)
            most.append(len(running))
        gate.wait()
        with lock:
            running.remove(j.key)
        yield evidence(Stage.TRAIN)

    pool = pool_of(run, jobs=2)
    keys = [str(n) for n in range(6)]
    pool.submit([job(k) for k in keys])
    for key in keys:
        pool.wait(key, Stage.TRAIN)
    pool.close()
    assert max(most) == 2


def test_a_closed_pool_says_that_the_rest_was_not_reached():
    started, go = threading.Event(), threading.Event()

    def run(j, held):
        started.set()
        go.wait(10)
        yield evidence(Stage.TRAIN)

    pool = pool_of(run)
    pool.submit([job("first", seconds=2.0), job("second")])
    started.wait(10)
    threading.Timer(0.1, go.set).start()
    pool.close()
    assert pool.wait("first", Stage.TRAIN).stage is Stage.TRAIN
    with pytest.raises(Cancelled):
        pool.wait("second", Stage.TRAIN)


def test_a_job_that_ends_without_a_promised_stage_says_so():
    pool = pool_of(passes)
    pool.submit([job("a", Stage.TRAIN, Stage.MERGE)])
    with pytest.raises(Cancelled):
        pool.wait("a", Stage.MERGE)
    pool.close()


def test_a_fault_in_what_refuses_reaches_whoever_waits():
    pool = pool_of(passes, refuse=lambda j, spoken_for_s: 1 / 0)
    pool.submit([job("a"), job("b")])
    for key in "ab":
        with pytest.raises(ZeroDivisionError):
            pool.wait(key, Stage.TRAIN)
    pool.close()


def test_what_is_spent_and_promised_is_told_to_what_refuses():
    seen = []

    def refuse(j, spoken_for_s):
        seen.append((j.key, round(spoken_for_s)))
        return ""

    pool = pool_of(passes, jobs=2, refuse=refuse)
    pool.submit([job("long", seconds=100.0, width=3), job("short", seconds=7.0)])
    for key in ("long", "short"):
        pool.wait(key, Stage.TRAIN)
    pool.close()
    assert seen[:2] == [("long", 0), ("short", 300)]
    assert 0 < pool.spent_s < 10


def test_what_is_refused_is_told_to_whoever_waits_and_others_go_on():
    told = []
    pool = pool_of(passes, refuse=lambda j, spoken_for_s: "too dear" if j.key == "dear" else "", tell=told.append)
    pool.submit([job("dear"), job("cheap")])
    with pytest.raises(Refused, match="dear: not started: too dear"):
        pool.wait("dear", Stage.TRAIN)
    assert pool.wait("cheap", Stage.TRAIN)
    pool.close()
    assert told == ["dear: not started: too dear"]


def test_a_job_whose_devices_are_unfit_gets_others_and_the_unfit_are_named():
    told, ran = [], []

    def run(j, held):
        ran.append(j.key)
        yield evidence(Stage.TRAIN)

    pool = pool_of(run, bad=[{3: "its health is Alarm"}], tell=told.append)
    pool.submit([job("a")])
    assert pool.wait("a", Stage.TRAIN)
    pool.close()
    assert (told, ran) == (["NPU 3 was set aside: its health is Alarm"], ["a"])


def test_devices_are_checked_again_after_a_failure():
    told = []
    pool = pool_of(lambda j, held: (evidence(s, VerdictKind.FAILED) for s in (Stage.TRAIN,)), bad=[{}, {0: "sick"}], tell=told.append)
    pool.submit([job("a")])
    assert pool.wait("a", Stage.TRAIN).verdict.kind is VerdictKind.FAILED
    pool.close()
    assert told == ["NPU 0 was set aside: sick"]


def test_devices_that_do_not_get_well_end_the_wait_of_who_needs_them():
    pool = pool_of(passes, spots=2, give_up_s=0.2)
    pool.submit([job("wide", width=3), job("narrow")])
    with pytest.raises(HostError, match=r"wide: needs 3, has 2, for 0.2 s"):
        pool.wait("wide", Stage.TRAIN)
    assert pool.wait("narrow", Stage.TRAIN)
    pool.close()


def test_progress_tells_what_is_done_what_runs_and_what_is_left():
    go, started = threading.Event(), threading.Event()

    def run(j, held):
        started.set()
        go.wait(10)
        yield evidence(Stage.TRAIN)

    pool = pool_of(run)
    pool.submit([job("long", seconds=30.0), job("short", seconds=5.0)])
    started.wait(10)
    seen = pool.progress()
    assert (seen.done, seen.total, [key for key, _ in seen.running], seen.guessed) == (0, 2, ["long"], True)
    go.set()
    pool.wait("short", Stage.TRAIN)
    pool.close()
    assert (pool.progress().done, pool.progress().left_s) == (2, 0.0)
