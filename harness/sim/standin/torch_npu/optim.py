"""torch_npu.optim: the fused optimizers, here the plain ones that they must agree with."""

from __future__ import annotations

import torch


class NpuFusedAdamW(torch.optim.AdamW):
    """AdamW; the real one keeps its states in one flat tensor."""
