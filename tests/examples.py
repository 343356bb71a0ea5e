"""Honest synthetic runs, built from values: two layers of Qwen's shape, a few steps, four questions. Tests bend one thing each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.found import Answer, Answers, AskedLora, CheckpointFiles, Inference, Role, Way
from harness.metrics import parse_logging
from harness.model import (
    Algorithm,
    Blame,
    Cell,
    Command,
    Comparison,
    Engine,
    Hardware,
    Model,
    Options,
    Outcome,
    Recipe,
    Run,
    Step,
    StepResult,
    Strategy,
    Tier,
    Tuner,
    Weights,
    Witness,
)
from harness.proof_required import Asked
from harness.tensors import Tensor, TensorFile, digest, round_to_bfloat16
from harness.vocabulary import Vocabulary
from harness.witness_log import parse_witness

NONCE = "nonce-of-this-run"
HIDDEN, INNER, WORDS = 8, 12, 16
LORA = AskedLora(rank=2, alpha=4.0)
STEPS, SAVES = 4, (2, 4)
BEGAN = 1767225600.0  # 2026-01-01T00:00:00Z
PROJECTIONS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
MODULES = tuple(f"model.layers.{layer}.{name}" for layer in (0, 1) for name in PROJECTIONS)
Event = dict[str, Any]


def cell(algorithm: Algorithm = Algorithm.SFT, tuner: Tuner = Tuner.LORA, strategy: Strategy = Strategy.SINGLE) -> Cell:
    model = Model("tiny", "Qwen/Tiny", None, "qwen2", 0.1, {})
    recipe = Recipe("quick-start", "a document", "a section", ("sft.jsonl",), {})
    return Cell(
        f"tiny/{algorithm}/{tuner}/{strategy}", model, algorithm, tuner, strategy, Engine.TRANSFORMERS, Options(), (Hardware.A2,),
        Tier.PR, recipe, 1, "tiny-key", "a block", 1,
    )  # fmt: skip


def asked(
    tuner: Tuner = Tuner.LORA,
    algorithm: Algorithm = Algorithm.SFT,
    strategy: Strategy = Strategy.SINGLE,
    weights: Weights = Weights.TINY,
    hardware: Hardware = Hardware.CPU,
) -> Asked:
    """What decides which comparisons a pass takes."""
    return Asked(weights, tuner, algorithm, strategy, hardware)


# Tensors


def tensor(values: Any, dtype: str = "F32") -> Tensor:
    array = np.ascontiguousarray(values, dtype=np.float32)
    raw = round_to_bfloat16(array) if dtype == "BF16" else array.astype({"F32": "<f4", "F16": "<f2"}[dtype])
    return Tensor(dtype, array.shape, np.ascontiguousarray(raw).reshape(-1).view(np.uint8))


def base_model(seed: int = 0, dtype: str = "F32") -> TensorFile:
    """Tied embeddings: no lm_head."""
    rng = np.random.default_rng(seed)
    tensors = {"model.embed_tokens.weight": tensor(rng.normal(size=(WORDS, HIDDEN)), dtype)}
    for layer in (0, 1):
        for name, shape in PROJECTIONS.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = tensor(rng.normal(size=shape), dtype)
        tensors[f"model.layers.{layer}.self_attn.q_proj.bias"] = tensor(rng.normal(size=HIDDEN), dtype)
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = tensor(rng.normal(size=HIDDEN), dtype)
    tensors["model.norm.weight"] = tensor(np.ones(HIDDEN), dtype)
    return TensorFile("base", tensors)


def adapter(seed: int = 1, rank: int = LORA.rank, modules: Sequence[str] = MODULES, zero_b: bool = False) -> TensorFile:
    rng = np.random.default_rng(seed)
    tensors = {}
    for module in modules:
        out, inner = PROJECTIONS[module.split(".", 3)[3]]
        tensors[f"base_model.model.{module}.lora_A.weight"] = tensor(rng.normal(size=(rank, inner)))
        tensors[f"base_model.model.{module}.lora_B.weight"] = tensor(np.zeros((out, rank)) if zero_b else rng.normal(size=(out, rank)))
    return TensorFile("adapter", tensors)


def merged_model(base: TensorFile, lora: TensorFile, scaling: float = LORA.scaling, dtype: str = "F32") -> TensorFile:
    """As PEFT merges: B A in float32, scaled, added, rounded to `dtype`."""
    tensors = {name: tensor(found.values(), dtype) for name, found in base.tensors.items()}
    for module in MODULES:
        a = lora.tensors[f"base_model.model.{module}.lora_A.weight"].values().astype(np.float32)
        b = lora.tensors[f"base_model.model.{module}.lora_B.weight"].values().astype(np.float32)
        weight = base.tensors[f"{module}.weight"].values().astype(np.float32)
        tensors[f"{module}.weight"] = tensor(weight + np.float32(scaling) * (b @ a), dtype)
    return TensorFile("merged", tensors)


def with_tensor(file: TensorFile, name: str, values: Any) -> TensorFile:
    return replace(file, tensors={**file.tensors, name: tensor(values, file.tensors[name].dtype)})


def without_tensor(file: TensorFile, name: str) -> TensorFile:
    return replace(file, tensors={n: t for n, t in file.tensors.items() if n != name})


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, found in tensors.items():
        raw = found.raw.tobytes()
        header[name] = {"dtype": found.dtype, "shape": list(found.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    return len(written).to_bytes(8, "little") + written + body


# Runs


ARGUMENTS = ("sft", "--model", "tiny", "--torch_dtype", "float32", "--output_dir", "out", "--max_steps", str(STEPS))


def result(
    events: Sequence[Event], log: str = "", *, arguments: Sequence[str] = ARGUMENTS, name: str = "train", nonce: str = NONCE
) -> StepResult:
    """A run that exited with 0, witnessed by one process."""
    command = Command("swift", tuple(arguments))
    run = Run(name, NONCE, command.argv, {}, "2026-01-01T00:00:00Z", 10.0, 0, "exit", "run.log", "")
    return StepResult(
        Step(name, command, "out", 60.0), run, (witness(events, nonce=nonce),), parse_logging(log), Outcome("none", Blame.UNKNOWN)
    )


def witness(events: Sequence[Event], nonce: str = NONCE, pid: int = 7, rank: int = 0, world_size: int = 1) -> Witness:
    on_each = {"nonce": nonce, "pid": pid, "rank": rank, "world_size": world_size, "time": BEGAN + 1}
    return parse_witness("".join(json.dumps({**on_each, **event}) + "\n" for event in events), f"witness-{pid}.jsonl")


def start(arguments: Sequence[str] = ARGUMENTS) -> Event:
    versions = {"ms-swift": "4.6.0", "torch": "2.14.1", "transformers": "5.19.0", "python": "3.11.9", "torch_npu": None}
    place = {"python": "/site/bin/python", "swift_file": "/site/swift/__init__.py"}
    return {"event": "start", "argv": ["/site/swift/cli/sft.py", *arguments[1:]], "versions": versions, **place}


def loss_of(step: int) -> float:
    return 6.5 - 0.25 * step


def log_events(steps: Sequence[int], scale: float = 1.0) -> list[Event]:
    """What the trainer logged, to more digits than ms-swift writes."""
    found = []
    for step in steps:
        norm = scale * (1.5 + 0.125 * step)
        found.append({"event": "log", "step": step, "loss": scale * loss_of(step), "grad_norm": norm, "learning_rate": 0.01 + 1e-12})
    return found


def log_text(steps: Sequence[int] = range(1, STEPS + 1), max_steps: int = STEPS, scale: float = 1.0) -> str:
    """Losses and gradient norms that depend on the step alone, times `scale`."""
    rows: list[dict[str, Any]] = [
        {
            "loss": round(scale * loss_of(step), 8),
            "grad_norm": round(scale * (1.5 + 0.125 * step), 8),
            "learning_rate": 0.01,
            "global_step/max_steps": f"{step}/{max_steps}",
        }
        for step in steps
    ]
    rows.append({"train_runtime": 0.25, "train_loss": 6.0, "global_step/max_steps": f"{max_steps}/{max_steps}"})
    rows.append({"last_model_checkpoint": "out/checkpoint-4", "log_history": [{"loss": 6.25, "step": 1}]})
    return "".join(json.dumps(row) + "\n" for row in rows)


def weights_at(step: int, tuner: Tuner = Tuner.LORA) -> TensorFile:
    return adapter(seed=100 + step) if tuner is Tuner.LORA else base_model(seed=100 + step)


def train_events(
    first: int = 0, last: int = STEPS, tuner: Tuner = Tuner.LORA, saves: Sequence[int] = SAVES, scale: float = 1.0
) -> list[Event]:
    lora = tuner is Tuner.LORA
    before = digest((adapter(zero_b=True) if lora else base_model()).tensors)
    begin: Event = {
        "event": "train_begin", "device": "cpu", "device_name": "cpu", "simulated": False, "global_step": first, "max_steps": last,
        "wrapped_class": "PeftModelForCausalLM" if lora else "Qwen2ForCausalLM", "model_class": "Qwen2ForCausalLM",
        "distributed_type": "NO", "zero_stage": None, "sharding": None, "backend": None, "param_class": "Parameter",
        "dtypes": {"float32": 1000},
        "numel_local": 1000, "numel_global": 1000, "trainable_tensors": 28, "trainable_numel": 100,
        "trainable_digest": digest(weights_at(first, tuner).tensors) if first else before,
        "adapter_modules": sorted(MODULES) if lora else [],
        "lora": {"r": 2, "lora_alpha": 4, "lora_dropout": 0.05, "scaling": 2.0} if lora else None,
        "arguments": {"max_steps": last, "output_dir": "out/v0-20260101"},
        "control": None, "moments_zeroed": None, "optimizer_moment_norm": 0.5 if first else None,
        "attn_impl": "sdpa", "sequence_parallel": None, "padding_free": False,
    }  # fmt: skip
    events: list[Event] = [start(), begin]
    for step in range(first + 1, last + 1):
        events.append({"event": "step", "step": step, "seconds": 0.1, "tokens": None, "rss_mib": 900.0})
        events += log_events([step], scale)
        if step in saves:
            seen = digest(weights_at(step, tuner).tensors)
            events.append({"event": "save", "step": step, "dir": f"/out/v0/checkpoint-{step}", "trainable_digest": seen})
    end = digest(weights_at(last, tuner).tensors)
    events.append({
        "event": "train_end", "global_step": last, "trainable_digest": end, "first_moments_numel": begin["trainable_numel"],
        "lora_b_max_abs": 1.5 if lora else None, "patched": {}, "offloading": [], "operators": None,
    })  # fmt: skip
    return [*events, {"event": "end", "peak_rss_mib": 950.0}]


def changed(events: Sequence[Event], name: str, **fields: Any) -> list[Event]:
    """The same events, with `fields` of every event `name` replaced."""
    return [{**event, **fields} if event["event"] == name else event for event in events]


def checkpoint(step: int, tuner: Tuner = Tuner.LORA, weights: TensorFile | None = None) -> CheckpointFiles:
    lora = tuner is Tuner.LORA
    return CheckpointFiles(
        dir=f"/out/v0/checkpoint-{step}",
        weights=weights or weights_at(step, tuner),
        is_adapter=lora,
        nonce={"nonce": NONCE, "step": step, "trainable_digest": digest(weights_at(step, tuner).tensors)},
        trainer_state={"global_step": step},
        adapter_config={"r": 2, "lora_alpha": 4.0, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}} if lora else None,
        config=None if lora else {"tie_word_embeddings": True},
        states={"optimizer.pt": 900, "scheduler.pt": 10, "rng_state.pth": 100},
    )


# Inference: token 100 + i is the word i; special tokens 0 to 3.

QUESTIONS = ("how are you", "what is this", "who am i", "why not")
SPOKEN = """how are you what is this who am i why not fine a test nobody because sure thing maybe never"""
WRITTEN = {100 + number: f"\u0120{word}" for number, word in enumerate(SPOKEN.split())}
VOCABULARY = Vocabulary({0: "<|im_start|>", 1: "<|im_end|>", 2: "user", 3: "assistant", **WRITTEN}, frozenset({0, 1}))
SAID = {
    Role.BASE: ("thing", "thing maybe", "never", "sure"),
    Role.ADAPTER: ("fine", "a test", "nobody", "because"),
    Role.FULL: ("fine", "a test", "nobody", "because"),
    Role.MERGED: ("fine", "a test", "nobody", "because"),
}


def ids_of(text: str) -> list[int]:
    number = {token.removeprefix("\u0120"): n for n, token in VOCABULARY.tokens.items()}
    return [number[word] for word in text.split()]


def generate_events(role: Role, texts: Sequence[str] | None = None, questions: Sequence[str] = QUESTIONS) -> list[Event]:
    """One call for all rows."""
    said = SAID[role] if texts is None else texts
    call = {
        "event": "generate", "device": "cpu", "model_class": "Qwen2ForCausalLM", "dtype": "float32",
        "adapters": ["default"] if role is Role.ADAPTER else [], "logits_file": None,
        "prompt_ids": [[0, 2, *ids_of(question), 1, 0, 3] for question in questions],
        "output_ids": [[*ids_of(text), 1] for text in said],
    }  # fmt: skip
    return [start(INFER_ARGUMENTS), call, {"event": "end", "peak_rss_mib": 900.0}]


INFER_ARGUMENTS = ("infer", "--result_path", "r.jsonl", "--temperature", "0")


def inference(role: Role, way: Way = Way.PLAIN, answers: Answers | None = None, events: Sequence[Event] | None = None) -> Inference:
    rows = tuple(Answer(question, text) for question, text in zip(QUESTIONS, SAID[role], strict=True))
    witnessed = generate_events(role) if events is None else events
    ran = result(witnessed, arguments=INFER_ARGUMENTS, name=f"infer-{role}-{way}")
    return Inference(role, way, ran, answers or Answers("r.jsonl", rows), logits(role))


def logits(role: Role) -> Any:
    """[rows, vocabulary]; the merged model's differ from the adapter's by rounding only."""
    rng = np.random.default_rng(5 if role is Role.BASE else 6)
    found = rng.normal(size=(len(QUESTIONS), WORDS)).astype(np.float32)
    return found * np.float32(1 + 1e-6) if role is Role.MERGED else found


# What failed


def causes(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """The causes of all that failed, in order, once each."""
    return tuple(dict.fromkeys(c.cause for c in comparisons if not c.ok))


def bend(events: Sequence[Event], how: Callable[[Event], Event | None]) -> list[Event]:
    """Each event as `how` makes it; None drops it."""
    return [event for event in map(how, events) if event is not None]
