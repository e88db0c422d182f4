"""How a stream is archived: its lanes, when a backup object is cut, and what its bytes are."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from pydantic import ByteSize, Field, model_validator

from waybill import names
from waybill.config.enums import BackupFormat, Compression, SequenceFileKey
from waybill.config.model import NamedSection, Section, misfit
from waybill.config.values import DurationBetween, IsDelimiter, IsTopic, Matching, SizeBetween, WholeNumberBetween

__all__ = ["Format", "Ingest", "TopicUpload", "UploadPolicy"]

CONSUMER_GROUP = Matching(
    r"(?:[A-Za-z0-9._:-]|\{stream\}){1,200}",
    "1 to 200 characters of [A-Za-z0-9._:-]; `{stream}` stands for the stream's name",
)

ObjectBytes = Annotated[ByteSize, SizeBetween("1KiB", "5GiB")]
ObjectAge = Annotated[timedelta, DurationBetween("0s", "7d")]


class TopicUpload(Section):
    """Other limits for one topic. What is left out is the stream's."""

    max_bytes: ObjectBytes | None = Field(None, description="Instead of the stream's `upload.max_bytes`.")
    max_age: ObjectAge | None = Field(None, description="Instead of the stream's `upload.max_age`.")


class UploadPolicy(Section):
    """When a backup object is cut: at the first limit that is reached."""

    max_bytes: ObjectBytes = Field(ByteSize(128 << 20), description="Cut an object at this size, as it is stored.")
    max_age: ObjectAge = Field(
        timedelta(minutes=10),
        description="Cut an object when its oldest message came this long ago. `0s`: whatever is there at every run.",
    )
    topics: dict[Annotated[str, IsTopic()], TopicUpload] = Field(
        {}, description="Other limits for some of the stream's topics, by name."
    )


class Ingest(Section):
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


class Format(NamedSection):
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

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        """A key that means nothing for the format is a misunderstanding."""
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        for key in ("key", "delimiter", "compression"):
            if key not in _FORMAT_KEYS[self.name] and getattr(self, key) != defaults[key]:
                raise misfit(key, f"means nothing with the format {self.name}: leave it out")
        if self.name is BackupFormat.TEXT and self.compression not in _TEXT_COMPRESSIONS:
            raise misfit("compression", f"of text must be {' or '.join(_TEXT_COMPRESSIONS)}")
        return self

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
