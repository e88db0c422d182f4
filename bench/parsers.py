"""Parse event times and message ids of the same events, encoded for each parser, on one core.

    python bench/parsers.py [--messages N] [--case NAME_OR_VARIANT] [--repeats N] [--json FILE]
    python bench/parsers.py --only NAME VARIANT

Every message has 453 bytes in each format. In the variant `1 % bad` every hundredth message has an invalid event time
(in `avro` and `protobuf`, whose schemas allow numbers only, the message is cut off instead). `fastavro, a loop` and
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
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from events import MESSAGE_BYTES, messages
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json

Event = dict[str, Any]
Encode = Callable[[Event], bytes]

VARIANTS = {"clean": 0, "1 % bad": 100}
BATCH_ROWS = 10_000
COLUMNS = ["event_id", "event_time", "type", "carrier", "flight", "origin", "dest", "passenger", "tier", "price"]
COLUMNS += ["session", "ip", "agent", "note"]
AVRO_FIELDS = [name for name in COLUMNS if name != "tier"]
TYPED_COLUMNS = {"carrier": "string", "flight": "int", "origin": "string", "dest": "string", "price": "double"}


# --- encoders ---------------------------------------------------------------------------------------------------------


def as_json(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def as_msgpack(event: Event) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(event)


def as_line(event: Event) -> bytes:
    return " ".join(f"{name}={value}" for name, value in event.items()).encode()


def as_delimited(delimiter: str, quoting: int, event: Event) -> bytes:
    flat = {**event, "passenger": event["passenger"]["id"], "tier": event["passenger"]["tier"]}
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, escapechar="\\")
    writer.writerow([str(flat[name]).replace(";", ",") for name in COLUMNS])
    return text.getvalue().rstrip("\r\n").encode()


def avro_schema() -> dict[str, Any]:
    kinds: dict[str, Any] = {"event_time": "long", "flight": "int", "price": "double", "note": ["null", "string"]}
    passenger = [{"name": "id", "type": "long"}, {"name": "tier", "type": "string"}]
    kinds["passenger"] = {"type": "record", "name": "Passenger", "fields": passenger}
    fields = [{"name": name, "type": kinds.get(name, "string")} for name in AVRO_FIELDS]
    return {"type": "record", "name": "Booking", "fields": fields}


@functools.cache
def parsed_avro_schema() -> Any:
    import fastavro

    return fastavro.parse_schema(avro_schema())


def as_avro(event: Event) -> bytes:
    import fastavro

    target = io.BytesIO()
    bad = isinstance(event["event_time"], str)
    fastavro.schemaless_writer(target, parsed_avro_schema(), event | {"event_time": 0} if bad else event)
    return target.getvalue()[: -1 if bad else None]


def protobuf_descriptors() -> bytes:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

    text, long, double, message = 9, 3, 1, 11
    kinds = {"event_time": long, "flight": long, "price": double, "passenger": message, "id": long}
    file = FileDescriptorProto(name="booking.proto", package="bench", syntax="proto3")
    for kind, fields in {"Passenger": ["id", "tier"], "Booking": AVRO_FIELDS}.items():
        message_type = file.message_type.add(name=kind)
        for number, name in enumerate(fields, 1):
            message_type.field.add(
                name=name,
                number=number,
                type=FieldDescriptorProto.Type.ValueType(kinds.get(name, text)),
                type_name=".bench.Passenger" if name == "passenger" else None,
            )
    return FileDescriptorSet(file=[file]).SerializeToString()


@functools.cache
def booking_class() -> Any:
    from google.protobuf.message_factory import GetMessageClass

    from waybill.config.models.schemas import find_message

    return GetMessageClass(find_message(protobuf_descriptors(), "bench.Booking"))


def as_protobuf(event: Event) -> bytes:
    bad = isinstance(event["event_time"], str)
    content: bytes = booking_class()(**event | {"event_time": 1} if bad else event).SerializeToString()
    return content[: -1 if bad else None]


def encoded_messages(encode: Encode, count: int, bad_every: int) -> list[bytes]:
    """Return the events in a format, with notes as long as makes each of them 453 bytes."""
    values = []
    for number, content in enumerate(messages(count)):
        event = json.loads(content)
        if bad_every and number % bad_every == 0:
            event["event_time"] = "yesterday"
        missing = MESSAGE_BYTES - len(encode(event))
        event["note"] = (event["note"] + " and so on" * 20)[: max(0, len(event["note"]) + missing)]
        value = encode(event)
        # A longer note may need one more byte for its length in MessagePack.
        values.append(value if len(value) <= MESSAGE_BYTES else encode({**event, "note": event["note"][:-2]}))
    return values


# --- parsers ----------------------------------------------------------------------------------------------------------

FIELDS = {"event_time": {"field": "event_time", "format": "epoch_ms"}, "message_id": "event_id"}
PATTERN = "^event_id=(?P<event_id>[0-9a-f]*) event_time=(?P<event_time>[^ ]*) "
DELIMITED = {"name": "delimited", "columns": COLUMNS, **FIELDS}
PARSERS: dict[str, tuple[dict[str, Any], Encode]] = {
    "json": ({"name": "json", **FIELDS}, as_json),
    "raw": ({"name": "raw"}, as_json),
    "msgpack": ({"name": "msgpack", **FIELDS}, as_msgpack),
    "regex": ({"name": "regex", "pattern": PATTERN, **FIELDS}, as_line),
    "delimited": ({**DELIMITED, "delimiter": ";"}, partial(as_delimited, ";", csv.QUOTE_NONE)),
    "delimited, quoted": (DELIMITED, partial(as_delimited, ",", csv.QUOTE_MINIMAL)),
    "avro": ({"name": "avro", "schema": b"", **FIELDS}, as_avro),
    "protobuf": ({"name": "protobuf", "descriptor_set": b"", "message": "bench.Booking", **FIELDS}, as_protobuf),
}
"""The parser's config, and the encoder of its messages, by name; schemas are filled in as files."""

for _name in ("json", "msgpack", "delimited", "avro", "protobuf"):
    PARSERS[f"{_name}, 5 columns"] = PARSERS[_name]


def waybill_parser(name: str, variant: str, arguments: argparse.Namespace) -> Work:
    import pyarrow as pa
    from pydantic import TypeAdapter

    from waybill.config.models import Column, ParserConfig
    from waybill.parsers import build_parser
    from waybill.records.batches.message_rows import MESSAGE_SCHEMA

    config, encode = PARSERS[name]
    rows = [
        {"offset": n, "timestamp": n, "key": b"%013d:" % n, "value": value, "headers": []}
        for n, value in enumerate(encoded_messages(encode, arguments.messages, VARIANTS[variant]))
    ]
    batches = [
        pa.RecordBatch.from_pylist(rows[start : start + BATCH_ROWS], schema=MESSAGE_SCHEMA)
        for start in range(0, len(rows), BATCH_ROWS)
    ]
    size = sum(len(row["value"]) for row in rows)
    typed = TYPED_COLUMNS if name.endswith("columns") else {}
    columns = {column: Column.model_validate(kind) for column, kind in typed.items()}
    files = {"schema": lambda: json.dumps(avro_schema()).encode(), "descriptor_set": protobuf_descriptors}
    config = config | {key: temporary_file(content()) for key, content in files.items() if key in config}
    parser = build_parser(TypeAdapter(ParserConfig).validate_python(config), columns)

    def work() -> Sample:
        refused = sum(len(parsed.error) - parsed.error.null_count for parsed in map(parser.parse, batches))
        return Sample(len(rows), size, {"refused": refused})

    return work


def temporary_file(content: bytes) -> str:
    """Write a file that exists until the process ends, and return its path."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content)
    atexit.register(Path(file.name).unlink)
    return file.name


def fastavro_loop(_: str, arguments: argparse.Namespace) -> Work:
    import fastavro

    schema = parsed_avro_schema()

    def read(value: bytes) -> tuple[int, str]:
        event: Any = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
        return event["event_time"], event["event_id"]

    return loop(read, encoded_messages(as_avro, arguments.messages, 0))


def protobuf_loop(_: str, arguments: argparse.Namespace) -> Work:
    booking = booking_class()

    def read(value: bytes) -> tuple[int, str]:
        event = booking.FromString(value)
        return event.event_time, event.event_id

    return loop(read, encoded_messages(as_protobuf, arguments.messages, 0))


def loop(read: Callable[[bytes], tuple[int, str]], values: list[bytes]) -> Work:
    size = sum(map(len, values))
    return lambda: Sample(len([read(value) for value in values]), size)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.parse_args()
    cases = [Case(name, variant, partial(waybill_parser, name)) for variant in VARIANTS for name in PARSERS]
    cases += [Case("fastavro, a loop", "clean", fastavro_loop), Case("protobuf, a loop", "clean", protobuf_loop)]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    rows = run_cases(cases, arguments)
    title = f"Parse {arguments.messages:,} messages of {MESSAGE_BYTES} bytes, one core"
    print_rates(title, rows, baseline="json")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
