"""torch.npu of a SIMULATED NPU: the names and meanings of torch_npu's. What is missing here raises AttributeError, as it should."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_npu import _C

from . import amp, memory, random, streams
from ._index import device_index
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import Event, Stream, current_stream, default_stream, set_stream, stream

_PRODUCT = os.environ.get("NPU_MATRIX_SIM_PRODUCT", "Ascend910B3")
_NAME = f"SIMULATED {_PRODUCT} in host memory"


# ---- whether, how many, which
def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    count: int = _C.device_count()
    return count


def current_device() -> int:
    index: int = _C.current_device()
    return index


def set_device(device: Any) -> None:
    _C.set_device(device_index(device))


class device(contextlib.ContextDecorator):
    """Within it another device is current; a negative or missing index changes nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = device if isinstance(device, int) else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: Any) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):
    """Within it the device of a tensor is current, if it is an npu."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "npu" else -1)


def _exchange_device(index: int) -> int:
    before = current_device()
    if index >= 0:
        _C.set_device(index)
    return before


_maybe_exchange_device = _exchange_device


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    return device_index(device) != device_index(peer_device)


# ---- start-up, which has happened when this is imported
_initialized = True
_tls = None


def init() -> None: ...


def _lazy_init() -> None: ...


def _lazy_call(function: Callable[[], Any], **_: Any) -> None:
    function()


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    """A fork of a process that only has memory of the host is not bad."""
    return False


# ---- every kernel has ended when its call returns
def synchronize(device: Any = None) -> None:
    device_index(device)


def ipc_collect() -> None: ...


def is_current_stream_capturing() -> bool:
    return False


# ---- properties
@dataclass(frozen=True)
class _NPUDeviceProperties:
    """`total_memory` and `L2_cache_size` in bytes."""

    name: str
    total_memory: int
    cube_core_num: int = 20
    vector_core_num: int = 40
    L2_cache_size: int = 192 << 20


def get_device_name(device: Any = None) -> str:
    device_index(device)
    return _NAME


def get_device_properties(device: Any = None) -> _NPUDeviceProperties:
    return _NPUDeviceProperties(_NAME, mem_get_info(device)[1])


def get_device_capability(device: Any = None) -> None:
    """None, as torch_npu says: NPUs have no compute capability."""
    device_index(device)


def utilization(device: Any = None) -> int:
    device_index(device)
    return 0


# ---- dtypes
def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16, torch.float32]


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("npu", dtype)


def is_autocast_enabled() -> bool:
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enabled: bool) -> None:
    torch.set_autocast_enabled("npu", enabled)


def _legacy_tensor(dtype: torch.dtype, *args: Any) -> torch.Tensor:
    """torch.npu.FloatTensor(2, 3) or torch.npu.FloatTensor([1, 2])."""
    if args and all(isinstance(arg, int) for arg in args):
        return torch.empty(args, dtype=dtype, device="npu")
    return torch.tensor(args[0] if args else [], dtype=dtype, device="npu")


BFloat16Tensor = functools.partial(_legacy_tensor, torch.bfloat16)
BoolTensor = functools.partial(_legacy_tensor, torch.bool)
ByteTensor = functools.partial(_legacy_tensor, torch.uint8)
CharTensor = functools.partial(_legacy_tensor, torch.int8)
DoubleTensor = functools.partial(_legacy_tensor, torch.float64)
FloatTensor = functools.partial(_legacy_tensor, torch.float32)
HalfTensor = functools.partial(_legacy_tensor, torch.float16)
IntTensor = functools.partial(_legacy_tensor, torch.int32)
LongTensor = functools.partial(_legacy_tensor, torch.int64)
ShortTensor = functools.partial(_legacy_tensor, torch.int16)


# ---- switches of CANN's: kept and given back, since there is no CANN to heed them
class _Switches:
    def __init__(self, **values: bool) -> None:
        self.__dict__.update(values)


config = _Switches(allow_internal_format=False)
matmul = _Switches(allow_hf32=False)
conv = _Switches(allow_hf32=True)
_options: dict[str, Any] = {}


def set_option(option: dict[str, Any]) -> None:
    _options.update(option)


def set_compile_mode(jit_compile: bool = False) -> None:
    _options["jitCompile"] = jit_compile


def is_jit_compile_false() -> bool:
    return not _options.get("jitCompile", False)


__all__ = [
    "Event", "Stream", "amp", "current_stream", "default_generators", "default_stream", "empty_cache",
    "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_cached",
    "max_memory_reserved", "mem_get_info", "memory", "memory_allocated", "memory_cached", "memory_reserved", "memory_stats",
    "memory_stats_as_nested_dict", "memory_summary", "random", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_peak_memory_stats", "seed", "seed_all", "set_per_process_memory_fraction", "set_rng_state",
    "set_rng_state_all", "set_stream", "stream", "streams",
]  # fmt: skip
