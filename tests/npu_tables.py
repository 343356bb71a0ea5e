"""Draws hosts and the tables that npu-smi prints of them: Atlas A2, Atlas A3, 310P and Ascend 950 layouts of any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from harness.npu_smi_view import Npu, NpuProcess

NAMES = {"a2": ["910B1", "910B2C", "910B3", "910B4-1"], "a3": ["Ascend910"], "310P": ["310P3"], "a5": ["Ascend950PR", "Ascend950DT"]}
HEALTHS = ["OK", "Warning", "Alarm", "Critical", "UNKNOWN"]
_SMALL = st.integers(0, 70_000)


@dataclass(frozen=True)
class Host:
    series: str
    version: str
    npus: tuple[Npu, ...]
    processes: tuple[NpuProcess, ...]
    container_pids: bool
    gaps: tuple[int, int, int]

    def printed(self) -> str:
        """The table as npu-smi prints it, in this host's widths."""
        return "\n".join([*_lines(self), *_process_lines(self)]) + "\n"


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    series = draw(st.sampled_from(sorted(NAMES)))
    ids = sorted(draw(st.sets(st.integers(0, 40) | st.sampled_from([32768, 32800, 65535]), min_size=1, max_size=5)))
    chips = [0, 1] if series in ("a3", "310P") else [0] if series == "a2" else [None]
    npus = tuple(draw(_npu(series, npu_id, chip, at)) for at, (npu_id, chip) in enumerate((i, c) for i in ids for c in chips))
    made = draw(st.lists(st.tuples(st.sampled_from(npus), st.integers(1, 4_000_000), _SMALL), max_size=4, unique_by=lambda x: x[1]))
    name = draw(st.sampled_from(["python3.11", "VLLM::EngineCor", "ray::Worker.do", "[kworker]"]))
    processes = tuple(NpuProcess(npu.npu_id, npu.chip, pid, name, memory) for npu, pid, memory in made)
    gaps = (draw(st.integers(1, 9)), draw(st.integers(1, 12)), draw(st.integers(0, 3)))
    version = draw(st.sampled_from(["22.0.4", "23.0.rc3", "24.1.rc1.b030", "25.5.1", "26.0.0"]))
    return Host(series, version, npus, tuple(sorted(processes, key=lambda p: p.npu_id)), draw(st.booleans()), gaps)


@st.composite
def _npu(draw: st.DrawFn, series: str, npu_id: int, chip: int | None, at: int) -> Npu:
    hbm = series != "310P"
    silent = series == "310P" or (series == "a3" and chip == 1)
    bus = None if series == "a5" and draw(st.booleans()) else f"0000:{draw(st.integers(0, 255)):02X}:00.0"
    return Npu(
        npu_id=npu_id,
        chip=chip,
        phy_id=at if series == "a3" else None,
        logic_id=at if series == "310P" else None,
        name=draw(st.sampled_from(NAMES[series])),
        series=series,
        health=draw(st.sampled_from(HEALTHS)),
        bus_id=bus,
        power_w=None if silent else draw(st.integers(0, 9999)) / 10,
        temp_c=draw(st.integers(-5, 110)),
        aicore_pct=draw(st.integers(0, 100)),
        hbm_used_mb=draw(_SMALL) if hbm else None,
        hbm_total_mb=draw(st.sampled_from([32768, 65536, 131072])) if hbm else None,
        memory_used_mb=0 if hbm else draw(_SMALL),
        memory_total_mb=0 if hbm else 44280,
    )


def _lines(host: Host) -> list[str]:
    gap = " " * host.gaps[0]
    apart = host.series == "a5"
    second = {"a2": "Chip", "a3": f"Chip{gap}Phy-ID", "310P": f"Chip{gap}Device"}.get(host.series, "")
    usage, hbm = ("NPU Util(%)" if apart else "AICore(%)"), "" if host.series == "310P" else f"{gap}HBM-Usage(MB)"
    rows = [
        [*(["NPU ID", "Name"] if apart else [f"NPU{gap}Name"]), "Health", f"Power(W){gap}Temp(C){gap}Hugepages-Usage(page)"],
        [*(["", ""] if apart else [second]), "Bus-Id", f"{usage}{gap}Memory-Usage(MB){hbm}"],
    ]
    for npu in host.npus:
        power = ("-" if host.series == "a3" else "NA") if npu.power_w is None else f"{npu.power_w:.1f}"
        third = f"{npu.aicore_pct}{gap}{_pair(host, npu.memory_used_mb, npu.memory_total_mb)}"
        third += "" if npu.hbm_total_mb is None else f"{gap}{_pair(host, npu.hbm_used_mb, npu.hbm_total_mb)}"
        first = [str(npu.npu_id), str(npu.name)] if apart else [f"{npu.npu_id}{gap}{npu.name}"]
        number = "" if host.series == "a2" else str(npu.phy_id if host.series == "a3" else npu.logic_id)
        chip = ["", ""] if apart else [f"{npu.chip}{gap}{number}"]
        rows += [[*first, str(npu.health), f"{power}{gap}{npu.temp_c}{gap}0{gap}/ 0"], [*chip, npu.bus_id or "NA", third]]
    table = _table(rows, host.gaps[1])
    title = f"| npu-smi {host.version}{gap}Version: {host.version}{gap}|"
    return ["+" + "-" * 80 + "+", title, *table]


def _pair(host: Host, used: int | None, total: int | None) -> str:
    return f"{used}{' ' * host.gaps[2]}/{' ' * (host.gaps[2] + 1)}{total}"


def _process_lines(host: Host) -> list[str]:
    columns = ["NPU ID" if host.series == "a5" else "NPU     Chip", "Process id", "Process name", "Process memory(MB)"]
    rows = [[*columns, "Process id in container"] if host.container_pids else columns]
    for process in host.processes:
        place = str(process.npu_id) if process.chip is None else f"{process.npu_id}       {process.chip}"
        row = [place, str(process.pid), str(process.name), str(process.mem_mb)]
        rows.append([*row, "NA"] if host.container_pids else row)
    idle = [npu_id for npu_id in {npu.npu_id: 0 for npu in host.npus} if npu_id not in {p.npu_id for p in host.processes}]
    return [*_table(rows, host.gaps[1]), *(f"| No running processes found in NPU {npu_id:<20}|" for npu_id in idle)]


def _table(rows: Sequence[Sequence[str]], extra: int) -> list[str]:
    widths = [max(len(row[i]) for row in rows) + extra for i in range(len(rows[0]))]
    rule = "+" + "+".join("=" * (width + 2) for width in widths) + "+"
    return [rule, *("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows), rule]
