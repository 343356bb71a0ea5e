"""Forty sleeping cells on eight devices that aren't there: the harness's pool, and beside it plain xdist whose tests wait for a lease.

    python .ci/xdist_beside_leases.py [--seed N] [--workers 8]

Prints the shortest time that any packing could take, and what each took. Exits 1 where two cells shared a device, or where the pool
took longer than 1.10 times that, and 2 seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.rehearsal import npu_smi_info  # noqa: E402
from fakes.sleepers import Place, bound_s, sleepers  # noqa: E402

_TESTS = """
import time
from pathlib import Path

import pytest
from fakes.sleepers import Place, sleepers
from harness.leases import Want
from harness.packing import Load

PLACE = Place(Path({folder!r}))
DESK = PLACE.desk()


@pytest.mark.parametrize("sleeper", sleepers({seed}), ids=lambda one: one.key)
def test_cell(sleeper):
    began = time.monotonic()
    while (held := DESK.take(Want(Load(sleeper.key, sleeper.width, 1.0), first_s=began))) is None:
        time.sleep(0.1)
    try:
        PLACE.run(sleeper, held)
    finally:
        held.release()
"""


def by_xdist(place: Place, seed: int, workers: int) -> float:
    """Seconds of `pytest -n workers`, its start-up included."""
    file = place.folder / "test_cells.py"
    file.write_text(_TESTS.format(folder=str(place.folder), seed=seed), encoding="utf-8")
    above = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), "-c", os.devnull, str(file)]
    began = time.monotonic()
    subprocess.run(words, env={**os.environ, "PYTHONPATH": above}, cwd=place.folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def by_pool(place: Place, seed: int, known: bool) -> float:
    began = time.monotonic()
    place.run_all(sleepers(seed), known=known)
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8, help="of xdist (8)")
    asked = parser.parse_args()
    least = bound_s(sleepers(asked.seed))
    print(f"seed {asked.seed}: 40 cells of 1, 2, 4, 8 devices on 8; no packing is shorter than {least:.1f} s")
    ways = {
        "pool, times on records": lambda place: by_pool(place, asked.seed, True),
        "pool, times not known": lambda place: by_pool(place, asked.seed, False),
        f"xdist -n {asked.workers} with leases": lambda place: by_xdist(place, asked.seed, asked.workers),
    }
    bad = False
    for name, way in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Place.under(Path(folder) / "place", npu_smi_info())
            took_s, overlaps = way(place), place.overlaps()
            lost = len(sleepers(asked.seed)) - len(place.ended())
        print(f"{name}: {took_s:.1f} s, {took_s / least:.2f} of the least, {len(overlaps)} overlaps, {lost} cells lost", flush=True)
        bad = bad or bool(overlaps) or lost > 0 or (name.startswith("pool") and took_s > 1.10 * least + 2.0)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
