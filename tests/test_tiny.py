"""Tiny models and data: the same bytes everywhere, readable by the real loaders, and never served damaged."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.tiny import TINY_FAMILIES, content_hash, make_datasets, make_tiny_model, model_files, tensors
from harness.tiny_data import MAKERS, dataset_files
from harness.tiny_tokenizer import tokenizer_files, vocabulary

# A change here changes every golden: it must be meant, and the CHANGELOG must say so.
PINNED = {
    "qwen2/config.json": "865ee1cbf9633a220cb48f0c53ddd87f3e027526f4a6919abe5278c7c641d654",
    "qwen2/generation_config.json": "d09e099fcce8ab41c1bf18f2d998a6821afa22c553c458ab8df43c0156bea33a",
    "qwen2/model.safetensors": "4a37379fe58589a96c40fd83ac4850111bc0019d7ff3a90a8fc7713bbc15eb8b",
    "qwen2/tokenizer.json": "6e2168abd432789b61c6ae91b5689fb56e9962b6ad1f5ef8059442d64e081690",
    "qwen2/tokenizer_config.json": "24738097837067b144781c7c1c9bb62c94938f7ae2ff000540ffc0aa9841c6d0",
    "qwen2/vocab.json": "43bf5120a66077a46072f5077eaff6c50263ef4f3e56a2477831d9705ee9c05b",
    "qwen2/merges.txt": "fa699668412a985b7bbee5da0c09a19b61950b3241ed8f6a15d77f5d2a3e0c1a",
    "qwen3/config.json": "9d445ffebbbfa3007781352417710f5868f06f4baf6702442929ebf5175ce16f",
    "qwen3/generation_config.json": "d09e099fcce8ab41c1bf18f2d998a6821afa22c553c458ab8df43c0156bea33a",
    "qwen3/model.safetensors": "bc590f5dc3307d29b59a1cc6a42cf003a6f62265fe2078bdcece8e7a9c7353c9",
    "qwen3/tokenizer.json": "6e2168abd432789b61c6ae91b5689fb56e9962b6ad1f5ef8059442d64e081690",
    "qwen3/tokenizer_config.json": "24738097837067b144781c7c1c9bb62c94938f7ae2ff000540ffc0aa9841c6d0",
    "qwen3/vocab.json": "43bf5120a66077a46072f5077eaff6c50263ef4f3e56a2477831d9705ee9c05b",
    "qwen3/merges.txt": "fa699668412a985b7bbee5da0c09a19b61950b3241ed8f6a15d77f5d2a3e0c1a",
    "qwen3_moe/config.json": "a0cdb9dd889f5eebebeef635f1f41d4706734557c9b1061cdb1c0d263ad1b174",
    "qwen3_moe/generation_config.json": "d09e099fcce8ab41c1bf18f2d998a6821afa22c553c458ab8df43c0156bea33a",
    "qwen3_moe/model.safetensors": "d3d6ce1875e377815c297d89071e7a24425ba6f564021cfec830688425fd6170",
    "qwen3_moe/tokenizer.json": "6e2168abd432789b61c6ae91b5689fb56e9962b6ad1f5ef8059442d64e081690",
    "qwen3_moe/tokenizer_config.json": "24738097837067b144781c7c1c9bb62c94938f7ae2ff000540ffc0aa9841c6d0",
    "qwen3_moe/vocab.json": "43bf5120a66077a46072f5077eaff6c50263ef4f3e56a2477831d9705ee9c05b",
    "qwen3_moe/merges.txt": "fa699668412a985b7bbee5da0c09a19b61950b3241ed8f6a15d77f5d2a3e0c1a",
    "qwen3_moe_square/config.json": "1d5d359fc2c41795656d8ba3265ad3159b007c4cc434a8390d0f74d55e282c50",
    "qwen3_moe_square/generation_config.json": "d09e099fcce8ab41c1bf18f2d998a6821afa22c553c458ab8df43c0156bea33a",
    "qwen3_moe_square/model.safetensors": "4f20a2fdc8c335ba146ae91f4eace0692ab9630f025c0103c91dede3fd6d9b6c",
    "qwen3_moe_square/tokenizer.json": "6e2168abd432789b61c6ae91b5689fb56e9962b6ad1f5ef8059442d64e081690",
    "qwen3_moe_square/tokenizer_config.json": "24738097837067b144781c7c1c9bb62c94938f7ae2ff000540ffc0aa9841c6d0",
    "qwen3_moe_square/vocab.json": "43bf5120a66077a46072f5077eaff6c50263ef4f3e56a2477831d9705ee9c05b",
    "qwen3_moe_square/merges.txt": "fa699668412a985b7bbee5da0c09a19b61950b3241ed8f6a15d77f5d2a3e0c1a",
    "data/sft.jsonl": "55c6bd7a8efce4c1fbd75014e069690d1d9f3e0ae0e2dd900ed8b267966aa5cc",
    "data/pt.jsonl": "324895659ee10392fe1740a3560fb6f461c7a41d95a7aa45ba667a86c3aa0453",
    "data/dpo.jsonl": "cfec39537b12083a4c1ad5d3d7d3cf956616c67cbae32a5a6bd230af581090a4",
    "data/kto.jsonl": "be6859b42fdc3e628b9c158ef24aa067948bb0329cfc1acc2b874b267f67b197",
    "data/grpo.jsonl": "f442982cd2b5e7cc62b5e3964671ea36f5c76ce24cbe4a092f57c75c1b2ae13f",
    "data/embedding.jsonl": "383225c77c8209537629d16d0eb2d7a1d9ab9d540efe9e731a3f6904417fe937",
    "data/seq_cls.jsonl": "a599fc10ac1a40439e0eff4ff027a97192c462be57ac572e427989ce7e483ef4",
    "data/reranker.jsonl": "80401d97af1449e9c89b549ec8ca5ed0512bef7205c28a024268a42ada4d6db7",
    "data/val.jsonl": "ea716ad30ea68f768d6ad1006eaaeef41fa6ee2274394bfd3b488fe1c5ec2d35",
}


def generated() -> dict[str, str]:
    files = {f"{family}/{name}": data for family in TINY_FAMILIES for name, data in model_files(family).items()}
    files.update({f"data/{name}": data for name, data in dataset_files().items()})
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_every_generated_file_has_its_pinned_bytes() -> None:
    assert generated() == PINNED


def test_a_model_is_made_in_well_under_two_seconds_and_without_torch_or_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from harness.tiny import *\n"
        "make_tiny_model('qwen2', Path(sys.argv[1])); make_datasets(Path(sys.argv[1]))\n"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).parents[1])
    assert time.monotonic() - began < 10  # 0.2 s alone; the rest is for a loaded machine


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_the_folder_holds_the_model_and_names_how_ms_swift_calls_it(family: str, tmp_path: Path) -> None:
    model = make_tiny_model(family, tmp_path)
    assert model.family == family
    assert model.model_type == json.loads((model.path / "config.json").read_text())["model_type"] == family.removesuffix("_square")
    assert model.template == {"qwen2": "qwen2_5"}.get(family, "qwen3")
    assert model.sha256 == content_hash({f.name: f.read_bytes() for f in model.path.iterdir()})
    assert [p for p in tmp_path.iterdir() if p != model.path] == []


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"Perhaps 'qwen3'\? Known: qwen2, qwen3, qwen3_moe, qwen3_moe_square"):
        make_tiny_model("qwen33", tmp_path)


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessError, match="can't be written"):
        make_datasets(tmp_path / "file")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "stray", "a file in its place"])
def test_a_damaged_cache_entry_is_rebuilt(damage: str, tmp_path: Path) -> None:
    model = make_tiny_model("qwen2", tmp_path)
    weights = model.path / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "truncated":
        weights.write_bytes(whole[:-1000])
    elif damage == "flipped":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "missing":
        weights.unlink()
    elif damage == "stray":
        (model.path / "adapter_config.json").write_text("{}")
    else:
        for f in model.path.iterdir():
            f.unlink()
        model.path.rmdir()
        model.path.write_text("not a folder")
    again = make_tiny_model("qwen2", tmp_path)
    assert again == model
    assert content_hash({f.name: f.read_bytes() for f in again.path.iterdir()}) == model.sha256
    assert list(tmp_path.iterdir()) == [model.path]


def test_a_sound_cache_entry_is_left_alone(tmp_path: Path) -> None:
    before = (make_tiny_model("qwen2", tmp_path).path / "model.safetensors").stat()
    after = (make_tiny_model("qwen2", tmp_path).path / "model.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def _build(cache: str) -> str:
    return content_hash({f.name: f.read_bytes() for f in make_tiny_model("qwen3", Path(cache)).path.iterdir()})


def test_processes_that_build_at_once_all_get_the_whole_model(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        hashes = pool.map(_build, [str(tmp_path)] * 12)
    assert set(hashes) == {content_hash(model_files("qwen3"))}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_only_the_rows_of_ids_without_a_token_are_zero(family: str) -> None:
    table = tensors(TINY_FAMILIES[family])["model.embed_tokens.weight"]
    known = vocabulary()
    assert not table[len(known) :].any()
    assert all(table[i].any() for i in known.values())


def test_the_data_sets_are_in_the_formats_that_ms_swift_reads(tmp_path: Path) -> None:
    sets = make_datasets(tmp_path)
    rows = {name: [json.loads(line) for line in path.read_text().splitlines()] for name, path in sets.items()}
    assert set(rows) == set(MAKERS) and len(rows["val"]) == 5
    assert all([m["role"] for m in row["messages"]] == ["user", "assistant"] for row in rows["sft"])
    assert all(row["rejected_response"] != row["messages"][-1]["content"] for row in rows["dpo"])
    assert {row["label"] for row in rows["kto"]} == {True, False}
    assert {row["label"] for row in rows["seq_cls"]} == {0, 1}
    assert all(row["positive_messages"] and row["negative_messages"] for name in ("embedding", "reranker") for row in rows[name])
    questions = [row["messages"][0]["content"] for row in rows["val"]]
    assert len(set(questions)) == 5


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library comes with ms-swift")
    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_files()["tokenizer.json"])
    normal = tokenizers.normalizers.NFC().normalize_str(text)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == normal


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_greedy_answers_to_the_validation_rows_differ_and_are_neither_empty_nor_one_token(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="decoding needs the model's own library")
    transformers = pytest.importorskip("transformers", reason="decoding needs the model's own library")
    model = make_tiny_model(family, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)
    network = transformers.AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    assert tokenizer.eos_token == "<|im_end|>" and len(tokenizer) == len(vocabulary())
    answers = []
    for line in make_datasets(tmp_path)["val"].read_text().splitlines():
        prompt = tokenizer.apply_chat_template(json.loads(line)["messages"][:1], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(prompt, return_tensors="pt")
        out = network.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :].tolist()
        answers.append(tokenizer.decode(out, skip_special_tokens=True))
        assert len(set(out)) >= 5
    assert all(answer.strip() and "\ufffd" not in answer for answer in answers)
    assert len(set(answers)) == len(answers)


@pytest.mark.parametrize(("family", "square"), [("qwen3_moe", False), ("qwen3_moe_square", True)])
def test_a_mixture_of_experts_is_packed_from_its_experts_and_routes_to_each_of_them(family: str, square: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="loading needs the model's own library")
    transformers = pytest.importorskip("transformers", reason="loading needs the model's own library")
    model = make_tiny_model(family, tmp_path)
    network, report = transformers.AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    written = tensors(TINY_FAMILIES[family])
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)
    rows = [json.loads(line)["messages"] for line in make_datasets(tmp_path)["sft"].read_text().splitlines()]
    ids = tokenizer([tokenizer.apply_chat_template(row, tokenize=False) for row in rows[:2]], padding=True, return_tensors="pt")
    chosen = network(**ids, output_router_logits=True).router_logits
    assert len(chosen) == 2
    for layer, logits in enumerate(chosen):
        experts = network.model.layers[layer].mlp.experts
        assert (experts.gate_up_proj.shape[1] == experts.gate_up_proj.shape[2]) is square
        for expert in range(4):
            names = [f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight" for name in ("gate", "up", "down")]
            gate, up, down = (torch.from_numpy(written[name]) for name in names)
            assert torch.equal(experts.gate_up_proj[expert], torch.cat([gate, up]))
            assert torch.equal(experts.down_proj[expert], down)
        assert set(logits.topk(2).indices.flatten().tolist()) == {0, 1, 2, 3}


def test_a_mixture_of_experts_is_saved_under_the_names_that_it_was_made_with(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="saving needs the model's own library")
    from safetensors import safe_open

    network = transformers.AutoModelForCausalLM.from_pretrained(make_tiny_model("qwen3_moe", tmp_path / "cache").path)
    network.save_pretrained(tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", "np") as file:
        assert set(file.keys()) == set(tensors(TINY_FAMILIES["qwen3_moe"]))
