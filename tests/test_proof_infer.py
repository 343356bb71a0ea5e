"""Answers are believed only when each row's were generated, by the model asked for, and the models differ where they must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import examples as ex
import pytest
from examples import Event

from harness.found import Answer, Answers, Inference, Role, Way
from harness.model import Comparison, Hardware, Stage, Strategy, Tuner, Weights
from harness.proof_infer import prove_infer, said, wanted_inferences
from harness.proof_required import missing_required
from harness.vocabulary import Vocabulary, read_vocabulary

PLAIN, STREAM, INTERACTIVE = Way.PLAIN, Way.STREAM, Way.INTERACTIVE


def honest(tuner: Tuner = Tuner.LORA) -> dict[tuple[Role, Way], Inference]:
    return {(role, way): ex.inference(role, way) for role, way in wanted_inferences(tuner, Strategy.SINGLE)}


def prove(
    inferences: Sequence[Inference] | None = None,
    vocabulary: Vocabulary | None = ex.VOCABULARY,
    tuner: Tuner = Tuner.LORA,
    weights: Weights = Weights.TINY,
    hardware: Hardware = Hardware.CPU,
) -> tuple[Comparison, ...]:
    return prove_infer(
        cell=ex.cell(tuner=tuner),
        hardware=hardware,
        weights=weights,
        inputs=ex.QUESTIONS,
        inferences=tuple(honest(tuner).values()) if inferences is None else inferences,
        vocabulary=vocabulary,
    )


def bent(*others: Inference) -> tuple[Inference, ...]:
    """The honest inferences, with `others` in place of their namesakes."""
    return tuple({**honest(), **{(other.role, other.way): other for other in others}}.values())


def answers(texts: Sequence[str], questions: Sequence[str] = ex.QUESTIONS) -> Answers:
    return Answers("r.jsonl", tuple(Answer(question, text) for question, text in zip(questions, texts, strict=True)))


def saying(texts: Sequence[str], role: Role = Role.ADAPTER, way: Way = PLAIN) -> Inference:
    """An inference that generated `texts` and wrote them down."""
    return ex.inference(role, way, answers(texts), ex.generate_events(role, texts))


def writing(found: Answers, role: Role = Role.ADAPTER, way: Way = PLAIN) -> Inference:
    """An inference that generated the honest texts and wrote down something else."""
    return ex.inference(role, way, found)


def witnessing(events: Sequence[Event], role: Role = Role.ADAPTER, way: Way = PLAIN) -> Inference:
    return ex.inference(role, way, events=events)


@pytest.mark.parametrize("tuner", [Tuner.LORA, Tuner.FULL])
def test_an_honest_inference_passes_and_nothing_required_is_left_out(tuner: Tuner) -> None:
    made = prove(tuner=tuner)
    assert ex.causes(made) == ()
    assert missing_required(Stage.INFER, made, ex.asked(tuner)) == ()
    names = [c.name for c in made]
    assert len(names) == len(set(names))


TEXTS = ex.SAID[Role.ADAPTER]
ASKED = ex.generate_events(Role.ADAPTER)
LIES: dict[str, tuple[tuple[Inference, ...], str]] = {
    "no file": (bent(writing(Answers("r.jsonl", ()))), "infer.no_answers"),
    "a row missing": (bent(writing(answers(TEXTS[:3], ex.QUESTIONS[:3]))), "infer.rows_missing"),
    "a row more": (bent(writing(answers((*TEXTS, "fine"), (*ex.QUESTIONS, "why not")))), "infer.rows_wrong"),
    "other questions": (bent(writing(answers(TEXTS, ("who", *ex.QUESTIONS[1:])))), "infer.rows_wrong"),
    "another order": (bent(writing(answers(TEXTS[::-1], ex.QUESTIONS[::-1]))), "infer.rows_wrong"),
    "a half row": (bent(writing(Answers("r.jsonl", answers(TEXTS).rows[:3], ("r.jsonl:4: not whole",)))), "proof.row_damaged"),
    "an empty answer": (bent(writing(answers(("", *TEXTS[1:])))), "infer.empty_answer"),
    "an empty thinking block": (bent(writing(answers(("<think>\n\n</think>\n\n", *TEXTS[1:])))), "infer.empty_answer"),
    "one answer repeated": (bent(writing(answers(("fine",) * 4))), "infer.repeated_answer"),
    "an answer not generated": (bent(writing(answers(("never", *TEXTS[1:])))), "infer.not_generated"),
    "one made-up text for all": (bent(writing(answers(("never",) * 4))), "infer.repeated_answer"),
    "one made-up text for some": (bent(writing(answers(("never", "never", *TEXTS[2:])))), "infer.not_generated"),
    "answers without generating": (bent(witnessing([*ASKED[:1], {**ASKED[1], "output_ids": [], "prompt_ids": []}])), "infer.not_generated"),
    "no generation witnessed": (bent(witnessing(ASKED[:1])), "proof.witness_missing"),
    "generated from other questions": (
        bent(witnessing(ex.generate_events(Role.ADAPTER, questions=("nobody", *ex.QUESTIONS[1:])))), "infer.rows_wrong"),
    "no adapter active": (bent(witnessing(ex.changed(ASKED, "generate", adapters=[]))), "infer.base_passed_off"),
    "the base model's answers": (
        tuple(saying(ex.SAID[Role.BASE], role, way) for role, way in wanted_inferences(Tuner.LORA, Strategy.SINGLE)),
        "infer.base_passed_off",
    ),
    "an adapter on the base model": (
        bent(witnessing(ex.changed(ex.generate_events(Role.BASE), "generate", adapters=["default"]), Role.BASE)), "infer.adapter_leaked"),
    "an adapter on the merged model": (
        bent(witnessing(ex.changed(ex.generate_events(Role.MERGED), "generate", adapters=["default"]), Role.MERGED)),
        "infer.adapter_leaked"),
    "streamed otherwise": (bent(saying(ex.SAID[Role.BASE], way=STREAM)), "infer.stream_differs"),
    "interactive otherwise": (bent(saying(("fine", *ex.SAID[Role.BASE][1:]), way=INTERACTIVE)), "infer.stream_differs"),
    "merged otherwise": (bent(saying(ex.SAID[Role.BASE], Role.MERGED)), "infer.merged_differs"),
    "another device": (bent(witnessing(ex.changed(ASKED, "generate", device="npu:0"))), "proof.device"),
    "never streamed": (tuple(i for i in honest().values() if i.way is not STREAM), "infer.no_answers"),
    "never merged": (tuple(i for i in honest().values() if i.role is not Role.MERGED), "infer.no_answers"),
    "nothing at all": ((), "infer.no_answers"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_an_inference_that_lies_is_named(name: str) -> None:
    inferences, cause = LIES[name]
    assert ex.causes(prove(inferences)) == (cause,)


def test_merged_answers_that_differ_from_their_own_stream_too_are_blamed_on_the_merge_first() -> None:
    merged = bent(saying(ex.SAID[Role.BASE], Role.MERGED))
    assert ex.causes(prove((*merged, saying(TEXTS, Role.MERGED, STREAM)))) == ("infer.merged_differs", "infer.stream_differs")


def test_inferences_beyond_those_wanted_are_proved_too() -> None:
    extra = saying(ex.SAID[Role.ADAPTER], Role.MERGED, STREAM)
    off = saying(ex.SAID[Role.BASE], Role.MERGED, STREAM)
    assert ex.causes(prove(bent(extra))) == ()
    assert ex.causes(prove(bent(off))) == ("infer.stream_differs",)


def test_other_prompts_for_one_model_make_the_comparison_mean_nothing() -> None:
    events = ex.generate_events(Role.MERGED)
    longer = [[0, 2, *prompt] for prompt in events[1]["prompt_ids"]]
    assert ex.causes(prove(bent(witnessing(ex.changed(events, "generate", prompt_ids=longer), Role.MERGED)))) == ("infer.rows_wrong",)


def test_without_a_vocabulary_answers_are_held_against_each_other() -> None:
    repeated = bent(writing(answers(("fine",) * 4)))
    torn = saying(("fine", "fine", "nobody", "because"))
    split = ex.inference(Role.ADAPTER, PLAIN, answers(TEXTS), ex.generate_events(Role.ADAPTER, ("fine", "fine", "nobody", "because")))
    assert ex.causes(prove(vocabulary=None)) == ()
    assert ex.causes(prove(repeated, vocabulary=None)) == ("infer.repeated_answer",)
    assert ex.causes(prove((torn,), vocabulary=None)) == ("infer.no_answers",)
    assert ex.causes(prove(bent(split), vocabulary=None)) == ("infer.not_generated",)


def test_the_same_answer_to_two_questions_is_fine_if_it_was_generated_twice() -> None:
    texts = ("fine", "fine", "nobody", "because")
    roles = [(role, way) for role, way in wanted_inferences(Tuner.LORA, Strategy.SINGLE) if role is not Role.BASE]
    same = bent(*(saying(texts, role, way) for role, way in roles))
    assert ex.causes(prove(same)) == ()
    assert ex.causes(prove(same, vocabulary=None)) == ()


def test_real_weights_must_differ_in_logits_and_may_agree_in_text() -> None:
    same_text = bent(saying(TEXTS, Role.BASE))
    assert ex.causes(prove(same_text, weights=Weights.REAL)) == ()
    same_logits = bent(replace(ex.inference(Role.BASE), logits=ex.logits(Role.ADAPTER)))
    assert ex.causes(prove(same_logits, weights=Weights.REAL)) == ("infer.base_passed_off",)
    unseen = bent(replace(ex.inference(Role.BASE), logits=None))
    assert ex.causes(prove(unseen, weights=Weights.REAL)) == ("proof.witness_missing",)


def test_a_thinking_template_s_empty_block_is_not_what_was_said() -> None:
    assert said("<think>\n\n</think>\n\n") == ""
    assert said("<think>\n\n</think>\n\nfine ") == "fine"
    assert said("<think>hm</think>fine") == "<think>hm</think>fine"


def tokenizer(**changes: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": {"a": 0, "Ġb": 1, "æĹ": 2, "¥": 3}}
    added = [{"id": 4, "content": "<|im_end|>", "special": True}, {"id": 5, "content": "</think>", "special": False}]
    return {"model": model, "decoder": {"type": "ByteLevel"}, "added_tokens": added, **changes}


def test_tokens_are_decoded_as_tokenizers_do() -> None:
    vocabulary = read_vocabulary(tokenizer())
    assert vocabulary is not None
    assert vocabulary.decode([0, 1, 2, 3, 5, 4, 999]) == "a b日</think>"
    assert vocabulary.decode([2, 0]) == "\ufffda"


def test_other_tokenizers_are_not_decoded() -> None:
    unlike: tuple[dict[str, Any], ...] = (
        {"decoder": {"type": "WordPiece"}}, {"decoder": None}, {"model": {"type": "Unigram", "vocab": []}}, {"added_tokens": None},
    )  # fmt: skip
    for change in unlike:
        assert read_vocabulary(tokenizer(**change)) is None
