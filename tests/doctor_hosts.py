"""A planted host for the doctor's tests: eight healthy 910B3 with all that the documents ask for; a test takes one thing away."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from fakes.install import write_executable
from fakes.rehearsal import CHIPS, npu_smi_info

SITE = "usr/local/lib/python3.11/site-packages"
CANN = "usr/local/Ascend/ascend-toolkit/latest"
ATB = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
# As `source set_env.sh` of CANN and NNAL leaves them, in the parts that are looked at.
SOURCED = {
    "HOME": "/root",
    "ASCEND_HOME_PATH": f"/{CANN}",
    "ATB_HOME_PATH": ATB,
    "LD_LIBRARY_PATH": f"/{CANN}/lib64:/usr/local/Ascend/driver/lib64",
    "PYTHONPATH": "/opt/Megatron-LM",
    "MEGATRON_LM_PATH": "/opt/Megatron-LM",
}
PACKAGES = {
    "ms_swift": "4.6.0", "torch": "2.9.0+cpu", "torch_npu": "2.9.0", "transformers": "5.2.0", "deepspeed": "0.18.2", "vllm": "0.18.0+empty",
    "vllm_ascend": "0.18.0", "mindspeed": "0.16.0", "mcore_bridge": "1.6.5", "triton_ascend": "3.2.1",
}  # fmt: skip
DEVICES = (*(f"davinci{i}" for i in range(CHIPS)), "davinci_manager", "devmm_svm", "hisi_hdc")
_TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def program(path: Path, body: str) -> None:
    write(path)
    write_executable(path, f"#!/bin/sh\n{body}\n")


def healthy(root: Path) -> Path:
    """Plant it. Nothing is found on it with the environment SOURCED and the architecture aarch64."""
    for name in DEVICES:
        write(root / "dev" / name)
    write(root / CANN / "aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=9.0.0\narch=aarch64\n")
    write(root / CANN / "lib64/libascendcl.so")
    write(root / CANN / "lib64/libhccl.so")
    (root / CANN / "opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b").mkdir(parents=True)
    write(root / "usr/local/Ascend/ascend-toolkit/set_env.sh")
    write(root / "usr/local/Ascend/nnal/atb/set_env.sh")
    write(root / "usr/local/Ascend/driver/version.info", "Version=25.2.0\n")
    (root / "usr/local/Ascend/firmware").mkdir(parents=True)
    write(root / "etc/ascend_install.info")
    smi(root, npu_smi_info())
    program(root / "usr/local/bin/python", "exit 0")
    program(root / "usr/local/bin/pystack", "exit 0")
    for name, version in PACKAGES.items():
        install(root, name, version)
    write(root / SITE / "vllm_ascend/_build_info.py", "# Auto-generated file\n__device_type__ = 'A2'\n")
    (root / SITE / "swift/model/npu_patch").mkdir(parents=True)
    megatron(root, "opt/Megatron-LM")
    write(root / "proc/meminfo", "MemTotal:  1584000000 kB\nMemFree: 100 kB\nMemAvailable:  1048576000 kB\n")
    write(root / "proc/self/limits", "Limit   Soft Limit  Hard Limit  Units\nMax open files      65535      1048576     files\n")
    write(root / "proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=134217728k 0 0\n")
    addresses = "".join(f"     |-- {address}\n        /32 host LOCAL\n" for address in ("10.0.0.7", "127.0.0.1"))
    write(root / "proc/net/fib_trie", f"Local:\n  +-- 0.0.0.0/0 3 0 5\n{addresses}")
    listening(root)
    for interface in ("lo", "eth0"):
        (root / "sys/class/net" / interface).mkdir(parents=True)
    return root


def smi(root: Path, listing: str) -> None:
    """An npu-smi that prints `listing`."""
    write(root / "listing", listing)
    program(root / "usr/local/sbin/npu-smi", f"cat '{root / 'listing'}'")


def install(root: Path, name: str, version: str, *, tag: str = "py3-none-any", requires: Sequence[str] = ()) -> None:
    """A distribution's metadata, as a wheel leaves it; an older version of it goes."""
    remove(root, name)
    info = root / SITE / f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{needs}")
    write(info / "WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")


def remove(root: Path, name: str) -> None:
    for info in (root / SITE).glob(f"{name}-*.dist-info"):
        for path in info.iterdir():
            path.unlink()
        info.rmdir()


def megatron(root: Path, folder: str, *, regular: bool = False) -> None:
    write(root / folder / "megatron/core/__init__.py")
    if regular:
        write(root / folder / "megatron/__init__.py")


def listening(root: Path, *ports: int) -> None:
    """/proc/net/tcp with these ports listened on, and one connection."""
    rest = "00000000:00000000 00:00000000 00000000 0 0 1 1\n"
    rows = [f"   {i}: 00000000:{port:04X} 00000000:0000 0A {rest}" for i, port in enumerate(ports)]
    write(root / "proc/net/tcp", _TCP + "".join(rows) + f"   9: 0100007F:EA60 0100007F:0016 01 {rest}")


def checkpoint(folder: Path, dtypes: Mapping[str, int], config: Mapping[str, object]) -> Path:
    """A model's folder whose safetensors claim so many elements of each dtype; the tensors' bytes are a hole in the file."""
    bytes_each = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "I8": 1}
    header, place = {}, 0
    for dtype, count in dtypes.items():
        end = place + count * bytes_each[dtype]
        header[f"weight.{dtype}"] = {"dtype": dtype, "shape": [count], "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    write(folder / "config.json", json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + place)
    return folder


def with_processes(listing: str, rows: Sequence[tuple[int, int, str, int]]) -> str:
    """An `npu-smi info` listing with its table of processes: (NPU, pid, name, MB)."""
    lines = [
        "+---------------------------+---------------+----------------------------------------------------+",
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        "+===========================+===============+====================================================+",
        *(f"| {npu}       0                 | {pid:<13} | {name:<24} | {memory:<23} |" for npu, pid, name, memory in rows),
        "+===========================+===============+====================================================+",
    ]
    return listing + "\n".join(lines) + "\n"
