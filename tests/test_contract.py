"""What the contract says of a parser's answer, and whose ms-swift it asked. No ms-swift is needed."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contract import Finding, FindingKind, judge_parse
from harness.swift_parsers import checked_interpreter, imported, swift_interpreter

KNOWN = ("--tuner_type", "--tuner_backend", "--max_steps", "--max_length", "--torch_dtype", "--model", "--learning_rate")


def only(argv: str, rest: str = "", error: str = "") -> Finding:
    findings = judge_parse(argv.split(), KNOWN, rest.split(), error)
    assert len(findings) == 1, findings
    return findings[0]


def test_a_sound_command_has_no_findings() -> None:
    assert judge_parse(["--tuner_type", "lora", "--max_steps=3"], KNOWN, (), "") == ()


@pytest.mark.parametrize("old", ["--train_type", "--sft_type"])
def test_a_renamed_flag_is_named_with_its_new_name(old: str) -> None:
    found = only(f"{old} lora", f"{old} lora")
    assert found.kind is FindingKind.UNKNOWN and found.flag == old and found.suggestion == "--tuner_type"
    assert found.message == f"{old} is unknown to the installed ms-swift. Perhaps --tuner_type?"


def test_a_new_name_is_offered_only_if_the_installed_version_has_it() -> None:
    (found,) = judge_parse(["--train_type", "lora"], ("--train_types",), ["--train_type", "lora"], "")
    assert found.suggestion != "--tuner_type"


def test_an_abbreviation_is_refused_with_the_full_name() -> None:
    found = only("--max_step 3", "--max_step 3")
    assert found.kind is FindingKind.ABBREVIATION and found.suggestion == "--max_steps"
    both = only("--max 3", "--max 3")
    assert "--max_length, --max_steps" in both.message


def test_a_misspelt_flag_is_guessed_and_a_foreign_one_is_not() -> None:
    assert only("--learning_rte 1", "--learning_rte 1").suggestion == "--learning_rate"
    assert only("--zzz 1", "--zzz 1").suggestion == ""


def test_a_flag_with_an_equals_sign_is_read_like_any_other() -> None:
    assert only("--train_type=lora", "--train_type=lora").suggestion == "--tuner_type"


def test_a_flag_given_twice_is_refused_since_the_last_one_silently_wins() -> None:
    assert only("--max_steps 3 --max_steps 4").kind is FindingKind.REPEATED


def test_a_stray_word_is_found_but_not_the_value_of_an_unknown_flag() -> None:
    assert only("lora", "lora").kind is FindingKind.STRAY
    assert only("--zzz lora", "--zzz lora").kind is FindingKind.UNKNOWN


def test_an_unknown_flag_does_not_hide_a_stray_word() -> None:
    kinds = {f.kind for f in judge_parse(["lora", "--zzz", "1"], KNOWN, ["lora", "--zzz", "1"], "")}
    assert kinds == {FindingKind.UNKNOWN, FindingKind.STRAY}


@pytest.mark.parametrize(
    "error",
    [
        "argument --torch_dtype/--torch-dtype: invalid choice: 'bf16' (choose from 'bfloat16', 'float16')",
        "argument --torch_dtype: invalid choice: 'bf16' (choose from bfloat16, float16)",  # as Python 3.12 prints it
    ],
)
def test_a_bad_choice_shows_the_choices_and_the_nearest(error: str) -> None:
    found = only("--torch_dtype bf16", error=error)
    assert found.kind is FindingKind.CHOICE and found.flag == "--torch_dtype" and found.suggestion == "bfloat16"
    assert found.message == "--torch_dtype bf16: no such choice. Perhaps bfloat16? Known: bfloat16, float16."


def test_a_bad_number_says_what_it_should_be() -> None:
    found = only("--max_steps abc", error="argument --max_steps/--max-steps: invalid int value: 'abc'")
    assert found.kind is FindingKind.VALUE and found.message == "--max_steps abc: not a whole number."
    assert only("--learning_rate x", error="argument --learning_rate: invalid float value: 'x'").message.endswith("not a number.")


def test_a_missing_value_is_told_from_a_bad_one() -> None:
    assert only("--model", error="argument --model: expected one argument").kind is FindingKind.MISSING_VALUE


def test_an_error_stops_a_parser_but_not_the_finding_of_unknown_flags() -> None:
    findings = judge_parse(["--train_type", "lora", "--max_steps", "abc"], KNOWN, (), "argument --max_steps: invalid int value: 'abc'")
    assert {f.flag for f in findings} == {"--train_type", "--max_steps"}


@given(st.text())
def test_whatever_a_parser_says_there_is_a_finding(error: str) -> None:
    findings = judge_parse(["--max_steps", "3"], KNOWN, (), error or "x")
    assert findings and all(f.message for f in findings)


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        ("#!/opt/venv/bin/python3.11\nimport sys\n", "/opt/venv/bin/python3.11"),
        ("#!/opt/venv/bin/python -I\n", "/opt/venv/bin/python"),
        ("#!/usr/bin/env python3\n", "python3"),
        ("#!/usr/bin/env -S python3 -u\n", "python3"),
        ("#!/bin/sh\n'''exec' \"/a path/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a path/bin/python"),
        ("#!/bin/sh\n'''exec' /a/very/long/path/python \"$0\" \"$@\"\n' '''\n", "/a/very/long/path/python"),
        ("#!/bin/sh\necho hello\n", None),
        ("#!\n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_the_interpreter_of_a_console_script_is_read_from_its_head(tmp_path: Path, head: str, wanted: str | None) -> None:
    script = tmp_path / "swift"
    script.write_text(head)
    assert swift_interpreter(str(script)) == wanted


def test_a_script_that_is_not_there_has_no_interpreter(tmp_path: Path) -> None:
    assert swift_interpreter(str(tmp_path / "none")) is None


def test_an_interpreter_whose_path_has_a_space_is_read_whole(tmp_path: Path) -> None:
    python = tmp_path / "my python"
    python.write_text("")
    script = tmp_path / "swift"
    script.write_text(f"#!{python}\n")
    assert swift_interpreter(str(script)) == str(python)


def test_the_contract_checks_the_interpreter_that_runs_it() -> None:
    assert checked_interpreter() == sys.executable


@given(st.binary(max_size=300))
def test_no_script_head_is_too_strange_to_read(tmp_path_factory: pytest.TempPathFactory, head: bytes) -> None:
    script = tmp_path_factory.mktemp("head") / "swift"
    script.write_bytes(b"#!" + head)
    assert swift_interpreter(str(script)) is None or head


def test_what_a_module_prints_at_its_import_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A faultless page is checked without a word, though ms-swift and torch greet and warn at their import."""
    loud = "import logging, sys, warnings\nprint('hello')\nwarnings.warn('old', FutureWarning)\n"
    loud += "log = logging.getLogger('loud')\nlog.addHandler(logging.StreamHandler())\nlog.warning('registered')\nA = 1\n"
    (tmp_path / "loud_at_import.py").write_text(loud, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert imported("loud_at_import").A == 1
    assert capfd.readouterr() == ("", "")
