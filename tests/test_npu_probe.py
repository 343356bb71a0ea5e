"""Which dies the leases of this host are about, from what npu-smi prints of cards that share a bus address."""

from __future__ import annotations

import stat
from pathlib import Path

from harness.npu_probe import NpuProbe

HEADER = """\
| NPU   Name        | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |
| Chip  Phy-ID      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)         |
"""


def row(npu: int, chip: int, phy: int, bus: str) -> str:
    return f"| {npu} Ascend910 | OK | 90.0 33 0 / 0 |\n| {chip} {phy} | {bus} | 0 0 / 0 3140 / 65536 |\n"


def names(root: Path, *rows: str) -> list[str]:
    npu_smi = root / "usr/local/bin/npu-smi"
    npu_smi.parent.mkdir(parents=True)
    npu_smi.write_text(f"#!/bin/sh\ncat <<'END'\n{HEADER}{''.join(rows)}END\n", encoding="utf-8")
    npu_smi.chmod(npu_smi.stat().st_mode | stat.S_IXUSR)
    return [device.identity for device in NpuProbe(root).devices(range(len(rows)))]


def test_two_dies_of_one_bus_address_have_a_lease_each(tmp_path: Path) -> None:
    assert names(tmp_path, row(0, 0, 6, "0000:9D:00.0"), row(0, 1, 6, "0000:9D:00.0")) == ["0000-9D-00.0-0", "0000-9D-00.0-1"]


def test_two_npus_of_one_bus_address_have_a_lease_each(tmp_path: Path) -> None:
    found = names(tmp_path, row(0, 0, 0, "0000:9D:00.0"), row(1, 0, 1, "0000:9D:00.0"), row(2, 0, 2, "0000:9F:00.0"))
    assert found == ["0000-9D-00.0-0-of-npu-0", "0000-9D-00.0-0-of-npu-1", "0000-9F-00.0-0"]


def test_dies_without_a_bus_address_have_a_lease_each(tmp_path: Path) -> None:
    assert names(tmp_path, row(4, 0, 4, "NA"), row(5, 0, 5, "NA")) == ["npu-0", "npu-1"]
