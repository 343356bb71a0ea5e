"""Evidence as one JSON object: canonical bytes, a content hash, a published JSON Schema, and a parser that refuses what was tampered with.

The types of harness.model are the format (harness/schemas/evidence.schema.json); harness.evidence_codec says how values are written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from functools import lru_cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.errors import EvidenceError
from harness.evidence_codec import decode, encode, schema_of
from harness.evidence_sealing import canonical, digest, require_canonical, seal, unseal
from harness.model import Evidence, Stack, VerdictKind
from harness.retries import attempt_of

SCHEMA = 1
UNWITNESSED = "unwitnessed"
MEASURED = frozenset({VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.KNOWN_FAILURE, VerdictKind.FIXED})

_AGAIN = "Run the cell again, or import the original file."


def to_json(evidence: Evidence) -> str:
    """The canonical text of `evidence`, its `sha256` computed anew; ends in a newline. Raises EvidenceError for a value JSON can't hold."""
    return seal(_body(evidence))


def sealed(evidence: Evidence) -> Evidence:
    """`evidence` with the `sha256` that its content has."""
    return replace(evidence, sha256=digest(_body(evidence)))


def from_json(text: str, where: str, *, rehearsal_ok: bool = False) -> Evidence:
    """The evidence that `text` holds; `where` is named in errors.

    Raises EvidenceError for text that is no JSON or cut short, another schema, a wrong hash, missing, unknown or mistyped fields,
    text that is not canonical (duplicate keys, another layout), and evidence of a rehearsal unless `rehearsal_ok`.
    """
    found = unseal(text, where, SCHEMA, _AGAIN)
    evidence: Evidence = decode(found, Evidence, f"{where}: evidence")
    require_canonical(text, found, where)
    started(evidence, where)
    if evidence.rehearsal and not rehearsal_ok:
        raise EvidenceError(where, "comes from a rehearsal, which proves nothing.", "Run the cell without --rehearsal.")
    return evidence


def started(evidence: Evidence, where: str = "evidence") -> datetime:
    """When the run started, in UTC; a time without a zone is read as UTC. Raises EvidenceError for what is no ISO 8601 time."""
    try:
        when = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", evidence.started_at))
        return when.replace(tzinfo=timezone.utc) if when.tzinfo is None else when.astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise EvidenceError(where, f"started_at {evidence.started_at!r} is no ISO 8601 time.", _AGAIN) from error


def day(evidence: Evidence) -> date:
    """The UTC date on which the run started."""
    return started(evidence).date()


def rank(evidence: Evidence) -> tuple[bool, datetime, int, str]:
    """Which of two pieces under one key stays (the larger): what measured something before what did not, then the newer, of one second the
    later attempt; the hash breaks ties, so that merging commutes."""
    return (evidence.verdict.kind in MEASURED, *when(evidence), evidence.sha256)


def when(evidence: Evidence) -> tuple[datetime, int]:
    """The order in time of pieces, attempts within one second included."""
    return started(evidence), attempt_of(evidence)


def key_path(evidence: Evidence) -> str:
    """Where the newest of its key lives, under reports/: `evidence/<cell>/<stage>--<weights>--<hardware>--<stack>.json`."""
    hardware = str(evidence.hardware) if evidence.hardware else UNWITNESSED
    name = "--".join(file_name(part) for part in (str(evidence.stage), str(evidence.weights), hardware, evidence.stack))
    return f"evidence/{file_name(evidence.cell)}/{name}.json"


def file_name(text: str) -> str:
    """`text` as a name that every file system takes; two texts never share one (what had to be changed gets a hash)."""
    safe = re.sub(r"[^A-Za-z0-9._+=-]", "_", text)
    safe = re.sub(r"\.\.+", ".", re.sub(r"--+", "-", safe)).strip(".- ")[:100] or "_"
    return safe if safe == text else f"{safe}~{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def stack_name(versions: Mapping[str, str], stacks: Mapping[str, Stack]) -> str:
    """The declared stack whose every specifier the witnessed `versions` meet, else `undeclared-<8 hex of the versions>`.

    Of several the one that asks for most, then the first declared. A simulated version (+sim) meets nothing.
    """
    known = {canonicalize_name(name): version for name, version in versions.items()}

    def is_met(stack: Stack) -> bool:
        return bool(stack.requires) and all(meets(known.get(canonicalize_name(n)), spec) for n, spec in stack.requires.items())

    met = [stack for stack in stacks.values() if is_met(stack)]
    if met:
        return max(met, key=lambda stack: len(stack.requires)).key
    return "undeclared-" + hashlib.sha256(canonical(dict(versions)).encode()).hexdigest()[:8]


@lru_cache(4096)
def meets(version: str | None, specifier: str) -> bool:
    """Whether a version is one that a stack's specifier asks for; a simulated one (+sim) never is, nor is None."""
    try:
        found = Version(version or "")
        return "sim" not in (found.local or "") and SpecifierSet(specifier).contains(found, prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return False


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of evidence; harness/schemas/evidence.schema.json is this, written out."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Evidence of one (cell, stage) run",
        "description": f"Canonical JSON; sha256 is over the canonical text of the object without sha256. Schema {SCHEMA}.",
    }
    shape = {**head, **schema_of(Evidence)}
    shape["properties"]["schema"] = {"const": SCHEMA}
    shape["properties"]["sha256"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    return shape


def schema_text() -> str:
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


# --- text and hash


def _body(evidence: Evidence) -> dict[str, Any]:
    body: dict[str, Any] = encode(evidence, Evidence, "evidence")
    body.pop("sha256")
    return body
