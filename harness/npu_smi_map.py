"""Tables without bars: `npu-smi info -m` (which die has which logical id) and `npu-smi info watch`. Columns are found by their headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.npu_smi_series import series_of_name
from harness.npu_smi_text import number, unfinished, whole, words
from harness.npu_smi_view import Npu

_MAP = re.compile(
    r"NPU ID|Slot ID|Chip ID|Chip Logic ID|Chip Phy-ID|Chip Physical ID|Chip Name|Card ID|Device ID|Chip Count", re.IGNORECASE
)
_WATCH = re.compile(
    r"NpuID\(Idx\)|ChipId\(Idx\)|Pwr\(W\)|Temp\(C\)|AI Core\(%\)|AI Cpu\(%\)|Ctrl Cpu\(%\)|Memory\(%\)|Memory BW\(%\)"
    r"|NPU Util\(%\)|AI Cube\(%\)",
    re.IGNORECASE,
)
# Chips of a card that are no NPU dies: the controller, and the CPU of an Atlas 500.
_HELPERS = {"mcu", "3559"}


@dataclass
class Plain:
    npus: list[Npu] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)


def read_plain_tables(lines: Sequence[str]) -> Plain:
    """The dies of every table without bars. A row that has not all its columns is left out and named in `errors`."""
    found = Plain()
    columns: list[str] = []
    for at, line in enumerate(lines):
        mapped, watched = _header(line, _MAP), _header(line, _WATCH)
        if "npu id" in mapped and len(mapped) > 1:
            columns = mapped
            found.sections += [] if "map" in found.sections else ["map"]
        elif "npuid(idx)" in watched:
            columns = watched
            found.sections += [] if "watch" in found.sections else ["watch"]
        elif not columns or not re.match(r"\s*\S" if columns[0] == "chip name" else r"\s*[0-9]", line):
            columns = columns if not line.strip() else []
        else:
            row = _row(columns, line)
            npu = _npu(row) if row else None
            if npu and unfinished(lines, at):
                npu = _without_cut_end(npu, columns[-1], found.npus)
            if npu:
                found.npus.append(npu)
            elif row is None or (row.get("chip name") or "").casefold() not in _HELPERS:
                found.errors.append(f"a row of the table is cut or strange: {line.strip()[:80]!r}")
    return found


def _without_cut_end(npu: Npu, column: str, others: Sequence[Npu]) -> Npu | None:
    """A name is kept if another die has it too, or if it tells its series; a number may lack digits."""
    if column != "chip name":
        return None
    known = series_of_name(npu.name) or npu.name in {other.name for other in others}
    return npu if known else replace(npu, name=None)


def _header(line: str, labels: re.Pattern[str]) -> list[str]:
    """The columns, if the line consists of nothing else."""
    if labels.sub("", line).strip() or "|" in line or ":" in line:
        return []
    return [" ".join(label.casefold().split()) for label in labels.findall(line)]


def _row(columns: Sequence[str], line: str) -> dict[str, str] | None:
    """A name may have a space (`Ascend 910B3`), so it takes what the other columns leave."""
    cells = line.split()
    extra = len(cells) - len(columns)
    if extra < 0 or (extra and "chip name" not in columns):
        return None
    if extra:
        at = columns.index("chip name")
        cells[at : at + extra + 1] = [" ".join(cells[at : at + extra + 1])]
    return dict(zip(columns, cells, strict=True))


def _npu(row: dict[str, str]) -> Npu | None:
    npu, chip = whole(row.get("npu id") or row.get("npuid(idx)")), row.get("chip id") or row.get("chipid(idx)")
    if npu is None or (chip is not None and whole(chip) is None) or (row.get("chip name") or "").casefold() in _HELPERS:
        return None
    return Npu(
        npu_id=npu,
        chip=whole(chip),
        phy_id=whole(row.get("chip phy-id") or row.get("chip physical id")),
        logic_id=whole(row.get("chip logic id")),
        name=words(row.get("chip name")),
        power_w=number(row.get("pwr(w)")),
        temp_c=number(row.get("temp(c)")),
        aicore_pct=number(row.get("ai core(%)")),
    )
