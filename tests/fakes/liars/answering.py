"""Lies of inference: answers that are not there, not the model's, or not the trained model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.honest.habits import Honest
from fakes.honest.tensors import Array, read_model
from fakes.liars.lie import Lie

Rows = list[dict[str, Any]]
ADAPTER, MERGED, TUNED = ("infer-adapter",), ("infer-merged", "infer-merged-stream"), ("infer-tuned",)
STREAM, TALK = ("infer-adapter-stream",), ("infer-adapter-interactive",)


def saying(row: dict[str, Any], text: str) -> dict[str, Any]:
    """`row` with another answer, in both places where it stands."""
    return {**row, "response": text, "messages": [*row["messages"][:-1], {"role": "assistant", "content": text}]}


class NoAnswers(Honest):
    def results(self, rows: Rows) -> Rows:
        return []


class EmptyAnswer(Honest):
    """The last row's answer is lost."""

    def results(self, rows: Rows) -> Rows:
        return [*rows[:-1], saying(rows[-1], "")]


class BlankAnswer(Honest):
    def results(self, rows: Rows) -> Rows:
        return [*rows[:-1], saying(rows[-1], "<think>\n\n</think>\n\n")]


class Contradiction(Honest):
    """The response was replaced by somebody who overlooked that it stands in the messages as well."""

    def results(self, rows: Rows) -> Rows:
        return [{**row, "response": "a fine answer"} for row in rows]


class Repeated(Honest):
    def results(self, rows: Rows) -> Rows:
        return [saying(row, rows[0]["response"]) for row in rows]


class RowsMissing(Honest):
    def results(self, rows: Rows) -> Rows:
        return rows[:-1]


class RowsAdded(Honest):
    def results(self, rows: Rows) -> Rows:
        return [*rows, rows[0]]


class AnotherOrder(Honest):
    def results(self, rows: Rows) -> Rows:
        return rows[::-1]


class AnswersSwapped(Honest):
    """The questions stand in order, two answers have changed places."""

    def results(self, rows: Rows) -> Rows:
        first, second = rows[0]["response"], rows[1]["response"]
        return [saying(rows[0], second), saying(rows[1], first), *rows[2:]]


class Canned(Honest):
    """Texts that nobody generated, each another one."""

    def results(self, rows: Rows) -> Rows:
        return [saying(row, f"a fine answer to question {number}") for number, row in enumerate(rows)]


class BaseForAdapter(Honest):
    def adapters(self, adapters: list[str]) -> list[str]:
        return []


class BaseForAdapterInDisguise(BaseForAdapter):
    """The witness is made to speak of an adapter."""

    def told_adapters(self, names: list[str]) -> list[str]:
        return ["default"]


class BaseForTuned(Honest):
    """The untrained model answers for the fully trained one."""

    def weights(self, weights: dict[str, Array], adapters: list[str]) -> dict[str, Array]:
        known = Path(self.asked[self.asked.index("--model") + 1]) / "args.json"
        return read_model(Path(json.loads(known.read_text())["model"]))[0] if known.is_file() else weights


class Leaked(Honest):
    def told_adapters(self, names: list[str]) -> list[str]:
        return ["default"]


class CutShort(Honest):
    def length(self, most: int, streamed: bool, interactive: bool) -> int:
        return most - 2


class Garbled(Honest):
    def answer(self, text: str, streamed: bool, interactive: bool) -> str:
        return text + text[-1]


LIES = (
    Lie("no_answers", "infer", "infer.no_answers", "product", NoAnswers, steps=ADAPTER),
    Lie("empty_answer", "infer", "infer.empty_answer", "product", EmptyAnswer, steps=ADAPTER),
    Lie("blank_answer", "infer", "infer.empty_answer", "product", BlankAnswer, steps=ADAPTER),
    Lie("answers_replaced_by_halves", "infer", "proof.row_damaged", "product", Contradiction, steps=ADAPTER),
    Lie("repeated_answer", "infer", "infer.repeated_answer", "product", Repeated, steps=ADAPTER),
    Lie("answers_missing", "infer", "infer.rows_missing", "product", RowsMissing, steps=ADAPTER),
    Lie("answers_added", "infer", "infer.rows_wrong", "product", RowsAdded, steps=ADAPTER),
    Lie("answers_in_another_order", "infer", "infer.rows_wrong", "product", AnotherOrder, steps=ADAPTER),
    Lie("answers_swapped", "infer", "infer.not_generated", "product", AnswersSwapped, steps=ADAPTER),
    Lie("canned_answers", "infer", "infer.not_generated", "product", Canned, steps=ADAPTER),
    Lie("base_passed_off_as_adapter", "merge", "merge.logits_equal_base", "product", BaseForAdapter, steps=ADAPTER),
    Lie("base_passed_off_in_disguise", "merge", "merge.logits_equal_base", "product", BaseForAdapterInDisguise, steps=ADAPTER),
    Lie("base_passed_off_when_streamed", "infer", "infer.base_passed_off", "product", BaseForAdapter, steps=STREAM),
    Lie("base_passed_off_as_tuned", "infer", "infer.base_passed_off", "product", BaseForTuned, tuner="full", steps=TUNED),
    Lie("adapter_leaked", "infer", "infer.adapter_leaked", "product", Leaked, steps=MERGED),
    Lie("stream_cut_short", "infer", "infer.stream_differs", "product", CutShort, steps=STREAM),
    Lie("stream_garbled", "infer", "infer.not_generated", "product", Garbled, steps=STREAM),
    Lie("conversation_cut_short", "infer", "infer.stream_differs", "product", CutShort, steps=TALK),
    Lie("merged_answers_differ", "infer", "infer.merged_differs", "product", CutShort, steps=MERGED),
)
