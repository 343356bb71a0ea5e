from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.redact import clean_value, escape_markdown, fenced, plain, redact


def clean(text: str) -> str:
    return redact(text, user="wang.li", host="trainbox-07.lab.example", home="/home/wang.li", extra=["/data/repo", "/data/repo/scratch"])


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("wang.li@trainbox-07:~/x$ swift sft", "<user>@<host>:~/x$ swift sft"),
        ("on Trainbox-07.lab.example now", "on <host> now"),
        ("/home/wang.li/.cache/hub and /home/other/x", "~/.cache/hub and ~/x"),
        ("file:///data/repo/scratch/run/log.txt:12", "file://<work>/run/log.txt:12"),
        ("/data/repository is another folder", "/data/repository is another folder"),
        ("connect 10.1.2.3:8000 and 8.8.4.4", "connect <ip>:8000 and <ip>"),
        ("bind 127.0.0.1:8000 and 0.0.0.0", "bind 127.0.0.1:8000 and 0.0.0.0"),
        ("fe80::1ff:fe23:4567:890a%eth0, [2001:db8::1]:80, ::1", "<ip>, [<ip>]:80, ::1"),
        ("reach fe80::17.", "reach <ip>."),
        ("ether 02:42:ac:11:00:02 txqueuelen", "ether <mac> txqueuelen"),
        ("mail li.wang@example.com.", "mail <email>."),
        ("HF_TOKEN=abc123 swift", "HF_TOKEN=<token> swift"),
        ("login hf_abcdefghijklmnop", "login <token>"),
        ("ms-0a1b2c3d-0000-4444-8888-0123456789ab", "<token>"),
        ("sk-proj-abcdef0123456789", "<token>"),
        ("AKIAIOSFODNN7EXAMPLE", "<token>"),
        ("ghp_0123456789abcdefABCDEF", "<token>"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer <token>"),
        ("https://me:pw@example.org/x", "https://<token>@example.org/x"),
        ("password = 'hunter2'", "password = '<token>'"),
        ("swift export --hub_token abcdef --push_to_hub true", "swift export --hub_token <token> --push_to_hub true"),
        ("['--hub_token', 'abcdef']", "['--hub_token', '<token>']"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07done\x00", "red done"),
        (" 10%|#\r100%|##\r\nend", " 10%|#\n100%|##\nend"),
    ],
)
def test_what_identifies_somebody_is_hidden(raw: str, kept: str) -> None:
    assert clean(raw) == kept


@pytest.mark.parametrize(
    "text",
    [
        "torch 2.14.1.0 and torch_npu==2.7.1.4, v7.1.0.7, Version: 25.2.0.5, lib-2.7.1.12-cp311.whl",
        "7.1.0.7.220 is the firmware",
        "0000:C1:00.0 | OK",
        "x[1::2], logits[:, ::2], std::vector, c10::Error, at 12:30:45",
        "max_new_tokens: 2048, token_acc: 0.5, eos_token='<|im_end|>', num_input_tokens_seen=12",
        "ms-swift 4.6.0, sk-learn, swift sft --train_type lora",
        "2026-06-01T12:30:45+00:00",
        "basic information of the bearer",
    ],
)
def test_versions_addresses_of_devices_and_code_survive(text: str) -> None:
    assert clean(text) == text


def test_an_ordinary_account_name_is_no_reason_to_spoil_a_command() -> None:
    said = redact("swift sft as root, root@npu:/root/x# ls", user="root", host="npu", home="/root")
    assert said == "swift sft as root, <user>@<host>:~/x# ls"


def test_secrets_are_known_by_their_name_in_environments_and_commands() -> None:
    env = {"MODELSCOPE_API_TOKEN": "abc", "OMP_NUM_THREADS": "1"}
    value = {"env": env, "argv": ("swift", "--hub_token", "abc", "--seed", "42"), "nonce": "wang.li"}
    hidden = {"MODELSCOPE_API_TOKEN": "<token>", "OMP_NUM_THREADS": "1"}
    expected = {"env": hidden, "argv": ("swift", "--hub_token", "<token>", "--seed", "42")}
    assert clean_value(value, clean) == {**expected, "nonce": "wang.li"}


NAMES = ["10.0.0.1", "fe80::1", "02:42:ac:11:00:02", "wang.li", "trainbox-07", "/home/wang.li", "/data/repo", "a@b.co", "hf_abcdefgh1234"]
SIGNS = ["HF_TOKEN=", "password: ", "Bearer ", "--hub_token ", "<", ">", "/", "@", ":", "\x1b[1m", "\r", "~", "=", ".", "https://"]
PIECES = st.sampled_from(NAMES + SIGNS)
TEXTS = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join), st.lists(PIECES).map(" ".join))


@given(TEXTS)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = clean(text)
    assert clean(once) == once


@given(st.lists(PIECES, max_size=6), st.sampled_from(["10.0.0.1", "wang.li", "/home/wang.li/x", "a@b.co", "hf_abcdefgh1234"]))
def test_a_secret_between_spaces_never_survives(around: list[str], secret: str) -> None:
    assert secret not in clean(" ".join([*around, secret, *around]))


@given(st.text())
def test_plain_text_has_no_control_characters(text: str) -> None:
    assert not [c for c in plain(text) if ord(c) < 32 and c not in "\n\t"]


MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
MARKUP = ["|", "\\|", "\\", "`", "``", "<script>", "<!--", "-->", "[x](http://y)", "![i](u)", "http://a.bc", "www.a.bc", "\n", "\r\n"]
MORE = ["---", "**b**", "_e_", "~~d~~", "&lt;", "&#124;", "# h", "- l", "1. n", "$x$", "a@b.co", "\u2028", "\u202e", "> q"]
NASTY = st.lists(st.one_of(st.text(max_size=4), st.sampled_from(MARKUP + MORE))).map("".join)


@given(NASTY)
@example("a|b")
@example("<img src=x onerror=alert(1)>")
def test_escaped_text_stays_in_its_cell_and_is_only_text(text: str) -> None:
    page = f"| a | b |\n| - | - |\n| {escape_markdown(text)} | end |\n"
    tokens = MARKDOWN.parse(page)
    assert [t.type for t in tokens].count("td_open") == 2
    children = [t for token in tokens if token.type == "inline" for t in token.children or []]
    assert {t.type for t in children} <= {"text", "text_special"}
    last = [t for t in tokens if t.type == "inline"][-1]
    assert last.content == "end"


@given(NASTY)
def test_a_fenced_block_can_not_be_closed_from_within(text: str) -> None:
    tokens = MARKDOWN.parse(fenced(text) + "\n\nend\n")
    assert [t.type for t in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
