"""What each saved output of npu-smi in tests/fixtures says, value by value. Where the samples come from: fixtures/PROVENANCE.tsv."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.npu_smi import merge, parse

FIXTURES = Path(__file__).parent / "fixtures"
# (npu_id, chip, phy_id, name, series, health, bus_id, power_w, temp_c, aicore_pct, hbm_used_mb, hbm_total_mb), the order of the JSON
NPUS: dict[str, list[tuple[Any, ...]]] = {
    "a5_ascend950_layout_synthetic": [
        (0, None, None, "Ascend950DT", "a5", "OK", None, 100.0, 40, 20, 1024, 8192),
        (3, None, None, "Ascend950DT", "a5", "Alarm", None, 120.0, 45, 0, 2048, 8192),
    ],
    "err_dcmi_8005": [],
    "err_dcmi_8020": [],
    "err_exporter_dcmi": [],
    "i23_0_0_310b4_alarm_no_hbm": [(0, 0, None, "310B4", "310B", "Alarm", None, 0.0, 65, 0, None, None)],
    "i23_0_3_autodl_only_2": [(2, 0, None, "910B2", "a2", "OK", "0000:C2:00.0", 97.3, 47, 0, 3335, 65536)],
    "i23_0_5_health_warning": [
        (0, 0, None, "xxx", None, "Warning", "0000:61:00.0", 73.1, 37, 0, 0, 32768),
        (7, 0, None, "xxx", None, "OK", "0000:3D:00.0", 67.0, 38, 0, 0, 32768),
    ],
    "i24_1_rc2_310p3_two_chips": [
        (1, 0, None, "310P3", "310P", "OK", "0000:01:00.0", None, 59, 0, None, None),
        (1, 1, None, "310P3", "310P", "OK", "0000:01:00.0", None, 58, 0, None, None),
    ],
    "i24_1_rc3_container_ids_1_2": [
        (1, 0, None, "910B2", "a2", "OK", "0000:01:00.0", 95.0, 45, 0, 3372, 65536),
        (2, 0, None, "910B2", "a2", "OK", "0000:C2:00.0", 105.4, 44, 0, 3370, 65536),
    ],
    "i25_2_0_910b4_1_masked_bus": [
        (0, 0, None, "910B4-1", "a2", "OK", "0000:xx:00.0", 91.3, 33, 0, 3197, 65536),
        (1, 0, None, "910B4-1", "a2", "OK", "0000:xx:00.0", 88.1, 32, 0, 3197, 65536),
    ],
    "i25_2_0_a3_twochips_partial_procs": [
        (0, 0, 0, "Ascend910", "a3", "OK", "0000:9C:00.0", 162.8, 37, 0, 3133, 65536),
        (0, 1, 1, "Ascend910", "a3", "OK", "0000:9E:00.0", None, 37, 0, 2876, 65536),
        (1, 0, 2, "Ascend910", "a3", "OK", "0000:37:00.0", 167.1, 38, 0, 3116, 65536),
        (1, 1, 3, "Ascend910", "a3", "OK", "0000:39:00.0", None, 38, 0, 10568, 65536),
    ],
    "i25_3_rc1_a3_one_die_busy": [
        (0, 0, 0, "Ascend910", "a3", "OK", "0000:9D:00.0", 502.6, 75, 61, 47755, 65536),
        (0, 1, 1, "Ascend910", "a3", "OK", "0000:9F:00.0", None, 51, 0, 2880, 65536),
    ],
    "i26_910b3_same_card_several_procs": [(0, 0, None, "910B2", "a2", "OK", "0000:C1:00.0", 90.0, 44, 0, 41842, 65536)],
    "i26_910b4_no_procs_one_card": [(0, 0, None, "910B4", "a2", "OK", "0000:C1:00.0", 82.6, 32, 0, 2871, 32768)],
    "i26_a3_process_in_container": [
        (7, 0, 14, "Ascend910", "a3", "OK", "0000:81:00.0", 172.0, 53, 0, 15503, 65536),
        (7, 1, 15, "Ascend910", "a3", "OK", "0000:83:00.0", None, 52, 0, 15242, 65536),
    ],
    "i310p_npu_ids_32768": [
        (32768, 0, None, "310P3", "310P", "OK", "0000:81:00.0", None, 56, 0, None, None),
        (32800, 0, None, "310P3", "310P", "OK", "0000:82:00.0", None, 59, 0, None, None),
        (32832, 0, None, "310P3", "310P", "OK", "0000:83:00.0", None, 60, 0, None, None),
    ],
    "m_map_910a": [(i, 0, None, "Ascend 910A", "910A", *[None] * 7) for i in range(8)],
    "proc_table_npu_only_950": [],
    "t_board_card_23_0_5": [(0, None, None, None, None, None, "0000:61:00.0", *[None] * 5)],
    "t_board_chip_c0": [(0, 0, None, "xxx", None, None, "0000:61:00.0", *[None] * 5)],
    "t_board_invalid_card_and_health_alarm": [(0, 0, None, None, None, "Alarm", *[None] * 6)],
    "t_ecc_card": [(1, 0, *[None] * 10)],
    "t_memory_and_l_a3": [(0, *[None] * 11), (1, 0, *[None] * 9, 65536)],
}
# (npu_id, chip, pid, name, mem_mb); samples without processes are not named here
PROCESSES: dict[str, list[tuple[Any, ...]]] = {
    "a5_ascend950_layout_synthetic": [(0, None, 1001, "python", 256), (0, None, 1002, "python", 512)],
    "i25_2_0_a3_twochips_partial_procs": [(1, 1, 990711, "python", 7746)],
    "i26_910b3_same_card_several_procs": [(0, 0, 1732754 + i, "python", 150 + i) for i in range(3)],
    "i26_a3_process_in_container": [(0, 0, 692318, "python3", 12417), (0, 1, 692318, "python3", None)],
    "proc_table_npu_only_950": [(0, None, 2018733, "VLLMWorker_TP", 30212), (1, None, 2018734, "VLLMWorker_TP", 30212)],
}
VERSIONS = {
    "a5_ascend950_layout_synthetic": "99.0.rc1.b1",
    "i23_0_0_310b4_alarm_no_hbm": "23.0.0",
    "i23_0_3_autodl_only_2": "23.0.3",
    "i23_0_5_health_warning": "23.0.5",
    "i24_1_rc2_310p3_two_chips": "24.1.rc2",
    "i24_1_rc3_container_ids_1_2": "24.1.rc3",
    "i25_2_0_910b4_1_masked_bus": "25.2.0",
    "i25_2_0_a3_twochips_partial_procs": "25.2.0",
    "i25_3_rc1_a3_one_die_busy": "25.3.rc1",
    "t_board_card_23_0_5": "23.0.5",
}
ERRORS = {
    "err_dcmi_8005": "dcmi module initialize failed. ret is -8005",
    "err_dcmi_8020": "dcmi model initialized failed, because the device is used. ret is -8020",
    "err_exporter_dcmi": "error code: -8005",
    "i24_1_rc2_310p3_two_chips": "a line of the table is cut or strange: '2       310P3'",
    "t_board_invalid_card_and_health_alarm": "Invalid card id.; Error parameter of -i",
}


def sample(name: str) -> str:
    return (FIXTURES / "npu_smi" / f"{name}.txt").read_text(encoding="utf-8")


def test_every_sample_has_its_expected_values_here_and_its_source_in_the_provenance() -> None:
    names = {path.stem for path in (FIXTURES / "npu_smi").glob("*.txt")}
    assert names == set(NPUS) and set(PROCESSES) | set(VERSIONS) | set(ERRORS) <= names
    known = {line.split("\t")[0] for line in (FIXTURES / "PROVENANCE.tsv").read_text(encoding="utf-8").splitlines()}
    assert {f"npu_smi/{name}.txt" for name in names} <= known


@pytest.mark.parametrize("name", sorted(NPUS))
def test_a_sample_says_what_stands_in_the_table(name: str) -> None:
    said = parse(sample(name)).as_json()
    assert [tuple(npu.values()) for npu in said["npus"]] == NPUS[name]
    assert [tuple(process.values()) for process in said["processes"]] == PROCESSES.get(name, [])
    assert said["version"] == VERSIONS.get(name)
    expected = ERRORS.get(name)
    assert said["error"] is None if expected is None else expected in said["error"]
    assert (said["links"], said["affinity"]) == ([], {})


def test_the_json_has_the_published_names_in_the_published_order() -> None:
    said = parse(sample("i25_2_0_a3_twochips_partial_procs")).as_json()
    names = "npu_id chip phy_id name series health bus_id power_w temp_c aicore_pct hbm_used_mb hbm_total_mb"
    assert list(said) == ["version", "npus", "processes", "links", "affinity", "error"]
    assert list(said["npus"][0]) == names.split()
    assert list(said["processes"][0]) == ["npu_id", "chip", "pid", "name", "mem_mb"]


def test_what_has_no_place_in_the_json_is_kept_for_the_doctor() -> None:
    assert parse(sample("t_board_invalid_card_and_health_alarm")).npus[0].error_codes == ("A4025021", "8C03A000", "8C084E00")
    assert parse(sample("t_ecc_card")).npus[0].double_bit_errors == 0
    assert parse(sample("i24_1_rc2_310p3_two_chips")).npus[0].memory_used_mb == 1397
    assert [npu.logic_id for npu in parse(sample("m_map_910a")).npus] == list(range(8))


def test_an_absent_process_table_differs_from_an_empty_one() -> None:
    assert "processes" not in parse(sample("i25_3_rc1_a3_one_die_busy")).sections
    assert "processes" in parse(sample("i23_0_3_autodl_only_2")).sections


def test_outputs_of_one_host_become_one_view() -> None:
    details = [
        "NPU ID                         : 1\nChip Count : 1\n\nHBM Capacity(MB) : 65536\nAicore Usage Rate(%) : 7\nChip ID : 0\n",
        "# npu-smi info -t health -i 1 -c 0\n\tHealth Status                  : Warning\n\tError Code : 80E18005\n",
        "\tNPU ID     Chip ID    Chip Logic ID  Chip Name\n\t1   0   1   Ascend 910B2\n\t2   0   0   Ascend 910B2\n\t2   1   -   Mcu\n",
        "       NPU1   NPU2   CPU Affinity\nNPU1   X      HCCS   0-23\nNPU2   HCCS   X      24-47\n",
    ]
    view = merge([parse(sample("i24_1_rc3_container_ids_1_2")), *(parse(text) for text in details)])
    assert [(npu.npu_id, npu.health, npu.name, npu.aicore_pct) for npu in view.npus] == [(1, "Warning", "910B2", 0), (2, "OK", "910B2", 0)]
    assert [npu.npu_id for npu in view.devices] == [2, 1], "by Chip Logic ID, which frameworks count by"
    assert (view.link_kind(0, 1), view.link_kind(1, 0), view.link_kind(1, 1)) == ("HCCS", "HCCS", "X")
    assert view.errors == () and view.affinity == (("NPU1", "0-23"), ("NPU2", "24-47"))


def test_what_is_said_of_an_npu_is_not_given_to_one_of_its_two_dies() -> None:
    view = merge([parse(sample("i25_3_rc1_a3_one_die_busy")), parse("NPU ID : 0\nHealth : Alarm\nPower(W) : 99.0\n")])
    assert [(npu.health, npu.power_w) for npu in view.npus] == [("OK", 502.6), ("OK", None)]


def test_a_device_s_processes_are_found_with_and_without_a_chip_column() -> None:
    a3 = parse(sample("i25_2_0_a3_twochips_partial_procs"))
    assert [[process.pid for process in a3.processes_on(i)] for i in range(4)] == [[], [], [], [990711]]
    a5 = parse(sample("a5_ascend950_layout_synthetic"))
    assert [len(a5.processes_on(i)) for i in range(2)] == [2, 0]
