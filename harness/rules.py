"""What is asked of a cell here, and which of its stages have a proof."""

from __future__ import annotations

from typing import Any

from harness.model import (
    Algorithm,
    Benchmark,
    Cell,
    Engine,
    Hardware,
    Matrix,
    Options,
    Quarantine,
    Rule,
    Ruling,
    RulingKind,
    Stage,
    Strategy,
    Tuner,
    Weights,
)

# What the harness can prove today. Widening one of these sets is the last step of building a proof.
PROVED_STRATEGIES = frozenset(Strategy) - {Strategy.MEGATRON}
PROVED_ENGINES = frozenset({Engine.TRANSFORMERS})
PROVED_ALGORITHMS = frozenset({Algorithm.SFT, Algorithm.DPO, Algorithm.PT, Algorithm.RM})
PROVED_TUNERS = frozenset({Tuner.LORA, Tuner.FULL})
PROVED_STAGES = frozenset({Stage.TRAIN, Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY})
TINY_FAMILIES = frozenset({"qwen2", "qwen3", "qwen3_moe"})
PROVED_FAMILIES = TINY_FAMILIES

# A plain cpu runs these options; the others need an accelerator's kernels, or more ranks than one
CPU_OPTIONS = frozenset({"lora_dropout", "dtype", "npu_model_patch", "tiny_experts"})
PROVED_OPTIONS = frozenset(
    {"npu_model_patch", "tiny_experts", "fsdp_config", "lora_dropout", "dtype", "sequence_parallel_size", "attn_impl", "padding_free"}
)
CPU_ATTENTION = frozenset({None, "eager", "sdpa"})
# What a plain cpu does as asked: --fsdp on it is silently DDP, and DeepSpeed's own shared-memory operators do not build there.
CPU_STRATEGIES = frozenset({Strategy.SINGLE, Strategy.DDP})

STAGE = "stage"
_NO_TEXT = frozenset({Algorithm.RM, Algorithm.EMBEDDING, Algorithm.SEQ_CLS, Algorithm.RERANKER})
_TRAIN_AND_INFER = frozenset({Algorithm.PPO, Algorithm.GKD})
_ROLLS_OUT = frozenset({Algorithm.GRPO, Algorithm.RLOO, Algorithm.PPO, Algorithm.GKD})
_DEFAULTS = Options()


def field_of(cell: Cell, name: str) -> Any:
    """The value of a field by the name that a rule's `when` uses."""
    match name:
        case "model":
            return cell.model.key
        case "family" | "multimodal" | "moe":
            return getattr(cell.model, name)
        case "algorithm" | "tuner" | "strategy" | "engine":
            return getattr(cell, name)
        case _:
            return getattr(cell.options, name)


def matches(rule: Rule | Quarantine | Benchmark, cell: Cell) -> bool:
    """Whether every field that the rule names has one of the rule's values. `stage` is no field of a cell: `rule_for` asks it."""
    return all(field_of(cell, name) in values for name, values in rule.when.items() if name != STAGE)


def concerns(rule: Rule | Quarantine, stage: Stage | None) -> bool:
    """Whether the rule speaks of `stage` (None: of the cell as a whole). One that names no stage speaks of all."""
    return STAGE not in rule.when or (stage is not None and stage in rule.when[STAGE])


def changed_options(options: Options) -> tuple[str, ...]:
    """The names of the options that differ from the defaults, in the order of `Options`."""
    return tuple(name for name in Options.__dataclass_fields__ if getattr(options, name) != getattr(_DEFAULTS, name))


def required_stages(algorithm: Algorithm, tuner: Tuner, engine: Engine) -> tuple[Stage, ...]:
    """The stages that a mark folds, in running order.

    A trainer whose model writes no text has nothing to infer or serve; DPO generates nothing while it trains, so an engine
    beside it is asked for at infer and deploy, not for a rollout.
    """
    if algorithm in _NO_TEXT:
        return (Stage.TRAIN, Stage.RESUME)
    if algorithm in _TRAIN_AND_INFER:
        stages: tuple[Stage, ...] = (Stage.TRAIN, Stage.INFER)
    elif tuner is Tuner.FULL:
        stages = (Stage.TRAIN, Stage.RESUME, Stage.INFER, Stage.DEPLOY)
    else:
        stages = (Stage.TRAIN, Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY)
    if algorithm in _ROLLS_OUT and engine is not Engine.TRANSFORMERS:
        stages += (Stage.ROLLOUT,)
    return stages


def applicable_stages(cell: Cell) -> tuple[Stage, ...]:
    """The required stages, and eval (as a contract only) where the model writes text; in running order."""
    required = required_stages(cell.algorithm, cell.tuner, cell.engine)
    asked = {*required, Stage.EVAL} if Stage.INFER in required else set(required)
    return tuple(stage for stage in Stage if stage in asked)


def rule_for(
    cell: Cell, matrix: Matrix, *, hardware: Hardware, weights: Weights, rehearsal: bool = False, stage: Stage | None = None
) -> Ruling:
    """What is asked of `cell` on `hardware` with `weights`: excluded, not runnable here, expected to fail, or run.

    `stage`: what is asked of that stage; without it, of the cell, whatever is known of single stages.

    A limit of a cell that can't run here stays visible: the ruling is NOT_RUNNABLE and still names the issue. In a rehearsal an
    unknown revision or number of NPUs doesn't block, since nothing real is loaded.
    """
    found = [rule for rule in matrix.rules if matches(rule, cell) and concerns(rule, stage)]
    excluded = next((rule for rule in found if rule.kind is RulingKind.EXCLUDED), None)
    if excluded is not None:
        return _ruling(excluded)
    limit = next((rule for rule in found if rule.kind is RulingKind.EXPECT_FAIL), None)
    obstacle = _obstacle(cell, hardware, weights, rehearsal)
    if not obstacle:
        return _ruling(limit) if limit is not None else Ruling(RulingKind.RUN)
    if limit is None:
        return Ruling(RulingKind.NOT_RUNNABLE, obstacle)
    because = f"{obstacle} (known limit: {limit.because})"
    return Ruling(RulingKind.NOT_RUNNABLE, because, limit.issue, limit.since, limit.recorded_on, limit.causes)


def proof_gap(cell: Cell, stage: Stage, *, hardware: Hardware, weights: Weights) -> str:
    """Why a run of (cell, stage) would prove nothing yet; empty where the proof is built."""
    if stage not in applicable_stages(cell):
        return f"{stage} is no stage of {cell.algorithm} with {cell.tuner}"
    if stage not in PROVED_STAGES:
        return f"{stage} is a contract until a proof of it is defined"
    for noun, value, proved in (
        ("strategy", cell.strategy, PROVED_STRATEGIES),
        ("engine", cell.engine, PROVED_ENGINES),
        ("algorithm", cell.algorithm, PROVED_ALGORITHMS),
        ("tuner", cell.tuner, PROVED_TUNERS),
        ("family", cell.model.family, PROVED_FAMILIES),
    ):
        if value not in proved:
            return f"the proof of {noun} {value} isn't built yet"
    changed = [name for name in changed_options(cell.options) if name not in PROVED_OPTIONS]
    return f"the proof of option {changed[0]} isn't built yet" if changed else ""


def _ruling(rule: Rule) -> Ruling:
    return Ruling(rule.kind, rule.because, rule.issue, rule.since, rule.recorded_on, rule.causes)


def _obstacle(cell: Cell, hardware: Hardware, weights: Weights, rehearsal: bool) -> str:
    """Why this host can't run the cell; empty where it can."""
    if hardware.is_npu and hardware not in cell.targets:
        return f"the cell is declared for {' and '.join(cell.targets)}, not for {hardware}"
    if weights is Weights.REAL and cell.options.tiny_experts:
        return "the shape of its experts is one of tiny models only"
    if weights is Weights.REAL:
        return _real_obstacle(cell, hardware, rehearsal)
    if cell.model.family not in TINY_FAMILIES:
        return f"no tiny model of family {cell.model.family} is built yet"
    return "" if hardware.is_npu else _host_obstacle(cell, hardware)


def _real_obstacle(cell: Cell, hardware: Hardware, rehearsal: bool) -> str:
    if not hardware.is_npu:
        return "real weights are run on an NPU only: elsewhere they prove no documented row"
    if rehearsal:
        return ""
    unknown = []
    if cell.model.revision is None:
        unknown.append(f"the revision of {cell.model.id}")
    if cell.devices is None and cell.model.devices.get(hardware) is None:
        unknown.append(f"the number of NPUs that it needs on {hardware}")
    return f"unknown in matrix.yaml: {' and '.join(unknown)}" if unknown else ""


def _host_obstacle(cell: Cell, hardware: Hardware) -> str:
    if cell.strategy not in PROVED_STRATEGIES:
        return f"strategy {cell.strategy} isn't built off an NPU yet"
    if cell.engine not in PROVED_ENGINES:
        return f"engine {cell.engine} isn't built off an NPU yet"
    if cell.tuner not in PROVED_TUNERS:
        return f"tuner {cell.tuner} isn't built off an NPU yet"
    if hardware is Hardware.CPU and cell.strategy not in CPU_STRATEGIES:
        return f"a plain cpu does not do {cell.strategy} as asked: a simulated NPU does"
    for name in changed_options(cell.options):
        if hardware is Hardware.SIM and name in PROVED_OPTIONS:
            continue
        if name not in CPU_OPTIONS and not (name == "attn_impl" and cell.options.attn_impl in CPU_ATTENTION):
            return f"option {name} isn't built off an NPU yet"
    return ""
