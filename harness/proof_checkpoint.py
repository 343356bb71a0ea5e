"""Proof of checkpoints: they are there, whole, of this run, and hold the very weights that were witnessed when they were saved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from harness.compare import check
from harness.found import AskedLora, CheckpointFiles
from harness.model import Comparison, Strategy, Weights, Witness
from harness.packed_experts import packed
from harness.tensors import Tensor, TensorFile, canonical, digest

_TEXT_LINEAR = re.compile(r"(.*\.layers\.\d+\..+)\.weight")
_EXPERT = re.compile(r"(.*)\.experts\.\d+\..*")
_NOT_TEXT = ("visual", "vision", "audio")
_LORA = re.compile(r"(.+)\.lora_([AB])\.weight")


@dataclass(frozen=True)
class Layout:
    """Where a checkpoint keeps the optimizer's state, and whether its weights lie in shards that hold no adapter_config.json."""

    optimizer: tuple[str, ...] = ("optimizer.pt",)
    sharded: bool = False


def layout_of(strategy: Strategy, fsdp_config: str | None, dtype: str | None) -> Layout:
    """As accelerate 1.15 and DeepSpeed 0.19 write them under ms-swift 4.6."""
    if strategy in (Strategy.ZERO2, Strategy.ZERO3):
        half = "bf16_" if dtype == "bfloat16" else ""
        return Layout((f"global_step{{step}}/{half}zero_pp_rank_{{rank}}_mp_rank_00_optim_states.pt",))
    if strategy is Strategy.FSDP1 or (strategy is Strategy.FSDP2 and fsdp_config == "full_state_dict"):
        return Layout(("optimizer.bin",))
    return Layout(("optimizer_0",), sharded=True) if strategy is Strategy.FSDP2 else Layout()


def prove_checkpoints(
    *,
    weights: Weights,
    witness: Witness,
    nonce: str,
    steps: Sequence[int],
    found: Mapping[int, CheckpointFiles],
    base: TensorFile,
    asked: AskedLora | None,
    layout: Layout,
    ranks: int,
) -> tuple[Comparison, ...]:
    """The checkpoint of every step of `steps`: present, whole, of this run, with the asked adapter or with changed full weights.

    A checkpoint that fails one question is not asked the next, so that each is blamed for one thing.
    """
    made: list[Comparison] = []
    left = list(steps)

    def ask(name: str, cause: str, expected: str, problem: Callable[[int], str]) -> None:
        problems = {step: text for step in left if (text := problem(step))}
        told = "; ".join(f"checkpoint-{step}: {text}" for step, text in problems.items())
        ok = bool(steps) and not problems
        made.append(check(f"train.checkpoint.{name}", ok, cause, expected, told or (f"of steps {list(steps)}" if steps else "none asked")))
        left[:] = [step for step in left if step not in problems]

    final = witness.last("train_end") or {}
    last = max(steps, default=0)
    ask("present", "proof.checkpoint_missing", "every file", lambda step: _absent(found.get(step), step, asked is not None, layout, ranks))
    ask("whole", "proof.checkpoint_damaged", "files that can be read to their end", lambda step: found[step].fault)
    ask("of_this_run", "proof.checkpoint_stale", f"nonce {nonce}", lambda step: _stale(found[step], step, nonce))
    ask("witnessed", "proof.checkpoint_stale", "a save as witnessed", lambda step: _unwitnessed(found[step], step, witness))
    if asked is not None:
        modules = wanted_modules(base, asked, packs_experts(witness))
        ask("adapter", "proof.adapter_rank", f"r {asked.rank}, alpha {asked.alpha:g}", lambda step: _wrong_rank(found[step], asked, layout))
        ask("modules", "proof.adapter_modules", f"{len(modules)} modules", lambda step: _wrong_modules(found[step], modules))
        ask("lora_b", "proof.lora_b_zero", "a LoRA B that is not zero", lambda step: _zero_b(found[step]))
    else:
        ask("trained", "proof.weights_unchanged", "other weights than the base model's", lambda step: _untrained(found[step], base))
    ask("finite", "train.nan", "finite weights", lambda step: _not_finite(found[step]))
    dtypes = _witnessed_dtypes(witness)
    recast = [step for step in left if not _stored_dtypes(found[step]) <= dtypes]
    # A real model may be saved in another dtype than it was trained in; a tiny one is made so that it is not.
    if weights is Weights.TINY or not recast:
        ask("digest", "proof.checkpoint_stale", "the digest witnessed", lambda step: _other_digest(found[step], step, witness, dtypes))
    ask(
        "last",
        "proof.checkpoint_stale",
        "the weights that training ended with",
        lambda step: "" if step != last else _differs(_saved(witness, step).get("trainable_digest"), final.get("trainable_digest")),
    )
    numel = (witness.last("train_begin") or {}).get("trainable_numel")
    ask("optimizer", "proof.optimizer", "two moments a parameter", lambda step: _thin_optimizer(found[step], numel))
    return tuple(made)


def packs_experts(witness: Witness) -> bool:
    """Whether a mixture's experts and its router are tensors in memory and no linear layers: since transformers 5."""
    return witness.versions.get("transformers", "").partition(".")[0] not in ("", "3", "4")


def wanted_modules(base: TensorFile, asked: AskedLora, packed_experts: bool) -> frozenset[str]:
    """The modules that `asked` means: every linear layer of the base model's text layers, or those of them that it names.

    `packed_experts`: see `packs_experts`. Documents say so too: experts then take part by --target_parameters only.
    """
    linears = {
        match.group(1)
        for name, tensor in base.tensors.items()
        if (match := _TEXT_LINEAR.fullmatch(name)) and len(tensor.shape) == 2 and not any(word in name for word in _NOT_TEXT)
    }
    if packed_experts:
        mixtures = {found.group(1) for name in linears if (found := _EXPERT.fullmatch(name))}
        linears = {name for name in linears if not _EXPERT.fullmatch(name) and name.removesuffix(".gate") not in mixtures}
    if asked.target_modules == ("all-linear",):
        return frozenset(linears)
    return frozenset(name for name in linears if name.rpartition(".")[2] in asked.target_modules)


def lora_pairs(weights: TensorFile) -> dict[str, dict[str, Tensor]]:
    """Module, by the base model's name, to its {"A": [r, in], "B": [out, r]}."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights.tensors.items():
        if match := _LORA.fullmatch(canonical(name)):
            pairs.setdefault(match.group(1), {})[match.group(2)] = tensor
    return pairs


def _absent(files: CheckpointFiles | None, step: int, adapter: bool, layout: Layout, ranks: int) -> str:
    if files is None:
        return "no such folder"
    missing = []
    if files.weights is None or (not files.weights.tensors and not files.weights.fault):
        missing.append("weights")
    elif files.is_adapter != adapter and not files.weights.fault:
        missing.append("adapter_model.safetensors" if adapter else "model.safetensors")
    if adapter and not layout.sharded and files.adapter_config is None and "adapter_config.json" not in files.fault:
        missing.append("adapter_config.json")
    if files.trainer_state is None and "trainer_state.json" not in files.fault:
        missing.append("trainer_state.json")
    generators = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    optimizer = [name.format(step=step, rank=rank) for name in layout.optimizer for rank in range(ranks if "{rank}" in name else 1)]
    wanted = [*optimizer, "scheduler.pt", *generators]
    missing += [name for name in wanted if name not in files.states and PurePath(name).name not in files.fault]
    return f"without {', '.join(missing)}" if missing else ""


def _stale(files: CheckpointFiles, step: int, nonce: str) -> str:
    if files.nonce is None:
        return "no npu_matrix_nonce.json: not saved under our witness"
    if files.nonce.get("nonce") != nonce:
        return f"nonce {files.nonce.get('nonce')!r} of another run"
    at, marked = (files.trainer_state or {}).get("global_step"), files.nonce.get("step")
    return "" if (at, marked) == (step, step) else f"trainer_state.json is at step {at}, the nonce at {marked}"


def _saved(witness: Witness, step: int) -> Mapping[str, object]:
    return next((event for event in reversed(witness.all("save")) if event.get("step") == step), {})


def _unwitnessed(files: CheckpointFiles, step: int, witness: Witness) -> str:
    saved = _saved(witness, step)
    if not saved:
        return "no save witnessed"
    if PurePath(str(saved.get("dir"))).name != PurePath(files.dir).name:
        return f"the witnessed save went to {PurePath(str(saved.get('dir'))).name}"
    return _differs((files.nonce or {}).get("trainable_digest"), saved.get("trainable_digest"))


def _other_digest(files: CheckpointFiles, step: int, witness: Witness, dtypes: frozenset[str]) -> str:
    assert files.weights is not None  # asked by `present`
    stored = _stored_dtypes(files)
    if not stored <= dtypes:
        return f"saved as {', '.join(sorted(stored))} from {', '.join(sorted(dtypes)) or 'unknown dtypes'}: no digest can be compared"
    return _differs(digest(packed(files.weights.tensors)), _saved(witness, step).get("trainable_digest"))


def _stored_dtypes(files: CheckpointFiles) -> frozenset[str]:
    return frozenset(tensor.plain_dtype for tensor in files.weights.tensors.values()) if files.weights else frozenset()


def _witnessed_dtypes(witness: Witness) -> frozenset[str]:
    named = (witness.last("train_begin") or {}).get("dtypes")
    return frozenset(str(name).removeprefix("torch.") for name in named) if isinstance(named, Mapping) else frozenset()


def _differs(found: object, expected: object) -> str:
    return "" if found and found == expected else f"digest {str(found)[:12]}, expected {str(expected)[:12]}"


def _wrong_rank(files: CheckpointFiles, asked: AskedLora, layout: Layout) -> str:
    assert files.weights is not None
    config = files.adapter_config or {}
    found = (config.get("r"), config.get("lora_alpha"), bool(config.get("use_rslora")))
    told = files.adapter_config is not None or not layout.sharded
    if told and (found != (asked.rank, asked.alpha, asked.rslora) or config.get("rank_pattern") or config.get("alpha_pattern")):
        return f"adapter_config.json says r, alpha, rslora {found}"
    ranks = {pair["A"].shape[0] for pair in lora_pairs(files.weights).values() if "A" in pair}
    ranks |= {pair["B"].shape[-1] for pair in lora_pairs(files.weights).values() if "B" in pair}
    return "" if ranks <= {asked.rank} else f"tensors of rank {sorted(ranks)}"


def _wrong_modules(files: CheckpointFiles, wanted: frozenset[str]) -> str:
    assert files.weights is not None
    pairs = lora_pairs(files.weights)
    halves = sorted(name for name, pair in pairs.items() if set(pair) != {"A", "B"})
    lacking, extra = sorted(wanted - pairs.keys()), sorted(pairs.keys() - wanted)
    if not wanted:
        return "the base model names no module to compare with"
    return f"lacking {lacking[:4]}, extra {extra[:4]}, half {halves[:4]}" if lacking or extra or halves else ""


def _zero_b(files: CheckpointFiles) -> str:
    assert files.weights is not None
    moved = (bool(np.any(pair["B"].values())) for pair in lora_pairs(files.weights).values() if "B" in pair)
    return "" if any(moved) else "every LoRA B is zero"


def _untrained(files: CheckpointFiles, base: TensorFile) -> str:
    assert files.weights is not None
    shared = [name for name in files.weights.tensors if name in base.tensors]
    if not shared:
        return "not one tensor that the base model has"
    same = all(np.array_equal(files.weights.tensors[name].values(), base.tensors[name].values()) for name in shared)
    return "every tensor equals the base model's" if same else ""


def _not_finite(files: CheckpointFiles) -> str:
    assert files.weights is not None
    wild = _wild(files.weights.tensors.items())
    return f"not finite: {', '.join(wild[:4])}" if wild else ""


def _wild(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    return [name for name, tensor in tensors if not bool(np.isfinite(tensor.values()).all())]


def _thin_optimizer(files: CheckpointFiles, numel: object) -> str:
    # Adam keeps two moments a parameter, of two bytes at least.
    if files.moments is not None:
        whole = isinstance(numel, int) and files.moments == 2 * numel
        return "" if whole else f"moments of {files.moments} entries, not two for {numel} parameters"
    least = 4 * numel if isinstance(numel, int) else 1
    size = sum(held for name, held in files.states.items() if "optim" in name)
    return "" if size >= least else f"the optimizer's files hold {size} bytes, not the {least} of two moments for {numel} parameters"
