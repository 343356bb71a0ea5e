"""What a command asked for, read back from its own words: the numbers that a proof holds the run against."""

from __future__ import annotations

from harness.commands_tables import REAL_SAVE_STEPS, REAL_STEPS, TINY_SAVE_STEPS, TINY_STEPS
from harness.found import AskedLora, Role, Way
from harness.model import Step, Tuner, Weights

# ms-swift's own defaults, for a documented command that leaves a flag out (swift/arguments/tuner_args.py; a test holds them equal).
DEFAULT_LORA_RANK, DEFAULT_LORA_ALPHA = 8, 32.0
DEFAULT_DTYPE = "bfloat16"

# The targets in the names of infer steps (harness/commands_serve.py: infer-<target>[-<way>]).
_ROLES = {"base": Role.BASE, "adapter": Role.ADAPTER, "merged": Role.MERGED, "tuned": Role.FULL}


def inference_of(step_name: str) -> tuple[Role, Way] | None:
    """Which model an infer step asks, and how; None for a step of another kind."""
    words = step_name.split("-")
    if words[0] != "infer":
        return None
    return _ROLES[words[1]], Way(words[2]) if words[2:] else Way.PLAIN


def trained_answers(tuner: Tuner) -> str:
    """The infer step whose answers a deployed server must repeat: it serves the same weights."""
    return "infer-tuned" if tuner is Tuner.FULL else "infer-merged"


def asked_steps(weights: Weights) -> int:
    return TINY_STEPS if weights is Weights.TINY else REAL_STEPS


def asked_saves(weights: Weights) -> tuple[int, ...]:
    """Every step at which a checkpoint must lie, the last one included."""
    every = TINY_SAVE_STEPS if weights is Weights.TINY else REAL_SAVE_STEPS
    return tuple(range(every, asked_steps(weights) + 1, every))


def asked_lora(step: Step, tuner: Tuner) -> AskedLora | None:
    """The adapter that a training command asks for; None for full training."""
    if tuner is Tuner.FULL:
        return None
    rank = _value(step, "--lora_rank")
    alpha = _value(step, "--lora_alpha")
    return AskedLora(
        rank=int(rank[0]) if rank else DEFAULT_LORA_RANK,
        alpha=float(alpha[0]) if alpha else DEFAULT_LORA_ALPHA,
        target_modules=_value(step, "--target_modules") or ("all-linear",),
        rslora=_value(step, "--use_rslora") == ("true",),
    )


def asked_dtype(step: Step) -> str:
    return (_value(step, "--torch_dtype") or (DEFAULT_DTYPE,))[0]


def asked_new_tokens(step: Step) -> int:
    return int((_value(step, "--max_new_tokens") or ("64",))[0])


def asked_ranks(step: Step) -> int:
    """Processes that a training command starts: --num_processes of `accelerate launch`, or NPROC_PER_NODE, or one."""
    return int((_value(step, "--num_processes") or (step.command.env.get("NPROC_PER_NODE", "1"),))[0])


def asked_port(step: Step) -> int:
    return int(_value(step, "--port")[0])


def asked_served_name(step: Step) -> str:
    """Empty for `swift rollout`, which serves no model by name."""
    return (_value(step, "--served_model_name") or ("",))[0]


def result_path(step: Step) -> str:
    return (_value(step, "--result_path") or ("",))[0]


def _value(step: Step, flag: str) -> tuple[str, ...]:
    """The words after `flag`, up to the next flag; empty if it is not there."""
    args = step.command.args
    if flag not in args:
        return ()
    found = []
    for word in args[args.index(flag) + 1 :]:
        if word.startswith("--"):
            break
        found.append(word)
    return tuple(found)
