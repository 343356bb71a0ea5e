"""The quick start of ms-swift's NPU page, run for real: the installed ms-swift, tiny models, a plain CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.docs_run_said import ABORT_BECAUSE

pytestmark = pytest.mark.swift
PAGE = Path(__file__).parent / "docs" / "quick_start.zh.md"


def test_the_quick_start_passes_on_a_cpu_within_five_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--root", str(tmp_path), "docs", "run", str(PAGE), "--tiny", "--json"])
    document = json.loads(capsys.readouterr().out)
    commands = [command for block in document["blocks"] for command in block["commands"]]
    failed = [command for command in commands if not command["ok"]]
    # A streamed inference may be aborted at its exit, which is ms-swift's own: that, and nothing else, is told and let pass.
    assert [command for command in failed if command["said"] != ABORT_BECAUSE] == []
    assert code == (1 if failed else 0)
    kinds = sorted(command["kind"] for command in commands if command["kind"] != "set")
    assert kinds == ["ask", "deploy", "deploy", *["infer"] * (kinds.count("infer")), "merge", "train"] and kinds.count("infer") >= 1
    # Measured on 2 cores: 137 s at a load of 5. A host that has more to do than it has cores takes its time.
    crowd = max(1.0, os.getloadavg()[1] / (os.cpu_count() or 1))
    assert sum(command["duration_s"] for command in commands) < 300 * crowd


def test_a_misspelt_flag_fails_as_it_would_for_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8").replace("--lora_rank 8", "--lora_rnak 8"), encoding="utf-8")
    assert main(["--root", str(tmp_path), "docs", "run", str(page), "--tiny", "--json", "--only", "10"]) == 1
    document = json.loads(capsys.readouterr().out)
    (failed,) = [command for block in document["blocks"] for command in block["commands"] if not command["ok"]]
    assert failed["cause"] == "args.unknown" and "lora_rnak" in failed["said"]
