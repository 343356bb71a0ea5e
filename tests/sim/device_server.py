"""The warm process behind tests marked `on_device`: imports torch with the simulated NPU, forks for each test, answers with a traceback."""

from __future__ import annotations

import importlib.util
import os
import pickle
import select
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import IO, Any

LIMIT_S = 120


def send(pipe: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    pipe.write(struct.pack("!I", len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """None at the end of the pipe."""
    size = pipe.read(4)
    return pickle.loads(pipe.read(struct.unpack("!I", size)[0])) if len(size) == 4 else None


def run_forked(path: str, name: str, arguments: dict[str, Any]) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        status = 1
        try:
            spec = importlib.util.spec_from_file_location(Path(path).stem, path)
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            getattr(module, name)(**arguments)
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-60_000:])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    said = b""
    while True:
        if not select.select([read], [], [], LIMIT_S)[0]:
            os.killpg(child, signal.SIGKILL)
            said += f"no end within {LIMIT_S} s".encode()
            break
        part = os.read(read, 65536)
        if not part:
            break
        said += part
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said.decode() or ("" if code == 0 else f"its process ended with {code} and said nothing")


def main() -> None:
    import pytest  # noqa: F401 - imported before the fork, for speed
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tests print must not get between the answers
    while (request := receive(sys.stdin.buffer)) is not None:
        send(answers, run_forked(*request))


if __name__ == "__main__":
    main()
