"""Tiny random models and their data: offline, in well under a second, the same bytes on every machine, cached by content.

Neither torch nor transformers is imported here, so the controlling process stays light and no device is touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as remember
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError, did_you_mean
from harness.tiny_data import dataset_files
from harness.tiny_moe import moe_settings, moe_shapes
from harness.tiny_tokenizer import MAX_LENGTH, VOCAB_SIZE, speakable_ids, tokenizer_files, vocabulary
from harness.tiny_weights import Array, safetensors_bytes, uniform

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 128, 4, 2, 16
# Blocks far stronger than the embedding: with tied embeddings a strong input embedding makes greedy decoding repeat its last token.
EMBEDDING_STD, PROJECTION_STD, BIAS_STD = 0.12, 0.2, 0.2
SQUARE_EXPERTS = "qwen3_moe_square"


@dataclass(frozen=True)
class Family:
    """How ms-swift and transformers name a family, and what sets its tensors apart. `moe_intermediate`: an expert's width."""

    model_type: str
    template: str
    architecture: str
    qkv_bias: bool
    qk_norm: bool
    seed: int
    moe_intermediate: int | None = None


TINY_FAMILIES: Mapping[str, Family] = {
    "qwen2": Family("qwen2", "qwen2_5", "Qwen2ForCausalLM", qkv_bias=True, qk_norm=False, seed=8),
    "qwen3": Family("qwen3", "qwen3", "Qwen3ForCausalLM", qkv_bias=False, qk_norm=True, seed=2),
    # Packed gate and up matrices are [2 * width, HIDDEN]. Where that is square, code that tells their layout by the shape can't.
    "qwen3_moe": Family("qwen3_moe", "qwen3", "Qwen3MoeForCausalLM", qkv_bias=False, qk_norm=True, seed=1, moe_intermediate=48),
    SQUARE_EXPERTS: Family("qwen3_moe", "qwen3", "Qwen3MoeForCausalLM", qkv_bias=False, qk_norm=True, seed=0, moe_intermediate=HIDDEN // 2),
}


@dataclass(frozen=True)
class TinyModel:
    """A model folder. `model_type` and `template` are ms-swift's; `sha256` covers the names and bytes of all its files."""

    family: str
    model_type: str
    template: str
    path: Path
    sha256: str


def make_tiny_model(family: str, cache: Path) -> TinyModel:
    """The tiny model of `family` under `cache`, built if it is missing or damaged. Safe with several processes at once.

    Raises HarnessError for a family that has no tiny model, and where `cache` can't be written.
    """
    if family not in TINY_FAMILIES:
        raise HarnessError(f"tiny model {family!r}", "no tiny model of this family can be made.", did_you_mean(family, TINY_FAMILIES))
    files = model_files(family)
    path = _stored(files, Path(cache), f"tiny-{family}")
    known = TINY_FAMILIES[family]
    return TinyModel(family, known.model_type, known.template, path, content_hash(files))


def make_datasets(cache: Path) -> Mapping[str, Path]:
    """Data set name (sft, pt, dpo, kto, grpo, embedding, seq_cls, reranker, val) to its jsonl file under `cache`.

    Raises HarnessError where `cache` can't be written.
    """
    files = dataset_files()
    folder = _stored(files, Path(cache), "tiny-data")
    return {name.removesuffix(".jsonl"): folder / name for name in files}


def content_hash(files: Mapping[str, bytes]) -> str:
    """sha256 over the sorted names and bytes of `files`."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return total.hexdigest()


@remember
def model_files(family: str) -> Mapping[str, bytes]:
    """Every file of the family's model folder; KeyError for an unknown family."""
    known, ids = TINY_FAMILIES[family], vocabulary()
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    generation = {"bos_token_id": pad, "eos_token_id": [end, pad], "pad_token_id": pad, "do_sample": True, "temperature": 0.7, "top_p": 0.8}
    return {
        "config.json": _json(_config(known, end, pad)),
        "generation_config.json": _json(generation),
        "model.safetensors": safetensors_bytes(tensors(known)),
        **tokenizer_files(),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _config(family: Family, end: int, pad: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_LENGTH,
        "max_window_layers": LAYERS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": pad,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
    if family.qk_norm:
        config["attention_bias"] = False
    if family.moe_intermediate is not None:
        config.update(moe_settings(family.moe_intermediate))
    return config


def tensors(family: Family) -> Mapping[str, Array]:
    """Parameter name to float32 array. Embedding rows of ids without a token are zero, those of tokens that print nothing readable
    are halved: with tied embeddings the first can't be answered and the second hardly ever. Rows that occur in prompts must not be
    zero, since RMSNorm's gradient at zero is 1/sqrt(eps)."""
    shapes = _shapes(family)
    made: dict[str, Array] = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            made[name] = np.ones(shape, dtype=np.float32)
        else:
            std = EMBEDDING_STD if "embed_tokens" in name else BIAS_STD if name.endswith("bias") else PROJECTION_STD
            made[name] = uniform(name, shape, family.seed, std)
    scale = np.zeros((VOCAB_SIZE, 1), dtype=np.float32)
    scale[list(vocabulary().values())] = 0.5
    scale[list(speakable_ids())] = 1
    made["model.embed_tokens.weight"] = made["model.embed_tokens.weight"] * scale
    return made


def _shapes(family: Family) -> Mapping[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN), "model.norm.weight": (HIDDEN,)}
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, width in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (width, HIDDEN)
            if family.qkv_bias:
                shapes[f"{at}self_attn.{name}_proj.bias"] = (width,)
        shapes[f"{at}self_attn.o_proj.weight"] = (HIDDEN, queries)
        if family.qk_norm:
            shapes[f"{at}self_attn.q_norm.weight"] = (HEAD_DIM,)
            shapes[f"{at}self_attn.k_norm.weight"] = (HEAD_DIM,)
        if family.moe_intermediate is not None:
            shapes.update(moe_shapes(at, HIDDEN, family.moe_intermediate))
        else:
            for name in ("gate", "up"):
                shapes[f"{at}mlp.{name}_proj.weight"] = (INTERMEDIATE, HIDDEN)
            shapes[f"{at}mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
        shapes[f"{at}input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{at}post_attention_layernorm.weight"] = (HIDDEN,)
    return shapes


def _stored(files: Mapping[str, bytes], cache: Path, prefix: str) -> Path:
    """The folder under `cache` that holds exactly `files`; its name carries their hash, so another generator makes another folder."""
    final = cache / f"{prefix}-{content_hash(files)[:12]}"
    try:
        for _ in range(5):
            if _holds(final, files):
                return final
            _swap_in(files, final)
    except OSError as error:
        raise HarnessError(str(final), f"the tiny files can't be written: {error}.", "Name a cache folder that can be written.") from error
    raise HarnessError(str(final), "the folder keeps being damaged by somebody else.", "Remove it, and see what else writes there.")


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether `folder` has these files with these bytes and no others: a stray adapter or weight file would change what a run loads."""
    try:
        if {entry.name for entry in folder.iterdir()} != set(files):
            return False
        return all((folder / name).read_bytes() == data for name, data in files.items())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _swap_in(files: Mapping[str, bytes], final: Path) -> None:
    """Write to a folder beside `final`, then rename: a reader sees the old entry or the whole new one."""
    final.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        for name, data in files.items():
            (fresh / name).write_bytes(data)
        fresh.chmod(0o755)
        if final.exists() and not _holds(final, files):
            _set_aside(final, fresh.with_name(fresh.name + "-damaged"))
        try:
            os.rename(fresh, final)
        except OSError:
            if not final.exists():
                raise  # anything but another process having been faster; the caller judges what that one made
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _set_aside(damaged: Path, aside: Path) -> None:
    try:
        os.rename(damaged, aside)
    except FileNotFoundError:
        return  # another process set it aside first
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()
