"""Evidence of kernel parity on disk: every run in a folder of its own, the newest of every item under reports/kernels, by hardware."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from filelock import FileLock

from harness.errors import EvidenceError
from harness.model import Hardware
from harness.parity import AGAIN, ParityEvidence, from_json, merge, moment, to_json
from harness.store import PARITY_FOLDER as FOLDER
from harness.store import ImportCounts, json_files, read_regular, utc_now, write_atomically

_FAST_CLOCK = timedelta(days=1)


def save(root: Path, evidence: ParityEvidence, now: Callable[[], datetime] = utc_now) -> tuple[Path, tuple[str, ...]]:
    """Keep a run, and put what is the newest of its item into reports/kernels/<hardware>.json; that path, and what had to be said.

    A damaged file there is replaced by what this run found, and named. Raises EvidenceError for what contradicts itself, HostError if the
    disk refuses.
    """
    text = to_json(evidence)
    from_json(text, "this run")
    history, said = _history(root, evidence), list[str]()
    write_atomically(history, text)
    path = root / "reports" / FOLDER / f"{evidence.hardware}.json"
    with FileLock(history.parent / ".lock"):
        kept = text
        if path.exists() or path.is_symlink():
            try:
                before = load(path, _name(root, path), now)
                kept = to_json(merge(before, evidence))
                if kept == to_json(before):
                    return path, ()
            except EvidenceError as error:
                said.append(f"replaced, since it could not be read: {error}")
        write_atomically(path, kept)
    return path, tuple(said)


def import_dir(root: Path, folder: Path, now: Callable[[], datetime] = utc_now) -> ImportCounts:
    """Merge another host's: every *.json in folders called kernels below `folder`. What is refused is reported, the others go on."""
    found, refused = json_files(folder)
    added = current = same = 0
    for path in (path for path in found if path.parent.name == FOLDER):
        try:
            evidence = load(path, str(path), now)
        except EvidenceError as error:
            refused.append(error)
            continue
        known = _history(root, evidence)
        is_known = known.is_file() and known.read_bytes() == path.read_bytes()
        before = _digest(root, evidence)
        save(root, evidence, now)
        added, same = added + (not is_known), same + is_known
        current += _digest(root, evidence) != before
    return ImportCounts(added, current, same, tuple(refused))


def _history(root: Path, evidence: ParityEvidence) -> Path:
    """A name a run; hosts that merged the same newest run with others' keep what each of them has."""
    newest = max(evidence.runs, key=lambda run: (moment(run.started_at), run.nonce))
    content = hashlib.sha256(to_json(evidence).encode()).hexdigest()[:8]
    return root / ".harness" / FOLDER / f"{moment(newest.started_at):%Y%m%dT%H%M%SZ}-{newest.nonce}-{content}.json"


def _digest(root: Path, evidence: ParityEvidence) -> bytes:
    path = root / "reports" / FOLDER / f"{evidence.hardware}.json"
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""


def load(path: Path, where: str, now: Callable[[], datetime] = utc_now) -> ParityEvidence:
    """The evidence in a file. Raises EvidenceError for what is no regular file, damaged, forged, of the future, or under another's name."""
    try:
        text = read_regular(path, where).decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError(where, f"is no UTF-8 text (byte {error.start}).", AGAIN) from error
    evidence = from_json(text, where)
    late = next((run for run in evidence.runs if moment(run.started_at) > now() + _FAST_CLOCK), None)
    if late is not None:
        mend = "Set the clock of the host that wrote it, or of this one, and run the suite again."
        raise EvidenceError(where, f"says that it ran at {late.started_at}, which is yet to come.", mend)
    return evidence


def load_all(root: Path, now: Callable[[], datetime] = utc_now) -> tuple[tuple[ParityEvidence, ...], tuple[EvidenceError, ...]]:
    """What reports/kernels holds, in the order of Hardware, and what had to be refused; files that are no evidence are refused too."""
    good: list[ParityEvidence] = []
    bad: list[EvidenceError] = []
    folder = root / "reports" / FOLDER
    names = {f"{hardware}.json": hardware for hardware in Hardware if hardware is not Hardware.SIM}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        where = _name(root, path)
        try:
            if path.name not in names:
                raise EvidenceError(where, "is no evidence, and nothing else belongs there.", "Delete it, or move it elsewhere.")
            evidence = load(path, where, now)
            if evidence.hardware is not names[path.name]:
                raise EvidenceError(where, f"holds evidence of {evidence.hardware}.", "Restore the file's name.")
            good.append(evidence)
        except EvidenceError as error:
            bad.append(error)
    order = list(Hardware)
    return tuple(sorted(good, key=lambda evidence: order.index(evidence.hardware))), tuple(bad)


def _name(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
