"""Write the stand-ins as executables into a folder that a test puts on PATH."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]

_SCRIPT = '''#!{python} -E
import os, sys
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # one thread: sums are then added in one order, and many fakes fit on two cores
sys.path.insert(0, {tests!r})
import json
settings = json.loads({settings!r})
words = sys.argv[1:]
from fakes.honest.program import {entry}
sys.exit({entry}(words, settings, {lie!r}))
'''

_ABSENT = '''#!{python} -E
import sys
print("{name}: this stand-in starts nothing", file=sys.stderr)
sys.exit(1)
'''


def install(bin_dir: Path, lie: str | None = None, **settings: Any) -> Path:
    """Write `swift`, `accelerate` and `megatron` into `bin_dir` (created), and return the path of `swift`.

    `lie`: a name of fakes.liars.LIES. `settings` (plain JSON values) reach the habits: device ("cpu" or "npu"), models (a folder that
    stands in for every model of a hub), datasets (a folder of <kind>.jsonl that stand in for its data sets), rate_scale (steps this many
    times longer than --learning_rate says: a model this small learns slowly at a large one's rate), longest (tokens of an answer),
    as_stored (--torch_dtype is ignored).
    """
    bin_dir.mkdir(parents=True, exist_ok=True)
    fill = {"python": sys.executable, "tests": str(TESTS), "lie": lie}
    shown = json.dumps(settings)
    swift = write_executable(bin_dir / "swift", _SCRIPT.format(**fill, settings=shown, entry="run"))
    write_executable(bin_dir / "accelerate", _SCRIPT.format(**fill, settings=shown, entry="accelerate"))
    write_executable(bin_dir / "megatron", _ABSENT.format(**fill, name="megatron"))
    return swift


def write_executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path
