"""A million pieces of evidence as one export: verified, then made into tables, beside what pandas.read_json takes to read the same file.

    python .ci/million_rows.py [--rows 1000000] [--runs 3] [--folder DIR]

Ends with 1 where tables take more than 1.5 x the time of pandas.read_json(lines=True), or more than 3 x the memory of its frame. Each of
both runs in processes of its own, in turns, and the fastest of `--runs` counts. Needs about 4 GB of disk in the folder and of memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.causes import CAUSES
from harness.cell_facts import cell_facts
from harness.evidence import stack_name
from harness.export_lines import SCHEMA, line_of
from harness.export_store import import_export
from harness.model import Cell, Hardware, Matrix, Stage, Weights
from harness.rules import required_stages
from harness.session import read_matrix

MATRIX = Path(__file__).resolve().parent.parent / "matrix.yaml"
MOST_TIME, MOST_MEMORY = 1.5, 3.0
FIRST_NIGHT = datetime(2024, 1, 1, 20, tzinfo=timezone.utc)
STACKS_OF_A_PLACE = 12
PLACES = ((Hardware.SIM, Weights.TINY), (Hardware.CPU, Weights.TINY), (Hardware.A2, Weights.TINY), (Hardware.A2, Weights.REAL))
FAILED, REPEATS = 0.06, 0.02

READ = """
import json, sys, time
import pandas
began, cpu = time.perf_counter(), time.process_time()
frame = pandas.read_json(sys.argv[1], lines=True)
took = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps({"wall": took[0], "cpu": took[1], "rows": len(frame), "frame": int(frame.memory_usage(deep=True).sum())}))
"""
TABLES = """
import json, sys, time
from pathlib import Path
import pandas
from harness.export_tables import tables_of
from harness.session import read_matrix
matrix = read_matrix(Path(sys.argv[2]))
began, cpu = time.perf_counter(), time.process_time()
tables = tables_of([Path(sys.argv[1])], matrix)
took = time.perf_counter() - began, time.process_time() - cpu
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
sizes = {name: len(getattr(tables, name)) for name in ("marks", "counts", "newest", "benchmarks", "memory")}
print(json.dumps({"wall": took[0], "cpu": took[1], "rows": tables.rows, "peak": int(peak.split()[1]) * 1024, "sizes": sizes}))
"""


def rows(matrix: Matrix, count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """`count` rows as nights of runs would leave them: every stage of every cell in turn, at a place and under a stack of its time."""
    draw = random.Random(seed)
    asked = [(cell, stage) for cell in matrix.cells for stage in required_stages(cell.algorithm, cell.tuner, cell.engine)]
    of_a_night = {place: [_versions(place[0], n) for n in range(STACKS_OF_A_PLACE)] for place in PLACES}
    stacks: dict[str, str] = {}
    heads: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number in range(count):
        cell, stage = asked[number % len(asked)]
        place = PLACES[(number // len(asked)) % len(PLACES)]
        when = number * STACKS_OF_A_PLACE // count
        versions = of_a_night[place][when]
        text = json.dumps(versions, sort_keys=True)
        if text not in stacks:
            stacks[text] = stack_name(versions, matrix.stacks)
        key = (cell.id, stage, place, when)
        if key not in heads:
            if len(heads) > 10 * len(asked):
                heads.clear()
            heads[key] = _head(cell, stage, place, versions) | {"stack": stacks[text], "versions": text}
        yield _filled(heads[key], number, draw)


def _versions(hardware: Hardware, number: int) -> dict[str, str]:
    versions = {"ms-swift": f"4.{number // 3}.{number % 3}", "torch": "2.9.0", "python": "3.11.7", "transformers": f"5.{number}.0"}
    versions |= {"accelerate": "1.15.0", "datasets": "4.8.4", "peft": "0.20.0", "numpy": "2.4.6", "trl": f"0.{20 + number}.0"}
    match hardware:
        case Hardware.CPU:
            return versions
        case Hardware.SIM:
            return versions | {"torch_npu": "2.9.0+sim", "cann": "0.0.sim"}
        case _:
            return versions | {"torch_npu": "2.9.0", "cann": "9.0.0", "driver": "25.2.0", "vllm-ascend": "0.11.0"}


def _head(cell: Cell, stage: Stage, place: tuple[Hardware, Weights], versions: dict[str, str]) -> dict[str, Any]:
    hardware, weights = place
    names = {"ms_swift": "ms-swift", "torch": "torch", "torch_npu": "torch_npu", "cann": "cann"}
    head: dict[str, Any] = {"schema": SCHEMA, "cell": cell.id, "stage": str(stage), "hardware": str(hardware), "weights": str(weights)}
    head |= {"asked": str(hardware), "launcher": "cli" if hardware.is_npu else "warm", "tiny_key": cell.tiny_key, **cell_facts(cell)}
    if hardware.is_npu:
        head["device_names"] = '["Ascend910B3"]'
    return head | {column: versions[name] for column, name in names.items() if name in versions}


def _filled(head: dict[str, Any], number: int, draw: random.Random) -> dict[str, Any]:
    at = FIRST_NIGHT + timedelta(seconds=number * 40 + draw.randrange(40))
    numbers: dict[str, Any] = {
        "step_s": draw.lognormvariate(-1.5, 0.1),
        "peak_allocated_mib": round(draw.uniform(4, 60000), 3),
        "peak_reserved_mib": float(draw.randrange(8, 62000, 2)),
        "host_rss_mib": round(draw.uniform(600, 90000), 4),
    }
    if head["stage"] == "train" and draw.random() < REPEATS * 4:
        own = {name: head[name] for name in ("schema", "cell", "stage", "hardware", "weights", "stack", "launcher", "versions")}
        nonce = f"{draw.getrandbits(128):032x}"
        run = {"run": f"{at:%Y%m%dT%H%M%S}-{nonce[:6]}", "nonce": nonce, "started_at": at.isoformat(), "steps": 24, "warmup_steps": 4}
        return own | run | numbers | {"record": "repeat", "tokens_per_s_per_device": round(draw.uniform(100, 9000), 2)}
    row = head | {"record": "evidence", "started_at": at.isoformat(), "duration_s": round(draw.uniform(2, 900), 3), "attempt": 1}
    row |= {"compared": draw.randrange(20, 70), "processes": draw.randrange(1, 4), "ruling": "run"}
    row |= {"piece": hashlib.sha256(number.to_bytes(8, "big")).hexdigest()}
    if draw.random() < FAILED:
        cause = draw.choice(list(CAUSES))
        blame, told = str(CAUSES[cause][0]), f"RuntimeError: {draw.getrandbits(64):x} of rank {draw.randrange(8)}"
        row |= {"verdict": "failed", "cause": cause, "blame": blame, "because": f"{cause}: {told}", "outcome": cause}
        return row | {"outcome_blame": blame, "outcome_line": told}
    row |= {"verdict": "passed", "cause": "none", "blame": "unknown", "because": f"{row['compared']} comparisons hold"}
    if head["stage"] in ("train", "resume"):
        row |= numbers | {"ranks": 2, "loss": round(draw.uniform(0.1, 9), 8), "grad_norm": round(draw.uniform(0.1, 9), 8)}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns; the fastest counts")
    parser.add_argument("--folder", type=Path, default=None, help="where the export is written (a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="million-rows-", dir=args.folder) as folder:
        return _measure(Path(folder), args.rows, args.runs)


def _measure(folder: Path, count: int, runs: int) -> int:
    export, matrix = folder / "export.jsonl", read_matrix(MATRIX)
    began = time.process_time()
    with open(export, "w", encoding="utf-8") as file:
        file.writelines(line_of(row) for row in rows(matrix, count))
    print(f"written: {count} pieces, {export.stat().st_size / 2**20:.0f} MiB, {time.process_time() - began:.0f} s of CPU", flush=True)
    began = time.process_time()
    found = import_export(folder, export)
    print(f"verified at import: {found.lines} hold, {found.faults} refused, {time.process_time() - began:.0f} s of CPU", flush=True)
    if found.path is None or found.lines != count:
        print(*found.refused[:5], sep="\n")
        return 1
    export.unlink()
    taken: dict[str, list[dict[str, Any]]] = {READ: [], TABLES: []}
    for _ in range(runs):
        for script, results in taken.items():
            argv = [sys.executable, "-c", script, str(found.path), str(MATRIX)]
            said = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=MATRIX.parent)
            results.append(json.loads(said.stdout))
            print(f"  {'read_json' if script is READ else 'tables'}: {results[-1]}", flush=True)
    return _said(taken[READ], taken[TABLES], count)


def _said(read: list[dict[str, Any]], tables: list[dict[str, Any]], count: int) -> int:
    """The figures, and whether they keep the limits. CPU time (user and system) is what compares on a machine that others use too."""
    times = {clock: (min(r[clock] for r in read), min(t[clock] for t in tables)) for clock in ("cpu", "wall")}
    frame, peak = min(r["frame"] for r in read), max(t["peak"] for t in tables)
    ratios = {clock: ours / theirs for clock, (theirs, ours) in times.items()}
    for clock, (theirs, ours) in times.items():
        print(f"{clock}: read_json {theirs:.1f} s, tables {ours:.1f} s: {ratios[clock]:.2f} x (limit {MOST_TIME})")
    print(f"memory: frame {frame / 2**20:.0f} MiB, tables' process {peak / 2**20:.0f} MiB: {peak / frame:.2f} x (limit {MOST_MEMORY})")
    whole = all(taken["rows"] == count for taken in (*read, *tables))
    return 0 if whole and max(ratios.values()) <= MOST_TIME and peak <= MOST_MEMORY * frame else 1


if __name__ == "__main__":
    sys.exit(main())
