"""All rules that logs are read with, in order: of the rules that match one line the first decides."""

from __future__ import annotations

import re
from re import Pattern

from harness.symptoms import Symptom
from harness.symptoms_comm import COMM
from harness.symptoms_device import DEVICE
from harness.symptoms_env import ENV
from harness.symptoms_said import SAID
from harness.symptoms_work import OPERATORS, RUN

SYMPTOMS: tuple[Symptom, ...] = (*ENV, *DEVICE, *COMM, *OPERATORS, *RUN, *SAID)
# A row of metrics, as ms-swift logs it, has a bare or quoted nan or inf where a number belongs: a failure even after exit code 0.
NOT_FINITE = next(s for s in SYMPTOMS if s.id == "nan.metric")

FALLBACK = re.compile(r"The operator '([\w:.]+)' is not currently supported on the NPU backend and will fall back")
# Harmless, however alarming: never a cause, not even when a rule would match the line.
NOISE: tuple[Pattern[str], ...] = tuple(
    re.compile(text)
    for text in (
        r"not currently supported on the NPU backend and will fall back",
        r"pending NCCL work",
        r"HCCL execution timeout was set to never timeout",
        r"the data will be deleted",
        r"ERR99999 UNKNOWN",
        r"Failed to import from vllm\._C",
        r"(?i)\b(?:Future|Deprecation|PendingDeprecation|User|Runtime|Resource|Import|Syntax|Experimental)Warning\b",
    )
)
