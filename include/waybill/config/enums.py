"""The words that a config chooses from."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "AvroFraming",
    "BackupFormat",
    "Compression",
    "EventTimeFormat",
    "FileFormat",
    "IsolationLevel",
    "Keep",
    "ProtobufFraming",
    "SequenceFileKey",
    "SinkName",
    "StartPosition",
    "TimeUnit",
    "WrongType",
]


class BackupFormat(StrEnum):
    """What a backup object's bytes are."""

    KAFKA = "kafka"
    SEQUENCEFILE = "sequencefile"
    TEXT = "text"


class SequenceFileKey(StrEnum):
    """What the key of a SequenceFile's record is."""

    LEGACY = "legacy"
    """`LongWritable`: the offset."""
    MSGPACK = "msgpack"
    """`BytesWritable`: a MessagePack map of the offset and the Kafka key."""


class Compression(StrEnum):
    """How a SequenceFile's blocks, or a text object, are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTD = "zstd"


class IsolationLevel(StrEnum):
    """Kafka's isolation level of a fetch."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class TimeUnit(StrEnum):
    """What of the event time a table is partitioned by."""

    HOUR = "hour"
    DAY = "day"


class StartPosition(StrEnum):
    """Where a chain starts that does not exist yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


class AvroFraming(StrEnum):
    """What stands before an Avro datum whose schema is in a file."""

    NONE = "none"
    SINGLE_OBJECT = "single_object"


class ProtobufFraming(StrEnum):
    """What stands before a protobuf message."""

    NONE = "none"
    CONFLUENT = "confluent"


class EventTimeFormat(StrEnum):
    """How an event time is written in a message."""

    ISO8601 = "iso8601"
    EPOCH_SECONDS = "epoch_s"
    EPOCH_MILLISECONDS = "epoch_ms"
    EPOCH_MICROSECONDS = "epoch_us"
    EPOCH_NANOSECONDS = "epoch_ns"


class WrongType(StrEnum):
    """What becomes of a message with a value that does not fit a column's type."""

    QUARANTINE = "quarantine"
    """The message goes to quarantine."""
    NULL = "null"
    """The column is null, and the message goes to the table."""


class SinkName(StrEnum):
    """Where a stream's rows go."""

    ICEBERG = "iceberg"
    FILES = "files"


class FileFormat(StrEnum):
    """What the bytes of a file of the `files` sink are."""

    PARQUET = "parquet"
    SEQUENCEFILE = "sequencefile"
    TEXT = "text"


class Keep(StrEnum):
    """Which of several rows of one message is kept."""

    FIRST = "first"
    """The one that arrived first."""
