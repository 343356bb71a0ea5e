"""Marks answer the matrix of today: what evidence is about, and what is asked of it, is never taken from the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from evidence_samples import sample, witness
from matrix_samples import MATRIX, RECIPE, STAGES, no_gap, no_rule, required_stages, ruled

from harness.cell_facts import cell_facts, changes
from harness.evidence import sealed
from harness.model import (
    Algorithm,
    Cell,
    Engine,
    Evidence,
    Hardware,
    Mark,
    MarkKind,
    Matrix,
    Options,
    Ruling,
    RulingKind,
    Stage,
    Strategy,
    Tuner,
    VerdictKind,
    Weights,
)
from harness.support import GapOf, RulingOf, SupportTable, support_table

A2, CPU = Hardware.A2, Hardware.CPU
REAL, TINY = Weights.REAL, Weights.TINY
FAILED, BLOCKED, PASSED = VerdictKind.FAILED, VerdictKind.BLOCKED, VerdictKind.PASSED
LIMIT = Ruling(RulingKind.EXPECT_FAIL, "no kernel", "issue 7", causes=("args.",))


def run(hardware: Hardware | None, weights: Weights, *names: Stage, cell: str = "small", **how: Any) -> tuple[Evidence, ...]:
    how.setdefault("tiny_key", "tiny-qwen3")
    return tuple(sample(cell, stage, hardware=hardware, weights=weights, **how) for stage in names or STAGES)


def table(evidence: tuple[Evidence, ...], matrix: Matrix = MATRIX, ruling: RulingOf = no_rule, gap: GapOf = no_gap) -> SupportTable:
    return support_table(matrix, evidence, date(2026, 6, 10), required_stages=required_stages, ruling=ruling, gap=gap)


def mark(*evidence: Evidence, cell: str = "small", **how: Any) -> Mark:
    return next(m for m in table(evidence, **how).marks if (m.cell, m.target) == (cell, A2))


def now(change: Callable[[Cell], Cell], cell: str = "small") -> Matrix:
    """The matrix after somebody edited a cell."""
    return replace(MATRIX, cells=tuple(change(c) if c.id == cell else c for c in MATRIX.cells))


EDITS: dict[str, tuple[Callable[[Cell], Cell], str]] = {
    "another model": (lambda c: replace(c, model=replace(c.model, id="Qwen/Qwen9")), "its model was Qwen/Qwen3-0.6B, now Qwen/Qwen9"),
    "another recipe": (lambda c: replace(c, recipe=replace(RECIPE, key="slow")), "its recipe was quick, now slow"),
    "other settings": (lambda c: replace(c, recipe=replace(RECIPE, settings={"learning_rate": 0.5})), "other data sets or settings"),
    "another data set": (lambda c: replace(c, recipe=replace(RECIPE, dataset=("e",))), "other data sets or settings"),
    "an option": (lambda c: replace(c, options=Options(packing=True)), "its options was the default, now packing=true"),
    "an algorithm": (lambda c: replace(c, algorithm=Algorithm.DPO), "its algorithm was sft, now dpo"),
    "a tuner": (lambda c: replace(c, tuner=Tuner.FULL), "its tuner was lora, now full"),
    "a strategy": (lambda c: replace(c, strategy=Strategy.ZERO2), "its strategy was single, now zero2"),
    "an engine": (lambda c: replace(c, engine=Engine.VLLM), "its engine was transformers, now vllm"),
    "a family": (lambda c: replace(c, model=replace(c.model, family="qwen2")), "its family was qwen3, now qwen2"),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(("hardware", "weights", "kind"), [(A2, REAL, MarkKind.VERIFIED), (CPU, TINY, MarkKind.WIRED)])
def test_no_mark_survives_a_change_of_what_it_is_about(name: str, hardware: Hardware, weights: Weights, kind: MarkKind) -> None:
    change, said = EDITS[name]
    evidence = run(hardware, weights)
    assert mark(*evidence).kind is kind
    found = mark(*evidence, matrix=now(change))
    assert found.kind is MarkKind.UNTESTED
    assert "evidence of train, resume, merge, infer, deploy does not count" in found.because and said in found.because


def test_a_failure_of_another_question_is_no_failure_of_this_one() -> None:
    assert mark(*run(CPU, TINY, Stage.TRAIN, kind=FAILED), matrix=now(EDITS["other settings"][0])).kind is MarkKind.UNTESTED


def test_only_the_pinned_revision_is_verified() -> None:
    evidence = run(A2, REAL)
    pinned = mark(*evidence, matrix=now(lambda c: replace(c, model=replace(c.model, revision="r2"))))
    assert pinned.kind is MarkKind.UNTESTED and "its revision was r1, now r2" in pinned.because
    without = now(lambda c: replace(c, model=replace(c.model, revision=None)))
    unknown = tuple(sealed(replace(e, facts={**e.facts, "revision": "unknown"})) for e in evidence)
    assert mark(*unknown).kind is MarkKind.UNTESTED
    found = mark(*unknown, matrix=without)
    assert found.kind is MarkKind.STALE and "pins no revision" in found.because
    assert mark(*run(CPU, TINY), matrix=without).kind is MarkKind.WIRED


def test_evidence_that_does_not_say_what_it_is_about_counts_for_nothing() -> None:
    silent = tuple(sealed(replace(e, facts={k: v for k, v in e.facts.items() if k != "options"})) for e in run(CPU, TINY))
    found = mark(*silent)
    assert found.kind is MarkKind.UNTESTED and "does not say its options" in found.because


def test_one_stage_of_another_question_leaves_the_rest_and_is_named() -> None:
    *rest, last = run(CPU, TINY)
    found = mark(*rest, sealed(replace(last, facts={**last.facts, "recipe": "slow"})))
    assert found.because == (
        "train, resume, merge, infer passed on cpu; evidence of deploy does not count: its recipe was slow, now quick"
    )


def test_a_tiny_run_of_a_relative_is_held_against_the_relatives_own_model_and_recipe() -> None:
    evidence = run(CPU, TINY)
    assert mark(*evidence, cell="big").kind is MarkKind.WIRED
    assert mark(*evidence, cell="big", matrix=now(EDITS["other settings"][0])).kind is MarkKind.UNTESTED
    assert mark(*evidence, cell="big", matrix=now(EDITS["an option"][0], "big")).kind is MarkKind.UNTESTED


def test_a_tiny_key_that_is_not_the_cells_serves_nobody() -> None:
    forged = run(CPU, TINY, tiny_key="tiny-vl")
    assert {m.kind for m in table(forged).marks} == {MarkKind.UNTESTED}
    assert "it ran as tiny-vl, the cell is tiny-qwen3" in mark(*forged).because


def test_a_device_of_another_name_is_not_the_hardware() -> None:
    named = {**witness(A2, {}), "train_begin": {"device": "npu:0", "device_name": "Ascend910_9382"}}
    other = tuple(sealed(replace(e, witnesses=({**e.witnesses[0], "train_begin": named["train_begin"]},))) for e in run(A2, REAL))
    assert "its device Ascend910_9382 is no a2" in mark(*other).because
    nameless = {"device": "npu:0", "device_name": None}
    unnamed = tuple(sealed(replace(e, witnesses=({**e.witnesses[0], "train_begin": nameless},))) for e in run(A2, REAL))
    assert "no device of it told its name" in mark(*unnamed).because


def test_a_pass_where_no_proof_is_built_counts_for_nothing() -> None:
    found = mark(*run(CPU, TINY), gap=lambda cell, piece: "the proof of x isn't built yet")
    assert found.kind is MarkKind.UNTESTED and "the proof of x isn't built yet" in found.because


def test_what_a_cell_is_is_what_its_evidence_says() -> None:
    for cell in MATRIX.cells:
        piece = sample(cell.id, facts=dict(cell_facts(cell)), tiny_key=cell.tiny_key)
        assert changes(piece, cell, MATRIX) == ()


# --- rules


def test_a_known_failure_whose_rule_is_gone_is_failing() -> None:
    known = run(CPU, TINY, Stage.TRAIN, kind=VerdictKind.KNOWN_FAILURE, ruling=LIMIT)
    assert mark(*known, ruling=ruled("small", LIMIT)).kind is MarkKind.KNOWN_FAILURE
    found = table(known)
    assert next(m for m in found.marks if m.cell == "small").kind is MarkKind.FAILING
    assert [e.verdict.kind for e in found.evidence] == [FAILED]


def test_a_pass_under_a_rule_of_today_is_an_unexpected_one() -> None:
    assert mark(*run(CPU, TINY), ruling=ruled("small", LIMIT)).kind is MarkKind.FIXED


def test_a_failure_under_a_rule_of_today_is_a_known_one_if_it_is_that_limit() -> None:
    failure = run(CPU, TINY, Stage.TRAIN, kind=FAILED)
    assert mark(*failure, ruling=ruled("small", LIMIT)).kind is MarkKind.KNOWN_FAILURE
    assert mark(*failure, ruling=ruled("small", replace(LIMIT, causes=("mem.",)))).kind is MarkKind.FAILING


def test_a_rule_of_one_stage_is_asked_of_that_stage_only() -> None:
    def resume_only(cell: Cell, stage: Stage | None) -> Ruling:
        return LIMIT if stage is Stage.RESUME else Ruling(RulingKind.RUN)

    others = [s for s in STAGES if s is not Stage.RESUME]
    limited = run(CPU, TINY, Stage.RESUME, kind=VerdictKind.KNOWN_FAILURE, ruling=LIMIT)
    assert mark(*run(CPU, TINY, *others), *limited, ruling=resume_only).kind is MarkKind.KNOWN_FAILURE


# --- blocked


def blocked(*names: Stage, **how: Any) -> tuple[Evidence, ...]:
    """As harness.flow leaves them: nothing ran, so nothing was witnessed."""
    return run(None, TINY, *names, kind=BLOCKED, asked=CPU, runs=(), comparisons=(), **how)


def test_the_stage_that_failed_is_shown_and_not_those_that_it_blocked() -> None:
    later = blocked(Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY, started_at="2026-06-02T00:00:00Z")
    found = mark(*run(CPU, TINY, Stage.TRAIN, kind=FAILED), *later)
    assert (found.kind, found.hardware) == (MarkKind.FAILING, CPU)
    assert found.because.startswith("train failed on cpu: unknown flag --train_type (args.unknown")


def test_what_a_known_failure_blocks_is_a_known_failure() -> None:
    known = run(CPU, TINY, Stage.TRAIN, kind=VerdictKind.KNOWN_FAILURE, ruling=LIMIT)
    assert mark(*known, *blocked(*STAGES[1:]), ruling=ruled("small", LIMIT)).kind is MarkKind.KNOWN_FAILURE


def test_a_cell_that_was_blocked_once_and_passes_now_is_not_blocked() -> None:
    later = blocked(*STAGES[1:], started_at="2026-06-09T00:00:00Z")
    assert mark(*run(CPU, TINY), *later).kind is MarkKind.WIRED
    partial = mark(*run(CPU, TINY, Stage.TRAIN), *later)
    assert (partial.kind, partial.because) == (MarkKind.UNTESTED, "train passed on cpu; resume, merge, infer, deploy not run")


def test_where_nothing_else_is_known_a_blocked_stage_is_blocked() -> None:
    assert mark(*blocked(Stage.RESUME)).kind is MarkKind.BLOCKED
    on_npu = run(None, TINY, Stage.RESUME, kind=BLOCKED, asked=A2, runs=(), comparisons=())
    found = mark(*on_npu, *run(CPU, TINY))
    assert found.kind is MarkKind.WIRED and "a2, tiny weights: blocked" in found.beside
