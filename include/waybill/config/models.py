"""The models behind `streams.yaml`. Each field's description is its reference (docs/config-reference.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, field_validator, model_validator

from waybill import names
from waybill.errors import ConfigError

__all__ = [
    "Config",
    "Duration",
    "EventTime",
    "EventTimeFormat",
    "FieldPath",
    "IsolationLevel",
    "JsonParser",
    "PartitionBy",
    "StartPosition",
    "Storage",
    "Stream",
    "TopicRegex",
    "UploadPolicy",
]

_DURATION = re.compile(r"(\d+)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _parse_duration(value: Any) -> Any:
    """`90s`, `10m`, `6h`, `28d`; anything else is left to be refused."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a duration is a whole number and a unit: 90s, 10m, 6h or 28d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


Duration = Annotated[timedelta, BeforeValidator(_parse_duration, json_schema_input_type=str)]


def _parse_field_path(value: Any) -> Any:
    if isinstance(value, str):
        value = value.split(".")
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v for v in value):
        raise ValueError("a field path is names joined by dots (time.scheduled), or a list of names")
    return tuple(value)


FieldPath = Annotated[tuple[str, ...], BeforeValidator(_parse_field_path, json_schema_input_type=str | list[str])]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class IsolationLevel(StrEnum):
    """Kafka's isolation level of a fetch."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class PartitionBy(StrEnum):
    """Iceberg's transform of the event time."""

    HOUR = "hour"
    DAY = "day"


class StartPosition(StrEnum):
    """Where a chain starts that does not exist yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


class EventTimeFormat(StrEnum):
    """How an event time is written in a message."""

    ISO8601 = "iso8601"
    EPOCH_SECONDS = "epoch_s"
    EPOCH_MILLISECONDS = "epoch_ms"
    EPOCH_MICROSECONDS = "epoch_us"
    EPOCH_NANOSECONDS = "epoch_ns"


class Storage(_Model):
    """Where the archive is."""

    connection: str = Field("aws_default", description="Airflow connection of S3 (type `aws`).")
    bucket: str = Field(description="The bucket. It must exist.", pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    prefix: str = Field("", description="What every key starts with, without slashes at its ends.")

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        segments = prefix.split("/") if prefix else []
        if any(segment in {"", ".", ".."} for segment in segments):
            raise ValueError("a prefix is segments joined by single slashes, none of them empty, '.' or '..'")
        return prefix


class Kafka(_Model):
    """Where the messages come from."""

    connection: str = Field("kafka_default", description="Airflow connection of Kafka (type `kafka`).")


class ZooKeeper(_Model):
    """Where lanes are coordinated."""

    connection: str = Field("zookeeper_default", description="Airflow connection of ZooKeeper.")
    root: str = Field("waybill", description="The node below which Waybill writes (below the connection's chroot).")
    session_timeout: Duration = Field(
        timedelta(seconds=10), description="How long a dead lane keeps its locks. At least 2s."
    )

    @field_validator("session_timeout")
    @classmethod
    def _check_timeout(cls, timeout: timedelta) -> timedelta:
        if not timedelta(seconds=2) <= timeout <= timedelta(minutes=5):
            raise ValueError("a session timeout is between 2s and 5m")
        return timeout


class Catalog(_Model):
    """Where the tables are registered."""

    connection: str = Field("iceberg_default", description="Airflow connection of the Iceberg catalog.")


class Spark(_Model):
    """Where Spark jobs run."""

    connection: str = Field(
        "spark_default", description="Airflow connection of Spark: `local[2]`, `spark://…`, `yarn`, `k8s://…`."
    )


class TopicRegex(_Model):
    """Topics by pattern, looked up again at every run."""

    regex: str = Field(description="Python regular expression that the whole topic name must match.")

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, regex: str) -> str:
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return regex


class UploadPolicy(_Model):
    """When a backup object is cut: at the first limit that is reached."""

    max_bytes: ByteSize = Field(
        ByteSize(128 << 20), description="Cut an object at this size (`64MiB`, `1GB`). 1 KiB to 5 GiB."
    )
    max_age: Duration = Field(
        timedelta(minutes=10),
        description="Cut an object when its oldest message came this long ago. 0s: whatever is there at every run.",
    )

    @field_validator("max_bytes")
    @classmethod
    def _check_max_bytes(cls, size: ByteSize) -> ByteSize:
        if not 1 << 10 <= size <= 5 << 30:
            raise ValueError("an object has between 1KiB and 5GiB")
        return size


class Ingest(_Model):
    """How the lanes of a stream run."""

    lanes: int = Field(4, ge=1, le=1024, description="How many lanes drain the stream's topic-partitions side by side.")
    budget: Duration = Field(
        timedelta(seconds=45),
        description="How long a lane fetches; what is left then waits for the next run. 1s to 1h.",
    )

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, budget: timedelta) -> timedelta:
        if not timedelta(seconds=1) <= budget <= timedelta(hours=1):
            raise ValueError("a lane's budget is between 1s and 1h")
        return budget


class EventTime(_Model):
    """Where a message says when its event happened."""

    field: FieldPath = Field(description="Field path, e.g. `time.scheduled`.")
    format: EventTimeFormat = Field(
        EventTimeFormat.ISO8601, description="How it is written. ISO 8601 without a zone is UTC; epochs may be strings."
    )


class JsonParser(_Model):
    """Messages that are JSON objects."""

    name: Literal["json"] = Field("json", description="The parser.")
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without one, or where a message has none, the id is "
        "`<topic>/<partition>@<offset>`.",
    )


class Partition(_Model):
    """How the archive is turned into the table."""

    schedule: str = Field("@hourly", description="Airflow schedule of `partition__<stream>`: a cron expression.")
    task_bytes: ByteSize = Field(
        ByteSize(256 << 20), description="How many bytes of backup one Spark task takes. At least 1 MiB."
    )
    memory: ByteSize = Field(
        ByteSize(256 << 20),
        description="How many bytes of rows a task holds before it writes them out. At least 16 MiB.",
    )

    @field_validator("task_bytes")
    @classmethod
    def _check_task_bytes(cls, size: ByteSize) -> ByteSize:
        if size < 1 << 20:
            raise ValueError("a task takes at least 1MiB")
        return size

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, size: ByteSize) -> ByteSize:
        if size < 16 << 20:
            raise ValueError("a task holds at least 16MiB")
        return size


def _check_start(value: Any) -> Any:
    if isinstance(value, str) and value in set(StartPosition):
        return StartPosition(value)
    try:
        start = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("a start is 'earliest', 'latest' or an ISO 8601 time such as 2026-01-31T00:00:00Z") from None
    return start if start.tzinfo else start.replace(tzinfo=UTC)


class Stream(_Model):
    """One stream: which topics, and how they are archived, parsed and partitioned."""

    topics: tuple[str, ...] | TopicRegex = Field(description="A list of topics, or `{regex: …}`.")
    generation: int = Field(
        1, ge=1, le=999_999, description="Raise it to start again with a chain and tables of their own."
    )
    start: Annotated[StartPosition | datetime, BeforeValidator(_check_start, json_schema_input_type=str)] = Field(
        StartPosition.EARLIEST,
        description="Where a chain starts that does not exist yet: `earliest`, `latest` or a time (ISO 8601).",
    )
    isolation_level: IsolationLevel = Field(
        IsolationLevel.READ_COMMITTED, description="`read_committed` leaves out aborted transactions."
    )
    upload: UploadPolicy = Field(UploadPolicy(), description="When a backup object is cut.")
    ingest: Ingest = Field(Ingest(), description="How the lanes run.")
    parser: JsonParser = Field(description="How a message is read.")
    table: str = Field(
        description="`namespace.table`. The generation is appended: `analytics.flights` is `analytics.flights_g1`.",
        pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$",
    )
    partition_by: PartitionBy = Field(PartitionBy.HOUR, description="Iceberg's transform of the event time.")
    partition: Partition = Field(Partition(), description="How the Spark job runs.")

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...] | TopicRegex) -> tuple[str, ...] | TopicRegex:
        if isinstance(topics, TopicRegex):
            return topics
        if not topics:
            raise ValueError("at least one topic, or {regex: …}")
        for topic in topics:
            try:
                names.check_topic(topic)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if len(set(topics)) < len(topics):
            raise ValueError("a topic is listed twice")
        return topics

    def matches(self, topic: str) -> bool:
        """Whether `topic` belongs to this stream. Kafka's internal topics (`__…`) never match a pattern."""
        if isinstance(self.topics, TopicRegex):
            return not topic.startswith("__") and re.fullmatch(self.topics.regex, topic) is not None
        return topic in self.topics


class Config(_Model):
    """The whole of `streams.yaml`."""

    version: Literal[1] = Field(description="The version of this file's format.")
    storage: Storage = Field(description="Where the archive is.")
    kafka: Kafka = Field(Kafka(), description="Where the messages come from.")
    zookeeper: ZooKeeper = Field(ZooKeeper(), description="Where lanes are coordinated.")
    catalog: Catalog = Field(Catalog(), description="Where the tables are registered.")
    spark: Spark = Field(Spark(), description="Where Spark jobs run.")
    streams: dict[str, Stream] = Field(description="The streams by name (`[a-z][a-z0-9_]*`).", min_length=1)

    @field_validator("streams")
    @classmethod
    def _check_names(cls, streams: dict[str, Stream]) -> dict[str, Stream]:
        for name in streams:
            try:
                names.check_stream_name(name)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return streams

    @model_validator(mode="after")
    def _check_overlaps(self) -> Self:
        """Two streams must not write one chain or one table: refused here rather than found in the data."""
        for (a, first), (b, second) in self._pairs():
            if first.table == second.table and first.generation == second.generation:
                raise ValueError(f"streams {a!r} and {b!r} both write the table {first.table!r}: name two tables")
            if first.generation != second.generation:
                continue
            shared = [t for t in _literal(first) + _literal(second) if first.matches(t) and second.matches(t)]
            if shared:
                raise ValueError(
                    f"streams {a!r} and {b!r} both archive topic {shared[0]!r} in generation {first.generation}: "
                    f"leave it to one of them, or give one another generation"
                )
        return self

    def _pairs(self) -> Iterator[tuple[tuple[str, Stream], tuple[str, Stream]]]:
        items = list(self.streams.items())
        for i, a in enumerate(items):
            for b in items[i + 1 :]:
                yield a, b

    def stream(self, name: str) -> Stream:
        """The stream of that name. Raises `ConfigError` that lists the names there are."""
        try:
            return self.streams[name]
        except KeyError:
            raise ConfigError(f"no stream {name!r}; there are: {', '.join(sorted(self.streams))}") from None


def _literal(stream: Stream) -> list[str]:
    return [] if isinstance(stream.topics, TopicRegex) else list(stream.topics)
