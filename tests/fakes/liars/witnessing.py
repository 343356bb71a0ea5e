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
        return {**event, "wrapped_class": "DistributedDataParallel", "distributed_type": "MULTI_CPU"}


class GroupOfOne(Honest):
    """One process that was told to be one of several, and found no other."""

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "backend": "gloo"} if event["event"] == "train_begin" else event


class TwoRanks(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "world_size": 2}


class Sharded(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] != "train_begin":
            return event
        return {**event, "numel_local": event["numel_local"] // 2, "zero_stage": 3}


class HalfAnOptimizer(Honest):
    """As ZeRO-2 would step it: only the optimizer's state shows that it was spread."""

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "first_moments_numel": event["first_moments_numel"] // 2} if event["event"] == "train_end" else event


class PaddingFree(Honest):
    """Rows are packed into one sequence though no option says so."""

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "padding_free": True} if event["event"] == "train_begin" else event


class MoreArguments(Honest):
    """Words behind the asked ones, which argparse lets win, in forms that name no asked flag."""

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        return [*argv, "--learning_rate", "0.004"]

    def seen_argv(self, argv: list[str]) -> list[str]:
        return [*argv[:-2], "--learning-rate", "0.004"]


class OtherRate(OtherArguments):
    """Another learning rate is obeyed, and the argument list that the process shows is the asked one."""

    def seen_argv(self, argv: list[str]) -> list[str]:
        return self.asked


class OtherOrder(Honest):
    """Rows in another order than --seed gives, which no asked word says."""

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        return [*argv, "--data_seed", "7"]

    def seen_argv(self, argv: list[str]) -> list[str]:
        return self.asked


class Nameless(Honest):
    """Some program that trains, and is no ms-swift."""

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] != "start":
            return event
        return {**event, "versions": {**event["versions"], "ms-swift": None}}


class OfEarlier(Honest):
    """A witness that was written an hour before the run."""

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "time": event["time"] - 3600}


class BackInTime(Honest):
    def witnessed(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "seconds": -event["seconds"]} if event["event"] == "step" else event


class TrainedTwice(Honest):
    """A second process carries the nonce and says that it trained as well."""

    def finish(self, method: str, code: int) -> int:
        folder = Path(os.environ["NPU_MATRIX_WITNESS_DIR"])
        mine, other = os.getpid(), os.getpid() + 1
        text = (folder / f"witness-{mine}.jsonl").read_text()
        (folder / f"witness-{other}.jsonl").write_text(text.replace(f'"pid": {mine}', f'"pid": {other}'))
        return code


class DataChanged(Honest):
    """The data set is written anew before it is read."""

    def begin(self, method: str) -> None:
        path = Path(self.asked[self.asked.index("--dataset") + 1])
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:8] * (len(lines) // 8)))


class ModelChanged(Honest):
    def begin(self, method: str) -> None:
        path = Path(self.asked[self.asked.index("--model") + 1]) / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + bytes(4))


LIES = (
    Lie("words_added", "train", "proof.argv", "product", MoreArguments),
    Lie("other_rate_in_silence", "train", "proof.argv", "product", OtherRate),
    Lie("other_order_in_silence", "train", "proof.argv", "product", OtherOrder),
    Lie("not_ms_swift", "train", "proof.not_swift", "environment", Nameless),
    Lie("witness_of_earlier", "train", "proof.witness_fault", "harness", OfEarlier),
    Lie("seconds_below_zero", "train", "proof.witness_fault", "harness", BackInTime),
    Lie("trained_twice", "train", "proof.witness_fault", "harness", TrainedTwice),
    Lie("data_set_changed", "train", "proof.inputs_changed", "environment", DataChanged),
    Lie("base_model_changed", "train", "proof.inputs_changed", "environment", ModelChanged),
    Lie("witness_stripped", "train", "proof.witness_missing", "harness", Unwitnessed),
    Lie("callback_stripped", "train", "proof.witness_missing", "harness", Uncalled),
    Lie("witness_of_another_run", "train", "proof.witness_nonce", "harness", AnotherNonce),
    Lie("witness_damaged", "train", "proof.witness_fault", "harness", Damaged),
    Lie("another_device", "train", "proof.device", "product", AnotherDevice),
    Lie("other_arguments", "train", "proof.argv", "product", OtherArguments),
    Lie("wrapped_in_ddp", "train", "proof.strategy", "product", Wrapped),
    Lie("group_of_one", "train", "proof.ranks", "product", GroupOfOne),
    Lie("two_ranks", "train", "proof.ranks", "product", TwoRanks),
    Lie("sharded", "train", "proof.strategy", "product", Sharded),
    Lie("half_an_optimizer", "train", "proof.strategy", "product", HalfAnOptimizer),
    Lie("unasked_padding_free", "train", "proof.options", "product", PaddingFree),
)
