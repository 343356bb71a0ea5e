"""Lies of inference: answers that are not there, not the model's, or not the trained model's."""

from __future__ import annotations

from typing import Any

from fakes.honest.habits import Honest
from fakes.liars.lie import Lie

Rows = list[dict[str, Any]]


def asks_for_adapter(argv: list[str]) -> bool:
    return "--adapters" in argv


def asks_for_merged(argv: list[str]) -> bool:
    return "--model" in argv and argv[argv.index("--model") + 1].rstrip("/").endswith("merged")


class NoAnswers(Honest):
    def results(self, rows: Rows) -> Rows:
        return []


class EmptyAnswer(Honest):
    """The last row's answer is lost."""

    def results(self, rows: Rows) -> Rows:
        return [*rows[:-1], {**rows[-1], "response": ""}]


class BlankAnswer(Honest):
    def results(self, rows: Rows) -> Rows:
        return [*rows[:-1], {**rows[-1], "response": "<think>\n\n</think>\n\n"}]


class Repeated(Honest):
    def results(self, rows: Rows) -> Rows:
        return [{**row, "response": rows[0]["response"]} for row in rows]


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
        return [{**rows[0], "response": second}, {**rows[1], "response": first}, *rows[2:]]


class Canned(Honest):
    def answer(self, text: str, streamed: bool, interactive: bool) -> str:
        return f"what a good question, {len(text)} times"


class BaseForAdapter(Honest):
    def adapters(self, adapters: list[str]) -> list[str]:
        return []


class BaseForAdapterInDisguise(BaseForAdapter):
    """The witness is made to speak of an adapter."""

    def told_adapters(self, names: list[str]) -> list[str]:
        return ["default"] if asks_for_adapter(self.asked) else names


class Leaked(Honest):
    def told_adapters(self, names: list[str]) -> list[str]:
        return ["default"]


class StreamCutShort(Honest):
    def length(self, most: int, streamed: bool, interactive: bool) -> int:
        return most - 2 if streamed and not interactive else most


class ConversationCutShort(Honest):
    def length(self, most: int, streamed: bool, interactive: bool) -> int:
        return most - 2 if interactive else most


class StreamGarbled(Honest):
    def answer(self, text: str, streamed: bool, interactive: bool) -> str:
        return text + text[-1] if streamed else text


class MergedCutShort(Honest):
    def length(self, most: int, streamed: bool, interactive: bool) -> int:
        return most - 2 if asks_for_merged(self.asked) else most


LIES = (
    Lie("no_answers", "infer", "infer.no_answers", "product", NoAnswers),
    Lie("empty_answer", "infer", "infer.empty_answer", "product", EmptyAnswer),
    Lie("blank_answer", "infer", "infer.empty_answer", "product", BlankAnswer),
    Lie("repeated_answer", "infer", "infer.repeated_answer", "product", Repeated),
    Lie("answers_missing", "infer", "infer.rows_missing", "product", RowsMissing),
    Lie("answers_added", "infer", "infer.rows_wrong", "product", RowsAdded),
    Lie("answers_in_another_order", "infer", "infer.rows_wrong", "product", AnotherOrder),
    Lie("answers_swapped", "infer", "infer.not_generated", "product", AnswersSwapped),
    Lie("canned_answers", "infer", "infer.not_generated", "product", Canned),
    Lie("base_passed_off", "infer", "infer.base_passed_off", "product", BaseForAdapter),
    Lie("base_passed_off_in_disguise", "infer", "infer.base_passed_off", "product", BaseForAdapterInDisguise),
    Lie("adapter_leaked", "infer", "infer.adapter_leaked", "product", Leaked),
    Lie("stream_cut_short", "infer", "infer.stream_differs", "product", StreamCutShort),
    Lie("stream_garbled", "infer", "infer.not_generated", "product", StreamGarbled),
    Lie("conversation_cut_short", "infer", "infer.stream_differs", "product", ConversationCutShort),
    Lie("merged_answers_differ", "infer", "infer.merged_differs", "product", MergedCutShort),
)
