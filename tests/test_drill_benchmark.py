"""Drill: benchmarks on a host with eight NPUs that isn't there: the real command, a lease, nothing left in the repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fakes import rehearsal
from test_drill_rehearsal import FLAGSHIP, ROOT, build, clean_environment, root  # noqa: F401

from harness.commands_benchmark import BENCHMARK_STEPS
from harness.host import REHEARSAL_STORE


def test_a_benchmark_is_rehearsed_with_the_documented_command_and_keeps_apart(root: Path) -> None:  # noqa: F811
    build(root, cells=(FLAGSHIP,))
    words = ["-m", "npu_benchmark", f"--rehearsal={root}", "--hardware", "a2", "--require-npu", "--weights", "real", "--repeats", "2"]
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, "-k", f"{FLAGSHIP} and train"]
    before = sorted((ROOT / ".harness" / "benchmarks").glob("*"))
    done = subprocess.run(argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    calls = [call for call in rehearsal.Rehearsal(root).calls() if call["program"] == "swift" and call["argv"][:1] == ["sft"]]
    assert len(calls) == 2, output
    for call in calls:
        argv = call["argv"]
        assert argv[argv.index("--max_steps") + 1] == argv[argv.index("--save_steps") + 1] == str(BENCHMARK_STEPS)
        assert argv[argv.index("--model") + 1] == "Qwen/Qwen3-0.6B" and "--use_cpu" not in argv
        assert call["env"]["ASCEND_RT_VISIBLE_DEVICES"].isdigit()
    assert "REHEARSAL: programs and devices came from" in output and "proves nothing" in output
    kept = list((root / REHEARSAL_STORE).rglob("benchmarks/*/*.json"))
    assert [json.loads(path.read_text())["rehearsal"] for path in kept] == [True], output
    assert sorted((ROOT / ".harness" / "benchmarks").glob("*")) == before
