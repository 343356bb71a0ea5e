"""Resuming is believed only when it continues the straight run's numbers and a run that lost its optimizer does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import examples as ex
import pytest
from examples import Event

from harness.commands_tables import MODEL_ONLY, ZERO_MOMENTS
from harness.model import Blame, Comparison, Hardware, Stage, StepResult, Weights
from harness.proof_required import missing_required
from harness.proof_resume import prove_resume

FROM = 2
STRAIGHT = ex.result(ex.train_events(), ex.log_text())
RESUMED = ex.train_events(first=FROM)
LOG = ex.log_text([3, 4])


def control(name: str, scale: float = 1.001, **fields: Any) -> StepResult:
    """A run whose numbers are off by one in a thousand and whose weights end elsewhere."""
    lost = {"control": name, "optimizer_moment_norm": 0.0} if name == ZERO_MOMENTS else {"optimizer_moment_norm": None}
    events = ex.changed(ex.changed(RESUMED, "train_begin", **{**lost, **fields}), "train_end", trainable_digest=f"of {name}")
    return ex.result(events, ex.log_text([3, 4], scale=scale), name=name)


CONTROLS = {ZERO_MOMENTS: control(ZERO_MOMENTS), MODEL_ONLY: control(MODEL_ONLY)}


def prove(
    events: Sequence[Event] = RESUMED,
    log: str = LOG,
    controls: Mapping[str, StepResult] = CONTROLS,
    weights: Weights = Weights.TINY,
    hardware: Hardware = Hardware.CPU,
    **more: Any,
) -> tuple[Comparison, ...]:
    return prove_resume(
        cell=ex.cell(),
        hardware=hardware,
        weights=weights,
        dtype="float32",
        straight=STRAIGHT,
        resumed=ex.result(events, log, name="resume"),
        from_step=FROM,
        asked_steps=ex.STEPS,
        controls=controls,
        **more,
    )


def test_an_honest_resume_passes_and_nothing_required_is_left_out() -> None:
    made = prove()
    assert ex.causes(made) == ()
    assert missing_required(Stage.RESUME, made, ex.asked()) == ()


def test_the_size_of_the_controls_deviation_is_recorded() -> None:
    made = {c.name: c for c in prove()}
    found = made[f"resume.control.{ZERO_MOMENTS}.fails"]
    assert found.ok and found.error == pytest.approx(1e-3, rel=0.01)


LIES: dict[str, tuple[Sequence[Event], str, str]] = {
    "begun anew": (ex.train_events(), ex.log_text(), "resume.ignored"),
    "begun anew, as the witness alone tells": (ex.changed(RESUMED, "train_begin", global_step=0), LOG, "resume.ignored"),
    "begun with untrained weights in disguise": (
        ex.changed(RESUMED, "train_begin", trainable_digest=ex.train_events()[1]["trainable_digest"]), LOG, "resume.ignored"),
    "begun with other weights": (ex.changed(RESUMED, "train_begin", trainable_digest="else"), LOG, "resume.differs"),
    "no log": (RESUMED, "", "proof.no_log"),
    "a step missing": (RESUMED, ex.log_text([3]), "proof.steps_missing"),
    "a step more": (RESUMED, ex.log_text([3, 4, 5]), "proof.steps_extra"),
    "no moments": (ex.changed(RESUMED, "train_begin", optimizer_moment_norm=None), LOG, "proof.optimizer"),
    "other numbers": (ex.train_events(first=FROM, scale=1 + 1e-7), ex.log_text([3, 4], scale=1 + 1e-7), "resume.differs"),
    "numbers that the trainer did not log": (RESUMED, ex.log_text([3, 4], scale=1 + 1e-7), "proof.log_differs"),
    "other weights": (ex.changed(RESUMED, "train_end", trainable_digest="else"), LOG, "resume.differs"),
    "no final digest": (ex.changed(RESUMED, "train_end", trainable_digest=None), LOG, "proof.ranks"),
    "half an optimizer": (ex.changed(RESUMED, "train_end", first_moments_numel=50), LOG, "proof.strategy"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_resume_that_lies_is_named(name: str) -> None:
    events, log, cause = LIES[name]
    assert ex.causes(prove(events, log)) == (cause,)


def test_a_resume_on_another_device_is_named_as_that_and_as_no_rank_of_this_run() -> None:
    assert ex.causes(prove(ex.changed(RESUMED, "train_begin", device="npu:0"))) == ("proof.device", "proof.ranks")


BLIND = control(ZERO_MOMENTS, scale=1.0)
BAD_CONTROLS: dict[str, tuple[Mapping[str, StepResult], str]] = {
    "none ran": ({}, "resume.control_missing"),
    "one ran": ({ZERO_MOMENTS: CONTROLS[ZERO_MOMENTS]}, "resume.control_missing"),
    "not in force": ({**CONTROLS, ZERO_MOMENTS: control(ZERO_MOMENTS, control=None)}, "resume.control_missing"),
    "with its moments": ({**CONTROLS, MODEL_ONLY: control(MODEL_ONLY, optimizer_moment_norm=0.5)}, "resume.control_missing"),
    "died": (
        {**CONTROLS, ZERO_MOMENTS: replace(CONTROLS[ZERO_MOMENTS], run=replace(CONTROLS[ZERO_MOMENTS].run, exit_code=1))},
        "resume.control_missing"),
    "unwitnessed": ({**CONTROLS, MODEL_ONLY: replace(CONTROLS[MODEL_ONLY], witnesses=())}, "resume.control_missing"),
    "passed": (
        {**CONTROLS, ZERO_MOMENTS: ex.result(ex.changed(RESUMED, "train_begin", control=ZERO_MOMENTS), LOG)}, "resume.control_passed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CONTROLS)
def test_a_control_that_proves_nothing_is_the_harness_s_fault(name: str) -> None:
    controls, cause = BAD_CONTROLS[name]
    made = prove(controls=controls)
    assert ex.causes(made) == (cause,)
    assert all(c.blame is Blame.HARNESS for c in made if not c.ok)


def test_equal_numbers_with_another_digest_tell_a_control_apart_on_a_cpu() -> None:
    assert ex.causes(prove(controls={**CONTROLS, ZERO_MOMENTS: BLIND})) == ()


def test_a_straight_run_whose_save_was_not_witnessed_is_no_reference() -> None:
    unsaved = ex.result(ex.train_events(saves=(4,)), ex.log_text())
    made = prove_resume(
        cell=ex.cell(), hardware=Hardware.CPU, weights=Weights.TINY, dtype="float32", straight=unsaved,
        resumed=ex.result(RESUMED, LOG, name="resume"), from_step=FROM, asked_steps=ex.STEPS, controls=CONTROLS,
    )  # fmt: skip
    assert ex.causes(made) == ("proof.witness_missing",)


def test_real_weights_need_no_controls() -> None:
    made = prove(controls={}, weights=Weights.REAL)
    assert ex.causes(made) == ()
    assert missing_required(Stage.RESUME, made, ex.asked(weights=Weights.REAL)) == ()


def test_an_npu_may_differ_by_rounding_and_compares_the_weights_themselves() -> None:
    def rounded(scale: float) -> list[Event]:
        begun = ex.changed(ex.train_events(first=FROM, scale=scale), "train_begin", device="npu:0")
        return ex.changed(begun, "train_end", trainable_digest="rounded otherwise")

    events, log = rounded(1 + 1e-6), ex.log_text([3, 4], scale=1 + 1e-6)
    same = (ex.weights_at(4), ex.weights_at(4))
    name = f"base_model.model.{ex.MODULES[0]}.lora_A.weight"
    off = ex.with_tensor(same[0], name, same[0].tensors[name].values() * 1.001)
    assert ex.causes(prove(events, log, hardware=Hardware.A2, finals=same)) == ()
    assert ex.causes(prove(events, log, hardware=Hardware.A2, finals=(same[0], off))) == ("resume.differs",)
    assert ex.causes(prove(events, log, hardware=Hardware.A2, finals=None)) == ("resume.differs",)
    assert ex.causes(prove(rounded(1.0001), ex.log_text([3, 4], scale=1.0001), hardware=Hardware.A2, finals=same)) == ("resume.differs",)
