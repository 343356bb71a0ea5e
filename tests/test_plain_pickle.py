"""A pickle is read as plain data: nothing in it runs, and nothing that it says costs more than its own bytes."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import sharded_samples as ss
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.plain_pickle import Made, Named, Stored, read_pickle

LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=300)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=5).map(tuple) | st.dictionaries(st.text(max_size=5) | st.integers(), inner)
    ),
    max_leaves=12,
)


@given(VALUES, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_data_come_back_as_they_were(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), (), "x") == value


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_a_function_is_refused_and_calls_nothing(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    evil = pickle.dumps([Evil(marker)], protocol)
    with pytest.raises(HarnessError):
        read_pickle(evil, (), "x")
    pickle.loads(evil)
    assert marker.exists()  # the trap is a real one
    marker.unlink()
    assert isinstance(read_pickle(evil, ("posix.system",), "x")[0], Made) if protocol >= 2 else True
    assert not marker.exists()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "pickle"),
        (b"\x80\x04N", "pickle"),
        (b"\x80\x04.", "stack"),
        (b"\x80\x04cos\nsystem\n.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"\x80\x04NN\x93.", "no text"),
        (b"\x80\x04NN\x81.", "no name"),
        (b"\x80\x04}Nb.", "no Made"),
        (b"\x80\x04ctorch\nSize\nNb.", "no Made"),
        (b"\x80\x04NNs.", "no dict"),
        (b"\x80\x04NNa.", "no list"),
        (b"\x80\x04}NNs.", "keys"),
        (b"\x80\x04}(Nu.", "keys"),
        (b"\x80\x04t.", "mark"),
        (b"\x80\x04h\x05.", "memo"),
        (b"\x80\x04\x94.", "no object"),
        (b"\x80\x04C\x01x.", "BINBYTES"),
        (b"\x80\x04\x82\x01.", "EXT1"),
        (b"\x80\x04(cos\nsystem\no.", "os.system"),
        (b"\x80\x04(ios\nsystem\n.", "INST"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"x.", "pickle"),
        (b"\x80\x04X\xff\xff\xff\x7fx.", "pickle"),
    ],
)
def test_what_is_no_pickle_of_plain_data_is_refused_with_its_reason(data: bytes, word: str) -> None:
    with pytest.raises(HarnessError, match=word):
        read_pickle(data, ("torch.Size",), "x")


def test_keys_that_take_forever_to_hash_are_refused() -> None:
    doubled = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(60))
    with pytest.raises(HarnessError, match="keys"):
        read_pickle(b"\x80\x04)q\x00" + doubled + b"}h\x3cNs.", (), "x")


def test_a_memo_far_out_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        read_pickle(b"\x80\x04Nr\xff\xff\xff\xff.", (), "x")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_calls_and_persistent_ids_are_noted_and_nothing_else() -> None:
    noted = read_pickle(ss.pickled(Made("torch.Size", ((2, 3),), {"a": Stored(("storage", Named("torch.Size")))})), ("torch.Size",), "x")
    assert (noted.name, noted.args) == ("torch.Size", ((2, 3),))
    assert noted.field("a").pid[0] == "storage" and noted.field("b") is None


@settings(deadline=None)  # each example reads a file
@given(st.binary(max_size=200), st.integers(0, 4000), st.integers(0, 255))
def test_no_bytes_raise_anything_but_a_sentence(noise: bytes, at: int, byte: int) -> None:
    bent = bytearray((ss.REAL / "pytorch_model_fsdp_0" / ".metadata").read_bytes())[:4000]
    bent[at % len(bent)] = byte
    for data in (noise, b"\x80\x04" + noise, bytes(bent) + noise):
        try:
            read_pickle(data, ("torch.Size",), "x")
        except HarnessError as error:
            assert error.next_step
