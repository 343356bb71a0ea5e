"""The matrices of `npu-smi info -t topo`: each saved one, each form, and what happens to cut and contradictory ones."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.npu_smi import parse
from harness.npu_smi_view import LINK_ORDER, link_distance

TOPO = Path(__file__).parent / "fixtures" / "topo"
LEFT, RIGHT = "0-63,128-191", "64-127,192-255"
EIGHT = [f"NPU{i}" for i in range(8)]
LINKS = {
    "a3_container_phyid12_13_sio": {("Phy-ID12", "Phy-ID13"): "SIO"},
    "a3_rows_only_sio_hccs_sw": {("Phy-ID0", "Phy-ID1"): "SIO", ("Phy-ID0", "Phy-ID2"): "HCCS_SW", ("Phy-ID1", "Phy-ID2"): "HCCS_SW"},
    "a950_4card_ub": {(a, b): "UB" if (a < "NPU4") == (b < "NPU4") else "SYS" for a, b in combinations(EIGHT, 2)},
    "a950_pcie_sys_only": dict.fromkeys(combinations(EIGHT, 2), "SYS"),
    "a950_ub_with_nic_no_affinity": {("NPU0", "NPU1"): "UB", ("NPU0", "NIC0"): "NA", ("NPU1", "NIC0"): "NA"},
    "legend_source_xlink_variant": {},
}
HALVES = {name: LEFT if name < "NPU4" else RIGHT for name in EIGHT}
AFFINITY = {"a950_4card_ub": HALVES, "a950_pcie_sys_only": HALVES}


def links_of(text: str) -> dict[tuple[str, str], str]:
    return {(link["a"], link["b"]): link["kind"] for link in parse(text).as_json()["links"]}


def test_every_saved_topology_has_its_expected_links_here() -> None:
    assert {path.stem for path in TOPO.glob("*.txt")} == set(LINKS)


@pytest.mark.parametrize("name", sorted(LINKS))
def test_a_saved_topology_says_what_stands_in_the_table(name: str) -> None:
    said = parse((TOPO / f"{name}.txt").read_text(encoding="utf-8")).as_json()
    assert links_of((TOPO / f"{name}.txt").read_text(encoding="utf-8")) == LINKS[name]
    assert said["affinity"] == AFFINITY.get(name, {}) and said["npus"] == []
    assert (said["error"] is None) == (name != "legend_source_xlink_variant")


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[str], dict[tuple[str, str], str], list[str]]:
    """(device names, links, lines of a matrix with or without affinity, of any width and of ids with several digits)."""
    prefix = draw(st.sampled_from(["NPU", "Phy-ID"]))
    names = [f"{prefix}{i}" for i in sorted(draw(st.sets(st.integers(0, 300), min_size=2, max_size=16)))]
    kinds = {pair: draw(st.sampled_from([*LINK_ORDER[1:], "NA"])) for pair in combinations(names, 2)}
    width, affinity = draw(st.integers(10, 14)), draw(st.booleans())
    lines = ["\t   " + "".join(name.ljust(width) for name in names) + ("CPU Affinity" if affinity else "")]
    for a in names:
        cells = ["X" if a == b else kinds.get((a, b)) or kinds[b, a] for b in names]
        lines.append(a.ljust(width) + "".join(cell.ljust(width) for cell in cells) + ("0-23, 48-71" if affinity else ""))
    return names, kinds, lines


@settings(max_examples=50)
@given(matrices())
def test_any_matrix_gives_back_the_links_it_was_made_of(made: tuple[list[str], dict[tuple[str, str], str], list[str]]) -> None:
    names, kinds, lines = made
    text = "\r\n".join([*lines, "", "Legend:", "", "  X    = Self", "  HCCS = Connection traversing HCCS."])
    assert links_of(text) == kinds and parse(text).error is None
    affinity = parse(text).as_json()["affinity"]
    assert affinity == (dict.fromkeys(names, "0-23,48-71") if "CPU Affinity" in lines[0] else {})


@settings(max_examples=50)
@given(matrices(), st.data())
def test_a_cut_matrix_has_no_link_that_the_whole_one_has_not(
    made: tuple[list[str], dict[tuple[str, str], str], list[str]], data: st.DataObject
) -> None:
    _, kinds, lines = made
    text = "\n".join(lines)
    cut = text[: data.draw(st.integers(len(lines[0]), len(text) - 1))]
    assert links_of(cut).items() <= kinds.items()


def test_a_terminal_s_line_breaks_in_a_wide_matrix_are_mended() -> None:
    text = "  NPU0  NPU1\n  NPU2  CPU Affinity\nNPU0  X  HCCS\n  HCCS  0-3\nNPU1  HCCS  X\n  PIX  0-3\nNPU2  HCCS  PIX\n  X  4-7\n"
    assert links_of(text) == {("NPU0", "NPU1"): "HCCS", ("NPU0", "NPU2"): "HCCS", ("NPU1", "NPU2"): "PIX"}
    assert parse(text).as_json()["affinity"] == {"NPU0": "0-3", "NPU1": "0-3", "NPU2": "4-7"}


def test_a_column_after_the_cpus_is_no_part_of_them() -> None:
    text = "  NPU0  NPU1  CPU Affinity  NUMA Affinity\nNPU0  X  UB  0-23  0\nNPU1  UB  X  24-47,96-119  1\n"
    assert parse(text).affinity == (("NPU0", "0-23"), ("NPU1", "24-47,96-119"))


def test_a_matrix_that_contradicts_itself_is_not_believed() -> None:
    view = parse("      NPU0 NPU1\nNPU0  X    HCCS\nNPU1  SYS  X\n")
    assert view.links == () and "HCCS from NPU0 to NPU1 but SYS back" in (view.error or "")


def test_rows_without_a_header_that_hides_columns_are_refused() -> None:
    view = parse("NPU1  HCCS  X  HCCS\nNPU2  HCCS  HCCS  X\n")
    assert view.links == () and "header is missing" in (view.error or "")


def test_a_link_of_a_kind_nobody_knows_is_shown_and_counts_as_far() -> None:
    view = parse("      NPU0 NPU1\nNPU0  X    WARP\nNPU1  WARP X\n")
    assert view.links[0].kind == "WARP"
    assert link_distance("HCCS") < link_distance("PIX") < link_distance("SYS") < link_distance("WARP") == link_distance(None)


def test_one_device_alone_has_an_affinity_and_no_link() -> None:
    view = parse("           NPU0       CPU Affinity\nNPU0       X          0-23\n")
    assert (view.links, view.affinity, view.error) == ((), (("NPU0", "0-23"),), None)
