"""Two surfaces side by side. Pure: what `describe` gave goes in, differences come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"


@dataclass(frozen=True, order=True)
class Difference:
    """`name` is dotted: torch.npu.memory_allocated, torch_npu.npu_swiglu. `detail` says what is where."""

    kind: str
    name: str
    detail: str


@dataclass(frozen=True)
class Accepted:
    """A difference that is known and meant. `names` is a pattern with *, `but_not` patterns that it doesn't cover."""

    kind: str
    names: str
    because: str
    but_not: tuple[str, ...] = ()

    def covers(self, difference: Difference) -> bool:
        fits = self.kind == difference.kind and fnmatchcase(difference.name, self.names)
        return fits and not any(fnmatchcase(difference.name, pattern) for pattern in self.but_not)


def differences(real: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    """Of every module, tensor method and operator. A private name counts only where both have it."""
    found: list[Difference] = []
    for module, entries in real["modules"].items():
        found += _of_module(module, entries or {}, ours["modules"].get(module))
    for name in sorted({*real["tensor"], *ours["tensor"]}):
        found += _presence(f"torch.Tensor.{name}", name in real["tensor"], name in ours["tensor"])
    for name, operator in real["operators"].items():
        if name in ours["operators"]:
            found += _of_operator(f"torch_npu.{name}", operator, ours["operators"][name])
    return sorted(found)


def unlisted(found: Iterable[Difference], accepted: Sequence[Accepted]) -> list[Difference]:
    """Differences that no entry of the table covers."""
    return [difference for difference in found if not any(entry.covers(difference) for entry in accepted)]


def outdated(found: Iterable[Difference], accepted: Sequence[Accepted]) -> list[Accepted]:
    """Entries of the table that cover nothing any more."""
    differences_found = list(found)
    return [entry for entry in accepted if not any(entry.covers(difference) for difference in differences_found)]


def _of_module(module: str, real: Mapping[str, Any], ours: Mapping[str, Any] | None) -> list[Difference]:
    if ours is None:
        return [Difference(MISSING, module, "the module")]
    found: list[Difference] = []
    for name in sorted({*real, *ours}):
        if name.startswith("_") and not (name in real and name in ours):
            continue
        found += _presence(f"{module}.{name}", name in real, name in ours)
        if name in real and name in ours:
            found += _of_entry(f"{module}.{name}", real[name], ours[name])
    return found


def _presence(name: str, in_real: bool, in_ours: bool) -> list[Difference]:
    if in_real == in_ours:
        return []
    return [Difference(MISSING, name, "only the real one has it") if in_real else Difference(EXTRA, name, "only the stand-in has it")]


def _of_entry(name: str, real: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    # An operator is a packet there and a function here; its parameters are compared apart.
    kinds = {real["kind"], ours["kind"]}
    if len(kinds) > 1 and kinds != {"operator", "function"}:
        return [Difference(DIFFERENT, name, f"{real['kind']} in the real one, {ours['kind']} in the stand-in")]
    if kinds == {"class"}:
        members, here = set(real["members"] or ()), set(ours["members"] or ())
        return [d for member in sorted(members | here) for d in _presence(f"{name}.{member}", member in members, member in here)]
    if kinds == {"function"} and real["parameters"] is not None and ours["parameters"] is not None:
        return _of_parameters(name, real["parameters"], ours["parameters"])
    return []


def _of_operator(name: str, real: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    """The stand-in has one signature. It is held against the overload with most parameters, and must know those of the others."""
    overloads = list(real["overloads"].values())
    mine = next(iter(ours["overloads"].values()))
    widest = max(overloads, key=len)
    found = _of_parameters(name, widest, mine)
    known = {p["name"] for p in mine}
    for overload in (other for other in overloads if other is not widest):
        unknown = [p["name"] for p in overload if p["name"] not in known]
        found += [Difference(DIFFERENT, name, f"parameter {p} of an overload is unknown here") for p in unknown]
    if None not in (real["autograd"], ours["autograd"]) and real["autograd"] != ours["autograd"]:
        found.append(Difference(DIFFERENT, name, f"has a gradient: {real['autograd']} in the real one, {ours['autograd']} in the stand-in"))
    return found


def _of_parameters(name: str, real: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> list[Difference]:
    if [p["name"] for p in real] != [p["name"] for p in ours]:
        return [Difference(DIFFERENT, name, f"parameters {_listed(real)} in the real one, {_listed(ours)} in the stand-in")]
    found = []
    for there, here in zip(real, ours, strict=True):
        if there != here:
            found.append(
                Difference(DIFFERENT, name, f"parameter {there['name']}: {_told(there)} in the real one, {_told(here)} in the stand-in")
            )
    return found


def _listed(parameters: Sequence[Mapping[str, Any]]) -> str:
    return "(" + ", ".join(p["name"] for p in parameters) + ")"


def _told(parameter: Mapping[str, Any]) -> str:
    default = f"default {parameter['default']!r}" if "default" in parameter else "no default"
    return f"{parameter['kind'].replace('_', ' ')}, {default}"
