"""Where a stream's rows go: an Iceberg table, or files in Hive's layout."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from pydantic import Field, model_validator

from waybill import names
from waybill.config.enums import Compression, FileFormat, SequenceFileKey, SinkName
from waybill.config.model import NamedSection, misfit
from waybill.config.values import DurationBetween, IsDelimiter, Matching

__all__ = ["FilesFormat", "Sink", "check_sinks_apart"]

SINK_PREFIX = Matching(
    r"(?:[A-Za-z0-9!_.*'()-]|\{table\})+(?:/(?:[A-Za-z0-9!_.*'()-]|\{table\})+)*",
    "up to 400 characters: segments of [A-Za-z0-9!_.*'()-], none of them '.' or '..', joined by single slashes; "
    "`{table}` stands for the table with its generation",
    refused=r"(?:^|/)\.\.?(?:/|$)|^.{401}",
)
_RESERVED = ("backup", "dedup", "gaps", "index", "plans", "retries", "starts", "sweeps")
"""What Waybill keeps in the bucket by itself: first segments below the archive's prefix."""


class FilesFormat(NamedSection):
    """What a file's bytes are. A name alone, such as `format: text`, is short for a section with that name."""

    name: FileFormat = Field(
        FileFormat.PARQUET,
        description="`parquet`: the table's columns. `sequencefile`, `text`: the messages alone, see the user guide.",
    )
    key: SequenceFileKey = Field(
        SequenceFileKey.MSGPACK,
        description="`sequencefile` only: the offset as a `LongWritable` (`legacy`), or offset and Kafka key in a "
        "MessagePack map (`msgpack`).",
    )
    delimiter: Annotated[str, IsDelimiter()] = Field(
        "\n", description="`text` only: what ends each message. Messages that contain it go to quarantine."
    )
    compression: Compression | None = Field(
        None,
        description="`parquet`: `zstd` (the default), `snappy`, `gzip`, `none`. `sequencefile`: of its blocks, `none` "
        "if left out. `text`: `none` (the default) or `gzip`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        """A key that means nothing for the format is a misunderstanding."""
        for key, owner in (("key", FileFormat.SEQUENCEFILE), ("delimiter", FileFormat.TEXT)):
            if self.name is not owner and getattr(self, key) != type(self).model_fields[key].default:
                raise misfit(key, f"means nothing with the format {self.name}: leave it out")
        if self.name is FileFormat.TEXT and self.codec not in _TEXT_COMPRESSIONS:
            raise misfit("compression", f"of text must be {' or '.join(_TEXT_COMPRESSIONS)}")
        return self

    @property
    def codec(self) -> Compression:
        """The compression, the format's own default included."""
        if self.compression is not None:
            return self.compression
        return Compression.ZSTD if self.name is FileFormat.PARQUET else Compression.NONE

    @property
    def extension(self) -> names.FileExtension:
        """How files of this format are called."""
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
    """Where the rows go. A name alone, such as `sink: files`, is short for a section with that name."""

    name: SinkName = Field(
        SinkName.ICEBERG,
        description="`iceberg`: the table. `files`: files in directories by event time; the table then lists them.",
    )
    prefix: Annotated[str, SINK_PREFIX] = Field(
        "tables/{table}",
        description="`files` only: what follows `storage.prefix` in every file's key. `{table}` stands for the table "
        "with its generation, as in `analytics.flights_g1`; without it, another generation needs another prefix.",
    )
    format: FilesFormat = Field(
        FilesFormat(), description="`files` only: what the files are. Another format takes a new generation."
    )
    lateness: Annotated[timedelta, DurationBetween("0s", "90d")] = Field(
        timedelta(hours=1),
        description="`files` only: how long after its end an hour gets its `_SUCCESS`, by the time that all of the "
        "stream's topic-partitions have come to.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.name is SinkName.ICEBERG:
            for key in type(self).model_fields:
                if key != "name" and getattr(self, key) != type(self).model_fields[key].default:
                    raise misfit(key, "means nothing with the sink iceberg: leave it out, or set name: files")
        first = self.prefix.split("/", 1)[0]
        if first in _RESERVED:
            raise misfit("prefix", f"{first!r} is where Waybill keeps its own objects: choose another prefix")
        return self

    @property
    def is_files(self) -> bool:
        """Whether rows go to files, and the table lists them."""
        return self.name is SinkName.FILES

    def root(self, storage_prefix: str, table: str) -> str:
        """What the keys of all of the sink's files start with; `table`: with its generation."""
        return names.sink_root(storage_prefix, self.prefix.replace("{table}", table))


def check_sinks_apart(roots: dict[str, str]) -> None:
    """Two streams' files must not be found below one directory: a reader of one would read the other's.

    `roots`: by stream. Raises a fault at the second one's prefix.
    """
    for name, root in roots.items():
        for other, its in roots.items():
            if other != name and f"{root}/".startswith(f"{its}/"):
                raise misfit(
                    ("streams", name, "sink", "prefix"),
                    f"streams {other!r} and {name!r} would both write below {its}/: give one of them another prefix",
                    kind="overlap",
                )
