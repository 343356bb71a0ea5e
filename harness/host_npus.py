"""What this host's npu-smi says, or outputs of another host's that were saved, as one MachineView."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import HarnessError, HostError
from harness.launch import resolve_program
from harness.machine import output_of, programs_path
from harness.npu_smi import merge, parse
from harness.npu_smi_view import MachineView

# The table, which die has which logical id, and how near they are. The rest of npu-smi asks one NPU at a time.
QUESTIONS = (("info",), ("info", "-m"), ("info", "-t", "topo"))
_LIMIT_S = 60
_MOST_BYTES = 2**20  # of a saved file; the output of a host with 16 dies has some 20 kB


def ask_host(root: Path | None = None, *, environment: Mapping[str, str] | None = None) -> MachineView:
    """Runs npu-smi three times, each at most 60 s. What a run that failed or was late said is in `errors`.

    Under a rehearsal the npu-smi is `root`'s. Raises HostError where there is no npu-smi on the search path.
    """
    environment = os.environ if environment is None else environment
    npu_smi = resolve_program("npu-smi", programs_path(root))
    if npu_smi is None:
        mend = "Put /usr/local/sbin on PATH, or mount npu-smi into the container; of another host give saved outputs: --from FILE."
        raise HostError("npu-smi", "there is none on the search path of this host.", mend)
    views: list[MachineView] = []
    for words in QUESTIONS:
        text, fault = output_of([str(npu_smi), *words], environment, root, _LIMIT_S)
        views.append(merge([parse(text), MachineView(errors=(f"npu-smi {' '.join(words)}: {fault}",) if fault else ())]))
    table, *details = views
    # Old drivers don't know every question: what they say to the details is no fault of a host whose table was read.
    return merge([table, *(view for view in details if not table.npus or view.npus or view.links)])


def read_saved(files: Sequence[str]) -> MachineView:
    """The outputs in these files, all of one host; `-` is the standard input. Raises HarnessError for a file that can't be read."""
    views = {name: parse(_text(name)) for name in files}
    if len(views) == 1:
        return merge(views.values())
    return merge(replace(view, errors=tuple(f"{name}: {error}" for error in view.errors)) for name, view in views.items())


def _text(name: str) -> str:
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(_MOST_BYTES)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(_MOST_BYTES)
    except (OSError, ValueError) as fault:
        raise HarnessError(f"--from {name}", f"can't be read: {fault}.", "Give a file with the output of npu-smi.") from fault
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # redirected by a Windows shell
        return raw.decode("utf-16", "replace")
    return raw.decode("utf-8", "replace")
