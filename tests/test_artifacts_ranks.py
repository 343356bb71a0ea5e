"""What several ranks leave of a checkpoint (FSDP1, FSDP2, ZeRO) is read whole, or said to be damaged, whatever the files claim."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
import zipfile
from pathlib import Path

import examples as ex
import pytest
import sharded_samples as ss
from hypothesis import given, settings
from hypothesis import strategies as st
from test_artifacts import checkpoint, torch_file

from harness import artifacts
from harness.tensors import digest


def test_a_checkpoint_of_fsdp2_has_its_adapter_and_its_moments_from_the_parts(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ss.REAL, tmp_path / "checkpoint-6"))
    ss.optimizer(8192).write(folder / "optimizer_0")
    torch_file(folder / "scheduler.pt")
    found = artifacts.read_checkpoint(folder)
    assert found.fault == "" and found.is_adapter and found.weights is not None and found.nonce is not None
    assert digest(found.weights.tensors) == found.nonce["trainable_digest"]
    assert (found.moments, found.states) == (16384, {"scheduler.pt": 900, "optimizer_0": 65536})
    (folder / "optimizer_0" / "__0_0.distcp").unlink()
    (folder / "pytorch_model_fsdp_0" / "__1_0.distcp").write_bytes(b"")
    found = artifacts.read_checkpoint(folder)
    assert "optimizer_0/.metadata" not in found.fault and "__0_0.distcp" in found.fault and "__1_0.distcp" in found.fault
    assert found.weights is not None and not found.weights.usable


def test_a_full_model_in_parts_is_no_adapter_and_holds_its_embedding_once(tmp_path: Path) -> None:
    embedding, other = ss.floats(6, 2), ss.floats(6, 2, seed=1)
    for folder, output in (("tied", embedding), ("own", other)):
        forge = ss.Forge().tensor("model.embed_tokens.weight", embedding).tensor("lm_head.weight", output)
        forge.write(tmp_path / folder / "pytorch_model_fsdp_0")
    tied, own = (artifacts.read_checkpoint(tmp_path / folder) for folder in ("tied", "own"))
    assert tied.weights is not None and set(tied.weights.tensors) == {"model.embed_tokens.weight"} and not tied.is_adapter
    assert own.weights is not None and set(own.weights.tensors) == {"model.embed_tokens.weight", "lm_head.weight"}


def test_safetensors_come_before_parts(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4")
    ss.Forge().tensor("t", ss.floats(2)).write(folder / "pytorch_model_fsdp_0")
    found = artifacts.read_checkpoint(folder)
    assert found.weights is not None and digest(found.weights.tensors) == digest(ex.weights_at(4).tensors) and found.moments is None


def zero(folder: Path, name: str = "global_step4") -> Path:
    inside = checkpoint(folder) / "global_step4"
    inside.mkdir()
    (folder / "latest").write_text(name)
    for rank in (0, 1):
        torch_file(inside / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", 600)
    torch_file(inside / "mp_rank_00_model_states.pt", 10)
    return folder


def test_the_states_of_zero_are_those_in_the_folder_that_is_the_latest(tmp_path: Path) -> None:
    found = artifacts.read_checkpoint(zero(tmp_path / "checkpoint-4"))
    assert found.fault == "" and {name: size for name, size in found.states.items() if "/" in name} == {
        "global_step4/mp_rank_00_model_states.pt": 10,
        "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt": 600,
        "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt": 600,
    }


@pytest.mark.parametrize("name", ["", "global_step9", "..", "../other/global_step4", "/etc", "global_step4/../../x", "\x00", "g" * 9000])
def test_a_latest_that_leads_to_no_states_is_a_fault(tmp_path: Path, name: str) -> None:
    zero(tmp_path / "other")
    found = artifacts.read_checkpoint(zero(tmp_path / "checkpoint-4", name))
    assert "latest" in found.fault and not any("/" in state for state in found.states)


def test_a_damaged_state_of_zero_is_named(tmp_path: Path) -> None:
    folder = zero(tmp_path / "checkpoint-4")
    path = folder / "global_step4" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:-30])
    assert path.name in artifacts.read_checkpoint(folder).fault
    for file in path.parent.glob("*optim*"):
        file.unlink()
    assert "*_optim_states.pt" in artifacts.read_checkpoint(folder).fault
    (folder / "latest").write_bytes(b"\xff\xfe")
    assert "latest" in artifacts.read_checkpoint(folder).fault


def test_the_files_of_fsdp1_are_read_and_checked(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4")
    for name in ("optimizer.bin", "pytorch_model_fsdp.bin"):
        torch_file(folder / name, 700)
    found = artifacts.read_checkpoint(folder)
    assert found.fault == "" and (found.states["optimizer.bin"], found.states["pytorch_model_fsdp.bin"]) == (700, 700)
    (folder / "optimizer.bin").write_bytes(b"PK")
    assert "optimizer.bin" in artifacts.read_checkpoint(folder).fault


def test_a_state_that_is_a_trap_is_a_fault_and_costs_no_memory(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4")
    with zipfile.ZipFile(folder / "optimizer.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("optimizer/data/0", bytes(50_000_000))
    content = bytearray((folder / "scheduler.pt").read_bytes())
    content[-10:-6] = struct.pack("<I", 2**31)  # the length of the zip's directory
    (folder / "scheduler.pt").write_bytes(content)
    tracemalloc.start()
    try:
        fault = artifacts.read_checkpoint(folder).fault
        assert "optimizer.pt: its members are compressed" in fault and "scheduler.pt" in fault
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_state_whose_members_share_bytes_is_a_fault(tmp_path: Path) -> None:
    torch_file(tmp_path / "optimizer.pt", 5000)
    content = (tmp_path / "optimizer.pt").read_bytes()
    start = content.index(b"PK\x01\x02")
    listed, end = content[start:-22], bytearray(content[-22:])
    struct.pack_into("<HHI", end, 8, 200, 200, 100 * len(listed))
    (tmp_path / "optimizer.pt").write_bytes(content[:start] + 100 * listed + end)
    with zipfile.ZipFile(tmp_path / "optimizer.pt") as archive:
        assert len(archive.infolist()) == 200 and archive.testzip() is None  # all of it a valid zip
    assert "overlap" in artifacts.read_checkpoint(tmp_path).fault


@settings(deadline=None)  # each example writes a file
@given(st.integers(0, 1100), st.integers(1, 255))
def test_a_changed_byte_of_a_state_never_raises(tmp_path_factory: pytest.TempPathFactory, at: int, by: int) -> None:
    path = tmp_path_factory.mktemp("bent") / "optimizer.pt"
    torch_file(path)
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= by
    path.write_bytes(content)
    found = artifacts.read_checkpoint(path.parent)
    assert found.fault or found.states["optimizer.pt"] in (0, 900)
