"""The doctor: all checks of a host, worst first; what they say of a cell, and of the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from harness import doctor_checks_host as host
from harness import doctor_checks_run as run
from harness import doctor_checks_stack as stack
from harness import doctor_checks_work as work
from harness.doctor_facts import Finding, HostFacts, Severity, Sureness
from harness.model import Cell, Stack
from harness.rules import field_of

# The order in which a person would mend things: the device before the driver's tools, those before packages, these before a run.
CHECKS = (
    host.check_devices, host.check_mounts, host.check_health, host.check_cann, host.check_nnal, stack.check_torch, host.check_probe,
    stack.check_swift, stack.check_wheels, stack.check_vllm, stack.check_pins, work.check_megatron, work.check_strategies, work.check_model,
    work.check_command, run.check_visible, run.check_busy, run.check_hccl, run.check_room, run.check_hang_tools,
)  # fmt: skip
_RANK = {severity: rank for rank, severity in enumerate(Severity)}
_SURE = {sure: rank for rank, sure in enumerate(Sureness)}
EXIT_CODES: Mapping[Severity | None, int] = {None: 0, Severity.NOTE: 0, Severity.DEGRADES: 1, Severity.BLOCKS: 5}


def examine(facts: HostFacts, stacks: Mapping[str, Stack]) -> tuple[Finding, ...]:
    """Every finding, the worst and surest first, else in the order in which things are mended. Each id at most once, save where it names
    different things."""
    found = [finding for check in CHECKS for finding in check(facts)]
    found += stack.check_stacks(facts, stacks)
    unique = {(finding.id, finding.what): finding for finding in found}
    return tuple(sorted(unique.values(), key=lambda finding: (_RANK[finding.severity], _SURE[finding.sure])))


def cleaned(findings: Iterable[Finding], clean: Callable[[str], str]) -> tuple[Finding, ...]:
    """With every sentence put through `clean`, which takes out what names the host and its user."""
    return tuple(replace(f, what=clean(f.what), why=clean(f.why), fix=clean(f.fix)) for f in findings)


def worst(findings: Iterable[Finding]) -> Severity | None:
    return min((finding.severity for finding in findings), key=_RANK.__getitem__, default=None)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing but notes; 1: something degrades NPU work; 5: something blocks it."""
    return EXIT_CODES[worst(findings)]


def cell_obstacle(cell: Cell, findings: Sequence[Finding]) -> str:
    """Why this host can't run `cell`, by what is certain; empty where it can. Says the command that mends it."""
    for finding in findings:
        if finding.sure is Sureness.CERTAIN and finding.cells is not None and _is_named(cell, finding.cells):
            return f"{finding.what} (mend it: {finding.fix})"
    return ""


def _is_named(cell: Cell, cells: Mapping[str, tuple[object, ...]]) -> bool:
    return all(field_of(cell, name) in values for name, values in cells.items())
