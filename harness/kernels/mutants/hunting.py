"""Each mutant against the questions that reach its line, until one of them is red; what none catches is told from what is equivalent."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HostError
from harness.kernels.mutants.forked import forked
from harness.kernels.mutants.planting import FAMILIES, Mutant, mutant_by_text, mutants_of, plant, source_of
from harness.kernels.mutants.proofs import CURATED, PROOFS
from harness.kernels.mutants.reach import Question, Reach, answer, reach
from harness.kernels.mutants.sameness import LEAST, Sameness, cases_for, compare, fingerprints
from harness.model import Word

# Modules all of whose lines are ours to catch, reached or not; of the others only what is reached.
WHOLE = ("swift.model.npu_patch.model", "swift.sequence_parallel.zigzag_ring_attn_npu")
_SURVEY_S, _LEAST_S, _MOST_S, _SAMENESS_S = 1800.0, 90.0, 900.0, 900.0


class Outcome(Word):
    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"


@dataclass(frozen=True)
class Fate:
    """How a mutant ended: killed `by` a question after `cases`, or why not."""

    mutant: Mutant
    outcome: Outcome
    by: str = ""
    cases: int = 0
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Ground:
    """What the questions reach without any fault; by file the lines that run once, at an import; and the modules that are loaded."""

    questions: tuple[Question, ...]
    reaches: Mapping[str, Reach]
    once: Mapping[str, frozenset[int]]
    loaded: tuple[str, ...]

    def of(self, mutant: Mutant) -> list[Question]:
        """Those that reach the mutant's line, the quickest first; of a line that runs once, those that reach anything of its file."""
        path = str(source_of(mutant.module)[0])
        lines = [(q, self.reaches[q.name].lines.get(path, frozenset[int]())) for q in self.questions]
        once = not mutant.function or mutant.line in self.once.get(path, ())
        met = [q for q, reached in lines if (reached if once else mutant.line in reached)]
        return sorted(met, key=lambda q: (self.reaches[q.name].seconds, q.name))


def survey(questions: Sequence[Question], jobs: int) -> Ground:
    """Each kernel in its first dtype. Raises HostError where a question is red without any fault: nothing would be learned from it."""
    first = {(q.kernel.name if q.kernel else q.name, q.known): q for q in reversed(questions)}
    ended = next(forked([tuple(first.values())], lambda asked: _surveyed(asked, jobs), 1, lambda task: _SURVEY_S))
    if ended.result is None:
        raise HostError("kernel mutants", f"the survey of what kernels reach ended: {ended.died}.", "Run pytest -m kernel_parity.")
    reaches, once, loaded = ended.result
    # Another dtype of a kernel reaches what its first one does.
    reaches |= {q.name: reaches[first[q.kernel.name if q.kernel else q.name, q.known].name] for q in questions}
    red = [f"{name}: {found.said}" for name, found in reaches.items() if found.said]
    if red:
        raise HostError("kernel mutants", f"without any fault {len(red)} questions are red: {red[0]}", "Run pytest -m kernel_parity.")
    return Ground(tuple(questions), reaches, once, loaded)


def _surveyed(questions: tuple[Question, ...], jobs: int) -> tuple[dict[str, Reach], dict[str, frozenset[int]], tuple[str, ...]]:
    """In a process of its own, which first answers one question of a sort, so that its children find everything imported."""
    roots = tuple(str(source_of(module)[0].parent) for module in (*WHOLE, "fla.backends"))

    def traced(question: Question) -> Reach:
        return reach(question, lambda file: file.startswith(roots))

    warm = [traced(question) for question in {question.name.partition(".")[0]: question for question in questions}.values()]
    found: dict[str, Reach] = {}
    for ended in forked(questions, traced, jobs, lambda task: _MOST_S):
        found[ended.task.name] = ended.result or Reach({}, ended.seconds, ended.died)
    again, once = _union(found.values()), _union(warm)
    return found, {file: frozenset(lines - again.get(file, set())) for file, lines in once.items()}, tuple(sys.modules)


def _union(reaches: Iterable[Reach]) -> dict[str, set[int]]:
    lines: dict[str, set[int]] = defaultdict(set)
    for found in reaches:
        for file, ran in found.lines.items():
            lines[file] |= ran
    return lines


def all_mutants(ground: Ground) -> list[Mutant]:
    """Those that the operators make of what is reached, and the curated ones."""
    lines = _union(ground.reaches.values())
    made = [mutant for module in WHOLE for mutant in mutants_of(module)]
    for file, numbers in sorted(lines.items()):
        module = _module(Path(file))
        if module not in WHOLE:
            made += mutants_of(module, numbers)
    for one in CURATED:
        with contextlib.suppress(HostError):  # another version's text: told by the test that holds the list to the installed one
            made.append(mutant_by_text(one.name, one.module, one.kind, one.before, one.after))
    return made


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    start = max(index for index, part in enumerate(parts) if part in FAMILIES and parts[index - 1] not in FAMILIES)
    return ".".join(parts[start:]).removesuffix(".__init__")


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, drawn by `seed`: module after module, each time of another function and kind."""
    by_module: dict[str, list[Mutant]] = defaultdict(list)
    drawn = random.Random(seed)
    for mutant in drawn.sample(list(mutants), len(mutants)):
        by_module[mutant.module].append(mutant)
    for module, found in by_module.items():
        seen: dict[tuple[str, str], int] = defaultdict(int)
        rank: dict[str, int] = {}
        for mutant in found:
            rank[mutant.name] = max(seen["function", mutant.function], seen["kind", mutant.kind])
            seen["function", mutant.function] += 1
            seen["kind", mutant.kind] += 1
        by_module[module] = sorted(found, key=lambda mutant: rank[mutant.name])
    chosen: list[Mutant] = []
    while len(chosen) < count and any(by_module.values()):
        for module in sorted(by_module):
            if by_module[module] and len(chosen) < count and by_module[module][0].compiles:
                chosen.append(by_module[module][0])
            del by_module[module][:1]
    return chosen


def hunt(mutants: Sequence[Mutant], ground: Ground, jobs: int, told: Callable[[Fate], object]) -> list[Fate]:
    """The fate of each, told as it is known. fla's first: they need a process that has not imported fla, ms-swift's go quicker in one that
    has."""
    fates: list[Fate] = []
    _warm(_innocent([name for name in ground.loaded if not _is_under_test(name)]))
    if early := [name for name in sys.modules if _is_under_test(name)]:
        raise HostError("kernel mutants", f"{early[0]} was imported before any fault could be planted.", "Report this.")
    with tempfile.TemporaryDirectory(prefix="kernel-mutants-") as folder:
        for family in ("fla", "swift"):
            mine = [mutant for mutant in mutants if mutant.family == family]
            if family == "swift" and mine:
                _warm(name for name in ground.loaded if name.partition(".")[0] == "fla")
            for fate in hunted(mine, ground, jobs, Path(folder)):
                fates.append(fate)
                told(fate)
    _require_green({fate.by for fate in fates if fate.outcome is Outcome.KILLED}, ground, jobs)
    order = {mutant.name: index for index, mutant in enumerate(mutants)}
    return sorted(fates, key=lambda fate: order[fate.mutant.name])


def _require_green(names: set[str], ground: Ground, jobs: int) -> None:
    """The questions that caught something must be green without any fault, and the survey asked only one dtype of each kernel."""
    asked = [question for question in ground.questions if question.name in names]
    for ended in forked(asked, lambda question: answer(question, quick=False)[0], jobs, lambda task: _MOST_S):
        if said := ended.died or ended.result:
            raise HostError("kernel mutants", f"{ended.task.name} is red without any fault: {said}", "Run pytest -m kernel_parity.")


def _is_under_test(name: str) -> bool:
    return name.partition(".")[0] in FAMILIES


def _innocent(names: Sequence[str]) -> list[str]:
    """Those whose import doesn't import what is under test; asked in a child, where what came along is taken out again each time."""

    def ask(asked: Sequence[str]) -> list[str]:
        found = []
        for name in asked:
            before = set(sys.modules)
            _warm([name])
            if any(_is_under_test(other) for other in sys.modules):
                for other in set(sys.modules) - before:
                    del sys.modules[other]
            else:
                found.append(name)
        return found

    (ended,) = forked([names], ask, 1, lambda task: _SURVEY_S)
    if ended.result is None:
        raise HostError("kernel mutants", f"finding what can be imported beforehand ended: {ended.died}.", "Report this.")
    return ended.result


def _warm(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # one that can't be imported by its name will be imported by whoever needs it
            importlib.import_module(name)


def hunted(mutants: Sequence[Mutant], ground: Ground, jobs: int, folder: Path) -> Iterator[Fate]:
    """The fate of mutants whose modules this process has not imported. `folder` takes their sources."""
    proofs = {proof.name: proof for proof in PROOFS}
    met = {mutant.name: ground.of(mutant) for mutant in mutants}
    alive: list[Mutant] = []
    asked = [mutant for mutant in mutants if met[mutant.name]]
    yield from (Fate(mutant, Outcome.SURVIVED, said="no case reaches this line") for mutant in mutants if not met[mutant.name])

    def deadline_s(mutant: Mutant) -> float:
        return min(_MOST_S, _LEAST_S + 8 * sum(ground.reaches[question.name].seconds for question in met[mutant.name]))

    def chase(mutant: Mutant) -> tuple[str, int, str] | None:
        try:
            plant(mutant.module, mutant.source, folder)
        except HostError as error:
            return "", 0, str(error)
        for question in met[mutant.name]:
            said, cases = answer(question, quick=False)
            if said:
                return question.name, cases, said
        return None

    for ended in forked(asked, chase, jobs, deadline_s):
        if ended.result is not None and not ended.result[0]:
            raise HostError("kernel mutants", f"{ended.task.name} could not be planted: {ended.result[2]}", "Nothing is learned from it.")
        if ended.died:
            yield Fate(ended.task, Outcome.KILLED, met[ended.task.name][0].name, 1, ended.died, ended.seconds)
        elif ended.result is not None:
            yield Fate(ended.task, Outcome.KILLED, *ended.result, ended.seconds)
        elif (proof := proofs.get(ended.task.name)) and (proof.before, proof.after) == (ended.task.before, ended.task.after):
            yield Fate(ended.task, Outcome.EQUIVALENT, said=f"proved: {proof.because}", seconds=ended.seconds)
        else:
            alive.append(ended.task)
    yield from _told_apart(alive, met, jobs, folder)


def _told_apart(alive: Sequence[Mutant], met: Mapping[str, list[Question]], jobs: int, folder: Path) -> Iterator[Fate]:
    """Survivors and what is bit-equal on enough inputs."""
    groups = {tuple(question.name for question in met[mutant.name]): met[mutant.name] for mutant in alive}
    right: dict[tuple[str, ...], list[bytes]] = {}
    for whole in forked(groups, lambda names: list(fingerprints(cases_for(groups[names], LEAST))), jobs, lambda task: _SAMENESS_S):
        right[whole.task] = whole.result or []

    def compared(mutant: Mutant) -> Sameness:
        names = tuple(question.name for question in met[mutant.name])
        plant(mutant.module, mutant.source, folder)
        return compare(cases_for(groups[names], LEAST), right[names])

    for ended in forked(alive, compared, jobs, lambda task: _SAMENESS_S):
        found = ended.result
        if found is None or found.differs:
            why = f"differs within the limits: {found.differs}" if found else f"not told apart from the original: {ended.died}"
            yield Fate(ended.task, Outcome.SURVIVED, said=why, seconds=ended.seconds)
        elif found.compared < LEAST:
            yield Fate(
                ended.task,
                Outcome.SURVIVED,
                said=f"bit-equal, but on {found.compared} inputs only (where no kernel reaches it, on none)",
                seconds=ended.seconds,
            )
        else:
            yield Fate(ended.task, Outcome.EQUIVALENT, said=f"bit-equal on {found.compared} inputs", seconds=ended.seconds)
