"""Ports of the loopback and of the host's network card, a block for each cell, so that cells side by side never meet."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HostError
from harness.lock_files import made, try_lock

# "占用以该端口起始的32个端口" (CANN 8.5, HCCL_IF_BASE_PORT; 16 before CANN 8.2; the base may be 1024 to 65520).
HCCL_PORTS = 32
_BLOCK = 64
# Below where Linux takes the ports of outgoing connections from (32768), and HCCL's own default (60000).
_FIRST, _END = 20000, 32000


@dataclass(frozen=True)
class Ports:
    """`hccl`: the first of HCCL_PORTS ports of one cell. `master`: where its ranks meet. `serve`: where its server listens."""

    hccl: int
    master: int
    serve: int

    @property
    def all(self) -> tuple[int, ...]:
        return (*range(self.hccl, self.hccl + HCCL_PORTS), self.master, self.serve)


def lend_ports(folder: Path, shunned: Collection[Ports] = ()) -> tuple[int, Ports]:
    """(descriptor that holds the block as long as it is open, the ports). Raises HostError where every block is taken.

    A block is free if no harness of this host holds it and nobody else listens on one of its ports now. `shunned` blocks are not lent.
    """
    made(folder)
    bases = range(_FIRST, _END, _BLOCK)
    # Neighbours start at different places, so that a block is rarely tried in vain.
    for base in itertools.islice(itertools.cycle(bases), os.getpid() % len(bases), os.getpid() % len(bases) + len(bases)):
        ports = Ports(base, base + HCCL_PORTS, base + HCCL_PORTS + 1)
        descriptor = None if ports in shunned else try_lock(folder / f"ports-{base}.lock")
        if descriptor is None:
            continue
        if all(map(_is_free, ports.all)):
            return descriptor, ports
        os.close(descriptor)
    raise HostError(f"ports {_FIRST} to {_END}", f"no {_BLOCK} in a row are free.", "See `ss -ltn` for what listens on them.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers bind: a connection that is winding down is no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
