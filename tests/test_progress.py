"""Progress says in one line what is done, what runs and what is left; on a terminal it never garbles what pytest writes."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.install import write_executable
from hypothesis import given
from hypothesis import strategies as st
from test_doors import SMALL

from harness.door_progress import PLAIN_EVERY_S, LiveProgress
from harness.progress import Progress, span, told

ROOT = Path(__file__).resolve().parents[1]
RUNNING = (("sft-qwen3_0_6b-lora-single", 75.0), ("dpo-qwen3_0_6b-full-zero2", 12.0))
SOME = Progress(12, 97, RUNNING, 3720.0, False)
# The cursor goes down, clears, writes, comes up and back to its column.
BELOW = re.compile(r"\r?\n\r\x1b\[2K(?P<line>[^\x1b]*)\x1b\[1A\x1b\[\d+G")


def test_a_line_tells_done_running_and_what_is_left() -> None:
    assert told(SOME, 200) == (
        "cells: 12 of 97 done, about 1h02m to go (from records); running sft-qwen3_0_6b-lora-single 1m15s, dpo-qwen3_0_6b-full-zero2 12s"
    )
    assert told(SOME, 110) == "cells: 12 of 97 done, about 1h02m to go (from records); running sft-qwen3_0_6b-lora-single 1m15s and 1 more"
    assert told(SOME, 75) == "cells: 12 of 97 done, about 1h02m to go (from records); running 2"
    assert told(Progress(97, 97, (), 0.0, False), 80) == "cells: 97 of 97 done"
    assert "(a guess)" in told(Progress(0, 1, (), 5.0, True), 80)


@given(st.integers(0, 200), st.lists(st.tuples(st.text(st.characters(categories=["L"])), st.floats(0, 1e6)), max_size=9))
def test_a_line_is_never_longer_than_the_terminal(columns: int, running: list[tuple[str, float]]) -> None:
    assert len(told(Progress(1, 2, tuple(running), 5.0, False), columns)) <= columns


@pytest.mark.parametrize(("seconds", "said"), [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (3599.9, "1h00m"), (8000, "2h13m"), (-3, "0s")])
def test_a_span_has_two_units(seconds: float, said: str) -> None:
    assert span(seconds) == said


class Reporter:
    """As much of pytest's terminal reporter as is asked."""

    isatty = False

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity, self.lines = verbosity, []

    def ensure_newline(self) -> None:
        self.lines.append("")

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def shown(reporter: Reporter, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> LiveProgress:
    monkeypatch.setattr("harness.door_progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    plugins = {"terminalreporter": reporter}
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=plugins.get))
    return LiveProgress(config)


def test_without_a_terminal_there_is_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, clock = Reporter(), [100.0]
    live = shown(reporter, monkeypatch, clock)
    for _ in range(650):
        live(SOME)
        clock[0] += 0.1
    live(None)
    assert PLAIN_EVERY_S == 30.0
    assert reporter.lines == ["", told(SOME, 1000)] * 2


def test_a_quiet_run_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, clock = Reporter(verbosity=-1), [100.0]
    live = shown(reporter, monkeypatch, clock)
    for _ in range(10):
        live(SOME)
        clock[0] += 60.0
    assert reporter.lines == []


@pytest.mark.parametrize("words", [(), ("-v",)], ids=["dots", "verbose"])
def test_on_a_terminal_the_line_is_below_pytests_own_and_gone_in_the_end(tmp_path: Path, words: tuple[str, ...]) -> None:
    output = in_a_terminal(tmp_path, *words)
    lines = [match["line"] for match in BELOW.finditer(output)]
    assert any(line.startswith("cells: 0 of 2 done, about ") for line in lines), output
    assert any("; running tiny-sft-" in line or "; running sft-" in line for line in lines), output
    assert lines[-1] == ""
    rest = BELOW.sub("", output)
    assert "cells:" not in rest and "\x1b[2K" not in rest, rest
    if words:
        assert len(re.findall(r"::train \S*FAILED", rest)) == 2, rest
    else:
        assert re.search(r"npu_matrix\.py \S*F\S*F", rest), rest


def in_a_terminal(folder: Path, *words: str) -> str:
    """What `pytest -m npu_matrix` writes to a terminal of 120 columns, with a `swift` that fails after a second and a half."""
    repository, programs = folder / "repository", folder / "bin"
    shutil.copytree(ROOT / "suites", repository / "suites", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", repository)
    (repository / "matrix.yaml").write_text(SMALL, encoding="utf-8")
    programs.mkdir()
    write_executable(programs / "swift", "#!/bin/sh\nsleep 1.5\nexit 7\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NPU_MATRIX_", "ASCEND_"))}
    env = {**kept, "PATH": f"{programs}:{kept['PATH']}", "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "harness.pytest_plugin", "-m", "npu_matrix"]
    argv += ["--hardware", "cpu", "--jobs", "1", "-k", "train", *words]
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        argv, cwd=repository, env={**env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    read = b""
    try:
        while piece := os.read(ours, 65536):
            read += piece
    except OSError:
        pass  # the other end of a terminal is gone: EIO instead of an end of file
    finally:
        os.close(ours)
        run.wait(120)
    return read.decode()
