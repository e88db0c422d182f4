"""The proof of a restore: compare every message of the range between the archive and the target.

If both sides have the same batches, which is the usual case, they are compared byte for byte: then count, order, keys,
values, headers and timestamps are equal. If the target's broker compresses again (`compression.type`), or its batches
differ, the messages are decoded and compared column by column.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from waybill.archive.restore.archived import objects_of_range, read_batches
from waybill.archive.restore.progress import check_target
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan
from waybill.base.errors import UnexpectedFailure, WaybillError
from waybill.records.batches.framing import HEADER_BYTES, Frame, check_crc
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

NOT_CHECKED = (
    "leader epochs, producer ids, sequence numbers and transaction marks: a restore does not keep them",
    "consumer groups, except the offsets that `waybill restore groups` has printed",
    "ACLs and quotas of the target",
)
"""Properties that the comparison does not cover."""

_CODEC_MASK = 0x07
_COLUMNS = ("timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ObjectDigest:
    """One backup object that was read."""

    key: str
    first_offset: int
    next_offset: int
    target_offset: int
    """The target offset of its first message."""
    messages: int
    sha256: str
    """The SHA-256 of the bytes of its record batches that belong to the range."""


@dataclass(slots=True)
class PartitionComparison:
    """The result of the comparison of one topic-partition."""

    plan: PartitionPlan
    messages: int = 0
    """How many messages are equal on both sides, from the first on."""
    batches_as_bytes: int = 0
    """How many batches were equal byte for byte; the messages of the others were decoded."""
    objects: list[ObjectDigest] = field(default_factory=list)
    difference: str | None = None
    """The first difference; None if there is none."""

    def document(self) -> dict[str, Any]:
        return {
            "source": str(self.plan.source),
            "target": str(self.plan.target),
            "first_offset": self.plan.first_offset,
            "next_offset": self.plan.next_offset,
            "target_offset": self.plan.target_offset,
            "messages": self.messages,
            "batches_compared_as_bytes": self.batches_as_bytes,
            "difference": self.difference,
            "objects": [
                {
                    "key": each.key,
                    "first_offset": each.first_offset,
                    "next_offset": each.next_offset,
                    "target_offset": each.target_offset,
                    "messages": each.messages,
                    "sha256": each.sha256,
                }
                for each in self.objects
            ],
        }


def compare(store: Store, target: TargetCluster, plan: RestorePlan) -> Iterator[PartitionComparison]:
    """Yield the comparison of each topic-partition of a restore.

    A damaged archive counts as a difference, and so does an additional message in the target. Raises
    `KafkaUnavailable`, `StoreUnavailable`, or `RestoreStopped` when the target's topics are not the topics of the
    restore.
    """
    check_target(target, plan)
    for partition in plan.partitions:
        yield _compare_partition(store, target, plan, partition)


def _compare_partition(
    store: Store, target: TargetCluster, plan: RestorePlan, partition: PartitionPlan
) -> PartitionComparison:
    found = PartitionComparison(partition)
    archived = _Archived(store, plan, partition, found)
    try:
        log_range = target.log.offsets([partition.target])[partition.target]
        if log_range.earliest > partition.target_offset:
            found.difference = f"the target has deleted its messages before offset {log_range.earliest}"
            return found
        _compare_frames(archived.frames(), _target_frames(target, partition, log_range.end), found)
    except WaybillError as error:
        if error.retriable:
            raise
        found.difference = str(error)
    except Exception as error:  # the other topic-partitions are still compared
        failure = UnexpectedFailure(f"the comparison of {partition.source}", error)
        logger.exception("%s", failure)
        found.difference = str(failure)
    return found


class _Archived:
    """The archived batches of a range, with a digest of each object that was read to its end."""

    def __init__(self, store: Store, plan: RestorePlan, partition: PartitionPlan, found: PartitionComparison) -> None:
        self._store, self._plan, self._partition, self._found = store, plan, partition, found

    def frames(self) -> Iterator[Frame]:
        partition = self._partition
        target_offset = partition.target_offset
        for each in objects_of_range(
            self._store, self._plan.generation, partition.source, partition.first_offset, partition.next_offset
        ):
            digest, messages = hashlib.sha256(), 0
            low = max(each.name.first_offset, partition.first_offset)
            high = min(each.next_offset, partition.next_offset)
            for batch in read_batches(self._store, partition.source, [each], low, high):
                digest.update(batch.archived.data)
                if batch.frame is not None:
                    messages += batch.frame.header.record_count
                    yield batch.frame
            self._found.objects.append(ObjectDigest(each.key, low, high, target_offset, messages, digest.hexdigest()))
            target_offset += messages


def _target_frames(target: TargetCluster, partition: PartitionPlan, end: int) -> Iterator[Frame]:
    where = f"{partition.target} of the target"
    if partition.target_offset >= end:
        return
    for chunk in target.log.read(partition.target, partition.target_offset, end):
        for frame in chunk.frames:
            if frame.header.is_control or not frame.header.record_count:
                continue
            check_crc(frame, where)
            # The bytes of a chunk are overwritten by the next fetch.
            yield frame._replace(data=memoryview(bytes(frame.data)))


def _compare_frames(archived: Iterator[Frame], restored: Iterator[Frame], found: PartitionComparison) -> None:
    """Compare batch by batch; from the first differing batch on, compare messages."""
    expected = found.plan.target_offset
    while True:
        left, right = next(archived, None), next(restored, None)
        if left is None and right is None:
            return
        if left is None or right is None or not _is_same(left, right, expected):
            rest_left = chain([] if left is None else [left], archived)
            rest_right = chain([] if right is None else [right], restored)
            _compare_messages(rest_left, rest_right, expected, found)
            return
        found.batches_as_bytes += 1
        found.messages += left.header.record_count
        expected += left.header.record_count


def _is_same(left: Frame, right: Frame, expected: int) -> bool:
    """Return whether a batch of the target has the messages of an archived one, from the expected offset on."""
    one, two = left.header, right.header
    return (
        two.base_offset == expected
        and one.record_count == two.record_count
        and one.last_offset_delta == two.last_offset_delta
        and one.attributes & _CODEC_MASK == two.attributes & _CODEC_MASK
        and one.timestamp_type is two.timestamp_type
        and one.base_timestamp_ms == two.base_timestamp_ms
        and left.data[HEADER_BYTES:] == right.data[HEADER_BYTES:]
    )


def _compare_messages(
    archived: Iterator[Frame], restored: Iterator[Frame], expected: int, found: PartitionComparison
) -> None:
    from waybill.records.batches.decode import decode

    left = _Messages(decode(archived, where=f"the archive of {found.plan.source}", verify_crc=False))
    right = _Messages(decode(restored, where=str(found.plan.target), verify_crc=False))
    while True:
        count = min(left.available(), right.available())
        if not count:
            break
        one, two = left.take(count), right.take(count)
        number = _first_difference(one, two, expected)
        if number is not None:
            found.messages += number
            found.difference = _describe(one, two, number, expected)
            return
        found.messages += count
        expected += count
    if left.available():
        found.difference = f"the target ends at offset {expected}, before the archive does"
    elif right.available():
        found.difference = f"the target has more messages than the archive, from offset {expected} on"


class _Messages:
    """Messages that can be taken in any number."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._current: pa.RecordBatch | None = None

    def available(self) -> int:
        """Return how many messages can be taken at once; 0 at the end."""
        if self._current is None or not self._current.num_rows:
            self._current = next(self._batches, None)
        return 0 if self._current is None else self._current.num_rows

    def take(self, count: int) -> pa.RecordBatch:
        assert self._current is not None
        taken, self._current = self._current.slice(0, count), self._current.slice(count)
        return taken


def _first_difference(one: pa.RecordBatch, two: pa.RecordBatch, expected: int) -> int | None:
    offsets = two.column("offset").to_numpy()
    in_order = len(offsets) == int(offsets[-1]) - int(offsets[0]) + 1 and int(offsets[0]) == expected
    if in_order and all(one.column(name).equals(two.column(name)) for name in _COLUMNS):
        return None
    for number in range(one.num_rows):
        if int(offsets[number]) != expected + number or any(
            one.column(name)[number] != two.column(name)[number] for name in _COLUMNS
        ):
            return number
    return None


def _describe(one: pa.RecordBatch, two: pa.RecordBatch, number: int, expected: int) -> str:
    archived_offset, offset = one.column("offset")[number].as_py(), two.column("offset")[number].as_py()
    if offset != expected + number:
        return f"the target has offset {offset} where {expected + number} should be"
    parts = [name for name in _COLUMNS if one.column(name)[number] != two.column(name)[number]]
    return f"archived offset {archived_offset} and target offset {offset} differ in {', '.join(parts)}"
