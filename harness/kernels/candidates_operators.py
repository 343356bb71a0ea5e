"""The operators of torch_npu that ms-swift, transformers and vllm-ascend call, on an NPU against goldens in float64 on the CPU.

They need a real torch_npu and an NPU; elsewhere each says so and counts as not run: the stand-in against itself would show nothing.
"""

from __future__ import annotations

from harness.kernels.candidates_operators_attention import attention_kernels
from harness.kernels.candidates_operators_dense import dense_kernels
from harness.kernels.candidates_operators_experts import expert_kernels
from harness.kernels.candidates_operators_loss import cross_entropy
from harness.kernels.candidates_operators_routing import routing_kernels
from harness.kernels.kernel import Kernel
from harness.kernels.npu import REAL, Operators


def kernels(operators: Operators = REAL) -> tuple[Kernel, ...]:
    """A kernel an operator, and more where it has forms that share nothing. A rehearsal hands over other operators and the CPU."""
    return (
        *dense_kernels(operators),
        cross_entropy(operators),
        *expert_kernels(operators),
        *routing_kernels(operators),
        *attention_kernels(operators),
    )
