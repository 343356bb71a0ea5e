"""`parse`: any output of npu-smi, or several of them in one text, as a MachineView; `merge`: several views of one host as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from harness.npu_smi_fields import read_fields
from harness.npu_smi_map import read_plain_tables
from harness.npu_smi_series import with_series
from harness.npu_smi_tables import listed_processes, read_tables
from harness.npu_smi_text import lines_of, rows_of
from harness.npu_smi_view import Link, MachineView, Npu
from harness.topology import read_topology

# What npu-smi, or the shell in its place, prints instead of an answer. It may exit with 0 all the same.
_FAULTS = re.compile(
    r"""ret\ is\ -\d+|error\ code:\ -\d+|dcmi\ .*\bfail|Invalid\ (card|chip|device|npu|parameter)|Error\ parameter
    |Permission\ denied|command\ not\ found|No\ such\ file|cannot\ open\ shared\ object|not\ support|There\ is\ no\ NPU
    |may\ not\ be\ completely\ installed|\bfailed\b|\bFailed\ to\b|Operation\ not\ permitted|Segmentation\ fault|timed?\ ?out
    |未找到命令|没有那个文件|权限不够|失败|不支持""",
    re.VERBOSE | re.IGNORECASE,
)
# What an error code means, and the legend of `-t info-vnpu`.
_NO_FAULT = re.compile(r"\s*(?:Error Information|:|(?:\S.*\s)?NA ?: Currently)", re.IGNORECASE)
_CONSOLE_LOG = "DrvMngGetConsoleLogLevel failed"  # printed before every other fault; says nothing by itself
_WORST_FIRST = ("Critical", "Alarm", "Warning")
_LONGEST_FAULT = 300
_MOST_ERRORS = 20


def parse(text: str) -> MachineView:
    """What a saved output says of a host, of whichever commands it is. Never raises: what can't be understood is None or in `errors`."""
    lines = lines_of(text)
    tables, plain, pairs, topology = read_tables(rows_of(lines)), read_plain_tables(lines), read_fields(lines), read_topology(lines)
    sections = (*tables.sections, *plain.sections, *pairs.sections, *(["topo"] if topology.seen else []))
    errors = [*_faults(lines), *tables.errors, *plain.errors, *pairs.errors, *topology.errors]
    npus = (*tables.npus, *plain.npus, *pairs.npus)
    version = tables.tool or pairs.tool or tables.driver or pairs.driver
    if not (npus or version or errors or sections):
        shown = next((line.strip() for line in lines if line.strip()), "")
        errors = [f"nothing of npu-smi was recognised in it: {shown[:80]!r}" if shown else "the output is empty"]
    return MachineView(
        version=version,
        npus=_merged(npus),
        processes=tuple(listed_processes([*tables.processes, *pairs.processes])),
        links=tuple(topology.links),
        affinity=tuple(topology.affinity),
        errors=_distinct(errors),
        sections=tuple(dict.fromkeys(sections)),
    )


def merge(views: Iterable[MachineView]) -> MachineView:
    """One view of a host from several outputs of it. The first that tells a value wins; of health, which may have changed, the worst."""
    views = tuple(views)
    links: dict[frozenset[str], Link] = {}
    affinity: dict[str, str] = {}
    for view in views:
        links = {frozenset((link.a, link.b)): link for link in view.links} | links
        affinity = dict(view.affinity) | affinity
    return MachineView(
        version=next((view.version for view in views if view.version), None),
        npus=_merged([npu for view in views for npu in view.npus]),
        processes=tuple(listed_processes([process for view in views for process in view.processes])),
        links=tuple(links.values()),
        affinity=tuple(affinity.items()),
        errors=tuple(dict.fromkeys(error for view in views for error in view.errors)),
        sections=tuple(dict.fromkeys(section for view in views for section in view.sections)),
    )


def _distinct(errors: Sequence[str]) -> tuple[str, ...]:
    """Each once, and of a flood (a text that is no npu-smi's) only the beginning."""
    once = tuple(dict.fromkeys(errors))
    left = len(once) - _MOST_ERRORS
    return (*once[:_MOST_ERRORS], f"and {left} more of the kind") if left > 0 else once


def _faults(lines: Sequence[str]) -> list[str]:
    said = [line.strip() for line in lines if "|" not in line and _FAULTS.search(line) and not _NO_FAULT.match(line)]
    telling = [line for line in said if _CONSOLE_LOG not in line]
    return [line[:_LONGEST_FAULT] for line in telling or said]


def _merged(npus: Sequence[Npu]) -> tuple[Npu, ...]:
    """One entry a die. What names an NPU only is about its die if it has one alone; of several, nothing says which."""
    dies: dict[tuple[int, int], Npu] = {}
    whole_npus: dict[int, Npu] = {}
    for npu in npus:
        if npu.chip is None:
            whole_npus[npu.npu_id] = _filled(whole_npus.get(npu.npu_id, npu), npu)
        else:
            dies[npu.npu_id, npu.chip] = _filled(dies.get((npu.npu_id, npu.chip), npu), npu)
    for npu_id, whole in whole_npus.items():
        mine = [key for key in dies if key[0] == npu_id]
        if len(mine) == 1:
            dies[mine[0]] = _filled(dies[mine[0]], whole)
        elif not mine:
            dies[npu_id, -1] = whole
    order = sorted(dies)
    return with_series([dies[key] for key in order])


def _filled(first: Npu, other: Npu) -> Npu:
    names = [f.name for f in fields(Npu) if f.name not in ("health", "npu_id")]
    told = {name: getattr(other, name) for name in names if getattr(first, name) in (None, ()) and getattr(other, name) not in (None, ())}
    healths = (first.health, other.health)
    worst = next((bad for bad in _WORST_FIRST if bad in healths), first.health or other.health)
    return replace(first, health=worst, **told)
