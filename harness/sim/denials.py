"""What the simulated device must not have, because the real one has not: every CPU operator would work otherwise.

    NPU_MATRIX_SIM_DENY=dtype:float64,op:aten::histc,attribute:torch.npu.mem_get_info
    NPU_MATRIX_SIM_DENY=@/path/to/a/file       one entry a line, # begins a comment

An operator is denied where it reaches the device's kernels: `aten::histc` with all overloads, or `aten::histc.out`. One that is only
composed of others never does, and is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Denials:
    dtypes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


class DenialError(ValueError):
    """An entry that denies nothing, which would pass for a device that lacks it."""


def parse_denials(text: str) -> Denials:
    """Raises DenialError for an entry of another form, and for a file that can't be read."""
    source = ""
    if text.startswith("@"):
        source = f"{text[1:]}: "
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise DenialError(f"{source}the deny list can't be read: {error}") from error
    entries = [entry.strip() for line in text.splitlines() for entry in line.split("#")[0].split(",")]
    kinds: dict[str, list[str]] = {"dtype": [], "op": [], "attribute": []}
    for entry in filter(None, entries):
        kind, _, name = entry.partition(":")
        if kind not in kinds or not name:
            raise DenialError(f"{source}{entry!r} is no denial. Write dtype:float64, op:aten::histc or attribute:torch.npu.mem_get_info.")
        kinds[kind].append(name)
    return Denials(tuple(kinds["dtype"]), tuple(kinds["op"]), tuple(kinds["attribute"]))


def apply_denials(denials: Denials, torch: Any, extension: Any, roots: dict[str, Any]) -> None:
    """Tell the extension, and take attributes off the modules in `roots` (by the name that entries begin with). Raises DenialError."""
    for name in denials.dtypes:
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise DenialError(f"dtype:{name}: torch has no such dtype")
        extension.deny_dtype(dtype)
    for name in denials.operators:
        _check_operator(name, torch)
        extension.deny_operator(name)
    for name in denials.attributes:
        root = next((prefix for prefix in sorted(roots, key=len, reverse=True) if name.startswith(prefix + ".")), None)
        if root is None:
            raise DenialError(f"attribute:{name}: it must begin with {' or '.join(roots)}")
        holder = roots[root]
        *path, last = name.removeprefix(root + ".").split(".")
        for part in path:
            holder = getattr(holder, part, None)
        if not hasattr(holder, last):
            raise DenialError(f"attribute:{name}: it isn't there to be denied")
        delattr(holder, last)


def _check_operator(name: str, torch: Any) -> None:
    base, _, overload = name.partition(".")
    names = torch._C._dispatch_get_all_op_names()
    overloads = [known for known in names if known == name or (not overload and (known == base or known.startswith(base + ".")))]
    if not overloads:
        raise DenialError(f"op:{name}: torch has no such operator. Write its namespace too: aten::histc")
    composed = [known for known in overloads if torch._C._dispatch_has_kernel_for_dispatch_key(known, "CompositeImplicitAutograd")]
    if len(composed) == len(overloads):
        raise DenialError(f"op:{name}: it is composed of other operators and never reaches the device; deny those")
