from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from evidence_samples import NPU_VERSIONS, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_samples import MATRIX, STAGES, no_gap, no_rule, required_stages, ruled

from harness.errors import EvidenceError
from harness.evidence import sealed
from harness.model import Evidence, Hardware, Mark, MarkKind, Ruling, RulingKind, Stage, VerdictKind, Weights
from harness.support import RulingOf, SupportTable, support_table

DAY = date(2026, 6, 10)
A2, CPU, SIM = Hardware.A2, Hardware.CPU, Hardware.SIM
REAL, TINY = Weights.REAL, Weights.TINY
PASSED, FAILED = VerdictKind.PASSED, VerdictKind.FAILED


def table(*evidence: Evidence, as_of: date | None = DAY, ruling: RulingOf = no_rule) -> SupportTable:
    return support_table(MATRIX, evidence, as_of, required_stages=required_stages, ruling=ruling, gap=no_gap)


def mark(*evidence: Evidence, cell: str = "small", target: Hardware = A2, **how: Any) -> Mark:
    return next(m for m in table(*evidence, **how).marks if (m.cell, m.target) == (cell, target))


def stages(hardware: Hardware | None, weights: Weights, *names: Stage, cell: str = "small", **changes: Any) -> tuple[Evidence, ...]:
    changes.setdefault("tiny_key", {"zero2": "tiny-zero2", "grpo": "tiny-grpo"}.get(cell, "tiny-qwen3"))
    return tuple(sample(cell, stage, hardware=hardware, weights=weights, **changes) for stage in names or STAGES)


REAL_RUN = stages(A2, REAL)


def test_without_evidence_nothing_is_said() -> None:
    found = table()
    assert {m.kind for m in found.marks} == {MarkKind.UNTESTED}
    assert {m.because for m in found.marks} == {"not run", "not run (unknown: revision)"}
    assert len(found.marks) == 6
    assert mark(cell="zero2", target=Hardware.A3).claimed == "verified"


def test_real_weights_on_the_target_under_a_declared_stack_are_verified() -> None:
    found = mark(*REAL_RUN)
    assert (found.kind, found.hardware, found.date) == (MarkKind.VERIFIED, A2, "2026-06-01")
    assert len(found.evidence) == 5
    assert found.versions == NPU_VERSIONS


def test_verified_turns_stale_with_age_and_the_oldest_stage_counts() -> None:
    late = [replace(e, started_at="2026-07-20T00:00:00Z") if e.stage is not Stage.MERGE else e for e in REAL_RUN]
    found = mark(*map(sealed, late), as_of=date(2026, 7, 20))
    assert (found.kind, found.date) == (MarkKind.STALE, "2026-06-01")
    assert "merge is 49 days old and docs allows 45" in found.because
    assert mark(*REAL_RUN, as_of=date(2026, 7, 16)).kind is MarkKind.VERIFIED


def test_another_stack_is_stale_not_verified() -> None:
    found = mark(*(sealed(replace(e, versions={**e.versions, "cann": "8.0.0"})) for e in REAL_RUN))
    assert found.kind is MarkKind.STALE
    assert "no declared stack" in found.because


def test_the_stack_is_read_from_the_versions_not_from_the_word_of_the_evidence() -> None:
    assert mark(*(sealed(replace(e, stack="docs", versions={})) for e in REAL_RUN)).kind is MarkKind.STALE


def test_no_stage_is_borrowed_from_tiny_weights() -> None:
    without = [e for e in REAL_RUN if e.stage not in (Stage.RESUME, Stage.DEPLOY)]
    found = mark(*without, *stages(A2, TINY, Stage.DEPLOY, Stage.RESUME))
    assert found.kind is not MarkKind.VERIFIED
    assert "train, merge, infer passed on a2, real weights; resume, deploy not run" in (found.because + found.beside)


@pytest.mark.parametrize(("hardware", "kind"), [(A2, MarkKind.TINY_NPU), (SIM, MarkKind.SIMULATED), (CPU, MarkKind.WIRED)])
def test_tiny_weights_say_what_their_hardware_can_say(hardware: Hardware, kind: MarkKind) -> None:
    assert mark(*stages(hardware, TINY)).kind is kind


def test_a_tiny_run_answers_for_its_family_and_says_so() -> None:
    found = mark(*stages(CPU, TINY), cell="big")
    assert found.kind is MarkKind.WIRED
    assert "ran as small" in found.because
    assert mark(*stages(CPU, TINY), cell="zero2").kind is MarkKind.UNTESTED


def test_real_weights_answer_for_their_cell_only() -> None:
    assert mark(*stages(A2, REAL), cell="big").kind is MarkKind.UNTESTED


def test_stages_that_never_ran_are_named() -> None:
    found = mark(*stages(CPU, TINY, Stage.TRAIN, Stage.INFER))
    assert (found.kind, found.because) == (MarkKind.UNTESTED, "train, infer passed on cpu; resume, merge, deploy not run")
    assert len(found.evidence) == 2


def test_the_weakest_stage_decides() -> None:
    passed = stages(CPU, TINY, Stage.TRAIN, Stage.RESUME, Stage.MERGE)
    found = mark(*passed, *stages(CPU, TINY, Stage.INFER, kind=FAILED))
    assert (found.kind, found.hardware) == (MarkKind.FAILING, CPU)
    assert found.because == "infer failed on cpu: unknown flag --train_type (args.unknown, blame: product)"
    known = mark(*passed, *stages(CPU, TINY, Stage.INFER, kind=VerdictKind.KNOWN_FAILURE), *stages(CPU, TINY, Stage.DEPLOY, kind=FAILED))
    assert known.kind is MarkKind.FAILING


EXPECTED = [
    (VerdictKind.KNOWN_FAILURE, MarkKind.KNOWN_FAILURE),
    (VerdictKind.FIXED, MarkKind.FIXED),
    (VerdictKind.BLOCKED, MarkKind.BLOCKED),
]


@pytest.mark.parametrize(("verdict", "kind"), EXPECTED)
def test_expectations_have_marks_of_their_own(verdict: VerdictKind, kind: MarkKind) -> None:
    assert mark(*stages(CPU, TINY, Stage.TRAIN, kind=verdict)).kind is kind


def test_a_blockage_whose_cause_has_passed_since_is_merely_not_run() -> None:
    found = mark(*stages(CPU, TINY, Stage.TRAIN), *stages(CPU, TINY, Stage.RESUME, kind=VerdictKind.BLOCKED))
    assert (found.kind, found.because) == (MarkKind.UNTESTED, "train passed on cpu; resume, merge, infer, deploy not run")


@pytest.mark.parametrize("verdict", [VerdictKind.INTERRUPTED, VerdictKind.NOT_RUNNABLE, VerdictKind.UNTESTED])
def test_what_measured_nothing_leaves_no_mark(verdict: VerdictKind) -> None:
    assert mark(*stages(CPU, TINY, kind=verdict)).because == "not run"


def test_a_pass_that_nobody_witnessed_counts_for_nothing_but_a_failure_does() -> None:
    assert mark(*stages(None, TINY, asked=A2)).kind is MarkKind.UNTESTED
    found = mark(*stages(None, TINY, Stage.TRAIN, kind=FAILED, asked=A2))
    assert (found.kind, found.hardware) == (MarkKind.FAILING, A2)
    assert "nothing was witnessed" in found.because


def test_of_a_crash_and_a_pass_the_newer_counts() -> None:
    crash = stages(None, TINY, Stage.TRAIN, kind=FAILED, asked=CPU, started_at="2026-06-02T00:00:00Z")
    assert mark(*crash, *stages(CPU, TINY)).kind is MarkKind.FAILING
    assert mark(*crash, *stages(CPU, TINY, started_at="2026-06-03T00:00:00Z")).kind is MarkKind.WIRED
    assert mark(*crash, *stages(CPU, TINY, Stage.TRAIN, started_at="2026-06-03T00:00:00Z")).kind is MarkKind.UNTESTED


def test_npu_evidence_decides_and_the_cpu_stands_beside_it() -> None:
    found = mark(*REAL_RUN, *stages(CPU, TINY, Stage.TRAIN, kind=FAILED), *stages(SIM, TINY))
    assert found.kind is MarkKind.VERIFIED
    assert "cpu: failing 2026-06-01" in found.beside
    assert "sim: simulated 2026-06-01" in found.beside
    failing = mark(*stages(A2, TINY, Stage.TRAIN, kind=FAILED), *stages(CPU, TINY))
    assert (failing.kind, failing.hardware, failing.beside) == (MarkKind.FAILING, A2, "cpu: wired 2026-06-01")


def test_a_partial_run_erases_no_mark() -> None:
    newer = stages(CPU, TINY, Stage.TRAIN, started_at="2026-06-05T00:00:00Z", versions={"torch": "2.10.0"})
    found = mark(*stages(CPU, TINY), *newer)
    assert (found.kind, found.date) == (MarkKind.WIRED, "2026-06-01")


def test_evidence_from_after_the_day_is_left_out_and_counted() -> None:
    found = table(*stages(CPU, TINY, started_at="2026-06-11T00:00:00Z"))
    assert (found.later, found.evidence) == (5, ())
    assert table(*stages(CPU, TINY), as_of=None).as_of == date(2026, 6, 1)


def test_evidence_of_a_cell_that_is_gone_is_not_lost_in_silence() -> None:
    assert [e.cell for e in table(sample("gone")).orphans] == ["gone"]


def test_rehearsals_are_refused() -> None:
    with pytest.raises(EvidenceError, match="rehearsal"):
        table(sample("small", rehearsal=True))


def test_a_stand_in_for_torch_npu_makes_no_npu() -> None:
    versions = {**NPU_VERSIONS, "torch_npu": "2.9.0+sim"}
    assert mark(*(sealed(replace(e, versions=versions)) for e in REAL_RUN)).kind in (MarkKind.SIMULATED, MarkKind.UNTESTED)


def test_excluded_and_known_limits_say_because() -> None:
    excluded = mark(*stages(CPU, TINY), ruling=ruled("small", Ruling(RulingKind.EXCLUDED, "no meaning")))
    assert (excluded.kind, excluded.because) == (MarkKind.EXCLUDED, "no meaning")
    limit = mark(ruling=ruled("small", Ruling(RulingKind.EXPECT_FAIL, "no kernel")))
    assert (limit.kind, limit.because) == (MarkKind.UNTESTED, "not run; documented limit: no kernel")


ANY = st.builds(
    lambda cell, stage, kind, hardware, asked, weights, day, key: sample(
        cell, stage, kind, hardware, weights, f"2026-06-{day:02d}T00:00:00Z", asked=asked, tiny_key=key, stack="docs", versions=NPU_VERSIONS
    ),
    st.sampled_from(["small", "big", "zero2"]),
    st.sampled_from(STAGES),
    st.sampled_from([PASSED] * 8 + list(VerdictKind)),
    st.sampled_from([None, CPU, SIM]),
    st.sampled_from(Hardware),
    st.sampled_from(Weights),
    st.integers(1, 9),
    st.sampled_from(["tiny-qwen3", "tiny-zero2"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY, max_size=30))
def test_no_path_leads_from_a_cpu_or_a_simulation_to_an_npu_mark(evidence: list[Evidence]) -> None:
    places = [(hardware, weights) for hardware in (CPU, SIM) for weights in Weights]
    whole = [sample("small", s, hardware=h, weights=w, stack="docs", versions=NPU_VERSIONS) for s in STAGES for h, w in places]
    for pieces in (evidence, evidence + whole):
        forbidden = {MarkKind.VERIFIED, MarkKind.STALE, MarkKind.TINY_NPU}
        assert not forbidden & {m.kind for m in table(*pieces).marks}


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY, max_size=20), st.randoms())
def test_the_order_of_evidence_does_not_matter(evidence: list[Evidence], random: Any) -> None:
    shuffled = list(evidence)
    random.shuffle(shuffled)
    assert table(*evidence) == table(*shuffled)
