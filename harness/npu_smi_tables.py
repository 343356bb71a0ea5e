"""The tables of `npu-smi info`: two lines a die under two lines of headers, then the processes.

Columns are found by their headers: widths, order within a cell and the columns themselves differ by driver and chip. A piece of a table
that lost its headers is read only where the form of its cells (a health word, a Bus-Id, used / total) leaves no choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.npu_smi_text import Row, health_of, number, whole, words
from harness.npu_smi_view import Npu, NpuProcess

_LABEL = re.compile(r"NPU ID|NPU Util\(%\)|Chip ID|Process id in container|Process id|Process name|Process memory\(MB\)|\S+", re.IGNORECASE)
_EMPTY = r"(?:NA|N/A|--?)"
_VALUE = re.compile(rf"(?:{_EMPTY}|[0-9]+)\s*/\s*(?:{_EMPTY}|[0-9]+)(?!\S)|\S+", re.IGNORECASE)
_PAIR = re.compile(rf"({_EMPTY}|[0-9]+)\s*/\s*({_EMPTY}|[0-9]+)", re.IGNORECASE)
_HEALTH = re.compile(r"OK|Warning|Alarm|Critical|UNKNOWN", re.IGNORECASE)
_BUS = re.compile(r"[0-9a-fx*]{4,8}:[0-9a-fx*]{2}:[0-9a-fx*]{2}\.[0-9a-fx*]+", re.IGNORECASE)
_TOOL = re.compile(r"npu-smi\s+(\S+)(?:.*\bVersion:\s*(\S+))?", re.IGNORECASE)
_NO_PROCESSES = re.compile(r"no running processes? found", re.IGNORECASE)
_UPPER = ("NPU   Name", "Health", "Power(W) Temp(C) Hugepages-Usage(page)")
_LOWER = {
    (1, 1): ("Chip", "Bus-Id", "AICore(%) Memory-Usage(MB)"),
    (2, 1): ("Chip Device", "Bus-Id", "AICore(%) Memory-Usage(MB)"),
    (1, 2): ("Chip", "Bus-Id", "AICore(%) Memory-Usage(MB) HBM-Usage(MB)"),
    (2, 2): ("Chip Phy-ID", "Bus-Id", "AICore(%) Memory-Usage(MB) HBM-Usage(MB)"),
}
Headers = tuple[tuple[str, ...], ...]
Values = dict[str, str | None]


@dataclass
class Tables:
    """What the tables of one text say. `tool` is npu-smi's version, `driver` the one after `Version:`."""

    tool: str | None = None
    driver: str | None = None
    npus: list[Npu] = field(default_factory=list)
    processes: list[NpuProcess] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)


def read_tables(rows: Sequence[Row]) -> Tables:
    """The dies and processes of every table among the rows. What is cut or strange is left out and named in `errors`."""
    found = Tables()
    upper: Headers = ()
    lower: Headers = ()
    processes: Headers = ()
    closed, first = True, None
    for row in rows:
        labels = _labels(row)
        flat = [label for cell in labels for label in cell]
        if tool := _TOOL.match(row.cells[0]):
            whole_words = [None if row.open_end and tool.end(i) == len(row.cells[0]) else words(tool[i]) for i in (1, 2)]
            found.tool, found.driver = found.tool or whole_words[0], found.driver or whole_words[1]
        elif "process id" in flat:
            _orphan(first, found)
            first, upper, lower, processes, closed = None, (), (), labels, row.closed
            found.sections.append("processes")
        elif "health" in flat and {"npu", "npu id"} & set(flat):
            upper, lower, processes, closed = labels, (), (), row.closed
            found.sections.append("info")
        elif "bus-id" in flat:
            lower = labels
        elif processes:
            _process(row, processes, closed, found)
        elif not _NO_PROCESSES.search(row.cells[0]):
            first = _half(row, (upper, lower), closed, first, found)
    _orphan(first, found)
    return found


def _labels(row: Row) -> Headers:
    return tuple(tuple(" ".join(label.casefold().split()) for label in _LABEL.findall(cell)) for cell in row.cells)


def _half(row: Row, headers: tuple[Headers, Headers], closed: bool, first: Row | None, found: Tables) -> Row | None:
    """One line of a die: returned if it is the upper one, waiting for its other half; a die is added with the lower one."""
    upper, lower = headers
    known = bool(upper and lower)
    if (known and len(row.cells) != len(upper)) or (not known and len(row.cells) != len(_UPPER)):
        if known or first is not None:
            found.errors.append(f"a line of the table is cut or strange: {_shown(row)}")
        return None if known else first
    if first is not None and _name_goes_on(row):
        return replace(first, cells=(first.cells[0] + " " + row.cells[0], *first.cells[1:]))
    column = next((i for i, cell in enumerate(upper) if "health" in cell), 1) if known else 1
    if _is_upper(row.cells[column], first is not None):
        if not known and not (_HEALTH.fullmatch(row.cells[1]) and re.match(r"[0-9]+\s+\S", row.cells[0])):
            return first
        _orphan(first, found)
        return row
    if first is None:
        if known or _BUS.fullmatch(row.cells[1]):
            found.errors.append(f"a line of the table has lost its upper half: {_shown(row)}")
        return None
    if not known:
        upper, lower = _by_form(first, row)
    die = _die(_row_values(first, upper, closed), _row_values(row, lower, closed)) if lower else None
    if die is None:
        found.errors.append(f"a line of the table makes no sense: {_shown(first)}")
    else:
        found.npus.append(die)
        found.sections += [] if "info" in found.sections else ["info"]
    return None


def _is_upper(cell: str, expects_lower: bool) -> bool:
    """Health stands where the other line has the Bus-Id; where both could be NA the order decides."""
    if ":" in cell:
        return False
    return True if _HEALTH.fullmatch(cell) else not expects_lower


def _name_goes_on(row: Row) -> bool:
    return bool(row.cells[0]) and not any(row.cells[1:]) and whole(row.cells[0].split()[0]) is None


def _orphan(first: Row | None, found: Tables) -> None:
    if first is not None:
        found.errors.append(f"a line of the table has lost its lower half: {_shown(first)}")


def _shown(row: Row) -> str:
    return repr(" | ".join(row.cells)[:80])


def _by_form(first: Row, second: Row) -> tuple[Headers, Headers]:
    """The headers that a table must have had: a die with HBM has two memory columns, and only then is its second number a Phy-ID."""
    ids, pairs = second.cells[0].split(), _PAIR.findall(second.cells[2])
    lower = _LOWER.get((len(ids), len(pairs)))
    fits = _BUS.fullmatch(second.cells[1]) or words(second.cells[1]) is None
    if lower is None or not fits or None in [whole(word) for word in ids]:
        return (), ()
    made = [tuple(tuple(" ".join(x.casefold().split()) for x in _LABEL.findall(cell)) for cell in cells) for cells in (_UPPER, lower)]
    return made[0], made[1]


def _row_values(row: Row, headers: Headers, headers_closed: bool) -> Values:
    """label -> what stands under it. In a cell without its closing bar, numbers may be cut."""
    values: Values = {}
    cells = list(zip(headers, row.cells, strict=False))
    for place, (labels, cell) in enumerate(cells):
        cut = place == len(row.cells) - 1 and (row.open_end or (headers_closed and not row.closed))
        values.update(_cell_values(labels, cell))
        if cut:
            values.update({label: None for label in labels if label not in ("process name", "name")})
    return values


def _cell_values(labels: tuple[str, ...], cell: str) -> Values:
    if len(labels) < 2:
        return {label: cell for label in labels}
    if labels[0] in ("npu", "npu id") and "name" in labels:
        number_, _, name = cell.partition(" ")
        return {labels[0]: number_, "name": name.strip()}
    found = _VALUE.findall(cell)
    if len(found) == len(labels):
        return {label: value for label, value in zip(labels, found, strict=True) if ("usage" in label) == bool(_PAIR.fullmatch(value))}
    values: Values = {}
    for of_pairs in (True, False):
        mine = [label for label in labels if ("usage" in label) == of_pairs]
        theirs = [value for value in found if bool(_PAIR.fullmatch(value)) == of_pairs]
        values.update(zip(mine, theirs, strict=True) if len(mine) == len(theirs) else {})
    return values


def _die(upper: Values, lower: Values) -> Npu | None:
    npu = whole(upper.get("npu") or upper.get("npu id"))
    chip = lower.get("chip") or lower.get("chip id")
    if npu is None or not words(upper.get("name")) or (chip is not None and whole(chip) is None):
        return None
    used, total = _pair(lower.get("hbm-usage(mb)"))
    memory_used, memory_total = _pair(lower.get("memory-usage(mb)"))
    return Npu(
        npu_id=npu,
        chip=whole(chip),
        phy_id=whole(lower.get("phy-id")),
        logic_id=whole(lower.get("device")),
        name=words(upper.get("name")),
        health=health_of(upper.get("health")),
        bus_id=words(lower.get("bus-id")),
        power_w=number(upper.get("power(w)")),
        temp_c=number(upper.get("temp(c)")),
        aicore_pct=number(lower.get("aicore(%)", lower.get("npu util(%)"))),
        hbm_used_mb=used,
        hbm_total_mb=total,
        memory_used_mb=memory_used,
        memory_total_mb=memory_total,
    )


def _pair(value: str | None) -> tuple[int | None, int | None]:
    match = _PAIR.fullmatch(value or "")
    return (whole(match[1]), whole(match[2])) if match else (None, None)


def _process(row: Row, headers: Headers, closed: bool, found: Tables) -> None:
    if _NO_PROCESSES.search(" ".join(row.cells)):
        return
    names = [i for i, labels in enumerate(headers) if labels == ("process name",)]
    extra = len(row.cells) - len(headers)
    if names and extra > 0:  # a process may have a bar in its name
        at = names[0]
        row = replace(row, cells=(*row.cells[:at], "|".join(row.cells[at : at + extra + 1]), *row.cells[at + extra + 1 :]))
    if names and found.processes and names[0] < len(row.cells) and [i for i, cell in enumerate(row.cells) if cell] == names:
        last = found.processes[-1]
        found.processes[-1] = replace(last, name=words((last.name or "") + row.cells[names[0]]))
        return
    values = _row_values(row, headers, closed)
    npu, pid = whole(values.get("npu") or values.get("npu id")), whole(values.get("process id"))
    chip = values.get("chip") or values.get("chip id")
    if npu is None or pid is None or (chip is not None and whole(chip) is None):
        found.errors.append(f"a line of the process table is cut or strange: {_shown(row)}")
        return
    name, memory = words(values.get("process name")), whole(values.get("process memory(mb)"))
    found.processes.append(NpuProcess(npu, whole(chip), pid, name, memory))


def listed_processes(processes: Sequence[NpuProcess]) -> Iterator[NpuProcess]:
    """Each (npu, chip, pid) once, with what any of its lines told."""
    kept: dict[tuple[int, int | None, int], NpuProcess] = {}
    for one in processes:
        key = (one.npu_id, one.chip, one.pid)
        before = kept.get(key, one)
        memory = one.mem_mb if before.mem_mb is None else before.mem_mb
        kept[key] = replace(before, name=before.name or one.name, mem_mb=memory)
    return iter(kept.values())
