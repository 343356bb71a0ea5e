"""Training is believed only when the log, the witness and the checkpoint agree with what was asked; each lie has its own name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import examples as ex
import numpy as np
import pytest
from examples import Event

from harness.causes import blame_of
from harness.found import AskedLora, CheckpointFiles
from harness.model import Algorithm, Blame, Comparison, Hardware, Stage, StepResult, Strategy, Tuner, Weights
from harness.proof_required import missing_required
from harness.proof_train import prove_train
from harness.tensors import TensorFile


def prove(
    *,
    events: Sequence[Event] | None = None,
    log: str | None = None,
    result: StepResult | None = None,
    checkpoints: Mapping[int, CheckpointFiles] | None = None,
    tuner: Tuner = Tuner.LORA,
    algorithm: Algorithm = Algorithm.SFT,
    strategy: Strategy = Strategy.SINGLE,
    hardware: Hardware = Hardware.CPU,
    asked: AskedLora = ex.LORA,
    base: TensorFile | None = None,
    **more: Any,
) -> tuple[Comparison, ...]:
    ran = ex.result(ex.train_events(tuner=tuner) if events is None else events, ex.log_text() if log is None else log)
    return prove_train(
        cell=ex.cell(algorithm, tuner, strategy),
        hardware=hardware,
        weights=Weights.TINY,
        result=result or ran,
        asked_steps=ex.STEPS,
        save_steps=ex.SAVES,
        checkpoints={step: ex.checkpoint(step, tuner) for step in ex.SAVES} if checkpoints is None else checkpoints,
        base=base or ex.base_model(),
        asked_lora=asked if tuner is Tuner.LORA else None,
        **more,
    )


def with_checkpoint(step: int = 4, tuner: Tuner = Tuner.LORA, **fields: Any) -> dict[int, CheckpointFiles]:
    found = {at: ex.checkpoint(at, tuner) for at in ex.SAVES}
    return {**found, step: replace(found[step], **fields)}


@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_an_honest_run_passes_and_nothing_required_is_left_out(tuner: Tuner) -> None:
    made = prove(tuner=tuner)
    assert ex.causes(made) == ()
    assert missing_required(Stage.TRAIN, made, ex.asked(tuner)) == ()


def test_every_comparison_has_a_name_of_its_own() -> None:
    names = [c.name for c in prove()]
    assert len(names) == len(set(names))


def test_a_failure_carries_the_blame_of_its_cause() -> None:
    failed = next(c for c in prove(log="") if not c.ok)
    assert failed.blame is blame_of(failed.cause) is Blame.PRODUCT


LINES = ex.log_text().splitlines(keepends=True)
LOGS = {
    "nothing logged": ("", "proof.no_log"),
    "only the end's row": ("".join(LINES[4:]), "proof.no_log"),
    "fewer steps": ("".join(LINES[:3] + LINES[4:]), "proof.steps_missing"),
    "a step more": ("".join(LINES[:4]) + ex.log_text([5]), "proof.steps_extra"),
    "another max_steps": (ex.log_text(max_steps=40), "proof.steps_extra"),
    "a row twice": ("".join(LINES[:2] + LINES[1:]), "proof.rows_duplicated"),
    "two runs in one file": (ex.log_text() * 2, "proof.rows_duplicated"),
    "out of order": ("".join([LINES[1], LINES[0], *LINES[2:]]), "proof.rows_unordered"),
    "a half row": ("".join(LINES[:3]) + LINES[3][:30], "proof.row_damaged"),
    "a row without a loss": ("".join(LINES[:3]) + LINES[3].replace('"loss"', '"lost"'), "proof.row_damaged"),
    "a loss that is a word": ("".join(LINES[:3]) + LINES[3].replace("5.5", '"five"'), "proof.row_damaged"),
    "bare NaN": ("".join(LINES[:3]) + LINES[3].replace("5.5", "NaN"), "train.nan"),
    "NaN in quotes": ("".join(LINES[:3]) + LINES[3].replace("5.5", '"nan"'), "train.nan"),
    "infinite gradient": ("".join(LINES[:3]) + LINES[3].replace("2.0", "Infinity"), "train.nan"),
    "NaN in the end's mean only": ("".join(LINES[:4]) + LINES[4].replace("6.0", "NaN"), "train.nan"),
    "gradient zero": ("".join(LINES[:3]) + LINES[3].replace("2.0", "0.0"), "proof.grad_zero"),
    "no gradient": ("".join(LINES[:3]) + LINES[3].replace('"grad_norm"', '"grad"'), "proof.grad_zero"),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_lies_is_named(name: str) -> None:
    log, cause = LOGS[name]
    assert ex.causes(prove(log=log)) == (cause,)


def rows_with(**values: Any) -> str:
    return "".join(json.dumps({**json.loads(line), **values} if '"loss"' in line and "log_history" not in line else json.loads(line)) + "\n"
                   for line in LINES)  # fmt: skip


def test_one_loss_for_all_steps_is_named() -> None:
    frozen = ex.changed(ex.train_events(), "log", loss=2.5)
    assert ex.causes(prove(log=rows_with(loss=2.5), events=frozen)) == ("proof.constant_loss",)


def test_the_loss_of_a_group_s_first_pass_may_stand_still() -> None:
    frozen = ex.changed(ex.train_events(), "log", loss=0.0)
    made = prove(log=rows_with(loss=0.0), events=frozen, algorithm=Algorithm.GRPO)
    assert ex.causes(made) == ()
    assert missing_required(Stage.TRAIN, made, ex.asked(algorithm=Algorithm.GRPO)) == ()


@pytest.mark.parametrize("rate", [0.0, None])
def test_a_training_without_a_learning_rate_is_named(rate: float | None) -> None:
    still = ex.changed(ex.train_events(), "log", learning_rate=rate)
    assert ex.causes(prove(log=rows_with(learning_rate=rate), events=still)) == ("proof.learning_rate_zero",)


@pytest.mark.parametrize("name", ["loss", "grad_norm", "learning_rate"])
def test_a_number_that_the_trainer_did_not_log_is_named_to_the_last_digit(name: str) -> None:
    shown = {"loss": 5.5, "grad_norm": 2.0, "learning_rate": 0.01}[name]
    log = "".join(LINES[:3]) + json.dumps({**json.loads(LINES[3]), name: shown + 1e-8}) + "\n" + "".join(LINES[4:])
    assert ex.causes(prove(log=log)) == ("proof.log_differs",)


def test_a_log_that_nobody_witnessed_is_none() -> None:
    silent = ex.bend(ex.train_events(), lambda e: None if e["event"] == "log" else e)
    assert ex.causes(prove(events=silent)) == ("proof.log_differs",)


EVENTS = ex.train_events()
LIES: dict[str, tuple[list[Event], str]] = {
    "no start": (ex.bend(EVENTS, lambda e: None if e["event"] == "start" else e), "proof.witness_missing"),
    "no end of training": (ex.bend(EVENTS, lambda e: None if e["event"] == "train_end" else e), "proof.witness_missing"),
    "no begin of training": (ex.bend(EVENTS, lambda e: None if e["event"] == "train_begin" else e), "proof.witness_missing"),
    "one line of another run": ([*EVENTS, {"event": "step", "nonce": "older"}], "proof.witness_fault"),
    "a fault": ([*EVENTS, {"event": "fault", "where": "on_save", "error": "OSError"}], "proof.witness_fault"),
    "an option lost": (ex.changed(EVENTS, "start", argv=["sft.py", "--model", "tiny", "--output_dir", "out"]), "proof.argv"),
    "an option changed": (ex.changed(EVENTS, "start", argv=[*ex.ARGUMENTS[:-1], "400"]), "proof.argv"),
    "two ranks": (ex.changed(EVENTS, "train_begin", world_size=2), "proof.ranks"),
    "a group of one": (ex.changed(EVENTS, "train_begin", backend="gloo"), "proof.ranks"),
    "wrapped": (ex.changed(EVENTS, "train_begin", wrapped_class="DistributedDataParallel"), "proof.strategy"),
    "sharded": (ex.changed(EVENTS, "train_begin", numel_local=500), "proof.strategy"),
    "zero": (ex.changed(EVENTS, "train_begin", zero_stage=2), "proof.strategy"),
    "spread": (ex.changed(EVENTS, "train_begin", sharding={"by": "dtensor", "how": "S(0)", "ranks": 1}), "proof.strategy"),
    "a part of the optimizer": (ex.changed(EVENTS, "train_end", first_moments_numel=50), "proof.strategy"),
    "no optimizer": (ex.changed(EVENTS, "train_end", first_moments_numel=None), "proof.strategy"),
    "an option in silence": (ex.changed(EVENTS, "train_begin", padding_free=True), "proof.options"),
    "begun in the middle": (ex.changed(EVENTS, "train_begin", global_step=2), "proof.steps_missing"),
    "asked for more": (ex.changed(EVENTS, "train_begin", max_steps=40), "proof.steps_extra"),
    "a control in force": (ex.changed(EVENTS, "train_begin", control="zero_moments"), "proof.optimizer"),
    "logged but not taken": (ex.bend(EVENTS, lambda e: None if (e["event"], e.get("step")) == ("step", 3) else e), "proof.steps_missing"),
    "another rank of LoRA": (
        ex.changed(EVENTS, "train_begin", lora={"r": 8, "lora_alpha": 4, "scaling": 0.5}), "proof.adapter_rank"),
    "another scaling": (ex.changed(EVENTS, "train_begin", lora={"r": 2, "lora_alpha": 4, "scaling": 1.0}), "proof.adapter_rank"),
    "no LoRA": (ex.changed(EVENTS, "train_begin", lora=None), "proof.adapter_modules"),
    "fewer modules": (ex.changed(EVENTS, "train_begin", adapter_modules=list(ex.MODULES[1:])), "proof.adapter_modules"),
    "B stays zero": (ex.changed(EVENTS, "train_end", lora_b_max_abs=0.0), "proof.lora_b_zero"),
    "B is NaN": (ex.changed(EVENTS, "train_end", lora_b_max_abs="nan"), "proof.lora_b_zero"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_witness_against_the_claim_is_named(name: str) -> None:
    events, cause = LIES[name]
    assert ex.causes(prove(events=events)) == (cause,)


def test_another_device_is_named_as_that_and_as_no_rank_of_this_run() -> None:
    made = prove(events=ex.changed(EVENTS, "train_begin", device="cuda:0"))
    assert ex.causes(made) == ("proof.device", "proof.ranks")


def test_a_stripped_witness_is_the_harness_s_fault() -> None:
    made = prove(result=replace(ex.result(EVENTS, ex.log_text()), witnesses=()))
    assert ex.causes(made) == ("proof.witness_missing",)
    assert all(c.blame is Blame.HARNESS for c in made if not c.ok)


def test_a_witness_of_another_run_is_refused_even_beside_a_good_one() -> None:
    ran = ex.result(EVENTS, ex.log_text())
    stranger = ex.witness(EVENTS, nonce="older", pid=8)
    assert ex.causes(prove(result=replace(ran, witnesses=(*ran.witnesses, stranger)))) == ("proof.witness_nonce",)
    assert ex.causes(prove(result=replace(ran, witnesses=(stranger,)))) == ("proof.witness_nonce",)


def test_a_second_process_that_trains_is_no_single_strategy() -> None:
    ran = ex.result(EVENTS, ex.log_text())
    other = ex.witness(EVENTS, pid=8, rank=1)
    assert ex.causes(prove(result=replace(ran, witnesses=(*ran.witnesses, other)))) == ("proof.ranks",)


def test_weights_that_did_not_change_are_named() -> None:
    before = ex.train_events()[1]["trainable_digest"]
    assert "proof.weights_unchanged" in ex.causes(prove(events=ex.changed(EVENTS, "train_end", trainable_digest=before)))


def test_a_simulated_npu_is_neither_a_cpu_nor_an_npu() -> None:
    simulated = ex.changed(EVENTS, "train_begin", device="npu:0", simulated=True)
    real = ex.changed(EVENTS, "train_begin", device="npu:0", device_name="Ascend910B3")
    assert ex.causes(prove(events=simulated, hardware=Hardware.SIM)) == ()
    assert ex.causes(prove(events=real, hardware=Hardware.A2, device_names=("Ascend910B*",))) == ()
    for events, hardware in ((simulated, Hardware.A2), (real, Hardware.SIM)):
        assert ex.causes(prove(events=events, hardware=hardware)) == ("proof.device",)
    for events in (simulated, real):
        assert ex.causes(prove(events=events, hardware=Hardware.CPU)) == ("proof.device", "proof.ranks")
    assert ex.causes(prove(events=real, hardware=Hardware.A3, device_names=("Ascend910_93*",))) == ("proof.device",)


def test_ppo_is_proved_by_digests_since_it_logs_no_loss() -> None:
    log = ex.log_text().replace('"loss"', '"loss/policy_avg"').replace('"grad_norm"', '"objective/kl"')
    events = ex.bend(ex.changed(EVENTS, "train_begin", max_steps=1), lambda e: None if e["event"] == "step" else e)
    made = prove(log=log, events=events, algorithm=Algorithm.PPO)
    assert ex.causes(made) == ()
    assert missing_required(Stage.TRAIN, made, ex.asked(algorithm=Algorithm.PPO)) == ()
    assert ex.causes(prove(log=log, events=events)) != ()


FIRST_B = f"base_model.model.{ex.MODULES[0]}.lora_B.weight"
OTHER_RANK = ex.adapter(seed=104, rank=3)
CHECKPOINTS: dict[str, tuple[dict[int, CheckpointFiles], str]] = {
    "none": ({}, "proof.checkpoint_missing"),
    "the last one missing": ({2: ex.checkpoint(2)}, "proof.checkpoint_missing"),
    "the first one missing": ({4: ex.checkpoint(4)}, "proof.checkpoint_missing"),
    "no weights": (with_checkpoint(weights=None), "proof.checkpoint_missing"),
    "no adapter config": (with_checkpoint(adapter_config=None), "proof.checkpoint_missing"),
    "no optimizer": (with_checkpoint(states={"scheduler.pt": 1, "rng_state.pth": 1}), "proof.checkpoint_missing"),
    "no trainer state": (with_checkpoint(trainer_state=None), "proof.checkpoint_missing"),
    "truncated": (with_checkpoint(faults=("model.safetensors: cut short",)), "proof.checkpoint_damaged"),
    "no nonce": (with_checkpoint(nonce=None), "proof.checkpoint_stale"),
    "another run's": (with_checkpoint(nonce={"nonce": "older", "step": 4, "trainable_digest": ""}), "proof.checkpoint_stale"),
    "another step's": (with_checkpoint(trainer_state={"global_step": 2}), "proof.checkpoint_stale"),
    "other weights": (with_checkpoint(weights=ex.adapter(seed=9)), "proof.checkpoint_stale"),
    "an empty optimizer": (with_checkpoint(states={"optimizer.pt": 8, "scheduler.pt": 1, "rng_state.pth": 1}), "proof.optimizer"),
    "another alpha": (
        with_checkpoint(adapter_config={"r": 2, "lora_alpha": 8, "use_rslora": False}), "proof.adapter_rank"),
    "tensors of another rank": (with_checkpoint(weights=OTHER_RANK), "proof.adapter_rank"),
    "fewer modules": (with_checkpoint(weights=ex.adapter(seed=104, modules=ex.MODULES[1:])), "proof.adapter_modules"),
    "B zero": (with_checkpoint(weights=ex.adapter(seed=104, zero_b=True)), "proof.lora_b_zero"),
    "NaN weights": (with_checkpoint(weights=ex.with_tensor(ex.weights_at(4), FIRST_B, np.full((8, 2), np.nan))), "train.nan"),
    "a full model instead": (with_checkpoint(is_adapter=False), "proof.checkpoint_missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_is_not_what_was_saved_is_named(name: str) -> None:
    found, cause = CHECKPOINTS[name]
    assert ex.causes(prove(checkpoints=found)) == (cause,)


def test_a_full_checkpoint_that_equals_the_base_model_is_untrained() -> None:
    found = with_checkpoint(tuner=Tuner.FULL, weights=ex.base_model())
    assert ex.causes(prove(checkpoints=found, tuner=Tuner.FULL)) == ("proof.weights_unchanged",)


def test_an_adapter_left_in_a_full_training_is_named() -> None:
    events = ex.changed(ex.train_events(tuner=Tuner.FULL), "train_begin", lora={"r": 2})
    assert ex.causes(prove(events=events, tuner=Tuner.FULL)) == ("proof.adapter_modules",)


def test_named_target_modules_are_the_ones_wanted() -> None:
    asked = replace(ex.LORA, target_modules=("q_proj", "v_proj"))
    assert ex.causes(prove(asked=asked)) == ("proof.adapter_modules",)


def test_a_base_model_that_can_t_be_read_leaves_nothing_to_compare_with() -> None:
    assert ex.causes(prove(base=TensorFile("none", {}))) == ("proof.base_unreadable",)
    assert ex.causes(prove(base=replace(ex.base_model(), fault="cut short"))) == ("proof.base_unreadable",)


def test_a_base_model_without_layers_has_no_modules_to_adapt() -> None:
    bare = TensorFile("bare", {"model.embed_tokens.weight": ex.base_model().tensors["model.embed_tokens.weight"]})
    assert ex.causes(prove(base=bare)) == ("proof.adapter_modules",)


def test_left_out_comparisons_are_missing() -> None:
    made = [c for c in prove() if c.name != "train.weights_changed"]
    assert missing_required(Stage.TRAIN, made, ex.asked()) == ("train.weights_changed",)
    assert len(missing_required(Stage.TRAIN, (), ex.asked())) > 20
