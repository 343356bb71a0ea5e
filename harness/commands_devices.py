"""How many processes a command starts, on which devices, and the environment that says so."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.commands_flags import LAUNCH_CONFIGS, Flags, NotBuilt, Places
from harness.errors import HarnessError
from harness.model import Cell, Hardware, Strategy, Weights

# The document's own machine: "本文示例实验环境为 8 * 昇腾910B3 64G". Used where a row names no number of NPUs.
DOCUMENTED_NPUS = 8
# One NPU of that machine holds a bf16 model of this size beside its cache; ms-swift spreads a larger one over those it sees.
BILLIONS_AN_NPU = 24
OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def documented_devices(cell: Cell) -> int:
    """NPUs of the documented command: the cell's number, else the model's, else the document's machine; several if sharded."""
    if cell.strategy is Strategy.SINGLE:
        return cell.devices or 1
    of_model = next((cell.model.devices[t] for t in cell.targets if cell.model.devices.get(t)), None)
    named = cell.devices or of_model or DOCUMENTED_NPUS
    return named if named > 1 else DOCUMENTED_NPUS


def tiny_devices(cell: Cell) -> int:
    """Devices of a tiny run: one, two, or four where the cell names four or more, or splits a sequence over four."""
    if cell.strategy is Strategy.SINGLE:
        return 1
    return 4 if max(cell.devices or 2, cell.options.sequence_parallel_size) >= 4 else 2


def ranks(cell: Cell, places: Places) -> int:
    """Training processes: one a visible device, or as many on a plain cpu as a tiny run has devices.

    Raises HarnessError when one device is to be shared out.
    """
    if cell.strategy is Strategy.SINGLE:
        return 1
    count = len(places.visible_devices) or tiny_devices(cell)
    if count < 2:
        raise HarnessError(
            f"{cell.id}", f"{cell.strategy} needs at least two devices and {places.visible_devices} was given.", "Lease more."
        )
    return count


def train_env(cell: Cell, places: Places, hardware: Hardware, weights: Weights) -> dict[str, str]:
    """The environment of a training process: ASCEND_RT_VISIBLE_DEVICES and NPROC_PER_NODE always name the same number."""
    env = _environment(cell, places, places.visible_devices, hardware, weights)
    count = ranks(cell, places)
    if count > 1:
        if cell.strategy is not Strategy.FSDP1:
            env["NPROC_PER_NODE"] = str(count)
        env["MASTER_PORT"] = str(places.master_port)
    return env


def single_env(cell: Cell, places: Places, hardware: Hardware, weights: Weights) -> dict[str, str]:
    """The environment of an export, inference or serving process, which is one process on as few devices as hold the model."""
    return _environment(cell, places, places.visible_devices[: _devices_to_hold(cell, weights)], hardware, weights)


def documented_train_env(cell: Cell) -> dict[str, str]:
    count = documented_devices(cell)
    env = {"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(count)))}
    if cell.strategy not in (Strategy.SINGLE, Strategy.FSDP1):
        env = {"NPROC_PER_NODE": str(count), **env}
    return env


def documented_single_env(cell: Cell) -> dict[str, str]:
    return {"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(_devices_to_hold(cell, Weights.REAL))))}


def strategy_flags(cell: Cell) -> Flags:
    """Raises NotBuilt for Megatron."""
    match cell.strategy:
        case Strategy.SINGLE | Strategy.DDP | Strategy.FSDP1:
            return {}
        case Strategy.FSDP2:
            named = cell.options.fsdp_config
            return {"--fsdp": (str(LAUNCH_CONFIGS / f"fsdp2_{named}.json") if named else "fsdp2",)}
        case Strategy.ZERO2:
            return {"--deepspeed": ("zero2",)}
        case Strategy.ZERO3:
            return {"--deepspeed": ("zero3",)}
        case Strategy.MEGATRON:
            raise NotBuilt(cell, "Megatron's commands come with the Megatron issue")


def _devices_to_hold(cell: Cell, weights: Weights) -> int:
    if weights is Weights.TINY:
        return 1
    return max(1, math.ceil((cell.model.params_b or 0.0) / BILLIONS_AN_NPU))


def _environment(cell: Cell, places: Places, devices: tuple[int, ...], hardware: Hardware, weights: Weights) -> dict[str, str]:
    env: dict[str, str] = {}
    if hardware is not Hardware.CPU:
        if not devices:
            raise HarnessError(f"{cell.id} on {hardware}", "no device was lent to it.", "Give Places.visible_devices.")
        env["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    if hardware.is_npu and len(devices) > 1 and places.hccl_port:
        env["HCCL_IF_BASE_PORT"] = str(places.hccl_port)
    if weights is Weights.TINY:
        env |= OFFLINE
    if hardware in (Hardware.CPU, Hardware.SIM):
        env["OMP_NUM_THREADS"] = "1"
    if cell.options.use_mcore_gdn is not None:
        env["USE_MCORE_GDN"] = "1" if cell.options.use_mcore_gdn else "0"
    return env
