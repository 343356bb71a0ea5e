from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import jsonschema
import pytest
from evidence_samples import EVIDENCE, sample
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from harness.errors import EvidenceError
from harness.evidence import from_json, json_schema, key_path, schema_text, sealed, stack_name, to_json
from harness.evidence_sealing import seal
from harness.model import Evidence, Hardware, Stack, Stage


def same(one: object, two: object) -> bool:
    """Equality, with NaN equal to NaN and 1 not equal to 1.0 or True."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and repr(one) == repr(two)


@settings(max_examples=40, deadline=None)
@given(EVIDENCE)
def test_evidence_comes_back_as_it_was_written(evidence: Evidence) -> None:
    text = to_json(evidence)
    again = from_json(text, "x.json", rehearsal_ok=True)
    assert same(asdict(again), asdict(sealed(evidence)))
    assert to_json(again) == text
    jsonschema.validate(json.loads(text), json_schema())


def test_the_published_schema_is_the_one_that_the_types_give() -> None:
    published = Path(harness.__file__).parent / "schemas" / "evidence.schema.json"
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert published.read_text(encoding="utf-8") == schema_text(), "write harness.evidence.schema_text() into it, and raise SCHEMA"


def test_the_text_is_canonical_whatever_the_order_of_keys() -> None:
    one = replace(sample(), versions={"torch": "2.7.1", "python": "3.11.7"})
    two = replace(sample(), versions={"python": "3.11.7", "torch": "2.7.1"})
    assert to_json(one) == to_json(two)
    assert to_json(one).endswith("}\n")


def test_numbers_that_json_lacks_are_words_and_words_stay_words() -> None:
    evidence = replace(sample(), duration_s=math.inf, metrics={"loss": math.nan, "word": "NaN", "text": "text:x"})
    text = to_json(evidence)
    assert '"duration_s": "Infinity"' in text
    again = from_json(text, "x.json")
    assert math.isnan(again.metrics["loss"])
    assert (again.metrics["word"], again.metrics["text"]) == ("NaN", "text:x")


def edited(**changes: object) -> str:
    """Evidence whose fields were changed by a forger who knows how the hash is made; None removes a field."""
    body = {**json.loads(to_json(sample())), **changes}
    body = {k: v for k, v in body.items() if v is not None and k != "sha256"}
    return seal(body)


GOOD = to_json(sample())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "cut short"),
        (GOOD[: len(GOOD) // 2], "cut short"),
        (GOOD[:-40], "cut short"),
        ("{]", "no JSON"),
        ("[1]", "evidence is an object"),
        ("[" * 100_000, "no JSON"),
        ("{}", "schema None"),
        (edited(schema=99), "schema 99"),
        (GOOD.replace('"seed": 42', '"seed": 43'), "it was edited"),
        (GOOD.replace('"sha256": "', '"sha256": "0'), "it was edited"),
        (edited(stage=None), "lacks stage"),
        (edited(extra=1), "unknown extra"),
        (edited(stage="trian"), "no stage"),
        (edited(duration_s="fast"), "no number"),
        (edited(cell=3), "no str"),
        (edited(runs={}), "no list"),
        (edited(started_at="yesterday"), "no ISO 8601 time"),
        (edited(rehearsal=True), "rehearsal"),
        (GOOD.replace("\n", "\r\n"), "canonical"),
        (json.dumps(json.loads(GOOD)), "canonical"),
        (GOOD.replace('"cell": ', '"cell": "twice",\n "cell": '), "canonical"),
        (GOOD.replace('"duration_s": 12.5', '"duration_s": NaN'), "bare number NaN"),
        (GOOD.replace('"duration_s": 12.5', '"duration_s": 1e999'), "no evidence can hold"),
    ],
)
def test_what_is_not_evidence_is_refused_with_where_what_and_next(text: str, what: str) -> None:
    with pytest.raises(EvidenceError) as refusal:
        from_json(text, "reports/x.json")
    assert what in str(refusal.value)
    assert str(refusal.value).startswith("reports/x.json")
    assert refusal.value.next_step


@settings(max_examples=40)
@given(st.integers(0, len(GOOD) - 1), st.characters(codec="utf-8"))
def test_no_single_changed_character_gets_through(position: int, character: str) -> None:
    text = GOOD[:position] + character + GOOD[position + 1 :]
    if text != GOOD:
        with pytest.raises(EvidenceError):
            from_json(text, "x.json")


@given(st.text())
def test_any_text_is_refused_as_an_error_for_people(text: str) -> None:
    with pytest.raises(EvidenceError):
        from_json(text, "x.json")


def test_a_value_that_json_can_not_hold_is_named() -> None:
    with pytest.raises(EvidenceError, match=r"evidence\.facts\['folder'\]"):
        to_json(replace(sample(), facts={"folder": Path("x")}))


def test_a_lone_surrogate_from_a_broken_log_does_not_cost_the_evidence() -> None:
    text = to_json(replace(sample(), metrics={"line": "broken \udc80"}))
    assert from_json(text, "x.json").metrics["line"] == "broken ?"


def test_keys_are_file_names_that_never_meet() -> None:
    odd = [sample(cell=cell) for cell in ("a/b", "a b", "a_b", "../a", "a--b", "a-b", "", "x" * 300, "x" * 301)]
    paths = {key_path(evidence) for evidence in odd}
    assert len(paths) == len(odd)
    assert all(path.count("/") == 2 and len(path.split("/")[1]) < 130 and ".." not in path for path in paths)
    assert key_path(sample()) == "evidence/qwen3-sft-lora/train--tiny--cpu--undeclared-0a1b2c3d.json"
    assert key_path(replace(sample(), hardware=None, stage=Stage.MERGE)).endswith("merge--tiny--unwitnessed--undeclared-0a1b2c3d.json")


STACKS = {
    "old": Stack("old", "d", {"torch": ">=2.7.1"}, 45),
    "npu": Stack("npu", "d", {"torch": ">=2.7.1", "torch_npu": ">=2.7.1.post4", "cann": ">=8.5.1"}, 45),
    "nothing": Stack("nothing", "d", {}, 45),
}


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ({"torch": "2.9.0+cpu", "torch-npu": "2.9.0.post1", "cann": "9.0.0"}, "npu"),
        ({"torch": "2.9.0", "torch_npu": "2.7.1.post3", "cann": "9.0.0"}, "old"),
        ({"torch": "2.9.0", "torch_npu": "2.9.0+sim", "cann": "9.0.0"}, "old"),
        ({"torch": "2.6.0"}, "undeclared-"),
        ({"torch": "mine"}, "undeclared-"),
        ({}, "undeclared-"),
    ],
)
def test_a_stack_is_named_by_what_was_witnessed(versions: dict[str, str], name: str) -> None:
    found = stack_name(versions, STACKS)
    assert found == name if not name.endswith("-") else found.startswith(name) and len(found) == len(name) + 8


def test_the_name_of_an_undeclared_stack_follows_its_versions() -> None:
    assert stack_name({"torch": "1"}, {}) == stack_name({"torch": "1"}, {}) != stack_name({"torch": "2"}, {})


def test_hardware_may_be_unknown_but_not_made_up() -> None:
    assert from_json(to_json(replace(sample(), hardware=None)), "x").hardware is None
    assert from_json(to_json(sample()), "x").hardware is Hardware.CPU
