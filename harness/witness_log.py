"""A witness file (format: harness/witness/README.md) as a Witness. No text makes this raise.

A line that can't be read, or that contradicts the lines before it, becomes an event `fault` with `line` and `what`, so that the
proofs see it among the rest and refuse the file; nothing else that the process said is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness.model import Witness

FAULT = "fault"
_WORK = ("train_begin", "train_end", "generate")


def parse_witness(text: str, path: str) -> Witness:
    """The events of one process. `nonce` and `pid` are the first line's, `rank` and `world_size` the last that were said.

    A file without a readable line has nonce "" and pid 0, and a fault.
    """
    events: list[Mapping[str, Any]] = []
    nonce, pid, rank, world_size = "", 0, 0, 1
    versions: Mapping[str, str] = {}
    named = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        event = _event(line)
        if event is None:
            events.append(_fault(number, f"not a JSON object with an event: {line[:120]!r}"))
            continue
        if not named:
            nonce, pid, named = str(event.get("nonce", "")), _whole(event.get("pid"), 0), True
        elif (str(event.get("nonce", "")), _whole(event.get("pid"), 0)) != (nonce, pid):
            events.append(_fault(number, f"nonce {event.get('nonce')!r} and pid {event.get('pid')!r} in the file of {nonce!r}, {pid}"))
        rank, world_size = _whole(event.get("rank"), rank), _whole(event.get("world_size"), world_size)
        if event["event"] == "start" and isinstance(event.get("versions"), dict):
            versions = {str(name): str(value) for name, value in event["versions"].items() if value is not None}
        events.append(event)
    if not named:
        events.append(_fault(0, "the file holds no event"))
    return Witness(nonce, pid, rank, world_size, path, versions, tuple(events))


def faults(witness: Witness) -> tuple[str, ...]:
    """What is wrong with this file, and what the witness says that it could not look at, one sentence each."""
    return tuple(
        f"{e.get('where', 'witness file')}: {e['error']}" if "error" in e else f"line {e.get('line', '?')}: {e.get('what', 'unspecified')}"
        for e in witness.all(FAULT)
    )


def rank_zero(witnesses: Iterable[Witness]) -> Witness | None:
    """The witness of the process that did the work as rank 0; None if there is none.

    A command starts helpers that load the plugin too; the one that trained or generated most is meant. Ties go to the first path.
    """
    leading = [w for w in witnesses if w.rank in (0, -1)]
    return max(sorted(leading, key=lambda w: w.path), key=_amount_of_work, default=None)


def workers(witnesses: Iterable[Witness]) -> tuple[Witness, ...]:
    """Those that trained or generated, by rank and path."""
    return tuple(sorted((w for w in witnesses if _amount_of_work(w)), key=lambda w: (w.rank, w.path)))


def summary(witness: Witness) -> Mapping[str, Any]:
    """What evidence keeps of a witness: no prompts, no outputs, no logits; plain JSON values."""
    steps = witness.all("step")
    generated = witness.all("generate")
    return {
        "nonce": witness.nonce,
        "pid": witness.pid,
        "rank": witness.rank,
        "world_size": witness.world_size,
        "versions": dict(witness.versions),
        "start": _without(witness.last("start"), "versions"),
        "train_begin": _without(witness.last("train_begin")),
        "train_end": _without(witness.last("train_end")),
        "saves": [_without(event) for event in witness.all("save")],
        "steps": {
            "step": [e.get("step") for e in steps],
            "seconds": [e.get("seconds") for e in steps],
            "tokens": [e.get("tokens") for e in steps],
            "peak_allocated_mib": _largest(steps, "peak_allocated_mib"),
            "peak_reserved_mib": _largest(steps, "peak_reserved_mib"),
            "rss_mib": _largest(steps, "rss_mib"),
        },
        "logged": [[e.get(name) for name in ("step", "loss", "grad_norm", "learning_rate")] for e in witness.all("log")],
        "generate": {
            "calls": len(generated),
            "devices": sorted({str(e.get("device")) for e in generated}),
            "device_names": sorted({str(e["device_name"]) for e in generated if e.get("device_name")}),
            "simulated": any(e.get("simulated") is True for e in generated),
            "model_classes": sorted({str(e.get("model_class")) for e in generated}),
            "dtypes": sorted({str(e.get("dtype")) for e in generated}),
            "adapters": sorted({str(name) for e in generated for name in _list(e.get("adapters"))}),
        },
        "end": _without(witness.last("end")),
        "faults": list(faults(witness)),
    }


_ON_EVERY_LINE = ("event", "nonce", "pid", "rank", "world_size", "time")


def _without(event: Mapping[str, Any] | None, *names: str) -> dict[str, Any] | None:
    if event is None:
        return None
    return {key: value for key, value in event.items() if key not in (*_ON_EVERY_LINE, *names)}


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _fault(line: int, what: str) -> Mapping[str, Any]:
    return {"event": FAULT, "line": line, "what": what}


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _largest(events: Iterable[Mapping[str, Any]], name: str) -> float | None:
    return max((e[name] for e in events if isinstance(e.get(name), (int, float))), default=None)


def _amount_of_work(witness: Witness) -> int:
    return sum(1 for e in witness.events if e.get("event") in (*_WORK, "step", "save"))
