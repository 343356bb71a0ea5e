"""The tables of the support page, as rows of markdown cells. The tables of documents that hold no combinations: harness.render_seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from harness.evidence import key_path, stack_name
from harness.matrix_claims import row_text
from harness.model import Cell, Claim, Evidence, Hardware, Mark, MarkKind, Matrix, Tier
from harness.redact import escape_markdown
from harness.render_said import said
from harness.render_seed_words import SEED_TABLES
from harness.render_strings import STRINGS, column, meaning
from harness.rules import changed_options
from harness.support import SupportTable

Row = Mapping[str, Any]

# Tables of a document whose rows are combinations: each claim of a row is a row of ours, in the columns of the document.
_COMBINATIONS = ("sft", "rl")
_SHOWN_VERSIONS = ("ms-swift", "torch", "torch_npu", "cann")
_PROOF = ("mark", "date", "versions", "evidence", "because")


@dataclass(frozen=True)
class Table:
    """A section: its title, paragraphs of markdown, column titles, rows of as many cells (markdown), and notes below."""

    title: str
    intro: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


class Page:
    """The tables of one support page in one language."""

    def __init__(self, table: SupportTable, matrix: Matrix, language: str) -> None:
        self.table, self.matrix, self.language, self.words = table, matrix, language, STRINGS[language]
        self._marks = {(mark.cell, mark.target): mark for mark in table.marks}
        self._cells = {cell.id: cell for cell in matrix.cells}
        self.pieces = {piece.sha256: piece for piece in table.evidence}
        self.claims: dict[str, list[Claim]] = defaultdict(list)
        for claim in matrix.claims:
            self.claims[claim.row].append(claim)
        self._shown: set[tuple[str, Hardware]] = set()

    def tables(self) -> tuple[Table, ...]:
        """All sections in reading order. Tables that matrix.yaml has and nobody here knows are shown as they stand."""
        known = self.matrix.tables
        combinations = [self._combinations(name) for name in _COMBINATIONS if name in known]
        examples = [self._examples()] if "examples" in known else []
        others = [self._as_it_stands(name) for name in known if name not in (*_COMBINATIONS, "examples", *SEED_TABLES)]
        sections = [self._legend(), *combinations, *examples, self._further(), self._chips()]
        return (*sections, *others, self._stacks(), self._witnessed())

    # --- marks

    def _legend(self) -> Table:
        contract = {c.id for c in self.matrix.cells if c.tier is Tier.CONTRACT}
        counts = Counter(m.kind for m in self.table.marks if m.cell not in contract)
        marks = sum(m.cell in contract for m in self.table.marks)
        note = self.words["contract"].format(cells=len(contract), marks=marks)
        rows = tuple((f"**{kind}**", meaning(kind, self.language), str(counts[kind])) for kind in MarkKind)
        return self._table("legend", ("mark", "meaning", "count"), rows, notes=(note,) if contract else ())

    def _combinations(self, name: str) -> Table:
        engine = name == "rl"
        columns = ("algorithm", "model families", "strategy", *(("rollout engine",) if engine else ()), "hardware", "claimed", *_PROOF)
        rows = []
        for claim, cell, mark in self._claimed(name):
            self._shown.add((cell.id, mark.target))
            asked = [str(cell.algorithm).upper(), _model(cell), _strategy(cell), *([str(cell.engine)] if engine else [])]
            rows.append((*map(escape_markdown, (*asked, self._product(mark.target), said(claim.says, self.language))), *self._proof(mark)))
        return self._table(name, columns, rows, notes=self.readings(name))

    def _examples(self) -> Table:
        rows, fields = [], ("section", "model", "what", "npus")
        for row in self.matrix.tables["examples"]:
            for claim in self.claims[row_text(row)]:
                mark = self.mark_of(claim)
                if mark is not None:
                    self._shown.add((mark.cell, mark.target))
                    asked = (*(row.get(f) for f in fields), mark.target, said(claim.says, self.language))
                    rows.append((*(escape_markdown(_plain(v, self.words)) for v in asked), *self._proof(mark)))
        columns = (*fields, "hardware", "claimed", *_PROOF)
        return self._table("examples", columns, rows, notes=self.readings("examples"))

    def _further(self) -> Table:
        rows = []
        for mark in self.table.marks:
            cell = self._cells[mark.cell]
            if cell.tier is Tier.CONTRACT or (mark.cell, mark.target) in self._shown:
                continue
            options = ", ".join(f"{name}={_option(getattr(cell.options, name))}" for name in changed_options(cell.options))
            asked = (str(cell.algorithm).upper(), _model(cell), str(cell.tuner), _strategy(cell), str(cell.engine), options)
            claimed = "; ".join(said(part, self.language) for part in mark.claimed.split("; "))
            rows.append((*map(escape_markdown, (*asked, self._product(mark.target), claimed)), *self._proof(mark)))
        columns = ("algorithm", "model families", "tuner", "strategy", "engine", "options", "hardware", "claimed", *_PROOF)
        return self._table("further", columns, rows)

    def _proof(self, mark: Mark) -> tuple[str, ...]:
        where = f" ({mark.hardware})" if mark.hardware and mark.hardware is not mark.target else ""
        because = "; ".join(filter(None, (mark.because, mark.beside and f"beside: {mark.beside}")))
        links = ", ".join(self.link(self.pieces[h]) for h in mark.evidence)
        kind = str(mark.kind) if mark.kind is MarkKind.UNTESTED else f"**{mark.kind}**"
        return (f"{kind}{where}", mark.date, self.versions(mark.versions), links, escape_markdown(because))

    def link(self, piece: Evidence) -> str:
        return f"[{piece.stage} {piece.sha256[:8]}]({quote(key_path(piece))})"

    # --- the document's own tables, and versions

    def _as_it_stands(self, name: str) -> Table:
        table = self.matrix.tables[name]
        fields = self._fields(table)
        rows = [tuple(escape_markdown(_plain(self.value(row, f), self.words)) for f in fields) for row in table]
        return self._table(name, tuple(f.replace("_", " ") for f in fields), rows)

    def _chips(self) -> Table:
        rows = [
            (str(hardware), *(escape_markdown(_plain(facts.get(f), self.words)) for f in ("product", "chips", "device_names")))
            for hardware, facts in self.matrix.hardware.items()
        ]
        return self._table("chips", ("hardware", "product", "chips", "device names"), rows)

    def _stacks(self) -> Table:
        rows = [
            tuple(
                map(escape_markdown, (s.key, s.document, ", ".join(f"{n} {spec}" for n, spec in s.requires.items()), str(s.max_age_days)))
            )
            for s in self.matrix.stacks.values()
        ]
        return self._table("stacks", ("stack", "document", "requires", "max age (days)"), rows)

    def _witnessed(self) -> Table:
        return self._table("witnessed", *witnessed(self.table.evidence, self.matrix))

    def versions(self, versions: Mapping[str, str]) -> str:
        if not versions:
            return ""
        shown = [f"{name} {versions[name]}{_commit(name, versions)}" for name in _SHOWN_VERSIONS if versions.get(name)]
        return escape_markdown(", ".join([*shown, stack_name(versions, self.matrix.stacks)]))

    # --- parts

    def _table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()) -> Table:
        intro = self.words.get(f"{name}_intro", "")
        titles = tuple(column(c, self.language) for c in columns)
        return Table(self.words.get(name, name), (intro,) if intro else (), titles, tuple(tuple(r) for r in rows), tuple(notes))

    def _claimed(self, name: str) -> Iterable[tuple[Claim, Cell, Mark]]:
        for row in self.matrix.tables[name]:
            for claim in self.claims[row_text(row)]:
                mark = self.mark_of(claim)
                if mark is not None:
                    yield claim, self._cells[mark.cell], mark

    def mark_of(self, claim: Claim) -> Mark | None:
        return self._marks.get((claim.cell, claim.target)) if claim.cell and claim.target else None

    def readings(self, name: str) -> tuple[str, ...]:
        found = [c.reading for row in self.matrix.tables[name] for c in self.claims[row_text(row)]]
        readings = [escape_markdown(said(reading, self.language)) for reading in dict.fromkeys(found) if reading]
        return (f"{self.words['readings']}{self.words['colon']}" + "; ".join(readings),) if readings else ()

    def _fields(self, rows: Sequence[Row]) -> list[str]:
        return list(dict.fromkeys(_bare(name) for row in rows for name in row))

    def value(self, row: Row, field: str) -> Any:
        return row.get(f"{field}_{self.language}", row.get(field))

    def _product(self, target: Hardware) -> str:
        return str(self.matrix.hardware.get(target, {}).get("product", target))


def witnessed(evidence: Iterable[Evidence], matrix: Matrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of the versions that runs saw: one row for every different set."""
    counts: Counter[tuple[str, str, tuple[tuple[str, str], ...]]] = Counter()
    for piece in evidence:
        if piece.versions:
            hardware = str(piece.hardware or "")
            counts[stack_name(piece.versions, matrix.stacks), hardware, tuple(sorted(piece.versions.items()))] += 1
    rows: list[tuple[str, ...]] = [
        (escape_markdown(stack), hardware, escape_markdown(", ".join(f"{name} {version}" for name, version in versions)), str(count))
        for (stack, hardware, versions), count in sorted(counts.items())
    ]
    return ("stack", "hardware", "versions", "pieces"), rows


def _commit(name: str, versions: Mapping[str, str]) -> str:
    """Of an ms-swift that runs from a checkout: which one, and whether it was edited."""
    commit = versions.get("swift_commit") if name == "ms-swift" else None
    dirty = versions.get("swift_dirty", "").lower() == "true"
    return f" ({commit[:8]}{', dirty' if dirty else ''})" if commit else ""


def _model(cell: Cell) -> str:
    return cell.model.id.rpartition("/")[2]


def _strategy(cell: Cell) -> str:
    return f"{cell.strategy}" + (f", {cell.devices} NPUs" if cell.devices and cell.devices > 1 else "")


def _option(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _plain(value: Any, words: Mapping[str, str]) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return words["yes"] if value else words["no"]
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _bare(field: str) -> str:
    return field[:-3] if field.endswith(("_zh", "_en")) else field
