"""What a device refuses: tensors of several devices in one operator."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.on_device
REFUSED = "Expected all tensors to be on the same device"


@pytest.mark.parametrize("left,right", [("npu:0", "cpu"), ("cpu", "npu:0"), ("npu:0", "npu:1")])
def test_devices_do_not_mix_in_an_operator(left: str, right: str) -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.ones(2, device=left) + torch.ones(2, device=right)


def test_a_module_on_the_npu_refuses_input_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.nn.Linear(2, 2).npu()(torch.ones(1, 2))


def test_lists_of_tensors_do_not_mix_either() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.cat([torch.ones(2, device="npu"), torch.ones(2)])


def test_an_out_tensor_of_the_cpu_is_refused() -> None:
    x = torch.ones(2, device="npu")
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.add(x, x, out=torch.empty(2))


def test_a_scalar_tensor_of_the_cpu_may_be_read() -> None:
    x = torch.ones(2, device="npu")
    assert (x * torch.tensor(3.0)).cpu().tolist() == [3, 3] and (torch.tensor(3.0) * x).device.type == "npu"


def test_a_scalar_tensor_of_the_cpu_may_not_be_written() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.tensor(1.0).add_(torch.tensor(1.0, device="npu"))


def test_indices_of_the_cpu_may_index_an_npu_tensor() -> None:
    x = torch.arange(4.0, device="npu")
    assert x[torch.tensor([1, 3])].cpu().tolist() == [1, 3]
    x[torch.tensor([0])] = 9.0
    assert x[0].item() == 9


def test_indices_of_the_npu_do_not_index_a_cpu_tensor() -> None:
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.arange(4.0)[torch.tensor([1], device="npu")]


def test_values_of_the_cpu_are_not_put_into_an_npu_tensor() -> None:
    x = torch.zeros(4, device="npu")
    with pytest.raises(RuntimeError, match=REFUSED):
        x.index_put_((torch.tensor([0, 1], device="npu"),), torch.ones(2))


def test_copies_cross_devices() -> None:
    x, y = torch.zeros(2, device="npu:0"), torch.ones(2)
    x.copy_(y)
    y.copy_(x * 4)
    torch.ones(2, device="npu:1").copy_(x)
    assert x.cpu().tolist() == [1, 1] and y.tolist() == [4, 4]


def test_copies_cross_dtypes_and_layouts_on_their_way() -> None:
    x = torch.arange(6, dtype=torch.int64).view(2, 3).t()
    y = torch.empty(3, 2, dtype=torch.bfloat16, device="npu")
    assert torch.equal(y.copy_(x).cpu(), x.to(torch.bfloat16))


def test_a_generator_of_the_cpu_is_refused_on_the_npu() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'npu'"):
        torch.rand(2, device="npu", generator=torch.Generator())
