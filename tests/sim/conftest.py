"""Tests marked `on_device` run in a child process that has a simulated NPU: one warm process a configuration, forked for each test.

    pytestmark = pytest.mark.on_device                                   two devices
    @pytest.mark.on_device(devices=1, NPU_MATRIX_SIM_MEMORY_MIB="64")    as many devices, with these variables
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.sim.build import cache_folder, can_build
from harness.sim.environment import sim_environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SERVERS = pytest.StashKey[dict[Any, "Server"]]()


class Server:
    """A process that imported torch with a simulated NPU and forks for every test it is sent."""

    def __init__(self, devices: int, variables: dict[str, str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("NPU_MATRIX_SIM", "ASCEND"))}
        environment |= sim_environment(tuple(range(devices)), cache_folder(), environment) | variables | {"OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}{os.pathsep}{HERE}"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "device_server.py")], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, path: Path, name: str, arguments: dict[str, Any]) -> str:
        """The traceback of the test, empty where it passed."""
        from device_server import receive, send

        assert self.process.stdin and self.process.stdout
        send(self.process.stdin, (str(path), name, arguments))
        answer = receive(self.process.stdout)
        if answer is None:
            raise RuntimeError(f"the process with the simulated NPU ended with code {self.process.wait()}: see its stderr")
        return str(answer)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_device(devices=2, **variables): run it in a process with a simulated NPU")
    config.stash[SERVERS] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    for server in config.stash.get(SERVERS, {}).values():
        server.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    marker = pyfuncitem.get_closest_marker("on_device")
    if marker is None:
        return None
    because = can_build()
    if because:
        pytest.skip(f"no simulated NPU can be built here: {because}")
    key = (marker.kwargs.get("devices", 2), *sorted((k, v) for k, v in marker.kwargs.items() if k != "devices"))
    servers = pyfuncitem.config.stash[SERVERS]
    if key not in servers:
        servers[key] = Server(key[0], dict(key[1:]))
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    failure = servers[key].run(pyfuncitem.path, pyfuncitem.originalname, arguments)
    if failure:
        pytest.fail(failure, pytrace=False)
    return True


@pytest.fixture
def clean_environment() -> Iterator[dict[str, str]]:
    """This process's variables without any that a simulated NPU heeds."""
    yield {name: value for name, value in os.environ.items() if not name.startswith(("NPU_MATRIX_SIM", "ASCEND", "TORCH_DEVICE"))}
