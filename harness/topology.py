"""The matrix of `npu-smi info -t topo`: how each device reaches each other one, and which CPUs are near it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.npu_smi_text import unfinished
from harness.npu_smi_view import LINK_ORDER, Link

# Phy-ID on an Atlas A3, NPU elsewhere, NIC since 26.x.
_DEVICE = re.compile(r"(?:NPU|NIC|Phy-ID)[0-9]{1,6}", re.IGNORECASE)
_LEGEND = re.compile(r"\s*([A-Za-z_]{1,16})\s*=\s+\S")
_CPUS = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*,?")
_KNOWN = (*LINK_ORDER, "NA")


@dataclass
class Topology:
    links: list[Link] = field(default_factory=list)
    affinity: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seen: bool = False


def read_topology(lines: Sequence[str]) -> Topology:
    """The links of every matrix among the lines, each pair once. A row that is cut gives what it has, never its last, maybe cut, word."""
    found = Topology()
    legend = {match[1] for line in lines if (match := _LEGEND.match(line))} & set(_KNOWN)
    columns: list[str] = []
    beyond = 0
    rows: list[tuple[str, list[str]]] = []
    final = next((line for line in reversed(lines) if line.strip()), "")
    for at, line in enumerate(lines):
        words, cpus, more = _words(line)
        if unfinished(lines, at) and words[-1:] != ["X"]:
            words = words[:-1]
        if _is_header(words, cpus):
            if rows:
                _matrix(columns, rows, found, beyond)
                columns, rows, beyond = [], [], 0
            columns += words
            beyond += more
        elif words and _DEVICE.fullmatch(words[0]) and len(words) > 1:
            rows.append((words[0], words[1:-1] if line is final and len(words) <= len(columns) else words[1:]))
        elif rows and words and len(rows[-1][1]) < len(columns) and _fits(words):
            rows[-1][1].extend(words)
        elif not rows:
            columns, beyond = [], 0
    _matrix(columns, rows, found, beyond)
    if not found.seen and len(legend) > 2:
        found.seen = True
        found.errors.append("of a topology only the legend is there, not the matrix")
    return found


def _words(line: str) -> tuple[list[str], bool, int]:
    """(the words before `CPU Affinity`, whether the line is a header with it, how many columns come after it)."""
    if "|" in line:
        return [], False, 0
    before, sign, after = re.sub(r"CPU\s+Affinity", "CPU Affinity", line, flags=re.IGNORECASE).partition("CPU Affinity")
    return before.split(), bool(sign), len(re.findall(r"\S+(?: \S+)*", after))


def _is_header(words: Sequence[str], cpus: bool) -> bool:
    devices = [bool(_DEVICE.fullmatch(word)) for word in words]
    return bool(devices) and all(devices) and (cpus or len(devices) > 1 or len(words) == 1)


def _fits(words: Sequence[str]) -> bool:
    """Whether a line goes on with the row before it, as where a terminal wrapped it."""
    return all(word in _KNOWN or _CPUS.fullmatch(word) for word in words)


def _matrix(columns: Sequence[str], rows: Sequence[tuple[str, list[str]]], found: Topology, beyond: int) -> None:
    names = list(columns) or _columns_by_diagonal(rows, found)
    if not rows or not names:
        return
    found.seen = True
    kinds: dict[tuple[str, str], str] = {}
    for name, cells in rows:
        width = next((i for i, cell in enumerate(cells) if _CPUS.fullmatch(cell)), len(cells))
        links, rest = cells[: min(width, len(names))], cells[min(width, len(names)) :]
        for other, kind in zip(names, links, strict=False):
            if (kind == "X") != (name == other) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,15}", kind):
                found.errors.append(f"the topology says {kind!r} between {name} and {other}")
            elif name != other:
                kinds[name, other] = kind
        cpus = "".join(rest[:-beyond] if 0 < beyond < len(rest) else rest).rstrip(",")
        if _CPUS.fullmatch(cpus):
            found.affinity.append((name, cpus))
    _pairs(kinds, found)


def _columns_by_diagonal(rows: Sequence[tuple[str, list[str]]], found: Topology) -> list[str]:
    """Without a header the columns are the rows' devices, if every row has its X where it then must be."""
    if rows and all(len(cells) > i and cells[i] == "X" for i, (_, cells) in enumerate(rows)):
        return [name for name, _ in rows]
    if rows and any("X" in cells for _, cells in rows):
        found.seen = True
        found.errors.append("the topology's header is missing, and its rows don't tell which columns they have")
    return []


def _pairs(kinds: dict[tuple[str, str], str], found: Topology) -> None:
    known = {frozenset((link.a, link.b)) for link in found.links}
    for (name, other), kind in kinds.items():
        if frozenset((name, other)) in known:
            continue
        known.add(frozenset((name, other)))
        back = kinds.get((other, name), kind)
        if back == kind:
            found.links.append(Link(name, other, kind))
        else:
            found.errors.append(f"the topology says {kind} from {name} to {other} but {back} back")
