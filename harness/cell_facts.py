"""What a piece of evidence is about, as facts that it carries and that the matrix of today is held against.

A mark says something of a cell as matrix.yaml declares it now. Evidence of the same cell id under another model, revision, recipe or set
of options answers another question, and counts for nothing.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from harness.consistency import NPU, seen_devices
from harness.model import Cell, Evidence, Hardware, Matrix, Options, Recipe, Weights

UNKNOWN = "unknown"
_KINDS = ("algorithm", "tuner", "strategy", "engine")
# What cells that share a tiny model differ in.
_OF_THE_RUNNER = ("model", "recipe", "recipe_sha256")
_DEFAULTS = Options()


def cell_facts(cell: Cell) -> dict[str, str]:
    """What `cell` is, as texts: what evidence keeps in `facts`, and what `changes` asks of it later."""
    facts = {name: str(getattr(cell, name)) for name in _KINDS}
    facts |= {"model": cell.model.id, "revision": cell.model.revision or UNKNOWN, "family": cell.model.family}
    return facts | {"recipe": cell.recipe.key, "recipe_sha256": recipe_digest(cell.recipe), "options": options_text(cell.options)}


def options_text(options: Options) -> str:
    """The options that differ from the defaults, as `name=value` in the order of `Options`; "" where none does."""
    names = [name for name in Options.__dataclass_fields__ if getattr(options, name) != getattr(_DEFAULTS, name)]
    return ", ".join(f"{name}={json.dumps(getattr(options, name))}" for name in names)


def recipe_digest(recipe: Recipe) -> str:
    """SHA-256 of what the recipe makes a command of: its data sets and settings, whatever document they are quoted from."""
    content = {"dataset": list(recipe.dataset), "settings": dict(recipe.settings)}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def changes(piece: Evidence, cell: Cell, matrix: Matrix) -> tuple[str, ...]:
    """Why `piece` says nothing about `cell` as `matrix` declares it now, one phrase each; empty where it does.

    A tiny model stands for its family: its model and recipe are held against the cell that ran, and no revision is asked of it.
    """
    own = matrix.cell(piece.cell)
    now_is = cell_facts(cell)
    if piece.weights is Weights.TINY:
        of_runner = {name: now for name, now in cell_facts(own).items() if name in _OF_THE_RUNNER} if own else {}
        now_is = {**{name: now for name, now in now_is.items() if name not in (*_OF_THE_RUNNER, "revision")}, **of_runner}
    found: list[str] = []
    for name, now in now_is.items():
        before = piece.facts.get(name)
        if before is None:
            found.append(f"it does not say its {name}")
        elif before != now:
            found.append(_changed(name, str(before), now))
    if piece.weights is Weights.TINY:
        found += [f"it ran as {piece.tiny_key}, the cell is {c.tiny_key}" for c in (own, cell) if c and c.tiny_key != piece.tiny_key][:1]
    return (*found, *_other_hardware(piece, matrix.hardware))


def _changed(name: str, before: str, now: str) -> str:
    if name == "recipe_sha256":
        return "its recipe had other data sets or settings"
    return f"its {name} was {before or 'the default'}, now {now or 'the default'}"


def _other_hardware(piece: Evidence, hardware: Mapping[Hardware, Mapping[str, Any]]) -> list[str]:
    """Names that the devices gave themselves and that the matrix does not know as the piece's hardware."""
    if piece.hardware is None or not piece.hardware.is_npu:
        return []
    patterns = tuple(hardware.get(piece.hardware, {}).get("device_names", ()))
    names = sorted({name for kind, name in seen_devices(piece.witnesses) if kind == NPU and name})
    if not names:
        return ["no device of it told its name"]
    return [f"its device {name} is no {piece.hardware}" for name in names if not any(fnmatch.fnmatchcase(name, p) for p in patterns)]
