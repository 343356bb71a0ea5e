"""Versions of a page that contradict each other, or that no stack of matrix.yaml declares.

A minimum and an example that satisfies it contradict nothing, nor do versions that are said to hold for different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from harness.docs_check_facts import Finding, Kind
from harness.docs_check_versions_read import Choice, Role, Statement, canonical, overlap, statements
from harness.docs_page import Page
from harness.model import Matrix, Stack

# Each with each: more different ones of one package are on no real page.
_COMPARED = 200
_NEXT = "Give one version, or say what each holds for."
# Released together: the second is built for the version of the first.
_PAIRS = (("torch", "torch_npu"), ("vllm", "vllm-ascend"))


def check_versions(page: Page) -> Iterator[Finding]:
    """Contradictions within the page, and notes that tell minimum and example apart from them."""
    said = statements(page)
    for package in dict.fromkeys(statement.package for statement in said):
        mine = [statement for statement in said if statement.package == package]
        yield from _contradictions(mine)
        yield from _satisfied(mine)
    yield from _pairs(said)


def check_stacks(page: Page, stacks: Iterable[Stack], source: str) -> Iterator[Finding]:
    """What the page installs or asks for, held against the declared stacks: one of those that name the package must agree.

    `stacks`: those declared of this very document; `source`: the name of matrix.yaml.
    """
    declared: dict[str, list[tuple[str, SpecifierSet]]] = {}
    for stack in stacks:
        for name, spec in stack.requires.items():
            declared.setdefault(canonical(name), []).append((stack.key, SpecifierSet(spec)))
    for statement in statements(page):
        known = declared.get(statement.package)
        if not known or statement.role in (Role.EXAMPLE, Role.ADVICE):
            continue
        for choice in statement.choices:
            if not any(_agrees(statement, choice, spec) for _, spec in known):
                are = "; ".join(f"{key}: {spec}" for key, spec in known)
                because = f"{statement.package} {choice.text} is in no stack that {source} declares of this document ({are})"
                yield Finding(statement.line, Kind.VERSION, because, "Declare the stack, or write a version that is declared.")


def document_stacks(matrix: Matrix, title: str) -> tuple[Stack, ...]:
    """The stacks that are declared of the document of this title (their place is written as `title · section`)."""
    return tuple(stack for stack in matrix.stacks.values() if stack.document.partition(" · ")[0] == title)


def _agrees(statement: Statement, choice: Choice, spec: SpecifierSet) -> bool:
    """A range is declared word for word; a version may also be one that a declared range holds."""
    if choice.pin is None:
        return choice.spec == spec or (statement.role is Role.INSTALL and overlap(choice.spec, spec))
    return spec.contains(choice.pin, prereleases=True) and (statement.role is Role.INSTALL or choice.spec == spec)


def _contradictions(mine: Sequence[Statement]) -> Iterator[Finding]:
    """One finding for each statement that earlier (or, of a table, any) statements contradict, with their lines."""
    binding: list[Statement] = []
    said_before: set[tuple[Role, int, tuple[tuple[str, frozenset[str]], ...]]] = set()
    for statement in mine:
        what = (statement.role, statement.group, tuple((str(choice.spec), choice.holds_for) for choice in statement.choices))
        if statement.role is not Role.EXAMPLE and what not in said_before and len(binding) < _COMPARED:
            said_before.add(what)
            binding.append(statement)
    against: dict[int, list[Statement]] = {}
    for (at, one), (other_at, other) in combinations(enumerate(binding), 2):
        if _contradict(one, other):
            first_yields = other.role is Role.RANGE and one.role is not Role.RANGE
            against.setdefault(at if first_yields else other_at, []).append(other if first_yields else one)
    for later, others in ((binding[at], others) for at, others in against.items()):
        said = "; ".join(f"{_words(other)} on line {other.line}" for other in others[:4])
        said += f"; and {len(others) - 4} more" if len(others) > 4 else ""
        yield Finding(later.line, Kind.VERSION, f"{later.package}: {_words(later)} here, but {said}", _NEXT)


def _contradict(one: Statement, other: Statement) -> bool:
    if one.group == other.group and one.role is Role.INSTALL:
        return _told_apart(one, other) is None and one.choices[0].pin is not None and other.choices[0].pin not in (None, one.choices[0].pin)
    if Role.INSTALL in (one.role, other.role) and _open_install(one, other):
        return False
    pairs = [(mine, theirs) for mine in one.choices for theirs in other.choices if _comparable(mine, theirs)]
    return bool(pairs) and not any(overlap(mine.spec, theirs.spec) for mine, theirs in pairs)


def _open_install(one: Statement, other: Statement) -> bool:
    """`pip install "x>=1"` beside another install of x: each is for its own section."""
    both = one.role is other.role is Role.INSTALL
    return both and (one.choices[0].pin is None or other.choices[0].pin is None)


def _told_apart(one: Statement, other: Statement) -> str | None:
    """In one block: what a remark says each of the two holds for."""
    mine, theirs = one.choices[0].holds_for, other.choices[0].holds_for
    return "remark" if mine != theirs else None


def _comparable(one: Choice, other: Choice) -> bool:
    return not one.holds_for or not other.holds_for or bool(one.holds_for & other.holds_for)


def _satisfied(mine: Sequence[Statement]) -> Iterator[Finding]:
    """A note on each range: which versions of the page lie in it."""
    for ranged in mine:
        choice = ranged.choices[0]
        if ranged.role is not Role.RANGE or choice.pin is not None:
            continue
        pins = [(other, pin) for other in mine for each in other.choices if (pin := each.pin) is not None]
        inside = [(other, pin) for other, pin in pins if choice.spec.contains(pin, prereleases=True)]
        outside = [(other, pin) for other, pin in pins if (other, pin) not in inside and other.role is Role.EXAMPLE]
        if inside:
            what = "minimum" if ">" in str(choice.spec) else "range"
            because = f"{ranged.package} {choice.text} is a {what}; {_listed(inside)} satisfies it as an example: no contradiction"
            yield Finding(ranged.line, Kind.VERSION, because, note=True)
        for other, pin in outside:
            because = f"{other.package} {pin} is an example outside of {choice.text} (line {ranged.line})"
            yield Finding(other.line, Kind.VERSION, because, note=True)


def _listed(pins: Sequence[tuple[Statement, Version]]) -> str:
    versions = dict.fromkeys(str(pin) for _, pin in pins)
    at = {version: ", ".join(str(statement.line) for statement, pin in pins if str(pin) == version) for version in versions}
    return " and ".join(f"{version} (line {lines})" for version, lines in at.items())


def _pairs(said: Sequence[Statement]) -> Iterator[Finding]:
    """torch and torch_npu, vllm and vllm-ascend, where one block or one sentence gives each exactly one version, of two releases."""
    groups: dict[tuple[str, int], list[Statement]] = {}
    for statement in said:
        groups.setdefault((statement.package, statement.group), []).append(statement)
    for (package, group), ones in groups.items():
        others = next((groups.get((second, group), []) for first, second in _PAIRS if first == package), [])
        if len(ones) != 1 or len(others) != 1:
            continue
        one, other = ones[0], others[0]
        mine, theirs = (statement.choices[0].pin for statement in (one, other))
        single = len(one.choices) == len(other.choices) == 1 and _comparable(one.choices[0], other.choices[0])
        if single and mine and theirs and mine.release != theirs.release:
            because = f"{other.package} {theirs} is built for {one.package} {theirs.base_version}, not {mine} (line {one.line})"
            yield Finding(other.line, Kind.VERSION, because, "Give a pair that was released together.")


def _words(statement: Statement) -> str:
    return " / ".join(
        choice.text + (f" ({', '.join(sorted(choice.holds_for))})" if choice.holds_for else "") for choice in statement.choices
    )
