"""Memory of the simulated NPU: what is counted, and where it ends."""

from __future__ import annotations

import gc

import pytest
import torch

MIB = 2**20
on_device = pytest.mark.on_device
small = pytest.mark.on_device(
    devices=1,
    NPU_MATRIX_SIM_MEMORY_MIB="64",
    NPU_MATRIX_SIM_OWN_RNG="1",
    NPU_MATRIX_SIM_DENY="dtype:float64,op:aten::histc,attribute:torch.npu.ipc_collect",
)


@on_device
def test_memory_is_counted_up_and_down() -> None:
    before = torch.npu.memory_allocated()
    x = torch.empty(MIB, device="npu")
    assert torch.npu.memory_allocated() - before == 4 * MIB
    del x
    assert torch.npu.memory_allocated() == before


@on_device
def test_results_of_operators_are_counted_too() -> None:
    x = torch.ones(MIB, device="npu")
    before = torch.npu.memory_allocated()
    y = x + x
    assert torch.npu.memory_allocated() - before == 4 * MIB and y.is_npu


@on_device
def test_views_cost_nothing() -> None:
    x = torch.ones(MIB, device="npu")
    before = torch.npu.memory_allocated()
    views = [x.view(2, -1), x[5:], x.view(-1, 4).t()]
    assert torch.npu.memory_allocated() == before and len(views) == 3


@on_device
def test_blocks_are_rounded_as_the_caching_allocator_does() -> None:
    before = torch.npu.memory_allocated()
    x = torch.empty(1, device="npu")
    assert torch.npu.memory_allocated() - before == 512 and x.is_npu


@on_device
def test_memory_is_counted_for_each_device() -> None:
    zero, one = torch.npu.memory_allocated(0), torch.npu.memory_allocated(1)
    x = torch.ones(MIB, device="npu:1") * 2
    assert torch.npu.memory_allocated("npu:1") - one == 4 * MIB and torch.npu.memory_allocated(0) == zero and x.is_npu


@on_device
def test_the_peak_stays_until_it_is_reset() -> None:
    torch.npu.reset_peak_memory_stats()
    x = torch.empty(4 * MIB, device="npu")
    high = torch.npu.memory_allocated()
    del x
    assert torch.npu.max_memory_allocated() == high > torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()


@on_device
def test_the_cache_is_reserved_until_it_is_emptied() -> None:
    x = torch.empty(8 * MIB, device="npu")
    reserved = torch.npu.memory_reserved()
    del x
    assert torch.npu.memory_reserved() == reserved >= 32 * MIB
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() < reserved and torch.npu.max_memory_reserved() >= reserved


@on_device
def test_statistics_have_the_names_that_libraries_read() -> None:
    x = torch.empty(MIB, device="npu")
    stats = torch.npu.memory_stats()
    assert stats["allocated_bytes.all.current"] >= 4 * MIB and stats["num_ooms"] == 0 and x.is_npu
    assert {"reserved_bytes.all.peak", "active_bytes.all.current", "allocation.all.allocated", "num_alloc_retries"} <= set(stats)
    assert torch.accelerator.memory_allocated() == torch.npu.memory_allocated()


@on_device
def test_free_and_total_memory_are_told() -> None:
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total == 64 * 1024 * MIB == torch.npu.get_device_properties().total_memory


@on_device
def test_memory_does_not_leak_over_a_training_loop() -> None:
    model = torch.nn.Linear(16, 16).npu()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    for _ in range(5):
        model(torch.ones(4, 16, device="npu")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        seen.append(torch.npu.memory_allocated())
    assert len(set(seen[1:])) == 1


@small
def test_too_much_memory_is_the_devices_out_of_memory_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 128\.00 MiB \(NPU 0; 64\.00 MiB total"):
        torch.empty(32 * MIB, device="npu")
    assert torch.npu.memory_stats()["num_ooms"] == 1


@small
def test_an_impossible_size_is_out_of_memory_too() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(1 << 50, device="npu")


@small
def test_a_result_that_does_not_fit_is_out_of_memory() -> None:
    x = torch.ones(9 * MIB, device="npu")
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        x + 1


@small
def test_after_out_of_memory_the_device_still_works() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(32 * MIB, device="npu")
    assert torch.npu.memory_allocated() == 0 and torch.ones(4 * MIB, device="npu").sum().item() == 4 * MIB


@small
def test_a_fraction_of_the_device_can_be_the_limit() -> None:
    torch.npu.set_per_process_memory_fraction(0.25)
    with pytest.raises(torch.OutOfMemoryError, match=r"16\.00 MiB total"):
        torch.empty(5 * MIB, device="npu")


@small
def test_a_denied_dtype_is_refused_wherever_it_appears() -> None:
    for make in (
        lambda: torch.ones(2, dtype=torch.float64, device="npu"),
        lambda: torch.ones(2, dtype=torch.float64).npu(),
        lambda: torch.ones(2, device="npu").double(),
    ):
        with pytest.raises(RuntimeError, match="deny list of this SIMULATED NPU"):
            make()


@small
def test_a_denied_operator_is_refused_and_others_are_not() -> None:
    x = torch.ones(4, device="npu")
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::histc.*deny list of this SIMULATED NPU"):
        torch.histc(x)
    assert (x + 1).sum().item() == 8


@small
def test_a_denied_attribute_is_missing() -> None:
    assert not hasattr(torch.npu, "ipc_collect")


@small
def test_randomness_of_its_own_leaves_the_cpus_alone() -> None:
    torch.manual_seed(3)
    cpu = torch.get_rng_state()
    first = [torch.rand(4, device="npu"), torch.nn.functional.dropout(torch.ones(64, device="npu"), 0.5)]
    assert torch.equal(torch.get_rng_state(), cpu)
    torch.npu.manual_seed(3)
    again = [torch.rand(4, device="npu"), torch.nn.functional.dropout(torch.ones(64, device="npu"), 0.5)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(torch.rand(4, device="npu"), again[0])


@small
def test_one_visible_device_is_one() -> None:
    assert torch.npu.device_count() == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="npu:1")
