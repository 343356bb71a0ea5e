"""Measurements and baselines as JSON that carries its own hash, and back; what is damaged is refused with where and what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.benchmark_model import Measurement, Quantity, Repeat
from harness.errors import EvidenceError
from harness.evidence_sealing import require_canonical, seal, unseal
from harness.model import Hardware, Weights

SCHEMA = 1
_AGAIN = "Measure again, or restore the file as it was written."


@dataclass(frozen=True)
class Baseline:
    """What later runs are held against: its samples, where they came from, and why it was taken. `date`: ISO day."""

    measurement: Measurement
    date: str
    reason: str


def key_of(measurement: Measurement) -> str:
    """Names the question within a hardware and stack: cell, kind and, of serving, the concurrency."""
    at_once = f"-c{measurement.concurrency}" if measurement.concurrency else ""
    return f"{measurement.cell}--{measurement.kind}{at_once}--{measurement.weights}--{measurement.launcher}"


def to_json(measurement: Measurement) -> str:
    return seal({"schema": SCHEMA, "record": "measurement", **_body(measurement)})


def from_json(text: str, where: str) -> Measurement:
    """Raises EvidenceError for text that is damaged, edited, or no measurement."""
    return _measurement(_opened(text, where, "measurement"), where)


def baseline_to_json(baseline: Baseline) -> str:
    head = {"schema": SCHEMA, "record": "baseline", "date": baseline.date, "reason": baseline.reason}
    return seal({**head, **_body(baseline.measurement)})


def baseline_from_json(text: str, where: str) -> Baseline:
    """Raises EvidenceError for text that is damaged, edited, or no baseline."""
    found = _opened(text, where, "baseline")
    return Baseline(_measurement(found, where), str(found.get("date")), str(found.get("reason")))


def _opened(text: str, where: str, record: str) -> dict[str, Any]:
    found = unseal(text, where, SCHEMA, _AGAIN)
    require_canonical(text, found, where)
    if found.get("record") != record:
        raise EvidenceError(where, f"is a {found.get('record')!r}, not a {record}.", "Give the right file.")
    return found


def _body(measurement: Measurement) -> dict[str, Any]:
    return {
        "cell": measurement.cell,
        "kind": measurement.kind,
        "concurrency": measurement.concurrency,
        "hardware": str(measurement.hardware),
        "weights": str(measurement.weights),
        "stack": measurement.stack,
        "launcher": measurement.launcher,
        "rehearsal": measurement.rehearsal,
        "versions": dict(measurement.versions),
        "machine": dict(measurement.machine),
        "repeats": [
            {
                "values": {str(quantity): value for quantity, value in repeat.values.items()},
                "step_s": list(repeat.step_s),
                "warmup_steps": repeat.warmup_steps,
                "at": repeat.at,
                "nonce": repeat.nonce,
            }
            for repeat in measurement.repeats
        ],
    }


def _measurement(found: Mapping[str, Any], where: str) -> Measurement:
    try:
        return Measurement(
            cell=str(found["cell"]),
            kind=str(found["kind"]),
            hardware=Hardware(found["hardware"]),
            weights=Weights(found["weights"]),
            stack=str(found["stack"]),
            launcher=str(found["launcher"]),
            versions={str(k): str(v) for k, v in found["versions"].items()},
            machine={str(k): str(v) for k, v in found["machine"].items()},
            repeats=tuple(_repeat(repeat) for repeat in found["repeats"]),
            concurrency=int(found["concurrency"]),
            rehearsal=bool(found["rehearsal"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise EvidenceError(where, f"is no measurement ({type(fault).__name__}: {fault}).", _AGAIN) from fault


def _repeat(found: Mapping[str, Any]) -> Repeat:
    values = {Quantity(name): float(value) for name, value in found["values"].items()}
    if not all(math.isfinite(value) and value > 0 for value in values.values()):
        raise ValueError("a value that is not finite and above 0")
    seconds = tuple(float(s) for s in found["step_s"])
    return Repeat(values, seconds, int(found["warmup_steps"]), str(found["at"]), str(found["nonce"]))
