"""Outputs of npu-smi that nobody saved for us: any layout and width, cut, coloured, quoted, wrapped, mistyped, or no npu-smi at all."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_tables import Host, hosts

from harness.model import Hardware
from harness.npu_smi import merge, parse
from harness.npu_smi_series import series_of, series_of_name
from harness.npu_smi_view import MachineView, Npu
from harness.session import read_matrix

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLES = [path.read_text(encoding="utf-8") for kind in ("npu_smi", "topo") for path in sorted((FIXTURES / kind).glob("*.txt"))]
# A host that neither parser nor generator has seen: wide columns of 25.x, and a process whose name has a bar and a space.
A2 = """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 25.2.3                                   Version: 25.2.4                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip                          | Bus-Id          | AICore(%)    Memory-Usage(MB)   HBM-Usage(MB)         |
+===============================+=================+======================================================+
| 11      910B3                 | OK              | 92.8         36                0    / 0              |
| 0                             | 0000:82:00.0    | 100          0    / 0          3198 / 65536          |
+===============================+=================+======================================================+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| 11      0                     | 4242            | sh -c a|b                | 12                        |
+===============================+=================+======================================================+
"""
# A share of one die of an Atlas A3, as its container sees it: two dies with the same Phy-ID and bus.
SHARE = """\
| NPU   Name         | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)      |
| Chip  Phy-ID       | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)              |
| 0     Ascend910    | OK            | 150.1       33                0    / 0                   |
| 0     6            | 0000:9D:00.0  | 0           0        / 0      3140 / 65536               |
| 0     Ascend910    | OK            | -           33                0    / 0                   |
| 1     6            | 0000:9D:00.0  | 0           0        / 0      3140 / 65536               |
"""


@settings(max_examples=50)
@given(hosts())
def test_any_table_gives_back_the_host_it_was_printed_from(host: Host) -> None:
    view = parse(host.printed())
    assert (view.npus, view.processes) == (host.npus, host.processes)
    assert (view.version, view.error) == (host.version, None)


@given(
    hosts(), st.sampled_from(["\r\n", "\x1b[0m\n", "   \n", "\n> ", "\n\n"]), st.sampled_from(["", "\ufeff", "root@n1:~# npu-smi info\n"])
)
def test_line_ends_colours_quotes_and_prompts_change_nothing(host: Host, end: str, before: str) -> None:
    dressed = before + host.printed().replace("\n", end)
    assert parse(dressed).as_json() == parse(host.printed()).as_json()
    assert parse(host.printed().replace("|", "│").replace("+=", "╪═")).npus == host.npus
    assert parse("\n".join(f"[INFO] 12:00:01 {line}" for line in host.printed().split("\n"))).npus == host.npus


@settings(max_examples=50)
@given(hosts(), st.data())
def test_a_cut_table_says_nothing_that_the_whole_one_does_not(host: Host, data: st.DataObject) -> None:
    whole = host.printed()
    view = parse(whole[: data.draw(st.integers(0, len(whole)))])
    assert view.version in (None, host.version)
    by_die = {(npu.npu_id, npu.chip): npu for npu in host.npus}
    for npu in view.npus:
        told = [f.name for f in fields(Npu) if getattr(npu, f.name) not in (None, ()) and f.name != "series"]
        assert [getattr(npu, name) for name in told] == [getattr(by_die[npu.npu_id, npu.chip], name) for name in told]
    assert {(p.npu_id, p.chip, p.pid) for p in view.processes} <= {(p.npu_id, p.chip, p.pid) for p in host.processes}
    memory = {p.pid: p.mem_mb for p in host.processes}
    assert all(p.mem_mb in (None, memory[p.pid]) for p in view.processes)


NOISE = st.text(alphabet="|+=: -/.0123456789\n\r\tNPUChipHealthBusIdNameXSYSHCCS\x1b[m│：失败①٣", max_size=400) | st.text(max_size=200)


@given(st.sampled_from(SAMPLES), st.integers(0, 3000), NOISE, st.integers(0, 3000))
def test_no_text_makes_the_parser_raise_and_none_is_met_with_silence(sample: str, start: int, noise: str, end: int) -> None:
    for text in (noise, sample[:start] + noise, sample[:start] + noise + sample[end:], noise + sample[end:]):
        view = parse(text)
        said = view.as_json()
        assert said["version"] or said["npus"] or said["error"] or view.sections
        merge([view, parse(sample)]).as_json()


@given(st.sampled_from(SAMPLES), st.lists(st.tuples(st.integers(0, 3000), st.characters()), max_size=30))
def test_damaged_letters_make_no_die_that_was_not_there(sample: str, damage: list[tuple[int, str]]) -> None:
    letters = list(sample)
    for at, letter in damage:
        letters[at % len(letters)] = letter
    assert isinstance(parse("".join(letters)), MachineView)


def test_wide_columns_big_ids_and_bars_in_names_are_read() -> None:
    view = parse(A2)
    assert [(npu.npu_id, npu.aicore_pct, npu.hbm_used_mb) for npu in view.npus] == [(11, 100, 3198)]
    assert [(process.pid, process.name, process.mem_mb) for process in view.processes] == [(4242, "sh -c a|b", 12)]
    assert (view.version, view.error) == ("25.2.3", None), "npu-smi's version, not the driver's"


def test_a_share_of_a_die_is_two_devices_to_frameworks() -> None:
    view = parse(SHARE)
    assert [(npu.chip, npu.phy_id, npu.series) for npu in view.devices] == [(0, 6, "a3"), (1, 6, "a3")]


def test_the_same_die_twice_is_one_with_its_worst_health() -> None:
    view = parse(A2 + A2.replace("OK   ", "Alarm"))
    assert [npu.health for npu in view.npus] == ["Alarm"]


def test_columns_may_move_and_new_ones_may_come() -> None:
    moved = A2.replace("Power(W)     Temp(C)  ", "Temp(C)      Power(W) ").replace("92.8         36  ", "36           92.8")
    assert (parse(moved).npus[0].power_w, parse(moved).npus[0].temp_c) == (92.8, 36)
    more = A2.replace("AICore(%)    Memory", "AICore(%)  AIVector(%)  Memory").replace("| 100          0  ", "| 100        33  0  ")
    assert (parse(more).npus[0].aicore_pct, parse(more).npus[0].hbm_used_mb) == (100, 3198)
    strange = A2.replace("| 100          0  ", "| 100  33   0  ")
    assert (parse(strange).npus[0].aicore_pct, parse(strange).npus[0].hbm_used_mb) == (None, 3198), "two numbers under one header"


def test_a_wrapped_line_is_mended_unless_a_number_might_have_been_split() -> None:
    wrapped = A2.replace("0    / 0          3198 / 65536          |", "0    / 0          3198 /\n 65536          |")
    assert parse(wrapped).npus[0].hbm_total_mb == 65536
    split = A2.replace("3198 / 65536          |", "3198 / 65\n536          |")
    assert (parse(split).npus[0].hbm_used_mb, parse(split).npus[0].hbm_total_mb) == (None, None)


def test_a_name_that_goes_on_in_the_next_line_is_read_whole() -> None:
    longer = (
        A2.replace("| 11      0      ", "| 11      0      ", 1) + "|                               |                 | _worker_7 |  |\n"
    )
    assert parse(longer).processes[0].name == "sh -c a|b_worker_7"


@pytest.mark.parametrize(
    "text",
    [
        "bash: npu-smi: command not found",
        "-bash: npu-smi: 未找到命令",
        "npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object file: No such file or directory",
        "This device does not support querying topo.",
        "There is no NPU card on this server.",
        "Failed to query device.",
        "dcmi module initialize failed. ret is -8001",
    ],
)
def test_what_is_said_instead_of_an_answer_is_the_error(text: str) -> None:
    assert parse(text).error == text and parse(text).npus == ()


@pytest.mark.parametrize("text", ["", "  \n\n", "GPU 0: some other accelerator", "{}"])
def test_a_text_that_says_nothing_is_called_that(text: str) -> None:
    assert "nothing of npu-smi" in (parse(text).error or "") or "empty" in (parse(text).error or "")


def test_the_legend_of_shares_is_no_error() -> None:
    assert parse("Format:Free/Total   NA: Currently, query is not supported.\nTotal number of vnpu: 1\n" + A2).error is None


def test_a_flood_of_nonsense_is_cut_short() -> None:
    view = parse(A2 + "".join(f"| {i} |\n" for i in range(3000)))
    assert len(view.errors) == 21 and view.errors[-1] == "and 2980 more of the kind"


USAGES = """
\tNPU ID                         : 2
\tChip Count                     : 2

\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 4
\tAicore Usage Rate(%)           : 11
\tChip ID                        : 0

\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 78
\tAicore Usage Rate(%)           : 12
\tChip ID                        : 1
"""
COMMON = """
\tNPU ID                         : 2
\tChip Count                     : 1

\tChip ID                        : 0
\tAicore Usage Rate(%)           : 11
\tTemperature(C)                 : 46
\tNPU Real-time Power(W)         : 69.0

\tChip ID                        : 1
\tAicore Usage Rate(%)           : 12

\tChip Name                      : mcu
\tTemperature(C)                 : 31
\tNPU Real-time Power(W)         : 45.2
"""
TEMP = "NPU ID : 2\nChip Count : 1\n\nNPU Temperature (C) : 39\nChip ID : 0\n\nLM75A_TE (C) : 36\nTemperature (C) : 99\nChip Name : MCU\n"


@pytest.mark.parametrize("squeeze", [False, True], ids=["as printed", "without empty lines"])
def test_blocks_belong_to_the_chip_that_begins_or_ends_them(squeeze: bool) -> None:
    usages, common, temp = ("\n".join(filter(str.strip, t.split("\n"))) if squeeze else t for t in (USAGES, COMMON, TEMP))
    assert [(npu.npu_id, npu.chip, npu.aicore_pct, npu.hbm_used_mb) for npu in parse(usages).npus] == [(2, 0, 11, None), (2, 1, 12, None)]
    found = [(npu.chip, npu.aicore_pct, npu.temp_c, npu.power_w) for npu in parse(common).npus]
    assert found == [(0, 11, 46, 69.0), (1, 12, None, None)], "the controller's values are nobody's"
    assert [(npu.chip, npu.temp_c) for npu in parse(temp).npus] == [(0, 39)]


def test_processes_of_proc_mem_belong_to_their_chip() -> None:
    one = "Process id:77 Process name: Process memory(MB):48208"
    text = f"NPU ID : 5\nChip Count : 2\n\nNo process in device.\nChip ID : 0\n\n{one}\nChip ID : 1\n"
    for shape in (text, text.replace("\n\n", "\n")):
        view = parse(shape)
        assert [(p.npu_id, p.chip, p.pid, p.name, p.mem_mb) for p in view.processes] == [(5, 1, 77, None, 48208)]
        assert [npu.chip for npu in view.npus] == [0, 1] and "processes" in view.sections


def test_the_command_tells_whom_values_are_about_and_without_it_nobody_is_given_them() -> None:
    values = "\tHealth Status                  : OK\n\tError Code                     : NA\n"
    told = parse(f"$ npu-smi info -t health -i 12 -c 1\n{values}")
    assert [(npu.npu_id, npu.chip, npu.health) for npu in told.npus] == [(12, 1, "OK")]
    assert parse(values).npus == () and "name no NPU" in (parse(values).error or "")


@given(st.sampled_from([USAGES, COMMON, TEMP]), st.data())
def test_a_cut_block_has_no_number_that_the_whole_one_has_not(text: str, data: st.DataObject) -> None:
    numbers = {name for npu in parse(text).npus for name in (npu.aicore_pct, npu.temp_c, npu.power_w, npu.hbm_total_mb)}
    for npu in parse(text[: data.draw(st.integers(0, len(text)))]).npus:
        assert npu.npu_id == 2 and {npu.aicore_pct, npu.temp_c, npu.power_w, npu.hbm_total_mb} - {None} <= numbers


@pytest.mark.parametrize(
    ("text", "dies"),
    [
        (
            "NPU ID Chip ID Chip Logic ID Chip Phy-ID Chip Name\n0 0 0 4 Ascend910\n0 1 1 5 Ascend910\n0 2 - - Mcu\n",
            [(0, 0, 4, 0), (0, 1, 5, 1)],
        ),
        ("\tNPU ID   Slot ID   Chip ID   Chip Phy-ID   Chip Name\n\t5   22   0   5   Ascend950PR\n", [(5, 0, 5, None)]),
        ("Chip Name     NPU ID    Chip ID\nAscend 910B3  7         0\n", [(7, 0, None, None)]),
        (" Chip Physical ID :3\n Chip Logic ID :1\n NPU ID :2\n Chip ID :0\n", [(2, 0, 3, 1)]),
    ],
    ids=["a3", "950", "name first", "phyid-remap"],
)
def test_maps_are_read_by_their_columns(text: str, dies: list[tuple[int | None, ...]]) -> None:
    view = parse(text)
    assert [(npu.npu_id, npu.chip, npu.phy_id, npu.logic_id) for npu in view.npus] == dies and view.error is None


def test_watch_is_read_by_its_columns() -> None:
    head = "NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)     AI Core(%)  Memory BW(%) NPU Util(%)"
    npu = parse(f"{head}\n10          0           95.5        41          63          5           NA\n").npus[0]
    assert (npu.npu_id, npu.chip, npu.power_w, npu.temp_c, npu.aicore_pct) == (10, 0, 95.5, 41, 63)


@pytest.mark.parametrize(
    ("name", "series"),
    [
        *((name, "a2") for name in ("910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1", "Ascend910B3", "Ascend 910B4")),
        *((name, "a3") for name in ("Ascend910_9391", "Ascend910_9362", "910C")),
        *((name, "a5") for name in ("Ascend950PR", "Ascend950DT", "Ascend910_9589")),
        ("310P3", "310P"),
        ("310B4", "310B"),
        ("Ascend 910A", "910A"),
        ("310", "310"),
        *((name, None) for name in ("910B", "910", "Ascend910", "xxx", "910D7", "Mcu", "", None)),
    ],
)
def test_a_name_tells_its_series_or_nothing(name: str | None, series: str | None) -> None:
    assert series_of_name(name) == series


def test_series_are_those_of_matrix_yaml() -> None:
    matrix = read_matrix(Path(__file__).parent.parent / "matrix.yaml")
    for target, facts in matrix.hardware.items():
        for pattern in (*facts["device_names"], *facts["chips"]):
            if pattern != "Ascend910":  # told from a 910A by its dies only
                assert {series_of_name(pattern.replace("*", end)) for end in ("1", "2") if series_of_name(pattern.replace("*", end))} == {
                    str(target)
                }


def test_dies_of_different_series_are_of_none() -> None:
    assert series_of((Npu(0, 0, series="a2"), Npu(1, 0, series="a2"))) is Hardware.A2
    assert series_of((Npu(0, 0, series="a2"), Npu(1, 0, series="a3"))) is None
    assert series_of((Npu(0, 0, series="310P"),)) is None and series_of(()) is None
