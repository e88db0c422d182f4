"""Read-ahead: fetch the next objects of a task in threads while the task decodes the current one.

All objects of a task share `WINDOW` threads. An object of at most `_SMALL_BYTES` is requested before its turn, up to
`WINDOW` of them at a time, and is read whole. A larger object is requested only when its turn comes, because S3 closes
a response that stays half read for too long. It arrives in pieces of `_PIECE_BYTES`, and `QUEUE_PIECES` of them wait in
a queue. So the memory is bounded for any number and size of objects.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from types import TracebackType
from typing import Self

from waybill.archive.chain.span import Span
from waybill.services.store import Store

WINDOW = 4
"""The number of objects that are fetched at once: the store has as many connections."""

QUEUE_PIECES = 8
_PIECE_BYTES = 1 << 20
_SMALL_BYTES = QUEUE_PIECES * _PIECE_BYTES
_PUT_TIMEOUT_SECONDS = 1.0


class ReadAhead:
    """Opens the objects of a task in the order of its spans, each once. A context manager that ends its threads."""

    def __init__(self, store: Store, spans: Iterable[Span]) -> None:
        self._store = store
        self._closed = threading.Event()
        self._waiting = deque(spans)
        self._requested: deque[_SmallObject | _LargeObject] = deque()
        self._pool = ThreadPoolExecutor(WINDOW, thread_name_prefix="waybill-read-ahead")

    def open(self, key: str) -> _SmallObject | _LargeObject:
        """Return the next object, which is read like `waybill.services.store.ObjectStream` and whose `read` raises its
        errors.

        Raises `ValueError` if `key` is not the next object of the task.
        """
        for span in self._next_to_request():
            kind = _SmallObject if span.size_bytes <= _SMALL_BYTES else _LargeObject
            self._requested.append(kind(self._store, span.key, self._pool, self._closed))
        opened = self._requested.popleft()
        if opened.key != key:
            raise ValueError(f"{key} is not the next object, which is {opened.key}")
        return opened

    def _next_to_request(self) -> Iterator[Span]:
        while self._waiting and len(self._requested) < WINDOW:
            if self._requested and self._waiting[0].size_bytes > _SMALL_BYTES:
                return
            yield self._waiting.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for requested in self._requested:
            requested.close()
        self._pool.shutdown(cancel_futures=True)


class _OpenedObject:
    """An object that is being fetched."""

    def close(self) -> None:
        """Stop fetching it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class _SmallObject(_OpenedObject):
    """An object that is fetched whole."""

    def __init__(self, store: Store, key: str, pool: ThreadPoolExecutor, _: threading.Event) -> None:
        self.key = key
        self._content: Future[BytesIO] = pool.submit(self._fetch, store)

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; b'' at the end."""
        return self._content.result().read(size)

    def _fetch(self, store: Store) -> BytesIO:
        with store.open(self.key) as stream:
            return BytesIO(b"".join(iter(lambda: stream.read(_PIECE_BYTES), b"")))


class _LargeObject(_OpenedObject):
    """An object that is fetched in pieces while earlier pieces are decoded."""

    def __init__(self, store: Store, key: str, pool: ThreadPoolExecutor, all_closed: threading.Event) -> None:
        self.key = key
        self._all_closed = all_closed
        self._closed = threading.Event()
        self._pieces: queue.Queue[bytes | Exception] = queue.Queue(QUEUE_PIECES)
        self._rest = b""
        self._at_end = False
        self._fetched: Future[None] = pool.submit(self._fetch, store)

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; b'' at the end."""
        if not self._rest and not self._at_end:
            piece_or_error = self._pieces.get()
            if isinstance(piece_or_error, Exception):
                self._at_end = True
                raise piece_or_error
            self._rest, self._at_end = piece_or_error, not piece_or_error
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def close(self) -> None:
        """Stop fetching, and wait for the thread."""
        self._closed.set()
        with suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()
        self._fetched.result()

    def _fetch(self, store: Store) -> None:
        try:
            with store.open(self.key) as stream:
                while piece := stream.read(_PIECE_BYTES):
                    if not self._put(piece):
                        return
            self._put(b"")
        except Exception as error:
            self._put(error)

    def _put(self, piece: bytes | Exception) -> bool:
        """Put a piece into the queue when there is room. Return False if the object was closed instead."""
        # Use a timeout: otherwise the thread would wait on a full queue after the object was closed.
        while not (self._closed.is_set() or self._all_closed.is_set()):
            try:
                self._pieces.put(piece, timeout=_PUT_TIMEOUT_SECONDS)
            except queue.Full:
                continue
            return True
        return False
