"""Where a stream's rows are written: to an Iceberg table, or to files in Hive's layout."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from pydantic import Field, model_validator

from waybill.config import names
from waybill.config.models.base import Matching, NamedSection, section_error
from waybill.config.models.enums import Compression, FileFormat, SequenceFileKey, SinkName
from waybill.config.models.quantities import DurationBetween
from waybill.config.models.texts import IsDelimiter

SINK_PREFIX = Matching(
    r"(?:[A-Za-z0-9!_.*'()-]|\{table\})+(?:/(?:[A-Za-z0-9!_.*'()-]|\{table\})+)*",
    "up to 400 characters: segments of [A-Za-z0-9!_.*'()-], none of them '.' or '..', joined by single slashes; "
    "`{table}` stands for the table with its generation",
    refused=r"(?:^|/)\.\.?(?:/|$)|^.{401}",
)


class FilesFormat(NamedSection):
    """The format of files. A name alone, such as `format: text`, is short for a section with that name."""

    name: FileFormat = Field(
        FileFormat.PARQUET,
        description="`parquet`: the table's columns. `sequencefile`, `text`: only the messages, see the user guide.",
    )
    key: SequenceFileKey = Field(
        SequenceFileKey.MSGPACK,
        description="`sequencefile` only: the offset as a `LongWritable` (`legacy`), or offset and Kafka key in a "
        "MessagePack map (`msgpack`).",
    )
    delimiter: Annotated[str, IsDelimiter()] = Field(
        "\n", description="`text` only: the end of each message. A message that contains it goes to quarantine."
    )
    compression: Compression | None = Field(
        None,
        description="`parquet`: `zstd` (the default), `snappy`, `gzip`, `none`. `sequencefile`: compression of "
        "its blocks, by default `none`. `text`: `none` (the default) or `gzip`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        """Refuse a key that has no effect with the format: its author expects one."""
        for key, owner in (("key", FileFormat.SEQUENCEFILE), ("delimiter", FileFormat.TEXT)):
            if self.name is not owner and getattr(self, key) != type(self).model_fields[key].default:
                raise section_error(key, f"has no effect with the format {self.name}: remove it")
        if self.name is FileFormat.TEXT and self.codec not in _TEXT_COMPRESSIONS:
            raise section_error("compression", f"must be {' or '.join(_TEXT_COMPRESSIONS)} with the format text")
        return self

    @property
    def codec(self) -> Compression:
        """Return the compression, or the default of the format if none is configured."""
        if self.compression is not None:
            return self.compression
        return Compression.ZSTD if self.name is FileFormat.PARQUET else Compression.NONE

    @property
    def extension(self) -> names.FileExtension:
        """Return the extension in the names of files of this format."""
        if self.name is FileFormat.TEXT and self.codec is Compression.GZIP:
            return names.FileExtension.TEXT_GZIP
        return _EXTENSIONS[self.name]


_TEXT_COMPRESSIONS = (Compression.NONE, Compression.GZIP)
_EXTENSIONS = {
    FileFormat.PARQUET: names.FileExtension.PARQUET,
    FileFormat.SEQUENCEFILE: names.FileExtension.SEQUENCEFILE,
    FileFormat.TEXT: names.FileExtension.TEXT,
}


class Sink(NamedSection):
    """Where the rows are written. A name alone, such as `sink: files`, is short for a section with that name."""

    name: SinkName = Field(
        SinkName.ICEBERG,
        description="`iceberg`: to the table. `files`: to files in directories by event time, which the table lists.",
    )
    prefix: Annotated[str, SINK_PREFIX] = Field(
        "tables/{table}",
        description="`files` only: the part of every file's key after `storage.prefix`. `{table}` stands for the table "
        "with its generation, as in `analytics.flights_g1`; without it, each generation needs a prefix of its own.",
    )
    format: FilesFormat = Field(
        FilesFormat(), description="`files` only: the format of the files. Changing it takes a new generation."
    )
    lateness: Annotated[timedelta, DurationBetween("0s", "90d")] = Field(
        timedelta(hours=1),
        description="`files` only: how long after its end an hour gets its `_SUCCESS`. The time is the newest Kafka "
        "timestamp that every topic-partition of the stream has reached.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.name is SinkName.ICEBERG:
            for key in type(self).model_fields:
                if key != "name" and getattr(self, key) != type(self).model_fields[key].default:
                    raise section_error(key, "has no effect with the sink iceberg: remove it, or set name: files")
        first = self.prefix.split("/", 1)[0]
        if first in set(names.Folder):
            raise section_error("prefix", f"{first!r} is a prefix of Waybill's own objects: choose another prefix")
        return self

    @property
    def is_files(self) -> bool:
        """Return whether rows are written to files, which the table lists."""
        return self.name is SinkName.FILES

    def root(self, storage_prefix: str, table: str) -> str:
        """Return the prefix of the keys of all files; `table`: the table's name with its generation."""
        return names.sink_root(storage_prefix, self.prefix.replace("{table}", table))


def check_sinks_apart(roots: dict[str, str]) -> None:
    """Raise an error if one stream writes files below the root of another: a reader of the root would read both.

    `roots`: the root of each stream with the sink `files`, by the stream's name.
    """
    for name, root in roots.items():
        for other, other_root in roots.items():
            if other != name and f"{root}/".startswith(f"{other_root}/"):
                raise section_error(
                    ("streams", name, "sink", "prefix"),
                    f"streams {other!r} and {name!r} would both write below {other_root}/: "
                    f"give one of them another prefix",
                    kind="overlap",
                )
