"""The process that worked must be the one that was started: same nonce, same arguments, the device and strategy asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import examples as ex
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model import Hardware, Stage, Strategy, Tuner, Weights
from harness.proof_asked import other_words, prove_arguments
from harness.proof_golden import REQUIRED_GOLDEN_INFER, REQUIRED_GOLDEN_TRAIN, REQUIRED_PARITY, REQUIRED_PATCHES
from harness.proof_process import prove_device, prove_process
from harness.proof_required import REQUIRED, required


def argv_fails(asked: Sequence[str], had: Sequence[str]) -> bool:
    made, _ = prove_process("x", ex.result([{**ex.start(), "argv": list(had)}], arguments=asked), "start")
    return ex.causes(made) == ("proof.argv",)


def test_arguments_may_stand_in_another_order_or_behind_an_equals_sign() -> None:
    asked = ("sft", "--a", "1", "--b", "x", "y", "--c")
    assert not argv_fails(asked, ["main.py", "--c", "--b", "x", "y", "--a=1"])
    assert not argv_fails(("launch", "--config_file", "f", "/site/sft.py", "--a", "1"), ["/site/sft.py", "--a", "1"])


ASKED = ("sft", "--learning_rate", "0.01", "--max_length", "256")


@pytest.mark.parametrize(
    "more",
    [
        ["--learning-rate", "0.004"],
        ["--learning_rate", "0.01"],
        ["--max_lengt", "200"],
        ["--data_seed", "7"],
        ["--learning_rate=0.004"],
        ["a_word"],
    ],
)
def test_a_word_more_than_asked_is_told_whatever_its_form(more: list[str]) -> None:
    had = ["main.py", *ASKED[1:]]
    assert not argv_fails(ASKED, had)
    assert argv_fails(ASKED, [*had, *more])
    assert argv_fails(ASKED, ["main.py", *more, *had[1:]])


@given(st.lists(st.text(max_size=6)), st.one_of(st.none(), st.lists(st.text(max_size=6) | st.integers())))
def test_no_words_make_the_comparison_of_arguments_raise(asked: list[str], had: object) -> None:
    other_words(asked, had)


GOES_BY = {
    "learning_rate": 0.01, "seed": 42, "data_seed": 42, "max_length": 256, "warmup_ratio": 0.0, "warmup_steps": 0.05,
    "lr_scheduler_type": "cosine", "dataset": ["a", "b"], "output_dir": "/w/train/v0-2026",
}  # fmt: skip
NAMED = (
    "sft", "--learning_rate", "1e-2", "--seed", "42", "--max_length", "256", "--warmup_ratio", "0.05", "--lr_scheduler_type", "cosine",
    "--dataset", "a", "b", "--output_dir", "/w/train", "--model", "m",
)  # fmt: skip


def goes_by(**other: Any) -> tuple[str, ...]:
    return ex.causes([prove_arguments("x", ex.result([], arguments=NAMED), {"arguments": {**GOES_BY, **other}})])


def test_a_trainer_that_goes_by_the_commands_settings_passes() -> None:
    assert goes_by() == ()
    assert goes_by(warmup_ratio=0.05, warmup_steps=0) == ()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("learning_rate", 0.004),
        ("learning_rate", None),
        ("seed", 7),
        ("data_seed", 7),
        ("max_length", 200),
        ("warmup_steps", 0),
        ("lr_scheduler_type", "linear"),
        ("dataset", ["a"]),
        ("output_dir", "/w/train2/v0"),
    ],
)
def test_a_trainer_that_goes_by_another_setting_is_told(name: str, other: object) -> None:
    assert goes_by(**{name: other}) == ("proof.argv",)


def test_arguments_that_nobody_witnessed_are_missing() -> None:
    assert ex.causes([prove_arguments("x", ex.result([], arguments=NAMED), {})]) == ("proof.witness_missing",)


def process_fails(event: ex.Event) -> tuple[str, ...]:
    return ex.causes(prove_process("x", ex.result([event]), "start")[0])


@pytest.mark.parametrize("name", ["ms-swift", "torch", "transformers", "python"])
def test_a_program_without_the_version_of_a_part_of_ms_swift_is_none(name: str) -> None:
    start = ex.start()
    assert process_fails({**start, "versions": {**start["versions"], name: None}}) == ("proof.not_swift",)


@pytest.mark.parametrize("name", ["python", "swift_file"])
def test_a_program_that_does_not_say_where_ms_swift_is_is_none(name: str) -> None:
    assert process_fails({**ex.start(), name: None}) == ("proof.not_swift",)


TRAINED = ex.train_events()
IMPOSSIBLE = {
    "a start before the run": [{**TRAINED[0], "time": ex.BEGAN - 60}, *TRAINED[1:]],
    "an end after the run": [*TRAINED[:-1], {**TRAINED[-1], "time": ex.BEGAN + 60}],
    "an event without a time": [*TRAINED[:-1], {**TRAINED[-1], "time": None}],
    "two starts": [TRAINED[0], *TRAINED],
    "two trainings": [*TRAINED, TRAINED[1]],
    "seconds below zero": ex.changed(TRAINED, "step", seconds=-0.1),
    "steps longer than the run": ex.changed(TRAINED, "step", seconds=1e9),
    "no seconds": ex.changed(TRAINED, "step", seconds=None),
    "seconds that are a word": ex.changed(TRAINED, "step", seconds="nan"),
    "memory below zero": ex.changed(TRAINED, "end", peak_rss_mib=-1),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_witness_that_tells_what_can_t_be_is_a_fault(name: str) -> None:
    made, witness = prove_process("x", ex.result(IMPOSSIBLE[name]), "train_end")
    assert (ex.causes(made), witness) == (("proof.witness_fault",), None)


def test_a_second_process_that_trained_as_rank_zero_is_a_fault() -> None:
    ran = ex.result(TRAINED)
    made, _ = prove_process("x", replace(ran, witnesses=(*ran.witnesses, ex.witness(TRAINED, pid=8))), "train_end")
    assert ex.causes(made) == ("proof.witness_fault",)


@pytest.mark.parametrize("had", [["main.py"], ["main.py", "--a", "2", "--b", "x", "y", "--c"], ["main.py", "--a", "1", "--b", "x", "--c"]])
def test_an_argument_that_is_lost_or_changed_is_told(had: list[str]) -> None:
    assert argv_fails(("sft", "--a", "1", "--b", "x", "y", "--c"), had)


def test_no_witness_is_handed_on_after_a_failure() -> None:
    _, witness = prove_process("x", ex.result([ex.start()], nonce="older"), "start")
    assert witness is None
    _, witness = prove_process("x", ex.result([ex.start()]), "start")
    assert witness is not None


def test_no_event_is_no_device() -> None:
    assert not prove_device("x", Hardware.CPU, ex.witness([ex.start()]), []).ok


def test_one_call_on_another_device_is_enough_to_fail() -> None:
    witness = ex.witness([ex.start()])
    assert prove_device("x", Hardware.CPU, witness, [{"device": "cpu"}] * 2).ok
    assert not prove_device("x", Hardware.CPU, witness, [{"device": "cpu"}, {"device": "npu:0"}]).ok


def test_a_stand_in_is_known_by_its_version_where_the_event_does_not_say() -> None:
    simulated = ex.witness([{**ex.start(), "versions": {"torch_npu": "2.14.1+sim"}}])
    assert prove_device("x", Hardware.SIM, simulated, [{"device": "npu:0"}]).ok
    assert not prove_device("x", Hardware.A2, simulated, [{"device": "npu:0"}]).ok


def test_a_device_without_a_name_is_not_the_chip_that_was_asked_for() -> None:
    witness = ex.witness([ex.start()])
    assert not prove_device("x", Hardware.A2, witness, [{"device": "npu:0", "device_name": None}], ("Ascend910B*",)).ok


@pytest.mark.parametrize("stage", list(REQUIRED))
@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.MEGATRON])
@pytest.mark.parametrize("hardware", [Hardware.CPU, Hardware.SIM, Hardware.A2])
def test_what_is_required_is_named_once(stage: Stage, tuner: Tuner, strategy: Strategy, hardware: Hardware) -> None:
    names = required(stage, ex.asked(tuner, strategy=strategy, hardware=hardware))
    assert len(names) == len(set(names))
    assert {name.partition(".")[0] for name in names} <= {str(stage), "golden", "parity"}


def beside(stage: Stage, strategy: Strategy, hardware: Hardware, weights: Weights = Weights.TINY) -> set[str]:
    """What is required beyond what one process on a plain cpu needs."""
    alone = set(required(stage, ex.asked(weights=weights)))
    return set(required(stage, ex.asked(strategy=strategy, weights=weights, hardware=hardware))) - alone


@pytest.mark.parametrize("strategy", [s for s in Strategy if s not in (Strategy.SINGLE, Strategy.MEGATRON)])
def test_a_tiny_training_of_several_ranks_must_agree_with_one_process_wherever_it_runs_off_an_npu(strategy: Strategy) -> None:
    assert beside(Stage.TRAIN, strategy, Hardware.CPU) == set(REQUIRED_PARITY)
    assert beside(Stage.TRAIN, strategy, Hardware.SIM) == {*REQUIRED_PARITY, *REQUIRED_PATCHES}
    assert beside(Stage.INFER, strategy, Hardware.SIM) == set(REQUIRED_GOLDEN_INFER)
    assert beside(Stage.INFER, strategy, Hardware.CPU) == set()
    for stage in REQUIRED:
        assert beside(stage, strategy, Hardware.A2) == set()
        assert beside(stage, strategy, Hardware.A2, Weights.REAL) == set()


def test_one_process_on_a_simulated_npu_must_agree_with_the_cpu() -> None:
    assert beside(Stage.TRAIN, Strategy.SINGLE, Hardware.SIM) == {*REQUIRED_GOLDEN_TRAIN, *REQUIRED_PATCHES}
    assert beside(Stage.INFER, Strategy.SINGLE, Hardware.SIM) == set(REQUIRED_GOLDEN_INFER)
    for stage in (Stage.RESUME, Stage.MERGE, Stage.DEPLOY):
        assert beside(stage, Strategy.SINGLE, Hardware.SIM) == set()


@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.MEGATRON])
def test_a_resume_takes_the_controls_that_its_strategy_can_have(strategy: Strategy) -> None:
    names = required(Stage.RESUME, ex.asked(strategy=strategy))
    assert "resume.control.zero_moments.fails" in names
    assert ("resume.control.resume_only_model.fails" in names) is (strategy in (Strategy.SINGLE, Strategy.DDP, Strategy.FSDP1))
    assert not any("control." in name for name in required(Stage.RESUME, ex.asked(strategy=strategy, weights=Weights.REAL)))


def test_a_stage_without_a_proof_has_no_list_of_what_it_needs() -> None:
    with pytest.raises(KeyError):
        required(Stage.EVAL, ex.asked())
