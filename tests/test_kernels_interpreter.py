"""How Triton is made ready for the kernel suite. Whether kernels are interpreted is decided once a process, so the tests on micro-kernels
(kernels_interpreted.py) and those of refusals each run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kernels.bfloat16 import narrow, truncate, widen

HERE = Path(__file__).resolve().parent


def child(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *words], cwd=HERE.parent, env=kept | environment, capture_output=True, text=True, timeout=300, check=False
    )


def told(code: str, **environment: str) -> str:
    """The last line of what a child says that runs `code`."""
    run = child("-c", code, **environment)
    return (run.stdout.strip() or run.stderr.strip()).splitlines()[-1]


def test_the_interpreter_computes_as_torch_does() -> None:
    pytest.importorskip("triton")
    run = child("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / "kernels_interpreted.py"))
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def test_a_triton_imported_before_is_refused_with_the_way_out() -> None:
    pytest.importorskip("triton")
    said = told("import triton, harness.kernels.interpreter as i\ntry: i.prepare()\nexcept i.HostError as e: print(e)")
    assert "was imported without TRITON_INTERPRET=1 before" in said and "pytest -m kernel_parity" in said


def test_a_triton_imported_for_the_interpreter_is_taken() -> None:
    pytest.importorskip("triton")
    code = "import triton, harness.kernels.interpreter as i\nprint(i.prepare().engine)"
    assert told(code, TRITON_INTERPRET="1") == "interpreted"


def test_a_host_whose_triton_drives_a_device_is_refused_and_left_as_it_was() -> None:
    pytest.importorskip("triton")
    code = (
        "import os, harness.kernels.interpreter as i\n"
        "i._active_drivers = lambda triton: ['nvidia']\n"
        "try: i.prepare()\n"
        "except i.HostError as e: print(e, 'TRITON_INTERPRET' in os.environ)"
    )
    said = told(code)
    assert "it drives a device here (nvidia)" in said and said.endswith("False")


def test_a_triton_on_which_a_fix_does_not_take_is_refused() -> None:
    pytest.importorskip("triton")
    code = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import harness.kernels.interpreter as i, harness.kernels.interpreter_fixes as f\n"
        "f.FIXES = (i.Fix('sums', 'they are wrong', lambda: False, lambda: None),)\n"
        "try: i.prepare()\n"
        "except i.HostError as e: print(e)"
    )
    assert "the fix of sums doesn't take: its micro-kernel gives other numbers than torch" in told(code)


def test_without_triton_the_rest_can_be_compared_and_nothing_is_launched() -> None:
    code = (
        "import harness.kernels.interpreter as i, harness.kernels.launches as l\n"
        "i.missing_triton = lambda: 'no Triton'\n"
        "print(i.prepare().engine)\n"
        "with l.counted() as seen: pass\n"
        "print(i.prepare().engine, dict(seen))"
    )
    assert told(code) == "absent {}"


def test_what_a_triton_does_right_by_itself_is_left_alone() -> None:
    pytest.importorskip("triton")
    code = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import harness.kernels.interpreter as i, harness.kernels.interpreter_fixes as f\n"
        "f.FIXES = (i.Fix('sums', 'they are wrong', lambda: True, lambda: 1 / 0),)\n"
        "print(i.prepare().replaced)"
    )
    assert told(code) == "()"


def test_launches_are_not_counted_before_it_is_decided_how_kernels_run() -> None:
    code = "import harness.kernels.launches as l, harness.errors as e\ntry:\n with l.counted(): pass\nexcept e.HostError as x: print(x)"
    assert "Call harness.kernels.interpreter.prepare()" in told(code)


def test_asking_whether_triton_is_there_imports_nothing() -> None:
    code = "import sys, harness.kernels.interpreter as i\ni.missing_triton()\nprint({'triton', 'torch'} & set(sys.modules))"
    assert told(code) == "set()"


def test_asking_which_triton_kernels_there_are_and_what_is_missing_imports_no_library() -> None:
    code = (
        "import importlib, sys\n"
        "names = ('fla_delta_rule', 'fla_steps', 'fla_norms', 'fla_layers', 'fla_ascend', 'mindspeed', 'mindspeed_rule')\n"
        "found = [k for n in names for k in importlib.import_module(f'harness.kernels.candidates_{n}').kernels()]\n"
        "assert all(isinstance(k.missing(), str) for k in found)\n"
        "print(len(found) > 40, {'triton', 'fla', 'transformers', 'swift', 'mindspeed.ops.triton.utils'} & set(sys.modules))"
    )
    assert told(code) == "True set()"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_rounding_to_bf16_is_that_of_torch(word: int) -> None:
    single = np.array([word], dtype=np.uint32).view(np.float32)
    right = torch.from_numpy(single.copy()).bfloat16()
    found = widen(narrow(single))
    assert np.array_equal(found, right.float().numpy(), equal_nan=True)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**16 - 1))
def test_a_bf16_number_survives_being_widened_and_rounded_again(bits: int) -> None:
    kept = np.array([[bits]], dtype=np.uint16)
    value = widen(kept)
    if np.isnan(value).any():
        assert narrow(value).item() == truncate(value).item() == 0x7FC0
    else:
        assert narrow(value).item() == truncate(value).item() == bits
