"""The parser `protobuf`: messages that are Protobuf messages of one type, decoded by Google's protobuf (upb).

A message goes to quarantine for bytes that are not Protobuf, for a required field (proto2) that is missing, and for a
field whose wire type differs from the schema's, which protobuf itself would treat as an unknown field. Fields that the
schema does not have are ignored: a newer producer may send them.

A field with presence is missing if it is not set. A field without presence (a scalar of proto3 that is not `optional`)
does not show whether it was set to its default, 0 or "". As event time or message id, the default counts as missing; in
a column of another field it is the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from waybill.config.models import Column, FieldPath, ProtobufFraming, ProtobufParser
from waybill.parsers.confluent_framing import CONFLUENT_BYTES, framing_error, message_buffer, schema_ids
from waybill.parsers.documents import MISSING, DocumentFormat, DocumentReader, UnreadableMessage
from waybill.parsers.protocol import Parsed, Reason
from waybill.parsers.timestamps import OutOfRangeTime, shorten

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LAST_EXACT = 2**53
"""Up to this number, floating point numbers represent every whole number."""

_Convert = Callable[[Any], Any]


class ProtobufMessages:
    """The parser `protobuf`: event time, message id and columns are found by field path."""

    name = "protobuf"

    def __init__(self, config: ProtobufParser, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        kind = config.message_type()
        strict_paths = [config.event_time.field, *([config.message_id] if config.message_id else [])]
        read = _MessageReader(kind, strict_paths, [column.path(name) for name, column in columns.items()]).read
        if config.framing is ProtobufFraming.CONFLUENT:
            self._unframed: Callable[[pa.Array], list[Any]] = _Confluent(kind).unframed
        else:
            self._unframed = pa.Array.to_pylist
        document_format = DocumentFormat(read, (DecodeError, RecursionError), Reason.NOT_PROTOBUF, Reason.NOT_A_MAP)
        self._reader = DocumentReader(config.event_time, config.message_id, document_format, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        return self._reader.read(self._unframed(messages.column("value")))


# --- Confluent's wire format ------------------------------------------------------------------------------------------


class _Confluent:
    """Removes the magic byte, the schema's id, and the message indexes, which are the path to the type in its file."""

    def __init__(self, kind: Descriptor) -> None:
        self._name = kind.full_name
        indexes = _indexes(kind)
        # The first type of a file, the most common one, is written as a single 0 instead of a path of length one.
        self._prefixes = [b"\0"] if indexes == [0] else []
        self._prefixes.append(b"".join(_zigzag(number) for number in [len(indexes), *indexes]))

    def unframed(self, column: pa.Array) -> list[Any]:
        values = message_buffer(column)
        ids = schema_ids(values).tolist()
        spans = zip(values.starts.tolist(), values.ends.tolist(), strict=True)
        data: Any = values.data.data
        found: list[Any] = []
        for row, (start, end) in enumerate(spans):
            if ids[row] < 0:
                found.append(framing_error(values, row, Reason.NOT_PROTOBUF))
            else:
                found.append(self._content(bytes(data[start + CONFLUENT_BYTES : end])))
        return found

    def _content(self, value: bytes) -> bytes | UnreadableMessage:
        for prefix in self._prefixes:
            if value.startswith(prefix):
                return value[len(prefix) :]
        return UnreadableMessage(
            Reason.NOT_PROTOBUF, f"its message indexes ({value[:8].hex(' ')}) are not {self._name}'s"
        )


def _indexes(kind: Descriptor) -> list[int]:
    """Return the path to a type in its file: the index of a message in the file, then of a message in that one, etc."""
    if kind.containing_type is None:
        return [list(kind.file.message_types_by_name).index(kind.name)]
    return [*_indexes(kind.containing_type), [each.name for each in kind.containing_type.nested_types].index(kind.name)]


def _zigzag(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


# --- messages ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Selection:
    """The part of a message that a document contains: a tree of field names."""

    whole: bool = False
    """Whether the document contains the whole field, and not only the fields in `below`."""
    strict: bool = False
    """Whether a default without presence counts as missing."""
    below: dict[str, _Selection] = field(default_factory=dict)

    def add(self, path: FieldPath, strict: bool) -> None:
        node = self
        for name in path:
            node = node.below.setdefault(name, _Selection())
        node.whole = True
        node.strict |= strict


class _MessageReader:
    """Decodes messages to documents with the fields to read."""

    def __init__(self, kind: Descriptor, strict_paths: Sequence[FieldPath], columns: Sequence[FieldPath]) -> None:
        """`strict_paths`: the fields of which a default without presence counts as missing."""
        self._class = GetMessageClass(kind)
        self._required = _any_required(kind, set())
        selection = _Selection()
        for paths, strict in ((strict_paths, True), (columns, False)):
            for path in paths:
                selection.add(path, strict)
        self._fill = _filler(kind, selection)

    def read(self, value: bytes | UnreadableMessage) -> dict[str, Any]:
        """Return the document of a message. Raise `DecodeError` or `UnreadableMessage`."""
        if isinstance(value, UnreadableMessage):
            raise value
        message: Any = self._class.FromString(value)
        if self._required and not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise UnreadableMessage(Reason.NOT_PROTOBUF, f"required fields are missing: {missing}")
        return self._fill(message)


_Fill = Callable[[Message], dict[str, Any]]


def _filler(kind: Descriptor, selection: _Selection) -> _Fill:
    """Return the function that converts a message of a type to a document."""
    getters = [(name, _getter(kind.fields_by_name[name], below)) for name, below in selection.below.items()]
    check = _wire_type_check(kind)

    def fill(message: Message) -> dict[str, Any]:
        check(message)
        document = {}
        for name, get in getters:
            value = get(message)
            if value is not MISSING:
                document[name] = value
        return document

    return fill


def _wire_type_check(kind: Descriptor) -> Callable[[Message], None]:
    """Return a function that raises `UnreadableMessage` if a field's wire type differs from the schema's.

    Protobuf treats such a field as unknown, like a field that the schema does not have.
    """
    wire_types = {each.number: _wire_type(each) for each in kind.fields}

    def check(message: Message) -> None:
        unknown: Any = UnknownFieldSet(message)
        if not len(unknown):
            return
        for each in unknown:
            # An unknown value of a closed enum becomes an unknown field as well. Its wire type is correct.
            expected = wire_types.get(each.field_number, each.wire_type)
            if expected != each.wire_type:
                name = f"{kind.fields_by_number[each.field_number].name} of {kind.full_name}"
                detail = f"field {name} has the wire type {each.wire_type}, not {expected}"
                raise UnreadableMessage(Reason.NOT_PROTOBUF, detail)

    return check


def _getter(described: FieldDescriptor, selection: _Selection) -> Callable[[Any], Any]:
    """Return the function that returns the value of a message's field; `MISSING` if it is missing."""
    name, default = described.name, described.default_value
    convert = _converter(described) if selection.whole else _part(described, selection)
    if described.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else MISSING
    if selection.strict and not described.is_repeated:
        return lambda message: convert(value) if (value := getattr(message, name)) != default else MISSING
    return lambda message: convert(getattr(message, name))


def _part(described: FieldDescriptor, selection: _Selection) -> _Convert:
    """Return the converter of a field of which only some fields are read."""
    if not _is_map(described):
        return _filler(_message_type(described), selection)
    value = _message_type(described).fields_by_name["value"]
    getters = {key: _converter(value) if below.whole else _part(value, below) for key, below in selection.below.items()}

    def read(entries: Any) -> dict[str, Any]:
        return {key: get(entries[key]) for key, get in getters.items() if key in entries}

    return read


def _converter(described: FieldDescriptor) -> _Convert:
    """Return the converter of a whole field."""
    if _is_map(described):
        value = _single(_message_type(described).fields_by_name["value"])
        return lambda entries: {_key_text(key): value(entries[key]) for key in entries}
    single = _single(described)
    return (lambda values: list(map(single, values))) if described.is_repeated else single


_known_converter = cache(_converter)
"""Make it once for a field: the time for this grows with the number of fields, and a message may have only two
bytes."""


def _single(described: FieldDescriptor) -> _Convert:
    if described.enum_type is not None:
        numbers = described.enum_type.values_by_number
        return lambda number: numbers[number].name if number in numbers else number
    if described.message_type is None:
        return _utf8 if described.type == FieldDescriptor.TYPE_STRING else lambda value: value
    check = _wire_type_check(described.message_type)
    convert: _Convert = _MESSAGES.get(described.message_type.full_name, _whole_message)

    def read(message: Any) -> Any:
        check(message)
        return convert(message)

    return read


def _utf8(value: str | bytes) -> str:
    """Return a text. Of proto2, protobuf returns a text that is not UTF-8 as bytes, without an error."""
    if type(value) is str:
        return value
    raise UnreadableMessage(Reason.NOT_UTF8, f"a text is {shorten(value)}")


def _key_text(key: Any) -> str:
    """Return the key of a map as the JSON mapping of Protobuf writes it."""
    if type(key) is bool:
        return "true" if key else "false"
    return _utf8(key) if isinstance(key, str | bytes) else str(key)


def _whole_message(message: Any) -> dict[str, Any]:
    """Return all fields that are set in a message."""
    return {described.name: _known_converter(described)(value) for described, value in message.ListFields()}


def _timestamp(message: Any) -> datetime | OutOfRangeTime:
    try:
        return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000)
    except OverflowError:
        return OutOfRangeTime(f"{message.seconds} seconds since 1970")


def _value_of(message: Any) -> Any:
    return message.value


def _struct(message: Any) -> dict[str, Any]:
    return {_utf8(key): _struct_value(message.fields[key]) for key in message.fields}


def _struct_list(message: Any) -> list[Any]:
    return [_struct_value(each) for each in message.values]


def _struct_value(message: Any) -> Any:
    """Return a value of a `Struct`. Its numbers are all floats; a whole one is returned as such while it is exact."""
    kind = message.WhichOneof("kind")
    if kind == "struct_value":
        return _struct(message.struct_value)
    if kind == "list_value":
        return _struct_list(message.list_value)
    if kind == "number_value":
        number = message.number_value
        return int(number) if number.is_integer() and abs(number) <= _LAST_EXACT else number
    if kind == "string_value":
        return _utf8(message.string_value)
    return message.bool_value if kind == "bool_value" else None


_MESSAGES: dict[str, _Convert] = {
    "google.protobuf.Timestamp": _timestamp,
    **{
        f"google.protobuf.{name}Value": _value_of
        for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
    },
    "google.protobuf.Struct": _struct,
    "google.protobuf.Value": _struct_value,
    "google.protobuf.ListValue": _struct_list,
}


def _message_type(described: FieldDescriptor) -> Descriptor:
    assert described.message_type is not None
    return described.message_type


def _is_map(described: FieldDescriptor) -> bool:
    return bool(described.message_type is not None and described.message_type.GetOptions().map_entry)


def _any_required(kind: Descriptor, seen: set[str]) -> bool:
    """Return whether the type, or a type of its fields, has required fields, so that each message must be checked."""
    if kind.full_name in seen:
        return False
    seen.add(kind.full_name)
    below = [each.message_type for each in kind.fields if each.message_type is not None]
    return any(each.is_required for each in kind.fields) or any(_any_required(each, seen) for each in below)


def _wire_type(described: FieldDescriptor) -> int:
    return _WIRE_TYPES.get(described.type, 0)


_WIRE_TYPES: dict[int, int] = {
    **dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), 1),
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE), 2),
    FieldDescriptor.TYPE_GROUP: 3,
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), 5),
}
"""The wire types of field types that are not written as a varint, whose wire type is 0."""
