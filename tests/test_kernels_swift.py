"""ms-swift's patches under test: where they run, what stands in for torch_npu, ranks as threads, and a planted fault that is named."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kernels import candidates_flash, candidates_swift_ring, checks, installed_swift, stand_in
from harness.kernels.candidates_swift_experts import ORIENTATION_GUESSED
from harness.kernels.checks import holds, refuses
from harness.kernels.kernel import Case
from harness.kernels.ring_threads import Ring, RingBroken, Seat, ThreadComm

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("swift", "swift_experts", "swift_blocks", "swift_models", "swift_ring", "flash")


# Where it runs


def test_a_usable_npu_is_taken_with_its_own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", real)
    chosen = stand_in.choose("")
    assert (chosen.torch_npu, chosen.device, chosen.stands_in) == (real, "npu:0", False)


def test_without_one_reference_operators_on_the_cpu_stand_in() -> None:
    chosen = stand_in.choose("needs torch_npu")
    assert chosen.device == "cpu"
    assert chosen.torch_npu.npu.is_available() is False
    assert set(stand_in.OPERATORS) <= set(vars(chosen.torch_npu))


def test_what_stands_in_is_importable_only_while_it_is_needed() -> None:
    chosen = stand_in.choose("needs torch_npu")
    before = (sys.modules.get("torch_npu"), hasattr(torch, "npu"))
    with chosen.importable():
        assert importlib.import_module("torch_npu") is chosen.torch_npu
        assert importlib.util.find_spec("torch_npu") is not None
        with torch.npu.amp.autocast(enabled=False):
            assert not torch.is_autocast_enabled("cpu")
    assert (sys.modules.get("torch_npu"), hasattr(torch, "npu")) == before


def test_a_real_torch_npu_is_counted_and_left_as_it_was() -> None:
    def npu_rms_norm(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    real = ModuleType("torch_npu")
    for name in stand_in.OPERATORS:
        setattr(real, name, npu_rms_norm)
    taken = stand_in.Bench(real, "npu:0")
    with taken.counted() as calls:
        assert real.npu_rms_norm(torch.zeros(2)).tolist() == [1.0, 1.0]  # type: ignore[attr-defined]
    assert calls == {"npu_rms_norm": 1}
    assert vars(real)["npu_rms_norm"] is npu_rms_norm
    with taken.counted() as calls:
        assert not calls


def test_tensors_are_placed_with_their_strides_and_gradients() -> None:
    wide = torch.arange(12.0).view(3, 4).requires_grad_()
    placed = stand_in.choose("needs torch_npu").place(wide[:, ::2])
    assert placed.stride() == wide[:, ::2].stride()
    placed.sum().backward()
    assert wide.grad is not None and wide.grad.sum() == 6


def test_modules_stand_in_for_others_and_go_again() -> None:
    fake = ModuleType("json")
    real = sys.modules["json"]
    with stand_in.imported({"json": fake, "no_such_package": ModuleType("no_such_package"), "csv": None}):
        assert sys.modules["json"] is fake
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("csv")
        sys.modules["imported_meanwhile"] = fake
    assert sys.modules["json"] is real and "no_such_package" not in sys.modules
    assert sys.modules.pop("imported_meanwhile") is fake


@pytest.mark.parametrize(("absent", "told"), [("swift", "needs ms-swift"), ("transformers", "needs transformers")])
def test_what_is_not_installed_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: str, told: str) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else spec)
    assert told in installed_swift.missing() and "pip install" in installed_swift.missing()


def test_a_transformers_without_the_model_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("model/npu_patch", "models/qwen2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "model/npu_patch/model.py").touch()
    (tmp_path / "models/qwen2/modeling_qwen2.py").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert installed_swift.missing(model="qwen2") == ""
    assert "qwen9" in installed_swift.missing(model="qwen9")
    assert "ring.py" in installed_swift.missing(file="sequence_parallel/ring.py")


def test_declaring_kernels_and_checks_imports_nothing_under_test() -> None:
    names = ", ".join(f"candidates_{name}" for name in MODULES)
    source = (
        f"import sys\nfrom harness.kernels import checks, {names}\n"
        f"made = [k for m in ({names}) for k in m.kernels()]\nmade += checks.checks()\n"
        "print(len(made), sorted({m.split('.')[0] for m in sys.modules} & {'swift', 'transformers', 'fla', 'accelerate', 'torch_npu'}))"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60)
    count, imported = done.stdout.split(" ", 1)
    assert imported.strip() == "[]", done.stderr
    assert int(count) > 80


def test_checks_have_names_of_their_own_that_can_be_selected_by() -> None:
    names = [check.name for check in checks.checks()]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.") for name in names)


# Known failures


@pytest.mark.parametrize(
    ("hidden", "inner", "stored", "concerned"),
    [(16, 8, "linear", True), (16, 16, "linear", True), (16, 12, "linear", False), (16, 8, "turned", False), (16, 16, "turned", False)],
)
def test_only_square_weights_of_linear_layers_are_known_to_be_turned(hidden: int, inner: int, stored: str, concerned: bool) -> None:
    case = Case({"hidden": hidden, "inner": inner, "stored": stored}, "fp32")
    assert ORIENTATION_GUESSED.concerns(case) is concerned


# Checks


def test_a_statement_that_does_not_hold_raises_what_it_says() -> None:
    holds(True, "never said")
    with pytest.raises(AssertionError, match="two and two"):
        holds(False, "two and two")


def test_a_refusal_must_come_with_its_words() -> None:
    def act() -> None:
        raise ValueError("of another kind")

    refuses(ValueError, "another", act)
    with pytest.raises(AssertionError, match="of another kind"):
        refuses(ValueError, "expected words", act)
    with pytest.raises(AssertionError, match="nothing was refused: it gave 3"):
        refuses(ValueError, "words", lambda: 3)


# Ranks as threads


def test_what_a_rank_sends_arrives_at_the_next_one() -> None:
    def work(seat: Seat) -> list[float]:
        comm, seen = ThreadComm(seat), [float(seat.rank)]
        held = torch.tensor([float(seat.rank)])
        for _ in range(3):
            held, _ = comm.send_recv_kv(held, held)
            comm.wait()
            seen.append(float(held))
        return seen

    assert Ring(3).run(work) == [[0.0, 2.0, 1.0, 0.0], [1.0, 0.0, 2.0, 1.0], [2.0, 1.0, 0.0, 2.0]]


def test_a_ring_of_one_sends_to_itself() -> None:
    def work(seat: Seat) -> float:
        comm = ThreadComm(seat)
        held = comm.send_recv(torch.tensor([4.0]))
        comm.commit()
        assert held.isnan().all(), "whoever reads before wait must see that it is too early"
        comm.wait()
        return float(held)

    assert Ring(1).run(work) == [4.0]


def test_the_rank_that_dies_is_told_and_not_those_that_wait_for_it() -> None:
    def work(seat: Seat) -> None:
        if seat.rank == 1:
            raise ValueError("rank 1 is at fault")
        comm = ThreadComm(seat)
        comm.send_recv(torch.zeros(1))
        comm.commit()
        comm.wait()

    with pytest.raises(ValueError, match="rank 1 is at fault"):
        Ring(3).run(work)


def test_tensors_that_nobody_receives_are_told() -> None:
    def work(seat: Seat) -> None:
        comm = ThreadComm(seat)
        comm.send_recv(torch.zeros(1))
        if seat.rank == 0:
            comm.commit()

    with pytest.raises(RingBroken, match="rank 0 sent tensors"):
        Ring(2).run(work)


def test_a_communicator_refuses_what_the_real_one_refuses() -> None:
    comm = ThreadComm(Ring(1).seats[0])
    with pytest.raises(RuntimeError, match="wait called before commit"):
        comm.wait()
    comm.commit()
    with pytest.raises(RuntimeError, match="commit called twice"):
        comm.commit()
    with pytest.raises(ValueError, match="contiguous"):
        comm.send_recv(torch.zeros(2, 3).T)


@given(ranks=st.sampled_from([1, 2, 4]), chunks=st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_ranks_share_all_tokens_and_each_has_the_same_number(ranks: int, chunks: list[int]) -> None:
    params = {"ranks": ranks, "chunks": chunks}
    rows = [candidates_swift_ring._rows(params, rank) for rank in range(ranks)]
    assert len({len(one) for one in rows}) == 1
    assert torch.cat(rows).sort().values.tolist() == list(range(2 * ranks * sum(chunks)))


# Goldens


@settings(max_examples=40, deadline=None)
@given(heads=st.sampled_from([(2, 1), (3, 3), (4, 2)]), tokens=st.integers(1, 6), before=st.integers(0, 4), seed=st.integers(0, 99))
def test_the_golden_attention_is_that_of_torch(heads: tuple[int, int], tokens: int, before: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(tokens, heads[0], 8, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(tokens + before, heads[1], 8, generator=generator, dtype=torch.float64) for _ in range(2))
    seen = torch.ones(tokens, tokens + before, dtype=torch.bool).tril(before)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(0, 1)[None] for tensor in (q, k, v)), attn_mask=seen, scale=0.3, enable_gqa=True
    )
    ours = candidates_flash.attention(q, k, v, 0.3, causal=True)
    torch.testing.assert_close(ours, theirs[0].transpose(0, 1))


# The installed ms-swift

_PLANTED = """
import sys, warnings
warnings.filterwarnings("ignore")
from harness.kernels import candidates_swift
from harness.kernels.explore import ParityError, explore
kernel = next(kernel for kernel in candidates_swift.kernels() if kernel.name == "swift.qwen3.Qwen3MLP.forward")
try:
    explore(kernel, "fp32", quick=True)
    print("PASSED")
except ParityError as error:
    print(error)
"""


@pytest.mark.swift
@pytest.mark.parametrize("planted", [False, True])
def test_a_fault_in_the_installed_patches_is_told_with_class_and_operator(tmp_path: Path, planted: bool) -> None:
    installed = installed_swift.package("swift")
    if installed is None:
        pytest.skip("needs ms-swift; pip install ms-swift")
    for folder in ("model/npu_patch", "sequence_parallel"):
        shutil.copytree(installed / folder, tmp_path / "swift" / folder)
    (tmp_path / "swift" / "__init__.py").touch()
    file = tmp_path / "swift" / "model" / "npu_patch" / "model.py"
    before = file.read_text(encoding="utf-8")
    after = before.replace(
        "self.gate_proj(hidden_state), self.up_proj(hidden_state)", "self.up_proj(hidden_state), self.gate_proj(hidden_state)"
    )
    assert after != before
    file.write_text(after if planted else before, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _PLANTED], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if planted:
        assert "swift.qwen3.Qwen3MLP.forward in fp32" in done.stdout and "npu_swiglu" in done.stdout, done.stdout + done.stderr
        assert "--kernel-case" in done.stdout
    else:
        assert done.stdout.strip().endswith("PASSED"), done.stdout + done.stderr
