"""The enums of the config: keys with a fixed set of values."""

from __future__ import annotations

from enum import StrEnum


class BackupFormat(StrEnum):
    """The format of backup objects."""

    KAFKA = "kafka"
    SEQUENCEFILE = "sequencefile"
    TEXT = "text"


class SequenceFileKey(StrEnum):
    """The key of a SequenceFile's records."""

    LEGACY = "legacy"
    """`LongWritable`: the offset."""
    MSGPACK = "msgpack"
    """`BytesWritable`: a MessagePack map of the offset and the Kafka key."""


class Compression(StrEnum):
    """The compression of a SequenceFile's blocks, or of a text object."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTD = "zstd"


class IsolationLevel(StrEnum):
    """Kafka's isolation level of a fetch."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class KeyPartitioner(StrEnum):
    """How the producers of a stream choose the partition of a message that has a key."""

    MURMUR2 = "murmur2"
    OTHER = "other"


class TimeUnit(StrEnum):
    """The transform of the event time that a table is partitioned by."""

    HOUR = "hour"
    DAY = "day"


class SourceKind(StrEnum):
    """The system that a stream's messages come from."""

    KAFKA = "kafka"
    KINESIS = "kinesis"


class StartPosition(StrEnum):
    """Where a new chain starts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TRIM_HORIZON = "trim_horizon"
    """Kinesis' name for the first record that retention has left. The same as `earliest`."""

    @property
    def is_earliest(self) -> bool:
        return self is not StartPosition.LATEST


class AvroFraming(StrEnum):
    """The bytes before an Avro datum whose schema is in a file."""

    NONE = "none"
    SINGLE_OBJECT = "single_object"


class ProtobufFraming(StrEnum):
    """The bytes before a Protobuf message."""

    NONE = "none"
    CONFLUENT = "confluent"


class EventTimeFormat(StrEnum):
    """The format of event times in messages."""

    ISO8601 = "iso8601"
    EPOCH_SECONDS = "epoch_s"
    EPOCH_MILLISECONDS = "epoch_ms"
    EPOCH_MICROSECONDS = "epoch_us"
    EPOCH_NANOSECONDS = "epoch_ns"


class Severity(StrEnum):
    """What a failed expectation or check does. The words are those of Great Expectations."""

    CRITICAL = "critical"
    """The run is held: nothing of it is published until a person decides."""
    WARNING = "warning"
    """The run is published, and an alert is raised."""
    INFO = "info"
    """The run is published, and the failure is only recorded."""


class WrongType(StrEnum):
    """What to do with a message whose value does not fit a column's type."""

    QUARANTINE = "quarantine"
    """The message goes to quarantine."""
    NULL = "null"
    """The column is null, and the message goes to the table."""


class SinkName(StrEnum):
    """Where a stream's rows are written."""

    ICEBERG = "iceberg"
    FILES = "files"


class FileFormat(StrEnum):
    """The format of the files that the sink `files` writes."""

    PARQUET = "parquet"
    SEQUENCEFILE = "sequencefile"
    TEXT = "text"


class Keep(StrEnum):
    """Which of the rows with one key is kept."""

    FIRST = "first"
    """The one that arrived first."""
