"""Modules, autograd, optimizers and autocast on the simulated NPU, against the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.on_device


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model(x).pow(2).mean().backward()
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) > 0 and all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(left, right, strict=True))


def test_gradients_equal_the_cpus() -> None:
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1))
    npu, x = copy.deepcopy(cpu).npu(), torch.randn(3, 8)
    assert same(gradients(npu, x.npu()), gradients(cpu, x))


def test_gradients_of_a_convolution_equal_the_cpus() -> None:
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2))
    npu, x = copy.deepcopy(cpu).npu(), torch.randn(2, 3, 6, 6)
    assert same(gradients(npu, x.npu()), gradients(cpu, x))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_every_dimension_run_forward_and_backward(dims: int) -> None:
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](2, 3, 3, groups=1).npu()
    x = torch.randn(1, 2, *[5] * dims, device="npu", requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None and x.grad.device.type == "npu" and conv.weight.grad.device.type == "npu"


def test_gradients_of_attention_equal_the_cpus() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 2, 5, 8)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
        return x.grad.cpu()

    assert torch.allclose(gradient(q.npu()), gradient(q), rtol=1e-5, atol=1e-6)


def test_tied_weights_stay_tied_when_the_module_moves() -> None:
    for move in (lambda m: m.to("npu"), lambda m: m.npu(), lambda m: m.to("npu", torch.bfloat16)):
        model = move(Tied())
        assert model.head.weight is model.embed.weight and len(list(model.parameters())) == 1


def test_tied_weights_stay_tied_on_the_way_back() -> None:
    model = Tied().npu().cpu()
    assert model.head.weight is model.embed.weight and model.head.weight.device.type == "cpu"


def test_an_optimizer_made_before_the_move_still_trains_the_module() -> None:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("npu")
    before = model.head.weight.detach().cpu().clone()
    model(torch.tensor([1, 2], device="npu")).sum().backward()
    optimizer.step()
    assert not torch.equal(model.head.weight.detach().cpu(), before)


@pytest.mark.parametrize("name,fused", [("AdamW", False), ("AdamW", True), ("SGD", False), ("Adafactor", False)])
def test_an_optimizer_takes_the_same_steps(name: str, fused: bool) -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 4)
    ends = []
    for device in ("npu", "cpu"):
        weight = nn.Parameter(start.clone().to(device))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1, **({"fused": True} if fused else {}))
        for _ in range(3):
            optimizer.zero_grad()
            weight.pow(3).sum().backward()
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()
        ends.append(weight.detach().cpu())
    assert torch.allclose(ends[0], ends[1], rtol=1e-6, atol=1e-7) and not torch.equal(ends[0], start)


def test_checkpointed_layers_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    layer, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).npu(), torch.randn(2, 4, device="npu")
    torch.manual_seed(1)
    layer(x).sum().backward()
    plain = layer[0].weight.grad.clone()
    layer.zero_grad()
    torch.manual_seed(1)
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert torch.equal(plain.cpu(), layer[0].weight.grad.cpu())


def test_autocast_casts_what_the_lists_say() -> None:
    x, w = torch.randn(2, 4, device="npu"), torch.randn(4, 4, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        product = x @ w
        assert product.dtype == torch.bfloat16 and nn.functional.linear(x, w).dtype == torch.bfloat16
        assert product.softmax(-1).dtype == torch.float32 and product.exp().dtype == torch.float32
        assert nn.functional.layer_norm(product, (4,)).dtype == torch.float32 and (product + x).dtype == torch.float32
        assert torch.cat([product, x]).dtype == torch.float32 and product.norm().dtype == torch.float32
        assert nn.functional.conv1d(x[None], w[:, :2, None]).dtype == torch.bfloat16
    assert (x @ w).dtype == torch.float32


def test_autocast_of_the_cpu_leaves_the_npu_alone() -> None:
    x = torch.randn(2, 2, device="npu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32 and (x.cpu() @ x.cpu()).dtype == torch.bfloat16


def test_autocast_refuses_the_loss_that_is_unsafe_in_it() -> None:
    p = torch.rand(2, device="npu")
    with torch.autocast("npu", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        nn.functional.binary_cross_entropy(p, p)


def test_gradients_flow_through_autocast_in_fp32() -> None:
    layer = nn.Linear(4, 4).npu()
    with torch.autocast("npu", dtype=torch.bfloat16):
        loss = layer(torch.ones(2, 4, device="npu")).float().sum()
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32


def test_the_modules_own_autocast_and_scaler_work() -> None:
    layer = nn.Linear(4, 4).npu()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.npu.amp.GradScaler(init_scale=4.0)
    with torch.npu.amp.autocast(dtype=torch.float16):
        loss = layer(torch.ones(2, 4, device="npu")).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    layer.weight.grad.fill_(float("inf"))
    before = layer.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0 and torch.equal(layer.weight, before)


def test_double_backward_and_hooks_work() -> None:
    x = torch.tensor([2.0], device="npu", requires_grad=True)
    seen = []
    x.register_hook(lambda g: seen.append(g.device.type))
    (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    first.sum().backward()
    assert x.grad.item() == 12 and seen[-1] == "npu"


def test_vmap_and_functional_gradients_work() -> None:
    x = torch.randn(3, 4, device="npu")
    g = torch.func.vmap(torch.func.grad(lambda row: row.pow(2).sum()))(x)
    assert torch.allclose(g.cpu(), 2 * x.cpu())


def test_saved_tensors_can_be_offloaded_to_the_cpu() -> None:
    x = torch.randn(4, 4, device="npu", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x @ x).exp().sum()
    y.backward()
    assert x.grad.device.type == "npu"
