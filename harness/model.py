"""The vocabulary of the harness: every noun of the pipeline, frozen, with units in the names.

    matrix.yaml -> Matrix -> Cell -> Ruling -> Plan -> Run + Witness -> Metrics -> Outcome -> Comparison -> Verdict -> Evidence
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from functools import cached_property
from typing import Any


class Word(str, Enum):
    """A closed set whose members print as the word that matrix.yaml uses."""

    def __str__(self) -> str:
        return str(self.value)


class Stage(Word):
    """A part of the answer to a cell's question, in the order in which they run."""

    TRAIN = "train"
    RESUME = "resume"
    MERGE = "merge"
    INFER = "infer"
    DEPLOY = "deploy"
    EVAL = "eval"
    ROLLOUT = "rollout"


class Weights(Word):
    TINY = "tiny"
    REAL = "real"


class Hardware(Word):
    """Where work was done, as witnessed by the process that did it."""

    CPU = "cpu"
    SIM = "sim"
    A2 = "a2"
    A3 = "a3"
    A5 = "a5"

    @property
    def is_npu(self) -> bool:
        return self in (Hardware.A2, Hardware.A3, Hardware.A5)


class Algorithm(Word):
    PT = "pt"
    SFT = "sft"
    DPO = "dpo"
    RM = "rm"
    KTO = "kto"
    ORPO = "orpo"
    SIMPO = "simpo"
    CPO = "cpo"
    GRPO = "grpo"
    RLOO = "rloo"
    PPO = "ppo"
    GKD = "gkd"
    EMBEDDING = "embedding"
    SEQ_CLS = "seq_cls"
    RERANKER = "reranker"


class Tuner(Word):
    LORA = "lora"
    FULL = "full"
    QLORA = "qlora"


class Strategy(Word):
    SINGLE = "single"
    DDP = "ddp"
    FSDP1 = "fsdp1"
    FSDP2 = "fsdp2"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    MEGATRON = "megatron"


class Engine(Word):
    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    SGLANG = "sglang"


class Tier(Word):
    """What a cell costs: `contract` is only ever parsed; each later tier includes the ones before it."""

    CONTRACT = "contract"
    PR = "pr"
    NIGHTLY = "nightly"
    WEEKLY = "weekly"


class Blame(Word):
    PRODUCT = "product"
    ENVIRONMENT = "environment"
    HARNESS = "harness"
    UNKNOWN = "unknown"


class RulingKind(Word):
    RUN = "run"
    EXCLUDED = "excluded"
    EXPECT_FAIL = "expect_fail"
    NOT_RUNNABLE = "not_runnable_here"


class VerdictKind(Word):
    """What one stage's run amounts to. Only PASSED and KNOWN_FAILURE are green; UNTESTED and the like are skips with a because."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN_FAILURE = "known_failure"
    FIXED = "fixed"
    UNTESTED = "untested"
    BLOCKED = "blocked"
    INTERRUPTED = "interrupted"
    NOT_RUNNABLE = "not_runnable_here"
    EXCLUDED = "excluded"


class MarkKind(Word):
    VERIFIED = "verified"
    STALE = "stale"
    TINY_NPU = "tiny-npu"
    SIMULATED = "simulated"
    WIRED = "wired"
    FAILING = "failing"
    KNOWN_FAILURE = "known failure"
    FIXED = "fixed?"
    EXCLUDED = "excluded"
    BLOCKED = "blocked"
    UNTESTED = "untested"


@dataclass(frozen=True)
class Options:
    """Typed fields that a cell may set and a rule may match. None: left to ms-swift's default."""

    sequence_parallel_size: int = 1
    context_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    packing: bool = False
    padding_free: bool = False
    liger: bool = False
    attn_impl: str | None = None
    lora_dropout: float | None = None
    target_parameters: tuple[str, ...] = ()
    adapters: int = 1
    npu_model_patch: bool = True
    dtype: str | None = None
    use_mcore_gdn: bool | None = None
    fsdp_config: str | None = None  # strategy fsdp2: the preset but for one setting, harness/launch_configs/fsdp2_<name>.json
    tiny_experts: str | None = None  # "square": experts whose packed weights could be read either way (2I == H); tiny models only


@dataclass(frozen=True)
class Model:
    """A documented checkpoint. `revision` and a device count may be None: unknown, which blocks real runs only."""

    key: str
    id: str
    revision: str | None
    family: str
    params_b: float | None
    devices: Mapping[Hardware, int | None]
    multimodal: bool = False
    moe: bool = False


@dataclass(frozen=True)
class Recipe:
    """What a document's command sets, by the names that the document uses; `settings` values are plain scalars."""

    key: str
    document: str
    section: str
    dataset: tuple[str, ...]
    settings: Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Cell:
    """A question: does (model, algorithm, tuner, strategy, engine, options) run on each of `targets`?

    `devices` is the documented number of NPUs, None where the document does not say.
    `tiny_key` names what a tiny run answers: cells of one family that differ only in size share it.
    `stages`: those that runs of its own tier are about, the others being left to tier weekly; None: all of them.
    """

    id: str
    model: Model
    algorithm: Algorithm
    tuner: Tuner
    strategy: Strategy
    engine: Engine
    options: Options
    targets: tuple[Hardware, ...]
    tier: Tier
    recipe: Recipe
    devices: int | None
    tiny_key: str
    block: str
    line: int
    stages: tuple[Stage, ...] | None = None


@dataclass(frozen=True)
class Ruling:
    """What is asked of a cell here, and why. `because` is empty only for RUN.

    `causes`: for EXPECT_FAIL, the cause ids that are the recorded limit; one that ends in a dot stands for all that start with it.
    """

    kind: RulingKind
    because: str = ""
    issue: str = ""
    since: str = ""
    recorded_on: Hardware | None = None
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Substitution:
    """A difference between the documented command and the one that ran."""

    flag: str
    documented: str
    used: str
    because: str


@dataclass(frozen=True)
class Command:
    """One process to start: never a shell string. `program` is looked up on PATH (swift, accelerate, megatron)."""

    program: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.program, *self.args)


@dataclass(frozen=True)
class Step:
    """One command of a stage. `name` is unique within a cell; a step that two stages need runs once."""

    name: str
    command: Command
    output_dir: str
    deadline_s: float
    substitutions: tuple[Substitution, ...] = ()
    serves: bool = False


@dataclass(frozen=True)
class Run:
    """What a process did. `exit_code` is None when we ended it; `ended_by` says why."""

    step: str
    nonce: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    started_at: str
    duration_s: float
    exit_code: int | None
    ended_by: str  # "exit" | "signal" | "deadline" | "request" (we asked a server to end) | "interrupt" | "not started"
    log_path: str
    log_tail: str
    peak_rss_mib: float | None = None
    leftovers: tuple[str, ...] = ()
    stacks: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Witness:
    """What one process saw of itself: the `events` of its witness file (format: harness/witness/README.md)."""

    nonce: str
    pid: int
    rank: int
    world_size: int
    path: str
    versions: Mapping[str, str]
    events: tuple[Mapping[str, Any], ...]

    def last(self, event: str) -> Mapping[str, Any] | None:
        return next((e for e in reversed(self.events) if e.get("event") == event), None)

    def all(self, event: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(e for e in self.events if e.get("event") == event)


@dataclass(frozen=True)
class MetricRow:
    """One logged optimizer step. `loss` and `grad_norm` are None where the trainer logs none."""

    step: int
    max_steps: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class Metrics:
    rows: tuple[MetricRow, ...]
    summary: Mapping[str, Any]
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Our reading of how a process ended: a cause id, the log line it was read from, and who is to blame."""

    cause: str
    blame: Blame
    line: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class StepResult:
    """A step that ran, with all that is known of it: what the proofs read."""

    step: Step
    run: Run
    witnesses: tuple[Witness, ...]
    metrics: Metrics
    outcome: Outcome


@dataclass(frozen=True)
class Comparison:
    """One thing that was checked. A failed one carries its cause id and blame; a number carries its tolerance's source."""

    name: str
    ok: bool
    expected: str
    found: str
    cause: str = ""
    blame: Blame = Blame.PRODUCT
    error: float | None = None
    tolerance: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Verdict:
    kind: VerdictKind
    because: str
    cause: str = ""
    blame: Blame = Blame.UNKNOWN


@dataclass(frozen=True)
class Evidence:
    """Everything known of one (cell, stage) run, as one JSON object with a content hash (`sha256`, set by the store).

    `hardware` is as witnessed (None: nothing was witnessed); `asked` is what was asked for.
    """

    cell: str
    stage: Stage
    weights: Weights
    hardware: Hardware | None
    asked: Hardware
    stack: str
    tiny_key: str
    facts: Mapping[str, Any]
    nonce: str
    launcher: str
    started_at: str
    duration_s: float
    ruling: Ruling
    steps: tuple[Step, ...]
    runs: tuple[Run, ...]
    witnesses: tuple[Mapping[str, Any], ...]
    metrics: Mapping[str, Any]
    outcome: Outcome
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    rehearsal: bool = False
    schema: int = 1
    sha256: str = ""


@dataclass(frozen=True)
class Claim:
    """What a document says, and how its row was read. `cell` is None where the row names too little to be a cell."""

    document: str
    section: str
    date: str
    row: str
    reading: str
    cell: str | None
    target: Hardware | None
    says: str
    because_no_cell: str = ""


@dataclass(frozen=True)
class Mark:
    """One answer of the support table, for (cell, target hardware)."""

    cell: str
    target: Hardware
    kind: MarkKind
    because: str
    claimed: str
    hardware: Hardware | None
    date: str
    versions: Mapping[str, str]
    evidence: tuple[str, ...]
    beside: str = ""


@dataclass(frozen=True)
class Stack:
    """A declared set of versions (PEP 440 specifiers by distribution or component) that documents stand behind."""

    key: str
    document: str
    requires: Mapping[str, str]
    max_age_days: int


@dataclass(frozen=True)
class Rule:
    """Matches cells by equality of fields; what it says of them (exclude, or expect fail)."""

    when: Mapping[str, tuple[Any, ...]]
    kind: RulingKind
    because: str
    issue: str
    since: str
    recorded_on: Hardware | None
    line: int
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quarantine:
    """Stages whose failure stops nobody up to and including the day `until`. They run all the same, and never show green.

    `line`, `until_line`: where it, and its date, stand in matrix.yaml.
    """

    when: Mapping[str, tuple[Any, ...]]
    because: str
    issue: str
    until: date
    line: int
    until_line: int

    def __str__(self) -> str:
        return f"quarantined until {self.until}: {self.because} ({self.issue})"


@dataclass(frozen=True)
class Benchmark:
    """Cells to measure, and what of them: their training, the serving of what they trained (`kinds`: train, serve)."""

    when: Mapping[str, tuple[Any, ...]]
    kinds: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Matrix:
    """matrix.yaml, expanded. `tables` holds the document's other tables as rows of plain values, in document order.

    `device_hours`: what a run of a tier may cost on NPUs; a tier that is not there has no limit.
    """

    source: str
    sha256: str
    models: Mapping[str, Model]
    hardware: Mapping[Hardware, Mapping[str, Any]]
    stacks: Mapping[str, Stack]
    recipes: Mapping[str, Recipe]
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    rules: tuple[Rule, ...]
    tables: Mapping[str, tuple[Mapping[str, Any], ...]]
    device_hours: Mapping[Tier, float] = field(default_factory=dict)
    quarantine: tuple[Quarantine, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()

    def cell(self, cell_id: str) -> Cell | None:
        return self._by_id.get(cell_id)

    @cached_property
    def _by_id(self) -> Mapping[str, Cell]:
        return {cell.id: cell for cell in reversed(self.cells)}
