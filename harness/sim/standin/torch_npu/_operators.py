"""The reference operators under torch_npu's names, each counting its calls."""

from __future__ import annotations

import collections
import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch_npu._startup import SIM


def names() -> list[str]:
    return sorted(_operators())


def operator(name: str, calls: collections.Counter[str]) -> Callable[..., Any] | None:
    """The counted operator of that name, None where there is none."""
    function = _operators().get(name)
    if function is None:
        return None

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    return counted


def _operators() -> dict[str, Callable[..., Any]]:
    module = importlib.import_module(f"{SIM}.operators")
    operators: dict[str, Callable[..., Any]] = module.OPERATORS
    return operators
