"""No rule may take the square of a line's length: a log can hold a line of megabytes."""

from __future__ import annotations

import time

import pytest

from harness.symptom_table import SYMPTOMS
from harness.symptoms import Symptom, loose

# A quadratic pattern takes 100 ms and more for these, a linear one 1 ms or less.
LINES = ("x" * 8192, "Error" * 1600, "X" * 8192, "a b" * 2700, "1" * 8192, "/" * 8192, "0.x-" * 2000)
LIMIT_S = 0.05


def searched_s(symptom: Symptom) -> float:
    """The longest of the lines' times, each the best of three: another process may have the core meanwhile."""
    patterns = (symptom.pattern, loose(symptom.pattern))

    def once(line: str) -> float:
        began = time.process_time()
        for pattern in patterns:
            pattern.search(line)
        return time.process_time() - began

    return max(min(once(line) for _ in range(3)) for line in LINES)


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: str(symptom.id))
def test_a_rule_reads_long_lines_in_time(symptom: Symptom) -> None:
    assert searched_s(symptom) < LIMIT_S
