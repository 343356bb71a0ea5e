"""The columns of an exported row, and what a row must hold to be one: told at import, so that tables can trust every line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, timezone
from typing import Any

from harness.benchmark_model import Kind, Quantity
from harness.errors import EvidenceError
from harness.export_numbers import LOGGED
from harness.export_rows import BASELINE, EVIDENCE, FACTS, REPEAT, VERSIONS, piece_of
from harness.model import Hardware, Weights

MEASURES = (*(str(quantity) for quantity in Quantity), *LOGGED)
NUMBERS = ("duration_s", "attempt", "compared", "processes", "ranks", "concurrency", "steps", "warmup_steps", *MEASURES)
WORDS = (
    "record", "cell", "stage", "weights", "hardware", "asked", "stack", "launcher", "tiny_key", "verdict", "cause", "blame", "versions",
    *VERSIONS, *FACTS,
)  # fmt: skip
TEXTS = (
    "started_at", "because", "ruling", "ruling_because", "ruling_issue", "ruling_since", "ruling_recorded_on", "ruling_causes", "gap",
    "blocked_by", "missing", "flaky_after", "device_names", "piece", "outcome", "outcome_blame", "outcome_line", "failed_check",
    "failed_expected", "failed_found", "failed_cause", "failed_blame", "run", "nonce", "promoted", "sha256",
)  # fmt: skip
_FLAGS = ("interrupted",)
_TYPES: dict[str, type | tuple[type, ...]] = {
    **{name: (int, float) for name in NUMBERS},
    **{name: str for name in (*WORDS, *TEXTS)},
    **{name: bool for name in _FLAGS},
    "schema": int,
}
_HASH = re.compile(r"[0-9a-f]{64}")
_AGAIN = "Export it again where it came from, with the same harness."


def check_row(row: Mapping[str, Any], where: str, before: datetime) -> None:
    """Raises EvidenceError, naming `where`, for an opened line that is no piece of evidence and no run of a benchmark, or of a time after
    `before`."""
    for name, value in row.items():
        kind = _TYPES.get(name)
        if kind is None:
            raise EvidenceError(where, f"has the unknown column {name!r}.", _AGAIN)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise EvidenceError(where, f"{name} is a {type(value).__name__}.", _AGAIN)
    try:
        _check(row)
        when = datetime.fromisoformat(row["started_at"])
        if when.isoformat() != row["started_at"] or when.utcoffset() != timezone.utc.utcoffset(None):
            raise ValueError(f"started_at {row['started_at']!r} is no time in UTC as Python writes it")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as fault:
        what = f"lacks {fault}" if isinstance(fault, KeyError) else f"is no piece of evidence and no run of a benchmark ({fault})"
        raise EvidenceError(where, f"{what}.", _AGAIN) from fault
    if when > before:
        raise EvidenceError(where, f"says that it ran at {row['started_at']}, which is yet to come.", "Set the clock that wrote it.")


def _check(row: Mapping[str, Any]) -> None:
    versions = json.loads(row["versions"])
    if not isinstance(versions, dict) or not all(isinstance(value, str) for value in versions.values()):
        raise ValueError("versions is no object of texts")
    if row["record"] == EVIDENCE:
        if not _HASH.fullmatch(row["piece"]):
            raise ValueError("piece is no sha256")
        for name in ("ruling_causes", "missing", "flaky_after", "device_names"):
            listed = json.loads(row.get(name, "[]"))
            if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
                raise ValueError(f"{name} is no list of texts")
        piece_of(row)
    elif row["record"] in (REPEAT, BASELINE):
        Hardware(row["hardware"]), Weights(row["weights"]), Kind(row["stage"])
        if not all(row[name] for name in ("cell", "stack", "launcher", "nonce")):
            raise ValueError("an empty cell, stack, launcher or nonce")
        values = [row[name] for name in MEASURES if name in row]
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError("no number, or one that is not finite and above 0")
        if row["record"] == BASELINE:
            date.fromisoformat(row["promoted"])
    else:
        raise ValueError(f"record {row['record']!r} is unknown")
