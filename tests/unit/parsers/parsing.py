"""Run a parser over a batch, and check the properties that every parser's result has."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import settings
from pydantic import TypeAdapter

from waybill.config.models import ParserConfig
from waybill.parsers import Parsed, build_parser
from waybill.parsers.protocol import EVENT_TIME_TYPE
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

slow_examples = settings(max_examples=settings.default.max_examples // 4)
"""Decorates tests whose examples take long to generate: a quarter of the profile's number of examples."""


def parser_config(**keys: object) -> ParserConfig:
    """Return a parser's config from the keys of the YAML."""
    config: ParserConfig = TypeAdapter(ParserConfig).validate_python(keys)
    return config


def batch(*values: bytes, timestamps_us: list[int] | None = None) -> pa.RecordBatch:
    stamps = timestamps_us or [0] * len(values)
    return pa.RecordBatch.from_pylist(
        [
            {"offset": n, "timestamp": stamp, "key": None, "value": value, "headers": []}
            for n, (value, stamp) in enumerate(zip(values, stamps, strict=True))
        ],
        schema=MESSAGE_SCHEMA,
    )


def parse(config: ParserConfig, *values: bytes, timestamps_us: list[int] | None = None) -> Parsed:
    """Parse the values, check the result, and check that a slice of a larger batch gives the same result again."""
    messages = batch(*values, timestamps_us=timestamps_us)
    parser = build_parser(config)
    parsed = parser.parse(messages)
    check(parsed, len(values))
    around = batch(b"before", *values, b"after", timestamps_us=[0, *(timestamps_us or [0] * len(values)), 0])
    assert parser.parse(around.slice(1, len(values))) == parsed
    return parsed


def check(parsed: Parsed, n: int) -> None:
    arrays = [parsed.event_time, parsed.message_id, parsed.error]
    assert [array.type for array in arrays] == [EVENT_TIME_TYPE, pa.string(), pa.string()]
    assert [len(array) for array in arrays] == [n] * 3
    for array in arrays:
        array.validate(full=True)
    assert parsed.event_time.is_valid().to_pylist() == parsed.error.is_null().to_pylist()
    assert all(MIN_MICROSECONDS <= time <= MAX_MICROSECONDS for time in times(parsed) if time is not None)
    assert all(error.partition(":")[0] and len(error) < 400 for error in parsed.error.to_pylist() if error is not None)


def times(parsed: Parsed) -> list[int | None]:
    found: list[int | None] = parsed.event_time.cast(pa.int64()).to_pylist()
    return found


def ids(parsed: Parsed) -> list[str | None]:
    found: list[str | None] = parsed.message_id.to_pylist()
    return found


def reasons(parsed: Parsed) -> list[str | None]:
    """Return the kind of each error, without its details."""
    return [None if error is None else error.partition(":")[0] for error in parsed.error.to_pylist()]
