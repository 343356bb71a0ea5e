"""Values of the vocabulary to JSON and back, by their declared types; the same types give the JSON Schema.

Numbers that JSON can't say are the strings NaN, Infinity and -Infinity; in free-form fields (typed Any) a text that would be taken for
one of them, or that starts with `text:`, carries the prefix `text:`. So what comes back is what went in, tuples in free-form fields
aside, which come back as lists.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from harness.errors import EvidenceError

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_AGAIN = "Run the cell again, or import the original file."


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _variants(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _bad(where: str, value: object, wanted: str) -> EvidenceError:
    return EvidenceError(where, f"{str(value)[:60]!r} is no {wanted}.", _AGAIN)


def encode(value: Any, hint: Any, where: str) -> Any:
    """The JSON value of `value`, which must have the type `hint`. Raises EvidenceError, naming the field, for what JSON can't hold."""
    if hint is Any:
        return _encode_free(value, where)
    if value is None:
        if type(None) not in _variants(hint):
            raise _bad(where, value, str(getattr(hint, "__name__", hint)))
        return None
    hint = next(v for v in _variants(hint) if v is not type(None))
    if is_dataclass(hint):
        return {name: encode(getattr(value, name), inner, f"{where}.{name}") for name, inner in _hints(hint).items()}  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        return [encode(item, get_args(hint)[0], f"{where}[{i}]") for i, item in enumerate(value)]
    if get_origin(hint) is Mapping:
        return {_text(k, where): encode(v, get_args(hint)[1], f"{where}[{k!r}]") for k, v in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _encode_float(float(value))
    if type(value) is not hint and not (hint is str and isinstance(value, str)):
        raise _bad(where, value, hint.__name__)
    return str(value) if isinstance(value, str) else value


def _encode_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_free(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = str(value.value) if isinstance(value, Enum) else str(value)
        return f"text:{text}" if text in _WORDS or text.startswith("text:") else text
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _encode_float(float(value))
    if isinstance(value, Mapping):
        return {_text(k, where): _encode_free(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encode_free(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise _bad(where, value, f"plain value ({type(value).__name__})")


def _text(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise _bad(where, key, "text, and keys are texts")
    return str(key)


def decode(value: Any, hint: Any, where: str) -> Any:
    """What `encode` was given. Raises EvidenceError, naming the field, for missing, unknown and mistyped fields."""
    if hint is Any:
        return _decode_free(value)
    variants = _variants(hint)
    if value is None and type(None) in variants:
        return None
    hint = next(v for v in variants if v is not type(None))
    if is_dataclass(hint):
        return _decode_record(value, hint, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _bad(where, value, "list")
        return tuple(decode(item, get_args(hint)[0], f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            raise _bad(where, value, "object")
        return {k: decode(v, get_args(hint)[1], f"{where}[{k!r}]") for k, v in value.items()}
    return _decode_scalar(value, hint, where)


def _decode_record(value: Any, cls: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _bad(where, value, "object")
    hints = _hints(cls)
    missing, unknown = sorted(hints.keys() - value.keys()), sorted(value.keys() - hints.keys())
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has the unknown {', '.join(unknown)}"] if unknown else []
        raise EvidenceError(where, " and ".join(parts) + ".", _AGAIN)
    return cls(**{name: decode(value[name], hint, f"{where}.{name}") for name, hint in hints.items()})


def _decode_scalar(value: Any, hint: Any, where: str) -> Any:
    if hint is float:
        if isinstance(value, str) and value in _WORDS:
            return _WORDS[value]
        if isinstance(value, float):
            return value
        raise _bad(where, value, "number with a decimal point")
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise _bad(where, value, f"{hint.__name__.lower()} ({', '.join(str(m) for m in hint)})") from error
    if type(value) is not hint:
        raise _bad(where, value, hint.__name__)
    return value


def _decode_free(value: Any) -> Any:
    if isinstance(value, str):
        return _WORDS[value] if value in _WORDS else value[5:] if value.startswith("text:") else value
    if isinstance(value, list):
        return [_decode_free(v) for v in value]
    if isinstance(value, dict):
        return {k: _decode_free(v) for k, v in value.items()}
    return value


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of what `encode` gives for `hint`."""
    if hint is Any:
        return {}
    variants = _variants(hint)
    if type(None) in variants:
        return {"anyOf": [*(schema_of(v) for v in variants if v is not type(None)), {"type": "null"}]}
    if is_dataclass(hint):
        inner = {name: schema_of(h) for name, h in _hints(hint).items()}  # type: ignore[arg-type]
        return {"type": "object", "properties": inner, "required": list(inner), "additionalProperties": False}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": schema_of(get_args(hint)[0])}
    if get_origin(hint) is Mapping:
        return {"type": "object", "additionalProperties": schema_of(get_args(hint)[1])}
    if hint is float:
        return {"anyOf": [{"type": "number"}, {"enum": list(_WORDS)}]}
    if issubclass(hint, Enum):
        return {"enum": [str(member) for member in hint]}
    return {"type": {str: "string", int: "integer", bool: "boolean"}[hint]}
