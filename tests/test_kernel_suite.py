"""pytest -m kernel_parity as people meet it: outcomes, the table, replays, evidence. The kernels are toys."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.door_kernels import choose, parse_case
from harness.errors import HarnessError
from harness.parity import State, from_json

ROOT = Path(__file__).resolve().parents[1]
NO_NPU = "NO NPU: ran on cpu, proves nothing about NPU hardware (operators were the reference's and Triton kernels ran in the interpreter)"


@dataclass(frozen=True)
class Done:
    code: int
    text: str
    root: Path

    @property
    def states(self) -> dict[str, str]:
        """What pytest -rA says of each item."""
        found = re.findall(r"^(PASSED|FAILED|XFAIL|SKIPPED|ERROR) (?:\[\d+\] )?suites/kernel_parity.py(?:::| - )?(.*)$", self.text, re.M)
        return {re.sub(r"^:\d+: ", "", item).partition(" - ")[0]: state for state, item in found}


def door(root: Path, *words: str, **variables: str) -> Done:
    """`pytest words` in a repository of its own that has nothing but toys, with these environment variables besides."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NPU_MATRIX_", "ASCEND_"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "harness.pytest_plugin", "-p", "kernel_toys", *words]
    done = subprocess.run(argv, cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    assert "Traceback" not in text and "INTERNALERROR" not in text, text
    return Done(done.returncode, text, root)


def repository(root: Path) -> Path:
    (root / "suites").mkdir(parents=True)
    shutil.copy(ROOT / "suites" / "kernel_parity.py", root / "suites")
    shutil.copy(ROOT / "suites" / "npu_matrix.py", root / "suites")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return door(repository(tmp_path_factory.mktemp("whole") / "repository"), "-m", "kernel_parity", "-rA")


def test_every_item_ends_as_its_kernel_deserves(whole: Done) -> None:
    assert whole.code == 1, whole.text
    assert whole.states == {
        "toy.sound-fp32": "PASSED",
        "toy.sound-bf16": "PASSED",
        "toy.wrong-fp32": "FAILED",
        "toy.known-fp32": "PASSED",
        "toy.known-fp32 known: eps is too large": "XFAIL",
        "toy.mended-fp32": "PASSED",
        "toy.mended-fp32 known: eps is too large": "FAILED",
        "toy.unshown-fp32": "PASSED",
        "toy.unshown-fp32 known: eps is too large": "FAILED",
        "toy.idle-fp32": "FAILED",
        "toy.dies-fp32": "FAILED",
        "check upright": "PASSED",
        "check fallen": "FAILED",
        "no toys here: pip install toys": "SKIPPED",
    }, whole.text


def test_a_failure_tells_what_differs_where_and_how_to_repeat_it_and_nothing_else(whole: Done) -> None:
    told = re.search(r"_ toy\.wrong-fp32 _+\n(.*?)\n_+ ", whole.text, re.S)
    assert told is not None
    lines = told[1].splitlines()
    assert lines[0] == "toy.wrong in fp32 (a norm):" and lines[-1].startswith("  pytest -m kernel_parity -k toy.wrong-fp32 --kernel-case")
    assert any("to the golden, limit" in line for line in lines) and any(line.startswith("  ran: norm 1") for line in lines)
    assert "ValueError at" in whole.text and "no such kernel" in whole.text and "and more of it" not in whole.text
    assert "check_fallen" not in whole.text and "fallen (stands): it is upside down" in whole.text


def test_a_known_failure_shows_its_cause_and_one_that_is_over_proposes_the_edit(whole: Done) -> None:
    assert "XFAIL suites/kernel_parity.py::toy.known-fp32 known: eps is too large - told in a note (1 of 1 cases fail)" in whole.text
    assert "fixed? All 1 cases pass. Take the known failure 'eps is too large' out of kernel toy.mended" in whole.text
    assert "no example of toy.unshown is one that it concerns, so nothing shows it. Add one." in whole.text
    assert "nothing was compared: it has no example and draws no case" in whole.text


def test_the_table_is_printed_once_with_both_directions_and_what_was_not_run(whole: Done) -> None:
    lines = whole.text.splitlines()
    assert len([line for line in lines if line.startswith("kernel ") and "worst" in line]) == 1
    rows = [line.split() for line in lines if line.startswith("toy.sound ")]
    assert [row[1:3] for row in rows] == [["bf16", "backward"], ["bf16", "forward"], ["fp32", "backward"], ["fp32", "forward"]]
    assert all(float(row[3]) < float(row[4]) and int(row[6]) > 1 for row in rows), rows
    assert "not run: toy.absent-fp32: no toys here: pip install toys" in lines
    assert lines[-1] == NO_NPU


def test_the_evidence_holds_every_item_and_no_path_of_this_machine(whole: Done) -> None:
    text = (whole.root / "reports" / "kernels" / "cpu.json").read_text(encoding="utf-8")
    found = from_json(text, "cpu.json")
    assert {e.item: e.state for e in found.entries}["toy.wrong-fp32"] is State.FAILED
    assert len(found.entries) == 13 and [one.item for one in found.not_run] == ["toy.absent-fp32"]
    assert found.runs[0].versions["torch"] and found.runs[0].versions["hypothesis"] and not any(e.quick for e in found.entries)
    assert str(whole.root) not in text and str(Path.home()) not in text
    page = (whole.root / "reports" / "kernel-parity.md").read_text(encoding="utf-8")
    assert "proves the composition, nothing about NPU kernels" in page and "| toy.wrong |" in page


def test_the_command_that_a_failure_prints_repeats_it(whole: Done, tmp_path: Path) -> None:
    printed = next(line.strip() for line in whole.text.splitlines() if "--kernel-case" in line and "toy.wrong-fp32" in line)
    root = repository(tmp_path / "repository")
    again = door(root, *shlex.split(printed)[1:])
    assert again.code == 1 and "1 failed" in again.text and printed in again.text, again.text
    assert not (root / "reports").exists(), "a replayed case leaves no evidence"
    sound = json.dumps({"kernel": "toy.sound", "dtype": "bf16", "params": {"n": 1, "h": 2, "scale": 1.0}, "seed": 3})
    passed = door(root, "-m", "kernel_parity", "--kernel-case", sound)
    assert passed.code == 0 and "1 passed" in passed.text, passed.text


def test_two_workers_give_one_table_and_a_quick_run_leaves_the_rows_of_the_whole_one(whole: Done, tmp_path: Path) -> None:
    root = repository(tmp_path / "repository")
    shutil.copytree(whole.root / "reports", root / "reports")
    done = door(root, "-m", "kernel_parity", "--quick", "-n", "2", "-p", "xdist.plugin", "-k", "sound or known-fp32 or upright or absent")
    assert done.code == 0 and "4 passed, 1 skipped, 1 xfailed" in done.text, done.text
    assert len([line for line in done.text.splitlines() if line.startswith("toy.sound ")]) == 4
    assert done.text.rstrip().splitlines()[-1] == NO_NPU
    kept = from_json((root / "reports" / "kernels" / "cpu.json").read_text(encoding="utf-8"), "cpu.json")
    assert len([e for e in kept.entries if not e.quick]) == 13 and len([e for e in kept.entries if e.quick]) == 5
    assert (root / "reports" / "kernel-parity.md").read_text(encoding="utf-8").count("quick") == 0


def test_an_item_that_kills_its_worker_is_a_failing_row(tmp_path: Path) -> None:
    words = ("-m", "kernel_parity", "--quick", "-n", "2", "-p", "xdist.plugin", "-k", "crashes or upright")
    done = door(repository(tmp_path / "repository"), *words, TOYS_THAT_CRASH="1")
    assert done.code == 1 and "1 failed, 1 passed" in done.text, done.text
    kept = from_json((done.root / "reports" / "kernels" / "cpu.json").read_text(encoding="utf-8"), "cpu.json")
    found = {entry.item: entry for entry in kept.entries}
    assert found["toy.crashes-fp32"].state is State.FAILED and "crashed" in found["toy.crashes-fp32"].because


def test_nothing_selected_nothing_runnable_and_what_nothing_heeds_are_told_apart(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository")
    for words, code, says in (
        (("-m", "kernel_parity", "-k", "nobody"), 5, "deselected"),
        (("-m", "kernel_parity", "-k", "absent"), 5, "no toys here"),
        (("-m", "npu_matrix", "--quick"), 4, "--quick: without -m kernel_parity nothing heeds that"),
        (("-m", "kernel_parity", "--require-npu"), 4, "no NPU is usable"),
        (("-m", "kernel_parity", "--kernel-case", '{"kernel":"toy.soud","dtype":"fp32","params":{},"seed":0}'), 2, "Perhaps 'toy.sound'?"),
    ):
        done = door(root, *words)
        assert done.code == code and says in done.text, done.text
    assert not (root / "reports").exists()


def test_a_simulated_npu_is_no_place_for_kernels() -> None:
    with pytest.raises(HarnessError, match="a simulated NPU has no kernels of its own"):
        choose("sim", require_npu=False)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"kernel":1,"dtype":"fp32","params":{},"seed":0}', '{"kernel":"a","dtype":"b","params":{},"seed":true}']
)
def test_a_case_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match="--kernel-case"):
        parse_case(text)
