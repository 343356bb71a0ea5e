"""Cells that only sleep, on devices that aren't there: the real pool, leases and launcher around a `swift` that records who was beside it.

The fake locks a file of its own for each of its devices while it lives, whoever kills it: an overlap is seen by the fakes themselves.
`python -m fakes.sleepers FOLDER SEED [PATIENCE_S]` runs the cells of a seed, as one harness process of several.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes.install import write_executable
from harness.launch import launch
from harness.leases import DeviceDesk, Held
from harness.model import Cell, Command, Hardware, Stage, Step, VerdictKind
from harness.npu_probe import NpuProbe
from harness.packing import Load
from harness.pool import Job, Pool

DEVICES = 8
WIDTHS = (1, 2, 4, 8)
EACH = 10
# What one harness of several has to do.
EACH_OF_SEVERAL, SCALE_OF_SEVERAL = 3, 0.4

_SWIFT = """#!{python} -ES
import fcntl, json, os, sys, time
began = time.monotonic()
folder = {folder!r}
ids = [int(i) for i in os.environ["ASCEND_RT_VISIBLE_DEVICES"].split(",")]
beside = []
files = [open(os.path.join(folder, "used-%d" % i), "w") for i in ids]
for i, file in zip(ids, files):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        beside.append(i)
def say(**what):
    with open(os.path.join(folder, "records.jsonl"), "a") as records:
        records.write(json.dumps(dict(what, cell=sys.argv[1], ids=ids, at=time.monotonic())) + "\\n")
say(what="start", beside=beside, port=os.environ["MASTER_PORT"])
time.sleep(max(0.0, float(sys.argv[2]) - (time.monotonic() - began)))
say(what="end", beside=[])
"""


@dataclass(frozen=True)
class Sleeper:
    key: str
    width: int
    seconds: float


def sleepers(seed: int, each: int = EACH, widths: Sequence[int] = WIDTHS, scale: float = 1.0) -> tuple[Sleeper, ...]:
    """`each` cells of every width, of 0.5 to 4 seconds (times `scale`), in a random order."""
    chance = random.Random(seed)
    names = [(f"seed{seed}-{width}wide-{n}", width) for width in widths for n in range(each)]
    made = [Sleeper(name, width, round(scale * chance.uniform(0.5, 4), 3)) for name, width in names]
    chance.shuffle(made)
    return tuple(made)


def bound_s(cells: Sequence[Sleeper]) -> float:
    """No way of packing is shorter: all work spread evenly, or the longest cell."""
    return max(sum(one.width * one.seconds for one in cells) / DEVICES, *(one.seconds for one in cells))


@dataclass(frozen=True)
class Place:
    """A folder with the fakes, their records and the locks of the devices."""

    folder: Path

    @classmethod
    def under(cls, folder: Path, npu_smi: str) -> Place:
        """`npu_smi`: what npu-smi prints."""
        place = cls(folder)
        (folder / "usr/local/bin").mkdir(parents=True)
        write_executable(place.programs / "swift", _SWIFT.format(python=sys.executable, folder=str(folder)))
        (folder / "npu-smi.txt").write_text(npu_smi, encoding="utf-8")
        write_executable(place.programs / "npu-smi", f"#!/bin/sh\ncat {folder}/npu-smi.txt\n")
        return place

    @property
    def programs(self) -> Path:
        return self.folder / "usr/local/bin"

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "records.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def overlaps(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if record["beside"]]

    def ended(self) -> set[str]:
        return {record["cell"] for record in self.records() if record["what"] == "end"}

    def desk(self, patience_s: float = 30.0) -> DeviceDesk:
        probe, ids = NpuProbe(self.folder), range(DEVICES)
        return DeviceDesk(self.folder / "leases", self.folder / "leases", probe.devices(ids), probe.distances(ids), probe, patience_s)

    def run(self, sleeper: Sleeper, held: Held) -> None:
        """As a cell runs its commands: through the launcher, which hands the lease's locks to the run."""
        ids, master = held.lease.device_ids, held.lease.ports.master
        env = {"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, ids)), "MASTER_PORT": str(master)}
        run = launch(
            Step("train", Command("swift", (sleeper.key, str(sleeper.seconds)), env), str(self.folder), 60.0),
            nonce=uuid.uuid4().hex,
            work=self.folder / "runs" / sleeper.key,
            search_path=str(self.programs),
            base_env=os.environ,
            stop=threading.Event(),
            hardware=Hardware.A2,
            inherit=held.descriptors,
        )
        assert run.exit_code == 0, (run.notes, run.log_tail)

    def run_all(self, cells: Sequence[Sleeper], *, known: bool, patience_s: float = 30.0) -> None:
        """All of `cells` in one pool. `known`: their times are on records."""
        by_key = {one.key: one for one in cells}

        def answer(job: Job, held: Held) -> Iterator[Any]:
            self.run(by_key[job.key], held)
            yield SimpleNamespace(stage=Stage.TRAIN, verdict=SimpleNamespace(kind=VerdictKind.PASSED))

        pool = Pool(answer, self.desk(patience_s), capacity=DEVICES)
        nobody: Any = None
        cell: Cell = nobody
        guess = 1.0
        loads = [Load(one.key, one.width, one.seconds if known else guess) for one in cells]
        pool.submit([Job(load.key, cell, (Stage.TRAIN,), load, known=known) for load in loads])
        try:
            for one in cells:
                pool.wait(one.key, Stage.TRAIN)
        finally:
            pool.close()


if __name__ == "__main__":
    mine = sleepers(int(sys.argv[2]), EACH_OF_SEVERAL, scale=SCALE_OF_SEVERAL)
    Place(Path(sys.argv[1])).run_all(mine, known=True, patience_s=float(sys.argv[3]))
