"""The command line of ms-swift 4.6.0 as far as it shapes a run: known flags (flags.txt), values as text, typed on reading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_GROUPS = {"pt": "training", "sft": "training", "rlhf": "training", "infer": "serving", "deploy": "serving"} | {
    "rollout": "serving",
    "eval": "serving",
}


def known_flags(method: str) -> frozenset[str]:
    """Names without dashes that ms-swift 4.6.0's argument class for `method` declares."""
    lines = (Path(__file__).parent / "flags.txt").read_text().splitlines()
    groups: dict[str, set[str]] = {}
    for line in lines:
        if line.endswith(":"):
            here = groups.setdefault(line[:-1], set())
        else:
            here.update(line.split())
    return frozenset(groups["every"] | groups.get(_GROUPS.get(method, ""), set()) | groups.get(method, set()))


class UnknownFlags(Exception):
    """ms-swift's own words for a flag that it does not have."""


@dataclass(frozen=True)
class Arguments:
    method: str
    values: dict[str, list[str]]
    loaded: dict[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.values

    def words(self, name: str) -> list[str]:
        if name in self.values:
            return self.values[name]
        kept = self.loaded.get(name)
        return [str(word) for word in kept] if isinstance(kept, list) else [] if kept is None else [str(kept)]

    def text(self, name: str, default: str = "") -> str:
        return (self.words(name) or [default])[0]

    def number(self, name: str, default: float) -> float:
        return float(self.text(name) or default)

    def whole(self, name: str, default: int) -> int:
        return int(float(self.text(name) or default))

    def flag(self, name: str, default: bool = False) -> bool:
        if name in self.values and not self.values[name]:
            return True
        return (self.text(name) or str(default)).lower() in ("true", "1", "yes")

    def without(self, *names: str) -> Arguments:
        return Arguments(self.method, {k: v for k, v in self.values.items() if k not in names}, self.loaded)

    def as_json(self) -> dict[str, Any]:
        """What goes into args.json: everything that later commands load back, and every flag given."""
        given: dict[str, Any] = {
            name: words[0] if len(words) == 1 and name not in ("dataset", "adapters", "target_modules", "callbacks") else words
            for name, words in self.values.items()
        }
        return {**self.loaded, **given}


def parse(method: str, argv: Sequence[str]) -> Arguments:
    """Raises UnknownFlags for names that ms-swift refuses; a value that starts with '-' and a digit is a number."""
    values: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in argv:
        if word.startswith("--"):
            name, _, inline = word[2:].partition("=")
            current = values.setdefault(name, [])
            current.clear()
            if inline:
                current.append(inline)
        elif current is None:
            raise UnknownFlags(f"remaining_argv: {[word]}")
        else:
            current.append(word)
    unknown = sorted(set(values) - known_flags(method))
    if unknown:
        remaining = [word for name in unknown for word in (f"--{name}", *values[name])]
        raise UnknownFlags(f"remaining_argv: {remaining}")
    return Arguments(method, values, _from_checkpoint(method, values))


_LOADED = ("model", "model_type", "template", "torch_dtype", "system", "task_type", "num_labels", "rlhf_type")
_LOADED_TO_RESUME = (*_LOADED, "tuner_type", "lora_rank", "lora_alpha", "target_modules", "lora_dropout")


def _from_checkpoint(method: str, values: dict[str, list[str]]) -> dict[str, Any]:
    """ms-swift loads args.json of the adapter, of the checkpoint resumed from, or of the model's folder."""
    names = _LOADED_TO_RESUME if method in ("pt", "sft", "rlhf") else _LOADED
    for source in ("resume_from_checkpoint", "adapters", "model"):
        folder = (values.get(source) or [""])[0]
        path = Path(folder) / "args.json"
        if folder and path.is_file():
            kept = {k: v for k, v in json.loads(path.read_text()).items() if k in names and v is not None}
            if source == "model":
                kept.pop("model", None)
            return kept
    return {}
