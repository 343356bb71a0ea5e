"""Drill: the harness dies in the middle of a run. What was finished stays, nothing is left running, and the next run starts clean."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import rehearsal
from fakes.install import write_executable
from filelock import FileLock, Timeout

from harness.model import Evidence, Stage, VerdictKind
from harness.processes import Process, descendants, kill_until_gone, members, still_there
from harness.session import open_store
from harness.store import KEPT, Store
from harness.tiny import make_datasets, make_tiny_model

ROOT = Path(__file__).resolve().parents[1]
# In the order in which they run: one that is finished, one that is hit, one that is never reached.
FIRST, HIT, LAST = "pt-qwen2_5_0_5b_instruct-lora-single", "rm-qwen2_5_0_5b_instruct-lora-single", "rm-qwen3_0_6b-lora-single"
SERVED = "sft-qwen3_0_6b-full-single"
# Deadlines, not pauses: far beyond what any of it takes on two busy cores.
SOON_S, END_S = 15.0, 120.0

# Goes into the honest stand-in: where the gate says so it halts, half done, with a child that left its group.
_HOLD = """
import json, subprocess, time
from pathlib import Path
from fakes.honest.habits import Honest

def hold(hook, half_done=lambda: None):
    gate = Path({gate!r})
    asked = json.loads(gate.read_text()) if gate.exists() else dict(hook="")
    here = os.path.basename(os.getcwd()).rpartition("-")[0]
    if (asked["hook"], asked.get("cell"), asked.get("word") in sys.argv) != (hook, here, True):
        return
    half_done()
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"], start_new_session=True, **quiet)
    Path({reached!r}).touch()
    time.sleep(300)

def half_a_checkpoint(folder):
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"\\x10\\x00\\x00")

Honest.before_step = lambda self, step: step == 13 and hold("step")
Honest.before_save = lambda self, folder: hold("save", lambda: half_a_checkpoint(folder))
Honest.before_listening = lambda self: hold("serve")
"""

# pytest, but it never gets to put the newest evidence into its place.
_HALTED = """
import os, sys, time, pytest
from pathlib import Path
replace = os.replace

def halt(source, target):
    if Path({evidence!r}) in Path(target).parents:
        Path({reached!r}).touch()
        time.sleep(300)
    replace(source, target)

os.replace = halt
sys.exit(pytest.main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Blow:
    """What is run, where it is held, and the signal that the harness then gets."""

    number: signal.Signals
    hook: str
    cell: str
    word: str
    stage: Stage
    selected: Mapping[str, tuple[Stage, ...]]

    @property
    def words(self) -> tuple[str, ...]:
        return selection(self.selected)


def selection(cells: Mapping[str, tuple[Stage, ...]]) -> tuple[str, ...]:
    return "-k", " or ".join(f"({cell} and {stage})" for cell, stages in cells.items() for stage in stages)


RESUMED = {FIRST: (Stage.TRAIN,), HIT: (Stage.TRAIN, Stage.RESUME)}
BLOWS = (
    Blow(signal.SIGKILL, "save", HIT, "--resume_from_checkpoint", Stage.RESUME, RESUMED),
    Blow(signal.SIGTERM, "serve", SERVED, "deploy", Stage.DEPLOY, {SERVED: (Stage.TRAIN, Stage.DEPLOY), FIRST: (Stage.TRAIN,)}),
    Blow(signal.SIGINT, "step", HIT, "--resume_from_checkpoint", Stage.RESUME, {HIT: RESUMED[HIT], LAST: (Stage.TRAIN,)}),
)
# SIGTERM may end pytest on the spot or, where it is taken for a Ctrl-C, in good order.
ENDS = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (-signal.SIGTERM, pytest.ExitCode.INTERRUPTED),
    signal.SIGINT: (pytest.ExitCode.INTERRUPTED,),
}


@dataclass
class Scene:
    """A rehearsal's ROOT and the harness runs in it. Mutable: it remembers whom to end."""

    root: Path
    running: list[subprocess.Popen[bytes]]

    @property
    def gate(self) -> Path:
        return self.root / "var" / "gate"

    @property
    def store(self) -> Store:
        return open_store(ROOT, self.root)

    @property
    def runs(self) -> Path:
        return self.store.root / "runs"

    @property
    def history(self) -> Path:
        return self.store.history

    @property
    def evidence(self) -> Path:
        return self.store.reports / "evidence"

    @property
    def output(self) -> str:
        """Of the latest run."""
        return (self.root / "var" / f"output-{len(self.running)}").read_text(encoding="utf-8", errors="replace")

    @property
    def reached(self) -> Path:
        return self.root / "var" / "reached"

    def start(
        self, words: tuple[str, ...], before: tuple[str, ...] = (), program: tuple[str, ...] = ("-m", "pytest")
    ) -> subprocess.Popen[bytes]:
        """`before` words lead the command line, as `env` would."""
        asked = ["-p", "no:cacheprovider", "-m", "npu_matrix", f"--rehearsal={self.root}", "--hardware", "a2", "--require-npu"]
        argv = [*before, sys.executable, *program, *asked, "--weights", "real", "--tier", "pr", "--jobs", "1", *words]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NPU_MATRIX_", "ASCEND_"))}
        with (self.root / "var" / f"output-{len(self.running) + 1}").open("wb") as output:
            # Who runs these tests in the background may have been told to ignore Ctrl-C, and children inherit that.
            heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
            process = subprocess.Popen(
                argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, preexec_fn=heed
            )
        self.running.append(process)
        return process

    def finish(self, words: tuple[str, ...], before: tuple[str, ...] = ()) -> int:
        return self.start(words, before).wait(END_S)

    def wait_for(self, what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + END_S
        while not what():
            assert process.poll() is None, f"the harness ended before it could be hit:\n{self.output}"
            assert time.monotonic() < until, f"never got so far:\n{self.output}"
            time.sleep(0.02)

    def nonces(self) -> list[str]:
        calls = rehearsal.Rehearsal(self.root).calls()
        return [call["env"]["NPU_MATRIX_NONCE"] for call in calls if "NPU_MATRIX_NONCE" in call["env"]]

    def called(self, cell: str) -> int:
        calls = rehearsal.Rehearsal(self.root).calls("swift")
        return sum(Path(call["cwd"]).name.rpartition("-")[0] == cell for call in calls)

    def bearers(self) -> list[Process]:
        return members((), self.nonces())

    def pieces(self) -> dict[Path, Evidence]:
        """Every piece of the history, each checked as a reader would: whole, of this schema, hash and verdict its own."""
        return {path: self.store.load(path) for path in sorted(self.history.glob("*.json"))}

    def current(self) -> dict[tuple[str, Stage], Evidence]:
        """The newest of every key. Raises EvidenceError for anything unsound."""
        good, _ = self.store.load_all(strict=True)
        return {(e.cell, e.stage): e for e in good}

    def weights(self) -> list[Path]:
        """Trained files that lie about. Gigabytes with real models; of this drill's cells none has a reason to."""
        return list(self.runs.rglob("*.safetensors"))

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait(END_S)
        kill_until_gone(self.bearers)
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    root, cache = tmp_path / "root", tmp_path / "cache"
    rehearsal.build(root, model=make_tiny_model("qwen2", cache).path, datasets=make_datasets(cache)["sft"].parent)
    scene = Scene(root, [])
    honest = root / "opt" / "honest-swift"
    text, ends = honest.read_text(encoding="utf-8"), "sys.exit(run("
    assert text.count(ends) == 1
    write_executable(honest, text.replace(ends, _HOLD.format(gate=str(scene.gate), reached=str(scene.reached)) + ends))
    yield scene
    scene.close()


def gone(processes: Callable[[], list[Process]]) -> list[Process]:
    """Who is left once none is, or after a few seconds."""
    until = time.monotonic() + SOON_S
    while (left := processes()) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def lock_is_free(history: Path) -> bool:
    try:
        with FileLock(history / ".lock", timeout=0):
            return True
    except Timeout:
        return False


@pytest.mark.parametrize("blow", [pytest.param(blow, id=f"{blow.number.name}-{blow.stage}") for blow in BLOWS])
def test_a_harness_that_dies_keeps_what_was_finished_and_the_next_starts_clean(scene: Scene, blow: Blow) -> None:
    scene.gate.write_text(json.dumps({"hook": blow.hook, "cell": blow.cell, "word": blow.word}))
    process = scene.start(blow.words)
    scene.wait_for(scene.reached.exists, process)
    family = [p for p in descendants(process.pid) if p.pid != process.pid]
    assert len(family) >= 2, "the guardian and the held command"
    assert len(scene.bearers()) >= 2, "the held command and the child that left its group"
    half_done = {path.parent for path in scene.runs.rglob("owner-*.json")}
    assert [path.name.rpartition("-")[0] for path in half_done] == [blow.cell]
    os.kill(process.pid, blow.number)

    code = process.wait(END_S)
    assert code in ENDS[blow.number], scene.output
    assert gone(scene.bearers) == []
    assert gone(lambda: still_there(family)) == []
    assert lock_is_free(scene.history)
    orderly = code == pytest.ExitCode.INTERRUPTED
    kept = finished_stages_kept_their_evidence_and_the_hit_one_has_no_mark(scene, blow, orderly)

    scene.gate.unlink()
    assert scene.finish(blow.words) == 0, scene.output
    if not orderly:
        swept = [f"swept: removed {path.relative_to(scene.runs)}, left half-finished" for path in half_done]
        assert [line for line in swept if line in scene.output] == swept, scene.output
        assert [path for path in half_done if path.exists()] == []
    assert "swept: killed" not in scene.output
    the_next_run_is_whole(scene, blow, kept)


def finished_stages_kept_their_evidence_and_the_hit_one_has_no_mark(scene: Scene, blow: Blow, orderly: bool) -> dict[Path, bytes]:
    """Returns the bytes of every piece."""
    order = [(cell, stage) for cell, stages in blow.selected.items() for stage in stages]
    hit = order.index((blow.cell, blow.stage))
    pieces, current = scene.pieces(), scene.current()
    told = {(e.cell, e.stage): e for e in pieces.values()}
    for key in order[:hit]:
        assert told[key].verdict.kind is VerdictKind.PASSED, told[key].verdict.because
        assert current[key].sha256 == told[key].sha256
    for key in order[hit:]:
        assert key not in current
    for cell, _ in order[hit + 1 :]:
        assert scene.called(cell) == 0, f"{cell} was started after the end"
    if orderly:
        verdict = told.pop((blow.cell, blow.stage)).verdict
        assert verdict.kind is VerdictKind.INTERRUPTED
        assert verdict.kind not in KEPT
        assert "1 interrupted" in scene.output
        assert scene.weights() == []
    assert [key for key in told if key in order[hit:]] == []
    return {path: path.read_bytes() for path in pieces}


def the_next_run_is_whole(scene: Scene, blow: Blow, kept: Mapping[Path, bytes]) -> None:
    assert {path: path.read_bytes() for path in kept} == kept
    new = {(e.cell, e.stage): e for path, e in scene.pieces().items() if path not in kept}
    for cell, stages in blow.selected.items():
        for stage in stages:
            assert new[cell, stage].verdict.kind is VerdictKind.PASSED, new[cell, stage].verdict.because
            assert scene.current()[cell, stage].verdict.kind is VerdictKind.PASSED
    assert list(scene.runs.rglob("owner-*")) == []
    assert [path for path in scene.store.root.rglob(".*.tmp")] == []
    assert scene.weights() == []
    assert scene.bearers() == []


def test_a_harness_killed_while_it_saves_blocks_no_later_save(scene: Scene) -> None:
    """The harness halts inside the store's lock, the file written and not yet in its place."""
    words = selection({HIT: (Stage.TRAIN,)})
    process = scene.start(words, program=("-c", _HALTED.format(evidence=str(scene.evidence), reached=str(scene.reached))))
    scene.wait_for(scene.reached.exists, process)
    assert not lock_is_free(scene.history)
    process.kill()
    process.wait(END_S)
    assert lock_is_free(scene.history)
    assert [e.verdict.kind for e in scene.pieces().values()] == [VerdictKind.PASSED]
    assert (scene.current(), len(list(scene.evidence.rglob(".*.tmp")))) == ({}, 1)
    assert scene.finish(words) == 0, scene.output
    assert scene.current()[HIT, Stage.TRAIN].verdict.kind is VerdictKind.PASSED
    assert list(scene.evidence.rglob(".*.tmp")) == []
    assert "swept: removed" in scene.output, "a cell that was killed between two commands is half-finished too"
    assert scene.weights() == []


def test_a_full_disk_costs_one_cell_and_says_so(scene: Scene) -> None:
    """The folder that one cell's newest evidence goes to is a disk of one page, in a mount namespace that ends with the run."""
    apart = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
    full = scene.evidence / HIT
    full.mkdir(parents=True)
    listing = scene.root / "var" / "listing"
    script = 'mount -t tmpfs -o size=4k tiny "$1" || exit 77; "${@:3}"; code=$?; ls -A "$1" > "$2"; exit $code'
    words = selection({HIT: (Stage.TRAIN,), LAST: (Stage.TRAIN,)})
    if shutil.which("unshare") is None or subprocess.run([*apart, "mount", "-t", "tmpfs", "tiny", full], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here (neither root nor user namespaces)")
    code = scene.finish(words, (*apart, "bash", "-c", script, "bash", str(full), str(listing)))
    assert code == 1, scene.output
    assert "could not be written (No space left on device)." in scene.output
    assert "1 failed, 1 passed" in scene.output
    assert listing.read_text() == "", "half a file was left on the full disk"
    assert set(scene.current()) == {(LAST, Stage.TRAIN)}
    assert scene.weights() == []
    assert scene.bearers() == []
    assert scene.finish(selection({HIT: (Stage.TRAIN,)})) == 0, scene.output
    assert set(scene.current()) == {(HIT, Stage.TRAIN), (LAST, Stage.TRAIN)}
