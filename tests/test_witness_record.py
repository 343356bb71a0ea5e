"""The witness file: written only when asked, one line an event, never at the cost of the run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.witness import record, stack

LOADER = Path(record.__file__).parent / "plugin" / "npu_matrix_witness.py"


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(record.DIR_VARIABLE, str(tmp_path / "witness"))
    monkeypatch.setenv(record.NONCE_VARIABLE, "n1")
    return tmp_path / "witness"


@pytest.mark.parametrize("missing", [record.DIR_VARIABLE, record.NONCE_VARIABLE])
def test_a_process_that_was_not_asked_writes_nothing(missing: str, watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(missing)
    assert record.session() is None
    assert not watched.exists()


def test_every_line_says_who_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    record.Session(str(tmp_path), "n1").emit("step", step=1)
    (line,) = lines(tmp_path)
    assert {"event": "step", "nonce": "n1", "pid": os.getpid(), "rank": 3, "world_size": 4, "step": 1}.items() <= line.items()
    assert (tmp_path / f"witness-{os.getpid()}.jsonl").exists()


def test_a_process_that_is_killed_leaves_the_lines_written_so_far(tmp_path: Path) -> None:
    code = "import os, signal, sys; from harness.witness import record; record.session().emit('step'); os.kill(os.getpid(), signal.SIGKILL)"
    env = {**os.environ, record.DIR_VARIABLE: str(tmp_path), record.NONCE_VARIABLE: "n1"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[1])
    assert [line["event"] for line in lines(tmp_path)] == ["start", "step"]


def test_a_process_that_ends_says_so_with_its_peak_memory(tmp_path: Path) -> None:
    code = "from harness.witness import record; record.session(); record.session()"
    env = {**os.environ, record.DIR_VARIABLE: str(tmp_path), record.NONCE_VARIABLE: "n1"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[1], check=True)
    start, end = lines(tmp_path)
    assert (start["event"], end["event"]) == ("start", "end")
    assert isinstance(end["peak_rss_mib"], float) and end["peak_rss_mib"] > 1


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    code = (
        "import os, sys; from harness.witness import record; record.session()\n"
        "pid = os.fork()\n"
        "if pid == 0: record.session().emit('step'); sys.exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    env = {**os.environ, record.DIR_VARIABLE: str(tmp_path), record.NONCE_VARIABLE: "n1"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[1], check=True)
    by_file = [[json.loads(line)["event"] for line in file.read_text().splitlines()] for file in tmp_path.iterdir()]
    assert sorted(by_file) == [["start", "end"], ["start", "step", "end"]]


def test_the_end_waits_for_a_daemon_thread_that_still_generates(tmp_path: Path) -> None:
    code = (
        "import threading, time; from harness.witness import record\n"
        "session, begun = record.session(), threading.Event()\n"
        "def generate():\n"
        "    with session.working(): begun.set(); time.sleep(0.5); session.emit('generate')\n"
        "threading.Thread(target=generate, daemon=True).start(); begun.wait()"
    )
    env = {**os.environ, record.DIR_VARIABLE: str(tmp_path), record.NONCE_VARIABLE: "n1"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[1], check=True)
    assert [line["event"] for line in lines(tmp_path)] == ["start", "generate", "end"]


def test_a_generation_that_never_ends_is_a_fault_and_does_not_hold_the_process(tmp_path: Path) -> None:
    session = record.Session(str(tmp_path), "n1")
    with session.working():
        session.wait_until_idle(0.01)
    assert "1 generations were still running" in str(lines(tmp_path)[0]["error"])


def test_a_failure_of_the_witness_is_recorded_and_survived(tmp_path: Path) -> None:
    session = record.Session(str(tmp_path), "n1")
    with session.guard("on_step_end"):
        raise ValueError("no device")
    (line,) = lines(tmp_path)
    assert (line["event"], line["where"], line["error"]) == ("fault", "on_step_end", "ValueError: no device")


def test_a_request_to_stop_goes_through_the_guard(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), record.Session(str(tmp_path), "n1").guard("on_step_end"):
        raise KeyboardInterrupt


def test_a_folder_that_cannot_be_written_is_said_once_and_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    session = record.Session(str(tmp_path / "file"), "n1")
    session.emit("step")
    session.emit("step")
    assert capsys.readouterr().err.count("can't be written") == 1


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_value_is_written_as_strict_json(value: object) -> None:
    text = json.dumps(record.strict(value), allow_nan=False)
    if isinstance(value, float) and not math.isfinite(value):
        assert json.loads(text) in ("nan", "inf", "-inf")


def test_the_loader_shadows_no_module_and_loads_once(tmp_path: Path) -> None:
    """With stand-ins for the two modules of ms-swift, so that it takes no import of the real one."""
    for name, text in {
        "swift/__init__.py": "",
        "swift/callbacks/__init__.py": "callbacks_map = {}",
        "swift/callbacks/base.py": "class TrainerCallback:\n    pass",
        "swift/template/__init__.py": "class Template:\n    def generate(self, model): pass\n"
        "class Child(Template):\n    def generate(self, model): pass",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = (
        "import runpy, sys, swift.template as t\n"
        "sys.path.insert(0, sys.argv[1].rpartition('/')[0])\n"
        "runpy.run_path(sys.argv[1]); first = t.Template.generate, t.Child.generate\n"
        "runpy.run_path(sys.argv[1])\n"
        "assert first == (t.Template.generate, t.Child.generate)\n"
        "sys.modules['_npu_matrix_witness.hooks'].install()\n"
        "assert first == (t.Template.generate, t.Child.generate)\n"
        "from swift.callbacks import callbacks_map; assert list(callbacks_map) == ['npu_matrix_witness']\n"
        "assert 'harness' not in sys.modules\n"
        "import record"  # the witness's own files must not be importable by their bare names
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "NPU_MATRIX_WITNESS_DIR": str(tmp_path / "w"), "NPU_MATRIX_NONCE": "n"}
    done = subprocess.run([sys.executable, "-c", code, str(LOADER)], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'record'")
    assert [line["event"] for line in lines(tmp_path / "w")] == ["start", "end"]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()


def test_an_editable_checkout_is_witnessed_with_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    source = tmp_path / "swift" / "__init__.py"
    source.parent.mkdir()
    source.write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    assert stack.checkout(str(source)) == (git(tmp_path, "rev-parse", "HEAD"), False)
    source.write_text("changed = 1")
    assert stack.checkout(str(source)) == (git(tmp_path, "rev-parse", "HEAD"), True)


def test_a_virtual_environment_inside_a_repository_is_no_checkout_of_ms_swift(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "README").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    installed = tmp_path / ".venv" / "swift" / "__init__.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    assert stack.checkout(str(installed)) == (None, None)


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("ascend-toolkit/latest/version.cfg", "# version: 1.0\nruntime_running_version=[7.6.0.1.220:8.3.RC1]\n", "8.3.RC1"),
        (
            "ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
            "package_name=Ascend-cann-toolkit\nversion=8.5.1\narch=aarch64\n",
            "8.5.1",
        ),
    ],
)
def test_canns_version_is_read_from_the_toolkits_files(file: str, text: str, version: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert stack.cann_version(str(tmp_path)) == version
    assert stack.driver_version(str(tmp_path)) is None


def test_the_drivers_version_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "version.info").write_text("Version=25.0.rc1.1\nascendhal_version=7.35.23\n")
    assert stack.driver_version(str(tmp_path)) == "25.0.rc1.1"
    assert stack.cann_version(str(tmp_path)) is None
