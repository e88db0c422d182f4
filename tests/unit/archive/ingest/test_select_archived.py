"""`select_archived`: which record batches of a chunk are archived."""

from __future__ import annotations

from waybill.archive.ingest.kafka.fetching import select_archived
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import ControlType, frames
from waybill.services.kafka.partition_reader import AbortedTransaction, Chunk

PLAIN = -1


def data(offset: int, producer_id: int = PLAIN, count: int = 1) -> bytes:
    records = [Record(offset + i, 0, None, b"v") for i in range(count)]
    return encode_batch(records, transactional=producer_id != PLAIN, producer_id=producer_id, producer_epoch=0)


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    return control_batch(offset, kind, timestamp_ms=0, producer_id=producer_id, producer_epoch=0)


def archived(batches: list[bytes], *aborted: tuple[int, int]) -> list[int]:
    """Return the base offsets of the archived batches. `aborted` are pairs of producer id and first offset."""
    buffer = memoryview(b"".join(batches))
    found = list(frames(buffer, where="t/0"))
    transactions = tuple(sorted(AbortedTransaction(first_offset=o, producer_id=p) for p, o in aborted))
    chunk = Chunk("t/0", buffer, found, transactions, found[-1].header.next_offset, len(buffer))
    taken = list(select_archived(chunk))
    assert [frame for frame, _ in taken] == found, "every frame is yielded, in order"
    return [frame.header.base_offset for frame, kept in taken if kept]


def test_control_batches_are_not_archived() -> None:
    batches = [data(0, 7), marker(1, 7, ControlType.COMMIT), data(2), marker(3, 8, ControlType.ABORT)]
    assert archived(batches) == [0, 2]
    assert archived(batches, (9, 2)) == [0, 2]


def test_aborted_transaction_is_left_out_from_its_first_offset_to_its_abort_marker() -> None:
    batches = [
        data(0, 7),
        marker(1, 7, ControlType.COMMIT),
        data(2, 7),
        data(3, 7),
        marker(4, 7, ControlType.ABORT),
        data(5, 7),
        marker(6, 7, ControlType.COMMIT),
    ]
    assert archived(batches, (7, 2)) == [0, 5]


def test_batches_of_other_producers_within_an_aborted_transaction_are_archived() -> None:
    batches = [data(0, 7), data(1, 8), data(2), data(3, 7), marker(4, 8, ControlType.COMMIT), data(5)]
    batches += [marker(6, 7, ControlType.ABORT)]
    assert archived(batches, (7, 0)) == [1, 2, 5]


def test_two_aborted_transactions_of_one_producer_are_left_out() -> None:
    batches = [data(0, 7), marker(1, 7, ControlType.ABORT), data(2, 7), marker(3, 7, ControlType.ABORT), data(4)]
    assert archived(batches, (7, 0), (7, 2)) == [4]


def test_aborted_transaction_that_began_before_the_chunk_is_left_out() -> None:
    assert archived([data(10, 7), marker(11, 7, ControlType.ABORT), data(12, 7)], (7, 3)) == [12]


def test_aborted_transaction_that_begins_within_a_batch_range_includes_that_batch() -> None:
    # After compaction, a batch may start before the first offset that is left of the transaction.
    assert archived([data(0, 7, count=5), data(5)], (7, 3)) == [5]


def test_aborted_transaction_that_begins_after_the_chunk_has_no_effect() -> None:
    assert archived([data(0, 7), data(1)], (7, 2)) == [0, 1]
