"""What /proc and a package's files say, as values. Text that is cut or strange gives nothing, never an exception."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LISTENS = "0A"
_KIB_PER_GIB = 2**20
_SIZE = re.compile(r"size=(\d+)([kmgtKMGT]?)")
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DEVICE = re.compile(r"""^__(?:device_type|soc_version)__\s*=\s*['"]([\w.-]+)['"]""", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*([\w.+-]+)", re.MULTILINE | re.IGNORECASE)
_ERROR = re.compile(r"^\[ERROR\]|\bERR\d{5}\b|\b[EW][A-Z0-9]\d{4}:")


def listening_ports(table: str) -> frozenset[int]:
    """TCP ports that are listened on, by a table of /proc/net/tcp or tcp6."""
    found: set[int] = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENS:
            port = fields[1].rpartition(":")[2]
            found.update({int(port, 16)} if re.fullmatch(r"[0-9A-Fa-f]{4}", port) else ())
    return frozenset(found)


def local_addresses(trie: str) -> tuple[str, ...]:
    """This host's own IPv4 addresses, by /proc/net/fib_trie: an address is followed by what it is."""
    found, last = [], ""
    for line in trie.splitlines():
        if (address := re.search(r"\|-- ((?:\d{1,3}\.){3}\d{1,3})", line)) is not None:
            last = address[1]
        elif "host LOCAL" in line and last and last not in found:
            found.append(last)
    return tuple(found)


def shared_memory_gib(mounts: str) -> float | None:
    """The size that /dev/shm was mounted with, by /proc/mounts; None where it says none: then it is half of the memory."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/dev/shm" and (size := _SIZE.search(fields[3])) is not None:
            return int(size[1]) * _UNITS[size[2].lower()] / 2**30
    return None


def free_memory_gib(meminfo: str, limit: str = "", used: str = "") -> float | None:
    """MemAvailable of /proc/meminfo; less where the control group's memory.max and memory.current leave less."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    free = int(found[1]) / _KIB_PER_GIB if found else None
    if not limit.strip().isdecimal() or not used.strip().isdecimal():
        return free
    left = max(0, int(limit) - int(used)) / 2**30
    return left if free is None else min(free, left)


def open_files_limit(limits: str) -> int | None:
    """The soft limit of open files, by /proc/self/limits."""
    found = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    return int(found[1]) if found else None


def is_container(cgroup: str) -> bool:
    """By /proc/1/cgroup, where the older control groups name the container's engine."""
    return re.search(r"docker|kubepods|containerd|/lxc/|libpod", cgroup) is not None


def built_for(build_info: str) -> str | None:
    """The device type or chip that vllm_ascend/_build_info.py names; the type, which it checks, before the chip."""
    found = {line[0].split("__")[1]: line[1] for line in _DEVICE.finditer(build_info)}
    return found.get("device_type") or found.get("soc_version")


def version_in(text: str) -> str | None:
    """Of CANN's *_install.info and the driver's version.info."""
    found = _VERSION.search(text)
    return found[1] if found else None


def plog_errors(lines: Iterable[str], most: int = 5) -> tuple[str, ...]:
    """The first errors of a plog, each without its process and place in front."""
    found = [line.strip() for line in lines if _ERROR.search(line)]
    return tuple(re.sub(r"^\[ERROR\] (\w+)\([^)]*\):\S*\s*", r"\1: ", line)[:200] for line in found[:most])
