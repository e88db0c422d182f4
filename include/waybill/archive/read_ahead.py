"""Objects read ahead of whoever decodes them: the wait for S3 and the work on what came go on at the same time.

A few threads do it for a whole task. Objects of `_SMALL_BYTES` at most are asked for before their turn, `WINDOW` of
them at a time, and are read whole. A larger one is not asked for before its turn: its answer would wait half read until
then, and S3 cuts such off. It comes in pieces of a megabyte, of which `QUEUE_PIECES` wait. So memory is bounded,
whatever the objects' number and size.
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

from waybill.archive.spans import Span
from waybill.store import Store

__all__ = ["QUEUE_PIECES", "WINDOW", "ReadAhead"]

WINDOW = 4
"""As many as the store has connections for."""

QUEUE_PIECES = 8
_PIECE_BYTES = 1 << 20
_SMALL_BYTES = QUEUE_PIECES * _PIECE_BYTES
_LOOK_AGAIN_SECONDS = 1.0


class ReadAhead:
    """Opens a task's objects in its order, each once. Use it as a context manager: it ends its threads."""

    def __init__(self, store: Store, spans: Iterable[Span]) -> None:
        self._store = store
        self._over = threading.Event()
        self._left = deque(spans)
        self._begun: deque[_Small | _Large] = deque()
        self._pool = ThreadPoolExecutor(WINDOW, thread_name_prefix="waybill-read-ahead")

    def open(self, key: str) -> _Small | _Large:
        """The next object, read like `waybill.store.ObjectStream` and with its errors, which come out of `read`."""
        for span in self._to_begin():
            kind = _Small if span.size_bytes <= _SMALL_BYTES else _Large
            self._begun.append(kind(self._store, span.key, self._pool, self._over))
        found = self._begun.popleft()
        if found.key != key:
            raise ValueError(f"{key} is not the next object, which is {found.key}")
        return found

    def _to_begin(self) -> Iterator[Span]:
        while self._left and len(self._begun) < WINDOW:
            if self._begun and self._left[0].size_bytes > _SMALL_BYTES:
                return
            yield self._left.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for begun in self._begun:
            begun.close()
        self._pool.shutdown(cancel_futures=True)


class _Opened:
    """One object's bytes, on their way."""

    def close(self) -> None:
        """Let go of them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class _Small(_Opened):
    """An object that is read whole."""

    def __init__(self, store: Store, key: str, pool: ThreadPoolExecutor, _: threading.Event) -> None:
        self.key = key
        self._content: Future[BytesIO] = pool.submit(self._fetch, store)

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; b'' at the end."""
        return self._content.result().read(size)

    def _fetch(self, store: Store) -> BytesIO:
        with store.open(self.key) as stream:
            return BytesIO(b"".join(iter(lambda: stream.read(_PIECE_BYTES), b"")))


class _Large(_Opened):
    """An object that comes in pieces, while those before are worked on."""

    def __init__(self, store: Store, key: str, pool: ThreadPoolExecutor, over: threading.Event) -> None:
        self.key = key
        self._over = over
        self._closed = threading.Event()
        self._pieces: queue.Queue[bytes | Exception] = queue.Queue(QUEUE_PIECES)
        self._rest = b""
        self._at_end = False
        self._fetched: Future[None] = pool.submit(self._fetch, store)

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; b'' at the end."""
        if not self._rest and not self._at_end:
            found = self._pieces.get()
            if isinstance(found, Exception):
                self._at_end = True
                raise found
            self._rest, self._at_end = found, not found
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def close(self) -> None:
        """End the reading."""
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
        """Hand on a piece when there is room; False if nobody wants it any more."""
        while not (self._closed.is_set() or self._over.is_set()):
            try:
                self._pieces.put(piece, timeout=_LOOK_AGAIN_SECONDS)
            except queue.Full:
                continue
            return True
        return False
