"""Messages of the parser `protobuf`, compared with Google's protobuf, whose fields are read one by one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, text, varint
from fuzzers.targets.parsed import columns_of, parse, parser_config
from waybill.config.models import EventTimeFormat
from waybill.config.models.base import EmbeddedFile
from waybill.config.models.schemas import find_message
from waybill.parsers import Parser, build_parser
from waybill.parsers.timestamps import BadEventTime, to_microseconds

_COLUMNS = columns_of(
    id="string", at="long", price="double", state="string", big="decimal(20,0)", raw="binary", line="json", lines="json",
    tags="json", counts="json", any="json", when="timestamp",
)  # fmt: skip
_read_time = to_microseconds(EventTimeFormat.EPOCH_MILLISECONDS)


def _field(name: str, number: int, kind: Any, type_name: str = "", *, repeated: bool = False) -> Field:
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    return Field(name=name, number=number, type=kind, type_name=type_name or None, label=label)


def _map_entry(name: str, key: Any) -> descriptor_pb2.DescriptorProto:
    entry = descriptor_pb2.DescriptorProto(name=name, options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.extend([_field("key", 1, key), _field("value", 2, Field.TYPE_STRING)])
    return entry


@cache
def _descriptor_set() -> bytes:
    line = descriptor_pb2.DescriptorProto(name="Line")
    line.field.extend([
        _field("sku", 1, Field.TYPE_STRING), _field("n", 2, Field.TYPE_SINT32), _field("again", 3, Field.TYPE_MESSAGE, ".f.M.Line"),
        _field("state", 4, Field.TYPE_ENUM, ".f.M.State"), _field("weight", 5, Field.TYPE_DOUBLE),
    ])  # fmt: skip
    entries = [_map_entry("TagsEntry", Field.TYPE_STRING), _map_entry("CountsEntry", Field.TYPE_BOOL)]
    message = descriptor_pb2.DescriptorProto(name="M", nested_type=[line, *entries])
    values = [
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate(["NEW", "PAID"])
    ]
    message.enum_type.add(name="State").value.extend(values)
    message.field.extend([
        _field("id", 1, Field.TYPE_STRING), _field("at", 2, Field.TYPE_INT64), _field("price", 3, Field.TYPE_DOUBLE),
        _field("state", 4, Field.TYPE_ENUM, ".f.M.State"), _field("big", 5, Field.TYPE_UINT64), _field("raw", 6, Field.TYPE_BYTES),
        _field("line", 7, Field.TYPE_MESSAGE, ".f.M.Line"), _field("lines", 8, Field.TYPE_MESSAGE, ".f.M.Line", repeated=True),
        _field("tags", 9, Field.TYPE_MESSAGE, ".f.M.TagsEntry", repeated=True),
        _field("counts", 10, Field.TYPE_MESSAGE, ".f.M.CountsEntry", repeated=True),
        _field("any", 11, Field.TYPE_MESSAGE, ".google.protobuf.Struct"),
        _field("when", 12, Field.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
    ])  # fmt: skip
    ours = descriptor_pb2.FileDescriptorProto(
        name="f.proto", package="f", syntax="proto3", message_type=[message],
        dependency=["google/protobuf/struct.proto", "google/protobuf/timestamp.proto"],
    )  # fmt: skip
    files = []
    for module in (struct_pb2, timestamp_pb2):
        known = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(known)
        files.append(known)
    return descriptor_pb2.FileDescriptorSet(file=[*files, ours]).SerializeToString()


@cache
def parser() -> Parser:
    file = EmbeddedFile("fuzz.desc", _descriptor_set())
    config = parser_config(
        name="protobuf",
        descriptor_set=file,
        message="f.M",
        event_time={"field": "at", "format": "epoch_ms"},
        message_id="id",
    )
    return build_parser(config, _COLUMNS)


@cache
def _class() -> Any:
    return GetMessageClass(find_message(_descriptor_set(), "f.M"))


_TOKENS = [varint(n << 3 | kind) for n in (1, 2, 7, 8, 11, 12, 99) for kind in range(6)]
_TOKENS += [b"\x3a\x02\x1a\x00", b"\x80" * 9 + b"\1", b"\xff", bytes.fromhex("120911000000000000f87f"), varint(1 << 40)]


def _make(chance: random.Random) -> bytes:
    message: Any = _class()(id=text(chance, 4), at=chance.choice([1, 1_700_000_000_000, 0, -1, 2**62]))
    for name, value in (
        ("price", chance.choice([0.5, math.nan, math.inf])), ("state", chance.choice([0, 1, 2, -1, 2**31 - 1])),
        ("big", abs(edge(chance)) % 2**64), ("raw", chance.randbytes(3)),
    ):  # fmt: skip
        if chance.random() < 0.4:
            setattr(message, name, value)
    if chance.random() < 0.5:
        line = message.line
        for _ in range(chance.choice([1, 1, 2, 60])):
            line.sku, line.weight = text(chance, 3), chance.choice([0.0, 1.5, math.nan])
            line.state = chance.choice([0, 1, 7])
            line = line.again
    for _ in range(chance.choice([0, 0, 1, 3])):
        message.lines.add(n=max(-(2**31), min(edge(chance), 2**31 - 1)))
        message.tags[text(chance, 3)] = text(chance, 3)
        message.counts[chance.random() < 0.5] = "x"
    if chance.random() < 0.4:
        number = chance.choice([1.5, math.nan, math.inf, -math.inf])
        message.any.fields["n"].number_value = number
        message.any.fields[text(chance, 3)].string_value = text(chance, 3)
    if chance.random() < 0.3:
        message.when.seconds, message.when.nanos = edge(chance) % 2**62, chance.choice([0, -1, 2**31 - 1])
    written: bytes = message.SerializeToString()
    return written if chance.random() < 0.5 else Mutator([written], _TOKENS).changed(written, chance)


def _check(inputs: Sequence[bytes]) -> None:
    """Oracle: Google's protobuf, field by field, and its JSON numbers: a JSON column holds no NaN."""
    for value, row in zip(inputs, parse(parser(), inputs, _COLUMNS), strict=True):
        try:
            message: Any = _class().FromString(value)
        except DecodeError:
            assert row["error"] is not None, value
            assert row["error"].startswith("not_protobuf"), (value, row)
            continue
        if row["error"] is not None:
            continue
        try:
            assert row["time"] == _read_time(message.at), value
        except BadEventTime as error:
            raise AssertionError(value) from error
        assert row["id"] == (message.id or None), value
        assert row["price"] == message.price or math.isnan(message.price), value
        assert row["state"] == {0: "NEW", 1: "PAID"}.get(message.state), value
        assert (row["big"] or 0) == message.big, value
        assert (row["raw"] or b"") == message.raw, value
        for name in ("line", "lines", "tags", "counts", "any"):
            if row[name] is not None:
                json.loads(row[name], parse_constant=_no_number)


def _no_number(name: str) -> Any:
    raise AssertionError(f"a JSON text holds {name}")


PROTOBUF = Target("protobuf", _make, _check)
