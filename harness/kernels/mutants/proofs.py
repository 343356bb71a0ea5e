"""Mutants that are equivalent, each with its proof in one line; and faults that no operator of edits.py or statements.py makes."""

from __future__ import annotations

from dataclasses import dataclass

_MODEL = "swift.model.npu_patch.model"
_RING = "swift.sequence_parallel.zigzag_ring_attn_npu"


@dataclass(frozen=True)
class Proof:
    """Mutant `name` is equivalent `because`; it holds only while the text before and after is what it was proved for."""

    name: str
    before: str
    after: str
    because: str


@dataclass(frozen=True)
class Curated:
    """A fault by its text, which stands once in the module."""

    name: str
    module: str
    kind: str
    before: str
    after: str


PROOFS: tuple[Proof, ...] = ()
CURATED: tuple[Curated, ...] = ()
