"""Objects read ahead of whoever decodes them: the wait for S3 and the work on what came go on at the same time.

Each object is read by a thread of its own into a queue of `QUEUE_PIECES` pieces of a megabyte. Objects that fit into
one are asked for before their turn, `WINDOW` of them at a time. A larger one is not: its answer would wait half read
until then, and S3 cuts such off. So memory is bounded, whatever the objects' number and size.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from waybill.partition.plan import Span
from waybill.store import Store

__all__ = ["QUEUE_PIECES", "WINDOW", "ReadAhead"]

WINDOW = 4
"""As many as the store has connections for."""

QUEUE_PIECES = 8
_PIECE_BYTES = 1 << 20
_LOOK_AGAIN_SECONDS = 1.0


class ReadAhead:
    """Opens a task's objects in its order, each once. Use it as a context manager: it ends its threads."""

    def __init__(self, store: Store, spans: Iterable[Span]) -> None:
        self._store = store
        self._over = threading.Event()
        self._left = deque(spans)
        self._begun: deque[_Object] = deque()

    def open(self, key: str) -> _Object:
        """The next object, read like `waybill.store.ObjectStream` and with its errors, which come out of `read`."""
        for span in self._to_begin():
            self._begun.append(_Object(self._store, span.key, self._over))
        found = self._begun.popleft()
        if found.key != key:
            raise ValueError(f"{key} is not the next object, which is {found.key}")
        return found

    def _to_begin(self) -> Iterator[Span]:
        while self._left and len(self._begun) < WINDOW:
            if self._begun and self._left[0].size_bytes > QUEUE_PIECES * _PIECE_BYTES:
                return
            yield self._left.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for begun in self._begun:
            begun.close()


class _Object:
    """One object's bytes, on their way."""

    def __init__(self, store: Store, key: str, over: threading.Event) -> None:
        self.key = key
        self._store = store
        self._over = over
        self._closed = threading.Event()
        self._pieces: queue.Queue[bytes | Exception] = queue.Queue(QUEUE_PIECES)
        self._rest = b""
        self._at_end = False
        self._thread = threading.Thread(target=self._fetch, name="waybill-read-ahead", daemon=True)
        self._thread.start()

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
        """End the thread."""
        self._closed.set()
        with suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _fetch(self) -> None:
        try:
            with self._store.open(self.key) as stream:
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
