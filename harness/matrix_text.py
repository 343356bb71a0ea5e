"""YAML text to plain values, keeping the line of every one of them. Whatever the text holds, the only refusal is MatrixError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from harness.errors import MatrixError

Path = Sequence[str | int]
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Source:
    """A text as plain values (`data`) beside the nodes that they came from."""

    name: str
    data: Any
    root: Node | None

    def line(self, path: Path) -> int:
        """The line (from 1) of the value at `path`, or of the nearest thing around it that exists.

        A collection counts as standing where its key stands: that is the line a person looks for.
        """
        node, line = self.root, 1
        if node is None:
            return line
        line = _line(node)
        for step in path:
            if isinstance(node, MappingNode):
                found = next(((k, v) for k, v in node.value if isinstance(k, ScalarNode) and _plain_key(k) == step), None)
                if found is None:
                    return line
                key, node = found
                line = _line(node) if isinstance(node, ScalarNode) and node.value else _line(key)
            elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = _line(node)
            else:
                return line
        return line

    def key_line(self, path: Path) -> int:
        """The line of the key that `path` ends in."""
        node = self.root
        for step in path[:-1]:
            if isinstance(node, MappingNode):
                node = next((v for k, v in node.value if isinstance(k, ScalarNode) and _plain_key(k) == step), None)
            elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
        if isinstance(node, MappingNode):
            for key, _ in node.value:
                if isinstance(key, ScalarNode) and _plain_key(key) == path[-1]:
                    return _line(key)
        return self.line(path)

    def where(self, path: Path) -> str:
        return f"{self.name}:{self.line(path)}"

    def refuse(self, path: Path, what: str, next_step: str = "") -> MatrixError:
        return MatrixError(self.where(path), what, next_step)


def read_yaml(text: str, name: str) -> Source:
    """Read one YAML 1.2 document of plain values.

    Refused with the line: broken YAML, duplicate keys, custom tags, more than one document, and aliases to anything but a scalar
    (they would let one line mean two places, and a short text expand without end).

    Raises:
        MatrixError: `where` is `name:line`.
    """
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except ReaderError as error:
        raise MatrixError(f"{name}:{_line_at(text, error.position)}", "a character that YAML does not allow.", "Delete it.") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context or "broken YAML").split())
        hint = "Indent with spaces." if "\\t" in problem else "Mend the YAML."
        raise MatrixError(f"{name}:{mark.line + 1 if mark else 1}", f"{problem}.", hint) from None
    except RecursionError:
        raise MatrixError(f"{name}:1", "the YAML is nested too deeply to read.", "Flatten it.") from None
    except (YAMLError, ValueError, AttributeError, IndexError, KeyError, TypeError, AssertionError) as error:
        # ruamel.yaml's scanner leaks plain Python errors on some malformed directives and tags, without a mark
        raise MatrixError(f"{name}:1", f"the YAML can't be read ({error or type(error).__name__}).", "Mend the YAML.") from None
    if root is None:
        raise MatrixError(f"{name}:1", "the file is empty.", "Declare models, cells and the rest.")
    return Source(name, _Reader(name).value(root), root)


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[int] = set()

    def value(self, node: Node) -> Any:
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if id(node) in self._seen:
            raise self._error(node, "an alias to a list or mapping is not allowed.", "Write it out; only text and numbers may be aliased.")
        self._seen.add(id(node))
        if isinstance(node, SequenceNode):
            self._untagged(node, "seq")
            return [self.value(item) for item in node.value]
        self._untagged(node, "map")
        return self._mapping(node)

    def _mapping(self, node: Node) -> dict[str | int, Any]:
        result: dict[str | int, Any] = {}
        lines: dict[str | int, int] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise self._error(key_node, "a key must be a word or a whole number.")
            if key in result:
                raise self._error(key_node, f"key {key!r} is already written on line {lines[key]}.", "Keep one of them.")
            lines[key] = _line(key_node)
            result[key] = self.value(value_node)
        return result

    def _scalar(self, node: ScalarNode) -> Any:
        try:
            return _plain(node)
        except ValueError as error:
            raise self._error(node, f"{error}.") from None

    def _untagged(self, node: Node, kind: str) -> None:
        if str(node.tag) != _TAG + kind:
            raise self._error(node, f"tag {str(node.tag)!r} is not allowed.", "Delete it.")

    def _error(self, node: Node, what: str, next_step: str = "") -> MatrixError:
        return MatrixError(f"{self._name}:{_line(node)}", what, next_step)


def _plain(node: ScalarNode) -> str | int | float | bool | None:
    tag, text = str(node.tag), str(node.value)
    try:
        if tag in (_TAG + "str", _TAG + "timestamp"):  # a date is kept as it was written
            return text
        if tag == _TAG + "null":
            return None
        if tag == _TAG + "bool":
            return {"true": True, "false": False}[text.lower()]
        if tag == _TAG + "int":
            digits = text.replace("_", "").lower()
            return int(digits, 0 if digits.lstrip("+-")[:2] in ("0x", "0o", "0b") else 10)
        if tag == _TAG + "float":
            digits = text.replace("_", "").lower()
            return float(digits.replace(".inf", "inf").replace(".nan", "nan"))
    except (ValueError, KeyError):
        raise ValueError(f"{text[:40]!r} is not a {tag.removeprefix(_TAG)}") from None
    raise ValueError(f"tag {tag!r} is not allowed")


def _plain_key(node: ScalarNode) -> Any:
    return _plain(node)


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
