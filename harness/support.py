"""The support table: one mark for every (cell, target hardware), folded from evidence alone.

Bodies of evidence are asked in a fixed order, and the first that decides gives the mark: the target hardware with real weights, then
with tiny ones, the simulated NPU, a plain cpu. A body is what one cell left under one stack; it decides when a required stage failed
or when all of them passed. Only the first can say `verified`, only the second `tiny-npu`: nothing leads there from a sim or a cpu.

What is asked comes from the matrix of today, never from the evidence: a piece of another model, revision, recipe or set of options counts
for nothing, and what a piece found is judged again under the rules as they stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from harness.cell_facts import changes
from harness.errors import EvidenceError
from harness.evidence import MEASURED, UNWITNESSED, day, rank, stack_name, when
from harness.judge import judge_under
from harness.matrix_quarantine import in_force
from harness.model import (
    Algorithm,
    Cell,
    Engine,
    Evidence,
    Hardware,
    Mark,
    MarkKind,
    Matrix,
    Ruling,
    RulingKind,
    Stack,
    Stage,
    Tuner,
    VerdictKind,
    Weights,
)
from harness.retries import flaky_text

RequiredStages = Callable[[Algorithm, Tuner, Engine], tuple[Stage, ...]]
# What the matrix asks of a cell's stage; None: of the cell as a whole.
RulingOf = Callable[[Cell, Stage | None], Ruling]
# Why a pass of the piece's stage would prove nothing about the cell; "" where a proof is built.
GapOf = Callable[[Cell, Evidence], str]

# The weakest decides: the first of these that a required stage shows is the mark.
_WEAKNESSES = (
    (VerdictKind.FAILED, MarkKind.FAILING),
    (VerdictKind.FIXED, MarkKind.FIXED),
    (VerdictKind.KNOWN_FAILURE, MarkKind.KNOWN_FAILURE),
    (VerdictKind.BLOCKED, MarkKind.BLOCKED),
)
# What a quarantine speaks of: nobody waits for these to be mended before it ends.
_HELD = frozenset({MarkKind.FAILING, MarkKind.FIXED})
_PASSES = frozenset({VerdictKind.PASSED, VerdictKind.FIXED})
_SAID = frozenset({VerdictKind.PASSED, *(kind for kind, _ in _WEAKNESSES)})


@dataclass(frozen=True)
class SupportTable:
    """`marks` in the order of the matrix. `later`: pieces from after `as_of`, left out; `orphans`: of cells that the matrix lacks."""

    as_of: date | None
    marks: tuple[Mark, ...]
    evidence: tuple[Evidence, ...]
    later: int
    orphans: tuple[Evidence, ...]


@dataclass(frozen=True)
class _Body:
    """What one cell left with one kind of weights on one hardware under one stack."""

    cell: str
    stack: str
    weights: Weights
    hardware: Hardware
    stages: Mapping[Stage, Evidence]

    @property
    def newest(self) -> date:
        return max(day(evidence) for evidence in self.stages.values())

    @property
    def place(self) -> str:
        return f"{self.hardware}, {self.weights} weights" if self.hardware.is_npu else str(self.hardware)


@dataclass(frozen=True)
class _Answer:
    """What a body says. `kind` is None while it decides nothing; `pieces` holds first what `date` and versions are taken from.

    `measured`: something in it ran and counts; what is only blocked, or about another question, did not.
    """

    body: _Body
    kind: MarkKind | None
    because: str
    pieces: tuple[Evidence, ...]
    measured: bool = True

    @property
    def decides(self) -> bool:
        """Whether it gives the mark wherever it stands. That a stage was blocked says nothing that another place could not say better."""
        return self.kind is not None and self.kind is not MarkKind.BLOCKED

    @property
    def date(self) -> str:
        return str(day(self.pieces[0]))


def support_table(
    matrix: Matrix, evidence: Iterable[Evidence], as_of: date | None, *, required_stages: RequiredStages, ruling: RulingOf, gap: GapOf
) -> SupportTable:
    """The marks of `matrix` on the day `as_of` (default: that of the newest evidence). What is under quarantine on that day is never green.

    A positive mark is dated by the oldest of its required stages: a claim is as old as its oldest proof, and that is what max_age_days
    measures. A negative one is dated by the stage that decides. Raises EvidenceError for evidence of a rehearsal.
    """
    everything = sorted(evidence, key=lambda e: (e.cell, e.stage, e.weights, str(e.hardware), e.stack, e.sha256))
    for piece in everything:
        if piece.rehearsal:
            raise EvidenceError(f"evidence {piece.sha256[:8]} of {piece.cell}", "comes from a rehearsal.", "Report from another store.")
    as_of = as_of or max((day(e) for e in everything), default=None)
    known = tuple(e for e in everything if as_of and day(e) <= as_of)
    known = tuple(_judged(e, cell, ruling) if (cell := matrix.cell(e.cell)) else e for e in known)
    folder = _Folder(matrix, known, as_of, required_stages, ruling, gap)
    claims: dict[tuple[str | None, Hardware | None], list[str]] = defaultdict(list)
    for claim in matrix.claims:
        if claim.says not in claims[claim.cell, claim.target]:
            claims[claim.cell, claim.target].append(claim.says)
    marks = tuple(
        folder.mark(cell, target, "; ".join(claims.get((cell.id, target), ())))
        for cell in matrix.cells
        for target in cell.targets
    )
    cells, tiny = {c.id for c in matrix.cells}, {c.tiny_key for c in matrix.cells}
    orphans = tuple(e for e in known if e.cell not in cells and not (e.weights is Weights.TINY and e.tiny_key in tiny))
    return SupportTable(as_of, marks, known, len(everything) - len(known), orphans)


def worked_on(evidence: Evidence) -> Hardware:
    """Where the work was done: as witnessed, or as asked for where nothing was witnessed. The stand-in torch_npu makes no NPU."""
    hardware = evidence.hardware or evidence.asked
    simulated = any("+sim" in version for name, version in evidence.versions.items() if name.replace("-", "_") == "torch_npu")
    return Hardware.SIM if hardware.is_npu and simulated else hardware


class _Folder:
    """The evidence of one table, indexed by what it can answer."""

    def __init__(
        self,
        matrix: Matrix,
        evidence: Iterable[Evidence],
        as_of: date | None,
        required_stages: RequiredStages,
        ruling: RulingOf,
        gap: GapOf,
    ) -> None:
        self._matrix, self._ruling, self._gap = matrix, ruling, gap
        self._stacks, self._as_of, self._required = matrix.stacks, as_of, required_stages
        self._names: dict[frozenset[tuple[str, str]], str] = {}
        found: dict[tuple[Weights, str, Hardware], dict[tuple[str, str], dict[Stage, Evidence]]] = defaultdict(lambda: defaultdict(dict))
        for piece in evidence:
            if piece.verdict.kind not in _SAID or (piece.verdict.kind in _PASSES and piece.hardware is None):
                continue
            stack = self._stack_of(piece)
            for answers in _answered_keys(piece, matrix):
                stages = found[piece.weights, answers, worked_on(piece)][piece.cell, stack]
                if piece.stage not in stages or rank(stages[piece.stage]) < rank(piece):
                    stages[piece.stage] = piece
        for bodies in found.values():
            _drop_outlived_crashes(bodies)
        self._bodies = {
            key: tuple(_Body(cell, stack, key[0], key[2], stages) for (cell, stack), stages in sorted(bodies.items()) if stages)
            for key, bodies in found.items()
        }

    def _stack_of(self, piece: Evidence) -> str:
        """Named once for all pieces of the same versions: there are a few of those among any number of pieces."""
        if not piece.hardware:
            return UNWITNESSED
        versions = frozenset(piece.versions.items())
        if versions not in self._names:
            self._names[versions] = stack_name(piece.versions, self._stacks)
        return self._names[versions]

    def mark(self, cell: Cell, target: Hardware, claimed: str) -> Mark:
        ruling = self._ruling(cell, None)
        if ruling.kind is RulingKind.EXCLUDED:
            return Mark(cell.id, target, MarkKind.EXCLUDED, ruling.because, claimed, None, "", {}, ())
        answers = list(self._answers(cell, target))
        chosen = next((a for a in answers if a.decides), None) or next((a for a in answers if a.kind is not None), None)
        if chosen is None or chosen.kind is None:
            partial = answers[0] if answers else None
            because = partial.because if partial else _not_run(cell, target, ruling)
            hashes = tuple(e.sha256 for e in partial.pieces) if partial else ()
            return Mark(cell.id, target, MarkKind.UNTESTED, because, claimed, None, "", {}, hashes, _beside(answers[1:]))
        first = chosen.pieces[0]
        order = list(Stage)
        pieces = sorted(chosen.pieces, key=lambda e: order.index(e.stage))
        return Mark(
            cell=cell.id,
            target=target,
            kind=chosen.kind,
            because=chosen.because,
            claimed=claimed,
            hardware=chosen.body.hardware,
            date=chosen.date,
            versions=first.versions,
            evidence=tuple(e.sha256 for e in pieces),
            beside=_beside([a for a in answers if a is not chosen]),
        )

    def _answers(self, cell: Cell, target: Hardware) -> Iterator[_Answer]:
        """What each place says of the cell, the most telling place first; of a place's bodies the one that counts (see `_weight`)."""
        for hardware in dict.fromkeys((target, Hardware.SIM, Hardware.CPU)):
            for weights, key in ((Weights.REAL, cell.id), (Weights.TINY, cell.tiny_key)):
                bodies = self._bodies.get((weights, key, hardware), ())
                answers = [a for a in (self._fold(cell, target, body) for body in bodies) if a is not None]
                if answers:
                    yield max(answers, key=lambda a: self._weight(cell, a))

    def _weight(self, cell: Cell, answer: _Answer) -> tuple[bool, bool, bool, bool, int, date, str]:
        """Deciding before partial (a partial run erases no mark), measured before blocked, the cell's own run before a relative's, then a
        crash that nothing has outlived, then a declared stack before another one; then the newest."""
        body = answer.body
        standing = 2 if body.stack == UNWITNESSED else 1 if body.stack in self._stacks else 0
        return (answer.decides, answer.measured, answer.kind is not None, body.cell == cell.id, standing, body.newest, body.stack)

    def _fold(self, cell: Cell, target: Hardware, body: _Body) -> _Answer | None:
        required = self._required(cell.algorithm, cell.tuner, cell.engine)
        found = {stage: piece for stage in required if (piece := body.stages.get(stage)) is not None}
        if not found:
            return None
        runner = f"; ran as {body.cell}, whose tiny model stands for the family" if body.cell != cell.id else ""
        against = {stage: why for stage, piece in found.items() if (why := self._not_counted(piece, cell))}
        stages = {stage: _judged(piece, cell, self._ruling) for stage, piece in found.items() if stage not in against}
        other = _about_another(against)
        if not stages:
            return _Answer(body, None, f"{other}{runner}", tuple(found.values()), measured=False)
        measured = any(piece.verdict.kind in MEASURED for piece in stages.values())
        for verdict, kind in _WEAKNESSES:
            weak = next((p for p in stages.values() if p.verdict.kind is verdict), None)
            if weak is None or (kind is MarkKind.BLOCKED and not _is_blocked(weak, stages, required)):
                continue
            rest = tuple(p for p in stages.values() if p is not weak)
            held = in_force(self._matrix, cell, weak.stage, self._as_of) if kind in _HELD else None
            because = _because(weak, body) + (f"; {held}" if held else "")
            return _Answer(body, kind, because + runner, (weak, *rest), measured)
        passed = {stage: piece for stage, piece in stages.items() if piece.verdict.kind is VerdictKind.PASSED}
        pieces = tuple(sorted(passed.values(), key=lambda e: (day(e), e.sha256)))
        missing = [str(stage) for stage in required if stage not in passed and stage not in against]
        if missing or other or not required:
            done = [f"{', '.join(passed)} passed on {body.place}"] if passed else []
            lacking = [f"{', '.join(missing)} not run"] if missing else []
            because = "; ".join([*done, *lacking, *([other] if other else []), *_flaky(pieces)])
            return _Answer(body, None, f"{because}{runner}", pieces or tuple(stages.values()), measured)
        kind, because = self._positive(cell, target, body, pieces)
        if held := next(filter(None, (in_force(self._matrix, cell, stage, self._as_of) for stage in required)), None):
            return _Answer(body, None, f"{because}, but is {held}{runner}", pieces)
        return _Answer(body, kind, "; ".join([because, *_flaky(pieces)]) + runner, pieces)

    def _not_counted(self, piece: Evidence, cell: Cell) -> str:
        """Why the piece says nothing about the cell of today; "" where it does."""
        gap = self._gap(cell, piece) if piece.verdict.kind in _PASSES else ""
        return ", ".join([*changes(piece, cell, self._matrix), *([gap] if gap else [])])

    def _positive(self, cell: Cell, target: Hardware, body: _Body, pieces: tuple[Evidence, ...]) -> tuple[MarkKind, str]:
        names = ", ".join(str(e.stage) for e in sorted(pieces, key=lambda e: list(Stage).index(e.stage)))
        because = f"{names} passed on {body.place}"
        if not (body.hardware is target and target.is_npu):
            return (MarkKind.SIMULATED if body.hardware is Hardware.SIM else MarkKind.WIRED), because
        if body.weights is Weights.TINY:
            return MarkKind.TINY_NPU, because
        if cell.model.revision is None:
            return MarkKind.STALE, f"{because}, but matrix.yaml pins no revision of {cell.model.id}"
        stack = self._stacks.get(body.stack)
        if stack is None:
            return MarkKind.STALE, f"{because}, but {body.stack} is no declared stack"
        return self._aged(stack, pieces[0], because)

    def _aged(self, stack: Stack, oldest: Evidence, because: str) -> tuple[MarkKind, str]:
        assert self._as_of is not None  # there is evidence, so there is a newest day
        age_days = (self._as_of - day(oldest)).days
        if age_days > stack.max_age_days:
            return MarkKind.STALE, f"{because}, but {oldest.stage} is {age_days} days old and {stack.key} allows {stack.max_age_days}"
        return MarkKind.VERIFIED, because


def _judged(piece: Evidence, cell: Cell, ruling: RulingOf) -> Evidence:
    """The piece with what the matrix asks of the cell's stage now, and the verdict that its findings have under that."""
    if piece.verdict.kind not in MEASURED:
        return piece
    asked = ruling(cell, piece.stage)
    if asked == piece.ruling:
        return piece
    verdict = judge_under(piece, asked)
    return replace(piece, ruling=asked, verdict=verdict) if verdict.kind in MEASURED else piece


def _answered_keys(piece: Evidence, matrix: Matrix) -> tuple[str, ...]:
    """The cell, or for tiny weights the tiny models, that a piece may answer for; the key that the matrix has given it since is among them,
    so that the mark can say so."""
    if piece.weights is Weights.REAL:
        return (piece.cell,)
    own = matrix.cell(piece.cell)
    return tuple(dict.fromkeys((piece.tiny_key, own.tiny_key if own else piece.tiny_key)))


def _about_another(against: Mapping[Stage, str]) -> str:
    """What does not count and why, stages of one reason together."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for stage, why in against.items():
        reasons[why].append(str(stage))
    return "; ".join(f"evidence of {', '.join(names)} does not count: {why}" for why, names in reasons.items())


def _drop_outlived_crashes(bodies: dict[tuple[str, str], dict[Stage, Evidence]]) -> None:
    """What died before it could be witnessed belongs to no stack, so any later run of its stage outlives it."""
    for (cell, stack), stages in bodies.items():
        if stack != UNWITNESSED:
            continue
        for stage, crash in list(stages.items()):
            others = [s[stage] for (c, name), s in bodies.items() if c == cell and name != UNWITNESSED and stage in s]
            if any(when(other) > when(crash) for other in others):
                del stages[stage]


def _is_blocked(blocked: Evidence, stages: Mapping[Stage, Evidence], required: tuple[Stage, ...]) -> bool:
    """Whether what blocked the stage still stands: once all stages before it passed, it is merely not run."""
    before = required[: required.index(blocked.stage)]
    return not before or not all(s in stages and stages[s].verdict.kind is VerdictKind.PASSED for s in before)


def _not_run(cell: Cell, target: Hardware, ruling: Ruling) -> str:
    unknown = ["revision"] if cell.model.revision is None else []
    if cell.devices is None and cell.model.devices.get(target) is None:
        unknown.append("number of NPUs")
    words = f"not run (unknown: {', '.join(unknown)})" if unknown else "not run"
    return f"{words}; documented limit: {ruling.because}" if ruling.kind is RulingKind.EXPECT_FAIL else words


def _because(weak: Evidence, body: _Body) -> str:
    verdict = weak.verdict
    place = body.place if weak.hardware else f"{body.place} as asked, nothing was witnessed"
    match verdict.kind:
        case VerdictKind.FAILED:
            return f"{weak.stage} failed on {place}: {verdict.because} ({verdict.cause or 'no cause'}, blame: {verdict.blame})"
        case VerdictKind.BLOCKED:
            return f"{weak.stage} blocked on {place}: {verdict.because}"
        case _:
            issue = f" ({weak.ruling.issue})" if weak.ruling.issue else ""
            return f"{weak.stage} on {place}: {verdict.because}{issue}"


def _flaky(pieces: Iterable[Evidence]) -> tuple[str, ...]:
    told = [f"{piece.stage} {text}" for piece in pieces if (text := flaky_text(piece))]
    return (f"flaky: {', '.join(told)}",) if told else ()


def _beside(answers: Iterable[_Answer]) -> str:
    return "; ".join(f"{a.body.place}: {a.kind} {a.date}" if a.kind else f"{a.body.place}: {a.because}" for a in answers)
