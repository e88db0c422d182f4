"""Delivery to a webhook: challenge, signed batches, retries, rejections.

At least once. A receiver that has a batch, and whose answer is lost, gets the batch again, with the same
`Idempotency-Key`. A batch counts as delivered when the receiver answered a 2xx status, and the answer was complete, or
longer than the limit for reading.

| answer                                     | means                                                               |
|--------------------------------------------|---------------------------------------------------------------------|
| 2xx                                        | the receiver has all messages of the batch                          |
| 408, 425, 429, 5xx, none, half of one      | not now: sent again after a pause, up to `attempts` times           |
| 400, 409, 413, 415, 422, other 4xx         | at least one message is rejected: the batch is split to find it  |
| 401, 403, 404, 405, 407, 410, 3xx          | the webhook itself is wrong: the replay request cannot be served    |

**Splitting.** A rejected batch is sent in halves, and each rejected half again, until single messages are rejected.
With `k` rejected messages among `n` this takes about `2k · (1 + log2(n / k))` additional requests at most, and never
more than `MAX_SPLIT_REQUESTS`. After that, all messages of rejected parts are listed as rejected, and the reason states
this.

Every wait calls `pause`, in which the worker sends its heartbeats, and which may raise.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt

from waybill.base.errors import ReplayRefused
from waybill.config.connections.masking import masked_url, without_urls
from waybill.config.models.replay import Replay
from waybill.replay.requests.delivery.batches import Batch
from waybill.replay.requests.delivery.breaker import Breaker
from waybill.replay.requests.delivery.http import NoAnswer, ReceiverAnswer, WebhookClient
from waybill.replay.requests.delivery.rate import TokenBucket
from waybill.replay.requests.delivery.signature import SIGNATURE_HEADER, Keys
from waybill.replay.requests.message import ReplayedMessage

logger = logging.getLogger(__name__)

MAX_SPLIT_REQUESTS = 256
MAX_RETRY_AFTER_SECONDS = 60
"""For a longer pause, the worker gives the request back to the queue."""
MAX_WAIT_SECONDS = 3_600
"""The limit of a pause."""
_EXCERPT_BYTES = 500
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 30.0

_REPEATED = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_ABOUT_THE_WEBHOOK = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.PAYMENT_REQUIRED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.GONE,
        HTTPStatus.MISDIRECTED_REQUEST,
    }
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A message that the receiver refused for good."""

    message: ReplayedMessage
    reason: str
    """The HTTP status, and the beginning of the answer."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The batch is done: the receiver has each message, or rejected it."""

    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The receiver does not take the batch now. Give the request back, and deliver the batch again later."""

    reason: str
    wait_seconds: float
    """How long to wait before the next request to the target."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The webhook cannot be used with this URL or config. The replay request fails with the reason."""

    reason: str


Outcome = Delivered | Unavailable | Refused


@dataclass(frozen=True, slots=True)
class _Accepted:
    answer: ReceiverAnswer


@dataclass(frozen=True, slots=True)
class _Rejected:
    reason: str


@dataclass(frozen=True, slots=True)
class _NotNow:
    reason: str
    retry_after_seconds: float = 0.0


_Result = _Accepted | _Rejected | _NotNow | Refused


def webhook_client(url: str, replay: Replay) -> WebhookClient:
    """Return a client with the limits of the config; the caller closes it.

    Raises `ReplayRefused` for an unusable URL.
    """
    webhooks = replay.webhooks
    # Checked again: the config may have changed since the request was created.
    if urlsplit(url).scheme != "https" and not webhooks.allow_http:
        raise ReplayRefused("is not encrypted, and the config allows https only", "target.url")
    return WebhookClient(
        url,
        allowed=webhooks.allowed_networks,
        timeout_seconds=webhooks.timeout.total_seconds(),
        max_answer_bytes=webhooks.max_answer_bytes,
    )


class WebhookDelivery:
    """The webhook of one replay request.

    `breaker` is the state of the target after each call; pass it to the next `WebhookDelivery` of the same target. The
    rate limit is divided: each of `replay.workers` has an equal share, so together they never exceed it.
    """

    def __init__(
        self,
        client: WebhookClient,
        request_id: str,
        keys: Keys,
        replay: Replay,
        breaker_document: Mapping[str, Any] | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        jitter: random.Random | None = None,
    ) -> None:
        """`pause` waits for a number of seconds, and may raise; `monotonic` and `now` are clocks in seconds."""
        self._client = client
        self._request_id = request_id
        self._keys = keys
        self._attempts = replay.webhooks.attempts
        self._accepts_proofs_without_url = replay.webhooks.accept_proofs_without_url
        self._bucket = TokenBucket(replay.webhooks.rate_per_second / replay.workers)
        self._pause, self._monotonic, self._now = pause, monotonic, now
        self._jitter = jitter or random.Random()
        self.breaker = Breaker.of(self._attempts, breaker_document)

    # --- the challenge ---

    def prove_ownership(self) -> Delivered | Unavailable | Refused:
        """Ask the receiver to prove that it knows the key, before the first delivery of a request.

        So nobody can make Waybill send messages to a server whose owner does not expect them. `Delivered` means proven.
        The challenge must not contain the URL: the receiver must make the proof with its own URL.
        """
        token = secrets.token_urlsafe(32)
        challenge = {"v": 1, "type": "challenge", "proof_version": 2, "request": self._request_id, "token": token}
        body = json.dumps(challenge).encode()
        result = self._send_with_retries(body, {"Idempotency-Key": f"{self._request_id}-challenge"})
        match result:
            case _Accepted(answer):
                return self._judged(token, _proof_of(answer))
            case _Rejected(reason):
                return Refused(f"refused the challenge: {reason}")
            case _NotNow():
                return self._unavailable(result)
            case Refused():
                return result

    def _judged(self, token: str, proof: str) -> Delivered | Refused:
        if self._keys.proves(token, self._client.url, proof):
            return Delivered()
        if not self._keys.proves_without_url(token, proof):
            return Refused(
                "did not prove that its owner expects messages: it must answer the challenge with status 200 and "
                '{"proof": "<HMAC-SHA256 of the token and its URL>"}, with the URL exactly as in the replay request '
                "(docs/replay-webhooks.md)"
            )
        if self._accepts_proofs_without_url:
            logger.warning(
                "the webhook of replay %s, %s, proves only that some receiver has the key, not that it is at this URL: "
                "change the receiver, then remove replay.webhooks.accept_proofs_without_url",
                self._request_id,
                masked_url(self._client.url),
            )
            return Delivered()
        return Refused(
            "answered the challenge with a proof of an earlier version, which does not contain its URL and may have "
            "been forwarded from another server: change the receiver (docs/replay-webhooks.md); until then, the "
            "operator can set replay.webhooks.accept_proofs_without_url"
        )

    # --- batches ---

    def deliver(self, batch: Batch) -> Outcome:
        """Send a batch, and return the outcome. The same batch can be sent again at any time."""
        rejections: list[Rejection] = []
        parts = [batch]
        requests_left = MAX_SPLIT_REQUESTS
        while parts:
            part = parts.pop()
            result = self._send_with_retries(part.body(), {"Idempotency-Key": part.idempotency_key})
            match result:
                case _Rejected(reason):
                    if len(part.messages) > 1 and requests_left >= 2:
                        requests_left -= 2
                        parts += reversed(part.halves())
                        continue
                    rejections += _rejections(part, reason)
                case _NotNow():
                    # Parts that were already delivered are sent again with their batch, with their own keys.
                    return self._unavailable(result)
                case Refused():
                    return result
                case _Accepted():
                    pass
        return Delivered(tuple(rejections))

    # --- one request, and its repetitions ---

    def _send_with_retries(self, body: bytes, headers: Mapping[str, str]) -> _Result:
        wait_ms = self.breaker.wait_ms(self._now_ms())
        if wait_ms:
            return _NotNow(f"failed {self.breaker.failures} times in a row, and is left alone", wait_ms / 1000)
        retrying = Retrying(
            stop=lambda state: self._is_enough(state),
            wait=self._wait_seconds,
            retry=retry_if_result(lambda result: isinstance(result, _NotNow)),
            sleep=self._pause,
            retry_error_callback=_last_result,
        )
        result: _Result = retrying(self._send, body, headers)
        return result

    def _is_enough(self, state: RetryCallState) -> bool:
        result = _last_result(state)
        if isinstance(result, _NotNow) and result.retry_after_seconds > MAX_RETRY_AFTER_SECONDS:
            return True
        return self.breaker.is_on_trial or stop_after_attempt(self._attempts)(state)

    def _wait_seconds(self, state: RetryCallState) -> float:
        """Return the pause before the next attempt: it doubles each time, and half of it is random."""
        ceiling = min(_FIRST_WAIT_SECONDS * 2 ** (state.attempt_number - 1), _LONGEST_WAIT_SECONDS)
        result = _last_result(state)
        asked = result.retry_after_seconds if isinstance(result, _NotNow) else 0.0
        return float(max(asked, ceiling / 2 + self._jitter.uniform(0, ceiling / 2)))

    def _send(self, body: bytes, headers: Mapping[str, str]) -> _Result:
        wait_seconds = self._bucket.take(self._monotonic())
        if wait_seconds:
            self._pause(wait_seconds)
        signed = {
            "Content-Type": "application/json",
            "User-Agent": "Waybill",
            SIGNATURE_HEADER: self._keys.sign(body, int(self._now())),
            **headers,
        }
        try:
            result = self._result_of(self._client.post(body, signed))
        except NoAnswer as error:
            result = _NotNow(str(error))
        except ReplayRefused as error:
            return Refused(str(error))
        if isinstance(result, _NotNow):
            self.breaker = self.breaker.failed(self._now_ms(), int(result.retry_after_seconds * 1000))
            logger.info("the webhook of replay %s does not take a batch: %s", self._request_id, result.reason)
        else:
            self.breaker = self.breaker.succeeded()
        return result

    def _result_of(self, answer: ReceiverAnswer) -> _Result:
        status = answer.status
        if 200 <= status < 300:
            return _Accepted(answer)
        if 300 <= status < 400:
            to = _shown(answer.headers.get("location", "").encode()) or "nowhere"
            return Refused(
                f"redirects to {without_urls(to)} (status {status}), which is not followed: give the final URL"
            )
        if status in _REPEATED or not 400 <= status < 500:
            return _NotNow(f"answers {_described(answer)}", self._retry_after_seconds(answer))
        if status in _ABOUT_THE_WEBHOOK:
            return Refused(f"answers {_described(answer)}")
        return _Rejected(_described(answer))

    def _retry_after_seconds(self, answer: ReceiverAnswer) -> float:
        """Return the pause that the header `Retry-After` asks for, in seconds or as a date; 0 without one."""
        text = answer.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdecimal():
            return min(float(text), MAX_WAIT_SECONDS)
        try:
            return min(max(0.0, parsedate_to_datetime(text).timestamp() - self._now()), MAX_WAIT_SECONDS)
        except (ValueError, OverflowError):
            return 0.0

    def _unavailable(self, result: _NotNow) -> Unavailable:
        wait_seconds = max(self.breaker.wait_ms(self._now_ms()) / 1000, result.retry_after_seconds)
        return Unavailable(result.reason, wait_seconds)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)


def _last_result(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome is not None else None


def _proof_of(answer: ReceiverAnswer) -> str:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return ""
    proof = found.get("proof") if isinstance(found, dict) else None
    return proof if isinstance(proof, str) else ""


def _rejections(part: Batch, reason: str) -> list[Rejection]:
    count = len(part.messages)
    if count > 1:
        reason = f"{reason} (for {count} messages together; too many were rejected to try each alone)"
    return [Rejection(message, reason) for message in part.messages]


def _described(answer: ReceiverAnswer) -> str:
    excerpt = _shown(answer.body)
    return f"{answer.status}: {excerpt}" if excerpt else str(answer.status)


def _shown(data: bytes) -> str:
    """Return the beginning of a receiver's answer in one line without control characters, for logs and lists."""
    text = data[:_EXCERPT_BYTES].decode(errors="replace")
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
