"""Evidence of kernel parity: what was compared on one kind of hardware, by which run, with which versions.

A run of the suite and the newest of many runs have one form, so that what other hosts found is merged like what this one did.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from harness.errors import EvidenceError
from harness.evidence_codec import decode, encode, schema_of
from harness.evidence_sealing import require_canonical, seal, unseal
from harness.model import Hardware, Word

SCHEMA = 1
AGAIN = "Run `pytest -m kernel_parity` again, or restore the file."


class Sort(Word):
    """What an item of the suite asks."""

    PARITY = "parity"  # a kernel in one dtype, the cases of known failures left out
    KNOWN = "known"  # the cases of one known failure
    CHECK = "check"  # something that holds or not, without figures


class State(Word):
    PASSED = "passed"
    FAILED = "failed"
    KNOWN_FAILURE = "known failure"
    FIXED = "fixed?"


GREEN = frozenset({State.PASSED, State.KNOWN_FAILURE})


@dataclass(frozen=True)
class WorstError:
    """The largest error of one direction: RMS(candidate - golden) / RMS(golden) of `tensor` against its limit. `case` is JSON."""

    direction: str
    rms_ratio: float
    limit: float
    tensor: str
    case: str


@dataclass(frozen=True)
class Entry:
    """What one item gave. `ran`: what counted as the candidate, by name. `failed` and `passed` count the cases of a known failure.

    `quick`: fewer cases were drawn; such an entry never takes the place of a whole one. `run` is the nonce of the run that made it.
    """

    item: str
    sort: Sort
    name: str
    dtype: str
    kind: str
    what: str
    state: State
    because: str
    duration_s: float
    run: str = ""
    quick: bool = False
    cases: int = 0
    ill: int = 0
    left_out: int = 0
    failed: int = 0
    passed: int = 0
    worst: tuple[WorstError, ...] = ()


@dataclass(frozen=True)
class NotRun:
    """An item that could not run, and how to get what it needs."""

    item: str
    because: str


@dataclass(frozen=True)
class RunFacts:
    """One run of the suite: `versions` as the processes saw them that ran it, `machine` without any name of it."""

    nonce: str
    started_at: str
    versions: Mapping[str, str]
    machine: Mapping[str, str]


@dataclass(frozen=True)
class ParityEvidence:
    """Everything known of one kind of hardware. `declared`: all items that the newest run knew of."""

    hardware: Hardware
    runs: tuple[RunFacts, ...]
    entries: tuple[Entry, ...]
    not_run: tuple[NotRun, ...]
    declared: tuple[str, ...]
    schema: int = SCHEMA
    sha256: str = ""

    def facts_of(self, entry: Entry) -> RunFacts:
        return next(run for run in self.runs if run.nonce == entry.run)


def to_json(evidence: ParityEvidence) -> str:
    """The canonical text, its `sha256` computed anew; ends in a newline. Raises EvidenceError for a value JSON can't hold."""
    return seal(encode(evidence, ParityEvidence, "kernel parity"))


def from_json(text: str, where: str) -> ParityEvidence:
    """The evidence that `text` holds; `where` is named in errors.

    Raises EvidenceError for what is damaged, edited, of another schema, mistyped, not canonical, or contradicts itself.
    """
    found = unseal(text, where, SCHEMA, AGAIN)
    evidence: ParityEvidence = decode(found, ParityEvidence, f"{where}: kernel parity")
    require_canonical(text, found, where)
    if against := contradiction(evidence):
        raise EvidenceError(where, f"contradicts itself: {against}: forged.", AGAIN)
    return evidence


def entry_to_text(entry: Entry | NotRun) -> str:
    """How an item's answer travels from the process that ran it."""
    return json.dumps({"kind": type(entry).__name__, "value": encode(entry, type(entry), "item")})


def entry_from_text(text: str) -> Entry | NotRun:
    found = json.loads(text)
    entry: Entry | NotRun = decode(found["value"], {"Entry": Entry, "NotRun": NotRun}[found["kind"]], "item")
    return entry


def merge(*pieces: ParityEvidence) -> ParityEvidence:
    """The newest of every item, whatever the order. Items that the newest run does not declare any more are gone."""
    runs = {run.nonce: run for piece in pieces for run in piece.runs}
    age = {nonce: (moment(run.started_at), nonce) for nonce, run in runs.items()}
    newest = max(pieces, key=lambda piece: max(age[run.nonce] for run in piece.runs))
    entries: dict[tuple[str, bool], Entry] = {}
    for entry in (entry for piece in pieces for entry in piece.entries if entry.item in newest.declared):
        before = entries.get((entry.item, entry.quick))
        if before is None or age[entry.run] > age[before.run]:
            entries[entry.item, entry.quick] = entry
    measured = {item for item, _ in entries}
    not_run = tuple(one for one in newest.not_run if one.item not in measured)
    needed = {entry.run for entry in entries.values()} | {max(newest.runs, key=lambda run: age[run.nonce]).nonce}
    return ParityEvidence(
        hardware=newest.hardware,
        runs=tuple(sorted((runs[nonce] for nonce in needed), key=lambda run: age[run.nonce])),
        entries=tuple(entries[key] for key in sorted(entries)),
        not_run=not_run,
        declared=newest.declared,
    )


def shown(evidence: ParityEvidence) -> tuple[Entry, ...]:
    """One entry an item: the whole run's, unless there is none or a newer quick one is not green."""
    age = {run.nonce: moment(run.started_at) for run in evidence.runs}
    chosen: dict[str, Entry] = {}
    for entry in sorted(evidence.entries, key=lambda entry: entry.quick):
        whole = chosen.get(entry.item)
        if whole is None or (entry.state not in GREEN and age[entry.run] > age[whole.run]):
            chosen[entry.item] = entry
    return tuple(chosen[item] for item in sorted(chosen))


def moment(text: str) -> datetime:
    """An ISO 8601 time in UTC. Raises ValueError for what is none."""
    when = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", text))
    return when.replace(tzinfo=timezone.utc) if when.tzinfo is None else when.astimezone(timezone.utc)


def contradiction(evidence: ParityEvidence) -> str:
    """ "" or why no run of the suite can have written this."""
    nonces = [run.nonce for run in evidence.runs]
    if not nonces or len(set(nonces)) != len(nonces):
        return "its runs are none, or not told apart"
    try:
        for run in evidence.runs:
            moment(run.started_at)
    except (ValueError, OverflowError):
        return f"started_at {run.started_at!r} is no ISO 8601 time"
    keys = [(entry.item, entry.quick) for entry in evidence.entries]
    if twice := next((item for item, _ in _repeated(keys)), ""):
        return f"{twice} stands there twice"
    declared = set(evidence.declared)
    for entry in evidence.entries:
        if entry.run not in nonces:
            return f"{entry.item} is of run {entry.run!r}, which is not told of"
        if entry.item not in declared:
            return f"{entry.item} is not among the declared items"
        if wrong := _wrong(entry):
            return f"{entry.item} {wrong}"
    return ""


def _repeated(keys: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    seen: set[tuple[str, bool]] = set()
    return [key for key in keys if key in seen or seen.add(key)]  # type: ignore[func-returns-value]


def _wrong(entry: Entry) -> str:
    """ "" or why an item can't have ended so."""
    item = {
        Sort.PARITY: f"{entry.name}-{entry.dtype}",
        Sort.KNOWN: f"{entry.name}-{entry.dtype} known: ",
        Sort.CHECK: f"check {entry.name}",
    }[entry.sort]
    if not (entry.item.startswith(item) if entry.sort is Sort.KNOWN else entry.item == item):
        return f"is no {entry.sort} of {entry.name}"
    if entry.state is State.FAILED:
        return "" if entry.because else "failed without a because"
    allowed = {Sort.PARITY: {State.PASSED}, Sort.KNOWN: {State.KNOWN_FAILURE, State.FIXED}, Sort.CHECK: {State.PASSED}}[entry.sort]
    if entry.state not in allowed:
        return f"can't be {entry.state}"
    if entry.sort is Sort.PARITY and entry.cases < 1:
        return "passed without a case"
    beyond = next((w for w in entry.worst if not (math.isfinite(w.rms_ratio) and 0 <= w.rms_ratio <= w.limit)), None)
    if beyond is not None:
        return f"passed with {beyond.rms_ratio:.3g} of {beyond.tensor}, beyond its limit {beyond.limit:g}"
    if entry.sort is Sort.KNOWN and (entry.failed > 0) != (entry.state is State.KNOWN_FAILURE):
        return f"is {entry.state} with {entry.failed} cases that failed"
    return ""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12); harness/schemas/parity.schema.json is this, written out."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Kernel parity on one kind of hardware",
        "description": f"Canonical JSON; sha256 is over the canonical text of the object without sha256. Schema {SCHEMA}.",
    }
    shape = {**head, **schema_of(ParityEvidence)}
    shape["properties"]["schema"] = {"const": SCHEMA}
    shape["properties"]["sha256"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    return shape


def schema_text() -> str:
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def cleaned(evidence: ParityEvidence, clean: Any) -> ParityEvidence:
    """`clean` applied to the texts that a process printed."""
    entries = tuple(replace(entry, because=clean(entry.because)) for entry in evidence.entries)
    not_run = tuple(replace(one, because=clean(one.because)) for one in evidence.not_run)
    runs = tuple(replace(run, versions={name: clean(value) for name, value in run.versions.items()}) for run in evidence.runs)
    return replace(evidence, entries=entries, not_run=not_run, runs=runs)
