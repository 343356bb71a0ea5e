"""Whether a run that starts now would find its devices, ports and room, and what would be there to look at if it hung (FAQ Q7, Q8, Q9)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from harness.doctor_facts import Finding, HostFacts, Severity, Sureness

# HCCL listens from HCCL_IF_BASE_PORT (60000 unless set) on sixteen ports of the host, and on 16666 for the devices' own sockets.
HCCL_BASE, HCCL_PORTS, DEVICE_PORT = 60000, 16, 16666
HCCL_KNOWN = (
    "HCCL_IF_IP", "HCCL_IF_BASE_PORT", "HCCL_SOCKET_IFNAME", "HCCL_SOCKET_FAMILY", "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT",
    "HCCL_BUFFSIZE", "HCCL_ALGO", "HCCL_OP_EXPANSION_MODE", "HCCL_INTRA_ROCE_ENABLE", "HCCL_INTRA_PCIE_ENABLE",
    "HCCL_WHITELIST_DISABLE", "HCCL_WHITELIST_FILE", "HCCL_DETERMINISTIC", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "HCCL_RDMA_TIMEOUT",
    "HCCL_RDMA_RETRY_CNT", "HCCL_ENTRY_LOG_ENABLE", "HCCL_DIAGNOSE_ENABLE", "HCCL_ASYNC_ERROR_HANDLING", "HCCL_DESYNC_DEBUG",
    "HCCL_EVENT_TIMEOUT", "HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE", "HCCL_LOGIC_SUPERPOD_ID",
    "HCCL_CONCURRENT_ENABLE", "HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT", "HCCL_DFS_CONFIG", "HCCL_DEBUG_CONFIG",
)  # fmt: skip
_CONNECT_S = (120, 7200)
# A driver alone keeps some 3.3 of 64 GiB on a 910B3, and 2.8 of 32 on a 910B4.
_IDLE_SHARE = 0.12
_LEAST_DISK_GIB, _GOOD_DISK_GIB, _GOOD_MEMORY_GIB, _GOOD_SHM_GIB, _GOOD_FILES = 1, 50, 32, 8, 4096
_B, _D, _N = Severity.BLOCKS, Severity.DEGRADES, Severity.NOTE
_SEVERAL: dict[str, tuple[object, ...]] = {"strategy": ("ddp", "fsdp1", "fsdp2", "zero2", "zero3", "megatron")}


def check_visible(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q7: ids, their order, and as many processes as devices. The harness sets both for its cells, so none is impossible."""
    text, present = facts.variable("ASCEND_RT_VISIBLE_DEVICES"), len(facts.machine.npus)
    setting = f"ASCEND_RT_VISIBLE_DEVICES={text}"
    words = [word.strip() for word in text.split(",")] if text else []
    ids = [int(word) for word in words if word.isdecimal()]
    good = ",".join(map(str, range(min(present, len(words)) or len(words))))
    fix = f"export ASCEND_RT_VISIBLE_DEVICES={','.join(map(str, sorted(set(ids)))) or good}"
    if len(ids) != len(words):
        why = "ids are numbers from 0 in npu-smi's order; what isn't one is dropped without a word"
        yield Finding("visible.not_ids", f"{setting} holds what is no id", why, fix, Sureness.CERTAIN, _B, "Q7")
    elif len(set(ids)) != len(ids) or ids != sorted(ids):
        why = "ids that are repeated or not ascending make torch.npu.is_available() False, without an error"
        yield Finding("visible.order", f"{setting} is not ascending", why, fix, Sureness.CERTAIN, _B, "Q7")
    missing = [i for i in ids if present and i >= present]
    if missing:
        why = "CANN drops such ids without a word: device_count() shrinks and `open device N failed` follows, with another N"
        what = f"{setting} names {', '.join(map(str, missing))}, but this host's ids are 0 to {present - 1}"
        fix = f"export ASCEND_RT_VISIBLE_DEVICES={','.join(str(i) for i in ids if i < present) or '0'}"
        yield Finding("visible.absent", what, why, fix, Sureness.CERTAIN, _B, "Q7")
    yield from _processes_and_devices(facts, len(ids) or present, setting if ids else f"{present} NPUs")


def _processes_and_devices(facts: HostFacts, devices: int, seen: str) -> Iterator[Finding]:
    asked = facts.variable("NPROC_PER_NODE")
    if not asked or not devices:
        return
    if not asked.isdecimal() or int(asked) < 1:
        fix = f"export NPROC_PER_NODE={devices}"
        yield Finding(
            "nproc.no_number",
            f"NPROC_PER_NODE={asked} is no number of processes",
            "ms-swift starts that many ranks",
            fix,
            Sureness.CERTAIN,
            _B,
            "Q7",
        )
    elif int(asked) > devices:
        why = "ranks fail to bind a device, several take the same one, or HCCL hangs at its start"
        fix = f"export NPROC_PER_NODE={devices}, or name {asked} ids in ASCEND_RT_VISIBLE_DEVICES"
        yield Finding("nproc.too_many", f"NPROC_PER_NODE={asked}, but {seen}", why, fix, Sureness.CERTAIN, _B, "Q7")
    elif int(asked) < devices and facts.variable("ASCEND_RT_VISIBLE_DEVICES"):
        why = "only that many of the visible NPUs are used"
        fix = f"export NPROC_PER_NODE={devices}"
        yield Finding("nproc.too_few", f"NPROC_PER_NODE={asked}, but {seen}", why, fix, Sureness.CERTAIN, _D, "Q7")


def check_busy(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q9: NPUs that somebody else holds."""
    processes = facts.machine.processes
    if processes:
        ours = [p for p in processes if p.pid in facts.processes_here]
        shown = ", ".join(f"NPU {p.npu_id}: {p.name or '?'} (pid {p.pid}, {p.mem_mb or '?'} MB)" for p in processes[:4])
        more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
        why = "HCCL fails or hangs, and memory runs out early, on NPUs that another job holds"
        fix = f"see whose they are: ps -fp {','.join(str(p.pid) for p in ours[:8])}; end your own leftovers, wait 10 s"
        fix = fix if ours else "they live on the host or in another container: look there, or choose other NPUs"
        yield Finding("busy.processes", f"processes hold NPUs: {shown}{more}", why, fix, Sureness.CERTAIN, _D, "Q9")
    silent = [npu for npu in facts.machine.npus if npu.hbm_total_mb and (npu.hbm_used_mb or 0) > _IDLE_SHARE * npu.hbm_total_mb]
    held = {p.npu_id for p in processes}
    silent = [npu for npu in silent if npu.npu_id not in held]
    if silent:
        shown = ", ".join(f"NPU {npu.npu_id} {npu.hbm_used_mb} of {npu.hbm_total_mb} MB" for npu in silent[:4])
        why = "another container, or a process that is dying, holds it: `NPU out of memory` with little reserved"
        yield Finding(
            "busy.memory",
            f"memory is taken without a process to see: {shown}",
            why,
            "look on the host: npu-smi info -t proc-mem -i N; or choose other NPUs",
            Sureness.LIKELY,
            _D,
            "Q9",
        )


def check_hccl(facts: HostFacts) -> Iterator[Finding]:
    yield from _interface(facts)
    address = facts.variable("HCCL_IF_IP")
    if address and ":" not in address and facts.addresses is not None and address not in facts.addresses:
        why = "HCCL binds to it: `get host ip fail`, or ranks that never connect"
        fix = "unset HCCL_IF_IP on a single node; else set it to an address that `ip -4 addr` lists"
        yield Finding("hccl.address", "HCCL_IF_IP is no address of this host", why, fix, Sureness.CERTAIN, _B, "Q9", _SEVERAL)
    for name, least, most in (
        ("HCCL_CONNECT_TIMEOUT", *_CONNECT_S),
        ("HCCL_EXEC_TIMEOUT", 0, 2**31 - 1),
        ("HCCL_IF_BASE_PORT", 1024, 65520),
    ):
        text = facts.variable(name)
        if text and not (text.isdecimal() and least <= int(text) <= most):
            why = "HCCL refuses it when the first group of ranks is made, or falls back to its default"
            unit = "" if name.endswith("PORT") else " s"
            what = f"{name}={text} is not between {least} and {most}{unit}"
            yield Finding("hccl.value", what, why, f"unset {name}", Sureness.LIKELY, _D, "Q9")
    for name in sorted(facts.environment):
        if name.startswith("HCCL_") and name not in HCCL_KNOWN and (near := difflib.get_close_matches(name, HCCL_KNOWN, 1, 0.9)):
            why = "HCCL reads only names that it knows, and says nothing of others"
            fix = f"export {near[0]}=${name}; unset {name}"
            yield Finding("hccl.misspelt", f"{name} looks like {near[0]} misspelt", why, fix, Sureness.POSSIBLE, _N, "Q9")
    yield from _ports(facts)


def _interface(facts: HostFacts) -> Iterator[Finding]:
    """`^` in front excludes, `=` names exactly, else the words are the starts of names."""
    text = facts.variable("HCCL_SOCKET_IFNAME")
    if not text or facts.interfaces is None or text.startswith("^"):
        return
    exact = text.startswith("=")
    words = [word.strip() for word in text.removeprefix("=").split(",") if word.strip()]
    if not any(name == word if exact else name.startswith(word) for name in facts.interfaces for word in words):
        have = ", ".join(name for name in facts.interfaces if name != "lo") or "only lo"
        why = "HCCL ends with `get host ip fail by socket Ifname` or `is not found in the nic list`"
        what = f"HCCL_SOCKET_IFNAME={text} names no interface of this host (it has {have})"
        fix = "unset HCCL_SOCKET_IFNAME on a single node; else set it to one that `ip link` lists"
        yield Finding("hccl.interface", what, why, fix, Sureness.CERTAIN, _B, "Q9", _SEVERAL)


def _ports(facts: HostFacts) -> Iterator[Finding]:
    base = facts.variable("HCCL_IF_BASE_PORT")
    first = int(base) if base.isdecimal() else HCCL_BASE
    taken = sorted((facts.ports or frozenset()) & {*range(first, first + HCCL_PORTS), DEVICE_PORT})
    if taken:
        why = "HCCL listens there: EJ0003, EI0019 or `specific port[...] fail`, and EI0006 120 s later on the other ranks"
        fix = f"ss -ltnp 'sport = :{taken[0]}' tells whose it is; or export HCCL_IF_BASE_PORT={_free_base(facts.ports or frozenset())}"
        what = f"HCCL's ports are taken: {', '.join(map(str, taken))}"
        yield Finding("hccl.port", what, why, fix, Sureness.LIKELY, _D, "Q9")


def _free_base(taken: frozenset[int]) -> int:
    """The first base from 60100 with all its ports free."""
    return next(base for base in range(60100, 65500, 100) if not taken & set(range(base, base + HCCL_PORTS)))


def check_room(facts: HostFacts) -> Iterator[Finding]:
    """Disk, memory, shared memory and open files: what a checkpoint, workers and HCCL need."""
    if facts.disk_gib is not None and facts.disk_gib < _GOOD_DISK_GIB:
        full = facts.disk_gib < _LEAST_DISK_GIB
        why = "a 7B checkpoint is 15 GB, with optimizer state 90 GB; a run that finds the disk full loses its checkpoint"
        degree = _B if full else _D if facts.traces else _N
        yield Finding(
            "room.disk",
            f"{facts.disk_gib:.1f} GiB of disk are free here",
            why,
            "du -xh --max-depth=2 . | sort -h | tail; or another --output_dir",
            Sureness.CERTAIN,
            degree,
            "训练",
        )
    if facts.memory_gib is not None and facts.memory_gib < _GOOD_MEMORY_GIB:
        why = "each rank loads the weights into host memory first: exit 137 or -9 is the kernel's out-of-memory killer"
        yield Finding(
            "room.memory",
            f"{facts.memory_gib:.1f} GiB of memory are free",
            why,
            "fewer ranks or --dataset_num_proc, or a bigger container",
            Sureness.POSSIBLE,
            _D if facts.traces else _N,
            "训练",
        )
    if facts.shm_gib is not None and facts.shm_gib < _GOOD_SHM_GIB:
        why = "data loader workers, HCCL and vLLM pass data through it: bus error, or a hang"
        yield Finding(
            "room.shm",
            f"/dev/shm holds {facts.shm_gib:.2f} GiB",
            why,
            "docker run --shm-size=128g --ipc=host",
            Sureness.LIKELY,
            _D,
            "镜像/容器环境安装",
        )
    if facts.open_files is not None and facts.open_files < _GOOD_FILES:
        why = "ranks, workers and sockets of HCCL need more: `Too many open files`"
        yield Finding(
            "room.open_files", f"a process may open {facts.open_files} files", why, "ulimit -n 65535", Sureness.POSSIBLE, _N, "Q8"
        )


def check_hang_tools(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q8: what a hung run would be looked into with, and what the last one left."""
    if facts.plog:
        why = "plog is where CANN and HCCL write what they can't tell through Python: the earliest error is the cause"
        what = f"the newest plog ends with errors: {facts.plog[0]}"
        yield Finding(
            "hang.plog",
            what,
            why,
            "grep -rn ERROR ~/ascend/log/debug/plog | sort -t, -k2 | head; python -m harness explain LOG",
            Sureness.POSSIBLE,
            _N,
            "Q8",
        )
    if not facts.stack_tools:
        why = "the stacks of all ranks tell whether a run hangs in data, communication or the model"
        yield Finding(
            "hang.no_stacks", "neither pystack nor py-spy is installed", why, "pip install pystack py-spy", Sureness.CERTAIN, _N, "Q8"
        )
    if facts.variable("ASCEND_LAUNCH_BLOCKING") == "1":
        why = "each operator then waits for the one before: right for finding a failing operator, slow for all else"
        yield Finding("slow.blocking", "ASCEND_LAUNCH_BLOCKING=1 is set", why, "unset ASCEND_LAUNCH_BLOCKING", Sureness.CERTAIN, _N, "Q8")
