"""Produce requests over a socket: order, pieces of responses, delays, timeouts and errors, with a socket pair."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from kafka import errors as kafka_errors
from kafka.protocol.producer import ProduceResponse

from waybill.services.kafka.leader_connection import LeaderConnection
from waybill.services.kafka.produce_request import PartitionRequests, ProduceAnswer

REQUESTS = PartitionRequests("flights", 3, 30_000, "waybill")


class Broker:
    """The other end of a connection."""

    def __init__(self, timeout_seconds: float = 30.0) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.settimeout(5)
        self.opening: Future[socket.socket] = Future()
        self.ours = ours
        self.connection = LeaderConnection(self.opening, timeout_seconds)
        self.answers: list[tuple[int, ProduceAnswer]] = []
        self.errors: list[Exception] = []

    def open(self) -> None:
        self.opening.set_result(self.ours)

    def add(self, number: int, batch: bytes = b"batch") -> None:
        self.connection.add(REQUESTS, batch, lambda answer: self.answers.append((number, answer)), self.errors.append)

    def read_request(self) -> tuple[int, bytes]:
        (length,) = struct.unpack(">i", self.sock.recv(4, socket.MSG_WAITALL))
        body = self.sock.recv(length, socket.MSG_WAITALL)
        return struct.unpack_from(">i", body, 4)[0], body

    def close(self) -> None:
        self.connection.end(kafka_errors.KafkaConnectionError("closed"))
        self.sock.close()
        self.ours.close()


def response(correlation_id: int, offset: int = 7, throttle_ms: int = 0, code: int = 0) -> bytes:
    topic_response = ProduceResponse.TopicProduceResponse
    partition_response = topic_response.PartitionProduceResponse(
        index=3,
        error_code=code,
        base_offset=offset,
        log_append_time_ms=-1,
        log_start_offset=0,
        record_errors=[],
        error_message=None,
    )
    answer = ProduceResponse(
        version=9,
        responses=[topic_response(name="flights", partition_responses=[partition_response])],
        throttle_time_ms=throttle_ms,
    )
    answer.with_header(correlation_id=correlation_id)
    data: bytes = answer.encode(header=True)
    return struct.pack(">i", len(data)) + data


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def test_requests_wait_for_the_connection_and_are_answered_in_order(broker: Broker) -> None:
    broker.add(1, b"first")
    broker.connection.exchange()
    assert broker.connection.is_delayed
    broker.open()
    broker.add(2, b"second")
    broker.connection.exchange()
    ids = [broker.read_request() for _ in range(2)]
    assert [b"first" in ids[0][1], b"second" in ids[1][1]] == [True, True]
    answers = response(ids[0][0], 7) + response(ids[1][0], 8, code=6)
    assert len(response(ids[0][0])) == REQUESTS.answer_bytes
    for at in range(len(answers)):  # a response may come in any pieces
        broker.sock.sendall(answers[at : at + 1])
        broker.connection.exchange()
    assert [(number, answer.error_code, answer.base_offset) for number, answer in broker.answers] == [
        (1, 0, 7),
        (2, 6, 8),
    ]
    assert broker.connection.is_idle


def test_large_batch_is_sent_in_pieces(broker: Broker) -> None:
    broker.open()
    broker.add(1, batch := bytes(range(256)) * 20_000)
    broker.connection.exchange()
    assert broker.connection.wants_to_send
    received = b""
    while broker.connection.wants_to_send:
        received += broker.sock.recv(1 << 20)
        broker.connection.exchange()
    broker.sock.setblocking(False)
    while not received.endswith(batch + b"\x00\x00\x00"):
        received += broker.sock.recv(1 << 20)
    assert len(received) == 4 + struct.unpack_from(">i", received)[0]


def test_throttled_connection_sends_nothing(broker: Broker) -> None:
    broker.open()
    broker.add(1)
    broker.connection.exchange()
    broker.sock.sendall(response(broker.read_request()[0], throttle_ms=60_000))
    broker.connection.exchange()
    broker.add(2)
    broker.connection.exchange()
    broker.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        broker.sock.recv(1)
    assert broker.connection.is_delayed
    assert not broker.errors


@pytest.mark.parametrize("kind", ["closed", "unknown id", "no request", "length"])
def test_unusable_connection_fails_each_request_without_an_answer(broker: Broker, kind: str) -> None:
    broker.open()
    broker.add(1)
    broker.add(2)
    broker.connection.exchange()
    first = broker.read_request()[0]
    if kind == "closed":
        broker.sock.sendall(response(first))
        broker.sock.close()
    else:
        wrong = {
            "unknown id": response(first + 1),
            "no request": response(first) + response(first + 1) + response(first + 2),
            "length": struct.pack(">ii", 1 << 30, first),
        }
        broker.sock.sendall(wrong[kind])
    broker.connection.exchange()
    if broker.connection.error is None:
        broker.connection.exchange()
    assert isinstance(broker.connection.error, kafka_errors.KafkaConnectionError)
    assert broker.connection.sock is None
    assert len(broker.answers) + len(broker.errors) == 2
    broker.add(3)
    assert broker.errors[-1] is broker.connection.error


def test_refused_connection_fails_the_requests_with_its_error(broker: Broker) -> None:
    broker.add(1)
    refusal = kafka_errors.SaslAuthenticationFailedError("no")
    broker.opening.set_exception(refusal)
    broker.connection.exchange()
    assert broker.errors == [refusal]


def test_timeout_counts_only_without_an_answer_that_has_come() -> None:
    broker = Broker(timeout_seconds=0.0)
    try:
        broker.open()
        broker.add(1)
        broker.connection._sock = broker.ours
        broker.connection._send()
        broker.sock.sendall(response(broker.read_request()[0]))
        broker.connection.exchange()
        assert broker.answers
        assert not broker.errors
        broker.add(2)
        broker.connection.exchange()
        assert isinstance(broker.errors[0], kafka_errors.RequestTimedOutError)
    finally:
        broker.close()
