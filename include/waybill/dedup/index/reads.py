"""The index's files read from S3 at little cost: a sweep makes some hundreds of reads, whatever it sweeps."""

from __future__ import annotations

import logging
from threading import Lock

import obstore
from obstore.exceptions import BaseError

from waybill.clients.object_store import object_store
from waybill.connections import S3Endpoint
from waybill.dedup.index.runs import Content
from waybill.store import GAP_BYTES, Store

__all__ = ["QuickReads"]

logger = logging.getLogger(__name__)


class QuickReads:
    """Reads of a store's objects, from several threads at a time.

    What goes wrong is read once more by the store, which says what it is.
    """

    gap_bytes = GAP_BYTES

    def __init__(self, store: Store, endpoint: S3Endpoint) -> None:
        """`endpoint`: the one that `store` was made of."""
        self._store = store
        self._objects = object_store(endpoint, store.bucket)
        self._counting = Lock()
        self.read_bytes = 0
        """How many bytes were read so far."""

    def read(self, key: str) -> Content:
        """A whole object. Raises as `Store.read` does."""
        return self._counted(self._read(key))

    def read_range(self, key: str, start: int, length_bytes: int) -> Content:
        """`length_bytes` (at least 1) from byte `start` on. Raises as `Store.read_range` does, and is as short."""
        return self._counted(self._read_range(key, start, length_bytes))

    def _read(self, key: str) -> Content:
        try:
            return memoryview(obstore.get(self._objects, key).bytes())
        except (BaseError, OSError, ValueError) as error:
            _say(key, error)
            return self._store.read(key)

    def _read_range(self, key: str, start: int, length_bytes: int) -> Content:
        try:
            return memoryview(obstore.get_range(self._objects, key, start=start, length=length_bytes))
        except (BaseError, OSError, ValueError) as error:
            _say(key, error)
            return self._store.read_range(key, start, length_bytes)

    def _counted(self, content: Content) -> Content:
        with self._counting:
            self.read_bytes += len(content)
        return content


def _say(key: str, error: Exception) -> None:
    logger.warning("%s could not be read, once more: %s", key, str(error).partition("\n")[0])
