"""Delivery against a receiver in memory that rejects, fails and loses answers as the test draws it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.replay import Replay
from waybill.config.names import TopicPartition
from waybill.replay.requests.delivery.batches import Batch, cut_batches
from waybill.replay.requests.delivery.http import NoAnswer, ReceiverAnswer, WebhookClient
from waybill.replay.requests.delivery.signature import SIGNATURE_HEADER, Keys, is_signed_by
from waybill.replay.requests.delivery.webhook import (
    MAX_SPLIT_REQUESTS,
    Delivered,
    Outcome,
    Unavailable,
    WebhookDelivery,
)
from waybill.replay.requests.message import ReplayedMessage

KEY = b"a secret that nobody guesses 123"
ACCEPT, LOSE_THE_ANSWER, LOSE_THE_REQUEST, ANSWER_503 = "accept", "lose the answer", "lose the request", "503"


class FakeClient(WebhookClient):
    """A receiver that rejects the offsets of `bad`, and first of all does what `faults` says, in turn."""

    def __init__(self, bad: set[int], faults: list[str], retry_after: str = "") -> None:
        self.bad, self.faults, self.retry_after = bad, iter(faults), retry_after
        self.accepted: dict[str, list[int]] = {}
        self.requests = 0
        self.bodies: dict[str, bytes] = {}

    def post(self, body: bytes, headers: Mapping[str, str]) -> ReceiverAnswer:
        self.requests += 1
        assert is_signed_by([KEY], headers[SIGNATURE_HEADER], body, Clock.now)
        key = headers["Idempotency-Key"]
        assert self.bodies.setdefault(key, body) == body
        fault = next(self.faults, ACCEPT)
        if fault == LOSE_THE_REQUEST:
            raise NoAnswer("lost")
        if fault == ANSWER_503:
            return ReceiverAnswer(503, {"retry-after": self.retry_after}, b"busy", False)
        offsets = [message["offset"] for message in json.loads(body)["messages"]]
        if self.bad.intersection(offsets):
            answer = ReceiverAnswer(422, {}, b"no", False)
        else:
            self.accepted[key] = offsets
            answer = ReceiverAnswer(200, {}, b"", False)
        if fault == LOSE_THE_ANSWER:
            raise NoAnswer("lost")
        return answer


class Clock:
    now = 1_763_892_000.0


def batch_of(count: int) -> Batch:
    messages = [ReplayedMessage(TopicPartition("t", 0), offset, 0, None, b"v") for offset in range(count)]
    [batch] = cut_batches(messages, "R1", 0, max_messages=count, max_bytes=1 << 30)
    return batch


def webhook(
    client: FakeClient, attempts: int, breaker: Mapping[str, Any] | None, pauses: list[float]
) -> WebhookDelivery:
    replay = Replay.model_validate({"workers": 1, "webhooks": {"attempts": attempts, "rate_per_second": 10_000}})
    return WebhookDelivery(
        client, "R1", Keys(KEY), replay, breaker, pause=pauses.append, monotonic=lambda: 0.0, now=lambda: Clock.now
    )


def check_end(outcome: Outcome, client: FakeClient, batch: Batch) -> None:
    assert isinstance(outcome, Delivered)
    rejected = [rejection.message.offset for rejection in outcome.rejections]
    accepted = sorted({offset for offsets in client.accepted.values() for offset in offsets})
    assert rejected == sorted(client.bad)
    assert sorted(rejected + accepted) == [message.offset for message in batch.messages]


@given(st.integers(1, 120), st.data())
def test_each_message_is_accepted_or_listed_and_splitting_is_bounded(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=6))
    client = FakeClient(bad, [])
    check_end(webhook(client, 1, None, []).deliver(batch_of(count)), client, batch_of(count))
    if bad:
        assert client.requests <= 1 + 2 * len(bad) * (1 + math.ceil(math.log2(count / len(bad))))
        assert client.requests <= 1 + MAX_SPLIT_REQUESTS
    else:
        assert client.requests == 1


FAULTS = st.lists(st.sampled_from([ACCEPT, LOSE_THE_ANSWER, LOSE_THE_REQUEST, ANSWER_503]), max_size=25)


@given(st.integers(1, 20), st.integers(1, 4), FAULTS, st.data())
def test_with_lost_requests_and_answers_it_ends_the_same(
    count: int, attempts: int, faults: list[str], data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=3))
    client, batch = FakeClient(bad, faults), batch_of(count)
    breaker: Mapping[str, Any] | None = None
    for _ in range(len(faults) + 1):
        pauses: list[float] = []
        hook = webhook(client, attempts, breaker, pauses)
        outcome = hook.deliver(batch)
        assert all(0 < pause <= 30 for pause in pauses)
        if not isinstance(outcome, Unavailable):
            break
        assert outcome.wait_seconds > 0
        breaker = hook.breaker.document() | {"open_until_ms": 0}  # the pause is over
    check_end(outcome, client, batch)


@given(
    st.text(st.characters(max_codepoint=255)) | st.integers().map(str) | st.datetimes().map("{:%a, %d %b %Y %X}".format)
)
def test_whatever_retry_after_says_the_wait_is_bounded(text: str) -> None:
    client = FakeClient(set(), [ANSWER_503] * 10, text)
    pauses: list[float] = []
    outcome = webhook(client, 2, None, pauses).deliver(batch_of(1))
    assert isinstance(outcome, Unavailable)
    assert 0 < outcome.wait_seconds <= 3_600
    assert all(pause <= 60 for pause in pauses)
