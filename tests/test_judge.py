import itertools
from dataclasses import replace

import pytest

from harness.judge import Case, judge
from harness.model import Blame, Comparison, Outcome, Ruling, RulingKind, Run, VerdictKind

HEALTHY = Outcome("none", Blame.UNKNOWN)
OOM = Outcome("mem.npu_oom", Blame.PRODUCT, "NPU out of memory")
LOST = Outcome("dev.lost", Blame.ENVIRONMENT, "heartbeat lost")
GOOD = Comparison("steps", True, "6", "6")
BAD = Comparison("steps", False, "6", "2", "proof.steps_missing")
RUN = Ruling(RulingKind.RUN)
XFAIL = Ruling(RulingKind.EXPECT_FAIL, "documented limit")


def run(ended_by="exit"):
    return Run("train", "n", ("swift",), {}, "2026-11-30T00:00:00+00:00", 1.0, 0, ended_by, "log", "")


def case(ruling=RUN, outcome=HEALTHY, comparisons=(GOOD,), runs=None, **more):
    return Case(ruling, outcome, comparisons, (run(),) if runs is None else runs, **more)


def test_a_stage_passes_only_when_everything_compared_holds():
    assert judge(case()).kind is VerdictKind.PASSED


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (case(outcome=OOM), "mem.npu_oom"),
        (case(comparisons=(GOOD, BAD)), "proof.steps_missing"),
        (case(comparisons=()), "proof.nothing_compared"),
        (case(missing=("grad_norm",)), "proof.nothing_compared"),
        (case(runs=()), "proof.nothing_ran"),
    ],
)
def test_each_way_to_fail_is_a_failure_with_its_cause(broken, cause):
    verdict = judge(broken)
    assert (verdict.kind, verdict.cause) == (VerdictKind.FAILED, cause)


def test_how_the_process_ended_is_named_before_what_it_did_not_prove():
    assert judge(case(outcome=OOM, comparisons=(BAD,))).cause == "mem.npu_oom"


def test_an_expected_failure_that_fails_is_known_and_one_that_passes_is_not_green():
    assert judge(case(XFAIL, OOM)).kind is VerdictKind.KNOWN_FAILURE
    assert judge(case(XFAIL)).kind is VerdictKind.FIXED


def test_a_sick_device_does_not_count_as_the_documented_failure():
    assert judge(case(XFAIL, LOST)).kind is VerdictKind.FAILED


ARGS = Outcome("args.unknown", Blame.PRODUCT, "remaining_argv: ['--tuner_typ']")
EXIT_3 = Outcome("run.exit_nonzero", Blame.PRODUCT)
UNREAD = Outcome("unknown", Blame.UNKNOWN, "something odd")
GOLDEN = Comparison("golden.loss", False, "equal", "0.07", "golden.differs")
RESUME = Comparison("resume.loaded", False, "step 3", "step 0", "resume.differs")


@pytest.mark.parametrize("outcome", [ARGS, EXIT_3, UNREAD])
def test_a_typo_or_a_crash_without_a_cause_is_not_the_recorded_limit(outcome):
    verdict = judge(case(XFAIL, outcome))
    assert (verdict.kind, verdict.cause, verdict.blame) == (VerdictKind.FAILED, outcome.cause, outcome.blame)
    assert "not the recorded limit" in verdict.because


def test_a_proof_that_came_to_nothing_is_not_the_recorded_limit():
    assert judge(case(XFAIL, comparisons=(BAD,))).kind is VerdictKind.FAILED


@pytest.mark.parametrize("causes", [("golden.differs",), ("golden.",), ("resume.", "golden.differs")])
def test_a_limit_with_causes_is_known_by_them(causes):
    assert judge(case(replace(XFAIL, causes=causes), comparisons=(GOLDEN,))).kind is VerdictKind.KNOWN_FAILURE


@pytest.mark.parametrize("broken", [{"comparisons": (RESUME,)}, {"outcome": OOM}, {"outcome": EXIT_3}, {"comparisons": (BAD,)}])
def test_a_failure_of_another_cause_than_the_limits_is_a_failure(broken):
    assert judge(case(replace(XFAIL, causes=("golden.",)), **broken)).kind is VerdictKind.FAILED


def test_the_beginning_of_a_cause_stands_for_others_only_with_its_dot():
    assert judge(case(replace(XFAIL, causes=("golden",)), comparisons=(GOLDEN,))).kind is VerdictKind.FAILED


def test_a_cause_that_is_named_counts_even_if_it_would_not_by_itself():
    assert judge(case(replace(XFAIL, causes=("run.exit_nonzero",)), EXIT_3)).kind is VerdictKind.KNOWN_FAILURE


def test_an_interrupted_run_is_neither_pass_nor_failure():
    assert judge(case(outcome=OOM, runs=(run("interrupt"),))).kind is VerdictKind.INTERRUPTED


def test_a_stage_without_a_proof_is_untested_however_well_it_ran():
    assert judge(case(gap="not built")).kind is VerdictKind.UNTESTED


def test_nothing_but_a_healthy_fully_compared_run_is_ever_passed():
    """All combinations of facts: PASSED needs every one of them right."""
    choices = itertools.product(
        [RUN, XFAIL, Ruling(RulingKind.EXCLUDED, "x"), Ruling(RulingKind.NOT_RUNNABLE, "x")],
        [HEALTHY, OOM, LOST],
        [(), (GOOD,), (BAD,), (GOOD, BAD)],
        [(), (run(),), (run("interrupt"),)],
        ["", "gap"],
        ["", "train"],
        [(), ("loss",)],
    )
    for ruling, outcome, comparisons, runs, gap, blocked_by, missing in choices:
        verdict = judge(Case(ruling, outcome, comparisons, runs, gap, blocked_by, missing))
        right = ruling is RUN and outcome is HEALTHY and comparisons == (GOOD,) and runs and runs[0].ended_by == "exit"
        right = right and not gap and not blocked_by and not missing
        assert (verdict.kind is VerdictKind.PASSED) == bool(right)
