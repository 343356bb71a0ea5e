"""Versions that contradict each other are told with both lines; minimum, example and what holds for something else are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from harness.docs_check_facts import Finding
from harness.docs_check_versions import check_stacks, check_versions
from harness.docs_check_versions_read import Role, overlap, statements
from harness.docs_page import read_page
from harness.model import Stack

TABLE = "| software | version |\n|--|--|\n| Python | >= 3.10, < 3.12 |\n| torch | >= 2.7.1 |\n\n"
STACKS = (Stack("a", "page · x", {"torch": ">=2.7.1", "torch_npu": "==2.9.0"}, 45), Stack("b", "page · y", {"vllm-ascend": "==0.18.0"}, 45))


def faults(text: str) -> list[Finding]:
    return [finding for finding in check_versions(read_page(text)) if not finding.note]


def fence(*lines: str) -> str:
    return "```shell\n" + "\n".join(lines) + "\n```\n\n"


def test_two_sets_on_one_page_are_told_with_both_lines() -> None:
    page = fence("pip install vllm==0.18.0", "pip install vllm-ascend==0.18.0") + fence(
        "pip install vllm==0.14.0", "pip install vllm_ascend==0.14.0rc1"
    )
    first, second = faults(page)
    assert (first.line, second.line) == (7, 8)
    assert first.message == "vllm: vllm==0.14.0 here, but vllm==0.18.0 on line 2"
    assert second.message == "vllm-ascend: vllm_ascend==0.14.0rc1 here, but vllm-ascend==0.18.0 on line 3"


def test_a_minimum_and_an_example_that_satisfies_it_are_a_note() -> None:
    found = list(check_versions(read_page(TABLE + "验证版本：torch 2.9.0 + x\n\n" + fence("pip install torch==2.8.0"))))
    assert [(finding.line, finding.note) for finding in found] == [(4, True)]
    assert "2.9.0 (line 6) and 2.8.0 (line 9) satisfies it as an example: no contradiction" in found[0].message


def test_what_lies_outside_of_a_table_of_versions_is_told_where_it_is_installed() -> None:
    (first, second) = faults(TABLE + fence("conda create -n x python=3.12 -y", "pip install 'torch==2.5.1' decorator"))
    assert (first.line, second.line) == (7, 8)
    assert "here, but >= 3.10, < 3.12 on line 3" in first.message and "here, but >= 2.7.1 on line 4" in second.message


def test_two_tables_that_no_version_satisfies_are_told() -> None:
    (found,) = faults(TABLE + "| 软件 | 版本 |\n|--|--|\n| torch | == 2.5.1 |\n")
    assert found.line == 8 and "on line 4" in found.message


def test_recommended_versions_bind_and_verified_ones_are_examples() -> None:
    (found,) = faults(TABLE + "推荐 torch 2.5.1。\n")
    assert found.line == 6
    assert faults(TABLE + "在 torch 2.5.1 上验证过。\n") == []


@pytest.mark.parametrize("first, second", [("torch==2.9.0", "torch_npu==2.7.1"), ("vllm==0.18.0", "vllm-ascend==0.14.0rc1")])
def test_a_pair_of_two_releases_in_one_block_is_told(first: str, second: str) -> None:
    (found,) = faults(fence(f"pip install {first} \\", f"  {second}"))
    assert found.line == 3 and "is built for" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "推荐 vllm-ascend 0.18.0(A3) 0.19.1(A5)。\n\n" + fence("pip install vllm-ascend==0.18.0"),
        fence("# A3", "pip install vllm-ascend==0.18.0", "# A5", "pip install vllm-ascend==0.19.1"),
        fence("pip install torch==2.9.0  # cu128", "pip install torch==2.7.1  # cu118"),
        fence("pip install 'transformers>=4.57'") + fence("pip install 'transformers<4.50'"),
        fence("docker pull quay.io/ascend/ms-swift:v4.3.0-A2", "docker pull quay.io/ascend/ms-swift:v4.2.0-A2"),
        "see https://docs.vllm.ai/projects/ascend/en/v0.18.0/installation.html\n\n" + fence("pip install vllm==0.14.0"),
        "| model | requires |\n|--|--|\n| a | transformers>=5.0 |\n| b | transformers<4.50 |\n",
        TABLE + "torch 2.7 is fine, and torch_npu 2.9.0 too.\n",
        fence("pip install torch==2.7.1 torch_npu==2.7.1.post4"),
    ],
)
def test_versions_that_hold_for_different_things_contradict_nothing(text: str) -> None:
    assert faults(text) == []


def test_a_table_that_pins_a_pair_of_two_releases_is_told_and_one_of_ranges_is_not() -> None:
    page = "| component | version |\n|--|--|\n| torch | {} |\n| torch_npu | {} |\n"
    (found,) = faults(page.format("2.9.0", "2.8.0"))
    assert found.line == 4 and "is built for" in found.message
    assert faults(page.format("2.9.0", "2.9.0.post1")) == faults(page.format(">= 2.9.0", ">= 2.8.0")) == []


def test_versions_that_no_declared_stack_has_are_told() -> None:
    page = read_page(TABLE.replace("2.7.1", "2.6.0") + fence("pip install torch_npu==2.9.0 vllm-ascend==0.14.0", "pip install peft==1.0"))
    assert [(finding.line, finding.message.split(" is in no")[0]) for finding in check_stacks(page, STACKS, "matrix.yaml")] == [
        (4, "torch >= 2.6.0"),
        (7, "vllm-ascend vllm-ascend==0.14.0"),
    ]


def test_statements_say_what_they_are() -> None:
    page = read_page(TABLE + "建议 CANN9.0.0；torch_npu >= 2.7.1.post4\n" + fence("peft==0.17.0", "pip install -U 'trl>=0.20,<0.30'"))
    assert [(said.line, said.package, said.role, str(said.choices[0].spec)) for said in statements(page)] == [
        (3, "python", Role.RANGE, "<3.12,>=3.10"),
        (4, "torch", Role.RANGE, ">=2.7.1"),
        (6, "cann", Role.ADVICE, "==9.0.0"),
        (6, "torch_npu", Role.EXAMPLE, ">=2.7.1.post4"),
        (8, "peft", Role.INSTALL, "==0.17.0"),
        (9, "trl", Role.INSTALL, "<0.30,>=0.20"),
    ]


VERSIONS = st.builds(lambda a, b: f"{a}.{b}", st.integers(0, 3), st.integers(0, 3))
SPECS = st.lists(st.builds(lambda op, v: f"{op}{v}", st.sampled_from([">=", "<=", "<", ">", "=="]), VERSIONS), min_size=1, max_size=2)


@given(SPECS, SPECS)
def test_two_ranges_overlap_when_some_version_lies_in_both(one: list[str], other: list[str]) -> None:
    first, second = SpecifierSet(",".join(one)), SpecifierSet(",".join(other))
    tried = [f"{a}.{b}.{c}" for a in range(5) for b in range(5) for c in (0, 1, 5)]
    some = any(first.contains(version) and second.contains(version) for version in tried)
    assert not some or overlap(first, second)
    assert overlap(first, second) == overlap(second, first)


@given(st.text(alphabet="torch vllm-ascend>=<!~0123456789.rcpost(A3)，/ ", max_size=60))
def test_any_text_is_read(text: str) -> None:
    list(check_versions(read_page(text + "\n" + fence(f"pip install {text}") + f"| software | version |\n|--|--|\n| torch | {text} |\n")))
