"""Faults planted in a copy of the installed ms-swift, as a change of ms-swift or of transformers would bring them about."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bench import Launch
from harness.model import Run, Step

PATCHES = "model/npu_patch/model.py"


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in a file of ms-swift; `cell` is where that must show, as `cause`, and all of `says` stands in the report.

    `old` must stand in the file exactly once: a fault that is planted nowhere would only prove that ms-swift was changed.
    """

    name: str
    cell: str
    old: str
    new: str
    cause: str
    says: tuple[str, ...]
    file: str = PATCHES


QWEN2, QWEN3 = "sft-qwen2_5_0_5b_instruct-lora-single", "sft-qwen3_0_6b-lora-single"
QWEN3_NO_PATCH, QWEN3_MOE = f"{QWEN3}-no_patch", "sft-qwen3_30b_a3b-full-single"
FAULTS = (
    Fault(
        "dropped-index",
        QWEN3,
        "npu_rms_norm(hidden_states, self.weight, epsilon=self.variance_epsilon)[0]",
        "npu_rms_norm(hidden_states, self.weight, epsilon=self.variance_epsilon)",
        "run.exit_nonzero",
        ("exit code 1", "'tuple' object has no attribute"),
    ),
    Fault(
        "sin-and-cos-swapped",
        QWEN2,
        "    q_embed = torch_npu.npu_rotary_mul(q, cos, sin)\n    k_embed = torch_npu.npu_rotary_mul(k, cos, sin)\n",
        "    q_embed = torch_npu.npu_rotary_mul(q, sin, cos)\n    k_embed = torch_npu.npu_rotary_mul(k, sin, cos)\n",
        "golden.differs",
        ("golden.loss", "golden.grad_norm", "golden.weights"),
    ),
    Fault("misspelt-target", QWEN2, "'Qwen2MLP.forward'", "'Qwen2MLP.forwardd'", "patch.not_live", ("Qwen2MLP", "npu_swiglu")),
    Fault("one-class-left-out", QWEN3, "    'Qwen3RMSNorm': NpuRMSNorm,\n", "", "patch.not_live", ("NpuRMSNorm", "npu_rms_norm")),
    Fault(
        "no-rotary",
        QWEN3,
        "QWEN3_PATCHES = {\n    'Qwen3RMSNorm': NpuRMSNorm,\n    'apply_rotary_pos_emb'",
        "QWEN3_PATCHES = {\n    'Qwen3RMSNorm': NpuRMSNorm,\n    'apply_rotary_pos_embedding'",
        "patch.not_called",
        ("train.patch_calls", "npu_rotary_mul"),
    ),
    Fault(
        "gradient-halved",
        QWEN3_MOE,
        "return grad_input, grad_weight, None",
        "return grad_input / 2, grad_weight, None",
        "golden.differs",
        ("golden.grad_norm", "golden.weights"),
    ),
    Fault(
        "experts-left-out",
        QWEN3_MOE,
        "    'Qwen3MoeExperts.forward': npu_packed_moe_experts_forward,\n",
        "",
        "patch.not_live",
        ("Qwen3MoeExperts", "npu_grouped_matmul"),
    ),
    Fault(
        "switch-ignored",
        QWEN3_NO_PATCH,
        "    if _is_model_patch_enabled_from_argv():\n",
        "    if _is_model_patch_enabled_from_argv() or True:\n",
        "patch.not_live",
        ("expected none, found NpuRMSNorm, Qwen3MLP", "expected no call, found npu_rms_norm"),
        "model/npu_patch/__init__.py",
    ),
)


def installed() -> Path | None:
    """The folder of the installed ms-swift; it is not imported."""
    spec = importlib.util.find_spec("swift")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def plant(source: Path, folder: Path, fault: Fault | None) -> None:
    """A copy of the package `source` under `folder`, with `fault` in it."""
    shutil.copytree(source, folder / "swift")
    if fault is None:
        return
    file = folder / "swift" / fault.file
    text = file.read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.name}: {fault.old!r} stands {text.count(fault.old)} times in ms-swift's {fault.file}"
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


@dataclass(frozen=True)
class FromCopy:
    """Launches with the copy in `folder` in front of the installed ms-swift."""

    folder: Path
    launch: Launch

    def __call__(self, step: Step, *, base_env: Mapping[str, str], **how: Any) -> Run:
        path = os.pathsep.join(filter(None, (str(self.folder), base_env.get("PYTHONPATH"))))
        return self.launch(step, base_env={**base_env, "PYTHONPATH": path}, **how)
