"""From what a stage's steps left to its comparisons: which files each proof reads, and which were required."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import artifacts, model_folder
from harness.bench import Bench
from harness.commands_asked import (
    asked_dtype,
    asked_lora,
    asked_saves,
    asked_steps,
    inference_of,
    result_path,
    trained_answers,
)
from harness.commands_tables import MODEL_ONLY, ZERO_MOMENTS
from harness.compare import check
from harness.found import Inference, Role, Way
from harness.model import Cell, Comparison, Hardware, Stage, StepResult, Tuner, Witness
from harness.npu_patches import prove_patches
from harness.proof_config import Surroundings
from harness.proof_deploy import prove_deploy
from harness.proof_golden import prove_golden_answers, prove_golden_train
from harness.proof_infer import prove_infer
from harness.proof_merge import prove_logits, prove_merge
from harness.proof_process import is_simulated
from harness.proof_required import Asked, missing_required
from harness.proof_resume import prove_resume
from harness.proof_train import prove_train
from harness.tensors import TensorFile
from harness.witness_log import rank_zero

CONTROL_STEPS = {ZERO_MOMENTS: "resume-zero-moments", MODEL_ONLY: "resume-only-model"}


def prove(stage: Stage, bench: Bench, device_names: tuple[str, ...], golden: Bench | None = None) -> tuple[Comparison, ...]:
    """Design section 4, for the steps of `stage` that ran on `bench`; what did not run is not compared. `golden`: the CPU's bench."""
    return _proved(stage, bench, device_names) + (_against_golden(stage, bench, golden) if golden else ())


def _proved(stage: Stage, bench: Bench, device_names: tuple[str, ...]) -> tuple[Comparison, ...]:
    match stage:
        case Stage.TRAIN:
            return _train(bench, device_names)
        case Stage.RESUME:
            return _resume(bench, device_names)
        case Stage.MERGE:
            return _merge(bench)
        case Stage.INFER:
            return _infer(bench, device_names)
        case Stage.DEPLOY:
            return _deploy(bench, device_names)
        case Stage.EVAL | Stage.ROLLOUT:
            return ()


def golden_steps(stage: Stage, bench: Bench) -> tuple[str, ...]:
    """The steps of a stage that a CPU repeats: what a device could get wrong and no other comparison would see."""
    if stage is Stage.INFER and bench.host.hardware is not Hardware.CPU:
        return (trained_step(bench.cell),)
    return ("train",) if stage is Stage.TRAIN else ()


def trained_step(cell: Cell) -> str:
    return "infer-tuned" if cell.tuner is Tuner.FULL else "infer-adapter"


def missing(stage: Stage, bench: Bench, comparisons: tuple[Comparison, ...]) -> tuple[str, ...]:
    cell = bench.cell
    asked = Asked(bench.weights, cell.tuner, cell.algorithm, cell.strategy, bench.host.hardware)
    return missing_required(stage, comparisons, asked)


def witnessed_hardware(results: tuple[StepResult, ...], hardware: Mapping[Hardware, Mapping[str, Any]]) -> Hardware | None:
    """Where the work was done, by the devices that the processes saw; None if nothing was witnessed or the answers differ."""
    seen = {_hardware_of(event, w, hardware) for result in results for w in result.witnesses for event in w.events if event.get("device")}
    return seen.pop() if len(seen) == 1 else None


def _hardware_of(event: Mapping[str, Any], witness: Witness, hardware: Mapping[Hardware, Mapping[str, Any]]) -> Hardware | None:
    if is_simulated(event, witness):
        return Hardware.SIM
    device = str(event["device"]).partition(":")[0]
    if device == "cpu":
        return Hardware.CPU
    if device != "npu":
        return None
    name = str(event.get("device_name"))
    fits = [h for h, facts in hardware.items() if any(fnmatch.fnmatchcase(name, pattern) for pattern in facts.get("device_names", ()))]
    return fits[0] if len(fits) == 1 else None


def base_weights(bench: Bench) -> TensorFile:
    folder = bench.base_folder()
    tensors = artifacts.read_tensors(folder) if folder else None
    return tensors or TensorFile(bench.model, {}, f"no weights of {bench.model} were found")


def _against_golden(stage: Stage, bench: Bench, golden: Bench) -> tuple[Comparison, ...]:
    name = next(iter(golden_steps(stage, bench)), "")
    ours, theirs = bench.ran.get(name), golden.ran.get(name)
    if ours is None or theirs is None:
        return ()
    if theirs.outcome.cause != "none":
        said = f"{theirs.outcome.cause}: {theirs.outcome.line}"
        return (check("golden.ran", False, "proof.golden_missing", f"a golden {name} on a plain cpu", said),)
    dtype = asked_dtype(bench.ran["train"].step)
    if stage is Stage.INFER:
        one, other = (_inference(result, Role.ADAPTER, Way.PLAIN) for result in (ours, theirs))
        return prove_golden_answers(ours=one, golden=other, dtype=dtype)
    ends = [artifacts.checkpoint_at(Path(result.step.output_dir), asked_steps(bench.weights)) for result in (ours, theirs)]
    finals = tuple(artifacts.read_tensors(end) if end else None for end in ends)
    made = prove_golden_train(
        strategy=bench.cell.strategy, result=ours, golden=theirs, dtype=dtype, finals=finals, base=base_weights(bench)
    )
    witness = rank_zero(ours.witnesses) if bench.host.hardware is Hardware.SIM else None
    return made if witness is None else made + prove_patches(bench.cell.model.family, witness, bench.cell.options)


def _train(bench: Bench, device_names: tuple[str, ...]) -> tuple[Comparison, ...]:
    result = bench.ran["train"]
    saves = asked_saves(bench.weights)
    folders = artifacts.checkpoints(Path(result.step.output_dir))
    return prove_train(
        cell=bench.cell,
        hardware=bench.host.hardware,
        weights=bench.weights,
        result=result,
        asked_steps=asked_steps(bench.weights),
        save_steps=saves,
        checkpoints={step: artifacts.read_checkpoint(folders[step]) for step in saves if step in folders},
        base=base_weights(bench),
        asked_lora=asked_lora(result.step, bench.cell.tuner),
        device_names=device_names,
    )


def _resume(bench: Bench, device_names: tuple[str, ...]) -> tuple[Comparison, ...]:
    straight, resumed = bench.ran["train"], bench.ran["resume"]
    last = asked_steps(bench.weights)
    ends = [artifacts.checkpoint_at(Path(result.step.output_dir), last) for result in (straight, resumed)]
    tensors = [artifacts.read_tensors(end) if end else None for end in ends]
    finals = (tensors[0], tensors[1]) if tensors[0] and tensors[1] else None
    return prove_resume(
        cell=bench.cell,
        hardware=bench.host.hardware,
        weights=bench.weights,
        dtype=asked_dtype(straight.step),
        straight=straight,
        resumed=resumed,
        from_step=asked_saves(bench.weights)[0],
        asked_steps=last,
        controls={name: bench.ran[step] for name, step in CONTROL_STEPS.items() if step in bench.ran},
        finals=finals,
        device_names=device_names,
    )


def _merge(bench: Bench) -> tuple[Comparison, ...]:
    result = bench.ran["merge"]
    checkpoint, merged = bench.checkpoint(), Path(result.step.output_dir)
    if checkpoint is None:
        return (check("merge.present", False, "proof.checkpoint_missing", "an adapter", "none"),)
    adapter = artifacts.read_checkpoint(checkpoint)
    made = prove_merge(
        result=result,
        base=base_weights(bench),
        adapter=adapter,
        merged=artifacts.read_tensors(merged) or TensorFile(str(merged), {}),
        tied=model_folder.is_tied(bench.base_folder() or merged),
        surroundings=(_surroundings(bench.base_folder()), _surroundings(merged)),
    )
    logits = {name: artifacts.read_logits(bench.ran[step].witnesses) for name, step in _INFERRED.items() if step in bench.ran}
    dtype = asked_dtype(bench.ran["train"].step)
    return (*made, *prove_logits(base=logits.get("base"), adapter=logits.get("adapter"), merged=logits.get("merged"), dtype=dtype))


def _surroundings(folder: Path | None) -> Surroundings:
    if folder is None:
        return Surroundings({}, frozenset(), None)
    return Surroundings(model_folder.config_of(folder), model_folder.names_in(folder), artifacts.read_tokenizer(folder))


_INFERRED = {"base": "infer-base", "adapter": "infer-adapter", "merged": "infer-merged"}


def _infer(bench: Bench, device_names: tuple[str, ...]) -> tuple[Comparison, ...]:
    asked = {name: inference_of(name) for name in bench.ran}
    inferences = [_inference(result, *asked_of) for name, result in bench.ran.items() if (asked_of := asked[name]) is not None]
    return prove_infer(
        cell=bench.cell,
        hardware=bench.host.hardware,
        weights=bench.weights,
        inputs=bench.inputs,
        inferences=inferences,
        vocabulary=artifacts.read_tokenizer(bench.base_folder() or Path(bench.model)),
        device_names=device_names,
    )


def _inference(result: StepResult, role: Role, way: Way) -> Inference:
    return Inference(role, way, result, artifacts.read_answers(Path(result_path(result.step))), artifacts.read_logits(result.witnesses))


def _deploy(bench: Bench, device_names: tuple[str, ...]) -> tuple[Comparison, ...]:
    if bench.served is None:
        return ()
    plain = bench.ran.get(trained_answers(bench.cell.tuner))
    answers = artifacts.read_answers(Path(result_path(plain.step))).rows if plain else ()
    return prove_deploy(
        result=bench.served.result,
        report=bench.served.report,
        hardware=bench.host.hardware,
        expected_answer=answers[0].response if answers else None,
        device_names=device_names,
    )
