"""The stand-in torch_npu against the real one, as its wheel was dumped; and the comparison itself, which must notice what it is for."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sim.build import cache_folder, can_build
from harness.sim.environment import sim_environment
from harness.sim.operators import DIFFERENTIABLE, OPERATORS
from harness.sim.surface import samples
from harness.sim.surface.accepted import ACCEPTED
from harness.sim.surface.called import ASKED_AT_RUN_TIME, CallSite, call_sites, names_called
from harness.sim.surface.compare import DIFFERENT, EXTRA, MISSING, Accepted, Difference, differences, outdated, unlisted
from harness.sim.surface.describe import parameters
from harness.sim.surface.signatures import why_refused
from harness.sim.surface.stub_cann import needed_libraries, undefined_symbols

FOLDER = Path(samples.__file__).parent
LIBRARIES = ("swift", "transformers", "accelerate", "deepspeed", "trl", "peft")
# Every package has these.
OF_ANY_PACKAGE = {"torch_npu.__file__", "torch_npu.__path__", "torch_npu.__version__"}


@cache
def real() -> Any:
    return json.loads(next(FOLDER.glob("torch_npu-*.json")).read_text())


def reference() -> dict[str, Any]:
    """The reference operators as a surface of their own: all that is known of a stand-in without building one."""
    described = {name: {"overloads": {"": parameters(function)}, "autograd": DIFFERENTIABLE[name]} for name, function in OPERATORS.items()}
    return {"modules": real()["modules"], "tensor": real()["tensor"], "operators": described}


def test_every_reference_operator_has_the_parameters_defaults_and_gradient_of_the_real_one() -> None:
    assert set(OPERATORS) == set(real()["operators"]) == set(samples.OPERATORS)
    assert differences(real(), reference()) == []


@pytest.mark.parametrize("sample", samples.calls("cpu"))
def test_every_reference_operator_gives_the_shapes_and_dtypes_of_the_real_meta_kernel(sample: str) -> None:
    recorded = real()["outputs"][sample]
    assert "refused" not in recorded, recorded
    operator, arguments, named = samples.calls("cpu")[sample]
    assert samples.outcome(OPERATORS[operator](*arguments, **named)) == recorded


def changed(change: Any) -> list[Difference]:
    ours = copy.deepcopy(reference())
    change(ours)
    return differences(real(), ours)


def test_a_renamed_parameter_is_noticed() -> None:
    def rename(ours: Any) -> None:
        ours["operators"]["npu_rms_norm"]["overloads"][""][2]["name"] = "eps"

    assert changed(rename) == [
        Difference(
            DIFFERENT, "torch_npu.npu_rms_norm", "parameters (input, gamma, epsilon) in the real one, (input, gamma, eps) in the stand-in"
        )
    ]


@pytest.mark.parametrize("key", ["kind", "default"])
def test_a_changed_default_and_a_keyword_that_became_positional_are_noticed(key: str) -> None:
    def alter(ours: Any) -> None:
        parameter = next(p for p in ours["operators"]["npu_grouped_matmul"]["overloads"][""] if p["name"] == "split_item")
        parameter[key] = "positional_or_keyword" if key == "kind" else 2

    [found] = changed(alter)
    assert (found.kind, found.name) == (DIFFERENT, "torch_npu.npu_grouped_matmul")
    assert "split_item" in found.detail


def test_a_gradient_that_only_one_side_has_is_noticed() -> None:
    def alter(ours: Any) -> None:
        ours["operators"]["npu_grouped_matmul"]["autograd"] = True

    [found] = changed(alter)
    assert "gradient: False in the real one, True in the stand-in" in found.detail


def test_an_overload_with_a_parameter_that_the_stand_in_lacks_is_noticed() -> None:
    there = copy.deepcopy(real())
    there["operators"]["npu_swiglu"]["overloads"]["More"] = [{"name": "limit", "kind": "keyword_only"}]
    assert [d.detail for d in differences(there, reference())] == ["parameter limit of an overload is unknown here"]


@given(st.sampled_from(sorted(real()["modules"]["torch.npu"])), st.booleans())
def test_a_name_that_is_taken_away_or_invented_is_noticed_unless_it_is_private(name: str, invent: bool) -> None:
    def alter(ours: Any) -> None:
        ours["modules"] = copy.deepcopy(ours["modules"])
        if invent:
            ours["modules"]["torch.npu"]["invented_" + name] = {"kind": "value"}
        else:
            del ours["modules"]["torch.npu"][name]

    found = changed(alter)
    if invent:
        assert found == [Difference(EXTRA, f"torch.npu.invented_{name}", "only the stand-in has it")]
    else:
        assert [d.kind for d in found] == ([] if name.startswith("_") else [MISSING])


def test_the_table_covers_by_pattern_and_an_entry_without_a_use_is_told() -> None:
    found = [Difference(MISSING, "torch.npu.graph", ""), Difference(EXTRA, "torch.npu.x", "")]
    table = (Accepted(MISSING, "torch.npu.*", "because", but_not=("torch.npu.graph",)), Accepted(EXTRA, "torch.npu.*", "because"))
    assert unlisted(found, table) == found[:1]
    assert outdated(found, table) == [table[0]]


def test_every_accepted_difference_has_a_because() -> None:
    assert all(len(entry.because) > 10 for entry in ACCEPTED)


def test_names_are_found_through_aliases_getattr_and_imports() -> None:
    source = """
import torch, torch_npu as tn
from torch_npu import npu_fusion_attention as attention
from torch_npu.utils import patch_getenv
def f(q):
    torch_npu.npu.set_device(0)
    if hasattr(torch.npu, "npurt"):
        tn.npu_swiglu(q)
    return torch.npu.amp.autocast, getattr(patch_getenv, "_log_once"), other.torch_npu.x
"""
    assert names_called(source) == {
        "torch.npu.set_device",
        "torch.npu.npurt",
        "torch.npu.amp",
        "torch.npu.amp.autocast",
        "torch_npu.npu_swiglu",
        "torch_npu.npu_fusion_attention",
        "torch_npu.utils.patch_getenv",
        "torch_npu.utils.patch_getenv._log_once",
    }


@cache
def sources() -> dict[str, str]:
    """The files of the installed libraries that name torch_npu or torch.npu."""
    found: dict[str, str] = {}
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        for path in Path(spec.origin).parent.rglob("*.py") if spec and spec.origin else ():
            source = path.read_bytes()
            if b"torch_npu" in source or b"torch.npu" in source:
                found[str(path)] = source.decode()
    return found


@cache
def called() -> dict[str, list[str]]:
    """Name to the files of the installed libraries that use it."""
    users: dict[str, list[str]] = defaultdict(list)
    for path, source in sources().items():
        for name in names_called(source) - OF_ANY_PACKAGE:
            users[name].append(path)
    return dict(users)


def has(surface: Any, name: str) -> bool:
    """Whether a module of the surface has the name, or the first part of it: attributes of its objects aren't known."""
    for module, entries in surface["modules"].items():
        if name == module and entries is not None:
            return True
        if name.startswith(module + ".") and (entries or {}).get(name[len(module) + 1 :].split(".")[0]):
            return True
    return False


def test_the_real_torch_npu_has_every_name_that_the_installed_libraries_use() -> None:
    missing = {name: users for name, users in called().items() if not has(real(), name)}
    assert missing == {}
    assert [name for name in ASKED_AT_RUN_TIME if not has(real(), name)] == []


def test_every_call_of_an_operator_in_the_installed_libraries_fits_the_real_schema() -> None:
    sites = [(path, site) for path, source in sources().items() for site in call_sites(source) if site.operator in samples.OPERATORS]
    refused = {
        f"{path}:{site.line}": why for path, site in sites if (why := why_refused(operator_of(site), site.positional, site.keywords))
    }
    assert refused == {}
    assert len(sites) >= 20


def operator_of(site: CallSite) -> Any:
    return real()["operators"][site.operator]


def test_a_call_is_read_where_its_arguments_stand_and_judged_by_every_overload() -> None:
    source = """
import torch_npu
from torch_npu import npu_rms_norm as norm
norm(x, w, epsilon=1e-6)[0]
torch_npu.npu_rms_norm(x, w, eps=1e-6)
torch_npu.npu_grouped_matmul([x], [w], group_list=g, tuning_config=None)
torch_npu.npu_grouped_matmul([x], [w], None)
torch_npu.npu_swiglu(*x)
torch_npu.npu_swiglu(**x)
torch_npu.npu.set_device(0)
other.npu_swiglu(x, y, z)
"""
    sites = call_sites(source)
    assert [(site.operator, site.line, site.positional, site.keywords) for site in sites] == [
        ("npu_rms_norm", 4, 2, ("epsilon",)),
        ("npu_rms_norm", 5, 2, ("eps",)),
        ("npu_grouped_matmul", 6, 2, ("group_list", "tuning_config")),
        ("npu_grouped_matmul", 7, 3, ()),
    ]
    said = [why_refused(operator_of(site), site.positional, site.keywords) for site in sites]
    assert said[0] == said[2] == ""
    assert "eps" in said[1]
    assert "too many positional arguments" in said[3]


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The stand-in's surface, from a process of its own. The extension is built once a torch, where other tests build it too."""
    because = can_build()
    if because:
        pytest.skip(because)
    target = tmp_path_factory.mktemp("surface") / "standin.json"
    environment = {**os.environ, **sim_environment((0,), cache_folder())}
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parents[2]), environment["PYTHONPATH"]])
    code = (
        "import json, sys, torch, torch_npu\n"
        "from harness.sim.surface.describe import describe\n"
        "names, probe = json.loads(sys.argv[2])\n"
        "json.dump(describe(names, probe), open(sys.argv[1], 'w'))\n"
    )
    asked = json.dumps([samples.OPERATORS, {module: list(entries or ()) for module, entries in real()["modules"].items()}])
    done = subprocess.run([sys.executable, "-c", code, str(target), asked], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(target.read_text())


def test_the_stand_in_differs_from_the_real_one_only_where_the_table_says_so(standin: Any) -> None:
    found = differences(real(), standin)
    assert unlisted(found, ACCEPTED) == []
    assert outdated(found, ACCEPTED) == []


def test_the_stand_in_has_every_name_that_the_libraries_use_or_the_table_names_it(standin: Any) -> None:
    named = {entry.names for entry in ACCEPTED if entry.kind == MISSING}
    wanted = sorted({*called(), *ASKED_AT_RUN_TIME})
    missing = [name for name in wanted if not has(standin, name) and not any(name == n or name.startswith(n + ".") for n in named)]
    assert missing == []


def test_libraries_and_symbols_are_read_from_what_the_tools_print() -> None:
    assert needed_libraries(" 0x0001 (NEEDED)  Shared library: [libhccl.so]\n 0x000e (SONAME) Library soname: [x.so]\n") == {"libhccl.so"}
    listing = "\nlibtorch_npu.so:\n    U aclrtMalloc\n    U malloc@GLIBC_2.2.5\n    U rtKernelLaunch\n    w __cxa\n"
    assert undefined_symbols(listing) == {"aclrtMalloc", "rtKernelLaunch"}
