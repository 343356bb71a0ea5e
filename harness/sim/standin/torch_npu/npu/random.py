"""torch.npu.random. By default a device draws from the CPU's generator, so that a run equals the plain CPU run it is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_npu import _C

from ._index import device_index

default_generators: tuple[torch.Generator, ...] = tuple(_C.default_generator(index) for index in range(_C.device_count()))


def _generator(device: Any = None) -> torch.Generator:
    return default_generators[device_index(device)]


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """A ByteTensor on the CPU."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)


def manual_seed(seed: int) -> None:
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    _generator().seed()


def seed_all() -> None:
    """All devices get the same new seed."""
    if default_generators:
        manual_seed_all(default_generators[0].seed())


def initial_seed() -> int:
    return _generator().initial_seed()
