"""A REHEARSAL, no result: the kernels of torch_npu's operators with the stand-in's operators on a CPU in place of an NPU's.

Passing shows that golden and stand-in, two formulations that share nothing, agree; failing on planted faults, that the cases would
notice them on an NPU. On an NPU the very same kernels run, unchanged.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from operator_faults import FAULTS, Fault

from harness.kernels.candidates_operators import kernels
from harness.kernels.explore import ParityError, explore
from harness.kernels.kernel import Kernel
from harness.kernels.npu import INSTALL, LAYS, STEPPED, TURNED, Operators, why_no_npu
from harness.sim.operators import DIFFERENTIABLE, OPERATORS
from harness.sim.surface import samples
from harness.sim.surface.signatures import why_refused


@cache
def recorded() -> Any:
    return json.loads(next(Path(samples.__file__).parent.glob("torch_npu-*.json")).read_text())["operators"]


def accepted_by_the_real_one(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises TypeError for a call that no overload takes."""
    if because := why_refused(recorded()[name], len(arguments), named):
        raise TypeError(f"{name}: {because}")


def checked(find: Callable[[str], Callable[..., Any]]) -> Callable[[str], Callable[..., Any]]:
    def found(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            accepted_by_the_real_one(name, arguments, named)
            return find(name)(*arguments, **named)

        return call

    return found


def rehearsed(find: Callable[[str], Callable[..., Any]] = OPERATORS.__getitem__) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in kernels(Operators(checked(find), "cpu", str))}


def small(kernel: Kernel) -> Kernel:
    """Without the examples in a model's widths, which take as long as all others."""
    return replace(kernel, examples=tuple(params for params in kernel.examples if largest(params) < 256))


def largest(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return max((largest(item) for item in value), default=0)
    if isinstance(value, dict):
        return largest(list(value.values()))
    return value if isinstance(value, int) else 0


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


NAMES = tuple(rehearsed())


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, kernel in rehearsed().items() for dtype in kernel.dtypes])
def test_rehearsal_the_stand_in_agrees_with_the_golden(name: str, dtype: str) -> None:
    kernel = rehearsed()[name]
    found = explore(kernel if dtype == "bf16" else small(kernel), dtype)
    assert found.cases >= 20
    assert found.worst


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.noticed_by}: {fault.what}")
def test_rehearsal_a_planted_fault_is_caught_and_named(fault: Fault) -> None:
    kernel = small(rehearsed(fault.find)[fault.noticed_by])
    with pytest.raises(ParityError) as caught:
        explore(kernel, fault.dtype, shrink=False)
    assert str(caught.value).startswith(f"{fault.noticed_by} in {fault.dtype} (")
    assert "OperatorRefused" not in str(caught.value)  # by the comparison, not by the stand-in's own checks, which no NPU has
    assert f"pytest -m kernel_parity -k {fault.noticed_by}-{fault.dtype} --kernel-case" in str(caught.value)


def test_every_operator_has_a_kernel_and_several_planted_faults() -> None:
    planted = Counter(fault.operator for fault in FAULTS)
    assert set(planted) == set(OPERATORS) == {name for kernel in rehearsed().values() for name in kernel.must_run}
    assert min(planted.values()) >= 5
    assert {fault.noticed_by for fault in FAULTS} == set(NAMES)


def test_gradients_are_asked_for_exactly_where_the_real_wheel_registers_them() -> None:
    for kernel in rehearsed().values():
        [operator] = kernel.must_run
        assert bool(kernel.differentiable) == recorded()[operator]["autograd"] == DIFFERENTIABLE[operator]


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("npu_rms_norm", (1, 2), {"eps": 1e-6}),
        ("npu_grouped_matmul", ([1], [2], None), {}),
        ("npu_moe_token_unpermute", (1,), {}),
        ("npu_fusion_attention_grad", (1, 2, 3, 4, 8, "TND"), {"scale": 1.0}),
    ],
)
def test_a_call_that_the_real_operator_would_refuse_is_noticed(name: str, arguments: Any, named: Any) -> None:
    with pytest.raises(TypeError):
        accepted_by_the_real_one(name, arguments, named)


def test_a_candidate_that_calls_nothing_is_no_pass() -> None:
    kernel = small(rehearsed()["npu_swiglu"])
    with pytest.raises(ParityError, match="npu_swiglu never ran in the candidate"):
        explore(replace(kernel, candidate=kernel.golden), "fp32", quick=True)


@pytest.mark.parametrize("lay", LAYS)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_a_tensor_is_placed_as_asked_with_its_values_and_its_gradient(lay: str, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape, requires_grad=True)
    placed = Operators(device="cpu").place(value, lay)
    assert torch.equal(placed, value)
    contiguous = lay == "plain" or (lay == TURNED and len(shape) == 1) or (lay == "sliced" and len(shape) == 1)
    assert placed.is_contiguous() == contiguous
    assert lay != STEPPED or placed.stride(-1) == 2
    assert torch.equal(torch.autograd.grad((placed * 3).sum(), value)[0], torch.full(shape, 3.0))


# --- where there is no NPU


@pytest.fixture
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    why_no_npu.cache_clear()
    yield monkeypatch
    why_no_npu.cache_clear()


def package(folder: Path, source: str, version: str) -> Path:
    """A torch_npu to be found on the path, and its metadata."""
    (folder / "torch_npu").mkdir()
    (folder / "torch_npu" / "__init__.py").write_text(source)
    (folder / f"torch_npu-{version}.dist-info").mkdir()
    (folder / f"torch_npu-{version}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n")
    return folder


def found_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)


def test_without_torch_npu_the_kernels_do_not_run_and_say_what_to_install(asked_anew: pytest.MonkeyPatch) -> None:
    asked_anew.setattr(importlib.machinery.PathFinder, "find_spec", lambda name, *more: None)
    assert {kernel.missing() for kernel in kernels()} == {f"needs torch_npu and an NPU; {INSTALL}"}


def test_the_simulated_npu_counts_for_nothing(asked_anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found_first(asked_anew, package(tmp_path, "raise AssertionError('imported')", "2.13.0+sim"))
    assert "the stand-in of the simulated one (2.13.0+sim)" in why_no_npu()


def test_a_module_that_stands_in_counts_for_nothing(asked_anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found_first(asked_anew, package(tmp_path, "", "2.13.0"))
    asked_anew.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    assert "another module stands in for it" in why_no_npu()


def test_a_torch_npu_without_cann_is_told_with_what_it_said(asked_anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = "libhccl.so: cannot open shared object file"
    found_first(asked_anew, package(tmp_path, f"raise ImportError('{words}')", "2.13.0"))
    assert why_no_npu() == f"torch_npu 2.13.0 can't be used here (ImportError: {words}); check CANN and its set_env.sh"


@pytest.mark.parametrize(("count", "words"), [(0, "finds no NPU; check npu-smi info"), (2, "")])
def test_a_real_torch_npu_runs_where_it_finds_an_npu(asked_anew: pytest.MonkeyPatch, tmp_path: Path, count: int, words: str) -> None:
    found_first(asked_anew, package(tmp_path, "", "2.13.0"))
    device = ModuleType("torch.npu")
    device.device_count = lambda: count  # type: ignore[attr-defined]
    asked_anew.setattr(torch, "get_device_module", lambda name: device)
    assert words in why_no_npu() if words else why_no_npu() == ""
    sys.modules.pop("torch_npu", None)
