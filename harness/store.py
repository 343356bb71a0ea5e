"""Evidence on disk: the newest of every key under reports/evidence (committed), every piece ever written in a history folder (not).

Files appear whole or not at all; a full disk or a damaged file costs that file only. Processes may share a store: only the choice of
the newest of a key is made under a lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from harness.errors import EvidenceError, HostError
from harness.evidence import MEASURED, file_name, from_json, key_path, rank, sealed, started, to_json
from harness.model import Evidence, Verdict, VerdictKind

Rejudge = Callable[[Evidence], Verdict]

# Verdicts that may stand under a key: what measured something, and `blocked`, which names the stage that failed. The rest says something
# about one session or one host, and stays in its history.
KEPT = MEASURED | {VerdictKind.BLOCKED}


@dataclass(frozen=True)
class ImportCounts:
    """What an import did: pieces `added` to the history, of which `current` became the newest of their key; `same`: known before."""

    added: int
    current: int
    same: int
    refused: tuple[EvidenceError, ...]


@dataclass(frozen=True)
class Store:
    """The evidence of one repository. `root` holds reports/; `history` is a folder that git ignores.

    `rejudge` recomputes a verdict from evidence; what then differs is refused as forged. A `rehearsal` store takes only the evidence of
    rehearsals, every other store refuses it.
    """

    root: Path
    history: Path
    rejudge: Rejudge | None = None
    rehearsal: bool = False

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
        """The evidence in `path`. Raises EvidenceError for what is damaged, forged or of a rehearsal (see harness.evidence.from_json)."""
        where = self._name(path)
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise EvidenceError(where, f"can't be read ({error.strerror}).", "Restore the file, or run the cell again.") from error
        except UnicodeDecodeError as error:
            raise EvidenceError(where, f"is no UTF-8 text (byte {error.start}).", "Restore the file, or run the cell again.") from error
        evidence = from_json(text, where, rehearsal_ok=self.rehearsal)
        _check_verdict(evidence, rejudge or self.rejudge, where)
        return evidence

    def load_all(self, *, strict: bool) -> tuple[tuple[Evidence, ...], tuple[EvidenceError, ...]]:
        """The newest evidence of every key, in the order of their paths, and what had to be refused; `strict` raises the first refusal."""
        good: list[Evidence] = []
        bad: list[EvidenceError] = []
        for path in sorted((self.reports / "evidence").glob("*/*.json")):
            try:
                good.append(self._load_current(path))
            except EvidenceError as error:
                if strict:
                    raise
                bad.append(error)
        return tuple(good), tuple(bad)

    def import_dir(self, folder: Path) -> ImportCounts:
        """Merge the evidence of another host: every *.json below `folder`. What is refused is reported, the others go on.

        Order does not matter and a second import changes nothing. Raises EvidenceError if there is nothing to import.
        """
        paths = sorted(folder.rglob("*.json"))
        if not paths:
            what = "holds no *.json file." if folder.is_dir() else "is no folder."
            raise EvidenceError(str(folder), what, "Name another host's reports/evidence or .harness/evidence folder.")
        added = current = same = 0
        refused: list[EvidenceError] = []
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
        raise EvidenceError(where, f"says {stored}, but what it holds amounts to {found}: forged.", "Run the cell again.")


def _sweep(folder: Path) -> None:
    """Remove what a killed writer left. Writers into reports/evidence hold the lock, so nobody is writing now."""
    for path in folder.glob(".*.tmp") if folder.is_dir() else ():
        if re.fullmatch(r"\.[0-9a-f]{32}\.tmp", path.name):
            path.unlink(missing_ok=True)
