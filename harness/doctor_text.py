"""The doctor's findings for people (a screenful of 100 columns) and for machines."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.doctor import exit_code
from harness.doctor_facts import Finding, HostFacts, Severity

COLUMNS, LINES = 100, 40
_SHOWN = ("torch", "torch-npu", "ms-swift", "transformers", "deepspeed", "vllm", "vllm-ascend", "mindspeed", "triton-ascend")
_LEAD = {Severity.BLOCKS: "BLOCKS", Severity.DEGRADES: "DEGRADES", Severity.NOTE: "note"}


def render(facts: HostFacts, findings: Sequence[Finding], most: int = LINES) -> str:
    """As much of each finding as `most` lines hold: first notes are cut down to their first line, then what degrades loses its why, then
    notes are only counted. What blocks is always told whole."""
    head = _head(facts, findings)
    texts: list[list[str]] = []
    for detail in range(4):
        texts = [_told(finding, detail) for finding in findings]
        if len(head) + sum(map(len, texts)) <= most - 1:
            break
    left_out = sum(not text for text in texts)
    tail = [f"and {left_out} notes: `python -m harness doctor --json` tells them"] if left_out else []
    return "\n".join([*head, *(line for text in texts for line in text), *tail])


def as_json(facts: HostFacts, findings: Sequence[Finding]) -> dict[str, Any]:
    """`exit_code` as the command ends; `host` what was seen; each finding with all its fields."""
    cells = [None if f.cells is None else {name: [str(v) for v in values] for name, values in f.cells.items()} for f in findings]
    return {
        "exit_code": exit_code(findings),
        "host": _host(facts),
        "findings": [
            {
                "id": f.id,
                "severity": str(f.severity),
                "sure": str(f.sure),
                "what": f.what,
                "why": f.why,
                "fix": f.fix,
                "source": f.source,
                "impossible_cells": impossible,
            }
            for f, impossible in zip(findings, cells, strict=True)
        ],
    }


def _host(facts: HostFacts) -> Mapping[str, Any]:
    return {
        "traces_of_npus": list(facts.traces),
        "series": str(facts.series) if facts.series else None,
        "npus": [{"npu_id": npu.npu_id, "chip": npu.chip, "name": npu.name, "health": npu.health} for npu in facts.machine.npus],
        "npu_usable": facts.probe.made_a_tensor if facts.probe else None,
        "driver": facts.driver_version,
        "cann": facts.cann.version,
        "container": facts.place.value == "container",
        "architecture": facts.architecture,
        "python": facts.python,
        "packages": None if facts.packages is None else {n: facts.packages[n].version for n in _SHOWN if n in facts.packages},
    }


def _head(facts: HostFacts, findings: Sequence[Finding]) -> list[str]:
    counts = Counter(finding.severity for finding in findings)
    names = (("blocking NPU work", Severity.BLOCKS), ("degrading it", Severity.DEGRADES), ("worth knowing", Severity.NOTE))
    summed = ", ".join(f"{counts[severity]} {words}" for words, severity in names if counts[severity])
    packages = facts.packages or {}
    here = ", ".join([f"Python {facts.python}", *(f"{name} {packages[name].version}" for name in _SHOWN if name in packages)])
    lines = [f"doctor: {summed or 'nothing found'} (exit {exit_code(findings)})"]
    lines += _wrapped(
        "here:  ", f"{facts.architecture}, {here}" + ("" if facts.packages is not None else ", no Python packages to look at")
    )
    lines += _wrapped("NPUs:  ", _npus(facts))
    if not facts.traces:
        runs = "pytest -m npu_matrix on a simulated NPU in host memory, or --hardware cpu"
        if facts.simulation != "":
            lacking = f"; no simulated NPU: {facts.simulation}" if facts.simulation else ""
            runs = f"pytest -m npu_matrix --hardware cpu{lacking}"
        lines += _wrapped("runs:  ", f"{runs}; both prove nothing about NPU hardware")
    return [*lines, ""]


def _npus(facts: HostFacts) -> str:
    npus = facts.machine.npus
    if not facts.traces:
        return "none, nor a trace of any: no /dev/davinci*, npu-smi, /usr/local/Ascend, torch_npu"
    kinds = Counter(npu.name or "unnamed" for npu in npus)
    listed = ", ".join(f"{count} x {name}" for name, count in sorted(kinds.items())) or "none listed"
    healthy = f", {sum(npu.healthy for npu in npus)} healthy" if npus else ""
    used = {None: "not tried", True: "npu:0 made a tensor", False: "npu:0 can't be used"}[
        facts.probe.made_a_tensor if facts.probe else None
    ]
    series = f" ({facts.series})" if facts.series else ""
    versions = f"driver {facts.driver_version or 'unknown'}, CANN {facts.cann.version or 'unknown'}"
    return f"{listed}{series}{healthy}; {used}; {versions}"


def _told(finding: Finding, detail: int) -> list[str]:
    """`detail` 0: what, why, fix; 1: notes without their why; 2: the others without it too, but what blocks; 3: notes not at all."""
    is_note, blocks = finding.severity is Severity.NOTE, finding.severity is Severity.BLOCKS
    if is_note and detail >= 3:
        return []
    lead = f"{_LEAD[finding.severity]:8} "
    lines = _wrapped(lead, f"{finding.what} [{finding.source}, {finding.sure}]")
    if detail == 0 or blocks or (detail == 1 and not is_note):
        lines += _wrapped("   why   ", finding.why)
    return lines + _wrapped("   fix   ", finding.fix)


def _wrapped(lead: str, text: str) -> list[str]:
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)  # a terminal gives each two columns
    wrapper = textwrap.TextWrapper(COLUMNS - wide, lead, " " * len(lead), break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)
