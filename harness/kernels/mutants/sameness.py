"""Whether a mutant is equivalent: bit-equal on at least a thousand drawn inputs, or proved so in a line (proofs.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, Phase, given, settings

from harness.kernels.kernel import Case, Kernel
from harness.kernels.measure import candidate_answers
from harness.kernels.mutants.reach import Question

LEAST = 1000
# The inputs are shared out between so many of the questions that reach the fault.
_QUESTIONS = 4
# Drawing is slow: beyond so many shapes of a kernel it is the seed of the values that makes inputs differ.
_SHAPES = 200


@dataclass(frozen=True)
class Sameness:
    """`compared` inputs were bit-equal; `differs` is "" or the first input that was not."""

    compared: int
    differs: str = ""


def cases_for(questions: Sequence[Question], least: int = LEAST) -> list[tuple[Kernel, Case]]:
    """At least `least` different inputs of the first of the questions that are kernels: their examples, and drawn ones with many seeds."""
    asked = [question for question in questions if question.kernel is not None and question.known is None][:_QUESTIONS]
    share = -(-least // len(asked)) if asked else 0
    made: list[tuple[Kernel, Case]] = []
    for question in asked:
        assert question.kernel is not None
        params = [*question.kernel.examples, *_drawn(question.kernel, min(share, _SHAPES))]
        made += [(question.kernel, Case(params[seed % len(params)], question.dtype, seed)) for seed in range(share)]
    return made


def _drawn(kernel: Kernel, count: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(params=kernel.params)
    def draw(params: dict[str, object]) -> None:
        found.append(params)

    draw()
    return found


def fingerprints(cases: Sequence[tuple[Kernel, Case]]) -> Iterator[bytes]:
    """A hash of every bit that the candidate gives for each case; a case on which it dies has one too."""
    for kernel, case in cases:
        digest = hashlib.sha256()
        try:
            for (name, direction), value in sorted(candidate_answers(kernel, case).items()):
                bits = value.detach().cpu().contiguous().flatten().view(torch.uint8) if value.numel() else value
                digest.update(f"{name} {direction} {value.dtype} {tuple(value.shape)}".encode() + bits.numpy().tobytes())
        except Exception as error:  # dying is an answer, and must be the same
            digest.update(type(error).__name__.encode())
        yield digest.digest()


def compare(cases: Sequence[tuple[Kernel, Case]], right: Sequence[bytes]) -> Sameness:
    """This process's answers against those of a process without the fault."""
    compared = 0
    for (kernel, case), found, expected in zip(cases, fingerprints(cases), right, strict=False):
        if found != expected:
            return Sameness(compared, f"{kernel.name}-{case.dtype} {dict(case.params)} seed {case.seed}")
        compared += 1
    return Sameness(compared)
