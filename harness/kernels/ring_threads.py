"""Ranks of a ring as threads of one process, with a communicator in the place of ms-swift's RingComm."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

_WAIT_S = 5.0
_Made = TypeVar("_Made")


class RingBroken(RuntimeError):
    """Another rank died or never sent: this one can't go on."""


class Ring:
    """Letters between `size` ranks: as in a real group the n-th that one sends to another is the n-th that this one takes from it."""

    def __init__(self, size: int) -> None:
        self.seats = tuple(Seat(self, rank) for rank in range(size))
        self._lock = threading.Lock()
        self._letters: dict[tuple[int, int, int], Future[torch.Tensor]] = defaultdict(Future)

    @property
    def size(self) -> int:
        return len(self.seats)

    def letter(self, source: int, target: int, number: int) -> Future[torch.Tensor]:
        with self._lock:
            return self._letters[source, target, number]

    def run(self, work: Callable[[Seat], _Made]) -> list[_Made]:
        """What `work` gives for each rank. Raises what a rank raised that did not just wait for another, and for letters left over."""
        with ThreadPoolExecutor(self.size) as threads:
            pending = [threads.submit(self._work, work, seat) for seat in self.seats]
        errors = [error for one in pending if (error := one.exception()) is not None]
        own = [error for error in errors if not isinstance(error, RingBroken)]
        for error in own or errors:
            raise error
        for seat in self.seats:
            if any(count != self.seats[target].taken[seat.rank] for target, count in seat.sent.items()):
                raise RingBroken(f"rank {seat.rank} sent tensors that nobody received")
        return [one.result() for one in pending]

    def _work(self, work: Callable[[Seat], _Made], seat: Seat) -> _Made:
        try:
            with torch.no_grad():
                return work(seat)
        except BaseException:
            with self._lock:
                for letter in self._letters.values():
                    if not letter.done():
                        letter.set_exception(RingBroken("another rank of the ring died"))
            raise


@dataclass
class Seat:
    """A rank of a ring, which stands for its process group. Counts what went to and came from each other rank, over all communicators."""

    ring: Ring
    rank: int
    sent: Counter[int] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)


class ThreadComm:
    """ms-swift's RingComm between threads: it sends to the next rank and receives from the one before."""

    def __init__(self, process_group: Seat) -> None:
        self._seat = process_group
        self.rank, self.world_size = process_group.rank, process_group.ring.size
        self.send_rank, self.recv_rank = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        self._asked: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._coming: list[tuple[torch.Tensor, Future[torch.Tensor]]] | None = None

    def send_recv(self, to_send: torch.Tensor, recv_tensor: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor that will hold what comes. Until `wait` it is full of NaN, so that whoever reads too early is seen."""
        if not to_send.is_contiguous():
            raise ValueError("torch.distributed sends contiguous tensors only")
        result = torch.empty_like(to_send) if recv_tensor is None else recv_tensor
        self._asked.append((to_send, result))
        return result

    def commit(self) -> None:
        if self._coming is not None:
            raise RuntimeError("commit called twice")
        self._coming = []
        for to_send, result in self._asked:
            letter = self._seat.ring.letter(self.rank, self.send_rank, self._seat.sent[self.send_rank])
            self._seat.sent[self.send_rank] += 1
            if not letter.done():
                letter.set_result(to_send.clone())
            coming = self._seat.ring.letter(self.recv_rank, self.rank, self._seat.taken[self.recv_rank])
            self._seat.taken[self.recv_rank] += 1
            result.fill_(torch.nan)
            self._coming.append((result, coming))

    def wait(self) -> None:
        if self._coming is None:
            raise RuntimeError("wait called before commit")
        for result, coming in self._coming:
            try:
                result.copy_(coming.result(timeout=_WAIT_S))
            except TimeoutError as error:
                raise RingBroken(f"rank {self.recv_rank} sent rank {self.rank} nothing within {_WAIT_S:g} s") from error
        self._coming, self._asked = None, []

    def send_recv_kv(
        self, k: torch.Tensor, v: torch.Tensor, k_buffer: torch.Tensor | None = None, v_buffer: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        next_k, next_v = self.send_recv(k, k_buffer), self.send_recv(v, v_buffer)
        self.commit()
        return next_k, next_v
