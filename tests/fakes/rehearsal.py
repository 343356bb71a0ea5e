"""A rehearsal's ROOT: the device files, npu-smi and programs of an 8-chip 910B3 host that isn't there, and a record of every call."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.install import TESTS, write_executable

CHIPS = 8
# What of the environment a call's record keeps.
KEPT = (
    "ASCEND_RT_VISIBLE_DEVICES", "NPROC_PER_NODE", "MASTER_PORT", "HCCL_IF_BASE_PORT", "NNODES", "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "OMP_NUM_THREADS",
)  # fmt: skip

# Chip, power, temperature, bus and memory as a host of this kind printed them.
_ROWS = (
    ("101.8", 43, "C1", 3318), ("92.0", 39, "C2", 3314), ("102.0", 40, "81", 3314), ("99.8", 40, "82", 3314),
    ("98.6", 45, "01", 3314), ("99.7", 44, "02", 3314), ("103.8", 45, "41", 3314), ("98.2", 44, "42", 3315),
)  # fmt: skip
_RULE = "+===========================+===============+====================================================+"
_AFFINITY = ("144-167", "144-167", "96-119", "96-119", "0-23", "0-23", "48-71", "48-71")

# Recorded by an interpreter without site-packages, since most calls of a rehearsal are only recorded.
_RECORD = """#!{python} -ES
import json, os, sys
call = {{"program": {name!r}, "argv": sys.argv[1:], "cwd": os.getcwd()}}
call["env"] = {{k: v for k, v in os.environ.items() if k in {kept!r} or k.startswith("NPU_MATRIX_")}}
with open({calls!r}, "a") as file:
    file.write(json.dumps(call) + "\\n")
"""

_SWIFT = """
words = sys.argv[1:]
ranks = os.environ.get("NPROC_PER_NODE", "1")
kind = words[words.index("--rlhf_type") + 1] if "--rlhf_type" in words else "sft"
backend = words[words.index("--infer_backend") + 1] if "--infer_backend" in words else "transformers"
known = words[:1] and words[0] in ("pt", "sft", "rlhf", "export", "infer", "deploy") and kind in ("sft", "dpo", "rm")
cell = os.path.basename(os.getcwd()).rpartition("-")[0]
asked = {cells!r} is None or cell in {cells!r}
if not asked or not known or ranks != "1" or backend != "transformers" or {{"--deepspeed", "--fsdp"}} & set(words):
    print("recorded: this stand-in runs one process of sft, pt, dpo and rm only")
    sys.exit(0)
os.execv({honest!r}, [{honest!r}, *words])
"""

_ABSENT = """
print("recorded: this stand-in starts nothing")
"""

_PYTHON = """
# Asked by the probe for a tensor on npu:0.
sys.exit({code})
"""


@dataclass(frozen=True)
class Rehearsal:
    root: Path

    @property
    def record(self) -> Path:
        return self.root / "var" / "calls.jsonl"

    def calls(self, program: str = "") -> list[dict[str, Any]]:
        """Every call so far, or those of one program: program, argv, cwd, env (KEPT and NPU_MATRIX_* only)."""
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        found = [json.loads(line) for line in lines]
        return [call for call in found if program in ("", call["program"])]


def build(
    root: Path,
    *,
    model: Path | None = None,
    datasets: Path | None = None,
    cells: Iterable[str] | None = None,
    usable: bool = True,
    sick: Iterable[int] = (),
) -> Rehearsal:
    """Make ROOT. `model`: a folder that stands in for every model of a hub, `datasets`: one that holds <kind>.jsonl.

    `cells`: the work is really done for these (None: for all that can be), the commands of others are only recorded. `usable` False: no
    tensor can be made on npu:0. `sick`: chips that npu-smi reports with an alarm.
    """
    for name in (*(f"davinci{i}" for i in range(CHIPS)), "davinci_manager", "devmm_svm", "hisi_hdc"):
        _file(root / "dev" / name, "")
    _file(root / "usr/local/Ascend/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info", "version=8.5.1\n")
    _file(root / "usr/local/Ascend/driver/version.info", "Version=24.1.rc1.b030\n")
    rehearsal = Rehearsal(root.resolve())
    _file(rehearsal.record, "")
    # In bfloat16 a merged model's answers may well differ from its adapter's; the rehearsal is about everything but numerics.
    settings: dict[str, str | int] = {"device": "npu", "rate_scale": 50, "longest": 12, "as_stored": True}
    settings |= {"models": str(model or ""), "datasets": str(datasets or "")}
    honest = root.resolve() / "opt" / "honest-swift"
    _file(honest, "")
    write_executable(honest, _honest(settings))
    tables = {"info": npu_smi_info(frozenset(sick)), "topo": npu_smi_topo()}
    _file(root / "usr/local/sbin/npu-smi", "")
    answer = f"\ntables = json.loads({json.dumps(tables)!r})\nprint(tables['topo' if 'topo' in sys.argv else 'info'], end='')\n"
    write_executable(root / "usr/local/sbin/npu-smi", _recorder(rehearsal, "npu-smi") + answer)
    says = _PYTHON.format(code="0" if usable else '"RuntimeError: npu:0 is not there"')
    swift = _SWIFT.format(honest=str(honest), cells=None if cells is None else tuple(cells))
    programs = {"swift": swift, "accelerate": _ABSENT, "megatron": _ABSENT, "python": says}
    for name, rest in programs.items():
        _file(root / "usr/local/bin" / name, "")
        write_executable(root / "usr/local/bin" / name, _recorder(rehearsal, name) + rest)
    return rehearsal


def _honest(settings: dict[str, str | int]) -> str:
    lines = (
        f"#!{sys.executable} -E",
        "import os, sys",
        'os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")',
        f"sys.path.insert(0, {str(TESTS)!r})",
        "from fakes.honest.program import run",
        f"sys.exit(run(sys.argv[1:], {settings!r}, None))",
    )
    return "\n".join(lines) + "\n"


def _recorder(rehearsal: Rehearsal, name: str) -> str:
    return _RECORD.format(python=sys.executable, name=name, kept=KEPT, calls=str(rehearsal.record))


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def npu_smi_info(sick: frozenset[int] = frozenset()) -> str:
    """The table that `npu-smi info` prints."""
    lines = [
        "+------------------------------------------------------------------------------------------------+",
        "| npu-smi 24.1.rc1.b030            Version: 24.1.rc1.b030                                        |",
        "+---------------------------+---------------+----------------------------------------------------+",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        _RULE,
    ]
    for npu, (power, heat, bus, memory) in enumerate(_ROWS):
        health = "Alarm" if npu in sick else "OK"
        lines.append(f"| {npu}     910B3               | {health:13} | {power:<11} {heat}                0    / 0             |")
        lines.append(f"| 0                         | 0000:{bus}:00.0  | 0           0    / 0          {memory} / 65536         |")
        lines.append(_RULE)
    return "\n".join(lines) + "\n"


def npu_smi_topo() -> str:
    """The matrix that `npu-smi info -t topo` prints."""
    names = [f"NPU{i}" for i in range(CHIPS)]
    lines = ["      " + " ".join(f"{name:6}" for name in names) + " CPU Affinity"]
    for i, name in enumerate(names):
        links = " ".join(f"{'X' if i == j else 'HCCS':6}" for j in range(CHIPS))
        lines.append(f"{name}  {links} {_AFFINITY[i]}")
    legend = {"X": "Self", "SYS": "Path traversing PCIe and NUMA nodes.", "HCCS": "Connection traversing HCCS."}
    return "\n".join([*lines, "", "Legend:", "", *(f"  {key:4} = {text}" for key, text in legend.items())]) + "\n"
