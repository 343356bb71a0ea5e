"""The device that the work is on, asked through torch's module for that kind of device; a cpu answers for itself."""

from __future__ import annotations

import importlib.metadata
import platform
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy


class Device:
    """A torch.device with what the witness asks of it. `kind` is "cpu", "npu", ..."""

    def __init__(self, device: Any) -> None:
        import torch

        self.device, self.kind = device, str(device.type)
        self.name = str(device)
        self._torch: Any = torch
        self._module: Any = None if self.kind == "cpu" else getattr(torch, self.kind, None)

    @classmethod
    def of(cls, model: Any) -> Device:
        """Where the first parameter of `model` lies."""
        return cls(next(iter(model.parameters())).device)

    def product(self) -> str:
        """The name that the device gives itself, such as Ascend910B3."""
        if self._module is None:
            return platform.processor() or platform.machine()
        return str(self._module.get_device_name(self.device))

    def synchronize(self) -> None:
        if self._module is not None:
            self._module.synchronize(self.device)

    def peak_allocated_mib(self) -> float:
        return 0.0 if self._module is None else self._module.max_memory_allocated(self.device) / 2**20

    def peak_reserved_mib(self) -> float:
        return 0.0 if self._module is None else self._module.max_memory_reserved(self.device) / 2**20

    @contextmanager
    def same_randomness(self) -> Iterator[None]:
        """Leave every random generator (torch, this device, numpy, Python) as it was found."""
        before = self._torch.get_rng_state(), numpy.random.get_state(), random.getstate()
        on_device = None if self._module is None else self._module.get_rng_state(self.device)
        try:
            yield
        finally:
            self._torch.set_rng_state(before[0])
            numpy.random.set_state(before[1])
            random.setstate(before[2])
            if on_device is not None:
                self._module.set_rng_state(on_device, self.device)


def simulated() -> bool:
    """Whether torch_npu is the stand-in of a simulated NPU, which its version says."""
    try:
        return "+sim" in importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return False
