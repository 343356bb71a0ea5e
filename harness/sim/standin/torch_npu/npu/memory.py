"""torch.npu.memory: what the ledger in csrc/memory.cpp holds, by torch_npu's names. Bytes everywhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torch_npu import _C

from ._index import device_index


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    stats: dict[str, Any] = torch._C._accelerator_getDeviceStats(device_index(device))
    return stats


def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """Such as {"allocated_bytes.all.current": 512, ...}."""
    return OrderedDict(sorted(_flattened(memory_stats_as_nested_dict(device))))


def _flattened(stats: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in stats.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _stat(device: Any, name: str, which: str) -> int:
    value: int = memory_stats_as_nested_dict(device)[name]["all"][which]
    return value


def memory_allocated(device: Any = None) -> int:
    return _stat(device, "allocated_bytes", "current")


def max_memory_allocated(device: Any = None) -> int:
    return _stat(device, "allocated_bytes", "peak")


def memory_reserved(device: Any = None) -> int:
    return _stat(device, "reserved_bytes", "current")


def max_memory_reserved(device: Any = None) -> int:
    return _stat(device, "reserved_bytes", "peak")


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    torch._C._accelerator_resetPeakStats(device_index(device))


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    torch._C._accelerator_resetAccumulatedStats(device_index(device))


def empty_cache() -> None:
    """What is reserved and not allocated goes back to the host."""
    torch._C._accelerator_emptyCache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total)."""
    free, total = _C.mem_get_info(device_index(device))
    return free, total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """More than this share of the device raises torch.OutOfMemoryError."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(device_index(device), float(fraction))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    index = device_index(device)
    rows = [
        ("allocated", memory_allocated(index), max_memory_allocated(index)),
        ("reserved", memory_reserved(index), max_memory_reserved(index)),
    ]
    lines = [f"SIMULATED NPU {index}, memory in KiB", f"{'':<10}{'current':>14}{'peak':>14}"]
    return "\n".join([*lines, *(f"{name:<10}{current >> 10:>14}{peak >> 10:>14}" for name, current, peak in rows)])
