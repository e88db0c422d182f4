"""One stream of the config, and the checks that its sections fit together."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from waybill.config.models.archiving import Format, Ingest, UploadPolicy
from waybill.config.models.base import Matching, Section, section_error
from waybill.config.models.columns import OWN_COLUMNS, Columns, column_types
from waybill.config.models.dedup import Dedup, check_dedup
from waybill.config.models.enums import (
    BackupFormat,
    IsolationLevel,
    KeyPartitioner,
    SourceKind,
    StartPosition,
    TimeUnit,
)
from waybill.config.models.expressions import IsRegex, IsStart
from waybill.config.models.groups import GroupedSection
from waybill.config.models.kinesis import Kinesis
from waybill.config.models.parsing import (
    EventTimeBounds,
    MessageLimits,
    ParserConfig,
    ParseSettings,
    PythonParser,
    RawParser,
    check_columns,
)
from waybill.config.models.partition_by import (
    IsPartitionBy,
    Maintenance,
    Partition,
    PartitionBy,
    QuarantineAlert,
    check_partition_by,
)
from waybill.config.models.promises import Promises
from waybill.config.models.quality import Quality, check_quality
from waybill.config.models.quantities import WholeNumberBetween
from waybill.config.models.sink import Sink
from waybill.config.models.texts import IsRecompression, IsTopicList, is_kinesis_arn
from waybill.config.names import Stage, name_with_generation

TABLE = Matching(
    r"[a-z][a-z0-9_]{0,99}\.[a-z][a-z0-9_]{0,99}",
    "namespace.table, each a lower-case letter and up to 99 characters of [a-z0-9_]",
)


class TopicRegex(Section):
    """All topics that match a pattern, looked up in Kafka at every run."""

    regex: Annotated[str, IsRegex()] = Field(
        description="The pattern of whole topic names. Kafka's internal topics (`__…`) are never included."
    )


def _topics_shape(value: Any) -> str | None:
    # Pydantic puts these tags into the locations of errors, where they must not look like keys: hence the spaces.
    if isinstance(value, dict | TopicRegex):
        return "pattern of topics"
    return "list of topics" if isinstance(value, list | tuple) else None


Topics = Annotated[
    Annotated[tuple[str, ...], IsTopicList(), Tag("list of topics")] | Annotated[TopicRegex, Tag("pattern of topics")],
    Discriminator(
        _topics_shape,
        custom_error_type="topics",
        custom_error_message="must be a list of topics ([orders, payments]) or {regex: …}",
    ),
]


def _refuse_null(schema: dict[str, Any]) -> None:
    """Change the JSON schema of an optional section: the key may be left out, but null is not a section."""
    schema["$ref"] = next(kind["$ref"] for kind in schema.pop("anyOf") if "$ref" in kind)
    del schema["default"]


class Stream(Section):
    """One stream: which topics, and how they are archived, parsed and partitioned."""

    source: SourceKind = Field(
        SourceKind.KAFKA, description="`kafka`, or `kinesis`: then the topics are streams of Kinesis."
    )
    topics: Topics = Field(
        description="A list of topics (each at most once), or a section with `regex`. With `source: kinesis` the names "
        "or ARNs of Kinesis streams."
    )
    kinesis: Kinesis = Field(Kinesis(), description="How Kinesis is read, with `source: kinesis`.")
    generation: Annotated[int, WholeNumberBetween(1, 999_999)] = Field(
        1, description="Raise it to start again with new chains and new tables."
    )
    start: Annotated[StartPosition | datetime, IsStart()] = Field(
        StartPosition.EARLIEST, description="Where a new chain starts."
    )
    isolation_level: IsolationLevel = Field(
        IsolationLevel.READ_COMMITTED, description="`read_committed` leaves out aborted transactions."
    )
    key_partitioner: KeyPartitioner = Field(
        KeyPartitioner.MURMUR2,
        description="How producers choose the partition of a key, so that a replay of one key reads one partition. "
        "`murmur2`: as Kafka's Java client does by default. `other`: any other way (librdkafka's default among them), "
        "and a replay reads all partitions.",
    )
    upload: UploadPolicy = Field(UploadPolicy(), description="When a backup object is completed.")
    format: Format = Field(Format(), description="The format of backup objects. Changing it takes a new generation.")
    recompress: Annotated[int | None, IsRecompression()] = Field(
        None,
        description="`zstd`: record batches that producers sent uncompressed are compressed, without other changes.",
    )
    ingest: Ingest = Field(Ingest(), description="How the lanes work.")
    parser: ParserConfig = Field(description="How a message is parsed. The keys depend on the parser's name.")
    columns: Columns = Field(
        {}, description="Fields of the messages that become columns of the table, by the column's name."
    )
    table: Annotated[str, TABLE] = Field(
        description="The table that consumers read, whichever generation is live. Its quarantine is "
        "`analytics.flights_quarantine`, if this is `analytics.flights`."
    )
    partition_by: Annotated[PartitionBy, IsPartitionBy()] = Field(
        PartitionBy(),
        description="What the table is partitioned by: hour or day of the event time, and further columns, in the "
        "notation of Spark. Changing it takes a new generation.",
    )
    event_time_bounds: EventTimeBounds = Field(
        EventTimeBounds(), description="How far an event time may be from the time at which a partition run is planned."
    )
    message_limits: MessageLimits = Field(
        MessageLimits(), description="What one message may have: a few kilobytes of a record batch can hold gigabytes."
    )
    sink: Sink = Field(Sink(), description="Where the rows are written.")
    partition: Partition = Field(Partition(), description="How the Spark job runs.")
    quarantine: QuarantineAlert = Field(
        QuarantineAlert(), description="The share of quarantined messages that raises an alert."
    )
    quality: Quality = Field(Quality(), description="What is checked of a run's rows before they are published.")
    promises: Promises = Field(Promises(), description="What the watch promises about the stream's data.")
    dedup: Dedup | None = Field(
        None,
        exclude_if=lambda dedup: dedup is None,
        json_schema_extra=_refuse_null,
        description="How messages that were sent again are found; `{}`: with the defaults of its keys.",
    )
    maintenance: Maintenance = Field(Maintenance(), description="How the tables are maintained.")

    @model_validator(mode="before")
    @classmethod
    def _check_dedup_not_null(cls, value: Any) -> Any:
        """Refuse an empty section: it could mean all defaults as well as no deduplication."""
        if isinstance(value, dict) and "dedup" in value and value["dedup"] is None:
            raise section_error(
                "dedup", "must be a section: write {} for the defaults, or remove the key for no deduplication"
            )
        return value

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.is_kinesis:
            _check_kinesis(self)
        else:
            _check_kafka(self)
        return self

    @model_validator(mode="after")
    def _check_upload_topics(self) -> Self:
        for topic in self.upload.topics:
            if not self.matches(topic):
                raise section_error(
                    ("upload", "topics", topic),
                    f"topic {topic!r} does not belong to this stream: correct it, or add it to `topics`",
                )
        return self

    @model_validator(mode="after")
    def _check_recompress(self) -> Self:
        if self.recompress is not None and self.format.name is not BackupFormat.KAFKA:
            raise section_error(
                "recompress",
                f"compresses record batches, which the format {self.format.name} does not contain: remove it, "
                f"or set format.compression",
            )
        return self

    @model_validator(mode="after")
    def _check_timestamps(self) -> Self:
        if isinstance(self.parser, RawParser) and self.format.name is not BackupFormat.KAFKA:
            raise section_error(
                ("parser", "name"),
                f"raw needs Kafka's timestamps, which the format {self.format.name} does not contain: "
                f"choose another parser, or the format kafka",
            )
        return self

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_columns(self.parser, self.columns)
        check_partition_by(self.partition_by, self.columns)
        return self

    @model_validator(mode="after")
    def _check_sink(self) -> Self:
        if self.sink.is_files:
            if self.partition_by.columns:
                raise section_error(
                    "partition_by", "must be hour or day with the sink files, whose directories have no other levels"
                )
            for name in ("dt", "hr"):
                if name in self.columns:
                    raise section_error(
                        ("columns", name), "is the name of a directory level of the sink files: choose another name"
                    )
        return self

    @model_validator(mode="after")
    def _check_quality(self) -> Self:
        known, types = (*OWN_COLUMNS, *self.columns), column_types(self.columns)
        check_quality(self.quality, known, types, writes_files=self.sink.is_files)
        return self

    @model_validator(mode="after")
    def _check_dedup(self) -> Self:
        if self.dedup is None:
            return self
        if self.sink.is_files:
            raise section_error("dedup", "needs the rows in a table, which the sink files does not write: remove it")
        # Only the user's class knows whether messages have ids.
        has_ids = isinstance(self.parser, PythonParser) or getattr(self.parser, "message_id", None) is not None
        check_dedup(self.dedup, self.columns, has_message_ids=has_ids)
        return self

    @property
    def parse_settings(self) -> ParseSettings:
        """Return all settings that decide what a message of this stream becomes."""
        return ParseSettings(
            parser=self.parser,
            columns=self.columns,
            event_time_bounds=self.event_time_bounds,
            message_limits=self.message_limits,
            files=self.sink.format if self.sink.is_files else None,
        )

    def section(self, stage: Stage) -> GroupedSection | None:
        """Return the section that says which DAG does a stage for this stream; None if the stream lacks the stage."""
        match stage:
            case Stage.INGEST:
                return self.ingest
            case Stage.PARTITION:
                return self.partition
            case Stage.DEDUP:
                return self.dedup
            case Stage.MAINTENANCE:
                return self.maintenance

    def files_root(self, prefix: str) -> str:
        """Return the prefix of the keys of all files that the sink `files` writes, in an archive with this prefix."""
        return self.sink.root(prefix, name_with_generation(self.table, self.generation))

    @property
    def by_hour(self) -> bool:
        """Return whether rows are partitioned by the hour of their event time; else by the day."""
        return self.partition_by.time is TimeUnit.HOUR

    def consumer_group(self, stream_name: str) -> str | None:
        """Return the consumer group that committed offsets are copied to; None if none is configured."""
        group = self.ingest.consumer_group
        return None if group is None else group.replace("{stream}", stream_name)

    def upload_for(self, topic: str) -> UploadPolicy:
        """Return the upload policy of a topic: the stream's, with the values that are set for the topic."""
        own = self.upload.topics.get(topic)
        return self.upload.model_copy(update=own.model_dump(exclude_none=True)) if own else self.upload

    def matches(self, topic: str) -> bool:
        """Return whether `topic` belongs to this stream. Kafka's internal topics (`__…`) match no pattern."""
        if isinstance(self.topics, TopicRegex):
            return not topic.startswith("__") and re.fullmatch(self.topics.regex, topic) is not None
        return topic in self.listed_topics

    @property
    def is_kinesis(self) -> bool:
        """Return whether the messages come from Kinesis."""
        return self.source is SourceKind.KINESIS

    @property
    def listed_topics(self) -> tuple[str, ...]:
        """Return the names of the topics that the config lists; none for a pattern. Of an ARN, the name at its end."""
        return tuple(each.rsplit("/", 1)[-1] for each in self.topics) if isinstance(self.topics, tuple) else ()


def _check_kafka(stream: Stream) -> None:
    """Raise `section_error` if a stream of Kafka has settings that only Kinesis knows."""
    if stream.kinesis != Kinesis():
        raise section_error("kinesis", "has no effect on a stream of Kafka: remove it, or set `source: kinesis`")
    if stream.start is StartPosition.TRIM_HORIZON:
        raise section_error("start", "trim_horizon is Kinesis' name: write `earliest`, or set `source: kinesis`")
    for topic in stream.topics if isinstance(stream.topics, tuple) else ():
        if is_kinesis_arn(topic):
            raise section_error("topics", f"{topic!r} is a stream of Kinesis: set `source: kinesis`")


def _check_kinesis(stream: Stream) -> None:
    """Raise `section_error` if a stream of Kinesis has settings that only Kafka knows."""
    if stream.format.name is not BackupFormat.KAFKA:
        raise section_error(
            "format", f"must be kafka with `source: kinesis`: the format {stream.format.name} cannot hold checkpoints"
        )
    for key in ("recompress", "isolation_level", "key_partitioner"):
        if getattr(stream, key) != type(stream).model_fields[key].default:
            raise section_error(key, "has no effect with `source: kinesis`: remove it")
    if stream.ingest.consumer_group is not None:
        raise section_error(
            ("ingest", "consumer_group"),
            "has no effect with `source: kinesis`, which has no consumer groups: remove it",
        )
    names = stream.listed_topics
    for name in names:
        if names.count(name) > 1:
            raise section_error("topics", f"names the Kinesis stream {name!r} twice: each at most once")
