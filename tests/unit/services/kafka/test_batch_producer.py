"""Sending batches in order, on a broker that a test plays through a socket pair."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count
from typing import Any, cast

import pytest
from kafka.protocol.producer import ProduceResponse

from waybill.config.names import TopicPartition
from waybill.services.kafka import batch_producer
from waybill.services.kafka.batch_producer import Batches, BatchProducer, BatchRefused, OutOfSequence
from waybill.services.kafka.cluster import Cluster, Leader

TP = TopicPartition("flights", 3)
NOT_LEADER, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS = 6, 10, 18, 19
INVALID_TIMESTAMP, UNSUPPORTED_FORMAT, UNSUPPORTED_COMPRESSION, INVALID_RECORD = 32, 43, 76, 87


class Brokers:
    """A cluster of one broker, which connects again after its connection was closed."""

    def __init__(self) -> None:
        self.socks: list[socket.socket] = []
        self.actions: list[str] = []

    def leader(self, _: TopicPartition) -> Leader:
        return Leader(1, 0)

    def describe_topics(self, _: Any) -> None:
        pass

    def attempts(self, action: str) -> Iterator[int]:
        self.actions.append(action)
        return iter(count())

    def open_socket(self, _: int) -> Future[socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.settimeout(5)
        self.socks.append(theirs)
        future: Future[socket.socket] = Future()
        future.set_result(ours)
        return future

    def read_batch(self) -> tuple[int, bytes]:
        """Return the next request's correlation id, and its batch of one byte."""
        sock = self.socks[-1]
        (length,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        body = sock.recv(length, socket.MSG_WAITALL)
        return struct.unpack_from(">i", body, 4)[0], body[-4:-3]

    def answer(self, correlation_id: int, offset: int, code: int = 0, refused: dict[int, str] | None = None) -> None:
        topic_response = ProduceResponse.TopicProduceResponse
        named = topic_response.PartitionProduceResponse.BatchIndexAndErrorMessage
        partition_response = topic_response.PartitionProduceResponse(
            index=TP.partition,
            error_code=code,
            base_offset=offset,
            log_append_time_ms=-1,
            log_start_offset=0,
            record_errors=[
                named(batch_index=index, batch_index_error_message=text) for index, text in (refused or {}).items()
            ],
            error_message=None,
        )
        response = ProduceResponse(
            version=9,
            responses=[topic_response(name=TP.topic, partition_responses=[partition_response])],
            throttle_time_ms=0,
        )
        response.with_header(correlation_id=correlation_id)
        data = response.encode(header=True)
        self.socks[-1].sendall(struct.pack(">i", len(data)) + data)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    for sock in made.socks:
        sock.close()


@pytest.fixture
def producer(brokers: Brokers) -> Iterator[BatchProducer]:
    made = BatchProducer(cast(Cluster, brokers))
    yield made
    made.close()


def batches(first: int, number: int) -> Batches:
    return Batches(first, [(bytes([65 + first + n]), 1) for n in range(number)])


def test_five_batches_are_in_flight_and_an_answer_makes_room_for_the_next(
    brokers: Brokers, producer: BatchProducer
) -> None:
    producer.send(TP, batches(0, 7))
    sent = [brokers.read_batch() for _ in range(5)]
    assert [batch for _, batch in sent] == [b"A", b"B", b"C", b"D", b"E"]
    brokers.socks[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        brokers.socks[-1].recv(1)
    brokers.socks[-1].settimeout(5)
    for offset, (number, _) in enumerate(sent):
        brokers.answer(number, offset)
    assert producer.wait_for_room([TP]) == TP
    for offset in (5, 6):
        brokers.answer(brokers.read_batch()[0], offset)
    producer.check(TP, flush=True)
    assert producer.acknowledged(TP) == 7


@pytest.mark.parametrize("kind", ["error", "closed"])
def test_what_failed_is_sent_again_in_order(brokers: Brokers, producer: BatchProducer, kind: str) -> None:
    producer.send(TP, batches(0, 3))
    sent = [brokers.read_batch() for _ in range(3)]
    brokers.answer(sent[0][0], 0)
    if kind == "error":
        brokers.answer(sent[1][0], -1, NOT_LEADER)
        brokers.answer(sent[2][0], 2)  # not believed: its batch is sent again after the one before
    else:
        brokers.socks[-1].close()
    for _ in range(3):  # the answers, the failure, and what a retry does
        producer.wait_for_room([TP])
        producer.check(TP)
    again = [brokers.read_batch() for _ in range(2)]
    assert [batch for _, batch in again] == [b"B", b"C"]
    for offset, (number, _) in enumerate(again, start=1):
        brokers.answer(number, offset)
    producer.check(TP, flush=True)
    assert producer.acknowledged(TP) == 3


def test_connection_that_the_broker_closed_while_idle_is_made_again(brokers: Brokers, producer: BatchProducer) -> None:
    producer.send(TP, batches(0, 1))
    brokers.answer(brokers.read_batch()[0], 0)
    producer.check(TP, flush=True)
    brokers.socks[-1].close()
    producer.send(TP, batches(1, 1))
    assert len(brokers.socks) == 2
    brokers.answer(brokers.read_batch()[0], 1)
    producer.check(TP, flush=True)


def test_process_that_was_frozen_for_hours_does_not_send(
    brokers: Brokers, producer: BatchProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.begin(TP)
    monkeypatch.setattr(batch_producer, "_time_since_boot", lambda: 10**9)
    producer.send(TP, batches(0, 1))
    with pytest.raises(OutOfSequence, match="acknowledged nothing for 6 h"):
        producer.check(TP)
    brokers.socks[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        brokers.socks[-1].recv(1)
    producer.begin(TP)
    producer.send(TP, batches(0, 1))
    brokers.answer(brokers.read_batch()[0], 0)
    producer.check(TP, flush=True)


@pytest.mark.parametrize(
    "code",
    [
        MESSAGE_TOO_LARGE,
        RECORD_LIST_TOO_LARGE,
        INVALID_TIMESTAMP,
        UNSUPPORTED_FORMAT,
        UNSUPPORTED_COMPRESSION,
        INVALID_RECORD,
    ],
)
def test_refused_batch_is_named_and_not_sent_again(brokers: Brokers, producer: BatchProducer, code: int) -> None:
    producer.send(TP, batches(0, 3))
    sent = [brokers.read_batch() for _ in range(3)]
    brokers.answer(sent[0][0], 0)
    brokers.answer(sent[1][0], -1, code, {4: "out of range", 2: "too early"})
    with pytest.raises(BatchRefused, match=r"refuses a batch of 1 bytes: .*Error: out of range") as caught:
        producer.check(TP, flush=True)
    assert (caught.value.offset, caught.value.batch, caught.value.refused_record) == (1, b"B", 2)
    assert producer.acknowledged(TP) == 1


def test_too_few_replicas_are_waited_for_and_named(brokers: Brokers, producer: BatchProducer) -> None:
    producer.send(TP, batches(0, 1))
    brokers.answer(brokers.read_batch()[0], -1, NOT_ENOUGH_REPLICAS)
    for _ in range(2):
        producer.wait_for_room([TP])
        producer.check(TP)
    brokers.answer(brokers.read_batch()[0], 0)
    producer.check(TP, flush=True)
    [action] = brokers.actions
    assert "NotEnoughReplicasError: fewer replicas are in sync than the topic's min.insync.replicas" in action
