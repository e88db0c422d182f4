"""A YAML text as plain values, with the line of every key, and nothing that a config has no use for.

PyYAML's own loaders take more than a config should hold and tell less than its author needs: a key that is there twice
silently wins, `no` is a boolean and `1:30` the number 90 (YAML 1.1), tags construct objects, an anchor may refer to
itself, nesting by the hundred thousand kills the process. Here libyaml only splits the text into events; scalars follow
the core schema of YAML 1.2, anchors and merge keys (`<<`) work, and the rest is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

__all__ = ["DocumentError", "Mapping", "Node", "Scalar", "SequenceNode", "parse_document", "plain"]

MAX_DEPTH = 32
"""Levels of nesting; the models have six."""

MAX_NODES = 1_000_000
"""Keys and values after anchors are followed: enough for 20,000 streams."""

_STR_TAG, _MERGE = "tag:yaml.org,2002:str", "<<"
_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What YAML does not allow in a text."""
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

# libyaml parses ten times as fast as PyYAML, which counts: the DAG processor loads the config all day.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(Exception):
    """The text cannot be read as a config's YAML. `line` counts from 1; None when there is none to name."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class Scalar:
    line: int
    value: Any
    size: int = 1


@dataclass(slots=True)
class SequenceNode:
    line: int
    items: list[Node] = field(default_factory=list)
    size: int = 1


@dataclass(slots=True)
class Mapping:
    line: int
    items: dict[str, Node] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)
    size: int = 1


Node = Scalar | SequenceNode | Mapping


def plain(node: Node) -> Any:
    """The values of a document, as dicts, lists and scalars."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items.items()}
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.items]
    return node.value


def parse_document(text: str) -> Node | None:
    """The one document in `text`; None if there is nothing but comments.

    Raises `DocumentError` when it is not YAML, or holds what a config must not: see the module.
    """
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        line = text.count("\n", 0, forbidden.start()) + 1
        raise DocumentError(line, f"is not YAML: the character U+{ord(forbidden[0]):04X} is not allowed")
    loader = _Loader(text)
    try:
        return _Composer(loader).document()
    except yaml.YAMLError as error:
        raise _not_yaml(text, error) from None
    finally:
        loader.dispose()


def _not_yaml(text: str, error: yaml.YAMLError) -> DocumentError:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return DocumentError(None, f"is not YAML: {reason}")
    lines = text.splitlines()
    at_tab = mark.line < len(lines) and lines[mark.line].lstrip(" ").startswith("\t")
    hint = "; indent with spaces, not with tabs" if at_tab else ""
    return DocumentError(mark.line + 1, f"is not YAML: {reason}{hint}")


class _Composer:
    """Nodes out of libyaml's events. Recursion is bounded by `MAX_DEPTH`, which libyaml's own composer lacks."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._anchors: dict[str, Node | None] = {}  # None: still open
        self._depth = 0

    def document(self) -> Node | None:
        self._loader.get_event()  # the stream's start
        if self._loader.check_event(yaml.StreamEndEvent):
            return None
        self._loader.get_event()  # the document's start
        node = self._node()
        self._loader.get_event()  # its end
        if not self._loader.check_event(yaml.StreamEndEvent):
            line = self._loader.get_event().start_mark.line + 1
            raise DocumentError(line, "holds a second document: one file, one document")
        return None if isinstance(node, Scalar) and node.value is None else node

    def _node(self) -> Node:
        event = self._loader.get_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line)
        self._check_tag(event, line)
        if event.anchor:
            self._anchors[event.anchor] = None
        node = self._scalar(event, line) if isinstance(event, yaml.ScalarEvent) else self._collection(event, line)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, anchor: str, line: int) -> Node:
        if anchor not in self._anchors:
            raise DocumentError(line, f"*{anchor} refers to an anchor that is not defined before it")
        node = self._anchors[anchor]
        if node is None:
            raise DocumentError(line, f"*{anchor} refers to what it is a part of")
        return node

    @staticmethod
    def _check_tag(event: Any, line: int) -> None:
        if event.tag not in (None, "!", _STR_TAG):
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            raise DocumentError(line, f"the tag {tag} is not allowed: a config holds text, numbers, lists and sections")

    @staticmethod
    def _scalar(event: Any, line: int) -> Scalar:
        text = event.value
        if event.tag is not None or not event.implicit[0]:  # quoted, or !!str
            return Scalar(line, text)
        if text in _WORDS:
            return Scalar(line, _WORDS[text])
        if _INT.fullmatch(text):
            return Scalar(line, int(text))
        return Scalar(line, float(text) if _FLOAT.fullmatch(text) else text)

    def _collection(self, event: Any, line: int) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DocumentError(line, f"is nested deeper than {MAX_DEPTH} levels")
        node = self._sequence(line) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(line)
        self._depth -= 1
        return node

    def _sequence(self, line: int) -> SequenceNode:
        node = SequenceNode(line)
        while not self._loader.check_event(yaml.SequenceEndEvent):
            item = self._node()
            node.items.append(item)
            self._grow(node, item)
        self._loader.get_event()
        return node

    def _mapping(self, line: int) -> Mapping:
        node = Mapping(line)
        merged: list[Node] = []
        while not self._loader.check_event(yaml.MappingEndEvent):
            plain_style = not getattr(self._loader.peek_event(), "style", None)
            key, value = self._node(), self._node()
            self._grow(node, value)
            if isinstance(key, Scalar) and key.value == _MERGE and plain_style:
                merged += value.items if isinstance(value, SequenceNode) else [value]
            else:
                self._add(node, key, value)
        self._loader.get_event()
        self._merge(node, merged)
        return node

    @staticmethod
    def _grow(node: SequenceNode | Mapping, child: Node) -> None:
        """Counts what an alias stands for as often as it is used, or ten short lines could mean a billion values."""
        node.size += child.size
        if node.size > MAX_NODES:
            raise DocumentError(node.line, f"holds more than {MAX_NODES:,} values")

    @staticmethod
    def _add(node: Mapping, key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            raise DocumentError(key.line, "a key is text, not a list or a section")
        if not isinstance(key.value, str):
            shown = {True: "true", False: "false", None: "null"}.get(key.value, key.value)
            raise DocumentError(key.line, f"the key {shown} is not text: put it in quotes")
        if key.value in node.items:
            first = node.key_lines[key.value]
            raise DocumentError(key.line, f"key {key.value!r} is there twice (first in line {first})")
        node.items[key.value] = value
        node.key_lines[key.value] = key.line

    @staticmethod
    def _merge(node: Mapping, merged: Sequence[Node]) -> None:
        for other in merged:
            if not isinstance(other, Mapping):
                raise DocumentError(other.line, "<< takes a section, or a list of sections")
            for key, value in other.items.items():
                if key not in node.items:
                    node.items[key] = value
                    node.key_lines[key] = other.key_lines[key]
