"""Evidence to export, consistent enough for its verdict to be judged again, of few values, so that ties and doubles are common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence_samples import NPU_VERSIONS, VERSIONS, sample
from hypothesis import strategies as st
from matrix_samples import STAGES

from harness.evidence import sealed
from harness.export_lines import line_of
from harness.export_store import import_export
from harness.judge import case_of, judge
from harness.model import Blame, Comparison, Evidence, Hardware, Outcome, Ruling, RulingKind, Stage, VerdictKind, Weights

LIMIT = Ruling(RulingKind.EXPECT_FAIL, "a limit", "issue 7", "4.5", Hardware.A2, ("args.",))
HELD = Comparison("a", True, "1", "1")
# How a run can end: what it leaves of outcome, comparisons and facts. Passes as often as all else.
ENDS: tuple[dict[str, Any], ...] = (
    *({},) * 5,
    {"outcome": Outcome("args.unknown", Blame.PRODUCT, "ValueError: remaining_argv")},
    {"outcome": Outcome("comm.port_in_use", Blame.ENVIRONMENT, "EI0019: port")},
    {"comparisons": (HELD, Comparison("b", False, "x", "y", "resume.differs", Blame.PRODUCT))},
    {"facts": {"missing": ["train.log"]}},
    {"facts": {"blocked_by": "train"}, "comparisons": (), "runs": ()},
    {"facts": {"gap": "the proof isn't built yet"}, "comparisons": (), "runs": ()},
)


PLACES = st.tuples(
    st.sampled_from([None, Hardware.SIM, Hardware.A2]),
    st.sampled_from(["small", "small", "big", "zero2", "gone"]),
    st.sampled_from([Stage.TRAIN, Stage.TRAIN, *STAGES]),
    st.sampled_from(Weights),
)


def _piece(draw: Any, place: tuple[Hardware | None, str, Stage, Weights] | None = None) -> Evidence:
    """Its verdict is what its findings lead to, as it is of all evidence that a store takes."""
    hardware, cell, stage, weights = place or draw(PLACES)
    versions = {**(NPU_VERSIONS if hardware and hardware.is_npu else VERSIONS), **draw(st.sampled_from([{}, {}, {"torch": "2.5.0"}]))}
    at = f"2026-06-0{draw(st.integers(1, 3))}T10:00:0{draw(st.integers(0, 1))}+00:00"
    ended = draw(st.sampled_from(ENDS))
    plain = sample(cell, stage, VerdictKind.PASSED, hardware, weights, at, versions=versions)
    facts = {**plain.facts, **draw(st.sampled_from([{}, {}, {}, {"options": "packing=true"}])), **ended.get("facts", {})}
    if draw(st.booleans()):
        facts |= {"attempt": 2, "attempts_before": [{"nonce": "n9", "stage": str(stage), "cause": "comm.port_in_use"}]}
        facts |= {"flaky": True} if not ended else {}
    piece = replace(
        plain,
        asked=hardware or Hardware.A2,
        tiny_key="tiny-zero2" if cell == "zero2" else "tiny-qwen3",
        ruling=draw(st.sampled_from([Ruling(RulingKind.RUN), LIMIT])),
        duration_s=draw(st.floats(0.0, 9.0)),
        **{"comparisons": (HELD, HELD), **ended, "facts": facts},
    )
    return sealed(replace(piece, verdict=judge(case_of(piece))))


PIECES = st.lists(st.composite(_piece)(), min_size=1, max_size=40)
# All about the same, so that every one may outrank every other.
RIVALS = PLACES.flatmap(lambda place: st.lists(st.composite(_piece)(place), min_size=2, max_size=8))


def kept(root: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """The rows as an imported export."""
    file = root / "rows.jsonl"
    file.write_text("".join(map(line_of, rows)), encoding="utf-8")
    found = import_export(root, file)
    assert found.path is not None and found.faults == 0, found.refused
    return found.path
