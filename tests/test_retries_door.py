"""Another attempt through the pytest door: `swift` is a stand-in that the environment spoils as often as it is told to."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from fakes import rehearsal
from fakes.install import install, write_executable
from test_doors import CELL, CPU, Place, place  # noqa: F401

from harness.evidence import from_json
from harness.host import REHEARSAL_STORE
from harness.model import Blame, Evidence, VerdictKind
from harness.tiny import make_datasets, make_tiny_model

PASSED, FAILED = VerdictKind.PASSED, VerdictKind.FAILED
TAKEN = "comm.port_in_use"

# Fails its first trainings, then does the work.
_SPOILT = """#!{python} -ES
import os, sys
count = len(open({count!r}).readlines()) if os.path.exists({count!r}) else 0
if sys.argv[1:2] in (["sft"], ["rlhf"], ["pt"]):
    with open({count!r}, "a") as file:
        file.write(os.environ["NPU_MATRIX_NONCE"] + " " + os.getcwd() + "\\n")
    if count < {times}:
        {first}
        print({says!r})
        sys.exit(1)
os.execv({honest!r}, [{honest!r}, *sys.argv[1:]])
"""
IN_USE = "RuntimeError: The server socket has failed to listen: [Errno 98] Address already in use"
REFUSED = "ValueError: remaining_argv: ['--train_type', 'lora']"


def spoil(swift: Path, says: str, times: int, first: str = "pass") -> Path:
    """Put a `swift` that fails `times` trainings in front of the one at `swift`; the file that has a line for each training."""
    honest_one, count = swift.with_name("honest-swift"), swift.with_name("trainings")
    shutil.move(swift, honest_one)
    text = _SPOILT.format(python=sys.executable, count=str(count), times=times, says=says, first=first, honest=str(honest_one))
    write_executable(swift, text)
    return count


@pytest.fixture
def host_with_npus(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    rehearsal.build(tmp_path / "root", model=make_tiny_model("qwen2", cache).path, datasets=make_datasets(cache)["sft"].parent)
    return tmp_path / "root"


def rehearsed(place: Place, root: Path, *words: str) -> tuple[int, str, list[Evidence]]:  # noqa: F811
    wanted = ("-m", "npu_matrix", "--rehearsal", str(root), "--hardware", "a2", "--weights", "real", "-k", f"{CELL} and train")
    code, output = place.door(*wanted, *words)
    paths = (root / REHEARSAL_STORE / "history").glob("*.json")
    found = [from_json(path.read_text(encoding="utf-8"), path.name, rehearsal_ok=True) for path in paths]
    return code, output, sorted(found, key=lambda e: len(e.facts["attempts_before"]))


def test_on_npus_a_port_in_use_is_tried_once_more_and_the_pass_is_flaky(place: Place, host_with_npus: Path) -> None:  # noqa: F811
    count = spoil(host_with_npus / "usr/local/bin/swift", IN_USE, 1)
    code, output, (first, last) = rehearsed(place, host_with_npus, "-rP")
    assert code == 0 and "1 passed" in output, output
    assert "stages run: 1 flaky, 1 run again" in output
    assert f"flaky: {CELL} train passed at attempt 2 after {TAKEN}" in output
    assert "Captured flaky call" in output, "the item has a section of its own"
    assert (first.verdict.kind, first.verdict.cause, first.facts["attempt"]) == (FAILED, TAKEN, 1)
    assert (last.verdict.kind, last.facts["attempt"], last.facts["flaky"]) == (PASSED, 2, True)
    nonces, folders = zip(*(line.split(" ") for line in count.read_text().splitlines()), strict=True)
    assert len(set(nonces)) == len(set(folders)) == 2


def test_on_npus_a_port_that_stays_in_use_is_red_with_two_pieces_of_evidence(place: Place, host_with_npus: Path) -> None:  # noqa: F811
    spoil(host_with_npus / "usr/local/bin/swift", IN_USE, 99)
    code, output, found = rehearsed(place, host_with_npus)
    assert code == 1 and "1 failed" in output and "flaky" not in output, output
    assert "stages run: 1 failed, 1 run again" in output
    assert [(e.verdict.kind, e.verdict.cause, e.facts["attempt"]) for e in found] == [(FAILED, TAKEN, 1), (FAILED, TAKEN, 2)]
    assert found[1].facts["attempts_before"] == [{"nonce": found[0].nonce, "stage": "train", "cause": TAKEN}]


def test_what_the_product_did_is_never_tried_again(place: Place, host_with_npus: Path) -> None:  # noqa: F811
    spoil(host_with_npus / "usr/local/bin/swift", REFUSED, 1)
    code, output, (only,) = rehearsed(place, host_with_npus, "--env-retries", "5")
    assert code == 1 and "stages run: 1 failed\n" in output, output
    assert (only.verdict.cause, only.verdict.blame) == ("args.unknown", Blame.PRODUCT)


def test_off_npus_an_attempt_is_the_only_one_unless_more_are_asked_for(place: Place) -> None:  # noqa: F811
    count = spoil(install(place.programs), IN_USE, 1)
    code, output = place.door(*CPU, "-k", f"{CELL} and train")
    assert code == 1 and "1 failed" in output, output
    count.unlink()
    code, output = place.door(*CPU, "-k", f"{CELL} and train", "--env-retries", "2")
    assert code == 0 and "1 flaky" in output, output
    kept = [json.loads(path.read_text()) for path in (place.root / "reports" / "evidence" / CELL).glob("*--cpu--*.json")]
    assert [piece["facts"]["attempt"] for piece in kept] == [2]
    assert f"flaky: train passed at attempt 2 after {TAKEN}" in (place.root / "reports" / "support.md").read_text().replace("\\_", "_")


def test_a_device_that_turned_sick_is_set_aside_and_the_next_attempt_gets_another(place: Place, host_with_npus: Path) -> None:  # noqa: F811
    local = host_with_npus / "usr/local"
    smi, sick = local / "sbin/npu-smi", local / "sbin/npu-smi-of-a-sick-host"
    spoil(local / "bin/swift", "RuntimeError: device lost heartbeat", 1, first=f"os.replace({str(sick)!r}, {str(smi)!r})")
    well, alarm = (json.dumps(rehearsal.npu_smi_info(frozenset(ids)))[1:-1] for ids in ((), (0,)))
    text = smi.read_text(encoding="utf-8")
    assert text.count(repr(well)[1:-1]) == 1
    write_executable(sick, text.replace(repr(well)[1:-1], repr(alarm)[1:-1]))
    code, output, (first, last) = rehearsed(place, host_with_npus)
    assert code == 0 and "1 flaky" in output, output
    assert "NPU 0 was set aside: its health is Alarm" in output
    seen = [e.runs[0].env["ASCEND_RT_VISIBLE_DEVICES"] for e in (first, last)]
    assert (first.verdict.cause, seen[0], seen[1] != "0") == ("dev.lost", "0", True)
