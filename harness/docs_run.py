"""Run the blocks of a page in order, as its reader would: each in the state that those above left, each judged by what it is for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from harness.commands_serve import conversation
from harness.docs_run_plan import Block, Fate, Kind, PagePlan, Unit
from harness.docs_run_proof import Judged, judge_end, judge_ready, judge_unit, weights_under
from harness.docs_run_shell import PageShell, Served
from harness.logs import read_tail
from harness.model import Word

EXCERPT_LINES, EXCERPT_WIDTH = 15, 240


class Result(Word):
    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"
    NOT_RUNNABLE = "not runnable here"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class UnitResult:
    """One statement. `excerpt`: the end of its log, of a failure only."""

    line: int
    kind: Kind
    judged: Judged
    duration_s: float
    excerpt: str = ""


@dataclass(frozen=True)
class BlockResult:
    block: Block
    result: Result
    because: str = ""
    units: tuple[UnitResult, ...] = ()


Tell = Callable[[Block, UnitResult], object]


def run_page(plan: PagePlan, shell: PageShell, question: str, tell: Tell) -> tuple[BlockResult, ...]:
    """Every block's result, in page order. Whatever happens, nothing that was started is left.

    `question`: what an inference that converses is asked. `tell` hears of each statement as it is judged. An interrupt ends the block that
    it meets as INTERRUPTED, and those after it are left out.
    """
    run = _Run(plan, shell, question, tell)
    try:
        for block in plan.blocks:
            run.results[block.number] = run.block(block)
    except KeyboardInterrupt:
        run.results[run.current.number] = BlockResult(run.current, Result.INTERRUPTED, "a person or a signal ended it", tuple(run.done))
    finally:
        shell.close()
    return tuple(run.results.values())


def succeeded(results: tuple[BlockResult, ...]) -> bool:
    """Whether nothing failed and something passed that proves anything: variables alone prove nothing."""
    ran = [unit for result in results if result.result is Result.PASSED for unit in result.units if unit.kind is not Kind.SET]
    return bool(ran) and not any(result.result in (Result.FAILED, Result.INTERRUPTED) for result in results)


@dataclass
class _Run:
    """Mutable: what has been run so far, and the servers that run beside it."""

    plan: PagePlan
    shell: PageShell
    question: str
    tell: Tell
    results: dict[int, BlockResult] = field(default_factory=dict)
    serving: dict[int, list[Served]] = field(default_factory=dict)
    done: list[UnitResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.current = self.plan.blocks[0]
        # A server is kept until the last block that takes something from its own has run.
        self.last_use = {block.number: block.number for block in self.plan.blocks}
        for block in self.plan.blocks:
            for number, _ in block.needs if block.fate is Fate.RUN else ():
                self.last_use[number] = block.number

    def block(self, block: Block) -> BlockResult:
        self.current, self.done = block, []
        if block.fate is not Fate.RUN:
            return BlockResult(block, Result.BLOCKED if block.fate is Fate.BLOCKED else Result.NOT_RUNNABLE, block.because)
        because = next((f"takes {what} from {_failed_one(self.results[i])}" for i, what in block.needs if self._failed(i)), "")
        if because:
            result = BlockResult(block, Result.BLOCKED, because)
        else:
            for unit in block.units:
                self.add(block, self.unit(block, unit))
                if not self.done[-1].judged.ok:
                    break
            result = _as_result(block, self.done)
        self.results[block.number] = result
        self.end_servers(block)
        return self.results[block.number]

    def add(self, block: Block, result: UnitResult) -> None:
        self.done.append(result)
        self.tell(block, result)

    def unit(self, block: Block, unit: Unit) -> UnitResult:
        began = time.monotonic()
        if unit.kind is Kind.DEPLOY:
            served = self.shell.serve(unit)
            if served.fault is not None:
                raise served.fault
            judged = judge_ready(served.report, served.run)
            self.serving.setdefault(block.number, []).append(served)
            return self._result(unit, judged, began)
        before = weights_under(self.shell.scratch.page)
        stdin = conversation((self.question,)) if unit.converses else None
        run = self.shell.run(unit, stdin)
        judged = judge_unit(unit, run, self.shell.scratch.page, before)
        if judged.ok and (empty := [name for name in unit.fills if self.shell.is_empty(name)]):
            judged = Judged(False, f"exit code 0, but ${empty[0]} is empty: what was to fill it printed nothing")
        return self._result(unit, judged, began)

    def _result(self, unit: Unit, judged: Judged, began: float) -> UnitResult:
        excerpt = ""
        if not judged.ok:
            log = read_tail(self.shell.log_of(unit))
            lines = log.replace("\r", "\n").rstrip().split("\n")[-EXCERPT_LINES:]
            excerpt = "\n".join(line[:EXCERPT_WIDTH] for line in lines)
            if re.search(r"Permission denied|PermissionError", log):
                judged = replace(judged, said=f"{judged.said} (only files of the scratch folder, its HOME and TMPDIR may be changed)")
        return UnitResult(unit.line, unit.kind, judged, time.monotonic() - began, excerpt)

    def end_servers(self, after: Block) -> None:
        """End each server that nothing after this block asks. One that leaves something fails its own block."""
        for number in [number for number in self.serving if self.last_use[number] <= after.number]:
            for served in self.serving.pop(number):
                began = time.monotonic()
                run = self.shell.end(served)
                own = self.results[number]
                if own.result is Result.FAILED:
                    continue  # it never was ready, which has been told
                ended = self._result(served.unit, judge_end(run, self.shell.port_left(served.unit.port)), began)
                units = (*own.units, ended)
                self.results[number] = _as_result(own.block, units)
                self.tell(own.block, ended)

    def _failed(self, number: int) -> bool:
        return self.results[number].result is not Result.PASSED


def _failed_one(result: BlockResult) -> str:
    return f"the block at line {result.block.line}, which {'failed' if result.result is Result.FAILED else 'was not run'}"


def _as_result(block: Block, units: tuple[UnitResult, ...] | list[UnitResult]) -> BlockResult:
    failed = next((unit for unit in units if not unit.judged.ok), None)
    because = f"line {failed.line}: {failed.judged.said}" if failed else ""
    return BlockResult(block, Result.FAILED if failed else Result.PASSED, because, tuple(units))
