"""What S3 returns about objects: entries of listings, descriptions, and streams of bytes.

A stream arrives in pieces: `HashedBytes` hashes the bytes that are read, and `read_exactly` reads an exact number of
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from waybill.base.errors import DamagedObject, StoreUnavailable
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.framing import ByteStream


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A backup object in a listing."""

    name: BackupName
    key: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class ListedObject:
    """Any object in a listing."""

    key: str
    size_bytes: int
    modified: datetime
    etag: str = ""
    """Without quotes. The content's MD5, if one PutObject created the object and no KMS key encrypts it."""


@dataclass(frozen=True, slots=True)
class Description:
    """What HeadObject returns about an object."""

    metadata: dict[str, str]
    """User metadata."""
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class ChainId:
    """Identifies a chain: a topic-partition in one generation."""

    tp: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that is neither completed nor aborted. Its lane may still be running, or may have died."""

    chain: ChainId
    key: str
    upload_id: str
    begun: datetime


class ObjectStream:
    """An object's bytes, read like a file. Use it as a context manager."""

    def __init__(self, body: Any, key: str, size_bytes: int, metadata: Mapping[str, str] | None = None) -> None:
        self._body = body
        self.key = key
        self.size_bytes = size_bytes
        self.metadata = dict(metadata or {})
        """The object's user metadata."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, all remaining bytes for -1, b'' at the end.

        Raises `StoreUnavailable` when the connection breaks, or the object ends before its announced length.
        """
        from botocore.exceptions import BotoCoreError

        try:
            return bytes(self._body.read(None if size < 0 else size))
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"{self.key}: the connection broke while reading: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_DRAIN_BYTES = 1 << 20


class HashedBytes:
    """A source that computes the SHA-256 of the bytes that are read through it."""

    def __init__(self, source: ByteStream) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self.size_bytes += len(data)
        return data

    def drain(self) -> None:
        """Read and discard the rest."""
        while self.read(_DRAIN_BYTES):
            pass

    def hexdigest(self) -> str:
        """Return the SHA-256 of the bytes read so far, in hex."""
        return self._hash.hexdigest()


def read_exactly(source: ByteStream, size: int, where: str, position: int) -> bytes:
    """Return `size` bytes.

    Raises `DamagedObject` if the source ends before. `where` names the object; `position` is the position of the first
    byte.
    """
    pieces, missing = [], size
    while missing:
        piece = source.read(missing)
        if not piece:
            raise DamagedObject(where, position, f"is cut short: {size:,} bytes are expected here")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
