"""Tensors on the simulated NPU: where they are, what they equal, and that views are views."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.on_device
D = "npu:0"


def both(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers on the npu and on the CPU."""
    torch.manual_seed(7)
    cpu = torch.randn(*shape)
    return cpu.to(D), cpu


def test_a_tensor_says_that_it_is_on_the_npu() -> None:
    x = torch.ones(2, device="npu")
    assert x.device == torch.device("npu:0") and x.is_npu and not x.is_cuda and str(x.device) == "npu:0"


def test_a_tensor_goes_to_the_npu_and_comes_back_unchanged() -> None:
    x, cpu = both(3, 4)
    assert torch.equal(x.cpu(), cpu) and torch.equal(cpu.npu().to("cpu"), cpu)


def test_the_copy_on_the_npu_is_a_copy() -> None:
    cpu = torch.zeros(3)
    x = cpu.to(D)
    x.add_(1)
    assert cpu.sum() == 0 and x.cpu().sum() == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool", "complex64"])
def test_every_dtype_survives_the_way_there_and_back(dtype: str) -> None:
    cpu = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    assert torch.equal(cpu.to(D).cpu(), cpu) and cpu.to(D).dtype == cpu.dtype


def test_a_view_shares_its_memory() -> None:
    x = torch.zeros(6, device=D)
    x.view(2, 3)[0].add_(1)
    assert x.cpu().tolist() == [1, 1, 1, 0, 0, 0]
    assert x.view(2, 3).data_ptr() == x.data_ptr() and x[2:].storage_offset() == 2


def test_overlapping_arguments_are_seen_to_overlap() -> None:
    x = torch.arange(6.0, device=D)
    with pytest.raises(RuntimeError, match=r"single memory location|overlap"):
        x.expand(2, 6).add_(1)


def test_views_under_inference_mode_keep_their_base() -> None:
    with torch.inference_mode():
        x = torch.zeros(2, 3, device=D)
        y = x.t()
        y[0] = 5
        assert x.is_inference() and y.is_inference() and x[:, 0].sum().item() == 10


def test_a_normal_tensor_may_be_viewed_under_inference_mode() -> None:
    x = torch.ones(4, device=D)
    with torch.inference_mode():
        assert x.view(2, 2).sum().item() == 4


def test_out_tensors_are_resized_and_filled() -> None:
    x, out = torch.ones(6, device=D), torch.empty(0, device=D)
    assert torch.add(x, x, out=out) is out and out.shape == (6,) and out.cpu().sum() == 12 and out.device.type == "npu"


def test_resize_keeps_what_fits() -> None:
    x = torch.arange(4.0, device=D)
    x.resize_(8)
    assert x.shape == (8,) and x[:4].cpu().tolist() == [0, 1, 2, 3]


def test_a_storage_can_be_emptied_and_refilled_as_fsdp_does() -> None:
    x = torch.ones(10, device=D)
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0 and storage.device.type == "npu"
    storage.resize_(40)
    x.fill_(3)
    assert x.cpu().sum() == 30


def test_set_takes_another_tensors_storage() -> None:
    x, y = torch.empty(0, device=D), torch.arange(6.0, device=D)
    x.set_(y.untyped_storage(), 2, (2, 2), (2, 1))
    assert x.cpu().tolist() == [[2, 3], [4, 5]] and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    x.set_(y)
    assert x.shape == (6,)
    x.set_()
    assert x.shape == (0,)


def test_set_refuses_a_storage_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="npu"):
        torch.empty(0, device=D).set_(torch.ones(2).untyped_storage(), 0, (2,), (1,))


def test_in_place_changes_of_shape_reach_the_tensor() -> None:
    x = torch.ones(1, 3, device=D)
    x.squeeze_()
    assert x.shape == (3,)
    x.unsqueeze_(1).t_()
    assert x.shape == (1, 3)


def test_conjugates_and_negative_views_are_resolved() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device=D)
    assert torch.equal(x.conj().cpu(), x.cpu().conj()) and torch.equal((x.conj() * 2).cpu(), x.cpu().conj() * 2)
    assert torch.equal(x.conj().imag.cpu(), -x.cpu().imag)


def test_numpy_of_an_npu_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
        torch.ones(2, device=D).numpy()


def test_items_and_truth_come_back_to_python() -> None:
    x = torch.tensor([2.5], device=D)
    assert x.item() == 2.5 and float(x) == 2.5 and bool(x > 2) and x.tolist() == [2.5]


def test_a_tensor_prints_its_device() -> None:
    assert "device='npu:0'" in repr(torch.ones(2, device=D))


def test_meta_tensors_can_be_made_of_npu_tensors_and_back() -> None:
    x = torch.ones(2, 3, device=D)
    assert torch.empty_like(x, device="meta").device.type == "meta" and x.to("meta").shape == (2, 3)
    assert torch.empty_like(torch.empty(2, device="meta"), device=D).device.type == "npu"


def test_deep_copies_stay_on_the_npu() -> None:
    assert copy.deepcopy(torch.ones(2, device=D)).device.type == "npu"


def test_a_bad_ordinal_is_refused_by_name() -> None:
    for make in (lambda: torch.ones(2, device="npu:2"), lambda: torch.ones(2).to("npu:7"), lambda: torch.npu.set_device(2)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make()
    with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.npu.device(5):
        pass


def test_new_tensors_go_to_the_current_device() -> None:
    with torch.npu.device(1):
        assert torch.ones(2, device="npu").device.index == 1 and torch.npu.current_device() == 1
    assert torch.ones(2, device="npu").device.index == 0


def test_results_stay_on_the_device_of_their_arguments() -> None:
    x = torch.ones(2, 2, device="npu:1")
    assert (x @ x + 1).softmax(0).device.index == 1 and torch.zeros_like(x).device.index == 1 and x.clone().device.index == 1


def test_a_tensor_moves_from_device_to_device() -> None:
    x = torch.arange(3.0, device="npu:0")
    y = x.to("npu:1")
    y.add_(1)
    assert y.device.index == 1 and x.cpu().tolist() == [0, 1, 2] and y.cpu().tolist() == [1, 2, 3]


def test_the_default_device_can_be_the_npu() -> None:
    with torch.device("npu"):
        assert torch.ones(2).device.type == "npu" and torch.nn.Linear(2, 2).weight.device.type == "npu"


def test_sparse_results_are_refused_and_not_left_on_the_cpu() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.eye(2, device=D).to_sparse()


def operators() -> dict[str, Any]:
    f = torch.nn.functional
    return {
        "matmul": lambda x: x @ x.t(),
        "norms": lambda x: torch.cat([f.layer_norm(x, x.shape[-1:]), f.normalize(x)]),
        "softmax": lambda x: f.log_softmax(x, -1).exp(),
        "index": lambda x: x[torch.tensor([0, 2], device=x.device)],
        "masked": lambda x: x.masked_fill(x > 0, -1.0),
        "where": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)),
        "sort": lambda x: torch.sort(x, dim=-1)[0],
        "topk": lambda x: torch.topk(x, 3)[1],
        "unique": lambda x: torch.unique(x > 0),
        "nonzero": lambda x: torch.nonzero(x > 0),
        "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
        "scatter": lambda x: torch.zeros_like(x).scatter_(1, x.argsort(-1), x),
        "cumsum": lambda x: x.cumsum(-1),
        "attention": lambda x: f.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True),
        "foreach": lambda x: torch.stack(torch._foreach_norm([x, x * 2])),
        "conv": lambda x: f.conv2d(x[None, None], torch.ones(1, 1, 2, 2, device=x.device)),
        "pool": lambda x: f.max_pool2d(x[None, None], 2),
        "interpolate": lambda x: f.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
        "histc": lambda x: torch.histc((x * 10).round().abs(), bins=4, min=0, max=20),
        "embedding": lambda x: f.embedding(torch.tensor([[0, 2]], device=x.device), x),
        "gather": lambda x: x.gather(1, x.argsort(-1)),
        "complex": lambda x: torch.view_as_real(torch.fft.fft(x)),
    }


@pytest.mark.parametrize("name", sorted(operators()))
def test_an_operator_equals_the_cpus(name: str) -> None:
    x, cpu = both(4, 6)
    run = operators()[name]
    result = run(x)
    assert result.device.type == "npu" and torch.allclose(result.cpu(), run(cpu), rtol=1e-6, atol=1e-6, equal_nan=True)


def test_integer_histograms_work_as_on_a_device() -> None:
    assert torch.histc(torch.tensor([0, 1, 1, 3], device=D), bins=4, min=0, max=3).cpu().tolist() == [1, 2, 0, 1]
