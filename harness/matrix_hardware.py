"""Names of devices must tell one hardware from another: a pattern that fits two of them would let one stand for the other."""

from __future__ import annotations

from harness.matrix_schema import MatrixShape
from harness.matrix_text import Source


def check_hardware(source: Source, shape: MatrixShape) -> None:
    """Raises MatrixError for a chip or device name that two kinds of hardware share."""
    for field in ("chips", "device_names"):
        seen: list[tuple[str, str]] = []
        for target, hardware in shape.hardware.items():
            names: list[str] = getattr(hardware, field)
            for number, name in enumerate(names):
                other = next(((t, n) for t, n in seen if t != target and _overlap(name, n)), None)
                if other is not None:
                    what = f"{name!r} of {target} and {other[1]!r} of {other[0]} fit the same device."
                    raise source.refuse(("hardware", target, field, number), what, "Let each name fit one hardware only.")
            seen += [(target, name) for name in names]


def _overlap(one: str, other: str) -> bool:
    """Whether some name fits both; a pattern is a name, or the beginning of one before a `*`."""
    if one.endswith("*") and other.endswith("*"):
        return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
    if other.endswith("*"):
        return one.startswith(other[:-1])
    return other.startswith(one[:-1]) if one.endswith("*") else one == other
