"""The search for a counterexample of one kernel in one dtype: its examples, then what hypothesis draws, shrunk and told as a command."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable

from harness.kernels.kernel import Case, Direction, Figure, Kernel, KnownFailure, Trial, replay_text
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

    `left_out` counts the cases that a known failure concerns: explore_known tries those. `ill` counts the comparisons in ill-conditioned
    cases, which are judged against plain torch in the same dtype and left out of `worst`.
    """

    kernel: str
    dtype: str
    cases: int
    worst: tuple[Worst, ...]
    left_out: int = 0
    ill: int = 0


@dataclass(frozen=True)
class KnownOutcome:
    """How the cases that a known failure concerns ended. `said`: what the first that failed says, `replay` the command that repeats it.

    `other`: what a case says that failed otherwise than by wrong numbers (died, nothing ran, a tensor is missing): no known failure.
    """

    failed: int
    passed: int
    said: str = ""
    replay: str = ""
    other: str = ""


class ParityError(AssertionError):
    """The candidate differs from its golden, did not run, or died. The text names the kernel and ends with the command that repeats it.

    `cases`: how many were tried until then, this one among them.
    """

    def __init__(self, text: str, cases: int = 1) -> None:
        super().__init__(text)
        self.cases = cases


class _Search:
    """Counts and keeps the worst figures while cases come."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.cases = self.left_out = self.ill = 0
        self.worst: dict[Direction, tuple[Figure, Case]] = {}

    def try_case(self, case: Case) -> None:
        """Raises ParityError where the case fails."""
        trial, died = _outcome(self.kernel, case)
        self.cases += 1
        if trial.faults:
            raise ParityError(told(self.kernel, trial), self.cases) from died
        self.ill += sum(figure.ill for figure in trial.figures)
        for figure in (figure for figure in trial.figures if not figure.ill):
            before = self.worst.get(figure.direction)
            if before is None or figure.rms_ratio / figure.limit > before[0].rms_ratio / before[0].limit:
                self.worst[figure.direction] = (figure, case)

    def is_left_out(self, case: Case) -> bool:
        known = self.kernel.known_failure(case) is not None
        self.left_out += known
        return known

    def exploration(self, dtype: str) -> Exploration:
        worst = tuple(Worst(d, f.rms_ratio, f.limit, f.tensor, c) for d, (f, c) in sorted(self.worst.items()))
        return Exploration(self.kernel.name, dtype, self.cases, worst, self.left_out, self.ill)


def explore(kernel: Kernel, dtype: str, *, quick: bool = False, shrink: bool = True) -> Exploration:
    """Try the kernel's examples and then up to `tries` drawn cases, the same ones each time; those of known failures are left out.

    Raises:
        ParityError: of the first example that fails, or of the smallest case that hypothesis found (of the first, without `shrink`).
    """
    search = _Search(kernel)
    for case in (Case(params, dtype) for params in kernel.examples_in(dtype, quick=quick)):
        if not search.is_left_out(case):
            search.try_case(case)
    tries = kernel.quick_tries if quick else kernel.tries
    if tries:

        @settings(
            max_examples=tries,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(params=kernel.params, seed=st.integers(0, 2**16))
        def drawn(params: dict[str, object], seed: int) -> None:
            case = Case(params, dtype, seed)
            assume(not search.is_left_out(case))
            search.try_case(case)

        try:
            drawn()
        except Unsatisfiable:
            if not search.left_out:
                raise
        except Flaky as flaky:
            said = f"{kernel.name} in {dtype} ({kernel.what}): the same case failed and then passed: {str(flaky).splitlines()[0]}"
            raise ParityError(said, search.cases) from flaky
    return search.exploration(dtype)


def explore_known(kernel: Kernel, dtype: str, known: KnownFailure) -> KnownOutcome:
    """Try the examples that a known failure concerns. Whoever declares one gives an example that shows it."""
    concerned = [case for params in kernel.examples if kernel.known_failure(case := Case(params, dtype)) is known]
    trials = [_outcome(kernel, case)[0] for case in concerned]
    failed = [trial for trial in trials if trial.faults]
    if not failed:
        return KnownOutcome(0, len(trials))
    other = next((fault for trial in failed for fault in trial.faults if fault not in _wrong_numbers(trial)), "")
    return KnownOutcome(len(failed), len(trials) - len(failed), failed[0].faults[0], replay_text(kernel.name, failed[0].case), other)


def _wrong_numbers(trial: Trial) -> frozenset[str]:
    """The faults of tensors that were there in their shape, and differ."""
    measured = (figure for figure in trial.figures if figure.single_mean is not None)
    return frozenset(f"{figure.direction} {figure.tensor}: {fault}" for figure in measured for fault in figure.faults)


def replay(kernel: Kernel, cases: Iterable[Case]) -> Exploration:
    """Exactly these cases, of one dtype. Raises ParityError, also for a known failure: who replays wants to see it."""
    search, dtype = _Search(kernel), ""
    for case in cases:
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
