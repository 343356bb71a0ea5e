"""torch.npu and the stand-in torch_npu, as libraries ask for them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest
import torch

pytestmark = pytest.mark.on_device


def test_the_device_says_that_it_is_simulated() -> None:
    assert "SIMULATED" in torch.npu.get_device_name() and "SIMULATED" in torch.npu.get_device_properties(1).name
    assert "Ascend910B" in torch.npu.get_device_name(0)


def test_the_distribution_says_that_it_is_simulated() -> None:
    import torch_npu

    assert torch_npu.__version__ == importlib.metadata.version("torch_npu") == torch.__version__.split("+")[0] + "+sim"


def test_there_are_as_many_devices_as_are_visible() -> None:
    assert torch.npu.is_available() and torch.npu.device_count() == 2


# What torch, accelerate, transformers, deepspeed, trl and ms-swift ask for.
ASKED = """is_available device_count current_device set_device device is_initialized _initialized _lazy_init _lazy_call _is_in_bad_fork
synchronize empty_cache ipc_collect memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached
max_memory_cached memory_stats memory_summary reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached mem_get_info
get_device_properties get_device_name get_device_capability is_bf16_supported get_amp_supported_dtype manual_seed manual_seed_all seed
seed_all initial_seed get_rng_state set_rng_state get_rng_state_all set_rng_state_all random default_generators Stream Event stream
current_stream default_stream set_stream amp BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor"""


@pytest.mark.parametrize("name", ASKED.split())
def test_libraries_find_the_attribute(name: str) -> None:
    assert hasattr(torch.npu, name)


def test_what_is_missing_is_an_attribute_error() -> None:
    import torch_npu

    assert not hasattr(torch.npu, "no_such_thing") and not hasattr(torch_npu, "npu_no_such_operator")


def test_the_module_has_one_identity() -> None:
    import torch_npu

    assert torch_npu.npu is torch.npu is sys.modules["torch.npu"] is sys.modules["torch_npu.npu"]
    assert torch.get_device_module("npu") is torch.npu and importlib.util.find_spec("torch_npu") is not None


def test_operators_are_found_and_their_calls_counted() -> None:
    import torch_npu

    x, gamma = torch.randn(2, 4, device="npu"), torch.ones(4, device="npu")
    before = torch_npu.__sim_calls__["npu_rms_norm"]
    normed, _ = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-6)
    assert torch_npu.__sim_calls__["npu_rms_norm"] == before + 1 and normed.device.type == "npu"
    assert {"npu_rms_norm", "npu_rotary_mul", "npu_swiglu", "npu_fusion_attention"} <= set(dir(torch_npu))


def test_the_old_tensor_types_make_npu_tensors() -> None:
    assert torch.npu.FloatTensor([1, 2]).device.type == "npu" and torch.npu.LongTensor(2, 3).shape == (2, 3)


def test_a_device_index_is_taken_in_every_form() -> None:
    for device in (1, "npu:1", torch.device("npu:1")):
        assert torch.npu.memory_allocated(device) >= 0
        with torch.npu.device(device):
            assert torch.npu.current_device() == 1
    with pytest.raises(ValueError, match="Expected a npu device"):
        torch.npu.memory_allocated("cpu")
    with torch.npu.device_of(torch.ones(1, device="npu:1")):
        assert torch.npu.current_device() == 1


def test_a_fork_of_a_process_with_npus_has_npus() -> None:
    assert torch.npu._is_in_bad_fork() is False and torch.ones(2, device="npu").sum().item() == 2


def test_the_fused_optimizer_of_torch_npu_trains() -> None:
    from torch_npu.optim import NpuFusedAdamW

    weight = torch.nn.Parameter(torch.ones(2, device="npu"))
    weight.sum().backward()
    NpuFusedAdamW([weight], lr=0.1).step()
    assert weight.sum().item() < 2
