"""ms-swift's switches and small patches around its NPU start: which patches are wanted, the environment, and the cast before FSDP2."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import PATCH, missing, patches
from harness.kernels.stand_in import bench, imported

_GETENV = "torch_npu.utils.patch_getenv"
_TIMEOUT = "HCCL_CONNECT_TIMEOUT"
_OPP = "ASCEND_CUSTOM_OPP_PATH"


def checks() -> tuple[Check, ...]:
    statements = (
        (
            "model_patch_switch",
            "--enable_npu_model_patch is read in all its forms, is on unless said, and refuses what is no yes or no",
            _switch,
        ),
        ("apply_all_patches", "apply_all_patches applies environment, FSDP and, unless switched off, models, once", _apply_all),
        ("hccl_timeout", "HCCL_CONNECT_TIMEOUT is 600 unless it is set", _timeout),
        ("custom_operators", "the custom operators in a vllm-ascend wheel come first in ASCEND_CUSTOM_OPP_PATH, once", _custom_operators),
        ("getenv", "where torch_npu has put its own getenv, reading the environment sees later changes", _getenv),
        ("fsdp_cast", "on an NPU a floating module is cast to float32 before FSDP2 shards it, and nowhere else", _cast),
        ("fsdp_cast_off_npu", "a module already on the NPU goes to the CPU, and its memory is freed, before the cast", _cast_off_npu),
        (
            "fsdp_wrappers",
            "both entries of accelerate to FSDP2 cast the modules that they are given, and pass on the rest as it is",
            _wrappers,
        ),
    )
    return tuple(Check(f"swift.{name}", what, run, missing) for name, what, run in statements)


def _switch() -> None:
    package = patches()[PATCH]

    def asked(*words: str) -> bool:
        with mock.patch.object(sys, "argv", ["swift", *words]):
            answer: bool = package._is_model_patch_enabled_from_argv()
            return answer

    name, dashed = "--enable_npu_model_patch", "--enable-npu-model-patch"
    yes_or_no = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False, "yes": True, "no": False}
    for word, expected in yes_or_no.items():
        for said in (f"{name} {word}", f"{dashed} {word}", f"{name}={word}", f"{dashed}={word}", f"--model m {name} {word} --lr 1"):
            holds(asked(*said.split()) is expected, f"{said} is read as {asked(*said.split())}")
    for said in ("", "--model m", f"{name}s false", f"{name}s=false", "enable_npu_model_patch false"):
        holds(asked(*said.split()) is True, f"{said or 'nothing'} is read as off")
    holds(asked(name, "false", name, "true") is False, "of two the second counts")
    for said in (name, f"{name} --lr", dashed):
        refuses(ValueError, "requires a value", partial(asked, *said.split()))
    for said in (f"{name} maybe", f"{dashed}=maybe", f"{name}="):
        refuses(ValueError, "must be true or false", partial(asked, *said.split()))


def _apply_all() -> None:
    package = patches()[PATCH]
    for words, expected in (((), ["env", "fsdp", "model"]), (("--enable_npu_model_patch", "false"), ["env", "fsdp"])):
        applied: list[str] = []
        with patches().importable(), mock.patch.object(package, "_APPLIED", False), mock.patch.object(sys, "argv", ["swift", *words]):
            recorded = [_recording(name, applied) for name in ("env", "fsdp", "model")]
            with recorded[0], recorded[1], recorded[2]:
                package.apply_all_patches()
                holds(applied == expected, f"with {words} applied {applied}")
                package.apply_all_patches()
                holds(applied == expected, f"applied a second time: {applied}")


def _recording(name: str, applied: list[str]) -> Any:
    return mock.patch.object(patches()[f"{PATCH}.{name}"], "apply_patch", lambda: applied.append(name))


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """os.environ with these set, or absent where None; put back afterwards, with whatever getenv was replaced."""
    with mock.patch.dict(os.environ), mock.patch.object(os, "getenv", os.getenv):
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        try:
            yield
        finally:
            vars(os.environ).pop("get", None)


def _timeout() -> None:
    env = patches()[f"{PATCH}.env"]
    for before, after in ((None, "600"), ("1800", "1800"), ("", "")):
        with _environment(**{_TIMEOUT: before}), patches().importable(), _vllm_ascend(None):
            env.apply_patch()
            holds(os.environ.get(_TIMEOUT) == after, f"from {before!r} it became {os.environ.get(_TIMEOUT)!r}")

    parts = {"_bootstrap_vllm_ascend_custom_opp_env": mock.DEFAULT, "_patch_torch_npu_getenv": mock.DEFAULT}
    with _environment(**{_TIMEOUT: "1"}), mock.patch.multiple(env, **parts) as both:
        env.apply_patch()
        holds(all(one.call_count == 1 for one in both.values()), "apply_patch leaves out the custom operators or getenv")


@contextmanager
def _vllm_ascend(folder: Path | None) -> Iterator[None]:
    """importlib finds vllm_ascend in `folder`, or nowhere; other packages where they are."""
    find = importlib.util.find_spec
    spec = None if folder is None else SimpleNamespace(origin=str(folder / "__init__.py"))
    with mock.patch.object(importlib.util, "find_spec", lambda name, *rest: spec if name == "vllm_ascend" else find(name, *rest)):
        yield


def _custom_operators() -> None:
    env = patches()[f"{PATCH}.env"]
    with tempfile.TemporaryDirectory() as name:
        operators = Path(name) / "_cann_ops_custom" / "vendors" / "custom_transformer"
        for there, before, after in (
            (False, "/a", "/a"),
            (True, None, str(operators)),
            (True, "/a:/b", f"{operators}:/a:/b"),
            (True, f"/a:{operators}", f"/a:{operators}"),
        ):
            if there:
                operators.mkdir(parents=True, exist_ok=True)
            with _environment(**{_OPP: before}), _vllm_ascend(Path(name)):
                env._bootstrap_vllm_ascend_custom_opp_env()
                holds(os.environ.get(_OPP) == after, f"from {before!r} it became {os.environ.get(_OPP)!r} and not {after!r}")
    with _environment(**{_OPP: "/a"}), _vllm_ascend(None):
        env._bootstrap_vllm_ascend_custom_opp_env()
        holds(os.environ.get(_OPP) == "/a", "without vllm-ascend it changes")


def _getenv() -> None:
    env = patches()[f"{PATCH}.env"]
    logged: list[tuple[str, str]] = []
    theirs = ModuleType(_GETENV)
    theirs._orig_environ_get = dict(os.environ).get  # type: ignore[attr-defined]
    theirs._log_once = lambda key, value: logged.append((key, value))  # type: ignore[attr-defined]
    package = ModuleType("torch_npu.utils")
    package.patch_getenv = theirs  # type: ignore[attr-defined]

    def stale(key: str, default: Any = None) -> Any:
        return theirs._orig_environ_get(key, default)

    stale.__module__ = _GETENV
    fakes = {"torch_npu": ModuleType("torch_npu"), "torch_npu.utils": package, _GETENV: theirs}
    with imported(fakes), _environment(HARNESS_KERNELS_LATE=None):
        before = os.getenv
        env._patch_torch_npu_getenv()
        holds(os.getenv is before, "a getenv that torch_npu didn't replace is replaced")
        with mock.patch.object(os, "getenv", stale):
            env._patch_torch_npu_getenv()
            os.environ["HARNESS_KERNELS_LATE"] = "seen"
            seen = (os.getenv("HARNESS_KERNELS_LATE"), os.environ.get("HARNESS_KERNELS_LATE"))
            holds(seen == ("seen", "seen"), f"later changes aren't seen: {seen}")
            holds(("HARNESS_KERNELS_LATE", "seen") in logged, "what is read isn't logged")
            os.environ["HARNESS_KERNELS_LATE"] = ""
            logged.clear()
            holds(os.getenv("HARNESS_KERNELS_LATE", "x") == "" and not logged, "an empty value isn't given, or is logged")
            holds(os.getenv("HARNESS_KERNELS_NONE", "x") == "x" and not logged, "a default isn't given, or is logged")


def _accelerator(kind: str) -> Any:
    return SimpleNamespace(device=torch.device(kind) if kind == "cpu" else SimpleNamespace(type=kind))


def _cast() -> None:
    fsdp = patches()[f"{PATCH}.fsdp"]
    cast = fsdp._cast_module_to_fp32_for_npu_if_needed
    for kind, dtype, expected in (
        ("npu", torch.bfloat16, torch.float32),
        ("npu", torch.float16, torch.float32),
        ("npu", torch.float32, torch.float32),
        ("npu", torch.float64, torch.float32),
        ("cpu", torch.bfloat16, torch.bfloat16),
        ("cuda", torch.bfloat16, torch.bfloat16),
    ):
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)).to(dtype)
        found = cast(module, _accelerator(kind))
        dtypes = {parameter.dtype for parameter in found.parameters()}
        holds(dtypes == {expected}, f"{dtype} on {kind} becomes {dtypes}")
        holds(found is module, "the module is another one")
    whole = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)])
    holds(next(cast(whole, _accelerator("npu")).parameters()).dtype == torch.int8, "quantised weights are cast")
    empty = torch.nn.ReLU()
    holds(cast(empty, _accelerator("npu")) is empty, "a module without parameters isn't given back")
    broken = torch.nn.Linear(2, 2).bfloat16()
    with mock.patch.object(broken, "to", side_effect=MemoryError("full")):
        refuses(fsdp.NPUCastError, "Linear", partial(cast, broken, _accelerator("npu")))
    holds(
        issubclass(fsdp.NPUCastError, RuntimeError) and patches()[PATCH].NPUCastError is fsdp.NPUCastError, "NPUCastError is another class"
    )


def _cast_off_npu() -> None:
    fsdp = patches()[f"{PATCH}.fsdp"]
    done = mock.Mock()
    module = done.module
    module.parameters.return_value = iter([_on_npu()])
    module.cpu.return_value = module
    npu = bench().torch_npu.npu
    freeing = (mock.patch.object(npu, "synchronize", done.synchronize), mock.patch.object(npu, "empty_cache", done.empty_cache))
    with bench().importable(), freeing[0], freeing[1]:
        fsdp._cast_module_to_fp32_for_npu_if_needed(module, _accelerator("npu"))
    asked = [call for call in done.mock_calls if call[0] != "module.parameters"]
    right = [mock.call.module.cpu(), mock.call.synchronize(), mock.call.empty_cache(), mock.call.module.to(torch.float32)]
    holds(asked == right, f"it did {asked} and not {right}")


def _on_npu() -> Any:
    return SimpleNamespace(device=SimpleNamespace(type="npu"), dtype=torch.bfloat16, is_floating_point=lambda: True)


def _wrappers() -> None:
    fsdp = patches()[f"{PATCH}.fsdp"]
    accelerator = _accelerator("npu")
    with mock.patch.object(fsdp, "_original_fsdp2_prepare_model", lambda *given: given):
        who, model = fsdp.wrapped_fsdp2_prepare_model(accelerator, torch.nn.Linear(2, 2).bfloat16())
        holds(who is accelerator and model.weight.dtype == torch.float32, "fsdp2_prepare_model isn't given the cast model")
    with mock.patch.object(fsdp, "_original_prepare_fsdp2", lambda *given, **named: (given, named)):
        layer, loader = torch.nn.Linear(2, 2).bfloat16(), object()
        given, named = fsdp.wrapped_prepare_fsdp2(accelerator, layer, loader, device_placement=[True])
        holds(given == (accelerator, layer, loader) and named == {"device_placement": [True]}, f"_prepare_fsdp2 is given {given}, {named}")
        holds(layer.weight.dtype == torch.float32, "_prepare_fsdp2 is given a model that isn't cast")
    utils, owner = fsdp.fsdp_utils, fsdp.Accelerator
    with (
        mock.patch.object(utils, "fsdp2_prepare_model", utils.fsdp2_prepare_model),
        mock.patch.object(owner, "_prepare_fsdp2", owner._prepare_fsdp2),
        mock.patch.object(fsdp, "_APPLIED", False),
    ):
        fsdp.apply_patch()
        placed = utils.fsdp2_prepare_model is fsdp.wrapped_fsdp2_prepare_model and owner._prepare_fsdp2 is fsdp.wrapped_prepare_fsdp2
        holds(placed, "the wrappers aren't in accelerate")
        utils.fsdp2_prepare_model = None
        fsdp.apply_patch()
        holds(utils.fsdp2_prepare_model is None, "a second apply_patch patches again")
