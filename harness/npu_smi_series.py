"""From a chip's name to the series that people and matrix.yaml speak of. A name that doesn't tell stays unknown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from harness.model import Hardware
from harness.npu_smi_view import Npu

# Names are compared without `Ascend` and spaces: npu-smi prints 910B3, its -m `Ascend 910B3`, torch_npu Ascend910B3. A plain 910B is
# either an A2 or, as CANN spells it, the 910ProB of the first generation.
_SERIES = (
    (Hardware.A2.value, re.compile(r"910B[1-4]C?(-\d+)?(-vir\w+|_vir\w+)?")),
    (Hardware.A3.value, re.compile(r"910_93\w*|910C")),
    (Hardware.A5.value, re.compile(r"910_95\w*|950\w*(-\w+)?")),
    ("310P", re.compile(r"310P\d?\w*(-\w+)?")),
    ("310B", re.compile(r"310B\d?\w*(-\w+)?")),
    ("310", re.compile(r"310")),
    ("910A", re.compile(r"910A|910Pro[AB]|910PremiumA")),
)
# Both dies of an Atlas A3 call themselves by this; so could a 910A, which has one die and no Phy-ID.
_SHARED_NAME = "910"


def series_of_name(name: str | None) -> str | None:
    """The series that a chip's name tells by itself: a2, a3, a5, 310P, 310B, 310, 910A, or None."""
    bare = _bare(name)
    return next((series for series, pattern in _SERIES if pattern.fullmatch(bare)), None)


def with_series(npus: Sequence[Npu]) -> tuple[Npu, ...]:
    """The same dies with their series; a plain Ascend910 is an A3 if its NPU has two dies or the table numbers dies apart (Phy-ID)."""
    dies = Counter(npu_id for npu_id, _ in {(npu.npu_id, npu.chip) for npu in npus if npu.chip is not None})
    return tuple(replace(npu, series=series_of_name(npu.name) or _by_dies(npu, dies[npu.npu_id])) for npu in npus)


def series_of(npus: Sequence[Npu]) -> Hardware | None:
    """The target hardware of all these dies; None where one is unknown, can't train, or they differ."""
    found = {npu.hardware for npu in npus}
    return found.pop() if len(found) == 1 else None


def _by_dies(npu: Npu, dies: int) -> str | None:
    apart = _bare(npu.name) == _SHARED_NAME and (dies == 2 or npu.phy_id is not None)
    return Hardware.A3.value if apart else None


def _bare(name: str | None) -> str:
    return re.sub(r"^ascend", "", re.sub(r"\s+", "", name or ""), flags=re.IGNORECASE)
