"""`python -m harness machine`: the NPUs of this host, or of saved outputs of npu-smi, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from harness.errors import HostError
from harness.host_npus import ask_host, read_saved
from harness.npu_smi_view import MachineView, Npu, link_distance

_SERIES = {"a2": "Atlas A2", "a3": "Atlas A3", "a5": "Ascend 950 (A5)"}
_UNSUPPORTED = "which ms-swift doesn't train on"
_MOST_PROCESSES = 12


def add_machine(commands: Any) -> None:
    """Adds the command to argparse's subparsers; it needs no matrix.yaml."""
    parser = commands.add_parser("machine", help="the NPUs of this host, or of saved outputs of npu-smi")
    parser.add_argument(
        "--from", dest="saved", nargs="+", action="extend", metavar="FILE", help="outputs of one host (- is the standard input)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(apart=_machine)


def _machine(args: argparse.Namespace) -> int:
    """0: understood what there is to understand; 5: this host has no npu-smi, or one that lists no NPU."""
    try:
        view = read_saved(args.saved) if args.saved else ask_host()
    except HostError as error:
        if not args.json:
            raise
        view = MachineView(errors=(str(error),))
    if args.json:
        print(json.dumps(view.as_json(), ensure_ascii=False, indent=1))
    else:
        print("\n".join(told(view)))
    if not args.saved and not view.npus and not args.json:
        print("error: npu-smi lists no NPU on this host", file=sys.stderr)
    return 0 if args.saved or view.npus else HostError.exit_code


def told(view: MachineView) -> list[str]:
    """What people read: the dies with the ids that ASCEND_RT_VISIBLE_DEVICES counts, processes, links, and what went wrong."""
    lines = [_heading(view), *_dies(view), *_codes(view.devices), *_processes(view), *_links(view)]
    return [*lines, *(f"not understood, or said by npu-smi: {error}" for error in view.errors)]


def _heading(view: MachineView) -> str:
    tool = f"npu-smi {view.version}" if view.version else "npu-smi, version not printed"
    kinds = {npu.name: npu.series for npu in view.npus if npu.name}
    named = "".join(f"; {name} is {_series(series)}" for name, series in kinds.items())
    dies, npus = len(view.npus), len({npu.npu_id for npu in view.npus})
    return f"{tool}: {_counted(dies, 'die')} on {_counted(npus, 'NPU')}{named}" if dies else f"{tool}: names no NPU with its values"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _series(series: str | None) -> str:
    return "of an unknown series" if series is None else _SERIES.get(series, f"a {series}, {_UNSUPPORTED}")


def _dies(view: MachineView) -> list[str]:
    """The ids are shown where the output lists all dies; `-t board -i 3` tells of one, whose id it doesn't tell."""
    devices, listed = view.devices, bool({"info", "map"} & set(view.sections))
    if not devices:
        return []
    head = ("id", "NPU", "chip", "phy", "name", "series", "health", "bus", "power W", "temp C", "AICore %", "HBM MB", "DDR MB")
    rows = [head, *(_cells(index, npu) for index, npu in enumerate(devices))]
    shown = [i for i, name in enumerate(head) if (listed if i == 0 else any(row[i] != "-" for row in rows[1:]) or name == "health")]
    widths = {i: max(len(row[i]) for row in rows) for i in shown}
    table = ["  ".join(row[i].ljust(widths[i]) for i in shown).rstrip() for row in rows]
    return [*table, "id: what ASCEND_RT_VISIBLE_DEVICES counts by"] if listed else table


def _cells(index: int, npu: Npu) -> tuple[str, ...]:
    values = (
        npu.npu_id,
        npu.chip,
        npu.phy_id,
        npu.name,
        npu.series or "unknown",
        npu.health,
        npu.bus_id,
        npu.power_w,
        npu.temp_c,
        npu.aicore_pct,
    )
    return (
        str(index),
        *(_shown(v) for v in values),
        _used(npu.hbm_used_mb, npu.hbm_total_mb),
        _used(npu.memory_used_mb, npu.memory_total_mb),
    )


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _used(used: int | None, total: int | None) -> str:
    """A chip with HBM prints its DDR as 0 / 0: it has none."""
    return "-" if not total else f"{_shown(used)}/{total}"


def _codes(devices: Sequence[Npu]) -> list[str]:
    lines = [f"NPU {npu.npu_id} says error codes {' '.join(npu.error_codes)}" for npu in devices if npu.error_codes]
    return [
        *lines,
        *(f"NPU {npu.npu_id} counts {npu.double_bit_errors} uncorrected memory errors" for npu in devices if npu.double_bit_errors),
    ]


def _processes(view: MachineView) -> list[str]:
    if not view.processes:
        return ["no process on any NPU"] if "processes" in view.sections else []
    lines = []
    for process in view.processes[:_MOST_PROCESSES]:
        chip = "" if process.chip is None else f" chip {process.chip}"
        memory = "" if process.mem_mb is None else f", {process.mem_mb} MB"
        lines.append(f"process {process.pid} ({process.name or 'no name'}) on NPU {process.npu_id}{chip}{memory}")
    left = len(view.processes) - _MOST_PROCESSES
    return [*lines, f"and {left} more processes"] if left > 0 else lines


def _links(view: MachineView) -> list[str]:
    """One line a kind of link, nearest first: all pairs, or the groups within which each reaches each."""
    lines = []
    for kind in sorted({link.kind for link in view.links}, key=lambda kind: (link_distance(kind), kind)):
        pairs = [(link.a, link.b) for link in view.links if link.kind == kind]
        groups = _groups(pairs)
        whole = sum(len(group) * (len(group) - 1) // 2 for group in groups) == len(pairs)
        shown = " | ".join(" ".join(group) for group in groups) if whole else ", ".join(f"{a}-{b}" for a, b in pairs[:8])
        lines.append(f"{kind}: {shown}" + (f" and {len(pairs) - 8} more pairs" if not whole and len(pairs) > 8 else ""))
    near: dict[str, list[str]] = {}
    for name, cpus in view.affinity:
        near.setdefault(cpus, []).append(name)
    return [*lines, *(f"CPUs {cpus}: {' '.join(names)}" for cpus, names in near.items())]


def _groups(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    groups: list[list[str]] = []
    for a, b in pairs:
        mine = [group for group in groups if a in group or b in group]
        merged = list(dict.fromkeys([*(name for group in mine for name in group), a, b]))
        groups = [group for group in groups if group not in mine] + [merged]
    return groups
