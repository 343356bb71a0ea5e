"""Goldens are shared: one training in one process stands beside every strategy that must agree with it, and a failed one beside nobody."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import examples as ex
import pytest

from harness.bench import Bench
from harness.goldens import Goldens, in_one_process
from harness.host import Host
from harness.model import Cell, Hardware, Options, Run, Stage, Step, Strategy, Tuner, Weights

SPREAD = (Strategy.DDP, Strategy.FSDP1, Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3)


class Recorder:
    """A launch that starts nothing and remembers what it was asked for. `codes`: exit codes, the last of them for all that follow."""

    def __init__(self, *codes: int, hold: Callable[[], object] = lambda: None) -> None:
        self.codes, self.hold = list(codes or (0,)), hold
        self.calls: list[tuple[Step, dict[str, Any]]] = []

    def __call__(self, step: Step, **how: Any) -> Run:
        code = self.codes[0] if len(self.codes) == 1 else self.codes.pop(0)
        self.calls.append((step, how))
        self.hold()
        (Path(step.output_dir)).mkdir(parents=True, exist_ok=True)
        return Run(step.name, how["nonce"], step.command.argv, step.command.env, "2026-01-01T00:00:00Z", 1.0, code, "exit", "run.log", "")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def host(tmp_path: Path, cache: Path) -> Host:
    ids = tuple(range(8))
    return Host(Hardware.SIM, "tiny", ids, tmp_path, tmp_path / "runs", cache, "/on/trial", {}, None, 1.0, swift_cli_dir="/site/swift/cli")


def cell(strategy: Strategy = Strategy.SINGLE, tuner: Tuner = Tuner.LORA, devices: int | None = None, **options: Any) -> Cell:
    made = replace(ex.cell(tuner=tuner, strategy=strategy), options=Options(**options), devices=devices)
    words = "-".join(f"{name}{value}" for name, value in options.items())
    return replace(made, id=f"sft-tiny-{tuner}-{strategy}-{words}", tiny_key=f"sft-qwen2-{tuner}-{strategy}-{words}")


def bench(of: Cell, host: Host) -> Bench:
    return Bench(of, Weights.TINY, host, never, threading.Event())


def never(step: Step, **how: Any) -> Run:
    raise AssertionError(f"{step.name} was started on the device that is on trial")


def trained(goldens: Goldens, ours: Bench) -> Bench:
    golden = goldens.beside(ours)
    assert golden is not None
    goldens.run(Stage.TRAIN, ours, golden)
    return golden


def test_one_training_serves_every_strategy(host: Host) -> None:
    launch = Recorder()
    goldens = Goldens(launch)
    made = [trained(goldens, bench(cell(strategy), host)) for strategy in (Strategy.SINGLE, *SPREAD)]
    assert len(launch.calls) == 1
    assert len({id(golden.ran["train"]) for golden in made}) == 1
    step, how = launch.calls[0]
    assert step.command.program == "swift" and how["hardware"] is Hardware.CPU
    assert "NPROC_PER_NODE" not in step.command.env and "ASCEND_RT_VISIBLE_DEVICES" not in step.command.env
    assert {"--deepspeed", "--fsdp"}.isdisjoint(step.command.args) and "--use_cpu" in step.command.args
    # One global batch, whatever the number of ranks.
    words = step.command.args
    assert [words[words.index(f"--{name}") + 1] for name in ("per_device_train_batch_size", "gradient_accumulation_steps")] == ["2", "2"]


def test_the_golden_is_of_the_harnesss_own_interpreter(host: Host) -> None:
    launch = Recorder()
    trained(Goldens(launch), bench(cell(), host))
    (_, how) = launch.calls[0]
    assert how["search_path"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


@pytest.mark.parametrize(
    "same",
    [
        cell(Strategy.DDP, devices=4),
        cell(Strategy.FSDP2, fsdp_config="full_state_dict"),
        cell(Strategy.FSDP2, fsdp_config="activation_offload"),
        cell(Strategy.DDP, sequence_parallel_size=2),
        cell(Strategy.DDP, sequence_parallel_size=4, padding_free=True, attn_impl="flash_attn"),
        cell(npu_model_patch=False),
    ],
    ids=lambda one: one.id,
)
def test_what_changes_how_and_not_what_is_computed_shares_the_golden(host: Host, same: Cell) -> None:
    launch = Recorder()
    goldens = Goldens(launch)
    trained(goldens, bench(cell(), host))
    trained(goldens, bench(same, host))
    assert len(launch.calls) == 1


@pytest.mark.parametrize(
    "other",
    [
        cell(Strategy.DDP, tuner=Tuner.FULL),
        cell(Strategy.DDP, lora_dropout=0.1),
        cell(Strategy.DDP, dtype="bfloat16"),
        cell(Strategy.DDP, attn_impl="eager"),
        replace(cell(Strategy.DDP), model=replace(ex.cell().model, family="qwen3")),
        replace(cell(Strategy.DDP), algorithm=ex.Algorithm.DPO),
    ],
    ids=lambda one: f"{one.id}-{one.model.family}-{one.algorithm}",
)
def test_what_computes_something_else_has_a_golden_of_its_own(host: Host, other: Cell) -> None:
    launch = Recorder()
    goldens = Goldens(launch)
    trained(goldens, bench(cell(Strategy.DDP), host))
    trained(goldens, bench(other, host))
    assert len(launch.calls) == 2


@pytest.mark.parametrize("threads", [2, 6])
def test_threads_that_ask_at_once_wait_for_the_same_training(host: Host, threads: int) -> None:
    asked = threading.Barrier(threads)
    launch = Recorder(hold=lambda: threading.Event().wait(0.3))
    goldens = Goldens(launch)

    def one(strategy: Strategy) -> Bench:
        ours = bench(cell(strategy), host)
        asked.wait(10)
        return trained(goldens, ours)

    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(one, [(Strategy.SINGLE, *SPREAD)[at % 6] for at in range(threads)]))
    assert len(launch.calls) == 1
    assert len({golden.ran["train"].run.nonce for golden in made}) == 1


def test_other_trainings_do_not_wait_for_each_other(host: Host) -> None:
    together = threading.Barrier(2)
    goldens = Goldens(Recorder(hold=lambda: together.wait(10)))
    cells = (cell(Strategy.DDP), cell(Strategy.DDP, tuner=Tuner.FULL))
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda one: trained(goldens, bench(one, host)), cells))
    assert all(golden.ran["train"].run.exit_code == 0 for golden in made)


def test_a_failed_golden_is_kept_for_nobody_and_tried_again(host: Host) -> None:
    launch = Recorder(1, 0)
    goldens = Goldens(launch)
    failed, tried_again, shared = (trained(goldens, bench(cell(strategy), host)) for strategy in SPREAD[:3])
    assert failed.ran["train"].outcome.cause == "run.exit_nonzero"
    assert tried_again.ran["train"].outcome.cause == shared.ran["train"].outcome.cause == "none"
    assert tried_again.ran["train"] is shared.ran["train"]
    assert len(launch.calls) == 2
    # What is there to look into stays; the others' folder goes with the goldens.
    folders = [Path(step.output_dir) for step, _ in launch.calls]
    goldens.close()
    assert [folder.exists() for folder in folders] == [True, False]


def test_a_shared_training_keeps_its_checkpoints_until_the_goldens_are_closed(host: Host) -> None:
    launch = Recorder()
    goldens = Goldens(launch)
    trained(goldens, bench(cell(Strategy.DDP), host)).close(keep=False)
    folder = Path(launch.calls[0][0].output_dir)
    assert folder.exists()
    goldens.close()
    assert not folder.exists()


@pytest.mark.parametrize("strategy", [Strategy.SINGLE, *SPREAD])
def test_a_golden_stands_beside_a_simulated_npu_and_beside_ranks_on_a_cpu_and_nowhere_else(host: Host, strategy: Strategy) -> None:
    goldens = Goldens(Recorder())

    def beside(hardware: Hardware, weights: Weights = Weights.TINY) -> bool:
        ours = Bench(cell(strategy), weights, replace(host, hardware=hardware), never, threading.Event())
        return goldens.beside(ours) is not None

    assert beside(Hardware.SIM)
    assert beside(Hardware.CPU) is (strategy is not Strategy.SINGLE)
    assert not beside(Hardware.A2)
    assert not beside(Hardware.A2, Weights.REAL)


def test_a_golden_repeats_training_alone_of_ranks_on_a_cpu(host: Host) -> None:
    launch = Recorder()
    goldens = Goldens(launch)
    ours = bench(cell(Strategy.DDP), replace(host, hardware=Hardware.CPU, npu_ids=()))
    golden = trained(goldens, ours)
    goldens.run(Stage.INFER, ours, golden)
    goldens.run(Stage.MERGE, ours, golden)
    assert [step.name for step, _ in launch.calls] == ["train"]


@pytest.mark.parametrize("strategy", [Strategy.SINGLE, *SPREAD])
@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_in_one_process_nothing_is_spread_and_nothing_else_is_changed(strategy: Strategy, tuner: Tuner) -> None:
    kept = {"lora_dropout": 0.1, "dtype": "bfloat16", "tiny_experts": "square", "packing": True}
    how = {"sequence_parallel_size": 2, "padding_free": True, "npu_model_patch": False, "attn_impl": "flash_attn", "fsdp_config": "x"}
    ours = cell(strategy, tuner, 4, **kept, **how)
    alone = in_one_process(ours)
    assert (alone.strategy, alone.devices, alone.options) == (Strategy.SINGLE, 1, Options(**kept))  # type: ignore[arg-type]
    same = replace(ours, id=alone.id, strategy=alone.strategy, devices=1, options=alone.options)
    assert alone == same
    assert alone.id not in (ours.id, ours.tiny_key)


@pytest.mark.parametrize("attention", [None, "eager", "sdpa"])
def test_an_attention_that_a_cpu_has_stays_in_one_process(attention: str | None) -> None:
    assert in_one_process(cell(Strategy.DDP, attn_impl=attention)).options.attn_impl == attention
