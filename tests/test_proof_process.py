"""The process that worked must be the one that was started: same nonce, same arguments, the device and strategy asked for."""

from __future__ import annotations

from collections.abc import Sequence

import examples as ex
import pytest

from harness.model import Algorithm as A
from harness.model import Blame, Hardware, Stage, Strategy, Tuner, Weights
from harness.proof_process import prove_device, prove_process, prove_strategy
from harness.proof_required import REQUIRED, required


def argv_fails(asked: Sequence[str], had: Sequence[str]) -> bool:
    made, _ = prove_process("x", ex.result([{**ex.start(), "argv": list(had)}], arguments=asked), "start")
    return ex.causes(made) == ("proof.argv",)


def test_arguments_may_stand_in_another_order_or_behind_an_equals_sign() -> None:
    asked = ("sft", "--a", "1", "--b", "x", "y", "--c")
    assert not argv_fails(asked, ["main.py", "--c", "--b", "x", "y", "--a=1", "--more", "z"])


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
