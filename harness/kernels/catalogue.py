"""All kernels that are compared, and all checks beside them: what the modules candidates_*.py of this folder and checks.py declare."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness import kernels as folder
from harness.errors import HarnessError
from harness.kernels.checks import Check, checks
from harness.kernels.kernel import Kernel

# A name is part of what -k selects by, of nodeids and of file names.
_NAME = re.compile(r"[A-Za-z0-9_.+]+")


def all_kernels() -> tuple[Kernel, ...]:
    """Kernels of one module beside each other, modules in the order of their names. Imports no library under test.

    Raises HarnessError for a name that can't be selected by or stands there twice, and a kernel that declares no dtype.
    """
    return sound([kernel for module in _modules("candidates_") for kernel in getattr(module, "kernels", tuple)()])


def all_checks() -> tuple[Check, ...]:
    """Raises HarnessError for a name that stands there twice."""
    found = checks()
    _refuse_twice("checks", [check.name for check in found])
    return found


def sound(declared: list[Kernel]) -> tuple[Kernel, ...]:
    """The same kernels. Raises as all_kernels does."""
    _refuse_twice("kernels", [kernel.name for kernel in declared])
    for kernel in declared:
        if not _NAME.fullmatch(kernel.name):
            raise HarnessError(f"kernel {kernel.name!r}", "is no name that -k can select by.", "Use letters, digits, _ . and +.")
        if not kernel.dtypes:
            raise HarnessError(f"kernel {kernel.name}", "declares no dtype: it would never run.", "Give one of fp32, fp16, bf16.")
    return tuple(declared)


def _modules(prefix: str) -> Iterator[Any]:
    for name in sorted(found.name for found in pkgutil.iter_modules(folder.__path__) if found.name.startswith(prefix)):
        yield importlib.import_module(f"harness.kernels.{name}")


def _refuse_twice(what: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise HarnessError("kernel parity", f"several {what} are called {', '.join(twice)}.", "Give each a name of its own.")
