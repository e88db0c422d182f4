"""A backup object of SequenceFile or text while it is written: decoded messages go in, two immutable objects come out.

The index object is created first. Its name contains a token of this upload, and the backup object's user metadata
contains the same token. So when a backup object exists, its index object exists too
(docs/decisions/0006-other-backup-formats.md).
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from waybill.archive.chain.backup_object import BackupObject
from waybill.archive.chain.indexed_reader import INDEX_TOKEN_KEY
from waybill.archive.chain.object_index import ObjectFigures, ObjectIndexWriter
from waybill.archive.formats.sequencefile import SequenceFileWriter
from waybill.archive.formats.text import TextWriter
from waybill.base import failpoints
from waybill.base.errors import ConfigError, CorruptBatch, ObjectExists, ObjectMissing, StoreUnavailable
from waybill.config import names
from waybill.config.models import Format
from waybill.config.models.enums import BackupFormat, Compression
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.records.batches.decode import decode
from waybill.records.batches.limits import LARGEST, SET_ASIDE, Limits
from waybill.records.batches.message_rows import NO_TIMESTAMP_US
from waybill.services.store import Store

logger = logging.getLogger(__name__)

_DECODE_BYTES = 2 << 20
"""Batches are decoded together once they have this many bytes: enough for whole blocks of a SequenceFile."""

_MAX_INDEX_BYTES = 16 << 20
"""The object is completed when its index has this size. Only messages that are set aside make an index that large."""


class FormatWriter(Protocol):
    """Encodes messages as the bytes of one object: call `begin`, any number of `write`, then `finish`."""

    def begin(self) -> bytes:
        """Return the first bytes of the object."""

    def rejections(self, messages: pa.RecordBatch) -> pa.Array | None:
        """Return why the format cannot hold each message: strings, null where it can. None if it can hold all."""

    def write(self, messages: pa.RecordBatch) -> Iterator[memoryview | bytes]:
        """Yield the bytes of messages of `MESSAGE_SCHEMA`. The messages must not include rejected ones."""

    def finish(self) -> bytes:
        """Return the last bytes of the object."""


def new_format_writer(kind: Format, name: BackupName) -> FormatWriter:
    """Return a writer for the object of that name. Raises `ValueError` for the format `kafka`, which has no writer."""
    if kind.name is BackupFormat.SEQUENCEFILE:
        # For people who look into the file; no reader depends on it.
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


class IndexedObject(BackupObject):
    """A SequenceFile or a text object.

    It holds only the messages with offsets in its range. In an object of record batches, the first batch can also hold
    messages before the range.
    """

    def __init__(
        self,
        store: Store,
        name: BackupName,
        topic_id: str,
        kind: Format,
        metadata: Mapping[str, str] | None = None,
        limits: Limits = LARGEST,
    ) -> None:
        """`limits`: a message that exceeds them is set aside without its value."""
        self._limits = limits
        self._token = secrets.token_hex(16)
        super().__init__(store, name, topic_id, {**(metadata or {}), INDEX_TOKEN_KEY: self._token})
        self._store = store
        self._topic_id = topic_id
        self._delimiter = kind.delimiter.encode().hex() if kind.name is BackupFormat.TEXT else ""
        self._writer = new_format_writer(kind, name)
        self._index = ObjectIndexWriter()
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

    def begin_chunk(self, data: memoryview) -> None:  # noqa: ARG002 - each frame refers to its own part of the chunk
        self.flush()

    def _skip_before_start(self, frame: framing.Frame) -> None:
        """Do nothing: the decoder skips these messages."""

    def _append(self, frame: framing.Frame) -> None:
        self._frames.append(frame)
        self._frames_bytes += len(frame.data)
        if self._frames_bytes >= _DECODE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Flush like the base class. Also raises `CorruptBatch` when the records of a batch cannot be decoded."""
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        where = f"{self.name.topic}/{self.name.partition}"
        try:
            # Ingest has checked the CRCs of the fetched batches.
            for messages in decode(
                frames,
                where=where,
                first_offset=self.name.first_offset,
                verify_crc=False,
                limits=self._limits,
                set_aside=True,
            ):
                self._add(messages)
        except CorruptBatch as error:
            reason = f"{error.reason}. Only the format kafka archives such a batch, unchanged; use a new generation"
            raise type(error)(where, error.position_bytes, reason) from error

    def complete(self) -> None:
        self.flush()
        self._write_beginning()
        self._write(self._writer.finish())
        index_key = names.index_key(self.key, self._token)
        try:
            self._store.create_if_absent(index_key, self._index.finish(self._figures()))
        except ObjectExists:
            logger.debug("%s exists: an earlier attempt of the same call created it", index_key)
        failpoints.reach("ingest.index_created")
        try:
            self._upload.complete()
        except ObjectExists:
            self._remove_unused_index(index_key)
            raise

    def _add(self, messages: pa.RecordBatch) -> None:
        self._write_beginning()
        rejections = self._writer.rejections(messages)
        if SET_ASIDE in messages.schema.names:
            beyond = messages.column(SET_ASIDE)
            rejections = beyond if rejections is None else pc.coalesce(beyond, rejections)
            messages = messages.drop_columns([SET_ASIDE])
        self._index.add(messages, rejections)
        self._track_timestamps(messages)
        self.messages += messages.num_rows
        stored = messages if rejections is None else messages.filter(rejections.is_null())
        if stored.num_rows:
            for piece in self._writer.write(stored):
                self._write(piece)

    def _write_beginning(self) -> None:
        if not self._is_written:
            self._is_written = True
            self._write(self._writer.begin())

    def _write(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self._upload.write(piece)
        self.size_bytes += len(piece)

    def _track_timestamps(self, messages: pa.RecordBatch) -> None:
        bounds = pc.min_max(messages.column("timestamp").cast(pa.int64())).as_py()
        self._max_us = max(self._max_us, bounds["max"])
        self._min_us = bounds["min"] if self.messages == 0 else min(self._min_us, bounds["min"])

    def _figures(self) -> ObjectFigures:
        return ObjectFigures(
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

    def _remove_unused_index(self, index_key: str) -> None:
        """Remove the index object after S3 refused the backup object, unless the existing object uses this index.

        The existing object uses this index if the first attempt of this upload created it, and only S3's answer was
        lost.
        """
        try:
            if self._store.metadata(self.key).get(INDEX_TOKEN_KEY) != self._token:
                self._store.remove(index_key)
        except (ConfigError, ObjectMissing, StoreUnavailable) as error:
            logger.warning("%s is not removed, which does no harm: %s", index_key, error)
