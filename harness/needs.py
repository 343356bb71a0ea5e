"""What a cell cannot do without: devices, their memory, the host's memory, disk. Lower bounds only: what they refuse was impossible."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model import Cell, Strategy, Tuner, Weights
from harness.packing import Load

# Bytes a parameter. Training in bf16 throughout, as the documented commands do: weights and gradients in bf16, two AdamW moments in bf16
# (ZeRO, arXiv 1910.02054, section 3.1, counts 16 where the optimizer keeps fp32). An adapter trains beside frozen bf16 weights; QLoRA's
# weights take 4 bits (arXiv 2305.14314).
_WEIGHTS, _FULL, _QUANTIZED = 2.0, 8.0, 0.5
# A full checkpoint: weights and the two moments. A merged model: weights.
_CHECKPOINT, _MERGED = 6.0, 2.0
_SPREAD = (Strategy.FSDP1, Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3, Strategy.MEGATRON)
# Gather the whole model in the host's memory to save it: ms-swift's zero3.json (stage3_gather_16bit_weights_on_model_save), FSDP1's full
# state dict.
_GATHERS = (Strategy.ZERO3, Strategy.FSDP1)


@dataclass(frozen=True)
class Room:
    """What a host has: `npus`, the memory of the smallest one, free memory and free disk. None: not known, so nothing is refused by it."""

    npus: int
    npu_mib: float | None = None
    memory_mib: float | None = None
    disk_mib: float | None = None


def devices_lacking(cell: Cell, width: int, weights: Weights, room: Room) -> str:
    """Why the NPUs of a host can't run `cell` on `width` of them, whatever else runs; empty where they may."""
    if width > room.npus:
        return f"it needs {width} NPUs and this host has {room.npus} to use"
    if weights is Weights.TINY or cell.model.params_b is None or room.npu_mib is None:
        return ""
    each = {Tuner.FULL: _FULL, Tuner.LORA: _WEIGHTS, Tuner.QLORA: _QUANTIZED}[cell.tuner]
    needed = _mib(cell.model.params_b, each) / (width if cell.strategy in _SPREAD else 1)
    if needed <= room.npu_mib:
        return ""
    return f"it needs at least {needed / 1024:.0f} GiB on each NPU and the smallest has {room.npu_mib / 1024:.0f}"


def host_lacking(cell: Cell, weights: Weights, saves: int, room: Room) -> str:
    """Why the memory or the disk that is free now can't take `cell`, which keeps `saves` checkpoints; empty where it may."""
    if weights is Weights.TINY or cell.model.params_b is None:
        return ""
    disk = _mib(cell.model.params_b, _CHECKPOINT * saves if cell.tuner is Tuner.FULL else _MERGED)
    if room.disk_mib is not None and disk > room.disk_mib:
        return f"it writes at least {disk / 1024:.0f} GiB and {room.disk_mib / 1024:.0f} are free on the disk of its runs"
    memory = _mib(cell.model.params_b, _WEIGHTS) if cell.tuner is Tuner.FULL and cell.strategy in _GATHERS else 0.0
    if room.memory_mib is not None and memory > room.memory_mib:
        return f"it gathers at least {memory / 1024:.0f} GiB in memory to save and {room.memory_mib / 1024:.0f} are free"
    return ""


def over_budget(load: Load, spoken_for_s: float, limit_h: float) -> str:
    """Why `load` would exceed `limit_h` device-hours of which `spoken_for_s` device-seconds are spent or promised; empty if it doesn't."""
    mine_h, gone_h = load.width * load.expected_s / 3600, spoken_for_s / 3600
    if gone_h + mine_h <= limit_h:
        return ""
    left_h = max(0.0, limit_h - gone_h)
    return f"it is expected to take {mine_h:.2f} device-hours, and of the budget of {limit_h:g} there are {left_h:.2f} left"


def _mib(params_b: float, bytes_each: float) -> float:
    return params_b * 1e9 * bytes_each / 2**20
