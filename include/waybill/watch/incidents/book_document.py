"""The stored form of a book of incidents: JSON with a version and a number, gzipped or not."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import ClassVar

from waybill.base.documents import Document, spaced
from waybill.watch.incidents.incident import IncidentBook

_GZIP = b"\x1f\x8b"


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(_GZIP) else content


@dataclass(frozen=True, slots=True)
class StoredBook:
    """A book with its number, which grows with each change. 0: the book was never stored."""

    DOCUMENT: ClassVar = Document(
        "{where} does not hold Waybill's incidents ({kind}: {error}). Delete it: the next watch finds what is broken "
        "again, and sends it again",
        dump=spaced,
        unpack=_unpacked,
    )

    book: IncidentBook
    number: int = 0

    def content(self) -> bytes:
        """Return the document."""
        return self.DOCUMENT.write({"number": self.number, **self.book.document()})

    def packed(self, mark: int = 0) -> bytes:
        """Return the document, gzipped.

        `mark`: a number of 32 bits, by which the bytes differ from those of an equal book.
        """
        return gzip.compress(self.content(), compresslevel=6, mtime=mark)

    @classmethod
    def parse(cls, content: bytes, where: str) -> StoredBook:
        """Return the book of a document, gzipped or not. Raises `DocumentTooNew` or `DocumentDamaged`."""
        return cls.DOCUMENT.parse(where, content, lambda fields: cls(IncidentBook.parse(fields), int(fields["number"])))
