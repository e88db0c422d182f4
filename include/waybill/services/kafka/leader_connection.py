"""A connection to a broker that carries produce requests only, in the caller's thread.

kafka-python connects and authenticates (`transport.DirectConnectionManager.open_socket`), then leaves the socket to
this module. Its event loop takes a future, a timer, a task and a wake-up of another thread for each request; here a
request is an entry of a queue, and the caller's thread sends and receives without waiting
(docs/decisions/0026-restore.md).

Requests are sent in the order of `add`, and the broker answers them in this order. An error of the connection concerns
all requests without an answer: whether the broker has carried them out is unknown.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from typing import NamedTuple

from kafka import errors as kafka_errors

from waybill.services.kafka.produce_request import REQUEST_END, PartitionRequests, ProduceAnswer

_LENGTH = struct.Struct(">i")
_LENGTH_AND_ID = struct.Struct(">ii")
_MIN_RESPONSE_BYTES, _MAX_RESPONSE_BYTES = 5, 1 << 20
_RECEIVE_BYTES = 64 << 10
_PIECES = 512
"""How many pieces one system call sends. Linux takes 1,024."""
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

OnAnswer = Callable[[ProduceAnswer], None]
OnError = Callable[[Exception], None]


class _SentRequest(NamedTuple):
    correlation_id: int
    deadline: float
    """A time of the monotonic clock."""
    requests: PartitionRequests
    on_answer: OnAnswer
    on_error: OnError


class LeaderConnection:
    """A connection to one broker. `opening`: the future of its socket, which does not block.

    The callbacks of `add` are called by `exchange`, in the order of the requests. They may call `add`.
    """

    def __init__(self, opening: Future[socket.socket], timeout_seconds: float) -> None:
        self._opening = opening
        self._timeout_seconds = timeout_seconds
        self._give_up_opening_at = time.monotonic() + 2 * timeout_seconds
        self._sock: socket.socket | None = None
        self._correlation_id = 0
        self._in_flight: deque[_SentRequest] = deque()
        self._outgoing: deque[bytes | memoryview] = deque()
        self._received = b""
        self._low_water = 1
        self._paused_until = 0.0
        """Until when the broker wants no requests (KIP-219), by the monotonic clock; in the past for not at all."""
        self.error: Exception | None = None
        """Why the connection has ended; None while it can be used."""

    @property
    def sock(self) -> socket.socket | None:
        """The socket; None before the connection is made and after it has ended."""
        return self._sock

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._in_flight

    @property
    def is_delayed(self) -> bool:
        """Whether the connection is not made yet, or the broker wants no requests for now."""
        return self._sock is None or (self._paused_until > 0 and time.monotonic() < self._paused_until)

    @property
    def wants_to_send(self) -> bool:
        """Whether the socket did not take everything that was added."""
        return bool(self._outgoing) and not self.is_delayed

    def add(self, requests: PartitionRequests, batch: bytes, on_answer: OnAnswer, on_error: OnError) -> None:
        """Queue the request of a batch for `exchange`. On a connection that has ended, `on_error` is called at once."""
        if self.error is not None:
            on_error(self.error)
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        deadline = time.monotonic() + self._timeout_seconds
        self._in_flight.append(_SentRequest(self._correlation_id, deadline, requests, on_answer, on_error))
        self._outgoing += (requests.begin(self._correlation_id, len(batch)), batch, REQUEST_END)

    def exchange(self) -> None:
        """Receive what the broker has answered, and send what the socket takes. Does not wait."""
        if self.error is not None:
            return
        try:
            if self._sock is not None or self._has_opened():
                self._receive()
                self._send()
                self._wait_for_several()
                self._check_deadline()
        except (OSError, ValueError, struct.error) as error:
            self.end(kafka_errors.KafkaConnectionError(error))
        except Exception as error:  # kafka-python's, of opening the connection, and of an answer
            self.end(error)

    def end(self, error: Exception) -> None:
        """Close the socket. Requests without an answer have failed."""
        self.error = error
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._outgoing.clear()
        while self._in_flight:
            self._in_flight.popleft().on_error(error)

    def _has_opened(self) -> bool:
        if self._opening.done():
            self._sock = self._opening.result()
            return True
        if time.monotonic() > self._give_up_opening_at:  # the call has its own timeout, unless the IO thread has ended
            raise kafka_errors.KafkaTimeoutError("no answer from kafka-python's IO thread")
        return False

    def _receive(self) -> None:
        assert self._sock is not None
        while True:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except _WOULD_BLOCK:
                return
            if not data:
                raise kafka_errors.KafkaConnectionError("socket disconnected")
            self._received = self._take_answers(self._received + data if self._received else data)
            # A TLS socket may hold decrypted bytes that the selector cannot see.
            if len(data) < _RECEIVE_BYTES and not isinstance(self._sock, ssl.SSLSocket):
                return

    def _wait_for_several(self) -> None:
        """Let the selector report the socket when the answers to more than half of the requests have come.

        In the meantime, the broker works on the remaining requests. Without this, each answer wakes the process for one
        request.
        """
        if isinstance(self._sock, ssl.SSLSocket):  # the sizes of its records are unknown
            return
        count = (len(self._in_flight) + 2) // 2
        low_water = sum(request.requests.answer_bytes for request in islice(self._in_flight, count)) or 1
        if low_water != self._low_water and self._sock is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water

    def _take_answers(self, data: bytes) -> bytes:
        """Call the callbacks of the responses in `data`, and return the rest."""
        position = 0
        while len(data) - position >= _LENGTH_AND_ID.size:
            length, correlation_id = _LENGTH_AND_ID.unpack_from(data, position)
            if not _MIN_RESPONSE_BYTES <= length <= _MAX_RESPONSE_BYTES:
                raise kafka_errors.KafkaConnectionError(f"a response of {length:,} bytes")
            start, position_after = position + _LENGTH.size, position + _LENGTH.size + length
            if position_after > len(data):
                break
            if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
                raise kafka_errors.KafkaConnectionError("a response that belongs to no request")
            request = self._in_flight[0]
            answer = request.requests.read(data[start:position_after])
            self._in_flight.popleft()
            position = position_after
            if answer.throttle_time_ms > 0:
                self._paused_until = time.monotonic() + answer.throttle_time_ms / 1000
            request.on_answer(answer)
        return data[position:]

    def _send(self) -> None:
        while self._outgoing and not self.is_delayed:
            try:
                if isinstance(self._sock, ssl.SSLSocket):
                    sent = self._sock.send(self._outgoing[0])
                else:
                    assert self._sock is not None
                    sent = self._sock.sendmsg(islice(self._outgoing, _PIECES))
            except _WOULD_BLOCK:
                return
            self._forget_sent(sent)

    def _forget_sent(self, sent: int) -> None:
        while self._outgoing and sent >= len(self._outgoing[0]):
            sent -= len(self._outgoing.popleft())
        if sent:
            self._outgoing[0] = memoryview(self._outgoing[0])[sent:]

    def _check_deadline(self) -> None:
        """Raise `RequestTimedOutError` if the oldest request waits for too long. What has come was received before."""
        if not self._in_flight:
            return
        deadline = max(self._in_flight[0].deadline, self._paused_until + self._timeout_seconds)
        if time.monotonic() > deadline:
            raise kafka_errors.RequestTimedOutError(f"no answer for {self._timeout_seconds:g} s")
