"""The parser `protobuf`: presence, timestamps, framings, and a reason for each invalid message."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from parsing import batch, check, ids, parse, parser_config, reasons, times
from pydantic import TypeAdapter, ValidationError

from waybill.config.models import Columns, ParserConfig, ProtobufParser
from waybill.config.models.schemas import find_message
from waybill.parsers import build_parser


def field(name: str, number: int, kind: int, **more: Any) -> Field:
    return Field(name=name, number=number, type=kind, label=more.pop("label", Field.LABEL_OPTIONAL), **more)


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """proto3: syntax of every kind of presence."""
    entry = descriptor_pb2.DescriptorProto(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.extend([field("key", 1, Field.TYPE_STRING), field("value", 2, Field.TYPE_STRING)])
    line = descriptor_pb2.DescriptorProto(name="Line")
    line.field.extend([field("sku", 1, Field.TYPE_STRING), field("count", 2, Field.TYPE_SINT32)])
    order = descriptor_pb2.DescriptorProto(name="Order", nested_type=[line, entry])
    order.enum_type.add(name="State").value.extend(
        [descriptor_pb2.EnumValueDescriptorProto(name=n, number=i) for i, n in enumerate(["NEW", "PAID"])]
    )
    order.oneof_decl.add(name="_note")
    order.field.extend(
        [
            field("id", 1, Field.TYPE_STRING),
            field("at", 2, Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
            field("at_ms", 3, Field.TYPE_INT64),
            field("state", 4, Field.TYPE_ENUM, type_name=".shop.Order.State"),
            field("note", 5, Field.TYPE_STRING, proto3_optional=True, oneof_index=0),
            field("lines", 6, Field.TYPE_MESSAGE, type_name=".shop.Order.Line", label=Field.LABEL_REPEATED),
            field("first", 7, Field.TYPE_MESSAGE, type_name=".shop.Order.Line"),
            field("tags", 8, Field.TYPE_MESSAGE, type_name=".shop.Order.TagsEntry", label=Field.LABEL_REPEATED),
            field("weight", 9, Field.TYPE_MESSAGE, type_name=".google.protobuf.DoubleValue"),
            field("numbers", 10, Field.TYPE_INT32, label=Field.LABEL_REPEATED),
            field("price", 11, Field.TYPE_DOUBLE),
            field("raw", 12, Field.TYPE_BYTES),
            field("no", 13, Field.TYPE_INT32),
        ]
    )
    return descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
        message_type=[descriptor_pb2.DescriptorProto(name="Other"), order],
    )


def legacy_file() -> descriptor_pb2.FileDescriptorProto:
    """proto2: required fields, defaults, a closed enum."""
    event = descriptor_pb2.DescriptorProto(name="Event")
    event.enum_type.add(name="Kind").value.add(name="A", number=0)
    event.field.extend(
        [
            field("id", 1, Field.TYPE_STRING, label=Field.LABEL_REQUIRED),
            field("at", 2, Field.TYPE_INT64, default_value="5"),
            field("kind", 3, Field.TYPE_ENUM, type_name=".legacy.Event.Kind"),
        ]
    )
    return descriptor_pb2.FileDescriptorProto(name="legacy.proto", package="legacy", message_type=[event])


def descriptor_set() -> bytes:
    imported = []
    for module in (timestamp_pb2, wrappers_pb2, duration_pb2):
        copy = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(copy)
        imported.append(copy)
    return descriptor_pb2.FileDescriptorSet(file=[*imported, order_file(), legacy_file()]).SerializeToString()


SET = descriptor_set()
Order: Any = GetMessageClass(find_message(SET, "shop.Order"))
Event: Any = GetMessageClass(find_message(SET, "legacy.Event"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("protobuf") / "orders.desc"
    path.write_bytes(SET)
    return path


def config(path: Path, **keys: object) -> ParserConfig:
    usual = {"name": "protobuf", "descriptor_set": str(path), "message": "shop.Order"}
    return parser_config(**usual | {"event_time": {"field": "at"}, "message_id": "id"} | keys)


def order(seconds: int = 1, **fields: Any) -> bytes:
    message = Order(**fields)
    message.at.seconds = seconds
    content: bytes = message.SerializeToString()
    return content


@pytest.mark.parametrize("written", ["iso8601", "epoch_ns"])
def test_a_timestamp_is_used_as_event_time_whatever_the_format(path: Path, written: str) -> None:
    message = Order(id="a")
    message.at.FromNanoseconds(-1)
    values = [order(id="b"), message.SerializeToString(), order(-62_135_596_800), order(253_402_300_799)]
    parsed = parse(config(path, event_time={"field": "at", "format": written}), *values, order(2**62), order(-(2**40)))
    assert times(parsed)[:4] == [1_000_000, -1, -62_135_596_800_000_000, 253_402_300_799_000_000]
    assert reasons(parsed)[4:] == ["event_time_out_of_range"] * 2
    assert ids(parsed)[:3] == ["b", "a", None]


def test_a_field_that_is_not_set_is_missing(path: Path) -> None:
    """A field without presence says 0 both where it is 0 and where nobody has set it."""
    parsed = parse(config(path), Order(id="a").SerializeToString(), b"")
    assert parsed.error.to_pylist() == ["event_time_missing: field at is missing"] * 2
    by_ms = config(path, event_time={"field": "at_ms", "format": "epoch_ms"}, message_id="no")
    parsed = parse(by_ms, Order(at_ms=1, no=7).SerializeToString(), Order(at_ms=1, no=0).SerializeToString(), b"")
    assert times(parsed) == [1_000, 1_000, None]
    assert ids(parsed)[:2] == ["7", None]
    assert reasons(parsed) == [None, None, "event_time_missing"]


def test_field_paths_lead_through_messages_and_maps(path: Path) -> None:
    by_sku = config(path, message_id="first.sku")
    assert ids(parse(by_sku, order(first={"sku": "s"}), order())) == ["s", None]
    by_tag = config(path, message_id=["tags", "a.b"])
    assert ids(parse(by_tag, order(tags={"a.b": "t"}), order())) == ["t", None]


def test_each_invalid_message_goes_to_quarantine_with_its_reason(path: Path) -> None:
    good = order(id="a")
    parsed = parse(
        config(path),
        good,
        good[:-1],
        good + b"\x0a",
        b'{"id": "a"}',
        b"\x0a\x01\xff" + good,
        b"\x08\x01" + good,  # id as a varint
        good + b"\xa0\x06\x01",  # a field 100: a newer producer's
        b"\x12\x02\x0a\x00",  # at.seconds as bytes
        good,
    )
    assert reasons(parsed) == [None, *["not_protobuf"] * 5, None, "not_protobuf", None]
    errors = parsed.error.to_pylist()
    assert errors[5] == "not_protobuf: field id of shop.Order has the wire type 0, not 2"


def test_proto2_required_and_optional_fields_are_checked(path: Path) -> None:
    legacy = config(path, message="legacy.Event", event_time={"field": "at", "format": "epoch_s"})
    full = Event(id="a", at=1).SerializeToString()
    unknown_enum = full + b"\x18\x63"
    parsed = parse(legacy, full, unknown_enum, Event(id="a").SerializeToString(), b"\x10\x01", full + b"\x1a\x00")
    assert times(parsed)[:2] == [1_000_000] * 2
    assert parsed.error.to_pylist()[2:] == [
        "event_time_missing: field at is missing",  # a default is no event time
        "not_protobuf: required fields are missing: id",
        "not_protobuf: field kind of legacy.Event has the wire type 2, not 0",
    ]


@given(st.lists(st.binary(), min_size=1, max_size=5))
def test_random_bytes_give_a_message_or_a_reason(path: Path, values: list[bytes]) -> None:
    check(build_parser(config(path)).parse(batch(*values)), len(values))


def test_confluents_wire_format_is_read(path: Path) -> None:
    framed = config(path, framing="confluent")
    head = b"\0" + struct.pack(">I", 70_000)
    good = head + b"\x02\x02" + order(id="a")  # the second message of its file
    other = head + b"\x00" + order(id="a")
    parsed = parse(framed, good, other, order(id="a"), b"\0\0", b"", head, good)
    assert reasons(parsed) == [None, *["not_protobuf"] * 5, None]
    assert parsed.error.to_pylist()[1:5] == [
        f"not_protobuf: its message indexes ({other[5:13].hex(' ')}) are not shop.Order's",
        "not_protobuf: starts with 0x0a, not with the magic byte 0x00",
        "not_protobuf: 2 bytes are fewer than a magic byte and a schema id",
        "not_protobuf: 0 bytes are fewer than a magic byte and a schema id",
    ]
    nested = config(
        path, framing="confluent", message="shop.Order.Line", event_time={"field": "count"}, message_id=None
    )
    assert reasons(parse(nested, head + b"\x04\x02\x00" + b"\x0a\x01a")) == ["event_time_missing"]
    first = config(path, framing="confluent", message="legacy.Event", event_time={"field": "at", "format": "epoch_s"})
    event = Event(id="a", at=1).SerializeToString()
    assert times(parse(first, head + b"\x00" + event, head + b"\x02\x00" + event)) == [1_000_000] * 2


def test_columns_of_every_type_are_read(path: Path) -> None:
    kinds = {
        "state": "string", "note": "string", "no": "int", "price": "double", "raw": "binary", "weight": "double",
        "numbers": "list<int>", "tags": "json", "lines": "json", "first.count": "long", "at": "timestamp",
    }  # fmt: skip
    columns: Columns = TypeAdapter(Columns).validate_python(
        {f"c_{name.replace('.', '_')}": {"type": kind, "field": name} for name, kind in kinds.items()}
    )
    message = Order(id="a", state=1, price=1.5, raw=b"r", numbers=[1, 0], tags={"k": "v"})
    message.at.seconds = 1
    message.weight.value = 0.0
    message.first.sku = "s"
    message.lines.add(sku="x", count=-2)
    parsed = build_parser(config(path), columns).parse(batch(message.SerializeToString(), order()))
    check(parsed, 2)
    found = {name.removeprefix("c_"): column.to_pylist() for name, column in parsed.columns.items()}
    assert found == {
        "state": ["PAID", "NEW"],
        "note": [None, None],  # has presence, and is not set
        "no": [0, 0],  # has none: a default is its value
        "price": [1.5, 0.0],
        "raw": [b"r", b""],
        "weight": [0.0, None],
        "numbers": [[1, 0], []],
        "tags": ['{"k":"v"}', "{}"],
        "lines": ['[{"sku":"x","count":-2}]', "[]"],
        "first_count": [0, None],
        "at": [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 2,
    }


def test_a_dumped_config_contains_the_descriptors_and_needs_no_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "copy.desc"
    file.write_bytes(path.read_bytes())
    chosen = config(file)
    dumped = chosen.model_dump(mode="json")
    file.unlink()
    again: ParserConfig = TypeAdapter(ParserConfig).validate_python(dumped)
    assert again == chosen
    assert isinstance(again, ProtobufParser)
    assert times(parse(again, order())) == [1_000_000]


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"descriptor_set": "nowhere.desc"}, "nowhere.desc cannot be read: No such file or directory"),
        ({"message": "shop.Ordre"}, ", which has: shop.Order, shop.Order.Line"),
        ({"message": "Order"}, ", which has: "),
        ({"message": "shop order"}, "must be the full name of a message type"),
        ({"message": "shop.Order.TagsEntry.key"}, ", which has: "),
        ({"event_time": {"field": "att"}}, "is not in the schema; the fields at that level are: id, at, at_ms"),
        ({"message_id": "first.name"}, "is not in the schema; the fields at that level are: sku, count"),
        ({"message_id": "lines.sku"}, "is not in the schema; the fields at that level are: none"),
        ({"framing": "single_object"}, "Input should be 'none' or 'confluent'"),
    ],
)
def test_loading_refuses_invalid_parser_keys(path: Path, keys: dict[str, object], error: str) -> None:
    with pytest.raises(ValidationError) as raised:
        config(path, **keys)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "is not a descriptor set (protoc --include_imports --descriptor_set_out=…): it contains no files"),
        (b'syntax = "proto3";', "is not a descriptor set (protoc --include_imports --descriptor_set_out=…): "),
        (
            descriptor_pb2.FileDescriptorSet(file=[order_file()]).SerializeToString(),
            "cannot be used (was it written without --include_imports?): order.proto: ",
        ),
    ],
)
def test_loading_refuses_a_file_without_a_descriptor_set(tmp_path: Path, content: bytes, error: str) -> None:
    (tmp_path / "x.desc").write_bytes(content)
    with pytest.raises(ValidationError) as raised:
        config(tmp_path / "x.desc")
    assert error in str(raised.value)
