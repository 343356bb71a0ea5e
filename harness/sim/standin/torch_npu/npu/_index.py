"""Which device an argument of torch.npu's functions means."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu import _C


def device_index(device: Any = None) -> int:
    """None and "npu" mean the current device. Raises RuntimeError for a bad ordinal, ValueError for another kind of device."""
    if device is None:
        return int(_C.current_device())
    if isinstance(device, int):
        index: int | None = device
    else:
        named = torch.device(device)
        if named.type != "npu":
            raise ValueError(f"Expected a npu device, but got: {named}")
        index = named.index
    if index is None:
        return int(_C.current_device())
    if not 0 <= index < _C.device_count():
        raise RuntimeError(f"npu: invalid device ordinal {index}: there are {_C.device_count()} (SIMULATED NPU)")
    return index
