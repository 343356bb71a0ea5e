"""What this host is: traces, usable NPUs and the choice of hardware, all planted under a ROOT, never in the real /dev or /usr."""

from __future__ import annotations

import importlib.metadata
import json
import resource
import socket
import sys
import time
from collections.abc import Callable
from getpass import getuser
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.machine import choose_hardware, machine_facts, npu_traces, npu_usable, programs_path
from harness.model import Hardware
from harness.processes import Process, members

SAMPLES = Path(__file__).parent / "fixtures" / "npu_smi"
A2 = "i24_1_rc3_container_ids_1_2"
NO_NPU = "NO NPU: ran on cpu, proves nothing about NPU hardware"


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")


Plant = Callable[..., Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """A ROOT with what is asked for: device files, CANN's folder, an npu-smi that prints a sample, a python that succeeds or not."""

    def build(
        *, devices: int = 0, ascend: bool = False, prints: str | None = None, smi_exit: int = 0, python_exit: int | None = None
    ) -> Path:
        root = tmp_path / "root"
        (root / "dev").mkdir(parents=True)
        for number in range(devices):
            (root / "dev" / f"davinci{number}").touch()
        if ascend:
            (root / "usr/local/Ascend").mkdir(parents=True)
        programs = root / "usr/local/bin"
        programs.mkdir(parents=True, exist_ok=True)
        if prints is not None:
            (root / "listing").write_text(prints)
            program(programs / "npu-smi", f"cat {root / 'listing'}\nexit {smi_exit}")
        if python_exit is not None:
            program(programs / "python", f"echo 'RuntimeError: device busy' >&2\nexit {python_exit}")
        return root

    return build


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def no_real_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)


def test_an_empty_root_has_no_trace_and_falls_back_to_cpu_saying_what_that_proves(plant: Plant) -> None:
    root = plant()
    assert npu_traces(root) == ()
    choice = choose_hardware("auto", root=root)
    assert (choice.hardware, choice.npu_ids, choice.last_line) == (Hardware.CPU, (), NO_NPU)


@pytest.mark.parametrize(
    ("planted", "trace"),
    [({"devices": 1}, "dev/davinci0"), ({"ascend": True}, "usr/local/Ascend"), ({"prints": ""}, "usr/local/bin/npu-smi")],
)
def test_each_trace_without_a_usable_npu_fails_and_is_named(plant: Plant, planted: dict[str, object], trace: str) -> None:
    root = plant(**planted)
    assert npu_traces(root) == (str(root / trace),)
    with pytest.raises(HostError, match=f"trace of an NPU.*{trace}"):
        choose_hardware("auto", root=root)


def test_a_real_torch_npu_is_a_trace_and_a_simulated_one_is_not(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant()
    site = root / "usr/lib/python3.11/site-packages"
    (site / "torch_npu-2.9.0+sim.dist-info").mkdir(parents=True)
    assert npu_traces(root) == ()
    (site / "torch_npu-2.9.0+sim.dist-info").rename(site / "torch_npu-2.9.0.dist-info")
    assert npu_traces(root) == ("torch_npu 2.9.0",)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.0+sim")
    assert not [trace for trace in npu_traces() if "torch_npu" in trace]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.0")
    assert npu_traces()[-1] == "torch_npu 2.9.0"


def test_healthy_chips_and_a_tensor_make_an_npu_host(plant: Plant) -> None:
    root = plant(devices=2, ascend=True, prints=sample(A2), python_exit=0)
    choice = choose_hardware("auto", require_npu=True, root=root)
    assert (choice.hardware, choice.npu_ids, choice.last_line) == (Hardware.A2, (0, 1), "")
    assert "npu:0 made a tensor" in choice.because


def test_a_rehearsal_without_a_python_says_that_no_tensor_was_made(plant: Plant) -> None:
    choice = choose_hardware("a2", require_npu=True, root=plant(prints=sample(A2)))
    assert choice.hardware is Hardware.A2 and "no tensor was made" in choice.because


@pytest.mark.parametrize(
    ("planted", "because"),
    [
        ({"prints": sample(A2), "python_exit": 1}, "no tensor could be made on npu:0: exit code 1: RuntimeError: device busy"),
        ({"prints": sample("err_dcmi_8005")}, "dcmi module initialize failed. ret is -8005"),
        ({"prints": sample(A2), "smi_exit": 7}, "exit code 7"),
        ({"prints": "nothing to see"}, "npu-smi was recognised in it: 'nothing to see'"),
        ({"prints": sample(A2).replace("| OK    ", "| Alarm ")}, "no chip is healthy: NPU 1 Alarm, NPU 2 Alarm"),
        ({"devices": 8}, "no npu-smi"),
    ],
)
def test_what_makes_npus_unusable_is_said(plant: Plant, planted: dict[str, object], because: str) -> None:
    root = plant(**planted)
    usable = npu_usable(root)
    assert usable.ids == () and because in usable.because
    for asked, require in (("auto", False), ("auto", True), ("a2", False)):
        with pytest.raises(HostError) as caught:
            choose_hardware(asked, require_npu=require, root=root)
        assert because in str(caught.value)


def left_of_group(root: Path, within_s: float = 10.0) -> list[Process]:
    """Who of npu-smi's group still lives: a killed process takes a moment to die."""
    deadline = time.monotonic() + within_s
    while (left := members((int((root / "pid").read_text()),), ())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def test_a_listing_without_an_end_is_cut_off_and_its_processes_are_ended(plant: Plant) -> None:
    root = plant(prints="")
    program(root / "usr/local/bin/npu-smi", f"echo $$ > {root / 'pid'}\nyes & yes")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    usable = npu_usable(root)
    assert usable.ids == () and "it printed more than 1 MiB" in usable.because
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    assert left_of_group(root) == []


def test_a_program_that_never_ends_is_ended_with_its_group(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.machine._NPU_SMI_S", 0.5)
    root = plant(prints="")
    program(root / "usr/local/bin/npu-smi", f"echo $$ > {root / 'pid'}\nsleep 60 & sleep 60")
    assert "no end within 0.5 s" in npu_usable(root).because
    assert left_of_group(root) == []


def test_only_healthy_chips_are_used_and_only_those_that_the_user_left_visible(plant: Plant) -> None:
    first_ill = sample(A2).replace("| OK    ", "| Alarm ", 1)
    root = plant(prints=first_ill, python_exit=0)
    assert npu_usable(root).ids == (1,)
    assert npu_usable(root, environment={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}).ids == (1,)
    assert npu_usable(root, environment={"ASCEND_RT_VISIBLE_DEVICES": "0"}).because == "ASCEND_RT_VISIBLE_DEVICES names no healthy chip"


def test_the_probe_sees_only_a_device_that_is_to_be_used(plant: Plant, tmp_path: Path) -> None:
    root = plant(prints=sample(A2))
    probe = [sys.executable, "-c", f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(os.environ['ASCEND_RT_VISIBLE_DEVICES'])"]
    assert npu_usable(root, probe=probe, environment={"ASCEND_RT_VISIBLE_DEVICES": "1"}).ids == (1,)
    assert (tmp_path / "seen").read_text() == "1"


def test_asking_for_another_series_than_the_chips_are_is_refused(plant: Plant) -> None:
    root = plant(prints=sample("i25_2_0_a3_twochips_partial_procs"), python_exit=0)
    assert choose_hardware("a3", root=root).npu_ids == (0, 1, 2, 3)
    with pytest.raises(HostError, match="this host's chips are a3"):
        choose_hardware("a2", root=root)


def test_chips_of_no_known_series_are_named_not_guessed(plant: Plant) -> None:
    with pytest.raises(HostError, match="no known series: 310P3"):
        choose_hardware("auto", root=plant(prints=sample("i24_1_rc2_310p3_two_chips"), python_exit=0))


def test_requiring_an_npu_where_there_is_none_fails_at_once(plant: Plant) -> None:
    root = plant()
    for asked in ("auto", "cpu", "a2"):
        with pytest.raises(HostError, match="--require-npu"):
            choose_hardware(asked, require_npu=True, root=root)


def test_the_simulated_npu_is_refused_beside_a_trace_of_a_real_one_and_cpu_is_taken_when_asked_for(plant: Plant) -> None:
    root = plant(devices=1)
    with pytest.raises(HostError, match=r"refused beside traces of a real one.*davinci0"):
        choose_hardware("sim", root=root)
    assert choose_hardware("cpu", root=root).last_line == NO_NPU


def test_without_a_trace_an_npu_is_simulated_and_the_last_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.machine.npu_traces", lambda root=None: ())
    monkeypatch.setattr("harness.machine.can_build", lambda: "")
    choice = choose_hardware("auto")
    assert (choice.hardware, choice.last_line) == (Hardware.SIM, "NO NPU: ran on sim, proves nothing about NPU hardware")
    monkeypatch.setattr("harness.machine.can_build", lambda: "no compiler")
    assert choose_hardware("auto").hardware is Hardware.CPU
    with pytest.raises(HostError, match="can't be built: no compiler"):
        choose_hardware("sim")
    with pytest.raises(HostError, match="contradicts --hardware sim"):
        choose_hardware("sim", require_npu=True)


def test_under_a_rehearsal_programs_come_from_its_root_only(tmp_path: Path) -> None:
    assert all(folder.startswith(str(tmp_path)) for folder in programs_path(tmp_path).split(":"))


def test_the_machines_facts_name_no_host_and_no_user() -> None:
    facts = machine_facts()
    assert int(facts["cores"]) >= 1 and float(facts["memory_gib"]) > 0 and facts["cpu"] and facts["kernel"] and facts["python"]
    values = set(facts.values())
    assert socket.gethostname() not in values and getuser() not in values
    json.dumps(dict(facts))
