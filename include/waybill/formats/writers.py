"""What writes the bytes of a backup object in another format than Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from waybill.config import Format
from waybill.config.enums import BackupFormat, Compression
from waybill.formats.sequencefile import SequenceFileWriter
from waybill.formats.text import TextWriter
from waybill.names import BackupName

__all__ = ["Writer", "build_writer"]


class Writer(Protocol):
    """Messages to the bytes of one object. `begin`, any number of `write`, `finish`: their bytes in this order."""

    def begin(self) -> bytes:
        """What the object starts with."""

    def refused(self, messages: pa.RecordBatch) -> pa.Array | None:
        """Why each message cannot be held, as strings, null where it can; None if all can."""

    def write(self, messages: pa.RecordBatch) -> Iterator[memoryview | bytes]:
        """The bytes of messages of `MESSAGE_SCHEMA`, none of them refused."""

    def finish(self) -> bytes:
        """What ends the object."""


def build_writer(kind: Format, name: BackupName) -> Writer:
    """The writer for an object of that name. Raises `ValueError` for the format `kafka`, which needs none."""
    if kind.name is BackupFormat.SEQUENCEFILE:
        # For people who look at the file; no reader depends on it.
        metadata = {
            "topic": name.topic,
            "partition": str(name.partition),
            "generation": str(name.generation),
            "first_offset": str(name.first_offset),
        }
        return SequenceFileWriter(kind.key, kind.compression, metadata)
    if kind.name is BackupFormat.TEXT:
        return TextWriter(kind.delimiter.encode(), compressed=kind.compression is Compression.GZIP)
    raise ValueError(f"the format {kind.name} has no writer")
