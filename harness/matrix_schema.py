"""What matrix.yaml may say: its shape, its types and its closed sets. The published JSON Schema is made from here."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from harness.model import Algorithm, Engine, Strategy, Tier, Tuner

Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Key = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]
Count = Annotated[int, Field(ge=1, le=4096)]

# Words come as text; strict types would refuse the text of an enum
AlgorithmWord = Annotated[Algorithm, Field(strict=False)]
TunerWord = Annotated[Tuner, Field(strict=False)]
StrategyWord = Annotated[Strategy, Field(strict=False)]
EngineWord = Annotated[Engine, Field(strict=False)]
TierWord = Annotated[Tier, Field(strict=False)]
Target = Literal["a2", "a3", "a5"]
RunTier = Literal["pr", "nightly", "weekly"]
Component = Literal[
    "cann", "deepspeed", "driver", "flash-linear-attention", "mcore-bridge", "megatron-core", "mindspeed", "ms-swift", "peft",
    "python", "torch", "torch_npu", "transformers", "triton-ascend", "vllm", "vllm-ascend",
]  # fmt: skip


def _unknown_is_none(value: Any) -> Any:
    if value is None:
        raise ValueError("nothing is written. Write `unknown` where it is not known")
    return None if value == "unknown" else value


def _or_unknown(schema: dict[str, Any]) -> Any:
    return WithJsonSchema({"anyOf": [schema, {"const": "unknown"}]})


def _real_date(value: str) -> str:
    if value != "undated":
        date.fromisoformat(value)
    return value


def _commit(value: Any) -> Any:
    """A branch, a tag or a mistyped `unknown` would count as pinned, and move."""
    known = _unknown_is_none(value)
    if known is not None and not (isinstance(known, str) and re.fullmatch(_COMMIT, known)):
        raise ValueError(f"{str(known)[:60]!r} pins nothing. Write a commit's 40 small hexadecimal digits, or `unknown`")
    return known


def _written(value: Any) -> Any:
    if value is None:
        raise ValueError("nothing is written. Write a value, or delete the key")
    return value


def _without_null(schema: dict[str, Any]) -> None:
    """A setting may be left out, not left empty."""
    for name, shape in schema["properties"].items():
        kinds = [kind for kind in shape.pop("anyOf", []) if kind != {"type": "null"}]
        shape.pop("default", None)
        schema["properties"][name] = {**shape, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})}


_COMMIT = "^[0-9a-f]{40}$"
Revision = Annotated[str | None, BeforeValidator(_commit), _or_unknown({"type": "string", "pattern": _COMMIT})]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
DatePage = Annotated[str, Field(pattern=r"^(undated|\d{4}-\d{2}-\d{2})$"), AfterValidator(_real_date)]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_real_date)]
# Enough of a name to say which series it is; only an end may be left open
ChipName = Annotated[str, Field(pattern=r"^(Ascend)?[0-9]{3}[A-Za-z0-9_-]*\*?$")]
DeviceName = Annotated[str, Field(pattern=r"^Ascend[0-9]{3}[A-Za-z0-9_-]*\*?$")]
KnownCount = Annotated[Count | None, BeforeValidator(_unknown_is_none), _or_unknown({"type": "integer", "minimum": 1, "maximum": 4096})]
Billions = Annotated[float, Field(gt=0, allow_inf_nan=False)]
KnownBillions = Annotated[Billions | None, BeforeValidator(_unknown_is_none), _or_unknown({"type": "number", "exclusiveMinimum": 0})]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
TinyExperts = Literal["square"]
FsdpConfig = Literal["full_state_dict", "activation_offload"]
StageWord = Literal["train", "resume", "merge", "infer", "deploy", "eval", "rollout"]
Dropout = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Attention = Literal["eager", "sdpa", "flash_attn"]
Dtype = Literal["float32", "float16", "bfloat16"]


class Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DocumentShape(Shape):
    """A page that claims are quoted from. `date` is the page's own, or `undated`."""

    title: Text
    path: Text
    date: DatePage


class HardwareShape(Shape):
    product: Text
    chips: Annotated[list[ChipName], Field(min_length=1)]
    device_names: Annotated[list[DeviceName], Field(min_length=1)]


class ModelShape(Shape):
    """`params_b`: parameters in billions. `devices`: NPUs that the documents use, by target."""

    id: ModelId
    revision: Revision
    family: Key
    params_b: KnownBillions
    devices: dict[Target, KnownCount]
    multimodal: bool = False
    moe: bool = False


class SettingsShape(Shape):
    """What a documented command may set; every name means what ms-swift's flag of that name means."""

    model_config = ConfigDict(json_schema_extra=_without_null)

    num_train_epochs: Number | None = None
    learning_rate: Number | None = None
    gradient_accumulation_steps: Count | None = None
    per_device_train_batch_size: Count | None = None
    per_device_eval_batch_size: Count | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    save_steps: Annotated[int, Field(ge=1)] | None = None
    eval_steps: Annotated[int, Field(ge=1)] | None = None
    save_total_limit: Count | None = None
    logging_steps: Count | None = None
    lora_rank: Count | None = None
    lora_alpha: Count | None = None
    target_modules: Text | None = None
    split_dataset_ratio: Dropout | None = None
    torch_dtype: Dtype | None = None
    group_by_length: bool | None = None
    dataset_num_proc: Count | None = None
    dataloader_num_workers: Annotated[int, Field(ge=0, le=4096)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    stream: bool | None = None
    served_model_name: Text | None = None
    output_dir: Text | None = None
    gradient_checkpointing: bool | None = None
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    warmup_ratio: Dropout | None = None
    system: Text | None = None

    _no_null = field_validator("*", mode="before")(_written)


class RecipeShape(Shape):
    """A documented command's settings. `default_for`: algorithms whose cells take it when their block names none."""

    document: Key
    section: Text
    dataset: Annotated[list[Text], Field(min_length=1)]
    settings: SettingsShape
    default_for: list[AlgorithmWord] = []
    multimodal: bool = False


class StackShape(Shape):
    document: Key
    section: Text
    requires: Annotated[dict[Component, str], Field(min_length=1)]
    max_age_days: Annotated[int, Field(ge=1, le=365)]


class TableShape(Shape):
    """A document's table, in its order; every row has the same columns (`_zh` and `_en` where the cells are words)."""

    document: Key
    section: Text
    rows: Annotated[list[dict[str, str | int | float | bool | None]], Field(min_length=1)]


class OptionsShape(Shape):
    sequence_parallel_size: Count = 1
    context_parallel_size: Count = 1
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    expert_parallel_size: Count = 1
    expert_tensor_parallel_size: Count = 1
    packing: bool = False
    padding_free: bool = False
    liger: bool = False
    attn_impl: Attention | None = None
    lora_dropout: Dropout | None = None
    target_parameters: list[Text] = []
    adapters: Count = 1
    npu_model_patch: bool = True
    dtype: Dtype | None = None
    use_mcore_gdn: bool | None = None
    fsdp_config: FsdpConfig | None = None
    tiny_experts: TinyExperts | None = None


class BlockShape(Shape):
    """A product: models x algorithms x tuners x strategies x engines x option sets, each on every hardware named."""

    models: Annotated[list[Key], Field(min_length=1)]
    algorithms: Annotated[list[AlgorithmWord], Field(min_length=1)]
    tuners: Annotated[list[TunerWord], Field(min_length=1)]
    strategies: Annotated[list[StrategyWord], Field(min_length=1)]
    engines: Annotated[list[EngineWord], Field(min_length=1)] = [Engine.TRANSFORMERS]
    options: Annotated[list[OptionsShape], Field(min_length=1)] = [OptionsShape()]
    hardware: Annotated[list[Target], Field(min_length=1)]
    tier: TierWord
    recipe: Key | None = None
    devices: Count | None = None
    nodes: Count = 1
    stages: Annotated[list[StageWord], Field(min_length=1)] | None = None


class ClaimedShape(Shape):
    """Which cells a row speaks of, its model apart."""

    algorithm: AlgorithmWord
    tuner: TunerWord
    strategies: Annotated[list[StrategyWord], Field(min_length=1)]
    engine: EngineWord = Engine.TRANSFORMERS
    options: OptionsShape = OptionsShape()
    devices: Count | None = None


class ClaimShape(Shape):
    """Rows of one table, read in one way. `models`: row number (from 1) to model; `rows`: rows that are no cell.

    What the rows say is `says`, or the content of the column `says_column`.
    """

    table: Key
    reading: Text
    models: dict[int, Key] = {}
    rows: list[int] = []
    cells: ClaimedShape | None = None
    hardware: list[Target] = []
    says: Text | None = None
    says_column: Text | None = None
    because_no_cell: Text | None = None


class WhenShape(Shape):
    """A cell matches when each field named here has one of the values listed."""

    model: list[Key] | None = None
    family: list[Key] | None = None
    multimodal: list[bool] | None = None
    moe: list[bool] | None = None
    algorithm: list[AlgorithmWord] | None = None
    tuner: list[TunerWord] | None = None
    strategy: list[StrategyWord] | None = None
    engine: list[EngineWord] | None = None
    sequence_parallel_size: list[Count] | None = None
    context_parallel_size: list[Count] | None = None
    tensor_parallel_size: list[Count] | None = None
    pipeline_parallel_size: list[Count] | None = None
    expert_parallel_size: list[Count] | None = None
    expert_tensor_parallel_size: list[Count] | None = None
    packing: list[bool] | None = None
    padding_free: list[bool] | None = None
    liger: list[bool] | None = None
    attn_impl: list[Attention | None] | None = None
    lora_dropout: list[Dropout | None] | None = None
    target_parameters: list[list[Text]] | None = None
    adapters: list[Count] | None = None
    npu_model_patch: list[bool] | None = None
    dtype: list[Dtype | None] | None = None
    use_mcore_gdn: list[bool | None] | None = None
    fsdp_config: list[FsdpConfig | None] | None = None
    tiny_experts: list[TinyExperts | None] | None = None
    stage: list[StageWord] | None = None


class RuleShape(Shape):
    """Excluded (`exclude: true`: the combination has no meaning), or expected to fail (a limit, with its issue and since when).

    `causes`: the cause ids of harness/causes.py that are the limit, or beginnings of them (`golden.`); a failure of another cause counts
    as a failure. Without them a mistyped command, a crash without a known cause and a failed proof never count as the limit.
    """

    when: WhenShape
    because: Text
    exclude: Literal[True] | None = None
    expect: Literal["fail"] | None = None
    issue: Text | None = None
    since: Text | None = None
    recorded_on: Literal["cpu", "sim", "a2", "a3", "a5"] | None = None
    causes: list[Text] = []


class QuarantineShape(Shape):
    """Stages that run, and whose failure stops nobody until a day, at most 90 days ahead; from then on the entry itself is the failure."""

    when: WhenShape
    because: Text
    issue: Text
    until: Day


class BenchmarkShape(Shape):
    """Cells that `pytest -m npu_benchmark` measures: their training, the serving of what they trained, or both."""

    when: WhenShape
    kinds: Annotated[list[Literal["train", "serve"]], Field(min_length=1)]


class TierShape(Shape):
    """What a run of a tier may cost: a run with NPUs starts no cell that would take it beyond `device_hours`."""

    device_hours: Number


class MatrixShape(Shape):
    documents: dict[Key, DocumentShape]
    hardware: dict[Target, HardwareShape]
    models: dict[Key, ModelShape]
    stacks: dict[Key, StackShape] = {}
    recipes: dict[Key, RecipeShape]
    tables: dict[Key, TableShape] = {}
    cells: Annotated[dict[Key, BlockShape], Field(min_length=1)]
    claims: list[ClaimShape] = []
    rules: list[RuleShape] = []
    quarantine: list[QuarantineShape] = []
    benchmarks: list[BenchmarkShape] = []
    tiers: dict[RunTier, TierShape] = {}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of matrix.yaml, published as harness/schemas/matrix.schema.json."""
    schema = MatrixShape.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "matrix.yaml"}
