"""The process that worked must be the one that was started: same nonce, same arguments, the device and strategy asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import examples as ex
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model import Algorithm as A
from harness.model import Blame, Hardware, Stage, Strategy, Tuner, Weights
from harness.proof_asked import other_words, prove_arguments
from harness.proof_process import prove_device, prove_process, prove_strategy
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


@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.SINGLE])
def test_a_strategy_without_a_proof_is_no_pass_and_the_harness_s_lack(strategy: Strategy) -> None:
    made = prove_strategy("x", strategy, ex.result(ex.train_events()), ex.train_events()[1])
    assert (made.ok, made.cause, made.blame) == (False, "proof.strategy_unbuilt", Blame.HARNESS)


@pytest.mark.parametrize("stage", list(REQUIRED))
@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_what_is_required_is_named_once(stage: Stage, tuner: Tuner) -> None:
    names = required(stage, weights=Weights.TINY, tuner=tuner, algorithm=A.SFT)
    assert len(names) == len(set(names)) and all(name.startswith(f"{stage}.") for name in names)


def test_a_stage_without_a_proof_has_no_list_of_what_it_needs() -> None:
    with pytest.raises(KeyError):
        required(Stage.EVAL, weights=Weights.TINY, tuner=Tuner.LORA, algorithm=A.SFT)
