"""torch.npu.Stream and Event. Work has ended when its call returns, so all that is left is who is current, and time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from ._index import device_index

_PRIVATE_USE_1 = torch._C._autograd.DeviceType.PrivateUse1.value


class Stream(torch.Stream):
    def __new__(cls, device: Any = None, priority: int = 0, **ids: Any) -> Stream:
        """`ids`: stream_id, device_index and device_type of a stream that exists."""
        if ids:
            return super().__new__(cls, **ids)
        return super().__new__(cls, torch.device("npu", device_index(device)), priority=priority)

    @property
    def npu_stream(self) -> int:
        return int(self.stream_id)

    def wait_stream(self, stream: Any) -> None: ...

    def __repr__(self) -> str:
        return f"<torch.npu.Stream device={self.device} npu_stream={self.npu_stream:#x} SIMULATED>"


class Event(torch.Event):
    """Has its own time: torch.Event.elapsed_time takes no subclass of itself."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        event: Event = super().__new__(cls, "npu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
        event._timed, event._recorded_s = enable_timing, None
        return event

    _timed: bool
    _recorded_s: float | None

    def record(self, stream: Any = None) -> None:
        self._recorded_s = time.perf_counter()
        super().record(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds. Raises ValueError unless both events were made with enable_timing and recorded."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_s is None or end_event._recorded_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (float(end_event._recorded_s) - self._recorded_s) * 1e3


def _ours(stream: Any) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: Any = None) -> Stream:
    return _ours(torch.accelerator.current_stream(torch.device("npu", device_index(device))))


def default_stream(device: Any = None) -> Stream:
    return Stream(stream_id=0, device_index=device_index(device), device_type=_PRIVATE_USE_1)


def set_stream(stream: Any) -> None:
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[None]:
    """Within it `stream` is current, and so is its device; None changes nothing."""
    if stream is None:
        yield
        return
    from torch_npu import npu

    device_before, stream_before = npu.current_device(), current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(stream_before)
        npu.set_device(device_before)
