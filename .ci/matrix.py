"""The main job's two runs side by side: the quick start by its documented command on a plain CPU, and every cell of this host.

    python .ci/matrix.py [PYTEST OPTIONS OF THE SECOND]

The first keeps one core busy with imports and the second waits for itself at times, so together they end sooner. What the first says is
shown when both are done; the exit code is that of the first of them that failed, the second's before the first's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

PYTEST = (sys.executable, "-m", "pytest", "-m", "npu_matrix")
# Without infer: a cold `swift infer --stream` of ms-swift 4.6 aborts at its exit about one time in ten ("terminate called without an active
# exception", a daemon thread that outlives the interpreter), and a job that is red by chance tells nobody anything. The other run has it.
QUICK_START = ("--hardware", "cpu", "--tier", "pr", "-k", "sft-qwen3_0_6b-lora-single and not no_patch and not infer")


def main() -> int:
    with tempfile.TemporaryFile() as said:
        beside = subprocess.Popen([*PYTEST, *QUICK_START], stdout=said, stderr=subprocess.STDOUT)
        try:
            cells = subprocess.run([*PYTEST, "--launcher", "auto", *sys.argv[1:]]).returncode
            quick_start = beside.wait()
        except KeyboardInterrupt:
            beside.wait()  # Ctrl-C reached it too
            raise
        said.seek(0)
        print("\n== the quick start on a plain CPU ==", flush=True)
        sys.stdout.buffer.write(said.read())
    return cells or quick_start


if __name__ == "__main__":
    sys.exit(main())
