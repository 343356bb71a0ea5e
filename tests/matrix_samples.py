"""A small Matrix built by hand: five cells that between them have every kind of row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.model import (
    Algorithm,
    Cell,
    Claim,
    Engine,
    Evidence,
    Hardware,
    Matrix,
    Model,
    Options,
    Recipe,
    Ruling,
    RulingKind,
    Stack,
    Stage,
    Strategy,
    Tier,
    Tuner,
)

STAGES = (Stage.TRAIN, Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY)
STACK = Stack("docs", "NPU support", {"torch": ">=2.7.1", "torch_npu": ">=2.7.1", "cann": ">=8.5.1"}, 45)
RECIPE = Recipe("quick", "NPU support", "quick start", ("d",), {})


def model(key: str, name: str, family: str, revision: str | None = None) -> Model:
    return Model(key, name, revision, family, 8.0, {Hardware.A2: None})


def cell(cell_id: str, of: Model, **changes: object) -> Cell:
    plain = Cell(
        id=cell_id,
        model=of,
        algorithm=Algorithm.SFT,
        tuner=Tuner.LORA,
        strategy=Strategy.SINGLE,
        engine=Engine.TRANSFORMERS,
        options=Options(),
        targets=(Hardware.A2,),
        tier=Tier.PR,
        recipe=RECIPE,
        devices=1,
        tiny_key=f"tiny-{of.family}",
        block="b",
        line=1,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


SMALL, BIG = model("small", "Qwen/Qwen3-0.6B", "qwen3", "r1"), model("big", "Qwen/Qwen3-8B", "qwen3", "r2")
OTHER = model("vl", "X/A|B_C-VL", "vl")
CELLS = (
    cell("small", SMALL),
    cell("big", BIG),
    cell("zero2", BIG, strategy=Strategy.ZERO2, tiny_key="tiny-zero2", targets=(Hardware.A2, Hardware.A3)),
    cell("grpo", BIG, algorithm=Algorithm.GRPO, engine=Engine.VLLM, tiny_key="tiny-grpo"),
    cell("parsed", OTHER, tier=Tier.CONTRACT, tiny_key="tiny-vl"),
)
SFT_ROW = {"algorithm": "SFT", "models": "Qwen3-8B", "strategy": "deepspeed", "hardware": "Atlas 900 A2 PODc/A3 SuperPoD"}
RL_ROW = {"algorithm": "GRPO", "models": "Qwen3-8B", "strategy": "deepspeed", "engine": "vllm-ascend", "hardware": "Atlas 900 A2 PODc"}
FEATURE = {"group_zh": "训练范式", "group_en": "Training", "feature_zh": "SFT", "feature_en": "SFT"}
FEATURE |= {"state_zh": "已支持", "state_en": "supported"}
TABLES = {
    "products": ({"product_zh": "Atlas A2 训练系列产品", "product_en": "Atlas A2 training series", "supported": True, "hardware": "a2"},),
    "features": (FEATURE,),
    "sft": (SFT_ROW,),
    "rl": (RL_ROW,),
    "unsupported": ({"item_zh": "量化/QLoRA相关", "item_en": "quantisation and QLoRA"},),
    "qwen3_5": ({"limit_zh": "--packing true | x", "limit_en": "--packing true | x"},),
    "memory": ({"model_size": "7B", "npus": 1, "deepspeed": "None", "max_memory": "1 * 28 GB"},),
}


def _claim(cell_id: str | None, target: Hardware | None, row: dict[str, str]) -> Claim:
    text, why = " | ".join(row.values()), "" if cell_id else "no model named"
    return Claim("NPU support", "combinations", "undated", text, "as it stands", cell_id, target, "verified", why)


CLAIMS = (
    _claim("zero2", Hardware.A2, SFT_ROW),
    _claim("zero2", Hardware.A3, SFT_ROW),
    _claim("grpo", Hardware.A2, RL_ROW),
    replace(_claim(None, None, {}), row="7B | 1 | None | 1 * 28 GB"),
)
MATRIX = Matrix(
    source="matrix.yaml",
    sha256="0" * 64,
    models={m.key: m for m in (SMALL, BIG, OTHER)},
    hardware={
        Hardware.A2: {"product": "Atlas 900 A2 PODc", "chips": ["910B1"], "device_names": ["Ascend910B*"]},
        Hardware.A3: {"product": "Atlas 900 A3 SuperPoD", "chips": ["Ascend910"], "device_names": ["Ascend910_93*"]},
    },
    stacks={"docs": STACK},
    recipes={"quick": RECIPE},
    cells=CELLS,
    claims=CLAIMS,
    rules=(),
    tables=TABLES,
)


def required_stages(algorithm: Algorithm, tuner: Tuner, engine: Engine) -> tuple[Stage, ...]:
    return STAGES


def no_rule(cell: Cell, stage: Stage | None) -> Ruling:
    return Ruling(RulingKind.RUN)


def no_gap(cell: Cell, piece: Evidence) -> str:
    return ""


def ruled(cell_id: str, ruling: Ruling) -> Callable[[Cell, Stage | None], Ruling]:
    return lambda cell, stage: ruling if cell.id == cell_id else Ruling(RulingKind.RUN)
