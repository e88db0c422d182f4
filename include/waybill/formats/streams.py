"""Sources of bytes that arrive in pieces, such as the body of an S3 object: hash them, or read an exact number."""

from __future__ import annotations

import hashlib

from waybill.errors import DamagedObject
from waybill.records.framing import ByteStream

__all__ = ["HashedBytes", "read_exactly"]

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

    Raises `DamagedObject` if the source ends before. `where` names the object; `position` is that of the first byte.
    """
    pieces, missing = [], size
    while missing:
        piece = source.read(missing)
        if not piece:
            raise DamagedObject(where, position, f"is cut short: {size:,} bytes are expected here")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
