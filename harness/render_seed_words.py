"""The words of the page that has ms-swift's own tables: titles and columns are those of its pages on NPUs, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping

_ENGLISH = {
    "title": "NPU support: the document's tables, and the evidence beside each row",
    "generated": "Written by `python -m harness report` from the files under [evidence](evidence/) and matrix.yaml; edits are found by "
    "`python -m harness report --check`.",
    "what": "Titles, columns, rows and order are those of {documents}. What the document says stands in its own columns and earns no "
    "mark. The columns behind those are measured: the mark that evidence gives, with the hardware and the weights that it comes from "
    "(tiny: a small random model of the family) and its date, the stack, and the piece of evidence that decides. What a mark means, why "
    "it stands, and a row for every single combination: [support.md](support.md).",
    "no_tables": "matrix.yaml has none of the tables that ms-swift's page on NPUs has.",
    "says": "The document says of every row: {says}.",
    "products": "Hardware and Supported Operating Systems",
    "products_above": "**Table 1** Product hardware support list",
    "products_below": '> [!NOTE]\n>\n> In this section, "√" indicates supported and "x" indicates not supported.',
    "features": "Support Scope at a Glance",
    "sft": "Verified SFT Combinations",
    "rl": "Verified RL Combinations",
    "unsupported": "Not Yet Supported or Not Fully Verified",
    "fused_expert_lora": "PEFT Transformers 5 MoE Fused Expert LoRA Limitation",
    "qwen3_5": "Qwen3.5 FLA Patch Notes",
    "quantised": "Q13: Can FP8 or quantized models be trained directly on NPUs?",
    "memory": "Training",
    "memory_above": "The document's values are in GB, and it does not say whether of 10^9 or of 2^30 bytes. Measured is the train stage "
    "with the documented weights on the documented NPU, as `N * X GiB` (1 GiB = 2^30 bytes): N ranks, and the peak of the largest, as "
    "the device's allocator counts it (reserved, and of that allocated). What lies outside the allocator, such as the driver's memory, "
    "is not in it.",
    "tiny": "The same rows with tiny random models",
    "tiny_above": "**Not comparable with the values above.** A tiny random model, made on the spot, trained in place of the documented "
    "one, perhaps on fewer devices. On a simulated NPU the peaks are host memory, as the simulated device's allocator counts it; a "
    "plain cpu has no device memory, only the memory of its process. As `N * X MiB` (1 MiB = 2^20 bytes): N ranks, and the peak of the "
    "largest.",
    "separator": "; ",
    "colon": ": ",
    "and": ", ",
    "no_target": "no target of matrix.yaml",
    "no_run": "no run on it yet",
    "runs": "{count} runs",
    "no_real_run": "not measured: no train stage with the documented weights has passed on {hardware}",
    "no_tiny_run": "no train stage with a tiny model has passed",
    "no_peak": "not every rank's witness tells its peak",
    "steps": "the peak of {steps} steps",
    "no_device": "no device",
    "on_npu": "{hardware}: device memory",
    "on_sim": "sim: simulated NPU, host memory",
    "on_cpu": "cpu: host memory",
}
_CHINESE = {
    "title": "NPU支持：文档中的表格，每行附上证据",
    "generated": "由 `python -m harness report` 根据 [evidence](evidence/) 下的文件和 matrix.yaml 生成；改动会被 `python -m harness report "
    "--check` 发现。",
    "what": "标题、列、行及顺序均与 {documents} 一致。文档的声明只在其原有的列中，不产生任何标记。其后各列均为实测：证据给出的标记（含所"
    "在硬件、所用权重（tiny：同系列的微型随机模型）和日期）、软件栈，以及起决定作用的那份证据。各标记的含义、原因以及每个组合各自的行见 "
    "[support.zh.md](support.zh.md)。",
    "no_tables": "matrix.yaml 中没有 ms-swift 的 NPU 页面所具有的表格。",
    "says": "文档对每一行的声明：{says}。",
    "products": "硬件配套和支持的操作系统",
    "products_above": "**表 1** 产品硬件支持列表",
    "products_below": "> [!NOTE]\n>\n> 本节表格中“√”代表支持，“x”代表不支持。",
    "features": "支持范围速览",
    "sft": "已验证 SFT 组合",
    "rl": "已验证 RL 组合",
    "unsupported": "暂不支持或未完全验证",
    "fused_expert_lora": "PEFT Transformers 5 MoE fused expert LoRA 限制",
    "qwen3_5": "Qwen3.5 FLA补丁说明",
    "quantised": "Q13：FP8 或量化模型可以直接在 NPU 上训练吗？",
    "memory": "训练",
    "memory_above": "文档的数值以 GB 为单位，未说明是 10^9 还是 2^30 字节。实测为 train 阶段以文档权重在文档所述 NPU 上的结果，写作 `N "
    "* X GiB`（1 GiB = 2^30 字节）：N 个 rank，取其中最大者的峰值，以设备分配器的统计为准（reserved，及其中的 allocated）。分配器之外的"
    "部分（如驱动占用）不计入。",
    "tiny": "同样的行，微型随机模型",
    "tiny_above": "**与上表数值不可比。** 训练的是临时生成的微型随机模型，而不是文档中的模型，设备数也可能更少。模拟 NPU 上的峰值是主机"
    "内存，由模拟设备的分配器统计；普通 CPU 没有设备内存，只有进程内存。写作 `N * X MiB`（1 MiB = 2^20 字节）：N 个 rank，取其中最大者的"
    "峰值。",
    "separator": "；",
    "colon": "：",
    "and": "、",
    "no_target": "不是 matrix.yaml 的目标",
    "no_run": "尚未在其上运行",
    "runs": "{count} 次运行",
    "no_real_run": "未实测：尚无以文档权重在 {hardware} 上通过的 train 阶段",
    "no_tiny_run": "尚无以微型模型通过的 train 阶段",
    "no_peak": "并非每个 rank 的见证都给出了峰值",
    "steps": "{steps} 步的峰值",
    "no_device": "无设备",
    "on_npu": "{hardware}：设备内存",
    "on_sim": "sim：模拟 NPU，主机内存",
    "on_cpu": "cpu：主机内存",
}
# The tables of matrix.yaml that the page shows, in its order.
SEED_TABLES = ("products", "features", "sft", "rl", "unsupported", "fused_expert_lora", "qwen3_5", "quantised", "memory")
SEED_WORDS: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH, "zh": _CHINESE}

_MEMORY = (
    ("Model size", "模型大小"),
    ("NPU count", "NPU数量"),
    ("DeepSpeed type", "deepspeed类型"),
    ("Max memory usage", "最大显存占用量"),
)
_PROOF = (("mark", "标记"), ("stack", "软件栈"), ("evidence", "证据"))
_CELL = (("cell", "单元"), *_PROOF)
_COMBINATION = (("algorithm", "algorithm"), ("model families", "model families"), ("strategy", "strategy"))
_LIMIT = (("limit", "限制"), ("claimed", "文档声明"), *_CELL)
_PEAKS = (("peak reserved", "峰值（reserved）"), ("peak allocated", "峰值（allocated）"))
# Of every table in English and Chinese: first the document's own columns, which readers of pages know by name, then ours.
_COLUMNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "products": (("Product", "产品"), ("Supported", "是否支持"), ("evidence", "证据"), ("marks", "标记"), ("date", "日期")),
    "features": (("Primary feature", "一级特性"), ("Feature", "特性"), ("Status", "进展"), *_CELL),
    "sft": (*_COMBINATION, ("hardware", "hardware"), *_PROOF),
    "rl": (*_COMBINATION, ("rollout engine", "rollout engine"), ("hardware", "hardware"), *_PROOF),
    "unsupported": (("item", "item"), *_CELL),
    "fused_expert_lora": _LIMIT,
    "qwen3_5": _LIMIT,
    "quantised": _LIMIT,
    "memory": (
        *_MEMORY,
        *((f"measured {english}", f"实测{chinese}") for english, chinese in _PEAKS),
        *(("note", "说明"), ("stack", "软件栈"), ("evidence", "证据")),
    ),
    # No column of this one may be taken for the document's: its rows are not of documented models.
    "tiny": (
        *((f"documented: {english}", f"文档：{chinese}") for english, chinese in _MEMORY),
        *((f"tiny: {english}", f"微型：{chinese}") for english, chinese in (*_PEAKS, ("process RSS", "进程 RSS"))),
        *(("measured on", "实测于"), ("stack", "软件栈"), ("evidence", "证据")),
    ),
}


def seed_columns(name: str, language: str) -> tuple[str, ...]:
    return tuple(pair[language == "zh"] for pair in _COLUMNS[name])
