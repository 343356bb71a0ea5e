"""The kernel-parity part of the pytest door: its options, what its items and workers tell, the table, the evidence, the last line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness import machine, report
from harness.errors import HarnessError
from harness.model import Hardware
from harness.parity import Entry, NotRun, ParityEvidence, RunFacts, cleaned, entry_from_text, entry_to_text
from harness.parity_store import save
from harness.render_parity import not_run_lines, terminal_table
from harness.session import one_line, text_cleaner
from harness.store import utc_now

_TOLD, _WITNESSED, _HARDWARE = "kernel_parity", "kernel_parity_witnessed", "kernel_parity_hardware"


@dataclass(frozen=True)
class AskedCase:
    """What --kernel-case names: one case of one kernel."""

    kernel: str
    dtype: str
    params: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Witnessed:
    """What a process computed on, and with what."""

    hardware: Hardware
    versions: Mapping[str, str]
    machine: Mapping[str, str]


def parse_case(text: str) -> AskedCase:
    """Raises HarnessError for what a failure's last line doesn't hold."""
    mend = "Paste the whole last line of the failure, quotes included."
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise HarnessError("--kernel-case", f"is no JSON ({error}).", mend) from error
    wanted = {"kernel": str, "dtype": str, "params": dict, "seed": int}
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        raise HarnessError("--kernel-case", f"is no object of {', '.join(wanted)}.", mend)
    for name, kind in wanted.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise HarnessError("--kernel-case", f"{name} is {found[name]!r}.", mend)
    return AskedCase(found["kernel"], found["dtype"], found["params"], found["seed"])


def choose(asked: str, require_npu: bool) -> Hardware:
    """Where kernels run: the NPU, or plain `cpu` where there is no trace of one. Raises HostError as choose_hardware does."""
    if asked == Hardware.SIM:
        raise HarnessError("--hardware sim", "a simulated NPU has no kernels of its own.", "Leave it out, or use -m npu_matrix.")
    found = machine.choose_hardware(asked, require_npu=require_npu).hardware
    return Hardware.CPU if found is Hardware.SIM else found


class KernelDoor:
    """One run of the suite, in the process that collects what its items found; in a worker it only hands on."""

    def __init__(self, config: pytest.Config, root: Path) -> None:
        option = config.option
        self.config, self.root, self.quick = config, root, bool(option.quick)
        self.is_worker = hasattr(config, "workerinput")
        self.case = parse_case(option.kernel_case) if option.kernel_case is not None else None
        if self.is_worker:
            self.hardware = Hardware(config.workerinput[_HARDWARE])  # type: ignore[attr-defined]
        else:
            self.hardware = choose(option.hardware, option.require_npu)
        self.nonce, self.started_at = uuid.uuid4().hex, utc_now().isoformat(timespec="seconds")
        self.found: dict[str, Entry | NotRun] = {}
        self.stubs: dict[str, Entry] = {}
        self.witnessed: list[Witnessed] = []
        self.faults: list[str] = []
        self._witness: Callable[[], Witnessed] | None = None
        self._notes: list[str] = []
        self._died: dict[str, str] = {}

    # --- asked by the suite's items

    def declare(self, stubs: Sequence[Entry], witness: Callable[[], Witnessed]) -> None:
        """All items there are, selected or not, and how to find out what this process computes on."""
        self.stubs, self._witness = {stub.item: stub for stub in stubs}, witness

    def told(self, found: Entry | NotRun) -> tuple[str, str]:
        """An answer as a user property, which xdist carries."""
        return _TOLD, entry_to_text(replace(found, quick=self.quick, run=self.nonce) if isinstance(found, Entry) else found)

    # --- pytest's and xdist's hooks

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Halves in the order of collection, so that each worker imports only one half's libraries, until one helps the other out."""
        if config.getvalue("dist") != "load":
            return None
        from xdist.scheduler import WorkStealingScheduling

        return WorkStealingScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_HARDWARE] = str(self.hardware)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        text = getattr(node, "workeroutput", {}).get(_WITNESSED)
        if text is not None:
            self._hear(json.loads(text))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        texts = [value for name, value in report.user_properties if name == _TOLD]
        for text in texts:
            found = entry_from_text(str(text))
            self.found[found.item] = replace(found, run=self.nonce) if isinstance(found, Entry) else found
        if report.failed and not texts:
            said = str(report.longrepr or "it said nothing").strip().splitlines()
            self._died[report.nodeid.rpartition("::")[2]] = said[-1]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.config.option.collectonly:
            return
        if self._witness is not None:
            self._attempt("asking what was computed on", self._witness_here)
        if self.is_worker:
            return
        self._attempt("writing the evidence", self._keep)
        if exitstatus != pytest.ExitCode.OK:
            return
        if self.faults:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif not any(isinstance(one, Entry) for one in self.found.values()):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.config.option.collectonly:
            return
        entries = [one for one in self.found.values() if isinstance(one, Entry)]
        lines = [*terminal_table(entries), *not_run_lines(one for one in self.found.values() if isinstance(one, NotRun))]
        for line in (*lines, *self._notes, *self.faults):
            terminalreporter.write_line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """After pytest's own last line, so that nobody who reads only the end is misled."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not self.is_worker and self.hardware is Hardware.CPU:
            what = "operators were the reference's and Triton kernels ran in the interpreter"
            reporter.write_line(f"NO NPU: ran on cpu, proves nothing about NPU hardware ({what})")

    # ---

    def _witness_here(self) -> None:
        assert self._witness is not None
        seen = self._witness()
        told = {
            "hardware": str(seen.hardware),
            "versions": dict(seen.versions),
            "machine": dict(seen.machine),
            "stubs": [entry_to_text(stub) for stub in self.stubs.values()],
        }
        if self.is_worker:
            self.config.workeroutput[_WITNESSED] = json.dumps(told)  # type: ignore[attr-defined]
        else:
            self._hear(told)

    def _hear(self, told: Mapping[str, Any]) -> None:
        self.witnessed.append(Witnessed(Hardware(told["hardware"]), told["versions"], told["machine"]))
        for text in told["stubs"]:
            stub = entry_from_text(text)
            assert isinstance(stub, Entry)
            self.stubs[stub.item] = stub

    def _keep(self) -> None:
        """Write the evidence and its pages. A replayed case leaves none, and neither does a run in which nothing was measured."""
        for item, said in self._died.items():
            if item in self.stubs:
                self.found[item] = replace(self.stubs[item], because=f"it died: {said}", quick=self.quick, run=self.nonce)
        entries = tuple(sorted((one for one in self.found.values() if isinstance(one, Entry)), key=lambda one: one.item))
        if self.case is not None:
            self._notes.append("a replayed case leaves no evidence")
        if self.case is not None or not entries:
            return
        seen = {witnessed.hardware for witnessed in self.witnessed}
        if seen != {self.hardware}:
            there = ", ".join(sorted(map(str, seen))) or "nothing"
            raise HarnessError("kernel parity", f"{self.hardware} was chosen and the processes worked on {there}.", "No evidence is kept.")
        facts = RunFacts(self.nonce, self.started_at, self.witnessed[0].versions, self.witnessed[0].machine)
        not_run = tuple(one for one in self.found.values() if isinstance(one, NotRun))
        evidence = ParityEvidence(self.hardware, (facts,), entries, not_run, tuple(sorted(self.stubs)))
        path, remarks = save(self.root, cleaned(evidence, text_cleaner([str(self.root)])))
        written = [path, *report.write_parity(self.root)]
        self._notes += [*remarks, "written: " + ", ".join(str(one.relative_to(self.root)) for one in written)]

    def _attempt(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as fault:  # told, and never green: see pytest_sessionfinish
            self.faults.append(f"{what} failed: {one_line(fault)}")


DOOR: pytest.StashKey[KernelDoor] = pytest.StashKey()
