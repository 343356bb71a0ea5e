"""A line of an export: its form is evidence's canonical one without line ends, and nothing of it can be changed unnoticed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EvidenceError
from harness.evidence_sealing import digest, seal
from harness.export_lines import line_of, opened

VALUES = st.text(max_size=20) | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
BODIES = st.dictionaries(st.text(max_size=8).filter(lambda name: name not in ("sha256", "schema")), VALUES, max_size=8)


@given(BODIES)
def test_a_line_is_the_sealed_text_without_its_line_ends_and_has_its_hash(body: dict[str, Any]) -> None:
    body["schema"] = 1
    line = line_of(body)
    assert line == seal(body).replace("\n", "") + "\n"
    assert json.loads(line)["sha256"] == digest(body)
    assert opened(line, "f:1") == {**json.loads(line)}


@given(BODIES, st.data())
def test_no_character_of_a_line_can_be_changed(body: dict[str, Any], data: st.DataObject) -> None:
    line = line_of({**body, "schema": 1})
    at = data.draw(st.integers(0, len(line) - 2))
    other = data.draw(st.characters(codec="utf-8").filter(lambda c: c != line[at]))
    with pytest.raises(EvidenceError, match=r"^f:1"):
        opened(line[:at] + other + line[at + 1 :], "f:1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no JSON"),
        ("[]\n", "no flat object"),
        ('{ "a": NaN}\n', "no JSON"),
        ('{ "a": [1]}\n', "no flat object"),
        ('{ "a": null}\n', "no flat object"),
        ("[" * 100_000, "no JSON"),
        ('{ "schema": 1}\n', "cut or edited"),
        (line_of({"schema": 2}), "schema 2 is unknown"),
        (line_of({"schema": 1, "a": 1}).replace("{ ", "{"), "canonical"),
        (line_of({"schema": 1, "a": 1}).replace("{ ", '{ "a": 1, '), "canonical"),
    ],
)
def test_what_is_no_sealed_line_is_refused(text: str, what: str) -> None:
    with pytest.raises(EvidenceError, match=what):
        opened(text, "f:1")


def test_a_line_holds_plain_values_only() -> None:
    with pytest.raises(TypeError, match="versions is a dict"):
        line_of({"versions": {}})
    with pytest.raises(ValueError):
        line_of({"loss": float("nan")})
