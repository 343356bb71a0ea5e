"""Lies about where and how the work was done, and about who saw it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fakes.honest.habits import Honest
from fakes.liars.lie import Lie


def without(argv: list[str], *flags: str) -> list[str]:
    """`argv` less `flags` and their values."""
    kept: list[str] = []
    dropping = False
    for word in argv:
        if word.startswith("--"):
            dropping = word in flags
        if not dropping:
            kept.append(word)
    return kept


class Unwitnessed(Honest):
    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        return without(argv, "--external_plugins", "--callbacks")


class Uncalled(Honest):
    """The plugin is loaded, the callback is not asked for: the witness sees a start and no training."""

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        return without(argv, "--callbacks")


class AnotherNonce(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "nonce": "0123456789abcdef"}


class Damaged(Honest):
    """A line of the witness file is cut short."""

    def finish(self, method: str, code: int) -> int:
        path = Path(os.environ["NPU_MATRIX_WITNESS_DIR"]) / f"witness-{os.getpid()}.jsonl"
        with path.open("a") as file:
            file.write('{"event": "train_e')
        return code


class AnotherDevice(Honest):
    def device(self, asked: str) -> str:
        return "npu:0" if asked == "cpu" else "cpu"


class OtherArguments(Honest):
    """The command line is obeyed but for the learning rate."""

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        at = argv.index("--learning_rate")
        return [*argv[: at + 1], "0.001", *argv[at + 2 :]]


class Wrapped(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] != "train_begin":
            return event
        return {**event, "wrapped_class": "DistributedDataParallel", "distributed_type": "MULTI_CPU", "backend": "gloo"}


class TwoRanks(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "world_size": 2}


class Sharded(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] != "train_begin":
            return event
        return {**event, "numel_local": event["numel_local"] // 2, "zero_stage": 3}


LIES = (
    Lie("witness_stripped", "train", "proof.witness_missing", "harness", Unwitnessed),
    Lie("callback_stripped", "train", "proof.witness_missing", "harness", Uncalled),
    Lie("witness_of_another_run", "train", "proof.witness_nonce", "harness", AnotherNonce),
    Lie("witness_damaged", "train", "proof.witness_fault", "harness", Damaged),
    Lie("another_device", "train", "proof.device", "product", AnotherDevice),
    Lie("other_arguments", "train", "proof.argv", "product", OtherArguments),
    Lie("wrapped_in_ddp", "train", "proof.strategy", "product", Wrapped),
    Lie("two_ranks", "train", "proof.strategy", "product", TwoRanks),
    Lie("sharded", "train", "proof.strategy", "product", Sharded),
)
