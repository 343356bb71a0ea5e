"""Evidence of kernel parity: what is kept, what is refused, and that merging loses nothing whatever the order."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness.__main__ import main
from harness.errors import EvidenceError
from harness.evidence_sealing import seal
from harness.model import Hardware
from harness.parity import (
    Entry,
    NotRun,
    ParityEvidence,
    RunFacts,
    Sort,
    State,
    WorstError,
    cleaned,
    entry_from_text,
    entry_to_text,
    from_json,
    json_schema,
    merge,
    schema_text,
    shown,
    to_json,
)
from harness.parity_store import load_all, save
from harness.render_parity import not_run_lines, render_parity, terminal_table

ROOT = Path(__file__).resolve().parents[1]
WORST = (WorstError("backward", 2e-6, 1e-5, "dq", '{"params": {}, "seed": 0}'), WorstError("forward", 1e-7, 1e-5, "y", "{}"))


def entry(name: str = "norm", dtype: str = "fp32", run: str = "one", **changes: object) -> Entry:
    made = Entry(f"{name}-{dtype}", Sort.PARITY, name, dtype, "patch", "a norm", State.PASSED, "", 1.5, run, cases=9, worst=WORST)
    return replace(made, **changes)  # type: ignore[arg-type]


KNOWN = entry(
    item="norm-bf16 known: eps",
    dtype="bf16",
    sort=Sort.KNOWN,
    state=State.KNOWN_FAILURE,
    because="told | there",
    worst=(),
    cases=0,
    failed=2,
)
CHECK = entry(item="check a", name="a", dtype="", sort=Sort.CHECK, worst=(), cases=0)
FAILED = entry("wrong", state=State.FAILED, because="wrong in fp32 <b>:\n  forward y: RMS ratio 1", worst=(), cases=0)


def evidence(*entries: Entry, run: str = "one", day: int = 1, hardware: Hardware = Hardware.CPU, **changes: object) -> ParityEvidence:
    facts = RunFacts(run, f"2026-06-{day:02d}T10:00:00+00:00", {"torch": "2.13.0", "ms-swift": "4.6.0"}, {"cores": "2"})
    items = sorted({"norm-fp32", "norm-bf16 known: eps", "check a", "wrong-fp32", "gone-fp32", *(e.item for e in entries)})
    made = ParityEvidence(hardware, (facts,), tuple(replace(e, run=run) for e in entries), (), tuple(items))
    return replace(made, **changes)  # type: ignore[arg-type]


WHOLE = evidence(entry(), KNOWN, CHECK, FAILED, not_run=(NotRun("gone-fp32", "no fla: pip install fla"),))


def later() -> datetime:
    return datetime(2026, 7, 1, tzinfo=timezone.utc)


def test_what_is_written_comes_back_and_fits_the_published_schema() -> None:
    text = to_json(WHOLE)
    assert replace(from_json(text, "x"), sha256="") == WHOLE
    jsonschema.validate(json.loads(text), json_schema())
    published = Path(harness.__file__).parent / "schemas" / "parity.schema.json"
    assert published.read_text(encoding="utf-8") == schema_text(), "write harness.parity.schema_text() into it, and raise SCHEMA"


@pytest.mark.parametrize("found", [entry(), KNOWN, FAILED, NotRun("a-fp32", "because")])
def test_an_items_answer_travels_as_text(found: Entry | NotRun) -> None:
    assert entry_from_text(entry_to_text(found)) == found


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        (evidence(entry(cases=0)), "norm-fp32 passed without a case"),
        (evidence(entry(worst=(replace(WORST[0], rms_ratio=1.0),))), "passed with 1 of dq, beyond its limit 1e-05"),
        (evidence(entry(worst=(replace(WORST[0], rms_ratio=float("nan")),))), "beyond its limit"),
        (evidence(entry(state=State.KNOWN_FAILURE)), "can't be known failure"),
        (evidence(replace(KNOWN, failed=0)), "is known failure with 0 cases that failed"),
        (evidence(replace(KNOWN, state=State.FIXED)), "is fixed? with 2 cases that failed"),
        (evidence(replace(FAILED, because="")), "failed without a because"),
        (evidence(entry(name="other", item="norm-fp32")), "is no parity of other"),
        (evidence(entry(), entry()), "norm-fp32 stands there twice"),
        (evidence(entry(), declared=()), "is not among the declared items"),
        (replace(WHOLE, runs=()), "its runs are none"),
        (replace(WHOLE, runs=(replace(WHOLE.runs[0], nonce="two"),)), "is of run 'one', which is not told of"),
        (replace(WHOLE, runs=(replace(WHOLE.runs[0], started_at="yesterday"),)), "no ISO 8601 time"),
    ],
)
def test_what_contradicts_itself_is_refused_though_its_hash_was_made_anew(forged: ParityEvidence, says: str) -> None:
    with pytest.raises(EvidenceError, match="forged") as told:
        from_json(to_json(forged), "cpu.json")
    assert says in str(told.value) and str(told.value).startswith("cpu.json: ")


def test_a_damaged_file_is_refused_where_it_is_damaged() -> None:
    text = to_json(WHOLE)
    other = {**json.loads(text), "schema": 9}
    unknown = {**json.loads(text), "more": 1}
    for broken, says in (
        (text[: len(text) // 2], "is cut short"),
        ("", "is cut short"),
        ("[]", "is a JSON list"),
        (text.replace('"cases": 9', '"cases": 10', 1), "it was edited"),
        (text.replace("\n", "\n\n", 1), "is not in canonical form"),
        (seal(other), "schema 9 is unknown"),
        (seal(unknown), "has the unknown more"),
    ):
        with pytest.raises(EvidenceError) as told:
            from_json(broken, "cpu.json")
        assert says in str(told.value) and str(told.value).startswith("cpu.json"), told.value


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_no_changed_byte_goes_unseen(position: int, value: int) -> None:
    data = bytearray(to_json(WHOLE).encode())
    if data[position % len(data)] == value:
        return
    data[position % len(data)] = value
    with pytest.raises(EvidenceError):
        from_json(data.decode("utf-8", "replace"), "x")


def test_the_newest_of_every_item_stays_whatever_the_order() -> None:
    first = evidence(entry(cases=5), KNOWN, run="a", day=1)
    second = evidence(entry(cases=6), FAILED, run="b", day=2)
    quick = evidence(entry(cases=2, quick=True), run="c", day=3)
    merged = {to_json(merge(*order)) for order in itertools.permutations((first, second, quick))}
    merged |= {to_json(merge(merge(one, two), three)) for one, two, three in itertools.permutations((first, second, quick))}
    assert len(merged) == 1
    kept = from_json(merged.pop(), "x")
    assert {(e.item, e.quick): (e.run, e.cases) for e in kept.entries} == {
        ("norm-bf16 known: eps", False): ("a", 0),
        ("norm-fp32", False): ("b", 6),
        ("norm-fp32", True): ("c", 2),
        ("wrong-fp32", False): ("b", 0),
    }
    assert [run.nonce for run in kept.runs] == ["a", "b", "c"]


def test_items_that_nobody_declares_any_more_are_gone_and_what_did_not_run_erases_nothing() -> None:
    old = evidence(entry(), entry("gone"), run="a", day=1)
    missing = evidence(run="b", day=2, not_run=(NotRun("norm-fp32", "no fla"), NotRun("wrong-fp32", "no fla")))
    declared = tuple(item for item in missing.declared if item != "gone-fp32")
    kept = merge(old, replace(missing, declared=declared))
    assert [e.item for e in kept.entries] == ["norm-fp32"] and [one.item for one in kept.not_run] == ["wrong-fp32"]


def test_a_quick_pass_never_stands_for_a_whole_run_and_a_quick_failure_does() -> None:
    whole = evidence(entry(), run="a", day=1)
    passed = evidence(entry(quick=True), run="b", day=2)
    failed = evidence(entry(quick=True, state=State.FAILED, because="differs"), run="c", day=3)
    assert [e.run for e in shown(merge(whole, passed))] == ["a"]
    assert [e.run for e in shown(merge(whole, failed))] == ["c"]
    assert [e.run for e in shown(passed)] == ["b"]
    again = evidence(entry(), run="d", day=4)
    assert [e.run for e in shown(merge(whole, failed, again))] == ["d"]


def test_a_run_is_kept_twice_once_for_itself_and_once_as_the_newest(tmp_path: Path) -> None:
    path, said = save(tmp_path, WHOLE, later)
    assert path == tmp_path / "reports" / "kernels" / "cpu.json" and said == ()
    save(tmp_path, evidence(entry(cases=7), run="two", day=2), later)
    found, refused = load_all(tmp_path, later)
    assert refused == () and {e.item: e.cases for e in found[0].entries}["norm-fp32"] == 7 and len(found[0].entries) == 4
    assert len(list((tmp_path / ".harness" / "kernels").glob("2026*.json"))) == 2


def test_what_is_damaged_under_reports_is_named_and_a_new_run_replaces_it(tmp_path: Path) -> None:
    path, _ = save(tmp_path, WHOLE, later)
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert [str(e).split(":")[0] for e in load_all(tmp_path, later)[1]] == ["reports/kernels/cpu.json"]
    _, said = save(tmp_path, WHOLE, later)
    assert said[0].startswith("replaced, since it could not be read: reports/kernels/cpu.json")
    assert load_all(tmp_path, later)[1] == ()


def test_strays_wrong_names_links_and_the_future_are_refused(tmp_path: Path) -> None:
    path, _ = save(tmp_path, WHOLE, later)
    folder = path.parent
    (folder / "a2.json").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    os.symlink(path, folder / "a3.json")
    says = sorted(str(e) for e in load_all(tmp_path, later)[1])
    assert "a2.json: holds evidence of cpu" in says[0] and "a3.json: is a link" in says[1] and "notes.txt: is no evidence" in says[2]
    early = load_all(tmp_path, lambda: datetime(2026, 5, 1, tzinfo=timezone.utc))[1]
    assert any("yet to come" in str(error) for error in early)


def test_a_process_prints_no_path_into_the_evidence() -> None:
    clean = cleaned(WHOLE, lambda text: text.replace("told", "<hidden>"))
    assert "told" not in to_json(clean) and clean.entries[0] == WHOLE.entries[0]


def test_the_page_shows_both_directions_failures_known_failures_and_what_is_no_npu() -> None:
    page = render_parity((WHOLE,), "en")
    assert "NO NPU EVIDENCE" in page and "Triton interpreter on a CPU, reference operators: proves the composition" in page
    assert "| norm | patch | fp32 | backward | 2.00e-06 | 1.00e-05 | dq | 9 | 0 | **passed** | 2026-06-01 |" in page
    assert "| norm | bf16 | eps | 2 | 0 | **known failure** | told \\| there | 2026-06-01 |" in page
    assert "| gone-fp32 | no fla: pip install fla |" in page
    assert "#### wrong-fp32" in page and "wrong in fp32 <b>:" in page.split("```")[1]
    npu = render_parity((WHOLE, replace(WHOLE, hardware=Hardware.A2)), "en")
    assert "NO NPU EVIDENCE" not in npu and "## a2: the operators of torch_npu" in npu


def test_both_languages_have_the_same_tables_from_the_same_evidence() -> None:
    pages = [render_parity((WHOLE,), language) for language in ("en", "zh")]
    assert len({tuple(line.count("|") for line in page.splitlines() if line.startswith("|")) for page in pages}) == 1
    assert "没有 NPU 证据" in pages[1] and render_parity((), "en").count("Nothing has run yet") == 1


def test_the_terminals_table_is_aligned_and_ends_with_what_did_not_run() -> None:
    lines = terminal_table(WHOLE.entries)
    assert lines[0].split() == ["kernel", "dtype", "direction", "worst", "limit", "in", "cases", "ill", "state"]
    assert len({line.index("fp32") for line in lines[1:4]}) == 1
    assert lines[-1] == "checks: 1 passed" and any(line.startswith("known failure: norm-bf16 known: eps (2 of 2") for line in lines)
    assert not_run_lines((NotRun("b-fp32", "no fla"), NotRun("a-fp32", "no fla"))) == ["not run: a-fp32, b-fp32: no fla"]


def test_the_report_is_checked_against_the_evidence_and_names_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, WHOLE, later)
    words = ["--root", str(tmp_path), "--matrix", str(ROOT / "matrix.yaml"), "report"]
    assert main(words) == 0 and main([*words, "--check"]) == 0
    page = tmp_path / "reports" / "kernel-parity.md"
    page.write_text(page.read_text(encoding="utf-8").replace("2.00e-06", "1.00e-06"), encoding="utf-8")
    assert main([*words, "--check"]) == 1
    assert "reports/kernel-parity.md:" in capsys.readouterr().out
    (tmp_path / "reports" / "kernels" / "cpu.json").write_text("{}", encoding="utf-8")
    assert main(words) == EvidenceError.exit_code
    assert "refused: reports/kernels/cpu.json: schema None" in capsys.readouterr().err


def test_another_hosts_evidence_is_imported_without_losing_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    save(here, WHOLE, later)
    save(there, evidence(entry(), run="npu", day=3, hardware=Hardware.A2), later)
    save(there, evidence(entry(cases=8), run="cpu", day=3), later)
    words = ["--root", str(here), "--matrix", str(ROOT / "matrix.yaml"), "import", str(there / "reports")]
    assert main(words) == 0 and "2 added" in capsys.readouterr().out
    found = {piece.hardware: piece for piece in load_all(here, later)[0]}
    assert {e.item: e.cases for e in found[Hardware.CPU].entries}["norm-fp32"] == 8 and Hardware.A2 in found
    assert main(words) == 0 and "2 known before" in capsys.readouterr().out
