"""Which commands of a page start ms-swift, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.docs_calls import Call, call_of, is_placeholder, segments_of, shell_of
from harness.docs_page import read_page, read_script
from harness.docs_shell import ShellWord, numbered, read_shell

DOCS = Path(__file__).resolve().parent / "docs"


def calls(text: str) -> list[Call]:
    return [call for command in read_shell(numbered(text)).commands if (call := call_of(command))]


@pytest.mark.parametrize(
    ("text", "program", "subcommand", "launcher"),
    [
        ("A=1 nohup swift sft --a 1", "swift", "sft", ""),
        ("swift web_ui --lang zh", "swift", "web-ui", ""),
        ("megatron rlhf --a 1", "megatron", "rlhf", ""),
        ("swift sft examples/yaml/sft.yaml --a 1", "swift", "sft", ""),
        ("accelerate launch --config_file x.json swift/cli/sft.py --a 1", "swift", "sft", "accelerate"),
        ("accelerate launch -m swift.cli.rlhf --a 1", "swift", "rlhf", "accelerate"),
        ("torchrun --nproc_per_node=$N /opt/ms-swift/swift/cli/_megatron/pt.py --a 1", "megatron", "pt", "torchrun"),
        ("torchrun --standalone /opt/venv/bin/swift sft --a 1", "swift", "sft", "torchrun"),
        ("nohup srun --time=4:0:0 -n 1 swift rlhf --a 1", "swift", "rlhf", ""),
        ("docker run --rm --name swift x:swift swift sft --a 1", "swift", "sft", ""),
        ("apptainer exec --nv x.sif /opt/venv/bin/torchrun --nnodes 1 /opt/venv/bin/swift sft --a 1", "swift", "sft", "torchrun"),
        ("deepspeed --hostfile=h.txt swift/cli/sft.py --a 1", "swift", "sft", "deepspeed"),
        ("python -m swift.cli.main infer --a 1", "swift", "infer", ""),
        ("python3.11 $SWIFT_CLI_DIR/sft.py --a 1", "swift", "sft", ""),
    ],
)
def test_a_start_of_ms_swift_is_known_behind_any_launcher(text: str, program: str, subcommand: str, launcher: str) -> None:
    (call,) = calls(text)
    assert (call.program, call.subcommand, call.launcher) == (program, subcommand, launcher)
    assert [segment.name for segment in call.segments] in (["--a"], ["--lang"])


@pytest.mark.parametrize(
    "text",
    ["python train.py --a 1", "accelerate launch train.py", "accelerate config", "torchrun --nproc_per_node 2", "python -c 'import swift'",
     "python",
     "swift $CMD --a 1", "swift <command>", "pip install ms-swift", "vllm serve x", "docker run -n swift x", "docker exec swift bash",
     "pip install swift"],
)  # fmt: skip
def test_what_starts_something_else_is_left_alone(text: str) -> None:
    assert calls(text) == []


def test_flags_of_a_launcher_stay_apart_from_those_of_the_script() -> None:
    (call,) = calls("accelerate launch --num_processes 2 \\\n --config_file c swift/cli/sft.py \\\n --max_steps 3 --dataset a \\\n b")
    assert [segment.name for segment in call.launch] == ["--num_processes", "--config_file"]
    assert [(segment.name, segment.words[0].line, [word.text for word in segment.values]) for segment in call.segments] == [
        ("--max_steps", 3, ["3"]), ("--dataset", 3, ["a", "b"]),
    ]  # fmt: skip


def test_brackets_of_what_is_optional_are_taken_off() -> None:
    words = [ShellWord(text, 1) for text in ["[--stream", "true]", "[--verbose]", "--target_modules", "[a]", "[--max_new_tokens", "100]"]]
    read = [(segment.name, [word.text for word in segment.values]) for segment in segments_of(words)]
    assert read == [("--stream", ["true"]), ("--verbose", []), ("--target_modules", ["[a]"]), ("--max_new_tokens", ["100"])]


@pytest.mark.parametrize(
    "text", ["<path>", "[tp_size]", "[批次数量]", "xxx/checkpoint-xxx", "vx-xxx", "{port}", "your_model", "N", "a,b,...", "端口"]
)
def test_placeholders_are_told_from_values(text: str) -> None:
    assert is_placeholder(text)


@pytest.mark.parametrize(
    "text", ["8000", "bfloat16", "[1,2]", '{"a": 1}', "Qwen/Qwen3-8B", "1e-5", "all-linear", "AI-ModelScope/x#500", "BF16"]
)
def test_values_are_no_placeholders(text: str) -> None:
    assert not is_placeholder(text)


def test_commands_are_found_without_fences_and_in_fences_of_any_language() -> None:
    page = read_page(
        "text\n\nA=1 \\\nswift sft \\\n --a 1 \\\n ...\n --b 2\nend\n\n```python\n# x\nswift infer --c 1\n```\n\n```yaml\na: 'b\n```\n"
    )
    script = shell_of(page)
    found = [(call.subcommand, command.line, command.end_line) for command in script.commands if (call := call_of(command))]
    assert found == [("sft", 3, 7), ("infer", 12, 12)] and script.faults == ()


def test_the_example_of_a_page_without_fences_is_read_to_its_end() -> None:
    (command,) = shell_of(read_page((DOCS / "megatron_ascend.zh.md").read_text(encoding="utf-8"))).commands
    call = call_of(command)
    assert call is not None and command.elided and [name for name, _ in command.environment][-1] == "CUDA_VISIBLE_DEVICES"
    assert [segment.name for segment in call.segments][-3:] == [
        "--bias_dropout_fusion",
        "--bias_swiglu_fusion",
        "--cross_entropy_loss_fusion",
    ]


def test_faults_in_a_block_of_no_language_count_only_where_ms_swift_is_started() -> None:
    page = read_page("```\nit's an answer\n```\n\n```\nswift sft \\\n  --a 1 \\ \n  --b 1\n```\n")
    assert [fault.line for fault in shell_of(page).faults] == [7]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="swift megatron-sft\n\\'\"`~$(){}<>=|&;#.[]A1 …中", max_size=120))
def test_any_page_is_read(text: str) -> None:
    for page in (read_page(text), read_script(text), read_page(f"```sh\n{text}\n```")):
        for command in shell_of(page).commands:
            call_of(command)
