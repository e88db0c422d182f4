"""All targets by name, in the order in which `make fuzz` runs them."""

from __future__ import annotations

from fuzzers.engine import Target
from fuzzers.targets import formats, json, kinesis, msgpack, protobuf, records, registry, text, times

_ALL = (
    records.FRAMES, records.BATCHES, kinesis.KPL, kinesis.ANSWERS, formats.FILES, formats.TEXT, formats.INDEXES,
    json.JSON, json.JSON_COLUMNS, text.DELIMITED, text.REGEX, msgpack.MSGPACK, protobuf.PROTOBUF,
    registry.ANSWERS, registry.AVRO, times.TIMES,
)  # fmt: skip

TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
