"""What of a page runs here, in what form, and what does not: decided from the text alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.docs_page import read_page
from harness.docs_run_edits import StandIns
from harness.docs_run_plan import Block, Fate, Kind, PagePlan, plan_page
from harness.docs_run_reasons import PageHost, Reason
from harness.docs_run_said import aborted_at_exit, answers_in, asked_of_a_hub, reply_to
from harness.docs_run_select import Selection
from harness.docs_run_units import statements
from harness.docs_shell import numbered
from harness.errors import HarnessError
from harness.model import Hardware
from harness.tiny import make_datasets

PAGE = Path(__file__).parent / "docs" / "quick_start.zh.md"
TYPES = {
    "Qwen/Qwen3-0.6B": "qwen3", "Qwen/Qwen3-8B": "qwen3", "Qwen/Qwen2-7B-Instruct": "qwen2", "Qwen/Qwen3.5-4B": "qwen3_5",
}  # fmt: skip
KINDS = ("sft", "pt", "dpo", "kto", "grpo", "embedding", "seq_cls", "reranker", "val")
INSTALLED = ("torch", "deepspeed", "swift")
PLACES = StandIns(lambda model_id, family: f"/tiny/{model_id}", {kind: f"/rows/{kind}.jsonl" for kind in KINDS}, lambda p: p + 20000, 2048)


def host(hardware: Hardware = Hardware.CPU, lacking: tuple[str, ...] = ()) -> PageHost:
    return PageHost(hardware, lambda name: name in INSTALLED, lambda name: name not in lacking, TYPES, {"qwen3": "qwen3", "qwen2": "qwen2"})


def plan(text: str, selection: Selection | None = None, on: PageHost | None = None) -> PagePlan:
    return plan_page(read_page(text), on or host(), PLACES, selection or Selection(), "page.md")


def fenced(*blocks: str) -> str:
    return "".join(f"```shell\n{block}\n```\n" for block in blocks)


def only(text: str, on: PageHost | None = None) -> Block:
    (block,) = plan(fenced(text), on=on).blocks
    return block


def script(text: str, on: PageHost | None = None) -> str:
    block = only(text, on)
    assert block.fate is Fate.RUN, block.because
    return "".join(unit.script for unit in block.units)


def test_of_the_quick_start_only_ids_steps_ports_and_devices_are_substituted() -> None:
    blocks = plan(PAGE.read_text(encoding="utf-8")).blocks
    shown = [(edit.line, edit.before, edit.after) for block in blocks for edit in block.edits]
    assert shown == [
        (4, "Qwen/Qwen3-0.6B", "/tiny/Qwen/Qwen3-0.6B"),
        (5, "AI-ModelScope/alpaca-gpt4-data-zh", "/rows/sft.jsonl"),
        (10, "ASCEND_RT_VISIBLE_DEVICES=0", ""),
        (10, "", "--model_type qwen3"),
        (10, "", "--template qwen3"),
        (10, "", "--max_steps 6"),
        (10, "", "--check_model false"),
        (10, "", "--use_cpu true"),
        (26, "100", "3"),
        (27, "100", "3"),
        (29, "10", "1"),
        (35, "ASCEND_RT_VISIBLE_DEVICES=0", ""),
        (44, "ASCEND_RT_VISIBLE_DEVICES=0", ""),
        (49, "512", "12"),
        (51, "ASCEND_RT_VISIBLE_DEVICES=0", ""),
        (56, "512", "12"),
        (60, "ASCEND_RT_VISIBLE_DEVICES=0", ""),
        (63, "0.0.0.0", "127.0.0.1"),
        (64, "8000", "28000"),
        (65, "512", "12"),
        (70, "http://localhost:8000", "http://localhost:28000"),
    ]
    kinds = [unit.kind for block in blocks for unit in block.units if unit.kind is not Kind.SET]
    assert kinds == [Kind.TRAIN, Kind.MERGE, Kind.INFER, Kind.INFER, Kind.DEPLOY, Kind.ASK]


def test_all_other_words_stay_as_the_page_has_them() -> None:
    for block in plan(PAGE.read_text(encoding="utf-8")).blocks:
        for unit in block.units:
            ran, edits = unit.script, [e for e in block.edits if unit.line <= e.line <= unit.statement.end_line]
            for edit in edits:
                ran = ran.replace(f" {edit.after}", "", 1) if not edit.before else ran
            kept = [line for line in unit.statement.text.split("\n") if not any(e.before and e.before in line for e in edits)]
            assert all(line in ran.split("\n") for line in kept)


def test_a_slip_of_the_page_is_run_as_it_stands() -> None:
    assert "--lora_rnak 8" in script("swift sft --model Qwen/Qwen3-8B --dataset a/b --lora_rnak 8")
    assert "--model Qwen/Qwen3-08B --" in script("swift infer --model Qwen/Qwen3-08B --stream true")
    assert script("swift infre --model x\n") == "swift infre --model x\n\n"


@pytest.mark.parametrize(
    ("text", "ran"),
    [
        ("M=Qwen/Qwen3-8B; swift infer --model=$M --max_new_tokens=9", "M=/tiny/Qwen/Qwen3-8B; swift infer --model=$M --max_new_tokens=12"),
        ("swift infer --model 'Qwen/Qwen3-8B' --max_new_tokens \\\n'2048'", "--model '/tiny/Qwen/Qwen3-8B' --max_new_tokens \\\n'12'"),
        ("O=Qwen N=Qwen3-8B\nswift infer --model $O/$N", "--model $O/$N --model /tiny/Qwen/Qwen3-8B"),
        (
            "swift sft --model Qwen/Qwen3-8B --dataset a/b#20 c/d:x#5 ./my.jsonl",
            "--dataset /rows/sft.jsonl#20 /rows/sft.jsonl#5 ./my.jsonl",
        ),
        ("swift rlhf --rlhf_type kto --model Qwen/Qwen3-8B --dataset a/b", "--dataset /rows/kto.jsonl"),
        ("swift rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --dataset a/b", "--dataset /rows/dpo.jsonl"),
        ("swift pt --model Qwen/Qwen3-8B --dataset a/b --max_steps 5000", "--dataset /rows/pt.jsonl --max_steps 6"),
        ("swift sft --model Qwen/Qwen3-8B --dataset a/b --max_length 32768", "--max_length 2048"),
        ("swift sft --model Qwen/Qwen3-8B --dataset a/b --max_length 1024", "--max_length 1024"),
        ("NPROC_PER_NODE=4 MASTER_PORT=29500 swift sft --dataset a/b", "NPROC_PER_NODE=2 MASTER_PORT=49500 swift sft"),
        ('ASCEND_RT_VISIBLE_DEVICES="0,1" swift sft --dataset a/b', " swift sft"),
        ("export ASCEND_RT_VISIBLE_DEVICES=0,1\nls", "export ASCEND_RT_VISIBLE_DEVICES=\nls"),
        ("CUDA_VISIBLE_DEVICES=0 swift infer --model Qwen/Qwen3-8B", " swift infer --model /tiny/Qwen/Qwen3-8B --model_type qwen3"),
        ("swift deploy --model Qwen/Qwen3-8B", "--host 127.0.0.1 --port 28000"),
        ("swift deploy --model Qwen/Qwen3-8B --host 127.0.0.1 --port 9000", "--host 127.0.0.1 --port 29000"),
        ("nohup swift deploy --model Qwen/Qwen3-8B > a.log 2>&1 &", "> a.log 2>&1 \n"),
        (
            "swift infer --model Qwen/Qwen3-8B --model_type qwen3 --template qwen3",
            "--model_type qwen3 --template qwen3 --max_new_tokens 12",
        ),
    ],
)
def test_a_word_is_substituted_wherever_it_stands(text: str, ran: str) -> None:
    assert ran in script(text)


def test_on_a_simulated_npu_devices_stay_as_many_as_there_are_ranks() -> None:
    on = host(Hardware.SIM)
    four = "NPROC_PER_NODE=4 ASCEND_RT_VISIBLE_DEVICES=0,1,2,3 swift sft --dataset a/b"
    assert "NPROC_PER_NODE=2 ASCEND_RT_VISIBLE_DEVICES=0,1 swift" in script(four, on)
    one = script("ASCEND_RT_VISIBLE_DEVICES=0 swift sft --dataset a/b", on)
    assert "ASCEND_RT_VISIBLE_DEVICES=0 swift" in one and "--use_cpu" not in one


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("docker pull quay.io/ascend/ms-swift:x", Reason.CONTAINER),
        ("conda create -n swift python=3.11 -y", Reason.INSTALLS),
        ("sudo apt-get install -y git", Reason.INSTALLS),
        ("python -m pip install torch", Reason.INSTALLS),
        ("git clone https://github.com/modelscope/ms-swift.git", Reason.DOWNLOADS),
        ("curl -LO https://example.com/x.sh", Reason.DOWNLOADS),
        ("npu-smi info", Reason.ASKS_NPU),
        ("ls /dev/davinci*", Reason.ASKS_NPU),
        ("source /usr/local/Ascend/ascend-toolkit/set_env.sh", Reason.ASKS_NPU),
        ("python -c \"import torch; torch.randn(2, device='npu:0')\"", Reason.ASKS_NPU),
        ("python -c 'import torch, torch_npu'", Reason.LACKS_PACKAGE),
        ("swift deploy --model Qwen/Qwen3-8B --infer_backend vllm", Reason.LACKS_PACKAGE),
        ("swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --dataset a/b --use_vllm true", Reason.LACKS_PACKAGE),
        ("megatron sft --model Qwen/Qwen3-8B", Reason.LACKS_PACKAGE),
        ("swift sft --model Qwen/Qwen3-8B \\\n...", Reason.ELIDED),
        ("swift sft ... --deepspeed zero2", Reason.ELIDED),
        ("swift infer --adapters xxx/checkpoint-xxx", Reason.PLACEHOLDER),
        ("export P=<your_local_path>\nls $P", Reason.PLACEHOLDER),
        ("export WORKSPACE=/path/to/workspace", Reason.PLACEHOLDER),
        ("$ swift infer --model Qwen/Qwen3-8B", Reason.TRANSCRIPT),
        ("bash examples/ascend/train.sh", Reason.OTHER_FILE),
        ("cd ms-swift", Reason.OTHER_FILE),
        ("accelerate launch --num_processes 2 swift/cli/sft.py --model Qwen/Qwen3-8B", Reason.OTHER_FILE),
        ("swift sft --model Qwen/Qwen3-8B --external_plugins plugin/plugin.py", Reason.OTHER_FILE),
        ("swift sft --model Qwen/Qwen3.5-4B --dataset a/b", Reason.NO_TINY_MODEL),
        ("swift eval --model Qwen/Qwen3-8B --eval_dataset gsm8k", Reason.NO_TINY_FORM),
        ("swift export --model Qwen/Qwen3-8B --quant_bits 4", Reason.NO_TINY_FORM),
        ("swift deploy --model Qwen/Qwen3-8B --port $(free_port)", Reason.NO_TINY_FORM),
        ("NNODES=2 swift sft --model Qwen/Qwen3-8B --dataset a/b", Reason.SEVERAL_NODES),
        ("swift web-ui", Reason.WINDOW),
        ("tail -f train.log", Reason.WINDOW),
        ("sudo chmod 777 /dev/x", Reason.CHANGES_HOST),
        ("rm -rf ~/.cache/modelscope", Reason.CHANGES_HOST),
        ('rm -rf "$HOME"', Reason.CHANGES_HOST),
        ("D=$HOME\nrm -rf $D/x", Reason.CHANGES_HOST),
        ("rm -rf ../../x", Reason.CHANGES_HOST),
        ("find /data -name '*.pt' -delete", Reason.CHANGES_HOST),
        ("sed -i 's/a/b/' ~/.bashrc", Reason.CHANGES_HOST),
        ("dd if=/dev/zero of=/data/x bs=1 count=1", Reason.CHANGES_HOST),
        ("python -c \"import shutil; shutil.rmtree('/data/x')\"", Reason.CHANGES_HOST),
        ("pkill -f swift", Reason.CHANGES_HOST),
        ('echo x > "/data/x"', Reason.CHANGES_HOST),
        ("echo x > /tmp/x", Reason.CHANGES_HOST),
        ("swift sft --model Qwen/Qwen3-8B --dataset a/b --output_dir ../../out", Reason.CHANGES_HOST),
        ("echo 'export A=1' >> ~/.bashrc", Reason.CHANGES_HOST),
        ("swift sft --model Qwen/Qwen3-8B --dataset a/b --output_dir /data/out", Reason.CHANGES_HOST),
        ("swift export --adapters out --push_to_hub true --hub_model_id a/b", Reason.PUBLISHES),
    ],
)
def test_what_cannot_run_here_says_why(text: str, reason: Reason) -> None:
    block = only(text)
    assert block.fate is Fate.NOT_RUNNABLE and reason in {obstacle.reason for obstacle in block.obstacles}
    assert block.obstacles[0].line >= 2 or reason is Reason.TRANSCRIPT


def test_curl_may_be_missing_on_a_host() -> None:
    block = only("curl localhost:8000/v1/models", host(lacking=("curl",)))
    assert "curl needs a program that is not installed here" in block.because


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p work && cd work\ncd ..",
        "cat > run.sh <<'EOF'\necho hello\nEOF\nbash run.sh",
        "python -c 'import jsno'",
        "A=1; f() { echo $1; }; f 1",
        "curl http://127.0.0.1:8000/v1/models",
        "rm -rf output",
        "ls > /dev/null 2>&1",
        "swift sft --model Qwen/Qwen3-8B --dataset a/b --deepspeed zero2 --report_to none",
    ],
)
def test_what_can_run_is_run(text: str) -> None:
    assert only(text).fate is Fate.RUN, only(text).because


def test_a_block_whose_inputs_come_from_one_that_is_not_run_is_blocked() -> None:
    blocks = plan(
        fenced("docker pull x\nexport IMAGE=x", "echo $IMAGE", "swift deploy --model Qwen/Qwen3.5-4B", "curl localhost:8000/v1/models")
    ).blocks
    assert [block.fate for block in blocks] == [Fate.NOT_RUNNABLE, Fate.BLOCKED, Fate.NOT_RUNNABLE, Fate.BLOCKED]
    assert blocks[1].because == "takes $IMAGE from the block at line 1, which is not run here"
    assert blocks[3].because == "takes the server on port 8000 from the block at line 8, which is not run here"


def test_a_file_that_a_block_above_writes_is_an_input() -> None:
    blocks = plan(fenced("docker ps > said.txt", "cat said.txt")).blocks
    assert [block.fate for block in blocks] == [Fate.NOT_RUNNABLE, Fate.BLOCKED]


def test_of_two_ways_to_set_a_variable_the_one_that_runs_here_is_taken() -> None:
    blocks = plan(fenced("export M=Qwen/Qwen3-8B", "export M=$(docker ps)", "echo $M")).blocks
    assert [block.fate for block in blocks] == [Fate.RUN, Fate.NOT_RUNNABLE, Fate.RUN]


def test_a_training_into_the_folder_of_another_takes_nothing_from_it() -> None:
    train = "swift sft --model {} --dataset a/b --output_dir output"
    blocks = plan(fenced(train.format("Qwen/Qwen3.5-4B"), train.format("Qwen/Qwen3-8B"), "ls output/*")).blocks
    assert [block.fate for block in blocks] == [Fate.NOT_RUNNABLE, Fate.RUN, Fate.RUN] and blocks[2].needs == ((1, "output"),)


def test_one_block_brings_those_that_it_needs() -> None:
    text = fenced("export A=1", "export B=2", "echo $A") + "## End\n" + fenced("echo $B")
    blocks = plan(text, Selection(only=8)).blocks
    assert [(block.line, block.pulled_in) for block in blocks] == [(1, True), (7, False)]
    assert [block.line for block in plan(text, Selection(section="End")).blocks] == [4, 11]


def test_a_section_is_its_title_or_a_regular_expression_with_all_below_it() -> None:
    text = "# A\n" + fenced("ls a") + "## A b\n" + fenced("ls b") + "# C\n" + fenced("ls c")
    lines = lambda wanted: [block.line for block in plan(text, Selection(section=wanted)).blocks]  # noqa: E731
    assert lines("A") == [2, 6] and lines("^a B$") == [6] and lines("C|b") == [6, 10]


def test_an_unknown_section_is_refused_with_the_closest_title() -> None:
    with pytest.raises(HarnessError, match="Perhaps '快速跑通：ModelScope 模型 \\+ 数据集'"):
        plan(PAGE.read_text(encoding="utf-8"), Selection(section="快速跑通：ModelScope 模型 数据集"))


def test_every_kind_of_rows_is_one_that_is_made(tmp_path: Path) -> None:
    assert set(KINDS) == set(make_datasets(tmp_path))


PIECES = (
    *("swift sft \\", "--model x", "for a in b; do", "done", "if true; then", "fi", "ls | \\", "head", "cat <<EOF", "EOF", "# c", ""),
    *("f() {", "}", "A=(1", "2)", "echo 'a", "b'", "case x in", "x) ls ;;", "esac", "a && ", "( cd x", ")", "x &", '"$(ls'),
)
SHELL_TEXT = st.lists(st.sampled_from(PIECES), max_size=12).map("\n".join)


@settings(max_examples=200, deadline=None)
@given(SHELL_TEXT)
@example("cat <<EOF\nfor x in\nEOF\nls")
def test_statements_are_the_block_cut_into_pieces_from_its_first_command_on(text: str) -> None:
    body = numbered(text, 7)
    found = statements(body)
    if found:
        assert [line for one in found for line in one.lines] == body[found[0].line - 7 :]


def test_what_bash_takes_for_whole_is_a_statement_each() -> None:
    loop, document, function = "for x in a b; do\n echo $x\ndone", "cat <<EOF\nif\nEOF", "f() {\n ls\n}"
    choice, array, pipe = "case $A in\n a) ls ;;\n *) ;;\nesac", "A=(1\n 2)", "ls |\n head &&\n ls"
    text = "\n".join((loop, document, function, choice, array, pipe, "x &"))
    whole = statements(numbered(text))
    assert [one.line for one in whole] == [1, 4, 7, 10, 14, 16, 19]
    for one in whole:
        assert subprocess.run(["bash", "-n"], input=one.text, text=True, capture_output=True).stderr == ""


ANSWERED = "<<< <think>\n\n</think>\n\nfind oil\nwere li\n" + "-" * 50 + "\n<<< <<< [INFO:swift] End time of running main"


def test_answers_are_what_stands_between_the_prompt_and_the_dashes() -> None:
    assert answers_in(ANSWERED) == ("find oil\nwere li",)
    assert answers_in("<<< \n" + "-" * 50) == ("",)
    assert answers_in("[QUERY] a\n[LABELS] b\n[RESPONSE] c d\n" + "-" * 50 + "\n") == ("c d",)
    assert answers_in("-" * 50) == ()


def test_an_abort_counts_as_one_at_the_exit_only_after_an_answer() -> None:
    said = "\nterminate called without an active exception\n"
    assert aborted_at_exit(ANSWERED + said, 250)
    assert not aborted_at_exit(said, 250) and not aborted_at_exit(ANSWERED + said, 1) and not aborted_at_exit(ANSWERED, 250)


def test_a_command_that_asks_a_hub_is_told_by_what_it_wanted() -> None:
    pool = "HTTPSConnectionPool(host='modelscope.cn', port=443): Max retries exceeded with url: "
    assert asked_of_a_hub(f"{pool}/api/v1/models/output/v0/checkpoint-6-gone/repo/files?Revision=master") == "output/v0/checkpoint-6-gone"
    assert asked_of_a_hub("OSError: Qwen/Qwen3-0.6 is not the path to a directory containing a file named config.json.") == "Qwen/Qwen3-0.6"
    assert asked_of_a_hub("ValueError: no") == ""


CHAT, PROGRESS = "http://localhost:1/v1/chat/completions", "  % Total    % Received\n100   9  100   9\n"


@pytest.mark.parametrize(
    ("url", "printed", "ok"),
    [
        (CHAT, PROGRESS + '{"choices": [{"message": {"content": "oil"}}]}', True),
        (CHAT, '{\n "choices": [\n {"message": {"content": "oil"}}]}', True),
        (
            CHAT,
            'data: {"choices": [{"delta": {"content": "oi"}}]}\n\ndata: {"choices": [{"delta": {"content": "l"}}]}\n\ndata: [DONE]\n',
            True,
        ),
        (CHAT, '{"choices": [{"message": {"content": ""}}]}', False),
        (CHAT, '{"choices": [{"message": {"content": "<think>\\n\\n</think>"}}]}', False),
        (CHAT, '{"message": "`x` is not in the model_list", "object": "error"}', False),
        (CHAT, PROGRESS, False),
        (CHAT, "[1, {", False),
        ("http://localhost:1/v1/models", '{"data": [{"id": "m"}]}', True),
        ("http://localhost:1/v1/models", '{"data": []}', False),
        ("http://localhost:1/health", "{}", True),
        ("http://localhost:1/health", "", False),
        ("http://localhost:1/v1/chat/completion", '{"detail": "Not Found"}', False),
    ],
)
def test_a_reply_must_be_of_the_kind_that_was_asked_for(url: str, printed: str, ok: bool) -> None:
    assert reply_to(url, printed)[0] is ok


@given(st.text())
def test_any_reply_is_read_without_an_exception(printed: str) -> None:
    reply_to(CHAT, printed)
    answers_in(printed)
