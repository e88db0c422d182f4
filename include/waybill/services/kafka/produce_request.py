"""Produce requests of one record batch, encoded and decoded by hand.

A restore sends one request for each record batch, and there are many small batches. kafka-python builds five objects
for a request, encodes them field by field, and does the reverse for the response. Here all but the batch and three
numbers is encoded once for a topic-partition.

The bytes are those of Kafka's protocol, `ProduceRequest` and `ProduceResponse` version 9 (KIP-482: flexible encoding;
Kafka 2.4 to 4.x). A unit test compares them with kafka-python's. Any other response than the success of one batch is
decoded by kafka-python.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kafka.protocol.producer import ProduceResponse

REQUEST_END = b"\x00\x00\x00"
"""The bytes after the batch in a request: no optional fields of partition, topic and request."""

_API_KEY, _VERSION = 0, 9
_ACKS_ALL = -1
_ONE = b"\x02"  # the length of an array with one element
_NONE = b"\x00"  # a null text, and the end of optional fields
_START = struct.Struct(">ihhi")  # the request's length, API, version and correlation id
_NAME_LENGTH = struct.Struct(">h")
_INDEX = struct.Struct(">i")
_ANSWER = struct.Struct(">ihq16x4si")
_PLAIN_END = b"\x01\x00\x00\x00"  # no record errors, no message, and no optional fields of partition and topic
_BODY = 5  # a response begins with the correlation id, and optional fields, of which Kafka has none so far


class ProduceAnswer(NamedTuple):
    """The answer of a leader to one batch."""

    error_code: int
    base_offset: int
    """The offset of the batch's first message; -1 for an error."""
    error_message: str | None
    throttle_time_ms: int
    refused_record: int | None = None
    """The position in the batch of the first record that the leader refused; None if it named none (KIP-467)."""


class PartitionRequests:
    """Makes the requests for one topic-partition, and reads the responses."""

    def __init__(self, topic: str, partition: int, timeout_ms: int, client_id: str) -> None:
        name, client = topic.encode(), client_id.encode()
        one_topic = _ONE + _uvarint(len(name) + 1) + name + _ONE
        self._prefix = b"".join(
            (
                _NAME_LENGTH.pack(len(client)),
                client,
                _NONE,  # no optional fields of the header
                _NONE,  # no transactional id
                struct.pack(">hi", _ACKS_ALL, timeout_ms),
                one_topic,
                _INDEX.pack(partition),
            )
        )
        self._size = _START.size - _INDEX.size + len(self._prefix) + len(REQUEST_END)
        self._answer_at = _BODY + len(one_topic)
        self.answer_bytes = _INDEX.size + self._answer_at + _ANSWER.size + len(_NONE)
        """The size of the shortest response, with its length."""

    def begin(self, correlation_id: int, batch_bytes: int) -> bytes:
        """Return the bytes before a batch of `batch_bytes` in its request. `REQUEST_END` follows it."""
        length = _uvarint(batch_bytes + 1)
        size = self._size + len(length) + batch_bytes
        return b"".join((_START.pack(size, _API_KEY, _VERSION, correlation_id), self._prefix, length))

    def read(self, response: bytes) -> ProduceAnswer:
        """Read a response, from the correlation id on. Raises `ValueError` or `struct.error` if it is damaged."""
        if len(response) >= self._answer_at + _ANSWER.size:
            _, error_code, base_offset, end, throttle_ms = _ANSWER.unpack_from(response, self._answer_at)
            if not error_code and end == _PLAIN_END:
                return ProduceAnswer(0, base_offset, None, throttle_ms)
        decoded = ProduceResponse[_VERSION].decode(response[_BODY:])
        answer = decoded.responses[0].partition_responses[0]
        record_errors = answer.record_errors or ()
        return ProduceAnswer(
            answer.error_code,
            answer.base_offset,
            answer.error_message or next((each.batch_index_error_message for each in record_errors), None),
            decoded.throttle_time_ms,
            min((each.batch_index for each in record_errors), default=None),
        )


def _uvarint(value: int) -> bytes:
    """Return an unsigned varint: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
