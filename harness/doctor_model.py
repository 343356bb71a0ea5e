"""A checkpoint's folder: what config.json claims, and what the headers of its safetensors say. No tensor is read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.doctor_facts import ModelFacts
from harness.errors import HarnessError

_LONGEST_HEADER_BYTES = 100_000_000


def look_at_model(folder: Path) -> ModelFacts:
    """Raises HarnessError where `folder` is none, or has no config.json. What can't be read of its weights is in `faults`."""
    if not (folder / "config.json").is_file():
        raise HarnessError(f"--model {folder.name}", "is no folder with a config.json.", "Give a downloaded checkpoint's folder.")
    faults: list[str] = []
    config: Mapping[str, Any] = {}
    try:
        config = _object((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        faults.append(f"config.json can't be read: {error}")
    elements: Counter[str] = Counter()
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            elements += _elements(path)
        except (OSError, ValueError) as error:
            faults.append(f"{path.name} can't be read: {error}")
    if not files:
        faults.append("holds no *.safetensors")
    return ModelFacts(folder.name, _text(config.get("model_type")), _quantization(config), dict(elements), tuple(faults))


def _elements(path: Path) -> Counter[str]:
    """Elements by dtype, as the header of one file says. Raises ValueError for a header that has no meaning."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError("it is cut, or no safetensors file")
        header = _object(file.read(length))
    found: Counter[str] = Counter()
    longest = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            found[str(entry["dtype"])] += math.prod(int(size) for size in entry["shape"])
            longest = max(longest, int(entry["data_offsets"][1]))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"tensor {name!r} has no dtype, shape or place") from error
    if longest + 8 + length > path.stat().st_size:
        raise ValueError("it is cut: its last tensors are not there")
    return found


def _quantization(config: Mapping[str, Any]) -> str | None:
    """The method that config.json names, also where a multimodal model has it with its language model; None where it has none."""
    for part in (config, config.get("text_config"), config.get("language_config")):
        claim = part.get("quantization_config") if isinstance(part, Mapping) else None
        if isinstance(claim, Mapping) and claim:
            return _text(claim.get("quant_method")) or _text(claim.get("fmt")) or "of no named method"
    return None


def _object(data: bytes) -> Mapping[str, Any]:
    """Raises ValueError for what is no JSON object, however deeply it is nested."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
