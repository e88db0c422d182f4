"""Loading a config: each wrong value gives an error with file, line, key, value and what is allowed."""

# ruff: noqa: E501 - the messages stay searchable

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import indent

import jsonschema
import pytest
import yaml
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from waybill.base.errors import ConfigError
from waybill.config.models import Config, StartPosition, load_config
from waybill.config.models.enums import SequenceFileKey
from waybill.config.models.load import DEFAULT_PATH, MAX_FILE_BYTES, config_path
from waybill.config.models.reference import json_schema
from waybill.config.names import Extension

VALID = """\
version: 1
storage:
  bucket: archive
streams:
  flights:
    topics: [flights]
    parser:
      event_time: {field: time}
    table: analytics.flights
"""

KEYS_OF_STREAM = "source, topics, kinesis, generation, start, isolation_level, key_partitioner, upload, format, recompress, ingest, parser, columns, table, partition_by, event_time_bounds, message_limits, sink, partition, quarantine, quality, promises, dedup, maintenance"


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "streams.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def refusal(tmp_path: Path, text: str) -> str:
    """Return the error message without the test's directory."""
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    return str(raised.value).replace(f"{tmp_path}/", "")


def test_the_projects_own_config_is_valid() -> None:
    config = load_config(DEFAULT_PATH)
    assert config.stream("flights").topics == ("flights",)


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, VALID)
    stream = config.stream("flights")
    assert (stream.generation, stream.start) == (1, StartPosition.EARLIEST)
    assert stream.upload.max_bytes == 128 << 20
    assert config.zookeeper.session_timeout == timedelta(seconds=10)


def test_a_config_survives_a_dump_to_json(tmp_path: Path) -> None:
    config = load(tmp_path, VALID)
    assert Config.model_validate(config.model_dump(mode="json")) == config


def regex(pattern: str, field: str) -> tuple[str, str]:
    return "event_time: {field: time}", f"name: regex\n      pattern: '{pattern}'\n      event_time: {{field: {field}}}"


def delimited(field: str, keys: str) -> tuple[str, str]:
    return "event_time: {field: time}", f"name: delimited\n      {keys}\n      event_time: {{field: {field}}}"


def python(path: str, options: str = "{}") -> tuple[str, str]:
    return "event_time: {field: time}", f"name: python\n      class: {path}\n      options: {options}"


# A part of VALID, its replacement, and the expected error line.
WRONG_VALUES = [
    # --- version, storage
    ("version: 1", "version: 2", "line 1: version: must be 1 (found: 2)"),
    ("version: 1", "version: true", "line 1: version: must be 1 (found: true)"),
    ("version: 1", "version: '1'", 'line 1: version: must be 1 (found: "1")'),
    ("version: 1\n", "", "line 1: version: is required but missing"),
    ("  bucket: archive", "  bucket: Archive", "line 3: storage.bucket: must be 3 to 63 characters of [a-z0-9.-] that "
     "start and end with a letter or digit, without '..', and no IP address (found: \"Archive\")"),
    ("  bucket: archive", "  bucket: 10.0.0.1", "line 3: storage.bucket: must be 3 to 63 characters of [a-z0-9.-] that "
     "start and end with a letter or digit, without '..', and no IP address (found: \"10.0.0.1\")"),
    ("  bucket: archive", "  bucket: a..b", "line 3: storage.bucket: must be 3 to 63 characters of [a-z0-9.-] that "
     "start and end with a letter or digit, without '..', and no IP address (found: \"a..b\")"),
    ("  bucket: archive", "  bucket: 12345", "line 3: storage.bucket: must be text; put it in quotes (found: 12345)"),
    ("  bucket: archive", "  bucket:", "line 3: storage.bucket: must not be empty (found: nothing)"),
    ("  bucket: archive", "  prefix: x", "line 2: storage.bucket: is required but missing"),
    ("storage:\n  bucket: archive", "storage: archive",
     'line 2: storage: must be a section with the keys connection, bucket, prefix, abort_uploads_after (found: "archive")'),
    ("  bucket: archive", "  bucket: archive\n  prefix: /a", "line 4: storage.prefix: must be up to 400 characters: "
     "segments of [A-Za-z0-9!_.*'()=-], none of them '.' or '..', joined by single slashes (found: \"/a\")"),
    ("  bucket: archive", "  bucket: archive\n  prefix: a/../b", "line 4: storage.prefix: must be up to 400 "
     "characters: segments of [A-Za-z0-9!_.*'()=-], none of them '.' or '..', joined by single slashes "
     '(found: "a/../b")'),
    ("  bucket: archive", "  bucket: archive\n  connection: 'aws default'", "line 4: storage.connection: must be the id "
     'of a connection: 1 to 250 characters of [A-Za-z0-9_.-] (found: "aws default")'),
    # --- unknown keys
    ("  bucket: archive", "  bucket: archive\n  Prefix: x", "line 4: storage.Prefix: unknown key; did you mean "
     "'prefix'? Known keys: connection, bucket, prefix, abort_uploads_after"),
    ("    table: ", "    partition-by: day\n    table: ", "line 9: streams.flights.partition-by: unknown key; "
     f"did you mean 'partition_by'? Known keys: {KEYS_OF_STREAM}"),
    ("    table: ", "    xyzzy: 1\n    table: ",
     f"line 9: streams.flights.xyzzy: unknown key. Known keys: {KEYS_OF_STREAM}"),
    ("{field: time}", "{feild: time, field: time}", "line 8: streams.flights.parser.event_time.feild: unknown "
     "key; did you mean 'field'? Known keys: field, format"),
    ("topics: [flights]", "topics: {regex: a, flags: i}",
     "line 6: streams.flights.topics.flags: unknown key. Known keys: regex"),
    ("storage:", "strage: {}\nstorage:", "line 2: strage: unknown key; did you mean 'storage'? Known keys: "
     "version, storage, kafka, zookeeper, catalog, spark, alerts, airflow, restore, replay, groups, streams"),
    # --- streams and topics
    ("  flights:", "  Flights:", "line 5: streams.Flights: stream name 'Flights' is not usable: it starts with a "
     "lower-case letter and goes on with up to 99 characters of [a-z0-9_] (found: a section with the keys topics, "
     "parser, table)"),
    ("  flights:", "  7:", "line 5: the key 7 is not text: put it in quotes"),
    ("  flights:", "  true:", "line 5: the key true is not text: put it in quotes"),
    ("  flights:", "  [a]:", "line 5: a key must be text, not a list or a section"),
    ("topics: [flights]", "topics: flights", "line 6: streams.flights.topics: must be a list of topics "
     '([orders, payments]) or {regex: …} (found: "flights")'),
    ("topics: [flights]", "topics: []", "line 6: streams.flights.topics: must name at least one topic, or be "
     "{regex: …} (found: an empty list)"),
    ("topics: [flights]", "topics: [flights, 7]",
     'line 6: streams.flights.topics: a topic must be text: put it in quotes (found: ["flights", 7])'),
    ("topics: [flights]", "topics: [a, b, a]",
     "line 6: streams.flights.topics: topic 'a' is listed twice (found: [\"a\", \"b\", \"a\"])"),
    ("topics: [flights]", "topics: ['..']", "line 6: streams.flights.topics: topic '..' is not a legal Kafka topic "
     "name: 1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..' (found: [\"..\"])"),
    ("topics: [flights]", "topics: ['a/b']", "line 6: streams.flights.topics: topic 'a/b' is not a legal Kafka topic "
     "name: 1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..' (found: [\"a/b\"])"),
    ("topics: [flights]", "topics: {regex: '['}", "line 6: streams.flights.topics.regex: not a regular expression: "
     'unterminated character set at position 0 (found: "[")'),
    ("topics: [flights]", "topics: {regex: ''}", "line 6: streams.flights.topics.regex: must be a regular expression "
     'that matches the whole topic name (found: "")'),
    # --- numbers
    ("    table: ", "    generation: 0\n    table: ",
     "line 9: streams.flights.generation: must be between 1 and 999999 (found: 0)"),
    ("    table: ", "    generation: 1.5\n    table: ",
     "line 9: streams.flights.generation: must be a whole number from 1 to 999999 (found: 1.5)"),
    ("    table: ", "    generation: true\n    table: ",
     "line 9: streams.flights.generation: must be a whole number from 1 to 999999 (found: true)"),
    ("    table: ", "    ingest: {lanes: '4'}\n    table: ",
     'line 9: streams.flights.ingest.lanes: must be a whole number from 1 to 1024 (found: "4")'),
    ("    table: ", "    ingest: {lanes: 1025}\n    table: ",
     "line 9: streams.flights.ingest.lanes: must be between 1 and 1024 (found: 1025)"),
    # --- durations
    ("    table: ", "    ingest: {budget: 45}\n    table: ", "line 9: streams.flights.ingest.budget: a duration is a "
     "whole number and a unit: 90s, 10m, 6h or 28d (found: 45)"),
    ("    table: ", "    ingest: {budget: 1.5h}\n    table: ", "line 9: streams.flights.ingest.budget: a duration is a "
     'whole number and a unit: 90s, 10m, 6h or 28d (found: "1.5h")'),
    ("    table: ", "    ingest: {budget: 0s}\n    table: ",
     'line 9: streams.flights.ingest.budget: must be between 1s and 1h (found: "0s")'),
    ("    table: ", "    ingest: {budget: 999999999d}\n    table: ", "line 9: streams.flights.ingest.budget: must be "
     'between 1s and 1h (found: "999999999d")'),
    ("    table: ", "    upload: {max_age: -1s}\n    table: ", "line 9: streams.flights.upload.max_age: a duration is a "
     'whole number and a unit: 90s, 10m, 6h or 28d (found: "-1s")'),
    ("    table: ", "    upload: {max_age: ٣s}\n    table: ", "line 9: streams.flights.upload.max_age: a duration is a "
     'whole number and a unit: 90s, 10m, 6h or 28d (found: "٣s")'),
    ("storage:", "zookeeper: {session_timeout: 1s}\nstorage:",
     'line 2: zookeeper.session_timeout: must be between 2s and 5m (found: "1s")'),
    # --- sizes
    ("    table: ", "    upload: {max_bytes: lots}\n    table: ", "line 9: streams.flights.upload.max_bytes: a size is "
     'a number and a unit: 64MiB, 1GB, or a whole number of bytes (found: "lots")'),
    ("    table: ", "    upload: {max_bytes: 64 Mbit}\n    table: ", "line 9: streams.flights.upload.max_bytes: a size "
     'is a number and a unit: 64MiB, 1GB, or a whole number of bytes (found: "64 Mbit")'),
    ("    table: ", "    upload: {max_bytes: true}\n    table: ", "line 9: streams.flights.upload.max_bytes: a size is "
     "a number and a unit: 64MiB, 1GB, or a whole number of bytes (found: true)"),
    ("    table: ", "    upload: {max_bytes: -5}\n    table: ", "line 9: streams.flights.upload.max_bytes: a size is "
     "a number and a unit: 64MiB, 1GB, or a whole number of bytes (found: -5)"),
    ("    table: ", "    upload: {max_bytes: 1023}\n    table: ",
     "line 9: streams.flights.upload.max_bytes: must be between 1KiB and 5GiB (found: 1023)"),
    ("    table: ", "    upload: {topics: {other: {max_age: 1m}}}\n    table: ",
     "line 9: streams.flights.upload.topics.other: topic 'other' does not belong to this stream: correct it, or add it "
     "to `topics` (found: a section with the keys max_age)"),
    ("    table: ", "    upload: {topics: {flights: {max_age: 8d}}}\n    table: ",
     'line 9: streams.flights.upload.topics.flights.max_age: must be between 0s and 7d (found: "8d")'),
    ("    table: ", "    recompress: zstd:20\n    table: ", "line 9: streams.flights.recompress: must be none, zstd (level "
     '1) or zstd:<level> with a level from 1 to 19 (found: "zstd:20")'),
    ("    table: ", "    recompress: zstd\n    format: text\n    table: ", "line 9: streams.flights.recompress: compresses "
     'record batches, which the format text does not contain: remove it, or set format.compression (found: "zstd")'),
    ("    table: ", "    recompress: true\n    table: ", "line 9: streams.flights.recompress: must be none, zstd (level "
     "1) or zstd:<level> with a level from 1 to 19 (found: true)"),
    ("    table: ", "    ingest: {consumer_group: a b}\n    table: ",
     "line 9: streams.flights.ingest.consumer_group: must be 1 to 200 characters of [A-Za-z0-9._:-]; `{stream}` stands "
     'for the stream\'s name (found: "a b")'),
    ("    table: ", "    upload: {max_bytes: 6GiB}\n    table: ",
     'line 9: streams.flights.upload.max_bytes: must be between 1KiB and 5GiB (found: "6GiB")'),
    ("    table: ", "    partition: {task_bytes: 1kB}\n    table: ",
     'line 9: streams.flights.partition.task_bytes: must be between 1MiB and 16GiB (found: "1kB")'),
    ("    table: ", "    partition: {memory: 1MiB}\n    table: ",
     'line 9: streams.flights.partition.memory: must be between 16MiB and 64GiB (found: "1MiB")'),
    # --- format
    ("    table: ", "    format: avro\n    table: ", "line 9: streams.flights.format: must be 'kafka', 'sequencefile' or "
     "'text' (found: \"avro\")"),
    ("    table: ", "    format: [text]\n    table: ", "line 9: streams.flights.format: must be a section with the keys "
     'name, key, delimiter, compression (found: ["text"])'),
    ("    table: ", "    format: {name: text, key: legacy}\n    table: ", "line 9: streams.flights.format.key: has "
     'no effect with the format text: remove it (found: "legacy")'),
    ("    table: ", "    format: {compression: zstd}\n    table: ", "line 9: streams.flights.format.compression: has "
     'no effect with the format kafka: remove it (found: "zstd")'),
    ("    table: ", "    format: {name: text, compression: zstd}\n    table: ",
     'line 9: streams.flights.format.compression: must be none or gzip with the format text (found: "zstd")'),
    ("    table: ", "    format: {name: sequencefile, compression: lz4}\n    table: ", "line 9: "
     "streams.flights.format.compression: must be 'none', 'gzip', 'snappy' or 'zstd' (found: \"lz4\")"),
    ("    table: ", "    format: {name: text, delimiter: '\\n'}\n    table: ", "line 9: streams.flights.format.delimiter: "
     'must not contain a backslash: put control characters in double quotes, as in "\\n" (found: "\\\\n")'),
    ("    table: ", "    format: {name: text, delimiter: ''}\n    table: ",
     'line 9: streams.flights.format.delimiter: must be text of 1 to 16 bytes (found: "")'),
    ("    table: ", "    format: text\n    recompress: zstd\n    table: ", "line 10: streams.flights.recompress: compresses "
     "record batches, which the format text does not contain: remove it, or set format.compression (found: \"zstd\")"),
    # --- words
    ("    table: ", "    isolation_level: committed\n    table: ", "line 9: streams.flights.isolation_level: must be "
     "'read_committed' or 'read_uncommitted' (found: \"committed\")"),
    ("    table: ", "    partition_by: week\n    table: ",
     "line 9: streams.flights.partition_by: must be 'hour' or 'day', of the event time, or a list that begins with one "
     "of them (found: \"week\")"),
    ("    table: ", "    event_time_bounds: {past: 10m}\n    table: ", "line 9: streams.flights.event_time_bounds.past: "
     "must be between 1h and 3650000d (found: \"10m\")"),
    ("{field: time}", "{field: time, format: unix}", "line 8: streams.flights.parser.event_time.format: must be "
     "'iso8601', 'epoch_s', 'epoch_ms', 'epoch_us' or 'epoch_ns' (found: \"unix\")"),
    ("    parser:", "    parser:\n      name: thrift",
     "line 8: streams.flights.parser.name: must be 'json', 'raw', 'regex', 'delimited', 'msgpack', 'avro', 'protobuf' or 'python' (found: \"thrift\")"),
    ("    parser:", "    parser:\n      name: [json]",
     "line 8: streams.flights.parser.name: must be 'json', 'raw', 'regex', 'delimited', 'msgpack', 'avro', 'protobuf' or 'python' (found: [\"json\"])"),
    ("parser:\n      event_time: {field: time}", "parser: raw",
     'line 7: streams.flights.parser: must be a section with the keys name, event_time, message_id (found: "raw")'),
    ("event_time: {field: time}", "name: raw\n      event_tiem: {field: time}",
     "line 9: streams.flights.parser.event_tiem: unknown key. Known keys: name"),
    ("event_time: {field: time}", "name: raw\n    format: text",
     "line 8: streams.flights.parser.name: raw needs Kafka's timestamps, which the format text does not contain: choose another "
     'parser, or the format kafka (found: "raw")'),
    # --- start, schedule
    ("    table: ", "    start: yesterday\n    table: ", "line 9: streams.flights.start: must be 'earliest', 'latest' or "
     'an ISO 8601 time from 1970 on, 2026-01-31T00:00:00Z (found: "yesterday")'),
    ("    table: ", "    start: 2026-13-45\n    table: ", "line 9: streams.flights.start: must be 'earliest', 'latest' "
     'or an ISO 8601 time from 1970 on, 2026-01-31T00:00:00Z (found: "2026-13-45")'),
    ("    table: ", "    start: 0001-01-01T00:00:00+14:00\n    table: ", "line 9: streams.flights.start: must be "
     "'earliest', 'latest' or an ISO 8601 time from 1970 on, 2026-01-31T00:00:00Z "
     '(found: "0001-01-01T00:00:00+14:00")'),
    ("    table: ", "    start: 17\n    table: ", "line 9: streams.flights.start: must be 'earliest', 'latest' or an ISO "
     "8601 time from 1970 on, 2026-01-31T00:00:00Z (found: 17)"),
    ("    table: ", "    partition: {schedule: hourly}\n    table: ", "line 9: streams.flights.partition.schedule: must "
     "be a cron expression of five fields (5 * * * *) or @hourly, @daily, @weekly, @monthly, @quarterly, @yearly "
     '(found: "hourly")'),
    ("    table: ", "    partition: {schedule: '0 0 31 2 *'}\n    table: ", "line 9: streams.flights.partition.schedule: "
     'the cron expression matches no time (found: "0 0 31 2 *")'),
    # --- parser
    ("{field: time}", "{field: a..b}", "line 8: streams.flights.parser.event_time.field: a field path is names joined "
     'by dots (time.scheduled), or a list of names (found: "a..b")'),
    ("{field: time}", "{field: [a, 1]}", "line 8: streams.flights.parser.event_time.field: a field path is names joined "
     'by dots (time.scheduled), or a list of names (found: ["a", 1])'),
    ("{field: time}", "{}", "line 8: streams.flights.parser.event_time.field: is required but missing"),
    ("{field: time}", "time", "line 8: streams.flights.parser.event_time: must be a section with the keys field, "
     'format (found: "time")'),
    (*regex("(?=x)(?P<a>y)", "a"), "line 9: streams.flights.parser.pattern: not a regular expression of RE2, which has no "
     'look-around and no \\1: invalid perl operator: (?= (found: "(?=x)(?P<a>y)")'),
    (*regex("(?P<a>y)(z)", "a"), "line 9: streams.flights.parser.pattern: every group must have a name, (?P<name>…), or must "
     'not capture, (?:…) (found: "(?P<a>y)(z)")'),
    (*regex("abc", "a"), "line 9: streams.flights.parser.pattern: must have a named group, (?P<name>…), for each field "
     'to read (found: "abc")'),
    (*regex("(?P<a>y)|(?P<a>z)", "a"),
     "line 9: streams.flights.parser.pattern: two groups have the name 'a' (found: \"(?P<a>y)|(?P<a>z)\")"),
    (*regex("(?P<a>y)(?P<b>z)", "at"), "line 10: streams.flights.parser.event_time.field: must be one of the groups of the "
     'pattern: a, b (found: "at")'),
    (*regex("(?P<a>y)", "a}\n      message_id: b #"), "line 11: streams.flights.parser.message_id: must be one of the groups of the "
     'pattern: a (found: "b")'),
    (*delimited("a", "columns: [a, b, a]"),
     "line 9: streams.flights.parser.columns: column 'a' is listed twice (found: [\"a\", \"b\", \"a\"])"),
    (*delimited("a", "columns: a"), "line 9: streams.flights.parser.columns: must be the list of all columns of a message, "
     'in order (found: "a")'),
    (*delimited("a", "columns: [1]"),
     "line 9: streams.flights.parser.columns: a column must be text: put it in quotes (found: [1])"),
    (*delimited("c", "columns: [a, b]"), "line 10: streams.flights.parser.event_time.field: must be one of the columns: a, "
     'b (found: "c")'),
    (*delimited("a", "columns: [a]\n      delimiter: '\\t'"), "line 10: streams.flights.parser.delimiter: must be one "
     'character: put a tab in double quotes, "\\t" (found: "\\\\t")'),
    (*delimited("a", "columns: [a]\n      delimiter: '||'"), "line 10: streams.flights.parser.delimiter: must be one "
     'character, and not a line break (found: "||")'),
    (*delimited("a", "columns: [a]\n      quote: ','"), "line 10: streams.flights.parser.quote: must not be the delimiter "
     'as well (found: ",")'),
    (*python("fractions"), "line 9: streams.flights.parser.class: must be package.module:Class (found: \"fractions\")"),
    (*python("not_there.at_all:Parser"), "line 9: streams.flights.parser.class: not_there.at_all cannot be imported: "
     "ModuleNotFoundError: No module named 'not_there' (found: \"not_there.at_all:Parser\")"),
    (*python("fractions:Parser"), "line 9: streams.flights.parser.class: the module fractions has no "
     'Parser (found: "fractions:Parser")'),
    (*python("math:pi"), "line 9: streams.flights.parser.class: math:pi is not a class but 3.141592653589793 "
     '(found: "math:pi")'),
    (*python("fractions:Fraction"), "line 9: streams.flights.parser.class: fractions:Fraction is not a parser: it has no "
     'method parse(messages) (found: "fractions:Fraction")'),
    (*python("string:Formatter"), "line 9: streams.flights.parser.class: string:Formatter is not a parser: it has no name, "
     'which the quarantine shows as text (found: "string:Formatter")'),
    (*python("waybill.parsers.examples:KeyTime", "{digit: 3}"), "line 9: streams.flights.parser.class: "
     "waybill.parsers.examples:KeyTime rejects its options: TypeError: KeyTime.__init__() got an unexpected keyword "
     "argument 'digit' (found: \"waybill.parsers.examples:KeyTime\")"),
    (*python("waybill.parsers.examples:KeyTime", "{digits: 3}"), "line 9: streams.flights.parser.class: "
     "waybill.parsers.examples:KeyTime rejects its options: ValueError: digits must be 10 (seconds) or 13 (milliseconds) "
     '(found: "waybill.parsers.examples:KeyTime")'),
    ("event_time: {field: time}", "name: python\n      class: waybill.parsers.examples:KeyTime\n      klass: a", "line 10: streams.flights.parser.klass: unknown "
     "key; did you mean 'class'? Known keys: name, class, options"),
    # --- table, zookeeper
    ("analytics.flights", "flights", "line 9: streams.flights.table: must be namespace.table, each a lower-case letter "
     'and up to 99 characters of [a-z0-9_] (found: "flights")'),
    ("analytics.flights", "a.b.c", "line 9: streams.flights.table: must be namespace.table, each a lower-case letter "
     'and up to 99 characters of [a-z0-9_] (found: "a.b.c")'),
    ("storage:", "zookeeper: {root: zookeeper}\nstorage:", "line 2: zookeeper.root: must be segments of "
     "[A-Za-z0-9_.-], none of them '.' or '..', joined by single slashes; not 'zookeeper', which ZooKeeper reserves "
     '(found: "zookeeper")'),
    ("storage:", "zookeeper: {root: /waybill}\nstorage:", "line 2: zookeeper.root: must be segments of [A-Za-z0-9_.-], "
     "none of them '.' or '..', joined by single slashes; not 'zookeeper', which ZooKeeper reserves (found: \"/waybill\")"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), WRONG_VALUES, ids=[new.strip() for _, new, _ in WRONG_VALUES])
def test_a_wrong_value_has_an_error_of_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert VALID.count(old) == 1
    assert refusal(tmp_path, VALID.replace(old, new)) == f"streams.yaml, {line}"


def test_cron_expressions_have_airflows_syntax(tmp_path: Path) -> None:
    message = refusal(tmp_path, VALID + "    partition: {schedule: '99 * * * *'}\n")
    assert message.startswith("streams.yaml, line 10: streams.flights.partition.schedule: not a cron expression: ")
    config = load(tmp_path, VALID + "    partition: {schedule: '*/20 6-22 * * MON-FRI'}\n")
    assert config.stream("flights").partition.schedule == "*/20 6-22 * * MON-FRI"


def test_each_error_has_a_line_of_its_own(tmp_path: Path) -> None:
    text = VALID.replace("bucket: archive", "bucket: A").replace("[flights]", "x").replace("version: 1", "version: 9")
    assert [line.split(":")[0] for line in refusal(tmp_path, text).splitlines()] == [
        "streams.yaml, line 1",
        "streams.yaml, line 3",
        "streams.yaml, line 6",
    ]


LIMIT_VALUES = [
    ("ingest: {budget: 1s}", "ingest.budget", timedelta(seconds=1)),
    ("ingest: {budget: 60m}", "ingest.budget", timedelta(hours=1)),
    ("ingest: {budget: 90 s}", "ingest.budget", timedelta(seconds=90)),
    ("upload: {max_age: 0s}", "upload.max_age", timedelta(0)),
    ("upload: {max_age: 7d}", "upload.max_age", timedelta(days=7)),
    ("recompress: none", "recompress", None),
    ("recompress: zstd", "recompress", 1),
    ("recompress: zstd:19", "recompress", 19),
    ("format: kafka", "format.extension", Extension.KAFKA),
    ("format: {name: kafka}", "format.extension", Extension.KAFKA),
    ("format: sequencefile", "format.key", SequenceFileKey.MSGPACK),
    ("format: {name: sequencefile, key: legacy, compression: zstd}", "format.extension", Extension.SEQUENCEFILE),
    ("format: text", "format.delimiter", "\n"),
    ('format: {name: text, delimiter: "\\x1e\\n"}', "format.delimiter", "\x1e\n"),
    ("format: {name: text, compression: gzip}", "format.extension", Extension.TEXT_GZIP),
    ("ingest: {rate_limit: 0}", "ingest.rate_limit", 0),
    ("ingest: {rate_limit: 5 MB}", "ingest.rate_limit", 5_000_000),
    ("ingest: {consumer_group: 'waybill-{stream}'}", "ingest.consumer_group", "waybill-{stream}"),
    ("upload: {max_bytes: 1KiB}", "upload.max_bytes", 1024),
    ("upload: {max_bytes: 1024}", "upload.max_bytes", 1024),
    ("upload: {max_bytes: 5GiB}", "upload.max_bytes", 5 << 30),
    ("upload: {max_bytes: 1.5 MB}", "upload.max_bytes", 1_500_000),
    ("upload: {max_bytes: 64mib}", "upload.max_bytes", 64 << 20),
    ("generation: 999999", "generation", 999_999),
    ("ingest: {lanes: 1024}", "ingest.lanes", 1024),
    ("start: latest", "start", StartPosition.LATEST),
    ("start: 2026-01-31", "start", datetime(2026, 1, 31, tzinfo=UTC)),
    ("start: 2026-01-31T01:00:00+01:00", "start", datetime(2026, 1, 31, tzinfo=UTC)),
    ("start: 2026-01-31 00:00:00", "start", datetime(2026, 1, 31, tzinfo=UTC)),
]


@pytest.mark.parametrize(("line", "key", "expected"), LIMIT_VALUES, ids=[line for line, _, _ in LIMIT_VALUES])
def test_values_at_the_limits_are_accepted(tmp_path: Path, line: str, key: str, expected: object) -> None:
    found: object = load(tmp_path, f"{VALID}    {line}\n").stream("flights")
    for part in key.split("."):
        found = getattr(found, part)
    assert found == expected


# A valid config of each parser, with all of its keys.
PARSERS = {
    "json": "{name: json, event_time: {field: [a.b, c], format: epoch_ns}, message_id: id}",
    "msgpack": "{name: msgpack, event_time: {field: a.b}, message_id: [c]}",
    "regex": "{name: regex, pattern: '(?P<at>[0-9]+),(?P<id>.*)', event_time: {field: at, format: epoch_s}, message_id: id}",
    "delimited": "{name: delimited, columns: [a.b, id], delimiter: ;, quote: none, event_time: {field: a.b}, message_id: id}",
    "avro": "{name: avro, schema: booking.avsc, framing: single_object, event_time: {field: header.at}, message_id: header.id}",
    "avro, by a registry": "{name: avro, registry: registry_default, event_time: {field: at, format: epoch_s}}",
    "protobuf": "{name: protobuf, descriptor_set: orders.desc, message: shop.Order, framing: confluent, event_time: {field: placed_at}}",
    "python": "{name: python, class: 'waybill.parsers.examples:KeyTime', options: {digits: 10}}",
    "raw": "{name: raw}",
}


def write_schemas(directory: Path) -> None:
    """Write the files that the examples name."""
    fields = [{"name": "at", "type": "long"}, {"name": "id", "type": "string"}]
    header = {"type": "record", "name": "Header", "fields": fields}
    booking = {"type": "record", "name": "Booking", "fields": [{"name": "header", "type": header}]}
    (directory / "booking.avsc").write_text(json.dumps(booking))
    file = FileDescriptorProto(name="orders.proto", package="shop")
    order = file.message_type.add(name="Order")
    order.field.add(name="placed_at", number=1, type=FieldDescriptorProto.TYPE_INT64)
    order.field.add(name="header", number=2, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".shop.Header")
    file.message_type.add(name="Header").field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_STRING)
    (directory / "orders.desc").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())


@pytest.mark.parametrize("name", PARSERS)
def test_each_parser_is_loaded_and_survives_a_dump(tmp_path: Path, name: str) -> None:
    write_schemas(tmp_path)
    text = VALID.replace("parser:\n      event_time: {field: time}", f"parser: {PARSERS[name]}")
    config = load(tmp_path, text)
    assert config.stream("flights").parser.name == name.partition(",")[0]
    assert Config.model_validate(json.loads(config.model_dump_json())) == config
    # As an editor reads it: YAML 1.2, and by the schema.
    jsonschema.validate({**yaml.load(text, Loader=yaml.BaseLoader), "version": 1}, json.loads(json_schema()))


GUIDE = (Path(__file__).parents[4] / "docs" / "stream-author.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(parser:.*?)```", GUIDE, re.DOTALL)


def test_the_guide_has_an_example_of_each_parser(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    shown = [
        load(tmp_path, VALID.replace("    parser:\n      event_time: {field: time}\n", indent(example, "    ")))
        for example in EXAMPLES
    ]
    assert [config.stream("flights").parser.name for config in shown] == [name.partition(",")[0] for name in PARSERS]


def test_limits_of_a_topic_override_the_streams(tmp_path: Path) -> None:
    stream = load(
        tmp_path,
        VALID.replace(
            "    table: ",
            "    upload: {max_bytes: 1MiB, max_age: 5m, topics: {flights: {max_age: 0s}}}\n    table: ",
        ),
    ).stream("flights")
    own, others = stream.upload_for("flights"), stream.upload_for("others")
    assert (own.max_bytes, own.max_age) == (1 << 20, timedelta(0))
    assert (others.max_bytes, others.max_age) == (1 << 20, timedelta(minutes=5))


def test_words_of_yaml_1_1_are_text(tmp_path: Path) -> None:
    config = load(tmp_path, VALID.replace("[flights]", "[no, on, y, 1e, 0x1f, 1_000, 2026-01-31]"))
    assert config.stream("flights").topics == ("no", "on", "y", "1e", "0x1f", "1_000", "2026-01-31")


def test_field_names_can_contain_a_dot(tmp_path: Path) -> None:
    config = load(tmp_path, VALID.replace("{field: time}", "{field: [meta, created.at]}"))
    assert config.stream("flights").parser.event_time.field == ("meta", "created.at")


# --- streams against each other ---------------------------------------------------------------------------------------

SECOND = """\
  second:
    topics: {topics}
    generation: {generation}
    parser: {{event_time: {{field: time}}}}
    table: {table}
"""


@pytest.mark.parametrize(
    ("topics", "table", "message"),
    [
        ("[x, flights]", "a.b", "line 11: streams.second.topics: streams 'flights' and 'second' both archive topic "
         "'flights' in generation 1: remove it from one of them, or give one of them another generation"),
        ("{regex: 'fl.*'}", "a.b", "line 11: streams.second.topics: streams 'flights' and 'second' both archive topic "
         "'flights' in generation 1: remove it from one of them, or give one of them another generation"),
        ("[x]", "analytics.flights", "line 14: streams.second.table: streams 'flights' and 'second' would both write "
         "the table analytics.flights: give one of them another table or generation"),
        ("[x]", "analytics.flights_quarantine", "line 14: streams.second.table: streams 'flights' and 'second' would "
         "both write the table analytics.flights_quarantine: give one of them another table or generation"),
    ],
)  # fmt: skip
def test_two_streams_that_write_the_same_table_or_chain_are_refused(
    tmp_path: Path, topics: str, table: str, message: str
) -> None:
    text = VALID + SECOND.format(topics=topics, generation=1, table=table)
    assert refusal(tmp_path, text) == f"streams.yaml, {message}"


def test_two_generations_of_a_table_have_the_same_partitioning(tmp_path: Path) -> None:
    second = SECOND.format(topics="[x]", generation=2, table="analytics.flights")
    message = refusal(tmp_path, f"{VALID}{second}    partition_by: [day, 'bucket(4, key)']\n")
    assert "streams.second.partition_by: streams 'flights' and 'second' are generations of the table" in message


def test_two_streams_with_the_same_pattern_are_refused(tmp_path: Path) -> None:
    text = VALID.replace("[flights]", "{regex: 'f{2}'}") + SECOND.format(
        topics="{regex: 'f{2}'}", generation=1, table="a.b"
    )
    assert "both archive the topics of 'f{2}' in generation 1" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("topics", "generation", "table"),
    [("[flights]", 2, "analytics.flights"), ("{regex: 'flights-.*'}", 1, "a.b"), ("[x]", 1, "analytics.x")],
)
def test_two_streams_that_write_different_objects_are_accepted(
    tmp_path: Path, topics: str, generation: int, table: str
) -> None:
    config = load(tmp_path, VALID + SECOND.format(topics=topics, generation=generation, table=table))
    assert list(config.streams) == ["flights", "second"]


def test_an_unknown_stream_raises_an_error_with_the_known_streams(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stream 'flight'; did you mean 'flights'\\? Known streams: flights"):
        load(tmp_path, VALID).stream("flight")


def test_internal_topics_match_no_pattern(tmp_path: Path) -> None:
    stream = load(tmp_path, VALID.replace("[flights]", "{regex: '.*'}")).stream("flights")
    assert stream.matches("flights")
    assert not stream.matches("__consumer_offsets")


# --- files that are no config -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "streams.yaml: is empty; it needs at least: version, storage, streams"),
        ("# nothing\n---\n", "streams.yaml: is empty; it needs at least: version, storage, streams"),
        ("version", "streams.yaml, line 1: the file: must be a section with the keys version, storage, kafka, zookeeper, "
         'catalog, spark, alerts, airflow, restore, replay, groups, streams (found: "version")'),
        ("- a\n- b\n", "streams.yaml, line 1: the file: must be a section with the keys version, storage, kafka, "
         'zookeeper, catalog, spark, alerts, airflow, restore, replay, groups, streams (found: ["a", "b"])'),
        ("version: 1\nversion: 1\n", "streams.yaml, line 2: key 'version' is given twice (first in line 1)"),
        ("a: {b: 1, c: 2, 'b': 3}\n", "streams.yaml, line 1: key 'b' is given twice (first in line 1)"),
        ("version: 1\n--- \nversion: 1\n", "streams.yaml, line 2: contains a second document, and a config is one document"),
        ("a: !!python/object/apply:os.system ['true']\n", "streams.yaml, line 1: the tag !!python/object/apply:os.system "
         "is not allowed: a config contains text, numbers, lists and sections"),
        ("a: 1\nb: !!binary aGk=\n", "streams.yaml, line 2: the tag !!binary is not allowed: a config contains text, "
         "numbers, lists and sections"),
        ("a: !secret x\n", "streams.yaml, line 1: the tag !secret is not allowed: a config contains text, numbers, lists "
         "and sections"),
        ("a: &a [*a]\n", "streams.yaml, line 1: *a refers to a node that contains it"),
        ("a: *b\n", "streams.yaml, line 1: *b refers to an anchor that is not defined before it"),
        ("a:\n  <<: [1]\n", "streams.yaml, line 2: << needs a section, or a list of sections"),
        ("a: [1, 2\nb: 3\n", "streams.yaml, line 2: is not YAML: did not find expected ',' or ']'"),
        ("a:\n\tb: 1\n", "streams.yaml, line 2: is not YAML: found character that cannot start any token; indent with "
         "spaces, not with tabs"),
        ("[" * 100_000, "streams.yaml, line 1: is nested deeper than 32 levels"),
        ("- " * 100_000, "streams.yaml, line 1: is nested deeper than 32 levels"),
        ("{a: " * 100_000, "streams.yaml, line 1: is nested deeper than 32 levels"),
        ("a: \x00\n", "streams.yaml, line 1: is not YAML: the character U+0000 is not allowed"),
    ],
    ids=lambda value: value[:40].strip() if len(value) < 100 else value[:12],
)  # fmt: skip
def test_a_file_that_is_not_a_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text) == message


def test_aliases_that_expand_to_a_billion_values_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    started = time.monotonic()
    assert "contains more than 1,000,000 values" in refusal(tmp_path, "\n".join(lines))
    assert time.monotonic() - started < 2


def test_anchors_and_merge_keys_are_expanded(tmp_path: Path) -> None:
    text = VALID.replace("    parser:", "    upload: &upload {max_bytes: 1MiB, max_age: 5m}\n    parser: &parser")
    text += """\
  second:
    topics: [x]
    upload:
      <<: *upload
      max_age: 1m
    parser: *parser
    table: a.b
"""
    second = load(tmp_path, text).stream("second")
    assert (second.upload.max_bytes, second.upload.max_age) == (1 << 20, timedelta(minutes=1))
    assert second.parser.event_time.field == ("time",)


def test_an_error_in_a_merged_section_has_the_line_of_its_key(tmp_path: Path) -> None:
    text = VALID.replace("    parser:", "    upload: &upload\n      max_bytes: 1\n    parser:")
    text += "  second:\n    <<: {topics: [x], table: a.b}\n    parser: {event_time: {field: t}}\n"
    text += "    upload: {<<: *upload, max_age: 1m}\n"
    assert [line.partition(": must")[0] for line in refusal(tmp_path, text).splitlines()] == [
        "streams.yaml, line 8: streams.flights.upload.max_bytes",
        "streams.yaml, line 8: streams.second.upload.max_bytes",
    ]


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + VALID).version == 1


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_bytes(VALID.encode() + b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"streams\.yaml, line 10: is not UTF-8 text"):
        load_config(file)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(MAX_FILE_BYTES * 100)
    with pytest.raises(ConfigError, match="is larger than 16 MiB, too large for a config"):
        load_config(file)


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(VALID)
    monkeypatch.setenv("WAYBILL_CONFIG", str(file))
    assert config_path() == file
    assert load_config().storage.bucket == "archive"
    assert config_path({}) == DEFAULT_PATH


def test_a_variable_with_a_missing_file_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_CONFIG", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml: the config cannot be read \(No such file or directory\); "
                       "WAYBILL_CONFIG names it"):  # fmt: skip
        load_config()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\); name another file with WAYBILL_CONFIG"):
        load_config(tmp_path)


def test_fifty_streams_load_fast_enough_for_the_dag_processor(tmp_path: Path) -> None:
    streams = "".join(
        f"  s{i}:\n    topics: [t{i}]\n    upload: {{max_bytes: 64MiB, max_age: 10m}}\n"
        f"    parser: {{event_time: {{field: time}}, message_id: id}}\n    table: a.t{i}\n"
        for i in range(50)
    )
    text = VALID.split("  flights:")[0] + streams
    load(tmp_path, text)
    started = time.process_time()
    assert len(load(tmp_path, text).streams) == 50
    assert time.process_time() - started < 0.2
