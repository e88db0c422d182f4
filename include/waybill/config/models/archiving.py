"""How a stream is archived: its lanes, when a backup object is completed, and the format of backup objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from pydantic import ByteSize, Field, model_validator

from waybill.config import names
from waybill.config.models.base import Matching, NamedSection, Section, section_error
from waybill.config.models.enums import BackupFormat, Compression, SequenceFileKey
from waybill.config.models.expressions import IsSchedule
from waybill.config.models.groups import GroupedSection
from waybill.config.models.quantities import DurationBetween, SizeBetween, WholeNumberBetween
from waybill.config.models.texts import IsDelimiter, IsTopic

CONSUMER_GROUP = Matching(
    r"(?:[A-Za-z0-9._:-]|\{stream\}){1,200}",
    "1 to 200 characters of [A-Za-z0-9._:-]; `{stream}` stands for the stream's name",
)

ObjectBytes = Annotated[ByteSize, SizeBetween("1KiB", "5GiB")]
ObjectAge = Annotated[timedelta, DurationBetween("0s", "7d")]


class TopicUpload(Section):
    """Limits of one topic. A key that is left out has the stream's value."""

    max_bytes: ObjectBytes | None = Field(None, description="Instead of the stream's `upload.max_bytes`.")
    max_age: ObjectAge | None = Field(None, description="Instead of the stream's `upload.max_age`.")


class UploadPolicy(Section):
    """When a backup object is completed: at the first limit that is reached."""

    max_bytes: ObjectBytes = Field(ByteSize(128 << 20), description="Complete an object at this stored size.")
    max_age: ObjectAge = Field(
        timedelta(minutes=10),
        description="Complete an object when its oldest message arrived this long ago. `0s`: archive all messages at "
        "every run.",
    )
    topics: dict[Annotated[str, IsTopic()], TopicUpload] = Field(
        {}, description="Limits of single topics of the stream, by name."
    )


class Ingest(GroupedSection):
    """How the lanes of a stream work."""

    schedule: Annotated[str, IsSchedule()] = Field(
        "* * * * *", description="When the stream's own DAG `ingest__<stream>` runs, in UTC."
    )
    lanes: Annotated[int, WholeNumberBetween(1, 1024)] = Field(
        4, description="The number of lanes that archive the stream's topic-partitions in parallel."
    )
    budget: Annotated[timedelta, DurationBetween("1s", "1h")] = Field(
        timedelta(seconds=45), description="How long a lane fetches. Messages that remain wait for the next run."
    )
    rate_limit: Annotated[ByteSize, SizeBetween("0B", "1TiB")] = Field(
        ByteSize(0), description="The most bytes per second that a lane fetches, on average. 0: no limit."
    )
    consumer_group: Annotated[str, CONSUMER_GROUP] | None = Field(
        None,
        description="A Kafka consumer group that the committed offsets are copied to, for tools that show its lag. "
        "Waybill never reads it.",
    )


class Format(NamedSection):
    """The format of backup objects. A name alone, such as `format: text`, is short for a section with that name."""

    name: BackupFormat = Field(
        BackupFormat.KAFKA,
        description="`kafka`: the record batches, verbatim. The other formats keep less: see the user guide.",
    )
    key: SequenceFileKey = Field(
        SequenceFileKey.MSGPACK,
        description="`sequencefile` only: the offset as a `LongWritable` (`legacy`), or offset and Kafka key in a "
        "MessagePack map (`msgpack`).",
    )
    delimiter: Annotated[str, IsDelimiter()] = Field(
        "\n", description="`text` only: the end of each message. A message that contains it goes to quarantine."
    )
    compression: Compression = Field(
        Compression.NONE,
        description="`sequencefile`: compression of its blocks. `text`: `none` or `gzip`. `kafka`: `none`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        """Refuse a key that has no effect with the format: its author expects one."""
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        for key in ("key", "delimiter", "compression"):
            if key not in _FORMAT_KEYS[self.name] and getattr(self, key) != defaults[key]:
                raise section_error(key, f"has no effect with the format {self.name}: remove it")
        if self.name is BackupFormat.TEXT and self.compression not in _TEXT_COMPRESSIONS:
            raise section_error("compression", f"must be {' or '.join(_TEXT_COMPRESSIONS)} with the format text")
        return self

    @property
    def extension(self) -> names.Extension:
        """Return the extension in the names of backup objects of this format."""
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
