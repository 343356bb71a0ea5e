"""Collectives on the backend hccl, two ranks with one simulated NPU each."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ranks import in_ranks
from torch import nn

pytestmark = pytest.mark.on_device


def on(rank: int, *values: float) -> torch.Tensor:
    return torch.tensor(values, device=f"npu:{rank}")


def reduces(rank: int) -> None:
    x = on(rank, rank + 1.0, 2.0)
    dist.all_reduce(x)
    assert x.tolist() == [3, 4] and x.device == torch.device(f"npu:{rank}")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [3, 4]
    x = on(rank, float(rank))
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert x.item() == 1
    x = on(rank, rank + 1.0)
    dist.reduce(x, 0)
    assert rank or x.item() == 3


def gathers(rank: int) -> None:
    parts = [torch.empty(2, device=f"npu:{rank}") for _ in range(2)]
    dist.all_gather(parts, on(rank, rank, 5.0))
    assert [p.tolist() for p in parts] == [[0, 5], [1, 5]]
    whole = torch.empty(4, device=f"npu:{rank}")
    dist.all_gather_into_tensor(whole, on(rank, rank, 5.0))
    assert whole.tolist() == [0, 5, 1, 5]
    dist.gather(on(rank, float(rank)), [torch.empty(1, device="npu:0") for _ in range(2)] if rank == 0 else None, dst=0)
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]


def scatters(rank: int) -> None:
    x = torch.empty(1, device=f"npu:{rank}")
    dist.scatter(x, [on(0, 7.0), on(0, 8.0)] if rank == 0 else None, src=0)
    assert x.item() == 7 + rank
    part = torch.empty(2, device=f"npu:{rank}")
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device=f"npu:{rank}"))
    assert part.tolist() == [4 * rank, 4 * rank + 2]
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device=f"npu:{rank}"), op=dist.ReduceOp.AVG)
    assert part.tolist() == [2 * rank, 2 * rank + 1]
    dist.reduce_scatter(part, [torch.ones(2, device=f"npu:{rank}") * (i + 1) for i in range(2)])
    assert part.tolist() == [2 * (rank + 1)] * 2
    x = on(rank, float(rank))
    dist.broadcast(x, 1)
    assert x.item() == 1


def exchanges(rank: int) -> None:
    received = [torch.empty(1, device=f"npu:{rank}") for _ in range(2)]
    dist.all_to_all(received, [on(rank, 10.0 * rank + i) for i in range(2)])
    assert [t.item() for t in received] == [rank, 10 + rank]
    whole = torch.empty(4, device=f"npu:{rank}")
    dist.all_to_all_single(whole, torch.arange(4.0, device=f"npu:{rank}") + 10 * rank)
    assert whole.tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank]
    if rank == 0:
        dist.send(on(0, 1.0, 2.0), 1)
    else:
        x = torch.empty(2, device="npu:1")
        dist.recv(x, 0)
        assert x.tolist() == [1, 2]


def batched(rank: int) -> None:
    other = 1 - rank
    x, y = on(rank, float(rank)), on(rank, 10.0 + rank)
    a, b = torch.empty_like(x), torch.empty_like(y)
    pairs = [(dist.isend, x), (dist.irecv, a), (dist.isend, y), (dist.irecv, b)]
    for work in dist.batch_isend_irecv([dist.P2POp(what, tensor, other) for what, tensor in pairs]):
        work.wait()
    assert a.item() == other and b.item() == 10 + other


def drops_what_it_sends(rank: int) -> None:
    if rank == 0:
        works = [dist.isend(torch.full((50_000,), float(i), device="npu:0"), 1) for i in range(8)]
        trash = [torch.full((50_000,), -1.0, device="npu:0") for _ in range(8)]
        for work in works:
            work.wait()
        assert len(trash) == 8
    else:
        for i in range(8):
            x = torch.empty(50_000, device="npu:1")
            dist.recv(x, 0)
            assert x.eq(i).all().item()


def refuses_the_cpu(rank: int) -> None:
    for collective in (lambda x: dist.all_reduce(x), lambda x: dist.broadcast(x, 0), lambda x: dist.send(x, 1 - rank)):
        with pytest.raises((RuntimeError, ValueError), match=r"[Nn]o backend type associated with device type cpu|No backend"):
            collective(torch.ones(2))
    with pytest.raises(RuntimeError, match="npu tensors only"):
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu")).allreduce([torch.ones(2)])


def every_dtype(rank: int) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        x = torch.ones(3, dtype=dtype, device=f"npu:{rank}")
        dist.all_reduce(x)
        assert x.float().tolist() == [2, 2, 2]
    flag = torch.tensor([rank == 0], device=f"npu:{rank}")
    dist.broadcast(flag, 0)
    assert flag.item() is True


def asynchronous(rank: int) -> None:
    x = on(rank, 1.0)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed() and x.item() == 2
    done = dist.all_reduce(x, async_op=True).get_future()
    assert done.wait()[0].item() == 4
    dist.barrier()
    dist.barrier(device_ids=[rank])


def groups(rank: int) -> None:
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    x = on(rank, float(rank))
    dist.all_reduce(x, group=alone)
    assert x.item() == rank and dist.get_backend(alone) == "hccl" and dist.get_backend() == "hccl"


def ddp(rank: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(f"npu:{rank}")
    alone, batch = copy.deepcopy(model), torch.randn(8, 8)
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    wrapped(batch[rank * 4 : rank * 4 + 4].to(f"npu:{rank}")).pow(2).mean().backward()
    alone(batch.to(f"npu:{rank}")).pow(2).mean().backward()
    for got, want in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(got.grad.cpu(), want.grad.cpu(), rtol=1e-5, atol=1e-7)


def fsdp2(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(f"npu:{rank}")
    alone, batch, mesh = copy.deepcopy(model), torch.randn(8, 8), init_device_mesh("npu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    assert isinstance(model[0].weight, DTensor) and model[0].weight.to_local().shape == (8, 8)
    model(batch[rank * 4 : rank * 4 + 4].to(f"npu:{rank}")).pow(2).mean().backward()
    alone(batch.to(f"npu:{rank}")).pow(2).mean().backward()
    for got, want in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(got.grad.full_tensor().cpu(), want.grad.cpu(), rtol=1e-5, atol=1e-7)


def is_the_default(rank: int) -> None:
    x = on(rank, 1.0)
    dist.all_reduce(x)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))
    assert x.item() == 2 and backend.name() == "hccl" and isinstance(backend, dist.ProcessGroupHCCL)


WORKS = [reduces, gathers, scatters, exchanges, batched, drops_what_it_sends, refuses_the_cpu, every_dtype, asynchronous, groups]
WORKS += [ddp, fsdp2]


@pytest.mark.parametrize("name", [work.__name__ for work in WORKS])
def test_hccl(name: str) -> None:
    in_ranks(next(work for work in WORKS if work.__name__ == name))


@pytest.mark.parametrize("backend", [None, "cpu:gloo,npu:hccl"])
def test_hccl_is_what_npu_tensors_get_by_default(backend: str | None) -> None:
    in_ranks(is_the_default, backend=backend)


def test_hccl_says_that_it_is_there() -> None:
    assert dist.is_hccl_available() and "hccl" in dist.Backend.backend_list
