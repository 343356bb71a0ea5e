"""Where the operators of torch_npu run: on the first device of a real torch_npu, or not at all. The one place that decides it."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.metadata
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

DEVICE = "npu:0"
# How a tensor lies in memory: contiguous; with its last two dimensions swapped; a slice of wider rows; every second element.
LAYS = PLAIN, TURNED, SLICED, STEPPED = "plain", "turned", "sliced", "stepped"
INSTALL = "install the torch_npu that fits this torch (pip install torch_npu), on a host with an NPU, its driver and CANN"


@functools.cache
def why_no_npu() -> str:
    """ "" where a real torch_npu answers with a device; else why not, and what to do. A module that stands in for it doesn't count."""
    # Not importlib.util.find_spec: that would answer with whatever stands in sys.modules.
    spec = importlib.machinery.PathFinder.find_spec("torch_npu")
    if spec is None:
        return f"needs torch_npu and an NPU; {INSTALL}"
    if "sim" in _version():
        return f"needs an NPU, and the torch_npu found here is the stand-in of the simulated one ({_version()}); {INSTALL}"
    loaded = sys.modules.get("torch_npu")
    if loaded is not None and getattr(loaded, "__file__", None) != spec.origin:
        return "needs torch_npu, and another module stands in for it in this process; run these cases in a process of their own"
    try:
        importlib.import_module("torch_npu")
        count = int(torch.get_device_module("npu").device_count())
    except (ImportError, OSError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"torch_npu {_version()} can't be used here ({said}); check CANN and its set_env.sh"
    return "" if count else f"torch_npu {_version()} finds no NPU; check npu-smi info and ASCEND_RT_VISIBLE_DEVICES"


def _version() -> str:
    try:
        return importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _of_torch_npu(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module("torch_npu"), name)
    return found


@dataclass(frozen=True)
class Operators:
    """Operators by name on a device, every call counted.

    `find(name)` gives the callable; `missing()` is "" or why they can't run here. Tests put other callables and the CPU in.
    """

    find: Callable[[str], Callable[..., Any]] = _of_torch_npu
    device: str = DEVICE
    missing: Callable[[], str] = why_no_npu
    calls: Counter[str] = field(default_factory=Counter)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.calls[name] += 1
        return self.find(name)(*arguments, **named)

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        self.calls.clear()
        yield self.calls

    def place(self, value: torch.Tensor, lay: str = PLAIN) -> torch.Tensor:
        """The tensor on the device, its memory laid out as asked (see LAYS); gradients flow back to `value`."""
        if lay == TURNED and value.dim() > 1:
            return value.transpose(-1, -2).contiguous().to(self.device).transpose(-1, -2)
        moved = value.to(self.device)
        if lay == PLAIN or not value.dim():
            return moved
        wide = torch.stack((moved, moved + 1), -1).flatten(-2) if lay == STEPPED else torch.cat((moved, moved + 1), -1)
        return wide[..., ::2] if lay == STEPPED else wide[..., : value.shape[-1]]


REAL = Operators()
