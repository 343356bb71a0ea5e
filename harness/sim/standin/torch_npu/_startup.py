"""Makes the device: refuses where a real NPU may be, loads the extension, and tells torch about "npu" and "hccl"."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

# harness/sim under a name of its own: the process that runs ms-swift knows no harness, and must not find another one.
SIM = "_npu_matrix_sim"
_FOLDER = Path(__file__).resolve().parent.parent.parent
_EXIT_MS = 2000


def start() -> str:
    """The version that the stand-in has. Raises ImportError where a simulated NPU must not load, or can't be built."""
    _load_sim_package()
    environment: Any = importlib.import_module(f"{SIM}.environment")
    traces: Any = importlib.import_module(f"{SIM}.traces")
    builder: Any = importlib.import_module(f"{SIM}.build")
    because = traces.refusal(os.environ, environment.STANDIN, environment.SWITCH, environment.ROOT_VARIABLE)
    if because:
        raise ImportError(f"SIMULATED NPU refuses to load: {because}")
    devices, memory_mib = _visible_devices(), _memory_mib(environment.MEMORY_VARIABLE)
    try:
        built = builder.build()
    except builder.BuildError as error:
        raise ImportError(f"SIMULATED NPU can't be built: {error}") from error
    import torch
    from torch.utils import backend_registration as backend

    extension = _load_extension(built)
    own_randomness = os.environ.get(environment.OWN_RANDOMNESS_VARIABLE) == "1"
    extension.configure(devices=devices, memory_bytes=memory_mib << 20, own_randomness=own_randomness)
    backend.rename_privateuse1_backend("npu")
    from torch_npu import npu

    torch._register_device_module("npu", npu)
    sys.modules["torch.npu"] = npu
    backend.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True)
    _register_hccl(torch, extension)
    _deny(torch, extension, npu, os.environ.get(environment.DENY_VARIABLE, ""))
    # Ranks of one run and warm children say it once each: whoever reads a log must meet it.
    print(f"SIMULATED NPU: {devices} device(s) of {memory_mib} MiB in host memory; nothing here ran on an NPU", file=sys.stderr, flush=True)
    atexit.register(extension.settle_autograd, _EXIT_MS)
    return str(environment.standin_version())


def _load_sim_package() -> None:
    if SIM not in sys.modules:
        spec = importlib.util.spec_from_file_location(SIM, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)])
        if spec is None or spec.loader is None:
            raise ImportError(f"the simulated NPU is not whole: {_FOLDER}/__init__.py is missing")
        package = importlib.util.module_from_spec(spec)
        sys.modules[SIM] = package
        spec.loader.exec_module(package)


def _load_extension(path: Path) -> Any:
    name = "torch_npu._C"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension")
    extension = importlib.util.module_from_spec(spec)
    loader.exec_module(extension)
    sys.modules[name] = extension
    sys.modules["torch_npu"].__dict__["_C"] = extension
    return extension


def _visible_devices() -> int:
    """As many as ASCEND_RT_VISIBLE_DEVICES lists, one where it isn't set, none where it is empty. Raises ImportError for other text."""
    listed = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if listed is None:
        return 1
    ids = [word.strip() for word in listed.split(",") if word.strip()]
    if not all(word.isdecimal() for word in ids) or len(set(ids)) != len(ids):
        raise ImportError(f"SIMULATED NPU: ASCEND_RT_VISIBLE_DEVICES={listed!r} is no list of different device numbers")
    return len(ids)


def _memory_mib(variable: str) -> int:
    text = os.environ.get(variable, "65536")
    if not text.isdecimal() or int(text) == 0:
        raise ImportError(f"SIMULATED NPU: {variable}={text!r} is no number of MiB")
    return int(text)


def _register_hccl(torch: Any, extension: Any) -> None:
    dist = torch.distributed
    if not dist.is_available():
        return

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return extension.ProcessGroupHCCL(dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend("hccl", create, devices=["npu"])
    dist.is_hccl_available = lambda: True
    dist.ProcessGroupHCCL = extension.ProcessGroupHCCL


def _deny(torch: Any, extension: Any, npu: Any, text: str) -> None:
    if text:
        denials: Any = importlib.import_module(f"{SIM}.denials")
        denials.apply_denials(denials.parse_denials(text), torch, extension, {"torch.npu": npu, "torch_npu": sys.modules["torch_npu"]})
