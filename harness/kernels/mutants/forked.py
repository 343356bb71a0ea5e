"""Work in forked children of a process that has imported what they need: at most so many at once, each with a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Ended(Generic[Task, Result]):
    """How the work on a task ended: `result`, or `died` says how the child went without one."""

    task: Task
    result: Result | None
    died: str
    seconds: float


@dataclass
class _Child:
    process: Any
    receiver: Any
    task: Any
    began: float
    deadline_s: float


def forked(
    tasks: Iterable[Task], work: Callable[[Task], Result], jobs: int, deadline_s: Callable[[Task], float]
) -> Iterator[Ended[Task, Result]]:
    """What `work(task)` gives for each task, as they end. Children print nothing; one over its deadline (seconds) is killed."""
    context, waiting, running = multiprocessing.get_context("fork"), iter(tasks), list[_Child]()
    try:
        while True:
            while len(running) < jobs and (task := next(waiting, None)) is not None:
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(work, task, sender))
                process.start()
                sender.close()
                running.append(_Child(process, receiver, task, time.monotonic(), deadline_s(task)))
            if not running:
                return
            multiprocessing.connection.wait([child.receiver for child in running], timeout=0.5)
            for child in list(running):
                ended = _ended(child)
                if ended is not None:
                    running.remove(child)
                    yield ended
    finally:
        for child in running:
            child.process.kill()
            child.process.join()


def _ended(child: _Child) -> Ended[Any, Any] | None:
    seconds = time.monotonic() - child.began
    if child.receiver.poll():
        try:
            result, died = child.receiver.recv()
        except EOFError:
            child.process.join()
            result, died = None, f"died without a word (exit code {child.process.exitcode})"
    elif seconds > child.deadline_s:
        result, died = None, f"no end within {child.deadline_s:.0f} s"
    else:
        return None
    child.process.kill()
    child.process.join()
    child.receiver.close()
    return Ended(child.task, result, died, seconds)


def _child(work: Callable[[Any], Any], task: Any, sender: Any) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        answer = (work(task), "")
    except BaseException as error:  # whatever ends the child is its answer
        frame = traceback.extract_tb(error.__traceback__)[-1]
        answer = (None, f"{type(error).__name__} at {os.path.basename(frame.filename)}:{frame.lineno}: {str(error).partition(chr(10))[0]}")
    with contextlib.suppress(BrokenPipeError):  # the parent has given up
        sender.send(answer)
    sender.close()
    os._exit(0)
