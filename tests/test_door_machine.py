"""`python -m harness machine`: this host's npu-smi or saved outputs, for people and for machines, without a matrix.yaml."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.host_npus import ask_host

FIXTURES = Path(__file__).parent / "fixtures"
A3 = FIXTURES / "npu_smi" / "i25_2_0_a3_twochips_partial_procs.txt"
CONTAINER = FIXTURES / "npu_smi" / "i24_1_rc3_container_ids_1_2.txt"
MAP = "\tNPU ID   Chip ID   Chip Logic ID   Chip Name\n\t1   0   0   Ascend 910B2\n\t2   0   1   Ascend 910B2\n"
TOPO = "       NPU1  NPU2  CPU Affinity\nNPU1   X     HCCS  0-23\nNPU2   HCCS  X     0-23\n"


@pytest.fixture(autouse=True)
def far_from_any_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def npu_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is the search path; the npu-smi in it prints the file named by its last word, or fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "npu-smi"
    read = f'import pathlib, sys; f = pathlib.Path(r"{folder}", sys.argv[-1] + ".txt")\n'
    answer = 'print(f.read_text()) if f.exists() else sys.exit("Error parameter of " + sys.argv[-1])\n'
    program.write_text(f"#!{sys.executable}\n{read}{answer}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_saved_outputs_of_one_host_are_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topo.txt").write_text(TOPO)
    assert main(["machine", "--json", "--from", str(CONTAINER), "topo.txt"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [npu["npu_id"] for npu in said["npus"]] == [1, 2] and said["error"] is None
    assert said["links"] == [{"a": "NPU1", "b": "NPU2", "kind": "HCCS"}] and said["affinity"] == {"NPU1": "0-23", "NPU2": "0-23"}


def test_an_error_says_which_of_several_files_it_is_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "--json", "--from", str(CONTAINER), "--from", str(FIXTURES / "npu_smi" / "err_dcmi_8005.txt")]) == 0
    error = json.loads(capsys.readouterr().out)["error"]
    assert error.endswith("err_dcmi_8005.txt: dcmi module initialize failed. ret is -8005")


def test_people_read_ids_series_processes_and_links_in_a_screenful(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"| {i}     910B3  | {'Alarm' if i == 5 else 'OK'} | 9{i}.0   4{i}   0 / 0 |\n| 0 | 0000:C{i}:00.0 | {i} 0 / 0 33{i}0/ 65536 |\n"
        for i in range(8)
    )
    head = "| NPU Name | Health | Power(W) Temp(C) Hugepages-Usage(page) |\n| Chip | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB) |\n"
    busy = "".join(f"| {i % 8} 0 | {4000 + i} | python | 20{i} |\n" for i in range(40))
    names = [f"NPU{i}" for i in range(8)]
    matrix = "\n".join(f"{a} " + " ".join("X" if a == b else "HCCS" for b in names) + " 0-95" for a in names)
    (tmp_path / "all.txt").write_text(
        f"{head}{rows}| NPU Chip | Process id | Process name | Process memory(MB) |\n{busy}\n{' '.join(names)} CPU Affinity\n{matrix}\n"
    )
    assert main(["machine", "--from", "all.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 110
    assert "8 dies on 8 NPUs; 910B3 is Atlas A2" in lines[0]
    assert lines[7].split() == ["5", "5", "0", "910B3", "a2", "Alarm", "0000:C5:00.0", "95.0", "45", "5", "3350/65536"]
    assert "process 4000 (python) on NPU 0 chip 0, 200 MB" in lines and "and 28 more processes" in lines
    assert "HCCS: NPU0 NPU1 NPU2 NPU3 NPU4 NPU5 NPU6 NPU7" in lines and f"CPUs 0-95: {' '.join(names)}" in lines


def test_people_are_told_that_a_series_is_unknown_or_can_t_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "--from", str(FIXTURES / "npu_smi" / "i23_0_5_health_warning.txt")]) == 0
    assert "xxx is of an unknown series" in capsys.readouterr().out
    assert main(["machine", "--from", str(FIXTURES / "npu_smi" / "i24_1_rc2_310p3_two_chips.txt")]) == 0
    out = capsys.readouterr().out
    assert "310P3 is a 310P, which ms-swift doesn't train on" in out and "cut or strange: '2       310P3'" in out


def test_the_standard_input_and_a_windows_redirection_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(A3.read_bytes())))
    assert main(["machine", "--json", "--from", "-"]) == 0
    (tmp_path / "w.txt").write_bytes(A3.read_text(encoding="utf-8").replace("\n", "\r\n").encode("utf-16"))
    piped = capsys.readouterr().out
    assert main(["machine", "--json", "--from", "w.txt"]) == 0
    assert capsys.readouterr().out == piped and len(json.loads(piped)["npus"]) == 4


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "--from", "gone.txt"]) == 2
    assert "--from gone.txt: can't be read" in capsys.readouterr().err


def test_this_host_is_asked_for_its_table_its_map_and_its_links(npu_smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"info": CONTAINER.read_text(encoding="utf-8"), "-m": MAP, "topo": TOPO}.items():
        (npu_smi / f"{name}.txt").write_text(text)
    assert main(["machine", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [npu["hbm_used_mb"] for npu in said["npus"]] == [3372, 3370] and said["links"][0]["kind"] == "HCCS" and said["error"] is None
    view = ask_host()
    assert [npu.logic_id for npu in view.devices] == [0, 1] and view.link_kind(0, 1) == "HCCS"


def test_what_an_old_npu_smi_can_t_tell_is_no_fault_of_the_host(npu_smi: Path) -> None:
    (npu_smi / "info.txt").write_text(CONTAINER.read_text(encoding="utf-8"))
    view = ask_host()
    assert len(view.npus) == 2 and view.error is None


def test_a_host_whose_npu_smi_fails_is_not_called_fine(npu_smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (npu_smi / "info.txt").write_text("dcmi module initialize failed. ret is -8005\n")
    assert main(["machine", "--json"]) == 5
    assert "-8005" in json.loads(capsys.readouterr().out)["error"]
    assert main(["machine"]) == 5
    captured = capsys.readouterr()
    assert "-8005" in captured.out and "lists no NPU" in captured.err


def test_a_host_without_npu_smi_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["machine"]) == 5
    assert "there is none on the search path of this host" in capsys.readouterr().err
    assert main(["machine", "--json"]) == 5
    said = json.loads(capsys.readouterr().out)
    assert said["npus"] == [] and said["version"] is None and "there is none" in said["error"]
