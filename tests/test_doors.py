"""The pytest door: what asks for a suite, what is refused, and that no exit status is better than what ran. `swift` is a fake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from evidence_samples import sample
from fakes.install import install, write_executable

from harness.errors import HarnessError, HostError
from harness.flow import idle_stages, with_needed
from harness.host import REHEARSAL_STORE, Host, HostRequest, matrix_file, rehearsal_root
from harness.interrupts import Interrupts
from harness.mark_words import Asked, asked_for
from harness.matrix import parse_matrix
from harness.model import Hardware, Stage, VerdictKind, Weights
from harness.processes import look, still_there
from harness.rules import applicable_stages
from harness.session import Session

ROOT = Path(__file__).resolve().parents[1]
CELL, OTHER = "sft-qwen2_5_0_5b_instruct-lora-single", "sft-qwen3_0_6b-lora-single"
SUITES = ("npu_matrix", "contract", "kernel_parity")
LIMIT_S = 120.0
SMALL = """
documents:
  guide: {title: A guide, path: guide.md, date: undated}
hardware:
  a2: {product: Atlas 900 A2 PODc, chips: [910B1], device_names: ["Ascend910B*"]}
models:
  qwen3_0_6b: {id: Qwen/Qwen3-0.6B, revision: unknown, family: qwen3, params_b: 0.6, devices: {a2: unknown}}
  qwen2_5_0_5b_instruct: {id: Qwen/Qwen2.5-0.5B-Instruct, revision: unknown, family: qwen2, params_b: 0.49, devices: {a2: unknown}}
stacks:
  documented: {document: guide, section: Stack, requires: {torch: ">=2.7.1"}, max_age_days: 45}
recipes:
  quick_start:
    document: guide
    section: Quick start
    dataset: ["AI-ModelScope/alpaca-gpt4-data-zh#1000"]
    settings: {learning_rate: 1e-4, lora_rank: 8, lora_alpha: 32}
cells:
  small:
    models: [qwen2_5_0_5b_instruct, qwen3_0_6b]
    algorithms: [sft]
    tuners: [lora]
    strategies: [single]
    hardware: [a2]
    tier: pr
    recipe: quick_start
"""


MATRIX = parse_matrix(SMALL, "matrix.yaml")


@dataclass(frozen=True)
class Place:
    """A repository of its own, whose reports and evidence are nobody else's, with one test and no `swift` yet."""

    root: Path

    @property
    def programs(self) -> Path:
        return self.root.parent / "bin"

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "harness.pytest_plugin", *words]

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NPU_MATRIX_", "ASCEND_"))}
        above = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])
        return {
            **kept,
            "PATH": os.pathsep.join([str(self.programs), kept.get("PATH", "")]),
            "PYTHONPATH": above,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }

    def door(self, *words: str, inside: str = ".") -> tuple[int, str]:
        """(exit status, all output) of `pytest words`, started in folder `inside` of the repository."""
        done = subprocess.run(
            self.argv(*words),
            cwd=self.root / inside,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        output = done.stdout + done.stderr
        assert "Traceback" not in output and "INTERNALERROR" not in output, output
        return done.returncode, output

    def kept(self) -> dict[tuple[str, str], str]:
        """The verdict of every piece in the history, by cell and stage."""
        pieces = [json.loads(path.read_text(encoding="utf-8")) for path in (self.root / ".harness" / "evidence").glob("*.json")]
        return {(p["cell"], p["stage"]): p["verdict"]["kind"] for p in pieces}


CPU = ("-m", "npu_matrix", "--hardware", "cpu", "--jobs", "1")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root = tmp_path / "repository"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test_own.py").write_text("def test_own():\n    pass\n", encoding="utf-8")
    shutil.copytree(ROOT / "suites", root / "suites", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "matrix.yaml").write_text(SMALL, encoding="utf-8")
    place = Place(root)
    place.programs.mkdir()
    write_executable(place.programs / "swift", "#!/bin/sh\necho boom\nexit 7\n")
    return place


@pytest.mark.parametrize(
    ("expression", "suites", "others"),
    [
        ("npu_matrix", ("npu_matrix",), False),
        ("(npu_matrix)", ("npu_matrix",), False),
        ("not npu_matrix", (), True),
        ("not (npu_matrix)", (), True),
        ("not(npu_matrix or contract)", (), True),
        ("not (not npu_matrix)", ("npu_matrix",), False),
        ("npu_matrix or contract", ("npu_matrix", "contract"), False),
        ("npu_matrix and contract", (), False),
        ("not contract and npu_matrix", ("npu_matrix",), False),
        ("npu_matrix or swift", ("npu_matrix",), True),
        ("npu_matrix and not swift", ("npu_matrix",), False),
        ("swift", (), True),
        ("kernel_parity", ("kernel_parity",), False),
        ("npu_matrix and (", (), True),
        ("1 < 2", (), True),
        ("", (), True),
    ],
)
def test_an_expression_asks_for_a_suite_only_where_its_mark_makes_the_difference(
    expression: str, suites: tuple[str, ...], others: bool
) -> None:
    assert asked_for(expression, SUITES) == Asked(suites, others)


def test_a_suite_given_as_a_file_is_asked_for_unless_the_expression_rules_it_out() -> None:
    assert asked_for("", SUITES, ["contract"]).suites == ("contract",)
    assert asked_for("not contract", SUITES, ["npu_matrix", "contract"]).suites == ("npu_matrix",)
    assert asked_for("contract", SUITES, ["npu_matrix", "contract"]).suites == ("contract",)


def test_a_rehearsals_root_is_an_existing_folder_and_not_the_repository(tmp_path: Path) -> None:
    repository, root = tmp_path / "repository", tmp_path / "root"
    repository.mkdir()
    root.mkdir()
    (tmp_path / "file").touch()
    assert rehearsal_root(str(root), repository) == root
    assert not (ROOT / REHEARSAL_STORE).exists(), "a rehearsal's own name must be no folder of the repository"
    for wrong in ("", " ", str(tmp_path / "absent"), str(tmp_path / "file"), str(repository), str(root / ".." / "repository"), "/"):
        with pytest.raises(HostError, match="--rehearsal"):
            rehearsal_root(wrong, repository)


def test_a_matrix_without_a_name_is_refused() -> None:
    with pytest.raises(HarnessError, match="names no file"):
        matrix_file("")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_a_scale_that_leaves_no_deadline_is_refused(scale: float) -> None:
    with pytest.raises(HarnessError, match="--deadline-scale"):
        Session.open(HostRequest(root=ROOT, deadline_scale=scale))


def host(rehearsal: Path | None = None) -> Host:
    return Host(Hardware.CPU, "tiny", (), ROOT, ROOT, ROOT, "", {}, rehearsal, 1.0)


def test_a_stage_without_a_proof_pulls_in_nothing_except_in_a_rehearsal(tmp_path: Path) -> None:
    cell = MATRIX.cell(CELL)
    assert cell is not None and Stage.EVAL in applicable_stages(cell)
    asked = (Stage.EVAL,)
    assert with_needed(asked, cell, idle_stages(asked, cell, host())) == asked
    assert with_needed(asked, cell, idle_stages(asked, cell, host(tmp_path))) == (Stage.TRAIN, Stage.MERGE, Stage.EVAL)
    both = (Stage.RESUME, Stage.EVAL)
    assert with_needed(both, cell, idle_stages(both, cell, host())) == (Stage.TRAIN, Stage.RESUME, Stage.EVAL)


def test_what_is_not_green_counts_even_if_no_item_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(HostRequest(root=ROOT), MATRIX)
    session._selected = {(f"tiny-{CELL}", Stage.MERGE)}
    fixed_elsewhere = sample(CELL, Stage.INFER, VerdictKind.FIXED)
    ruling = replace(fixed_elsewhere.ruling, recorded_on=Hardware.A2)
    session._kept = [sample(CELL, Stage.TRAIN, VerdictKind.FAILED), sample(CELL, Stage.RESUME, VerdictKind.FIXED)]
    session._kept += [replace(fixed_elsewhere, ruling=ruling), sample(CELL, Stage.MERGE, VerdictKind.FAILED), sample(CELL, Stage.EVAL)]
    assert [e.stage for e in session.untold] == [Stage.TRAIN, Stage.RESUME]
    assert [line for line in session.summary() if line.startswith(f"not selected, but not green: {CELL} train: failed")]
    assert session.anything_ran
    session._selected = {(f"tiny-{CELL}", Stage.DEPLOY)}
    assert not session.anything_ran, "only what led up to the selected stage ran"
    assert sample(CELL).weights is Weights.TINY


def test_writing_the_tables_never_hides_how_the_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(HostRequest(root=ROOT), MATRIX)
    session._kept = [sample(CELL)]
    for fault in (OSError(28, "No space left on device", "reports/x"), HostError("reports", "are full."), ValueError("ours")):

        def refuse(*given: object, fault: Exception = fault) -> None:
            raise fault

        monkeypatch.setattr("harness.report.write_report", refuse)
        session.finish()
    environment, host_error, ours = session.faults
    assert environment.startswith("writing the tables failed: OSError: No space left on device: reports/x")
    assert environment.endswith("[blame environment]")
    assert host_error == "writing the tables failed: reports: are full. [blame environment]"
    assert ours.endswith("[blame harness]")
    assert session.summary()[-3:] == session.faults


def test_the_first_signal_raises_and_each_later_one_only_hurries_the_end() -> None:
    hurried: list[int] = []
    interrupts = Interrupts(lambda: hurried.append(1))
    before = signal.getsignal(signal.SIGTERM)
    interrupts.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        interrupts.ending()
        signal.raise_signal(signal.SIGTERM)
    finally:
        interrupts.restore()
    assert (interrupts.seen, hurried) == (["SIGTERM", "SIGINT", "SIGTERM"], [1, 1])
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_asks_for_no_suite_runs_the_harnesss_own_tests_and_what_asks_for_one_finds_it(place: Place) -> None:
    assert place.door("-m", "not (npu_matrix)")[0] == 0
    for words, inside in (("npu_matrix.py", "suites"), ("suites", ".")):
        code, output = place.door("--collect-only", "-q", "-k", CELL, words, inside=inside)
        assert code == 0 and f"npu_matrix.py::{CELL}::train" in output, output
    assert f"contract.py::{CELL}\n" in output, output


def test_what_would_be_heeded_by_nothing_is_refused(place: Place) -> None:
    for words, says in (
        (("--require-npu", "--jobs=2"), "--require-npu, --jobs: without -m npu_matrix"),
        (("-m", "contract", "--require-npu"), "--require-npu: without -m npu_matrix or -m npu_benchmark or -m kernel_parity"),
        ((*CPU, "--rehearsal", ""), "names no folder"),
    ):
        code, output = place.door(*words)
        assert code == 4 and says in output, output


def test_a_stage_has_a_node_id_and_what_failed_last_can_be_asked_for(place: Place) -> None:
    code, output = place.door(*CPU, "-k", f"{CELL} and (train or resume)")
    assert code == 1 and "1 failed, 1 skipped" in output, output
    install(place.programs)
    code, output = place.door(*CPU, "--lf")
    assert code == 0 and "1 passed" in output, output
    code, output = place.door("--hardware", "cpu", f"suites/npu_matrix.py::{CELL}::train")
    assert code == 0 and "1 passed" in output, output


def test_nothing_but_an_unproved_stage_is_no_run(place: Place) -> None:
    code, output = place.door(*CPU, "-k", f"{CELL} and eval")
    assert code == 5 and "stages run: 1 untested" in output, output
    assert list(place.kept()) == [(CELL, "eval")], "a stage that proves nothing started others"


def test_a_folder_that_cannot_be_used_is_one_line_and_the_environments_fault(place: Place) -> None:
    own = place.root / ".harness"
    own.touch()
    code, output = place.door(*CPU, "-k", f"{CELL} and train")
    assert code == 1 and "[blame environment]" in output, output
    own.unlink()
    (place.root / "reports").mkdir()
    (place.root / "reports" / "support.md").mkdir()
    install(place.programs)
    code, output = place.door(*CPU, "-k", f"{CELL} and train")
    assert code == 1 and "1 passed" in output, output
    assert "writing the tables failed" in output and "[blame environment]" in output, output
    assert output.rstrip().endswith("NO NPU: ran on cpu, proves nothing about NPU hardware")


def test_a_rehearsal_says_so_at_the_end_and_keeps_its_own_store(place: Place) -> None:
    root = place.root.parent / "root"
    install(root / "usr" / "local" / "bin")
    code, output = place.door("-m", "npu_matrix", "--rehearsal", str(root), "-k", f"{CELL} and train")
    assert code == 0, output
    assert output.rstrip().endswith(f"REHEARSAL: programs and devices came from {root}, proves nothing")
    assert sorted(path.name for path in root.iterdir()) == [REHEARSAL_STORE, "usr"]
    assert not (place.root / "reports").exists() and not (place.root / ".harness").exists()


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)], ids=["sigterm", "ctrl-c-twice"])
def test_a_run_that_is_told_to_end_keeps_its_evidence_and_ends_its_children(place: Place, numbers: tuple[signal.Signals, ...]) -> None:
    started = place.root / "started"
    # Deaf to SIGTERM where there is a second signal that must hurry something.
    deaf = "trap '' TERM" if len(numbers) > 1 else ""
    script = f"{deaf}\necho $$ > {started}.new\nmv {started}.new {started}\nwhile :; do sleep 1; done\n"
    write_executable(place.programs / "swift", f"#!/bin/sh\n{script}")
    words = place.argv(*CPU, "-p", "no:cacheprovider", "-k", f"({CELL} or {OTHER}) and train")
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    with (place.root / "output").open("w+") as output:
        run = subprocess.Popen(
            words, cwd=place.root, env=place.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=heed
        )
        try:
            until = time.monotonic() + LIMIT_S
            while not started.exists():
                assert run.poll() is None and time.monotonic() < until, (place.root / "output").read_text()
                time.sleep(0.02)
            child = look(int(started.read_text()))
            assert child is not None
            began = time.monotonic()
            for number in numbers:
                run.send_signal(number)
                time.sleep(0.3)
            code = run.wait(LIMIT_S)
            took_s = time.monotonic() - began
        finally:
            run.kill()
    said = (place.root / "output").read_text()
    assert code == pytest.ExitCode.INTERRUPTED, said
    assert "Traceback" not in said and "INTERNALERROR" not in said, said
    assert still_there([child]) == []
    assert place.kept() == {(CELL, "train"): "interrupted"}
    assert said.rstrip().endswith("NO NPU: ran on cpu, proves nothing about NPU hardware")
    assert len(numbers) == 1 or took_s < 9, "the second Ctrl-C hurried nothing"
