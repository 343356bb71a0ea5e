"""Random numbers of the simulated NPU: by default those that the CPU would draw."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.on_device


@pytest.mark.parametrize("draw", ["rand", "randn", "randperm", "dropout", "multinomial"])
def test_one_seed_draws_the_same_numbers_as_on_the_cpu(draw: str) -> None:
    def numbers(device: str) -> torch.Tensor:
        torch.manual_seed(5)
        if draw == "dropout":
            return torch.nn.functional.dropout(torch.ones(64, device=device), 0.3).cpu()
        if draw == "multinomial":
            return torch.multinomial(torch.ones(16, device=device), 8).cpu()
        return getattr(torch, draw)(16, device=device).cpu()

    assert torch.equal(numbers("npu"), numbers("cpu"))


def test_a_generator_repeats_itself() -> None:
    generator = torch.Generator(device="npu")
    generator.manual_seed(3)
    first = torch.randn(4, device="npu", generator=generator)
    generator.manual_seed(3)
    assert generator.device.type == "npu" and torch.equal(first, torch.randn(4, device="npu", generator=generator))


def test_a_generator_leaves_the_default_one_alone() -> None:
    before = torch.npu.get_rng_state()
    torch.rand(8, device="npu", generator=torch.Generator(device="npu"))
    assert torch.equal(before, torch.npu.get_rng_state())


def test_the_state_of_the_generator_can_be_put_back() -> None:
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert state.device.type == "cpu" and state.dtype == torch.uint8 and torch.equal(first, torch.rand(4, device="npu"))


def test_the_states_of_all_devices_can_be_put_back() -> None:
    states = torch.npu.get_rng_state_all()
    first = torch.rand(4, device="npu:1")
    torch.npu.random.set_rng_state_all(states)
    assert len(states) == 2 and torch.equal(first, torch.rand(4, device="npu:1"))


def test_torchs_seed_seeds_the_npu() -> None:
    torch.manual_seed(9)
    first = torch.rand(4, device="npu")
    torch.npu.manual_seed_all(9)
    assert torch.equal(first, torch.rand(4, device="npu")) and torch.npu.initial_seed() == 9


def test_forked_randomness_is_put_back() -> None:
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.manual_seed(1)
        inside = torch.rand(2, device="npu")
    assert not torch.equal(inside, torch.rand(2, device="npu"))


def test_a_generator_can_be_cloned_with_its_state() -> None:
    generator = torch.Generator(device="npu")
    generator.manual_seed(1)
    state = generator.get_state()
    first = torch.rand(3, device="npu", generator=generator)
    generator.set_state(state)
    assert torch.equal(first, torch.rand(3, device="npu", generator=generator))
