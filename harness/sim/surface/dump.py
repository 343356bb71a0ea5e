"""Write the real wheel's surface: `python -m harness.sim.surface.dump FOLDER`, in an environment that has torch_npu and no CANN."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import stub_cann

INSIDE = "HARNESS_SURFACE_INSIDE"


def main(folder: Path) -> int:
    if os.environ.get(INSIDE):
        return _describe_into(folder)
    root = _package("torch_npu")
    objects = [*root.glob("*.so"), *root.glob("lib/*.so")]
    shipped = [path.name for package in (root, _package("torch")) for path in package.glob("**/*.so*")]
    with tempfile.TemporaryDirectory() as stubs:
        environment = stub_cann.build(objects, shipped, Path(stubs))
        command = [sys.executable, "-m", "harness.sim.surface.dump", str(folder)]
        return subprocess.run(command, env={**os.environ, **environment, INSIDE: "1"}, check=False).returncode


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} isn't installed here. Run this in an environment of its own, with torch_npu and the torch that it pins.")
    return Path(spec.origin).parent


def _describe_into(folder: Path) -> int:
    from .describe import describe
    from .samples import OPERATORS, outputs_on_meta

    surface = {**describe(OPERATORS), "outputs": outputs_on_meta()}
    target = folder / f"torch_npu-{surface['torch_npu']}.json"
    target.write_text(json.dumps(surface, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {sum(len(m or {}) for m in surface['modules'].values())} names, {len(surface['operators'])} operators")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
