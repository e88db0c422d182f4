"""Read event time and message id of plain JSON messages by a compiled loop, without a Python object for each message.

The loop checks the whole document (`_json_kernels.find_fields`). A message that it accepts has the same result as by
orjson. All others are left to the other readers: among them those where the event time is neither a whole number
between the years 1 and 9999 nor a text that is a valid time, and those where the message id is neither a text nor a
whole number, null or missing. These texts must be without escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from waybill.config.models import EventTime, EventTimeFormat, FieldPath
from waybill.parsers._json_kernels import JsonKind, Scratch, find_fields
from waybill.parsers.named_fields import Rows, content_of
from waybill.parsers.protocol import Parsed
from waybill.parsers.timestamps import convert_times, convert_whole_numbers, whole_number_bounds
from waybill.records.batches._kernels import fill_bytes

if TYPE_CHECKING:
    _Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    _Int32s = np.ndarray[Any, np.dtype[np.int32]]

_Tree = dict[str, Any]
_NULL_LENGTH = -1


class PlainJsonReader:
    """Reads event time and message id. Created by `for_fields`."""

    def __init__(self, time_format: EventTimeFormat, fields: _Fields) -> None:
        self._time_format = time_format
        self._fields = fields
        self._least, self._most = whole_number_bounds(time_format)

    @classmethod
    def for_fields(cls, event_time: EventTime, message_id: FieldPath | None) -> PlainJsonReader | None:
        """Return a reader of the fields; None if one of them contains the other."""
        fields = _Fields.at([event_time.field, *([] if message_id is None else [message_id])])
        return None if fields is None else cls(event_time.format, fields)

    def read(self, values: pa.Array) -> tuple[Parsed, Rows]:
        """Return the parsed messages, and their rows. The other messages must be read by another reader.

        `values`: a binary array without nulls.
        """
        data, bounds = content_of(values)
        found = _Found(len(values), self._fields)
        if _is_utf8(values):  # the loop does not check that
            found.find(data, bounds)
        usable = found.accepted
        if found.id is not None:
            usable &= found.kinds[found.id] != JsonKind.OTHER
        times, rows = self._times(data, found, usable)
        ids = pa.nulls(len(rows), pa.string()) if found.id is None else found.ids(data, rows)
        return Parsed(times, ids, pa.nulls(len(rows), pa.string())), rows

    def _times(self, data: _Bytes, found: _Found, usable: Any) -> tuple[pa.Array, Rows]:
        """Return the event times of the rows that have one, and these rows."""
        kinds, numbers = found.kinds[found.time], found.numbers[found.time]
        are_numbers = usable & (kinds == JsonKind.INTEGER) & (numbers >= self._least) & (numbers <= self._most)
        are_texts = usable & (kinds == JsonKind.TEXT)
        # A stream usually writes one of the two forms. Messages in the other form are left to the other readers.
        if np.count_nonzero(are_numbers) > np.count_nonzero(are_texts):
            rows = np.flatnonzero(are_numbers)
            return convert_whole_numbers(numbers[rows], self._time_format), rows
        rows = np.flatnonzero(are_texts)
        times, errors = convert_times(found.texts(data, found.time, rows), self._time_format)
        return (times.drop_null(), np.delete(rows, [index for index, _ in errors])) if errors else (times, rows)


class _Fields(NamedTuple):
    """The fields to find, in the form of `find_fields`."""

    numbers: Sequence[int]
    """The index of the event time's field, and of the message id's if the stream has one."""
    names: _Bytes
    entries: Any
    nodes: Any

    @classmethod
    def at(cls, paths: Sequence[FieldPath]) -> _Fields | None:
        """Return the fields at the paths; None if a path leads through another."""
        tree: _Tree = {}
        for *outer, name in paths:
            node: Any = tree
            for step in outer:
                node = node.setdefault(step, {})
                if node is None:
                    return None
            if node.setdefault(name, None) is not None:
                return None
        names = bytearray()
        entries: list[list[int]] = []
        nodes: list[list[int]] = []
        numbers: dict[FieldPath, int] = {}

        def add(node: _Tree, path: FieldPath) -> int:
            number, first_entry, first_field = len(nodes), len(entries), len(numbers)
            nodes.append([first_entry, first_entry + len(node), first_field, 0])
            entries.extend([0, 0, -1, -1] for _ in node)
            for entry, (name, below) in zip(entries[first_entry:], node.items(), strict=True):
                text = name.encode()
                entry[:2] = len(names), len(text)
                names.extend(text)
                if below is None:
                    entry[2] = numbers[*path, name] = len(numbers)
                else:
                    entry[3] = add(below, (*path, name))
            nodes[number][3] = len(numbers)
            return number

        add(tree, ())
        return cls(
            [numbers[tuple(path)] for path in paths],
            np.frombuffer(bytes(names), np.uint8),
            np.array(entries, np.int64),
            np.array(nodes, np.int64),
        )


class _Found:
    """What `find_fields` has found in the messages of a batch."""

    def __init__(self, n: int, fields: _Fields) -> None:
        self._fields = fields
        self.time = fields.numbers[0]
        self.id = fields.numbers[1] if len(fields.numbers) > 1 else None
        shape = len(set(fields.numbers)), n
        self.accepted = np.zeros(n, np.bool_)
        self.kinds = np.zeros(shape, np.uint8)
        self.numbers = np.empty(shape, np.int64)
        self._starts = np.empty(shape, np.int32)
        self._lengths = np.empty(shape, np.int32)

    def find(self, data: _Bytes, bounds: _Int32s) -> None:
        scratch = Scratch(int(np.diff(bounds).max(initial=0)))
        find_fields(
            data,
            bounds,
            self._fields.names,
            self._fields.entries,
            self._fields.nodes,
            self.accepted,
            self.kinds,
            self._starts,
            self._lengths,
            self.numbers,
            scratch.flags,
            scratch.words,
            scratch.stack,
        )

    def ids(self, data: _Bytes, rows: Rows) -> pa.Array:
        """Return the message ids; null for those that are null, missing or empty."""
        assert self.id is not None
        lengths = self._lengths[self.id][rows]
        has_none = (self.kinds[self.id][rows] < JsonKind.INTEGER) | (lengths == 0)
        return _texts(data, self._starts[self.id][rows], np.where(has_none, np.int32(_NULL_LENGTH), lengths))

    def texts(self, data: _Bytes, field: int, rows: Rows) -> pa.Array:
        """Return the texts of a field of `JsonKind.TEXT`."""
        return _texts(data, self._starts[field][rows], self._lengths[field][rows])


def _texts(data: _Bytes, starts: _Int32s, lengths: _Int32s) -> pa.Array:
    """Return the texts at these places; null where the length is -1."""
    n = len(starts)
    nulls = int(np.count_nonzero(lengths == _NULL_LENGTH))
    ends = np.empty(n + 1, np.int32)
    validity = np.zeros((n + 7) // 8 if nulls else 0, np.uint8)
    content = np.empty(int(lengths.sum(dtype=np.int64)) + nulls, np.uint8)
    fill_bytes(data, starts, lengths, n, ends, validity, content)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.string(), n, buffers, null_count=nulls)


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
