"""ms-swift's optimizer checkpoints of Megatron on NPUs: steps as numbers while they are saved, and the loader that MindSpeed lacks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import PATCH, missing, patches

_KIND = "param_state_sharding_type"
_NATIVE = {"dp_reshardable": "load_parameter_state_from_dp_reshardable", "fully_reshardable": "load_parameter_state_from_fully_reshardable"}


def checks() -> tuple[Check, ...]:
    statements = (
        ("steps_saved", "while an optimizer is saved its steps are one number, and afterwards the tensors that they were", _steps_saved),
        ("steps_refused", "steps that differ, or aren't single numbers, are refused before anything is saved", _steps_refused),
        ("state_loaded", "MindSpeed loads the generic state and Megatron's own loader the sharded one, each of its part", _state_loaded),
        ("state_passed_on", "without MindSpeed, or without a sharding that needs it, the state goes to the optimizer as it is", _passed_on),
        ("chain", "each optimizer of a chain gets its own state, in the order of their numbers", _chain),
    )
    ours = partial(missing, file="model/npu_patch/megatron_checkpoint.py")
    return tuple(Check(f"swift.megatron_checkpoint.{name}", what, run, ours) for name, what, run in statements)


def _checkpoint() -> Any:
    return patches()[f"{PATCH}.megatron_checkpoint"]


def _groups(*steps: Any) -> list[dict[str, Any]]:
    return [{"params": [1], "step": step} for step in steps]


def _steps_saved() -> None:
    first, second = torch.tensor([5]), torch.tensor(5.0)
    leaf = SimpleNamespace(param_groups=_groups(first, 5))
    inner = SimpleNamespace(param_groups=[*_groups(second), {"params": [], "step": 9}, {"params": [1]}], optimizer=leaf)
    for holder in ("chained_optimizers", "sub_optimizers"):
        seen: list[Any] = []

        def save(state: Any, seen: list[Any] = seen, **said: Any) -> Any:
            seen += [group.get("step") for group in (*inner.param_groups, *leaf.param_groups)]
            return "saved", state, said

        owner = SimpleNamespace(**{holder: [inner, inner]}, sharded_state_dict=save)
        answer = _checkpoint().optimizer_sharded_state_dict(owner, "state", is_loading=False)
        holds(answer == ("saved", "state", {"is_loading": False}), f"the arguments become {answer}")
        holds(seen == [5, 9, None, 5, 5] and all(type(step) is int for step in seen if step), f"with {holder} it saves the steps {seen}")
        kept = inner.param_groups[0]["step"] is second and leaf.param_groups[0]["step"] is first
        holds(kept and leaf.param_groups[1]["step"] == 5, "the steps aren't put back")
    dying = SimpleNamespace(param_groups=_groups(first), sharded_state_dict=mock.Mock(side_effect=MemoryError("full")))
    refuses(MemoryError, "full", partial(_checkpoint().optimizer_sharded_state_dict, dying, {}))
    holds(dying.param_groups[0]["step"] is first, "after a failure the steps aren't put back")


def _steps_refused() -> None:
    for steps, said in (((torch.tensor(5), 6), "[5, 6]"), ((torch.tensor([5, 5]),), "scalar")):
        owner = SimpleNamespace(param_groups=_groups(*steps), sharded_state_dict=mock.Mock())
        refuses(RuntimeError, said, partial(_checkpoint().optimizer_sharded_state_dict, owner, {}))
        holds(not owner.sharded_state_dict.called, "it is saved nevertheless")


def _optimizer(of_mindspeed: bool, *, native: bool = True) -> Any:
    """A distributed optimizer that records what is loaded into it."""

    def load_state_dict(self: Any, state: Any) -> None:
        self.loaded.append(("generic", state))

    if of_mindspeed:
        load_state_dict.__module__ = "mindspeed.core.optimizer"
    made: dict[str, Any] = {"load_state_dict": load_state_dict}
    for name in _NATIVE.values() if native else ():
        made[name] = lambda self, state, name=name: self.loaded.append((name, state))
    optimizer: Any = type("DistributedOptimizer", (), made)()
    optimizer.loaded, optimizer.param_groups = [], _groups(3, 4.0, torch.tensor(5))
    return optimizer


def _load(optimizer: Any, state: Any) -> Any:
    with patches().importable(), mock.patch.object(_checkpoint(), "_current_npu_device", lambda: "cpu"):
        _checkpoint().load_optimizer_state_dict(optimizer, state)
    return optimizer.loaded


def _state_loaded() -> None:
    for kind, loader in _NATIVE.items():
        optimizer, state = _optimizer(True), {"optimizer": 1, "param_state": 2, _KIND: kind}
        loaded = _load(optimizer, state)
        holds(loaded == [("generic", {"optimizer": 1}), (loader, 2)], f"{kind} is loaded as {loaded}")
        holds(state == {"optimizer": 1, "param_state": 2, _KIND: kind}, "the given state is changed")
        steps = [group["step"] for group in optimizer.param_groups]
        tensors = all(isinstance(step, torch.Tensor) and step.dtype == torch.int64 for step in steps)
        holds(tensors and [int(step) for step in steps] == [3, 4, 5], f"the steps are {steps}")
        refuses(RuntimeError, "missing param_state", partial(_load, _optimizer(True), {"optimizer": 1, _KIND: kind}))
    two = SimpleNamespace(sub_optimizers=[_optimizer(True), _optimizer(True)], loaded=[], param_groups=[])
    refuses(RuntimeError, "exactly one", partial(_load, two, {"param_state": 2, _KIND: "dp_reshardable"}))
    fsdp = _optimizer(True)
    state = {"state": {"w": 1}, "param_to_group_meta": {"w": 0}}
    fsdp.optimizer = SimpleNamespace(param_groups=_groups(7), load_state_dict=lambda given: fsdp.loaded.append(("inner", given)))
    fsdp._param2group_meta_to_param_groups = lambda meta, groups: "groups"
    holds(_load(fsdp, state) == [("inner", {"state": {"w": 1}, "param_groups": "groups"})], f"an FSDP state is loaded as {fsdp.loaded}")
    holds(isinstance(fsdp.optimizer.param_groups[0]["step"], torch.Tensor), "its steps aren't tensors again")


def _passed_on() -> None:
    for of_mindspeed, state in (
        (False, {"optimizer": 1, "param_state": 2, _KIND: "dp_reshardable"}),
        (False, {"optimizer": 1}),
        (False, [1, 2]),
        (True, {"optimizer": 1, _KIND: "other"}),
        (True, {"optimizer": 1}),
    ):
        optimizer = _optimizer(of_mindspeed)
        holds(_load(optimizer, state) == [("generic", state)], f"MindSpeed {of_mindspeed}: {state} is loaded as {optimizer.loaded}")
        tensor = isinstance(optimizer.param_groups[0]["step"], torch.Tensor)
        holds(tensor is of_mindspeed, f"MindSpeed {of_mindspeed}: steps are tensors: {tensor}")


def _chain() -> None:
    for states in ({1: {"b": 1}, 0: {"a": 1}}, [{"a": 1}, {"b": 1}]):
        members = [_optimizer(False), _optimizer(False)]
        chain = SimpleNamespace(chained_optimizers=members, loaded=[], _synchronize_steps=mock.Mock())
        _load(chain, states)
        loaded = [member.loaded for member in members]
        holds(loaded == [[("generic", {"a": 1})], [("generic", {"b": 1})]], f"loaded as {loaded}")
        holds(chain._synchronize_steps.call_count == 1, "the steps aren't brought together")
        _load(SimpleNamespace(chained_optimizers=members, loaded=[]), states)
        refuses(RuntimeError, "Expected 2 entries", partial(_load, chain, [{"a": 1}]))
    single = _optimizer(False)
    single.chained_optimizers = [_optimizer(False)]
    holds(_load(single, {"a": 1}) == [("generic", {"a": 1})], "a chain of one is taken apart")
