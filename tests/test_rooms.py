"""Imports go only down: no file of harness/ imports from a room with a higher number, and the pure rooms touch no edge of the machine."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path

import pytest

HARNESS = Path(__file__).resolve().parent.parent / "harness"
ROOMS = {
    0: (
        "model", "errors", "__init__",
    ),
    1: (
        "matrix*", "rules", "select", "commands*", "contract", "metrics", "diagnose", "decisive", "symptom*", "causes", "compare",
        "proof_*", "judge", "support", "render*", "evidence*", "redact*", "found", "tensors", "vocabulary", "witness_log", "npu_smi*",
        "topology", "npu_patches", "packed_experts", "consistency", "cell_facts", "mark_words", "plain_pickle", "packing", "estimates",
        "progress", "needs", "explain", "retries", "benchmark_model", "benchmark_verdict", "benchmark_repeat", "benchmark_codec",
        "benchmark_table", "diff", "trends", "trends_draw", "export_columns", "export_lines", "export_numbers", "export_rows",
        "frames_tables", "run_words", "hang_phase", "log_lines", "sieve", "signs", "doctor", "doctor_facts", "doctor_checks_*",
        "doctor_command", "doctor_parse", "doctor_text", "docs_shell*", "docs_calls", "docs_run_units", "docs_run_reasons",
        "docs_run_edits", "docs_run_plan", "docs_run_said", "docs_run_blocks", "docs_run_obstacles", "docs_run_select", "parity",
        "parity_words", "docs_page", "docs_page_table", "docs_rows*", "docs_update", "docs_update_*", "docs_check",
        "docs_check_devices", "docs_check_facts", "docs_check_links", "docs_check_modules", "docs_check_names", "docs_check_quotes",
        "docs_check_rows", "docs_check_versions*",
    ),
    2: (
        "machine", "launch", "supervised", "logs", "processes", "guardian", "stacks", "server", "aftermath", "store", "tiny*",
        "artifacts", "megatron_parsers", "docs_commands", "docs_files", "docs_commands_names", "model_folder", "swift_parsers", "host",
        "warm*", "inputs", "interrupts", "leases", "lock_files", "ports", "cores", "npu_probe", "benchmark_client", "benchmark_store",
        "diff_runs", "export_store", "frames", "host_npus", "doctor_host", "doctor_packages", "doctor_model", "mapped", "torch_saved",
        "sharded", "parity_store", "docs_check_installed", "docs_check_tree", "docs_run_fence", "docs_run_host", "docs_run_shell",
        "docs_run_proof",
    ),
    3: (
        "docs_run", "benchmarking", "benchmark_session", "export_tables", "report_trends", "bench", "proving", "goldens", "flow",
        "pool", "yard", "report", "session", "preflight",
    ),
    4: (
        "pytest_plugin", "door_progress", "door_kernels", "__main__", "door_machine", "door_doctor", "door_explain", "door_benchmark",
        "door_diff", "door_export", "door_trends", "door_docs", "door_docs_update", "door_docs_run",
    ),
}  # fmt: skip
# What the harness's own process may ask of the simulated NPU: to build it, and how a child finds it.
SIM_DOORS = {"harness.sim.build", "harness.sim.environment"}
EDGES = {"os", "subprocess", "socket", "shutil", "tempfile", "threading", "multiprocessing", "time", "psutil", "httpx", "filelock"}


def room_of(module: str) -> int | None:
    found = [number for number, names in ROOMS.items() if any(fnmatch.fnmatchcase(module, name) for name in names)]
    return found[0] if len(found) == 1 else None


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted name) of every import anywhere in a file, those inside functions too."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            lead = "." * node.level + (node.module or "")
            package = {"harness": "harness.", ".": "."}.get(lead)
            names += [(node.lineno, package + alias.name if package else lead) for alias in node.names]
    return names


def breaches(module: str, source: str) -> list[str]:
    room, found = room_of(module), []
    if room is None:
        return [f"{module}: in no room, or in several; say in ROOMS where it lives"]
    for line, name in imported(ast.parse(source)):
        parts = name.lstrip(".").split(".")
        if name.startswith(".") or (parts[0] == "harness" and len(parts) > 1):
            target = parts[0] if name.startswith(".") else parts[1]
            if target == "sim" and room >= 2 and name in SIM_DOORS:
                continue
            if target in ("witness", "sim", "warmed", "kernels"):
                found.append(f"{module}:{line}: imports {name}, which runs inside ms-swift's process")
            elif (theirs := room_of(target)) is None or theirs > room:
                found.append(f"{module}:{line}: room {room} imports {name} of room {theirs}")
        elif room <= 1 and parts[0] in EDGES:
            found.append(f"{module}:{line}: the pure room {room} imports {name}, an edge of the machine")
    return found


@pytest.mark.parametrize("path", sorted(HARNESS.glob("*.py")), ids=lambda path: path.stem)
def test_no_file_imports_from_a_higher_room(path: Path) -> None:
    assert breaches(path.stem, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted((HARNESS / "witness").rglob("*.py")), ids=lambda path: path.stem)
def test_the_witness_imports_nothing_of_the_harness_but_its_own_folder(path: Path) -> None:
    names = [name for _, name in imported(ast.parse(path.read_text(encoding="utf-8")))]
    assert [name for name in names if name.split(".")[0] == "harness" or name.startswith("..")] == []


@pytest.mark.parametrize("path", sorted((HARNESS / "kernels").rglob("*.py")), ids=lambda path: path.stem)
def test_kernel_parity_imports_its_own_folder_the_words_and_the_reference_operators(path: Path) -> None:
    ours = ("harness.kernels", "harness.model", "harness.errors", "harness.sim.operators")
    names = [name for _, name in imported(ast.parse(path.read_text(encoding="utf-8")))]
    assert [name for name in names if name.split(".")[0] == "harness" and not name.startswith(ours)] == []
    assert not any(name.startswith(".") for name in names)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("judge", "from harness.store import Store"),
        ("judge", "from harness import flow"),
        ("judge", "def f():\n    import harness.session"),
        ("model", "from harness import errors, judge"),
        ("rules", "from .launch import launch"),
        ("metrics", "import subprocess"),
        ("store", "from harness.flow import run_cell"),
        ("flow", "from harness.pytest_plugin import SESSION"),
        ("judge", "from harness.witness import digest"),
        ("session", "from harness.sim.standin import torch_npu"),
        ("rules", "from harness.sim.build import build"),
        ("brand_new", "import json"),
    ],
)
def test_a_planted_breach_is_found(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1
