"""Step 3 of the protocol: is it the log that was archived, and does it still hold the next offset?"""

from __future__ import annotations

from waybill.coordination import Committed
from waybill.errors import LogTruncated, RetentionGap, TopicRecreated
from waybill.names import TopicPartition
from waybill.sources.kafka import KafkaSource, LogRange

__all__ = ["check_log"]


def check_log(source: KafkaSource, tp: TopicPartition, committed: Committed, held: LogRange, topic_id: str) -> None:
    """Hold the log as it is now, `held` and `topic_id`, against the committed offset.

    Raises `TopicRecreated`, `RetentionGap`, or `LogTruncated` with the offset at which the log left the one that was
    archived. Raises `KafkaUnavailable` when nobody can say where a leader epoch ends.
    """
    offset = committed.committed_offset
    if committed.topic_id and topic_id and committed.topic_id != topic_id:
        raise TopicRecreated(tp.topic, tp.partition, committed.topic_id, topic_id)
    if held.earliest > offset:
        raise RetentionGap(tp.topic, tp.partition, offset, held.earliest)
    if committed.leader_epoch < 0:
        if held.end < offset:
            raise LogTruncated(tp.topic, tp.partition, offset, held.end, committed.leader_epoch)
        return
    end = source.epoch_end(tp, committed.leader_epoch)
    if end.end_offset < offset or end.leader_epoch < committed.leader_epoch:
        known = held.end if end.end_offset < 0 else end.end_offset
        raise LogTruncated(tp.topic, tp.partition, offset, min(known, offset), committed.leader_epoch)
