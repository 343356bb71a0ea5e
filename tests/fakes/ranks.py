"""Runs inside the ms-swift process: what a stranger's wrapper puts in the place of swift/cli/sft.py on every rank.

`FAULTS` are what a broken reducer, optimizer or sampler does; each is planted where the strategy itself does that work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Edits = Mapping[str, "str | None"]


def edited(words: Sequence[str], edits: Edits) -> list[str]:
    """`words` with options of one value replaced, added, or (None) left out."""
    kept = list(words)
    for flag, value in edits.items():
        if flag in kept:
            at = kept.index(flag)
            kept[at : at + 2] = [] if value is None else [flag, value]
        elif value is not None:
            kept += [flag, value]
    return kept


def be(fault: str, strategy: str, edits: Edits) -> None:
    """Train as swift/cli/sft.py does, with `fault`, by edited words: sys.argv, which the witness reads, still shows the asked ones."""
    from swift.cli.utils import try_use_single_device_mode
    from swift.pipelines import sft_main

    try_use_single_device_mode()
    if fault:
        FAULTS[fault](strategy)
    sft_main(edited(sys.argv[1:], edits))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _summed(strategy: str) -> None:
    """Gradients are summed over the ranks and never divided by their number."""
    import torch.distributed as dist

    if strategy == "ddp":
        _hook_ddp(lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0]))
    elif strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        def undivided(wrapped: Any) -> None:
            wrapped._gradient_predivide_factor = wrapped._gradient_postdivide_factor = 1

        _after(FullyShardedDataParallel, "__init__", undivided)
    elif strategy == "fsdp2":
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        _fsdp_collectives._get_gradient_divide_factors = lambda *_, **__: (None, None, dist.ReduceOp.SUM, dist.ReduceOp.SUM)
    elif strategy == "zero2":
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

        reduce = DeepSpeedZeroOptimizer.average_tensor

        def undivided_bucket(self: Any, tensor: Any, *rest: Any) -> Any:
            return reduce(self, tensor.mul_(dist.get_world_size()), *rest)

        DeepSpeedZeroOptimizer.average_tensor = undivided_bucket
    elif strategy == "zero3":
        from deepspeed.runtime.zero import stage3

        scatter = stage3.reduce_scatter_coalesced
        stage3.reduce_scatter_coalesced = lambda *args: [part.mul_(dist.get_world_size()) for part in scatter(*args)]


def _not_reduced(strategy: str) -> None:
    """Every rank goes on with its own gradients: the ranks drift apart where each holds all weights, else each shard lacks a half."""
    import torch

    if strategy == "ddp":

        def done(tensor: Any) -> Any:
            future: Any = torch.futures.Future()
            future.set_result(tensor)
            return future

        _hook_ddp(lambda _, bucket: done(bucket.buffer()))
    elif strategy == "fsdp1":
        from torch.distributed.fsdp import _runtime_utils

        _runtime_utils.dist.reduce_scatter_single = lambda output, whole, group: output.copy_(_own(whole, group))
    elif strategy == "fsdp2":
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        def own_part(self: Any, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
            output_tensor.copy_(_own(input_tensor, group))

        _fsdp_collectives.DefaultReduceScatter.__call__ = own_part
    elif strategy == "zero3":
        from deepspeed.runtime.comm import coalesced_collectives

        # The output is this rank's part of the input.
        coalesced_collectives._torch_reduce_scatter_fn = lambda whole, part, group: None
    else:
        raise ValueError(f"nothing is known to plant for {strategy}")


def _own(whole: Any, group: Any) -> Any:
    return whole.chunk(group.size())[group.rank()]


def _shard_dropped(strategy: str) -> None:
    """What rank 1's optimizer changed is lost: its shard of the weights, or all of its own weights, stays as it was."""
    import torch

    if _rank() != 1:
        return
    for kind in (torch.optim.AdamW, torch.optim.Adam):
        step = kind.step

        def lost(self: Any, *args: Any, step: Any = step, **kwargs: Any) -> Any:
            held = [p for group in self.param_groups for p in group["params"]]
            before = [p.detach().clone() for p in held]
            made = step(self, *args, **kwargs)
            with torch.no_grad():
                for parameter, old in zip(held, before, strict=True):
                    parameter.copy_(old)
            return made

        kind.step = lost


def _scaled_on_rank_1(factor: float) -> Callable[[str], None]:
    """Rank 1's part of the batch counts `factor` times; the loss that is logged stays as it was."""

    def plant(_: str) -> None:
        from accelerate import Accelerator

        backward = Accelerator.backward
        if _rank() == 1:
            Accelerator.backward = lambda self, loss, **kwargs: backward(self, loss * factor, **kwargs)

    return plant


def _same_rows(_: str) -> None:
    """Every rank reads rank 0's rows."""
    from swift.dataloader.shard import BatchSamplerShard

    BatchSamplerShard.rank = property(lambda self: 0)


def _mean_of_means(_: str) -> None:
    """Each rank's loss is the mean over its own tokens, and not its share of the mean over all ranks' tokens."""
    from transformers import Trainer

    def own_tokens(self: Any, samples: Any, *args: Any, **kwargs: Any) -> Any:
        made, _ = batches(self, samples, *args, **kwargs)
        return made, None

    batches = Trainer.get_batch_samples
    Trainer.get_batch_samples = own_tokens


def _one_device(_: str) -> None:
    """The process sees one device, as with one in ASCEND_RT_VISIBLE_DEVICES: a warm process has counted them before."""
    import torch

    torch.npu.device_count = lambda: 1


def _hook_ddp(hook: Any) -> None:
    """A lambda, since DDP looks at the annotations of a function."""
    from torch.nn.parallel import DistributedDataParallel

    _after(DistributedDataParallel, "__init__", lambda wrapped: wrapped.register_comm_hook(None, hook))


def _after(kind: Any, method: str, also: Callable[[Any], None]) -> None:
    original = getattr(kind, method)

    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        also(self)
        return made

    setattr(kind, method, both)


FAULTS: Mapping[str, Callable[[str], None]] = {
    "summed": _summed,
    "not-reduced": _not_reduced,
    "shard-dropped": _shard_dropped,
    "gradient-dropped": _scaled_on_rank_1(0.0),
    "loss-doubled": _scaled_on_rank_1(2.0),
    "same-rows": _same_rows,
    "mean-of-means": _mean_of_means,
    "one-device": _one_device,
}
