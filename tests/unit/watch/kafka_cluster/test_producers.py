"""What headers of record batches tell of the producers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.records.batches.framing import BatchHeader, empty_batch, read_header
from waybill.watch.kafka_cluster.producers import ProducerStatistics

TP, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1)
NOW = 1_000_000
PLAIN = read_header(empty_batch(0, 1, leader_epoch=0), 0, "a batch")


def batch(
    sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, time: int = 5, attributes: int = 0
) -> BatchHeader:
    return PLAIN._replace(
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        record_count=count,
        max_timestamp_ms=time,
        attributes=attributes,
    )


def collect(*batches: BatchHeader, tp: TopicPartition = TP) -> ProducerStatistics:
    found = ProducerStatistics(NOW)
    for each in batches:
        found.add(tp, each)
    return found


def test_repeated_and_missing_sequence_numbers_are_counted() -> None:
    (figures,) = collect(batch(0, 10), batch(10, 5), batch(10, 5), batch(20, 1), batch(21)).producers
    assert (figures.repeated, figures.missing, figures.messages) == (5, 5, 22)


def test_sequence_numbers_wrap_around() -> None:
    last = (1 << 31) - 1
    (figures,) = collect(batch(last - 1, 3), batch(1, 2), batch(0, 1)).producers
    assert (figures.repeated, figures.missing) == (1, 0)


def test_new_epoch_and_other_topic_partition_start_their_own_sequence() -> None:
    found = collect(batch(0, 3), batch(0, 2, epoch=1))
    found.add(OTHER, batch(50))
    (figures,) = found.producers
    assert (figures.repeated, figures.missing, figures.epochs) == (0, 0, {0, 1})


def test_producers_without_idempotence_are_one_row_without_sequence_numbers() -> None:
    (figures,) = collect(batch(-1, 4, producer=-1), batch(-1, 2, producer=-1)).producers
    assert (figures.is_idempotent, figures.messages, figures.repeated) == (False, 6, 0)
    assert (figures.sizes.median_messages, figures.sizes.largest_messages) == (3.0, 4)


def test_timestamps_behind_earlier_ones_and_ahead_of_the_clock_are_found() -> None:
    found = collect(batch(0, time=NOW - 50), batch(1, time=NOW - 80), batch(0, producer=8, time=NOW + 30))
    by_id = {each.producer_id: each for each in found.producers}
    assert (by_id[7].behind_ms, by_id[7].ahead_ms) == (30, 0)
    assert (by_id[8].behind_ms, by_id[8].ahead_ms) == (0, 30)


def test_times_of_brokers_and_ends_of_transactions_say_nothing_of_producers() -> None:
    found = collect(batch(0, time=NOW + 99, attributes=0x08), batch(-1, attributes=0x30), batch(1, attributes=0x10))
    (figures,) = found.producers
    assert (found.log_append_batches, found.control_batches) == (1, 1)
    assert (figures.ahead_ms, figures.is_transactional, figures.batches) == (0, True, 2)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["new", "again", "skip"])), max_size=30))
def test_counts_equal_those_of_a_broker_that_remembers_every_number(steps: list[tuple[int, str]]) -> None:
    found, seen, position = ProducerStatistics(NOW), 0, 0
    repeated = missing = 0
    for count, kind in steps:
        if kind == "again" and position >= count and seen:
            found.add(TP, batch(position - count, count))
            repeated += count
            continue
        if kind == "skip" and seen:
            position += count
            missing += count
        found.add(TP, batch(position, count))
        position += count
        seen += 1
    figures = found.producers[0] if found.producers else None
    assert (figures.repeated, figures.missing) == (repeated, missing) if figures else not steps
