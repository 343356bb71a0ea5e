"""The mutation run on a module of a few lines: which faults are made, that one is planted and caught, and what counts as equivalent."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_toys import CALLS, SOUND, Inputs, toy

from harness.errors import HostError
from harness.kernels.kernel import Kernel, Params
from harness.kernels.mutants import hunting
from harness.kernels.mutants.__main__ import rate, told
from harness.kernels.mutants.edits import expression_faults
from harness.kernels.mutants.forked import forked
from harness.kernels.mutants.hunting import Fate, Ground, hunted, sample
from harness.kernels.mutants.planting import Mutant, mutant_by_text, mutants_of, plant, source_of
from harness.kernels.mutants.proofs import CURATED, PROOFS, Proof
from harness.kernels.mutants.reach import Question, Reach, answer, reach
from harness.kernels.mutants.statements import statement_faults
from harness.kernels.mutants.syntax import Tree

TARGET = '''"""What is under test."""
import torch

TABLE = {"norm": 1, "other": 2}


def norm(x, w, eps=1e-6):
    """Not a fault's place: 1 + 1."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    same = torch.ones(3).sum()
    return (x * scale * w).to(x.dtype)


def unused(a, b):
    if a < b:
        raise ValueError(f"never {a + b}")
    return a, b
'''


def candidate(given: Inputs, params: Params) -> Inputs:
    CALLS["norm"] += 1
    module: Any = importlib.import_module("mutant_target.norms")
    return {"y": module.norm(given["x"], given["w"])}


KERNEL: Kernel = toy("target", candidate=candidate, tries=4, quick_tries=2)
QUESTION = Question(KERNEL, "fp32")


@pytest.fixture(autouse=True)
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "mutant_target"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "norms.py").write_text(TARGET, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.startswith("mutant_target")]:
        monkeypatch.delitem(sys.modules, name)
    torch.set_num_threads(1)
    source_of.cache_clear()
    return package / "norms.py"


def ground(path: Path) -> Ground:
    lines = frozenset(range(7, 12))
    return Ground((QUESTION,), {QUESTION.name: Reach({str(path): lines}, 0.1, "")}, {}, ())


def changes(source: str) -> set[tuple[str, str, str]]:
    tree = Tree(source)
    return {(edit.kind, source[edit.start : edit.end], edit.text) for edit in (*expression_faults(tree), *statement_faults(tree))}


@pytest.mark.parametrize(
    ("source", "kind", "before", "after"),
    [
        ("def f(x): return x * 3", "constant changed", "3", "4"),
        ("def f(x): return x + 1e-6", "eps changed", "1e-6", "1e-05"),
        ("def f(x): return g(x, epsilon=x.eps)", "eps changed", "x.eps", "10 * (x.eps)"),
        ("def f(x): return -x", "sign flipped", "-x", "(x)"),
        ("def f(x): return exp(x)", "sign flipped", "x", "-(x)"),
        ("def f(x, y): return x - y", "operator swapped", "x - y", "((x) + (y))"),
        ("def f(x, y): return x - y", "term dropped", "x - y", "(x)"),
        ("def f(x, y): return x < y", "comparison off by one", "x < y", "((x) <= (y))"),
        ("def f(x, y): return x < y", "mask shifted", "x < y", "((x) < (y) - 1)"),
        ("def f(x): return x is None", "comparison turned", "x is None", "((x) is not (None))"),
        ("def f(x): return g(x, dim=x)", "argument dropped", "g(x, dim=x)", "g(x)"),
        ("def f(x, y): return g(x, y)", "arguments swapped", "g(x, y)", "g(y, x)"),
        ("def f(x): return x.sum(-1)", "axis changed", "-1", "0"),
        ("def f(x): return g(x, dim=1)", "axis changed", "1", "0"),
        ("def f(x, y):\n if x: y = 1\n return y", "branch inverted", "x", "(not (x))"),
        ("def f(x): return x.transpose(1, 2)", "transpose removed", "x.transpose(1, 2)", "x"),
        ("def f(x): return torch.transpose(x, 1, 2)", "transpose removed", "torch.transpose(x, 1, 2)", "x"),
        ("def f(x): return x.to(torch.float32)", "cast removed", "x.to(torch.float32)", "x"),
        ("def f(p): return tl.load(p)", "cast added", "tl.load(p)", "tl.load(p).to(tl.float16)"),
        ("def f(x, scale): return x * scale", "scale dropped", "x * scale", "(x)"),
        ("def f(x): return x[1:]", "index offset", "1", "2"),
        ("def f(x, y):\n x += y\n return x", "accumulator not added to", "x += y", "x = y"),
        ("def f(x, y): return x, y", "return value swapped", "x, y", "y, x"),
        ("def f(x):\n x = x.t()\n return x", "stale variable", "x = x.t()", "pass"),
        ("def f(n):\n for i in range(n): g(i)", "loop cut early", "range(n)", "range((n) - 1)"),
        ("def f(n):\n for i in range(n): g(i)", "loop begun late", "range(n)", "range(1, n)"),
        ("def f(p, x): tl.store(p, x)", "step left out", "tl.store(p, x)", "pass"),
        ("def f(a, b, c): return tl.where(a, b, c)", "mask dropped", "tl.where(a, b, c)", "(b)"),
        ("def f(x): return torch.zeros(x)", "other function", "torch.zeros", "torch.ones"),
        ("def f(x): return g(x, flag=True)", "flag turned", "True", "False"),
        ("def f(x, y): return x and y", "and for or", "x and y", "((x) or (y))"),
        ('T = {"a": 1, "b": 2}', "entry left out", '{"a": 1, "b": 2}', '{"b": 2}'),
    ],
)
def test_each_operator_makes_its_fault(source: str, kind: str, before: str, after: str) -> None:
    assert (kind, before, after) in changes(source)


def test_texts_launches_types_and_decorators_are_no_place_for_a_fault() -> None:
    silent = '''
@decorated(num_warps=4)
def f(x: Annotated[int, 3]) -> Annotated[int, 4]:
    """Adds 1 + 1."""
    logger.info("a" + x)
    assert x < 3, x + 1
    raise ValueError(x + 1)
'''
    assert changes(silent) == set()
    assert not any(kind == "constant changed" for kind, _, _ in changes("def f(x):\n BT = 64\n g(x, num_warps=4)"))


def test_every_mutant_compiles_and_has_a_name_of_its_own(target: Path) -> None:
    made = mutants_of("mutant_target.norms")
    assert len(made) > 15 and len({mutant.name for mutant in made}) == len(made)
    for mutant in made:
        compile(mutant.source, mutant.file, "exec")
        assert mutant.source != TARGET and mutant.file == "mutant_target/norms.py"
    assert {mutant.function for mutant in made} == {"", "norm", "unused"}
    assert {mutant.line for mutant in mutants_of("mutant_target.norms", [9])} == {9}
    assert [mutant.name for mutant in mutants_of("mutant_target.norms")] == [mutant.name for mutant in made]


def test_a_module_that_is_not_installed_and_a_text_that_is_not_there_are_named() -> None:
    with pytest.raises(HostError, match="isn't installed"):
        source_of("mutant_target.absent")
    assert mutant_by_text("x", "mutant_target.norms", "curated", "x * scale", "x + scale").line == 11
    with pytest.raises(HostError, match="stands there 0 times"):
        mutant_by_text("x", "mutant_target.norms", "curated", "nowhere", "y")


def test_a_planted_module_is_imported_and_the_installed_file_stays_as_it_is(target: Path, tmp_path: Path) -> None:
    plant("mutant_target.norms", TARGET.replace("eps=1e-6", "eps=5.0"), tmp_path)
    module: Any = importlib.import_module("mutant_target.norms")
    assert module.norm.__defaults__ == (5.0,) and target.read_text(encoding="utf-8") == TARGET
    with pytest.raises(HostError, match="was imported before"):
        plant("mutant_target.norms", TARGET, tmp_path)


def test_what_a_question_reaches_is_told_by_lines(target: Path) -> None:
    (ended,) = forked([QUESTION], lambda question: reach(question, lambda file: file == str(target)), 1, lambda task: 60.0)
    assert ended.result is not None and ended.result.said == "" and ended.died == ""
    assert {9, 10, 11} <= ended.result.lines[str(target)] and not {15, 16, 17} & ended.result.lines[str(target)]


def outcomes(mutants: list[Mutant], path: Path, folder: Path) -> dict[str, Fate]:
    return {fate.mutant.name: fate for fate in hunted(mutants, ground(path), 2, folder)}


def test_faults_are_caught_survive_or_are_equivalent_each_with_its_reason(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hunting, "PROOFS", (Proof("mutant_target.norms", "proved", "torch.ones(3).sum()", "torch.ones(3)", "nothing reads it"),)
    )
    texts = {
        "caught": ("x * scale * w", "x * scale"),
        "dies": ("x.square()", "x.squared()"),
        "equivalent": ("torch.ones(3).sum()", "torch.ones(4).sum()"),
        "proved": ("torch.ones(3).sum()", "torch.ones(3)"),
        "within": ("x * scale * w", "x * scale * w * (1 + 1e-7)"),
        "unreached": ("if a < b:", "if a > b:"),
        "hangs": ("same = torch.ones(3).sum()", "while True: pass"),
    }
    monkeypatch.setattr(hunting, "_LEAST_S", 20.0)
    monkeypatch.setattr(hunting, "LEAST", 60)
    mutants = [mutant_by_text(name, "mutant_target.norms", "curated", before, after) for name, (before, after) in texts.items()]
    fates = outcomes(mutants, target, tmp_path)
    said = {name: f"{fate.outcome} {fate.said}" for name, fate in fates.items()}
    assert fates["caught"].by == "toy.target-fp32" and fates["caught"].cases == 1 and "to the golden" in said["caught"]
    assert "has no attribute 'squared'" in said["dies"]
    assert said["equivalent"] == "equivalent bit-equal on 60 inputs"
    assert said["proved"] == "equivalent proved: nothing reads it"
    assert said["within"].startswith("survived differs within the limits: toy.target-fp32")
    assert said["unreached"] == "survived no case reaches this line"
    assert said["hangs"].startswith("killed no end within ")
    assert rate(list(fates.values())) == pytest.approx(3 / 5)
    assert told(list(fates.values()))[-1] == "7 mutants of 1 kinds: 3 of 5 caught (60.0%), 2 equivalent"


def test_a_mutant_that_could_not_be_planted_is_no_mutant_caught(target: Path, tmp_path: Path) -> None:
    importlib.import_module("mutant_target.norms")
    mutant = mutant_by_text("late", "mutant_target.norms", "curated", "x * scale * w", "x * scale")
    with pytest.raises(HostError, match="late could not be planted"):
        outcomes([mutant], target, tmp_path)


def test_what_imports_the_code_under_test_is_not_imported_beforehand(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target.parent / "aside.py").touch()
    (target.parent / "through.py").write_text("from mutant_target.direct import *", encoding="utf-8")
    (target.parent / "direct.py").write_text("import under_test", encoding="utf-8")
    (target.parent.parent / "under_test.py").touch()
    monkeypatch.setattr(hunting, "FAMILIES", ("under_test",))
    names = ["mutant_target.direct", "mutant_target.aside", "mutant_target.through", "no_such_module"]
    assert hunting._innocent(names) == ["mutant_target.aside", "no_such_module"]
    assert "under_test" not in sys.modules


def test_a_thousand_cases_are_different_inputs_and_a_kernel_that_dies_alike_is_the_same(target: Path) -> None:
    from harness.kernels.mutants.sameness import cases_for, compare, fingerprints

    cases = cases_for([QUESTION])
    assert len(cases) == 1000 and len({json.dumps([case.params, case.seed], sort_keys=True) for _, case in cases}) == 1000
    few = cases[:5]
    right = list(fingerprints(few))
    assert len(set(right)) == 5 and compare(few, right).compared == 5
    assert compare(few, [right[0], right[0]]).compared == 1 and "toy.target-fp32" in compare(few, [right[0], right[0]]).differs
    assert cases_for([]) == []


def test_a_known_failure_that_is_gone_and_a_sound_kernel_are_told_apart() -> None:
    from kernel_toys import KNOWN, SMALL

    mended = toy("mended", examples=(*SOUND.examples, *SMALL), known=(KNOWN,))
    assert answer(Question(mended, "fp32", KNOWN), quick=True) == ("the known failure is gone", 1)
    assert answer(Question(mended, "fp32"), quick=True)[0] == ""


def test_children_answer_die_or_are_ended_in_time_and_no_more_at_once_than_allowed() -> None:
    def work(task: str) -> str:
        if task == "slow":
            time.sleep(60)
        if task == "dies":
            os._exit(3)
        if task == "raises":
            raise ValueError("said so\nand more")
        return task.upper()

    began = time.monotonic()
    ended = {one.task: (one.result, one.died) for one in forked(["a", "slow", "dies", "raises", "b"], work, 2, lambda task: 1.5)}
    assert time.monotonic() - began < 30
    assert ended["a"] == ("A", "") and ended["b"] == ("B", "")
    assert ended["slow"] == (None, "no end within 2 s") and ended["dies"] == (None, "died without a word (exit code 3)")
    assert ended["raises"][1].startswith("ValueError at ") and ended["raises"][1].endswith("said so")


def test_a_sample_is_spread_over_functions_and_kinds_and_the_same_for_a_seed() -> None:
    made = mutants_of("mutant_target.norms")
    chosen = sample(made, 8, 1)
    assert chosen == sample(made, 8, 1) != sample(made, 8, 2)
    assert len({mutant.kind for mutant in chosen}) >= 6 and {mutant.function for mutant in chosen} == {"", "norm", "unused"}
    assert len(sample(made, 10**6, 0)) == len(made)


@pytest.mark.swift
def test_the_curated_faults_and_the_proofs_are_those_of_the_installed_version() -> None:
    curated = [mutant_by_text(one.name, one.module, one.kind, one.before, one.after) for one in CURATED]
    assert len({mutant.kind for mutant in curated}) >= 6 and all(mutant.compiles for mutant in curated)
    made = {mutant.name: mutant for module in {proof.module for proof in PROOFS} for mutant in mutants_of(module)}
    assert [proof.name for proof in PROOFS if (made[proof.name].before, made[proof.name].after) != (proof.before, proof.after)] == []
