"""A witness file is read whatever state it is in; what can't be trusted in it becomes a fault, which no proof passes over."""

from __future__ import annotations

import json

import examples as ex
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.found import Role
from harness.witness_log import faults, parse_witness, rank_zero, summary, workers

LINE = '{"event": "start", "nonce": "n", "pid": 3, "rank": 0, "world_size": 1, "versions": {"torch": "2.14.1", "vllm": null}}'


def test_the_events_of_a_process_are_kept_in_order() -> None:
    found = ex.witness(ex.train_events())
    assert (found.nonce, found.pid, found.rank, found.world_size) == (ex.NONCE, 7, 0, 1)
    assert [event["event"] for event in found.events][:3] == ["start", "train_begin", "step"]
    assert faults(found) == ()


def test_versions_leave_out_what_is_not_installed() -> None:
    assert parse_witness(LINE, "w").versions == {"torch": "2.14.1"}


def test_a_cut_line_is_a_fault_and_costs_nothing_else() -> None:
    found = parse_witness(LINE + "\n" + LINE[:40], "w")
    assert found.nonce == "n" and len(found.all("start")) == 1
    assert len(faults(found)) == 1 and "line 2" in faults(found)[0]


def test_a_line_with_another_nonce_or_pid_is_a_fault() -> None:
    for change in (('"n"', '"m"'), ("3", "4")):
        found = parse_witness(LINE + "\n" + LINE.replace(*change), "w")
        assert found.nonce == "n" and len(faults(found)) == 1


def test_an_empty_file_is_a_fault() -> None:
    assert faults(parse_witness("", "w")) == ("line 0: the file holds no event",)


def test_what_the_witness_could_not_do_is_a_fault() -> None:
    found = parse_witness(LINE + "\n" + LINE.replace('"start"', '"fault", "where": "on_save", "error": "OSError: full"'), "w")
    assert faults(found) == ("on_save: OSError: full",)


def test_the_process_that_worked_is_rank_zero_not_its_helper() -> None:
    helper = ex.witness([ex.start()], pid=1)
    trainer = ex.witness(ex.train_events(), pid=9)
    other_rank = ex.witness([*ex.train_events(), *ex.train_events()], pid=10, rank=1)
    assert rank_zero((helper, other_rank, trainer)) is trainer
    assert rank_zero((other_rank,)) is None
    assert rank_zero(()) is None
    assert workers((helper, other_rank, trainer)) == (trainer, other_rank)


def test_evidence_gets_digests_and_devices_but_no_prompts() -> None:
    kept = summary(ex.witness([*ex.train_events(), *ex.generate_events(Role.ADAPTER)]))
    assert kept["train_begin"]["device"] == "cpu"
    assert kept["train_end"]["trainable_digest"]
    assert kept["steps"]["step"] == [1, 2, 3, 4]
    assert kept["logged"][0] == [1, ex.loss_of(1), 1.625, pytest.approx(0.01)] and len(kept["logged"]) == ex.STEPS
    assert kept["train_begin"]["arguments"]["max_steps"] == ex.STEPS
    assert kept["generate"] == {
        "calls": 1, "devices": ["cpu"], "model_classes": ["Qwen2ForCausalLM"], "dtypes": ["float32"], "adapters": ["default"],
            "device_names": [], "simulated": False,
    }  # fmt: skip
    assert "prompt_ids" not in json.dumps(kept) and "output_ids" not in json.dumps(kept)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    summary(parse_witness(text, "w"))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = scalars | st.lists(st.integers()) | st.dictionaries(st.text(), st.text())
names = st.sampled_from(["event", "nonce", "pid", "rank", "world_size", "versions", "step", "rss_mib", "adapters", "error", "line"])


@given(st.lists(st.dictionaries(names, values) | st.dictionaries(names, values).map(lambda e: {**e, "event": "generate"})))
def test_no_json_raises(events: list[object]) -> None:
    found = parse_witness("\n".join(json.dumps(event) for event in events), "w")
    summary(found)
    rank_zero([found])
