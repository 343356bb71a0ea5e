"""The shell of one page: statement after statement, each by a bash of its own in the state that the one before left; servers beside it."""

from __future__ import annotations

import re
import shutil
import site
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import server
from harness.aftermath import port_is_free
from harness.commands_devices import OFFLINE
from harness.commands_page import PORT_VARIABLE
from harness.docs_run_host import Scratch
from harness.docs_run_plan import Unit
from harness.launch import Alive, Attendant, launch
from harness.model import Command, Hardware, Run, Step
from harness.proof_deploy import ServerReport

_DRIVER = Path(__file__).parent / "docs_run_state.sh"
_FENCE = Path(__file__).parent / "docs_run_fence.py"
# Where programs keep what they fetched and built: the page gets places of its own, below its own HOME.
_KEEPING = re.compile(
    r"XDG_\w+_HOME|HF_(?:HOME|HUB_CACHE|DATASETS_CACHE)|\w+_CACHE|\w+_CACHE_DIR|TORCH_HOME|TORCH_EXTENSIONS_DIR|MPLCONFIGDIR"
)
# Where nobody listens: whatever would go to a hub fails at once. Servers of the page itself are asked without a proxy.
_NOWHERE = "http://127.0.0.1:9"
_NO_NETWORK = {name: _NOWHERE for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")}
_OURS_ONLY = {name: "localhost,127.0.0.1,::1" for name in ("no_proxy", "NO_PROXY")}
# Often added to on pages, and as good as unset while empty.
_MAY_BE_UNSET = ("PYTHONPATH", "LD_LIBRARY_PATH")
_NEVER_S = 7 * 24 * 3600.0
_POLL_S = 0.1
_PORT_S = 5.0


@dataclass
class Served:
    """A server that runs beside the page. `report` is there once it is ready, or never will be; `run` once it is over."""

    unit: Unit
    leave: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    report: ServerReport | None = None
    run: Run | None = None
    fault: BaseException | None = None
    thread: threading.Thread | None = None


class PageShell:
    """Mutable: the state lies in files under the scratch folder. `timeout_s`: the longest that one statement may take."""

    def __init__(self, scratch: Scratch, hardware: Hardware, search_path: str, base_env: Mapping[str, str], timeout_s: float) -> None:
        self.scratch, self.hardware, self.search_path, self.timeout_s = scratch, hardware, search_path, timeout_s
        empty = {name: "" for name in _MAY_BE_UNSET if name not in base_env}
        dropped = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS")
        kept = {k: v for k, v in base_env.items() if k not in dropped and not _KEEPING.fullmatch(k)}
        # Short, since sockets are made in it, whose names may have 107 bytes.
        self._temporary = Path(tempfile.mkdtemp(prefix="docs-run-"))
        self._home = scratch.root / "home"
        own = {
            "HOME": str(self._home),
            "TMPDIR": str(self._temporary),
            "PYTHONUSERBASE": base_env.get("PYTHONUSERBASE") or site.getuserbase(),
        }
        self._base = {**kept, **empty, **OFFLINE, **_NO_NETWORK, **_OURS_ONLY, **own}
        self._state = scratch.root / "state"
        self._servers: list[Served] = []

    def open(self) -> None:
        self._state.mkdir()
        self._home.mkdir()
        (self._state / "folder").write_text(f"{self.scratch.page}\n", encoding="utf-8")

    def run(self, unit: Unit, stdin: str | None) -> Run:
        """Run one statement to its end. Raises LaunchInterrupted."""
        return self._launch(self._step(unit, stdin, self.timeout_s))

    def serve(self, unit: Unit) -> Served:
        """Start a statement that serves, and wait until it answers, ends, or the time is over."""
        served = Served(unit)
        self._servers.append(served)

        def attend(alive: Alive) -> None:
            served.report = server.await_models(port=unit.port, deadline_s=self.timeout_s, alive=alive.is_alive, pids=alive.pids)
            served.answered.set()
            while served.report.served_by_run and alive.is_alive() and not served.leave.wait(_POLL_S):
                pass

        def work() -> None:
            try:
                served.run = self._launch(self._step(unit, None, _NEVER_S), attend, served.stop)
            except BaseException as fault:  # told to whoever waits for the server
                served.fault = fault
            finally:
                served.answered.set()

        served.thread = threading.Thread(target=work, name=f"serve line {unit.line}", daemon=True)
        served.thread.start()
        while not served.answered.wait(_POLL_S):
            pass
        if served.report is None or not served.report.served_by_run:
            served.thread.join()  # it has ended, or is ended now: how is part of the story
        return served

    def end(self, served: Served) -> Run:
        """End a server and all that it started, and wait for its port."""
        served.leave.set()
        if served.thread is not None:
            served.thread.join()
        self._servers = [other for other in self._servers if other is not served]
        if served.fault is not None:
            raise served.fault
        assert served.run is not None
        return served.run

    def is_empty(self, variable: str) -> bool:
        """Whether the statement before left this variable set to nothing."""
        text = (self._state / "variables").read_text(encoding="utf-8", errors="replace")
        return re.search(rf'^declare -\S+ {variable}(?:=""|=\$\'\')?$', text, re.MULTILINE) is not None

    def log_of(self, unit: Unit) -> Path:
        return self.scratch.logs / f"line-{unit.line}.log"

    def port_left(self, port: int) -> bool:
        """Whether a port is still taken a moment after its server's end."""
        waiting = threading.Event()
        for _ in range(int(_PORT_S / _POLL_S)):
            if port_is_free(port):
                return False
            waiting.wait(_POLL_S)
        return True

    def close(self) -> None:
        """End every server that still runs, whatever happened."""
        for served in list(self._servers):
            served.stop.set()
            served.leave.set()
            if served.thread is not None:
                served.thread.join()
        self._servers.clear()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _launch(self, step: Step, attend: Attendant | None = None, stop: threading.Event | None = None) -> Run:
        return launch(
            step,
            nonce=uuid.uuid4().hex,
            work=self.scratch.logs,
            search_path=self.search_path,
            base_env=self._base,
            attend=attend,
            stop=stop,
            hardware=self.hardware,
        )

    def _step(self, unit: Unit, stdin: str | None, deadline_s: float) -> Step:
        """The statement's file begins with as many empty lines as stand above it on the page, so that bash names the page's own lines."""
        name = f"line-{unit.line}"
        file = self.scratch.logs / f"{name}.sh"
        # The empty line ends a statement that ends in a backslash; the colon is there for a last test that is false.
        file.write_text("\n" * (unit.line - 1) + unit.script + "\n:\n", encoding="utf-8")
        env = {PORT_VARIABLE: str(self.scratch.port(29500))}
        fenced = ("-I", "-S", str(_FENCE), str(self.scratch.root), str(self._temporary), "/dev", "--")
        words = (*fenced, "bash", "--norc", "--noprofile", str(_DRIVER), str(self._state), str(file))
        command = Command(Path(sys.executable).name, words, env, stdin)
        return Step(name, command, str(self.scratch.page), deadline_s, serves=deadline_s == _NEVER_S)
