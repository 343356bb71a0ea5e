"""The search for a counterexample of one kernel in one dtype: its examples, then what hypothesis draws, shrunk and told as a command."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.kernels.kernel import Case, Direction, Figure, Kernel, Trial, replay_text
from harness.kernels.measure import run_trial


@dataclass(frozen=True)
class Worst:
    """The largest error of one direction over all cases: `rms_ratio` against `limit`, in `tensor` of `case`."""

    direction: Direction
    rms_ratio: float
    limit: float
    tensor: str
    case: Case


@dataclass(frozen=True)
class Exploration:
    """What the cases of (kernel, dtype) gave.

    `known` counts the cases that failed as a known failure says, `fixed` those that passed nevertheless, `ill` the comparisons in
    ill-conditioned cases, which are judged against plain torch in the same dtype and left out of `worst`.
    """

    kernel: str
    dtype: str
    cases: int
    worst: tuple[Worst, ...]
    known: int = 0
    fixed: int = 0
    ill: int = 0


class ParityError(AssertionError):
    """The candidate differs from its golden, did not run, or died. The text names the kernel and ends with the command that repeats it."""


class _Search:
    """Counts and keeps the worst figures while cases come."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.cases = self.known = self.fixed = self.ill = 0
        self.worst: dict[Direction, tuple[Figure, Case]] = {}

    def try_case(self, case: Case) -> None:
        """Raises ParityError, unless the case is a known failure and fails."""
        known = self.kernel.known_failure(case)
        trial, died = _outcome(self.kernel, case)
        self.cases += 1
        if known is not None:
            self.known, self.fixed = self.known + bool(trial.faults), self.fixed + (not trial.faults)
            return
        if trial.faults:
            raise ParityError(told(self.kernel, trial)) from died
        self.ill += sum(figure.ill for figure in trial.figures)
        for figure in (figure for figure in trial.figures if not figure.ill):
            before = self.worst.get(figure.direction)
            if before is None or figure.rms_ratio / figure.limit > before[0].rms_ratio / before[0].limit:
                self.worst[figure.direction] = (figure, case)

    def exploration(self, dtype: str) -> Exploration:
        worst = tuple(Worst(d, f.rms_ratio, f.limit, f.tensor, c) for d, (f, c) in sorted(self.worst.items()))
        return Exploration(self.kernel.name, dtype, self.cases, worst, self.known, self.fixed, self.ill)


def explore(kernel: Kernel, dtype: str, *, quick: bool = False) -> Exploration:
    """Try the kernel's examples and then up to `tries` drawn cases, the same ones each time.

    Raises:
        ParityError: of the first example that fails, or of the smallest case that hypothesis found.
    """
    search = _Search(kernel)
    for params in kernel.examples:
        search.try_case(Case(params, dtype))
    tries = kernel.quick_tries if quick else kernel.tries
    if tries:

        @settings(
            max_examples=tries,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(params=kernel.params, seed=st.integers(0, 2**16))
        def drawn(params: dict[str, object], seed: int) -> None:
            search.try_case(Case(params, dtype, seed))

        drawn()
    return search.exploration(dtype)


def replay(kernel: Kernel, cases: Iterable[Case]) -> Exploration:
    """Exactly these cases, of one dtype. Raises ParityError, also for a known failure: who replays wants to see it."""
    search, dtype = _Search(kernel), ""
    for case in cases:
        trial, died = _outcome(kernel, case)
        if trial.faults:
            raise ParityError(told(kernel, trial)) from died
        search.try_case(case)
        dtype = case.dtype
    return search.exploration(dtype)


def _outcome(kernel: Kernel, case: Case) -> tuple[Trial, Exception | None]:
    try:
        return run_trial(kernel, case), None
    except Exception as died:  # whatever a kernel under test raises is its fault, told with the case
        frame = traceback.extract_tb(died.__traceback__)[-1]
        where = f"{frame.filename.rsplit('site-packages/', 1)[-1]}:{frame.lineno}"
        said = str(died).splitlines()
        return Trial(case, (), {}, (f"{type(died).__name__} at {where}: {said[0] if said else ''}",)), died


def told(kernel: Kernel, trial: Trial) -> str:
    ran = ", ".join(f"{name} {count}" for name, count in sorted(trial.ran.items())) or "nothing"
    lines = [f"{kernel.name} in {trial.case.dtype} ({kernel.what}):"]
    lines += [f"  {fault}" for fault in trial.faults]
    lines += [f"  ran: {ran}", f"  case: {dict(trial.case.params)}, seed {trial.case.seed}", f"  {replay_text(kernel.name, trial.case)}"]
    return "\n".join(lines)
