"""Which commands answer a cell, stage by stage. All knowledge of ms-swift's flags is in this module and its commands_* neighbours."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from harness.commands_benchmark import benchmark_train_step
from harness.commands_devices import documented_devices
from harness.commands_flags import FSDP1_CONFIG, Flags, Form, NotBuilt, Places
from harness.commands_serve import (
    Scene,
    deploy_step,
    documented_deploy_flags,
    documented_infer_flags,
    documented_step,
    eval_step,
    infer_step,
    merge_step,
    push_step,
    rollout_steps,
)
from harness.commands_tables import MODEL_ONLY, QUICK_START, controls_of, stages_of
from harness.commands_train import documented_train_step, train_step
from harness.errors import HarnessError
from harness.model import Cell, Hardware, Stage, Step, Strategy, Tuner, Weights

__all__ = [
    "FSDP1_CONFIG",
    "PRELUDE",
    "Form",
    "NotBuilt",
    "Places",
    "contract_commands",
    "documented_commands",
    "normalised",
    "not_built",
    "plan_stage",
    "shell_line",
    "stages_of",
]

# What a person sets once before pasting the lines of `documented_commands` (the quick start's own variables).
PRELUDE = (
    "export WORK_DIR=output/npu-matrix",
    'export SWIFT_CLI_DIR=$(python -c "import os, swift.cli; print(os.path.dirname(swift.cli.__file__))")',
    "export CKPT_DIR=$(ls -dt $WORK_DIR/*/checkpoint-* | head -n 1)",
    "export MERGED_DIR=${CKPT_DIR}-merged",
)
ROW_KINDS = ("sft", "pt", "dpo", "kto", "grpo", "embedding", "seq_cls", "reranker", "val")
PASTED = Places("$WORK_DIR", "", checkpoint="$CKPT_DIR", resume_from="$CKPT_DIR", merged="$MERGED_DIR", swift_cli_dir="$SWIFT_CLI_DIR")
QUERIES = ("one question", "another question")

MEGATRON_LATER = "Megatron's commands come with the Megatron issue"
VARIABLE = re.compile(r"\$(?:WORK_DIR|CKPT_DIR|MERGED_DIR|SWIFT_CLI_DIR|MODELSCOPE_API_TOKEN)\b")
# Flags whose values are ids, names or paths. Numbers and choices stay: they are what a contract judges.
PLACE_FLAGS = {
    "--model": "<model>",
    "--model_revision": "<revision>",
    "--dataset": "<dataset>",
    "--val_dataset": "<dataset>",
    "--adapters": "<adapter>",
    "--ref_adapters": "<adapter>",
    "--output_dir": "<path>",
    "--eval_output_dir": "<path>",
    "--result_path": "<path>",
    "--resume_from_checkpoint": "<path>",
    "--external_plugins": "<path>",
    "--reward_model": "<model>",
    "--teacher_model": "<model>",
    "--served_model_name": "<name>",
    "--hub_model_id": "<name>",
    "--config_file": "<path>",
}


def plan_stage(
    cell: Cell, stage: Stage, *, form: Form, hardware: Hardware, weights: Weights, places: Places, deadline_scale: float = 1.0
) -> tuple[Step, ...]:
    """The steps of a stage, in the order in which they run. A step that two stages name is the same in both.

    Raises NotBuilt where no command exists yet, HarnessError where `places` lacks something or form, weights and hardware disagree.
    """
    if (form is Form.TINY) is not (weights is Weights.TINY):
        raise HarnessError(f"{cell.id}", f"the {form} form is not for {weights} weights.", "tiny goes with tiny, npu with real.")
    if form is Form.NPU and not hardware.is_npu:
        raise HarnessError(f"{cell.id}", f"the documented command is for an NPU, not for {hardware}.", "Use tiny weights here.")
    if cell.strategy is Strategy.MEGATRON:
        raise NotBuilt(cell, MEGATRON_LATER)
    scene = Scene(cell, places, hardware, weights, deadline_scale)
    match stage:
        case Stage.TRAIN:
            return (train_step("train", cell, places, hardware, weights, scale=deadline_scale),)
        case Stage.RESUME:
            return _resume(scene)
        case Stage.MERGE:
            return _merge(scene)
        case Stage.INFER:
            return _infer(scene)
        case Stage.DEPLOY:
            return (deploy_step(scene),)
        case Stage.EVAL:
            return (eval_step(scene),)
        case Stage.ROLLOUT:
            return rollout_steps(scene)


def not_built(cell: Cell, stage: Stage) -> str:
    """Why no command exists for a stage of this cell; empty where one does."""
    try:
        _contract_stage(cell, stage, Form.NPU)
    except NotBuilt as refusal:
        return refusal.because
    return ""


def contract_commands(cell: Cell) -> tuple[Step, ...]:
    """Every command of every stage, and eval and push, in the NPU and in the tiny form. Stages that aren't built are left out."""
    steps: dict[tuple[Form, str], Step] = {}
    for form in Form:
        for stage in (*stages_of(cell), Stage.EVAL):
            try:
                planned = _contract_stage(cell, stage, form)
                steps |= {(form, step.name): step for step in planned}
                if stage is Stage.TRAIN:
                    weights = Weights.TINY if form is Form.TINY else Weights.REAL
                    steps[form, "benchmark"] = replace(benchmark_train_step(planned[0], cell, weights), name="benchmark")
            except NotBuilt:
                continue  # not_built says why, and whoever shows the contract asks it
    pushed = () if not steps else (push_step(_contract_scene(cell, Form.NPU)),)
    return (*steps.values(), *pushed)


def documented_commands(cell: Cell) -> tuple[tuple[Stage, Step], ...]:
    """The commands as the document has them, nothing cut, variables of PRELUDE in place of paths. Raises NotBuilt."""
    places = replace(PASTED, model=cell.model.id, visible_devices=tuple(range(documented_devices(cell))))
    scene = Scene(cell, places, Hardware.A2, Weights.REAL)
    if cell.strategy is Strategy.MEGATRON:
        raise NotBuilt(cell, MEGATRON_LATER)
    full = cell.tuner is Tuner.FULL
    trained = ("tuned", places.checkpoint) if full else ("merged", places.merged)
    commands: list[tuple[Stage, Step]] = []
    for stage in stages_of(cell):
        match stage:
            case Stage.TRAIN | Stage.RESUME:
                commands.append((stage, documented_train_step(cell, places, resume=stage is Stage.RESUME)))
            case Stage.MERGE:
                flags: Flags = {"--adapters": (places.checkpoint,), "--merge_lora": ("true",)}
                commands.append((stage, documented_step(scene, "merge", "export", flags)))
            case Stage.INFER:
                adapter = () if full else (("adapter", places.checkpoint),)
                for target, place in (("base", cell.model.id), *adapter, trained):
                    flags = documented_infer_flags(cell, target, place)
                    commands.append((stage, documented_step(scene, f"infer-{target}", "infer", flags)))
            case Stage.DEPLOY:
                commands.append((stage, documented_step(scene, "deploy", "deploy", documented_deploy_flags(cell, *trained))))
            case Stage.EVAL:
                commands.append((stage, eval_step(scene)))
            case Stage.ROLLOUT:
                commands += [(stage, step) for step in rollout_steps(scene)]
    return tuple(commands)


def shell_line(step: Step) -> str:
    """One line to paste into a POSIX shell: stdin from printf, the environment in front, variables of PRELUDE left to expand."""
    env = " ".join(f"{name}={_quoted(value)}" for name, value in step.command.env.items())
    command = " ".join(_quoted(word) for word in step.command.argv)
    line = f"{env} {command}" if env else command
    if step.command.stdin is None:
        return line
    lines = " ".join(_quoted(text) for text in step.command.stdin.splitlines())
    return f"printf '%s\\n' {lines} | {line}"


def normalised(argv: Sequence[str]) -> tuple[str, ...]:
    """`argv` with ids and paths replaced, value by value, so that two commands are equal when only those differ."""
    words: list[str] = []
    flag = ""
    script_to_come = tuple(argv[:1]) == ("accelerate",)
    for word in argv:
        if word.startswith("--"):
            flag = word
        elif script_to_come and word.endswith(".py"):
            word, flag, script_to_come = f"<{word.rsplit('/', 1)[-1]}>", "", False
        elif flag in PLACE_FLAGS and not word.startswith("-"):
            word = PLACE_FLAGS[flag]
        words.append(word)
    return tuple(words)


def _quoted(word: str) -> str:
    """`word` quoted for a shell; a known variable stays alive inside double quotes, everything else is literal."""
    if not VARIABLE.search(word):
        return shlex.quote(word)
    parts = VARIABLE.split(word)
    literal = [re.sub(r'([\\"$`])', r"\\\1", part) for part in parts]
    variables = VARIABLE.findall(word)
    return '"' + "".join(text + name for text, name in zip(literal, [*variables, ""], strict=True)) + '"'


def _resume(scene: Scene) -> tuple[Step, ...]:
    rest = (scene.cell, scene.places, scene.hardware, scene.weights)
    straight = train_step("resume", *rest, scale=scene.scale)
    if scene.weights is Weights.REAL:
        return (straight,)
    zeroed = train_step("resume-zero-moments", *rest, scale=scene.scale, control="zero_moments")
    if MODEL_ONLY not in controls_of(scene.cell.strategy):
        return (straight, zeroed)
    return (straight, zeroed, train_step("resume-only-model", *rest, scale=scene.scale, control="only_model"))


def _merge(scene: Scene) -> tuple[Step, ...]:
    if scene.cell.tuner is Tuner.FULL:
        raise NotBuilt(scene.cell, "full training leaves no adapter to merge")
    merged = replace(scene, places=replace(scene.places, merged=scene.places.merged or f"{scene.places.work}/merged"))
    return (merge_step(scene), *(infer_step(merged, target) for target in ("base", "adapter", "merged")))


def _infer(scene: Scene) -> tuple[Step, ...]:
    if scene.cell.tuner is Tuner.FULL:
        wanted = [("base", ""), ("tuned", ""), ("tuned", "stream"), ("tuned", "interactive")]
    else:
        wanted = [(target, "") for target in ("base", "adapter", "merged")]
        wanted += [("adapter", "stream"), ("merged", "stream"), ("adapter", "interactive")]
    if scene.cell.strategy is not Strategy.SINGLE:
        wanted = [(target, way) for target, way in wanted if not way]  # harness.proof_infer.wanted_inferences
    elif scene.cell.recipe.key == QUICK_START:
        wanted += [("base", "stream")]
        wanted += [] if scene.cell.tuner is Tuner.FULL else [("merged", "interactive")]
    return tuple(infer_step(scene, target, way) for target, way in wanted)


def _contract_stage(cell: Cell, stage: Stage, form: Form) -> tuple[Step, ...]:
    scene = _contract_scene(cell, form)
    return plan_stage(cell, stage, form=form, hardware=scene.hardware, weights=scene.weights, places=scene.places)


def _contract_scene(cell: Cell, form: Form) -> Scene:
    """Places that exist nowhere: the contract parses commands and runs none."""
    places = Places(
        "work",
        cell.model.id if form is Form.NPU else "tiny-model",
        {kind: f"{kind}.jsonl" for kind in ROW_KINDS},
        QUERIES,
        "npu_matrix_plugin.py",
        "npu_matrix_reward.py",
        tuple(range(documented_devices(cell))) if form is Form.NPU else (),
        checkpoint="checkpoint-6",
        resume_from="checkpoint-3",
        merged="merged",
        swift_cli_dir="swift/cli",
        reward_model="reward-model",
        teacher_model="teacher-model",
    )
    return Scene(cell, places, Hardware.A2 if form is Form.NPU else Hardware.CPU, Weights.REAL if form is Form.NPU else Weights.TINY)
