"""The interface of parsers: the input and output of a parser, the reasons for quarantine, and the types of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.models import ColumnKind, ColumnType

EVENT_TIME_TYPE = pa.timestamp("us", tz="UTC")

_ARROW_TYPES: dict[ColumnKind, pa.DataType] = {
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


class Parsed(NamedTuple):
    """The result for a batch of messages: arrays, each as long as the batch.

    In a row whose `error` is not null, the other values have no meaning.
    """

    event_time: pa.Array
    """`EVENT_TIME_TYPE`, between the years 1 and 9999; null only in rows with an error."""
    message_id: pa.Array
    """string; null if the message has no id. Such a message is assigned one."""
    error: pa.Array
    """string; null, or the reason why the message goes to quarantine."""
    columns: Mapping[str, pa.Array] = MappingProxyType({})
    """The columns of the stream's config by name, each of its configured type (`arrow_type`)."""


class Parser(Protocol):
    """Parses messages. A task creates one parser and uses it for all its batches; a parser keeps no state between them.

    The same batch must always give the same result: a run that is repeated must write the same rows.
    """

    @property
    def name(self) -> str:
        """The name of the parser in the config and in the quarantine."""

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """Parse messages of `waybill.records.batches.decode.MESSAGE_SCHEMA`, without tombstones.

        A message that cannot be parsed gets an error. The content of a message must never make this method raise.
        """


class Reason(StrEnum):
    """Why a message is in quarantine: the first part of its `reason`, before a colon and the details."""

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
    PARSER_FAILED = "parser_failed"
    """The parser raised at this message, which it must never do: a fault of Waybill. The details say where."""


MAX_REASON_CHARACTERS = 1_000
"""A reason may quote a value, and a value may have a million digits."""


def reason(kind: Reason, detail: str) -> str:
    """Return the text that the quarantine stores: the kind of reason, a colon, and the details, within bounds."""
    return bounded_reason(f"{kind}: {detail}")


def bounded_reason(text: str) -> str:
    """Return a reason of at most `MAX_REASON_CHARACTERS` and valid UTF-8, with escapes for what has no such form."""
    left_out = f"… ({len(text):,} characters)"
    # An escape is longer than what it stands for, so the text is escaped before it is cut.
    text = text[: MAX_REASON_CHARACTERS + 1].encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - len(left_out)] + left_out


def bounded_reasons(reasons: pa.Array) -> pa.Array:
    """Return reasons (string), each of at most `MAX_REASON_CHARACTERS`."""
    longest = pc.max(pc.utf8_length(reasons)).as_py()
    if longest is None or longest <= MAX_REASON_CHARACTERS:
        return reasons
    return pa.array([None if text is None else bounded_reason(text) for text in reasons.to_pylist()], pa.string())


ColumnErrors = dict[int, str]
"""By the index of a message in the batch, the error of its value: the text of a `ColumnValueError`."""


class ColumnValueError(ValueError):
    """A value does not fit a column's type. The text continues the words `field x`, as `column_error` joins them."""


def column_error(path: Sequence[str], detail: str) -> str:
    """Return the reason for quarantine for the field at `path`; `detail`: the text of a `ColumnValueError`."""
    return reason(Reason.COLUMN_WRONG_TYPE, f"field {'.'.join(path)}{detail}")


def arrow_type(column: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column."""
    if column.is_list:
        return pa.list_(pa.field("element", arrow_type(column.element)))
    if column.kind is ColumnKind.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _ARROW_TYPES[column.kind]
