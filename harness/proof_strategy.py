"""Proof of the strategy: who wrapped the model, what each rank holds of it, on which device, and that all ranks agree.

Several strategies log the same losses, and one that was silently dropped logs them too, so nothing is read from the log here: each rank
says what it saw of its own objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.compare import check
from harness.model import Comparison, Hardware, StepResult, Strategy
from harness.witness_log import workers

# ZeRO pads its partitions to whole buckets, FSDP2 cuts along a tensor's first dimension only: a rank's share of the entries may lie this
# much above an even one. Measured for tiny models, whose small tensors make it worst: 1.002 (FSDP2, a score head of 128 entries).
UNEVEN = 1.25
# accelerate 1.15 keeps the last norm and the output layer gathered, which the backward pass needs first.
MOST_KEPT = 1


@dataclass(frozen=True)
class Trait:
    """What a strategy looks like from inside. `wrapper`: how the wrapped class is called, or begins; `by`, `how`: see the witness's
    `sharding`; `parameters`, `optimizer`: whether every rank holds a part only; `units`: whether it gathers parameters module by module,
    and frees them after each forward."""

    distributed: Mapping[bool, str]  # by whether the device is a plain cpu
    wrapper: str
    by: str | None = None
    how: str = ""
    zero_stage: int | None = None
    parameters: bool = False
    optimizer: bool = False
    exact: bool = False
    units: bool = False


def _everywhere(name: str) -> Mapping[bool, str]:
    return {True: name, False: name}


TRAITS: Mapping[Strategy, Trait] = {
    Strategy.SINGLE: Trait(_everywhere("NO"), ""),
    Strategy.DDP: Trait({True: "MULTI_CPU", False: "MULTI_NPU"}, "DistributedDataParallel", exact=True),
    Strategy.FSDP1: Trait(
        _everywhere("FSDP"),
        "FullyShardedDataParallel",
        by="fsdp1",
        how="FULL_SHARD",
        parameters=True,
        optimizer=True,
        exact=True,
        units=True,
    ),
    Strategy.FSDP2: Trait(_everywhere("FSDP"), "FSDP", by="dtensor", how="S(0)", parameters=True, optimizer=True, units=True),
    Strategy.ZERO2: Trait(_everywhere("DEEPSPEED"), "DeepSpeedEngine", by="zero", how="2", zero_stage=2, optimizer=True, exact=True),
    Strategy.ZERO3: Trait(
        _everywhere("DEEPSPEED"), "DeepSpeedEngine", by="zero", how="3", zero_stage=3, parameters=True, optimizer=True, exact=True
    ),
}
# DTensor writes its placement as S(0) or Shard(dim=0), whichever torch it is.
_HOW = {"Shard(dim=0)": "S(0)"}


def prove_strategy(stage: str, strategy: Strategy, hardware: Hardware, ranks: int, result: StepResult) -> tuple[Comparison, ...]:
    """Every rank's train_begin and train_end against `strategy` on `ranks` processes. Raises KeyError for one without traits."""
    trait = TRAITS[strategy]
    working = workers(result.witnesses)
    begins = [witness.last("train_begin") or {} for witness in working]
    made = [_processes(stage, strategy, ranks, hardware, begins, [witness.rank for witness in working])]
    made.append(_wrapped(stage, strategy, trait, hardware, ranks, begins))
    made.append(_shares(stage, strategy, trait, ranks, begins))
    ends = [witness.last("train_end") or {} for witness in working]
    made.append(_optimizer(stage, strategy, trait, ranks, begins, ends))
    made.append(_agree(stage, strategy, ranks, begins, ends))
    return tuple(made)


def _processes(
    stage: str, strategy: Strategy, ranks: int, hardware: Hardware, begins: Sequence[Mapping[str, Any]], numbers: Sequence[int]
) -> Comparison:
    """One process a rank, each on a device of its own, in one group of the device's own back end."""
    sizes = sorted({str(begin.get("world_size")) for begin in begins})
    devices = [str(begin.get("device")) for begin in begins]
    backends = sorted({str(begin.get("backend")) for begin in begins})
    wanted_devices = ["cpu"] * ranks if hardware is Hardware.CPU else [f"npu:{rank}" for rank in range(ranks)]
    wanted_backend = "None" if ranks == 1 else "gloo" if hardware is Hardware.CPU else "hccl"
    found = f"ranks {list(numbers)} of {'/'.join(sizes) or 'none'} on {devices} by {'/'.join(backends) or 'none'}"
    expected = f"ranks {list(range(ranks))} of {ranks} on {wanted_devices} by {wanted_backend}"
    return check(f"{stage}.ranks", found == expected, "proof.ranks", f"{strategy}: {expected}", found)


def _wrapped(
    stage: str, strategy: Strategy, trait: Trait, hardware: Hardware, ranks: int, begins: Sequence[Mapping[str, Any]]
) -> Comparison:
    problems = [problem for begin in begins if (problem := _other_wrapping(trait, hardware, ranks, begin))]
    expected = f"{strategy}: {trait.distributed[hardware is Hardware.CPU]}, {trait.wrapper or 'the model itself'}"
    expected += f", {trait.by} {trait.how} over {ranks}" if trait.by else ""
    expected += ", module by module" if trait.units else ""
    return check(f"{stage}.strategy", bool(begins) and not problems, "proof.strategy", expected, problems[0] if problems else "so")


def _other_wrapping(trait: Trait, hardware: Hardware, ranks: int, begin: Mapping[str, Any]) -> str:
    """What this rank saw where it is another strategy's; "" where it fits."""
    wrapped, model = str(begin.get("wrapped_class")), str(begin.get("model_class"))
    if trait.wrapper:
        fits = wrapped == trait.wrapper if trait.exact else wrapped.startswith(trait.wrapper) and wrapped != "FullyShardedDataParallel"
    else:
        fits = bool(begin.get("wrapped_class")) and (wrapped == model or wrapped.startswith("Peft"))
    sharding = begin.get("sharding")
    seen: Mapping[str, Any] = sharding if isinstance(sharding, Mapping) else {}
    how = str(seen.get("how", ""))
    spread = (seen.get("by"), _HOW.get(how, how), seen.get("ranks")) == (trait.by, trait.how, ranks if trait.by else None)
    spread = spread and (not trait.units or _module_by_module(seen.get("units"), seen.get("kept")))
    kind = begin.get("distributed_type") == trait.distributed[hardware is Hardware.CPU]
    if fits and spread and kind and begin.get("zero_stage") == trait.zero_stage:
        return ""
    return f"{begin.get('distributed_type')}, {wrapped}, ZeRO stage {begin.get('zero_stage')}, sharding {dict(seen) or None}"


def _module_by_module(units: object, kept: object) -> bool:
    """`units` modules are gathered one at a time; `kept` of them stay so until the backward pass."""
    return type(units) is int and type(kept) is int and 0 <= kept < units and kept <= MOST_KEPT


def _shares(stage: str, strategy: Strategy, trait: Trait, ranks: int, begins: Sequence[Mapping[str, Any]]) -> Comparison:
    """Each rank's entries of the parameters: all of them, or no more than an even share allows, together no fewer than all."""
    totals = [begin.get("numel_global") for begin in begins]
    locals_ = [begin.get("numel_local") for begin in begins]
    found = f"{locals_} of {'/'.join(sorted(set(map(str, totals)))) or 'none'}"
    parts = ranks if trait.parameters else 1
    expected = f"{strategy}: every rank holds {'an even share of' if parts > 1 else 'all'} the parameters"
    shared = bool(totals) and totals.count(totals[0]) == len(totals) and _even(locals_, totals[0], parts)
    return check(f"{stage}.shards", shared, "proof.strategy", expected, found)


def _optimizer(
    stage: str, strategy: Strategy, trait: Trait, ranks: int, begins: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]]
) -> Comparison:
    """Each rank's entries of the optimizer's first moments at the end: what ZeRO-2 shards, and nothing else of it shows."""
    total = begins[0].get("trainable_numel") if begins else None
    found = [end.get("first_moments_numel") for end in ends]
    parts = ranks if trait.optimizer else 1
    expected = f"{strategy}: every rank steps {'an even share of' if parts > 1 else 'all'} {total} trainable entries"
    return check(f"{stage}.optimizer_shards", _even(found, total, parts), "proof.strategy", expected, f"{found}")


def _even(held: Sequence[object], total: object, parts: int) -> bool:
    numbers = [n for n in held if isinstance(n, int) and not isinstance(n, bool)]
    if not isinstance(total, int) or total <= 0 or len(numbers) != len(held) or not numbers:
        return False
    if parts == 1:
        return all(number == total for number in numbers)
    return sum(numbers) >= total and max(numbers) <= math.ceil(total / parts * UNEVEN)


def _agree(
    stage: str, strategy: Strategy, ranks: int, begins: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]]
) -> Comparison:
    """Every rank saw the same whole weights at the beginning and at the end: one that was left out would have drifted away."""
    starts, stops = ([event.get("trainable_digest") for event in events] for events in (begins, ends))
    same = all(len(digests) == ranks and all(one and one == digests[0] for one in digests) for digests in (starts, stops))
    found = " and ".join(", ".join(str(digest)[:8] for digest in digests) or "none" for digests in (starts, stops))
    return check(f"{stage}.ranks_agree", same, "proof.ranks", f"{strategy}: {ranks} equal digests at the beginning and at the end", found)
