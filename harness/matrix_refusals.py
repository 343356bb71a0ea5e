"""Pydantic's findings about matrix.yaml, told as one MatrixError with a line, the closest known name and the list."""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import MatrixError, did_you_mean
from harness.matrix_schema import MatrixShape
from harness.matrix_text import Source

_NOUNS = {
    "algorithms": "algorithm",
    "default_for": "algorithm",
    "tuners": "tuner",
    "strategies": "strategy",
    "engines": "engine",
    "devices": "hardware",
    "requires": "component",
}


def validated(source: Source) -> MatrixShape:
    """The typed content of a source.

    Raises:
        MatrixError: the first thing, in line order, that has no meaning.
    """
    try:
        return MatrixShape.model_validate(source.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        odd = {tuple(details["loc"][:-1]) for details in found if details["type"] == "extra_forbidden"}
        # a key that is missing beside an unknown one is most likely that one, mistyped
        told = [details for details in found if details["type"] != "missing" or tuple(details["loc"][:-1]) not in odd]
        refusals = [_refusal(source, details) for details in told]
        raise min(refusals, key=lambda refusal: refusal[0])[1] from None


def _refusal(source: Source, details: ErrorDetails) -> tuple[int, MatrixError]:
    loc = tuple(details["loc"])
    is_key = bool(loc) and loc[-1] == "[key]"
    path = loc[:-1] if is_key else loc
    name = _name(path)
    what, next_step = _words(details, path, name, is_key)
    on_key = is_key or details["type"] == "extra_forbidden"
    line = source.key_line(path) if on_key else source.line(path)
    return line, MatrixError(f"{source.name}:{line}", what, next_step)


def _words(details: ErrorDetails, path: tuple[int | str, ...], name: str, is_key: bool) -> tuple[str, str]:
    kind, found = details["type"], details["input"]
    if kind in ("enum", "literal_error"):
        noun = _name(path[:-1]) if is_key else name
        known = re.findall(r"'([^']*)'", str(details["ctx"]["expected"])) or [str(details["ctx"]["expected"])]
        return f"{_NOUNS.get(noun, noun)} {_shown(found)} is unknown.", did_you_mean(str(found)[:60], known)
    if kind == "extra_forbidden":
        return f"key {_shown(path[-1])} is unknown.", did_you_mean(str(path[-1])[:60], _known_keys(path[:-1]))
    if kind == "missing":
        return f"key {name!r} is missing{_inside(path)}.", "Add it."
    if kind == "too_short":
        return f"{name} is empty{_inside(path)}: that makes an empty product." if path[0] == "cells" else f"{name} is empty.", "Name one."
    if kind == "value_error":
        return f"{name}: {details['ctx']['error']}.", ""
    if is_key and kind == "string_pattern_mismatch":
        return f"name {_shown(found)} is not allowed.", "Use small letters, digits and underscores."
    expected = str(details["msg"]).removeprefix("Input should be ").removeprefix("String should ").removeprefix("Value should ")
    return f"{name} is {_shown(found)}; expected: {expected[:1].lower()}{expected[1:]}.", ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(path: tuple[int | str, ...]) -> str:
    """The nearest name: a list's members are called by the list's."""
    return next((str(step) for step in reversed(path) if isinstance(step, str)), "matrix")


def _inside(path: tuple[int | str, ...]) -> str:
    outer = next((str(step) for step in reversed(path[:-1]) if isinstance(step, str)), "")
    return f" in {outer!r}" if outer else ""


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys that the shape at `path` has."""
    shape: Any = MatrixShape
    for step in path:
        if isinstance(shape, type) and issubclass(shape, BaseModel):
            shape = _bare(shape.model_fields[str(step)].annotation)
        else:
            shape = _bare(get_args(shape)[-1])
    return list(shape.model_fields)


def _bare(annotation: Any) -> Any:
    """An annotation without `Annotated[...]` and `| None`."""
    if hasattr(annotation, "__metadata__"):
        return _bare(annotation.__origin__)
    if get_origin(annotation) in (list, dict) or isinstance(annotation, type):
        return annotation
    return _bare(next(a for a in get_args(annotation) if a is not type(None)))
