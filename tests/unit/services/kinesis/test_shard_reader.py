"""The records of a shard: each once and in order, whatever Kinesis answers, within the quotas of the shard."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from fake_kinesis import FIRST_SEQUENCE, SHARD, FakeKinesis, error, raw, raws
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import ConfigError, KinesisUnavailable
from waybill.records.shards.checkpoint import PositionKind, ShardPosition
from waybill.services.kinesis import ShardLimits, ShardRead, ShardReader
from waybill.services.kinesis.answers import PARSED, ParsedRecords, UnreadableAnswer

EXPIRED = error("ExpiredIteratorException")
THROTTLED = error("ProvisionedThroughputExceededException")


def read_all(reader: ShardReader, position: ShardPosition) -> tuple[list[int], list[ShardRead]]:
    """Return the numbers of the records, and the reads."""
    reads = list(reader.read(position))
    return [each.sequence_number - FIRST_SEQUENCE for read in reads for each in read.records], reads


def test_all_records_are_read_up_to_the_tip() -> None:
    kinesis = FakeKinesis(raws(10))
    numbers, reads = read_all(kinesis.reader(), ShardPosition.trim_horizon())
    assert numbers == list(range(10))
    assert [read.is_at_tip for read in reads] == [False, False, False, True]
    assert reads[-1].position.kind is PositionKind.AFTER_SEQUENCE
    assert reads[-1].position.sequence == str(FIRST_SEQUENCE + 9)
    assert reads[0].size_bytes == 3 * (1 + 3)


def test_a_shard_without_news_takes_two_calls() -> None:
    kinesis = FakeKinesis(raws(3))
    position = ShardPosition.trim_horizon().after(str(FIRST_SEQUENCE + 2))
    numbers, reads = read_all(kinesis.reader(), position)
    assert numbers == []
    assert [called for called, _ in kinesis.calls] == ["GetShardIterator", "GetRecords"]
    assert reads[0].position.sequence == position.sequence


def test_the_position_states_up_to_when_the_shard_is_read() -> None:
    kinesis = FakeKinesis(raws(5))
    (first, last) = read_all(kinesis.reader(), ShardPosition.trim_horizon())[1]
    asked_ms = 1_700_000_000_000 + 1000 * 1000
    assert first.position.caught_up_ms == asked_ms - 1000  # the answer is 1000 ms behind the tip
    assert last.position.caught_up_ms == asked_ms + 200
    assert (first.millis_behind, last.millis_behind) == (1000, 0)


def test_an_answer_without_records_below_the_tip_is_not_the_end() -> None:
    kinesis = FakeKinesis(raws(4), empty_answers=3)
    assert read_all(kinesis.reader(), ShardPosition.trim_horizon())[0] == [0, 1, 2, 3]


def test_a_reader_continues_behind_its_position() -> None:
    kinesis = FakeKinesis(raws(10))
    reader = kinesis.reader()
    reads = reader.read(ShardPosition.trim_horizon())
    first = next(reads)
    reads.close()
    assert read_all(reader, first.position)[0] == list(range(3, 10))


@pytest.mark.parametrize("count", [0, 4])
def test_the_end_of_a_closed_shard(count: int) -> None:
    kinesis = FakeKinesis(raws(count), closed=True)
    numbers, reads = read_all(kinesis.reader(), ShardPosition.trim_horizon())
    assert numbers == list(range(count))
    end = reads[-1].position
    assert end.is_ended
    assert end.sequence == (str(FIRST_SEQUENCE + count - 1) if count else "")
    assert read_all(kinesis.reader(), end) == ([], [])


def test_a_missing_iterator_does_not_end_an_open_shard() -> None:
    kinesis = FakeKinesis(raws(2), closed=True, listed_as_closed=False)
    with pytest.raises(KinesisUnavailable, match="ListShards lists the shard as open"):
        read_all(kinesis.reader(), ShardPosition.trim_horizon())


def test_an_expired_iterator_is_replaced_at_the_current_position() -> None:
    kinesis = FakeKinesis(raws(9))
    kinesis.inject("GetRecords", EXPIRED)
    reads = kinesis.reader().read(ShardPosition.trim_horizon())
    found = list(next(reads).records)
    kinesis.inject("GetRecords", EXPIRED, EXPIRED)
    found += [each for read in reads for each in read.records]
    assert [each.sequence_number - FIRST_SEQUENCE for each in found] == list(range(9))
    assert kinesis.calls[-1][0] == "GetRecords"


def test_iterators_that_always_expire_are_reported() -> None:
    kinesis = FakeKinesis(raws(1))
    kinesis.inject("GetRecords", *[EXPIRED] * 20)
    with pytest.raises(KinesisUnavailable, match=f"shard {SHARD} of stream 'orders': 5 iterators"):
        read_all(kinesis.reader(), ShardPosition.trim_horizon())


def test_a_repeated_answer_is_not_delivered_again() -> None:
    kinesis = FakeKinesis(raws(6))
    kinesis.inject("GetRecords", {PARSED: ParsedRecords(raws(2), "0", 5)})
    assert read_all(kinesis.reader(), ShardPosition.trim_horizon())[0] == list(range(6))


def test_an_answer_out_of_order_loses_nothing() -> None:
    kinesis = FakeKinesis(raws(6))
    disorder = [raw(2), raw(0), raw(1), raw(1)]
    kinesis.inject("GetRecords", {PARSED: ParsedRecords(disorder, "3", 5)})
    assert read_all(kinesis.reader(), ShardPosition.trim_horizon())[0] == list(range(6))


@given(st.lists(st.sampled_from(["expired", "throttled", "cut", "repeated", "empty"]), max_size=12))
def test_no_order_of_faults_loses_or_repeats_a_record(faults: list[str]) -> None:
    kinesis = FakeKinesis(raws(20), closed=True)
    found: list[int] = []
    position = ShardPosition.trim_horizon()
    left = list(faults)
    while not position.is_ended:
        if left:
            fault = left.pop()
            answers = {
                "expired": EXPIRED,
                "throttled": THROTTLED,
                "cut": UnreadableAnswer("cut"),
                "repeated": {PARSED: ParsedRecords(raws(2), "0", 7)},
                "empty": {PARSED: ParsedRecords([], str(len(found)), 7)},
            }
            kinesis.inject("GetRecords", answers[fault])
        reads = kinesis.reader().read(position)
        read = next(reads)
        reads.close()
        found += [each.sequence_number - FIRST_SEQUENCE for each in read.records]
        position = read.position
    assert found == list(range(20))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        THROTTLED,
        error("InternalFailure", status=500),
        error("", status=503),
        error("KMSThrottlingException"),
        ConnectionResetError("reset"),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
        ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
        UnreadableAnswer("cut"),
        {},
    ],
    ids=str,
)
def test_a_passing_fault_is_retried_with_backoff(fault: object) -> None:
    kinesis = FakeKinesis(raws(2))
    kinesis.inject("GetRecords", fault, fault, fault)
    assert read_all(kinesis.reader(), ShardPosition.trim_horizon())[0] == [0, 1]
    assert len(kinesis.slept) == 3


def test_a_fault_that_stays_is_a_named_error() -> None:
    kinesis = FakeKinesis(raws(2))
    kinesis.inject("GetRecords", *[THROTTLED] * 8)
    with pytest.raises(KinesisUnavailable, match=r"GetRecords in 8 tries.*ProvisionedThroughput") as caught:
        read_all(kinesis.reader(), ShardPosition.trim_horizon())
    assert caught.value.retriable
    assert kinesis.count("GetRecords") == 8


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("AccessDeniedException", r"orders.*Allow the action kinesis:GetRecords on it"),
        ("KMSAccessDeniedException", r"encrypted.*kms:Decrypt"),
        ("ResourceNotFoundException", r"does not exist.*region_name"),
        ("UnrecognizedClientException", r"Check the keys of connection 'aws_kinesis'"),
        ("ExpiredTokenException", r"Check the keys of connection 'aws_kinesis'"),
        ("InvalidArgumentException", r"was refused \(InvalidArgumentException"),
    ],
)
def test_what_no_retry_can_cure_is_a_config_error_with_the_remedy(code: str, remedy: str) -> None:
    kinesis = FakeKinesis(raws(2))
    kinesis.inject("GetRecords", error(code))
    with pytest.raises(ConfigError, match=remedy):
        read_all(kinesis.reader(), ShardPosition.trim_horizon())
    assert kinesis.slept == []


# --- quotas and lag ---------------------------------------------------------------------------------------------------


def test_a_shard_is_asked_five_times_a_second() -> None:
    kinesis = FakeKinesis(raws(12))
    read_all(kinesis.reader(), ShardPosition.trim_horizon())
    assert kinesis.slept == pytest.approx([0.2, 0.2, 0.2])


def test_the_quota_holds_across_reads_of_a_reader() -> None:
    kinesis = FakeKinesis(raws(1))
    reader = kinesis.reader()
    for _ in range(3):
        read_all(reader, ShardPosition.trim_horizon())
    assert kinesis.slept == pytest.approx([0.2, 0.2])


def test_a_large_answer_is_followed_by_a_pause() -> None:
    kinesis = FakeKinesis([raw(0, bytes(10_000_000 - 3)), raw(1)], per_answer=1)
    read_all(kinesis.reader(), ShardPosition.trim_horizon())
    assert kinesis.slept == pytest.approx([5.0])


def test_the_limits_can_be_shared_with_other_consumers() -> None:
    kinesis = FakeKinesis(raws(6))
    read_all(kinesis.reader(ShardLimits(calls_per_second=2.0)), ShardPosition.trim_horizon())
    assert kinesis.slept == pytest.approx([0.5])


def test_the_lag_of_a_position_takes_two_calls() -> None:
    kinesis = FakeKinesis(raws(5))
    reader = kinesis.reader()
    assert reader.millis_behind(ShardPosition.trim_horizon()) == 1000
    assert [called for called, _ in kinesis.calls] == ["GetShardIterator", "GetRecords"]
    assert reader.millis_behind(ShardPosition.trim_horizon().after(str(FIRST_SEQUENCE + 4))) == 0
    assert reader.millis_behind(ShardPosition.trim_horizon().at_shard_end()) == 0


def test_records_before_the_timestamp_are_left_out() -> None:
    """botocore sends whole seconds, so Kinesis begins up to a second too early."""
    kinesis = FakeKinesis(raws(2500), per_answer=400)
    numbers, reads = read_all(kinesis.reader(), ShardPosition.at_timestamp(1_700_000_001_990))
    assert numbers == list(range(1990, 2500))
    assert reads[0].position.kind is PositionKind.AT_TIMESTAMP
    assert reads[-1].position.kind is PositionKind.AFTER_SEQUENCE


def test_a_time_in_the_future_is_no_error() -> None:
    kinesis = FakeKinesis(raws(3), per_answer=2)
    at_ms = 1_700_000_000_000 + 10_000_000
    numbers, reads = read_all(kinesis.reader(), ShardPosition.at_timestamp(at_ms))
    assert numbers == []
    assert reads[-1].position.timestamp_ms == at_ms
    asked = kinesis.calls[0][1]["Timestamp"].timestamp()
    assert asked < 1_700_000_000 + kinesis.time
