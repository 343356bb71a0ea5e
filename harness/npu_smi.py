"""What `npu-smi info` prints, as values. Columns are found by their headers: widths, spacing and columns differ by driver and by chip.

One row a die: on an Atlas A3 an NPU has two. Tables of `npu-smi info -t ...` and `-m` are not read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.model import Hardware

_VERSION = re.compile(r"\|\s*npu-smi\s+(\S+)")
_MEMORY = re.compile(r"(\d+)\s*/\s*(\d+)")
_MEMORY_COLUMNS = ("HBM-Usage(MB)", "Memory-Usage(MB)")
# What npu-smi prints instead of a table. It may exit with 0 all the same.
_FAULT = re.compile(r".*(?:\bret is|error code:) -80\d\d.*|dcmi \w+ initiali[sz]e.*failed.*|Invalid card id.*|.*Permission denied.*")


@dataclass(frozen=True)
class Chip:
    """One die. `index` is its place in the listing, which is what ASCEND_RT_VISIBLE_DEVICES counts by; `npu` is only npu-smi's own name."""

    index: int
    npu: int
    die: int
    name: str
    health: str
    memory_used_mib: int | None
    memory_total_mib: int | None

    @property
    def healthy(self) -> bool:
        return self.health == "OK"


@dataclass(frozen=True)
class Listing:
    version: str
    chips: tuple[Chip, ...]
    faults: tuple[str, ...]


def parse_npu_smi(text: str) -> Listing:
    """The chips of an `npu-smi info` listing, cut or whole. No text makes this raise; what is no table becomes a fault."""
    version = _VERSION.search(text)
    faults = tuple(line.strip() for line in text.splitlines() if _FAULT.fullmatch(line.strip()))
    chips: list[Chip] = []
    upper: list[str] = []
    lower: list[str] = []
    first: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if "Process id" in cells:
            break
        if "Health" in cells:
            upper, lower, first = cells, [], []
        elif "Bus-Id" in cells:
            lower = cells
        elif lower and len(cells) == len(upper) == len(lower):
            if not first:
                first = cells
            else:
                chip = _chip(len(chips), _named(upper, first), _named(lower, cells))
                chips += [chip] if chip else []
                first = []
    return Listing(version.group(1) if version else "", _without_shares(chips), faults)


def series_of(chips: Sequence[Chip]) -> Hardware | None:
    """Which Atlas generation these chips are; None where the names don't say, or say different things."""
    found = {_series(chip, chips) for chip in chips}
    return found.pop() if len(found) == 1 else None


def _series(chip: Chip, chips: Sequence[Chip]) -> Hardware | None:
    name = chip.name.removeprefix("Ascend")
    if re.fullmatch(r"910B[1-4]\w*(-\d+)?", name):
        return Hardware.A2
    # A3 calls itself plain Ascend910, like the 910A did; but only it has two dies an NPU.
    if re.match(r"910_?93|910C", name) or (name == "910" and sum(other.npu == chip.npu for other in chips) == 2):
        return Hardware.A3
    return Hardware.A5 if name.startswith("95") else None


def _named(headers: Sequence[str], cells: Sequence[str]) -> dict[str, list[str]]:
    """Each header cell's words, joined by the words below it: "NPU   Name" over "0   910B3" gives both."""
    row: dict[str, list[str]] = {}
    for header, cell in zip(headers, cells, strict=True):
        words = header.split()
        values = [f"{used}/{total}" for used, total in _MEMORY.findall(cell)]
        memory = [word for word in words if word in (*_MEMORY_COLUMNS, "Hugepages-Usage(page)")]
        for word, value in zip(reversed(memory), reversed(values), strict=False):
            row[word] = [value]
        row[header] = cell.split()
        if len(words) > 1 and not memory:
            row.update({word: [value] for word, value in zip(words, cell.split(), strict=False)})
    return row


def _chip(index: int, upper: dict[str, list[str]], lower: dict[str, list[str]]) -> Chip | None:
    npu, name, health = (_first(upper, *keys) for keys in (("NPU ID", "NPU"), ("Name",), ("Health",)))
    if not npu.isdigit() or not name or not health:
        return None
    die = _first(lower, "Chip")
    memory = _MEMORY.fullmatch(_first(lower, *(column for column in _MEMORY_COLUMNS if column in lower)))
    used, total = (int(memory[1]), int(memory[2])) if memory else (None, None)
    return Chip(index, int(npu), int(die) if die.isdigit() else 0, name, health, used, total)


def _first(row: dict[str, list[str]], *keys: str) -> str:
    return next((row[key][0] for key in keys if row.get(key)), "")


def _without_shares(chips: Sequence[Chip]) -> tuple[Chip, ...]:
    """A share of a die (vNPU) repeats the die's row: one device to count, not two."""
    unique = {(chip.npu, chip.die): chip for chip in reversed(chips)}
    kept = [chip for chip in chips if unique[chip.npu, chip.die] is chip]
    return tuple(Chip(i, c.npu, c.die, c.name, c.health, c.memory_used_mib, c.memory_total_mib) for i, c in enumerate(kept))
