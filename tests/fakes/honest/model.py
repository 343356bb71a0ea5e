"""A model as a command line names it: folder, weights, adapter, tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fakes.honest.arguments import Arguments
from fakes.honest.habits import Honest
from fakes.honest.network import Adapter, Network
from fakes.honest.tensors import Array, read_model, read_safetensors, rounded, write_safetensors
from fakes.honest.text import Tokenizer

COMPANIONS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class Loaded:
    folder: Path
    weights: dict[str, Array]
    dtypes: dict[str, str]
    config: dict[str, Any]
    tokenizer: Tokenizer

    @property
    def dtype(self) -> str:
        return next(iter(self.dtypes.values()))

    @property
    def model_class(self) -> str:
        return str(self.config["architectures"][0])


def folder_of(model: str, models: str = "") -> Path:
    """The local folder of `model`; under a rehearsal `models` holds a stand-in for every hub id."""
    if (Path(model) / "config.json").is_file():
        return Path(model)
    stand_in = Path(models) if models else None
    if stand_in and (stand_in / "config.json").is_file():
        return stand_in
    raise ValueError(f"The model {model!r} is neither a folder nor in the cache, and the hub can't be reached.")


def load(model: str, models: str = "", dtype: str = "") -> Loaded:
    """`dtype`: as --torch_dtype; empty: as stored."""
    folder = folder_of(model, models)
    weights, dtypes = read_model(folder)
    if dtype in STORED:
        dtypes = dict.fromkeys(weights, STORED[dtype])
        weights = {name: rounded(array, dtypes[name]) for name, array in weights.items()}
    config = json.loads((folder / "config.json").read_text())
    rows = next(array.shape[0] for name, array in weights.items() if name.endswith("embed_tokens.weight"))
    return Loaded(folder, weights, dtypes, config, Tokenizer(folder, rows))


def targets(loaded: Loaded, names: list[str]) -> list[str]:
    """Weights that get a LoRA: all linear layers of the body, or those whose module is named."""
    matrices = [name for name in sorted(loaded.weights) if loaded.weights[name].ndim == 2 and ".layers." in name]
    if not names or names == ["all-linear"]:
        return matrices
    return [name for name in matrices if name.split(".")[-2] in names]


def lora_name(weight: str, side: str) -> str:
    return f"base_model.model.{weight.removesuffix('.weight')}.lora_{side}.weight"


def adapter_of(tensors: dict[str, Array], weights: dict[str, Array], scaling: float) -> Adapter:
    named = [name for name in weights if lora_name(name, "A") in tensors]
    return Adapter({n: tensors[lora_name(n, "A")] for n in named}, {n: tensors[lora_name(n, "B")] for n in named}, scaling)


def read_adapter(folder: Path, weights: dict[str, Array]) -> Adapter:
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors, _ = read_safetensors(folder / "adapter_model.safetensors")
    return adapter_of(tensors, weights, float(config["lora_alpha"]) / int(config["r"]))


def network_for(arguments: Arguments, adapters: list[str], habits: Honest) -> tuple[Loaded, Network]:
    loaded = load(arguments.text("model"), str(habits.settings.get("models", "")), habits.dtype(arguments.text("torch_dtype")))
    weights = habits.weights(loaded.weights, adapters)
    return loaded, Network(weights, read_adapter(Path(adapters[0]), loaded.weights) if adapters else None)


def write_model(folder: Path, source: Path, weights: dict[str, Array], dtypes: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    write_safetensors(folder / "model.safetensors", weights, dtypes)


def lora_product(adapter: Adapter) -> dict[str, Array]:
    return {name: np.float32(adapter.scaling) * (adapter.b[name] @ adapter.a[name]) for name in adapter.a}
