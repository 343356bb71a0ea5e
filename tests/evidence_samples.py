"""Evidence for tests: one plausible piece to change, and a hypothesis strategy for any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from matrix_samples import MATRIX

from harness.cell_facts import cell_facts
from harness.evidence import sealed
from harness.model import (
    Blame,
    Command,
    Comparison,
    Evidence,
    Hardware,
    Outcome,
    Ruling,
    RulingKind,
    Run,
    Stage,
    Step,
    Substitution,
    Verdict,
    VerdictKind,
    Weights,
)

VERSIONS = {"ms-swift": "4.6.0", "torch": "2.9.0", "python": "3.11.7"}
NPU_VERSIONS = {**VERSIONS, "torch_npu": "2.9.0", "cann": "9.0.0", "driver": "25.2.0"}


DEVICES = {
    Hardware.CPU: ("cpu", "x86_64"),
    Hardware.SIM: ("npu:0", "Simulated"),
    Hardware.A2: ("npu:0", "Ascend910B3"),
    Hardware.A3: ("npu:0", "Ascend910_9382"),
    Hardware.A5: ("npu:0", "Ascend950"),
}


def facts_of(cell: str) -> dict[str, str]:
    """What the cell of that id in matrix_samples is; of another id, something of its own."""
    known = MATRIX.cell(cell)
    return cell_facts(known) if known else {"algorithm": "sft", "tuner": "lora", "strategy": "single", "model": cell}


def witness(hardware: Hardware, versions: Mapping[str, str]) -> dict[str, Any]:
    """The summary of a process that worked on `hardware`."""
    device, name = DEVICES[hardware]
    begun = {"device": device, "device_name": name, "simulated": hardware is Hardware.SIM}
    return {"nonce": "n0", "rank": 0, "versions": dict(versions), "start": {}, "train_begin": begun, "faults": []}


def sample(
    cell: str = "qwen3-sft-lora",
    stage: Stage = Stage.TRAIN,
    kind: VerdictKind = VerdictKind.PASSED,
    hardware: Hardware | None = Hardware.CPU,
    weights: Weights = Weights.TINY,
    started_at: str = "2026-06-01T10:00:00+00:00",
    **changes: Any,
) -> Evidence:
    """A sealed piece of evidence, whole enough to render; `changes` are fields of Evidence."""
    failed = kind in (VerdictKind.FAILED, VerdictKind.KNOWN_FAILURE)
    broken = Outcome("args.unknown", Blame.PRODUCT, "ValueError: remaining_argv: ['--train_type']", "use --tuner_type")
    outcome = broken if failed else Outcome("none", Blame.UNKNOWN)
    command = Command("swift", ("sft", "--model", "<work>/tiny", "--tuner_type", "lora"), {"ASCEND_RT_VISIBLE_DEVICES": "0"})
    step = Step("train", command, "<work>/out", 300.0, (Substitution("--max_steps", "unset", "3", "tiny runs are short"),))
    code = 1 if failed else 0
    run = Run("train", "n0", command.argv, command.env, started_at, 12.25, code, "exit", "<work>/log.txt", "log | tail\n", 512.0)
    versions = changes.get("versions", NPU_VERSIONS if hardware is not None and hardware.is_npu else VERSIONS)
    evidence = Evidence(
        cell=cell,
        stage=stage,
        weights=weights,
        hardware=hardware,
        asked=hardware or Hardware.CPU,
        stack="undeclared-0a1b2c3d",
        tiny_key=f"tiny-{cell}",
        facts={"seed": 42, **facts_of(cell)},
        nonce="n0",
        launcher="cli",
        started_at=started_at,
        duration_s=12.5,
        ruling=Ruling(RulingKind.RUN),
        steps=(step,),
        runs=(run,),
        witnesses=(witness(hardware, versions),) if hardware else (),
        metrics={"rows": [{"step": 1, "loss": 2.5}]},
        outcome=outcome,
        comparisons=(Comparison("loss is finite", not failed, "finite", "2.5"),),
        verdict=Verdict(kind, "unknown flag --train_type" if failed else "1 comparison holds", outcome.cause, outcome.blame),
        versions=versions if hardware else {},
        machine={"cpu": "x86_64"},
    )
    return sealed(replace(evidence, **changes))


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
FLOATS = st.floats()
FREE = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT | st.sampled_from(["NaN", "-Infinity", "text:", "text:text:x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FACTS = st.dictionaries(TEXT, FREE, max_size=3)
_WORDS = st.dictionaries(TEXT, TEXT, max_size=3)
_FEW = st.lists(TEXT, max_size=2).map(tuple)
_COMMANDS = st.builds(Command, TEXT, _FEW, _WORDS, st.none() | TEXT)
_STEPS = st.builds(Step, TEXT, _COMMANDS, TEXT, FLOATS, st.lists(st.builds(Substitution, TEXT, TEXT, TEXT, TEXT), max_size=1).map(tuple))
_RUNS = st.builds(Run, TEXT, TEXT, _FEW, _WORDS, TEXT, FLOATS, st.none() | st.integers(), TEXT, TEXT, TEXT, st.none() | FLOATS)
_COMPARISONS = st.builds(Comparison, TEXT, st.booleans(), TEXT, TEXT, TEXT, st.sampled_from(Blame), st.none() | FLOATS)
_OUTCOMES = st.builds(Outcome, TEXT, st.sampled_from(Blame), TEXT, TEXT)
_TIMES = st.datetimes().map(lambda when: when.isoformat() + "+00:00")
EVIDENCE = st.builds(
    Evidence,
    cell=TEXT,
    stage=st.sampled_from(Stage),
    weights=st.sampled_from(Weights),
    hardware=st.none() | st.sampled_from(Hardware),
    asked=st.sampled_from(Hardware),
    stack=TEXT,
    tiny_key=TEXT,
    facts=FACTS,
    nonce=TEXT,
    launcher=TEXT,
    started_at=_TIMES,
    duration_s=FLOATS,
    ruling=st.builds(Ruling, st.sampled_from(RulingKind), TEXT, TEXT, TEXT, st.none() | st.sampled_from(Hardware)),
    steps=st.lists(_STEPS, max_size=2).map(tuple),
    runs=st.lists(_RUNS, max_size=2).map(tuple),
    witnesses=st.lists(FACTS, max_size=2).map(tuple),
    metrics=FACTS,
    outcome=_OUTCOMES,
    comparisons=st.lists(_COMPARISONS, max_size=2).map(tuple),
    verdict=st.builds(Verdict, st.sampled_from(VerdictKind), TEXT, TEXT, st.sampled_from(Blame)),
    versions=_WORDS,
    machine=_WORDS,
    rehearsal=st.booleans(),
    schema=st.just(1),
    sha256=st.just(""),
)
