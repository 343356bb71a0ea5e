"""Lies of the process: how it ends, whether it ends, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from typing import ClassVar

from fakes.honest.habits import Honest
from fakes.liars.lie import Lie

# Longer than any drill, and short enough that nothing lies about for ever where a drill fails.
_LONG_S = 300


class DoesNothing(Honest):
    def begin(self, method: str) -> None:
        print("Training completed.", flush=True)
        os._exit(0)


class SilentHang(Honest):
    def before_step(self, step: int) -> None:
        if step == 3:
            time.sleep(_LONG_S)


class MuteHang(Honest):
    """Nothing at all is printed."""

    def begin(self, method: str) -> None:
        time.sleep(_LONG_S)


class ChattyHang(Honest):
    def before_step(self, step: int) -> None:
        until = time.monotonic() + _LONG_S
        while step == 3 and time.monotonic() < until:
            print("Train:  50%|#####     | 3/6 [00:01<00:01]", flush=True)
            time.sleep(0.05)


class Killed(Honest):
    def before_step(self, step: int) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGKILL)


class FailsAfterSuccess(Honest):
    def finish(self, method: str, code: int) -> int:
        print("[INFO:swift] Training completed successfully.", flush=True)
        return 1


class HidesItsTraceback(Honest):
    """It fails half-way, says so, and exits with 0."""

    def before_step(self, step: int) -> None:
        if step == 4:
            raise RuntimeError("the stand-in gave up")

    def finish(self, method: str, code: int) -> int:
        return 0


class HidesALateTraceback(Honest):
    """All is done and logged; then something fails, and the exit code is 0."""

    def finish(self, method: str, code: int) -> int:
        try:
            raise RuntimeError("the stand-in failed while it cleaned up")
        except RuntimeError:
            traceback.print_exc()
        return 0


class BuriesItsTraceback(Honest):
    """The traceback comes first, and far more chatter after it than anybody keeps."""

    def begin(self, method: str) -> None:
        try:
            raise RuntimeError("the stand-in failed early")
        except RuntimeError:
            traceback.print_exc()
        print("a line of chatter\n" * 20_000, flush=True)


class LeavesAChild(Honest):
    clean: ClassVar[dict[str, str] | None] = None

    def begin(self, method: str) -> None:
        quiet = subprocess.DEVNULL
        sleeper = f"import time; time.sleep({_LONG_S})"
        words = [sys.executable, "-S", "-c", sleeper]
        subprocess.Popen(words, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet, env=self.clean)


class LeavesAStranger(LeavesAChild):
    """The child leaves the group and the environment, so that nothing marks it as ours but its parent."""

    clean: ClassVar[dict[str, str] | None] = {"PATH": "/usr/bin:/bin"}

    def before_step(self, step: int) -> None:
        time.sleep(0.2)


class LeavesARootlessChild(Honest):
    """It has shed environment, session, group and parent before anybody could look."""

    def begin(self, method: str) -> None:
        os.system(f'env -i /bin/sh -c "exec setsid sleep {_LONG_S} >/dev/null 2>&1 </dev/null &"')


LIES = (
    Lie("does_nothing", "train", "proof.no_log", "product", DoesNothing),
    Lie("silent_hang", "train", "run.deadline_silent", "product", SilentHang, deadline_s=3),
    Lie("mute_hang", "train", "run.deadline_silent", "product", MuteHang, deadline_s=2),
    Lie("chatty_hang", "train", "run.deadline_chatty", "product", ChattyHang, deadline_s=3),
    Lie("killed_half_way", "train", "run.signal", "environment", Killed),
    Lie("exit_1_after_success", "train", "run.exit_nonzero", "product", FailsAfterSuccess),
    Lie("exit_0_after_a_traceback", "train", "run.traceback_exit_0", "product", HidesItsTraceback),
    Lie("exit_0_after_a_late_traceback", "train", "run.traceback_exit_0", "product", HidesALateTraceback),
    Lie("exit_0_after_a_buried_traceback", "train", "run.traceback_exit_0", "product", BuriesItsTraceback),
    Lie("leaves_a_rootless_child", "train", "run.orphan", "product", LeavesARootlessChild),
    Lie("leaves_a_child", "train", "run.orphan", "product", LeavesAChild),
    Lie("leaves_a_stranger", "train", "run.orphan", "product", LeavesAStranger),
)
