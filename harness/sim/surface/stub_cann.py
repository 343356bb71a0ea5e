"""Empty shared objects in place of CANN's, so that the real torch_npu can be imported where no CANN is, to be looked at and no more."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

# What the wheel expects from CANN and the driver: C functions, told by their prefix.
CANN_SYMBOL = re.compile(r"^(acl|rt[A-Z]|Msprof|Hccl|Hal|hal|ge[A-Z]|tdt)\w*$")
SYSTEM_LIBRARY = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-linux)")


def needed_libraries(listing: str) -> set[str]:
    """Library names in what `readelf -d` prints."""
    return set(re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", listing))


def undefined_symbols(listing: str) -> set[str]:
    """Symbols in what `nm -D --undefined-only` prints that CANN would define."""
    names = (line.split()[-1].split("@")[0] for line in listing.splitlines() if " U " in f" {line.strip()} ")
    return {name for name in names if CANN_SYMBOL.match(name)}


def build(objects: Iterable[Path], shipped: Iterable[str], folder: Path) -> Mapping[str, str]:
    """Write the stand-ins and the empty folders that the import looks for under `folder`; gives the environment to import with.

    `objects`: the wheel's own shared objects; `shipped`: names of libraries that it or torch brings. Needs nm, readelf and a C compiler.
    """
    paths = [str(path) for path in objects]
    missing = {name for name in needed_libraries(_output("readelf", "-d", *paths)) if not SYSTEM_LIBRARY.match(name)} - set(shipped)
    symbols = undefined_symbols(_output("nm", "-D", "--undefined-only", *paths))
    source = folder / "stub.c"
    for part in ("home/runtime", "home/compiler", "opp"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for library in sorted(missing):
        # All symbols in each library: whichever the loader asks first answers.
        source.write_text("".join(f"long {symbol}(void) {{ return 0; }}\n" for symbol in sorted(symbols)))
        _output("cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", "-o", str(folder / library), str(source))
    return {
        "LD_LIBRARY_PATH": str(folder),
        "ASCEND_HOME_PATH": str(folder / "home"),
        "ASCEND_OPP_PATH": str(folder / "opp"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
