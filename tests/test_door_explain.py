"""`python -m harness explain`: logs as files, folders and streams, for people and machines, in bounded memory."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.door_explain import explain_logs

ROOT = Path(__file__).resolve().parent.parent
OOM = "[rank3]: RuntimeError: NPU out of memory. Tried to allocate 2 GiB\n"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["explain", *arguments])
    return code, capsys.readouterr().out


def test_a_cause_is_told_with_its_place_blame_remedy_and_what_else_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank3.log"
    log.write_text(f"start\n{OOM}EI0006: Getting socket times out.\n")
    code, out = told(capsys, str(log))
    assert code == 1
    for part in (
        "cause: mem.npu_oom  (blame: product; confidence: high)",
        f"{log}:2: [rank3]",
        "remedy (confirmed): ",
        "comm.connect_timeout",
    ):
        assert part in out


def test_one_exit_code_has_one_meaning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = {0: "[INFO:swift] fine\n", 1: OOM, 6: "Segmentation fault (core dumped)\n"}
    for code, text in logs.items():
        (tmp_path / "log").write_text(text)
        assert told(capsys, str(tmp_path / "log"))[0] == code
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert f"error: {tmp_path / 'none'}: can't be read: No such file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["explain", str(tmp_path / "empty")]) == 2 and "holds no file" in capsys.readouterr().err


def test_json_is_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(
        OOM
        + "Warning: CAUTION: The operator 'aten::svd' is not currently supported on the NPU backend and will fall back to run on the CPU.\n"
    )
    code, out = told(capsys, str(tmp_path / "log"), "--json")
    found = json.loads(out)
    assert (code, found["cause"], found["blame"], found["confidence"]) == (1, "mem.npu_oom", "product", "high")
    assert found["where"] == f"{tmp_path / 'log'}:1" and found["fallbacks"] == {"aten::svd": 1} and found["seen"] == []


def test_a_folder_is_all_its_logs_and_several_files_are_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = tmp_path / "job" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "job" / "rank0.log").write_text("EI0006: Getting socket times out.\n")
    (inner / "rank1.log").write_text(OOM)
    assert "cause: mem.npu_oom" in told(capsys, str(tmp_path / "job"))[1]
    assert "cause: mem.npu_oom" in told(capsys, str(tmp_path / "job" / "rank0.log"), str(inner / "rank1.log"))[1]


def test_standard_input_needs_no_repository(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "explain", "-"],
        input=b"\xff\xfe\x00 junk\r\n" + OOM.encode(),
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1 and b"cause: mem.npu_oom" in done.stdout and done.stderr == b""


class Stream(io.RawIOBase):
    """A log of `size` bytes that is never whole anywhere; `last` ends it."""

    def __init__(self, size: int, last: bytes, unlike: bool) -> None:
        self.left, self.last, self.unlike = size, last, unlike
        self.chance = random.Random(5)
        self.block = b"".join(
            b"Train:  50%%|#####     | %d/3000 [00:01<00:01,  3.3it/s]\n{'loss': 0.%d, 'grad_norm': 1.%d}\n[W] error, retrying %d\n"
            % (at, at, at, at)
            for at in range(1500)
        )

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.left <= 0:
            data, self.last = self.last, b""
            return data
        self.left -= size
        return (self.chance.randbytes(size // 64).hex() + "\n").encode() * 8 if self.unlike else self.block[:size]


@pytest.mark.parametrize(("megabytes", "unlike"), [(200, False), (20, True)], ids=["like_lines", "unlike_lines"])
def test_a_long_stream_is_read_in_bounded_memory(megabytes: int, unlike: bool) -> None:
    code = (
        "import resource, sys; from tests.test_door_explain import Stream, explain_logs, OOM\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"found = explain_logs(['-'], Stream({megabytes} * 2**20, OOM.encode(), {unlike}))\n"
        "print(found.cause, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    cause, grown_kib = done.stdout.split() if done.stdout else ("", "0")
    assert (cause, done.stderr) == ("mem.npu_oom", "") and int(grown_kib) < 120 * 1024


def test_a_line_without_an_end_is_read_too() -> None:
    found = explain_logs(["-"], io.BytesIO(b"x" * 3_000_000 + b" RuntimeError: NPU out of memory. Tried " + b"y" * 3_000_000))
    assert found.cause == "mem.npu_oom" and len(found.line) <= 400
