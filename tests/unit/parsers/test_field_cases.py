"""Inputs from the field: bug reports of other projects, and attacks on the decoders."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from hypothesis import given
from hypothesis import strategies as st
from parsing import batch, ids, parse, parser_config, reasons, times

from waybill.config.models import ParserConfig
from waybill.config.models.columns import Column
from waybill.parsers import build_parser

AT = {"field": "at", "format": "epoch_ms"}


def regex() -> ParserConfig:
    return parser_config(name="regex", pattern="^(?P<at>[0-9]+) (?P<id>.+)$", event_time=AT, message_id="id")


def test_a_byte_order_mark_is_no_part_of_a_text() -> None:
    delimited = parser_config(name="delimited", columns=["id", "at"], event_time=AT, message_id="id")
    marked = parse(delimited, b"\xef\xbb\xbfa,1", b"a,2", b"\xef\xbb\xbf\xef\xbb\xbfb,3")
    assert (times(marked), ids(marked)) == ([1000, 2000, 3000], ["a", "a", "\ufeffb"])
    assert ids(parse(regex(), b"\xef\xbb\xbf1 a")) == ["a"]


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("at", b'{"At": 1}', "event_time_missing: field at is missing; there is a field `At`"),
        ("at", b'{"AT": 1, "b": 2}', "event_time_missing: field at is missing; there is a field `AT`"),
        ("at", b'{"b": 2}', "event_time_missing: field at is missing"),
        ("time.at", b'{"time": {"aT": 1}}', "event_time_missing: field time.at is missing; there is a field `time.aT`"),
        ("time.at", b'{"Time": {"at": 1}}', "event_time_missing: field time.at is missing; there is a field `Time`"),
        ("time.at", b'{"time": 7}', "event_time_missing: field time.at is missing"),
    ],
)
def test_a_missing_field_is_told_with_the_field_of_another_case(name: str, value: bytes, hint: str) -> None:
    json = parser_config(name="json", event_time={"field": name, "format": "epoch_ms"})
    assert parse(json, value).error.to_pylist() == [hint]


@given(st.integers(201, 3000), st.sampled_from([b"1", b"1.", b"1e111", b"-1"]))
def test_long_digits_in_a_text_are_text(count: int, digits: bytes) -> None:
    json = parser_config(name="json", event_time=AT, message_id="id")
    value = digits * count
    parsed = parse(json, b'{"at": 1, "id": "' + value + b'"}', b'{"at": 2, "id": "b"}')
    assert (times(parsed), ids(parsed)) == ([1000, 2000], [value.decode(), "b"])


def test_eight_megabytes_of_digits_are_read_once() -> None:
    """The search for huge numbers took 13 s for one megabyte, and four times as long for twice as much."""
    json = parser_config(name="json", event_time=AT)
    value = b'{"at": 1, "a": "' + b"1" * (8 << 20) + b'"}'
    assert times(parse(json, value)) == [1000]


# --- Protobuf ---------------------------------------------------------------------------------------------------------


def field(name: str, number: int, kind: int, **more: object) -> Field:
    return Field(name=name, number=number, type=kind, **({"label": Field.LABEL_OPTIONAL} | more))


NOT_A_NUMBER = bytes.fromhex("1a100a0e0a0161120911000000000000f87f")
"""A `Struct` as the field `doc`, with NaN as `a`."""


def protobuf(tmp_path: Path, syntax: str) -> tuple[ParserConfig, dict[str, Column]]:
    """Return a parser of messages with a text, a `Struct` and maps, whose columns are JSON."""
    structs = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(structs)
    entries = []
    for name, key in (("TextsEntry", Field.TYPE_STRING), ("FlagsEntry", Field.TYPE_BOOL)):
        entry = descriptor_pb2.DescriptorProto(name=name, options=descriptor_pb2.MessageOptions(map_entry=True))
        entry.field.extend([field("key", 1, key), field("value", 2, Field.TYPE_INT32)])
        entries.append(entry)
    event = descriptor_pb2.DescriptorProto(name="Event", nested_type=entries)
    event.field.extend(
        [
            field("at", 1, Field.TYPE_INT64),
            field("text", 2, Field.TYPE_STRING),
            field("doc", 3, Field.TYPE_MESSAGE, type_name=".google.protobuf.Struct"),
            field("texts", 4, Field.TYPE_MESSAGE, type_name=".a.Event.TextsEntry", label=Field.LABEL_REPEATED),
            field("flags", 5, Field.TYPE_MESSAGE, type_name=".a.Event.FlagsEntry", label=Field.LABEL_REPEATED),
        ]
    )
    file = descriptor_pb2.FileDescriptorProto(
        name="event.proto", package="a", syntax=syntax, dependency=[structs.name], message_type=[event]
    )
    path = tmp_path / f"{syntax}.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[structs, file]).SerializeToString())
    config = parser_config(name="protobuf", descriptor_set=str(path), message="a.Event", event_time=AT)
    return config, {name: Column.model_validate("json") for name in ("text", "doc", "texts", "flags")}


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NOT_A_NUMBER, "column_wrong_type"),
        (b"\x12\x01\xff", "not_utf8"),
        (b"\x22\x05\x0a\x01\xff\x10\x01", "not_utf8"),  # the key of a map
    ],
)
def test_a_value_that_protobuf_accepts_and_json_does_not_hold_is_in_quarantine(
    tmp_path: Path, syntax: str, value: bytes, kind: str
) -> None:
    config, columns = protobuf(tmp_path, syntax)
    good = b"\x08\x01"
    parsed = build_parser(config, columns).parse(batch(good, good + value, good))
    found = reasons(parsed)
    assert [found[0], found[2]] == [None, None]
    assert found[1] == ("not_protobuf" if kind == "not_utf8" and syntax == "proto3" else kind)  # protobuf checks proto3


def test_keys_of_maps_are_written_as_the_json_mapping_of_protobuf_does(tmp_path: Path) -> None:
    config, columns = protobuf(tmp_path, "proto3")
    parsed = build_parser(config, columns).parse(batch(b"\x08\x01\x2a\x04\x08\x01\x10\x07"))
    assert parsed.columns["flags"].to_pylist() == ['{"true":7}']


@given(value=st.binary(max_size=40), syntax=st.sampled_from(["proto2", "proto3"]))
def test_no_bytes_make_a_protobuf_parser_raise(
    tmp_path_factory: pytest.TempPathFactory, value: bytes, syntax: str
) -> None:
    config, columns = protobuf(tmp_path_factory.mktemp("protobuf"), syntax)
    parsed = build_parser(config, columns).parse(batch(b"\x08\x01" + value))
    assert len(parsed.error) == 1
    assert reasons(parsed) != ["parser_failed"]
