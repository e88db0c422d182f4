"""Messages to event times and message ids: each parser over the same events, written as it reads them. On one core:

    python bench/parsers.py [--json FILE] [--messages N]

Every message has 453 bytes, whatever its shape. In the case `1 % bad` every hundredth has an event time that is none.
`delimited, quoted` has a field in quotes in every message. With `5 columns`, five fields become typed columns as well.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from collections.abc import Callable, Iterator
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
        # A longer note may take another byte of MessagePack's to say how long it is.
        yield value if len(value) <= MESSAGE_BYTES else write({**event, "note": event["note"][:-2]})


def with_parser(name: str, case: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        import pyarrow as pa
        from pydantic import TypeAdapter

        from waybill.config import Column, ParserConfig
        from waybill.log.decode import MESSAGE_SCHEMA
        from waybill.parsers import build_parser

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
        parser = build_parser(TypeAdapter(ParserConfig).validate_python(config), columns)

        def work() -> Done:
            refused = sum(len(parsed.error) - parsed.error.null_count for parsed in map(parser.parse, batches))
            return Done(len(rows), size, {"refused": refused})

        return work

    return Case(name, case, prepare)


def run() -> None:
    parser = argument_parser("parse messages: messages/s and CPU seconds")
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.parse_args()
    cases = [with_parser(name, case) for case in CASES for name in SHAPES]
    title = f"Parse {arguments.messages:,} messages of {MESSAGE_BYTES} bytes, one core"
    main(title, cases, arguments, baseline="json", passed_on=["--messages", str(arguments.messages)])


if __name__ == "__main__":
    run()
