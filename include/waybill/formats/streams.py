"""What the readers of formats read from: bytes that come in pieces."""

from __future__ import annotations

import hashlib
from typing import Protocol

from waybill.errors import DamagedObject

__all__ = ["Bytes", "HashedBytes", "read_exactly"]

_DRAIN_BYTES = 1 << 20


class Bytes(Protocol):
    """What can be read like a file."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, b'' at the end."""


class HashedBytes:
    """Passes bytes on and hashes them on their way."""

    def __init__(self, source: Bytes) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self.size_bytes += len(data)
        return data

    def drain(self) -> None:
        """Read to the end."""
        while self.read(_DRAIN_BYTES):
            pass

    def hexdigest(self) -> str:
        """The SHA-256 of what was read so far."""
        return self._hash.hexdigest()


def read_exactly(source: Bytes, size: int, where: str, position: int) -> bytes:
    """`size` bytes. Raises `DamagedObject` if the source ends before; `position`: of the first of them."""
    pieces, missing = [], size
    while missing:
        piece = source.read(missing)
        if not piece:
            raise DamagedObject(where, position, f"is cut short: {size:,} bytes should follow")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
