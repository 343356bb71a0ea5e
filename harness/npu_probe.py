"""What npu-smi says of the NPUs that are lent to cells: which die each is, how near they are to each other, whether one can be used now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HostError
from harness.launch import resolve_program
from harness.leases import Device
from harness.machine import output_of, programs_path
from harness.npu_smi import merge, parse
from harness.npu_smi_view import MachineView, Npu, link_distance

_LIMIT_S = 60


@dataclass(frozen=True)
class NpuProbe:
    """Asks the npu-smi of this host, or of the rehearsal under `root`. Called with ids: see harness.leases.Probe."""

    root: Path | None

    def devices(self, ids: Sequence[int]) -> tuple[Device, ...]:
        """The dies behind `ids`, named by what every harness process of this host sees. Raises HostError for one that is not listed."""
        view, fault = self._view("info")
        for one in ids:
            if one >= len(view.devices):
                said = fault or view.error or f"it lists {len(view.devices)}"
                raise HostError("npu-smi info", f"does not list NPU {one} any more: {said}.", "See what became of it, then run again.")
        names = _identities(view.devices)
        return tuple(Device(one, names[one]) for one in ids)

    def distances(self, ids: Sequence[int]) -> Callable[[int, int], int]:
        """How far two of `ids` are apart (see link_distance). A host without a topology table has all of them equally far."""
        views = [self._view(*words)[0] for words in (("info",), ("info", "-t", "topo"))]
        view = merge(views)
        known = {(a, b): link_distance(view.link_kind(a, b)) for a in ids for b in ids if max(a, b) < len(view.devices)}
        return lambda one, other: known.get((one, other), link_distance(None))

    def smallest_mib(self, ids: Sequence[int]) -> float | None:
        """The memory of the smallest of `ids`; None where npu-smi doesn't tell it of all of them."""
        view, _ = self._view("info")
        sizes = [view.devices[one].hbm_total_mb or view.devices[one].memory_total_mb for one in ids if one < len(view.devices)]
        known = [size for size in sizes if size]
        return float(min(known)) if known and len(known) == len(ids) else None

    def __call__(self, ids: Sequence[int]) -> Mapping[int, str]:
        view, fault = self._view("info")
        if fault or not view.npus:
            return {one: f"npu-smi info says nothing of it: {fault or view.error}" for one in ids}
        found = {one: _wrong_with(one, view) for one in ids}
        return {one: because for one, because in found.items() if because}

    def _view(self, *words: str) -> tuple[MachineView, str]:
        npu_smi = resolve_program("npu-smi", programs_path(self.root))
        if npu_smi is None:
            return MachineView(), "there is no npu-smi on the search path"
        text, fault = output_of([str(npu_smi), *words], os.environ, self.root, _LIMIT_S)
        return parse(text), fault


def _identities(dies: Sequence[Npu]) -> list[str]:
    """One for each die. Two with one name would be one lease, and a cell that wants both would wait for itself."""
    names = [_identity(one, npu) for one, npu in enumerate(dies)]
    return [name if names.count(name) == 1 else f"{name}-of-npu-{npu.npu_id}" for name, npu in zip(names, dies, strict=True)]


def _identity(one: int, npu: Npu) -> str:
    """The bus address, which a container sees too; where none is printed, the place in the listing."""
    if npu.bus_id is None:
        return f"npu-{one}"
    return f"{npu.bus_id.replace(':', '-')}-{npu.chip or 0}"


def _wrong_with(one: int, view: MachineView) -> str:
    if one >= len(view.devices):
        return "npu-smi does not list it any more"
    npu = view.devices[one]
    if not npu.healthy:
        return f"its health is {npu.health or 'not told'}"
    # Whoever has a lease asks before anything of its own runs there, or after all of it ended.
    users = [f"pid {p.pid} ({p.name or 'unknown'}, {p.mem_mb if p.mem_mb is not None else '?'} MB)" for p in view.processes_on(one)]
    return f"in use by {', '.join(users)}" if users else ""
