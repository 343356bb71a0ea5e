"""What comes after training: `swift export`, `infer`, `deploy`, `eval`, `rollout`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.commands_devices import documented_single_env, single_env
from harness.commands_flags import Change, Draft, Flags, NotBuilt, Places, finished, scalar
from harness.commands_tables import GENERATION_SETTINGS, ONLINE, QUICK_START, TINY_NEW_TOKENS, deadline_s, family_names
from harness.commands_train import WITNESSED, train_step
from harness.errors import HarnessError
from harness.model import Algorithm, Cell, Engine, Hardware, Step, Tuner, Weights

PROMPT_WORDS = ("exit", "quit", "clear", "multi-line", "single-line", "reset-system")
HUB_MODEL_ID = "npu-matrix/pushed"


@dataclass(frozen=True)
class Scene:
    """What every step of one run shares."""

    cell: Cell
    places: Places
    hardware: Hardware
    weights: Weights
    scale: float = 1.0

    def draft(self, name: str, subcommand: str, documented: Flags, changes: list[Change], phase: str, output_dir: str = "") -> Draft:
        return Draft(
            name,
            subcommand,
            documented,
            tuple(changes),
            output_dir or self.places.work,
            deadline_s(phase, self.cell, self.weights, self.scale),
            documented_single_env(self.cell),
            single_env(self.cell, self.places, self.hardware, self.weights),
        )

    def witness(self) -> list[Change]:
        return [Change("--external_plugins", (self.places.plugin,), WITNESSED)] if self.places.plugin else []

    def model(self) -> list[Change]:
        """The untrained model in place of the documented id. A checkpoint needs none of this: its args.json says it all."""
        places, cell = self.places, self.cell
        if self.weights is Weights.REAL:
            if places.model != cell.model.id:
                return [Change("--model", (places.model,), "the pinned checkpoint on this host")]
            return [Change("--model_revision", (cell.model.revision,), "the pinned revision")] if cell.model.revision else []
        names = family_names(cell)
        flags = {"--model": places.model, "--model_type": names.model_type, "--template": names.template}
        if cell.options.dtype is None:
            flags["--torch_dtype"] = "float32"
        return [Change(flag, (value,), "a tiny model on a small data set") for flag, value in flags.items()]


def target_flags(cell: Cell, target: str, place: str) -> Flags:
    """Which weights: `base` and `merged` and `tuned` are models, `adapter` is a LoRA checkpoint with its own args.json."""
    flags: dict[str, tuple[str, ...]] = {"--adapters": (place,)} if target == "adapter" else {"--model": (place,)}
    if cell.engine is not Engine.TRANSFORMERS:
        flags["--infer_backend"] = (str(cell.engine),)
    if cell.engine is Engine.VLLM and cell.options.tensor_parallel_size != 1:
        flags["--vllm_tensor_parallel_size"] = (str(cell.options.tensor_parallel_size),)
    if not cell.options.npu_model_patch:
        flags["--enable_npu_model_patch"] = ("false",)
    return flags


def documented_infer_flags(cell: Cell, target: str, place: str) -> Flags:
    """The document's inference section; the quick start writes its own --temperature and no --load_data_args."""
    flags: dict[str, tuple[str, ...]] = dict(target_flags(cell, target, place))
    if target == "adapter" and cell.recipe.key != QUICK_START:
        flags["--load_data_args"] = ("true",)
    settings = {"stream": True, "max_new_tokens": 2048, **cell.recipe.settings}
    for name, flag in GENERATION_SETTINGS.items():
        if name in settings:
            flags[flag] = (scalar(settings[name]),)
    return flags


def documented_step(scene: Scene, name: str, subcommand: str, flags: Flags) -> Step:
    """A command as a document has it, nothing cut and nobody watching."""
    env = documented_single_env(scene.cell)
    return finished(Draft(name, subcommand, flags, (), scene.places.work, 0.0, env, env))


def place_of(scene: Scene, target: str) -> str:
    match target:
        case "base":
            return scene.cell.model.id
        case "adapter" | "tuned":
            return scene.places.need("checkpoint", f"infer-{target}")
        case "merged":
            return scene.places.need("merged", "infer-merged")
        case _:
            raise ValueError(f"unknown inference target {target!r}: base, adapter, merged, tuned")


def infer_step(scene: Scene, target: str, way: str = "") -> Step:
    """`way`: "" answers the validation rows at once, "stream" answers them streamed, "interactive" asks them on stdin, as documented.

    Raises HarnessError for a missing place, and for a query that the prompt would take for a command.
    """
    name = f"infer-{target}" + (f"-{way}" if way else "")
    documented = documented_infer_flags(scene.cell, target, place_of(scene, target))
    changes = [*scene.model()] if target == "base" else []
    if target == "base" and scene.cell.algorithm is Algorithm.PT:
        plain = "pre-training's checkpoints answer without a chat template, and so does the base"
        changes.append(Change("--use_chat_template", ("false",), plain))
    changes += [
        Change("--load_data_args", None, "every run answers the same rows"),
        Change("--stream", ("true" if way else "false",), "the plain answer is what the streamed ones are compared with"),
        Change("--temperature", ("0",), "answers are compared"),
        Change("--result_path", (f"{scene.places.work}/{name}.jsonl",), "a new file for every run"),
    ]
    if scene.weights is Weights.TINY:
        changes.append(Change("--max_new_tokens", (str(TINY_NEW_TOKENS),), "a tiny model on a small data set"))
    if scene.hardware is Hardware.CPU and scene.cell.options.attn_impl is not None:
        changes.append(Change("--attn_impl", (scene.cell.options.attn_impl,), "the checkpoint remembers an attention that a cpu may lack"))
    if way != "interactive":
        changes.append(Change("--val_dataset", (scene.places.dataset("val"),), "every run answers the same rows"))
    draft = scene.draft(name, "infer", documented, [*changes, *scene.witness()], "infer")
    if way != "interactive":
        return finished(draft)
    return finished(replace(draft, stdin=conversation(scene.places.queries)))


def conversation(queries: tuple[str, ...]) -> str:
    """What a person would type: each query, `clear` after it so that it starts afresh, `exit` at the end. Raises HarnessError."""
    if not queries:
        raise HarnessError("Places.queries", "is empty, and the interactive form needs something to ask.", "Give the user turns of `val`.")
    for query in queries:
        if not query.strip() or query.splitlines() != [query] or query.strip().lower() in PROMPT_WORDS:
            raise HarnessError(
                "Places.queries", f"{query!r} is no single question to the prompt of `swift infer`.", "Use one line of text."
            )
    return "".join(f"{query}\nclear\n" for query in queries) + "exit\n"


def merge_step(scene: Scene) -> Step:
    """`swift export --merge_lora true`, into a folder of its own instead of `<checkpoint>-merged`."""
    output_dir = f"{scene.places.work}/merged"
    documented = {"--adapters": (scene.places.need("checkpoint", "merge"),), "--merge_lora": ("true",)}
    changes = [Change("--output_dir", (output_dir,), "a new folder for every run"), *scene.witness()]
    return finished(scene.draft("merge", "export", documented, changes, "export", output_dir))


def push_step(scene: Scene) -> Step:
    """Contract only: nothing is ever pushed by the harness."""
    documented = {"--adapters": (scene.places.need("checkpoint", "push"),), "--push_to_hub": ("true",), "--hub_model_id": (HUB_MODEL_ID,)}
    return finished(scene.draft("push", "export", {**documented, "--hub_token": ("$MODELSCOPE_API_TOKEN",)}, [], "export"))


def served_name(cell: Cell) -> str:
    return str(cell.recipe.settings.get("served_model_name", cell.id))


def documented_deploy_flags(cell: Cell, target: str, place: str) -> Flags:
    flags = dict(target_flags(cell, target, place))
    if cell.recipe.key == QUICK_START:
        flags |= {"--host": ("0.0.0.0",), "--port": ("8000",)}
    flags["--max_new_tokens"] = (scalar(cell.recipe.settings.get("max_new_tokens", 2048)),)
    if "served_model_name" in cell.recipe.settings:
        flags["--served_model_name"] = (served_name(cell),)
    return flags


def deploy_step(scene: Scene) -> Step:
    """The OpenAI server: merged weights for LoRA, the checkpoint for full, the adapters by name where the cell asks for several."""
    cell, places = scene.cell, scene.places
    if cell.tuner is Tuner.FULL:
        documented = documented_deploy_flags(cell, "tuned", places.need("checkpoint", "deploy"))
    else:
        documented = documented_deploy_flags(cell, "merged", places.need("merged", "deploy"))
    changes = [
        Change("--host", ("127.0.0.1",), "servers of the harness listen on loopback only"),
        Change("--port", (str(places.port),), "a free port, so that runs side by side don't meet"),
        Change("--served_model_name", (served_name(cell),), "the name that the requests ask for"),
    ]
    if cell.options.adapters > 1:
        named = tuple(f"adapter{i}={places.need('checkpoint', 'deploy')}" for i in range(1, cell.options.adapters + 1))
        changes += [*scene.model(), Change("--model", (places.model,), "adapters by name"), Change("--adapters", named, "adapters by name")]
    if scene.weights is Weights.TINY:
        changes.append(Change("--max_new_tokens", (str(TINY_NEW_TOKENS),), "a tiny model on a small data set"))
    draft = scene.draft("deploy", "deploy", documented, [*changes, *scene.witness()], "deploy")
    return finished(replace(draft, serves=True))


def eval_step(scene: Scene) -> Step:
    """Contract only until a proof is defined. EvalScope on what was trained (ms-swift's evaluation document)."""
    cell, places = scene.cell, scene.places
    trained = places.need("checkpoint", "eval") if cell.tuner is Tuner.FULL else places.need("merged", "eval")
    documented = {
        **target_flags(cell, "merged", trained),
        "--eval_backend": ("Native",),
        "--eval_dataset": ("gsm8k",),
        "--eval_limit": ("10",),
        "--eval_output_dir": (f"{places.work}/eval",),
    }
    return finished(scene.draft("eval", "eval", documented, [*scene.witness()], "eval"))


def rollout_steps(scene: Scene) -> tuple[Step, ...]:
    """An engine of its own (`swift rollout`) and the training that asks it. Raises NotBuilt for any engine but vllm."""
    cell, places = scene.cell, scene.places
    if cell.algorithm not in ONLINE:
        raise NotBuilt(cell, f"ms-swift's {cell.algorithm} trainer has no rollout: --use_vllm is parsed and goes unused")
    if cell.engine is not Engine.VLLM:
        raise NotBuilt(cell, f"ms-swift rolls out with vllm only, not with {cell.engine}")
    documented = {
        "--model": (cell.model.id,),
        "--vllm_tensor_parallel_size": (str(cell.options.tensor_parallel_size),),
        "--host": ("127.0.0.1",),
        "--port": (str(places.port),),
    }
    serving = scene.draft("rollout", "rollout", documented, [*scene.model(), *scene.witness()], "rollout")
    training = train_step("train", cell, places, scene.hardware, scene.weights, scale=scene.scale)
    return (finished(replace(serving, serves=True)), _asking_server(training, places))


def _asking_server(step: Step, places: Places) -> Step:
    """The training step with `colocate` turned into `server`."""
    args = list(step.command.args)
    args[args.index("--vllm_mode") + 1] = "server"
    args[args.index("--output_dir") + 1] = output_dir = f"{places.work}/rollout-train"
    for flag in ("--vllm_gpu_memory_utilization", "--vllm_tensor_parallel_size"):
        at = args.index(flag)
        del args[at : at + 2]
    args += ["--vllm_server_host", "127.0.0.1", "--vllm_server_port", str(places.port)]
    return replace(step, name="rollout-train", command=replace(step.command, args=tuple(args)), output_dir=output_dir)
