"""swift export --merge_lora, and swift infer: plain, streamed, and interactive from stdin."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.honest.arguments import Arguments
from fakes.honest.habits import Honest
from fakes.honest.model import Loaded, lora_product, network_for, read_adapter, write_model
from fakes.honest.model import load as load_model
from fakes.honest.network import Network
from fakes.honest.tensors import TORCH_NAMES, Array, rounded
from fakes.honest.text import Message, chat, messages_of, read_rows, split_answer
from fakes.honest.witness import Witness


def merge(arguments: Arguments, habits: Honest) -> None:
    """W + scaling * B A in float32, rounded once to the tensor's dtype. Raises FileExistsError as ms-swift does."""
    if not arguments.flag("merge_lora"):
        raise ValueError("the stand-in for swift export only merges; pass --merge_lora true")
    adapter_folder = Path(arguments.words("adapters")[0])
    output = Path(arguments.text("output_dir", f"{adapter_folder}-merged")).resolve()
    if output.exists() and not arguments.flag("exist_ok"):
        raise FileExistsError(f"args.output_dir: `{output}` already exists.")
    loaded = load_model(arguments.text("model"), str(habits.settings.get("models", "")), habits.dtype(arguments.text("torch_dtype")))
    product = lora_product(read_adapter(adapter_folder, loaded.weights))
    merged = dict(loaded.weights)
    merged.update({name: rounded(loaded.weights[name] + added, loaded.dtypes[name]) for name, added in product.items()})
    shown = habits.merged(merged, loaded.weights, product)
    write_model(output, loaded.folder, shown, {name: loaded.dtypes[name] for name in shown})
    (output / "args.json").write_text(json.dumps(arguments.as_json(), indent=2))
    print(f"[INFO:swift] Successfully merged LoRA and saved in `{output}`.", flush=True)


@dataclass
class Speaker:
    """A loaded model that answers, greedily, and tells the witness of every generation."""

    arguments: Arguments
    habits: Honest
    witness: Witness
    loaded: Loaded
    network: Network
    names: list[str]
    speakable: list[int]

    @classmethod
    def of(cls, arguments: Arguments, habits: Honest, witness: Witness) -> Speaker:
        adapters = habits.adapters([word.rpartition("=")[2] for word in arguments.words("adapters")])
        loaded, network = network_for(arguments, adapters, habits)
        return cls(arguments, habits, witness, loaded, network, ["default"] if adapters else [], loaded.tokenizer.speakable())

    def ids_of(self, messages: list[Message]) -> list[int]:
        return self.loaded.tokenizer.encode(chat(messages, self.arguments.text("system")))

    def generate(self, messages: list[Message], most: int) -> Iterator[tuple[int, Array]]:
        """(token, logits that chose it), one after another; the first logits are those of the prompt's last position."""
        ids = self.ids_of(messages)
        for _ in range(most):
            logits = self.network.logits(ids)[-1]
            token = max(self.speakable, key=lambda number: float(logits[number]))
            yield token, logits
            ids = [*ids, token]

    def answer(self, messages: list[Message], most: int, streamed: bool = False, interactive: bool = False) -> tuple[str, list[int], int]:
        """(text, its tokens, number of prompt tokens)."""
        prompt = self.ids_of(messages)
        made = list(self.generate(messages, self.habits.length(most, streamed, interactive)))
        tokens = [token for token, _ in made]
        model_class = "PeftModelForCausalLM" if self.names else self.loaded.model_class
        self.witness.generate(model_class, self.names, prompt, tokens, made[0][1], TORCH_NAMES[self.loaded.dtype])
        return self.habits.answer(self.loaded.tokenizer.decode(tokens), streamed, interactive), tokens, len(prompt)


def infer(arguments: Arguments, habits: Honest, witness: Witness) -> None:
    speaker = Speaker.of(arguments, habits, witness)
    interactive = not arguments.has("val_dataset")
    rows = _converse(speaker) if interactive else _answer_rows(speaker, read_rows(arguments.words("val_dataset")))
    if path := arguments.text("result_path") or ("" if interactive else _default_result_path(arguments)):
        _append(Path(path), habits.results(rows))
        print(f"[INFO:swift] The inference results have been saved to result_path: `{path}`.", flush=True)


def _default_result_path(arguments: Arguments) -> str:
    folder = Path((arguments.words("adapters") or [arguments.text("model")])[0]) / "infer_result"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / time.strftime("%Y%m%d-%H%M%S.jsonl"))


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _answer_rows(speaker: Speaker, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    arguments, began = speaker.arguments, time.monotonic()
    results: list[dict[str, Any]] = []
    most, streamed = arguments.whole("max_new_tokens", 64), arguments.flag("stream")
    prompts = tokens = 0
    for row in rows:
        turns, label = split_answer(messages_of(row))
        if streamed:
            print(f"[QUERY] {turns[-1]['content']}\n[LABELS] {label}\n[RESPONSE] ", end="")
        text, said, asked = speaker.answer(turns, most, streamed)
        if streamed:
            print(f"{text}\n" + "-" * 50, flush=True)
        prompts, tokens = prompts + asked, tokens + len(said)
        said_so = [*turns, {"role": "assistant", "content": text}]
        kept = {key: value for key, value in row.items() if key not in ("messages", "dataset")}
        logprobs = {} if streamed else {"logprobs": None}
        results.append({"response": text, "labels": label, **logprobs, "messages": said_so, **kept, "dataset": row["dataset"]})
    seconds = time.monotonic() - began
    print({"num_prompt_tokens": prompts, "num_generated_tokens": tokens, "num_samples": len(rows), "runtime": seconds}, flush=True)
    return results


def _converse(speaker: Speaker) -> list[dict[str, Any]]:
    """Questions from stdin, one a line, until `exit` or `quit`; EOFError if the input ends before, as with the real one."""
    arguments = speaker.arguments
    most, streamed = arguments.whole("max_new_tokens", 64), arguments.flag("stream", True)
    history: list[Message] = []
    results: list[dict[str, Any]] = []
    while True:
        query = input("<<< ")
        if query.strip().lower() in ("exit", "quit"):
            return results
        if query.strip().lower() == "clear":
            history = []
            continue
        if not query.strip():
            continue
        history.append({"role": "user", "content": query})
        text, _, _ = speaker.answer(history, most, streamed, interactive=True)
        history.append({"role": "assistant", "content": text})
        print(f"{text}\n" + "-" * 50, flush=True)
        results.append({"response": text, "messages": list(history), "images": [], "audios": [], "videos": []})
