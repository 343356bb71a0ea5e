"""One harness run: the matrix, the host, the cells that were asked for, their evidence, and the tables afterwards."""

from __future__ import annotations

import getpass
import importlib.util
import math
import os
import platform
import sys
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path

from harness import machine, preflight, report
from harness.errors import HarnessError, HostError
from harness.estimates import Records
from harness.flow import run_cell
from harness.goldens import Goldens
from harness.guardian import sweep
from harness.host import REHEARSAL_STORE, Host, HostRequest
from harness.judge import rejudge
from harness.launch import launch as launch_process
from harness.leases import Held
from harness.matrix import parse_matrix
from harness.matrix_quarantine import in_force, refuse_dates
from harness.model import Cell, Evidence, Hardware, Matrix, Quarantine, Ruling, RulingKind, Run, Stage, Tier, VerdictKind, Weights
from harness.needs import Room
from harness.pool import Job, Pool
from harness.processes import kill_until_gone, members
from harness.progress import Progress
from harness.redact import redact
from harness.redact_patterns import secret_values
from harness.retries import flaky_text, spoiled_before
from harness.rules import rule_for
from harness.run_words import by_stage, counted_as, why_untold
from harness.select import select_cells, stages_in
from harness.sim.build import CACHE_VARIABLE, build
from harness.store import Store, utc_now
from harness.warm import WarmLauncher
from harness.yard import job_of, obstacle, open_pool, refusal, room_of

RUNNABLE = (RulingKind.RUN, RulingKind.EXPECT_FAIL)


@dataclass(frozen=True)
class Wanted:
    """A test item: one stage of one cell."""

    cell: Cell
    stage: Stage


def read_matrix(path: Path) -> Matrix:
    """The matrix in a file. Raises MatrixError (with a line) or HarnessError (no such file)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(str(path), f"can't be read: {error}", "Give --matrix FILE, or run in the repository's root.") from error
    return parse_matrix(text, path.name)


def parse_day(text: str | None) -> date | None:
    """The day of --as-of. Raises HarnessError for what is no date."""
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise HarnessError(f"--as-of {text}", "is no date.", "Write it as 2026-11-30.") from error


def open_store(root: Path, rehearsal: Path | None = None) -> Store:
    """The repository's store, or a rehearsal's own, which lies under its ROOT."""
    if rehearsal is not None:
        return Store(rehearsal / REHEARSAL_STORE, rehearsal / REHEARSAL_STORE / "history", rejudge, rehearsal=True)
    return Store(root, root / ".harness" / "evidence", rejudge)


class Session:
    """The state of one harness run, shared by the items of the pytest door."""

    def __init__(
        self, request: HostRequest, matrix: Matrix, launch: Callable[..., Run] = launch_process, today: date | None = None
    ) -> None:
        self.request, self.matrix, self._today = request, matrix, today
        self.last_lines: list[str] = []
        self.faults: list[str] = []
        self.scheduled: tuple[Wanted, ...] = ()
        self.parsed: set[tuple[str, ...]] = set()
        # Told how far the cells are, a few times a second while an item waits, and None when it waits no longer.
        self.watch: Callable[[Progress | None], object] = lambda progress: None
        self._launch = launch
        self._host: Host | None = None
        self._pool: Pool | None = None
        self._warm: WarmLauncher | None = None
        self._goldens: Goldens | None = None
        self.stop = threading.Event()
        self._kept: list[Evidence] = []
        self._selected: set[tuple[str, Stage]] = set()
        # The nonce of the attempt that items of a stage were told of.
        self._told: dict[tuple[str, Stage], str] = {}
        self._rulings: dict[str, Ruling] = {}
        self._preflight = preflight.Preflight()
        self._marks: Counter[str] = Counter()
        self._notes: list[str] = []
        self._room = Room(0)

    @classmethod
    def open(cls, request: HostRequest, now: Callable[[], datetime] = utc_now) -> Session:
        """Read the matrix. Raises MatrixError with the line of whatever has no meaning or is over, HostError for what isn't built."""
        if request.jobs is not None and request.jobs < 1:
            raise HarnessError(f"--jobs {request.jobs}", "at least one cell must run at a time.", "Give a number from 1.")
        if not (math.isfinite(request.deadline_scale) and request.deadline_scale > 0):
            raise HarnessError(f"--deadline-scale {request.deadline_scale}", "deadlines need a finite factor above 0.", "Give 2 or 0.5.")
        hours = request.device_hours
        if hours is not None and not (math.isfinite(hours) and hours > 0):
            raise HarnessError(f"--device-hours {hours}", "a budget is a finite number of hours above 0.", "Give 8 or 0.5.")
        if request.env_retries is not None and request.env_retries < 0:
            raise HarnessError(f"--env-retries {request.env_retries}", "nothing is run less than once.", "Give a number from 0.")
        parse_day(request.as_of)
        matrix, today = read_matrix(request.matrix or request.root / "matrix.yaml"), now().date()
        refuse_dates(matrix, today=today)
        return cls(request, matrix, today=today)

    @property
    def store(self) -> Store:
        return open_store(self.request.root, self.request.rehearsal)

    @property
    def host(self) -> Host:
        assert self._host is not None, "choose_host comes first"
        return self._host

    def choose_host(self) -> None:
        """Find out where cells run. Raises HostError where that would be anything but what was asked."""
        request = self.request
        choice = machine.choose_hardware(request.hardware, require_npu=request.require_npu, root=request.rehearsal)
        if choice.hardware.is_npu and request.launcher == "warm":
            raise HostError("--launcher warm", "a device's context does not survive a fork.", "Use --launcher cli on an NPU.")
        if request.device_hours is not None and not choice.hardware.is_npu:
            raise HostError("--device-hours", f"nothing on {choice.hardware} takes device-hours.", "Leave it out here.")
        if request.weights == "real" and not choice.hardware.is_npu:
            raise HostError("--weights real", "the documented checkpoints run on an NPU only.", "Use --weights tiny here.")
        own = request.rehearsal / REHEARSAL_STORE if request.rehearsal else request.root / ".harness"
        runs = own / "runs"
        self._notes += [f"swept: {line}" for line in sweep(runs)]
        self.last_lines = [choice.last_line] if choice.last_line else []
        if request.rehearsal:
            self.last_lines.append(f"REHEARSAL: programs and devices came from {request.rehearsal}, proves nothing")
        if choice.hardware is Hardware.SIM:
            os.environ[CACHE_VARIABLE] = str((own / "cache").absolute())
            build()
        self._host = Host(
            hardware=choice.hardware,
            weights=request.weights,
            npu_ids=choice.npu_ids,
            root=request.root,
            runs=runs / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}",
            cache=own / "cache",
            search_path=machine.programs_path(request.rehearsal),
            machine=machine.machine_facts(),
            rehearsal=request.rehearsal,
            deadline_scale=request.deadline_scale,
            swift_cli_dir=_swift_cli_dir(),
            launcher={"auto": "cli" if choice.hardware.is_npu else "warm"}.get(request.launcher, request.launcher),
        )
        if choice.hardware.is_npu:
            self._preflight = preflight.look(self.matrix, request.rehearsal, npu_said=choice.because, clean=cleaner(self._host))
            self._notes += self._preflight.notes
            self._room = room_of(self._host)

    def cells(self) -> tuple[Cell, ...]:
        """The cells of the asked tier: what pytest then selects from."""
        return select_cells(self.matrix, tier=Tier(self.request.tier))

    def stages(self, cell: Cell) -> tuple[Stage, ...]:
        """The stages that the asked tier is about."""
        return stages_in(cell, Tier(self.request.tier))

    def ruling(self, cell: Cell) -> Ruling:
        if cell.id not in self._rulings:
            weights = self.host.weights_for(cell.model)
            rehearsal = self.host.rehearsal is not None
            ruling = rule_for(cell, self.matrix, hardware=self.host.hardware, weights=weights, rehearsal=rehearsal)
            ruling = self._preflight.ruling(cell, ruling)
            if ruling.kind in RUNNABLE and (lacking := obstacle(cell, self.host, self._room)):
                ruling = replace(ruling, kind=RulingKind.NOT_RUNNABLE, because=lacking)
            self._rulings[cell.id] = ruling
        return self._rulings[cell.id]

    def schedule(self, wanted: Sequence[Wanted]) -> None:
        """Start the pool on all that runs here. Cells that one tiny run answers share it."""
        if not wanted:
            return
        self.scheduled = tuple(wanted)
        asked: dict[str, tuple[Cell, list[Stage]]] = {}
        for item in wanted:
            self._selected.add((self._key(item.cell), item.stage))
            if self.ruling(item.cell).kind in RUNNABLE:
                _, stages = asked.setdefault(self._key(item.cell), (item.cell, []))
                if item.stage not in stages:
                    stages.append(item.stage)
        if self.host.hardware is Hardware.SIM or self.host.launcher == "warm":
            self._warm = WarmLauncher(self.host.runs / "warm")
        self._goldens = Goldens(self._warm or self._launch)
        jobs = self._jobs(asked)
        refuse = refusal(self.host, self._room, self._hours)
        given = self.request
        self._pool = open_pool(self._run, self.host, jobs=given.jobs, refuse=refuse, tell=self._notes.append, retries=given.env_retries)
        self._pool.submit(jobs)

    @property
    def _hours(self) -> float | None:
        """The device-hours that this run may take; None without a limit."""
        given = self.request.device_hours
        return given if given is not None else self.matrix.device_hours.get(Tier(self.request.tier))

    def _jobs(self, asked: Mapping[str, tuple[Cell, Sequence[Stage]]]) -> list[Job]:
        """What the pool is to run, with what each is expected to take."""
        newest, _ = self.store.load_all(strict=False)
        records = Records.of(newest, hardware=self.host.hardware, launcher=self.host.launcher)
        return [job_of(key, cell, tuple(stages), self.host, records) for key, (cell, stages) in asked.items()]

    def wait(self, item: Wanted) -> Evidence:
        assert self._pool is not None, "schedule comes first"
        pool = self._pool
        try:
            evidence = pool.wait(self._key(item.cell), item.stage, turn=lambda: self.watch(pool.progress()))
            self._told[self._key(item.cell), item.stage] = evidence.nonce
            return evidence
        finally:
            self.watch(None)

    def is_selected(self, item: Wanted, stage: str) -> bool:
        """Whether an item of this run tells of `stage` of the same cell."""
        return (self._key(item.cell), Stage(stage)) in self._selected

    def is_only_reported(self, evidence: Evidence) -> bool:
        """An unexpected pass decides nothing on other hardware than the limit was recorded on."""
        recorded_on = evidence.ruling.recorded_on
        return evidence.verdict.kind is VerdictKind.FIXED and recorded_on is not None and recorded_on is not evidence.hardware

    def quarantine(self, cell: Cell | None, stage: Stage) -> Quarantine | None:
        """What keeps a failure of this stage from turning the run red."""
        return in_force(self.matrix, cell, stage, self._today) if cell else None

    @property
    def anything_ran(self) -> bool:
        """Whether a process ran for a stage that an item of this run tells of; what only led up to one does not count."""
        return any(e.runs and self._is_told(e) for e in self._kept)

    @property
    def untold(self) -> list[Evidence]:
        """Evidence of this run that is not green and that no item tells of: stages that were run because others needed them, or run
        again after their item was told. What another attempt was made after is no longer what this run found."""
        bad, again = (VerdictKind.FAILED, VerdictKind.FIXED), self._run_again
        left = [e for e in self._kept if e.verdict.kind in bad and (e.nonce, e.stage) not in again and not self.is_only_reported(e)]
        left = [e for e in left if not self.quarantine(self.matrix.cell(e.cell), e.stage)]
        return [e for e in left if not (self._is_told(e) and self._told.get(_asked_as(e), e.nonce) == e.nonce)]

    @property
    def _run_again(self) -> frozenset[tuple[str, str]]:
        """(nonce, stage) of the failures that another attempt followed."""
        return frozenset(one for e in self._kept for one in spoiled_before(e))

    def _held(self) -> Iterator[tuple[Evidence, Quarantine]]:
        """What a quarantine keeps from turning the run red."""
        again = self._run_again
        for e in self._kept:
            held = self.quarantine(self.matrix.cell(e.cell), e.stage)
            if held and e.verdict.kind in (VerdictKind.FAILED, VerdictKind.FIXED) and (e.nonce, e.stage) not in again:
                yield e, held

    def _is_told(self, evidence: Evidence) -> bool:
        return _asked_as(evidence) in self._selected

    def finish(self) -> None:
        """End what still runs, then write the tables from all evidence. A rehearsal writes none.

        Whatever goes wrong becomes a line in `faults`: raised here, it would hide how the run itself ended.
        """
        self.stop.set()
        for end in (self._pool, self._goldens, self._warm):
            if end is not None:
                self._attempt("ending what still runs", end.close)
        if self._kept and self.request.rehearsal is None:
            self._attempt("writing the tables", self._write_tables)

    def _write_tables(self) -> None:
        as_of = parse_day(self.request.as_of)
        written = report.write_report(self.request.root, self.matrix, self.store, as_of)
        self._notes += [f"written: {path.relative_to(self.request.root)}" for path in written]
        self._marks = report.count_marks(self.matrix, self.store, as_of)

    def _attempt(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as fault:  # told, and never green: see `faults`
            blame = "environment" if isinstance(fault, (HarnessError, OSError)) else "harness"
            self.faults.append(f"{what} failed: {one_line(fault)} [blame {blame}]")

    def hurry(self) -> None:
        """Kill what still runs, without the time to end well that it would be given. Returns at once."""
        # First, or a run would be judged by a death that we caused.
        self.stop.set()
        if self._host is not None:
            threading.Thread(target=_kill_runs, args=(self._host.runs,), name="hurry", daemon=True).start()

    def summary(self) -> list[str]:
        """What the terminal shows after the items: verdicts of this run, marks of all evidence, files written."""
        lines = []
        if self._kept:
            again = self._run_again
            verdicts = Counter(counted_as(e, again) for e in self._kept)
            lines.append("stages run: " + ", ".join(f"{count} {kind}" for kind, count in sorted(verdicts.items())))
            lines += [f"  {line}" for line in by_stage(self._kept)]
        if self._marks:
            lines.append("marks: " + ", ".join(f"{count} {kind}" for kind, count in sorted(self._marks.items())))
        if self.parsed:
            distinct = f"{len(self.parsed)} distinct commands (ids and paths aside)"
            lines.append(f"contract: {distinct}, parsed by the ms-swift of {sys.executable}")
        if self._pool is not None and self.host.hardware.is_npu:
            of = f" of {self._hours:g}" if self._hours is not None else ""
            lines.append(f"device-hours: {self._pool.spent_s / 3600:.3f}{of}")
        lines += [f"flaky: {e.cell} {e.stage} {flaky_text(e)}" for e in self._kept if e.facts.get("flaky")]
        lines += [f"not green, but {held}: {e.cell} {e.stage}: {e.verdict.kind}, {e.verdict.because}" for e, held in self._held()]
        told = [f"{why_untold(e, self._is_told(e))}: {e.cell} {e.stage}: {e.verdict.kind}, {e.verdict.because}" for e in self.untold]
        return lines + self._notes + told + self.faults

    def _key(self, cell: Cell) -> str:
        return cell.tiny_key if self.host.weights_for(cell.model) is Weights.TINY else cell.id

    def _run(self, job: Job, held: Held) -> Generator[Evidence, None, None]:
        if self.stop.is_set():
            return
        # The run itself holds the lease's locks too: a killed harness must not give away what a run of it still uses.
        started = partial(self._launch, inherit=held.descriptors)
        yield from run_cell(
            job.cell,
            job.stages,
            matrix=self.matrix,
            host=self.host.lent(held.lease),
            launch=self._warm if self._warm is not None and self.host.launcher == "warm" else started,
            goldens=self._goldens,
            keep=self._keep,
            clean=cleaner(self.host),
            stop=self.stop,
            before=job.before,
        )

    def _keep(self, evidence: Evidence) -> None:
        self.store.save(evidence)
        self._kept.append(evidence)


def one_line(fault: BaseException) -> str:
    """A fault for people. An OSError says where in the harness it came up, since it may be a fault of ours after all."""
    if isinstance(fault, HarnessError):
        return str(fault)
    frames = traceback.extract_tb(fault.__traceback__)
    ours = [f for f in frames if Path(f.filename).parent == Path(__file__).parent] or frames
    where = f" (at {Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    said = f"{fault.strerror}: {fault.filename}" if isinstance(fault, OSError) and fault.filename else str(fault)
    return f"{type(fault).__name__}: {' '.join(said.split())}{where}"


def _asked_as(evidence: Evidence) -> tuple[str, Stage]:
    """What items ask for it by."""
    return (evidence.tiny_key if evidence.weights is Weights.TINY else evidence.cell), evidence.stage


def _kill_runs(runs: Path) -> None:
    nonces = [path.stem.removeprefix("owner-") for path in runs.rglob("owner-*.json")]
    kill_until_gone(lambda: members((), nonces))


def cleaner(host: Host) -> Callable[[str], str]:
    """Takes out of a text what names this host, its user and its folders, and the secrets that its environment holds."""
    return text_cleaner([str(p) for p in (host.runs, host.cache, host.rehearsal, host.root) if p is not None])


def text_cleaner(folders: Sequence[str]) -> Callable[[str], str]:
    """As `cleaner`, for these folders."""
    user, name, home = getpass.getuser(), platform.node(), str(Path.home())
    secrets = secret_values(os.environ)
    return lambda text: redact(text, user=user, host=name, home=home, extra=folders, secrets=secrets)


def _swift_cli_dir() -> str:
    """Where the installed ms-swift keeps its command modules: `accelerate launch` is given a file. Found without importing it."""
    spec = importlib.util.find_spec("swift")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(folders[0]) / "cli") if folders else "swift/cli"
