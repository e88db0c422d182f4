"""Produce requests of one record batch, encoded and decoded by hand.

A restore sends one request for each record batch, and small batches are many. kafka-python builds five objects for a
request, encodes them field by field, and does the reverse for the response: 60 % of the CPU time of a restore of small
batches (docs/decisions/0026-restore.md). Here all but the batch and two numbers is encoded once for a topic-partition.

The bytes are those of Kafka's protocol, `ProduceRequest` and `ProduceResponse` version 9 (KIP-482: flexible encoding;
Kafka 2.4 to 4.x). A unit test compares them with kafka-python's. A response with anything but the plain success of one
batch is left to kafka-python's decoder.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Self

from kafka.protocol.producer import ProduceResponse

__all__ = ["PartitionRequests", "ProduceAnswer", "RawProduceRequest"]

_API_KEY, _VERSION = 0, 9
_ACKS_ALL = -1
_ONE = b"\x02"  # the length of an array with one element
_NONE = b"\x00"  # a null text, and the end of optional fields
_HEADER = struct.Struct(">hhih")
_FRAME = struct.Struct(">i")
_INDEX = struct.Struct(">i")
_ANSWER = struct.Struct(">ihqqq")
_PLAIN_END = b"\x01\x00\x00\x00"  # no record errors, no message, and no optional fields of partition and topic
_THROTTLE = struct.Struct(">i")


class ProduceAnswer(NamedTuple):
    """What a leader answers to one batch."""

    error_code: int
    base_offset: int
    """The offset of the batch's first message; -1 for an error."""
    error_message: str | None
    throttle_time_ms: int


class PartitionRequests:
    """Makes the requests for one topic-partition."""

    def __init__(self, topic: str, partition: int, timeout_ms: int) -> None:
        name = topic.encode()
        self._prefix = b"".join(
            (
                _NONE,  # no transactional id
                struct.pack(">hi", _ACKS_ALL, timeout_ms),
                _ONE,
                _uvarint(len(name) + 1),
                name,
                _ONE,
                _INDEX.pack(partition),
            )
        )
        # One topic and one partition come before the fields of the answer.
        self._answer_at = len(_ONE + _uvarint(len(name) + 1) + name + _ONE)

    def request(self, batch: bytes) -> RawProduceRequest:
        """Return the request for a batch."""
        return RawProduceRequest(self._prefix, batch, self._answer_at)


class RawProduceRequest:
    """A request as kafka-python's connection takes it: it asks for the members of this class, and for no others."""

    API_KEY = _API_KEY
    API_VERSION = _VERSION

    def __init__(self, prefix: bytes, batch: bytes, answer_at: int) -> None:
        self._prefix, self._batch = prefix, batch
        self._client_id = b""
        self.correlation_id = 0
        self._answer_at = answer_at

    @property
    def header(self) -> Self:
        return self

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None:
        self.correlation_id, self._client_id = correlation_id, client_id.encode()

    def expect_response(self) -> bool:
        return True

    def encode(self, **_: Any) -> bytes:
        """Return the frame: length, header and body."""
        header = _HEADER.pack(_API_KEY, _VERSION, self.correlation_id, len(self._client_id))
        length = _uvarint(len(self._batch) + 1)
        size = len(header) + len(self._client_id) + 1 + len(self._prefix) + len(length) + len(self._batch) + 3
        return b"".join(
            (_FRAME.pack(size), header, self._client_id, _NONE, self._prefix, length, self._batch, _NONE * 3)
        )

    def get_response_class(self) -> Self:
        return self

    def parse_header(self, buffer: Any) -> _ResponseHeader:
        """Read the response's header: the correlation id, and optional fields, of which Kafka has none so far."""
        data = buffer.read(5)
        return _ResponseHeader(_FRAME.unpack_from(data)[0], data[4] == 0)

    def decode(self, buffer: Any) -> ProduceAnswer:
        """Read the response's body. Raises `ValueError` if it is no answer to this request."""
        data = bytes(buffer.read())
        end = self._answer_at + _ANSWER.size
        _, error_code, base_offset, _, _ = _ANSWER.unpack_from(data, self._answer_at)
        if not error_code and data[end : end + len(_PLAIN_END)] == _PLAIN_END:
            (throttle_time_ms,) = _THROTTLE.unpack_from(data, end + len(_PLAIN_END))
            return ProduceAnswer(error_code, base_offset, None, throttle_time_ms)
        response = ProduceResponse[_VERSION].decode(data)
        answer = response.responses[0].partition_responses[0]
        return ProduceAnswer(answer.error_code, answer.base_offset, answer.error_message, response.throttle_time_ms)


class _ResponseHeader(NamedTuple):
    correlation_id: int
    has_no_optional_fields: bool


def _uvarint(value: int) -> bytes:
    """Return an unsigned varint: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
