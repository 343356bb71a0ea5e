"""What the simulated device must not have, because the real one has not: every CPU operator would work otherwise.

    NPU_MATRIX_SIM_DENY=dtype:float64,op:aten::histc,attribute:torch.npu.mem_get_info
    NPU_MATRIX_SIM_DENY=@/path/to/a/file       one entry a line, # begins a comment

An operator is denied with all its overloads (`aten::histc`) or one of them (`aten::histc.out`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_libraries: list[Any] = []


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
        for overload in _overloads(name, torch):
            _libraries.append(_deny_operator(overload, torch))
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


def _overloads(name: str, torch: Any) -> list[str]:
    base, _, overload = name.partition(".")
    known = [full for full in torch._C._dispatch_get_all_op_names() if full == name or (not overload and full.partition(".")[0] == base)]
    if not known:
        raise DenialError(f"op:{name}: torch has no such operator. Write its namespace too: aten::histc")
    return known


def _deny_operator(full_name: str, torch: Any) -> Any:
    """A kernel of the device that raises as a missing one does. It holds as long as the library that is returned."""
    namespace, _, name = full_name.partition("::")

    def denied(*_: Any, **__: Any) -> None:
        raise NotImplementedError(
            f"Could not run '{full_name}' with arguments from the 'npu' backend: it is on the deny list of this SIMULATED NPU"
        )

    library = torch.library.Library(namespace, "IMPL")
    library.impl(name, denied, "PrivateUse1", allow_override=True)
    return library
