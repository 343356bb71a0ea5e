"""What the doctor reads: /proc, wheels, checkpoints, command lines. Cut and strange text gives nothing, or our own error."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_hosts import checkpoint, write
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import doctor_parse as parse
from harness.doctor import examine
from harness.doctor_checks_stack import device_of
from harness.doctor_checks_work import imported_copy
from harness.doctor_command import parse_command
from harness.doctor_facts import HostFacts, MegatronCopy, Package
from harness.doctor_model import look_at_model
from harness.errors import HarnessError
from harness.model import Hardware
from harness.npu_smi_view import MachineView, Npu

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:EA60 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 25410 1
   1: 0100007F:EA61 0100007F:0016 01 00000000:00000000 00:00000000 00000000     0        0 25411 1
   2: 00000000000000000000000000000000:411A 00000000000000000000000000000000:0000 0A 0 0 0 0 0 0
"""


def test_listening_ports_are_read_and_connections_are_none() -> None:
    assert parse.listening_ports(TCP) == {60000, 16666}


def test_the_hosts_own_addresses_are_those_that_are_local() -> None:
    trie = "Main:\n  |-- 10.1.0.0\n     /16 link UNICAST\nLocal:\n" + "  |-- 10.1.2.3\n     /32 host LOCAL\n" * 2
    assert parse.local_addresses(trie) == ("10.1.2.3",)


@pytest.mark.parametrize(
    ("mounts", "gib"),
    [
        ("shm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n", 0.0625),
        ("tmpfs /dev/shm tmpfs rw,size=128G 0 0\n", 128.0),
        ("tmpfs /dev/shm tmpfs rw,nosuid 0 0\n", None),
        ("tmpfs /run tmpfs rw,size=1g 0 0\n", None),
    ],
)
def test_shared_memory_has_the_size_that_it_was_mounted_with(mounts: str, gib: float | None) -> None:
    assert parse.shared_memory_gib(mounts) == gib


def test_a_control_groups_limit_counts_where_it_leaves_less_than_the_host() -> None:
    meminfo = "MemTotal: 64 kB\nMemAvailable:   33554432 kB\n"
    assert parse.free_memory_gib(meminfo) == 32
    assert parse.free_memory_gib(meminfo, "max\n", "1024\n") == 32
    assert parse.free_memory_gib(meminfo, str(12 * 2**30), str(4 * 2**30)) == 8
    assert parse.free_memory_gib("", "", "") is None


@pytest.mark.parametrize(
    ("text", "said", "hardware"),
    [
        ("# Auto-generated file\n__device_type__ = 'A2'\n", "A2", Hardware.A2),
        ("__soc_version__ = 'ASCEND910B3'\n__sleep_mode_enabled__ = True\n", "ASCEND910B3", Hardware.A2),
        ("__soc_version__ = 'ascend910_9391'\n__device_type__ = 'A3'\n", "A3", Hardware.A3),
        ('__device_type__ = "_310P"\n', "_310P", None),
        ("__soc_version__ = 'ascend950dt_9582'\n", "ascend950dt_9582", Hardware.A5),
        ("__soc_version__ =\n", None, None),
    ],
)
def test_a_build_of_vllm_ascend_names_its_device(text: str, said: str | None, hardware: Hardware | None) -> None:
    assert parse.built_for(text) == said
    assert (device_of(said) if said else None) is hardware


@given(st.text())
def test_no_text_makes_a_reader_raise(text: str) -> None:
    for read in (
        parse.listening_ports,
        parse.local_addresses,
        parse.shared_memory_gib,
        parse.open_files_limit,
        parse.is_container,
        parse.built_for,
        parse.version_in,
    ):
        read(text)
    parse.free_memory_gib(text, text, text)
    assert len(parse.plog_errors(text.splitlines())) <= 5


@given(st.lists(st.sampled_from([*TCP.splitlines(), "", "x"])), st.integers(0, 200))
def test_a_cut_table_of_ports_loses_ports_and_makes_none_up(lines: list[str], cut: int) -> None:
    assert parse.listening_ports("\n".join(lines)[:cut]) <= {60000, 16666}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_regular_megatron_wins_over_namespace_parts_before_it(place: int) -> None:
    copies = tuple(MegatronCopy(f"/{i}", regular=i == place) for i in range(3))
    assert imported_copy(copies) == copies[place]
    assert imported_copy(tuple(MegatronCopy(f"/{i}", False) for i in range(3))) == MegatronCopy("/0", False)


COMMAND = """
# as the document has it
export ASCEND_RT_VISIBLE_DEVICES=0,1
NPROC_PER_NODE=2 \\
/opt/bin/swift sft \\
    --model 'Qwen/Qwen3-8B' --dataset a#1 b#2 --packing --lora-rank=8
"""


def test_a_pasted_command_is_taken_apart() -> None:
    command = parse_command(COMMAND)
    assert command.environment == {"ASCEND_RT_VISIBLE_DEVICES": "0,1", "NPROC_PER_NODE": "2"}
    assert (command.program, command.subcommand) == ("swift", "sft")
    assert command.options == {"model": ("Qwen/Qwen3-8B",), "dataset": ("a#1", "b#2"), "packing": (), "lora_rank": ("8",)}
    assert (command.value("packing"), command.value("model"), command.value("fsdp")) == ("true", "Qwen/Qwen3-8B", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "names no program"), ("A=1", "names no program"), ("swift 'sft", "can't be taken apart"), ("garbage", "nothing that trains")],
)
def test_a_command_that_is_none_is_refused_with_what_to_do(text: str, says: str) -> None:
    with pytest.raises(HarnessError, match=says):
        parse_command(text)


@given(st.text())
def test_no_command_raises_anything_but_our_own_error(text: str) -> None:
    try:
        command = parse_command(text)
    except HarnessError:
        return
    tuple(examine(HostFacts("x86_64", "3.11.7", command=command), {}))


def test_dtypes_are_what_the_files_hold_not_what_the_config_says(tmp_path: Path) -> None:
    model = look_at_model(checkpoint(tmp_path / "m", {"BF16": 3, "F8_E4M3": 5}, {"model_type": "qwen3", "torch_dtype": "float32"}))
    assert (model.elements, model.quantization, model.faults, model.model_type) == ({"BF16": 3, "F8_E4M3": 5}, None, (), "qwen3")


def test_a_cut_or_missing_file_is_told_and_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"BF16": 100}, {})
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    assert look_at_model(folder).faults == ("model.safetensors can't be read: it is cut: its last tensors are not there",)
    (folder / "model.safetensors").unlink()
    assert look_at_model(folder).faults == ("holds no *.safetensors",)
    with pytest.raises(HarnessError, match=r"no folder with a config\.json"):
        look_at_model(tmp_path / "nowhere")


@settings(max_examples=200)
@given(
    header=st.one_of(
        st.binary(max_size=80),
        st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda x: st.dictionaries(st.text(max_size=6), x, max_size=3)).map(
            lambda value: str(value).replace("'", '"').encode()
        ),
        st.just(b"[" * 100_000),
    ),
    length=st.none() | st.integers(0, 2**64 - 1),
    config=st.binary(max_size=40),
)
def test_no_checkpoint_makes_the_reader_raise(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, length: int | None, config: bytes
) -> None:
    folder = tmp_path_factory.mktemp("model")
    write(folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    look_at_model(folder)


NAMES = (
    "ASCEND_RT_VISIBLE_DEVICES", "NPROC_PER_NODE", "HCCL_SOCKET_IFNAME", "HCCL_IF_IP", "HCCL_CONNECT_TIMEOUT", "HCCL_IF_BASE_PORT",
    "HCCL_X", "ATB_HOME_PATH", "MEGATRON_LM_PATH", "PYTHONPATH",
)  # fmt: skip
ODD = ["0", "0,1", "1,0", "0,0", "9", "-1", "²", "٣", "=eth0", "^eth", "60000", ",", "999999999999"]
VERSIONS = ["2.9.0", "2.9", "1!2", "+"]


@given(
    environment=st.dictionaries(st.sampled_from(NAMES), st.text(max_size=12) | st.sampled_from(ODD)),
    packages=st.dictionaries(
        st.sampled_from(["torch", "torch-npu", "vllm", "vllm-ascend", "mindspeed"]), st.text(max_size=8) | st.sampled_from(VERSIONS)
    ),
    npus=st.integers(0, 3),
    chip=st.none() | st.just("Ascend910B3"),
)
def test_no_environment_and_no_version_makes_a_check_raise(
    environment: dict[str, str], packages: dict[str, str], npus: int, chip: str | None
) -> None:
    view = MachineView(npus=tuple(Npu(i, 0, name=chip, series="a2" if chip else None, health="OK") for i in range(npus)))
    installed = {name: Package(name, version, (version,), (version, f"torch=={version}")) for name, version in packages.items()}
    facts = HostFacts("aarch64", "3.11", environment, machine=view, packages=installed, interfaces=("eth0",), addresses=())
    findings = examine(replace(facts, traces=("/dev/davinci0",)), {})
    assert all(f.what and f.why and f.fix and f.source for f in findings)
    ranks = [("blocks", "degrades", "note").index(f.severity) for f in findings]
    assert ranks == sorted(ranks)
