"""Measure each parser: it reads event times and message ids of the same events, encoded in its format. On one core:

    python bench/parsers.py [--json FILE] [--messages N]

Every message has 453 bytes in each format. In the case `1 % bad` every hundredth message has an invalid event time (in
`avro` and `protobuf`, whose schemas allow numbers only, the message is cut off instead). `fastavro, a loop` and
`protobuf, a loop` use the library alone: they read each message and take two fields. `delimited, quoted` has a field
in quotes in every message. With `5 columns`, five fields become typed columns as well.
"""

from __future__ import annotations

import argparse
import atexit
import csv
import functools
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _report import Case, Done, Work, argument_parser, main
from decode import MESSAGE_BYTES, message

CASES = {"clean": 0, "1 % bad": 100}
BATCH = 10_000

COLUMNS = ["event_id", "event_time", "type", "carrier", "flight", "origin", "dest", "passenger", "tier", "price"]
COLUMNS += ["session", "ip", "agent", "note"]


def as_json(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def as_msgpack(event: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(event)


def as_line(event: dict[str, Any]) -> bytes:
    return " ".join(f"{name}={value}" for name, value in event.items()).encode()


def as_record(quoting: int) -> Callable[[dict[str, Any]], bytes]:
    def write(event: dict[str, Any]) -> bytes:
        passenger = event["passenger"]
        flat = {**event, "passenger": passenger["id"], "tier": passenger["tier"]}
        if quoting == csv.QUOTE_MINIMAL:
            flat["agent"] = flat["agent"].replace(";", ",")
        text = io.StringIO()
        csv.writer(
            text, delimiter=";" if quoting == csv.QUOTE_NONE else ",", quoting=quoting, escapechar="\\"
        ).writerow([str(flat[name]).replace(";", ",") for name in COLUMNS])
        return text.getvalue().rstrip("\r\n").encode()

    return write


def avro_schema() -> dict[str, Any]:
    kinds = {"event_time": "long", "flight": "int", "price": "double", "note": ["null", "string"]}
    passenger = [{"name": "id", "type": "long"}, {"name": "tier", "type": "string"}]
    kinds["passenger"] = {"type": "record", "name": "Passenger", "fields": passenger}
    names = [name for name in COLUMNS if name != "tier"]
    return {
        "type": "record",
        "name": "Booking",
        "fields": [{"name": name, "type": kinds.get(name, "string")} for name in names],
    }


@functools.cache
def avro_writer() -> Any:
    import fastavro

    return fastavro.parse_schema(avro_schema())


def as_avro(event: dict[str, Any]) -> bytes:
    import fastavro

    target = io.BytesIO()
    bad = isinstance(event["event_time"], str)
    fastavro.schemaless_writer(target, avro_writer(), event | {"event_time": 0} if bad else event)
    return target.getvalue()[: -1 if bad else None]


def descriptors() -> bytes:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

    text, long, double, message = 9, 3, 1, 11
    kinds = {"event_time": long, "flight": long, "price": double, "passenger": message, "id": long}
    file = FileDescriptorProto(name="booking.proto", package="bench", syntax="proto3")
    names = {"Passenger": ["id", "tier"], "Booking": [name for name in COLUMNS if name != "tier"]}
    for kind, fields in names.items():
        found = file.message_type.add(name=kind)
        for number, name in enumerate(fields, 1):
            found.field.add(
                name=name,
                number=number,
                type=FieldDescriptorProto.Type.ValueType(kinds.get(name, text)),
                type_name=".bench.Passenger" if name == "passenger" else None,
            )
    return FileDescriptorSet(file=[file]).SerializeToString()


@functools.cache
def booking_class() -> Any:
    from google.protobuf.message_factory import GetMessageClass

    from waybill.config.schemas import find_message

    return GetMessageClass(find_message(descriptors(), "bench.Booking"))


def as_protobuf(event: dict[str, Any]) -> bytes:
    bad = isinstance(event["event_time"], str)
    content: bytes = booking_class()(**event | {"event_time": 1} if bad else event).SerializeToString()
    return content[: -1 if bad else None]


def in_file(content: bytes) -> str:
    """Write a file that exists until the benchmark ends, and return its path."""
    file = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
    file.write(content)
    file.close()
    atexit.register(Path(file.name).unlink)
    return file.name


EVENT_TIME = {"field": "event_time", "format": "epoch_ms"}
FIELDS = {"event_time": EVENT_TIME, "message_id": "event_id"}
PATTERN = "^event_id=(?P<event_id>[0-9a-f]*) event_time=(?P<event_time>[^ ]*) "

TYPED = {"carrier": "string", "flight": "int", "origin": "string", "dest": "string", "price": "double"}

SHAPES: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]] = {
    "json": ({"name": "json", **FIELDS}, as_json),
    "raw": ({"name": "raw"}, as_json),
    "msgpack": ({"name": "msgpack", **FIELDS}, as_msgpack),
    "regex": ({"name": "regex", "pattern": PATTERN, **FIELDS}, as_line),
    "delimited": (
        {"name": "delimited", "columns": COLUMNS, "delimiter": ";", **FIELDS},
        as_record(csv.QUOTE_NONE),
    ),
    "delimited, quoted": ({"name": "delimited", "columns": COLUMNS, **FIELDS}, as_record(csv.QUOTE_MINIMAL)),
    "avro": ({"name": "avro", "schema": b"", **FIELDS}, as_avro),
    "avro, 5 columns": ({"name": "avro", "schema": b"", **FIELDS}, as_avro),
    "protobuf": (
        {"name": "protobuf", "descriptor_set": b"", "message": "bench.Booking", **FIELDS},
        as_protobuf,
    ),
    "protobuf, 5 columns": (
        {"name": "protobuf", "descriptor_set": b"", "message": "bench.Booking", **FIELDS},
        as_protobuf,
    ),
    "python": ({"name": "python", "class": "waybill.parsers.examples:KeyTime"}, as_json),
}


SHAPES |= {f"{name}, 5 columns": SHAPES[name] for name in ("json", "msgpack", "delimited")}


def values(write: Callable[[dict[str, Any]], bytes], messages: int, bad_every: int) -> Iterator[bytes]:
    chance = random.Random(7)
    for number in range(messages):
        event = json.loads(message(number, chance))
        if bad_every and number % bad_every == 0:
            event["event_time"] = "yesterday"
        missing = MESSAGE_BYTES - len(write(event))
        event["note"] = (event["note"] + " and so on" * 20)[: max(0, len(event["note"]) + missing)]
        value = write(event)
        # A longer note may need one more byte for its length in MessagePack.
        yield value if len(value) <= MESSAGE_BYTES else write({**event, "note": event["note"][:-2]})


def with_parser(name: str, case: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        import pyarrow as pa
        from pydantic import TypeAdapter

        from waybill.config import Column, ParserConfig
        from waybill.parsers import build_parser
        from waybill.records.decode import MESSAGE_SCHEMA

        config, write = SHAPES[name]
        rows = [
            {"offset": n, "timestamp": n, "key": b"%013d:" % n, "value": value, "headers": []}
            for n, value in enumerate(values(write, arguments.messages, CASES[case]))
        ]
        batches = [
            pa.RecordBatch.from_pylist(rows[start : start + BATCH], schema=MESSAGE_SCHEMA)
            for start in range(0, len(rows), BATCH)
        ]
        size = sum(len(row["value"]) for row in rows)
        typed = TYPED if name.endswith("columns") else {}
        columns = {column: Column.model_validate(kind) for column, kind in typed.items()}
        files = {"schema": lambda: json.dumps(avro_schema()).encode(), "descriptor_set": descriptors}
        config = config | {key: in_file(content()) for key, content in files.items() if key in config}
        parser = build_parser(TypeAdapter(ParserConfig).validate_python(config), columns)

        def work() -> Done:
            refused = sum(len(parsed.error) - parsed.error.null_count for parsed in map(parser.parse, batches))
            return Done(len(rows), size, {"refused": refused})

        return work

    return Case(name, case, prepare)


def by_hand(name: str) -> Case:
    """Return the case of a loop over the messages with the library alone."""

    def prepare(arguments: argparse.Namespace) -> Work:
        import fastavro

        schema, booking = avro_writer(), booking_class()

        def by_fastavro(value: bytes) -> tuple[int, str]:
            found: Any = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
            return found["event_time"], found["event_id"]

        def by_protobuf(value: bytes) -> tuple[int, str]:
            found = booking.FromString(value)
            return found.event_time, found.event_id

        read = {"fastavro": by_fastavro, "protobuf": by_protobuf}[name]
        messages = list(values({"fastavro": as_avro, "protobuf": as_protobuf}[name], arguments.messages, 0))

        def work() -> Done:
            rows = [read(value) for value in messages]
            return Done(len(rows), sum(map(len, messages)))

        return work

    return Case(f"{name}, a loop", "clean", prepare)


def run() -> None:
    parser = argument_parser("parse messages: messages/s and CPU seconds")
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.parse_args()
    cases = [with_parser(name, case) for case in CASES for name in SHAPES]
    cases += [by_hand("fastavro"), by_hand("protobuf")]
    title = f"Parse {arguments.messages:,} messages of {MESSAGE_BYTES} bytes, one core"
    main(title, cases, arguments, baseline="json", passed_on=["--messages", str(arguments.messages)])


if __name__ == "__main__":
    run()
