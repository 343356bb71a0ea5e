"""Several ranks of one test, forked from its process."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def in_ranks(work: Callable[[int], None], count: int = 2, backend: str | None = "hccl") -> None:
    """Run `work(rank)` in `count` processes with a process group. Raises AssertionError with the tracebacks of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        children = {rank: os.fork() or _rank(work, rank, count, backend, folder) for rank in range(count)}
        codes = {rank: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for rank, child in children.items()}
        said = [path.read_text() for path in sorted(Path(folder).glob("*.txt"))]
    assert not any(codes.values()), "\n".join([f"exit codes of the ranks: {codes}", *said])


def _rank(work: Callable[[int], None], rank: int, count: int, backend: str | None, folder: str) -> int:
    code = 1
    try:
        torch.npu.set_device(rank)
        dist.init_process_group(backend, rank=rank, world_size=count, init_method=f"file://{folder}/store")
        work(rank)
        dist.destroy_process_group()
        code = 0
    except BaseException:
        Path(folder, f"{rank}.txt").write_text(traceback.format_exc())
    finally:
        sys.stderr.flush()
        os._exit(code)
