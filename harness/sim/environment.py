"""What a process needs in its environment to find a simulated NPU. Imports no torch: the harness's own process asks."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .build import CACHE_VARIABLE, find_torch

SWITCH = "NPU_MATRIX_SIM"
MEMORY_VARIABLE = "NPU_MATRIX_SIM_MEMORY_MIB"  # the size of each device; more raises torch.OutOfMemoryError
DENY_VARIABLE = "NPU_MATRIX_SIM_DENY"  # what the device must not have: see denials.py
OWN_RANDOMNESS_VARIABLE = "NPU_MATRIX_SIM_OWN_RNG"  # "1": random numbers of its own, not the CPU's
PRODUCT_VARIABLE = "NPU_MATRIX_SIM_PRODUCT"  # the Ascend product that its name mentions
ROOT_VARIABLE = "NPU_MATRIX_SIM_ROOT"  # tests only: where traces of a real NPU are looked for, instead of /
STANDIN = Path(__file__).resolve().parent / "standin"
MARKER = "SIMULATED"
_METADATA = """Metadata-Version: 2.1
Name: torch_npu
Version: {version}
Summary: SIMULATED NPU, a stand-in in host memory: not Ascend's torch_npu
"""
_ENTRY_POINTS = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
_TOOLKIT = "package_name=Ascend-cann-toolkit\nversion=0.0.sim\ninnerversion=SIMULATED\narch={arch}\nos=linux\npath=SIMULATED\n"


def sim_environment(visible: tuple[int, ...], cache: Path, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that put a simulated NPU with the devices `visible` into a child process; they replace what is `inherited` (os.environ).

    Writes the stand-in's metadata and an empty ASCEND_HOME_PATH under `cache`, where the extension is built too, on first use if
    build.build() was not called before. Raises BuildError where this interpreter has no torch.
    """
    inherited = os.environ if inherited is None else inherited
    base = Path(cache).absolute() / "sim"
    site = base / f"torch_npu-{find_torch().release}"
    version = standin_version()
    info = site / f"torch_npu-{version}.dist-info"
    _write(info / "METADATA", _METADATA.format(version=version))
    _write(info / "entry_points.txt", _ENTRY_POINTS)
    _write(info / "INSTALLER", "npu-matrix-harness\n")
    home = base / "ascend"
    arch = platform.machine()
    _write(home / MARKER, "No CANN is here: this folder belongs to a simulated NPU.\n")
    _write(home / f"{arch}-linux" / "ascend_toolkit_install.info", _TOOLKIT.format(arch=arch))
    paths = [str(site), str(STANDIN)]
    paths += [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and path not in paths]
    return {
        SWITCH: "1",
        CACHE_VARIABLE: str(Path(cache).absolute()),
        "PYTHONPATH": os.pathsep.join(paths),
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, visible)),
        "ASCEND_HOME_PATH": str(home),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    }


def standin_version() -> str:
    """The version that the stand-in torch_npu gives itself, as a real one follows torch's: 2.14.1+sim."""
    return f"{find_torch().release}+sim"


def _write(path: Path, text: str) -> None:
    """Whole or not at all: other processes read the same folder."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).chmod(0o644)
    os.replace(name, path)
