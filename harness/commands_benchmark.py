"""A training command made long enough to measure: more steps, one checkpoint at the end, tokens counted."""

from __future__ import annotations

from dataclasses import replace

from harness.commands_tables import deadline_s
from harness.model import Cell, Step, Substitution, Weights

# Steps that a benchmark drops: allocator, autotuning and data workers are warm after them (ms-swift's own mean has them in it).
WARMUP_STEPS = 4
# A median over fewer steps moves with every hiccup of the host.
MEASURED_STEPS = 20
BENCHMARK_STEPS = WARMUP_STEPS + MEASURED_STEPS
_BECAUSE = "a benchmark: steps to warm up and steps to measure"


def benchmark_train_step(step: Step, cell: Cell, weights: Weights, scale: float = 1.0) -> Step:
    """`step`, a tiny or real training run, with BENCHMARK_STEPS steps, whatever it was cut to before."""
    changes = {
        "--max_steps": (str(BENCHMARK_STEPS), _BECAUSE),
        "--save_steps": (str(BENCHMARK_STEPS), "a benchmark: one checkpoint, so that what was trained can be proved"),
        "--include_num_input_tokens_seen": ("true", "a benchmark: tokens of every step are counted"),
    }
    args = list(step.command.args)
    substitutions = [s for s in step.substitutions if s.flag not in changes]
    for flag, (value, because) in changes.items():
        before = next((s.documented for s in step.substitutions if s.flag == flag), "")
        if flag in args:
            args[args.index(flag) + 1] = value
        else:
            args += [flag, value]
        substitutions.append(Substitution(flag, before, value, because))
    # A tiny step takes a fraction of a second, and a real one what the documented run of as many steps is given.
    times = BENCHMARK_STEPS / 6 if weights is Weights.TINY else 2.0
    return replace(
        step,
        command=replace(step.command, args=tuple(args)),
        substitutions=tuple(substitutions),
        deadline_s=deadline_s("train", cell, weights, scale) * max(1.0, times / 2),
    )
