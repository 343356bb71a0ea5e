"""A piece of evidence, or one run of a benchmark, as a flat row; and back, as far as a mark needs it.

A row keeps what the support table is folded from (harness.support), the numbers that are compared between runs, and the hash of the piece
that it came from. Logs, commands, witnesses and single comparisons stay in the evidence. A column that has nothing to say is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from harness.benchmark_codec import Baseline
from harness.benchmark_model import Measurement
from harness.consistency import NPU, seen_devices
from harness.evidence import started
from harness.export_lines import SCHEMA
from harness.export_numbers import numbers_of
from harness.judge import HEALTHY
from harness.model import (
    Blame,
    Comparison,
    Evidence,
    Hardware,
    Outcome,
    Ruling,
    RulingKind,
    Run,
    Stage,
    Verdict,
    VerdictKind,
    Weights,
)
from harness.retries import attempt_of

EVIDENCE, REPEAT, BASELINE = "evidence", "repeat", "baseline"
# What a cell is, as its evidence says it (harness.cell_facts): kept even where it is empty, since "" is an answer there.
FACTS = (
    "algorithm", "tuner", "strategy", "engine", "model", "revision", "family", "recipe", "recipe_sha256", "options",
)  # fmt: skip
VERSIONS = {"ms_swift": "ms-swift", "torch": "torch", "torch_npu": "torch_npu", "cann": "cann"}
_NOTHING = (None, "", "[]")


def row_of(piece: Evidence) -> dict[str, Any]:
    """The row of a piece of evidence. Times are UTC; seconds, MiB and tokens per second as their names say."""
    failed = next((c for c in piece.comparisons if not c.ok), None)
    verdict, ruling, outcome, facts = piece.verdict, piece.ruling, piece.outcome, piece.facts
    row: dict[str, Any] = {
        **_head(EVIDENCE, piece.cell, piece.hardware, piece.weights, piece.stack, piece.launcher, piece.versions),
        "stage": str(piece.stage),
        "asked": str(piece.asked),
        "tiny_key": piece.tiny_key,
        "started_at": started(piece).isoformat(),
        "duration_s": piece.duration_s,
        "verdict": str(verdict.kind),
        "because": verdict.because,
        "cause": verdict.cause,
        "blame": str(verdict.blame),
        "ruling": str(ruling.kind),
        "ruling_because": ruling.because,
        "ruling_issue": ruling.issue,
        "ruling_since": ruling.since,
        "ruling_recorded_on": str(ruling.recorded_on) if ruling.recorded_on else "",
        "ruling_causes": _listed(ruling.causes),
        "compared": len(piece.comparisons),
        "processes": len(piece.runs),
        "interrupted": any(run.ended_by == "interrupt" for run in piece.runs) or None,
        "gap": str(facts.get("gap", "")),
        "blocked_by": str(facts.get("blocked_by", "")),
        "missing": _listed(str(name) for name in facts.get("missing", ())),
        "attempt": attempt_of(piece),
        "flaky_after": _listed(_flaky_after(piece)),
        "device_names": _listed(sorted({name for kind, name in seen_devices(piece.witnesses) if kind == NPU and name})),
        "piece": piece.sha256,
        **numbers_of(piece),
    }
    if outcome.cause != HEALTHY:
        row |= {"outcome": outcome.cause, "outcome_blame": str(outcome.blame), "outcome_line": outcome.line}
    if failed:
        row |= {"failed_check": failed.name, "failed_expected": failed.expected, "failed_found": failed.found}
        row |= {"failed_cause": failed.cause, "failed_blame": str(failed.blame)}
    about = {name: _text(facts[name]) for name in FACTS if facts.get(name) is not None}
    return {**_said(row), **about}


def rows_of_runs(measurement: Measurement, run: str) -> Iterator[dict[str, Any]]:
    """A row for each run of a measurement; `run`: the harness run that made it, .harness/benchmarks/`run`."""
    yield from _repeats(REPEAT, measurement, {"run": run})


def rows_of_baseline(baseline: Baseline) -> Iterator[dict[str, Any]]:
    yield from _repeats(BASELINE, baseline.measurement, {"promoted": baseline.date, "because": baseline.reason})


def piece_of(row: Mapping[str, Any]) -> Evidence:
    """The evidence of a row, as far as a mark is folded from it: the support table says the same of it as of the piece itself.

    Raises ValueError or KeyError for a row that no evidence gives.
    """
    attempt, after = int(row["attempt"]), _list(row, "flaky_after")
    facts: dict[str, Any] = {name: row[name] for name in FACTS if name in row}
    facts |= {name: row.get(name, "") for name in ("gap", "blocked_by")}
    facts |= {"missing": _list(row, "missing"), "attempt": attempt}
    if after:
        facts |= {"flaky": True, "attempts_before": [{"nonce": "", "stage": row["stage"], "cause": cause} for cause in after]}
    ended_by = "interrupt" if row.get("interrupted") else "exit"
    run = Run("", "", (), {}, row["started_at"], 0.0, 0, ended_by, "", "")
    return Evidence(
        cell=row["cell"],
        stage=Stage(row["stage"]),
        weights=Weights(row["weights"]),
        hardware=Hardware(row["hardware"]) if "hardware" in row else None,
        asked=Hardware(row["asked"]),
        stack=row["stack"],
        tiny_key=row["tiny_key"],
        facts=facts,
        nonce="",
        launcher=row["launcher"],
        started_at=row["started_at"],
        duration_s=float(row["duration_s"]),
        ruling=_ruling(row),
        steps=(),
        runs=(run,) * int(row["processes"]),
        witnesses=tuple({"train_begin": {"device": NPU, "device_name": name}} for name in _list(row, "device_names")),
        metrics={},
        outcome=Outcome(row.get("outcome", HEALTHY), Blame(row.get("outcome_blame", Blame.UNKNOWN)), row.get("outcome_line", "")),
        comparisons=_comparisons(row),
        verdict=Verdict(VerdictKind(row["verdict"]), row.get("because", ""), row.get("cause", ""), Blame(row["blame"])),
        versions=_same_versions(row["versions"]),
        machine={},
        sha256=row["piece"],
    )


def _ruling(row: Mapping[str, Any]) -> Ruling:
    return _same_ruling(row["ruling"], *(row.get(f"ruling_{name}", "") for name in ("because", "issue", "since", "recorded_on", "causes")))


@lru_cache(4096)
def _same_ruling(kind: str, because: str, issue: str, since: str, recorded_on: str, causes: str) -> Ruling:
    on = Hardware(recorded_on) if recorded_on else None
    return Ruling(RulingKind(kind), because, issue, since, on, tuple(json.loads(causes or "[]")))


@lru_cache(4096)
def _same_versions(text: str) -> Mapping[str, str]:
    return MappingProxyType(json.loads(text))


def _comparisons(row: Mapping[str, Any]) -> tuple[Comparison, ...]:
    held = (Comparison("", True, "", ""),) * int(row["compared"])
    if "failed_check" not in row:
        return held
    expected, found, cause = (row.get(f"failed_{name}", "") for name in ("expected", "found", "cause"))
    return (Comparison(row["failed_check"], False, expected, found, cause, Blame(row["failed_blame"])), *held[1:])


def _repeats(record: str, measurement: Measurement, origin: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    head = _head(
        record, measurement.cell, measurement.hardware, measurement.weights, measurement.stack, measurement.launcher, measurement.versions
    )
    for repeat in measurement.repeats:
        row = {**head, **origin, "stage": measurement.kind, "concurrency": measurement.concurrency or None}
        row |= {"started_at": repeat.at, "steps": len(repeat.step_s), "warmup_steps": repeat.warmup_steps, "nonce": repeat.nonce}
        yield _said({**row, **{str(quantity): value for quantity, value in repeat.values.items()}})


def _head(
    record: str, cell: str, hardware: Hardware | None, weights: Weights, stack: str, launcher: str, versions: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "record": record,
        "cell": cell,
        "hardware": str(hardware) if hardware else "",
        "weights": str(weights),
        "stack": stack,
        "launcher": launcher,
        "versions": json.dumps(dict(versions), sort_keys=True, ensure_ascii=False),
        **{column: versions.get(name) for column, name in VERSIONS.items()},
    }


def _flaky_after(piece: Evidence) -> list[str]:
    """The causes at which earlier attempts at the same stage ended, where that makes the piece flaky (see harness.retries)."""
    if not piece.facts.get("flaky"):
        return []
    return list(dict.fromkeys(str(one["cause"]) for one in piece.facts["attempts_before"] if one["stage"] == piece.stage))


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in row.items() if value not in _NOTHING and not (isinstance(value, float) and not math.isfinite(value))
    }


def _listed(words: Iterable[str]) -> str:
    """Several words in one column, as a JSON list."""
    return json.dumps(list(words), ensure_ascii=False)


def _list(row: Mapping[str, Any], name: str) -> list[str]:
    found: list[str] = json.loads(row[name]) if name in row else []
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else f"no text: {value!r}"
