"""The data sets of tiny runs: a few dozen rows each, in the formats that ms-swift reads, from a seeded generator."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from harness.tiny_tokenizer import WORDS

Row = dict[str, Any]
SEED = 20260630
ROWS = 64
VAL_ROWS = 5


def _words(rng: random.Random, count: int) -> str:
    # random.Random.random() is the one method whose stream Python promises to keep.
    return " ".join(WORDS[int(rng.random() * len(WORDS))] for _ in range(count))


def _user(rng: random.Random) -> Row:
    return {"role": "user", "content": _words(rng, 8) + "?"}


def _assistant(rng: random.Random, count: int = 10) -> Row:
    return {"role": "assistant", "content": _words(rng, count) + "."}


def _chat(rng: random.Random, _: int) -> Row:
    return {"messages": [_user(rng), _assistant(rng)]}


def _pretraining(rng: random.Random, _: int) -> Row:
    return {"messages": [_assistant(rng, 40)]}


def _preference(rng: random.Random, _: int) -> Row:
    return {"messages": [_user(rng), _assistant(rng)], "rejected_response": _words(rng, 10) + "!"}


def _binary_preference(rng: random.Random, i: int) -> Row:
    return {"messages": [_user(rng), _assistant(rng)], "label": bool(i % 2)}


def _prompt(rng: random.Random, _: int) -> Row:
    return {"messages": [_user(rng)], "solution": _words(rng, 2)}


def _pair(rng: random.Random, _: int) -> Row:
    return {"messages": [_user(rng)], "positive_messages": [[_user(rng)]], "negative_messages": [[_user(rng)]]}


def _label(rng: random.Random, i: int) -> Row:
    return {"messages": [_user(rng)], "label": i % 2}


def _ranking(rng: random.Random, _: int) -> Row:
    return {
        "messages": [_user(rng)],
        "positive_messages": [[_assistant(rng)]],
        "negative_messages": [[_assistant(rng)], [_assistant(rng)]],
    }


MAKERS: Mapping[str, tuple[Callable[[random.Random, int], Row], int]] = {
    "sft": (_chat, ROWS),
    "pt": (_pretraining, ROWS),
    "dpo": (_preference, ROWS),
    "kto": (_binary_preference, ROWS),
    "grpo": (_prompt, ROWS),
    "embedding": (_pair, ROWS),
    "seq_cls": (_label, ROWS),
    "reranker": (_ranking, ROWS),
    "val": (_chat, VAL_ROWS),
}


def dataset_files() -> Mapping[str, bytes]:
    """`<name>.jsonl` to its bytes, for every name in MAKERS; each is seeded by its own name."""
    files = {}
    for name, (make, count) in MAKERS.items():
        rng = random.Random(f"{SEED}/{name}")
        files[f"{name}.jsonl"] = "".join(json.dumps(make(rng, i)) + "\n" for i in range(count)).encode()
    return files
