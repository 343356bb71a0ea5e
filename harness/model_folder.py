"""The folder of a model as ms-swift knows it: where the weights lie that a checkpoint was trained from, and what its config says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def trained_from(checkpoint: Path) -> Path | None:
    """The untrained model's folder, which ms-swift writes as `model_dir` into a checkpoint's args.json; None if it doesn't say."""
    folder = _object(checkpoint / "args.json").get("model_dir")
    return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None


def config_of(folder: Path) -> Mapping[str, Any]:
    """The folder's config.json; empty where there is none that can be read."""
    return _object(folder / "config.json")


def names_in(folder: Path) -> frozenset[str]:
    """The names of all that lies in the folder; none where there is no such folder."""
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()


def is_tied(folder: Path) -> bool:
    """Whether the model's config says that input and output embeddings are one tensor."""
    return _object(folder / "config.json").get("tie_word_embeddings") is True


def _object(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty where the file is missing or damaged, which the proofs of that folder's weights find and name."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
