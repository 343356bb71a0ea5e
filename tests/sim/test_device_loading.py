"""How a simulated NPU gets into a process, and all the ways in which it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sim import build, environment
from harness.sim.denials import DenialError, Denials, parse_denials
from harness.sim.environment import STANDIN, sim_environment
from harness.sim.traces import real_npu_traces

needs_a_build = pytest.mark.skipif(bool(build.can_build()), reason=f"no simulated NPU can be built here: {build.can_build()}")
PLAIN: dict[str, str] = {}


def python(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = variables | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)


@pytest.fixture
def simulated(clean_environment: dict[str, str]) -> dict[str, str]:
    return clean_environment | sim_environment((0, 1), build.cache_folder(), clean_environment)


# ---- never mistaken: traces of a real NPU
def plant(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


TRACES = ("dev/davinci0", "dev/davinci_manager", "usr/local/bin/npu-smi", "usr/bin/npu-smi", "usr/local/Ascend/driver")


@pytest.mark.parametrize("trace", TRACES)
def test_each_trace_of_an_npu_is_found(trace: str, tmp_path: Path) -> None:
    assert real_npu_traces(PLAIN, [], STANDIN, tmp_path) == ()
    plant(tmp_path, trace)
    assert len(real_npu_traces(PLAIN, [], STANDIN, tmp_path)) == 1


@pytest.mark.parametrize("trace", ["torch_npu/__init__.py", "torch_npu-2.9.0.dist-info/METADATA"])
def test_a_real_torch_npu_is_found_before_and_behind_the_stand_in(trace: str, tmp_path: Path) -> None:
    plant(tmp_path / "site", trace)
    for path in ([str(tmp_path / "site"), str(STANDIN)], [str(STANDIN), str(tmp_path / "site")]):
        assert len(real_npu_traces(PLAIN, path, STANDIN, tmp_path)) == 1


def test_our_own_stand_in_is_no_trace(tmp_path: Path) -> None:
    variables = sim_environment((0,), tmp_path, {})
    assert real_npu_traces(variables, variables["PYTHONPATH"].split(os.pathsep), STANDIN, tmp_path / "nowhere") == ()


def test_cann_is_found_by_its_variables(tmp_path: Path) -> None:
    (tmp_path / "toolkit").mkdir()
    found = real_npu_traces({"ASCEND_TOOLKIT_HOME": str(tmp_path / "toolkit")}, [], STANDIN)
    assert f"ASCEND_TOOLKIT_HOME={tmp_path / 'toolkit'}" in found
    ours = sim_environment((0,), tmp_path, {})["ASCEND_HOME_PATH"]
    assert not [trace for trace in real_npu_traces({"ASCEND_HOME_PATH": ours}, [], STANDIN) if trace.startswith("ASCEND")]


@needs_a_build
@pytest.mark.parametrize("trace", ["dev/davinci0", "usr/local/bin/npu-smi", "usr/local/Ascend/driver"])
def test_beside_a_trace_of_an_npu_it_refuses_to_load(trace: str, tmp_path: Path, simulated: dict[str, str]) -> None:
    planted = plant(tmp_path, trace)
    done = python("import torch_npu", simulated | {"NPU_MATRIX_SIM_ROOT": str(tmp_path)})
    assert done.returncode and "SIMULATED NPU refuses to load" in done.stderr and str(planted).removesuffix("/driver") in done.stderr


@needs_a_build
def test_importing_torch_fails_where_it_refuses_to_load(tmp_path: Path, simulated: dict[str, str]) -> None:
    plant(tmp_path, "dev/davinci0")
    done = python("import torch", simulated | {"NPU_MATRIX_SIM_ROOT": str(tmp_path)})
    assert done.returncode and "SIMULATED NPU refuses to load" in done.stderr


@needs_a_build
def test_beside_a_real_torch_npu_it_refuses_to_load(tmp_path: Path, simulated: dict[str, str]) -> None:
    plant(tmp_path, "torch_npu/__init__.py")
    done = python("import torch_npu", simulated | {"PYTHONPATH": simulated["PYTHONPATH"] + os.pathsep + str(tmp_path)})
    assert done.returncode and "SIMULATED NPU refuses to load" in done.stderr and str(tmp_path / "torch_npu") in done.stderr


def test_it_refuses_to_load_where_nobody_asked_for_it(simulated: dict[str, str]) -> None:
    del simulated["NPU_MATRIX_SIM"]
    done = python("import torch_npu", simulated)
    assert done.returncode and "nobody asked for a simulated NPU" in done.stderr


# ---- getting in
@needs_a_build
def test_one_line_says_that_the_npu_is_simulated(simulated: dict[str, str]) -> None:
    done = python("import torch; print(torch.npu.device_count(), torch.npu.get_device_name())", simulated)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 SIMULATED Ascend910B3 in host memory\n" and done.stderr.count("SIMULATED NPU: 2 device(s)") == 1


@needs_a_build
@pytest.mark.parametrize("code", ["import torch_npu.npu.amp", "from torch_npu import npu_swiglu"])
def test_it_may_be_imported_before_torch(code: str, simulated: dict[str, str]) -> None:
    done = python(f"{code}; import torch; print(torch.ones(2, device='npu').sum().item())", simulated)
    assert done.returncode == 0 and done.stdout == "2.0\n", done.stderr


@needs_a_build
def test_a_process_ends_cleanly_right_after_backward(simulated: dict[str, str]) -> None:
    code = """
import torch
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = [object() for _ in range(200_000)]  # Python objects that the graph drops when it ends
        return x * 2
    @staticmethod
    def backward(ctx, g): return g * 2
Slow.apply(torch.ones(4, device="npu", requires_grad=True)).sum().backward()
"""
    for _ in range(2):
        done = python(code, simulated)
        assert done.returncode == 0, done.stderr


@needs_a_build
def test_no_visible_device_is_no_device(simulated: dict[str, str]) -> None:
    done = python("import torch; print(torch.npu.is_available(), torch.npu.device_count())", simulated | {"ASCEND_RT_VISIBLE_DEVICES": ""})
    assert done.stdout == "False 0\n", done.stderr


@needs_a_build
@pytest.mark.parametrize(
    "variables,said",
    [
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,x"}, "no list of different device numbers"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,0"}, "no list of different device numbers"),
        ({"NPU_MATRIX_SIM_MEMORY_MIB": "lots"}, "no number of MiB"),
        ({"NPU_MATRIX_SIM_DENY": "dtype:float65"}, "torch has no such dtype"),
        ({"NPU_MATRIX_SIM_DENY": "op:aten::no_such"}, "torch has no such operator"),
        ({"NPU_MATRIX_SIM_DENY": "attribute:torch.npu.no_such"}, "isn't there to be denied"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(variables: dict[str, str], said: str, simulated: dict[str, str]) -> None:
    done = python("import torch_npu", simulated | variables)
    assert done.returncode and said in done.stderr


# ---- the environment of a child
def test_the_environment_names_everything_that_a_child_needs(tmp_path: Path) -> None:
    variables = sim_environment((2, 5), tmp_path, {"PYTHONPATH": "/mine"})
    assert variables["ASCEND_RT_VISIBLE_DEVICES"] == "2,5" and variables["NPU_MATRIX_SIM"] == "1"
    assert variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"
    site, standin, mine = variables["PYTHONPATH"].split(os.pathsep)
    assert mine == "/mine" and Path(standin) == STANDIN and (Path(standin) / "torch_npu/__init__.py").exists()
    (info,) = Path(site).glob("torch_npu-*+sim.dist-info")
    assert "torch_npu = torch_npu:_autoload" in (info / "entry_points.txt").read_text() and "SIMULATED" in (info / "METADATA").read_text()
    assert list(Path(variables["ASCEND_HOME_PATH"]).glob("*-linux/ascend_toolkit_install.info"))


def test_the_environment_is_the_same_when_asked_twice(tmp_path: Path) -> None:
    first = sim_environment((0,), tmp_path, {})
    assert sim_environment((0,), tmp_path, first) == first


def test_neither_environment_nor_build_imports_torch(clean_environment: dict[str, str]) -> None:
    root = str(Path(build.__file__).resolve().parents[2])
    code = "import sys, harness.sim.environment, harness.sim.build as b; b.can_build(); assert 'torch' not in sys.modules"
    done = python(code, clean_environment | {"PYTHONPATH": root})
    assert done.returncode == 0, done.stderr


# ---- building
@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


def test_without_a_compiler_it_says_so(no_compiler: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))
    assert "no C++ compiler" in build.can_build()
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler.*install"):
        build.build()


@needs_a_build
def test_without_a_compiler_an_earlier_build_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = build.build()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.can_build() == "" and build.build().name.rsplit("-", 1)[0] == built.name.rsplit("-", 1)[0]


def fake_compiler(folder: Path, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    compiler = folder / "g++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    return compiler


# What a compiler does here: note that it ran, take its time, and write its output file (the word after -o).
HONEST = 'echo ran >> "$RUNS"; cat > /dev/null; sleep 0.5; while [ "$1" != -o ]; do shift; done; echo made > "$2"'


def test_what_the_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))
    failing = 'cat > /dev/null; echo "hccl.cpp:3: error: no member allreduce" >&2; exit 1'
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path / "bin", failing)))
    with pytest.raises(build.BuildError, match="could not compile the simulated NPU for torch") as failed:
        build.build()
    assert "hccl.cpp:3: error: no member allreduce" in str(failed.value)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_release_that_was_never_tried_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = build.Torch(tmp_path, "9.9.0+cpu", "", 1)
    assert "9.9.0+cpu is not one of the releases" in build._said_by_compiler(torch, Path("g++"), "x: error: y", tmp_path / "log")


def test_two_processes_that_build_at_once_build_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = str(Path(build.__file__).resolve().parents[2])
    compiler = fake_compiler(tmp_path / "bin", HONEST)
    variables = os.environ | {
        "NPU_MATRIX_CACHE": str(tmp_path / "cache"), "CXX": str(compiler), "RUNS": str(tmp_path / "runs"), "PYTHONPATH": root,
    }  # fmt: skip
    command = [sys.executable, "-c", "import harness.sim.build as b; print(b.build())"]
    both = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=60)[0] for process in both}
    assert len(answers) == 1 and Path(answers.pop().strip()).read_text() == "made\n"
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_other_sources_are_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    torch = build.Torch(tmp_path, "2.14.1", "abc", 1)
    (tmp_path / "a.cpp").write_text("one")
    one = build._stem(torch)
    (tmp_path / "a.cpp").write_text("two")
    assert build._stem(torch) != one and build._stem(build.Torch(tmp_path, "2.14.1", "abd", 1)) != build._stem(torch)


def test_a_cache_that_can_not_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path / "bin", HONEST)))
    with pytest.raises(build.BuildError, match="set NPU_MATRIX_CACHE to a folder that can"):
        build.build()


# ---- the deny list
def test_a_deny_list_is_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    want = Denials(("float64",), ("aten::histc",), ("torch.npu.x",))
    (tmp_path / "deny").write_text("# what the real one has not\ndtype:float64  # no fp64\nop:aten::histc\nattribute:torch.npu.x\n")
    assert parse_denials("dtype:float64,op:aten::histc, attribute:torch.npu.x") == want == parse_denials(f"@{tmp_path}/deny")


@pytest.mark.parametrize("text", ["float64", "dtype:", "kernel:x", "@/no/such/file"])
def test_a_denial_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(DenialError):
        parse_denials(text)


def test_the_switches_are_named_in_one_place() -> None:
    names = {value for name, value in vars(environment).items() if name.endswith("_VARIABLE") or name == "SWITCH"}
    assert all(name.startswith("NPU_MATRIX_") for name in names) and len(names) >= 6
