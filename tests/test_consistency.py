"""Forgeries whose hash was made anew: each of them contradicts something else that the evidence holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_samples import NPU_VERSIONS, VERSIONS, sample, witness

from harness.consistency import contradictions, missing_comparisons
from harness.errors import EvidenceError
from harness.evidence import sealed, to_json
from harness.judge import rejudge
from harness.model import Algorithm, Blame, Comparison, Evidence, Hardware, Outcome, Stage, Strategy, Tuner, VerdictKind, Weights
from harness.proof_golden import REQUIRED_GOLDEN_INFER, REQUIRED_GOLDEN_TRAIN, REQUIRED_PARITY, REQUIRED_PATCHES
from harness.proof_required import Asked, required
from harness.store import Store

CPU, SIM, A2 = Hardware.CPU, Hardware.SIM, Hardware.A2
PATHS = "reports/evidence"


def honest(stage: Stage = Stage.TRAIN, hardware: Hardware = CPU, **changes: Any) -> Evidence:
    """A pass that compared all that its stage takes."""
    names = required(stage, Asked(Weights.TINY, Tuner.LORA, Algorithm.SFT, Strategy.SINGLE, hardware))
    made = tuple(Comparison(name, True, "as asked", "as asked") for name in names)
    return sample("small", stage, hardware=hardware, **{"comparisons": made, **changes})


def refused(piece: Evidence, root: Path) -> str:
    """What a store says of the piece once its hash is made anew; "" if it takes it."""
    store = Store(root, root / ".harness" / "evidence", rejudge)
    folder = root / "another host"
    folder.mkdir()
    (folder / "piece.json").write_text(to_json(sealed(piece)), encoding="utf-8")
    counts = store.import_dir(folder)
    assert counts.added == (not counts.refused)
    return "; ".join(str(error) for error in counts.refused)


@pytest.mark.parametrize("stage", [Stage.TRAIN, Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY])
@pytest.mark.parametrize("hardware", [CPU, A2])
def test_an_honest_pass_is_taken(stage: Stage, hardware: Hardware, tmp_path: Path) -> None:
    assert refused(honest(stage, hardware), tmp_path) == ""


def test_an_honest_failure_and_a_crash_without_a_witness_are_taken() -> None:
    for piece in (sample("small", kind=VerdictKind.FAILED), sample("small", kind=VerdictKind.FAILED, hardware=None)):
        assert contradictions(piece) == ()
        assert rejudge(piece).kind is VerdictKind.FAILED


def run_of(piece: Evidence, **changes: Any) -> Evidence:
    return replace(piece, runs=(replace(piece.runs[0], **changes), *piece.runs[1:]))


def first(piece: Evidence, **changes: Any) -> Evidence:
    return replace(piece, comparisons=(replace(piece.comparisons[0], **changes), *piece.comparisons[1:]))


def seen(piece: Evidence, **changes: Any) -> Evidence:
    return replace(piece, witnesses=({**piece.witnesses[0], **changes},))


LOG = "Traceback (most recent call last):\n  File x\nValueError: no\n"
FORGERIES: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "one comparison only": (lambda e: replace(e, comparisons=e.comparisons[:1]), "never compared"),
    "an invented comparison only": (lambda e: replace(e, comparisons=(Comparison("x", True, "", ""),)), "never compared"),
    "a failed comparison under a pass": (lambda e: first(e, ok=False, cause="proof.no_log"), "amounts to failed"),
    "a cause at what holds": (lambda e: first(e, cause="proof.no_log"), "has the cause"),
    "an error above its tolerance": (lambda e: first(e, error=9.9, tolerance=0.1), "its error is 9.9"),
    "an error that is no number": (lambda e: first(e, error=float("nan"), tolerance=0.1), "its error is nan"),
    "a tolerance without an error": (lambda e: first(e, tolerance=0.1), "its error is None"),
    "an error without a tolerance": (lambda e: first(e, error=0.1), "its tolerance None"),
    "a negative error": (lambda e: first(e, error=-1.0, tolerance=0.1), "its error is -1.0"),
    "an exit code other than 0": (lambda e: run_of(e, exit_code=1), "exit code 1"),
    "a run that was killed": (lambda e: run_of(e, exit_code=-9, ended_by="signal"), "ended by signal"),
    "a run past its deadline": (lambda e: run_of(e, exit_code=None, ended_by="deadline"), "ended by deadline"),
    "a traceback in the log": (lambda e: run_of(e, log_tail=LOG), "run.traceback_exit_0"),
    "a child left running": (lambda e: run_of(e, leftovers=("pid 7",)), "run.orphan"),
    "no run": (lambda e: replace(e, runs=()), "nothing_ran"),
    "no witness": (lambda e: replace(e, witnesses=(), versions={}), "saw no device"),
    "another run's witness": (lambda e: seen(e, nonce="n9"), "nonces of no run"),
    "a witness with faults": (lambda e: seen(e, faults=["line 3: cut"]), "reports faults"),
    "hardware that nobody saw": (lambda e: replace(e, hardware=A2, asked=A2), "its witnesses saw cpu"),
    "hardware unsaid though it was seen": (lambda e: replace(e, hardware=None), "unwitnessed, but its witnesses saw cpu"),
    "versions that nobody saw": (lambda e: replace(e, versions=NPU_VERSIONS), "versions are those of no witness"),
    "a step that never ran": (lambda e: replace(e, steps=(*e.steps, replace(e.steps[0], name="more"))), "did not run"),
    "a fresher date": (lambda e: replace(e, started_at="2026-09-01T00:00:00+00:00"), "step train started at"),
    "an algorithm that is none": (lambda e: replace(e, facts={**e.facts, "algorithm": "x"}), "never compared: a proof of train"),
    "a loss that is no number": (lambda e: replace(e, metrics={"train": [{"loss": float("nan")}]}), "logged"),
    "a stage without a proof": (lambda e: replace(e, stage=Stage.EVAL), "never compared: a proof of eval"),
    "a blocked stage that ran": (
        lambda e: replace(e, facts={**e.facts, "blocked_by": "train"}, verdict=replace(e.verdict, kind=VerdictKind.BLOCKED, cause="")),
        "yet something ran",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_its_hash_made_anew_is_refused(name: str, tmp_path: Path) -> None:
    forge, said = FORGERIES[name]
    assert said in refused(forge(honest()), tmp_path)


def test_a_simulated_pass_takes_its_golden() -> None:
    assert missing_comparisons(honest(hardware=SIM)) == ()
    assert missing_comparisons(replace(honest(), hardware=SIM)) == (*REQUIRED_GOLDEN_TRAIN, *REQUIRED_PATCHES)
    assert missing_comparisons(replace(honest(), asked=SIM)) == (*REQUIRED_GOLDEN_TRAIN, *REQUIRED_PATCHES)
    assert missing_comparisons(replace(honest(Stage.INFER), hardware=SIM)) == REQUIRED_GOLDEN_INFER


@pytest.mark.parametrize("strategy", [s for s in Strategy if s not in (Strategy.SINGLE, Strategy.MEGATRON)])
def test_a_tiny_pass_of_several_ranks_takes_its_parity_with_one_process(strategy: Strategy) -> None:
    def spread(stage: Stage, hardware: Hardware) -> Evidence:
        piece = honest(stage, hardware)
        return replace(piece, facts={**piece.facts, "strategy": str(strategy)})

    assert set(missing_comparisons(spread(Stage.TRAIN, CPU))) == set(REQUIRED_PARITY)
    assert set(missing_comparisons(spread(Stage.TRAIN, SIM))) == set(REQUIRED_PARITY)
    assert missing_comparisons(spread(Stage.TRAIN, A2)) == ()
    assert missing_comparisons(spread(Stage.INFER, CPU)) == ()


def test_a_strategy_that_is_none_leaves_the_proof_missing() -> None:
    piece = honest()
    assert missing_comparisons(replace(piece, facts={**piece.facts, "strategy": "tensor"})) == ("a proof of train",)
    assert missing_comparisons(replace(piece, facts={k: v for k, v in piece.facts.items() if k != "strategy"})) == ("a proof of train",)


def test_a_negative_control_holds_by_differing() -> None:
    piece = honest(Stage.RESUME)
    at = next(i for i, c in enumerate(piece.comparisons) if c.name == "resume.control.zero_moments.fails")

    def control(of: Evidence, error: float) -> tuple[str, ...]:
        made = list(of.comparisons)
        made[at] = replace(made[at], error=error, tolerance=0.002)
        return contradictions(replace(of, comparisons=tuple(made)))

    assert control(piece, 0.3) == ()
    assert control(piece, 0.0) == ()  # off an NPU other final weights tell the runs apart
    assert control(honest(Stage.RESUME, A2), 0.001) != ()


def test_a_failure_can_not_be_made_a_known_one_by_blaming_another() -> None:
    piece = sample("small", kind=VerdictKind.FAILED, outcome=Outcome("dev.lost", Blame.PRODUCT, "heartbeat lost"))
    assert "blames product for dev.lost" in contradictions(piece)[0]
    wrong = replace(honest(), comparisons=(Comparison("x", False, "", "", "proof.witness_missing", Blame.PRODUCT),))
    assert any("blames product" in said for said in contradictions(wrong))


def test_a_failure_needs_a_process_that_failed() -> None:
    piece = sample("small", kind=VerdictKind.FAILED)
    assert "every process ended well" in contradictions(run_of(piece, exit_code=0))[0]


def test_what_a_cut_left_of_a_log_is_read_with_care() -> None:
    """The kept tail may begin within what Python says of an exception that it ignored."""
    assert contradictions(run_of(honest(), log_tail="[...]ception ignored in: <x>\n" + LOG)) == ()
    assert contradictions(run_of(honest(), log_tail="[...]ed\nstep 1\n" + LOG)) != ()


def test_real_weights_are_those_that_the_commands_name() -> None:
    piece = honest(hardware=A2, weights=Weights.REAL)

    def asking(*args: str) -> Evidence:
        step = piece.steps[0]
        return replace(piece, steps=(replace(step, command=replace(step.command, args=args)),))

    model, revision = piece.facts["model"], piece.facts["revision"]
    assert contradictions(asking("sft", "--model", model, "--model_revision", revision)) == ()
    assert "which no command of it asks for" in contradictions(asking("sft", "--model", model))[0]
    assert "ask for r9" in contradictions(asking("sft", "--model", model, "--model_revision", "r9"))[0]
    assert "train Other/Model" in contradictions(asking("sft", "--model", "Other/Model", "--model_revision", revision))[0]


def test_a_simulated_device_is_no_npu_and_an_npu_is_not_simulated() -> None:
    simulated = replace(honest(), hardware=A2, witnesses=(witness(SIM, VERSIONS),))
    assert "saw sim" in contradictions(simulated)[0]
    stood_in = {**NPU_VERSIONS, "torch_npu": "2.9.0+sim"}
    assert "saw sim" in contradictions(replace(honest(), hardware=A2, versions=stood_in, witnesses=(witness(A2, stood_in),)))[0]


def test_a_contradiction_is_named_with_the_file(tmp_path: Path) -> None:
    path = Store(tmp_path, tmp_path / "h").save(run_of(honest(), exit_code=3))
    with pytest.raises(EvidenceError, match=rf"^{PATHS}/small/train--.*contradicts itself"):
        Store(tmp_path, tmp_path / "h", rejudge).load(path)
