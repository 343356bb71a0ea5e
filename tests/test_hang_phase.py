"""Where a run hung: the phase, from stacks and last lines, and CANN's own logs, taken before the kill."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

import pytest

from harness.diagnose import PLOG, SILENT, diagnose
from harness.hang_phase import phase_of
from harness.launch import launch
from harness.model import Command, Hardware, Run, Step
from harness.stacks import plog_folder, plog_tails

WAITING = """\
== python (pid 11)
Thread 11 (idle): "MainThread"
    wait (torch/distributed/distributed_c10d.py:80)
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    training_step (swift/trainers/trainers.py:300)
    train (transformers/trainer.py:2200)
"""
LOADING = """\
== python (pid 12)
Thread 12 (idle): "MainThread"
    _try_get_data (torch/utils/data/dataloader.py:1200)
    __next__ (torch/utils/data/dataloader.py:700)
    train (transformers/trainer.py:2100)
"""
LAUNCHER = '== python (pid 10)\nThread 10 (idle): "MainThread"\n    poll (torch/distributed/elastic/agent.py:3)\n'
FAULTHANDLER = """\
== python (pid 13)
Current thread 0x00007f (most recent call first):
  File "/x/safetensors/torch.py", line 300 in load_file
  File "/x/transformers/modeling_utils.py", line 4000 in from_pretrained
  File "/x/swift/cli/sft.py", line 5 in <module>
"""
OLDEST_FIRST = """\
== python (pid 14)
Traceback (most recent call last):
    (Python) File "/x/swift/cli/sft.py", line 5, in <module>
    (Python) File "/x/transformers/trainer.py", line 3, in training_step
    (Python) File "/x/torch_npu/npu/utils.py", line 60, in synchronize
"""


@pytest.mark.parametrize(
    ("stacks", "phase"),
    [
        (LAUNCHER + WAITING + WAITING, "HCCL"),
        (LAUNCHER + WAITING + LOADING, "data"),
        (FAULTHANDLER, "weights"),
        (OLDEST_FIRST, "step"),
        (LAUNCHER, ""),
        ("", ""),
    ],
)
def test_the_innermost_frames_name_the_phase_and_of_waiting_ranks_the_one_elsewhere_does(stacks: str, phase: str) -> None:
    assert phase_of("", stacks)[0] == phase


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Map (num_proc=4):  40%|####      | 40/100 [00:01<00:01, 30 examples/s]", "data"),
        ("Loading checkpoint shards:  33%|###3      | 1/3 [00:10<00:20, 10.0s/it]", "weights"),
        ("[INFO] [comm.py:668:init_distributed] Initializing TorchBackend in DeepSpeed with backend hccl", "HCCL"),
        ("Train:   1%|          | 3/300 [00:10<10:00,  3.00s/it]", "step"),
        ("[INFO:swift] Loading the model using model_dir: /x", "model"),
        ("hello", ""),
    ],
)
def test_without_stacks_the_last_telling_line_names_it(line: str, phase: str) -> None:
    assert phase_of(f"[INFO:swift] start\n{line}\n\n", "")[0] == phase


def hung(stacks: str) -> Run:
    return Run("train", "n", (), {}, "2026-01-01", 1.0, None, "deadline", "log", "", None, (), stacks, (f"{SILENT}: at the deadline",))


def test_the_outcome_of_a_hang_names_its_phase() -> None:
    outcome = diagnose("step 1\n", hung(LAUNCHER + WAITING + LOADING))
    assert outcome.cause == "run.deadline_silent" and "phase: data" in outcome.line and "_try_get_data" in outcome.line


def test_what_a_plog_says_of_a_hang_decides_where_the_log_is_silent() -> None:
    plog = f"\n{PLOG}plog-7.log\n[ERROR] HCCL(7,python):2026-03-04-05:06:07.001 [x.cc:1] and specific port[16666] fail.\n"
    assert diagnose("step 1\n", hung(WAITING + plog)).cause == "comm.port_in_use"


def test_plogs_are_looked_for_where_cann_writes_them() -> None:
    assert plog_folder({"ASCEND_PROCESS_LOG_PATH": "/logs", "HOME": "/h"}) == Path("/logs")
    assert plog_folder({"HOME": "/h"}) == Path("/h/ascend/log")


def test_of_a_plog_the_errors_are_kept_of_other_runs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "debug" / "plog"
    folder.mkdir(parents=True)
    (folder / "plog-7_1.log").write_text("[INFO] a\n" * 5000 + "[ERROR] HCCL(7,python): first\n[ERROR] HCCL(7,python): second\n")
    (folder / "plog-8_1.log").write_text("[INFO] only this\n")
    (folder / "plog-9_1.log").write_text("[ERROR] of yesterday\n")
    os.utime(folder / "plog-9_1.log", (time.time() - 86400,) * 2)
    tails = plog_tails(tmp_path, 60)
    assert f"{PLOG}plog-7_1.log\n[ERROR] HCCL(7,python): first\n[ERROR] HCCL(7,python): second" in tails
    assert "[INFO] only this" in tails and "yesterday" not in tails and "[INFO] a\n" not in tails
    assert plog_tails(tmp_path / "nothing", 60) == ""


@pytest.mark.parametrize(("hardware", "taken"), [(Hardware.A2, True), (Hardware.CPU, False)])
def test_a_launched_run_that_hangs_on_an_npu_keeps_its_plogs(hardware: Hardware, taken: bool, tmp_path: Path) -> None:
    code = (
        "import os, time; plogs = os.environ['ASCEND_PROCESS_LOG_PATH'] + '/debug/plog'; os.makedirs(plogs)\n"
        "open(plogs + '/plog-1_2.log', 'w').write('[ERROR] EI0006: late'); time.sleep(600)"
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python-here").symlink_to(sys.executable)
    env = {"ASCEND_PROCESS_LOG_PATH": str(tmp_path / "logs")}
    run = launch(
        Step("work", Command("python-here", ("-c", code), env, None), "out", 2.0),
        nonce=uuid.uuid4().hex,
        work=tmp_path / "work",
        search_path=str(programs),
        base_env=dict(os.environ),
        hardware=hardware,
        grace_s=2.0,
    )
    assert run.ended_by == "deadline" and (f"{PLOG}plog-1_2.log\n[ERROR] EI0006: late" in run.stacks) is taken
    assert diagnose(run.log_tail, run).cause == ("comm.connect_timeout" if taken else "run.deadline_silent")
