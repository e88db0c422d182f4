"""What every parser takes and gives.

Typed columns: what all parsers share. What a value must be for a type, `column_values` and `column_texts` say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

import pyarrow as pa

from waybill.config import ColumnKind, ColumnType

__all__ = ["EVENT_TIME_TYPE", "Faults", "Misfit", "Parsed", "Parser", "Reason", "arrow_type", "column_fault", "reason"]

EVENT_TIME_TYPE = pa.timestamp("us", tz="UTC")


class Reason(StrEnum):
    """Why a message is in quarantine: what its `reason` starts with, before a colon and the particulars."""

    KAFKA_TIMESTAMP_MISSING = "kafka_timestamp_missing"
    NOT_UTF8 = "not_utf8"
    PATTERN_NOT_FOUND = "pattern_not_found"
    NOT_DELIMITED = "not_delimited"
    WRONG_COLUMN_COUNT = "wrong_column_count"
    NOT_JSON = "not_json"
    NOT_MSGPACK = "not_msgpack"
    NOT_AVRO = "not_avro"
    NOT_PROTOBUF = "not_protobuf"
    SCHEMA_UNKNOWN = "schema_unknown"
    SCHEMA_UNUSABLE = "schema_unusable"
    NOT_A_MAP = "not_a_map"
    NOT_AN_OBJECT = "not_an_object"
    EVENT_TIME_MISSING = "event_time_missing"
    EVENT_TIME_WRONG_TYPE = "event_time_wrong_type"
    EVENT_TIME_MALFORMED = "event_time_malformed"
    EVENT_TIME_OUT_OF_RANGE = "event_time_out_of_range"
    EVENT_TIME_OUT_OF_BOUNDS = "event_time_out_of_bounds"
    MESSAGE_ID_WRONG_TYPE = "message_id_wrong_type"
    COLUMN_WRONG_TYPE = "column_wrong_type"


def reason(kind: Reason, detail: str) -> str:
    """The text that goes to quarantine: the kind, then what was found."""
    return f"{kind}: {detail}"


class Parsed(NamedTuple):
    """What a parser makes of a batch of messages: arrays, each as long as the batch.

    Where `error` is not null the others mean nothing.
    """

    event_time: pa.Array
    """`EVENT_TIME_TYPE`, between years 1 and 9999; null only where there is an error."""
    message_id: pa.Array
    """string; null where the message has none and is to be assigned one."""
    error: pa.Array
    """string: null, or why the message goes to quarantine."""
    columns: Mapping[str, pa.Array] = MappingProxyType({})
    """The columns that the stream's config asks for, by name, each of the type that it names."""


class Parser(Protocol):
    """Reads messages. Made once for a task and used for all of its batches; keeps no state from batch to batch.

    The same batch must always give the same answer: a run that is repeated writes the same rows.
    """

    @property
    def name(self) -> str:
        """As the config and the quarantine call it."""

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """Read messages of `waybill.records.decode.MESSAGE_SCHEMA`, none of them a tombstone.

        A message that cannot be read gets an error. Nothing that a message holds makes this raise.
        """


_PRIMITIVES: dict[ColumnKind, pa.DataType] = {
    ColumnKind.BOOLEAN: pa.bool_(),
    ColumnKind.INT: pa.int32(),
    ColumnKind.LONG: pa.int64(),
    ColumnKind.FLOAT: pa.float32(),
    ColumnKind.DOUBLE: pa.float64(),
    ColumnKind.STRING: pa.string(),
    ColumnKind.BINARY: pa.binary(),
    ColumnKind.DATE: pa.date32(),
    ColumnKind.TIMESTAMP: EVENT_TIME_TYPE,
    ColumnKind.JSON: pa.string(),
}

Faults = dict[int, str]
"""By its place in the batch, what is wrong with a value: text that goes on after `field x`."""


class Misfit(ValueError):
    """A value does not fit a column's type. The text goes on after `field x`."""


def arrow_type(column: ColumnType) -> pa.DataType:
    """The type in Arrow."""
    if column.is_list:
        return pa.list_(pa.field("element", arrow_type(column.element)))
    if column.kind is ColumnKind.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _PRIMITIVES[column.kind]


def column_fault(path: Sequence[str], what: str) -> str:
    """The reason for quarantine."""
    return reason(Reason.COLUMN_WRONG_TYPE, f"field {'.'.join(path)}{what}")
