"""Evidence on disk: the newest of every key under reports/evidence (committed), every piece ever written in a history folder (not).

Files appear whole or not at all; a full disk or a damaged file costs that file only. Processes may share a store: only the choice of
the newest of a key is made under a lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from filelock import FileLock

from harness.consistency import contradictions
from harness.errors import EvidenceError, HostError
from harness.evidence import MEASURED, file_name, from_json, key_path, rank, sealed, started, to_json
from harness.model import Evidence, Verdict, VerdictKind

Rejudge = Callable[[Evidence], Verdict]

# Verdicts that may stand under a key: what measured something, and `blocked`, which names the stage that failed. The rest says something
# about one session or one host, and stays in its history.
KEPT = MEASURED | {VerdictKind.BLOCKED}
# The largest piece known has 90 kB; what is a hundred times that is something else.
LARGEST_BYTES = 16 * 2**20
# Evidence of kernel parity, which has a form and keys of its own, lies in folders of this name.
PARITY_FOLDER = "kernels"
# Clocks of hosts differ, by hours where a zone is wrong.
_FAST_CLOCK = timedelta(days=1)
_SPARE = re.compile(r"\.[0-9a-f]{32}\.tmp")
_RESTORE = "Restore the file, or run the cell again."


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class ImportCounts:
    """What an import did: pieces `added` to the history, of which `current` became the newest of their key; `same`: known before."""

    added: int
    current: int
    same: int
    refused: tuple[EvidenceError, ...]

    def plus(self, other: ImportCounts) -> ImportCounts:
        refused = tuple(dict.fromkeys((*self.refused, *other.refused)))
        return ImportCounts(self.added + other.added, self.current + other.current, self.same + other.same, refused)


@dataclass(frozen=True)
class Store:
    """The evidence of one repository. `root` holds reports/; `history` is a folder that git ignores.

    `rejudge` recomputes a verdict from evidence; what then differs, or contradicts itself, is refused as forged. A `rehearsal` store takes
    only the evidence of rehearsals, every other store refuses it. What started more than a day after `now()` is refused too.
    """

    root: Path
    history: Path
    rejudge: Rejudge | None = None
    rehearsal: bool = False
    now: Callable[[], datetime] = utc_now

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    def save(self, evidence: Evidence) -> Path:
        """Keep `evidence`; the path is under reports/evidence if it is now the newest of its key, else in the history.

        Raises EvidenceError for what is no evidence or belongs to (or outside) a rehearsal, HostError if the disk refuses.
        """
        if evidence.rehearsal != self.rehearsal:
            kind = "a rehearsal" if evidence.rehearsal else "a real run"
            raise EvidenceError(evidence.cell, f"is evidence of {kind}, which this store does not take.", "Use the other store.")
        evidence = sealed(evidence)
        kept = self._remember(evidence)
        return self._promote(evidence) or kept

    def load(self, path: Path, *, rejudge: Rejudge | None = None) -> Evidence:
        """The evidence in `path`. Raises EvidenceError for what is no regular file, damaged, forged, of the future or of a rehearsal (see
        harness.evidence.from_json)."""
        where = self._name(path)
        try:
            text = read_regular(path, where).decode("utf-8")
        except UnicodeDecodeError as error:
            raise EvidenceError(where, f"is no UTF-8 text (byte {error.start}).", _RESTORE) from error
        evidence = from_json(text, where, rehearsal_ok=self.rehearsal)
        if started(evidence, where) > self.now() + _FAST_CLOCK:
            what = f"says that it ran at {evidence.started_at}, which is yet to come."
            raise EvidenceError(where, what, "Set the clock of the host that wrote it, or of this one, and run the cell again.")
        _check_verdict(evidence, rejudge or self.rejudge, where)
        return evidence

    def load_all(self, *, strict: bool) -> tuple[tuple[Evidence, ...], tuple[EvidenceError, ...]]:
        """The newest evidence of every key, in the order of their paths, and what had to be refused; `strict` raises the first refusal."""
        good: list[Evidence] = []
        bad: list[EvidenceError] = []
        for path in sorted((self.reports / "evidence").glob("*/*.json")):
            try:
                if path.parent.is_symlink():
                    raise EvidenceError(self._name(path), "lies in a linked folder.", "Put the folder itself in the link's place.")
                good.append(self._load_current(path))
            except EvidenceError as error:
                if strict:
                    raise
                bad.append(error)
        return tuple(good), tuple(bad)

    def import_dir(self, folder: Path) -> ImportCounts:
        """Merge the evidence of another host: every *.json below `folder`, links not followed, kernel parity's apart (see parity_store).

        What is refused is reported, the others go on.
        Order does not matter and a second import changes nothing. Raises EvidenceError if there is nothing to import.
        """
        found, refused = json_files(folder)
        paths = [path for path in found if path.parent.name != PARITY_FOLDER]
        if not paths and not refused:
            what = "holds no *.json file." if folder.is_dir() else "is no folder."
            raise EvidenceError(str(folder), what, "Name another host's reports/evidence or .harness/evidence folder.")
        added = current = same = 0
        for path in paths:
            try:
                evidence = self.load(path)
            except EvidenceError as error:
                refused.append(error)
                continue
            known = self._history_path(evidence).exists()
            self._remember(evidence)
            added, same = added + (not known), same + known
            current += self._promote(evidence) is not None
        return ImportCounts(added, current, same, tuple(refused))

    def strays(self) -> tuple[EvidenceError, ...]:
        """What lies under reports/evidence and is not `<cell>/<key>.json`, a regular file in a real folder: nobody reads it as evidence."""
        top = self.reports / "evidence"
        if not os.path.lexists(top):
            return ()
        if top.is_symlink() or not top.is_dir():
            return (self._stray(top),)
        found: list[Path] = []

        def unread(error: OSError) -> None:
            found.append(Path(error.filename))

        for at, dirs, files in os.walk(top, onerror=unread):
            here = Path(at)
            found += [here / name for name in dirs if here != top or (here / name).is_symlink()]
            found += [here / name for name in files if here.parent != top or not name.endswith(".json")]
            dirs[:] = [name for name in dirs if here == top]
        return tuple(self._stray(path) for path in sorted(set(found)) if not path.name.endswith(".json") or path.parent.parent != top)

    def _stray(self, path: Path) -> EvidenceError:
        what = "was left by a writer that was killed." if _SPARE.fullmatch(path.name) else "is no evidence, and nothing else belongs there."
        return EvidenceError(self._name(path), what, "Delete it, or move it elsewhere.")

    def _load_current(self, path: Path) -> Evidence:
        evidence = self.load(path)
        if self.reports / key_path(evidence) != path:
            raise EvidenceError(self._name(path), f"its content belongs under reports/{key_path(evidence)}.", "Restore the file's name.")
        if evidence.verdict.kind not in KEPT:
            raise EvidenceError(self._name(path), f"says {evidence.verdict.kind}, which is kept in the history only.", "Delete the file.")
        return evidence

    def _history_path(self, evidence: Evidence) -> Path:
        """A name a run; the content's hash keeps apart two stages of one cell that started in the same second."""
        when = f"{started(evidence):%Y%m%dT%H%M%S.%fZ}"
        return self.history / f"{when}-{file_name(evidence.nonce)}-{evidence.sha256[:8]}.json"

    def _remember(self, evidence: Evidence) -> Path:
        path = self._history_path(evidence)
        if not path.exists():
            write_atomically(path, to_json(evidence))
        return path

    def _promote(self, evidence: Evidence) -> Path | None:
        """Put `evidence` under its key unless a better one is there (see harness.evidence.rank); None: it was not put there."""
        if evidence.verdict.kind not in KEPT:
            return None
        path = self.reports / key_path(evidence)
        self.history.mkdir(parents=True, exist_ok=True)
        with FileLock(self.history / ".lock"):
            _sweep(path.parent)
            try:
                if rank(self._load_current(path)) >= rank(evidence):
                    return None
            except EvidenceError:
                pass  # absent, damaged or forged: what is sound replaces it, and load_all has named it to whoever read the store
            write_atomically(path, to_json(evidence))
        return path

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def json_files(folder: Path) -> tuple[list[Path], list[EvidenceError]]:
    """Every *.json below `folder`, in order, links not followed; and the folders that can't be read."""
    refused: list[EvidenceError] = []

    def unread(error: OSError) -> None:
        refused.append(EvidenceError(str(error.filename), f"can't be read ({error.strerror}).", "Mend the folder, then import again."))

    walked = os.walk(folder, onerror=unread) if folder.is_dir() else ()
    return sorted(Path(at, name) for at, dirs, files in walked for name in (*dirs, *files) if name.endswith(".json")), refused


def read_regular(path: Path, where: str, largest: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file of at most `largest` bytes. Raises EvidenceError for a link, a folder, a pipe, a device and what can't
    be read, without waiting for a writer that never comes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        what = "is a link, not a regular file." if error.errno == errno.ELOOP else f"can't be read ({error.strerror})."
        raise EvidenceError(where, what, _RESTORE) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            raise EvidenceError(where, f"is {kind}, not a regular file.", _RESTORE)
        if found.st_size > largest:
            raise EvidenceError(where, f"has {found.st_size} bytes; no more than {largest} are read.", _RESTORE)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(largest)
    except OSError as error:
        raise EvidenceError(where, f"can't be read ({error.strerror}).", _RESTORE) from error
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader, a crash or a full disk sees the old file or the new one. Raises HostError if the disk refuses."""
    spare = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(spare, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(spare, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):  # the folder itself may be what failed; the error that is raised says so
            spare.unlink(missing_ok=True)
        raise HostError(str(path), f"could not be written ({error.strerror}).", "Free space or mend the folder, then run again.") from error


def _check_verdict(evidence: Evidence, rejudge: Rejudge | None, where: str) -> None:
    """Prose may be worded anew; what is compared is what decides a mark."""
    if rejudge is None:
        return
    again = rejudge(evidence)
    if (again.kind, again.cause, again.blame) != (evidence.verdict.kind, evidence.verdict.cause, evidence.verdict.blame):
        stored, found = (f"{v.kind} {v.cause}".strip() for v in (evidence.verdict, again))
        what = f"says {stored}, but what it holds amounts to {found} ({again.because}): forged, or judged by another harness."
        raise EvidenceError(where, what, "Run the cell again.")
    if against := contradictions(evidence):
        more = f" (and {len(against) - 1} more contradictions)" if against[1:] else ""
        raise EvidenceError(where, f"contradicts itself: {against[0]}{more}: forged.", "Run the cell again.")


def _sweep(folder: Path) -> None:
    """Remove what a killed writer left. Writers into reports/evidence hold the lock, so nobody is writing now."""
    for path in folder.glob(".*.tmp") if folder.is_dir() else ():
        if _SPARE.fullmatch(path.name):
            path.unlink(missing_ok=True)
