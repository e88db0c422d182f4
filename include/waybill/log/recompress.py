"""Record batches that producers sent uncompressed, rewritten as zstd batches; their records are not decoded.

A compressed batch is the same 61-byte header before the same records section, compressed as a whole (KIP-98). So a
batch is compressed by rewriting four things: the codec in its attributes, the records section, the length and the
CRC-32C. Everything else stays as the broker sent it: offsets, leader epoch, timestamps, producer id and sequence,
the transactional bit, the delete horizon. Readers of the format cannot tell such a batch from one that the producer
compressed.

Left as they are: batches that are compressed already, control batches (Kafka never compresses those), batches without
records, and those that zstd would not make smaller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from waybill.log.compression import compress_zstd
from waybill.log.framing import HEADER_BYTES, Codec, Frame, pack_batch, read_header

__all__ = ["Recompressor", "recompress"]

_THREADS = 2
_GROUP_BYTES = 256 << 10  # compressed in one go: handing a batch to a thread costs as much as compressing a small one
_GROUPS_AHEAD = 2 * _THREADS

Batch = tuple[Frame, bool]


def recompress(frame: Frame, level: int) -> Frame:
    """The batch compressed with zstd, or `frame` itself where that is not possible or of no use.

    `frame` must have been checked (`check_crc`): a batch that was damaged would get a CRC that hides it. A rewritten
    frame keeps the position at which the original was found; its data is memory of its own.
    """
    header = frame.header
    if header.codec is not Codec.NONE or header.is_control or not header.record_count:
        return frame
    records = compress_zstd(frame.data[HEADER_BYTES:], level)
    if HEADER_BYTES + len(records) >= len(frame.data):
        return frame
    data = pack_batch(header._replace(attributes=header.attributes | Codec.ZSTD), records)
    return Frame(frame.position, read_header(data, 0, "a recompressed batch"), memoryview(data))


class Recompressor:
    """Compresses batches in threads while the caller goes on: zstd runs without the GIL. A context manager."""

    def __init__(self, level: int, *, threads: int = _THREADS) -> None:
        self.level = level
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="waybill-recompress")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def batches(self, checked: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches in the same order, with what is archived (the second of each pair) recompressed.

        Some batches are taken from `checked` before the first is handed out; what it raises is raised here.
        """
        ahead: deque[Future[list[Batch]]] = deque()
        try:
            for group in _groups(checked):
                ahead.append(self._pool.submit(self._compress, group))
                if len(ahead) > _GROUPS_AHEAD:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def _compress(self, group: list[Batch]) -> list[Batch]:
        return [(recompress(frame, self.level) if archived else frame, archived) for frame, archived in group]


def _groups(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    group: list[Batch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += len(batch[0].data)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
