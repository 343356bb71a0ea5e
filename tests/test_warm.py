"""The warm launcher on stand-ins for ms-swift: every fork is the process that the command would have started, and nothing leaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.diagnose import diagnose
from harness.errors import HostError
from harness.launch import Alive, launch
from harness.logs import read_tail
from harness.model import Command, Hardware, Run, Step
from harness.processes import descendants, look, members
from harness.warm import Key, WarmLauncher, WarmProcess, import_arguments, key_of

ROOT = Path(__file__).resolve().parent.parent
# What ms-swift's `swift` does: start another Python, or torchrun's stand-in, which starts the ranks; its status becomes theirs.
SWIFT = """
    import os, subprocess, sys
    import slow
    work = os.path.join(os.path.dirname(slow.__file__), "work.py")
    ranks = int(os.environ.get("NPROC_PER_NODE", "1"))
    print("run sh", flush=True)
    if ranks == 1:
        sys.exit(subprocess.run([sys.executable, work, *sys.argv[1:]]).returncode)
    envs = [{**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(ranks)} for r in range(ranks)]
    started = [subprocess.Popen([sys.executable, "-u", work, *sys.argv[1:]], env=env, start_new_session=True) for env in envs]
    sys.exit(1 if any([child.wait() for child in started]) else 0)
"""
SLOW = """
    import os, tempfile, time
    print("an import said this", flush=True)
    os.environ["SET_BY_IMPORT"] = "yes"
    ticket = time.time_ns()
    folder = tempfile.TemporaryDirectory()
    def __getattr__(name):
        raise AttributeError(name)
"""
WORK = """
    import os, sys
    import slow
    if __name__ == "__main__":
        exec(sys.argv[1])
"""


def until(condition: Callable[[], object], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "never came to pass"
        time.sleep(0.02)


class Place:
    """Folders, programs and launchers of one test."""

    def __init__(self, root: Path) -> None:
        self.root, self.library, self.programs = root, root / "library", root / "bin"
        for folder in (self.library, self.programs):
            folder.mkdir()
        for name, text in (("slow.py", SLOW), ("work.py", WORK)):
            (self.library / name).write_text(textwrap.dedent(text))
        self.swift = self.programs / "swift"
        self.swift.write_text(f"#!{sys.executable}\n{textwrap.dedent(SWIFT)}")
        self.swift.chmod(0o755)
        self.warm = self.launcher()
        self.nonces: list[str] = []

    def launcher(self, **more: object) -> WarmLauncher:
        settings: dict[str, object] = {"modules": ("slow",), "extras": ("no_such_module", "json.tool"), "grace_s": 5.0}
        return WarmLauncher(self.root / "warm", **{**settings, **more})  # type: ignore[arg-type]

    def go(self, code: str, how: Callable[..., Run] | None = None, deadline_s: float = 20.0, **more: object) -> Run:
        env, stdin = more.pop("env", {}), more.pop("stdin", None)
        self.nonces.append(uuid.uuid4().hex)
        step = Step("work", Command("swift", (textwrap.dedent(code),), env, stdin), "out", deadline_s)  # type: ignore[arg-type]
        settings: dict[str, object] = {
            "nonce": self.nonces[-1],
            "work": self.root / "runs" / self.nonces[-1],
            "search_path": str(self.programs),
            "base_env": {"PYTHONPATH": str(self.library), "PATH": os.environ["PATH"], "HOME": str(self.root)},
        }
        return (how or self.warm)(step, **{**settings, **more})

    def process(self) -> WarmProcess:
        (process,) = self.warm.processes()
        return process


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.warm.close()
    left = members((), made.nonces)
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, "a process of this test was left running"


DESCRIBE = """
    import json, os, sys, stat, signal, threading
    print("SEEN", json.dumps({
        "argv": sys.argv[:1], "rest": len(sys.argv), "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path, "name": __name__,
        "file": __file__, "main": sys.modules["__main__"].__file__, "stdin": sys.stdin.read(), "executable": sys.executable,
        "leads": os.getsid(0) == os.getppid(), "sigchld": str(signal.getsignal(signal.SIGCHLD)), "sigint": str(signal.getsignal(signal.SIGINT)),
        "threads": threading.active_count(), "files": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")),
        "umask": os.umask(0o22), "modules": sorted(m for m in sys.modules if "harness" in m or "slow" in m),
    }))
"""  # noqa: E501


def seen(run: Run) -> list[dict[str, object]]:
    found = [json.loads(line.partition("SEEN ")[2]) for line in run.log_tail.splitlines() if line.startswith("SEEN ")]
    assert found, run.log_tail
    return found


@pytest.mark.parametrize("stdin", [None, "a question\n"], ids=["no_input", "fed"])
def test_a_forked_run_sees_what_the_command_itself_would_see(place: Place, stdin: str | None) -> None:
    (warm,), (cold,) = (seen(place.go(DESCRIBE, how, stdin=stdin, env={"MINE": "1"})) for how in (place.warm, launch))
    for run in (warm, cold):  # differ from run to run by themselves
        run["cwd"] = Path(str(run["cwd"])).parent.name
        assert isinstance(run["env"], dict)
        for name in ("NPU_MATRIX_NONCE", "NPU_MATRIX_WITNESS_DIR", "LC_CTYPE"):
            run["env"].pop(name, None)
    assert warm == cold
    assert warm["env"]["SET_BY_IMPORT"] == "yes" and warm["env"]["MINE"] == "1"  # type: ignore[index]


def test_the_log_has_the_lines_of_the_imports_too(place: Place) -> None:
    warm, cold = (place.go("print('done')", how) for how in (place.warm, launch))
    # The wrapper's own import says it once more in a cold run.
    assert set(warm.log_tail.splitlines()) == set(cold.log_tail.splitlines())
    assert warm.log_tail.count("an import said this") == 1


ENDINGS = {
    "falls_off": "pass",
    "exit_3": "sys.exit(3)",
    "exit_text": "sys.exit('words')",
    "exit_256": "sys.exit(256)",
    "raises": "raise ValueError('planted')",
    "killed": "os.kill(os.getpid(), 9)",
    "aborts": "os.abort()",
    "interrupted": "import signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(5)",
    "hard_exit": "os._exit(7)",
    "fails_at_exit": "import atexit; atexit.register(lambda: 1 / 0)",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(.3), print('late'))).start()",
    "imports_nothing": "import no_such_module_at_all",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_has_the_exit_code_of_the_command(place: Place, ending: str) -> None:
    warm, cold = (place.go(ENDINGS[ending], how) for how in (place.warm, launch))
    assert (warm.ended_by, warm.exit_code, warm.leftovers) == (cold.ended_by, cold.exit_code, cold.leftovers)
    last = [run.log_tail.strip().splitlines()[-1:] for run in (warm, cold)]
    assert last[0] == last[1]
    if ending == "raises":
        assert "warmed" not in warm.log_tail, "the traceback shows frames of the launcher"


def test_ranks_are_forked_with_their_own_environment_and_the_weakest_decides(place: Place) -> None:
    ranks = seen(place.go(DESCRIBE, env={"NPROC_PER_NODE": "2", "MASTER_PORT": "1"}))
    assert sorted(str(r["env"]["RANK"]) for r in ranks) == ["0", "1"]  # type: ignore[index]
    assert place.go("sys.exit(int(os.environ['RANK']))", env={"NPROC_PER_NODE": "2"}).exit_code == 1
    assert len(place.warm.processes()) == 1, "how many ranks is no matter of the imports"


def test_nothing_leaks_from_run_to_run(place: Place) -> None:
    dirty = """
        import logging, random, tempfile
        os.environ["LEAK"] = "1"; os.chdir("/"); sys.path.append("/leak"); sys.argv.append("leak"); slow.leak = 1
        logging.basicConfig(level=1); random.seed(1); os.umask(0o77)
    """
    clean = seen(place.go(DESCRIBE))[0]
    place.go(dirty)
    again = seen(place.go(DESCRIBE + "\n    assert not hasattr(slow, 'leak')"))[0]
    for run in (clean, again):
        for name in ("cwd", "env"):
            run.pop(name)
    assert again == clean


def test_every_run_is_forked_from_the_same_imports_and_draws_its_own_random_numbers(place: Place) -> None:
    said = [place.go("import random; print(slow.ticket, random.random())").log_tail.splitlines()[-1].split() for _ in range(3)]
    assert len({ticket for ticket, _ in said}) == 1, "a run imported anew"
    assert len({number for _, number in said}) == 3


def test_a_folder_that_an_import_made_is_there_for_every_run(place: Place) -> None:
    for _ in range(2):
        run = place.go("print(os.path.isdir(slow.folder.name))")
        assert run.log_tail.splitlines()[-1] == "True"


def test_every_process_of_a_run_is_found_by_its_nonce_and_none_of_another(place: Place) -> None:
    found: list[set[int]] = []

    def attend(alive: Alive) -> None:
        until(lambda: read_tail(alive.log_path).splitlines().count("up") == 2)
        found.append({p.pid for p in members((), (alive.nonce,))})
        assert found[-1] == {p.pid for p in descendants(alive.pid)} and len(found[-1]) == 3

    place.go("import time; print('up', flush=True); time.sleep(60)", attend=attend, env={"NPROC_PER_NODE": "2"})
    assert len(found) == 1
    assert place.process().pid not in found[0]


def test_a_hang_of_a_rank_is_ended_at_its_deadline_with_its_stacks_and_the_next_run_is_fine(place: Place) -> None:
    run = place.go("import time; time.sleep(600 * int(os.environ['RANK']))", deadline_s=2.0, env={"NPROC_PER_NODE": "2"})
    assert (run.ended_by, run.exit_code) == ("deadline", None)
    assert "(pid " in run.stacks and diagnose(run.log_tail, run).cause == "run.deadline_silent"
    assert members((), place.nonces) == []
    first = place.process().pid
    assert place.go("pass").exit_code == 0 and place.process().pid == first


def test_a_child_that_left_its_group_and_outlives_its_run_is_reported_and_killed(place: Place) -> None:
    run = place.go("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    assert run.exit_code == 0 and len(run.leftovers) == 1 and "left its process group" in run.leftovers[0]
    run = place.go("import time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)")
    assert len(run.leftovers) == 1 and members((), place.nonces) == []


def test_a_server_is_asked_to_end_when_its_attendant_is_done(place: Place) -> None:
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(0)))
        print('ready', flush=True)
        time.sleep(600)
    """
    run = place.go(code, attend=lambda alive: until(lambda: "ready" in read_tail(alive.log_path)))
    assert (run.ended_by, run.exit_code, run.leftovers) == ("request", None, ()) and "asked" in run.log_tail


def test_a_child_that_sheds_nonce_group_and_parent_at_once_is_found_beside_other_runs(place: Place) -> None:
    shed = 'env -i /bin/sh -c "exec setsid sleep 604 >/dev/null 2>&1 &"'
    runs: dict[int, Run] = {}
    codes = {0: "import time; time.sleep(1)", 1: f"os.system({shed!r})"}
    threads = [threading.Thread(target=lambda at=at: runs.update({at: place.go(codes[at])})) for at in codes]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(runs[at].exit_code, len(runs[at].leftovers)) for at in (0, 1)] == [(0, 0), (0, 1)]
    assert look(int(runs[1].leftovers[0].split("pid ")[1].split(")")[0])) is None
    assert diagnose(runs[1].log_tail, runs[1]).cause == "run.orphan" and place.process().alive


@pytest.mark.parametrize(("end", "cause"), [("", "run.traceback_exit_0"), ("raise KeyError('late')", "run.exit_nonzero")])
def test_an_early_traceback_under_much_chatter_ends_as_cold(place: Place, end: str, cause: str) -> None:
    code = f"import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\nprint('chatter\\n' * 30_000, flush=True)\n{end}"
    warm, cold = place.go(code), place.go(code, launch)
    assert (warm.ended_by, warm.exit_code) == (cold.ended_by, cold.exit_code) == ("exit", 1 if end else 0)
    outcomes = [diagnose(run.log_tail, run) for run in (warm, cold)]
    assert [o.cause for o in outcomes] == [cause] * 2 and "ZeroDivisionError" in outcomes[0].line and outcomes[0].line == outcomes[1].line


def test_a_stop_from_another_thread_interrupts_the_run(place: Place) -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    assert place.go("import time; time.sleep(600)", stop=stop).ended_by == "interrupt"


def test_runs_side_by_side_share_one_warm_process(place: Place) -> None:
    runs: list[Run] = []
    threads = [threading.Thread(target=lambda: runs.append(place.go("import time; time.sleep(.5); sys.exit(4)"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.exit_code for run in runs] == [4] * 4
    assert len(place.warm.parent_start_s) == 1 and place.process().runs == set()


def test_no_zombie_stays_under_the_warm_process(place: Place) -> None:
    for _ in range(3):
        place.go("pass")
    listed = subprocess.run(["ps", "-o", "stat=", "--ppid", str(place.process().pid)], capture_output=True, text=True).stdout
    assert listed.split() == []


def test_a_warm_process_that_died_between_runs_is_started_again(place: Place) -> None:
    place.go("pass")
    first = place.process().pid
    os.kill(first, signal.SIGKILL)
    assert place.go("sys.exit(5)").exit_code == 5
    assert place.process().pid != first and len(place.warm.parent_start_s) == 2


def test_a_warm_process_that_dies_under_a_run_ends_it_and_says_so(place: Place) -> None:
    def attend(alive: Alive) -> None:
        until(lambda: "up" in read_tail(alive.log_path))
        os.kill(place.process().pid, signal.SIGKILL)
        until(lambda: not alive.is_alive())

    run = place.go("import time; print('up', flush=True); time.sleep(600)", attend=attend)
    assert (run.ended_by, run.exit_code) == ("signal", -9) and "the warm process" in run.notes[-1]
    assert place.go("pass").exit_code == 0


def test_closing_ends_the_warm_process(place: Place) -> None:
    place.go("pass")
    pid = place.process().pid
    place.warm.close()
    assert look(pid) is None and place.warm.processes() == ()


def test_another_environment_or_patch_switch_makes_another_warm_process_within_the_limit(place: Place) -> None:
    place.warm.at_most = 2
    for value in ("1", "2", "1", "3"):
        assert place.go("sys.exit(int(os.environ['DECIDED_AT_IMPORT']))", env={"DECIDED_AT_IMPORT": value}).exit_code == int(value)
    assert len(place.warm.parent_start_s) == 3 and len(place.warm.processes()) == 2
    words = ("sft", "--model", "m", "--enable_npu_model_patch", "false", "--x")
    assert import_arguments(words) == ("--enable_npu_model_patch", "false")
    assert import_arguments(("--enable-npu-model-patch=true",)) == ("--enable-npu-model-patch=true",)
    keys: list[Key] = [key_of("python", {}, args, hardware) for args in (words, words[:3]) for hardware in (Hardware.CPU, Hardware.SIM)]
    assert len(set(keys)) == 2 and keys[0] == keys[2]


def test_real_hardware_and_a_real_torch_npu_are_refused(place: Place) -> None:
    for hardware in (Hardware.A2, Hardware.A3, Hardware.A5):
        with pytest.raises(HostError, match="real hardware"):
            place.go("pass", hardware=hardware)
    (place.library / "torch_npu").mkdir()
    (place.library / "torch_npu" / "__init__.py").write_text("raise SystemExit('a real one must not even be imported')")
    metadata = place.library / "torch_npu-2.7.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.7.1\n")
    with pytest.raises(HostError, match=r"torch_npu 2\.7\.1"):
        place.go("pass")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.7.1+sim\n")
    assert place.go("pass", hardware=Hardware.SIM).exit_code == 0


def test_a_program_that_is_no_python_script_or_not_one_of_ms_swifts_is_refused(place: Place) -> None:
    place.swift.write_bytes(b"\x7fELF")
    with pytest.raises(HostError, match="no Python script"):
        place.go("pass")
    step = Step("work", Command("megatron", ()), "out", 5.0)
    with pytest.raises(HostError, match="megatron"):
        place.warm(step, nonce="n", work=place.root / "w", search_path=str(place.programs), base_env={})


def test_a_missing_program_and_an_import_that_fails_are_runs_that_did_not_start(place: Place) -> None:
    broken = place.launcher(modules=("slow", "not_installed_here"))
    run = place.go("pass", broken)
    assert run.ended_by == "not started" and "No module named 'not_installed_here'" in run.log_tail
    broken.close()
    place.swift.unlink()
    assert "not on the search path" in place.go("pass").notes[0]


def test_threads_that_a_fork_would_lose_are_refused(place: Place) -> None:
    slow = place.library / "slow.py"
    slow.write_text(slow.read_text() + "\nimport threading\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")
    with pytest.raises(HostError, match="threads"):
        place.go("pass")


HARNESS = """
    import os, sys
    from pathlib import Path
    from harness.model import Command, Step
    from harness.warm import WarmLauncher
    root, nonce = Path(sys.argv[1]), sys.argv[2]
    warm = WarmLauncher(root / "warm", modules=("slow",), extras=())
    code = "import time; print('up', flush=True); time.sleep(600)"
    warm(Step("work", Command("swift", (code,), {"NPROC_PER_NODE": "2"}), "out", 100.0), nonce=nonce, work=root / "w",
         search_path=str(root / "bin"), base_env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root / "library")})
"""


def test_a_harness_killed_with_sigkill_leaves_neither_runs_nor_the_warm_process(place: Place) -> None:
    nonce = uuid.uuid4().hex
    harness = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HARNESS), str(place.root), nonce], cwd=ROOT)
    until(lambda: len(members((), (nonce,))) == 3)
    family = descendants(harness.pid)
    assert len(family) >= 6, "harness, guardian, warm process, wrapper and two ranks"
    harness.kill()
    harness.wait()
    until(lambda: not [p for p in family if look(p.pid) is not None and look(p.pid).started == p.started])  # type: ignore[union-attr]
