"""A run on a simulated NPU against the same command on a plain CPU: what counts as equal, and what each deviation is called."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import examples
import numpy as np
import pytest
from example_ranks import SPREAD, ran
from examples import adapter, base_model, causes, changed, inference, log_text, train_events, weights_at, with_tensor, without_tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench import Bench
from harness.found import Answer, Answers, Inference, Role
from harness.host import Host
from harness.model import Blame, Cell, Comparison, Hardware, Options, Outcome, Stage, StepResult, Strategy, Tuner, Weights
from harness.npu_patches import prove_patches
from harness.proof_golden import REQUIRED_GOLDEN_INFER, REQUIRED_GOLDEN_TRAIN, REQUIRED_PARITY, prove_golden_answers, prove_golden_train
from harness.proving import golden_steps, missing, prove
from harness.tensors import TensorFile
from harness.witness_log import rank_zero

PATCHED = {"NpuRMSNorm": "swift.model.npu_patch.model", "Qwen2MLP": "swift.model.npu_patch.model"}
CALLS = {"npu_rms_norm": 40, "npu_rotary_mul": 32, "npu_swiglu": 16}
ON_SIM = {"device": "npu:0", "device_name": "SIMULATED NPU", "simulated": True}
FINAL = weights_at(4)


def on_sim(log: str | None = None) -> StepResult:
    events = changed(train_events(), "train_begin", **ON_SIM)
    return examples.result(changed(events, "train_end", patched=PATCHED, npu_calls=CALLS), log_text() if log is None else log)


def log_with(change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """The honest log with each step's row as `change` makes it; `step` is that row's number."""
    rows = []
    for line in log_text().splitlines():
        row = json.loads(line)
        if "loss" in row:
            step = int(str(row["global_step/max_steps"]).partition("/")[0])
            row = {k: v for k, v in change({**row, "step": step}).items() if k != "step"}
        rows.append(json.dumps(row) + "\n")
    return "".join(rows)


def on_cpu(events: Sequence[Mapping[str, Any]] | None = None, log: str | None = None) -> StepResult:
    return examples.result([dict(e) for e in events or train_events()], log_text() if log is None else log)


def proved(
    result: StepResult | None = None,
    golden: StepResult | None = None,
    *,
    ours: TensorFile | None = FINAL,
    theirs: TensorFile | None = FINAL,
    base: TensorFile | None = None,
    dtype: str = "float32",
    strategy: Strategy = Strategy.SINGLE,
) -> dict[str, Comparison]:
    made = prove_golden_train(
        strategy=strategy,
        result=result or on_sim(),
        golden=golden or on_cpu(),
        dtype=dtype,
        finals=(ours, theirs),
        base=base or base_model(),
    )
    return {c.name: c for c in made}


def failed(made: Mapping[str, Comparison]) -> dict[str, str]:
    return {name: c.cause for name, c in made.items() if not c.ok}


def moved(file: TensorFile, share: float, start: TensorFile | None = None) -> TensorFile:
    """`file` further away from `start` (zero where it has no such tensor) by `share` of the way that it came."""
    before = {} if start is None else {name: t.values() for name, t in start.tensors.items()}
    for name, found in file.tensors.items():
        file = with_tensor(file, name, found.values() + share * (found.values() - before.get(name, 0.0)))
    return file


# Training


def test_an_honest_pair_holds_and_makes_every_required_comparison() -> None:
    result = on_sim()
    witness = rank_zero(result.witnesses)
    assert witness is not None
    made = [*proved(result).values(), *prove_patches("qwen2", witness, Options())]
    assert causes(made) == ()
    assert set(REQUIRED_GOLDEN_TRAIN) <= {c.name for c in made}


@pytest.mark.parametrize("what", ["loss", "grad_norm"])
def test_one_number_that_differs_is_told_by_what_it_is(what: str) -> None:
    honest = log_text().splitlines(keepends=True)
    for row in range(examples.STEPS):
        number = examples.result([], log_text()).metrics.rows[row]
        old = f'"{what}": {getattr(number, what)}'
        lines = [line.replace(old, f'"{what}": {getattr(number, what) * 1.0001}') if at == row else line for at, line in enumerate(honest)]
        assert lines != honest
        made = proved(on_sim("".join(lines)))
        assert failed(made) == {f"golden.{what}": "golden.differs"}
        assert made[f"golden.{what}"].error == pytest.approx(1e-4, rel=1e-3)


BOTH = ("golden.loss", "golden.grad_norm")


@pytest.mark.parametrize(
    ("scale", "dtype", "unlike"),
    [
        (1 + 5e-6, "float32", ()),
        (1 + 2e-5, "float32", ("golden.loss",)),
        (1 + 1e-4, "float32", BOTH),
        (1 + 1e-3, "bfloat16", ()),
        (1.2, "torch.bfloat16", BOTH),
        (1 + 1e-3, "float64", BOTH),
    ],
)
def test_logged_numbers_are_held_to_their_dtype_and_an_unknown_dtype_to_the_strictest(
    scale: float, dtype: str, unlike: tuple[str, ...]
) -> None:
    made = proved(on_sim(log_text(scale=scale)), dtype=dtype)
    assert failed(made) == {name: "golden.differs" for name in unlike}


@pytest.mark.parametrize("steps", [[], [1, 2, 3], [1, 2, 3, 5], [2, 1, 3, 4]])
def test_other_steps_than_the_goldens_are_never_equal(steps: list[int]) -> None:
    both = {"golden.loss": "golden.differs", "golden.grad_norm": "golden.differs"}
    assert failed(proved(on_sim(log_text(steps)))) == both
    assert failed(proved(golden=on_cpu(log=log_text(steps)))) == both


def test_two_logs_without_a_row_are_not_equal() -> None:
    assert set(failed(proved(on_sim(""), on_cpu(log="")))) == {"golden.loss", "golden.grad_norm"}


@pytest.mark.parametrize("value", ["NaN", "null", "Infinity"])
def test_a_number_that_is_none_is_not_equal_even_to_itself(value: str) -> None:
    log = "".join(line.replace('"loss": 6.0', f'"loss": {value}') for line in log_text().splitlines(keepends=True))
    assert log != log_text()
    assert "golden.loss" in failed(proved(on_sim(log), on_cpu(log=log)))


def test_weights_are_measured_against_what_training_changed() -> None:
    base = base_model()
    small = moved(base, 0.0)
    for name, found in base.tensors.items():
        small = with_tensor(small, name, found.values() + 1e-3)
    within, beyond = (moved(small, share, base) for share in (3e-3, 1e-2))
    assert failed(proved(ours=within, theirs=small, base=base)) == {}
    made = proved(ours=beyond, theirs=small, base=base)
    assert failed(made) == {"golden.weights": "golden.differs"}
    # A thousandth of an update is a millionth of a weight here: against the weights themselves nothing would show.
    assert made["golden.weights"].error == pytest.approx(1e-2, rel=0.05)


@given(share=st.floats(-0.5, 0.5).filter(lambda x: x == 0 or abs(x) > 1e-4), scale=st.floats(1e-3, 1e3))
def test_the_error_of_weights_is_the_share_of_the_update_at_any_size_of_it(share: float, scale: float) -> None:
    final = TensorFile("final", {})
    final = replace(final, tensors={name: examples.tensor(t.values() * scale) for name, t in adapter().tensors.items()})
    error = proved(ours=moved(final, share), theirs=final)["golden.weights"].error
    assert error == pytest.approx(abs(share), rel=1e-3, abs=1e-6)


def test_one_of_many_tensors_that_was_not_trained_is_seen() -> None:
    name = next(name for name in FINAL.tensors if "lora_B" in name)
    assert failed(proved(ours=with_tensor(FINAL, name, np.zeros(FINAL.tensors[name].shape)))) == {"golden.weights": "golden.differs"}


def test_training_that_moved_nothing_has_no_scale_to_be_measured_by() -> None:
    base = base_model()
    assert failed(proved(ours=base, theirs=base, base=base)) == {"golden.weights": "golden.differs"}


@pytest.mark.parametrize("at", [0, 1])
def test_a_weight_that_is_not_a_number_is_never_equal(at: int) -> None:
    name = next(iter(FINAL.tensors))
    pair = [FINAL, FINAL]
    pair[at] = with_tensor(FINAL, name, np.full(FINAL.tensors[name].shape, np.nan))
    assert failed(proved(ours=pair[0], theirs=pair[1])) == {"golden.weights": "golden.differs"}


@pytest.mark.parametrize(
    "bad", [None, replace(FINAL, fault="cut short"), TensorFile("empty", {}), without_tensor(FINAL, next(iter(FINAL.tensors)))]
)
def test_weights_that_are_not_there_tensor_by_tensor_are_told(bad: TensorFile | None) -> None:
    assert failed(proved(ours=bad)) == {"golden.weights": "proof.checkpoint_missing"}
    assert failed(proved(theirs=bad)) == {"golden.weights": "proof.checkpoint_missing"}


def test_a_golden_that_left_no_witness_is_none() -> None:
    made = proved(golden=replace(on_cpu(), witnesses=()))
    assert failed(made) == {"golden.witness": "proof.witness_missing"}
    assert not set(REQUIRED_GOLDEN_TRAIN) & made.keys()


def test_a_golden_that_was_cut_off_is_none() -> None:
    events = [e for e in train_events() if e["event"] != "train_end"]
    assert failed(proved(golden=on_cpu(events))) == {"golden.witnessed": "proof.witness_missing"}


def test_a_golden_of_another_run_is_none() -> None:
    stale = replace(on_cpu(), witnesses=(examples.witness(train_events(), nonce="another"),))
    assert failed(proved(golden=stale)) == {"golden.nonce": "proof.witness_nonce"}


def test_a_golden_that_ran_on_the_device_itself_is_refused() -> None:
    assert failed(proved(golden=on_sim())) == {"golden.device": "proof.device"}


# Parity of strategies: several ranks against one process with the same global batch


def parity(strategy: Strategy, result: StepResult | None = None, **more: Any) -> dict[str, Comparison]:
    return proved(result or ran(strategy), strategy=strategy, **more)


@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("hardware", [Hardware.CPU, Hardware.SIM])
def test_honest_ranks_agree_with_one_process_and_make_every_required_comparison(strategy: Strategy, ranks: int, hardware: Hardware) -> None:
    made = parity(strategy, ran(strategy, ranks, hardware))
    assert failed(made) == {}
    assert set(REQUIRED_PARITY) <= made.keys()
    assert not set(REQUIRED_GOLDEN_TRAIN) & made.keys()
    assert all(str(strategy) in made[name].expected and "one process" in made[name].expected for name in REQUIRED_PARITY)


def test_a_single_process_is_held_to_its_golden_and_named_so() -> None:
    made = proved()
    assert set(REQUIRED_GOLDEN_TRAIN) <= made.keys() and not set(REQUIRED_PARITY) & made.keys()


@pytest.mark.parametrize("strategy", SPREAD)
def test_gradients_that_were_summed_and_not_averaged_fail_the_parity_and_name_the_strategy(strategy: Strategy) -> None:
    doubled = log_with(lambda row: {**row, "grad_norm": 2 * row["grad_norm"]})
    made = parity(strategy, ran(strategy, log=doubled))
    assert failed(made) == {"parity.grad_norm": "parity.differs"}
    assert made["parity.grad_norm"].error == pytest.approx(0.5)  # of the larger one
    assert f"under {strategy} as in one process" in made["parity.grad_norm"].expected
    assert made["parity.grad_norm"].blame is Blame.PRODUCT


@pytest.mark.parametrize("strategy", SPREAD)
def test_one_ranks_rows_left_out_fail_the_parity_and_name_the_strategy(strategy: Strategy) -> None:
    """From the second step on the weights are others, and so are all numbers."""
    drifted = log_with(lambda row: row if row["step"] == 1 else {**row, "loss": 1.01 * row["loss"], "grad_norm": 0.9 * row["grad_norm"]})
    made = parity(strategy, ran(strategy, log=drifted), ours=moved(FINAL, 0.3), theirs=FINAL)
    assert failed(made) == dict.fromkeys(REQUIRED_PARITY, "parity.differs")
    assert all(str(strategy) in made[name].expected for name in REQUIRED_PARITY)


@given(
    strategy=st.sampled_from(SPREAD),
    what=st.sampled_from(["loss", "grad_norm"]),
    step=st.integers(1, examples.STEPS),
    share=st.floats(1e-4, 1.0) | st.floats(-0.99, -1e-4),
)
@settings(deadline=None)
def test_any_one_number_of_any_step_that_differs_by_a_ten_thousandth_fails(strategy: Strategy, what: str, step: int, share: float) -> None:
    one = log_with(lambda row: {**row, what: row[what] * (1 + share)} if row["step"] == step else row)
    assert failed(parity(strategy, ran(strategy, log=one))) == {f"parity.{what}": "parity.differs"}


@pytest.mark.parametrize(
    ("share", "dtype", "unlike"), [(4e-3, "float32", 0), (6e-3, "float32", 1), (4e-2, "bfloat16", 0), (0.3, "bfloat16", 1)]
)
def test_weights_of_ranks_are_held_to_what_training_changed_by_their_dtype(share: float, dtype: str, unlike: int) -> None:
    made = parity(Strategy.ZERO3, ours=moved(FINAL, share), theirs=FINAL, dtype=dtype)
    assert tuple(failed(made)) == ("parity.weights",) * unlike


def test_a_golden_on_the_ranks_own_device_is_refused() -> None:
    assert failed(parity(Strategy.DDP, golden=ran(Strategy.DDP))) == {"golden.device": "proof.device"}


# Inference


def answers(ours: Inference | None = None, golden: Inference | None = None, dtype: str = "float32") -> dict[str, Comparison]:
    made = prove_golden_answers(ours=ours or inference(Role.ADAPTER), golden=golden or inference(Role.ADAPTER), dtype=dtype)
    return {c.name: c for c in made}


def test_the_same_answers_and_logits_hold_and_are_all_that_is_required() -> None:
    assert failed(answers()) == {}
    assert set(REQUIRED_GOLDEN_INFER) == answers().keys()


@pytest.mark.parametrize("said", [("fine", "a test", "nobody", "never"), ("a test", "fine", "nobody", "because"), ("fine", "a test"), ()])
def test_other_answers_differ(said: Sequence[str]) -> None:
    rows = Answers("r.jsonl", tuple(Answer("?", text) for text in said))
    assert failed(answers(inference(Role.ADAPTER, answers=rows))) == {"golden.answers": "golden.differs"}


def test_no_answers_on_both_sides_are_not_the_same_answers() -> None:
    nothing = inference(Role.ADAPTER, answers=Answers("r.jsonl", ()))
    assert failed(answers(nothing, nothing)) == {"golden.answers": "golden.differs"}


@pytest.mark.parametrize(("by", "dtype", "ok"), [(1e-6, "float32", True), (1e-4, "float32", False), (1e-2, "bfloat16", True),
                                                 (5e-2, "bfloat16", False), (float("nan"), "float32", False)])  # fmt: skip
def test_logits_are_held_to_their_dtype(by: float, dtype: str, ok: bool) -> None:
    golden = inference(Role.ADAPTER)
    assert golden.logits is not None
    bent = golden.logits.copy()
    bent[1, 2] += by * np.abs(golden.logits).max()
    made = answers(replace(golden, logits=bent), golden, dtype)
    assert failed(made) == ({} if ok else {"golden.logits": "golden.differs"})


def test_logits_that_one_side_lacks_or_has_in_another_shape_are_told() -> None:
    golden = inference(Role.ADAPTER)
    assert golden.logits is not None
    for bad in (None, golden.logits[:-1], golden.logits[:, :-1]):
        assert failed(answers(replace(golden, logits=bad), golden)) == {"golden.logits": "proof.witness_missing"}
        assert failed(answers(golden, replace(golden, logits=bad))) == {"golden.logits": "proof.witness_missing"}


# What a stage requires where there is a golden


def benches(folder: Path, cell: Cell | None = None) -> tuple[Bench, Bench]:
    """A simulated NPU's and its golden's; neither ever starts anything."""
    cell = cell or examples.cell()

    def never(step: Any, **how: Any) -> Any:
        raise AssertionError(f"{step.name} was started")

    host = Host(Hardware.SIM, "tiny", (0,), folder, folder / "runs", folder / "cache", "", {}, None, 1.0)
    stop = threading.Event()
    ours = Bench(cell, Weights.TINY, host, never, stop)
    golden = Bench(cell, Weights.TINY, replace(host, hardware=Hardware.CPU, npu_ids=()), never, stop, golden_of=ours)
    ours.ran["train"] = golden.ran["train"] = on_sim()
    return ours, golden


def test_a_golden_that_failed_is_the_harnesss_fault_and_says_why(tmp_path: Path) -> None:
    ours, golden = benches(tmp_path)
    crash = Outcome("run.exit_nonzero", Blame.PRODUCT, "ValueError: no such template")
    golden.ran["train"] = replace(on_cpu(), outcome=crash)
    made = prove(Stage.TRAIN, ours, (), golden)
    (told,) = [c for c in made if c.name == "golden.ran"]
    assert (told.ok, told.cause, told.blame) == (False, "proof.golden_missing", Blame.HARNESS)
    assert "ValueError: no such template" in told.found
    assert set(REQUIRED_GOLDEN_TRAIN) <= set(missing(Stage.TRAIN, ours, made))


def test_a_golden_that_never_ran_leaves_its_comparisons_missing(tmp_path: Path) -> None:
    ours, golden = benches(tmp_path)
    del golden.ran["train"]
    made = prove(Stage.TRAIN, ours, (), golden)
    assert set(REQUIRED_GOLDEN_TRAIN) <= set(missing(Stage.TRAIN, ours, made))
    assert set(REQUIRED_GOLDEN_INFER) <= set(missing(Stage.INFER, ours, ()))
    assert not {*REQUIRED_GOLDEN_TRAIN, *REQUIRED_GOLDEN_INFER} & {*missing(Stage.TRAIN, golden, made), *missing(Stage.INFER, golden, ())}


def test_operators_that_nobody_counted_leave_a_required_comparison_missing(tmp_path: Path) -> None:
    ours, golden = benches(tmp_path)
    events = changed(train_events(), "train_begin", **ON_SIM)
    ours.ran["train"] = examples.result(changed(events, "train_end", patched=PATCHED, npu_calls=None), log_text())
    golden.ran["train"] = on_cpu()
    made = prove(Stage.TRAIN, ours, (), golden)
    assert "train.patches" in {c.name for c in made if c.ok}
    assert "train.patch_calls" in missing(Stage.TRAIN, ours, made)


def test_a_cpu_repeats_training_and_the_trained_models_answers(tmp_path: Path) -> None:
    for tuner, answered in ((Tuner.LORA, "infer-adapter"), (Tuner.FULL, "infer-tuned")):
        ours, golden = benches(tmp_path, examples.cell(tuner=tuner))
        repeated = {stage: steps for stage in Stage if (steps := golden_steps(stage, ours))}
        assert repeated == {Stage.TRAIN: ("train",), Stage.INFER: (answered,)}
        # A server on the cpu itself answers as the cpu does: only training is repeated in one process.
        repeated = {stage: steps for stage in Stage if (steps := golden_steps(stage, golden))}
        assert repeated == {Stage.TRAIN: ("train",)}
