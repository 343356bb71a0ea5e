"""CUDA_VISIBLE_DEVICES on a page about NPUs: torch_npu does not read it, so the process sees every NPU of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.docs_check_facts import Finding, Kind
from harness.docs_page import Page

_NPU = re.compile(r"(?<![A-Za-z])(?:NPU|Ascend|MindSpeed)(?![A-Za-z])|昇腾", re.IGNORECASE)
_OF_NPU_ONLY = re.compile(r"ASCEND_RT_VISIBLE_DEVICES|\bHCCL_\w+=|PYTORCH_NPU_ALLOC_CONF|set_env\.sh|torch_npu")
_ASSIGNED = re.compile(
    r"(?<![\w-])(?:export\s+)?CUDA_VISIBLE_DEVICES\s*=(?!=)|environ(?:\.setdefault\(|\[)\s*[\"']CUDA_VISIBLE_DEVICES[\"']"
    r"|(?:-e|--env)[ =]CUDA_VISIBLE_DEVICES"
)
_NOT_SO = re.compile(r"ASCEND_RT_VISIBLE_DEVICES|instead of|rather than|not read|ignore|不是|而非|无效|不生效|不要|替换|改为|改成|对应")


def is_about_npus(page: Page, path: str) -> bool:
    """By its title, by its path, or because it chooses NPUs rather than GPUs by variables."""
    if re.search(r"(?:^|[\W_])(?:npu|ascend)(?=[\W_]|$)", path.lower()):
        return True
    if any(_NPU.search(title) for title in _titles(page)):
        return True
    text = "\n".join(page.lines)
    npu, cuda = len(re.findall("ASCEND_RT_VISIBLE_DEVICES", text)), len(_ASSIGNED.findall(text))
    return npu > cuda or (not page.prose and _OF_NPU_ONLY.search(text) is not None)


def _titles(page: Page) -> list[str]:
    """The first heading, and the first words if they may be one: in plain text a comment of some code reads like a heading."""
    first = next((text for _, text in page.prose if text.strip()), "")
    return [heading.title for heading in page.headings[:1] if heading.line <= 10] + ([first] if len(first) < 60 else [])


def check_devices(page: Page, path: str) -> Iterator[Finding]:
    """Every place of an NPU page where CUDA_VISIBLE_DEVICES is set; prose that warns of it is none."""
    if not is_about_npus(page, path):
        return
    code = {number for fence in page.fences for number, _ in fence.body}
    sections = _sections(page)
    for number, text in enumerate(page.lines, 1):
        if not _ASSIGNED.search(text) or text.lstrip().startswith(("#", "//")):
            continue
        if number in code and _for_gpus(text, sections.get(number, "")):
            continue
        if number not in code and _NOT_SO.search(text):
            continue
        because = "CUDA_VISIBLE_DEVICES is set on a page about NPUs, where it chooses nothing: all NPUs of the host stay visible"
        yield Finding(number, Kind.DEVICE, because, "Write ASCEND_RT_VISIBLE_DEVICES.")


def _for_gpus(text: str, heading: str) -> bool:
    return bool(re.search(r"GPU|CUDA|NVIDIA", heading)) and not _NPU.search(heading) and "npu" not in text.lower()


def _sections(page: Page) -> dict[int, str]:
    """The title that each line stands under."""
    found: dict[int, str] = {}
    marks = [*page.headings]
    for at, heading in enumerate(marks):
        end = marks[at + 1].line if at + 1 < len(marks) else len(page.lines) + 1
        found |= dict.fromkeys(range(heading.line, end), heading.title)
    return found
