"""The reference operators on the simulated device: the same bits as on the CPU, and devices aren't mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.sim.surface import samples

pytestmark = pytest.mark.on_device


def filled(value: Any, seed: int) -> Any:
    """Floats of a sample made random, lists of tensors too; indices stay."""
    if isinstance(value, list):
        return [filled(item, seed + i) for i, item in enumerate(value)]
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        made = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed)).to(value.dtype)
        return made.T.contiguous().T if value.dim() == 2 and not value.is_contiguous() else made
    return value


def moved(value: Any) -> Any:
    if isinstance(value, list):
        return [moved(item) for item in value]
    return value.to("npu") if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("sample", samples.calls("cpu"))
def test_an_operator_gives_the_same_bits_on_the_device_and_counts_its_call(sample: str) -> None:
    import torch_npu

    operator, arguments, named = samples.calls("cpu")[sample]
    arguments = filled(arguments, 1)
    named = {name: filled(value, 100 + i) for i, (name, value) in enumerate(named.items())}
    function, before = getattr(torch_npu, operator), torch_npu.__sim_calls__[operator]
    here = function(*arguments, **named)
    there = function(*moved(arguments), **{name: moved(value) for name, value in named.items()})
    assert torch_npu.__sim_calls__[operator] == before + 2
    for ours, theirs in zip(*((r if isinstance(r, (list, tuple)) else [r]) for r in (here, there)), strict=True):
        if isinstance(ours, torch.Tensor):
            assert theirs.device.type == "npu"
            assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs.cpu()))
        else:
            assert ours == theirs


def test_a_mask_left_on_the_cpu_is_refused() -> None:
    import torch_npu

    q = torch.zeros(1, 2, 4, 8, device="npu")
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
    with pytest.raises(RuntimeError, match="atten_mask is on cpu and the first input on npu:0"):
        torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", atten_mask=mask, sparse_mode=3)


def test_autocast_of_the_device_is_off_inside() -> None:
    import torch_npu

    x, weight = torch.randn(4, 8, device="npu"), torch.randn(2, 8, 3, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        sizes = torch.tensor([1, 3], device="npu")
        out = torch_npu.npu_grouped_matmul([x], [weight], group_list=sizes, split_item=2, group_type=0, group_list_type=1)[0]
        assert torch.matmul(x, weight[0]).dtype == torch.bfloat16
    assert out.dtype == torch.float32
