"""What is asserted of ms-swift's NPU code beside numbers: that patches are applied, switches read, and the right implementation chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

# Modules that give `checks()`, in the order in which they are told.
_MODULES = ("checks_swift",)


@dataclass(frozen=True)
class Check:
    """A statement about the installed packages.

    `run` raises AssertionError where it doesn't hold; `missing` is "" or why it can't be asked here, and how to get what it needs.
    `name` is made of letters, digits, _ . and +, as a kernel's is; `what` is the statement, a sentence.
    """

    name: str
    what: str
    run: Callable[[], None]
    missing: Callable[[], str] = lambda: ""


def checks() -> tuple[Check, ...]:
    """All of them. Imports no library under test."""
    made: list[Check] = []
    for name in _MODULES:
        made += importlib.import_module(f"harness.kernels.{name}").checks()
    return tuple(made)
