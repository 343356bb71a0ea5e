"""Each item of the documents' FAQ: its fault, planted on a healthy host, is named; the same host without it has nothing to say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from doctor_hosts import (
    ATB,
    CANN,
    SITE,
    SOURCED,
    checkpoint,
    healthy,
    install,
    listening,
    megatron,
    program,
    remove,
    smi,
    with_processes,
    write,
)
from fakes.rehearsal import npu_smi_info

from harness.doctor import examine
from harness.doctor_command import parse_command
from harness.doctor_facts import Finding, Severity
from harness.doctor_host import gather
from harness.matrix import parse_matrix

MATRIX = parse_matrix((Path(__file__).resolve().parents[1] / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")
BLOCKS, DEGRADES, NOTE = Severity.BLOCKS, Severity.DEGRADES, Severity.NOTE
BF16: dict[str, object] = {"model_type": "qwen3"}
KERNELS = f"{CANN}/opp/built-in/op_impl/ai_core/tbe/kernel"
PLOG = "[INFO] GE(77): up\n[ERROR] HCCL(77,python3):2026-01-01 [hccl_socket.cc:100] [77][Listen] listen on specific port[16666] fail.\n"


@pytest.fixture(autouse=True)
def a_large_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, used=0, free=2**40))


def found(root: Path, *, command: str = "", model: Path | None = None, **environment: str | None) -> tuple[Finding, ...]:
    """What the doctor says of ROOT, in a shell where CANN was sourced, changed by `environment` (None: unset)."""
    settings = {name: value for name, value in {**SOURCED, **environment}.items() if value is not None}
    asked = parse_command(command) if command else None
    return examine(gather(root, environment=settings, model=model, command=asked, architecture="aarch64"), MATRIX.stacks)


def no_probe(root: Path) -> None:
    """Without a python nobody tries npu:0, which would outrank what the fault lets conclude."""
    (root / "usr/local/bin/python").unlink()


Plant = Callable[[Path], object]


@dataclass(frozen=True)
class Fault:
    """`item`: whose fault; `says`: words of the finding; `plant`: what is done to the healthy ROOT; the rest is asked or set beside it."""

    item: str
    id: str
    severity: Severity
    says: str
    plant: Plant = lambda root: None
    command: str = ""
    tensors: dict[str, int] = field(default_factory=dict)
    config: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)


FAULTS = (
    Fault("Q1", "npu.unusable", BLOCKS, "RuntimeError: device busy",
          lambda root: program(root / "usr/local/bin/python", "echo 'RuntimeError: device busy'; exit 1")),
    Fault("Q2", "megatron.parts", BLOCKS, "lacks mindspeed", lambda root: remove(root, "mindspeed"), command="megatron sft --model x"),
    Fault("Q2", "strategy.shard", DEGRADES, "30.0B", tensors={"BF16": 30_000_000_000}, config=BF16),
    Fault("Q2", "deepspeed.missing", BLOCKS, "deepspeed", lambda root: remove(root, "deepspeed"), command="swift sft --deepspeed zero2"),
    Fault("Q2", "command.two_strategies", BLOCKS, "at once", command="swift sft --deepspeed zero2 --fsdp fsdp2"),
    Fault("Q3", "command.patch_off", DEGRADES, "patches off", command="swift sft --enable_npu_model_patch false"),
    Fault("Q3", "swift.no_patches", DEGRADES, "no NPU model patches", lambda root: (root / SITE / "swift/model/npu_patch").rmdir()),
    Fault("Q4", "vllm.pair", DEGRADES, "vllm 0.14.0+empty and vllm-ascend 0.18.0", lambda root: install(root, "vllm", "0.14.0+empty")),
    Fault("Q4", "sglang.installed", NOTE, "sglang 0.5.1", lambda root: install(root, "sglang", "0.5.1")),
    Fault("Q4", "command.sglang", BLOCKS, "sglang", command="swift deploy --model x --infer_backend sglang"),
    Fault("Q5", "cann.not_sourced", BLOCKS, "ASCEND_HOME_PATH isn't set",
          lambda root: no_probe(root), environment={"ASCEND_HOME_PATH": None, "LD_LIBRARY_PATH": None}),
    Fault("Q5", "cann.not_sourced", BLOCKS, "LD_LIBRARY_PATH leads to no libascendcl.so",
          lambda root: no_probe(root), environment={"LD_LIBRARY_PATH": "/usr/lib"}),
    Fault("Q5", "nnal.not_sourced", DEGRADES, "ATB_HOME_PATH", environment={"ATB_HOME_PATH": None}),
    Fault("Q6", "torch.pair", BLOCKS, "torch 2.8.0 and torch_npu 2.9.0",
          lambda root: [install(root, "torch", "2.8.0"), no_probe(root)]),
    Fault("Q6", "pin.unmet", DEGRADES, "triton-ascend asks for torch==2.7.1",
          lambda root: install(root, "triton_ascend", "3.2.1", requires=["torch==2.7.1", "pandas==99; python_version < '3'"])),
    Fault("Q7", "nproc.too_many", BLOCKS, "NPROC_PER_NODE=4", environment={"ASCEND_RT_VISIBLE_DEVICES": "0,1", "NPROC_PER_NODE": "4"}),
    Fault("Q7", "nproc.too_many", BLOCKS, "8 NPUs", environment={"NPROC_PER_NODE": "16"}),
    Fault("Q7", "nproc.too_few", DEGRADES, "NPROC_PER_NODE=2",
          command="NPROC_PER_NODE=2 ASCEND_RT_VISIBLE_DEVICES=0,1,2,3 swift sft --model x"),
    Fault("Q7", "visible.absent", BLOCKS, "names 8, 9", environment={"ASCEND_RT_VISIBLE_DEVICES": "0,8,9"}),
    Fault("Q7", "visible.order", BLOCKS, "not ascending", environment={"ASCEND_RT_VISIBLE_DEVICES": "1,0"}),
    Fault("Q7", "visible.not_ids", BLOCKS, "npu0", environment={"ASCEND_RT_VISIBLE_DEVICES": "npu0,1"}),
    Fault("Q8", "hang.no_stacks", NOTE, "pystack", lambda root: (root / "usr/local/bin/pystack").unlink()),
    Fault("Q8", "hang.plog", NOTE, "specific port[16666] fail",
          lambda root: write(root / "root/ascend/log/debug/plog/plog-77_1.log", PLOG)),
    Fault("Q9", "busy.processes", DEGRADES, "NPU 2: python (pid 4242, 30720 MB)",
          lambda root: smi(root, with_processes(npu_smi_info(), [(2, 4242, "python", 30720)]))),
    Fault("Q9", "busy.memory", DEGRADES, "NPU 1 60000 of 65536 MB",
          lambda root: smi(root, npu_smi_info().replace("3314 / 65536", "60000/ 65536", 1))),
    Fault("Q9", "health.sick", DEGRADES, "NPU 3 Alarm", lambda root: smi(root, npu_smi_info(frozenset({3})))),
    Fault("Q9", "hccl.port", DEGRADES, "60000", lambda root: listening(root, 22, 60000)),
    Fault("Q9", "hccl.port", DEGRADES, "16666", lambda root: listening(root, 16666)),
    Fault("Q9", "hccl.interface", BLOCKS, "it has eth0", environment={"HCCL_SOCKET_IFNAME": "bond0"}),
    Fault("Q9", "hccl.address", BLOCKS, "no address of this host", environment={"HCCL_IF_IP": "10.0.0.8"}),
    Fault("Q9", "hccl.value", DEGRADES, "HCCL_CONNECT_TIMEOUT=60", environment={"HCCL_CONNECT_TIMEOUT": "60"}),
    Fault("Q9", "hccl.misspelt", NOTE, "HCCL_CONNECT_TIMEOUT misspelt", environment={"HCCL_CONNECT_TIMEOT": "600"}),
    Fault("Q10", "device.manager_missing", BLOCKS, "/dev/hisi_hdc", lambda root: [(root / "dev/hisi_hdc").unlink(), no_probe(root)]),
    Fault("Q10", "device.none", BLOCKS, "/dev/davinci0",
          lambda root: [no_probe(root), *(path.unlink() for path in (root / "dev").glob("davinci[0-9]*"))]),
    Fault("Q10", "mount.missing", DEGRADES, "/etc/ascend_install.info",
          lambda root: [write(root / ".dockerenv"), (root / "etc/ascend_install.info").unlink(), no_probe(root)]),
    Fault("Q10", "npu_smi.missing", BLOCKS, "no npu-smi", lambda root: (root / "usr/local/sbin/npu-smi").unlink()),
    Fault("Q10", "npu_smi.fails", BLOCKS, "-8005", lambda root: smi(root, "dcmi module initialize failed. ret is -8005\n")),
    Fault("Q11", "vllm.half", DEGRADES, "choose transformers", lambda root: remove(root, "vllm_ascend")),
    Fault("Q11", "vllm.none", NOTE, "transformers is the only engine", lambda root: [remove(root, "vllm_ascend"), remove(root, "vllm")]),
    Fault("Q11", "command.vllm", BLOCKS, "needs vLLM", lambda root: remove(root, "vllm_ascend"),
          command="swift deploy --infer_backend vllm"),
    Fault("Q12", "vllm_ascend.device", DEGRADES, "built for A3, these chips are A2",
          lambda root: write(root / SITE / "vllm_ascend/_build_info.py", "__device_type__ = 'A3'\n")),
    Fault("Q12", "vllm_ascend.device", DEGRADES, "ascend910_9391",
          lambda root: write(root / SITE / "vllm_ascend/_build_info.py", "__soc_version__ = 'ascend910_9391'\n")),
    Fault("Q12", "wheel.architecture", BLOCKS, "wheel for x86_64",
          lambda root: install(root, "vllm_ascend", "0.18.0", tag="cp311-cp311-manylinux_2_28_x86_64")),
    Fault("Q12", "nnal.abi", DEGRADES, "ABI 0", environment={"ATB_HOME_PATH": ATB.replace("cxx_abi_1", "cxx_abi_0")}),
    Fault("Q12", "torch.cuda", DEGRADES, "CUDA build", lambda root: [install(root, "torch", "2.9.0+cu128"), no_probe(root)]),
    Fault("Q12", "cann.kernels", BLOCKS, "ascend910_93",
          lambda root: [(root / KERNELS / "ascend910b").rename(root / KERNELS / "ascend910_93"), no_probe(root)]),
    Fault("Q13", "model.fp8", BLOCKS, "no quantization_config", tensors={"F8_E4M3": 90, "BF16": 10}, config=BF16),
    Fault("Q13", "model.fp8", BLOCKS, "F8_E4M3 90%", tensors={"F8_E4M3": 90, "BF16": 10},
          config={"quantization_config": {"quant_method": "fp8"}}),
    Fault("Q13", "model.quantised", BLOCKS, "gptq", tensors={"BF16": 10},
          config={"text_config": {"quantization_config": {"quant_method": "gptq"}}}),
    Fault("Q13", "command.quantises", BLOCKS, "QLoRA", command="swift sft --quant_bits 4 --quant_method bnb"),
    Fault("Q14", "megatron.other", DEGRADES, "megatron is imported from /opt/old",
          lambda root: megatron(root, "opt/old"), environment={"PYTHONPATH": "/opt/old:/opt/Megatron-LM"}),
    Fault("Q14", "megatron.other", DEGRADES, f"megatron is imported from /{SITE}", lambda root: megatron(root, SITE, regular=True)),
    Fault("Q14", "megatron.two", DEGRADES, "2 copies", lambda root: megatron(root, SITE)),
    Fault("Q14", "megatron.not_on_path", DEGRADES, "no megatron on the import path", environment={"PYTHONPATH": None}),
)  # fmt: skip


def test_a_healthy_host_has_nothing_to_say(tmp_path: Path) -> None:
    root = healthy(tmp_path / "root")
    model = checkpoint(tmp_path / "small", {"BF16": 600_000_000}, {"model_type": "qwen3"})
    command = "NPROC_PER_NODE=2 ASCEND_RT_VISIBLE_DEVICES=2,3 swift sft --model Qwen/Qwen3-0.6B --deepspeed zero2 --infer_backend vllm"
    assert found(root, model=model, command=command) == ()


def test_every_item_of_the_faq_has_a_fault_here() -> None:
    assert {fault.item for fault in FAULTS} == {f"Q{number}" for number in range(1, 15)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.item}-{fault.id}-{fault.says}"[:60])
def test_a_planted_fault_is_named_with_what_mends_it(tmp_path: Path, fault: Fault) -> None:
    root = healthy(tmp_path / "root")
    fault.plant(root)
    model = checkpoint(tmp_path / "model", fault.tensors, fault.config) if fault.tensors else None
    told = [f for f in found(root, command=fault.command, model=model, **fault.environment) if f.id == fault.id]
    assert len(told) == 1
    finding = told[0]
    assert fault.says in finding.what
    assert (finding.source, finding.severity) == (fault.item, fault.severity)
    assert finding.why and finding.fix
