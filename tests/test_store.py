from __future__ import annotations

import errno
import multiprocessing
import os
from dataclasses import replace
from datetime import datetime, timezone
from itertools import permutations
from pathlib import Path

import pytest
from evidence_samples import sample
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import EvidenceError, HostError
from harness.evidence import sealed, to_json
from harness.model import Evidence, Hardware, Stage, Verdict, VerdictKind
from harness.store import Store, write_atomically


def store(root: Path, **how: object) -> Store:
    how.setdefault("now", lambda: datetime(2026, 7, 1, tzinfo=timezone.utc))
    return Store(root, root / ".harness" / "evidence", **how)  # type: ignore[arg-type]


def at(day: int, **changes: object) -> Evidence:
    return sample(started_at=f"2026-06-{day:02d}T10:00:00Z", **changes)  # type: ignore[arg-type]


def current(root: Path) -> tuple[Evidence, ...]:
    good, bad = store(root).load_all(strict=True)
    assert bad == ()
    return good


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"}


def history(root: Path) -> list[Path]:
    return sorted((root / ".harness" / "evidence").glob("*.json"))


def test_what_is_saved_is_found_again_under_its_key_and_in_the_history(tmp_path: Path) -> None:
    path = store(tmp_path).save(sample())
    assert path == tmp_path / "reports/evidence/qwen3-sft-lora/train--tiny--cpu--undeclared-0a1b2c3d.json"
    assert current(tmp_path) == (sample(),)
    assert [p.name for p in history(tmp_path)] == [f"20260601T100000.000000Z-n0-{sample().sha256[:8]}.json"]


def test_the_newest_of_a_key_stays_and_every_run_is_kept(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(at(2))
    assert kept.save(at(1)).is_relative_to(kept.history)
    assert current(tmp_path) == (at(2),)
    kept.save(at(3))
    assert current(tmp_path) == (at(3),)
    assert len(history(tmp_path)) == 3


def test_another_stage_or_hardware_is_another_key(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(sample())
    before = files(kept.reports)
    kept.save(sample(stage=Stage.INFER))
    kept.save(sample(hardware=Hardware.A2))
    after = files(kept.reports)
    assert len(after) == 3
    assert before.items() <= after.items()


def test_a_run_that_measured_nothing_replaces_nothing(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(at(1))
    for kind in (VerdictKind.BLOCKED, VerdictKind.INTERRUPTED, VerdictKind.NOT_RUNNABLE, VerdictKind.UNTESTED, VerdictKind.EXCLUDED):
        assert kept.save(at(5, kind=kind)).is_relative_to(kept.history)
    assert current(tmp_path) == (at(1),)
    assert len(history(tmp_path)) == 6


def test_an_interrupted_run_leaves_evidence_and_no_key(tmp_path: Path) -> None:
    store(tmp_path).save(at(1, kind=VerdictKind.INTERRUPTED))
    assert current(tmp_path) == ()
    assert len(history(tmp_path)) == 1


def test_a_measurement_replaces_a_blockage_even_a_newer_one(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(at(3, kind=VerdictKind.BLOCKED))
    kept.save(at(2, kind=VerdictKind.FAILED))
    assert [e.verdict.kind for e in current(tmp_path)] == [VerdictKind.FAILED]


def test_saving_twice_changes_nothing(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(sample())
    before = files(tmp_path)
    kept.save(sample())
    assert files(tmp_path) == before


def test_a_damaged_file_costs_that_file_only(tmp_path: Path) -> None:
    kept = store(tmp_path)
    damaged = kept.save(sample())
    kept.save(sample("other"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    good, bad = kept.load_all(strict=False)
    assert [e.cell for e in good] == ["other"]
    assert str(bad[0]).startswith("reports/evidence/qwen3-sft-lora/train--tiny--cpu--undeclared-0a1b2c3d.json")
    with pytest.raises(EvidenceError):
        kept.load_all(strict=True)
    kept.save(at(2))
    assert len(current(tmp_path)) == 2


def test_text_that_is_not_utf8_and_a_file_that_was_moved_are_refused(tmp_path: Path) -> None:
    kept = store(tmp_path)
    path = kept.save(sample())
    path.rename(path.with_name("train--tiny--a2--docs.json"))
    path.write_bytes(b"\xff{}")
    errors = kept.load_all(strict=False)[1]
    assert any("no UTF-8" in str(e) for e in errors)
    assert any("belongs under" in str(e) for e in errors)


def test_a_stored_verdict_that_its_own_facts_deny_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path).save(sample(kind=VerdictKind.FAILED))
    judging = store(tmp_path, rejudge=lambda e: Verdict(VerdictKind.PASSED, "said otherwise", e.verdict.cause, e.verdict.blame))
    with pytest.raises(EvidenceError, match="forged"):
        judging.load(path)
    reworded = store(tmp_path, rejudge=lambda e: replace(e.verdict, because="in other words"))
    assert reworded.load(path).verdict.kind is VerdictKind.FAILED


def test_a_rehearsal_has_a_store_of_its_own(tmp_path: Path) -> None:
    rehearsal = sample(rehearsal=True)
    with pytest.raises(EvidenceError, match="rehearsal"):
        store(tmp_path).save(rehearsal)
    assert files(tmp_path) == {}
    rehearsing = store(tmp_path / "root", rehearsal=True)
    rehearsing.save(rehearsal)
    assert len(rehearsing.load_all(strict=True)[0]) == 1
    with pytest.raises(EvidenceError, match="real run"):
        rehearsing.save(sample())
    counts = store(tmp_path / "here").import_dir(rehearsing.reports)
    assert (counts.added, len(counts.refused)) == (0, 1)


# --- import


def test_another_hosts_evidence_is_merged_without_loss_and_only_once(tmp_path: Path) -> None:
    here, there = store(tmp_path / "here"), store(tmp_path / "there")
    here.save(at(2))
    for evidence in (at(1), at(3, stage=Stage.INFER), at(1, hardware=Hardware.A2)):
        there.save(evidence)
    counts = here.import_dir(there.reports / "evidence")
    assert (counts.added, counts.current, counts.same, counts.refused) == (3, 2, 0, ())
    assert {(e.stage, e.hardware, e.started_at[8:10]) for e in current(tmp_path / "here")} == {
        (Stage.TRAIN, Hardware.CPU, "02"),
        (Stage.INFER, Hardware.CPU, "03"),
        (Stage.TRAIN, Hardware.A2, "01"),
    }
    before = files(tmp_path / "here")
    again = here.import_dir(there.reports / "evidence")
    assert (again.added, again.current, again.same) == (0, 0, 3)
    assert files(tmp_path / "here") == before


def test_an_import_names_what_it_refuses_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "a-truncated.json").write_text(to_json(sample())[:50])
    (folder / "b-edited.json").write_text(to_json(sample()).replace('"seed": 42', '"seed": 43'))
    (folder / "c-rehearsal.json").write_text(to_json(sample(rehearsal=True)))
    (folder / "d-foreign.json").write_text('{"name": "package"}')
    (folder / "e-good.json").write_text(to_json(sample()))
    counts = store(tmp_path).import_dir(folder)
    assert counts.added == 1
    assert [Path(e.where.split(":")[0]).name[0] for e in counts.refused] == ["a", "b", "c", "d"]


def test_importing_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no folder"):
        store(tmp_path).import_dir(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvidenceError, match=r"no \*\.json"):
        store(tmp_path).import_dir(tmp_path / "empty")


KINDS = st.sampled_from([VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.BLOCKED, VerdictKind.INTERRUPTED])
PIECES = st.lists(
    st.tuples(st.integers(1, 3), KINDS, st.booleans()),
    max_size=3,
)


@settings(max_examples=10, deadline=None)
@given(PIECES)
def test_the_order_of_merging_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, VerdictKind, bool]]
) -> None:
    stages = {True: Stage.TRAIN, False: Stage.INFER}
    evidence = [at(day, kind=kind, nonce=f"n{i}", stage=stages[first]) for i, (day, kind, first) in enumerate(pieces)]
    ends = []
    for order in permutations(evidence):
        root = tmp_path_factory.mktemp("order")
        for piece in order:
            store(root).save(piece)
        ends.append(files(root))
    assert all(end == ends[0] for end in ends)


# --- disks and neighbours


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store(tmp_path)
    kept.save(at(1))
    before = files(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError, match="No space left"):
        kept.save(at(2))
    assert files(tmp_path) == before


def test_a_folder_that_is_a_file_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("")
    with pytest.raises(HostError, match="could not be written"):
        write_atomically(tmp_path / "reports" / "x.json", "{}")


def test_what_a_killed_writer_left_is_no_evidence_and_is_swept(tmp_path: Path) -> None:
    kept = store(tmp_path)
    left = kept.save(at(1)).with_name("." + "0" * 32 + ".tmp")
    left.write_text("{")
    assert len(current(tmp_path)) == 1
    kept.save(at(2))
    assert not left.exists()


def _save_days(root: Path, days: list[int]) -> None:
    for number in days:
        store(root).save(at(number))


def test_processes_share_a_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    groups = [[1, 9, 4], [8, 2, 7], [3, 6, 5]]
    workers = [context.Process(target=_save_days, args=(tmp_path, days)) for days in groups]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert current(tmp_path) == (at(9),)
    assert len(history(tmp_path)) == 9


def test_no_file_name_carries_more_than_the_key(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(sealed(replace(sample(cell="a/../b c"), nonce="../x y")))
    names = list(files(tmp_path))
    assert all(".." not in name and " " not in name for name in names)
    assert len(names) == 2


# --- what is no regular file, no evidence, or of the future


def test_only_regular_files_of_a_likely_size_are_read(tmp_path: Path) -> None:
    kept = store(tmp_path)
    real = kept.save(sample())
    aside = tmp_path / "aside.json"
    aside.write_bytes(real.read_bytes())
    folder = real.parent
    os.mkfifo(folder / "a-pipe.json")
    (folder / "b-link.json").symlink_to(aside)
    (folder / "c-loop.json").symlink_to(folder / "c-loop.json")
    (folder / "d-device.json").symlink_to("/dev/zero")
    (folder / "e-folder.json").mkdir()
    with open(folder / "f-huge.json", "wb") as file:
        file.truncate(17 * 2**20)
    good, bad = kept.load_all(strict=False)
    assert good == (sample(),)
    assert [Path(e.where).name[0] for e in bad] == ["a", "b", "c", "d", "e", "f"]
    for error, said in zip(bad, ["pipe", "link", "link", "link", "folder", "bytes"], strict=True):
        assert said in error.what
        assert error.where.startswith("reports/evidence/")
    counts = store(tmp_path / "other").import_dir(kept.reports)
    assert (counts.added, len(counts.refused)) == (1, 6)


def test_evidence_behind_a_linked_folder_is_refused(tmp_path: Path) -> None:
    there = store(tmp_path / "there").save(sample())
    (tmp_path / "here/reports/evidence").mkdir(parents=True)
    (tmp_path / "here/reports/evidence/qwen3-sft-lora").symlink_to(there.parent)
    good, bad = store(tmp_path / "here").load_all(strict=False)
    assert good == () and "linked folder" in bad[0].what


@pytest.mark.parametrize(
    "name", ["x.json", "README.md", ".DS_Store", "cell/notes.txt", "cell/deep/x.json", "cell/.x.tmp", "cell/" + "." + "0" * 32 + ".tmp"]
)
def test_a_stray_among_the_evidence_is_named(tmp_path: Path, name: str) -> None:
    kept = store(tmp_path)
    kept.save(sample())
    assert kept.strays() == ()
    stray = kept.reports / "evidence" / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_text("{}")
    assert [e.where for e in kept.strays()] == ["reports/evidence/" + ("cell/deep" if "deep" in name else name)]


def test_a_link_in_the_place_of_a_folder_is_a_stray(tmp_path: Path) -> None:
    store(tmp_path / "there").save(sample())
    (tmp_path / "here/reports").mkdir(parents=True)
    (tmp_path / "here/reports/evidence").symlink_to(tmp_path / "there/reports/evidence")
    assert [e.where for e in store(tmp_path / "here").strays()] == ["reports/evidence"]


def test_what_is_yet_to_come_is_refused_by_the_clock_that_is_given(tmp_path: Path) -> None:
    path = store(tmp_path).save(sample())
    for day, taken in ((30, False), (31, True)):
        kept = store(tmp_path, now=lambda day=day: datetime(2026, 5, day, 12, tzinfo=timezone.utc))
        assert len(kept.load_all(strict=False)[0]) == taken
        assert len(kept.import_dir(path.parent).refused) == (not taken)


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    for depth in (200, 900, 990, 5000):
        (tmp_path / f"{depth}.json").write_text('{"schema": 1, "x": ' + "[" * depth + "]" * depth + "}")
    assert len(store(tmp_path / "here").import_dir(tmp_path).refused) == 4
