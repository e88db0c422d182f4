"""The stored form of a book of incidents: JSON with a version and a number, gzipped or not."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from typing import Any

from waybill.base.documents import read_document
from waybill.base.errors import DocumentDamaged
from waybill.watch.incidents.incident import IncidentBook

_VERSION = 1
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class StoredBook:
    """A book with its number, which grows with each change. 0: the book was never stored."""

    book: IncidentBook
    number: int = 0

    def content(self) -> bytes:
        """Return the document."""
        return json.dumps({"v": _VERSION, "number": self.number, **self.book.document()}).encode()

    def packed(self, mark: int = 0) -> bytes:
        """Return the document, gzipped.

        `mark`: a number of 32 bits, by which the bytes differ from those of an equal book.
        """
        return gzip.compress(self.content(), compresslevel=6, mtime=mark)

    @classmethod
    def parse(cls, content: bytes, where: str) -> StoredBook:
        """Return the book of a document, gzipped or not. Raises `DocumentTooNew` or `DocumentDamaged`."""
        try:
            plain = gzip.decompress(content) if content.startswith(_GZIP) else content
            document: dict[str, Any] = read_document(plain, _VERSION, where)
            return cls(IncidentBook.parse(document), int(document["number"]))
        except (EOFError, KeyError, OSError, TypeError, ValueError, zlib.error) as error:
            raise damaged_book(where, error) from None


def damaged_book(where: str, error: Exception) -> DocumentDamaged:
    """Return the error for a place that does not hold a book of incidents."""
    return DocumentDamaged(
        f"{where} does not hold Waybill's incidents ({type(error).__name__}: {error}). Delete it: the next watch "
        f"finds what is broken again, and sends it again"
    )
