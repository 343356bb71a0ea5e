"""The words of the kernel-parity page, in English and Chinese. Kernels, dtypes and causes are names, and stay as they are in both."""

from __future__ import annotations

from collections.abc import Mapping

PARITY_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "title": "Kernel parity",
        "generated": "Written by `python -m harness report` from the files under [kernels](kernels/), which `pytest -m kernel_parity` "
        "writes; edits are found by `python -m harness report --check`.",
        "what": "Every kernel is compared with plain torch in float64 on the CPU, on the same values: outputs and gradients. The error "
        "is RMS(candidate - golden) / RMS(golden), the worst of all cases; its limit is that of the dtype unless the kernel has its own. "
        "A case counts only if the candidate was seen to run and the golden ran nothing of it. Ill-conditioned comparisons, where plain "
        "torch in the same dtype misses the limit too, are judged against that and counted apart.",
        "nothing": "Nothing has run yet: `pytest -m kernel_parity`.",
        "no_npu": "**NO NPU EVIDENCE: nothing on this page proves anything about NPU hardware.**",
        "cpu": "Triton interpreter on a CPU, reference operators: proves the composition, nothing about NPU kernels",
        "npu": "{hardware}: the operators of torch_npu and compiled Triton kernels",
        "table": "kernel | kind | dtype | direction | worst error | limit | in | cases | ill-conditioned | state | date",
        "known": "Known failures",
        "known_table": "kernel | dtype | cause | cases that fail | cases that pass | state | because | date",
        "checks": "Checks",
        "check_table": "check | what | state | because | date",
        "not_run": "Not run",
        "not_run_table": "item | because, and how to get it",
        "failing": "Failing",
        "runs": "Runs",
        "runs_table": "run | date | versions | machine",
        "none": "none",
        "quick": "quick",
        "forward": "forward",
        "backward": "backward",
        "ill_only": "all ill-conditioned, or whole numbers only",
    },
    "zh": {
        "title": "算子一致性",
        "generated": "由 `python -m harness report` 根据 [kernels](kernels/) 下的文件生成，这些文件由 `pytest -m kernel_parity` 写入；"
        "改动会被 `python -m harness report --check` 发现。",
        "what": "每个算子都与 CPU 上的 float64 纯 torch 实现在相同数值上比较：包括输出和梯度。误差为 RMS(候选 - 基准) / RMS(基准)，"
        "取所有用例中最差者；除非算子自带限值，否则限值由 dtype 决定。只有确认候选实现真正运行、而基准没有运行其任何部分时，用例才算数。"
        "病态比较（同 dtype 的纯 torch 也超过限值）以纯 torch 的误差为准，并单独计数。",
        "nothing": "尚未运行：`pytest -m kernel_parity`。",
        "no_npu": "**没有 NPU 证据：本页不能证明 NPU 硬件上的任何结论。**",
        "cpu": "CPU 上的 Triton 解释器与参考算子：只证明组合方式正确，与 NPU 算子无关",
        "npu": "{hardware}：torch_npu 的算子和编译后的 Triton 算子",
        "table": "算子 | 种类 | dtype | 方向 | 最大误差 | 限值 | 所在张量 | 用例 | 病态 | 状态 | 日期",
        "known": "已知失败",
        "known_table": "算子 | dtype | 原因 | 失败用例 | 通过用例 | 状态 | 说明 | 日期",
        "checks": "检查",
        "check_table": "检查 | 内容 | 状态 | 说明 | 日期",
        "not_run": "未运行",
        "not_run_table": "项目 | 原因及获取方式",
        "failing": "失败",
        "runs": "运行",
        "runs_table": "运行 | 日期 | 版本 | 机器",
        "none": "无",
        "quick": "快速",
        "forward": "前向",
        "backward": "反向",
        "ill_only": "全部为病态，或仅有整数",
    },
}
