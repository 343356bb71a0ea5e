"""Where a liar may deviate. Every method here is the honest way; a lie overrides one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fakes.honest.tensors import Array


class Honest:
    """`settings` are what install() was given. Methods are called in the order of a run."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.asked: list[str] = []

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        """The arguments that are really obeyed."""
        return argv

    def begin(self, method: str) -> None:
        """Before anything is read."""

    def device(self, asked: str) -> str:
        return asked

    def dtype(self, asked: str) -> str:
        """The dtype that weights are loaded in; empty: as stored."""
        return "" if self.settings.get("as_stored") else asked

    def seen_argv(self, argv: list[str]) -> list[str]:
        """What the witness is shown as the arguments."""
        return argv

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """An event of the witness; None keeps it from being written."""
        return event

    def last_step(self, max_steps: int) -> int:
        return max_steps

    def resumed_from(self, checkpoint: str) -> str:
        return checkpoint

    def restored(self, fresh: dict[str, Array], kept: dict[str, Array]) -> dict[str, Array]:
        """The parameters that a resumed run goes on with: of `fresh` ones and those `kept` in the checkpoint."""
        return kept

    def first_step(self, step: int) -> int:
        """The step that a resumed run goes on from."""
        return step

    def only_model(self, asked: bool) -> bool:
        """Whether a resumed run leaves the optimizer's state where it is."""
        return asked

    def optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The optimizer state that a resumed run continues with."""
        return state

    def direction(self, first: Array, second: Array, gradient: Array) -> Array:
        """What a step moves along, given AdamW's moments (bias corrected) and the gradient."""
        moved: Array = first / (np.sqrt(second) + np.float32(1e-8))
        return moved

    def updated(self, before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
        """Parameters after a step."""
        return after

    def rank(self, rank: int) -> int:
        return rank

    def before_step(self, step: int) -> None:
        """Before the forward pass of `step`."""

    def log_lines(self, row: dict[str, Any]) -> list[str]:
        """Lines of logging.jsonl for one row."""
        return [json.dumps(row, ensure_ascii=False)]

    def before_save(self, folder: Path) -> None:
        """Before checkpoint `folder` is made."""

    def saved_tensors(self, tensors: dict[str, Array]) -> dict[str, Array]:
        """What a checkpoint's weights file gets."""
        return tensors

    def saved(self, folder: Path) -> None:
        """After checkpoint `folder` is complete, the nonce included."""

    def merged(self, merged: dict[str, Array], base: dict[str, Array], product: dict[str, Array]) -> dict[str, Array]:
        """The merged model's tensors; `product` is scaling * B A by name."""
        return merged

    def weights(self, weights: dict[str, Array], adapters: list[str]) -> dict[str, Array]:
        """The model's weights before it answers."""
        return weights

    def adapters(self, adapters: list[str]) -> list[str]:
        """The adapters that answers are generated with."""
        return adapters

    def told_adapters(self, names: list[str]) -> list[str]:
        """Adapter names as the witness reports them."""
        return names

    def length(self, most: int, streamed: bool, interactive: bool) -> int:
        """How many tokens are really generated."""
        return min(most, int(self.settings.get("longest", most)))

    def answer(self, text: str, streamed: bool, interactive: bool) -> str:
        return text

    def results(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the result file."""
        return rows

    def port(self, port: int) -> int:
        return port

    def before_listening(self) -> None:
        """When the model is loaded and the server about to listen."""

    def listening(self) -> None:
        """When the server answers."""

    def models_reply(self, status: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return status, body

    def chat_reply(self, status: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return status, body

    def stream_lines(self, lines: Sequence[str]) -> Sequence[str]:
        """The `data:` lines of a streamed answer."""
        return lines

    def knows_model(self, known: bool) -> bool:
        return known

    def body_fault(self, fault: str) -> str:
        """What is wrong with a request body; empty: nothing."""
        return fault

    def on_sigterm(self) -> bool:
        """Whether SIGTERM ends the server."""
        return True

    def finish(self, method: str, code: int) -> int:
        """The exit code, after the work is done."""
        return code
