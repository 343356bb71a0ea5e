"""The versions that a page states, each with its line, what kind of statement it is, and for what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.docs_page import Fence, Page, Table
from harness.model import Word


class Role(Word):
    """INSTALL: a command installs it. RANGE: a table of versions asks for it. ADVICE: prose recommends it. EXAMPLE: prose else."""

    INSTALL = "install"
    RANGE = "range"
    ADVICE = "advice"
    EXAMPLE = "example"


@dataclass(frozen=True)
class Choice:
    """One version, or range of versions, and for what it holds (hardware, Python, CUDA: lower-case words; none: for everything)."""

    spec: SpecifierSet
    text: str
    holds_for: frozenset[str] = frozenset()

    @cached_property
    def pin(self) -> Version | None:
        """The version, where the choice is exactly one."""
        specs = list(self.spec)
        if len(specs) != 1 or specs[0].operator != "==" or specs[0].version.endswith("*"):
            return None
        return Version(specs[0].version)


@dataclass(frozen=True)
class Statement:
    """`group`: the block or table that it stands in (its first line; the own line in prose). `choices` are alternatives."""

    line: int
    package: str
    role: Role
    choices: tuple[Choice, ...]
    group: int


_PACKAGES = (
    ("vllm-ascend", r"vllm[-_ ]ascend"), ("vllm", r"vllm"), ("torch_npu", r"torch[-_]npu"), ("torchvision", r"torchvision"),
    ("torch", r"(?:py)?torch"), ("transformers", r"transformers"), ("cann", r"cann(?:[- ]toolkit)?"), ("python", r"python"),
    ("mindspeed", r"mindspeed"), ("megatron-core", r"megatron[-_]core"), ("triton-ascend", r"triton[-_ ]ascend"),
    ("flash-linear-attention", r"flash[-_]linear[-_]attention"), ("deepspeed", r"deepspeed"), ("ms-swift", r"ms[-_]swift"),
    ("peft", r"peft"), ("accelerate", r"accelerate"), ("trl", r"trl"), ("modelscope", r"modelscope"), ("mcore-bridge", r"mcore[-_]bridge"),
)  # fmt: skip
_NAME = "|".join(f"(?P<p{number}>{pattern})" for number, (_, pattern) in enumerate(_PACKAGES))
_VERSION = r"v?(?P<v>\d+(?:\.(?:\d+|\*|x))+(?:[.-]?(?:rc|post|dev|a|b|alpha|beta)\.?\d+)*)"
_ONE = rf"(?P<op>>=|<=|==|~=|!=|>|<|=|≥|≤)?\s*{_VERSION}(?![\w-])(?:\s*[(（](?P<for>[^()（）]*)[)）])?"
_LISTED = _ONE.replace("?P<op>", "").replace("?P<v>", "").replace("?P<for>", "")
_SPOKEN = re.compile(
    rf"(?<![\w./:@-])(?:{_NAME})(?:\s*(?:版本|version))?\s*(?P<list>(?:{_LISTED}(?:\s*[,，/、]\s*|\s+|(?=[<>=]))?)+)", re.IGNORECASE
)
_EACH = re.compile(_ONE, re.IGNORECASE)
_REQUIREMENT = re.compile(r"^[\"']?([A-Za-z][\w.-]*)(?:\[[\w,-]*\])?((?:\s*(?:===?|>=|<=|~=|!=|<|>)\s*[\w.*+!-]+,?)+)[\"']?$")
_PIP = re.compile(r"(?<!\w)(?:pip3?|uv)\s+(?:pip\s+)?install\s+(.*)")
_CONDA = re.compile(r"(?<!\w)conda\s+create\b.{0,200}?\bpython\s*={1,2}\s*(\d+\.\d+)")
_URL = re.compile(r"(?:(?<![a-z+])[a-z+]{2,16}://|www\.)[^\s)>\]\"'`，。；、（）]+")
_HOLDS_FOR = re.compile(
    r"(?<![\w-])(?:a2|a3|a5|910\w*|310\w*|950\w*|x86(?:_64)?|aarch64|arm(?:64)?|cu\d+|cuda ?\d[\d.]*|py(?:thon)? ?3\.?\d+|rocm|gpu|npu"
    r"|cann ?\d[\w.]*)(?![A-Za-z0-9])",
    re.IGNORECASE | re.ASCII,
)
_ADVICE = re.compile(r"推荐|建议|请安装|要求|需要安装|recommend|require|must be|please install", re.IGNORECASE)
_EXAMPLE = re.compile(
    r"验证|对齐|实验|例如|为例|示例|标签|镜像|verified|tested|validated|aligned|example|e\.g\.|image|tag|experiment", re.IGNORECASE
)
_SOFTWARE = re.compile(r"software|package|library|dependenc|component|软件|依赖|组件|库|包", re.IGNORECASE)
_VERSIONS = re.compile(r"version|range|版本|范围", re.IGNORECASE)


def statements(page: Page) -> tuple[Statement, ...]:
    """Every version that the page states, in the order of its lines."""
    found = [said for fence in page.fences for said in _in_fence(fence)]
    found += [said for table in page.tables for said in _in_table(table)]
    for number, text in page.prose:
        text = _URL.sub(" ", text)
        found += _installed(number, text, number, "") if _PIP.search(text) or _CONDA.search(text) else _in_prose(number, text)
    return tuple(sorted(found, key=lambda said: said.line))


def _in_fence(fence: Fence) -> Iterator[Statement]:
    """What `pip install` and `conda create` install, and lines of requirements. A comment says what the lines below it hold for."""
    comment = ""
    goes_on = False
    for number, text in fence.body:
        line = _URL.sub(" ", text)
        code, hash_sign, said = line.partition("#") if line.lstrip().startswith("#") or " #" in line else (line, "", "")
        if hash_sign and not code.strip():
            comment = said
            continue
        yield from _installed(number, f"pip install {code}" if goes_on else code, fence.line, f"{comment} {said}")
        goes_on = code.rstrip().endswith("\\") and (goes_on or _PIP.search(code) is not None)


def _installed(number: int, code: str, group: int, remark: str) -> Iterator[Statement]:
    holds_for = frozenset(match[0].lower().replace(" ", "") for match in _HOLDS_FOR.finditer(remark))
    if conda := _CONDA.search(code):
        yield Statement(number, "python", Role.INSTALL, (Choice(SpecifierSet(f"=={conda[1]}.*"), conda[1], holds_for),), group)
    pip = _PIP.search(code)
    words = re.findall(r"\"[^\"]*\"|'[^']*'|\S+", re.split(r"&&|;|\|", pip[1])[0]) if pip else [code.strip()]
    for word in words:
        requirement = _REQUIREMENT.match(word.strip("`，。,"))
        if requirement and (spec := _spec(requirement[2])) is not None:
            package = canonical(requirement[1])
            yield Statement(number, package, Role.INSTALL, (Choice(spec, f"{requirement[1]}{requirement[2]}", holds_for),), group)


def _in_table(table: Table) -> Iterator[Statement]:
    """The rows of a table of versions: its first column names software, a later one versions."""
    if not table.columns or not _SOFTWARE.search(table.columns[0]):
        return
    at = next((number for number, column in enumerate(table.columns) if number and _VERSIONS.search(column)), None)
    if at is None:
        return
    for row in table.rows:
        package = canonical(re.sub(r"[*`]|\(.*", "", row.cells[0]).strip()) if row.cells else ""
        if package in dict(_PACKAGES) and at < len(row.cells):
            choices = _choices(row.cells[at])
            if choices:
                yield Statement(row.line, package, Role.RANGE, choices, table.line)


def _in_prose(number: int, text: str) -> Iterator[Statement]:
    advice = bool(_ADVICE.search(text)) and not _EXAMPLE.search(text)
    for match in _SPOKEN.finditer(text):
        package = next(name for at, (name, _) in enumerate(_PACKAGES) if match[f"p{at}"])
        if choices := _choices(match["list"]):
            ranged = any(choice.pin is None for choice in choices)
            yield Statement(number, package, Role.ADVICE if advice and not ranged else Role.EXAMPLE, choices, number)


def _choices(text: str) -> tuple[Choice, ...]:
    """`>= 3.10, < 3.12` is one range; `0.18.0(A3) 0.19.1(A5)` and `2.7.1/2.9.0` are two choices."""
    found = [(match["op"] or "", match["v"], match["for"] or "") for match in _EACH.finditer(text)]
    bounds = [(operator, version) for operator, version, _ in found if operator not in ("", "=", "==")]
    if bounds:
        spec = _spec(",".join(f"{operator}{version}" for operator, version in bounds))
        return (Choice(spec, text.strip()),) if spec is not None else ()
    choices = []
    for _, version, holds_for in found:
        words = frozenset(match[0].lower().replace(" ", "") for match in _HOLDS_FOR.finditer(holds_for))
        # `torch 2.7` in words is any 2.7.
        if (spec := _spec(f"=={version}" + ".*" * (version.count(".") == 1 and version.replace(".", "").isdigit()))) is not None:
            choices.append(Choice(spec, version, words))
    return tuple(choices)


def _spec(text: str) -> SpecifierSet | None:
    text = text.replace("≥", ">=").replace("≤", "<=").replace(".x", ".*").replace(" ", "").replace("===", "==").strip(",")
    try:
        spec = SpecifierSet(re.sub(r"(?<![=<>~!])=(?!=)", "==", text))
        for each in spec:
            Version(each.version.removesuffix(".*"))
    except (InvalidSpecifier, InvalidVersion):
        return None
    return spec


def canonical(name: str) -> str:
    """One spelling for a package: `torch-npu`, `Torch_NPU` and `torch_npu` are the same."""
    return next((known for known, pattern in _PACKAGES if re.fullmatch(pattern, name, re.IGNORECASE)), name.lower().replace("_", "-"))


@lru_cache(maxsize=4096)
def overlap(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether some version satisfies both; tried on the bounds of both, and just beside them."""
    bounds = [Version(spec.version.removesuffix(".*")) for spec in (*one, *other)]
    tried: list[Version] = []
    for bound in bounds:
        release: Sequence[int] = bound.release
        counted = max((at for at, number in enumerate(release) if number), default=0)
        below = (*release[:counted], max(0, release[counted] - 1), 999)
        above = (*release[:-1], release[-1] + 1)
        tried += [bound, *(Version(".".join(map(str, numbers))) for numbers in (below, above, (*release, 1)))]
    return any(one.contains(version, prereleases=True) and other.contains(version, prereleases=True) for version in tried)
