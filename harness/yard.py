"""The pool of one host: what its cells are expected to take, and the desk that lends them NPUs, or cores where there are none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from dataclasses import replace

from harness.commands_asked import asked_saves
from harness.cores import CoreDesk, memory_to_lend_mib
from harness.estimates import Records
from harness.flow import idle_stages, with_needed
from harness.host import REHEARSAL_STORE, Host
from harness.leases import DeviceDesk, Held
from harness.lock_files import host_folder
from harness.model import Cell, Evidence, Stage
from harness.needs import Room, devices_lacking, host_lacking, over_budget
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


def room_of(host: Host) -> Room:
    """The NPUs of `host`. In a rehearsal nothing real is loaded, so only their number counts."""
    if not host.hardware.is_npu or host.rehearsal is not None:
        return Room(len(host.npu_ids))
    return Room(len(host.npu_ids), NpuProbe(None).smallest_mib(host.npu_ids))


def obstacle(cell: Cell, host: Host, room: Room) -> str:
    """Why the NPUs of `host` can never run `cell`; empty where they may, or there are none to lack."""
    if not host.hardware.is_npu:
        return ""
    weights = host.weights_for(cell.model)
    return devices_lacking(cell, host.width_of(cell, weights), weights, room)


def refusal(host: Host, room: Room, hours: float | None) -> Callable[[Job, float], str]:
    """Why a job must not be started now: it would exceed `hours` device-hours, or what it needs is not free. Off NPUs nothing is."""

    def refuse(job: Job, spoken_for_s: float) -> str:
        if not host.hardware.is_npu:
            return ""
        dear = over_budget(job.load, spoken_for_s, hours) if hours is not None else ""
        if dear or host.rehearsal is not None:
            return dear
        host.runs.mkdir(parents=True, exist_ok=True)
        free = replace(room, memory_mib=memory_to_lend_mib(), disk_mib=shutil.disk_usage(host.runs).free / 2**20)
        weights = host.weights_for(job.cell.model)
        return host_lacking(job.cell, weights, len(asked_saves(weights)), free)

    return refuse


def open_pool(
    run: Callable[[Job, Held], Generator[Evidence, None, None]],
    host: Host,
    *,
    jobs: int | None,
    refuse: Callable[[Job, float], str],
    tell: Callable[[str], object],
    retries: int | None,
) -> Pool:
    """A pool for the NPUs of `host`, with as many cells at once as they allow; else for its cores, or `jobs` where that is more.

    `retries` None: once on NPUs, which fail of themselves at times; elsewhere never.
    """
    if host.hardware.is_npu:
        often = 1 if retries is None else retries
        return Pool(run, device_desk(host), capacity=len(host.npu_ids), jobs=jobs, refuse=refuse, tell=tell, retries=often)
    # A rank of a tiny run keeps 0.7 of a core busy (measured: ddp 1.3, zero3 1.4 cores of two ranks), so each core is lent twice.
    cores = max((os.cpu_count() or 1) * 2, jobs or 0)
    desk = CoreDesk(cores, memory_to_lend_mib(), host_folder(), host.npu_ids)
    return Pool(run, desk, capacity=cores, jobs=jobs or cores, refuse=refuse, tell=tell, retries=retries or 0)


def device_desk(host: Host) -> DeviceDesk:
    """Lends this host's NPUs. A rehearsal's devices are nobody else's, so their locks lie in its own store; its ports are real ones.

    Raises HostError where npu-smi no longer lists them.
    """
    folder = host_folder() if host.rehearsal is None else host.rehearsal / REHEARSAL_STORE / "leases"
    probe = NpuProbe(host.rehearsal)
    return DeviceDesk(folder, host_folder(), probe.devices(host.npu_ids), probe.distances(host.npu_ids), probe)
