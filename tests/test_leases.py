"""Leases: all of it or nothing, never shared, kept while anybody has them open, given up by the dead, and fair to who has waited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.leases import Device, DeviceDesk, Held, Want
from harness.lock_files import FOLDER_VARIABLE, host_folder, made, read, try_lock, write
from harness.packing import Load
from harness.ports import HCCL_PORTS, lend_ports

DEVICES = tuple(Device(one, f"die-{one}") for one in range(8))


def desk(folder: Path, **other: object) -> DeviceDesk:
    return DeviceDesk(folder, folder, DEVICES, **other)  # type: ignore[arg-type]


def want(key: str, width: int, seconds: float = 1.0, first_s: float | None = None, known: bool = False) -> Want:
    return Want(Load(key, width, seconds), first_s=first_s, known=known)


def taken(desk: DeviceDesk, key: str, width: int, **other: object) -> Held:
    held = desk.take(want(key, width, **other))  # type: ignore[arg-type]
    assert held is not None
    return held


def test_two_desks_never_lend_the_same_device(tmp_path: Path) -> None:
    ours, theirs = desk(tmp_path), desk(tmp_path)
    one, other = taken(ours, "a", 3), taken(theirs, "b", 5)
    assert not set(one.lease.device_ids) & set(other.lease.device_ids)
    assert ours.take(want("c", 1)) is None
    one.release()
    assert taken(theirs, "d", 3).lease.device_ids == one.lease.device_ids


def test_all_or_nothing(tmp_path: Path) -> None:
    one, other = desk(tmp_path), desk(tmp_path)
    held = taken(one, "a", 5)
    assert other.take(want("b", 4)) is None
    assert len(taken(other, "c", 3).lease.device_ids) == 3, "what was not enough for one is there for another"
    held.release()


def test_many_threads_of_two_desks_share_the_devices_without_overlap(tmp_path: Path) -> None:
    desks, used, overlaps, lock = (desk(tmp_path), desk(tmp_path)), set[int](), list[int](), threading.Lock()

    def work(number: int) -> None:
        while (held := desks[number % 2].take(want(str(number), 1 + number % 4))) is None:
            time.sleep(0.001)
        with lock:
            overlaps.extend(used & set(held.lease.device_ids))
            used.update(held.lease.device_ids)
        time.sleep(0.002)
        with lock:
            used.difference_update(held.lease.device_ids)
        held.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (overlaps, used) == ([], set())


def test_whoever_inherits_the_locks_keeps_the_lease(tmp_path: Path) -> None:
    ours = desk(tmp_path)
    held = taken(ours, "a", 8)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=held.descriptors)
    held.release()
    assert ours.take(want("b", 1)) is None
    assert child.stdin is not None
    child.stdin.close()
    child.wait(30)
    assert taken(ours, "b", 8)


def test_who_has_waited_too_long_is_not_overtaken_by_narrow_ones(tmp_path: Path) -> None:
    ours, theirs = desk(tmp_path, patience_s=0.05), desk(tmp_path, patience_s=0.05)
    first = taken(ours, "running", 4)
    assert ours.take(want("wide", 8, first_s=time.monotonic())) is None
    assert theirs.take(want("early", 1)) is not None, "it has not waited for long yet"
    time.sleep(0.06)
    assert theirs.take(want("late", 1)) is None
    assert ours.take(want("own", 1)) is None
    ours.give_up("wide")
    assert theirs.take(want("late", 1)) is not None
    first.release()


def test_what_ends_before_a_waiting_wide_one_can_start_may_go_first(tmp_path: Path) -> None:
    ours = desk(tmp_path, patience_s=0.0)
    taken(ours, "running", 4, seconds=100.0, known=True)
    assert ours.take(want("wide", 8, first_s=time.monotonic() - 1)) is None
    assert ours.take(want("long", 1, 1000.0, known=True)) is None
    assert ours.take(want("guessed", 1, 1.0)) is None
    assert ours.take(want("short", 1, 50.0, known=True)) is not None


def test_among_those_who_waited_too_long_the_longest_waiting_goes_first(tmp_path: Path) -> None:
    ours, theirs = desk(tmp_path, patience_s=0.0), desk(tmp_path, patience_s=0.0)
    held, now = taken(ours, "running", 8), time.monotonic()
    assert ours.take(want("older", 8, first_s=now - 20)) is None
    assert theirs.take(want("younger", 8, first_s=now - 10)) is None
    held.release()
    assert theirs.take(want("younger", 8, first_s=now - 10)) is None
    assert taken(ours, "older", 8, first_s=now - 20)


def test_who_stopped_asking_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = desk(tmp_path, patience_s=0.0), desk(tmp_path, patience_s=0.0)
    held = taken(ours, "running", 4)
    assert ours.take(want("wide", 8, first_s=time.monotonic() - 1)) is None
    assert theirs.take(want("narrow", 1)) is None
    monkeypatch.setattr("harness.leases._DEAF_S", 0.05)
    time.sleep(0.06)
    assert theirs.take(want("narrow", 1)) is not None
    held.release()


def test_the_ticket_of_a_dead_process_holds_nobody_up(tmp_path: Path) -> None:
    held = taken(desk(tmp_path), "running", 4)
    (tmp_path / "waits-dead.json").write_text(f'{{"since": 0.0, "width": 8, "asked": {time.monotonic()}}}', encoding="utf-8")
    assert taken(desk(tmp_path, patience_s=0.0), "a", 1)
    assert not (tmp_path / "waits-dead.json").exists()
    held.release()


def test_unfit_devices_are_set_aside_and_named_and_tried_again_later(tmp_path: Path) -> None:
    sick = {3: "its health is Alarm"}
    ours = desk(tmp_path, probe=lambda ids: {one: sick[one] for one in ids if one in sick}, recheck_s=0.2)
    held = taken(ours, "a", 8)
    assert ours.check(held) == sick
    held.release()
    assert ours.take(want("a", 8)) is None
    assert ours.lacking(8) == "needs 8 NPUs and 7 of 8 are fit for use (NPU 3: its health is Alarm)"
    assert ours.lacking(7) == ""
    assert 3 not in taken(ours, "b", 7).lease.device_ids
    time.sleep(0.25)
    again = taken(ours, "c", 1)
    assert again.lease.device_ids == (3,)
    sick.clear()
    assert ours.check(again) == {}
    assert ours.lacking(8) == ""


def test_a_closed_desk_leaves_no_ticket(tmp_path: Path) -> None:
    ours = desk(tmp_path)
    taken(ours, "a", 8)
    assert ours.take(want("b", 8, first_s=time.monotonic())) is None
    assert list(tmp_path.glob("waits-*"))
    ours.close()
    assert list(tmp_path.glob("waits-*")) == []


def test_a_folder_that_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for wrong in ("file", "link", "file/below"):
        with pytest.raises(HostError, match=FOLDER_VARIABLE):
            made(tmp_path / wrong)


def test_the_folder_of_the_host_is_the_users_whatever_its_tmpdir() -> None:
    assert host_folder({"TMPDIR": "/elsewhere"}) == host_folder({})
    assert str(os.getuid()) in host_folder({}).name
    assert host_folder({FOLDER_VARIABLE: "/srv/leases"}) == Path("/srv/leases")


def test_a_record_replaces_a_longer_one(tmp_path: Path) -> None:
    descriptor = try_lock(tmp_path / "lock")
    assert descriptor is not None
    write(descriptor, {"cell": "x" * 300})
    write(descriptor, {"cell": "y"})
    assert read(tmp_path / "lock") == {"cell": "y"}
    (tmp_path / "cut").write_text('{"ce', encoding="utf-8")
    assert read(tmp_path / "cut") == read(tmp_path / "absent") == {}
    os.close(descriptor)


def test_blocks_of_ports_never_meet_and_come_back(tmp_path: Path) -> None:
    lent = [lend_ports(tmp_path) for _ in range(5)]
    ports = [port for _, block in lent for port in block.all]
    assert len(ports) == len(set(ports)) == 5 * (HCCL_PORTS + 2)
    for descriptor, _ in lent:
        os.close(descriptor)
    again, block = lend_ports(tmp_path)
    os.close(again)
    assert block == lent[0][1]


def test_a_block_with_a_port_in_use_is_left_out(tmp_path: Path) -> None:
    import socket

    descriptor, block = lend_ports(tmp_path)
    os.close(descriptor)
    with socket.socket() as server:
        server.bind(("127.0.0.1", block.hccl + 5))
        server.listen()
        descriptor, other = lend_ports(tmp_path)
        os.close(descriptor)
    assert block.hccl + 5 not in other.all
