"""What writes the bytes of a backup object in another format than Kafka's.

A backup object in another format than Kafka's, and its index: decoded messages in, two immutable S3 objects out.

The index comes first, under a name of this upload's own, and the backup object's metadata names it. So whoever creates
the backup object, its index is there (docs/decisions/0006).
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from waybill import failpoints, names
from waybill.archive.backup_object import BackupObject
from waybill.archive.indexed_reader import TOKEN
from waybill.archive.object_index import Figures, IndexWriter
from waybill.config import Format
from waybill.config.enums import BackupFormat, Compression
from waybill.errors import ConfigError, CorruptBatch, ObjectAlreadyThere, ObjectMissing, StoreUnavailable
from waybill.formats.sequencefile import SequenceFileWriter
from waybill.formats.text import TextWriter
from waybill.names import BackupName
from waybill.records import framing
from waybill.records.decode import NO_TIMESTAMP_US, decode
from waybill.store import Store

__all__ = ["IndexedObject", "Writer", "build_writer"]


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


logger = logging.getLogger(__name__)

_DECODE_BYTES = 2 << 20
"""Batches are decoded when there are this many bytes of them: enough for whole blocks."""

_MAX_INDEX_BYTES = 16 << 20
"""The object is cut when its index has grown to this, which only messages that are set aside bring about."""


class IndexedObject(BackupObject):
    """SequenceFile or text. It holds the messages with offsets in its range and no others, unlike record batches."""

    def __init__(
        self, store: Store, name: BackupName, topic_id: str, kind: Format, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._token = secrets.token_hex(16)
        super().__init__(store, name, topic_id, {**(metadata or {}), TOKEN: self._token})
        self._store = store
        self._topic_id = topic_id
        self._delimiter = kind.delimiter.encode().hex() if kind.name is BackupFormat.TEXT else ""
        self._writer = build_writer(kind, name)
        self._index = IndexWriter()
        self._hash = hashlib.sha256()
        self._is_written = False
        self._frames: list[framing.Frame] = []
        self._frames_bytes = 0
        self._min_us = self._max_us = NO_TIMESTAMP_US

    def is_full(self, frame: framing.Frame, max_bytes: int) -> bool:
        if not self.messages and not self._frames:
            return False
        expected = self.size_bytes + self._frames_bytes + len(frame.data)
        return expected > max_bytes or self._index.size_bytes > _MAX_INDEX_BYTES

    def begin_chunk(self, data: memoryview) -> None:  # noqa: ARG002 - the frames hold what they need of it
        self.flush()

    def _append(self, frame: framing.Frame) -> None:
        self._frames.append(frame)
        self._frames_bytes += len(frame.data)
        if self._frames_bytes >= _DECODE_BYTES:
            self.flush()

    def flush(self) -> None:
        """As everywhere. Raises `CorruptBatch`, too, when the records of a batch cannot be decoded."""
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        where = f"{self.name.topic}/{self.name.partition}"
        try:
            # Their checksums were looked at when they were fetched.
            for messages in decode(frames, where=where, first_offset=self.name.first_offset, verify_crc=False):
                self._add(messages)
        except CorruptBatch as error:
            reason = f"{error.reason}. Only the format kafka archives such a batch, as it is; it takes a new generation"
            raise type(error)(where, error.position_bytes, reason) from error

    def complete(self) -> None:
        self.flush()
        self._begin()
        self._write(self._writer.finish())
        index_key = names.index_key(self.key, self._token)
        try:
            self._store.create_if_absent(index_key, self._index.finish(self._figures()))
        except ObjectAlreadyThere:
            logger.debug("%s: an earlier try of the same call created it", index_key)
        failpoints.reach("ingest.index_created")
        try:
            self._upload.complete()
        except ObjectAlreadyThere:
            self._remove_index(index_key)
            raise

    def _add(self, messages: pa.RecordBatch) -> None:
        self._begin()
        refused = self._writer.refused(messages)
        self._index.add(messages, refused)
        self._note_times(messages)
        self.messages += messages.num_rows
        stored = messages if refused is None else messages.filter(refused.is_null())
        if stored.num_rows:
            for piece in self._writer.write(stored):
                self._write(piece)

    def _begin(self) -> None:
        if not self._is_written:
            self._is_written = True
            self._write(self._writer.begin())

    def _write(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self._upload.write(piece)
        self.size_bytes += len(piece)

    def _note_times(self, messages: pa.RecordBatch) -> None:
        bounds = pc.min_max(messages.column("timestamp").cast(pa.int64())).as_py()
        self._max_us = max(self._max_us, bounds["max"])
        self._min_us = bounds["min"] if self.messages == 0 else min(self._min_us, bounds["min"])

    def _figures(self) -> Figures:
        return Figures(
            first_offset=self.name.first_offset,
            next_offset=self.next_offset,
            messages=self._index.messages,
            set_aside=self._index.set_aside,
            size_bytes=self.size_bytes,
            sha256=self._hash.hexdigest(),
            leader_epoch=self.leader_epoch,
            min_timestamp_ms=self._min_us // 1000,
            max_timestamp_ms=self._max_us // 1000,
            topic_id=self._topic_id,
            delimiter=self._delimiter,
        )

    def _remove_index(self, index_key: str) -> None:
        """The index of an upload that was refused is of no use to anybody.

        Unless it was refused because its own first try had created the object, and only the answer was lost.
        """
        try:
            if self._store.metadata(self.key).get(TOKEN) != self._token:
                self._store.remove(index_key)
        except (ConfigError, ObjectMissing, StoreUnavailable) as error:
            logger.warning("%s stays behind, and does no harm: %s", index_key, error)
