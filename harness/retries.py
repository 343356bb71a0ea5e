"""Another attempt at a cell that its environment spoiled: when one is worth its time, and what evidence says of the attempts before it.

An attempt is a whole cell from its training on, with a work folder, nonces and ports of its own. Each leaves its own evidence: the newest
of a key stays, the history keeps all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.causes import CAUSES
from harness.model import Blame, Evidence, Stage, VerdictKind

PASSES = frozenset({VerdictKind.PASSED, VerdictKind.FIXED})
# Beside what the table blames on the environment: device memory, where another process holds it (see its row).
_SOMETIMES = frozenset({"mem.npu_oom"})
# A full disk would only be filled further, and what a proof found was not said by the environment.
_NEVER = ("ckpt.save", "proof.")


@dataclass(frozen=True)
class Attempt:
    """An earlier attempt at the same cell, in the same run: its `nonce`, and the stage and the cause at which it ended."""

    nonce: str
    stage: Stage
    cause: str


def is_worth_another(evidence: Evidence) -> bool:
    """Whether the stage failed of nothing but its environment."""
    verdict = evidence.verdict
    return verdict.kind is VerdictKind.FAILED and verdict.blame is Blame.ENVIRONMENT and may_be_retried(verdict.cause)


def may_be_retried(cause: str) -> bool:
    """Whether a failure of that cause can be one that is run again."""
    blame, _ = CAUSES.get(cause, (Blame.UNKNOWN, ""))
    return (blame is Blame.ENVIRONMENT or cause in _SOMETIMES) and not cause.startswith(_NEVER)


def attempt_at(evidence: Evidence) -> Attempt:
    return Attempt(evidence.nonce, evidence.stage, evidence.verdict.cause)


def as_attempt(evidence: Evidence, before: Sequence[Attempt]) -> Evidence:
    """`evidence` with the facts of its attempt. A pass of a stage that failed before is flaky; the stages around it are not."""
    told = [{"nonce": one.nonce, "stage": str(one.stage), "cause": one.cause} for one in before]
    facts = {**evidence.facts, "attempt": len(before) + 1, "attempts_before": told}
    if _is_flaky(evidence, told):
        facts["flaky"] = True
    return replace(evidence, facts=facts)


def attempt_of(evidence: Evidence) -> int:
    """Which attempt of its run this is, from 1; 1 where it doesn't say."""
    found = evidence.facts.get("attempt", 1)
    return found if isinstance(found, int) else 1


def spoiled_before(evidence: Evidence) -> frozenset[tuple[str, str]]:
    """(nonce, stage) of the failures that this attempt was made after; only evidence that agrees with itself is asked."""
    return frozenset((str(one["nonce"]), str(one["stage"])) for one in _before(evidence))


def flaky_text(evidence: Evidence) -> str:
    """`passed at attempt 2 after comm.port_in_use (HCCL, master or service port taken)`; "" for what is not flaky."""
    if not evidence.facts.get("flaky"):
        return ""
    told = ", ".join(f"{cause} ({CAUSES[cause][1]})" for cause in _causes_before(evidence))
    return f"passed at attempt {attempt_of(evidence)} after {told}"


def attempt_contradictions(evidence: Evidence) -> Iterator[str]:
    """What the facts of an attempt say that can't be, a sentence each."""
    attempt, before = evidence.facts.get("attempt", 1), _before(evidence)
    if type(attempt) is not int or attempt < 1 or len(before) != attempt - 1:
        yield f"it says attempt {attempt!r}, and tells of {len(before)} before it"
    nonces = [evidence.nonce]
    for one in before:
        if not _is_attempt(one):
            yield f"{one!r} is no attempt (nonce, stage, cause)"
            return
        if not may_be_retried(str(one["cause"])):
            yield f"it was run again after {one['cause']}, which is no cause of the environment that a run is repeated for"
        nonces.append(str(one["nonce"]))
    if len(set(nonces)) != len(nonces):
        yield "two of its attempts have one nonce"
    if evidence.facts.get("flaky", False) is not _is_flaky(evidence, before):
        yield f"it says flaky: {evidence.facts.get('flaky', False)!r}, but its attempts say otherwise"


def _causes_before(evidence: Evidence) -> list[str]:
    """Of the same stage, each once; only evidence that agrees with itself is asked."""
    return list(dict.fromkeys(str(one["cause"]) for one in _before(evidence) if one["stage"] == evidence.stage))


def _before(evidence: Evidence) -> list[Any]:
    found = evidence.facts.get("attempts_before", [])
    return found if isinstance(found, list) else [[found]]


def _is_attempt(one: Any) -> bool:
    if not isinstance(one, Mapping) or set(one) != {"nonce", "stage", "cause"}:
        return False
    return all(isinstance(word, str) and word for word in one.values()) and one["stage"] in {str(stage) for stage in Stage}


def _is_flaky(evidence: Evidence, before: Sequence[Mapping[str, Any]]) -> bool:
    return evidence.verdict.kind in PASSES and any(one.get("stage") == evidence.stage for one in before)
