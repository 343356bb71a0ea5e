"""Pickles of plain data, read without running them: names are looked up nowhere and called never, they are only noted.

Not pickle.Unpickler with its find_class narrowed: that one still sets attributes on what it was given, hashes whatever stands as a key, and
allocates as much memory as an opcode says. Here every opcode that is not needed is refused, and memory grows with the bytes read.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError

_DAMAGED = "The file is cut short, damaged, or of another version: make it anew."


@dataclass(frozen=True, eq=False)
class Named:
    """A class or function that the pickle names, as `module.name`."""

    name: str


@dataclass(eq=False)
class Made:
    """What a call of `name` with `args` would have made; `state` is what would have been set on it. Equal only to itself."""

    name: str
    args: tuple[Any, ...]
    state: Any = None

    def field(self, key: str) -> Any:
        """The state's entry, None if the state is no dict or lacks it."""
        return self.state.get(key) if isinstance(self.state, dict) else None


@dataclass(frozen=True, eq=False)
class Stored:
    """A persistent id: what the pickle keeps elsewhere."""

    pid: Any


class _Refused(Exception):
    pass


def read_pickle(data: bytes, allowed: Collection[str], where: str) -> Any:
    """The object: None, bool, int, float, str, tuple, list, dict (of str, int and Made), and the classes above.

    Raises HarnessError for a name outside `allowed`, for an opcode that plain data doesn't need, and for bytes that are no whole pickle.
    For each byte, half a microsecond and a dozen bytes of memory (measured on metadata of torch 2.14); a hundred for one that is all lists.
    """
    machine = _Machine(allowed)
    try:
        for opcode, arg, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            step = _STEPS.get(opcode.name)
            if step is None:
                raise _Refused(f"it asks for {opcode.name}")
            step(machine, arg)
    except (_Refused, ValueError) as error:
        raise HarnessError(where, f"not a pickle that is read here ({error}).", _DAMAGED) from error
    raise HarnessError(where, "a pickle without an end.", _DAMAGED)


class _Machine:
    """The stack, the stacks below each mark, and the memo of the pickle protocol."""

    def __init__(self, allowed: Collection[str]) -> None:
        self.allowed = allowed
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise _Refused("its stack is empty too soon")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _Refused(f"no {kind.__name__} where one has to be")
        return self.stack[-1]

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        if not self.below:
            raise _Refused("a mark is missing")
        found, self.stack = self.stack, self.below.pop()
        return found

    def last(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.pop() for _ in range(count)]))

    def note(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if not isinstance(module, str) or not isinstance(name, str) or full not in self.allowed:
            raise _Refused(f"it names {full[:80]!r}" if isinstance(module, str) and isinstance(name, str) else "a name that is no text")
        self.push(Named(full))

    def call(self) -> None:
        args = self.pop()
        callee = self.pop()
        if not isinstance(callee, Named) or not isinstance(args, tuple):
            raise _Refused("it calls what is no name")
        self.push(Made(callee.name, args))

    def build(self) -> None:
        state = self.pop()
        self.top(Made).state = state

    def remember(self, at: int) -> None:
        self.memo[at] = self.top(object)

    def recall(self, at: int) -> None:
        if at not in self.memo:
            raise _Refused(f"memo {at} is empty")
        self.push(self.memo[at])

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def fill(self, items: list[Any]) -> None:
        target: dict[Any, Any] = self.top(dict)
        keys = items[::2]
        # Hashing a tuple of tuples can take forever.
        if len(items) % 2 or not all(isinstance(key, (str, int, Made)) for key in keys):
            raise _Refused("a dict with keys that are not read here")
        target.update(zip(keys, items[1::2], strict=True))


def _push(value: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(value())


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(machine.last(count))


_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, arg: None,
    "FRAME": lambda machine, arg: None,
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "EMPTY_TUPLE": _push(tuple),
    "EMPTY_LIST": _push(list),
    "EMPTY_DICT": _push(dict),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        lambda machine, arg: machine.push(arg),
    ),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "MARK": lambda machine, arg: machine.mark(),
    "TUPLE": lambda machine, arg: machine.push(tuple(machine.since_mark())),
    "APPEND": lambda machine, arg: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, arg: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, arg: machine.fill(list(machine.last(2))),
    "SETITEMS": lambda machine, arg: machine.fill(machine.since_mark()),
    "GLOBAL": lambda machine, arg: machine.note(*arg.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, arg: machine.note(*machine.last(2)),
    "NEWOBJ": lambda machine, arg: machine.call(),
    "REDUCE": lambda machine, arg: machine.call(),
    "BUILD": lambda machine, arg: machine.build(),
    "BINPERSID": lambda machine, arg: machine.push(Stored(machine.pop())),
    "MEMOIZE": lambda machine, arg: machine.remember(len(machine.memo)),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, arg: machine.remember(arg)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, arg: machine.recall(arg)),
}
