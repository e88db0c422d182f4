"""Read the messages of a request: from the archive up to the committed offset, then from Kafka, each message once.

**From the archive to Kafka.** A message below the committed offset of its topic-partition is read from the archive,
others from Kafka. Both have the same offsets, and each piece states up to which offset it has read, so no message is
read twice or missed when the source changes. The committed offset is read again at each change: while Kafka is read,
ingest goes on, and messages that Kafka deletes in the meantime are in the archive by then.

The archive comes first, also for messages that Kafka still has: it is read with the replay index, and Kafka has none
(docs/decisions/0030-replay-worker.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing

from waybill.archive.ingest.kafka.fetching import select_archived
from waybill.base.errors import RetentionGap
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import decode
from waybill.replay.requests.archived import read_archived
from waybill.replay.requests.cursor import Cursor, CursorPlace, OffsetRange
from waybill.replay.requests.matching import WantedMessages
from waybill.replay.requests.message import Piece
from waybill.services.coordination import Coordinator
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.store import Store

logger = logging.getLogger(__name__)


class Reader:
    """Reads the messages of one request, from its cursor's place on."""

    def __init__(
        self,
        store: Store,
        kafka: KafkaSource | None,
        coordinator: Coordinator,
        generation: int,
        wanted: WantedMessages,
        should_stop: Callable[[], bool],
    ) -> None:
        """`kafka` has the stream's isolation level; None for Kinesis streams, for which only the archive is read.

        `should_stop` is called between pieces.
        """
        self._store, self._kafka, self._coordinator = store, kafka, coordinator
        self._generation, self._wanted = generation, wanted
        self._should_stop = should_stop
        self._topic_id = ""
        """The id of the topic that was archived last. Kafka refuses to go on with another topic of the same name."""

    def pieces(self, cursor: Cursor) -> Generator[tuple[int, Piece], None, None]:
        """Yield the pieces from the cursor's place to the end, or until `should_stop`, with the number of their range.

        Raises `ChainBroken` and `CorruptBatch` for the archive, `RetentionGap` when Kafka has deleted messages that
        were not archived, `KafkaUnavailable`, `StoreUnavailable` and `CoordinationUnavailable`.
        """
        place: CursorPlace = cursor.place
        for number in range(place.range_number, len(cursor.ranges)):
            each = cursor.ranges[number]
            first_offset = place.offset if number == place.range_number else each.first_offset
            for piece in self._range(each._replace(first_offset=first_offset)):
                yield number, piece
                if self._should_stop():
                    return

    def _range(self, wanted: OffsetRange) -> Generator[Piece, None, None]:
        """Yield the pieces of one range, from the source that has the next offset."""
        tp, offset, end = wanted
        while offset < end:
            start = offset
            archived_end = min(self._archived_end(tp), end)
            if offset < archived_end:
                pieces = read_archived(
                    self._store,
                    self._generation,
                    tp,
                    self._wanted,
                    offset,
                    archived_end,
                    should_stop=self._should_stop,
                )
            else:
                pieces = self._from_kafka(tp, offset, end)
            try:
                with closing(pieces):
                    for piece in pieces:
                        yield piece
                        offset = piece.next_offset
                        if self._should_stop():
                            return
            except RetentionGap:
                # Kafka deleted the next offset. If it was archived in time, read it from the archive.
                if self._archived_end(tp) <= offset:
                    raise
                logger.info("%s: Kafka has deleted offset %d, and the archive has it", tp, offset)
                continue
            if offset == start:
                return  # stopped

    def _archived_end(self, tp: TopicPartition) -> int:
        committed = self._coordinator.read_committed(tp)
        self._topic_id = "" if committed is None else committed.topic_id
        return 0 if committed is None else committed.committed_offset

    def _from_kafka(self, tp: TopicPartition, first_offset: int, end: int) -> Generator[Piece, None, None]:
        """Yield a piece for each fetch response, with the messages that ingest would archive."""
        assert self._kafka is not None, "a range of Kinesis ends where it is archived"
        offset = first_offset
        with closing(self._kafka.read(tp, first_offset, end, topic_id=self._topic_id)) as chunks:
            for chunk in chunks:
                frames = [frame for frame, is_archived in select_archived(chunk) if is_archived]
                found = []
                for batch in decode(
                    frames, where=chunk.where, first_offset=first_offset, next_offset=end, set_aside=True
                ):
                    found += self._wanted.select(tp, batch)
                offset = min(chunk.next_offset, end)
                yield Piece(found, offset)
        if offset < end:
            # The rest of the log holds no batch: only offsets that compaction has removed.
            yield Piece([], end)
