"""No text, however broken, ends in anything but a Matrix or one MatrixError with a line."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.errors import MatrixError
from harness.matrix import parse_matrix
from harness.model import Matrix

SMALL = (Path(__file__).parent / "matrix_small.yaml").read_text(encoding="utf-8")
LINES = SMALL.splitlines()
WORDS = sorted(set(re.findall(r"[^\s,\[\]{}:]+", SMALL)))
BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what YAML counts as the end of a line
ANYHOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ":",
        ": ",
        "- ",
        "\t",
        "&a ",
        "*a",
        "!!int ",
        "!x ",
        "? ",
        "|",
        ">",
        "'",
        '"',
        "#",
        "%",
        "---\n",
        "...\n",
        "<<: ",
        "~",
        "1e999",
        "0x",
        "-",
        "\n  ",
        ",",
        "null",
    ]
)


def read(text: str) -> Matrix | None:
    try:
        return parse_matrix(text, "m.yaml")
    except MatrixError as error:
        where = re.fullmatch(r"m\.yaml:(\d+)", error.where)
        assert where and 1 <= int(where[1]) <= len(BREAKS.split(text))
        assert error.what
        assert len(str(error)) < 2000
        return None


@ANYHOW
@given(st.integers(0, len(SMALL)), PIECES)
@example(0, "%TAG ! x\n")
@example(0, "%\n")
def test_a_piece_of_yaml_put_anywhere(place: int, piece: str) -> None:
    read(SMALL[:place] + piece + SMALL[place:])


@ANYHOW
@given(st.integers(0, len(SMALL)), st.integers(1, 40))
def test_a_part_cut_out_anywhere(place: int, length: int) -> None:
    read(SMALL[:place] + SMALL[place + length :])


@ANYHOW
@given(st.integers(0, len(LINES) - 1), st.integers(0, len(LINES) - 1))
def test_a_line_moved_anywhere(first: int, second: int) -> None:
    lines = list(LINES)
    lines[first], lines[second] = lines[second], lines[first]
    read("\n".join(lines))


@ANYHOW
@given(
    st.sampled_from(WORDS),
    st.one_of(st.sampled_from(WORDS), st.sampled_from(["null", "true", "-1", "0", "[]", "{}", "[[a]]", "{a: b}", "1.5"])),
)
def test_a_word_exchanged_for_another(old: str, new: str) -> None:
    at = [m.start() for m in re.finditer(re.escape(old), SMALL)]
    for place in at[:3]:
        read(SMALL[:place] + new + SMALL[place + len(old) :])


@ANYHOW
@given(st.text(max_size=60))
@example("\r0")
def test_any_text(text: str) -> None:
    assert read(text) is None
