"""Several processes that train one model: forked by the one that was started, as torchrun and accelerate start theirs.

Each rank learns from its own share of the global batch; gradients are averaged through files that all of them read in one order, so that
all take the very same step. Where a strategy spreads the optimizer, each rank steps its own entries only and gets the others' from them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fakes.honest.tensors import Array

_PATIENCE_S = 60.0
_GATHERED = "FULL_STATE_DICT"


@dataclass(frozen=True)
class Ranks:
    """One rank's place among `size`. `strategy`: single, ddp, fsdp1, fsdp2, zero2 or zero3; `meeting`: a folder that all share."""

    rank: int = 0
    size: int = 1
    strategy: str = "single"
    meeting: str = ""

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def spreads_parameters(self) -> bool:
        return self.strategy in ("fsdp1", "fsdp2", "zero3")

    @property
    def spreads_optimizer(self) -> bool:
        return self.spreads_parameters or self.strategy == "zero2"

    def own(self, numel: int) -> slice:
        """The entries of `numel` that this rank holds where they are spread; the last rank's are a little fewer where they don't divide."""
        part = -(-numel // self.size)
        return slice(min(numel, self.rank * part), min(numel, (self.rank + 1) * part))

    def wait(self, what: str) -> None:
        """Until every rank came to `what`. Raises TimeoutError where one does not."""
        (Path(self.meeting) / f"{what}-{self.rank}").touch()
        until = time.monotonic() + _PATIENCE_S
        while not all((Path(self.meeting) / f"{what}-{rank}").exists() for rank in range(self.size)):
            if time.monotonic() > until:
                raise TimeoutError(f"Watchdog caught collective operation timeout: {what} on rank {self.rank}")
            time.sleep(0.002)

    def average(self, step: int, gradient: Mapping[str, Array], numbers: Mapping[str, float]) -> tuple[dict[str, Array], dict[str, float]]:
        """The mean over ranks of `gradient` and of `numbers`, the same to the last bit on each."""
        if self.size == 1:
            return dict(gradient), dict(numbers)
        mine = Path(self.meeting) / f"gradient-{step}-{self.rank}.npz"
        np.savez(mine, **{f"g:{name}": array for name, array in gradient.items()}, **{f"n:{k}": v for k, v in numbers.items()})
        self.wait(f"averaged-{step}")
        shares = [dict(np.load(Path(self.meeting) / f"gradient-{step}-{rank}.npz")) for rank in range(self.size)]
        means = {key: sum(share[key].astype(np.float64) for share in shares) / self.size for key in shares[0]}
        return (
            {key[2:]: value.astype(np.float32) for key, value in means.items() if key.startswith("g:")},
            {key[2:]: float(value) for key, value in means.items() if key.startswith("n:")},
        )

    def gather(self, what: str, flat: Array) -> Array:
        """`flat` with each rank's own entries as that rank has them."""
        np.save(Path(self.meeting) / f"{what}-{self.rank}.npy", flat[self.own(flat.size)])
        self.wait(f"gathered-{what}")
        return np.concatenate([np.load(Path(self.meeting) / f"{what}-{rank}.npy") for rank in range(self.size)])

    def sharding(self) -> dict[str, Any] | None:
        """As harness/witness/README.md has it."""
        if self.strategy in ("single", "ddp"):
            return None
        if self.strategy.startswith("zero"):
            return {"by": "zero", "how": self.strategy[-1], "ranks": self.size, "units": None, "kept": None}
        by, how, kept = ("fsdp1", "FULL_SHARD", 0) if self.strategy == "fsdp1" else ("dtensor", "S(0)", 1)
        return {"by": by, "how": how, "ranks": self.size, "units": 3, "kept": kept}

    def wrapped(self, inside: str) -> str:
        names = {"ddp": "DistributedDataParallel", "fsdp1": "FullyShardedDataParallel", "fsdp2": f"FSDP{inside}"}
        return inside if self.strategy == "single" else names.get(self.strategy, "DeepSpeedEngine")

    def distributed_type(self, device: str) -> str:
        kinds = {"single": "NO", "ddp": "MULTI_CPU" if device == "cpu" else "MULTI_NPU", "fsdp1": "FSDP", "fsdp2": "FSDP"}
        return kinds.get(self.strategy, "DEEPSPEED")


def strategy_of(flags: Mapping[str, list[str]], size: int, launched: bool) -> str:
    """What ms-swift makes of its flags. Raises NotImplementedError for what this stand-in does not do."""
    if size == 1:
        return "single"
    if launched:
        return "fsdp1"
    if "deepspeed" in flags:
        return flags["deepspeed"][0]
    if "fsdp" not in flags:
        return "ddp"
    path = Path(flags["fsdp"][0])
    if not path.is_file() or _GATHERED not in path.read_text(encoding="utf-8"):
        raise NotImplementedError("the stand-in for swift writes no sharded checkpoint: give --fsdp a file with FULL_STATE_DICT")
    return "fsdp2"


def spread(size: int, work: Callable[[int, str], int]) -> int:
    """Run `work(rank, meeting)` in `size` processes of their own. The first exit code that is not 0, or 0; the others are then ended."""
    meeting = tempfile.mkdtemp(prefix="fake-ranks-")
    children: dict[int, int] = {}
    try:
        for rank in range(size):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
                os._exit(work(rank, meeting))
            children[child] = rank
        worst = 0
        while children:
            pid, status = os.wait()
            if children.pop(pid, None) is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if code and not worst:
                worst = 1
                for other in children:
                    os.kill(other, 15)
        return worst
    finally:
        shutil.rmtree(meeting, ignore_errors=True)
