import threading
from types import SimpleNamespace

import pytest

from harness.model import Stage
from harness.pool import Cancelled, Job, Pool


def evidence(stage):
    return SimpleNamespace(stage=stage)


def job(key, *stages):
    return Job(key, None, stages)


def test_everyone_who_waits_gets_the_evidence_of_their_stage():
    pool = Pool(lambda j: (evidence(s) for s in (Stage.TRAIN, Stage.MERGE)), jobs=2)
    pool.submit([job("a", Stage.TRAIN, Stage.MERGE), job("b", Stage.MERGE)])
    assert pool.wait("a", Stage.MERGE).stage is Stage.MERGE
    assert pool.wait("b", Stage.MERGE).stage is Stage.MERGE
    pool.close()


def test_a_fault_in_one_job_fails_that_job_and_no_other():
    def run(j):
        if j.key == "bad":
            raise ValueError("broken")
        yield evidence(Stage.TRAIN)

    pool = Pool(run, jobs=1)
    pool.submit([job("bad", Stage.TRAIN), job("good", Stage.TRAIN)])
    with pytest.raises(ValueError, match="broken"):
        pool.wait("bad", Stage.TRAIN)
    assert pool.wait("good", Stage.TRAIN).stage is Stage.TRAIN
    pool.close()


def test_never_more_than_the_asked_number_of_jobs_run_at_once():
    running, most, lock = [], [], threading.Lock()
    gate = threading.Barrier(2, timeout=10)

    def run(j):
        with lock:
            running.append(j.key)
            most.append(len(running))
        gate.wait()
        with lock:
            running.remove(j.key)
        yield evidence(Stage.TRAIN)

    pool = Pool(run, jobs=2)
    keys = [str(n) for n in range(6)]
    pool.submit([job(k, Stage.TRAIN) for k in keys])
    for key in keys:
        pool.wait(key, Stage.TRAIN)
    pool.close()
    assert max(most) == 2


def test_a_closed_pool_says_that_the_rest_was_not_reached():
    started, go = threading.Event(), threading.Event()

    def run(j):
        started.set()
        go.wait(10)
        yield evidence(Stage.TRAIN)

    pool = Pool(run, jobs=1)
    pool.submit([job("first", Stage.TRAIN), job("second", Stage.TRAIN)])
    started.wait(10)
    threading.Timer(0.1, go.set).start()
    pool.close()
    assert pool.wait("first", Stage.TRAIN).stage is Stage.TRAIN
    with pytest.raises(Cancelled):
        pool.wait("second", Stage.TRAIN)


def test_a_job_that_ends_without_a_promised_stage_says_so():
    pool = Pool(lambda j: iter([evidence(Stage.TRAIN)]), jobs=1)
    pool.submit([job("a", Stage.TRAIN, Stage.MERGE)])
    with pytest.raises(Cancelled):
        pool.wait("a", Stage.MERGE)
    pool.close()
