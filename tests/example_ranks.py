"""Honest synthetic runs of several ranks: what each rank of every strategy sees of itself. Tests bend one thing each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import examples as ex
from examples import Event

from harness.model import Command, Hardware, StepResult, Strategy, Tuner

SPREAD = (Strategy.DDP, Strategy.FSDP1, Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3)
NUMEL, TRAINABLE = 1000, 100  # entries of all parameters and of those that are trained, as tests/examples.py has them
# What is a part only on each rank: (parameters, optimizer).
SHARDED = {
    Strategy.SINGLE: (False, False),
    Strategy.DDP: (False, False),
    Strategy.FSDP1: (True, True),
    Strategy.FSDP2: (True, True),
    Strategy.ZERO2: (False, True),
    Strategy.ZERO3: (True, True),
}
OPTIMIZERS = {
    Strategy.SINGLE: ("optimizer.pt",),
    Strategy.DDP: ("optimizer.pt",),
    Strategy.FSDP1: ("optimizer.bin",),
    Strategy.FSDP2: ("optimizer_0",),
    Strategy.ZERO2: ("global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",),
    Strategy.ZERO3: ("global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",),
}


def command(strategy: Strategy, ranks: int, arguments: Sequence[str] = ex.ARGUMENTS) -> Command:
    """As each strategy is started: torchrun by NPROC_PER_NODE, FSDP1 by `accelerate launch`."""
    if strategy is Strategy.SINGLE:
        return Command("swift", tuple(arguments))
    if strategy is Strategy.FSDP1:
        launch = ("launch", "--config_file", "fsdp.json", "--num_processes", str(ranks), "/site/swift/cli/sft.py")
        return Command("accelerate", (*launch, *arguments[1:]))
    return Command("swift", tuple(arguments), {"NPROC_PER_NODE": str(ranks)})


def seen_by(strategy: Strategy, rank: int, ranks: int, hardware: Hardware, tuner: Tuner = Tuner.LORA) -> Event:
    """What `rank` says in train_begin of its device, its wrapper and its share."""
    model, inside = "Qwen2ForCausalLM", "PeftModelForCausalLM" if tuner is Tuner.LORA else "Qwen2ForCausalLM"
    on_cpu = hardware is Hardware.CPU
    share = -(-NUMEL // ranks) if SHARDED[strategy][0] else NUMEL
    how: dict[Strategy, Event] = {
        Strategy.SINGLE: {"distributed_type": "NO", "wrapped_class": inside},
        Strategy.DDP: {"distributed_type": "MULTI_CPU" if on_cpu else "MULTI_NPU", "wrapped_class": "DistributedDataParallel"},
        Strategy.FSDP1: {
            "distributed_type": "FSDP", "wrapped_class": "FullyShardedDataParallel",
            "sharding": {"by": "fsdp1", "how": "FULL_SHARD", "ranks": ranks, "units": 3, "kept": 0},
        },
        Strategy.FSDP2: {
            "distributed_type": "FSDP", "wrapped_class": f"FSDP{inside}",
            "model_class": model if tuner is Tuner.LORA else f"FSDP{model}",
            "sharding": {"by": "dtensor", "how": "S(0)", "ranks": ranks, "units": 3, "kept": 1},
        },
        Strategy.ZERO2: {
            "distributed_type": "DEEPSPEED", "wrapped_class": "DeepSpeedEngine", "zero_stage": 2,
            "sharding": {"by": "zero", "how": "2", "ranks": ranks, "units": None, "kept": None},
        },
        Strategy.ZERO3: {
            "distributed_type": "DEEPSPEED", "wrapped_class": "DeepSpeedEngine", "zero_stage": 3,
            "sharding": {"by": "zero", "how": "3", "ranks": ranks, "units": None, "kept": None},
        },
    }  # fmt: skip
    backend = None if ranks == 1 else "gloo" if on_cpu else "hccl"
    device = {"device": "cpu", "device_name": "cpu"} if on_cpu else {"device": f"npu:{rank}", "device_name": "Simulated"}
    where = {**device, "simulated": hardware is Hardware.SIM, "backend": backend}
    return {"zero_stage": None, "sharding": None, **where, "model_class": model, "numel_local": share, **how[strategy]}


def rank_events(
    strategy: Strategy, rank: int, ranks: int, hardware: Hardware = Hardware.SIM, tuner: Tuner = Tuner.LORA, **steps: Any
) -> list[Event]:
    """Everything that `rank` says. `steps`: as examples.train_events takes them."""
    moments = -(-TRAINABLE // ranks) if SHARDED[strategy][1] else TRAINABLE
    events = ex.changed(ex.train_events(tuner=tuner, **steps), "train_begin", **seen_by(strategy, rank, ranks, hardware, tuner))
    return ex.changed(events, "train_end", first_moments_numel=moments)


def ran(
    strategy: Strategy,
    ranks: int = 2,
    hardware: Hardware = Hardware.SIM,
    tuner: Tuner = Tuner.LORA,
    *,
    asked: Strategy | None = None,
    bent: Mapping[int, Mapping[str, Event]] | None = None,
    log: str | None = None,
    **steps: Any,
) -> StepResult:
    """A run of `strategy` on `ranks` honest processes. `asked`: the strategy that the command asks for, if another.

    `bent`: for a rank, fields of its event train_begin or train_end that are otherwise.
    """
    witnesses = []
    for rank in range(ranks):
        events = rank_events(strategy, rank, ranks, hardware, tuner, **steps)
        for name, fields in (bent or {}).get(rank, {}).items():
            events = ex.changed(events, name, **fields)
        witnesses.append(ex.witness(events, pid=7 + rank, rank=rank, world_size=ranks))
    one = ex.result([], ex.log_text() if log is None else log)
    step = replace(one.step, command=command(asked or strategy, ranks))
    return replace(one, step=step, run=replace(one.run, argv=step.command.argv, env=step.command.env), witnesses=tuple(witnesses))


def states(strategy: Strategy, step: int, ranks: int = 2, fsdp_config: str | None = None) -> dict[str, int]:
    """Bytes of tensor data in each file of a checkpoint's state, two moments of four bytes a trained entry in all."""
    names = ("optimizer.bin",) if fsdp_config == "full_state_dict" else OPTIMIZERS[strategy]
    optimizer = [name.format(step=step, rank=rank) for name in names for rank in range(ranks if "{rank}" in name else 1)]
    generators = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    return {**{name: -(-8 * TRAINABLE // len(optimizer)) for name in optimizer}, "scheduler.pt": 10, **dict.fromkeys(generators, 100)}
