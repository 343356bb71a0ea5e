"""Experts of a mixture as transformers 5 holds them in memory: a file has one tensor for each expert, a live model one for all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from harness.tensors import Tensor

_EXPERT = re.compile(r"(?P<at>.*\.experts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj\.weight")


def packed(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """`tensors` with each layer's experts packed: gate_up_proj [experts, 2 I, H] (gate above up) and down_proj [experts, H, I].

    Files without experts of their own come back as they are; so do experts that don't make a whole.
    """
    layers: dict[str, dict[tuple[int, str], str]] = defaultdict(dict)
    for name in tensors:
        if found := _EXPERT.fullmatch(name):
            layers[found["at"]][int(found["number"]), found["part"]] = name
    result = dict(tensors)
    for at, names in layers.items():
        count = 1 + max(number for number, _ in names)
        if len(names) != 3 * count:
            continue
        gate_up = [tensors[names[number, part]] for number in range(count) for part in ("gate", "up")]
        down = [tensors[names[number, "down"]] for number in range(count)]
        rows, columns = gate_up[0].shape
        result[f"{at}.gate_up_proj"] = _joined(gate_up, (count, 2 * rows, columns))
        result[f"{at}.down_proj"] = _joined(down, (count, *down[0].shape))
        for name in names.values():
            del result[name]
    return result


def _joined(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """One tensor of the parts' bytes, one after the other: rows of a C-ordered array."""
    return Tensor(parts[0].dtype, shape, np.concatenate([part.raw for part in parts]))
