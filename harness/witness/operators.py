"""Counts the operators of the first step, on request: the count goes through Python for each operator, so it is off by default."""

from __future__ import annotations

import collections
import os
import sys
from typing import Any

VARIABLE = "NPU_MATRIX_OPERATORS"


def asked() -> bool:
    return os.environ.get(VARIABLE) == "1"


def npu_calls() -> dict[str, int] | None:
    """Calls of torch_npu's operators in this process, which the stand-in of a simulated NPU counts; None where nobody counts them."""
    counted = getattr(sys.modules.get("torch_npu"), "__sim_calls__", None)
    return None if counted is None else dict(sorted(counted.items()))


class Counter:
    """Counts from the first `start` to the first `stop`; later calls of both do nothing."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._mode: Any = None
        self._done = False

    def start(self) -> None:
        if not self._done and self._mode is None:
            self._mode = _mode(self._counts)
            self._mode.__enter__()

    def stop(self) -> None:
        if self._mode is not None:
            mode, self._mode, self._done = self._mode, None, True
            mode.__exit__(None, None, None)

    def calls(self) -> dict[str, int]:
        """Operator name (`aten.mm.default`) to the number of calls."""
        return dict(sorted(self._counts.items()))


def _mode(counts: collections.Counter[str]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        counts[str(func)] += 1
        return func(*args, **(kwargs or {}))

    return type("OperatorCount", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()
