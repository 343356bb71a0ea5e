"""torch_npu for what imports it: the real one on an NPU; on a CPU the reference operators of harness/sim under its name, while needed.

Calls are counted by operator either way, so that a case that never reached an operator can't pass.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from harness.kernels.npu import DEVICE, why_no_npu
from harness.sim.operators import OPERATORS

# What get_device_name answers on a CPU. MindSpeed's choices hang on the name: a check that asks for another one sets it.
DEVICE_NAME = "Ascend910B3"


@dataclass(frozen=True)
class Bench:
    """Where ms-swift's patches run: `torch_npu`, the real one or the stand-in, and the device of its tensors. `calls` by operator."""

    torch_npu: ModuleType
    device: str
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def stands_in(self) -> bool:
        return self.device == "cpu"

    def place(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor on the device with its strides; gradients flow back."""
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.device).copy_(value)

    def placed(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: self.place(value) for name, value in tensors.items()}

    @contextmanager
    def importable(self) -> Iterator[None]:
        """While inside, `import torch_npu` and `torch.npu` give this bench's; afterwards all is as before."""
        if not self.stands_in:
            yield
            return
        npu = self.torch_npu.npu
        with imported({"torch_npu": self.torch_npu, "torch_npu.npu": npu}), mock.patch.object(torch, "npu", npu, create=True):
            yield

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Importable, and every call of an operator counted in `calls`, which starts empty."""
        self.calls.clear()
        with ExitStack() as stack:
            stack.enter_context(self.importable())
            for name in OPERATORS:
                stack.enter_context(mock.patch.object(self.torch_npu, name, self.counting(name)))
            yield self.calls

    def counting(self, name: str) -> Callable[..., Any]:
        operator = getattr(self.torch_npu, name)

        @functools.wraps(operator)
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return operator(*arguments, **named)

        return call


@contextmanager
def imported(modules: Mapping[str, Any]) -> Iterator[None]:
    """While inside, these are in sys.modules; None: not importable. Unlike mock.patch.dict this keeps what else is imported meanwhile."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def choose(why_not_real: str) -> Bench:
    """The bench of a host: real where nothing says why not. A fake reason decides in tests."""
    if why_not_real:
        return Bench(stand_in(), "cpu")
    return Bench(importlib.import_module("torch_npu"), DEVICE)


@functools.cache
def bench() -> Bench:
    """The bench of this process."""
    return choose(why_no_npu())


def stand_in() -> ModuleType:
    """A module named torch_npu of reference operators on CPU tensors. It says that no NPU is there, so that nobody caches the contrary."""
    module: Any = _module("torch_npu")
    module.__version__ = "0+reference"
    module.npu = _module("torch_npu.npu")
    module.npu.is_available = lambda: False
    module.npu.device_count = lambda: 0
    module.npu.get_device_name = lambda device=None: DEVICE_NAME
    module.npu.synchronize = lambda device=None: None
    module.npu.empty_cache = lambda: None
    module.npu.amp = _module("torch_npu.npu.amp")
    module.npu.amp.autocast = functools.partial(torch.autocast, "cpu")
    for name, operator in OPERATORS.items():
        setattr(module, name, operator)
    made: ModuleType = module
    return made


def _module(name: str) -> Any:
    module = ModuleType(name)
    # importlib.util.find_spec raises for a loaded module without a spec.
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return module
