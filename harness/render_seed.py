"""The tables of ms-swift's own page on NPUs, in its form, zh and en, with what evidence says beside each row.

A row's first columns are the document's, word for word; what follows is measured. One row of the document is often several cells: their
marks stand together, each with the part of the row that it speaks of (`FSDP1/zero2: simulated (sim, tiny) 2026-11-30; FSDP2: untested`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.docs_rows import RowMeaning
from harness.docs_update_scope import scope_of
from harness.evidence import MEASURED, day
from harness.matrix_claims import row_text
from harness.model import Claim, Evidence, Hardware, Mark, MarkKind, VerdictKind, Weights
from harness.redact import escape_markdown
from harness.render_said import said
from harness.render_seed_words import SEED_TABLES, SEED_WORDS, seed_columns
from harness.render_tables import Page
from harness.support import worked_on

Row = Mapping[str, Any]
Cells = tuple[str, ...]

_TOP = ("products", "features", "memory")
_DECIDED_BY = {
    MarkKind.FAILING: VerdictKind.FAILED,
    MarkKind.FIXED: VerdictKind.FIXED,
    MarkKind.KNOWN_FAILURE: VerdictKind.KNOWN_FAILURE,
    MarkKind.BLOCKED: VerdictKind.BLOCKED,
}


@dataclass(frozen=True)
class SeedTable:
    """A section: its heading with its hashes, blocks of markdown above and below the table, column titles, and rows of as many cells."""

    heading: str
    above: Cells
    columns: Cells
    rows: tuple[Cells, ...]
    below: Cells = ()
    centred: int | None = None


class SeedPage:
    """The sections of the page, but for those of memory (harness.render_seed_memory)."""

    def __init__(self, page: Page) -> None:
        self.page, self.words = page, SEED_WORDS[page.language]

    def tables(self) -> tuple[SeedTable, ...]:
        """The tables that matrix.yaml has, in the document's order."""
        return tuple(self._table(name) for name in SEED_TABLES if name in self.page.matrix.tables and name != "memory")

    def head(self) -> str:
        """What the page is, and of which document."""
        tables = [self.page.matrix.tables.get(name, ()) for name in SEED_TABLES]
        claims = [claim for rows in tables for row in rows for claim in self.page.claims.get(row_text(row), ())]
        named = dict.fromkeys(f"{claim.document} ({said(claim.date, self.page.language)})" for claim in claims)
        return self.words["what"].format(documents=escape_markdown(", ".join(named))) if any(tables) else self.words["no_tables"]

    def _table(self, name: str) -> SeedTable:
        rows = self.page.matrix.tables[name]
        match name:
            case "products":
                made = [self._product(row) for row in rows]
            case "features":
                made = self._features(rows)
            case "sft" | "rl":
                made = [self._combination(row) for row in rows]
            case "unsupported":
                made = [(self._words(row, "item"), *self._stood_for(row)) for row in rows]
            case _:
                made = [(self._words(row, "limit"), self._says(row), *self._stood_for(row)) for row in rows]
        above = (self.words[f"{name}_above"],) if f"{name}_above" in self.words else ()
        if name in ("sft", "rl", "unsupported"):
            says = self.words["and"].join(dict.fromkeys(filter(None, map(self._says, rows))))
            above = (*above, self.words["says"].format(says=says)) if says else above
        below = (self.words[f"{name}_below"],) if f"{name}_below" in self.words else self.page.readings(name)
        heading = f"{'##' if name in _TOP else '###'} {self.words[name]}"
        return SeedTable(heading, above, seed_columns(name, self.page.language), tuple(made), below, 1 if name == "products" else None)

    # --- rows

    def _product(self, row: Row) -> Cells:
        """A hardware product, and how much evidence there is of runs on it."""
        supported = "√" if row["supported"] else "x"
        product = f"<term>{self._words(row, 'product')}</term>"
        hardware = Hardware(row["hardware"]) if row["hardware"] else None
        if hardware is None:
            return (product, supported, self.words["no_target"], "", "")
        runs = [e for e in self.page.table.evidence if e.hardware and worked_on(e) is hardware and e.verdict.kind in MEASURED]
        if not runs:
            return (product, supported, self.words["no_run"], "", "")
        marks = Counter(m.kind for m in self.page.table.marks if m.target is hardware and m.hardware is hardware)
        counts = ", ".join(f"{kind} {marks[kind]}" for kind in MarkKind if marks[kind])
        return (product, supported, self.words["runs"].format(count=len(runs)), counts, str(max(map(day, runs))))

    def _features(self, rows: Sequence[Row]) -> list[Cells]:
        """A group is named in its first row only, as in the document."""
        made, group = [], ""
        for row in rows:
            here = self._words(row, "group")
            made.append((here if here != group else "", self._words(row, "feature"), self._words(row, "state"), *self._stood_for(row)))
            group = here
        return made

    def _combination(self, row: Row) -> Cells:
        algorithm = escape_markdown(str(row["algorithm"]))
        fields = ("models", "strategy", *(("engine",) if "engine" in row else ()), "hardware")
        words = [f"**{algorithm}**" if "engine" in row else algorithm, *(self._words(row, field) for field in fields)]
        return (*words, *self.proof(row, names_model=True, strategy=str(row["strategy"])))

    def _stood_for(self, row: Row) -> Cells:
        """The cells that stand for a row without a model, or why none does, and what evidence says of them."""
        claims = self.page.claims.get(row_text(row), ())
        cells = dict.fromkeys(f"`{claim.cell}`" for claim in claims if claim.cell)
        return (", ".join(cells) or self.no_cell(claims), *self.proof(row, names_model=False))

    # --- what stands beside a row

    def proof(self, row: Row, *, names_model: bool, strategy: str = "") -> tuple[str, str, str]:
        """The row's marks, each with the part that it speaks of; the stacks behind them; a link to what decides each."""
        claims = self.page.claims.get(row_text(row), ())
        marks = {(mark.cell, mark.target): mark for claim in claims if (mark := self.page.mark_of(claim)) is not None}
        meaning = RowMeaning(tuple(marks), names_model=names_model)
        groups: dict[str, list[Mark]] = {}
        for mark in marks.values():
            groups.setdefault(self._mark(mark), []).append(mark)
        shown = []
        for text, group in groups.items():
            keys = [(mark.cell, mark.target) for mark in group]
            scope = scope_of(keys, meaning, self.page.matrix, strategy) if len(groups) > 1 else ""
            shown.append(f"{escape_markdown(scope)}{self.words['colon']}{text}" if scope else text)
        stacks = dict.fromkeys(filter(None, (self.page.versions(mark.versions) for mark in marks.values())))
        links = []
        for key, mark in marks.items():
            if (piece := self._decides(mark)) is not None:
                scope = escape_markdown(scope_of([key], meaning, self.page.matrix, strategy)) if names_model else ""
                links.append(f"{scope}{self.words['colon']}{self.page.link(piece)}" if scope else self.page.link(piece))
        return self.words["separator"].join(shown), self.words["separator"].join(stacks), ", ".join(dict.fromkeys(links))

    def no_cell(self, claims: Iterable[Claim]) -> str:
        why = dict.fromkeys(said(claim.because_no_cell, self.page.language) for claim in claims if claim.because_no_cell)
        return escape_markdown(self.words["separator"].join(why))

    def _mark(self, mark: Mark) -> str:
        """The mark, where it comes from (tiny weights are named), and its date."""
        if mark.kind is MarkKind.UNTESTED:
            return str(mark.kind)
        tiny = any(self.page.pieces[sha256].weights is Weights.TINY for sha256 in mark.evidence)
        where = f" ({mark.hardware}{', tiny' if tiny else ''})" if mark.hardware else ""
        return f"**{mark.kind}**{where}" + (f" {mark.date}" if mark.date else "")

    def _decides(self, mark: Mark) -> Evidence | None:
        """The piece that a decided mark goes by: the one that shows its weakness, else the oldest pass."""
        pieces = [self.page.pieces[sha256] for sha256 in mark.evidence] if mark.kind is not MarkKind.UNTESTED else []
        weak = [piece for piece in pieces if piece.verdict.kind is _DECIDED_BY.get(mark.kind)]
        return min(weak or pieces, key=lambda piece: (day(piece), piece.sha256), default=None)

    def _says(self, row: Row) -> str:
        claims = self.page.claims.get(row_text(row), ())
        return escape_markdown(self.words["separator"].join(dict.fromkeys(said(claim.says, self.page.language) for claim in claims)))

    def _words(self, row: Row, field: str) -> str:
        return escape_markdown(str(self.page.value(row, field)))
