"""Launching real small processes: every way to end, and that nothing outlives it."""

from __future__ import annotations

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

from harness.diagnose import CHATTY, DEAF, SILENT, diagnose
from harness.guardian import GUARDIAN, owned, sweep
from harness.launch import Alive, LaunchInterrupted, launch, resolve_program
from harness.logs import read_tail
from harness.model import Command, Run, Step
from harness.processes import Process, descendants, look, members, still_there

ROOT = str(Path(__file__).resolve().parent.parent)


def until(condition: Callable[[], object], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "never came to pass"
        time.sleep(0.02)


@pytest.fixture
def nonce() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    left = members((), (name,))
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, "a process with this test's nonce was left running"


EARLY_TRACEBACK = """
    import sys, traceback
    print('head ' * 5000)
    try:
        raise KeyError('the early one')
    except KeyError:
        traceback.print_exc()
    for at in range(4000): print('a line of chatter', at)
"""


def python(code: str, *, deadline_s: float = 20.0, stdin: str | None = None, env: dict[str, str] | None = None) -> Step:
    command = Command("python-here", ("-c", textwrap.dedent(code)), env or {}, stdin)
    return Step("work", command, "out", deadline_s)


@pytest.fixture
def go(tmp_path: Path, nonce: str) -> Callable[..., Run]:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python-here").symlink_to(sys.executable)

    def run(step: Step, **more: object) -> Run:
        settings = {"nonce": nonce, "work": tmp_path / "work", "search_path": str(programs), "base_env": dict(os.environ), "grace_s": 5.0}
        return launch(step, **{**settings, **more})  # type: ignore[arg-type]

    return run


def test_a_run_that_ends_by_itself_is_recorded_with_its_exit_code_and_log(go: Callable[..., Run], nonce: str) -> None:
    run = go(python("import sys; print('to stdout'); print('to stderr', file=sys.stderr); sys.exit(3)"))
    assert (run.ended_by, run.exit_code, run.leftovers, run.nonce) == ("exit", 3, (), nonce)
    assert "to stdout" in run.log_tail and "to stderr" in run.log_tail
    assert Path(run.log_path).read_text() == run.log_tail
    assert diagnose(run.log_tail, run).cause == "run.exit_nonzero"


def test_the_environment_is_the_hosts_without_what_would_lead_the_child_astray(go: Callable[..., Run], nonce: str) -> None:
    base = {**os.environ, "NPROC_PER_NODE": "8", "RANK": "3", "NPU_MATRIX_CONTROL": "zero_moments", "KEPT": "yes"}
    names = ("NPROC_PER_NODE", "RANK", "KEPT", "OMP_NUM_THREADS", "TORCH_DEVICE_BACKEND_AUTOLOAD", "MINE")
    show = f"import os; print(sorted((k, v) for k, v in os.environ.items() if k in {names} or k.startswith('NPU_MATRIX')))"
    run = go(python(show, env={"MINE": "1"}), base_env={**base, "OMP_NUM_THREADS": "2"})
    seen = dict(eval(run.log_tail))  # the child's own print of a list of pairs
    assert seen.pop("NPU_MATRIX_WITNESS_DIR").endswith("witness")
    assert seen == {"NPU_MATRIX_NONCE": nonce, "KEPT": "yes", "OMP_NUM_THREADS": "2", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "MINE": "1"}
    assert "KEPT" not in run.env and run.env["MINE"] == "1"


def test_a_program_that_is_not_on_the_search_path_is_not_started(go: Callable[..., Run], tmp_path: Path) -> None:
    run = go(Step("work", Command("swift", ("sft",)), "out", 5.0))
    assert (run.ended_by, run.exit_code) == ("not started", None)
    assert "'swift' is not on the search path" in run.notes[0]
    assert diagnose(run.log_tail, run).cause == "run.not_started"
    assert resolve_program("swift", str(tmp_path)) is None
    assert resolve_program("python-here", str(tmp_path / "bin")) == tmp_path / "bin" / "python-here"


def test_a_file_that_can_not_be_executed_is_not_started(go: Callable[..., Run], tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "swift"
    fake.write_text("#!/nowhere/interpreter\n")
    fake.chmod(0o755)
    run = go(Step("work", Command("swift", ()), "out", 5.0))
    assert run.ended_by == "not started" and "can't be started" in run.notes[0]


def test_standard_input_comes_from_a_pipe_and_is_empty_otherwise(go: Callable[..., Run]) -> None:
    read = "import sys, os, stat; print(stat.S_ISFIFO(os.fstat(0).st_mode), repr(sys.stdin.read()[-5:]))"
    assert "True 'last\\n'" in go(python(read, stdin="x" * 200_000 + "last\n")).log_tail
    assert "False ''" in go(python(read)).log_tail
    assert go(python("pass", stdin="x" * 2_000_000)).exit_code == 0


def test_a_silent_hang_is_ended_at_its_deadline_with_its_stacks(go: Callable[..., Run]) -> None:
    run = go(python("import time; print('one line', flush=True); time.sleep(600)", deadline_s=1.5))
    assert (run.ended_by, run.exit_code) == ("deadline", None)
    assert any(note.startswith(SILENT) for note in run.notes)
    assert "(pid " in run.stacks and len(run.stacks.splitlines()) > 1
    assert diagnose(run.log_tail, run).cause == "run.deadline_silent"


def test_a_chatty_hang_is_told_from_a_silent_one(go: Callable[..., Run]) -> None:
    run = go(python("import time\nwhile True: print('step', flush=True); time.sleep(.05)", deadline_s=4))
    assert run.ended_by == "deadline" and any(note.startswith(CHATTY) for note in run.notes)
    assert diagnose(run.log_tail, run).cause == "run.deadline_chatty"


def test_a_flood_of_output_ends_the_run_before_it_fills_the_disk(go: Callable[..., Run]) -> None:
    run = go(python("import sys\nwhile True: sys.stdout.write('y\\n' * 9999)", deadline_s=60), log_limit_mib=1)
    assert run.ended_by == "deadline" and run.duration_s < 30
    assert len(run.log_tail) <= 81 * 1024


def wait_for(word: str) -> Callable[[Alive], None]:
    return lambda alive: until(lambda: word in read_tail(alive.log_path))


def test_a_process_deaf_to_sigterm_is_killed_and_called_so(go: Callable[..., Run]) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    run = go(python(code), attend=wait_for("deaf"), grace_s=0.5)
    assert any(note.startswith(DEAF) for note in run.notes)
    assert run.leftovers == ()


def test_death_by_sigkill_is_a_signal_and_no_lack_of_memory_unless_the_log_says_so(go: Callable[..., Run]) -> None:
    run = go(python("import os; print('half way', flush=True); os.kill(os.getpid(), 9)"))
    assert (run.ended_by, run.exit_code) == ("signal", -9)
    outcome = diagnose(run.log_tail, run)
    assert outcome.cause == "run.signal" and "SIGKILL" in outcome.line and "half way" in outcome.line
    assert diagnose(run.log_tail + "Memory cgroup out of memory: Killed process 7 (python)", run).cause == "mem.host_oom"


FORK_AWAY = """
    import os, subprocess, sys, time
    hidden = dict(os.environ)
    {hide}
    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True, env=hidden)
    time.sleep({stay})
"""


@pytest.mark.parametrize(
    ("hide", "stay"), [("", 0), ("hidden.pop('NPU_MATRIX_NONCE')", 1.5)], ids=["by_nonce", "seen_while_its_parent_lived"]
)
def test_a_child_that_left_its_group_and_outlives_its_run_is_reported_and_killed(go: Callable[..., Run], hide: str, stay: float) -> None:
    run = go(python(FORK_AWAY.format(hide=hide, stay=stay)))
    assert run.exit_code == 0 and len(run.leftovers) == 1 and "left its process group" in run.leftovers[0]
    pid = int(run.leftovers[0].split("pid ")[1].split(")")[0])
    assert look(pid) is None
    assert diagnose(run.log_tail, run).cause == "run.orphan"


ROOTLESS = 'env -i /bin/sh -c "exec setsid sleep {seconds} >/dev/null 2>&1 &"'


@pytest.mark.parametrize("nested", [False, True], ids=["from_the_leader", "from_a_child_that_is_gone"])
def test_a_child_that_sheds_nonce_group_and_parent_at_once_is_reported_and_killed(go: Callable[..., Run], nested: bool) -> None:
    shed = ROOTLESS.format(seconds=601)
    run = go(python(f"import os; os.system({(f'setsid sh -c {shed!r}' if nested else shed)!r})"))
    assert run.exit_code == 0 and len(run.leftovers) == 1 and "left its process group" in run.leftovers[0], run
    assert look(int(run.leftovers[0].split("pid ")[1].split(")")[0])) is None
    assert diagnose(run.log_tail, run).cause == "run.orphan"


def test_each_of_several_runs_at_once_is_told_its_own_orphans_and_nobody_elses(go: Callable[..., Run], tmp_path: Path) -> None:
    theirs = subprocess.Popen(["sleep", "602"], start_new_session=True, env={"PATH": os.environ["PATH"]})
    runs: dict[int, Run] = {}

    def work(at: int) -> None:
        code = f"import os, time; time.sleep(.3); os.system({ROOTLESS.format(seconds=700 + at)!r} if {at} % 2 else 'true'); time.sleep(.3)"
        runs[at] = go(python(code), nonce=uuid.uuid4().hex, work=tmp_path / str(at))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(runs[at].leftovers) for at in range(4)] == [0, 1, 0, 1]
    assert theirs.poll() is None, "a process that no run started was killed"
    theirs.kill()
    theirs.wait()


def test_a_harness_killed_with_sigkill_leaves_not_even_what_shed_its_nonce(tmp_path: Path, nonce: str) -> None:
    harness = start_harness(tmp_path / "runs" / "cell", nonce, ROOTLESS.format(seconds=603))
    left: list[Process] = []
    until(lambda: left.extend(p for p in descendants(harness.pid) if p.name == "sleep") or len(left) >= 2)
    assert len({p.pid for p in left}) == 2
    harness.kill()
    harness.wait()
    until(lambda: not still_there(left))


def test_a_run_that_kills_its_supervisor_is_ended_and_said_to_be_lost(go: Callable[..., Run]) -> None:
    run = go(python("import os, time; os.kill(os.getppid(), 9); time.sleep(600)"))
    assert (run.ended_by, run.exit_code) == ("signal", -9) and "watched over it died" in run.notes[0]


def test_a_program_starts_with_the_signals_and_descriptors_that_a_shell_would_give_it(go: Callable[..., Run]) -> None:
    show = """
        import os, signal
        ignored = [s.name for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) == signal.SIG_IGN]
        status = open('/proc/self/status').read()
        print(ignored, [line.split()[1] for line in status.splitlines() if line.startswith('SigBlk')], sorted(os.listdir('/proc/self/fd')))
        print(os.getpid() == os.getsid(0) == os.getpgid(0), os.getcwd())
    """
    run = go(python(show))
    lines = run.log_tail.splitlines()
    assert lines[0] == "[] ['0000000000000000'] ['0', '1', '2', '3']" and lines[1].startswith("True ") and lines[1].endswith("/work")


def test_an_early_traceback_that_chatter_pushed_out_of_sight_is_no_success(go: Callable[..., Run]) -> None:
    run = go(python(EARLY_TRACEBACK))
    outcome = diagnose(run.log_tail, run)
    assert (run.exit_code, outcome.cause, outcome.line) == (0, "run.traceback_exit_0", "KeyError: 'the early one'")


def test_an_error_line_at_exit_code_0_is_a_note(go: Callable[..., Run]) -> None:
    run = go(python("print('x' * 90_000); print('[ERROR:swift] FATAL: training failed'); print('done\\n' * 30_000)"))
    assert run.notes == ("exit code 0, but its log says: [ERROR:swift] FATAL: training failed",)
    assert diagnose(run.log_tail, run).cause == "none"
    assert go(python("print('INFO: ERROR is a word'); print('ERRORS 0')")).notes == ()


def test_a_child_left_in_the_process_group_is_a_leftover_too(go: Callable[..., Run]) -> None:
    run = go(python("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"))
    assert run.exit_code == 0 and len(run.leftovers) == 1


def test_a_child_that_ends_a_moment_after_its_parent_is_no_leftover(go: Callable[..., Run]) -> None:
    assert go(python("import subprocess; subprocess.Popen(['sleep', '0.4'])")).leftovers == ()


def test_a_server_is_asked_to_end_when_its_attendant_is_done(go: Callable[..., Run]) -> None:
    seen: list[Alive] = []

    def attend(alive: Alive) -> None:
        until(lambda: "ready" in read_tail(alive.log_path))
        assert alive.is_alive() and alive.pid in alive.pids()
        seen.append(alive)

    run = go(python("import time; print('ready', flush=True); time.sleep(600)"), attend=attend)
    assert (run.ended_by, run.exit_code, run.leftovers) == ("request", None, ())
    assert "with status -15" in run.notes[0]
    assert not seen[0].is_alive()


def test_a_server_that_dies_early_frees_its_attendant(go: Callable[..., Run]) -> None:
    run = go(python("import sys; sys.exit(7)"), attend=lambda alive: until(lambda: not alive.is_alive()))
    assert (run.ended_by, run.exit_code) == ("exit", 7)


def test_what_the_attendant_raises_is_raised_after_the_server_was_ended(go: Callable[..., Run], nonce: str) -> None:
    def attend(alive: Alive) -> None:
        raise ZeroDivisionError("a bug of ours")

    with pytest.raises(ZeroDivisionError):
        go(python("import time; time.sleep(600)"), attend=attend)
    assert members((), (nonce,)) == []


def test_a_stop_from_another_thread_interrupts_the_run(go: Callable[..., Run]) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    run = go(python("import time; time.sleep(600)"), stop=stop)
    assert run.ended_by == "interrupt" and diagnose(run.log_tail, run).cause == "unknown"


def test_ctrl_c_ends_the_run_first_and_then_goes_up_with_it(go: Callable[..., Run], nonce: str, tmp_path: Path) -> None:
    def interrupt() -> None:
        until(lambda: (tmp_path / "work" / "work.log").exists() and "up" in read_tail(tmp_path / "work" / "work.log"))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(LaunchInterrupted) as caught:
        go(python("import time; print('up', flush=True); time.sleep(600)"))
    assert isinstance(caught.value, KeyboardInterrupt)
    assert caught.value.run.ended_by == "interrupt" and "up" in caught.value.run.log_tail
    assert members((), (nonce,)) == []


def test_the_peak_of_resident_memory_is_that_of_the_run(go: Callable[..., Run]) -> None:
    run = go(python("import time; block = bytearray(150 * 2**20); time.sleep(1)"))
    assert run.peak_rss_mib is not None and 150 < run.peak_rss_mib < 400


def test_no_zombie_is_left(go: Callable[..., Run]) -> None:
    go(python("pass"))
    children = subprocess.run(["ps", "-o", "stat=,pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    assert not [line for line in children.splitlines() if line.startswith("Z")]


HARNESS = """
    import os, sys
    from pathlib import Path
    from harness.launch import launch
    from harness.model import Command, Step
    os.environ["SHED"] = sys.argv[3]
    code = "import os, subprocess, time; os.system(os.environ['SHED'])\\n"
    code += "subprocess.Popen(['sleep', '600'], start_new_session=True); print('up', flush=True); time.sleep(600)"
    launch(Step("work", Command(sys.executable, ("-c", code)), "out", 100.0), nonce=sys.argv[2], work=Path(sys.argv[1]),
           search_path="", base_env=dict(os.environ))
"""


def start_harness(work: Path, nonce: str, shed: str = "true") -> subprocess.Popen[bytes]:
    harness = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HARNESS), str(work), nonce, shed], cwd=ROOT)
    until(lambda: (work / "work.log").exists() and "up" in (work / "work.log").read_text())
    until(lambda: len(members((), (nonce,))) == 2)
    return harness


def test_a_harness_killed_with_sigkill_leaves_nothing_running(tmp_path: Path, nonce: str) -> None:
    harness = start_harness(tmp_path / "runs" / "cell", nonce)
    harness.kill()
    harness.wait()
    until(lambda: not members((), (nonce,)))


def test_the_next_start_sweeps_what_harness_and_guardian_left_when_both_were_killed(tmp_path: Path, nonce: str) -> None:
    runs = tmp_path / "runs"
    harness = start_harness(runs / "cell", nonce)
    (runs / "finished").mkdir()
    assert sweep(runs) == (), "a live harness's folder was touched"
    guardian = [p for p in descendants(harness.pid) if b"stand_guard" in Path(f"/proc/{p.pid}/cmdline").read_bytes()]
    supervisor = [p for p in descendants(harness.pid) if b"supervising.py" in Path(f"/proc/{p.pid}/cmdline").read_bytes()]
    os.kill(guardian[0].pid, signal.SIGKILL)
    os.kill(supervisor[0].pid, signal.SIGSTOP)
    harness.kill()
    harness.wait()
    assert len(members((), (nonce,))) == 2
    done = sweep(runs)
    os.kill(supervisor[0].pid, signal.SIGKILL)
    assert members((), (nonce,)) == []
    assert sum("killed" in line for line in done) == 2
    assert not (runs / "cell").exists() and (runs / "finished").exists()


def test_a_folder_in_use_is_marked_until_its_work_ends(tmp_path: Path) -> None:
    with owned(tmp_path / "a", "n1"):
        assert [p.name for p in (tmp_path / "a").iterdir()] == ["owner-n1.json"]
        assert sweep(tmp_path) == ()
    assert list((tmp_path / "a").iterdir()) == []


def test_a_sweep_leaves_alone_what_the_harness_did_not_write_and_never_removes_the_root(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "owner-x.json").write_text('{"nonce": "another"}')
    (tmp_path / "owner-y.json").write_text('{"nonce": "y", "pid": 1}')
    assert [line for line in sweep(tmp_path) if "left alone" in line]
    assert (tmp_path / "theirs").is_dir() and not (tmp_path / "owner-y.json").exists()
    assert sweep(tmp_path / "nowhere") == ()


def test_the_guardian_is_restarted_when_somebody_kills_it(nonce: str) -> None:
    GUARDIAN.watch("first" + nonce)
    first = GUARDIAN.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: look(first) is None)
    GUARDIAN.watch("second" + nonce)
    assert GUARDIAN.pid not in (None, first)
    GUARDIAN.release("first" + nonce)
    GUARDIAN.release("second" + nonce)
