"""What the witness reads from a model, an optimizer and a generation, on the real torch, transformers and peft, without ms-swift."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch", reason="the witness looks at torch models")
transformers = pytest.importorskip("transformers", reason="the witness looks at transformers models")
peft = pytest.importorskip("peft", reason="the witness looks at PEFT models")

from harness.tiny import make_tiny_model  # noqa: E402
from harness.witness import digest, generation, model_view, operators, record, training  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("qwen2", tmp_path_factory.mktemp("cache")).path


@pytest.fixture
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def with_lora(model: Any) -> Any:
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(record.DIR_VARIABLE, str(tmp_path / "witness"))
    monkeypatch.setenv(record.NONCE_VARIABLE, "n1")
    monkeypatch.setattr(record, "_current", None)
    yield tmp_path / "witness"


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return [event for event in every if event["event"] == name]


def digest_of_file(path: Path) -> str:
    """The documented digest, computed again from a safetensors file, byte by byte."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = {"F32": "float32", "BF16": "bfloat16"}
    entries = {name.removeprefix("base_model.model."): entry for name, entry in header.items() if name != "__metadata__"}
    total = hashlib.sha256()
    for name, entry in sorted(entries.items()):
        begin, end = entry["data_offsets"]
        total.update(f"{name}\n{names[entry['dtype']]}\n{','.join(map(str, entry['shape']))}\n".encode() + body[begin:end])
    return total.hexdigest()


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight",
        "module.base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight",
        "_fsdp_wrapped_module.base_model.model.model._orig_mod.layers.0._checkpoint_wrapped_module.mlp.up_proj.lora_A.default.weight",
    ],
)
def test_a_parameter_has_one_name_under_every_wrapper(name: str) -> None:
    assert digest.canonical(name) == "model.layers.0.mlp.up_proj.lora_A.weight"


def test_the_digest_of_a_lora_is_that_of_its_checkpoint_file(model: Any, tmp_path: Path) -> None:
    lora = with_lora(model)
    lora.save_pretrained(tmp_path)
    assert digest.trainable_digest(lora) == digest_of_file(tmp_path / "adapter_model.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_digest_of_a_whole_model_is_that_of_its_checkpoint_file(dtype: str, model: Any, tmp_path: Path) -> None:
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    assert digest.trainable_digest(model) == digest_of_file(tmp_path / "model.safetensors")


def test_the_digest_changes_with_the_last_bit_of_any_parameter_and_ignores_frozen_ones(model: Any) -> None:
    lora = with_lora(model)
    before = digest.trainable_digest(lora)
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    assert digest.trainable_digest(lora) == before
    name, last = digest.trainable(lora)[-1]
    with torch.no_grad():
        last.view(-1)[-1].copy_(torch.nextafter(last.view(-1)[-1], torch.tensor(9.0)))
    assert digest.trainable_digest(lora) != before, name


def test_what_is_trained_is_counted(model: Any) -> None:
    lora = with_lora(model)
    seen = digest.sizes(lora)
    assert seen["numel_local"] == seen["numel_global"] == sum(p.numel() for p in lora.parameters())
    assert (seen["trainable_tensors"], seen["param_class"]) == (28, "Parameter")
    assert seen["trainable_numel"] == sum(p.numel() for n, p in lora.named_parameters() if "lora_" in n)
    assert seen["dtypes"] == {"float32": seen["numel_global"]}


def test_the_lora_is_described_as_it_is(model: Any) -> None:
    assert model_view.lora_settings(model) is None and model_view.adapter_modules(model) == []
    lora = with_lora(model)
    assert model_view.lora_settings(lora) == {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "scaling": 2.0}
    modules = model_view.adapter_modules(lora)
    assert len(modules) == 14 and modules[0] == "model.layers.0.mlp.down_proj"
    assert type(model_view.inner(lora)).__name__ == "Qwen2ForCausalLM"


def test_an_untrained_lora_b_is_zero_and_a_nan_in_it_is_not_lost(model: Any) -> None:
    assert digest.lora_b_max_abs(model) is None
    lora = with_lora(model)
    assert digest.lora_b_max_abs(lora) == 0.0
    with torch.no_grad():
        digest.trainable(lora)[1][1].view(-1)[0] = float("nan")
    assert str(digest.lora_b_max_abs(lora)) == "nan"


def test_a_patched_forward_is_seen_and_an_inherited_one_is_not(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_view.patched(model) == {}
    norm = type(model.model.norm)
    monkeypatch.setattr(norm, "forward", lambda self, x: x)
    assert model_view.patched(model) == {norm.__name__: __name__}


def stepped(model: Any) -> Any:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    ids = torch.arange(20).reshape(1, -1)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return optimizer


def test_the_control_sets_every_moment_to_zero_through_accelerates_wrapper(model: Any) -> None:
    accelerate = pytest.importorskip("accelerate", reason="the trainer wraps its optimizer with it")
    optimizer = stepped(model)
    wrapped = accelerate.Accelerator(cpu=True).prepare_optimizer(optimizer)
    before = training.moment_norm(wrapped)
    assert before is not None and before > 0
    assert training.zero_moments(wrapped) == 2 * len(list(model.parameters()))
    assert training.moment_norm(wrapped) == 0.0
    assert all(not state["exp_avg_sq"].any() and state["step"] == 1 for state in optimizer.state.values())


def trained(model: Any, optimizer: Any, tmp_path: Path) -> Any:
    args = SimpleNamespace(output_dir=str(tmp_path), include_num_input_tokens_seen="no")
    trainer = SimpleNamespace(model=model, model_wrapped=model, optimizer=optimizer, accelerator=None)

    class Parent:
        def __init__(self, args: Any, trainer: Any) -> None:
            self.args, self.trainer = args, trainer

    return type("Callback", (training.Training, Parent), {})(args, trainer), args


STATE = SimpleNamespace(global_step=3, max_steps=6, num_input_tokens_seen=0, is_world_process_zero=True)


def test_a_control_with_nothing_to_act_on_is_a_fault(model: Any, watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(training.CONTROL_VARIABLE, training.ZERO_MOMENTS)
    callback, args = trained(model, torch.optim.AdamW(model.parameters()), tmp_path)
    callback.on_train_begin(args, STATE, None)
    (fault,), (begin,) = events(watched, "fault"), events(watched, "train_begin")
    assert "no moments to set to zero" in fault["error"]
    assert (begin["control"], begin["moments_zeroed"], begin["optimizer_moment_norm"]) == ("zero_moments", 0, None)


def test_an_unknown_control_is_a_fault(model: Any, watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(training.CONTROL_VARIABLE, "zero_all")
    callback, args = trained(model, None, tmp_path)
    callback.on_train_begin(args, STATE, None)
    assert "Known: zero_moments" in events(watched, "fault")[0]["error"]


def test_a_checkpoint_carries_the_nonce_and_the_digest(model: Any, watched: Path, tmp_path: Path) -> None:
    callback, args = trained(model, None, tmp_path)
    (tmp_path / "checkpoint-3").mkdir()
    callback.on_save(args, STATE, None)
    (save,) = events(watched, "save")
    left = json.loads((tmp_path / "checkpoint-3" / "npu_matrix_nonce.json").read_text())
    assert left == {"nonce": "n1", "step": 3, "trainable_digest": digest.trainable_digest(model)}
    assert (save["dir"], save["trainable_digest"]) == (str(tmp_path / "checkpoint-3"), left["trainable_digest"])


def test_a_checkpoint_that_is_not_there_is_a_fault(model: Any, watched: Path, tmp_path: Path) -> None:
    callback, args = trained(model, None, tmp_path)
    callback.on_save(args, STATE, None)
    assert events(watched, "fault")[0]["where"] == "on_save"


def test_operators_of_the_first_step_only_are_counted(model: Any, watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(operators.VARIABLE, "1")
    callback, args = trained(model, None, tmp_path)
    callback.on_train_begin(args, STATE, None)
    for _ in range(2):
        callback.on_step_begin(args, STATE, None)
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        callback.on_step_end(args, STATE, None)
    callback.on_train_end(args, STATE, None)
    assert events(watched, "train_end")[0]["operators"]["aten.mm.default"] == 1
    assert [step["seconds"] > 0 for step in events(watched, "step")] == [True, True]


class Template:
    """As much of ms-swift's Template as the wrap touches."""

    tokenizer = SimpleNamespace(pad_token_id=465)

    def get_generate_ids(self, ids: Any, prompt: int) -> Any:
        return ids[..., prompt:]

    def generate(self, model: Any, **kwargs: Any) -> Any:
        return model.generate(**kwargs, max_new_tokens=4, return_dict_in_generate=True)


wrapped = generation.wrapped(Template.generate)
PROMPTS = ([10, 20, 30, 40, 50], [11, 21, 31])


def batch() -> dict[str, Any]:
    ids = torch.tensor([PROMPTS[0], [465, 465, *PROMPTS[1]]])
    return {"input_ids": ids, "attention_mask": (ids != 465).long()}


def test_a_generation_is_recorded_without_padding_and_with_the_logits_of_its_first_token(model: Any, watched: Path) -> None:
    model.eval()
    plain = Template().generate(model, **batch(), do_sample=False)
    result = wrapped(Template(), model, **batch(), do_sample=False)
    assert torch.equal(plain.sequences, result.sequences)
    (seen,) = events(watched, "generate")
    assert seen["prompt_ids"] == [list(p) for p in PROMPTS]
    assert seen["output_ids"] == [generation.without_tail(row[5:].tolist(), 465) for row in plain.sequences]
    assert (seen["model_class"], seen["adapters"], seen["dtype"], seen["device"]) == ("Qwen2ForCausalLM", [], "float32", "cpu")
    logits = numpy.load(watched / seen["logits_file"])
    assert (logits.shape, logits.dtype) == ((2, 512), numpy.float32)
    assert logits.argmax(-1).tolist() == [row[5] for row in plain.sequences.tolist()]
    alone = model(input_ids=torch.tensor([PROMPTS[1]])).logits[0, -1].detach().numpy()
    numpy.testing.assert_allclose(logits[1], alone, rtol=0, atol=1e-5)  # float32, sums in another order: 1e-6 measured


def test_sampling_is_the_same_with_the_witness_as_without(model: Any, watched: Path) -> None:
    model.train()  # dropout draws too, where there is any
    lora = with_lora(model)

    def draws(generate: Any) -> Any:
        torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
        ids = generate(Template(), lora, **batch(), do_sample=True, temperature=2.0).sequences.tolist()
        return ids, torch.rand(1).item(), numpy.random.rand(), random.random(), [m.training for m in lora.modules()]

    assert draws(Template.generate) == draws(wrapped)
    assert events(watched, "generate")[0]["adapters"] == ["default"] and not events(watched, "fault")


def test_a_failure_to_take_logits_is_a_fault_and_the_answer_still_comes(model: Any, watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "next_token_logits", lambda model, inputs: 1 / 0)
    result = wrapped(Template(), model, **batch(), do_sample=False)
    assert result.sequences.shape[0] == 2
    assert events(watched, "fault")[0]["where"] == "next_token_logits"
    assert events(watched, "generate")[0]["logits_file"] is None


def test_an_error_of_the_generation_itself_is_passed_on(model: Any, watched: Path) -> None:
    def broken(template: Any, model: Any, **kwargs: Any) -> Any:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        generation.wrapped(broken)(Template(), model, **batch())
    assert events(watched, "generate") == []


def test_a_generation_in_a_thread_is_recorded(model: Any, watched: Path) -> None:
    thread = threading.Thread(target=lambda: wrapped(Template(), model, **batch(), do_sample=False))
    thread.start()
    thread.join()
    assert len(events(watched, "generate")) == 1


def test_a_generation_that_calls_its_parents_is_recorded_once(model: Any, watched: Path) -> None:
    child = generation.wrapped(lambda template, model, **kwargs: wrapped(template, model, **kwargs))
    child(Template(), model, **batch(), do_sample=False)
    assert len(events(watched, "generate")) == 1


def test_in_training_a_generation_is_recorded_without_a_forward_of_its_own(model: Any, watched: Path, tmp_path: Path) -> None:
    trained(model, None, tmp_path)
    wrapped(Template(), model, **batch(), do_sample=False)
    assert events(watched, "generate")[0]["logits_file"] is None and not list(watched.glob("*.npy"))


def test_without_a_witness_the_wrap_only_passes_on(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(record.DIR_VARIABLE, raising=False)
    monkeypatch.setattr(generation, "next_token_logits", lambda model, inputs: 1 / 0)
    assert wrapped(Template(), model, **batch(), do_sample=False).sequences.shape[0] == 2
    callback, args = trained(model, None, tmp_path)
    for event in ("on_train_begin", "on_step_begin", "on_step_end", "on_save", "on_train_end"):
        getattr(callback, event)(args, STATE, None)
    assert list(tmp_path.iterdir()) == []
