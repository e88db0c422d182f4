"""Read the archive for a replay request: with the replay index, only blocks that can hold a wanted message.

An object that the index does not cover, or that differs from what was indexed, is read whole; then record batches whose
highest timestamp is before the range are checked but not decompressed. All other batches are decoded, since timestamps
in a topic are not ordered.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator

from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.archive.chain.read_ahead import ReadAhead
from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import spans_from
from waybill.base.errors import ChainBroken, ChainGap, ObjectMissing
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import DecodeBuffers, decode
from waybill.records.batches.framing import Frame, check_crc, frames, read_frames
from waybill.replay.requests.index.file_format import Block
from waybill.replay.requests.index.lookup import list_index_files, look_up
from waybill.replay.requests.matching import WantedMessages
from waybill.replay.requests.message import Piece, ReplayedMessage
from waybill.services.store import Store

logger = logging.getLogger(__name__)

_PIECE_SECONDS = 0.3
_FRAMES = 64
"""How many record batches are decoded together: one kernel call for each small batch would be slower."""
_LISTINGS = 3
"""How many times the index files are listed again, if one is replaced while they are read."""

_Blocks = dict[tuple[int, int, int], tuple[Block, ...]]


def read_archived(
    store: Store,
    generation: int,
    tp: TopicPartition,
    wanted: WantedMessages,
    first_offset: int,
    next_offset: int,
    *,
    use_index: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generator[Piece, None, None]:
    """Yield the wanted messages with offsets in `[first_offset, next_offset)`, each once, in order of offset.

    `next_offset` is at most the committed offset. Yields a piece every few megabytes, also if it holds no message, and
    none after `should_stop`.

    Raises `ChainBroken`, its subclass `ChainGap`, or `CorruptBatch`, all of which name the object; `DocumentDamaged`
    for a file of the index.
    """
    chain = walk_chain(store, generation, tp, from_offset=first_offset, committed_offset=next_offset)
    objects = list(itertools.takewhile(lambda each: each.name.first_offset < next_offset, chain))
    blocks = _indexed_blocks(store, generation, tp, wanted, first_offset, next_offset) if use_index else {}
    reading = _Reading(store, tp, wanted, first_offset, next_offset)
    for is_indexed, group in itertools.groupby(objects, lambda each: _identity(each) in blocks):
        if is_indexed:
            pieces = reading.blocks((each, blocks[_identity(each)]) for each in group)
        else:
            pieces = reading.whole(list(group))
        for piece in pieces:
            yield piece
            if should_stop():
                return


def _identity(each: ChainObject) -> tuple[int, int, int]:
    return each.name.first_offset, each.next_offset, each.size_bytes


def _indexed_blocks(
    store: Store, generation: int, tp: TopicPartition, wanted: WantedMessages, first_offset: int, next_offset: int
) -> _Blocks:
    """Return the blocks to read of each object that the index covers."""
    for attempt in itertools.count(1):
        found: _Blocks = {}
        try:
            for file in list_index_files(store, generation, tp):
                if file.next_offset > first_offset and file.first_offset < next_offset:
                    looked_up = look_up(store, file, wanted, first_offset, next_offset).blocks
                    found |= {(each[0], each[1], each[2]): blocks for each, blocks in looked_up.items()}
            return found
        except ObjectMissing:
            if attempt == _LISTINGS:
                raise
            logger.info("%s: a file of the replay index was replaced while it was read", tp)
    raise AssertionError("unreachable")


class _Reading:
    """Reads objects of one topic-partition for one request."""

    def __init__(
        self, store: Store, tp: TopicPartition, wanted: WantedMessages, first_offset: int, next_offset: int
    ) -> None:
        self._store, self._tp, self._wanted = store, tp, wanted
        self._first_offset, self._next_offset = first_offset, next_offset
        self._buffers = DecodeBuffers()

    # --- with the index ---

    def blocks(self, objects: Iterable[tuple[ChainObject, tuple[Block, ...]]]) -> Iterator[Piece]:
        """Yield the messages of the given blocks of each object."""
        yielded_at, end = time.monotonic(), None
        for each, blocks in objects:
            for run in _neighbours(blocks, self._store.coalesce_bytes):
                found = self._read_blocks(each, run)
                yield Piece(found, min(run[-1].next_offset, each.next_offset, self._next_offset))
                yielded_at = time.monotonic()
            end = min(each.next_offset, self._next_offset)
            if time.monotonic() - yielded_at >= _PIECE_SECONDS:
                yield Piece([], end)
                yielded_at = time.monotonic()
        if end is not None:
            yield Piece([], end)

    def _read_blocks(self, each: ChainObject, run: list[Block]) -> list[ReplayedMessage]:
        """Read blocks that lie near each other with one request."""
        key = each.key
        begin, end = run[0].position, run[-1].position + run[-1].size_bytes
        try:
            data = memoryview(self._store.read_range(key, begin, end - begin))
        except ObjectMissing as error:
            raise ChainBroken(f"{self._tp}: {error}, but a listing had it", run[0].base_offset) from error
        if len(data) != end - begin:
            raise ChainBroken(f"{self._tp}: {key} ends at byte {begin + len(data)}, before {end}", run[0].base_offset)
        found: list[ReplayedMessage] = []
        for block in run:
            content = data[block.position - begin : block.position - begin + block.size_bytes]
            batches = list(frames(content, where=key, base_position=block.position))
            if (batches[0].header.base_offset, batches[-1].header.next_offset) != (
                block.base_offset,
                block.next_offset,
            ):
                raise ChainBroken(
                    f"{self._tp}: {key} holds the offsets {batches[0].header.base_offset} to "
                    f"{batches[-1].header.next_offset - 1} at byte {block.position}, but it was indexed with "
                    f"{block.base_offset} to {block.next_offset - 1}: it was replaced by another object. Restore it "
                    f"from the bucket's versions or replica",
                    block.base_offset,
                )
            found += self._select(batches, key, each.name.first_offset, each.next_offset)
        return found

    # --- whole objects ---

    def whole(self, objects: list[ChainObject]) -> Iterator[Piece]:
        """Yield the messages of whole objects."""
        spans = list(spans_from(self._tp, objects, self._first_offset))
        with ReadAhead(self._store, spans) as ahead:
            for span in spans:
                try:
                    yield from self._read_object(ahead, span)
                except ObjectMissing as error:
                    raise ChainBroken(f"{self._tp}: {error}, but a listing had it", span.first_offset) from error

    def _read_object(self, ahead: ReadAhead, span: Span) -> Iterator[Piece]:
        end = span.first_offset
        with ahead.open(span.key) as stream:
            source = read_frames(stream, span.key)
            while some := list(itertools.islice(source, _FRAMES)):
                end = some[-1].header.next_offset
                found = self._select(some, span.key, span.first_offset, span.next_offset)
                yield Piece(found, min(end, span.next_offset, self._next_offset))
                if end >= self._next_offset:
                    return
        if end < span.next_offset:
            raise ChainGap(
                f"{self._tp}: {span.key} ends at offset {end}, but the chain goes on at {span.next_offset}",
                end,
                span.next_offset,
            )

    def _select(self, batches: Iterable[Frame], key: str, first_offset: int, next_offset: int) -> list[ReplayedMessage]:
        """Return the wanted messages of record batches, after their CRCs were checked.

        Only offsets of the object are selected: its first batch can begin with messages of the previous object.
        """
        late = []
        for frame in batches:
            check_crc(frame, key)
            if frame.header.max_timestamp_ms >= self._wanted.from_ms:
                late.append(frame)
        found: list[ReplayedMessage] = []
        decoded = decode(
            late,
            where=key,
            first_offset=max(first_offset, self._first_offset),
            next_offset=min(next_offset, self._next_offset),
            verify_crc=False,
            buffers=self._buffers,
            set_aside=True,
        )
        for batch in decoded:
            found += self._wanted.select(self._tp, batch)
        return found


def _neighbours(blocks: Iterable[Block], gap_bytes: int) -> Iterator[list[Block]]:
    """Yield runs of blocks that lie so near each other that one read is cheaper than several."""
    run: list[Block] = []
    for block in blocks:
        if run and block.position - (run[-1].position + run[-1].size_bytes) > gap_bytes:
            yield run
            run = []
        run.append(block)
    if run:
        yield run
