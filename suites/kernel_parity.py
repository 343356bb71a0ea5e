"""pytest -m kernel_parity: operators, patches and Triton kernels against plain torch in float64, an item a (kernel, dtype).

`NAME-DTYPE` explores what must hold, `NAME-DTYPE known: CAUSE` the cases of a known failure, `check NAME` what has no figures.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.door_kernels import DOOR, KernelDoor, Witnessed
from harness.errors import HarnessError, did_you_mean
from harness.kernels import catalogue, interpreter
from harness.kernels.checks import Check
from harness.kernels.explore import Exploration, ParityError, explore, explore_known, replay
from harness.kernels.kernel import Case, Kernel, KnownFailure
from harness.kernels.npu import DEVICE, why_no_npu
from harness.machine import machine_facts
from harness.model import Hardware
from harness.npu_smi_series import series_of_name
from harness.parity import Entry, NotRun, Sort, State, WorstError
from harness.witness import stack

Found = Entry | NotRun
# Their versions are told beside those of ms-swift's stack.
_LIBRARIES = ("triton", "triton-ascend", "fla-core", "flash-linear-attention", "einops", "hypothesis", "mindspeed")
_NO_COMPARISON = "nothing was compared: it has no example and draws no case"


class ParityItem(pytest.Item):
    """One question; `ask` fills in `stub`, which says how it ends if nothing comes of it. What was found travels as a user property."""

    def __init__(self, *, door: KernelDoor, stub: Entry, ask: Callable[[Entry], Found], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.door, self.stub, self.ask = door, stub, ask

    def runtest(self) -> None:
        began = time.monotonic()
        found = self.ask(self.stub)
        if isinstance(found, Entry):
            found = replace(found, duration_s=round(time.monotonic() - began, 2))
        self.user_properties.append(self.door.told(found))
        if isinstance(found, NotRun):
            pytest.skip(found.because)
        if found.state is State.KNOWN_FAILURE:
            pytest.xfail(f"{found.because.splitlines()[0]} ({found.failed} of {found.failed + found.passed} cases fail)")
        if found.state is not State.PASSED:
            raise Failed(found.because)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, self.name


class Failed(Exception):
    """An item's failure, whose text is all that is shown of it."""


def items(parent: pytest.Collector, ours: object) -> Iterator[pytest.Item]:
    door = parent.config.stash[DOOR]
    parent.add_marker(pytest.mark.kernel_parity)
    try:
        interpreter.prepare()
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)  # cases are small: threads would only get into the way of the other worker
        kernels, checks = catalogue.all_kernels(), catalogue.all_checks()
        made = [_replayed(kernels, door)] if door.case else [*_explored(kernels, door), *map(_checked, checks)]
    except HarnessError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    door.declare([stub for stub, _ in made], witness)
    for stub, ask in made:
        yield ParityItem.from_parent(parent, name=stub.item, door=door, stub=stub, ask=ask)


def _explored(kernels: tuple[Kernel, ...], door: KernelDoor) -> Iterator[tuple[Entry, Callable[[Entry], Found]]]:
    """Each module's kernels stay together, since what a module imports takes seconds; of them the longest first."""
    for kernel in kernels:
        for dtype in kernel.dtypes:
            yield _stub(kernel, dtype, Sort.PARITY), _exploring(kernel, dtype, door.quick)
        for known in kernel.known:
            concerned = [dtype for dtype in kernel.dtypes if any(known.concerns(Case(params, dtype)) for params in kernel.examples)]
            for dtype in concerned or kernel.dtypes[:1]:
                yield _stub(kernel, dtype, Sort.KNOWN, known), _exploring_known(kernel, dtype, known)


def _stub(kernel: Kernel, dtype: str, sort: Sort, known: KnownFailure | None = None) -> Entry:
    item = f"{kernel.name}-{dtype}" + (f" known: {known.cause}" if known else "")
    return Entry(item, sort, kernel.name, dtype, str(kernel.kind), kernel.what, State.FAILED, "it did not end", 0.0)


def _exploring(kernel: Kernel, dtype: str, quick: bool) -> Callable[[Entry], Found]:
    def ask(stub: Entry) -> Found:
        if because := kernel.missing():
            return NotRun(stub.item, because)
        try:
            found = explore(kernel, dtype, quick=quick)
        except ParityError as error:
            return replace(stub, because=str(error))
        if not found.cases and found.left_out:
            return NotRun(stub.item, "every case is a known failure's")
        return _told(stub, found) if found.cases else replace(stub, because=f"{kernel.name} in {dtype}: {_NO_COMPARISON}")

    return ask


def _told(stub: Entry, found: Exploration) -> Entry:
    worst = tuple(
        WorstError(str(w.direction), w.rms_ratio, w.limit, w.tensor, json.dumps({"params": dict(w.case.params), "seed": w.case.seed}))
        for w in found.worst
    )
    return replace(stub, state=State.PASSED, because="", cases=found.cases, ill=found.ill, left_out=found.left_out, worst=worst)


def _exploring_known(kernel: Kernel, dtype: str, known: KnownFailure) -> Callable[[Entry], Found]:
    def ask(stub: Entry) -> Found:
        if because := kernel.missing():
            return NotRun(stub.item, because)
        found = explore_known(kernel, dtype, known)
        counted = replace(stub, failed=found.failed, passed=found.passed)
        if found.other:
            return replace(counted, because=f"{stub.item}: fails in another way than is known: {found.other}\n{found.replay}")
        if found.failed:
            return replace(counted, state=State.KNOWN_FAILURE, because=f"{known.because}\n{found.said}\n{found.replay}")
        if not found.passed:
            return replace(stub, because=f"{stub.item}: no example of {kernel.name} is one that it concerns, so nothing shows it. Add one.")
        where = f"the known failure {known.cause!r} out of kernel {kernel.name}"
        fixed = f"{stub.item}: fixed? All {found.passed} cases pass. Take {where} in harness/kernels, and say since which version."
        return replace(counted, state=State.FIXED, because=fixed)

    return ask


def _replayed(kernels: tuple[Kernel, ...], door: KernelDoor) -> tuple[Entry, Callable[[Entry], Found]]:
    """Raises HarnessError for a case of no kernel."""
    assert door.case is not None
    asked = door.case
    kernel = next((kernel for kernel in kernels if kernel.name == asked.kernel), None)
    if kernel is None:
        raise HarnessError("--kernel-case", f"no kernel is called {asked.kernel!r}.", did_you_mean(asked.kernel, [k.name for k in kernels]))
    if asked.dtype not in kernel.dtypes:
        raise HarnessError("--kernel-case", f"{kernel.name} has no {asked.dtype!r}.", did_you_mean(asked.dtype, kernel.dtypes))

    def ask(stub: Entry) -> Found:
        if because := kernel.missing():
            return NotRun(stub.item, because)
        try:
            return _told(stub, replay(kernel, [Case(asked.params, asked.dtype, asked.seed)]))
        except ParityError as error:
            return replace(stub, because=str(error))

    return _stub(kernel, asked.dtype, Sort.PARITY), ask


def _checked(check: Check) -> tuple[Entry, Callable[[Entry], Found]]:
    def ask(stub: Entry) -> Found:
        if because := check.missing():
            return NotRun(stub.item, because)
        try:
            check.run()
        except AssertionError as error:
            return replace(stub, because=f"{check.name} ({check.what}): {error}")
        return replace(stub, state=State.PASSED, because="")

    return Entry(f"check {check.name}", Sort.CHECK, check.name, "", "check", check.what, State.FAILED, "it did not end", 0.0), ask


def witness() -> Witnessed:
    """What this process computed on, and with what."""
    hardware = Hardware.CPU
    if not why_no_npu():
        torch: Any = importlib.import_module("torch")
        series = series_of_name(torch.npu.get_device_name(DEVICE))
        if series not in tuple(Hardware):
            raise HarnessError(DEVICE, f"calls itself {torch.npu.get_device_name(DEVICE)!r}, which is of no known series.", "Tell us.")
        hardware = Hardware(series)
    return Witnessed(hardware, _versions(), machine_facts())


def _versions() -> Mapping[str, str]:
    described = stack.describe()
    found = {name: str(version) for name, version in described["versions"].items() if version}
    found |= {name: str(described[name]) for name in ("cann", "driver", "swift_commit") if described[name]}
    found |= {"swift_dirty": "true"} if described["swift_dirty"] else {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | _mindspeed()


def _mindspeed() -> Mapping[str, str]:
    """A checkout of MindSpeed on the path has a commit and no metadata."""
    spec = importlib.util.find_spec("mindspeed")
    commit, dirty = stack.checkout(spec.origin) if spec is not None and spec.origin else (None, None)
    return {"mindspeed_commit": commit, **({"mindspeed_dirty": "true"} if dirty else {})} if commit else {}
