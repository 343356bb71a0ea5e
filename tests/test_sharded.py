"""A sharded checkpoint is read whole, or said to be damaged: whatever its files claim, nothing is run, raised or allocated for it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sharded_samples as ss
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import sharded
from harness.packed_experts import packed
from harness.plain_pickle import Made, Named
from harness.sharded import optimizer_moments, read_distcp
from harness.tensors import TensorFile, digest

WEIGHTS = "pytorch_model_fsdp_0"
WITNESSED = json.loads((ss.REAL / "npu_matrix_nonce.json").read_text(encoding="utf-8"))["trainable_digest"]
# No deadline: each example writes files, and the machine may be busy with trainings.
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def copied(tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / WEIGHTS, ignore_errors=True)
    return Path(shutil.copytree(ss.REAL / WEIGHTS, tmp_path / WEIGHTS))


def test_a_real_checkpoint_of_two_ranks_has_the_digest_that_was_witnessed() -> None:
    found = read_distcp(ss.REAL / WEIGHTS)
    assert found.fault == "" and len(found.tensors) == 28
    assert all(name.startswith("base_model.model.model.layers.") for name in found.tensors)
    assert digest(packed(found.tensors)) == WITNESSED


@SAME_FOLDER
@given(st.sampled_from(["__0_0.distcp", "__1_0.distcp"]), st.integers(0, 60539), st.integers(1, 255))
def test_a_changed_byte_is_a_fault_or_changes_no_weight(tmp_path: Path, file: str, at: int, by: int) -> None:
    folder = copied(tmp_path)
    content = bytearray((folder / file).read_bytes())
    content[at] ^= by
    (folder / file).write_bytes(content)
    found = read_distcp(folder)
    assert found.fault or digest(found.tensors) == WITNESSED


@SAME_FOLDER
@given(st.integers(0, 18508), st.integers(1, 255))
def test_a_changed_byte_of_the_metadata_never_raises(tmp_path: Path, at: int, by: int) -> None:
    folder = copied(tmp_path)
    content = bytearray((folder / ".metadata").read_bytes())
    content[at] ^= by
    (folder / ".metadata").write_bytes(content)
    found = read_distcp(folder)
    assert bool(found.fault) != bool(found.tensors)
    assert all(tensor.values().shape == tensor.shape for tensor in found.tensors.values())


@SAME_FOLDER
@given(st.sampled_from([".metadata", "__0_0.distcp", "__1_0.distcp"]), st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_a_fault_that_names_it(tmp_path: Path, file: str, keep: float) -> None:
    folder = copied(tmp_path)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(len(content) * keep)])
    found = read_distcp(folder)
    assert not found.tensors and file in found.fault


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "__1_0.distcp"])
def test_a_missing_file_is_a_fault_that_names_it(tmp_path: Path, file: str) -> None:
    folder = copied(tmp_path)
    (folder / file).unlink()
    assert file in read_distcp(folder).fault
    os.mkfifo(folder / file)  # nobody will ever write to it
    assert read_distcp(folder).fault


@st.composite
def cut(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any], str]:
    """A shape, and boxes that tile it: each dimension cut at some places, empty pieces too."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    boxes: list[Any] = [((), ())]
    for entries in shape:
        edges = [0, *sorted(draw(st.lists(st.integers(0, entries), max_size=3))), entries]
        spans = [(a, b - a) for a, b in itertools.pairwise(edges)]
        boxes = [((*offsets, a), (*sizes, n)) for offsets, sizes in boxes for a, n in spans]
    # Parts at one offset have one key in torch: a whole one, or one of any number that are empty.
    ranked = {offsets: sizes for offsets, sizes in sorted(boxes, key=lambda box: all(box[1]))}
    return shape, list(ranked.items()), draw(st.sampled_from(sorted(ss.WORDS)))


@SAME_FOLDER
@given(st.lists(cut(), min_size=1, max_size=3))
def test_a_tensor_cut_along_any_dimensions_is_put_together_again(tmp_path: Path, cuts: list[Any]) -> None:
    shutil.rmtree(tmp_path / "ck", ignore_errors=True)
    forge, wanted = ss.Forge(), {}
    for number, (shape, boxes, dtype) in enumerate(cuts):
        wanted[f"t{number}"] = ss.floats(*shape, dtype=dtype, seed=number)
        forge.tensor(f"t{number}", wanted[f"t{number}"], boxes)
    found = read_distcp(forge.write(tmp_path / "ck"))
    assert found.fault == "" and ss.contents(found.tensors) == ss.contents(wanted)


def test_a_rank_without_a_row_of_a_short_tensor_needs_no_place(tmp_path: Path) -> None:
    wanted = ss.floats(1, 3)
    forge = ss.Forge().tensor("t", wanted, [((0, 0), (1, 3)), ((1, 0), (0, 3))])
    del forge.stored[list(forge.stored)[-1]]
    assert ss.contents(read_distcp(forge.write(tmp_path)).tensors) == ss.contents({"t": wanted})


def test_a_transposed_parameter_is_read_in_the_order_of_its_rows(tmp_path: Path) -> None:
    wanted = ss.floats(3, 5)
    turned = wanted.raw.reshape(3, 5, 4).transpose(1, 0, 2).tobytes()
    forge = ss.Forge().tensor("t", wanted)
    forge.stored.clear()
    forge.place("t", (0, 0), "__0_1.distcp", ss.torch_saved(turned, (3, 5), (1, 3), "F32"))
    assert ss.contents(read_distcp(forge.write(tmp_path)).tensors) == ss.contents({"t": wanted})


def test_the_name_of_the_state_dict_is_taken_off_only_where_the_planner_put_it(tmp_path: Path) -> None:
    forge = ss.Forge().tensor("model.lm_head.weight", ss.floats(2)).tensor("model.norm.weight", ss.floats(2))
    assert set(read_distcp(forge.write(tmp_path / "bare")).tensors) == {"model.lm_head.weight", "model.norm.weight"}
    forge.paths = {"model.lm_head.weight": ("model", "lm_head.weight"), "model.norm.weight": ("model", "norm.weight")}
    assert set(read_distcp(forge.write(tmp_path / "named")).tensors) == {"lm_head.weight", "norm.weight"}
    forge.tensor("norm.weight", ss.floats(2))
    assert "two tensors" in read_distcp(forge.write(tmp_path / "twice")).fault


def test_the_moments_of_an_optimizer_are_counted(tmp_path: Path) -> None:
    found = read_distcp(ss.optimizer(50).write(tmp_path))
    assert found.fault == "" and optimizer_moments(found) == (100, 400)
    assert optimizer_moments(TensorFile("x", {}, "damaged")) == (0, 0)


def forged(tmp_path: Path, **place: Any) -> str:
    """The fault of a checkpoint of one tensor, 2 x 3 in two parts, with the place of its last part changed."""
    forge = ss.Forge().tensor("t", ss.floats(2, 3), [((0, 0), (1, 3)), ((1, 0), (1, 3))])
    last = list(forge.stored.values())[-1]
    last.state |= place
    return read_distcp(forge.write(tmp_path / "ck")).fault


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/b", "", ".", "..", ".metadata", "a\x00b", "x" * 300, 7, None])
def test_a_path_that_leads_elsewhere_is_not_followed(tmp_path: Path, path: Any) -> None:
    (tmp_path / "secret").write_bytes(ss.torch_saved(ss.floats(1, 3).raw.tobytes(), (1, 3), (3, 1), "F32"))
    assert "place" in forged(tmp_path, relative_path=path)


@pytest.mark.parametrize("value", [-1, 2**63, 2**200, True, "0", None, 1.0])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_an_offset_or_a_length_that_makes_no_sense_is_a_fault(tmp_path: Path, key: str, value: Any) -> None:
    assert "place" in forged(tmp_path, **{key: value})


@pytest.mark.parametrize("place", [{"offset": 1}, {"offset": 2**47}, {"length": 2**47}, {"length": 0}, {"length": 5}])
def test_a_place_beyond_the_file_or_beside_the_tensor_is_a_fault(tmp_path: Path, place: dict[str, int]) -> None:
    assert "__1_0.distcp" in forged(tmp_path, **place)


def test_parts_that_were_transformed_when_they_were_written_are_a_fault(tmp_path: Path) -> None:
    assert "place" in forged(tmp_path, transform_descriptors=["zstd"])


def test_two_parts_can_t_share_bytes(tmp_path: Path) -> None:
    assert "share bytes" in forged(tmp_path, relative_path="__0_0.distcp")


@pytest.mark.parametrize(
    ("boxes", "word"),
    [
        ([((0, 0), (1, 3))], "3 entries, not 6"),
        ([((0, 0), (2, 3)), ((1, 0), (1, 3))], "9 entries, not 6"),
        ([((0, 0), (1, 3)), ((0, 1), (1, 2)), ((1, 0), (1, 1))], "overlaps"),
        ([((1, 0), (2, 3))], "a part"),
        ([((0,), (2,))], "a part"),
        ([((0, 0, 0), (2, 3, 1))], "a part"),
        ([], "0 entries, not 6"),
    ],
)
def test_every_entry_is_covered_exactly_once(tmp_path: Path, boxes: list[Any], word: str) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    forge.listed["t"].state["chunks"] = [
        ss.meta("ChunkStorageMetadata", {"offsets": ss.size(*offsets), "sizes": ss.size(*sizes)}) for offsets, sizes in boxes
    ]
    assert word in read_distcp(forge.write(tmp_path)).fault


@pytest.mark.parametrize(
    "shape", [(2**47, 2**47), (2**48,), (-2, -3), (2.0, 3), (True, 3), ("2", 3), (0, 2**47, 2**47), (2**200,), tuple([1] * 70)]
)
def test_a_size_that_can_t_be_is_a_fault_and_costs_no_memory(tmp_path: Path, shape: tuple[Any, ...]) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    forge.listed["t"].state["size"] = ss.size(*shape)
    forge.listed["t"].state["chunks"][0].state["sizes"] = ss.size(*shape)
    assert "no sense" in read_distcp(forge.write(tmp_path)).fault


def test_a_large_size_without_the_bytes_for_it_is_a_fault_and_costs_no_memory(tmp_path: Path) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    forge.listed["t"].state["size"] = ss.size(2**40, 3)
    forge.listed["t"].state["chunks"][0].state["sizes"] = ss.size(2**40, 3)
    folder = forge.write(tmp_path)
    tracemalloc.start()
    try:
        assert "not the F32 [1099511627776, 3]" in read_distcp(folder).fault
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("saved", "word"),
    [
        ({"compression": zipfile.ZIP_DEFLATED}, "compressed"),
        ({"members": {"byteorder": b"big"}}, "little"),
        ({"members": {"data/0": bytes(20)}}, "not the F32"),
        ({"members": {"data.pkl": b"\x80\x04cos\nsystem\n)R."}}, "os.system"),
        ({"members": {"data.pkl": ss.pickled(None)}}, "not the F32"),
        ({"members": {"big": bytes(2**20 + 1)}}, "more than one"),
        ({"members": {f"data/{n}": b"" for n in range(1, 20)}}, "not one tensor"),
        ({"numel": 7}, "not the F32"),
        ({"offset": 1}, "not the F32"),
    ],
)
def test_a_part_that_is_another_file_than_it_should_be_is_a_fault(tmp_path: Path, saved: dict[str, Any], word: str) -> None:
    raw = ss.floats(2, 3)
    forge = ss.Forge().tensor("t", raw)
    forge.stored.clear()
    forge.place("t", (0, 0), "__0_1.distcp", ss.torch_saved(raw.raw.tobytes(), (2, 3), (3, 1), "F32", **saved))
    assert word in read_distcp(forge.write(tmp_path)).fault


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [((3, 2), (2, 1), "F32"), ((2, 3), (3, 1), "I64"), ((2, 3), (30, 1), "F32"), ((2, 3), (-3, 1), "F32"), ((2, 3), (1,), "F32"),
     ((2, 3), (2**60, 1), "F32"), ((2, 3), (3, True), "F32")],
)  # fmt: skip
def test_a_part_of_another_shape_or_dtype_is_a_fault(tmp_path: Path, shape: Any, strides: Any, dtype: str) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    forge.stored.clear()
    forge.place("t", (0, 0), "__0_1.distcp", ss.torch_saved(ss.floats(2, 3, dtype=dtype).raw.tobytes(), shape, strides, dtype))
    assert read_distcp(forge.write(tmp_path)).fault


def test_a_part_of_another_dtype_of_the_same_width_is_a_fault(tmp_path: Path) -> None:
    raw = ss.floats(2, 3, dtype="F16")
    forge = ss.Forge().tensor("t", raw)
    forge.stored.clear()
    forge.place("t", (0, 0), "__0_1.distcp", ss.torch_saved(raw.raw.tobytes(), (2, 3), (3, 1), "BF16"))
    assert "not the F16" in read_distcp(forge.write(tmp_path)).fault


def test_more_metadata_or_parts_than_are_read_here_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ss.Forge().tensor("t", ss.floats(2, 3), [((0, 0), (1, 3)), ((1, 0), (1, 3))]).write(tmp_path)
    monkeypatch.setattr(sharded, "_MOST_PARTS", 1)
    assert "2 parts, more than" in read_distcp(folder).fault
    os.truncate(folder / ".metadata", 2**40)
    assert "1099511627776 bytes, more than" in read_distcp(folder).fault


@pytest.mark.parametrize("what", [None, 7, ss.meta("StorageMeta", {}), Named("torch.Size"), ss.meta("TensorStorageMetadata", (1, 2))])
def test_an_entry_that_is_no_tensor_s_is_a_fault(tmp_path: Path, what: Any) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    forge.listed["u"] = what
    assert "u makes no sense" in read_distcp(forge.write(tmp_path)).fault


@pytest.mark.parametrize("dtype", [Named("torch.Size"), "float32", None, 4])
def test_a_dtype_that_is_none_is_a_fault(tmp_path: Path, dtype: Any) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    forge.listed["t"].state["properties"].state = (dtype,)
    assert "makes no sense" in read_distcp(forge.write(tmp_path)).fault


def test_a_part_without_a_place_and_one_with_two_are_faults(tmp_path: Path) -> None:
    forge = ss.Forge().tensor("t", ss.floats(2, 3))
    first = next(iter(forge.stored.items()))
    forge.stored[Made(first[0].name, (), first[0].state)] = first[1]
    assert "place" in read_distcp(forge.write(tmp_path / "two")).fault
    forge.stored.clear()
    assert "no file" in read_distcp(forge.write(tmp_path / "none")).fault


@pytest.mark.parametrize("metadata", [None, 7, ss.meta("Metadata", None), ss.meta("Metadata", {"state_dict_metadata": {}}), []])
def test_a_pickle_of_something_else_is_a_fault(tmp_path: Path, metadata: Any) -> None:
    (tmp_path / ".metadata").write_bytes(ss.pickled(metadata))
    assert ".metadata" in read_distcp(tmp_path).fault


def test_a_pickle_that_would_run_a_program_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / ".metadata").write_bytes(ss.pickled(Made("posix.system", (f"touch {marker}",))))
    assert "posix.system" in read_distcp(tmp_path).fault and not marker.exists()
