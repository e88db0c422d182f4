"""What S3 tells of objects: listings, descriptions, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from botocore.exceptions import BotoCoreError

from waybill.errors import StoreUnavailable
from waybill.names import BackupName, TopicPartition

__all__ = ["Chain", "Description", "ListedObject", "ObjectStream", "PendingUpload", "StoredObject"]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A backup object as a listing shows it."""

    name: BackupName
    key: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class ListedObject:
    """Any object as a listing shows it."""

    key: str
    size_bytes: int
    modified: datetime
    etag: str = ""
    """Without its quotes. The MD5 of an object that was created by one call and is not encrypted with a key of KMS."""


@dataclass(frozen=True, slots=True)
class Description:
    """What S3 says of an object beside its bytes."""

    metadata: dict[str, str]
    """User metadata."""
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Chain:
    """Which chain: a topic-partition in a generation."""

    tp: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that was begun and neither completed nor aborted: of a running lane, or of one that died."""

    chain: Chain
    key: str
    upload_id: str
    begun: datetime


class ObjectStream:
    """An object's bytes, read like a file. Use it as a context manager.

    Raises `StoreUnavailable` when the connection breaks or the object ends before its announced length.
    """

    def __init__(self, body: Any, key: str, size_bytes: int, metadata: Mapping[str, str] | None = None) -> None:
        self._body = body
        self.key = key
        self.size_bytes = size_bytes
        self.metadata = dict(metadata or {})
        """The object's user metadata."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, all that is left for -1, b'' at the end."""
        try:
            return bytes(self._body.read(None if size < 0 else size))
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"{self.key}: reading was cut off: {error}") from error

    def close(self) -> None:
        self._body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
