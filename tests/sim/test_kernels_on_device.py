"""The kernels of torch_npu's operators on the simulated device, a rehearsal too: whatever a candidate calls with lies on the device,
gradients find their way back, and nobody takes the simulated NPU for a real one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.kernels.candidates_operators import kernels
from harness.kernels.explore import explore
from harness.kernels.npu import Operators

pytestmark = pytest.mark.on_device(devices=1)


@pytest.mark.parametrize("name", [kernel.name for kernel in kernels()])
def test_a_candidate_runs_on_the_device_as_it_will_on_an_npu(name: str) -> None:
    import torch_npu

    before = sum(torch_npu.__sim_calls__.values())
    made = kernels(Operators(lambda operator: getattr(torch_npu, operator), missing=str))
    [kernel] = [kernel for kernel in made if kernel.name == name]
    found = explore(replace(kernel, examples=kernel.examples[:5]), kernel.dtypes[-1], quick=True)
    assert found.cases >= 6
    assert sum(torch_npu.__sim_calls__.values()) - before == found.cases


def test_on_the_simulated_device_no_kernel_runs_and_each_says_why() -> None:
    assert {
        "needs an NPU, and the torch_npu found here is the stand-in of the simulated one" in kernel.missing() for kernel in kernels()
    } == {True}
