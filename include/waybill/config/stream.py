"""One stream of the config: what it is made of, and what of it must fit together."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from waybill.config.archiving import Format, Ingest, UploadPolicy
from waybill.config.columns import Columns
from waybill.config.dedup import Dedup, check_dedup
from waybill.config.enums import BackupFormat, IsolationLevel, StartPosition, TimeUnit
from waybill.config.model import Section, misfit
from waybill.config.parsing import EventTimeBounds, ParserConfig, PythonParser, RawParser, Reading, check_columns
from waybill.config.partition_by import IsPartitionBy, PartitionBy, check_partition_by
from waybill.config.partitioning import Maintenance, Partition, QuarantineAlert
from waybill.config.sink import Sink
from waybill.config.values import (
    IsRecompression,
    IsRegex,
    IsStart,
    IsTopicList,
    Matching,
    WholeNumberBetween,
)

__all__ = ["Stream", "TopicRegex"]

TABLE = Matching(
    r"[a-z][a-z0-9_]{0,99}\.[a-z][a-z0-9_]{0,99}",
    "namespace.table, each a lower-case letter and up to 99 characters of [a-z0-9_]",
)


class TopicRegex(Section):
    """Topics by pattern, looked up again at every run."""

    regex: Annotated[str, IsRegex()] = Field(
        description="What the whole topic name must match. Kafka's internal topics (`__…`) never do."
    )


def _topics_shape(value: Any) -> str | None:
    # These tags show up in the locations of faults: they must not look like keys.
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


def _a_section(schema: dict[str, Any]) -> None:
    """Of a section that may be left out: null stands for no section in Python, and not in YAML."""
    schema["$ref"] = next(kind["$ref"] for kind in schema.pop("anyOf") if "$ref" in kind)
    del schema["default"]


class Stream(Section):
    """One stream: which topics, and how they are archived, parsed and partitioned."""

    topics: Topics = Field(description="A list of topics (each at most once), or a section with `regex`.")
    generation: Annotated[int, WholeNumberBetween(1, 999_999)] = Field(
        1, description="Raise it to start again with a chain and tables of their own."
    )
    start: Annotated[StartPosition | datetime, IsStart()] = Field(
        StartPosition.EARLIEST, description="Where a chain starts that does not exist yet."
    )
    isolation_level: IsolationLevel = Field(
        IsolationLevel.READ_COMMITTED, description="`read_committed` leaves out aborted transactions."
    )
    upload: UploadPolicy = Field(UploadPolicy(), description="When a backup object is cut.")
    format: Format = Field(Format(), description="What the backup objects are. Changing it takes a new generation.")
    recompress: Annotated[int | None, IsRecompression()] = Field(
        None,
        description="`zstd`: batches that producers sent uncompressed are stored compressed, their records untouched.",
    )
    ingest: Ingest = Field(Ingest(), description="How the lanes run.")
    parser: ParserConfig = Field(description="How a message is read. The keys depend on the parser's name.")
    columns: Columns = Field(
        {}, description="Fields of the messages that become columns of the table, by the column's name."
    )
    table: Annotated[str, TABLE] = Field(
        description="The table. The generation is appended: `analytics.flights` is `analytics.flights_g1`, and its "
        "quarantine `analytics.flights_quarantine_g1`."
    )
    partition_by: Annotated[PartitionBy, IsPartitionBy()] = Field(
        PartitionBy(),
        description="What the table is partitioned by: hour or day of the event time, and further columns, as Spark "
        "writes it. Changing it takes a new generation.",
    )
    event_time_bounds: EventTimeBounds = Field(
        EventTimeBounds(), description="How far an event time may be from the time at which a run is planned."
    )
    sink: Sink = Field(Sink(), description="Where the rows go.")
    partition: Partition = Field(Partition(), description="How the Spark job runs.")
    quarantine: QuarantineAlert = Field(
        QuarantineAlert(), description="From which share of messages on the quarantine is an alert."
    )
    dedup: Dedup | None = Field(
        None,
        exclude_if=lambda dedup: dedup is None,
        json_schema_extra=_a_section,
        description="How messages that were sent again are found; `{}`: with its keys' defaults.",
    )
    maintenance: Maintenance = Field(Maintenance(), description="How the tables are kept in shape.")

    @model_validator(mode="before")
    @classmethod
    def _check_dedup_is_meant(cls, value: Any) -> Any:
        """A section that was opened and left empty: is it all defaults, or no dedup?"""
        if isinstance(value, dict) and "dedup" in value and value["dedup"] is None:
            raise misfit("dedup", "must be a section: {} is one with its keys' defaults; leave it out for no dedup")
        return value

    @model_validator(mode="after")
    def _check_upload_topics(self) -> Self:
        for topic in self.upload.topics:
            if not self.matches(topic):
                raise misfit(
                    ("upload", "topics", topic),
                    f"topic {topic!r} does not belong to this stream: correct it, or add it to `topics`",
                )
        return self

    @model_validator(mode="after")
    def _check_recompress(self) -> Self:
        if self.recompress is not None and self.format.name is not BackupFormat.KAFKA:
            raise misfit(
                "recompress",
                f"rewrites record batches, and the format {self.format.name} holds none: leave it out, "
                f"or set format.compression",
            )
        return self

    @model_validator(mode="after")
    def _check_timestamps(self) -> Self:
        if isinstance(self.parser, RawParser) and self.format.name is not BackupFormat.KAFKA:
            raise misfit(
                ("parser", "name"),
                f"raw needs Kafka's timestamps, and the format {self.format.name} holds none: "
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
                raise misfit("partition_by", "must be hour or day with the sink files: its directories have no more")
            for name in ("dt", "hr"):
                if name in self.columns:
                    raise misfit(("columns", name), "is a directory's column with the sink files: choose another name")
        return self

    @model_validator(mode="after")
    def _check_dedup(self) -> Self:
        if self.dedup is None:
            return self
        if self.sink.is_files:
            raise misfit("dedup", "needs the rows in a table, and the sink files has none: leave it out")
        # A class of one's own may give ids: only it can tell.
        has_ids = isinstance(self.parser, PythonParser) or getattr(self.parser, "message_id", None) is not None
        check_dedup(self.dedup, self.columns, has_message_ids=has_ids)
        return self

    @property
    def reading(self) -> Reading:
        """All that decides what a message of this stream becomes."""
        return Reading(
            parser=self.parser,
            columns=self.columns,
            event_time_bounds=self.event_time_bounds,
            files=self.sink.format if self.sink.is_files else None,
        )

    @property
    def by_hour(self) -> bool:
        """Whether rows are put by the hour of their event time, and not by the day."""
        return self.partition_by.time is TimeUnit.HOUR

    def consumer_group(self, stream_name: str) -> str | None:
        """The consumer group that progress is shown in; None: in none."""
        group = self.ingest.consumer_group
        return None if group is None else group.replace("{stream}", stream_name)

    def upload_for(self, topic: str) -> UploadPolicy:
        """The upload policy of a topic: the stream's, with what is set for the topic alone."""
        own = self.upload.topics.get(topic)
        return self.upload.model_copy(update=own.model_dump(exclude_none=True)) if own else self.upload

    def matches(self, topic: str) -> bool:
        """Whether `topic` belongs to this stream. Kafka's internal topics (`__…`) never match a pattern."""
        if isinstance(self.topics, TopicRegex):
            return not topic.startswith("__") and re.fullmatch(self.topics.regex, topic) is not None
        return topic in self.topics
