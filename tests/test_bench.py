"""A bench asks what it was given at the start, and says whose `swift` it runs."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from fakes.drill import Ground
from fakes.install import write_executable

from harness.bench import Bench
from harness.launch import launch
from harness.model import Weights


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground.under(tmp_path)


def bench_of(ground: Ground, programs: Path) -> Bench:
    return Bench(ground.cell("lora"), Weights.TINY, ground.host("bench", programs), launch, threading.Event())


def test_questions_are_read_once_whatever_becomes_of_their_file(ground: Ground) -> None:
    bench = bench_of(ground, ground.honest)
    before = bench.inputs
    Path(bench.datasets["val"]).write_text(json.dumps({"messages": [{"role": "user", "content": "another"}]}))
    assert bench.inputs == before and "another" not in before


def test_a_swift_of_this_interpreter_needs_no_note(ground: Ground) -> None:
    assert bench_of(ground, ground.honest).foreign_swift() == ""


def test_a_swift_of_another_interpreter_is_noted(ground: Ground, tmp_path: Path) -> None:
    programs = tmp_path / "theirs"
    programs.mkdir()
    other = write_executable(programs / "python3", "#!/bin/sh\n")
    swift = write_executable(programs / "swift", f"#!{other}\n")
    said = bench_of(ground, programs).foreign_swift()
    assert all(str(path) in said for path in (other, swift, sys.executable))


def test_where_no_swift_is_there_is_nothing_to_note(ground: Ground, tmp_path: Path) -> None:
    assert bench_of(ground, tmp_path / "nowhere").foreign_swift() == ""
