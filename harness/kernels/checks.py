"""What is asserted of ms-swift's NPU code beside numbers: that patches are applied, switches read, and the right implementation chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

# Modules that give `checks()`, in the order in which they are told.
_MODULES = (
    "checks_swift",
    "checks_switches",
    "checks_attention",
    "checks_mindspeed",
    "checks_megatron",
    "checks_vllm",
    "checks_vllm_moe",
    "gdn_choice",
)


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


def holds(statement: bool, told: str) -> None:
    """Raises AssertionError with `told` unless the statement holds. Not `assert`, which -O leaves out."""
    if not statement:
        raise AssertionError(told)


def refuses(error: type[Exception], said: str, act: Callable[[], object]) -> None:
    """Raises AssertionError unless `act` raises this error with `said` in its text."""
    try:
        found = act()
    except error as raised:
        holds(said in str(raised), f"{error.__name__} says {str(raised)!r}, and not {said!r}")
        return
    raise AssertionError(f"nothing was refused: it gave {found!r} in place of {error.__name__} {said!r}")


def checks() -> tuple[Check, ...]:
    """All of them. Imports no library under test."""
    made: list[Check] = []
    for name in _MODULES:
        made += importlib.import_module(f"harness.kernels.{name}").checks()
    return tuple(made)
