"""Benchmark measurements made by hand, and witnesses of a training run whose steps took as long as a test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.benchmark_model import Measurement, Quantity, Repeat
from harness.model import Hardware, Run, Weights, Witness


def repeat(step_s: float, memory_mib: float | None = 512.0, *, nonce: str = "n") -> Repeat:
    values = {Quantity.STEP_S: step_s} | ({} if memory_mib is None else {Quantity.PEAK_ALLOCATED_MIB: memory_mib})
    return Repeat(values, (step_s * 3, step_s, step_s), 1, "2026-11-30T00:00:00+00:00", nonce)


def measurement(*step_s: float, memory_mib: float | None = 512.0, cell: str = "a-cell", **changes: Any) -> Measurement:
    facts: dict[str, Any] = {
        "cell": cell,
        "kind": "train",
        "hardware": Hardware.SIM,
        "weights": Weights.TINY,
        "stack": "undeclared-1",
        "launcher": "warm",
        "versions": {"torch": "2.14.1"},
        "machine": {"cores": "2"},
        "repeats": tuple(repeat(s, memory_mib, nonce=f"n{i}") for i, s in enumerate(step_s)),
    }
    return Measurement(**{**facts, **changes})


def witness(
    rank: int,
    seconds: Sequence[float],
    *,
    world_size: int = 1,
    tokens: int | None = 100,
    begin: Mapping[str, Any] | None = None,
    **step: Any,
) -> Witness:
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    events: list[Mapping[str, Any]] = [{"event": "train_begin", "device": "npu:0", "arguments": arguments, **(begin or {})}]
    for number, taken in enumerate(seconds, start=1):
        counted = None if tokens is None else tokens * number
        seen = {"peak_allocated_mib": 10.0 + number, "peak_reserved_mib": 20.0, "rss_mib": 300.0 + rank, **step}
        events.append({"event": "step", "step": number, "seconds": taken, "tokens": counted, **seen})
    return Witness("n", 1 + rank, rank, world_size, f"w{rank}", {}, tuple(events))


def run(nonce: str = "n") -> Run:
    return Run("train", nonce, ("swift", "sft"), {}, "2026-11-30T00:00:00+00:00", 1.0, 0, "exit", "", "")
