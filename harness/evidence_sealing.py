"""Text and hash of evidence: canonical JSON that carries the sha256 of its own content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from harness.errors import EvidenceError


def canonical(value: Mapping[str, Any]) -> str:
    """The one text of a JSON object; ends in a newline. Raises ValueError for a value JSON can't hold."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def digest(body: Mapping[str, Any]) -> str:
    """The sha256 of an object without its own `sha256`."""
    return hashlib.sha256(canonical(body).encode("utf-8")).hexdigest()


def seal(body: Mapping[str, Any]) -> str:
    """The canonical text of `body` with the sha256 of what it holds."""
    rest = {k: v for k, v in body.items() if k != "sha256"}
    return canonical({**rest, "sha256": digest(rest)})


def unseal(text: str, where: str, schema: int, again: str) -> dict[str, Any]:
    """The object that `text` holds, its hash and schema number checked; `again` says how to get it anew.

    Raises EvidenceError, naming `where`, for text that is no JSON, no object or cut short, of another schema, or edited.
    """
    found = _object(text, where, again)
    if found.get("schema") != schema:
        what = f"schema {found.get('schema')!r} is unknown, this harness reads {schema}."
        raise EvidenceError(where, what, "Use the harness that wrote it.")
    try:
        expected = digest({k: v for k, v in found.items() if k != "sha256"})
    except (ValueError, RecursionError) as error:
        raise EvidenceError(where, f"holds a value that no evidence can hold ({error}).", again) from error
    if found.get("sha256") != expected:
        what = f"its content has sha256 {expected[:12]}, but it says {str(found.get('sha256'))[:12]}: it was edited."
        raise EvidenceError(where, what, again)
    return found


def require_canonical(text: str, found: Mapping[str, Any], where: str) -> None:
    if text != canonical(found):
        raise EvidenceError(where, "is not in canonical form (layout, order, repeated keys).", "Restore the file as it was written.")


def _object(text: str, where: str, again: str) -> dict[str, Any]:
    def constant(word: str) -> NoReturn:
        raise ValueError(f"the bare number {word}")

    try:
        found = json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        what = "is cut short" if cut else "is no JSON"
        raise EvidenceError(f"{where}:{error.lineno}", f"{what} ({error.msg}).", again) from error
    except (ValueError, RecursionError) as error:
        raise EvidenceError(where, f"is no JSON that evidence can be ({error}).", again) from error
    if not isinstance(found, dict):
        raise EvidenceError(where, f"is a JSON {type(found).__name__}, evidence is an object.", again)
    return found
