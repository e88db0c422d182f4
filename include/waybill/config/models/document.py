"""Parse a YAML text to plain values, with the line of every key.

libyaml splits the text into events, and this module builds nodes from them. Scalars follow the core schema of YAML 1.2;
anchors, aliases and merge keys (`<<`) work; tags, duplicate keys, keys that are not text, and deep or huge documents
are refused with their line. PyYAML's own loaders let a second key win silently, read `no` as a boolean and `1:30` as
the number 90 (YAML 1.1), and end the process on a hundred thousand levels of nesting.

ruamel.yaml was measured in place of this module. It refuses duplicate keys and knows YAML 1.2, but its import takes
150 to 230 ms (PyYAML is already imported by Airflow) and 50 streams take 78 ms instead of 4 ms, for every lane, each
minute. It reads `0x1f`, `1_000` and `2026-01-31` as numbers and a date, accepts tags and keys that are not text, loses
the lines of merged keys, and raises `RecursionError` on deep nesting, so most of this code would remain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_DEPTH = 32
"""The levels of nesting that are allowed. The models have six."""

MAX_NODES = 1_000_000
"""The keys and values that are allowed, with aliases expanded. It is enough for 20,000 streams."""

_STR_TAG, _MERGE = "tag:yaml.org,2002:str", "<<"
_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that YAML does not allow."""
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

# libyaml is ten times as fast as PyYAML's own parser. The DAG processor loads the config every few seconds.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(Exception):
    """The text is not YAML, or contains something that a config must not. `line` counts from 1; None if unknown."""

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
    """Return the values of a document as dicts, lists and scalars."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items.items()}
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.items]
    return node.value


def parse_document(text: str) -> Node | None:
    """Return the one document in `text`; None if it contains only comments.

    Raise `DocumentError` if it is not YAML, or contains something that a config must not: see the module.
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
    """Builds nodes from libyaml's events. `MAX_DEPTH` bounds its recursion; libyaml's own composer has no bound."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._anchors: dict[str, Node | None] = {}  # None: the node is not complete yet
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
            raise DocumentError(line, "contains a second document, and a config is one document")
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
            raise DocumentError(line, f"*{anchor} refers to a node that contains it")
        return node

    @staticmethod
    def _check_tag(event: Any, line: int) -> None:
        if event.tag not in (None, "!", _STR_TAG):
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            raise DocumentError(
                line, f"the tag {tag} is not allowed: a config contains text, numbers, lists and sections"
            )

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
        """Add the size of `child`. An alias counts at each use: ten lines of aliases can mean a billion values."""
        node.size += child.size
        if node.size > MAX_NODES:
            raise DocumentError(node.line, f"contains more than {MAX_NODES:,} values")

    @staticmethod
    def _add(node: Mapping, key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            raise DocumentError(key.line, "a key must be text, not a list or a section")
        if not isinstance(key.value, str):
            shown = {True: "true", False: "false", None: "null"}.get(key.value, key.value)
            raise DocumentError(key.line, f"the key {shown} is not text: put it in quotes")
        if key.value in node.items:
            first = node.key_lines[key.value]
            raise DocumentError(key.line, f"key {key.value!r} is given twice (first in line {first})")
        node.items[key.value] = value
        node.key_lines[key.value] = key.line

    @staticmethod
    def _merge(node: Mapping, merged: Sequence[Node]) -> None:
        for other in merged:
            if not isinstance(other, Mapping):
                raise DocumentError(other.line, "<< needs a section, or a list of sections")
            for key, value in other.items.items():
                if key not in node.items:
                    node.items[key] = value
                    node.key_lines[key] = other.key_lines[key]
