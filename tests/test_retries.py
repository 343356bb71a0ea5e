"""Another attempt is made for what the environment spoiled, and for nothing else; each leaves its own evidence, which can't be made up."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_samples import sample
from fakes.drill import Ground
from fakes.install import write_executable
from matrix_samples import CELLS, MATRIX, no_gap, no_rule, required_stages
from test_consistency import honest, refused
from test_pool import Spots

from harness.causes import CAUSES
from harness.cores import CoreDesk
from harness.errors import HarnessError
from harness.evidence import key_path, rank, sealed
from harness.flow import run_cell
from harness.host import HostRequest
from harness.judge import rejudge
from harness.launch import launch
from harness.leases import Held
from harness.model import Blame, Evidence, Hardware, MarkKind, Outcome, Run, Stage, Step, Verdict, VerdictKind
from harness.packing import Load
from harness.pool import Job, Pool, Refused
from harness.ports import Ports, lend_ports
from harness.retries import Attempt, as_attempt, flaky_text, is_worth_another, may_be_retried
from harness.session import Session
from harness.store import Store
from harness.support import support_table

PASSED, FAILED = VerdictKind.PASSED, VerdictKind.FAILED
TRAIN, MERGE, RESUME = Stage.TRAIN, Stage.MERGE, Stage.RESUME
TAKEN = "comm.port_in_use"
BEFORE = (Attempt("n1", TRAIN, TAKEN),)


def failed(cause: str = TAKEN, stage: Stage = TRAIN, **changes: Any) -> Evidence:
    blame = CAUSES[cause][0]
    verdict = Verdict(FAILED, cause, cause, blame)
    return sample("small", stage, FAILED, outcome=Outcome(cause, blame, "said so"), verdict=verdict, **changes)


# --- what is run again


def test_only_what_the_environment_spoiled_is_run_again() -> None:
    for cause in CAUSES:
        if CAUSES[cause][0] is not Blame.ENVIRONMENT:
            assert not is_worth_another(failed(cause)), cause
    assert is_worth_another(failed(TAKEN)) and is_worth_another(failed("dev.lost")) and is_worth_another(failed("run.signal"))
    assert not is_worth_another(failed("ckpt.save")), "a full disk is not mended by filling it further"
    assert not may_be_retried("env.sunspots")
    assert not is_worth_another(failed("proof.inputs_changed")), "a proof found that, no log said so"
    others = replace(failed("mem.npu_oom"), verdict=Verdict(FAILED, "", "mem.npu_oom", Blame.ENVIRONMENT))
    assert is_worth_another(others) and not is_worth_another(failed("mem.npu_oom"))


@pytest.mark.parametrize("kind", [k for k in VerdictKind if k is not FAILED])
def test_what_is_no_failure_is_never_run_again(kind: VerdictKind) -> None:
    assert not is_worth_another(replace(failed(), verdict=Verdict(kind, "", TAKEN, Blame.ENVIRONMENT)))


# --- the pool


class Cells:
    """Runs that find what is written down for each attempt, as (stage, cause or "")."""

    def __init__(self, *attempts: list[tuple[Stage, str]]) -> None:
        self.attempts, self.jobs, self.closed = list(attempts), [], 0
        self.leases: list[Ports] = []

    def __call__(self, job: Job, held: Held) -> Generator[Evidence, None, None]:
        self.jobs.append(job)
        self.leases.append(held.lease.ports)
        try:
            for stage, cause in self.attempts[len(self.jobs) - 1]:
                piece = failed(cause, stage) if cause else sample("small", stage)
                yield as_attempt(replace(piece, nonce=f"n{len(self.jobs)}"), job.before)
        finally:
            self.closed += 1


def pool_of(cells: Cells, *stages: Stage, retries: int = 1, bad: tuple[dict[int, str], ...] = (), **other: Any) -> tuple[Pool, list[str]]:
    told: list[str] = []
    pool = Pool(cells, Spots(4, bad), capacity=4, retries=retries, tell=told.append, **other)
    pool.submit([Job("a", CELLS[0], stages or (TRAIN,), Load("a", 1, 1.0))])
    return pool, told


def test_a_spoiled_cell_is_run_again_from_its_training_on_for_the_stages_that_nobody_was_told_of() -> None:
    cells = Cells([(TRAIN, ""), (RESUME, ""), (MERGE, TAKEN)], [(TRAIN, ""), (MERGE, "")])
    pool, told = pool_of(cells, TRAIN, RESUME, MERGE)
    assert pool.wait("a", TRAIN).nonce == "n1"
    found = pool.wait("a", MERGE)
    pool.close()
    assert (found.nonce, found.verdict.kind, found.facts["attempt"]) == ("n2", PASSED, 2)
    assert found.facts["attempts_before"] == [{"nonce": "n1", "stage": "merge", "cause": TAKEN}]
    assert [job.stages for job in cells.jobs] == [(TRAIN, RESUME, MERGE), (MERGE,)]
    assert cells.closed == 2
    assert told == [f"small merge: attempt 1 ended by {TAKEN}, so the cell is run again"]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_cell_is_run_again_as_often_as_allowed_and_no_oftener(retries: int) -> None:
    cells = Cells(*([(TRAIN, TAKEN)] for _ in range(9)))
    pool, _ = pool_of(cells, retries=retries)
    assert pool.wait("a", TRAIN).nonce == f"n{retries + 1}"
    pool.close()
    assert len(cells.jobs) == retries + 1
    assert pool.progress().done == 1


@pytest.mark.parametrize("cause", ["args.unknown", "proof.witness_missing", "unknown", "ckpt.save"])
def test_a_cell_is_not_run_again_for_the_product_the_harness_the_unknown_or_a_full_disk(cause: str) -> None:
    cells = Cells([(TRAIN, cause), (MERGE, "")])
    pool, _ = pool_of(cells, TRAIN, MERGE, retries=5)
    assert pool.wait("a", TRAIN).verdict.cause == cause
    pool.close()
    assert len(cells.jobs) == 1


def test_devices_are_checked_between_attempts_and_a_sick_one_is_set_aside() -> None:
    # Before the first attempt, after it, before the second (another is sick then, so the lease is given back), before the third lease.
    cells = Cells([(TRAIN, "dev.lost")], [(TRAIN, "")])
    pool, told = pool_of(cells, bad=({}, {3: "alarm"}, {4: "in use"}, {}))
    assert pool.wait("a", TRAIN).verdict.kind is PASSED
    pool.close()
    assert told[1:] == ["NPU 3 was set aside: alarm", "NPU 4 was set aside: in use"]
    assert len(cells.jobs) == 2


def test_where_no_other_attempt_can_be_started_the_failure_stands() -> None:
    cells = Cells([(TRAIN, ""), (MERGE, TAKEN)])
    pool, told = pool_of(cells, TRAIN, MERGE, RESUME, refuse=lambda job, spoken_for_s: "beyond the budget" if job.before else "")
    assert pool.wait("a", MERGE).verdict.kind is FAILED
    with pytest.raises(Refused, match="beyond the budget"):
        pool.wait("a", RESUME)
    pool.close()
    assert told[-1].endswith("beyond the budget")


def test_a_pool_that_ends_before_another_attempt_tells_of_the_failure() -> None:
    reached, cells = threading.Event(), Cells([(TRAIN, TAKEN)])

    def hold(job: Job, spoken_for_s: float) -> str:
        if job.before:
            reached.set()
        return "not now" if job.before else ""

    desk = Spots(4)
    pool = Pool(cells, desk, capacity=4, retries=1, refuse=hold)
    waits = Job("b", CELLS[0], (TRAIN,), Load("b", 1, 1.0))
    go = threading.Event()

    def run(job: Job, held: Held) -> Generator[Evidence, None, None]:
        if job.key == "b":
            go.wait(10)
        else:
            yield from cells(job, held)

    pool._run = run  # b keeps the pool busy, so that a waits for its second attempt instead of being refused
    pool.submit([waits, Job("a", CELLS[0], (TRAIN,), Load("a", 1, 1.0))])
    assert reached.wait(10)
    threading.Timer(0.2, go.set).start()
    pool.close()
    assert pool.wait("a", TRAIN).verdict.kind is FAILED


def test_another_attempt_has_other_ports(tmp_path: Path) -> None:
    descriptor, first = lend_ports(tmp_path)
    _, second = lend_ports(tmp_path, [])
    os.close(descriptor)
    _, third = lend_ports(tmp_path, [first, second])
    assert len({first, second, third}) == 3


# --- evidence, marks and tables


def second(stage: Stage = TRAIN, before: tuple[Attempt, ...] = BEFORE, **facts: Any) -> Evidence:
    piece = as_attempt(honest(stage), before)
    return replace(piece, facts={**piece.facts, **facts})


def test_a_pass_of_the_stage_that_failed_is_flaky_and_says_why() -> None:
    assert flaky_text(second()) == f"passed at attempt 2 after {TAKEN} (HCCL, master or service port taken)"
    assert flaky_text(second(MERGE)) == "", "it was run again for the sake of another stage"
    assert "flaky" not in as_attempt(failed(), BEFORE).facts
    first = as_attempt(honest(), ())
    assert (first.facts["attempt"], first.facts["attempts_before"], flaky_text(first)) == (1, [], "")


def test_honest_attempts_are_taken(tmp_path: Path) -> None:
    for number, piece in enumerate((second(), second(MERGE), as_attempt(failed(), BEFORE), as_attempt(honest(), ()))):
        (folder := tmp_path / str(number)).mkdir()
        assert refused(piece, folder) == ""


one = {"nonce": "n1", "stage": "train", "cause": TAKEN}
FORGED = {
    "a second attempt without a first": ({"attempt": 2, "attempts_before": [], "flaky": False}, "tells of 0 before it"),
    "a first attempt that was hidden": ({"attempt": 1}, "tells of 1 before it"),
    "an attempt that is no number": ({"attempt": True}, "attempt True"),
    "an attempt after the product failed": ({"attempts_before": [{**one, "cause": "args.unknown"}]}, "no cause of the environment"),
    "an attempt after a full disk": ({"attempts_before": [{**one, "cause": "ckpt.save"}]}, "no cause of the environment"),
    "an attempt after an invented cause": ({"attempts_before": [{**one, "cause": "env.sunspots"}]}, "no cause of the environment"),
    "an attempt without a cause": ({"attempts_before": [{"nonce": "n1", "stage": "train"}]}, "is no attempt"),
    "an attempt of no stage": ({"attempts_before": [{**one, "stage": "lunch"}]}, "is no attempt"),
    "an attempt that is a word": ({"attempts_before": ["n1"]}, "is no attempt"),
    "an attempt of several stages": ({"attempts_before": [{**one, "stage": ["train"]}]}, "is no attempt"),
    "an attempt without a nonce": ({"attempts_before": [{**one, "nonce": ""}]}, "is no attempt"),
    "an attempt of no text": ({"attempts_before": [{"nonce": {}, "stage": {}, "cause": []}]}, "is no attempt"),
    "attempts that are one": ({"attempts_before": one}, "is no attempt"),
    "attempts that are a word": ({"attempts_before": "n1"}, "is no attempt"),
    "one attempt told twice": ({"attempts_before": [{**one, "nonce": "n0"}]}, "one nonce"),
    "a flaky pass that says nothing": ({"flaky": False}, "flaky: False"),
    "a flaky pass in other words": ({"flaky": 1}, "flaky: 1"),
}


@pytest.mark.parametrize("name", FORGED)
def test_attempts_that_cannot_be_are_refused(name: str, tmp_path: Path) -> None:
    facts, says = FORGED[name]
    assert says in refused(second(**facts), tmp_path)


def test_a_flaky_failure_is_refused(tmp_path: Path) -> None:
    piece = as_attempt(failed(), BEFORE)
    assert "flaky: True" in refused(replace(piece, facts={**piece.facts, "flaky": True}), tmp_path)


def test_of_attempts_in_one_second_the_last_stays_and_the_history_keeps_all(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / "history", rejudge)
    pieces = [
        sealed(as_attempt(replace(failed(), nonce=f"n{n}"), tuple(Attempt(f"n{k}", TRAIN, TAKEN) for k in range(n)))) for n in range(4)
    ]
    for piece in reversed(pieces):
        store.save(piece)
    assert max(pieces, key=rank) is pieces[-1]
    assert store.load(store.reports / key_path(pieces[0])).nonce == "n3"
    assert len(list(store.history.glob("*.json"))) == 4


def test_a_mark_says_that_a_stage_was_flaky_and_a_crash_of_the_same_second_is_outlived() -> None:
    stages = [TRAIN, RESUME, MERGE, Stage.INFER, Stage.DEPLOY]
    pieces = [sealed(as_attempt(sample("small", s, hardware=Hardware.CPU, tiny_key="tiny-qwen3"), BEFORE)) for s in stages]
    crash = sealed(as_attempt(failed(hardware=None, nonce="n1", tiny_key="tiny-qwen3"), ()))
    table = support_table(MATRIX, [crash, *pieces], None, required_stages=required_stages, ruling=no_rule, gap=no_gap)
    mark = next(m for m in table.marks if m.cell == "small")
    assert mark.kind is MarkKind.WIRED
    assert f"; flaky: train passed at attempt 2 after {TAKEN} (HCCL, master or service port taken)" in mark.because
    assert mark.because.count("passed at attempt") == 1


# --- the session


def session(*kept: Evidence, selected: tuple[Stage, ...]) -> Session:
    ours = Session(HostRequest(root=Path()), MATRIX)
    ours._kept = list(kept)
    ours._selected = {("tiny-small", stage) for stage in selected}
    return ours


def test_a_failure_that_was_run_again_is_not_held_against_the_run() -> None:
    spoiled, good = replace(failed(), nonce="n1"), second(TRAIN)
    for selected in ((TRAIN,), (MERGE,)):
        ours = session(spoiled, good, selected=selected)
        assert ours.untold == []
        assert ours.summary()[0] == "stages run: 1 flaky, 1 run again"
        assert f"flaky: small train {flaky_text(good)}" in ours.summary()


def test_a_stage_that_passed_at_first_and_fails_when_run_again_turns_the_run_red() -> None:
    before = (Attempt("n1", MERGE, TAKEN),)
    first, spoiled = replace(honest(), nonce="n1"), replace(failed(stage=MERGE), nonce="n1")
    broken = as_attempt(replace(failed("args.unknown"), nonce="n2"), before)
    ours = session(first, spoiled, broken, selected=(TRAIN, MERGE))
    ours._told["tiny-small", TRAIN] = "n1"
    assert ours.untold == [broken]
    assert any(line.startswith("not green when run again: small train: failed") for line in ours.summary())


def test_what_the_product_did_in_a_spoiled_attempt_is_still_held_against_the_run() -> None:
    spoiled = replace(failed(stage=MERGE), nonce="n1")
    broken = replace(failed("args.unknown", RESUME), nonce="n1")
    good = as_attempt(honest(MERGE), (Attempt("n1", MERGE, TAKEN),))
    ours = session(broken, spoiled, good, selected=(MERGE,))
    assert ours.untold == [broken]
    assert ours.summary()[0] == "stages run: 1 failed, 1 flaky, 1 run again"


def test_less_than_no_other_attempt_is_refused() -> None:
    with pytest.raises(HarnessError, match="--env-retries -1"):
        Session.open(HostRequest(root=Path(), env_retries=-1))


# --- the flow, with the honest stand-in behind a launcher that spoils what it is told to


def test_the_real_flow_gives_each_attempt_a_folder_nonces_and_ports_of_its_own(tmp_path: Path) -> None:
    ground = Ground.under(tmp_path)
    cell, host, kept = ground.cell("lora"), ground.host("retry", ground.honest), []
    spoil, ports = iter([True, False]), []

    def launcher(step: Step, **how: Any) -> Run:
        if next(spoil, False):
            script = write_executable(tmp_path / "swift", "#!/bin/sh\necho 'OSError: [Errno 98] Address already in use'\nexit 1\n")
            return launch(step, **{**how, "search_path": str(script.parent)})
        return launch(step, **how)

    def run(job: Job, held: Held) -> Generator[Evidence, None, None]:
        ports.append(held.lease.ports)
        yield from run_cell(
            job.cell, job.stages, matrix=ground.matrix, host=host.lent(held.lease), launch=launcher, keep=kept.append,
            clean=lambda text: text, stop=threading.Event(), before=job.before,
        )  # fmt: skip

    pool = Pool(run, CoreDesk(1, 9000.0, tmp_path), capacity=1, retries=1)
    pool.submit([Job("a", cell, (TRAIN,), Load("a", 1, 1.0))])
    assert pool.wait("a", TRAIN).verdict.kind is PASSED
    pool.close()
    first, last = kept
    assert (first.verdict.cause, first.verdict.blame, last.facts["flaky"]) == (TAKEN, Blame.ENVIRONMENT, True)
    assert last.facts["attempts_before"] == [{"nonce": first.nonce, "stage": "train", "cause": TAKEN}]
    assert first.runs[0].nonce != last.runs[0].nonce
    assert len(set(ports)) == 2
    assert Path(first.runs[0].log_path).parent != Path(last.runs[0].log_path).parent
