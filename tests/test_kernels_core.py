"""What a trial compares, which limits decide, and how a search ends: by toy kernels and drawn numbers. No library is under test here."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_toys import CALLS, KNOWN, SMALL, SOUND, WRONG, Inputs, candidate, counted, golden, norm, toy

from harness.errors import HarnessError
from harness.kernels.catalogue import sound
from harness.kernels.criteria import RMS_LIMITS, errors_of, limit_for, not_finite_fault, ratio
from harness.kernels.explore import ParityError, explore, explore_known, replay
from harness.kernels.kernel import DTYPES, Case, Direction, Kernel, Limit, Params, Trial
from harness.kernels.measure import run_trial

CASE = Case({"n": 4, "h": 16, "scale": 1.0}, "fp32")
FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)


def trial(kernel: Kernel, case: Case = CASE) -> Trial:
    return run_trial(kernel, case)


def faulty(kernel: Kernel, says: str, case: Case = CASE) -> None:
    found = trial(kernel, case).faults
    assert any(says in fault for fault in found), found


# --- errors


@given(st.lists(FINITE, min_size=1, max_size=20), st.floats(0.5, 2.0))
def test_a_scaled_answer_is_wrong_by_its_scale_whatever_the_values(values: list[float], by: float) -> None:
    right = torch.tensor(values, dtype=torch.float64)
    errors = errors_of(right * by, right)
    if float(right.abs().max()) == 0:
        assert errors.rms_ratio == 0
    else:
        assert errors.rms_ratio == pytest.approx(abs(by - 1), abs=1e-12)


@given(st.sampled_from([1e-300, 1e-40, 1.0, 1e40, 1e300]), st.integers(0, 1000))
def test_neither_tiny_nor_huge_values_leave_the_range(unit: float, seed: int) -> None:
    right = torch.randn(17, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert errors_of(right * unit * 1.25, right * unit).rms_ratio == pytest.approx(0.25)


@given(st.lists(FINITE, min_size=1, max_size=9))
def test_the_same_answer_has_no_error_and_an_empty_one_neither(values: list[float]) -> None:
    right = torch.tensor(values, dtype=torch.float64)
    assert errors_of(right, right).rms_ratio == errors_of(right, right).single_max == 0
    assert errors_of(right[:0], right[:0]).rms_ratio == 0


def test_a_golden_of_zeros_takes_no_noise() -> None:
    assert errors_of(torch.full((5,), 0.5), torch.zeros(5)).rms_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_must_stand_where_the_golden_has_it(value: float) -> None:
    right = torch.tensor([1.0, value, 2.0], dtype=torch.float64)
    assert not_finite_fault(right.float(), right, 3e38) == ""
    assert not_finite_fault(torch.tensor([1.0, 1.0, 2.0]), right, 3e38) and not_finite_fault(right[[1, 0, 2]].float(), right, 3e38)


def test_what_overflows_the_dtype_may_be_infinite_and_must_have_its_sign() -> None:
    right = torch.tensor([1e6, -1e6], dtype=torch.float64)
    most = torch.finfo(torch.float16).max
    assert not_finite_fault(right.half(), right, most) == ""
    assert "+inf at 2 places, the golden at 1" in not_finite_fault(right.half().abs(), right, most)


def test_an_exact_reference_makes_any_error_worse_and_no_error_is_never_worse() -> None:
    assert ratio(0.0, 0.0) == ratio(0.0, 1.0) == 0.0
    assert ratio(1.0, 0.0) == math.inf and ratio(1.0, 2.0) == 0.5


def test_a_kernels_own_limit_goes_before_the_dtypes() -> None:
    own = {("bf16", Direction.BACKWARD): Limit(0.5, "measured")}
    assert limit_for("bf16", Direction.BACKWARD, own).rms_ratio == 0.5
    assert limit_for("bf16", Direction.FORWARD, own) == RMS_LIMITS["bf16"]
    assert all(limit.source for limit in RMS_LIMITS.values()) and RMS_LIMITS.keys() == DTYPES.keys()


# --- a trial


def test_a_sound_kernel_is_compared_in_every_output_and_gradient_and_counted() -> None:
    found = trial(SOUND)
    assert found.faults == () and found.ran == {"norm": 1}
    keys = {(figure.tensor, figure.direction) for figure in found.figures}
    assert keys == {("y", Direction.FORWARD), ("x", Direction.BACKWARD), ("w", Direction.BACKWARD)}


def test_a_candidate_that_ran_nothing_proves_nothing() -> None:
    faulty(replace(SOUND, candidate=golden), "norm never ran in the candidate")
    faulty(replace(SOUND, candidate=golden, must_run=()), "it may have compared plain torch with itself")
    faulty(replace(SOUND, candidate=candidate(count="another")), "norm never ran in the candidate")


def test_a_golden_that_runs_the_kernel_is_no_reference() -> None:
    faulty(replace(SOUND, golden=candidate()), "the golden ran norm: it is no independent reference")


def outputs(change: str) -> Kernel:
    def run(given: Inputs, params: Params) -> Inputs:
        y = candidate()(given, params)["y"]
        return {"missing": {}, "more": {"y": y, "z": y}, "shape": {"y": y[:, :-1]}, "cut": {"y": y.detach()}}[change]

    return replace(SOUND, candidate=run)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("missing", "forward y: the candidate doesn't give it"),
        ("more", "forward z: the candidate gives it, and the golden doesn't"),
        ("shape", "forward y: shape (4, 15), the golden's is (4, 16)"),
        ("cut", "backward x: the candidate doesn't give it"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_a_fault(change: str, says: str) -> None:
    faulty(outputs(change), says)


def test_whole_numbers_must_be_equal() -> None:
    right = replace(SOUND, differentiable=(), golden=lambda given, params: {"order": given["x"].argsort(-1)})

    def run(given: Inputs, params: Params) -> Inputs:
        CALLS["norm"] += 1
        return {"order": given["x"].argsort(-1).int()}

    def reversed_order(given: Inputs, params: Params) -> Inputs:
        return {"order": run(given, params)["order"].flip(-1)}

    assert trial(replace(right, candidate=run, plain=None)).faults == ()
    faulty(replace(right, candidate=reversed_order, plain=None), "of 64 whole numbers differ")


def test_inputs_are_rounded_once_and_named_ones_are_kept() -> None:
    seen: list[tuple[torch.dtype, torch.dtype, torch.Tensor]] = []

    def watching(given: Inputs, params: Params) -> Inputs:
        seen.append((given["x"].dtype, given["w"].dtype, given["x"].detach()))
        return golden(given, params) if given["x"].dtype == torch.float64 else candidate()(given, params)

    kernel = replace(SOUND, candidate=watching, golden=watching, keep=frozenset({"w"}), plain=None)
    trial(kernel, replace(CASE, dtype="bf16"))
    wide, narrow = seen
    assert wide[:2] == (torch.float64, torch.float64) and narrow[:2] == (torch.bfloat16, torch.float32)
    assert torch.equal(wide[2], narrow[2].double())


def test_strides_reach_the_candidate() -> None:
    def turned(params: Params, generator: torch.Generator) -> Inputs:
        x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
        return {"x": x.t(), "w": torch.ones(8, dtype=torch.float64)}

    def run(given: Inputs, params: Params) -> Inputs:
        assert given["x"].stride() == (1, 4)
        return candidate()(given, params)

    assert trial(replace(SOUND, inputs=turned, candidate=run)).faults == ()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_the_weakest_seeded_fault_is_beyond_the_limit_in_float32(dtype: str) -> None:
    """An eps of 1e-5 for 1e-6 moves a norm of small values; it is what a loose limit lets through."""
    small = Case({"n": 4, "h": 16, "scale": 1e-2}, dtype)
    assert trial(SOUND, small).faults == ()
    assert bool(trial(replace(SOUND, candidate=candidate(1e-5)), small).faults)


def test_an_ill_conditioned_case_is_judged_against_plain_torch() -> None:
    def cancelling(given: Inputs, params: Params) -> Inputs:
        x = given["x"]
        return {"y": (x + 1000.0).to(x.dtype) - 1000.0}

    def run(given: Inputs, params: Params) -> Inputs:
        CALLS["norm"] += 1
        return cancelling(given, params)

    kernel = replace(SOUND, candidate=run, golden=cancelling, plain=cancelling, differentiable=())
    found = trial(kernel)
    assert found.faults == () and found.figures[0].ill and found.figures[0].rms_ratio > RMS_LIMITS["fp32"].rms_ratio
    faulty(replace(kernel, plain=None), "to the golden, limit")


def test_the_dual_benchmark_names_a_candidate_that_is_worse_than_plain_torch() -> None:
    def sloppy(given: Inputs, params: Params) -> Inputs:
        CALLS["norm"] += 1
        return {"y": norm(given["x"], given["w"], 1e-6) * (1 + 4e-6)}

    faulty(replace(SOUND, candidate=sloppy), "dual benchmark L0")


def test_the_single_benchmark_decides_only_where_it_is_asked() -> None:
    def one_off(given: Inputs, params: Params) -> Inputs:
        CALLS["norm"] += 1
        y = norm(given["x"], given["w"], 1e-6)
        smallest = y.detach().abs().argmin()
        return {"y": y + torch.nn.functional.one_hot(smallest, y.numel()).reshape(y.shape) * y.detach().abs().min() * 0.01}

    kernel = replace(SOUND, candidate=one_off, plain=None, differentiable=(), limits={("fp32", Direction.FORWARD): Limit(1.0, "a test's")})
    assert trial(kernel).faults == ()
    faulty(replace(kernel, single=True), "single benchmark: relative error")


# --- a search


def test_the_examples_come_first_and_the_same_cases_are_drawn_each_time() -> None:
    seen: list[tuple[object, ...]] = []

    def watching(given: Inputs, params: Params) -> Inputs:
        seen.append((params["n"], params["h"], params["scale"]))
        return candidate()(given, params)

    kernel = toy("watched", candidate=watching)
    first = explore(kernel, "fp32")
    once = list(seen)
    seen.clear()
    assert explore(kernel, "fp32") == first and seen == once
    assert once[0] == (3, 8, 1.0) and len(once) == first.cases == 1 + kernel.tries
    assert explore(kernel, "fp32", quick=True).cases == 1 + kernel.quick_tries


def test_a_counterexample_is_shrunk_and_its_command_repeats_it() -> None:
    with pytest.raises(ParityError) as told:
        explore(WRONG, "fp32")
    assert "'n': 1, 'h': 2, 'scale': 0.001" in str(told.value) and str(told.value).splitlines()[-1].startswith("  pytest -m kernel_parity")
    with pytest.raises(ParityError, match=r"toy\.wrong in fp32"):
        replay(WRONG, [Case({"n": 1, "h": 2, "scale": 0.001}, "fp32", 0)])
    assert replay(WRONG, [CASE]).cases == 1


def test_a_candidate_that_dies_is_a_counterexample_like_any_other() -> None:
    def dies(given: Inputs, params: Params) -> Inputs:
        if params["h"] > 20:
            raise IndexError("out of range\nsecond line")
        return candidate()(given, params)

    with pytest.raises(ParityError) as told:
        explore(toy("dies", candidate=dies), "fp32")
    assert "IndexError at" in str(told.value) and "out of range" in str(told.value) and "'h': 21" in str(told.value)


def test_a_candidate_that_answers_otherwise_each_time_is_told_as_such() -> None:
    state = Counter[str]()

    def moody(given: Inputs, params: Params) -> Inputs:
        state["calls"] += 1
        return candidate(1.0 if state["calls"] == 4 else 1e-6)(given, params)

    with pytest.raises(ParityError, match="the same case failed and then passed"):
        explore(toy("moody", candidate=moody), "fp32")


def test_the_cases_of_a_known_failure_are_tried_apart() -> None:
    kernel = toy("known", candidate=WRONG.candidate, examples=(*SOUND.examples, *SMALL), known=(KNOWN,))
    found = explore(kernel, "fp32")
    assert found.left_out > 0 and found.cases > 1 and all(worst.rms_ratio <= worst.limit for worst in found.worst)
    known = explore_known(kernel, "fp32", KNOWN)
    assert (known.failed, known.passed) == (1, 0) and "to the golden, limit" in known.said and "--kernel-case" in known.replay
    mended = explore_known(replace(kernel, candidate=candidate()), "fp32", KNOWN)
    assert (mended.failed, mended.passed, mended.said) == (0, 1, "")
    with pytest.raises(ParityError):
        replay(kernel, [Case(SMALL[0], "fp32")])


def test_a_known_failure_that_dies_or_runs_nothing_fails_in_another_way() -> None:
    def dies(given: Inputs, params: Params) -> Inputs:
        raise RuntimeError("no kernel image")

    for wrong, says in ((dies, "RuntimeError"), (golden, "never ran"), (outputs("missing").candidate, "doesn't give it")):
        kernel = toy("known", candidate=wrong, examples=(*SOUND.examples, *SMALL), known=(KNOWN,))
        assert says in explore_known(kernel, "fp32", KNOWN).other
    assert explore_known(toy("known", candidate=WRONG.candidate, examples=SMALL, known=(KNOWN,)), "fp32", KNOWN).other == ""


def test_where_every_case_is_a_known_failures_nothing_is_tried() -> None:
    everything = replace(KNOWN, concerns=lambda case: True)
    found = explore(toy("hopeless", known=(everything,)), "fp32")
    assert found.cases == 0 and found.left_out > 0


def test_the_worst_figures_are_those_nearest_to_their_limit() -> None:
    found = explore(SOUND, "bf16")
    assert {worst.direction for worst in found.worst} == set(Direction)
    for worst in found.worst:
        again = run_trial(SOUND, worst.case)
        assert any(figure.tensor == worst.tensor and figure.rms_ratio == worst.rms_ratio for figure in again.figures)


# --- the catalogue


def test_a_name_that_cannot_be_selected_or_stands_twice_is_refused() -> None:
    assert sound([SOUND, WRONG]) == (SOUND, WRONG)
    for wrong, says in (([SOUND, SOUND], "several kernels"), ([toy("a b")], "-k can select"), ([toy("x", dtypes=())], "declares no dtype")):
        with pytest.raises(HarnessError, match=says):
            sound(wrong)


def test_counting_starts_anew_in_every_trial() -> None:
    CALLS["norm"] += 7
    with counted() as calls:
        assert not calls
    assert trial(SOUND).ran == {"norm": 1}
