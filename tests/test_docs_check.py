"""docs check: what a page says that is not so, each with its line, and nothing about what is so."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.docs_check import Facts, check_page, page_of
from harness.docs_check_facts import Finding, Kind
from harness.docs_check_installed import Installed
from harness.docs_page import Page
from harness.errors import HarnessError, HostError
from harness.matrix import parse_matrix
from harness.model import Hardware, Mark, MarkKind

ROOT = Path(__file__).resolve().parent.parent
PAGES = Path(__file__).resolve().parent / "docs"
MATRIX = parse_matrix((ROOT / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")
CELL = "sft-qwen3_8b-lora-zero3"
SFT = """# NPU支持
### 已验证 SFT 组合

| algorithm | model families | strategy | hardware |
| --- | --- | --- | --- |
| SFT | Qwen3-8B | FSDP1/FSDP2/deepspeed | Atlas 900 A2 PODc |
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout of ms-swift with as much as the pages of these tests speak of."""
    files = {
        "swift/__init__.py": "from .version import __version__\n",
        "swift/version.py": "__version__ = '9'\n",
        "swift/model/__init__.py": "from .register import get_model\n",
        "swift/model/register.py": "def get_model(name): ...\n",
        "swift/megatron/__init__.py": "",
        "swift/megatron/init.py": "def init_megatron_env(): ...\n",
        "swift/megatron/trainers/base.py": (
            "class Base:\n    def train(self, a, b):\n        x = 1\n        return x\n\n"
            "    def train_step(self, train_data_iterator):\n        args = self.args\n        return args\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "checkout"


def check(text: str, source: Path, path: str = "page.md", **facts: object) -> list[Finding]:
    wanted = Facts(MATRIX, Installed(source), lambda page: (), **facts)  # type: ignore[arg-type]
    return [finding for finding in check_page(page_of(text.encode(), path), path, wanted) if not finding.note]


def told(findings: list[Finding]) -> list[tuple[int, Kind]]:
    return [(finding.line, finding.kind) for finding in findings]


def mark(kind: MarkKind, hardware: Hardware) -> Mark:
    return Mark(CELL, Hardware.A2, kind, "loss is nan", "verified", hardware, "2026-11-30", {}, ())


def test_the_megatron_page_is_told_its_gone_file_its_old_signature_and_the_variable_of_gpus(source: Path) -> None:
    found = check((PAGES / "megatron_ascend.zh.md").read_text(encoding="utf-8"), source)
    assert told(found) == [(45, Kind.PATH), (145, Kind.QUOTE), (175, Kind.DEVICE)]
    assert "swift/megatron/model/mm_gpt_model.py" in found[0].message
    assert "train_step(self, forward_step_func, data_iterator" in found[1].message
    assert "train_step(self, train_data_iterator) on line 6" in found[1].message


def test_a_page_without_faults_gives_nothing(source: Path) -> None:
    page = """# NPU guide

Use `ASCEND_RT_VISIBLE_DEVICES` instead of `CUDA_VISIBLE_DEVICES`; see [below](#how-it-runs).

| software | version |
| --- | --- |
| torch | >= 2.7.1 |

Verified with torch 2.9.0 + torch_npu 2.9.0. vllm-ascend 0.18.0 (A3), 0.19.1 (A5).

## How it runs

```shell
pip install torch==2.9.0 torch_npu==2.9.0   # the example
ASCEND_RT_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen3-0.6B
```

The function `train_step` in `swift/megatron/trainers/base.py` calls `swift.megatron.init.init_megatron_env`. Before:

```python
def train_step(self, train_data_iterator):
    args = self.args
    ...
```

After:

```python
from swift.model import get_model
def train_step(self, train_data_iterator, mine):
    return mine
```
"""
    assert check(page, source) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("修改 swift/megatron/model/gone.py 文件", Kind.PATH),
        ("modify gone.py in the source of ms-swift", Kind.PATH),
        ("`swift.model.chunk_gated_delta_rule` is patched", Kind.NAME),
        ("from swift.model import (get_model, get_gone)", Kind.NAME),
        ("python -c 'import swift.llm'", Kind.NAME),
        ("torch.npu.devices_count()", Kind.NAME),
        ("修改 swift/megatron/trainers/base.py 文件中的 gone 函数", Kind.QUOTE),
        ("the `gone` function in `swift/megatron/trainers/base.py`", Kind.QUOTE),
        ("CUDA_VISIBLE_DEVICES=0 swift sft", Kind.DEVICE),
        ("[x](#nowhere)", Kind.LINK),
        ("pip install vllm==0.18.0 vllm-ascend==0.14.0rc1", Kind.VERSION),
        ("```shell\nswift sft", Kind.PAGE),
        ("| a | b |\n|--|--|\n| 1 |", Kind.TABLE),
    ],
)
@pytest.mark.parametrize("page", ["# NPU support\n\nText.\n\n", "# NPU支持\n\n文字。\n\n"])
def test_a_planted_fault_is_found_with_its_line(page: str, line: str, kind: Kind, source: Path) -> None:
    assert [finding.kind for finding in check(page, source)] == []
    (found,) = check(page + line + "\n", source)
    assert (found.line, found.kind) == (5 + (2 if kind is Kind.TABLE else 0), kind)


@pytest.mark.parametrize(
    "line",
    [
        "`swift.llm` was removed; use swift.model",
        "ModuleNotFoundError: No module named 'swift.llm'",
        "https://swift.readthedocs.io/zh-cn/latest/a.html and modelscope.cn, swift.xxx, swift/self-cognition#500",
        "--deepspeed deepspeed.json --external_plugins examples/my_plugin.py",
        "see the corresponding function in `swift/megatron/trainers/base.py`",
        "# CUDA_VISIBLE_DEVICES=0 does nothing here",
        "torch.cuda.current_device() and torch.randn(2, device='npu:0')",
        "docker pull quay.io/ascend/ms-swift:v4.3.0-A2-py311-CANN9.0.0-ubuntu22.04",
        "mindspeed.ops.triton.cumsum is MindSpeed's",
    ],
)
def test_what_only_looks_like_a_fault_is_none(line: str, source: Path) -> None:
    assert check(f"# NPU support\n\n{line}\n", source) == []


def test_a_body_that_is_quoted_as_it_is_not_is_told_at_the_statement(source: Path) -> None:
    page = "修改 swift/megatron/trainers/base.py 中的 train 函数，修改前：\n\ndef train(self, a, b):\n    x = 1\n    y = 2\n    # ...\n"
    (found,) = check(page, source)
    assert (found.line, found.kind) == (5, Kind.QUOTE) and "'y = 2'" in found.message


def test_a_row_without_a_cell_and_a_claim_without_a_row_are_told(source: Path) -> None:
    rows = SFT + "| SFT | Qwen3-9B | DDP | Atlas 900 A2 PODc |\n| SFT | Qwen3-32B | pipeline | Atlas 900 A2 PODc |\n"
    found = check(rows, source, "NPU-support.md")
    assert [finding.line for finding in found if "Qwen3-9B" in finding.message] == [7]
    assert [finding.line for finding in found if "pipeline" in finding.message] == [8]
    gone = [finding for finding in found if finding.line == 4]
    assert any("Qwen2.5-0.5B-Instruct" in finding.message for finding in gone) and all(f.kind is Kind.ROW for f in gone)
    assert not any("'SFT | Qwen3-8B |" in finding.message for finding in found)


def test_the_same_table_on_another_page_need_not_have_every_row(source: Path) -> None:
    assert check(SFT.replace("# NPU支持", "# 训练"), source, "other.md") == []


def test_only_evidence_of_the_hardware_itself_contradicts_a_claim(source: Path) -> None:
    page = SFT.replace("# NPU支持", "# 训练")
    key = (CELL, Hardware.A2)
    (found,) = check(page, source, marks={key: mark(MarkKind.FAILING, Hardware.A2)})
    assert (found.line, found.kind) == (6, Kind.EVIDENCE) and "loss is nan" in found.message
    assert check(page, source, marks={key: mark(MarkKind.FAILING, Hardware.SIM)}) == []
    assert check(page, source, marks={key: mark(MarkKind.UNTESTED, Hardware.CPU)}) == []
    facts = Facts(MATRIX, Installed(source), lambda page: (), {key: mark(MarkKind.SIMULATED, Hardware.SIM)})
    (note,) = check_page(page_of(page.encode(), "other.md"), "other.md", facts)
    assert note.note and "1 claims of this table have no current evidence of their hardware: 1 simulated" in note.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "page.md: is empty"),
        (b"\xef\xbb\xbf \n", "page.md: is empty"),
        (b"a\nb\nc \xff\n", "page.md:3: is no UTF-8"),
        (b"\x7fELF\0\0", "page.md: is no text"),
    ],
)
def test_what_is_no_page_is_refused_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(HarnessError) as error:
        page_of(data, "page.md")
    assert str(error.value).startswith(words) and error.value.exit_code == 2


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["docs", "check", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "matrix.yaml").write_text((ROOT / "matrix.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("harness.door_docs.check_commands", lambda page: ())  # it imports ms-swift: tests of its own
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_door_prints_nothing_for_a_page_without_faults_and_notes_if_asked(
    repository: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("page.md").write_text("# NPU\n\n| software | version |\n|--|--|\n| torch | >= 2.7.1 |\n\ntorch 2.9.0 is tested\n")
    assert run(capsys, "page.md", "--source", str(source)) == (0, "", "")
    code, out, _ = run(capsys, "page.md", "--source", str(source), "--notes")
    assert code == 0 and out.startswith("page.md:5: note: version: torch >= 2.7.1 is a minimum; 2.9.0 (line 7) satisfies it")


def test_the_door_tells_faults_for_people_and_machines(repository: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.md").write_text("# NPU\nCUDA_VISIBLE_DEVICES=0 swift sft\n")
    code, out, _ = run(capsys, "a.md", "--source", str(source))
    assert code == 1 and out.startswith("a.md:2: device: ") and out.count("\n") == 1
    code, out, _ = run(capsys, "a.md", "--source", str(source), "--json")
    (found,) = json.loads(out)["findings"]
    assert code == 1 and (found["file"], found["line"], found["kind"], found["note"]) == ("a.md", 2, "device", False)


def test_files_that_are_no_pages_are_refused_and_the_others_are_checked_all_the_same(
    repository: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.md").write_text("# NPU\nCUDA_VISIBLE_DEVICES=0 swift sft\n")
    Path("b.bin").write_bytes(b"\0\1")
    code, out, err = run(capsys, "gone.md", ".", "b.bin", "a.md", "--source", str(source))
    assert code == 2 and out.startswith("a.md:2:")
    assert [line.split(": ")[1] for line in err.splitlines()] == ["gone.md", ".", "b.bin"]
    code, _, err = run(capsys, "a.md", "--source", str(repository))
    assert code == 2 and "is not a checkout of ms-swift" in err


def test_without_ms_swift_the_rest_is_checked_and_that_is_said(
    repository: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(page: Page) -> tuple[Finding, ...]:
        raise HostError("swift", "can't be imported.", "Install it.")

    monkeypatch.setattr("harness.door_docs.check_commands", refuse)
    Path("a.md").write_text("# NPU\nCUDA_VISIBLE_DEVICES=0 swift sft\n")
    code, out, err = run(capsys, "a.md", "--source", str(source))
    assert code == 5 and out.startswith("a.md:2: device: ") and err == "error: swift: can't be imported. Install it.\n"


@pytest.mark.swift
@pytest.mark.skipif(importlib.util.find_spec("swift") is None, reason="ms-swift is not installed")
def test_the_megatron_page_is_told_the_flags_that_ms_swift_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["docs", "check", str(PAGES / "megatron_ascend.zh.md"), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    commands = {row["line"]: row["message"] for row in found if row["kind"] == "command" and not row["note"]}
    assert code == 1 and set(commands) == {177, 184}
    assert "--mcore_model" in commands[177] and "--bias_swiglu_fusion" in commands[184]


def test_a_script_is_one_block_of_shell(repository: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train_npu.sh").write_text("# CUDA_VISIBLE_DEVICES=1\nNPROC_PER_NODE=2 \\\nCUDA_VISIBLE_DEVICES=0,1 \\\nswift sft\n")
    code, out, _ = run(capsys, "train_npu.sh", "--source", str(source))
    assert code == 1 and out.startswith("train_npu.sh:3: device: ")


@pytest.mark.parametrize(
    "text",
    [
        "a" * 20000, "[a](" * 5000, "swift/" * 5000 + "x.py", "`a` function " * 2000, "torch " + "1.0 " * 5000, "conda create " * 5000,
        "+-+\n| a |\n" * 2000, "pip install " + "torch==1 " * 5000, "```sh\n" * 3000, "# a\n" * 5000, "http://" * 5000, "def f(\n" * 2000,
        "(" * 5000, "<!--" * 5000, "|" * 20000, "from swift import (\n" * 300,
    ],
    ids=range(16),
)  # fmt: skip
def test_a_page_made_to_be_slow_is_read_in_seconds(text: str, source: Path) -> None:
    start = time.process_time()
    check(f"# NPU\n{text}\n```shell\n{text}\n```\n", source)
    assert time.process_time() - start < 5
