"""What lies on disk is read whole or said to be damaged; which checkpoint is meant follows one rule."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import examples as ex
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import artifacts
from harness.errors import HarnessError
from harness.tensors import Tensor, cast, digest, parse_safetensors, round_to_bfloat16

WEIGHTS = "adapter_model.safetensors"


def torch_file(path: Path, size: int = 900) -> None:
    """Laid out as torch.save does."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", b"pickled")
        archive.writestr(f"{path.stem}/data/0", bytes(range(256)) * (size // 256) + b"x" * (size % 256))


def checkpoint(folder: Path, step: int = 4) -> Path:
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(ex.safetensors_bytes(ex.weights_at(step).tensors))
    for name, content in (
        ("adapter_config.json", {"r": 2, "lora_alpha": 4}),
        ("trainer_state.json", {"global_step": step}),
        ("npu_matrix_nonce.json", {"nonce": ex.NONCE, "step": step, "trainable_digest": "d"}),
    ):
        (folder / name).write_text(json.dumps(content))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch_file(folder / name)
    return folder


def test_a_whole_checkpoint_is_read_without_fault(tmp_path: Path) -> None:
    found = artifacts.read_checkpoint(checkpoint(tmp_path / "checkpoint-4"))
    assert found.fault == "" and found.is_adapter
    assert found.states == {"optimizer.pt": 900, "scheduler.pt": 900, "rng_state.pth": 900}
    assert found.adapter_config == {"r": 2, "lora_alpha": 4}
    assert found.weights is not None and digest(found.weights.tensors) == digest(ex.weights_at(4).tensors)


def test_a_folder_without_files_has_no_weights_and_no_fault(tmp_path: Path) -> None:
    found = artifacts.read_checkpoint(tmp_path)
    assert found.weights is None and found.fault == "" and not found.states


@pytest.mark.parametrize("name", [WEIGHTS, "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "adapter_config.json"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, keep: float) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: min(int(len(content) * keep), len(content) - 1)])
    assert name in artifacts.read_checkpoint(folder).fault


def test_a_flipped_byte_in_the_optimizer_is_found_by_its_checksum(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4")
    content = bytearray((folder / "optimizer.pt").read_bytes())
    content[300] ^= 1
    (folder / "optimizer.pt").write_bytes(content)
    assert "optimizer.pt" in artifacts.read_checkpoint(folder).fault


def sharded(folder: Path) -> None:
    tensors = ex.base_model().tensors
    names = sorted(tensors)
    placed = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in set(placed.values()):
        (folder / shard).write_bytes(ex.safetensors_bytes({n: tensors[n] for n in names if placed[n] == shard}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    sharded(tmp_path)
    found = artifacts.read_tensors(tmp_path)
    assert found is not None and found.usable
    assert digest(found.tensors) == digest(ex.base_model().tensors)


def test_a_missing_shard_and_a_tensor_without_a_shard_are_faults(tmp_path: Path) -> None:
    sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    found = artifacts.read_tensors(tmp_path)
    assert found is not None and "ghost" in found.fault
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    found = artifacts.read_tensors(tmp_path)
    assert found is not None and "model-00001-of-00002.safetensors" in found.fault


def test_an_index_can_t_reach_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(ex.safetensors_bytes(ex.base_model().tensors))
    inside = tmp_path / "model"
    inside.mkdir()
    content = {"weight_map": dict.fromkeys(ex.base_model().tensors, "../secret.safetensors")}
    (inside / "model.safetensors.index.json").write_text(json.dumps(content))
    found = artifacts.read_tensors(inside)
    assert found is not None and not found.usable


def test_the_newest_checkpoint_is_the_last_step_of_the_last_version(tmp_path: Path) -> None:
    for version, step, age in (("v0", 9, 100), ("v1", 2, 50), ("v1", 10, 50)):
        checkpoint(tmp_path / version / f"checkpoint-{step}", step)
        os.utime(tmp_path / version, (1e9 - age, 1e9 - age))
    (tmp_path / "v1" / "last-checkpoint").symlink_to("checkpoint-2")
    (tmp_path / "v1" / "checkpoint-11").symlink_to("checkpoint-2")
    os.utime(tmp_path / "v1", (1e9 - 50, 1e9 - 50))
    assert artifacts.newest_checkpoint(tmp_path) == tmp_path / "v1" / "checkpoint-10"
    assert artifacts.checkpoint_at(tmp_path, 2) == tmp_path / "v1" / "checkpoint-2"
    assert artifacts.checkpoint_at(tmp_path, 11) is None
    assert artifacts.newest_checkpoint(tmp_path / "v0" / "checkpoint-9") is None


def test_checkpoints_right_in_the_output_folder_are_found(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoint-4")
    assert artifacts.newest_checkpoint(tmp_path) == tmp_path / "checkpoint-4"


def test_a_log_is_found_with_or_without_a_version_folder_and_two_are_refused(tmp_path: Path) -> None:
    assert artifacts.find_logging(tmp_path) is None
    assert artifacts.read_metrics(tmp_path).rows == ()
    (tmp_path / "v0").mkdir()
    (tmp_path / "v0" / "logging.jsonl").write_text(ex.log_text())
    assert artifacts.find_logging(tmp_path) == tmp_path / "v0" / "logging.jsonl"
    assert len(artifacts.read_metrics(tmp_path).rows) == 4
    (tmp_path / "logging.jsonl").write_text(ex.log_text())
    with pytest.raises(HarnessError, match="more than one run"):
        artifacts.find_logging(tmp_path)
    assert artifacts.read_metrics(tmp_path).faults


def test_answers_are_read_with_their_questions(tmp_path: Path) -> None:
    rows = [
        {"response": "fine", "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "how"},
                                          {"role": "assistant", "content": "fine"}]},
        {"response": "", "messages": [{"role": "user", "content": "a\u2028b"}]},
    ]  # fmt: skip
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    found = artifacts.read_answers(path)
    assert [(row.user, row.response) for row in found.rows] == [("how", "fine"), ("a\u2028b", "")]
    assert found.faults == ()


def test_answers_that_are_half_or_contradict_themselves_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    torn = {"response": "fine", "messages": [{"role": "user", "content": "how"}, {"role": "assistant", "content": "else"}]}
    for line in ('{"response": "fi', "[]", '{"response": 1}', '{"response": "x", "messages": []}', json.dumps(torn)):
        path.write_text(line)
        assert artifacts.read_answers(path).rows == () and len(artifacts.read_answers(path).faults) == 1
    assert artifacts.read_answers(tmp_path / "none.jsonl").rows == ()


def test_logits_of_all_calls_are_put_together_in_order(tmp_path: Path) -> None:
    calls = [np.full((2, 5), 1.0, dtype=np.float32), np.full((1, 5), 2.0, dtype=np.float32)]
    events = [ex.start()]
    for place, part in enumerate(calls):
        np.save(tmp_path / f"l{place}.npy", part)
        events.append({"event": "generate", "logits_file": f"l{place}.npy"})
    (tmp_path / "witness-7.jsonl").write_text(
        "".join(json.dumps({"nonce": "n", "pid": 7, "rank": 0, "world_size": 1, **event}) + "\n" for event in events)
    )
    (witness,) = artifacts.read_witnesses(tmp_path)
    found = artifacts.read_logits((witness,))
    assert found is not None and found[:, 0].tolist() == [1.0, 1.0, 2.0]
    (tmp_path / "l1.npy").write_bytes(b"cut")
    assert artifacts.read_logits((witness,)) is None
    assert artifacts.read_logits(()) is None


def test_inputs_are_the_last_user_turns(tmp_path: Path) -> None:
    path = tmp_path / "val.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "how"}, {"role": "assistant", "content": "so"}]}\n')
    assert artifacts.read_inputs(path) == ("how",)
    path.write_text('{"messages": []}\n')
    with pytest.raises(HarnessError, match=r"val\.jsonl:1"):
        artifacts.read_inputs(path)


def test_a_tokenizer_is_read_if_it_is_there(tmp_path: Path) -> None:
    assert artifacts.read_tokenizer(tmp_path) is None
    content = {"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    found = artifacts.read_tokenizer(tmp_path)
    assert found is not None and found.decode([0]) == "a"


# Tensors


def as_bytes(content: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(content, dtype=np.uint8)


def test_numpy_s_own_safetensors_are_read_alike() -> None:
    from safetensors.numpy import save

    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1.5, -2.0], dtype=np.float16), "c": np.zeros((0, 4))}
    found = parse_safetensors(as_bytes(save(arrays)), "x")
    assert {name: t.shape for name, t in found.items()} == {"a": (2, 3), "b": (2,), "c": (0, 4)}
    assert all(np.array_equal(found[name].values(), arrays[name].astype(np.float64)) for name in arrays)


def test_bfloat16_and_digests_are_torch_s_own() -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save

    from harness.witness.digest import head, raw_bytes

    torch.manual_seed(0)
    values = torch.cat([torch.randn(4000) * 10.0 ** torch.randint(-30, 30, (4000,)), torch.tensor([float("nan"), float("inf"), 0.0, -0.0])])
    halves = values.bfloat16()
    found = parse_safetensors(as_bytes(save({"base_model.model.x": halves})), "x")["base_model.model.x"]
    assert np.array_equal(found.values(), halves.double().numpy(), equal_nan=True)
    wide = Tensor("F32", (len(values),), values.numpy().view(np.uint8))
    narrow = cast(wide, "BF16").values()
    assert np.array_equal(narrow, halves.double().numpy(), equal_nan=True)
    import hashlib

    expected = hashlib.sha256(head("x", "bfloat16", tuple(halves.shape)) + bytes(raw_bytes(halves))).hexdigest()
    assert digest({"base_model.model.x": found}) == expected


@given(st.floats(width=32))
def test_rounding_to_bfloat16_goes_to_the_nearest(value: float) -> None:
    single = np.array([value], dtype=np.float32)
    wide = (round_to_bfloat16(single).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if np.isnan(single[0]):
        assert np.isnan(wide[0])
    elif np.isfinite(wide[0]):
        assert abs(float(wide[0]) - value) <= max(abs(value) * 2.0**-8, 2.0**-134)
    else:
        assert abs(value) > 3.38e38


WHOLE = ex.safetensors_bytes({"a": ex.tensor(np.ones((2, 3))), "b": ex.tensor(np.ones(4), "BF16")})


@given(st.integers(0, len(WHOLE) - 1))
def test_a_safetensors_file_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(HarnessError, match="x:"):
        parse_safetensors(as_bytes(WHOLE[:cut]), "x")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        parse_safetensors(as_bytes(content), "x")
    except HarnessError as error:
        assert "damaged" in str(error)


def test_a_header_that_lies_about_its_tensors_is_refused() -> None:
    def written(entry: object) -> np.ndarray:  # type: ignore[type-arg]
        header = json.dumps({"a": entry}).encode()
        return as_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert parse_safetensors(written(good), "x")["a"].shape == (2,)
    for change in (
        {"dtype": "F99"}, {"shape": [3]}, {"shape": [-2]}, {"shape": "2"}, {"shape": [True, 2]}, {"data_offsets": [0, 4]},
        {"data_offsets": [4, 12]}, {"data_offsets": [0]}, {"data_offsets": None},
    ):  # fmt: skip
        with pytest.raises(HarnessError):
            parse_safetensors(written({**good, **change}), "x")
    for entry in (None, [], "F32"):
        with pytest.raises(HarnessError):
            parse_safetensors(written(entry), "x")
