"""The witness file as harness/witness/README.md describes it, written by a process that really did what it says."""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fakes.honest.habits import Honest
from fakes.honest.ranks import Ranks
from fakes.honest.tensors import Array

VERSIONS = {
    "ms-swift": "4.6.0",
    "torch": "2.14.1",
    "transformers": "5.19.0",
    "peft": "0.20.0",
    "accelerate": "1.15.0",
    "trl": "0.29.1",
    "numpy": np.__version__,
    "datasets": "4.4.1",
    "deepspeed": None,
    "torch_npu": None,
    "vllm": None,
    "vllm_ascend": None,
}


@dataclass
class Witness:
    """Silent unless NPU_MATRIX_WITNESS_DIR and NPU_MATRIX_NONCE are set and the plugin was asked for."""

    habits: Honest
    loaded: bool
    device: str = "cpu"
    ranks: Ranks = field(default_factory=Ranks)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    generated: int = 0

    @property
    def folder(self) -> str:
        return self.environment.get("NPU_MATRIX_WITNESS_DIR", "")

    @property
    def nonce(self) -> str:
        return self.environment.get("NPU_MATRIX_NONCE", "")

    @property
    def active(self) -> bool:
        return bool(self.loaded and self.folder and self.nonce)

    @property
    def control(self) -> str | None:
        return (self.environment.get("NPU_MATRIX_CONTROL") or None) if self.active else None

    def tell(self, event: str, **fields: Any) -> None:
        if not self.active:
            return
        line = {"event": event, "nonce": self.nonce, "pid": os.getpid(), "rank": self.ranks.rank, "world_size": self.ranks.size}
        line |= {"time": time.time(), **fields}
        told = self.habits.witnessed(line)
        if told is None:
            return
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"witness-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")

    def start(self, script: str, argv: list[str], python: str) -> None:
        on_npu = self.device.startswith("npu")
        self.tell(
            "start",
            argv=[script, *self.habits.seen_argv(argv)],
            python=python,
            swift_file=str(Path(script).parent.parent / "__init__.py"),
            swift_commit=None,
            swift_dirty=None,
            versions={**VERSIONS, "torch_npu": "2.9.0" if on_npu else None, "python": platform.python_version()},
            cann="8.5.1" if on_npu else None,
            driver="24.1.rc1" if on_npu else None,
            visible_devices=self.environment.get("ASCEND_RT_VISIBLE_DEVICES"),
        )

    def saved(self, folder: Path, step: int, digest: str) -> None:
        """The event, and of rank 0 the nonce in the checkpoint's folder."""
        if not self.active:
            return
        self.tell("save", step=step, dir=str(folder.resolve()), trainable_digest=digest)
        if not self.ranks.leads:
            return
        content = {"nonce": self.nonce, "step": step, "trainable_digest": digest}
        (folder / "npu_matrix_nonce.json").write_text(json.dumps(content))

    def generate(self, model_class: str, adapters: list[str], prompt: list[int], output: list[int], logits: Array, dtype: str) -> None:
        if not self.active:
            return
        name = f"logits-{os.getpid()}-{self.generated}.npy"
        self.generated += 1
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        np.save(Path(self.folder) / name, logits[None, :].astype(np.float32))
        self.tell(
            "generate",
            device=self.device,
            device_name="Ascend910B3" if self.device.startswith("npu") else "cpu",
            simulated=False,
            model_class=model_class,
            adapters=self.habits.told_adapters(adapters),
            prompt_ids=[prompt],
            output_ids=[output],
            logits_file=name,
            dtype=dtype,
        )

    def end(self) -> None:
        self.tell("end", peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, witness_seconds=0.0)
