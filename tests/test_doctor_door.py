"""The doctor's doors: what a person and a machine get, its exit codes, and which cells a host makes impossible."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doctor_hosts import CANN, SITE, SOURCED, healthy, install, remove, smi, write
from fakes.rehearsal import npu_smi_info

from harness import door_doctor
from harness.__main__ import main
from harness.doctor import cell_obstacle, examine, exit_code
from harness.doctor_facts import Cann, DeviceFile, Finding, HostFacts, Package, Place, Probe, Severity, Sureness
from harness.doctor_host import gather
from harness.doctor_text import COLUMNS, LINES, render
from harness.host import HostRequest
from harness.matrix import parse_matrix
from harness.model import Cell, Engine, Hardware, RulingKind, Strategy
from harness.npu_smi_view import MachineView, Npu
from harness.session import Session

REPOSITORY = Path(__file__).resolve().parents[1]
MATRIX = parse_matrix((REPOSITORY / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")
HERE = {"torch": Package("torch", "2.14.1"), "ms-swift": Package("ms-swift", "4.6.0")}
NO_NPU = HostFacts("x86_64", "3.11.7", packages=HERE, simulation="")


@pytest.fixture(autouse=True)
def a_shell_with_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, used=0, free=2**40))
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "NPROC_PER_NODE", "HCCL_IF_IP", "HCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in SOURCED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")


def doctor(root: Path, *words: str) -> int:
    return main(["--root", str(REPOSITORY), "doctor", "--rehearsal", str(root), *words])


def width(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line)


def cells(**fields: Any) -> list[Cell]:
    return [cell for cell in MATRIX.cells if all(getattr(cell, name) is value for name, value in fields.items())]


def test_the_exit_code_says_how_bad_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = healthy(tmp_path / "root")
    assert doctor(root) == 0
    assert "8 x 910B3 (a2), 8 healthy; npu:0 made a tensor; driver 25.2.0, CANN 9.0.0" in capsys.readouterr().out
    (root / "usr/local/bin/pystack").unlink()
    assert doctor(root) == 0, "a note is no fault"
    install(root, "vllm", "0.14.0")
    assert doctor(root) == 1
    (root / "dev/hisi_hdc").unlink()
    (root / "usr/local/bin/python").unlink()
    assert doctor(root) == 5
    assert "doctor: 1 blocking NPU work, 1 degrading it, 1 worth knowing (exit 5)" in capsys.readouterr().out


def test_machines_get_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = healthy(tmp_path / "root")
    remove(root, "vllm_ascend")
    assert doctor(root, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == 1
    assert (said["host"]["series"], said["host"]["npu_usable"], len(said["host"]["npus"])) == ("a2", True, 8)
    finding = next(f for f in said["findings"] if f["id"] == "vllm.half")
    assert finding["impossible_cells"] == {"engine": ["vllm"]}
    assert set(finding) == {"id", "severity", "sure", "what", "why", "fix", "source", "impossible_cells"}


def test_a_host_without_npus_is_told_in_a_screenful_what_is_missing_and_what_runs() -> None:
    findings = examine(NO_NPU, MATRIX.stacks)
    text = render(NO_NPU, findings)
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(width, lines)) <= COLUMNS
    for missing in ("/dev/davinci0", "npu-smi", "CANN", "torch_npu", "vllm-ascend", "Megatron-SWIFT"):
        assert missing in text
    assert "on a simulated NPU in host memory, or --hardware cpu; both prove nothing about NPU hardware" in " ".join(text.split())
    assert exit_code(findings) == 5


def test_notes_give_way_before_what_blocks() -> None:
    kinds = [(Severity.BLOCKS, 6), (Severity.DEGRADES, 6), (Severity.NOTE, 9)]
    many = [Finding(f"x.{s}", f"{s} {i}", "because", "mend it", Sureness.CERTAIN, s, "Q1") for s, count in kinds for i in range(count)]
    lines = render(NO_NPU, many).splitlines()
    assert len(lines) <= LINES
    assert sum(line.startswith("BLOCKS") for line in lines) == 6
    assert sum("because" in line for line in lines) == 6, "the why of what blocks"
    assert sum(line.startswith("DEGRADES") for line in lines) == 6
    assert lines[-1].startswith("and 9 notes")
    assert "and" not in render(NO_NPU, many, most=1000).splitlines()[-1], "with room, all is told"


def test_names_of_people_hosts_and_homes_are_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = healthy(tmp_path / "root")
    monkeypatch.setattr(door_doctor.getpass, "getuser", lambda: "lihua")
    monkeypatch.setattr(door_doctor.platform, "node", lambda: "train-box-17")
    write(root / "home/lihua/Megatron-LM/megatron/core/__init__.py")
    monkeypatch.setenv("PYTHONPATH", "/home/lihua/Megatron-LM")
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "train-box-17")
    for words in ((), ("--json",)):
        doctor(root, *words)
        said = capsys.readouterr().out
        assert "megatron is imported from" in said
        assert "lihua" not in said and "train-box-17" not in said and str(tmp_path) not in said


def test_a_command_and_a_model_are_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = healthy(tmp_path / "root")
    assert doctor(root, "--command", "swift sft --model x --enable_npu_model_patch false") == 1
    assert "[Q3, certain]" in capsys.readouterr().out
    assert doctor(root, "--model", str(tmp_path)) == 2
    assert "config.json" in capsys.readouterr().err


OTHERS = {
    "device.permission": HostFacts("x86_64", "3.11", device_files=(DeviceFile("/dev/davinci0", False),)),
    "chip.unsupported": HostFacts("x86_64", "3.11", machine=MachineView(npus=(Npu(0, 0, name="310P3", series="310P", health="OK"),))),
    "cann.architecture": HostFacts("x86_64", "3.11", cann=Cann(home="/usr/local/Ascend/cann", architecture="aarch64")),
    "nnal.missing": HostFacts("x86_64", "3.11", cann=Cann(home="/x"), packages={"vllm-ascend": Package("vllm-ascend", "0.18.0")}),
    "torch_npu.simulated": HostFacts("x86_64", "3.11", packages={n: Package(n, "2.9.0+sim") for n in ("torch", "torch-npu")}),
    "package.cuda_only": HostFacts("x86_64", "3.11", traces=("/dev/davinci0",), packages={"flash-attn": Package("flash-attn", "2.8")}),
    "package.unsupported": HostFacts("x86_64", "3.11", traces=("/dev/davinci0",), packages={"bitsandbytes": Package("bitsandbytes", "1")}),
    "triton.two": HostFacts("x86_64", "3.11", packages={n: Package(n, "3.2.1") for n in ("triton", "triton-ascend")}),
    "swift.missing": HostFacts("x86_64", "3.11", packages={}),
    "swift.foreign": HostFacts("x86_64", "3.11", packages={}, foreign_swift="/opt/other/bin/python"),
    "stack.undeclared": HostFacts("x86_64", "3.13.1", traces=("/dev/davinci0",), packages={"torch": Package("torch", "2.1.0")}),
    "room.disk": HostFacts("x86_64", "3.11", disk_gib=0.5),
    "room.memory": HostFacts("x86_64", "3.11", memory_gib=8.0),
    "room.shm": HostFacts("x86_64", "3.11", shm_gib=0.0625),
    "room.open_files": HostFacts("x86_64", "3.11", open_files=1024),
    "slow.blocking": HostFacts("x86_64", "3.11", environment={"ASCEND_LAUNCH_BLOCKING": "1"}),
}


@pytest.mark.parametrize("id", OTHERS)
def test_what_no_faq_item_asks_is_found_too(id: str) -> None:
    assert id in {finding.id for finding in examine(OTHERS[id], MATRIX.stacks)}


def test_a_checkout_on_the_import_path_is_not_missing(tmp_path: Path) -> None:
    root = healthy(tmp_path / "root")
    for name in ("mindspeed", "mcore_bridge", "ms_swift", "deepspeed", "vllm", "vllm_ascend"):
        remove(root, name)
    missing = {f.id for f in examine(gather(root, environment=SOURCED, architecture="aarch64"), {})}
    assert missing >= {"megatron.parts", "swift.missing", "deepspeed.missing"}
    write(root / "opt/bridge/src/mcore_bridge/__init__.py")
    for module in ("MindSpeed/mindspeed", *(f"ms-swift/{name}" for name in ("swift", "deepspeed", "vllm", "vllm_ascend"))):
        write(root / "opt" / module / "__init__.py")
    path = "/opt/Megatron-LM:/opt/MindSpeed:/opt/bridge/src:/opt/ms-swift"
    facts = gather(root, environment={**SOURCED, "PYTHONPATH": path}, architecture="aarch64")
    assert examine(facts, {}) == ()


def test_in_a_container_what_is_missing_is_to_be_mounted() -> None:
    facts = HostFacts("x86_64", "3.11", place=Place.CONTAINER, traces=("/usr/local/Ascend",), mounted={"/usr/local/Ascend/driver": False})
    told = {f.id: f.fix for f in examine(facts, {})}
    assert told["mount.missing"].startswith("docker run -v /usr/local/Ascend/driver")
    assert "--device=/dev/davinci0" in told["device.none"]


def test_the_nearest_stack_is_told_with_what_it_lacks(tmp_path: Path) -> None:
    root = healthy(tmp_path / "root")
    write(root / CANN / "aarch64-linux/ascend_toolkit_install.info", "version=8.3.RC1\n")
    install(root, "triton_ascend", "3.1")
    remove(root, "vllm")
    told = next(f for f in examine(gather(root, environment=SOURCED), MATRIX.stacks) if f.id == "stack.undeclared")
    assert told.what == "no stack of matrix.yaml is met; nearest docs_recommended lacks cann>=8.5.1 (found 8.3.RC1)"


def test_a_tensor_that_was_made_outranks_what_its_absence_was_concluded_from() -> None:
    facts = HostFacts("x86_64", "3.11", cann=Cann(home="/x"), probe=Probe(True, "npu:0 made a tensor"))
    told = {f.id: f for f in examine(facts, {})}["cann.not_sourced"]
    assert (told.severity, told.sure, told.cells) == (Severity.NOTE, Sureness.POSSIBLE, None)


def test_only_what_is_certain_keeps_a_cell_from_running() -> None:
    cell = cells(engine=Engine.VLLM)[0]
    likely = Finding("x", "w", "y", "f", Sureness.LIKELY, Severity.BLOCKS, "Q1", {})
    assert cell_obstacle(cell, [likely]) == ""
    for engine, because in (("vllm", "no engine (mend it: pip)"), ("sglang", "")):
        certain = Finding("x", "no engine", "y", "pip", Sureness.CERTAIN, Severity.NOTE, "Q1", {"engine": (engine,)})
        assert cell_obstacle(cell, [likely, certain]) == because


def session(root: Path) -> Session:
    opened = Session.open(HostRequest(root=REPOSITORY, hardware="a2", weights="real", rehearsal=root))
    opened.choose_host()
    return opened


def test_a_run_leaves_out_the_cells_that_this_host_makes_impossible_and_says_why(tmp_path: Path) -> None:
    root = healthy(tmp_path / "root")
    whole = session(root)
    zero, vllm = cells(strategy=Strategy.ZERO3, engine=Engine.TRANSFORMERS), cells(engine=Engine.VLLM)
    runs = {cell.id for cell in MATRIX.cells if whole.ruling(cell).kind in (RulingKind.RUN, RulingKind.EXPECT_FAIL)}
    assert runs & {c.id for c in zero} and runs & {c.id for c in vllm}
    remove(root, "deepspeed")
    install(root, "vllm", "0.14.0")
    lacking = session(root)
    for cell in MATRIX.cells:
        ruling = lacking.ruling(cell)
        if cell.id in runs and (cell.strategy in (Strategy.ZERO2, Strategy.ZERO3) or cell.engine is Engine.VLLM):
            assert ruling.kind is RulingKind.NOT_RUNNABLE
            assert ruling.because.startswith("doctor: ") and "mend it: pip install" in ruling.because
        else:
            assert ruling == whole.ruling(cell), cell.id
    assert any(line.startswith("doctor: ") and "that degrades" in line for line in lacking.summary())


def test_one_sick_chip_keeps_no_cell_from_running(tmp_path: Path) -> None:
    root = healthy(tmp_path / "root")
    smi(root, npu_smi_info(frozenset({5})))
    facts = gather(root, environment=SOURCED, architecture="aarch64")
    assert facts.series is Hardware.A2
    findings = examine(facts, MATRIX.stacks)
    assert {f.id for f in findings} == {"health.sick"}
    assert {cell_obstacle(cell, findings) for cell in MATRIX.cells} == {""}


def test_packages_of_another_folder_are_read_without_importing_them(tmp_path: Path) -> None:
    root = healthy(tmp_path / "root")
    write(root / SITE / "torch_npu/__init__.py", "raise SystemExit('imported')")
    write(root / SITE / "broken-1.0.dist-info/RECORD")
    facts = gather(root, environment=SOURCED, architecture="aarch64")
    assert facts.packages is not None
    assert facts.packages["torch-npu"].version == "2.9.0"
    assert facts.packages["vllm"].local == "empty"
    assert facts.python == "3.11"
