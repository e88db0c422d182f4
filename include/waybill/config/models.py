"""The models behind `streams.yaml`. Each field's description is its reference (docs/config-reference.md)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from waybill import names
from waybill.config.enums import (
    BackupFormat,
    Compression,
    EventTimeFormat,
    IsolationLevel,
    PartitionBy,
    SequenceFileKey,
    StartPosition,
)
from waybill.config.parser_class import make_parser
from waybill.config.values import (
    DurationBetween,
    IsClassPath,
    IsColumnList,
    IsConnectionId,
    IsDelimiter,
    IsFieldDelimiter,
    IsFieldPath,
    IsPattern,
    IsQuote,
    IsRecompression,
    IsRegex,
    IsSchedule,
    IsStart,
    IsStreamName,
    IsTopic,
    IsTopicList,
    Matching,
    SizeBetween,
    WholeNumberBetween,
    group_names,
)
from waybill.errors import ConfigError

__all__ = [
    "Catalog",
    "Config",
    "DelimitedParser",
    "EventTime",
    "FieldPath",
    "Format",
    "Ingest",
    "JsonParser",
    "Kafka",
    "MsgpackParser",
    "ParserConfig",
    "Partition",
    "PythonParser",
    "RawParser",
    "RegexParser",
    "Spark",
    "Storage",
    "Stream",
    "TopicRegex",
    "TopicUpload",
    "UploadPolicy",
    "ZooKeeper",
]

ConnectionId = Annotated[str, IsConnectionId()]
FieldPath = Annotated[tuple[str, ...], IsFieldPath()]

BUCKET = Matching(
    r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "3 to 63 characters of [a-z0-9.-] that start and end with a letter or digit, without '..', and no IP address",
    refused=r"\.\.|^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$",
)
PREFIX = Matching(
    r"(?:[A-Za-z0-9!_.*'()=-]+(?:/[A-Za-z0-9!_.*'()=-]+)*){0,1}",
    "up to 400 characters: segments of [A-Za-z0-9!_.*'()=-], none of them '.' or '..', joined by single slashes",
    refused=r"(?:^|/)\.\.?(?:/|$)|^.{401}",
)
ZK_ROOT = Matching(
    r"(?!zookeeper(?:/|$))[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*",
    "segments of [A-Za-z0-9_.-], none of them '.' or '..', joined by single slashes; not 'zookeeper', which is its own",
    refused=r"(?:^|/)\.\.?(?:/|$)",
)
CONSUMER_GROUP = Matching(
    r"(?:[A-Za-z0-9._:-]|\{stream\}){1,200}",
    "1 to 200 characters of [A-Za-z0-9._:-]; `{stream}` stands for the stream's name",
)
TABLE = Matching(
    r"[a-z][a-z0-9_]{0,99}\.[a-z][a-z0-9_]{0,99}",
    "namespace.table, each a lower-case letter and up to 99 characters of [a-z0-9_]",
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Storage(_Model):
    """Where the archive is."""

    connection: ConnectionId = Field("aws_default", description="Airflow connection of S3 (type `aws`).")
    bucket: Annotated[str, BUCKET] = Field(description="The bucket. It must exist.")
    prefix: Annotated[str, PREFIX] = Field("", description="What every key starts with.")
    abort_uploads_after: Annotated[timedelta, DurationBetween("2h", "90d")] = Field(
        timedelta(days=1),
        description="When a multipart upload of a backup object that was never completed, left behind by a lane that "
        "was killed, is aborted.",
    )


class Kafka(_Model):
    """Where the messages come from."""

    connection: ConnectionId = Field("kafka_default", description="Airflow connection of Kafka (type `kafka`).")


class ZooKeeper(_Model):
    """Where lanes are coordinated."""

    connection: ConnectionId = Field("zookeeper_default", description="Airflow connection of ZooKeeper.")
    root: Annotated[str, ZK_ROOT] = Field(
        "waybill", description="The node below which Waybill writes (below the connection's chroot)."
    )
    session_timeout: Annotated[timedelta, DurationBetween("2s", "5m")] = Field(
        timedelta(seconds=10), description="How long a dead lane keeps its locks."
    )


class Catalog(_Model):
    """Where the tables are registered."""

    connection: ConnectionId = Field("iceberg_default", description="Airflow connection of the Iceberg catalog.")


class Spark(_Model):
    """Where Spark jobs run."""

    connection: ConnectionId = Field(
        "spark_default", description="Airflow connection of Spark: `local[2]`, `spark://…`, `yarn`, `k8s://…`."
    )


class TopicRegex(_Model):
    """Topics by pattern, looked up again at every run."""

    regex: Annotated[str, IsRegex()] = Field(
        description="What the whole topic name must match. Kafka's internal topics (`__…`) never do."
    )


ObjectBytes = Annotated[ByteSize, SizeBetween("1KiB", "5GiB")]
ObjectAge = Annotated[timedelta, DurationBetween("0s", "7d")]


class TopicUpload(_Model):
    """Other limits for one topic. What is left out is the stream's."""

    max_bytes: ObjectBytes | None = Field(None, description="Instead of the stream's `upload.max_bytes`.")
    max_age: ObjectAge | None = Field(None, description="Instead of the stream's `upload.max_age`.")


class UploadPolicy(_Model):
    """When a backup object is cut: at the first limit that is reached."""

    max_bytes: ObjectBytes = Field(ByteSize(128 << 20), description="Cut an object at this size, as it is stored.")
    max_age: ObjectAge = Field(
        timedelta(minutes=10),
        description="Cut an object when its oldest message came this long ago. `0s`: whatever is there at every run.",
    )
    topics: dict[Annotated[str, IsTopic()], TopicUpload] = Field(
        {}, description="Other limits for some of the stream's topics, by name."
    )


class Ingest(_Model):
    """How the lanes of a stream run."""

    lanes: Annotated[int, WholeNumberBetween(1, 1024)] = Field(
        4, description="How many lanes drain the stream's topic-partitions side by side."
    )
    budget: Annotated[timedelta, DurationBetween("1s", "1h")] = Field(
        timedelta(seconds=45), description="How long a lane fetches; what is left then waits for the next run."
    )
    rate_limit: Annotated[ByteSize, SizeBetween("0B", "1TiB")] = Field(
        ByteSize(0), description="How many bytes a second a lane fetches at most, on average. 0: no limit."
    )
    consumer_group: Annotated[str, CONSUMER_GROUP] | None = Field(
        None,
        description="A Kafka consumer group that progress is committed to as well, for tools that show its lag. "
        "Nothing reads it back.",
    )


class Format(_Model):
    """What a backup object's bytes are. A name alone, such as `format: text`, is short for a section with that name."""

    name: BackupFormat = Field(
        BackupFormat.KAFKA,
        description="`kafka`: the record batches, verbatim. The others hold less: see the user guide.",
    )
    key: SequenceFileKey = Field(
        SequenceFileKey.MSGPACK,
        description="`sequencefile` only: the offset as a `LongWritable` (`legacy`), or offset and Kafka key in a "
        "MessagePack map (`msgpack`).",
    )
    delimiter: Annotated[str, IsDelimiter()] = Field(
        "\n", description="`text` only: what ends each message. Messages that contain it go to quarantine."
    )
    compression: Compression = Field(
        Compression.NONE, description="`sequencefile`: of its blocks. `text`: `none` or `gzip`. `kafka`: `none`."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        """A key that means nothing for the format is a misunderstanding."""
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        for key in ("key", "delimiter", "compression"):
            if key not in _FORMAT_KEYS[self.name] and getattr(self, key) != defaults[key]:
                raise _misfit(key, f"means nothing with the format {self.name}: leave it out")
        if self.name is BackupFormat.TEXT and self.compression not in _TEXT_COMPRESSIONS:
            raise _misfit("compression", f"of text must be {' or '.join(_TEXT_COMPRESSIONS)}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": [name.value for name in BackupFormat]}, handler(schema)]}

    @property
    def extension(self) -> names.Extension:
        """How backup objects of this format are called."""
        if self.name is BackupFormat.TEXT and self.compression is Compression.GZIP:
            return names.Extension.TEXT_GZIP
        return _EXTENSIONS[self.name]


_FORMAT_KEYS = {
    BackupFormat.KAFKA: (),
    BackupFormat.SEQUENCEFILE: ("key", "compression"),
    BackupFormat.TEXT: ("delimiter", "compression"),
}
_TEXT_COMPRESSIONS = (Compression.NONE, Compression.GZIP)
_EXTENSIONS = {
    BackupFormat.KAFKA: names.Extension.KAFKA,
    BackupFormat.SEQUENCEFILE: names.Extension.SEQUENCEFILE,
    BackupFormat.TEXT: names.Extension.TEXT,
}


def _misfit(at: str | tuple[str, ...], message: str) -> PydanticCustomError:
    keys = (at,) if isinstance(at, str) else at
    return PydanticCustomError("misfit", "{message}", {"message": message, "at": keys})


class EventTime(_Model):
    """Where a message says when its event happened."""

    field: FieldPath = Field(
        description="Field path, e.g. `time.scheduled`; for `regex` the name of a group, for `delimited` of a column."
    )
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


class MsgpackParser(_Model):
    """Messages that are MessagePack maps."""

    name: Literal["msgpack"] = Field(description="The parser.")
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A MessagePack timestamp is taken as it "
        "is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without one, or where a message has none, the id is "
        "`<topic>/<partition>@<offset>`.",
    )


class PythonParser(_Model):
    """Messages that a class of your own reads. It is imported and tried when the config is loaded."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["python"] = Field(description="The parser.")
    class_path: Annotated[str, IsClassPath()] = Field(
        alias="class",
        description="A class that implements `waybill.parsers.Parser`. Airflow and every Spark executor must be able "
        "to import it.",
    )
    options: dict[str, Any] = Field({}, description="Keyword arguments of its constructor.")

    @model_validator(mode="after")
    def _check_class(self) -> Self:
        try:
            make_parser(self.class_path, self.options)
        except ValueError as error:
            raise _misfit("class", str(error)) from None
        return self


class RawParser(_Model):
    """Messages whose values are not looked at: the event time is Kafka's timestamp."""

    name: Literal["raw"] = Field(description="The parser.")


class RegexParser(_Model):
    """Messages that are text (UTF-8) in which a pattern finds the fields."""

    name: Literal["regex"] = Field(description="The parser.")
    pattern: Annotated[str, IsPattern()] = Field(
        description="Its first match counts, wherever it is: `^` and `$` tie it to the ends, and `.` is no line break. "
        "A message without a match goes to quarantine."
    )
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="The group with the producer's message id. Without one the id is `<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        _check_fields(self.event_time, self.message_id, "groups of the pattern", group_names(self.pattern))
        return self


class DelimitedParser(_Model):
    """Messages that are one record each of delimited text (UTF-8): CSV, TSV."""

    name: Literal["delimited"] = Field(description="The parser.")
    columns: Annotated[tuple[str, ...], IsColumnList()] = Field(
        description="What a message's fields are, all of them, in order. One with more or fewer goes to quarantine."
    )
    delimiter: Annotated[str, IsFieldDelimiter()] = Field(",", description="What stands between the fields.")
    quote: Annotated[str | None, IsQuote()] = Field(
        '"',
        description="What stands around a field that holds a delimiter or a line break. In such a field it is doubled.",
    )
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="The column with the producer's message id. Without one the id is `<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.quote == self.delimiter:
            raise _misfit("quote", "must not be the delimiter as well")
        _check_fields(self.event_time, self.message_id, "columns", self.columns)
        return self


def _check_fields(event_time: EventTime, message_id: FieldPath | None, what: str, known: Sequence[str]) -> None:
    """Where fields have plain names, a dot in one is part of the name."""
    for at, path in ((("event_time", "field"), event_time.field), (("message_id",), message_id)):
        if path is not None and ".".join(path) not in known:
            raise _misfit(at, f"must be one of the {what}: {', '.join(known)}")


def _parser_tag(value: Any) -> str:
    # As with topics: a tag must not look like a key.
    name = value.get("name", _DEFAULT_PARSER) if isinstance(value, dict) else getattr(value, "name", _DEFAULT_PARSER)
    return f"parser {name}"


def _check_parser_name(value: Any) -> Any:
    name = value.get("name", _DEFAULT_PARSER) if isinstance(value, dict) else _DEFAULT_PARSER
    if name not in _PARSERS:
        *others, last = (repr(known) for known in _PARSERS)
        raise _misfit("name", f"must be {', '.join(others)} or {last}")
    return value


_DEFAULT_PARSER = "json"
_PARSERS = ("json", "raw", "regex", "delimited", "msgpack", "python")

ParserConfig = Annotated[
    Annotated[
        Annotated[JsonParser, Tag("parser json")]
        | Annotated[RawParser, Tag("parser raw")]
        | Annotated[RegexParser, Tag("parser regex")]
        | Annotated[DelimitedParser, Tag("parser delimited")]
        | Annotated[MsgpackParser, Tag("parser msgpack")]
        | Annotated[PythonParser, Tag("parser python")],
        Discriminator(_parser_tag),
    ],
    BeforeValidator(_check_parser_name),
]
"""How a message is read: one model for each parser, chosen by `name`."""


class Partition(_Model):
    """How the archive is turned into the table."""

    schedule: Annotated[str, IsSchedule()] = Field("@hourly", description="When `partition__<stream>` runs, in UTC.")
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of backup one Spark task takes."
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows a task holds before it writes them out."
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


class Stream(_Model):
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
    table: Annotated[str, TABLE] = Field(
        description="The table. The generation is appended: `analytics.flights` is `analytics.flights_g1`, and its "
        "quarantine `analytics.flights_quarantine_g1`."
    )
    partition_by: PartitionBy = Field(PartitionBy.HOUR, description="Iceberg's transform of the event time.")
    partition: Partition = Field(Partition(), description="How the Spark job runs.")

    @model_validator(mode="after")
    def _check_upload_topics(self) -> Self:
        for topic in self.upload.topics:
            if not self.matches(topic):
                raise PydanticCustomError(
                    "not_of_stream",
                    "{message}",
                    {
                        "message": f"topic {topic!r} does not belong to this stream: correct it, or add it to `topics`",
                        "at": ("upload", "topics", topic),
                    },
                )
        return self

    @model_validator(mode="after")
    def _check_recompress(self) -> Self:
        if self.recompress is not None and self.format.name is not BackupFormat.KAFKA:
            raise PydanticCustomError(
                "misfit",
                "{message}",
                {
                    "message": f"rewrites record batches, and the format {self.format.name} holds none: leave it out, "
                    f"or set format.compression",
                    "at": ("recompress",),
                },
            )
        return self

    @model_validator(mode="after")
    def _check_timestamps(self) -> Self:
        if isinstance(self.parser, RawParser) and self.format.name is not BackupFormat.KAFKA:
            raise PydanticCustomError(
                "misfit",
                "{message}",
                {
                    "message": f"raw needs Kafka's timestamps, and the format {self.format.name} holds none: "
                    f"choose another parser, or the format kafka",
                    "at": ("parser", "name"),
                },
            )
        return self

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


def _check_version(value: Any) -> Any:
    if isinstance(value, bool):  # for Python, True is 1
        raise ValueError("must be 1")
    return value


class Config(_Model):
    """The whole of `streams.yaml`."""

    version: Annotated[Literal[1], BeforeValidator(_check_version)] = Field(
        description="The version of this file's format."
    )
    storage: Storage = Field(description="Where the archive is.")
    kafka: Kafka = Field(Kafka(), description="Where the messages come from.")
    zookeeper: ZooKeeper = Field(ZooKeeper(), description="Where lanes are coordinated.")
    catalog: Catalog = Field(Catalog(), description="Where the tables are registered.")
    spark: Spark = Field(Spark(), description="Where Spark jobs run.")
    streams: dict[Annotated[str, IsStreamName()], Stream] = Field(description="The streams, by name.", min_length=1)

    @model_validator(mode="after")
    def _check_overlaps(self) -> Self:
        """Two streams must not write one chain or one table: refused here rather than found in the data."""
        self._check_tables()
        for (a, first), (b, second) in self._pairs():
            if first.generation == second.generation:
                _check_topics_apart(a, first, b, second)
        return self

    def _check_tables(self) -> None:
        owners: dict[str, str] = {}
        for name, stream in self.streams.items():
            for table in (
                names.table_name(stream.table, stream.generation),
                names.quarantine_table_name(stream.table, stream.generation),
            ):
                owner = owners.setdefault(table, name)
                if owner != name:
                    raise _overlap(
                        (name, "table"),
                        f"streams {owner!r} and {name!r} would both write the table {table}: "
                        f"give one of them another table or generation",
                    )

    def _pairs(self) -> Iterator[tuple[tuple[str, Stream], tuple[str, Stream]]]:
        items = list(self.streams.items())
        for i, a in enumerate(items):
            for b in items[i + 1 :]:
                yield a, b

    def rival(self, name: str, topic: str) -> str | None:
        """Another stream that archives the topic in the same generation, into the same chains; None: there is none.

        Two patterns may match one topic, which nobody can tell before there is such a topic.
        """
        generation = self.stream(name).generation
        rivals = (
            other
            for other, stream in self.streams.items()
            if other != name and stream.generation == generation and stream.matches(topic)
        )
        return next(rivals, None)

    def stream(self, name: str) -> Stream:
        """The stream of that name. Raises `ConfigError` that lists the names there are."""
        try:
            return self.streams[name]
        except KeyError:
            near = difflib.get_close_matches(name, self.streams, n=1)
            meant = f"; did you mean {near[0]!r}? There" if near else "; there"
            raise ConfigError(f"no stream {name!r}{meant} are: {', '.join(sorted(self.streams))}") from None


def _check_topics_apart(a: str, first: Stream, b: str, second: Stream) -> None:
    """Whether two patterns can match one topic is found when topics are looked up; the rest can be told here."""
    shared = next((t for t in _literal(first) + _literal(second) if first.matches(t) and second.matches(t)), None)
    if shared is not None:
        what = f"topic {shared!r}"
    elif isinstance(first.topics, TopicRegex) and first.topics == second.topics:
        what = f"the topics of {first.topics.regex!r}"
    else:
        return
    raise _overlap(
        (b, "topics"),
        f"streams {a!r} and {b!r} both archive {what} in generation {first.generation}: "
        f"leave it to one of them, or give one another generation",
    )


def _overlap(at: tuple[str, str], message: str) -> PydanticCustomError:
    # The message goes in as a value: in the template itself, its braces would be taken for placeholders.
    return PydanticCustomError("overlap", "{message}", {"message": message, "at": ("streams", *at)})


def _literal(stream: Stream) -> list[str]:
    return [] if isinstance(stream.topics, TopicRegex) else list(stream.topics)
