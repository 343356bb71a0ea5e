"""The stand-in torch_npu of a SIMULATED NPU. It is no part of Ascend's torch_npu and proves nothing about an NPU.

torch imports it by itself (entry point torch.backends) in processes whose PYTHONPATH names this folder; importing it makes the device.
Operators are those of harness/sim/operators, imported when the first one is asked for; `__sim_calls__` counts their calls.
"""

from __future__ import annotations

import collections
from typing import Any


def _autoload() -> None:
    """What torch calls after it imported this package; defined before torch is imported below, which may call it at once."""


__sim_calls__: collections.Counter[str] = collections.Counter()

from torch_npu import _startup  # noqa: E402

__version__ = _startup.start()

from torch_npu import npu  # noqa: E402


def __getattr__(name: str) -> Any:
    """An operator, the first time that it is asked for."""
    if not name.startswith("__"):
        from torch_npu._operators import operator

        found = operator(name, __sim_calls__)
        if found is not None:
            globals()[name] = found
            return found
        if name == "optim":
            import torch_npu.optim

            return torch_npu.optim
    raise AttributeError(f"module 'torch_npu' (SIMULATED NPU) has no attribute {name!r}")


def __dir__() -> list[str]:
    from torch_npu._operators import names

    return sorted({*globals(), *names()})


__all__ = ["npu"]
