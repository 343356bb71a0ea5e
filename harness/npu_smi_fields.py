"""`npu-smi info -l` and `-t board|health|usages|memory|common|temp|power|ecc|proc-mem|phyid-remap`: lines of `key : value` in blocks.

Some blocks begin with the Chip ID that they are about (`common`, `board -c`), some end with it (`usages`, `ecc`, `temp`), some have none
and are about the `-i` and `-c` of the command, if that was saved too. What names no NPU at all is not attributed to any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.npu_smi_text import health_of, number, unfinished, whole, words
from harness.npu_smi_view import Npu, NpuProcess

_FIELD = re.compile(r"\s*([A-Za-z][A-Za-z0-9 ()%/_.-]{0,60}?)\s*:\s*(.*)")
_PROCESS = re.compile(r"\s*Process id\s*:\s*(\S+)\s+Process name\s*:(.*?)\s+Process memory\(MB\)\s*:\s*(\S*)", re.IGNORECASE)
_COMMAND = re.compile(r"npu-smi\s+info\b(.*)", re.IGNORECASE)
_OPTION = re.compile(r"-([ic])\s+([0-9]{1,9})\b")
_HEADINGS = {"npuid", "chipid", "chipcount", "totalcount", "cardcount"}
# Not dies but helpers on the card, whose temperature and power say nothing about a die.
_HELPERS = {"mcu", "3559", "cpu"}
# As printed, without spaces and case. `Aicore Usage Rate(%)` times a capacity would be no printed figure, so rates of memory are left.
_WHOLE = {
    "chipphy-id": "phy_id",
    "chipphysicalid": "phy_id",
    "phy-id": "phy_id",
    "chiplogicid": "logic_id",
    "hbmcapacity(mb)": "hbm_total_mb",
    "hbmusage(mb)": "hbm_used_mb",
    "ddrcapacity(mb)": "memory_total_mb",
    "memorycapacity(mb)": "memory_total_mb",
    "capacity(mb)": "memory_total_mb",
}
_NUMBERS = {
    "aicoreusagerate(%)": "aicore_pct",
    "temperature(c)": "temp_c",
    "nputemperature(c)": "temp_c",
    "npureal-timepower(w)": "power_w",
    "power(w)": "power_w",
    "powerdissipation(w)": "power_w",
}
_WORDS = {"chipname": "name", "pciebusinfo": "bus_id"}
_DOUBLE_BIT = ("hbmdoublebiterrorcount", "ddrdoublebiterrorcount", "double-biterrorcount")
_SINGLE_BIT = ("hbmsinglebiterrorcount", "ddrsinglebiterrorcount", "single-biterrorcount")
_KNOWN = {*_WHOLE, *_NUMBERS, *_WORDS, *_DOUBLE_BIT, *_SINGLE_BIT, "health", "healthstatus", "errorcode", "process", "noprocess"}
_SECTION = {
    "health": "health",
    "healthstatus": "health",
    "totalcount": "list",
    "cardcount": "list",
    "boardid": "board",
    "aicoreusagerate(%)": "usages",
    "hbmclockspeed(mhz)": "memory",
    "clockspeed(mhz)": "memory",
    "nputemperature(c)": "temp",
    "npureal-timepower(w)": "power",
    "process": "processes",
    "noprocess": "processes",
    **dict.fromkeys(_DOUBLE_BIT, "ecc"),
}


@dataclass
class Fields:
    """`driver` is the Software Version of a board, `tool` what `npu-smi -v` says."""

    npus: list[Npu] = field(default_factory=list)
    processes: list[NpuProcess] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    tool: str | None = None
    driver: str | None = None


@dataclass
class _Place:
    """Which NPU and chip lines are about: what the command asked for, until a line names another."""

    npu: int | None = None
    chip: int | None = None


def read_fields(lines: Sequence[str]) -> Fields:
    """The dies that the blocks tell of. Values of a block that names no NPU are errors; so is a Chip ID that is no number."""
    found, place = Fields(), _Place()
    block: list[tuple[str, str]] = []
    for at, line in enumerate((*lines, "")):
        command, pair = _COMMAND.search(line), _FIELD.fullmatch(line)
        if command and "|" not in line and not re.match(r"\s*usage", line, re.IGNORECASE):
            _close(block, place, found)
            options = {name: whole(value) for name, value in _OPTION.findall(command[1])}
            place.npu, place.chip = options.get("i"), options.get("c")
        elif not line.strip():
            _close(block, place, found)
        elif "|" not in line and (process := _PROCESS.match(line)):
            block.append(("process", f"{process[1]}\t{process[2]}\t{process[3]}"))
        elif re.match(r"\s*No process in device", line, re.IGNORECASE):
            block.append(("noprocess", ""))
        elif "|" not in line and pair and not (at < len(lines) and unfinished(lines, at) and _may_be_cut(pair[1], pair[2])):
            block.append(("".join(pair[1].split()).casefold(), pair[2].strip()))
    return found


def _may_be_cut(key: str, value: str) -> bool:
    """Of a last line without an end: a health word that is whole, and a Chip ID, which has one digit, are safe; others may lack letters."""
    return not (re.fullmatch(r"chip id", key, re.IGNORECASE) or value.strip() in ("OK", "Warning", "Alarm", "Critical"))


def _close(block: list[tuple[str, str]], place: _Place, found: Fields) -> None:
    """Cuts a block where another NPU or chip begins: before a Chip ID if blocks begin with it, after it if they end with it."""
    chip_lines = [i for i, (key, _) in enumerate(block) if key == "chipid"]
    facts = [i for i, (key, _) in enumerate(block) if key in _KNOWN]
    ends = bool(chip_lines and facts) and facts[0] < chip_lines[0]
    piece: list[tuple[str, str]] = []
    for key, value in block:
        starts = (key in ("npuid", "chipid") and not ends) or _is_helper(key, value)
        if starts and any(before == key or before not in _HEADINGS for before, _ in piece) and not _helper_ends(key, value, piece):
            _piece(piece, place, found)
            piece = []
        piece.append((key, value))
        if key == "chipid" and ends:
            _piece(piece, place, found)
            piece = []
    _piece(piece, place, found)
    block.clear()


def _is_helper(key: str, value: str) -> bool:
    return key == "chipname" and value.casefold() in _HELPERS


def _helper_ends(key: str, value: str, piece: Sequence[tuple[str, str]]) -> bool:
    """`Chip Name : MCU` closes a block of sensors in `-t temp`, and a piece that names its chip first in `-t board -c 1`."""
    return _is_helper(key, value) and not any(before in ("aicoreusagerate(%)", "temperature(c)") for before, _ in piece)


def _piece(piece: list[tuple[str, str]], place: _Place, found: Fields) -> None:
    values = dict(reversed(piece))  # the first of each key
    if not values:
        return
    found.sections += [_SECTION[key] for key in values if key in _SECTION and _SECTION[key] not in found.sections]
    found.driver = found.driver or words(values.get("softwareversion"))
    found.tool = found.tool or words(values.get("npu-smiversion"))
    if "npuid" in values:
        if whole(values["npuid"]) is None:
            found.errors.append(f"NPU ID : {values['npuid'][:40]} is no number")
            return
        if whole(values["npuid"]) != place.npu:
            place.npu, place.chip = whole(values["npuid"]), None
    if any(_is_helper(key, value) for key, value in piece) or values.get("chiptype", "").casefold() in _HELPERS:
        return
    chip = whole(values["chipid"]) if "chipid" in values else place.chip
    told = [key for key in values if key in _KNOWN]
    if place.npu is None and told:
        found.errors.append(f"these values name no NPU; save the command with them: {told[0]} : {values[told[0]][:40]}")
    if place.npu is None or not (told or {"npuid", "chipid"} & set(values)):
        return
    found.npus.append(_npu(place.npu, chip, values))
    _processes(piece, place.npu, chip, found)


def _npu(npu_id: int, chip: int | None, values: dict[str, str]) -> Npu:
    named: dict[str, object] = {}
    for table, read in ((_WHOLE, whole), (_NUMBERS, number), (_WORDS, words)):
        for key, name in table.items():
            if key in values and named.get(name) is None:
                named[name] = read(values[key])
    health = health_of(values.get("healthstatus") or values.get("health"))
    codes = tuple(re.findall(r"\b(?:0x)?[0-9A-F]{4,8}\b", values.get("errorcode", ""), re.IGNORECASE)) if health else ()
    errors = [count for key in _DOUBLE_BIT if (count := whole(values.get(key))) is not None]
    die = Npu(npu_id, chip, health=health, error_codes=codes, double_bit_errors=sum(errors) if errors else None)
    return replace(die, **named)  # type: ignore[arg-type]


def _processes(piece: Sequence[tuple[str, str]], npu_id: int, chip: int | None, found: Fields) -> None:
    for key, value in piece:
        if key == "process":
            pid, name, memory = value.split("\t", 2)
            if whole(pid) is None:
                found.errors.append(f"Process id:{pid[:20]} is no number")
            else:
                found.processes.append(NpuProcess(npu_id, chip, int(pid), words(name), whole(memory)))
