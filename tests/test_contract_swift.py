"""The contract against the installed ms-swift: its own argument classes, no model, no __post_init__."""

from __future__ import annotations

import importlib
import importlib.util
import time
from dataclasses import replace

import pytest
from cells_by_hand import cell, wide

from harness.commands import FSDP1_CONFIG, contract_commands, documented_commands
from harness.commands_tables import FAMILIES
from harness.contract import Finding, FindingKind
from harness.model import Command, Step, Strategy
from harness.swift_parsers import ARGUMENT_CLASSES, _check, check_command, launcher_parser, parser_of

pytestmark = [
    pytest.mark.swift,
    pytest.mark.skipif(importlib.util.find_spec("swift") is None, reason="ms-swift is not installed in this environment"),
]
# Issue 2: all commands in at most 15 s on 2 cores after the imports, on a machine that other tests share.
LIMIT_S = 15.0


def only(*argv: str) -> Finding:
    findings = check_command(Step("x", Command("swift", argv), "", 1.0))
    assert len(findings) == 1, findings
    return findings[0]


def test_every_command_of_a_wide_set_of_cells_is_accepted_and_in_time() -> None:
    for subcommand in ARGUMENT_CLASSES:
        parser_of(subcommand)
    launcher_parser()
    _check.cache_clear()
    began = time.monotonic()
    refused = [(step.command.argv, found) for asked in wide() for step in contract_commands(asked) if (found := check_command(step))]
    assert not refused
    assert time.monotonic() - began < LIMIT_S
    assert _check.cache_info().currsize > 300


def test_every_command_that_is_shown_is_accepted() -> None:
    refused = [(step.command.argv, found) for asked in wide() for _, step in documented_commands(asked) if (found := check_command(step))]
    assert not refused


def test_a_planted_train_type_fails_and_points_to_tuner_type() -> None:
    step = next(s for s in contract_commands(cell()) if s.name == "train")
    args = tuple("--train_type" if word == "--tuner_type" else word for word in step.command.args)
    (found,) = check_command(replace(step, command=replace(step.command, args=args)))
    assert found.flag == "--train_type" and found.suggestion == "--tuner_type"


def test_faults_are_told_in_words() -> None:
    assert only("sft", "--max_step", "3").kind is FindingKind.ABBREVIATION
    assert only("sft", "--torch_dtype", "bf16").message.startswith("--torch_dtype bf16: no such choice. Perhaps bfloat16?")
    assert only("sft", "--max_steps", "abc").message == "--max_steps abc: not a whole number."
    assert only("sft", "--model").kind is FindingKind.MISSING_VALUE
    assert only("infer", "--use_cpu", "true").kind is FindingKind.UNKNOWN
    assert only("sft", "stray").kind is FindingKind.STRAY
    assert "no subcommand" in only("sftt").message


def test_what_accelerate_starts_is_parsed_on_both_sides_of_the_script() -> None:
    step = next(s for s in contract_commands(cell(strategy=Strategy.FSDP1)) if s.name == "train")
    assert check_command(step) == ()
    for good, bad in (("--num_processes", "--num_proc"), ("--tuner_type", "--train_type")):
        args = tuple(bad if word == good else word for word in step.command.args)
        (found,) = check_command(replace(step, command=replace(step.command, args=args)))
        assert found.flag == bad


def test_accelerate_reads_the_shipped_configuration_as_fsdp() -> None:
    configuration = importlib.import_module("accelerate.commands.config.config_args").load_config_from_file(FSDP1_CONFIG)
    assert configuration.distributed_type == "FSDP" and configuration.fsdp_config["fsdp_version"] == 1


def test_the_installed_version_knows_every_family_by_its_names() -> None:
    models = importlib.import_module("swift.model").MODEL_MAPPING
    templates = importlib.import_module("swift.template").TEMPLATE_MAPPING
    assert {names.model_type for names in FAMILIES.values()} <= set(models)
    assert {names.template for names in FAMILIES.values()} <= set(templates)
