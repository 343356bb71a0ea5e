"""Saving and loading, pinned memory, and data loaders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.on_device


def test_a_saved_tensor_comes_back_to_its_device(tmp_path: Path) -> None:
    x = torch.arange(3.0, device="npu:1")
    torch.save({"x": x}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")["x"]
    assert loaded.device == torch.device("npu:1") and torch.equal(loaded.cpu(), x.cpu())


@pytest.mark.parametrize("where", ["cpu", "npu:0", "npu"])
def test_a_saved_tensor_comes_to_where_it_is_mapped(where: str, tmp_path: Path) -> None:
    torch.save(torch.ones(3, device="npu:1"), tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location=where)
    assert loaded.device.type == torch.device(where).type and loaded.cpu().sum() == 3


def test_a_tensor_of_the_cpu_can_be_mapped_to_the_npu(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location="npu:1").device == torch.device("npu:1")


def test_tensors_that_share_memory_share_it_after_loading(tmp_path: Path) -> None:
    x = torch.zeros(4, device="npu")
    torch.save([x, x[:2]], tmp_path / "x.pt")
    whole, part = torch.load(tmp_path / "x.pt")
    part.add_(1)
    assert whole.cpu().tolist() == [1, 1, 0, 0]


def test_a_state_dict_with_optimizer_goes_round(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2).npu()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, device="npu")).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", map_location="cpu", weights_only=True)
    other = torch.nn.Linear(2, 2).npu()
    other.load_state_dict(saved["model"])
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(saved["optimizer"])
    assert torch.equal(other.weight.cpu(), model.weight.cpu()) and again.state[other.weight]["exp_avg"].device.type == "npu"


def test_memory_can_be_pinned() -> None:
    x = torch.ones(4)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned.device.type == "cpu" and pinned[1:].is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()


def test_pinned_memory_is_let_go() -> None:
    pinned = torch.ones(1000).pin_memory()
    pointer = pinned.data_ptr()
    del pinned
    assert not torch.frombuffer(bytearray(16), dtype=torch.float32).is_pinned() and pointer


def test_a_tensor_of_the_npu_can_not_be_pinned() -> None:
    with pytest.raises(RuntimeError, match=r"[Oo]nly dense CPU tensors|pinned"):
        torch.ones(2, device="npu").pin_memory()


def test_pinned_memory_is_copied_without_blocking() -> None:
    x = torch.arange(4.0).pin_memory()
    y = x.to("npu", non_blocking=True)
    back = torch.empty(4, pin_memory=True).copy_(y, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, x)


def test_a_data_loader_pins_its_batches() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(6.0)), batch_size=3, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches) and sum(batch.npu().sum().item() for batch in batches) == 15
