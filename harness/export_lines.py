"""One piece a line: a flat JSON object with its own hash, in the canonical form of harness.evidence_sealing without the line ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from harness.errors import EvidenceError

SCHEMA = 1
_AGAIN = "Export it again where it came from."
_PLAIN = (str, int, float, bool)


def line_of(body: Mapping[str, Any]) -> str:
    """The sealed line of a flat object, line end included. Raises ValueError for a number that JSON can't say, TypeError for a value that
    is neither text, number nor bool."""
    rest = {name: value for name, value in body.items() if name != "sha256"}
    for name, value in rest.items():
        if not isinstance(value, _PLAIN):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return _line({**rest, "sha256": _digest(rest)})


def opened(line: str, where: str) -> dict[str, Any]:
    """The object of a line, its hash, form and schema number checked. Raises EvidenceError, naming `where`."""
    try:
        found = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(where, f"is no JSON object on one line ({error}).", _AGAIN) from error
    if not isinstance(found, dict) or not all(isinstance(value, _PLAIN) for value in found.values()):
        raise EvidenceError(where, "is no flat object of texts, numbers and bools.", _AGAIN)
    said = found.pop("sha256", None)
    expected = _digest(found)
    if said != expected:
        what = f"its content has sha256 {expected[:12]}, but it says {str(said)[:12]}: it was cut or edited."
        raise EvidenceError(where, what, _AGAIN)
    if found.get("schema") != SCHEMA:
        raise EvidenceError(where, f"schema {found.get('schema')!r} is unknown, this harness reads {SCHEMA}.", "Use its harness.")
    found["sha256"] = said
    if line != _line(found):
        raise EvidenceError(where, "is not in canonical form (layout, order, repeated names).", _AGAIN)
    return found


def _line(body: Mapping[str, Any]) -> str:
    return _utf8("{ " + _inner(body, ", ") + "}\n")


def _digest(body: Mapping[str, Any]) -> str:
    """harness.evidence_sealing.digest of a flat object, by json's C encoder, which writes no indents: they are written as separators."""
    text = "{\n " + _inner(body, ",\n ") + "\n}\n" if body else "{}\n"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _inner(body: Mapping[str, Any], between: str) -> str:
    return json.dumps(body, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(between, ": "))[1:-1]


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"the bare number {word}")
