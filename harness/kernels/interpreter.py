"""How Triton kernels run here: compiled on an NPU; elsewhere in Triton's interpreter on CPU tensors, with what it gets wrong put right.

Only the process of the kernel suite calls prepare(), before anything imports Triton: whether a kernel is interpreted is decided when its
module is imported. Each fix has a probe, a micro-kernel of probes.py: what a Triton does right by itself is left alone, and a Triton on
which a fix doesn't take is refused, since its errors would pass for those of the kernels under test.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.errors import HostError
from harness.model import Word

SWITCH = "TRITON_INTERPRET"
_WHERE = "Triton on this host"


class Engine(Word):
    INTERPRETED = "interpreted"  # on CPU tensors
    COMPILED = "compiled"  # for the NPU
    ABSENT = "absent"  # Triton isn't installed: its kernels are missing, everything else can be compared


@dataclass(frozen=True)
class Prepared:
    """`device`: where a kernel's tensors must be, "cpu" or "npu". `replaced`: each part of Triton that a fix replaced, and why."""

    engine: Engine
    device: str
    triton: str
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fix:
    """One fault of the interpreter. `probe` raises or gives False where it is there; `install` puts it right."""

    name: str
    why: str
    probe: Callable[[], bool]
    install: Callable[[], None]


_prepared: list[Prepared] = []


def prepare() -> Prepared:
    """Decide once, at the suite's start, how Triton runs in this process, and make it run right.

    Raises:
        HostError: Triton was imported before, can't be imported, would drive another device than an NPU, or can't be put right.
    """
    if not _prepared:
        _prepared.append(_decided())
    return _prepared[0]


def prepared() -> Prepared:
    """What prepare() decided. Raises HostError before it was called."""
    if not _prepared:
        raise HostError(
            _WHERE, "nobody has decided how kernels run.", "Call harness.kernels.interpreter.prepare() before Triton is imported."
        )
    return _prepared[0]


def compiles() -> bool:
    """Whether kernels are compiled in this process; False as long as nobody has called prepare()."""
    return bool(_prepared) and _prepared[0].engine is Engine.COMPILED


def missing_triton() -> str:
    """ "" or how to get Triton; imports nothing."""
    if "triton" in sys.modules or importlib.util.find_spec("triton") is not None:
        return ""
    return "Triton is not installed: `pip install triton` (on an NPU: triton-ascend, never both in one environment)"


def _decided() -> Prepared:
    npu = _npu_is_usable()
    if missing_triton():
        return Prepared(Engine.ABSENT, "npu" if npu else "cpu", "")
    return _compiled() if npu else _interpreted()


def _npu_is_usable() -> bool:
    # By its metadata, since a reference or a stand-in may stand under the name torch_npu in sys.modules.
    try:
        version = importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return False
    if "+sim" in version:
        return False
    torch: Any = importlib.import_module("torch")
    importlib.import_module("torch_npu")
    return bool(torch.npu.is_available())


def _compiled() -> Prepared:
    if _wants_interpreter():
        raise HostError(_WHERE, f"{SWITCH} is set, and an NPU is usable: its kernels would not run on it.", f"Unset {SWITCH}.")
    triton = _import_triton()
    return Prepared(Engine.COMPILED, "npu", str(triton.__version__))


def _interpreted() -> Prepared:
    if "triton" in sys.modules and not _is_interpreting():
        raise HostError(
            _WHERE,
            f"it was imported without {SWITCH}=1 before the kernel suite began, so that its library can't be interpreted any more.",
            f"Run the suite in a process of its own (pytest -m kernel_parity), or set {SWITCH}=1 for the whole process.",
        )
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    triton = _import_triton()
    if drivers := _active_drivers(triton):
        os.environ.pop(SWITCH) if before is None else os.environ.__setitem__(SWITCH, before)
        raise HostError(
            _WHERE,
            f"it drives a device here ({', '.join(drivers)}), where kernels compile; the interpreter is for hosts without one.",
            "Hide the device to compare on the CPU (for an NVIDIA GPU: CUDA_VISIBLE_DEVICES= before python starts).",
        )
    version = str(triton.__version__)
    return Prepared(Engine.INTERPRETED, "cpu", version, _put_right(version))


def _wants_interpreter() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "on", "y")


def _is_interpreting() -> bool:
    """Whether Triton's own library was imported for the interpreter."""
    standard = sys.modules.get("triton.language.standard")
    return _wants_interpreter() and standard is not None and type(standard.sum).__name__ == "InterpretedFunction"


def _import_triton() -> Any:
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise HostError(_WHERE, f"it can't be imported: {error}.", missing_triton()) from error


def _active_drivers(triton: Any) -> list[str]:
    return sorted(name for name, backend in triton.backends.backends.items() if backend.driver.is_active())


def _put_right(version: str) -> tuple[str, ...]:
    fixes: tuple[Fix, ...] = importlib.import_module("harness.kernels.interpreter_fixes").FIXES
    replaced = []
    for fix in fixes:
        if _holds(fix):
            continue
        fix.install()
        if not _holds(fix):
            raise HostError(
                f"Triton {version}'s interpreter",
                f"the fix of {fix.name} doesn't take: {_said(fix)}.",
                "Take a Triton that is known to work (3.7.1, 3.8.0), or mend harness/kernels/interpreter_fixes.py.",
            )
        replaced.append(f"{fix.name}: {fix.why}")
    return tuple(replaced)


def _holds(fix: Fix) -> bool:
    return _said(fix) == ""


def _said(fix: Fix) -> str:
    try:
        return "" if fix.probe() else "its micro-kernel gives other numbers than torch"
    except Exception as error:  # any way of dying tells that the interpreter can't run the probe
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
