"""The words of the reports, in English and Chinese. Marks, stages and flags are names, and stay as they are in both."""

from __future__ import annotations

from collections.abc import Mapping

from harness.model import MarkKind

LANGUAGES = ("en", "zh")

_ENGLISH = {
    "title": "What runs on Ascend NPUs, and the run behind every mark",
    "generated": "Written by `python -m harness report` from the files under [evidence](evidence/) and matrix.yaml; edits are found by "
    "`python -m harness report --check`. The documents' own tables, in their form: [npu-support.md](npu-support.md).",
    "what": "A mark is folded from evidence: one JSON file a run, with its command, versions, log line and hash. What documents claim "
    "stands in a column of its own and earns no mark.",
    "colon": ": ",
    "as_of": "As of",
    "nothing_yet": "there is no evidence yet",
    "pieces": "Evidence",
    "later": "Left out, since newer than that day",
    "no_npu": "NO NPU EVIDENCE: nothing on this page proves anything about NPU hardware. What ran, ran on a simulated NPU or a plain cpu, "
    "and neither is ever called NPU evidence.",
    "npu": "Results of a simulated NPU or a plain cpu are no NPU evidence; they stand beside it, never over it.",
    "legend": "How to read a mark",
    "legend_intro": "One mark for every cell (a question: model, algorithm, tuner, strategy, engine, options) and target hardware. The "
    "weakest of the required stages decides. The date of a positive mark is that of its oldest stage.",
    "contract": "Besides, {cells} cells of tier contract are only parsed with ms-swift's argument classes and counted here: {marks} marks.",
    "sft": "Documented SFT combinations",
    "rl": "Documented RL combinations",
    "examples": "Documented examples",
    "further": "Further cells",
    "further_intro": "Every cell that no table above shows in a row of its own.",
    "versions": "Recommended versions",
    "combinations": "Documented combinations of versions",
    "routes": "Documented routes",
    "stacks": "Declared stacks",
    "stacks_intro": "Only a stack of this table can carry the mark verified, and only while it is young enough.",
    "witnessed": "Versions witnessed",
    "readings": "How the rows were read",
    "chips": "Chips",
    "yes": "yes",
    "no": "no",
    "none": "nothing yet",
}
_CHINESE = {
    "title": "昇腾 NPU 上能运行什么：每个标记背后都有一次运行",
    "generated": "由 `python -m harness report` 根据 [evidence](evidence/) 下的文件和 matrix.yaml 生成；改动会被 `python -m harness report "
    "--check` 发现。按文档原有形式的各表见 [npu-support.zh.md](npu-support.zh.md)。",
    "what": "标记由证据折叠而来：每次运行一个 JSON 文件，含命令、版本、日志行和哈希。文档的声明单独成列，不产生任何标记。",
    "colon": "：",
    "as_of": "截至",
    "nothing_yet": "尚无证据",
    "pieces": "证据",
    "later": "晚于该日、未计入",
    "no_npu": "没有 NPU 证据：本页不能证明 NPU 硬件上的任何结论。已运行的内容只在模拟 NPU 或普通 CPU 上运行，二者绝不称为 NPU 证据。",
    "npu": "模拟 NPU 或普通 CPU 的结果不是 NPU 证据；只列在其旁，绝不取而代之。",
    "legend": "如何阅读标记",
    "legend_intro": "每个单元（一个问题：模型、算法、微调方式、策略、引擎、选项）与目标硬件对应一个标记，由必需阶段中最弱者决定。"
    "肯定性标记的日期取最旧阶段的日期。",
    "contract": "此外，contract 层级的 {cells} 个单元只由 ms-swift 自己的参数类解析，仅在此计数：{marks} 个标记。",
    "sft": "文档中的 SFT 组合",
    "rl": "文档中的 RL 组合",
    "examples": "文档中的示例",
    "further": "其他单元",
    "further_intro": "上面各表中没有单独成行的所有单元。",
    "versions": "推荐版本",
    "combinations": "文档中的版本组合",
    "routes": "文档中的使用路线",
    "stacks": "已声明的软件栈",
    "stacks_intro": "只有本表中的软件栈可以带 verified 标记，且须在有效期内。",
    "witnessed": "实际见证的版本",
    "readings": "各行的读法",
    "chips": "芯片",
    "yes": "是",
    "no": "否",
    "none": "暂无",
}
STRINGS: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH, "zh": _CHINESE}

# Column titles. The seed's own columns keep their names in both languages, so that tables can be compared.
_COLUMNS_ZH = {
    "claimed": "文档声明",
    "mark": "标记",
    "date": "日期",
    "versions": "版本",
    "evidence": "证据",
    "because": "原因",
    "meaning": "含义",
    "count": "数量",
    "product": "产品",
    "options": "选项",
    "tuner": "微调方式",
    "document": "文档",
    "section": "章节",
    "requires": "要求",
    "max age (days)": "有效期（天）",
    "stack": "软件栈",
    "pieces": "证据数",
    "software": "软件",
    "version": "版本",
    "model": "模型",
    "what": "内容",
    "npus": "NPU 数",
    "use": "场景",
    "route": "推荐路线",
    "mindspeed": "是否需要 MindSpeed",
    "device names": "设备名",
    "chips": "芯片",
}

_MEANINGS: Mapping[MarkKind, tuple[str, str]] = {
    MarkKind.VERIFIED: (
        "every required stage passed with the documented weights on the target NPU, under a declared stack, recently enough",
        "必需阶段均在目标 NPU 上以文档权重通过，软件栈已声明且在有效期内",
    ),
    MarkKind.STALE: ("as verified, but too old or under another stack", "曾达到 verified，但过期或软件栈不同"),
    MarkKind.TINY_NPU: (
        "every required stage passed on the target NPU, with tiny random weights",
        "必需阶段均在目标 NPU 上以微型随机权重通过",
    ),
    MarkKind.SIMULATED: (
        "passed on a simulated NPU in host memory: the NPU code path, no operator and no hardware",
        "在主机内存中的模拟 NPU 上通过：只覆盖 NPU 代码路径，不涉及算子和硬件",
    ),
    MarkKind.WIRED: (
        "passed on a plain cpu: flags, trainer, adapters and checkpoints, nothing about NPUs",
        "在普通 CPU 上通过：只覆盖参数、训练器、适配器和检查点，与 NPU 无关",
    ),
    MarkKind.FAILING: ("a required stage failed; cause and hardware stand beside it", "某个必需阶段失败；原因与硬件列在旁边"),
    MarkKind.KNOWN_FAILURE: ("failed as a recorded limit says", "按已记录的限制失败"),
    MarkKind.FIXED: ("passed although a recorded limit says otherwise", "与已记录的限制相反，意外通过"),
    MarkKind.EXCLUDED: ("the combination has no meaning", "该组合没有意义"),
    MarkKind.BLOCKED: ("an earlier stage failed", "更早的阶段失败"),
    MarkKind.UNTESTED: ("not every required stage has run; nothing is known", "必需阶段没有全部运行；情况未知"),
}


def column(name: str, language: str) -> str:
    return _COLUMNS_ZH.get(name, name) if language == "zh" else name


def meaning(kind: MarkKind, language: str) -> str:
    return _MEANINGS[kind][LANGUAGES.index(language)]
