"""How often each Triton kernel was launched, by name: the proof that a candidate ran and that a reference did not."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from harness.kernels.interpreter import Engine, prepared

_counts: Counter[str] = Counter()
_watching: list[Any] = []


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the launches inside the block; the counter keeps them after it. Blocks may be nested: an outer one counts all."""
    _watch()
    before = Counter(_counts)
    seen: Counter[str] = Counter()
    try:
        yield seen
    finally:
        seen.update(_counts - before)


def _watch() -> None:
    """Once a process, at the first count: what is counted is counted where Triton itself launches."""
    if _watching:
        return
    engine = prepared().engine
    if engine is Engine.INTERPRETED:
        from triton.runtime import interpreter

        executor: Any = interpreter.GridExecutor
        _replace(executor, "__call__", lambda self, kwargs: self.fn.__name__)
    elif engine is Engine.COMPILED:
        from triton.runtime import jit

        function: Any = jit.JITFunction
        _replace(function, "run", lambda self, kwargs: "" if kwargs.get("warmup") else self.fn.__name__)


def _replace(owner: Any, method: str, named: Callable[[Any, dict[str, Any]], str]) -> None:
    launch = getattr(owner, method)

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(self, *args, **kwargs)
        if name := named(self, kwargs):  # after it: a launch that died is none
            _counts[name] += 1
        return result

    setattr(owner, method, counting)
    _watching.append(launch)
