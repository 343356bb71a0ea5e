"""The pool of one host: what its cells are expected to take, and the desk that lends them NPUs, or cores where there are none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from harness.cores import CoreDesk, memory_to_lend_mib
from harness.estimates import Records
from harness.flow import idle_stages, with_needed
from harness.host import REHEARSAL_STORE, Host
from harness.leases import DeviceDesk, Held
from harness.lock_files import host_folder
from harness.model import Cell, Evidence, Stage
from harness.npu_probe import NpuProbe
from harness.packing import Load
from harness.pool import Job, Pool


def job_of(key: str, cell: Cell, stages: tuple[Stage, ...], host: Host, records: Records) -> Job:
    """What it takes to run `stages`, and those that they need, of `cell` on `host`."""
    weights = host.weights_for(cell.model)
    width = host.width_of(cell, weights)
    idle = idle_stages(stages, cell, host)
    busy = tuple(stage for stage in with_needed(stages, cell, idle) if stage not in idle)
    took = records.estimate(key, busy, ranks=width, params_b=cell.model.params_b, weights=weights, warm=host.launcher == "warm")
    return Job(key, cell, stages, Load(key, width, took.seconds), took.memory_mib, took.known)


def open_pool(
    run: Callable[[Job, Held], Iterator[Evidence]],
    host: Host,
    *,
    jobs: int | None,
    refuse: Callable[[Job], str] = lambda job: "",
    tell: Callable[[str], object],
) -> Pool:
    """A pool for the NPUs of `host`, with as many cells at once as they allow; else for its cores, or `jobs` where that is more."""
    if host.hardware.is_npu:
        return Pool(run, device_desk(host), capacity=len(host.npu_ids), jobs=jobs, refuse=refuse, tell=tell)
    cores = max(os.cpu_count() or 1, jobs or 0)
    desk = CoreDesk(cores, memory_to_lend_mib(), host_folder(), host.npu_ids)
    return Pool(run, desk, capacity=cores, jobs=jobs or cores, refuse=refuse, tell=tell)


def device_desk(host: Host) -> DeviceDesk:
    """Lends this host's NPUs. A rehearsal's devices are nobody else's, so their locks lie in its own store; its ports are real ones.

    Raises HostError where npu-smi no longer lists them.
    """
    folder = host_folder() if host.rehearsal is None else host.rehearsal / REHEARSAL_STORE / "leases"
    probe = NpuProbe(host.rehearsal)
    return DeviceDesk(folder, host_folder(), probe.devices(host.npu_ids), probe.distances(host.npu_ids), probe)
