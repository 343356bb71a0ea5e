"""The pytest door: suites, options, what a mark means as a test outcome, and the last line that says what was not proved."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from harness.door_progress import LiveProgress
from harness.errors import HarnessError
from harness.host import HostRequest, matrix_file, rehearsal_root
from harness.interrupts import Interrupts
from harness.mark_words import asked_for

if TYPE_CHECKING:
    from harness.session import Session

SUITE_NAMES = ("npu_matrix", "contract", "kernel_parity", "npu_benchmark")
# Those that start ms-swift on this host.
RUNNING = ("npu_matrix", "npu_benchmark")
MARKERS = {
    "npu_matrix": "cells of this host: one item is a (cell, stage)",
    "contract": "every command of every cell, parsed by the installed ms-swift's own argument classes; no model is loaded",
    "kernel_parity": "operators, patches and Triton kernels against plain torch in float64, forward and backward",
    "npu_benchmark": "memory and throughput of cells, against their baselines",
    "swift": "starts or imports the real ms-swift; takes seconds to minutes",
    "alone": "measures time, so it runs beside no other test",
}
SUITES: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
INTERRUPTS: pytest.StashKey[Interrupts] = pytest.StashKey()
OPTIONS = (
    "--hardware", "--weights", "--tier", "--require-npu", "--launcher", "--jobs", "--as-of", "--rehearsal", "--matrix", "--deadline-scale",
    "--device-hours", "--env-retries",
)  # fmt: skip
KERNEL_OPTIONS = ("--quick", "--kernel-case")
# What both suites that start ms-swift heed.
BENCHMARK_OPTIONS = ("--weights", "--launcher", "--rehearsal", "--deadline-scale")
PLACES = ("--hardware", "--require-npu")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("npu matrix", "ms-swift on Ascend NPUs")
    group.addoption("--hardware", default="auto", choices=["auto", "cpu", "sim", "a2", "a3", "a5"], help="where cells run (auto)")
    group.addoption("--weights", default="auto", choices=["auto", "tiny", "real"], help="tiny random models or documented checkpoints")
    group.addoption("--tier", default="nightly", choices=["pr", "nightly", "weekly"], help="run cells of this cost and below (nightly)")
    group.addoption("--require-npu", action="store_true", help="fail at once where no NPU is usable")
    launchers = "how ms-swift is started (cli: as documented; warm: forked, off NPUs only; auto: warm where it can be)"
    group.addoption("--launcher", default="cli", choices=["cli", "warm", "auto"], help=launchers)
    group.addoption("--jobs", type=int, default=None, metavar="N", help="cells at the same time (as many as cores or NPUs allow)")
    group.addoption("--as-of", default=None, metavar="DATE", help="date of the tables (newest evidence's)")
    group.addoption("--rehearsal", default=None, metavar="ROOT", help="take /dev, /usr/local/Ascend and the programs from ROOT")
    group.addoption("--matrix", default=None, metavar="FILE", help="another matrix.yaml")
    hours = "start no cell that would take more than H device-hours in all (matrix.yaml's budget of the tier)"
    group.addoption("--device-hours", type=float, default=None, metavar="H", help=hours)
    again = "run a cell again, N times at most, when a stage fails of its environment (1 on NPUs, 0 elsewhere)"
    group.addoption("--env-retries", type=int, default=None, metavar="N", help=again)
    group.addoption("--deadline-scale", type=float, default=1.0, metavar="X", help="multiply every deadline (slow machines, drills)")
    group.addoption("--repeats", type=int, default=None, metavar="N", help="npu_benchmark: runs of each cell (6)")
    group.addoption("--quick", action="store_true", help="kernel_parity: draw fewer cases")
    group.addoption("--kernel-case", default=None, metavar="JSON", help="kernel_parity: one case, as a failure prints it")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    asked = asked_for(config.option.markexpr or "", SUITE_NAMES, _given(config))
    suites = asked.suites
    _refuse_stray_options(config, suites)
    if not suites:
        return
    if {*RUNNING} & {*suites} and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("-n: cells share devices and cores, so npu_matrix and npu_benchmark run in one process; see --jobs N.")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        files = [str(repository(config) / "suites" / f"{suite}.py") for suite in suites]
        config.args[:] = [*files, *(config.args if config.option.markexpr and asked.others else ())]
    if hasattr(config, "workerinput"):
        suites = tuple(s for s in suites if s not in RUNNING)
    config.stash[SUITES] = suites
    if "kernel_parity" in suites:
        _open_kernels(config)
    if suites != ("kernel_parity",):
        _open(config, runs=bool({*RUNNING} & {*suites}) and not config.option.collectonly)
    if "npu_benchmark" in suites and not config.option.collectonly:
        _open_benchmarks(config)


def _open(config: pytest.Config, runs: bool) -> None:
    """Open the session; where cells will run, find out on what. Raises UsageError, so that nothing is started."""
    # Loaded with every pytest of this environment, so nothing heavy is imported before a suite is asked for.
    from harness.session import Session, one_line

    try:
        session = Session.open(_request(config))
        if runs:
            session.choose_host()
    except (HarnessError, OSError) as error:
        raise pytest.UsageError(one_line(error)) from None
    config.stash[SESSION] = session
    if runs:
        session.watch = LiveProgress(config)
        interrupts = Interrupts(session.hurry)
        interrupts.install()
        config.stash[INTERRUPTS] = interrupts


def _open_benchmarks(config: pytest.Config) -> None:
    from harness.door_benchmark import BENCHMARKS, REPEATS, BenchmarkDoor

    repeats = REPEATS if config.option.repeats is None else config.option.repeats
    try:
        door = config.stash[BENCHMARKS] = BenchmarkDoor(config, config.stash[SESSION], repeats)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(door, "npu_matrix_benchmark")


def _open_kernels(config: pytest.Config) -> None:
    """Say where kernels run. Raises UsageError where that would be anything but what was asked."""
    from harness.door_kernels import DOOR, KernelDoor
    from harness.session import one_line

    try:
        door = config.stash[DOOR] = KernelDoor(config, repository(config))
    except (HarnessError, OSError) as error:
        raise pytest.UsageError(one_line(error)) from None
    config.pluginmanager.register(door, "npu_matrix_kernel_parity")


def repository(config: pytest.Config) -> Path:
    """Where the suites are: the folder pytest was started in, or one above it. pytest's own rootdir may be misled by --rehearsal ROOT."""
    started = config.invocation_params.dir
    return next((p for p in (started, *started.parents) if (p / "suites" / "npu_matrix.py").is_file()), config.rootpath)


def _request(config: pytest.Config) -> HostRequest:
    option, root = config.option, repository(config)
    return HostRequest(
        root=root,
        hardware=option.hardware,
        weights=option.weights,
        tier=option.tier,
        require_npu=option.require_npu,
        launcher=option.launcher,
        jobs=option.jobs,
        as_of=option.as_of,
        rehearsal=rehearsal_root(option.rehearsal, root) if option.rehearsal is not None else None,
        matrix=matrix_file(option.matrix) if option.matrix is not None else None,
        deadline_scale=option.deadline_scale,
        device_hours=option.device_hours,
        env_retries=option.env_retries,
    )


def _given(config: pytest.Config) -> tuple[str, ...]:
    """Suites whose files, or whose folder, pytest was given or was started in."""
    folder = (repository(config) / "suites").resolve()
    paths = [(config.invocation_params.dir / str(arg).split("::")[0]).resolve() for arg in config.args]
    return tuple(s for s in SUITE_NAMES if any(path in (folder, folder / f"{s}.py") for path in paths))


def _refuse_stray_options(config: pytest.Config, suites: tuple[str, ...]) -> None:
    """An option that nothing heeds would let somebody believe that it did. Those of the configuration file or environment are defaults."""
    words = {str(arg).partition("=")[0] for arg in config.invocation_params.args}
    heeding: dict[str, tuple[str, ...]] = dict.fromkeys(OPTIONS, ("npu_matrix",))
    heeding.update(dict.fromkeys(KERNEL_OPTIONS, ("kernel_parity",)))
    heeding.update(dict.fromkeys(BENCHMARK_OPTIONS, RUNNING))
    heeding["--repeats"] = ("npu_benchmark",)
    heeding.update(dict.fromkeys(PLACES, (*RUNNING, "kernel_parity")))
    heeding["--matrix"] = (*RUNNING, "contract")
    stray = [option for option, heeds in heeding.items() if option in words and not set(heeds) & set(suites)]
    if stray:
        which = " or ".join(f"-m {suite}" for suite in heeding[stray[0]])
        raise pytest.UsageError(f"{', '.join(stray)}: without {which} nothing heeds that. Add it, or leave the option out.")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    asked = parent.config.stash.get(SUITES, ())
    if file_path.parent == repository(parent.config) / "suites" and file_path.stem in asked:
        return SuiteFile.from_parent(parent, path=file_path)
    return None


class SuiteFile(pytest.File):
    """A file of suites/: its `items(parent, session)` yields the suite's test items, or collectors of them."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        yield from _load(self.path).items(self, self.config.stash.get(SESSION, None))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"suites_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_collection_finish(session: pytest.Session) -> None:
    ours = session.config.stash.get(SESSION, None)
    if ours is None or session.config.option.collectonly or session.testsfailed:
        return
    try:
        ours.schedule([item.wanted for item in session.items if hasattr(item, "wanted")])
        if "npu_benchmark" in session.config.stash.get(SUITES, ()):
            _select_benchmarks(session)
    except (HarnessError, OSError) as error:
        pytest.exit(f"no cell could be started: {error} [blame environment]", returncode=pytest.ExitCode.TESTS_FAILED)


def _select_benchmarks(session: pytest.Session) -> None:
    from harness.door_benchmark import BENCHMARKS

    session.config.stash[BENCHMARKS].select([item.question for item in session.items if hasattr(item, "question")])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """A stage's duration is the cell's own, not the time that its item waited."""
    outcome: Any = yield
    duration_s = getattr(item, "measured_s", None)
    if call.when == "call" and duration_s is not None:
        outcome.get_result().duration = duration_s


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End the run. The exit status gets worse here, never better: what happened before stays."""
    config = session.config
    ours = config.stash.get(SESSION, None)
    if ours is None or config.option.collectonly:
        return
    interrupts = config.stash.get(INTERRUPTS, None)
    if interrupts is not None:
        interrupts.ending()
    ours.finish()
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return
    if interrupts is not None and interrupts.seen:
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    elif ours.faults or ours.untold:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif exitstatus == pytest.ExitCode.OK and ours.scheduled and not ours.anything_ran:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ours = config.stash.get(SESSION, None)
    if ours is not None:
        for line in ours.summary():
            terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """After pytest's own last line, so that nobody who reads only the end is misled."""
    ours = config.stash.get(SESSION, None)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if ours is not None and reporter is not None:
        for line in ours.last_lines:
            reporter.write_line(line)
    interrupts = config.stash.get(INTERRUPTS, None)
    if interrupts is not None:
        interrupts.restore()
