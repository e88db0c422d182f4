"""All targets by name, in the order in which `make fuzz` runs them."""

from __future__ import annotations

from fuzzers.engine import Target
from fuzzers.targets import (
    config,
    documents,
    formats,
    json,
    kinesis,
    msgpack,
    names,
    protobuf,
    records,
    registry,
    text,
    times,
    web,
)

_ALL = (
    records.FRAMES, records.BATCHES, kinesis.KPL, kinesis.ANSWERS, formats.FILES, formats.TEXT, formats.INDEXES,
    json.JSON, json.JSON_COLUMNS, text.DELIMITED, text.REGEX, msgpack.MSGPACK, protobuf.PROTOBUF, registry.AVRO,
    registry.ANSWERS, times.TIMES, config.CONFIG, config.CONNECTIONS, documents.DOCUMENTS, names.INCIDENTS, names.LABELS,
    names.BOUNDS, web.PAGES, web.REPLAY_API,
)  # fmt: skip

TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
