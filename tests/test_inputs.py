"""A model or a data set that changes while commands run on it is found out, whatever changed and whether or not it was put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.inputs import Pins, changes, pin

FILES = {"a.jsonl": b"one\n", "b.jsonl": b"two\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def pins(folder: Path) -> Pins:
    return pin({folder: FILES})


def test_what_was_left_alone_has_not_changed(folder: Path, pins: Pins) -> None:
    (folder / "a.jsonl").read_bytes()
    (folder / ".notes").write_text("of a hub")
    assert changes(pins) == ()


def test_other_bytes_are_told(folder: Path, pins: Pins) -> None:
    (folder / "a.jsonl").write_bytes(b"One\n")
    assert changes(pins) == (f"{folder / 'a.jsonl'} holds other bytes",)


def test_bytes_that_were_other_from_the_first_are_told(folder: Path) -> None:
    assert changes(pin({folder: {**FILES, "b.jsonl": b"Two\n"}})) == (f"{folder / 'b.jsonl'} holds other bytes",)


def test_a_file_that_was_changed_and_put_back_is_told(folder: Path, pins: Pins) -> None:
    path = folder / "a.jsonl"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert changes(pins) == (f"{path} was written anew",)


def test_a_file_more_and_a_file_less_are_told(folder: Path, pins: Pins) -> None:
    (folder / "b.jsonl").rename(folder / "c.jsonl")
    assert changes(pins) == (f"{folder / 'c.jsonl'} is new", f"{folder / 'b.jsonl'} is gone")


def test_a_folder_that_is_gone_is_told(folder: Path, pins: Pins) -> None:
    for name in FILES:
        (folder / name).unlink()
    folder.rmdir()
    assert len(changes(pins)) == 2


def test_a_large_folder_is_held_by_sizes_and_times(folder: Path) -> None:
    pins = pin({folder: None})
    assert changes(pins) == ()
    (folder / "a.jsonl").write_bytes(b"longer than before\n")
    assert changes(pins) == (f"{folder / 'a.jsonl'} was written anew",)
