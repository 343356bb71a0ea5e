"""torch.npu.amp: autocast and the gradient scaler with the device filled in."""

from __future__ import annotations

from typing import Any

import torch


class autocast(torch.amp.autocast_mode.autocast):
    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`dynamic` is torch_npu's own: False keeps the scale, which growth and backoff factors of one do too."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
        **_: Any,
    ) -> None:
        growth, backoff = (growth_factor, backoff_factor) if dynamic else (1.0 + 1e-12, 1.0 - 1e-12)
        super().__init__("npu", init_scale, growth, backoff, growth_interval, enabled)
