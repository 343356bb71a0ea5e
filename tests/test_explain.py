"""What logs say by themselves: the corpus, changed in every way that keeps its meaning, healthy logs, and ranks that blame each other."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.causes import CAUSES, blame_of
from harness.decisive import Decisive
from harness.explain import Explanation, explain
from harness.log_lines import clean_line, level_of, split_speaker
from harness.model import Blame
from harness.sieve import Sieve
from harness.symptom_table import SYMPTOMS
from tests.log_mutations import MUTATIONS, interleaved

FIXTURES = Path(__file__).parent / "fixtures"


def table(name: str) -> list[dict[str, str]]:
    with (FIXTURES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


ROWS = [(row["cause"], (FIXTURES / row["file"]).read_text(encoding="utf-8")) for row in table("log_causes.tsv") if row["counts"] == "yes"]
UNCOUNTED = [row for row in table("log_causes.tsv") if row["counts"] == "no"]
SAMPLES = table("symptom_samples.tsv")
CONSEQUENCES = {"comm.connect_timeout", "comm.notify_timeout"}


def read(text: str, source: str = "log") -> Decisive:
    log = Decisive(source)
    log.read(text.encode())
    return log


def said(*texts: str) -> Explanation:
    return explain([read(text, f"rank{at}.log") for at, text in enumerate(texts)])


def wrong(cases: list[tuple[set[str], str]]) -> list[str]:
    """Of (causes that would be right, log): what was said instead, for the message of a failure."""
    found = [(right, said(log), log) for right, log in cases]
    return [f"{sorted(right)}, not {got.cause}: {log[:300]!r}" for right, got, log in found if got.cause not in right]


def test_the_corpus_gets_its_causes() -> None:
    assert len(ROWS) == 65 and wrong([({cause}, log) for cause, log in ROWS]) == []


@pytest.mark.parametrize("row", UNCOUNTED, ids=[row["file"] for row in UNCOUNTED])
def test_rows_that_do_not_count_are_not_misread_either(row: dict[str, str]) -> None:
    assert said((FIXTURES / row["file"]).read_text(encoding="utf-8")).cause in (row["cause"], "none" if row["cause"] == "unknown" else "")


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_what_differs_between_hosts_does_not_change_the_cause(mutate) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(7)
    cases = [({cause}, mutate(log, chance)) for cause, log in ROWS for _ in range(3)]
    faults = wrong(cases)
    assert len(faults) <= 0.05 * len(cases) and faults == [], "\n".join(faults)


def test_all_changes_at_once_do_not_change_the_cause() -> None:
    chance = random.Random(11)
    cases = []
    for cause, log in ROWS:
        for _ in range(4):
            changed = log
            for mutate in chance.sample(MUTATIONS, 4):
                changed = mutate(changed, chance)
            cases.append(({cause}, changed))
    assert wrong(cases) == []


def right_of_two(one: str, other: str) -> set[str]:
    """Of two samples in one log: what follows from the other is no cause, nor is a healthy one; else either came first."""
    causes = {one, other} - {"none"}
    return causes - CONSEQUENCES or causes or {"none"}


PAIRS = random.Random(3).sample(list(itertools.product(ROWS, ROWS)), 600)


def test_of_two_samples_by_turns_the_one_that_is_no_consequence_decides() -> None:
    assert wrong([(right_of_two(a[0], b[0]), interleaved(a[1], b[1])) for a, b in PAIRS]) == []


def test_of_two_samples_one_after_the_other_the_first_decides_unless_it_is_a_consequence() -> None:
    cases = []
    for (first, log), (second, later) in PAIRS:
        right = right_of_two(first, second)
        cases.append(({first} if first in right else right, f"{log.rstrip()}\n{later}"))
    assert wrong(cases) == []


def test_two_ranks_by_turns_with_prefixes_of_their_own() -> None:
    def of_rank(number: int, log: str) -> str:
        return "".join(f"[rank{number}]: {line}\n" for line in log.splitlines())

    assert wrong([(right_of_two(a[0], b[0]), interleaved(of_rank(0, a[1]), of_rank(1, b[1]))) for a, b in PAIRS[:200]]) == []


@pytest.mark.parametrize(
    "line",
    [
        "ERROR 11-10 10:00:00 [health.py:1] port 8001 busy",
        "unable to use the fused kernel since it is not supported here",
        "gradient overflow! Attempted loss scale: 65536, but failed: nan grads; reducing to 32768",
        "Failed to load cached kernel for triton; compiling again",
    ],
)
def test_a_hint_counts_only_where_nothing_went_on_after_it(line: str) -> None:
    assert said(f"{line}\n{{'loss': 1.5, 'epoch': 0.1}}").cause == "none"
    assert said(f"{{'loss': 1.5, 'epoch': 0.1}}\n{line}").confidence == "low"


def test_a_known_message_outranks_an_earlier_hint() -> None:
    got = said("ERROR: npu monitor: card 3 became unhealthy\nHCCL watchdog thread terminated")
    assert (got.cause, got.confidence) == ("comm.notify_timeout", "low")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer_config.json"])
def test_a_model_s_missing_file_is_no_missing_data_set(name: str) -> None:
    assert said(f"FileNotFoundError: [Errno 2] No such file or directory: '/models/m/{name}'").cause == "unknown"


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{sample['rule']}-{at}" for at, sample in enumerate(SAMPLES)])
def test_real_messages_get_their_rule(sample: dict[str, str]) -> None:
    rule = next(rule for rule in SYMPTOMS if rule.id == sample["rule"])
    found = said(sample["text"])
    assert (found.cause, found.remedy) == (rule.cause, rule.remedy)


@pytest.mark.parametrize("rule", SYMPTOMS, ids=[rule.id for rule in SYMPTOMS])
def test_every_rule_has_a_sample_that_it_alone_decides(rule) -> None:  # type: ignore[no-untyped-def]
    texts = [sample["text"] for sample in SAMPLES if sample["rule"] == rule.id]
    alone = [text for text in texts if [other.id for other in SYMPTOMS if other.found_in(text)] == [rule.id]]
    assert alone, f"add a sample of {rule.id} to symptom_samples.tsv, or drop the rule"


def test_rules_have_ids_of_their_own_and_causes_of_the_closed_table() -> None:
    assert len({rule.id for rule in SYMPTOMS}) == len(SYMPTOMS)
    assert {rule.cause for rule in SYMPTOMS} <= set(CAUSES)


HEALTHY = """\
[INFO:swift] Start time of running main: 2026-03-04 05:06:07
run sh: `torchrun --nproc_per_node 2 sft.py --model x --dataset a.jsonl --ddp_timeout 1800 --error_policy ignore`
HCCL_CONNECT_TIMEOUT=1200 HCCL_EXEC_TIMEOUT=3600 ASCEND_RT_VISIBLE_DEVICES=0,1
/x/transfer_to_npu.py:292: ImportWarning: The torch.cuda.* is replaced; RuntimeError may be raised if not supported.
[W1130 05:06:08.123 socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).
WARNING 11-30 05:06:09 [_custom_ops.py:20] Failed to import from vllm._C with ImportError('libcudart.so.12: cannot open shared')
[WARNING:swift] dcmi module initialize failed once, retrying
INFO 11-30 05:06:10 [utils.py:3] If you see "NPU out of memory" (EL0004), lower --max_length; EI0006 means a rank is late.
Tip: to avoid NPU out of memory errors, use gradient checkpointing.
Note: EJ0003 is printed if the port is taken.
port 29500 is in use, using 29501 instead
could not reach the hub (Connection timed out), retrying in 1 s
[rank0]:[W1130 05:06:11.1 compiler_depend.ts:51] Warning: CAUTION: The operator 'aten::linalg_svd' is not currently supported \
on the NPU backend and will fall back to run on the CPU. This may have performance implications. (function npu_cpu_fallback)
[WARNING:swift] 3 rows had errors and the data will be deleted
Map: 100%|##########| 100/100 [00:01<00:00, 90.1 examples/s]
{'loss': 1.5, 'grad_norm': 0.7, 'learning_rate': 1e-05, 'memory(GiB)': 5.1, 'num_errors': 0, 'failed': 0}
 iteration 10/ 20 | lm loss: 1.5E+00 | grad norm: 0.7 | number of skipped iterations: 0 | number of nan iterations: 0 |
eval: 0 errors, 0 failed, 0 timeouts; infer_error_rate: 0.0; NaN count: 0
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "/x/pool.py", line 1, in __del__
ResourceError: pool is still running
[INFO:swift] last_model_checkpoint: /out/checkpoint-20
{'train_runtime': 12.5, 'train_loss': 1.5}
[INFO:swift] End time of running main: 2026-03-04 05:07:07
"""


def test_a_healthy_log_full_of_alarming_words_is_healthy_and_its_fallbacks_are_counted() -> None:
    found = said(HEALTHY)
    assert (found.cause, found.line, found.fallbacks) == ("none", "", {"aten::linalg_svd": 1})


@pytest.mark.parametrize("line", [line for line in HEALTHY.splitlines() if "Traceback" not in line and "ResourceError" not in line])
def test_no_line_of_a_healthy_log_alone_is_a_cause(line: str) -> None:
    assert said(line).cause in ("none", "unknown") and said(f"{line}\n[INFO:swift] last_model_checkpoint: /out/c\n").cause == "none"


@pytest.mark.parametrize(
    "log",
    [
        "",
        'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: no such thing\n',
        "[INFO:swift] step 3\nSegmentation fault (core dumped)\n",
        "Fatal Python error: Aborted\n\nThread 0x00007f (most recent call first):\n",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode  : 1 (pid: 7)\n",
        "[ERROR] 2025-06-09-06:57:54 (PID:7, Device:0, RankID:-1) ERR02002 DIST invalid type\n",
        "RuntimeError: NPU function error: aclnnFoo, error code is 507899\n",
        "EZ9999: Inner Error!\n",
        "(Worker pid=7) ERROR 09-26 15:11:03 [core.py:1] WorkerProc hit an exception.\n",
        "RuntimeError: Tensors must be contiguous\n",
    ],
)
def test_a_failure_whose_text_does_not_tell_is_unknown(log: str) -> None:
    found = said(log)
    assert (found.cause, found.blame, found.remedy) == ("unknown", Blame.UNKNOWN, "") and found.line


FOLLOWER = "[rank1]: EI0006: [PID: 7] 2026-03-04-05:08:10.000.000 Getting socket times out.\n"
ROOT = "[rank3]: [ERROR] 2026-03-04-05:06:10 RuntimeError: NPU out of memory. Tried to allocate 2 GiB\n"
LATER = "[rank2]: 2026-03-04 05:09:00,5 OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("logs", list(itertools.permutations([FOLLOWER, ROOT, LATER])))
def test_the_rank_that_died_first_decides_in_whatever_order_the_logs_are_given(logs: tuple[str, str, str]) -> None:
    for found in (said(*logs), said("".join(logs))):
        assert found.cause == "mem.npu_oom" and found.line == ROOT.strip()
        assert {cause for cause, _, _ in found.seen} == {"comm.connect_timeout", "ckpt.save"}


def test_a_line_without_a_time_is_as_old_as_the_line_before_it() -> None:
    early = "2026-03-04 05:06:07,1 [INFO] x\nRuntimeError: NPU out of memory. Tried\n"
    late = "2026-03-04 05:06:47,1 [INFO] x\nEJ0003: Failed to bind the IP port.\n"
    assert said(late, early).cause == said(early, late).cause == "mem.npu_oom"


def test_samples_of_different_days_are_not_ordered_by_their_clocks() -> None:
    assert said("2026-03-04 05:06:07 EJ0003: x\n2026-01-02 05:06:07 EJ0002: y\n").cause == "comm.port_in_use"


def test_a_frame_counts_unless_its_rank_says_something_better() -> None:
    frame = '(W pid=1) ERROR   File "x.py", line 3, in init_communicator\n'
    assert said(frame + "(W pid=1) ERROR AssertionError\n(W pid=2) ERROR NPU out of memory. Tried\n").cause == "comm.weight_sync"
    assert said(frame + "(W pid=1) ERROR NPU out of memory. Tried\n").cause == "mem.npu_oom"


def test_what_was_got_over_is_no_cause_but_a_loss_that_is_not_finite_is() -> None:
    end = "{'train_runtime': 12.5}\n"
    assert said(f"OSError: [Errno 98] Address already in use\n{end}").cause == "none"
    assert said(f"{{'loss': nan}}\n{end}").cause == "train.nan"


def test_the_explanation_carries_place_blame_remedy_and_how_sure_both_are() -> None:
    found = said("x\nOSError: [Errno 98] Address already in use\n")
    assert (found.where, found.blame, found.confidence, found.remedy_confidence) == ("rank0.log:2", Blame.ENVIRONMENT, "high", "confirmed")
    assert said(FOLLOWER).confidence == "low"
    assert said("EJ0002: The network port is down.").remedy_confidence == "inferred"


@given(st.text(), st.text())
def test_no_text_makes_it_raise_and_the_blame_is_the_tables(one: str, other: str) -> None:
    found = explain([read(one.encode("utf-8", "replace").decode()), read(other.encode("utf-8", "replace").decode())])
    assert found.cause in CAUSES and found.blame in (blame_of(found.cause), Blame.ENVIRONMENT)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_it_does_not_matter_where_a_log_is_cut_into_blocks(data: bytes, cut: int) -> None:
    data = data + b"\nEJ0003: x\nTraceback (most recent call last):\n  y\nKeyError: 1\n"
    cut = data.rfind(b"\n", 0, cut) + 1
    whole, parts = Decisive(), Decisive()
    whole.read(data)
    parts.read(data[:cut])
    parts.read(data[cut:])
    assert [(h.symptom.id, h.line) for h in whole.hits] == [(h.symptom.id, h.line) for h in parts.hits] and whole.faults[
        -1:
    ] == parts.faults[-1:]


def test_looking_at_shapes_first_hides_no_line_that_a_rule_matches() -> None:
    chance = random.Random(13)
    lines = {line for _, log in ROWS for line in log.splitlines()} | {sample["text"] for sample in SAMPLES}
    lines |= {"".join(chance.choice("0123456789") if c.isdigit() and chance.random() < 0.2 else c for c in line) for line in lines}
    for line in sorted(lines):
        matched = [rule for rule in SYMPTOMS if rule.found_in(line)]
        level = level_of(split_speaker(line)[1])
        if matched and clean_line(line) and level not in ("info", "warning"):
            chosen = dict(Sieve().choose([b"something else", line.encode()]))
            assert set(matched) <= set(chosen.get(1, ())), line
