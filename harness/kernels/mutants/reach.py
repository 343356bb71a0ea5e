"""Which question reaches which lines of the code under test, how long it takes, and whether it holds without any fault."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from harness.kernels.checks import Check
from harness.kernels.explore import ParityError, explore, explore_known
from harness.kernels.kernel import Case, Kernel, KnownFailure


@dataclass(frozen=True)
class Question:
    """A kernel in one dtype, one of its known failures, or a check: what a fault must not get past."""

    kernel: Kernel | None
    dtype: str = ""
    known: KnownFailure | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        if self.kernel is None:
            return f"check {self.check.name}" if self.check else ""
        return f"{self.kernel.name}-{self.dtype}" + (f" known: {self.known.cause}" if self.known else "")


@dataclass(frozen=True)
class Reach:
    """`lines`: by file, those that ran. `said`: "" or how the question fails without any fault."""

    lines: Mapping[str, frozenset[int]]
    seconds: float
    said: str


def questions(kernels: tuple[Kernel, ...], checks: tuple[Check, ...]) -> list[Question]:
    """Everything that the suite asks on this host."""
    made = []
    for kernel in (kernel for kernel in kernels if not kernel.missing()):
        made += [Question(kernel, dtype) for dtype in kernel.dtypes]
        for known in kernel.known:
            concerned = [d for d in kernel.dtypes if any(known.concerns(Case(params, d)) for params in kernel.examples)]
            made += [Question(kernel, dtype, known) for dtype in concerned]
    return made + [Question(None, check=check) for check in checks if not check.missing()]


def answer(question: Question, *, quick: bool) -> tuple[str, int]:
    """("" or why the suite would be red, cases tried until it was)."""
    if question.check is not None:
        try:
            question.check.run()
        except Exception as error:  # a check that dies is as red as one that says no
            return f"{type(error).__name__}: {error}".partition("\n")[0], 1
        return "", 1
    assert question.kernel is not None
    if question.known is not None:
        found = explore_known(question.kernel, question.dtype, question.known)
        return found.other or ("" if found.failed else "the known failure is gone"), found.failed + found.passed
    try:
        return "", explore(question.kernel, question.dtype, quick=quick, shrink=False).cases
    except ParityError as error:
        lines = str(error).splitlines()
        return lines[min(1, len(lines) - 1)].strip(), error.cases


def reach(question: Question, is_watched: Callable[[str], bool]) -> Reach:
    """Answers the question without any fault, in this process, and tells what it ran of the files that `is_watched`."""
    seen: dict[str, set[int]] = {}
    watched: dict[CodeType, set[int] | None] = {}

    def on_call(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code not in watched:
            watched[code] = seen.setdefault(code.co_filename, set()) if is_watched(code.co_filename) else None
        lines = watched[code]
        if lines is None:
            return None
        lines.add(frame.f_lineno)

        def on_line(frame: FrameType, event: str, argument: object) -> Any:
            lines.add(frame.f_lineno)
            return on_line

        return on_line

    began = time.monotonic()
    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        said, _ = answer(question, quick=True)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    seconds = time.monotonic() - began
    return Reach({file: frozenset(lines) for file, lines in seen.items()}, seconds, said)
