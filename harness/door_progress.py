"""Progress on pytest's terminal while an item waits: a line below pytest's own on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness.progress import Progress, told

EVERY_S, PLAIN_EVERY_S = 1.0, 30.0
_CLEAR_LINE, _UP = "\x1b[2K", "\x1b[1A"


class LiveProgress:
    """Called with the progress while somebody waits, and with None when the wait is over. Writes from pytest's own thread only.

    On a terminal the cursor goes one line down, writes, and comes back to where pytest left it; the line is gone before pytest goes on.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._shown = False
        self._next = 0.0

    def __call__(self, progress: Progress | None) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or reporter.verbosity < 0:
            return
        live = reporter.isatty and os.environ.get("TERM", "dumb") != "dumb"
        if progress is None:
            if self._shown:
                self._below(reporter, "")
            self._shown = False
            return
        now = time.monotonic()
        if self._next == 0.0 and not live:
            self._next = now + PLAIN_EVERY_S
        if now < self._next:
            return
        self._next = now + (EVERY_S if live else PLAIN_EVERY_S)
        if live:
            self._below(reporter, told(progress, reporter._tw.fullwidth - 1))
            self._shown = True
        else:
            with self._uncaptured():
                reporter.ensure_newline()
                reporter.write_line(told(progress, 1000))

    def _below(self, reporter: Any, line: str) -> None:
        column = min(reporter._tw.width_of_current_line, reporter._tw.fullwidth - 1) + 1
        with self._uncaptured():
            reporter.flush()
            sys.stdout.write(f"\n\r{_CLEAR_LINE}{line}{_UP}\x1b[{column}G")
            sys.stdout.flush()

    @contextlib.contextmanager
    def _uncaptured(self) -> Iterator[None]:
        """pytest takes what is printed in a test for the test's own."""
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
            yield
