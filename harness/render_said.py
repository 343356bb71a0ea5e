"""What documents say, and how matrix.yaml read their rows, in Chinese: matrix.yaml has those sentences in English."""

from __future__ import annotations

_CHINESE = dict(
    (
        ("verified", "已验证"),
        ("Supported", "已支持"),
        ("Not supported", "暂不支持"),
        ("not supported or not fully verified", "暂不支持或未完全验证"),
        ("not fully stable", "未完全稳定"),
        ("do not enable", "不要开启"),
        ("a complete command", "完整命令"),
        ("a switch", "开关"),
        ("undated", "未注明日期"),
        ("the row names neither a model nor a command", "该行既没有写明模型，也没有给出命令"),
        (
            "the answer names no model and no quantisation that ms-swift takes for training",
            "该回答没有写明模型，也没有写明 ms-swift 训练所接受的量化方式",
        ),
        ("a way to install", "安装方式"),
        (
            "deepspeed is zero2 and zero3; tuner LoRA, since the section's commands use it; the document gives no command for the row",
            "deepspeed 指 zero2 和 zero3；微调方式取 LoRA，因为该章节的命令使用 LoRA；文档没有给出该行的命令",
        ),
        (
            "deepspeed is zero2 and zero3; tuner LoRA; InternVL3-8B is read as its Transformers-native form, InternVL3-8B-hf",
            "deepspeed 指 zero2 和 zero3；微调方式取 LoRA；InternVL3-8B 读作其 Transformers 原生形式 InternVL3-8B-hf",
        ),
        (
            "deepspeed is zero2 and zero3; `A2 PODc/A3 SuperPoD` is each strategy on each of the two; tuner LoRA",
            "deepspeed 指 zero2 和 zero3；`A2 PODc/A3 SuperPoD` 指每种策略在两种硬件上各一次；微调方式取 LoRA",
        ),
        (
            "deepspeed is zero2 and zero3; tuner LoRA; vllm-ascend is engine vllm",
            "deepspeed 指 zero2 和 zero3；微调方式取 LoRA；vllm-ascend 即引擎 vllm",
        ),
        (
            "deepspeed is zero2 and zero3; tuner LoRA; engine vllm as the row says, though DPO in ms-swift 4.6.0 has no rollout",
            "deepspeed 指 zero2 和 zero3；微调方式取 LoRA；引擎按该行取 vllm，尽管 ms-swift 4.6.0 的 DPO 没有 rollout",
        ),
        (
            "deepspeed is zero2 and zero3; tuner LoRA; engine vllm as the row says, though PPO in ms-swift 4.6.0 parses --use_vllm and "
            "never uses it",
            "deepspeed 指 zero2 和 zero3；微调方式取 LoRA；引擎按该行取 vllm，尽管 ms-swift 4.6.0 的 PPO 只解析 --use_vllm 而从不使用",
        ),
        ("the row names no model: this cell stands for it", "该行没有写明模型：由此单元代表"),
        (
            "the two model series that the document names; no hardware is named, read as A2",
            "取文档写明的两个模型系列；未写明硬件，读作 A2",
        ),
        (
            "the document names the series Qwen3.5: each of its models that it names elsewhere; no hardware is named, read as A2",
            "文档只写 Qwen3.5 系列：取文档别处写明的该系列各模型；未写明硬件，读作 A2",
        ),
        ("advice", "建议"),
        (
            "7B is Qwen2-7B-Instruct with LoRA, the model of the section's commands, whose memory agrees; None on several NPUs is DDP",
            "7B 指 LoRA 微调的 Qwen2-7B-Instruct，即该章节命令所用的模型，其显存与之一致；多卡的 None 指 DDP",
        ),
        ("a size only", "只写了规模"),
        ("the command names the cell; its experiments ran on 910B3", "单元由命令确定；其实验在 910B3 上进行"),
    )
)


def said(text: str, language: str) -> str:
    """`text` in that language; as it stands where nobody translated it, as numbers and names are."""
    return _CHINESE.get(text, text) if language == "zh" else text
