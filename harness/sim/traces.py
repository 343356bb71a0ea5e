"""Looks for a real NPU, beside which a simulated one must never load: its results could be taken for the real one's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_BINARIES = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH")
MARKER = "SIMULATED"


def real_npu_traces(environ: Mapping[str, str], sys_path: Sequence[str], standin: Path, root: Path | None = None) -> tuple[str, ...]:
    """Everything that says that this host has, or should have, NPUs; empty where there is nothing.

    `standin` is our own folder on `sys_path`. Under `root` devices, programs and CANN are looked for there alone, and not on the host.
    """
    at = root or Path("/")
    found = sorted(str(path) for path in (at / "dev").glob("davinci*"))
    folders = [str(at / folder) for folder in _BINARIES] + ([] if root else environ.get("PATH", "").split(os.pathsep))
    npu_smi = shutil.which("npu-smi", path=os.pathsep.join(folders))
    found += [npu_smi] if npu_smi else []
    cann = at / "usr/local/Ascend"
    found += [str(cann)] if cann.exists() else []
    if root is None:
        for name in _CANN_VARIABLES:
            folder = environ.get(name, "")
            if folder and os.path.isdir(folder) and not os.path.exists(os.path.join(folder, MARKER)):
                found.append(f"{name}={folder}")
    return (*found, *_torch_npus(sys_path, standin))


def _torch_npus(sys_path: Sequence[str], standin: Path) -> list[str]:
    found = []
    for entry in dict.fromkeys(sys_path):
        folder = Path(entry or os.getcwd())
        package = folder / "torch_npu"
        if (package / "__init__.py").exists() and folder.resolve() != standin.resolve():
            found.append(str(package))
        elif folder.is_dir():
            found += [str(info) for info in folder.glob("torch_npu-*.dist-info") if "+sim" not in info.name]
    return found


def refusal(environ: Mapping[str, str], standin: Path, switch: str, root_variable: str) -> str:
    """Why the simulated NPU must not load into this process; empty where it may."""
    if environ.get(switch) != "1":
        return f"{switch}=1 is not in the environment, so nobody asked for a simulated NPU. Take {standin} off PYTHONPATH."
    root = environ.get(root_variable)
    found = real_npu_traces(environ, sys.path, standin, Path(root) if root else None)
    if found:
        return f"this host has traces of a real NPU, whose results must not be mistaken for simulated ones: {', '.join(found)}."
    return ""
